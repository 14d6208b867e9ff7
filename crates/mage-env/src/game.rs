//! The rules of a game for any number of players.
//!
//! Self-play, scripted opponents, language-model opponents and exact solvers build on [`Game`] and know no particular
//! game.

use crate::{Observation, Rng};
use mage_rng::weighted_index;
use rand::RngExt;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

/// Maximum number of seats.
pub const MAX_PLAYERS: usize = 4;

/// An action, as numbered by the game.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ActionId(pub u16);

/// A short list of actions, without a heap allocation in games of up to sixteen.
pub type ActionList = SmallVec<[ActionId; 16]>;

/// A distribution over actions.
pub type ActionProbs = SmallVec<[(ActionId, f64); 16]>;

/// The player to move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CurrentPlayer {
    /// The player in this seat.
    Player(u8),
    /// Chance: a deal, a die.
    Chance,
    /// None: the game has ended.
    Terminal,
}

/// Rules of a game for any number of players.
pub trait Game: Send + Sync {
    /// A state, including hidden information.
    type State: Clone + Send;

    /// Number of seats.
    fn players(&self) -> u8;

    /// The initial state. Randomness that players observe belongs in [`CurrentPlayer::Chance`] states; `rng` is for
    /// set-ups drawn at once, such as a generated level.
    fn initial(&self, rng: &mut Rng) -> Self::State;

    /// The player to move.
    fn current_player(&self, s: &Self::State) -> CurrentPlayer;

    /// Legal actions of the player to move, including chance; empty when the game is over.
    fn legal(&self, s: &Self::State) -> ActionList;

    /// Probabilities of chance actions; uniform by default.
    fn chance(&self, s: &Self::State) -> ActionProbs {
        let legal = self.legal(s);
        let p = 1.0 / legal.len() as f64;
        legal.into_iter().map(|a| (a, p)).collect()
    }

    /// Plays one of the legal actions.
    fn apply(&self, s: &mut Self::State, a: ActionId);

    /// Returns of each seat so far; final once the game is over.
    fn returns(&self, s: &Self::State) -> [f32; MAX_PLAYERS];

    /// The information state of one player, including its own past actions. States with the same text form one
    /// information set.
    fn observe(&self, s: &Self::State, player: u8) -> String;
}

/// A game with a text interface. Only the names of actions are required; the rest follows from [`Game::observe`].
pub trait TextGame: Game {
    /// The canonical name of an action, as used in prompts.
    fn action_name(&self, a: ActionId) -> String;

    /// The state for an agent in seat `player`, in sentences and compact words; at the end, also the result and the
    /// information that the rules then reveal. The default is the information state in both forms.
    fn describe(&self, s: &Self::State, player: u8) -> Observation {
        let text = self.observe(s, player);
        Observation { compact: text.clone(), text }
    }

    /// Parses an action from the text between the tags. The error states the problem. The default accepts the names of
    /// the legal actions in any case.
    fn read_action(&self, s: &Self::State, text: &str) -> Result<ActionId, String> {
        let legal = self.legal(s);
        let named = |a: &&ActionId| self.action_name(**a).eq_ignore_ascii_case(text.trim());
        legal.iter().find(named).copied().ok_or_else(|| {
            let names: Vec<String> = legal.iter().map(|a| self.action_name(*a)).collect();
            format!("expected one of {}", names.join(", "))
        })
    }

    /// A factual reflection on a finished game in compact words: what the player learned about the others. The default
    /// is the last observation.
    fn facts(&self, s: &Self::State, player: u8) -> String {
        self.describe(s, player).compact
    }

    /// The current state without history, as one player may know it. Transitions are grouped by it.
    fn anchor(&self, s: &Self::State, player: u8) -> String {
        self.observe(s, player)
    }

    /// The reported score of a finished game: by default the player's return. Rewards are returns in any case.
    fn score(&self, s: &Self::State, player: u8) -> f32 {
        self.returns(s)[usize::from(player)]
    }

    /// A drawing of the state for people, with the information of its description.
    fn render(&self, _s: &Self::State, _player: u8) -> Option<String> {
        None
    }
}

/// A fixed strategy for a seat.
pub trait Opponent<G: Game>: Send + Sync {
    /// Action probabilities, if known exactly. Solvers need them; a searching opponent has none.
    fn policy(&self, game: &G, s: &G::State, seat: u8) -> Option<ActionProbs>;

    /// Chooses an action. The default samples [`policy`](Opponent::policy), or plays uniformly without one.
    fn act(&self, game: &G, s: &G::State, seat: u8, rng: &mut Rng) -> ActionId {
        match self.policy(game, s, seat) {
            Some(p) => sample_action(&p, rng),
            None => sample_uniform(&game.legal(s), rng),
        }
    }

    /// Called when a game has ended.
    fn game_over(&self, _game: &G, _s: &G::State, _seat: u8) {}
}

/// A function of the game, a state and a seat that returns action probabilities.
impl<G, F> Opponent<G> for F
where
    G: Game,
    F: Fn(&G, &G::State, u8) -> ActionProbs + Send + Sync,
{
    fn policy(&self, game: &G, s: &G::State, seat: u8) -> Option<ActionProbs> {
        Some(self(game, s, seat))
    }
}

/// The probabilities of actions 0, 1, 2 and so on.
pub fn action_probs(probs: impl IntoIterator<Item = f64>) -> ActionProbs {
    (0..).map(ActionId).zip(probs).collect()
}

/// Plays legal actions uniformly.
#[derive(Clone, Copy, Debug, Default)]
pub struct UniformOpponent;

impl<G: Game> Opponent<G> for UniformOpponent {
    fn policy(&self, game: &G, s: &G::State, _seat: u8) -> Option<ActionProbs> {
        let legal = game.legal(s);
        let p = 1.0 / legal.len() as f64;
        Some(legal.into_iter().map(|a| (a, p)).collect())
    }
}

/// Samples a distribution over actions.
pub fn sample_action(probs: &ActionProbs, rng: &mut Rng) -> ActionId {
    probs[weighted_index(probs.iter().map(|(_, p)| *p), rng)].0
}

/// Samples an action uniformly.
pub fn sample_uniform(actions: &ActionList, rng: &mut Rng) -> ActionId {
    actions[rng.random_range(0..actions.len())]
}
