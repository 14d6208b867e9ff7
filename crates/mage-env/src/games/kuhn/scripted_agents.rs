//! Scripted agents for Kuhn poker.

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
    game::{sample_action, sample_uniform},
    solvers::{BayesAdaptiveSolver, ScoreObjective},
};
use std::sync::Arc;

/// CFR iterations of the `nash` agent's policy.
const NASH_ITERATIONS: u32 = 10_000;

pub(super) fn infos() -> Vec<ScriptedAgentInfo> {
    vec![
        ScriptedAgentInfo::new("nash", "equilibrium play: unexploitable, does not adapt"),
        ScriptedAgentInfo::new("bayes", "Bayes-adaptive optimum for the sum over episodes"),
        ScriptedAgentInfo::new("bayes-last", "Bayes-adaptive optimum for the last episode"),
        ScriptedAgentInfo::with_full_info("best-response", "best response to the opponent, whose name it knows"),
    ]
}

/// The factory for a name, or `None` if there is no such agent.
pub(super) fn factory(
    env_spec: &KuhnSpec,
    query: &ScriptedAgentQuery<'_>,
) -> Result<Option<Arc<dyn ScriptedAgentFactory>>> {
    let solved = || -> Result<Arc<[BayesAdaptiveSolver; 2]>> {
        let seat = |seat| env_spec.bayes(query.population, query.split, seat, query.episodes);
        Ok(Arc::new([seat(0)?, seat(1)?]))
    };
    Ok(Some(match query.name {
        "nash" => Arc::new(NashFactory(equilibrium(NASH_ITERATIONS))),
        "bayes" => Arc::new(BayesAgentFactory { solved: solved()?, mode: BayesMode::Adapt(ScoreObjective::Sum) }),
        "bayes-last" => Arc::new(BayesAgentFactory { solved: solved()?, mode: BayesMode::Adapt(ScoreObjective::Last) }),
        "best-response" => {
            let opponents = query.population.in_split(query.split)?;
            let names = opponents.into_iter().map(|(_, spec)| spec.name.clone()).collect();
            Arc::new(BayesAgentFactory { solved: solved()?, mode: BayesMode::KnownOpponent(names) })
        }
        _ => return Ok(None),
    }))
}

struct NashFactory(StrategyTable);

impl ScriptedAgentFactory for NashFactory {
    fn make(&self, _task: &Task, seed: Seed) -> Box<dyn ScriptedAgent> {
        Box::new(NashAgent { table: self.0, rng: seed.rng() })
    }
}

/// Plays a fixed strategy.
struct NashAgent {
    table: StrategyTable,
    rng: Rng,
}

impl ScriptedAgent for NashAgent {
    fn act(&mut self, prompt: &PromptView<'_>) -> String {
        let bet = HandView::read(prompt.observation).and_then(|v| self.table.bet_probability(v.card, &v.line()));
        let bet = bet.unwrap_or(0.5);
        Kuhn.action_name(sample_action(&[(PASS, 1.0 - bet), (BET, bet)].into_iter().collect(), &mut self.rng))
    }

    fn reflect(&mut self, finished: &str) -> String {
        facts_of(finished)
    }
}

/// Knowledge and objective of a Bayes-adaptive policy.
#[derive(Clone)]
enum BayesMode {
    /// Starts from the prior and adapts.
    Adapt(ScoreObjective),
    /// Knows which of these opponents it plays, and maximises each episode.
    KnownOpponent(Vec<String>),
}

struct BayesAgentFactory {
    /// The exact optimum of each seat.
    solved: Arc<[BayesAdaptiveSolver; 2]>,
    mode: BayesMode,
}

impl ScriptedAgentFactory for BayesAgentFactory {
    fn make(&self, task: &Task, seed: Seed) -> Box<dyn ScriptedAgent> {
        let bayes = &self.solved[usize::from(task.seat)];
        let (prior, objective) = match &self.mode {
            BayesMode::Adapt(objective) => (bayes.prior(), Some(*objective)),
            BayesMode::KnownOpponent(names) => {
                let index = task.opponent.as_ref().and_then(|o| names.iter().position(|n| *n == o.name));
                let known = index.and_then(|i| bayes.prior_for_opponent(i).ok());
                (known.unwrap_or_else(|| bayes.prior()), None)
            }
        };
        Box::new(BayesAgent { solved: Arc::clone(&self.solved), seat: task.seat, prior, objective, rng: seed.rng() })
    }
}

/// Recomputes its belief from the reflections in its prompt at every decision and plays the optimum for it. Without
/// reflections it plays every episode as the first.
struct BayesAgent {
    solved: Arc<[BayesAdaptiveSolver; 2]>,
    seat: u8,
    prior: Vec<f64>,
    /// Its objective; `None` plans for the current episode only.
    objective: Option<ScoreObjective>,
    rng: Rng,
}

impl ScriptedAgent for BayesAgent {
    fn act(&mut self, prompt: &PromptView<'_>) -> String {
        let bayes = &self.solved[usize::from(self.seat)];
        let mut belief = self.prior.clone();
        for fact in prompt.memory {
            // Reflections that are not factual, or that fit no known opponent, are ignored.
            if let Ok(Some(updated)) = update_from_facts(bayes, &belief, fact) {
                belief = updated;
            }
        }
        let left = bayes.episodes().saturating_sub(prompt.memory.len() as u32).max(1);
        let (left, objective) = self.objective.map_or((1, ScoreObjective::Sum), |objective| (left, objective));
        let view = HandView::read(prompt.observation);
        let observations = view.map(|v| v.observations()).unwrap_or_default();
        let observations: Vec<&str> = observations.iter().map(String::as_str).collect();
        let best = bayes.best_action(&belief, left, objective, &observations).ok().flatten();
        // No known opponent plays like this, so the belief gives no advice.
        let action = best.unwrap_or_else(|| sample_uniform(&[PASS, BET].into_iter().collect(), &mut self.rng));
        Kuhn.action_name(action)
    }

    fn reflect(&mut self, finished: &str) -> String {
        facts_of(finished)
    }
}

/// A hand parsed from compact words.
struct HandView {
    seat: u8,
    card: Card,
    shown: Option<Card>,
    actions: Vec<ActionId>,
}

impl HandView {
    /// Reads `first K PASS BET` or, after the end, `first K PASS BET BET J`.
    fn read(words: &str) -> Option<Self> {
        let words: Vec<&str> = words.split_whitespace().collect();
        let (seat, card, rest) = match words[..] {
            ["first", card, ref rest @ ..] => (0, card, rest),
            ["second", card, ref rest @ ..] => (1, card, rest),
            _ => return None,
        };
        let card_named = |word: &str| Card::ALL.into_iter().find(|c| c.letter().to_string() == word);
        let actions = rest.iter().filter_map(|w| match *w {
            "PASS" => Some(PASS),
            "BET" => Some(BET),
            _ => None,
        });
        let shown = rest.get(3).and_then(|w| card_named(w));
        Some(HandView { seat, card: card_named(card)?, shown, actions: actions.collect() })
    }

    /// The betting so far, as `pb`.
    fn line(&self) -> String {
        self.actions.iter().map(|a| if *a == BET { 'b' } else { 'p' }).collect()
    }

    /// The player's observations at each of its decisions so far, including the current one.
    fn observations(&self) -> Vec<String> {
        let line = self.line();
        let decisions = (usize::from(self.seat)..=line.len()).step_by(2);
        decisions.map(|n| format!("{}{}", self.card.letter(), &line[..n])).collect()
    }

    /// The hand; a hidden card is replaced by any other card.
    fn hand(&self) -> Hand {
        let unknown = Card::ALL.into_iter().find(|c| *c != self.card).expect("three cards");
        let other = self.shown.unwrap_or(unknown);
        let (first, second) = if self.seat == 0 { (self.card, other) } else { (other, self.card) };
        let mut hand = Hand::dealt(first, second);
        self.actions.iter().for_each(|a| Kuhn.apply(&mut hand, *a));
        hand
    }
}

/// The factual reflection on a finished hand.
fn facts_of(finished: &str) -> String {
    HandView::read(finished).map(|v| facts(&v.hand(), v.seat)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CurrentPlayer;
    use crate::solvers::HistoryTree;

    #[test]
    fn compact_words_determine_the_hand() {
        for node in HistoryTree::new(&Kuhn).unwrap().nodes() {
            for seat in 0..2 {
                let words = Kuhn.describe(&node.state, seat).compact;
                match node.current_player {
                    CurrentPlayer::Terminal => assert_eq!(facts_of(&words), facts(&node.state, seat)),
                    CurrentPlayer::Player(p) if p == seat => {
                        let view = HandView::read(&words).unwrap();
                        assert_eq!(view.observations().last().unwrap(), &Kuhn.observe(&node.state, seat));
                        let decisions = node.state.actions().count() / 2 + 1;
                        assert_eq!(view.observations().len(), decisions);
                    }
                    _ => {}
                }
            }
        }
    }

    #[test]
    fn invalid_words_are_rejected() {
        for words in ["", "first", "third K _ _", "first X _ _"] {
            assert!(HandView::read(words).is_none(), "{words:?}");
            assert_eq!(facts_of(words), "");
        }
    }
}
