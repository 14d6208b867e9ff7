//! The ALFWorld environment.

use super::{compact::SeenObjects, state::HouseholdState, text, world::HouseholdWorld};
use crate::{Anchor, End, Env, Observation, Outcome, ParsedAction, Step};
use std::sync::Arc;

/// One game; every episode starts from the same initial state.
pub struct AlfworldEnv {
    world: Arc<HouseholdWorld>,
    state: HouseholdState,
    seen_objects: SeenObjects,
}

impl AlfworldEnv {
    /// Creates the environment of a game.
    pub fn new(world: Arc<HouseholdWorld>) -> Self {
        let state = world.start().clone();
        AlfworldEnv { world, state, seen_objects: SeenObjects::default() }
    }

    /// The game, for solvers and tests.
    pub fn world(&self) -> &Arc<HouseholdWorld> {
        &self.world
    }

    /// The current state, for solvers and tests.
    pub fn state(&self) -> &HouseholdState {
        &self.state
    }

    fn observation(&mut self, text: String) -> Observation {
        self.seen_objects.observe(&self.world, &self.state);
        Observation { text, compact: self.seen_objects.describe(&self.world, &self.state) }
    }
}

impl Env for AlfworldEnv {
    /// Every episode starts from the same state. The environment is deterministic.
    fn reset(&mut self, _episode: u32) -> Observation {
        self.state.clone_from(self.world.start());
        self.seen_objects = SeenObjects::default();
        self.observation(text::initial_observation(&self.world))
    }

    /// Commands are lower-case, so actions are lower-cased.
    fn parse(&self, text: &str) -> ParsedAction {
        match text.trim() {
            "" => ParsedAction::invalid("the answer names no command"),
            text => ParsedAction::Act(text.to_lowercase()),
        }
    }

    fn step(&mut self, action: &ParsedAction) -> Step {
        let (text, valid) = match action {
            ParsedAction::Act(command) => {
                let world = Arc::clone(&self.world);
                world.step(&mut self.state, command)
            }
            ParsedAction::Invalid { .. } => (text::NOTHING_HAPPENS.to_owned(), false),
        };
        let won = self.world.won(&self.state);
        Step {
            observation: self.observation(text),
            reward: if won { 1.0 } else { 0.0 },
            valid,
            end: won.then_some(End::Terminated { outcome: Outcome::Won, score: 1.0 }),
        }
    }

    /// The original's admissible commands without `help`, which adds nothing to the prompt.
    fn legal(&self) -> Option<Vec<String>> {
        let admissible = self.world.admissible_commands(&self.state).into_iter();
        Some(admissible.filter(|c| *c != super::AlfworldCommand::Help).map(|c| self.world.format_command(c)).collect())
    }

    /// The receptacles at the agent's location and the held object.
    fn anchor(&self) -> Anchor {
        Anchor(text::surroundings(&self.world, &self.state))
    }
}
