//! Human players, and other external players, as opponents.
//!
//! A [`HumanPlayer`] replaces the opponent of a game: a person at a terminal, or any external program.
//! [`EnvSpec::build_with_human`](crate::EnvSpec::build_with_human) builds the environment.

use crate::{ActionId, ActionProbs, GameEnv, Opponent, OpponentSchedule, Rng, Seed, TextGame};
use std::sync::Arc;

/// A game as the human player sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct HumanView {
    /// The player's seat.
    pub seat: u8,
    /// The state in words.
    pub text: String,
    /// A drawing of the state, if available.
    pub rendering: Option<String>,
    /// The legal actions; empty once the game is over.
    pub legal: Vec<String>,
}

/// An external opponent of the agent.
pub trait HumanPlayer: Send + Sync {
    /// Chooses an index into `view.legal`; a larger value selects the last action. `read` parses a text into an index,
    /// or states the problem.
    fn act(&self, view: &HumanView, read: &dyn Fn(&str) -> Result<usize, String>) -> usize;

    /// Called when a game has ended, with the player's score.
    fn game_over(&self, view: &HumanView, score: f32);
}

/// Adapts a [`HumanPlayer`] to [`Opponent`].
struct HumanOpponent(Arc<dyn HumanPlayer>);

fn view<G: TextGame>(game: &G, s: &G::State, seat: u8, legal: &[ActionId]) -> HumanView {
    HumanView {
        seat,
        text: game.describe(s, seat).text,
        rendering: game.render(s, seat),
        legal: legal.iter().map(|a| game.action_name(*a)).collect(),
    }
}

impl<G: TextGame> Opponent<G> for HumanOpponent {
    fn policy(&self, _game: &G, _s: &G::State, _seat: u8) -> Option<ActionProbs> {
        None
    }

    fn act(&self, game: &G, s: &G::State, seat: u8, _rng: &mut Rng) -> ActionId {
        let legal = game.legal(s);
        let read = |text: &str| {
            let action = game.read_action(s, text)?;
            let index = legal.iter().position(|a| *a == action);
            index.ok_or_else(|| format!("{} is not possible here", game.action_name(action)))
        };
        let chosen = self.0.act(&view(game, s, seat, &legal), &read);
        legal[chosen.min(legal.len() - 1)]
    }

    fn game_over(&self, game: &G, s: &G::State, seat: u8) {
        self.0.game_over(&view(game, s, seat, &[]), game.score(s, seat));
    }
}

/// An environment with the agent in `seat` and the human player in the other.
pub(crate) fn game_env<G: TextGame>(
    game: Arc<G>,
    human: Arc<dyn HumanPlayer>,
    seat: u8,
    deal: crate::Deal,
    seed: Seed,
) -> GameEnv<G> {
    GameEnv::new_unreset(game, OpponentSchedule::stationary("human", Arc::new(HumanOpponent(human))), seat, deal, seed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ParsedAction, Registry};
    use std::sync::Mutex;

    /// Plays fixed words and records its views.
    #[derive(Default)]
    struct ScriptedHuman {
        words: Vec<&'static str>,
        seen: Mutex<Vec<String>>,
    }

    impl HumanPlayer for ScriptedHuman {
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
    fn human_player_acts_once_per_turn_and_sees_the_end() {
        let registry = Registry::builtin();
        for (name, seat, agent, human) in [("kuhn", 1, "BET", "BET"), ("kuhn", 0, "BET", "PASS")] {
            let env_spec = registry.get(name).unwrap();
            let mut task = env_spec.default_population().sample_task("train", 2, Seed::new(3)).unwrap();
            task.seat = seat;
            let player = Arc::new(ScriptedHuman { words: vec![human], ..ScriptedHuman::default() });
            let mut env =
                env_spec.build_with_human(&task, Arc::clone(&player) as Arc<dyn HumanPlayer>).unwrap().unwrap();
            assert!(player.seen.lock().unwrap().is_empty(), "the player is not queried before the first episode");
            for episode in 0..2 {
                env.reset(episode);
                let step = env.step(&ParsedAction::Act(agent.to_owned()));
                let Some(crate::End::Terminated { score, .. }) = step.end else { panic!("{step:?}") };
                let seen = std::mem::take(&mut *player.seen.lock().unwrap());
                // Zero-sum: the human player loses what the agent wins.
                assert_eq!(seen, [format!("{}: PASS/BET", 1 - seat), format!("over {:+}", -score)]);
            }
        }
    }

    #[test]
    fn worlds_have_no_seat_for_a_human() {
        let registry = Registry::builtin();
        let rooms = registry.get("sokoban").unwrap();
        let population = rooms.default_population();
        let split = population.splits().next().unwrap().to_owned();
        let task = population.sample_task(&split, 1, Seed::new(3)).unwrap();
        assert!(rooms.build_with_human(&task, Arc::new(ScriptedHuman::default())).unwrap().is_none());
    }
}
