//! What does an agent face?

use super::{compact::Knowledge, state::State, text, world::World};
use crate::{Anchor, End, Env, Observation, Outcome, ParsedAction, Step};
use std::sync::Arc;

/// One game, which can be tried again and again.
pub struct AlfworldEnv {
    world: Arc<World>,
    state: State,
    known: Knowledge,
}

impl AlfworldEnv {
    /// The game at its start.
    pub fn new(world: Arc<World>) -> Self {
        let state = world.start().clone();
        AlfworldEnv { world, state, known: Knowledge::default() }
    }

    /// The game, for experts and tests.
    pub fn world(&self) -> &Arc<World> {
        &self.world
    }

    /// How things stand, for experts and tests.
    pub fn state(&self) -> &State {
        &self.state
    }

    fn observation(&mut self, text: String) -> Observation {
        self.known.look_around(&self.world, &self.state);
        Observation { text, compact: self.known.describe(&self.world, &self.state) }
    }
}

impl Env for AlfworldEnv {
    /// Every episode starts from the same state: nothing here is left to chance.
    fn reset(&mut self, _episode: u32) -> Observation {
        self.state.clone_from(self.world.start());
        self.known = Knowledge::default();
        self.observation(text::opening(&self.world))
    }

    /// Commands are lower-case, so capitals are forgiven.
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
            ParsedAction::Invalid { .. } => (text::NOTHING.to_owned(), false),
        };
        let won = self.world.won(&self.state);
        Step {
            observation: self.observation(text),
            reward: if won { 1.0 } else { 0.0 },
            valid,
            end: won.then_some(End::Terminated { outcome: Outcome::Won, score: 1.0 }),
        }
    }

    /// What the original offers, without `help`: it teaches nothing that a prompt does not say.
    fn legal(&self) -> Option<Vec<String>> {
        let offered = self.world.admissible(&self.state).into_iter();
        Some(offered.filter(|c| *c != super::Command::Help).map(|c| self.world.write(c)).collect())
    }

    /// What can be seen from here and what is carried.
    fn anchor(&self) -> Anchor {
        Anchor(text::surroundings(&self.world, &self.state))
    }
}
