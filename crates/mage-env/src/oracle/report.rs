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
    pub informed: Vec<f64>,
    /// The best possible learner when only the last episode counts (ties: the larger sum).
    pub last: Curve,
    /// The best possible learner when all episodes count alike (ties: the better last episode).
    pub sum: Curve,
    /// How far the true optimum of the last episode may lie above `last`: rounding noise unless opponents switch or mix.
    pub last_error: f64,
    /// How far the true optimum of the sum may lie above that of `sum`.
    pub sum_error: f64,
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
pub struct Curve {
    /// Expected score by episode, first to last.
    pub by_episode: Vec<f64>,
}

impl Curve {
    /// The last episode's value.
    pub fn last(&self) -> f64 {
        self.by_episode.last().copied().unwrap_or(0.0)
    }

    /// The sum over episodes.
    pub fn total(&self) -> f64 {
        self.by_episode.iter().sum()
    }
}
