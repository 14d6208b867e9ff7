//! Agents that play Kuhn poker by rule.

use super::{
    facts::update_from_facts,
    opponents::{StrategyTable, equilibrium},
    rules::{BET, Card, Hand, Kuhn, PASS},
    spec::KuhnSpec,
    text::facts,
};
use crate::{
    ActionId, Game, PromptView, Result, Rng, ScriptedAgent, ScriptedAgentFactory, ScriptedAgentInfo,
    ScriptedAgentQuery, Seed, Task, TextGame,
    game::{draw, draw_uniform},
    solvers::{BayesAdaptiveSolver, ScoreObjective},
};
use std::sync::Arc;

/// How many iterations the `nash` agent's policy is computed with.
const NASH_ITERATIONS: u32 = 10_000;

pub(super) fn docs() -> Vec<ScriptedAgentInfo> {
    vec![
        ScriptedAgentInfo::new("nash", "an equilibrium: cannot be beaten on average, and does not adapt"),
        ScriptedAgentInfo::new("bayes", "the best possible learner when all episodes count alike"),
        ScriptedAgentInfo::new("bayes-last", "the best possible learner when only the last episode counts"),
        ScriptedAgentInfo::with_full_info("best-response", "the best against the opponent, whose name it is told"),
    ]
}

/// The maker for a name, or `None` if there is no such agent.
pub(super) fn maker(
    env_spec: &KuhnSpec,
    query: &ScriptedAgentQuery<'_>,
) -> Result<Option<Arc<dyn ScriptedAgentFactory>>> {
    let solved = || -> Result<Arc<[BayesAdaptiveSolver; 2]>> {
        let seat = |seat| env_spec.bayes(query.population, query.split, seat, query.episodes);
        Ok(Arc::new([seat(0)?, seat(1)?]))
    };
    Ok(Some(match query.name {
        "nash" => Arc::new(NashMaker(equilibrium(NASH_ITERATIONS))),
        "bayes" => Arc::new(LearnerMaker { solved: solved()?, aim: Aim::Learn(ScoreObjective::Sum) }),
        "bayes-last" => Arc::new(LearnerMaker { solved: solved()?, aim: Aim::Learn(ScoreObjective::Last) }),
        "best-response" => {
            let opponents = query.population.in_split(query.split)?;
            let names = opponents.into_iter().map(|(_, spec)| spec.name.clone()).collect();
            Arc::new(LearnerMaker { solved: solved()?, aim: Aim::Exploit(names) })
        }
        _ => return Ok(None),
    }))
}

struct NashMaker(StrategyTable);

impl ScriptedAgentFactory for NashMaker {
    fn make(&self, _task: &Task, seed: Seed) -> Box<dyn ScriptedAgent> {
        Box::new(Nash { table: self.0, rng: seed.rng() })
    }
}

/// Plays a fixed strategy.
struct Nash {
    table: StrategyTable,
    rng: Rng,
}

impl ScriptedAgent for Nash {
    fn act(&mut self, seen: &PromptView<'_>) -> String {
        let bet = View::read(seen.observation).and_then(|v| self.table.bet_probability(v.card, &v.line()));
        let bet = bet.unwrap_or(0.5);
        Kuhn.action_name(draw(&[(PASS, 1.0 - bet), (BET, bet)].into_iter().collect(), &mut self.rng))
    }

    fn reflect(&mut self, finished: &str) -> String {
        facts_of(finished)
    }
}

/// What a learner is after.
#[derive(Clone)]
enum Aim {
    /// Start from the prior, and learn.
    Learn(ScoreObjective),
    /// Be told which of these opponents it is, and make the most of each episode.
    Exploit(Vec<String>),
}

struct LearnerMaker {
    /// The exact optimum of each seat.
    solved: Arc<[BayesAdaptiveSolver; 2]>,
    aim: Aim,
}

impl ScriptedAgentFactory for LearnerMaker {
    fn make(&self, task: &Task, seed: Seed) -> Box<dyn ScriptedAgent> {
        let bayes = &self.solved[usize::from(task.seat)];
        let (prior, objective) = match &self.aim {
            Aim::Learn(objective) => (bayes.prior(), Some(*objective)),
            Aim::Exploit(names) => {
                let index = task.opponent.as_ref().and_then(|o| names.iter().position(|n| *n == o.name));
                let told = index.and_then(|i| bayes.prior_for_opponent(i).ok());
                (told.unwrap_or_else(|| bayes.prior()), None)
            }
        };
        Box::new(Learner { solved: Arc::clone(&self.solved), seat: task.seat, prior, objective, rng: seed.rng() })
    }
}

/// Rebuilds its belief from the facts in its prompt at every decision, and plays the exact optimum for it. With nothing in
/// its prompt it takes every episode for the first.
struct Learner {
    solved: Arc<[BayesAdaptiveSolver; 2]>,
    seat: u8,
    prior: Vec<f64>,
    /// What it plans for; nothing beyond the present episode if `None`.
    objective: Option<ScoreObjective>,
    rng: Rng,
}

impl ScriptedAgent for Learner {
    fn act(&mut self, seen: &PromptView<'_>) -> String {
        let bayes = &self.solved[usize::from(self.seat)];
        let mut belief = self.prior.clone();
        for fact in seen.memory {
            // A note that is no fact, or that fits nobody it knows of, teaches nothing.
            if let Ok(Some(updated)) = update_from_facts(bayes, &belief, fact) {
                belief = updated;
            }
        }
        let left = bayes.episodes().saturating_sub(seen.memory.len() as u32).max(1);
        let (left, objective) = self.objective.map_or((1, ScoreObjective::Sum), |objective| (left, objective));
        let view = View::read(seen.observation);
        let sights = view.map(|v| v.sights()).unwrap_or_default();
        let sights: Vec<&str> = sights.iter().map(String::as_str).collect();
        let best = bayes.best_action(&belief, left, objective, &sights).ok().flatten();
        // Nobody it knows of plays like this: its belief is no guide.
        let action = best.unwrap_or_else(|| draw_uniform(&[PASS, BET].into_iter().collect(), &mut self.rng));
        Kuhn.action_name(action)
    }

    fn reflect(&mut self, finished: &str) -> String {
        facts_of(finished)
    }
}

/// A hand as the compact words tell it.
struct View {
    seat: u8,
    card: Card,
    shown: Option<Card>,
    actions: Vec<ActionId>,
}

impl View {
    /// Reads `first K PASS BET` or, after the end, `first K PASS BET BET J`.
    fn read(words: &str) -> Option<Self> {
        let words: Vec<&str> = words.split_whitespace().collect();
        let (seat, card, rest) = match words[..] {
            ["first", card, ref rest @ ..] => (0, card, rest),
            ["second", card, ref rest @ ..] => (1, card, rest),
            _ => return None,
        };
        let named = |word: &str| Card::ALL.into_iter().find(|c| c.letter().to_string() == word);
        let actions = rest.iter().filter_map(|w| match *w {
            "PASS" => Some(PASS),
            "BET" => Some(BET),
            _ => None,
        });
        let shown = rest.get(3).and_then(|w| named(w));
        Some(View { seat, card: named(card)?, shown, actions: actions.collect() })
    }

    /// The betting so far, as `pb`.
    fn line(&self) -> String {
        self.actions.iter().map(|a| if *a == BET { 'b' } else { 'p' }).collect()
    }

    /// What the player saw at each of its decisions so far, the present one included.
    fn sights(&self) -> Vec<String> {
        let line = self.line();
        let own = (usize::from(self.seat)..=line.len()).step_by(2);
        own.map(|n| format!("{}{}", self.card.letter(), &line[..n])).collect()
    }

    /// The hand, with any other card for one that was not shown.
    fn hand(&self) -> Hand {
        let unseen = Card::ALL.into_iter().find(|c| *c != self.card).expect("three cards");
        let other = self.shown.unwrap_or(unseen);
        let (first, second) = if self.seat == 0 { (self.card, other) } else { (other, self.card) };
        let mut hand = Hand::dealt(first, second);
        self.actions.iter().for_each(|a| Kuhn.apply(&mut hand, *a));
        hand
    }
}

/// The factual reflection on a finished hand.
fn facts_of(finished: &str) -> String {
    View::read(finished).map(|v| facts(&v.hand(), v.seat)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CurrentPlayer;
    use crate::solvers::HistoryTree;

    #[test]
    fn compact_words_tell_the_whole_hand() {
        for node in HistoryTree::new(&Kuhn).unwrap().nodes() {
            for seat in 0..2 {
                let words = Kuhn.describe(&node.state, seat).compact;
                match node.turn {
                    CurrentPlayer::Terminal => assert_eq!(facts_of(&words), facts(&node.state, seat)),
                    CurrentPlayer::Player(p) if p == seat => {
                        let view = View::read(&words).unwrap();
                        assert_eq!(view.sights().last().unwrap(), &Kuhn.observe(&node.state, seat));
                        let decisions = node.state.actions().count() / 2 + 1;
                        assert_eq!(view.sights().len(), decisions);
                    }
                    _ => {}
                }
            }
        }
    }

    #[test]
    fn words_that_are_no_hand_are_no_hand() {
        for words in ["", "first", "third K _ _", "first X _ _"] {
            assert!(View::read(words).is_none(), "{words:?}");
            assert_eq!(facts_of(words), "");
        }
    }
}
