//! How does a game become something one agent faces?
//!
//! [`GameEnv`] fills the other seats with a [`OpponentSchedule`] and plays nature and the rival until the agent is to move.

use crate::{
    ActionId, Anchor, CurrentPlayer, End, Env, GameTree, Observation, OpponentSchedule, Outcome, ParsedAction, Rng,
    Seed, Step, TextGame, game::draw, solvers::game_tree,
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// What happens to the opening deal from one episode of a task to the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Deal {
    /// A new one each episode: to do better next time, one must understand the opponent.
    #[default]
    Fresh,
    /// The same one in every episode, as in the paper: remembering the cards helps too.
    Fixed,
}

/// A game with an agent in one seat and a rival in all others.
pub struct GameEnv<G: TextGame> {
    game: Arc<G>,
    rival: OpponentSchedule<G>,
    seat: u8,
    deal: Deal,
    opening: Deal,
    seed: Seed,
    episode: u32,
    turn: u32,
    state: G::State,
}

impl<G: TextGame> GameEnv<G> {
    /// The agent in `seat`, `rival` in the others.
    pub fn new(game: Arc<G>, rival: OpponentSchedule<G>, seat: u8, deal: Deal, seed: Seed) -> Self {
        let mut env = Self::unopened(game, rival, seat, deal, seed);
        env.reset(0);
        env
    }

    /// The same before anybody has moved: a rival that must not be asked twice waits for the first episode to begin.
    pub(crate) fn unopened(game: Arc<G>, rival: OpponentSchedule<G>, seat: u8, deal: Deal, seed: Seed) -> Self {
        let state = game.initial(&mut seed.child("start").rng());
        GameEnv { game, rival, seat, deal, opening: Deal::Fresh, seed, episode: 0, turn: 0, state }
    }

    /// Whether the rival's luck before the agent's first move is new in each episode, as it is unless said, or the same
    /// throughout the task, so that a rival that opens repeats its opening as in the paper.
    #[must_use]
    pub fn with_opening(mut self, opening: Deal) -> Self {
        self.opening = opening;
        self.reset(0);
        self
    }

    /// The position, for oracles and tests. An agent never gets here.
    pub fn state(&self) -> &G::State {
        &self.state
    }

    /// Chance and opponents, until the agent moves or the game is over.
    fn run_others(&mut self, opening: Option<&mut Rng>) {
        let luck = self.seed.child("luck");
        let mut luck = match (self.opening, self.turn) {
            (Deal::Fixed, 0) => luck.child("opening").rng(),
            _ => luck.at(u64::from(self.episode)).at(u64::from(self.turn)).rng(),
        };
        let mut opening = opening;
        loop {
            let action = match self.game.current_player(&self.state) {
                CurrentPlayer::Terminal => {
                    let rival = self.rival.in_episode(self.seed, self.episode);
                    let others = (0..self.game.players()).filter(|p| *p != self.seat);
                    return others.for_each(|p| rival.game_over(&self.game, &self.state, p));
                }
                CurrentPlayer::Player(p) if p == self.seat => return,
                CurrentPlayer::Chance => {
                    let rng = opening.as_deref_mut().unwrap_or(&mut luck);
                    draw(&self.game.chance(&self.state), rng)
                }
                CurrentPlayer::Player(p) => {
                    opening = None; // the deal is over once somebody acts
                    self.rival.in_episode(self.seed, self.episode).act(&self.game, &self.state, p, &mut luck)
                }
            };
            self.game.apply(&mut self.state, action);
        }
    }

    fn legal_action(&self, name: &str) -> Option<ActionId> {
        if self.game.current_player(&self.state) != CurrentPlayer::Player(self.seat) {
            return None;
        }
        self.game.legal(&self.state).into_iter().find(|a| self.game.action_name(*a) == name)
    }

    fn own_return(&self) -> f32 {
        self.game.returns(&self.state)[usize::from(self.seat)]
    }
}

impl<G: TextGame> Env for GameEnv<G> {
    fn reset(&mut self, episode: u32) -> Observation {
        self.episode = episode;
        self.turn = 0;
        self.state = self.game.initial(&mut self.seed.child("start").rng());
        let deal = self.seed.child("deal");
        let mut deal = match self.deal {
            Deal::Fresh => deal.at(u64::from(episode)).rng(),
            Deal::Fixed => deal.rng(),
        };
        self.run_others(Some(&mut deal));
        self.game.describe(&self.state, self.seat)
    }

    fn parse(&self, text: &str) -> ParsedAction {
        match self.game.read_action(&self.state, text) {
            Ok(a) => ParsedAction::Act(self.game.action_name(a)),
            Err(reason) => ParsedAction::invalid(reason),
        }
    }

    fn step(&mut self, action: &ParsedAction) -> Step {
        self.turn += 1;
        let before = self.own_return();
        let legal = match action {
            ParsedAction::Act(name) => self.legal_action(name),
            ParsedAction::Invalid { .. } => None,
        };
        if let Some(a) = legal {
            self.game.apply(&mut self.state, a);
            self.run_others(None);
        }
        let end = (self.game.current_player(&self.state) == CurrentPlayer::Terminal).then(|| {
            let outcome = match self.own_return() {
                r if r > 0.0 => Outcome::Won,
                r if r < 0.0 => Outcome::Lost,
                _ => Outcome::Draw,
            };
            End::Terminated { outcome, score: self.game.score(&self.state, self.seat) }
        });
        Step {
            observation: self.game.describe(&self.state, self.seat),
            reward: self.own_return() - before,
            valid: legal.is_some(),
            end,
        }
    }

    fn legal(&self) -> Option<Vec<String>> {
        let own_turn = self.game.current_player(&self.state) == CurrentPlayer::Player(self.seat);
        let actions = if own_turn { self.game.legal(&self.state) } else { Default::default() };
        Some(actions.into_iter().map(|a| self.game.action_name(a)).collect())
    }

    fn anchor(&self) -> Anchor {
        Anchor(self.game.anchor(&self.state, self.seat))
    }

    fn render(&self) -> Option<String> {
        self.game.render(&self.state, self.seat)
    }

    fn game_tree(&self, episode: u32, limit: usize) -> Option<GameTree> {
        if self.deal == Deal::Fixed || self.opening == Deal::Fixed {
            return None; // an episode then depends on the one before, not on what can happen in general
        }
        let start = self.game.initial(&mut self.seed.child("start").rng());
        let others = self.rival.in_episode(self.seed, episode);
        game_tree::grow(&*self.game, start, self.seat, others, limit)
    }
}
