//! The ceilings of a population by seat.

use super::{
    BayesAdaptiveSolver, Candidate, NamedValue, OracleReport, ScoreCurve, ScoreObjective, SeatOracle,
    pomdp::states_probabilities,
};
use crate::{Deal, Game, Result};
use std::hash::Hash;

/// Parameters of [`ceilings`].
pub struct CeilingQuery<'a> {
    /// The environment's name, for the report.
    pub env: &'a str,
    /// The split's name, for the report.
    pub split: &'a str,
    /// The unit of scores, for the report.
    pub unit: &'a str,
    /// Number of episodes of a meta-episode.
    pub episodes: u32,
    /// Whether the chance opening changes between episodes.
    pub deal: Deal,
    /// Probability of each seat; they sum to 1.
    pub seat_shares: &'a [f64],
}

/// The ceilings against some opponents, or `None` if one of them has no action probabilities.
pub fn ceilings<G: Game>(
    game: &G,
    candidates: &[Candidate<G>],
    query: &CeilingQuery<'_>,
) -> Result<Option<OracleReport>>
where
    G::State: Eq + Hash,
{
    for strategy in candidates.iter().flat_map(|c| c.schedule.phases()) {
        if !states_probabilities(game, strategy)? {
            return Ok(None);
        }
    }
    let mut seats = Vec::new();
    for (seat, share) in query.seat_shares.iter().enumerate() {
        let bayes = BayesAdaptiveSolver::new(game, seat as u8, query.deal, candidates, query.episodes)?;
        seats.push(seat_ceilings(&bayes, *share));
    }
    Ok(Some(OracleReport {
        env: query.env.to_owned(),
        split: query.split.to_owned(),
        unit: query.unit.to_owned(),
        episodes: query.episodes,
        mean: mean(&seats),
        seats,
        sampled_opponents: Vec::new(),
        notes: Vec::new(),
    }))
}

fn seat_ceilings(bayes: &BayesAdaptiveSolver, probability: f64) -> SeatOracle {
    let full_info = bayes.full_info().by_episode;
    let curve = |of: &ScoreCurve| ScoreCurve { by_episode: snap_to_full_info(&of.by_episode, &full_info) };
    SeatOracle {
        seat: Some(bayes.seat()),
        probability,
        memoryless: snap_to_full_info(&bayes.memoryless().by_episode, &full_info),
        best_response: best_responses(bayes),
        last: curve(bayes.curve(ScoreObjective::Last)),
        sum: curve(bayes.curve(ScoreObjective::Sum)),
        full_info,
        pass_at_k: bayes.pass_at_k().unwrap_or_default(),
        last_gap: bayes.gap(ScoreObjective::Last),
        sum_gap: bayes.gap(ScoreObjective::Sum),
    }
}

/// Replaces values within rounding error of the full-information bound by the bound. Otherwise rounding could print a
/// value above the bound.
fn snap_to_full_info(values: &[f64], full_info: &[f64]) -> Vec<f64> {
    values.iter().zip(full_info).map(|(v, bound)| if *v > bound - 1e-9 { *bound } else { *v }).collect()
}

/// Best-response values by opponent and phase, averaged over deals.
fn best_responses(bayes: &BayesAdaptiveSolver) -> Vec<NamedValue> {
    let mut out: Vec<(f64, NamedValue)> = Vec::new();
    for (t, value) in bayes.hidden_types().iter().zip(bayes.best_response_values()) {
        let weight = bayes.deal_probability(t.deal);
        match out.last_mut() {
            Some((total, named)) if named.name == t.name => {
                *total += weight;
                named.value += weight * value;
            }
            _ => out.push((weight, NamedValue { name: t.name.clone(), value: weight * value })),
        }
    }
    out.into_iter().map(|(total, n)| NamedValue { value: n.value / total, ..n }).collect()
}

fn mean(seats: &[SeatOracle]) -> SeatOracle {
    let mean_of = |of: fn(&SeatOracle) -> f64| seats.iter().map(|s| s.probability * of(s)).sum::<f64>();
    let row = |of: fn(&SeatOracle) -> &[f64]| {
        let n = seats.iter().filter(|s| s.probability > 0.0).map(|s| of(s).len()).min().unwrap_or(0);
        let used_seats = || seats.iter().filter(|s| s.probability > 0.0);
        (0..n).map(|i| used_seats().map(|s| s.probability * of(s)[i]).sum()).collect::<Vec<f64>>()
    };
    let names = seats.first().map_or(&[][..], |s| &s.best_response);
    let best_response = names.iter().enumerate().map(|(i, n)| NamedValue {
        name: n.name.clone(),
        value: seats.iter().map(|s| s.probability * s.best_response[i].value).sum(),
    });
    SeatOracle {
        seat: None,
        probability: mean_of(|_| 1.0),
        memoryless: row(|s| &s.memoryless),
        best_response: best_response.collect(),
        full_info: row(|s| &s.full_info),
        last: ScoreCurve { by_episode: row(|s| &s.last.by_episode) },
        sum: ScoreCurve { by_episode: row(|s| &s.sum.by_episode) },
        pass_at_k: row(|s| &s.pass_at_k),
        last_gap: mean_of(|s| s.last_gap),
        sum_gap: mean_of(|s| s.sum_gap),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_error_never_lifts_a_value_above_the_full_information_bound() {
        let full_info = [0.8125, 0.8125, 0.8125];
        assert_eq!(snap_to_full_info(&[0.8125 + 1e-15, 0.8125 - 1e-12, 0.81], &full_info), [0.8125, 0.8125, 0.81]);
    }
}
