//! What is it that the agent does not know?
//!
//! A *hidden type* is everything that outlasts an episode without being shown: which opponent sits opposite, which phase
//! a switching opponent is in, and, where deals are fixed, the deal. The agent starts from a prior over types; between
//! episodes phases move by their chain while opponent and deal stay.

use super::seat_view::SeatView;
use crate::{Game, OpponentKinds, OpponentSchedule, OpponentSpec, Population, Result};

/// An opponent one may meet, and how often.
pub struct Candidate<G: Game> {
    /// What reports call it.
    pub name: String,
    /// How often it is met; shares add up to 1.
    pub probability: f64,
    /// How it plays over the episodes.
    pub schedule: OpponentSchedule<G>,
}

impl<G: Game + 'static> Candidate<G> {
    /// The opponents of a population's split.
    pub fn of_split(population: &Population, split: &str, kinds: &OpponentKinds<G>) -> Result<Vec<Self>> {
        let member = |(share, spec): (f64, &OpponentSpec)| {
            Ok(Candidate { name: spec.name.clone(), probability: share, schedule: kinds.build(spec)? })
        };
        population.in_split(split)?.into_iter().map(member).collect()
    }
}

/// One thing the agent may be facing.
#[derive(Clone, Debug, PartialEq)]
pub struct HiddenType {
    /// Which candidate.
    pub opponent: usize,
    /// Which of its phases.
    pub phase: usize,
    /// Which opening of nature, where deals are fixed; 0 otherwise.
    pub deal: usize,
    /// The opponent's name, with the phase where it has several: `name/phase`, and `name/phase-2` for a namesake.
    pub name: String,
    /// Which of the view's strategies it follows.
    pub(super) strategy: usize,
}

/// All types with what is known of them beforehand.
pub(super) struct Hidden {
    pub(super) types: Vec<HiddenType>,
    pub(super) prior: Vec<f64>,
    /// By type: the types of the next episode, with probabilities.
    next: Vec<Vec<(usize, f64)>>,
}

impl Hidden {
    /// The types of some candidates; `view` knows their strategies in order of candidate and phase, and the deals.
    pub(super) fn new<G: Game>(candidates: &[Candidate<G>], view: &SeatView) -> Self {
        let mut hidden = Hidden { types: Vec::new(), prior: Vec::new(), next: Vec::new() };
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
                for (deal, likely) in view.deals.iter().enumerate() {
                    hidden.types.push(HiddenType { opponent, phase, deal, name: name.clone(), strategy });
                    hidden.prior.push(candidate.probability * chain.start()[phase] * likely);
                    let row = chain.next()[phase].iter().enumerate().filter(|(_, p)| **p > 0.0);
                    hidden.next.push(row.map(|(to, p)| (first + to * deals + deal, *p)).collect());
                }
                strategy += 1;
            }
        }
        hidden
    }

    /// What one type may be in the next episode, with probabilities.
    pub(super) fn next_of(&self, of: usize) -> impl Iterator<Item = (usize, f64)> + '_ {
        self.next[of].iter().copied()
    }

    /// What is believed of the next episode, given what is believed of this one after it ended.
    pub(super) fn forward(&self, belief: &[f64]) -> Vec<f64> {
        let mut out = vec![0.0; belief.len()];
        for (row, b) in self.next.iter().zip(belief).filter(|(_, b)| **b > 0.0) {
            row.iter().for_each(|(to, p)| out[*to] += b * p);
        }
        out
    }

    /// Whether every type stays what it is.
    pub(super) fn stays(&self) -> bool {
        self.next.iter().enumerate().all(|(of, row)| matches!(row[..], [(to, _)] if to == of))
    }

    /// What is believed of each episode when nothing is ever seen.
    pub(super) fn marginals(&self, episodes: u32) -> Vec<Vec<f64>> {
        let step = |b: &Vec<f64>| Some(self.forward(b));
        std::iter::successors(Some(self.prior.clone()), step).take(episodes as usize).collect()
    }
}
