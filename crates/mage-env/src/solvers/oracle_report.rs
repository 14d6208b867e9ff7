//! The report of a population's ceilings.

use serde::Serialize;

/// Ceilings of one split of a population, by seat and over all seats.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OracleReport {
    /// The environment.
    pub env: String,
    /// The split.
    pub split: String,
    /// The unit of values.
    pub unit: String,
    /// Number of episodes of a meta-episode.
    pub episodes: u32,
    /// One entry per seat.
    pub seats: Vec<SeatOracle>,
    /// The mean over seats, weighted by their probabilities.
    pub mean: SeatOracle,
    /// Opponents without known action probabilities, estimated from samples.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sampled_opponents: Vec<SampledOpponent>,
    /// Further remarks for the reader.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

impl OracleReport {
    /// Largest gap of the Bayes-adaptive curves to the optimum: the worse of the last episode and the mean over
    /// episodes.
    pub fn max_gap(&self) -> f64 {
        let worst = |s: &SeatOracle| s.last_gap.max(s.sum_gap / f64::from(self.episodes.max(1)));
        self.seats.iter().map(worst).fold(0.0, f64::max)
    }

    /// Whether the Bayes-adaptive curves are lower bounds: the gap shows in three decimals.
    pub fn bayes_adaptive_is_lower_bound(&self) -> bool {
        is_lower_bound(self.max_gap())
    }
}

/// Reliability of a reported ceiling: `exact`, `estimated` from sampled moves, or `at least` where the Bayes-adaptive
/// value is a lower bound.
pub fn bound_label(estimated: bool, lower_bound: bool) -> &'static str {
    match (estimated, lower_bound) {
        (false, false) => "exact",
        (false, true) => "at least",
        (true, false) => "estimated",
        (true, true) => "estimated, at least",
    }
}

/// Whether a value with this gap is a lower bound: the gap shows in three decimals.
pub fn is_lower_bound(gap: f64) -> bool {
    gap > 5e-4
}

/// An opponent without action probabilities, from one seat. The report takes its sampled move frequencies for its
/// probabilities. The best response to them overfits slightly; fresh games measure by how much.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SampledOpponent {
    /// Its name.
    pub name: String,
    /// The agent's seat.
    pub seat: u8,
    /// Minimum number of sampled moves per board.
    pub samples: u32,
    /// Number of boards sampled.
    pub positions: usize,
    /// Value of the best response to the sampled moves, against them.
    pub fitted_value: f64,
    /// Number of fresh games of that response against the opponent itself.
    pub games: u32,
    /// Mean score in those games.
    pub measured_value: f64,
    /// Standard error of that mean.
    pub standard_error: f64,
}

/// Ceilings of one seat.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SeatOracle {
    /// The seat; `None` for the mean over seats.
    pub seat: Option<u8>,
    /// Probability of the seat.
    pub probability: f64,
    /// The best policy without memory between episodes, by episode.
    pub memoryless: Vec<f64>,
    /// Best responses to each known opponent, or to each phase (`name/phase`) of a switching one. Where deals are
    /// fixed, the deal is known too, since it can be learned.
    pub best_response: Vec<NamedValue>,
    /// The mean of the best responses: the score with the opponent known, by episode.
    pub full_info: Vec<f64>,
    /// The Bayes-adaptive optimum for the last episode (ties: the larger sum).
    pub last: ScoreCurve,
    /// The Bayes-adaptive optimum for the sum over episodes (ties: the better last episode).
    pub sum: ScoreCurve,
    /// Maximum probability of at least one win within 1, 2, … episodes, each its own optimum: the ceiling of Pass@k.
    /// Empty if unknown.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pass_at_k: Vec<f64>,
    /// Gap of `last`: the optimum of the last episode is at most this much larger. A rounding error unless opponents
    /// switch or mix.
    pub last_gap: f64,
    /// Gap of `sum`: the optimal sum is at most this much larger.
    pub sum_gap: f64,
}

/// A value with a name.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NamedValue {
    /// The name.
    pub name: String,
    /// The value.
    pub value: f64,
}

/// Expected score of a policy in each episode.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ScoreCurve {
    /// Expected score by episode, first to last.
    pub by_episode: Vec<f64>,
}

impl ScoreCurve {
    /// The last episode's value.
    pub fn last(&self) -> f64 {
        self.by_episode.last().copied().unwrap_or(0.0)
    }

    /// The sum over episodes.
    pub fn total(&self) -> f64 {
        self.by_episode.iter().sum()
    }
}
