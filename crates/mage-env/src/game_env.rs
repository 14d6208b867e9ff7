//! A game as a single-agent environment.
//!
//! [`GameEnv`] fills the other seats with an [`OpponentSchedule`], and plays chance and the opponent until the agent is
//! to move.

use crate::{
    ActionId, Anchor, CurrentPlayer, End, Env, GameTree, Observation, OpponentSchedule, Outcome, ParsedAction, Rng,
    Seed, Step, TextGame, game::sample_action, solvers::game_tree,
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Whether the chance opening changes between the episodes of a task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Deal {
    /// A new deal each episode: improvement requires modelling the opponent.
    #[default]
    Fresh,
    /// One deal for all episodes, as in the paper: remembering the cards helps too.
    Fixed,
}

/// A game with the agent in one seat and an opponent in all others.
pub struct GameEnv<G: TextGame> {
    game: Arc<G>,
    opponent: OpponentSchedule<G>,
    seat: u8,
    deal: Deal,
    opening: Deal,
    seed: Seed,
    episode: u32,
    turn: u32,
    state: G::State,
}

impl<G: TextGame> GameEnv<G> {
    /// An environment with the agent in `seat` and `opponent` in the others, reset to episode 0.
    pub fn new(game: Arc<G>, opponent: OpponentSchedule<G>, seat: u8, deal: Deal, seed: Seed) -> Self {
        let mut env = Self::new_unreset(game, opponent, seat, deal, seed);
        env.reset(0);
        env
    }

    /// An environment that has not been reset yet, for opponents that must not be queried before the first episode.
    pub(crate) fn new_unreset(game: Arc<G>, opponent: OpponentSchedule<G>, seat: u8, deal: Deal, seed: Seed) -> Self {
        let state = game.initial(&mut seed.child("start").rng());
        GameEnv { game, opponent, seat, deal, opening: Deal::Fresh, seed, episode: 0, turn: 0, state }
    }

    /// Sets whether the opponent's randomness before the agent's first move is new in each episode (the default) or
    /// fixed throughout the task, so that an opponent that moves first repeats its opening as in the paper.
    #[must_use]
    pub fn with_opening(mut self, opening: Deal) -> Self {
        self.opening = opening;
        self.reset(0);
        self
    }

    /// The state, for solvers and tests. Agents never see it.
    pub fn state(&self) -> &G::State {
        &self.state
    }

    /// Plays chance and opponents until the agent is to move or the game is over.
    fn run_others(&mut self, opening: Option<&mut Rng>) {
        let stream = self.seed.child("opponent actions");
        let mut rng = match (self.opening, self.turn) {
            (Deal::Fixed, 0) => stream.child("opening").rng(),
            _ => stream.at(u64::from(self.episode)).at(u64::from(self.turn)).rng(),
        };
        let mut opening = opening;
        loop {
            let action = match self.game.current_player(&self.state) {
                CurrentPlayer::Terminal => {
                    let opponent = self.opponent.in_episode(self.seed, self.episode);
                    let others = (0..self.game.players()).filter(|p| *p != self.seat);
                    return others.for_each(|p| opponent.game_over(&self.game, &self.state, p));
                }
                CurrentPlayer::Player(p) if p == self.seat => return,
                CurrentPlayer::Chance => {
                    let rng = opening.as_deref_mut().unwrap_or(&mut rng);
                    sample_action(&self.game.chance(&self.state), rng)
                }
                CurrentPlayer::Player(p) => {
                    opening = None; // the deal is over once a player acts
                    self.opponent.in_episode(self.seed, self.episode).act(&self.game, &self.state, p, &mut rng)
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
            return None; // episodes then share randomness, which the tree does not model
        }
        let start = self.game.initial(&mut self.seed.child("start").rng());
        let others = self.opponent.in_episode(self.seed, episode);
        game_tree::build(&*self.game, start, self.seat, others, limit)
    }
}
