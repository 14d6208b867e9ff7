//! What are the rules, for any number of players?
//!
//! Self-play, scripted opponents, language-model opponents and exact oracles all build on [`Game`]; none of them knows
//! which game it is.

use crate::{Observation, Rng};
use mage_rng::weighted_index;
use rand::RngExt;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

/// The most seats a game may have.
pub const MAX_PLAYERS: usize = 4;

/// One action of a game, numbered by the game.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ActionId(pub u16);

/// A short list of actions, without a heap allocation in games of up to sixteen.
pub type ActionList = SmallVec<[ActionId; 16]>;

/// A probability for each action of a list.
pub type ActionProbs = SmallVec<[(ActionId, f64); 16]>;

/// Who moves next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CurrentPlayer {
    /// The player in this seat.
    Player(u8),
    /// Nature: a deal, a die.
    Chance,
    /// Nobody: the game has ended.
    Terminal,
}

/// Rules of a game for any number of players.
pub trait Game: Send + Sync {
    /// A position: everything, hidden parts included.
    type State: Clone + Send;

    /// How many seats there are.
    fn players(&self) -> u8;

    /// The position play starts from. Randomness that players see unfold belongs in [`CurrentPlayer::Chance`] positions;
    /// `rng` is for set-ups drawn at once, such as a generated level.
    fn initial(&self, rng: &mut Rng) -> Self::State;

    /// Who moves next.
    fn current_player(&self, s: &Self::State) -> CurrentPlayer;

    /// The actions of whoever moves next, nature included; empty when the game is over.
    fn legal(&self, s: &Self::State) -> ActionList;

    /// How likely each of nature's actions is; equally likely unless a game says otherwise.
    fn chance(&self, s: &Self::State) -> ActionProbs {
        let legal = self.legal(s);
        let p = 1.0 / legal.len() as f64;
        legal.into_iter().map(|a| (a, p)).collect()
    }

    /// Plays one of the legal actions.
    fn apply(&self, s: &mut Self::State, a: ActionId);

    /// What each seat has won so far; final once the game is over.
    fn returns(&self, s: &Self::State) -> [f32; MAX_PLAYERS];

    /// The position as one player may know it, own past actions included: two positions with the same text are one
    /// information set.
    fn observe(&self, s: &Self::State, player: u8) -> String;
}

/// A game that can be played in words.
pub trait TextGame: Game {
    /// The position for an agent in seat `player`, in sentences and in compact words; after the end, also how it
    /// ended and whatever the rules reveal then.
    fn describe(&self, s: &Self::State, player: u8) -> Observation;

    /// The canonical name of an action, as it stands in prompts.
    fn action_name(&self, a: ActionId) -> String;

    /// Reads an action from what stood between the tags. The error says what was wrong.
    fn read_action(&self, s: &Self::State, text: &str) -> Result<ActionId, String>;

    /// The current position alone, without history, as one player may know it: what rows are grouped by.
    fn anchor(&self, s: &Self::State, player: u8) -> String {
        self.observe(s, player)
    }

    /// What a finished game counts for in results: the player's return, unless a game is usually counted otherwise.
    /// Rewards are returns in any case.
    fn score(&self, s: &Self::State, player: u8) -> f32 {
        self.returns(s)[usize::from(player)]
    }

    /// The position as a drawing for people, as one player may know it, with all that its description says.
    fn render(&self, _s: &Self::State, _player: u8) -> Option<String> {
        None
    }
}

/// Someone who plays a seat by fixed rules.
pub trait Opponent<G: Game>: Send + Sync {
    /// How likely each legal action is, where that can be said exactly. Oracles need it; a searching opponent has none.
    fn policy(&self, game: &G, s: &G::State, seat: u8) -> Option<ActionProbs>;

    /// Chooses an action. Drawn from [`policy`](Opponent::policy) unless an opponent has none.
    fn act(&self, game: &G, s: &G::State, seat: u8, rng: &mut Rng) -> ActionId {
        match self.policy(game, s, seat) {
            Some(p) => draw(&p, rng),
            None => draw_uniform(&game.legal(s), rng),
        }
    }

    /// Sees how a game ended, for those who care.
    fn game_over(&self, _game: &G, _s: &G::State, _seat: u8) {}
}

/// Plays any legal action with equal probability.
#[derive(Clone, Copy, Debug, Default)]
pub struct UniformOpponent;

impl<G: Game> Opponent<G> for UniformOpponent {
    fn policy(&self, game: &G, s: &G::State, _seat: u8) -> Option<ActionProbs> {
        let legal = game.legal(s);
        let p = 1.0 / legal.len() as f64;
        Some(legal.into_iter().map(|a| (a, p)).collect())
    }
}

/// Draws from a distribution over actions.
pub fn draw(probs: &ActionProbs, rng: &mut Rng) -> ActionId {
    probs[weighted_index(probs.iter().map(|(_, p)| *p), rng)].0
}

/// Draws one of the actions, each equally likely.
pub fn draw_uniform(actions: &ActionList, rng: &mut Rng) -> ActionId {
    actions[rng.random_range(0..actions.len())]
}
