//! The opponent's strategy in each episode of a task.
//!
//! An [`OpponentSchedule`] is stationary, with one strategy throughout, or *switching*: a hidden Markov chain selects
//! the strategy of each episode. The switching case is non-stationary, so remembering one habit is not enough.

use crate::{Error, Game, Opponent, OpponentSpec, OptionMap, Result, Seed};
use mage_rng::weighted_index;
use serde::Deserialize;
use std::{collections::BTreeMap, sync::Arc};

/// A strategy, shared by all tasks that use it.
pub type Strategy<G> = Arc<dyn Opponent<G>>;

/// The strategies of an opponent over the episodes of a task.
#[derive(Clone)]
pub struct OpponentSchedule<G: Game> {
    phases: Vec<Strategy<G>>,
    names: Vec<String>,
    chain: MarkovChain,
}

impl<G: Game> OpponentSchedule<G> {
    /// One strategy in every episode.
    pub fn stationary(name: &str, strategy: Strategy<G>) -> Self {
        OpponentSchedule { phases: vec![strategy], names: vec![name.to_owned()], chain: MarkovChain::constant(1) }
    }

    /// The strategy of episode `episode`. It depends on the seed and the index only, so every member of a group meets
    /// the same sequence.
    pub fn in_episode(&self, seed: Seed, episode: u32) -> &Strategy<G> {
        &self.phases[self.chain.state_at(seed, episode)]
    }

    /// The strategies it switches between.
    pub fn phases(&self) -> &[Strategy<G>] {
        &self.phases
    }

    /// The names of the strategies, in the same order.
    pub(crate) fn phase_names(&self) -> &[String] {
        &self.names
    }

    /// The Markov chain over strategies.
    pub fn chain(&self) -> &MarkovChain {
        &self.chain
    }

    /// Replaces each strategy, possibly for another representation of the game.
    pub fn map<H: Game>(&self, replace: impl FnMut(&Strategy<G>) -> Strategy<H>) -> OpponentSchedule<H> {
        OpponentSchedule {
            phases: self.phases.iter().map(replace).collect(),
            names: self.names.clone(),
            chain: self.chain.clone(),
        }
    }
}

/// A hidden Markov chain over strategies.
#[derive(Clone, Debug, PartialEq)]
pub struct MarkovChain {
    start: Vec<f64>,
    /// Row `i` holds the probabilities of the next state after state `i`.
    transitions: Vec<Vec<f64>>,
}

impl MarkovChain {
    /// A uniform initial state among `n` that never changes.
    pub fn constant(n: usize) -> Self {
        Self::with_stay_probability(n, 1.0)
    }

    /// A uniform initial state; stays with probability `stay`, otherwise moves to any other state uniformly.
    pub(crate) fn with_stay_probability(n: usize, stay: f64) -> Self {
        let stay = if n == 1 { 1.0 } else { stay };
        let leave = (1.0 - stay) / n.saturating_sub(1).max(1) as f64;
        let row = |i| (0..n).map(|j| if i == j { stay } else { leave }).collect();
        MarkovChain { start: vec![1.0 / n as f64; n], transitions: (0..n).map(row).collect() }
    }

    /// Initial distribution.
    pub fn start(&self) -> &[f64] {
        &self.start
    }

    /// Transition probabilities, one row per state.
    pub fn transitions(&self) -> &[Vec<f64>] {
        &self.transitions
    }

    fn state_at(&self, seed: Seed, episode: u32) -> usize {
        if self.start.len() == 1 {
            return 0; // no randomness to draw
        }
        let stream = seed.child("switch");
        let first = weighted_index(self.start.iter().copied(), &mut stream.at(0).rng());
        (1..=u64::from(episode))
            .fold(first, |state, n| weighted_index(self.transitions[state].iter().copied(), &mut stream.at(n).rng()))
    }
}

/// Builds a strategy from its parameters.
type MakeStrategy<G> = Box<dyn Fn(&OptionMap) -> Result<Strategy<G>> + Send + Sync>;

/// Builds a strategy from the number in its kind's name and its parameters.
type MakeNumbered<G> = Box<dyn Fn(u64, &OptionMap) -> Result<Strategy<G>> + Send + Sync>;

/// The opponent kinds of a game; more can be added.
pub struct OpponentKinds<G: Game> {
    kinds: BTreeMap<String, (String, MakeStrategy<G>)>,
    /// Kinds whose name ends in a number, by the stem before it.
    numbered: BTreeMap<String, (String, MakeNumbered<G>)>,
}

/// The kind that switches between other kinds.
pub const SWITCHING: &str = "switching";

impl<G: Game + 'static> Default for OpponentKinds<G> {
    /// The kinds of every game: `uniform` and `switching`.
    fn default() -> Self {
        let mut kinds = OpponentKinds { kinds: BTreeMap::new(), numbered: BTreeMap::new() };
        kinds.add_plain("uniform", "any legal action, uniformly", crate::game::UniformOpponent);
        kinds
    }
}

impl<G: Game + 'static> OpponentKinds<G> {
    /// Adds or replaces a kind.
    pub fn add(
        &mut self,
        kind: &str,
        description: &str,
        make: impl Fn(&OptionMap) -> Result<Strategy<G>> + Send + Sync + 'static,
    ) {
        self.kinds.insert(kind.to_owned(), (description.to_owned(), Box::new(make)));
    }

    /// Adds a kind without parameters.
    pub fn add_plain(&mut self, kind: &str, description: &str, strategy: impl Opponent<G> + 'static) {
        let strategy: Strategy<G> = Arc::new(strategy);
        let location = format!("opponent `{kind}`");
        self.add(kind, description, move |params| {
            params.read::<NoParams>(&location)?;
            Ok(Arc::clone(&strategy))
        });
    }

    /// Adds kinds named by a number: `search` makes `search-1`, `search-250` and so on.
    pub fn add_numbered(
        &mut self,
        stem: &str,
        description: &str,
        make: impl Fn(u64, &OptionMap) -> Result<Strategy<G>> + Send + Sync + 'static,
    ) {
        self.numbered.insert(stem.to_owned(), (description.to_owned(), Box::new(make)));
    }

    /// Every kind with a description; `-N` stands for any number.
    pub fn docs(&self) -> Vec<(String, String)> {
        let switching =
            "switches between the kinds in `between` from episode to episode; stays with probability `stay`".to_owned();
        let plain = self.kinds.iter().map(|(kind, (description, _))| (kind.clone(), description.clone()));
        let numbered = self.numbered.iter().map(|(stem, (description, _))| (format!("{stem}-N"), description.clone()));
        let mut docs: Vec<(String, String)> = plain.chain(numbered).collect();
        docs.sort();
        docs.push((SWITCHING.to_owned(), switching));
        docs
    }

    /// Builds the opponent of a task.
    pub fn build(&self, spec: &OpponentSpec) -> Result<OpponentSchedule<G>> {
        if spec.kind == SWITCHING {
            return self.build_switching(spec);
        }
        let strategy = self.strategy(&spec.kind, &spec.params);
        let strategy = strategy.map_err(|e| match e {
            // Report the opponent's name as the location.
            Error::Invalid { problem, .. } => Error::invalid(format!("opponent `{}`", spec.name), problem),
            other if spec.name == spec.kind => other,
            other => Error::invalid(format!("opponent `{}`", spec.name), other.to_string()),
        })?;
        Ok(OpponentSchedule::stationary(&spec.name, strategy))
    }

    fn strategy(&self, kind: &str, params: &OptionMap) -> Result<Strategy<G>> {
        if kind == SWITCHING {
            return Err(Error::invalid("between", "a switching opponent cannot switch between switching opponents"));
        }
        if let Some((_, make)) = self.kinds.get(kind) {
            return make(params);
        }
        match self.numbered_kind(kind) {
            Some((make, digits)) => {
                let too_large = |_| Error::invalid("kind", format!("the number in `{kind}` is far too large"));
                make(digits.parse().map_err(too_large)?, params)
            }
            None => {
                let in_lower_case = Some(kind.to_lowercase()).filter(|k| self.numbered_kind(k).is_some());
                let known = self.docs().into_iter().map(|(known, _)| known).chain(in_lower_case);
                Err(Error::unknown("kind of opponent", kind, known))
            }
        }
    }

    /// The builder of a numbered kind, and the digits in its name.
    fn numbered_kind<'k>(&self, kind: &'k str) -> Option<(&MakeNumbered<G>, &'k str)> {
        let (stem, digits) = kind.rsplit_once('-')?;
        let (_, make) = self.numbered.get(stem)?;
        // Signs and blanks are not allowed.
        let is_number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        is_number.then_some((make, digits))
    }

    fn build_switching(&self, spec: &OpponentSpec) -> Result<OpponentSchedule<G>> {
        let location = format!("opponent `{}`", spec.name);
        let p: SwitchingParams = spec.params.read(&location)?;
        if p.between.len() < 2 {
            return Err(Error::invalid(location, "`between` needs at least two opponents to switch between"));
        }
        if !(0.0..=1.0).contains(&p.stay) {
            return Err(Error::invalid(location, format!("`stay` is a probability, not {}", p.stay)));
        }
        let mut phases = Vec::new();
        let mut names = Vec::new();
        for phase in &p.between {
            let (kind, params) = match phase {
                PhaseSpec::Kind(kind) => (kind, &OptionMap::default()),
                PhaseSpec::Full { kind, params } => (kind, params),
            };
            phases.push(self.strategy(kind, params).map_err(|e| Error::invalid(&location, format!("between: {e}")))?);
            names.push(kind.clone());
        }
        Ok(OpponentSchedule { chain: MarkovChain::with_stay_probability(phases.len(), p.stay), phases, names })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NoParams {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SwitchingParams {
    between: Vec<PhaseSpec>,
    stay: f64,
}

/// `"aggressive"` or `{ kind = "table", bet = { … } }`.
#[derive(Deserialize)]
#[serde(untagged, expecting = "each is the name of a kind, or a table with a `kind` and its parameters")]
enum PhaseSpec {
    Kind(String),
    Full {
        kind: String,
        #[serde(flatten)]
        params: OptionMap,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markov_chains_have_normalised_distributions() {
        for n in 1..5 {
            for stay in [0.0, 0.3, 1.0] {
                let c = MarkovChain::with_stay_probability(n, stay);
                assert!((c.start.iter().sum::<f64>() - 1.0).abs() < 1e-12);
                assert!(c.transitions.iter().all(|row| (row.iter().sum::<f64>() - 1.0).abs() < 1e-12));
            }
        }
    }

    #[test]
    fn markov_chains_stay_with_the_given_probability() {
        let c = MarkovChain::with_stay_probability(3, 0.7);
        let stayed = (0..20_000).filter(|i| {
            let seed = Seed::new(*i);
            c.state_at(seed, 4) == c.state_at(seed, 5)
        });
        assert!((stayed.count() as f64 / 20_000.0 - 0.7).abs() < 0.02);
        assert!((0..100).all(|i| MarkovChain::constant(3).state_at(Seed::new(i), 0)
            == MarkovChain::constant(3).state_at(Seed::new(i), 9)));
    }
}
