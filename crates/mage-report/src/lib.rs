//! Report of training runs and evaluations: tables, figures and transcripts as HTML, Markdown, SVG, PNG and CSV.
//!
//! All results are recomputed from the trajectories on disk. A cell without data is a dash.

mod action_counts;
mod action_heatmap;
pub mod chart;
mod comparison;
mod csv;
mod figure;
mod heatmap;
mod html;
mod input_files;
mod interval_estimate;
mod lines;
mod load;
mod markdown;
mod method_result;
mod opponent_heatmap;
mod paper_results;
mod png;
mod tables;
mod text;
mod training_curves;
mod training_run;
mod transcript;

pub use action_counts::{ActionCounts, StateCounts};
pub use comparison::MethodComparison;
pub use csv::csv;
pub use figure::{Figure, figures};
pub use html::html;
pub use input_files::find_runs;
pub use interval_estimate::{IntervalEstimate, p_value};
pub use load::{load_report, unevaluated_runs};
pub use markdown::markdown;
pub use method_result::{CeilingCurves, CurvePoint, MethodResult, SliceResult, TokenBudget};
pub use png::PngRenderer;
pub use tables::{ReportTable, tables};
pub use training_run::{EvalPoint, TrainingRun, read_run};
pub use transcript::{Transcript, TranscriptEpisode, TranscriptStep};

use serde::Serialize;

/// Size limits of a report.
#[derive(Clone, Copy, Debug)]
pub struct ReportLimits {
    /// Transcripts per method and task set.
    pub transcripts: usize,
    /// Characters per text in a transcript.
    pub text: usize,
    /// Approximate size of all transcripts in bytes.
    pub bytes: usize,
}

impl Default for ReportLimits {
    fn default() -> Self {
        ReportLimits { transcripts: 24, text: 6000, bytes: 6 << 20 }
    }
}

/// Contents of a report.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Results of evaluations, ordered by environment, task set and method.
    pub results: Vec<MethodResult>,
    /// Paired comparisons of two methods on the same tasks.
    pub comparisons: Vec<MethodComparison>,
    /// Training runs.
    pub runs: Vec<TrainingRun>,
    /// A selection of trajectories.
    #[serde(skip)]
    pub transcripts: Vec<Transcript>,
    /// Omissions and warnings.
    pub notes: Vec<String>,
}

impl Report {
    /// Whether there are neither results nor runs.
    pub fn is_empty(&self) -> bool {
        self.results.is_empty() && self.runs.is_empty()
    }

    /// The name of a task set, followed by its hash if another task set has the same name.
    pub(crate) fn task_set_name(&self, task_set: &str, hash: &str) -> String {
        let ambiguous = self.results.iter().any(|r| r.task_set == task_set && r.task_set_hash != hash);
        if ambiguous { format!("{task_set} [{hash}]") } else { task_set.to_owned() }
    }
}
