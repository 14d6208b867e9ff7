//! Hidden types: the unobserved state that persists across episodes.
//!
//! A hidden type is the opponent, the phase of a switching opponent, and the deal where deals are fixed. The agent has
//! a prior over types. Between episodes the phase changes by its Markov chain; opponent and deal stay.

use super::seat_view::SeatView;
use crate::{Game, OpponentKinds, OpponentSchedule, OpponentSpec, Population, Result};

/// An opponent with its prior probability.
pub struct Candidate<G: Game> {
    /// Name in reports.
    pub name: String,
    /// Prior probability; the candidates' probabilities sum to 1.
    pub probability: f64,
    /// Its strategy in each episode.
    pub schedule: OpponentSchedule<G>,
}

impl<G: Game + 'static> Candidate<G> {
    /// The opponents of a population split.
    pub fn of_split(population: &Population, split: &str, kinds: &OpponentKinds<G>) -> Result<Vec<Self>> {
        let member = |(share, spec): (f64, &OpponentSpec)| {
            Ok(Candidate { name: spec.name.clone(), probability: share, schedule: kinds.build(spec)? })
        };
        population.in_split(split)?.into_iter().map(member).collect()
    }
}

/// One hidden type.
#[derive(Clone, Debug, PartialEq)]
pub struct HiddenType {
    /// Index of the candidate.
    pub opponent: usize,
    /// Index of its phase.
    pub phase: usize,
    /// Index of the chance opening where deals are fixed; 0 otherwise.
    pub deal: usize,
    /// The opponent's name; for several phases `name/phase`, and `name/phase-2` for a repeated phase name.
    pub name: String,
    /// Index of its strategy in the [`SeatView`].
    pub(super) strategy: usize,
}

/// All hidden types, their prior and their transitions.
pub(super) struct HiddenTypes {
    pub(super) types: Vec<HiddenType>,
    pub(super) prior: Vec<f64>,
    /// By type: types of the next episode, with probabilities.
    transitions: Vec<Vec<(usize, f64)>>,
}

impl HiddenTypes {
    /// The types of some candidates. `view` has their strategies in order of candidate and phase, and the deals.
    pub(super) fn new<G: Game>(candidates: &[Candidate<G>], view: &SeatView) -> Self {
        let mut hidden = HiddenTypes { types: Vec::new(), prior: Vec::new(), transitions: Vec::new() };
        let deals = view.deals.len();
        let mut strategy = 0;
        for (opponent, candidate) in candidates.iter().enumerate() {
            let (chain, names) = (candidate.schedule.chain(), candidate.schedule.phase_names());
            let first = hidden.types.len();
            for (phase, phase_name) in names.iter().enumerate() {
                let earlier = names[..phase].iter().filter(|n| *n == phase_name).count();
                let name = match (names.len(), earlier) {
                    (1, _) => candidate.name.clone(),
                    (_, 0) => format!("{}/{phase_name}", candidate.name),
                    (_, n) => format!("{}/{phase_name}-{}", candidate.name, n + 1),
                };
                for (deal, probability) in view.deals.iter().enumerate() {
                    hidden.types.push(HiddenType { opponent, phase, deal, name: name.clone(), strategy });
                    hidden.prior.push(candidate.probability * chain.start()[phase] * probability);
                    let row = chain.transitions()[phase].iter().enumerate().filter(|(_, p)| **p > 0.0);
                    hidden.transitions.push(row.map(|(to, p)| (first + to * deals + deal, *p)).collect());
                }
                strategy += 1;
            }
        }
        hidden
    }

    /// Types of the next episode after type `from`, with probabilities.
    pub(super) fn transitions_from(&self, from: usize) -> impl Iterator<Item = (usize, f64)> + '_ {
        self.transitions[from].iter().copied()
    }

    /// The prediction step of the belief update: the belief of the next episode after the posterior of this one.
    pub(super) fn predict(&self, belief: &[f64]) -> Vec<f64> {
        let mut out = vec![0.0; belief.len()];
        for (row, b) in self.transitions.iter().zip(belief).filter(|(_, b)| **b > 0.0) {
            row.iter().for_each(|(to, p)| out[*to] += b * p);
        }
        out
    }

    /// Whether no type changes between episodes.
    pub(super) fn is_stationary(&self) -> bool {
        self.transitions.iter().enumerate().all(|(from, row)| matches!(row[..], [(to, _)] if to == from))
    }

    /// Marginal distribution over types in each episode, without observations.
    pub(super) fn marginals(&self, episodes: u32) -> Vec<Vec<f64>> {
        let step = |b: &Vec<f64>| Some(self.predict(b));
        std::iter::successors(Some(self.prior.clone()), step).take(episodes as usize).collect()
    }
}
