//! How does somebody who is no program sit down opposite the agent?
//!
//! A [`HumanPlayer`] takes the rival's place in a game: a person at a terminal, or anything else that answers when asked.
//! [`EnvSpec::build_with_human`](crate::EnvSpec::build_with_human) lays the table.

use crate::{ActionId, ActionProbs, GameEnv, Opponent, OpponentSchedule, Rng, Seed, TextGame};
use std::sync::Arc;

/// A game as the guest may see it.
#[derive(Clone, Debug, PartialEq)]
pub struct HumanView {
    /// The guest's seat.
    pub seat: u8,
    /// The position in words.
    pub text: String,
    /// The position as a drawing, where there is one.
    pub rendering: Option<String>,
    /// What the guest may do; empty once the game is over.
    pub legal: Vec<String>,
}

/// Somebody opposite the agent.
pub trait HumanPlayer: Send + Sync {
    /// Chooses one of `view.legal`, by number; a number too large is taken as the last. `read` tells which number a text
    /// stands for, or what is wrong with it.
    fn act(&self, view: &HumanView, read: &dyn Fn(&str) -> Result<usize, String>) -> usize;

    /// Sees how a game ended and what it brought the guest.
    fn game_over(&self, view: &HumanView, score: f32);
}

/// A guest as a game's opponent.
struct Seated(Arc<dyn HumanPlayer>);

fn view<G: TextGame>(game: &G, s: &G::State, seat: u8, legal: &[ActionId]) -> HumanView {
    HumanView {
        seat,
        text: game.describe(s, seat).text,
        rendering: game.render(s, seat),
        legal: legal.iter().map(|a| game.action_name(*a)).collect(),
    }
}

impl<G: TextGame> Opponent<G> for Seated {
    fn policy(&self, _game: &G, _s: &G::State, _seat: u8) -> Option<ActionProbs> {
        None
    }

    fn act(&self, game: &G, s: &G::State, seat: u8, _rng: &mut Rng) -> ActionId {
        let legal = game.legal(s);
        let read = |text: &str| {
            let action = game.read_action(s, text)?;
            let place = legal.iter().position(|a| *a == action);
            place.ok_or_else(|| format!("{} is not possible here", game.action_name(action)))
        };
        let chosen = self.0.act(&view(game, s, seat, &legal), &read);
        legal[chosen.min(legal.len() - 1)]
    }

    fn game_over(&self, game: &G, s: &G::State, seat: u8) {
        self.0.game_over(&view(game, s, seat, &[]), game.score(s, seat));
    }
}

/// A table with the agent in `seat` and the guest in the other.
pub(crate) fn table<G: TextGame>(
    game: G,
    guest: Arc<dyn HumanPlayer>,
    seat: u8,
    deal: crate::Deal,
    seed: Seed,
) -> GameEnv<G> {
    GameEnv::unopened(Arc::new(game), OpponentSchedule::stationary("guest", Arc::new(Seated(guest))), seat, deal, seed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ParsedAction, Registry};
    use std::sync::Mutex;

    /// Plays what it was told to and writes down what it saw.
    #[derive(Default)]
    struct Scripted {
        words: Vec<&'static str>,
        seen: Mutex<Vec<String>>,
    }

    impl HumanPlayer for Scripted {
        fn act(&self, view: &HumanView, read: &dyn Fn(&str) -> Result<usize, String>) -> usize {
            let mut seen = self.seen.lock().unwrap();
            let word = self.words[seen.len() % self.words.len()];
            seen.push(format!("{}: {}", view.seat, view.legal.join("/")));
            assert!(read("nonsense").is_err());
            read(word).unwrap()
        }

        fn game_over(&self, view: &HumanView, score: f32) {
            assert!(view.legal.is_empty());
            self.seen.lock().unwrap().push(format!("over {score:+}"));
        }
    }

    #[test]
    fn a_guest_is_asked_once_a_turn_and_sees_the_end() {
        let registry = Registry::builtin();
        for (name, seat, agent, guest) in [("kuhn", 1, "BET", "BET"), ("kuhn", 0, "BET", "PASS")] {
            let env_spec = registry.get(name).unwrap();
            let mut task = env_spec.default_population().draw("train", 2, Seed::new(3)).unwrap();
            task.seat = seat;
            let sitting = Arc::new(Scripted { words: vec![guest], ..Scripted::default() });
            let mut env =
                env_spec.build_with_human(&task, Arc::clone(&sitting) as Arc<dyn HumanPlayer>).unwrap().unwrap();
            assert!(sitting.seen.lock().unwrap().is_empty(), "nobody is asked before the first episode begins");
            for episode in 0..2 {
                env.reset(episode);
                let step = env.step(&ParsedAction::Act(agent.to_owned()));
                let Some(crate::End::Terminated { score, .. }) = step.end else { panic!("{step:?}") };
                let seen = std::mem::take(&mut *sitting.seen.lock().unwrap());
                // What the agent won, the guest lost.
                assert_eq!(seen, [format!("{}: PASS/BET", 1 - seat), format!("over {:+}", -score)]);
            }
        }
    }

    #[test]
    fn worlds_have_no_other_seat() {
        let registry = Registry::builtin();
        let rooms = registry.get("sokoban").unwrap();
        let population = rooms.default_population();
        let split = population.splits().next().unwrap().to_owned();
        let task = population.draw(&split, 1, Seed::new(3)).unwrap();
        assert!(rooms.build_with_human(&task, Arc::new(Scripted::default())).unwrap().is_none());
    }
}
