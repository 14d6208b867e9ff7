//! Events of a training run and its outcome, as written to `--json` output and the log.

use crate::eval::EvalResult;
use mage_env::solvers::OracleReport;
use serde::Serialize;
use std::collections::BTreeMap;

/// An event of a training run.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum TrainEvent {
    /// The run starts or resumes.
    Started {
        /// Run directory.
        run: String,
        /// Number of model parameters.
        parameters: usize,
        /// Updates done before.
        start_update: u64,
        /// Updates in total.
        updates: u64,
        /// Best score of a memoryless policy, by episode, if computable.
        memoryless: Option<Vec<f64>>,
        /// Score of the Bayes-adaptive optimum, by episode, if computable.
        bayes_adaptive: Option<Vec<f64>>,
    },
    /// A step of the warm start.
    Warmstart {
        /// Steps done.
        step: u64,
        /// Steps in total.
        steps: u64,
        /// Loss before the step.
        loss: f64,
    },
    /// Progress of an evaluation.
    Evaluating {
        /// Tasks done.
        done: usize,
        /// Tasks in total.
        tasks: usize,
    },
    /// An evaluation is complete.
    Evaluated {
        /// Updates done.
        update: u64,
        /// Whether the policy had its memory.
        memory: bool,
        /// The result.
        result: EvalResult,
    },
    /// An update is complete.
    Updated {
        /// Updates done.
        update: u64,
        /// Its line in `metrics.jsonl`.
        metrics: BTreeMap<String, f64>,
        /// Its line in `timing.jsonl`.
        timing: BTreeMap<String, f64>,
    },
    /// A checkpoint is saved.
    Saved {
        /// Updates done.
        update: u64,
    },
    /// A warning.
    Warning {
        /// Text for the user.
        text: String,
    },
}

/// Result of a training run or of an attempt.
#[derive(Clone, Debug, Serialize)]
pub struct TrainOutcome {
    /// Updates done.
    pub updates: u64,
    /// Updates in total.
    pub total_updates: u64,
    /// Unit of a score.
    pub unit: String,
    /// Evaluation after the warm start.
    pub before: Option<EvalResult>,
    /// Evaluation after the last update.
    pub after: Option<EvalResult>,
    /// Evaluation after the last update, without memory.
    pub without_memory: Option<EvalResult>,
    /// Exact ceilings, if computable.
    pub ceilings: Option<OracleReport>,
    /// Update and score of the best evaluation.
    pub best: Option<(u64, f64)>,
    /// Wall-clock seconds of this process.
    pub seconds: f64,
}
