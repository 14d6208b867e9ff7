//! The ceilings of a population, as printed and as read by programs.

use serde::Serialize;

/// Ceilings of one split of a population, by seat and over all seats.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OracleReport {
    /// The environment.
    pub env: String,
    /// The split.
    pub split: String,
    /// What values are counted in.
    pub unit: String,
    /// How many episodes a meta-episode has.
    pub episodes: u32,
    /// One entry a seat.
    pub seats: Vec<SeatOracle>,
    /// The mean over seats, weighted by how often the agent takes each.
    pub mean: SeatOracle,
    /// Opponents that could only be asked for their moves: what is said about them rests on samples.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sampled_opponents: Vec<SampledOpponent>,
    /// What else a reader should know.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

impl OracleReport {
    /// How far the best learner's curves may be below the optimum, because not all beliefs were solved: the worse of the last
    /// episode and the mean over episodes.
    pub fn max_gap(&self) -> f64 {
        let worst = |s: &SeatOracle| s.last_gap.max(s.sum_gap / f64::from(self.episodes.max(1)));
        self.seats.iter().map(worst).fold(0.0, f64::max)
    }

    /// Whether the best learner's curves are lower bounds, by more than three decimals would show.
    pub fn learner_is_lower_bound(&self) -> bool {
        is_lower_bound(self.max_gap())
    }
}

/// How a line that says what is possible is known: `exact` or `estimated` from an opponent's moves, and `at least` where the best
/// learner may be better than shown.
pub fn bound_label(estimated: bool, lower_bound: bool) -> &'static str {
    match (estimated, lower_bound) {
        (false, false) => "exact",
        (false, true) => "at least",
        (true, false) => "estimated",
        (true, true) => "estimated, at least",
    }
}

/// Whether a value that may be this much too low is to be called a lower bound: three decimals would show it.
pub fn is_lower_bound(error: f64) -> bool {
    error > 5e-4
}

/// An opponent that states no probabilities, met from one seat. All else in the report takes the moves it was seen to make
/// for its probabilities; an answer fitted_value to them is a little lucky, and fresh games tell by how much.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SampledOpponent {
    /// Its name.
    pub name: String,
    /// The agent's seat.
    pub seat: u8,
    /// How many moves it was asked for in each position, at least.
    pub samples: u32,
    /// In how many positions.
    pub positions: usize,
    /// What the best answer to those moves earns against them.
    pub fitted_value: f64,
    /// How many fresh games that answer played against the opponent itself.
    pub games: u32,
    /// What it earned there.
    pub measured_value: f64,
    /// The standard error of that.
    pub standard_error: f64,
}

/// Ceilings of one seat.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SeatOracle {
    /// The seat; `None` for the mean over seats.
    pub seat: Option<u8>,
    /// How often the agent sits there.
    pub share: f64,
    /// The best policy without memory between episodes, by episode.
    pub memoryless: Vec<f64>,
    /// The best response to each opponent, known from the start; to each phase (`name/phase`) of one that switches. Where
    /// deals are fixed, the deal is known too: it can be learned.
    pub best_response: Vec<NamedValue>,
    /// The mean of the best responses: what one could do if told who sits opposite, by episode.
    pub full_info: Vec<f64>,
    /// The best possible learner when only the last episode counts (ties: the larger sum).
    pub last: ScoreCurve,
    /// The best possible learner when all episodes count alike (ties: the better last episode).
    pub sum: ScoreCurve,
    /// The best chance of having won at least once within 1, 2, … episodes, each the optimum of its own: what Pass@k is
    /// measured against. Empty where it is not known.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pass_at_k: Vec<f64>,
    /// How far the true optimum of the last episode may lie above `last`: rounding noise unless opponents switch or mix.
    pub last_gap: f64,
    /// How far the true optimum of the sum may lie above that of `sum`.
    pub sum_gap: f64,
}

/// A value with a name.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NamedValue {
    /// Whose.
    pub name: String,
    /// How much.
    pub value: f64,
}

/// What the best possible learner earns in each episode.
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
