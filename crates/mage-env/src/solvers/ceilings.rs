//! What are the ceilings of a population, from every seat?

use super::{
    BayesAdaptiveSolver, Candidate, NamedValue, OracleReport, ScoreCurve, ScoreObjective, SeatOracle,
    pomdp::states_probabilities,
};
use crate::{Deal, Game, Result};
use std::hash::Hash;

/// What ceilings are asked for.
pub struct CeilingQuery<'a> {
    /// The environment's name, for the report.
    pub env: &'a str,
    /// The split's name, for the report.
    pub split: &'a str,
    /// What a score is counted in, for the report.
    pub unit: &'a str,
    /// How many episodes a meta-episode has.
    pub episodes: u32,
    /// Whether the opening deal changes from one to the next.
    pub deal: Deal,
    /// How often the agent takes each seat; shares add up to 1.
    pub seat_shares: &'a [f64],
}

/// The ceilings against some opponents, or `None` where one of them cannot state its probabilities.
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
        seats.push(of_seat(&bayes, *share));
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

fn of_seat(bayes: &BayesAdaptiveSolver, share: f64) -> SeatOracle {
    let full_info = bayes.full_info().by_episode;
    let curve = |of: &ScoreCurve| ScoreCurve { by_episode: settled(&of.by_episode, &full_info) };
    SeatOracle {
        seat: Some(bayes.seat()),
        share,
        memoryless: settled(&bayes.memoryless().by_episode, &full_info),
        best_response: best_responses(bayes),
        last: curve(bayes.curve(ScoreObjective::Last)),
        sum: curve(bayes.curve(ScoreObjective::Sum)),
        full_info,
        pass_at_k: bayes.pass_at_k().unwrap_or_default(),
        last_gap: bayes.gap(ScoreObjective::Last),
        sum_gap: bayes.gap(ScoreObjective::Sum),
    }
}

/// Values that differ from what one who is told earns by rounding noise alone are that: printed, noise could make them look
/// larger than what nobody exceeds.
fn settled(values: &[f64], told: &[f64]) -> Vec<f64> {
    values.iter().zip(told).map(|(v, most)| if *v > most - 1e-9 { *most } else { *v }).collect()
}

/// By opponent and phase, the mean over deals.
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
    let number = |of: fn(&SeatOracle) -> f64| seats.iter().map(|s| s.share * of(s)).sum::<f64>();
    let row = |of: fn(&SeatOracle) -> &[f64]| {
        let n = seats.iter().filter(|s| s.share > 0.0).map(|s| of(s).len()).min().unwrap_or(0);
        let taken = || seats.iter().filter(|s| s.share > 0.0);
        (0..n).map(|i| taken().map(|s| s.share * of(s)[i]).sum()).collect::<Vec<f64>>()
    };
    let names = seats.first().map_or(&[][..], |s| &s.best_response);
    let best_response = names.iter().enumerate().map(|(i, n)| NamedValue {
        name: n.name.clone(),
        value: seats.iter().map(|s| s.share * s.best_response[i].value).sum(),
    });
    SeatOracle {
        seat: None,
        share: number(|_| 1.0),
        memoryless: row(|s| &s.memoryless),
        best_response: best_response.collect(),
        full_info: row(|s| &s.full_info),
        last: ScoreCurve { by_episode: row(|s| &s.last.by_episode) },
        sum: ScoreCurve { by_episode: row(|s| &s.sum.by_episode) },
        pass_at_k: row(|s| &s.pass_at_k),
        last_gap: number(|s| s.last_gap),
        sum_gap: number(|s| s.sum_gap),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_never_lifts_a_value_above_what_nobody_exceeds() {
        let told = [0.8125, 0.8125, 0.8125];
        assert_eq!(settled(&[0.8125 + 1e-15, 0.8125 - 1e-12, 0.81], &told), [0.8125, 0.8125, 0.81]);
    }
}
