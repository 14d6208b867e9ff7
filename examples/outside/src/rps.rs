//! Rock-paper-scissors against opponents with a favourite throw.
//!
//! The game is sequential: the opponent moves first, and its throw is hidden until the agent has moved.

use mage_env::{ActionId, ActionList, CurrentPlayer, Game, GameSpec, MAX_PLAYERS, Rng, TextGame, action_probs};

/// The throws; each beats the one before it, and the first beats the last.
const THROWS: [&str; 3] = ["ROCK", "PAPER", "SCISSORS"];

/// The rules of rock-paper-scissors. A state is the list of throws so far: the opponent's (seat 1), then the agent's.
pub struct Rps;

impl Game for Rps {
    type State = Vec<ActionId>;

    fn players(&self) -> u8 {
        2
    }

    fn initial(&self, _rng: &mut Rng) -> Vec<ActionId> {
        Vec::new()
    }

    fn current_player(&self, throws: &Vec<ActionId>) -> CurrentPlayer {
        [CurrentPlayer::Player(1), CurrentPlayer::Player(0), CurrentPlayer::Terminal][throws.len()]
    }

    fn legal(&self, throws: &Vec<ActionId>) -> ActionList {
        (0..3).filter(|_| throws.len() < 2).map(ActionId).collect()
    }

    fn apply(&self, throws: &mut Vec<ActionId>, throw: ActionId) {
        throws.push(throw);
    }

    fn returns(&self, throws: &Vec<ActionId>) -> [f32; MAX_PLAYERS] {
        let points = match throws[..] {
            [theirs, own] => [0.0, 1.0, -1.0][usize::from((own.0 + 3 - theirs.0) % 3)],
            _ => 0.0,
        };
        [points, -points, 0.0, 0.0]
    }

    fn observe(&self, throws: &Vec<ActionId>, player: u8) -> String {
        match throws[..] {
            [theirs, own] => format!("own {} theirs {}", self.action_name(own), self.action_name(theirs)),
            [theirs] if player == 1 => self.action_name(theirs),
            _ => "throw".to_owned(),
        }
    }
}

impl TextGame for Rps {
    fn action_name(&self, throw: ActionId) -> String {
        THROWS[usize::from(throw.0)].to_owned()
    }
}

/// The environment: rules, three opponents, and the agent in seat 0.
pub fn spec() -> GameSpec<Rps> {
    let prefers = |favourite: u16| {
        move |_: &Rps, _: &Vec<ActionId>, _: u8| {
            action_probs((0..3).map(|throw| if throw == favourite { 0.8 } else { 0.1 }))
        }
    };
    GameSpec::new("rps", Rps)
        .describe("Rock-paper-scissors", "against an opponent with a favourite throw", "points per round")
        .rules("You play rock-paper-scissors. Rock beats scissors, scissors beat paper, paper beats rock.\n")
        .seats(&[1.0, 0.0])
        .opponent("rocky", "mostly throws rock", prefers(0))
        .opponent("wrapper", "mostly throws paper", prefers(1))
        .opponent("cutter", "mostly throws scissors", prefers(2))
}
