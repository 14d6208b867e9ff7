//! What does whoever watches a run get to hear?

use crate::eval::evaluator::EvalResult;
use mage_env::solvers::OracleReport;
use serde::Serialize;
use std::collections::BTreeMap;

/// What happens, for whoever watches.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum TrainEvent {
    /// The run begins or goes on.
    Started {
        /// Where it lives.
        run: String,
        /// Numbers in the model.
        parameters: usize,
        /// Updates done before.
        from: u64,
        /// Updates in all.
        updates: u64,
        /// The best score without memory, by episode, where it can be worked out.
        memoryless: Option<Vec<f64>>,
        /// The best learner's.
        best_learner: Option<Vec<f64>>,
    },
    /// A step of the warm start.
    Warmstart {
        /// Steps done.
        step: u64,
        /// Steps in all.
        steps: u64,
        /// The loss before the step.
        loss: f64,
    },
    /// The panel is being played: tasks done, of all.
    Evaluating {
        /// Done.
        done: usize,
        /// Of all.
        of: usize,
    },
    /// The panel was played.
    Evaluated {
        /// After this many updates.
        update: u64,
        /// Whether the policy had its memory.
        memory: bool,
        /// What came of it.
        result: EvalResult,
    },
    /// An update was made.
    Updated {
        /// How many there are now.
        update: u64,
        /// Its line in `metrics.jsonl`.
        metrics: BTreeMap<String, f64>,
        /// Its line in `timing.jsonl`.
        timing: BTreeMap<String, f64>,
    },
    /// A checkpoint is in place.
    Saved {
        /// After this many updates.
        update: u64,
    },
    /// Something people should know.
    Warning {
        /// In plain words.
        text: String,
    },
}

/// How a run ended.
#[derive(Clone, Debug, Serialize)]
pub struct TrainOutcome {
    /// Updates done.
    pub updates: u64,
    /// Updates in all.
    pub of: u64,
    /// What a score is counted in.
    pub unit: String,
    /// After the warm start.
    pub before: Option<EvalResult>,
    /// At the end.
    pub after: Option<EvalResult>,
    /// At the end, with memory blanked.
    pub blanked: Option<EvalResult>,
    /// The exact ceilings, where they can be computed.
    pub ceilings: Option<OracleReport>,
    /// After which update the weights did best on the panel, and how well.
    pub best: Option<(u64, f64)>,
    /// Seconds this process took.
    pub seconds: f64,
}
