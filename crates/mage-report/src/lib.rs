//! What came out of it all?
//!
//! Reads training runs and records of evaluations, measures them again from the records themselves, and sets them in tables,
//! figures and transcripts: for the eye (one page that needs no network), for papers (Markdown, SVG) and for programs (CSV).
//!
//! Nothing is invented: a cell without a record is a dash.

pub mod chart;
mod compared;
mod csv;
mod entry;
mod figure;
mod files;
mod heat;
mod html;
mod learning;
mod markdown;
mod measured;
mod moves;
mod paper;
mod png;
mod read;
mod still;
mod tables;
mod transcript;

pub use compared::Comparison;
pub use csv::csv;
pub use entry::{Entry, Lines, Part, Point};
pub use figure::{Drawing, drawings};
pub use html::html;
pub use learning::{Judged, Run};
pub use markdown::markdown;
pub use measured::{Measured, p_value};
pub use moves::Moves;
pub use png::Painter;
pub use read::read;
pub use tables::{Table, tables};
pub use transcript::{Episode, Step, Transcript};

use serde::Serialize;

/// How much of it is shown.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Transcripts kept of each method on each panel.
    pub transcripts: usize,
    /// Characters kept of any one text in a transcript.
    pub text: usize,
    /// Bytes of all transcripts together, about.
    pub bytes: usize,
    /// Spheres in each picture of states and actions.
    pub spheres: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { transcripts: 24, text: 6000, bytes: 6 << 20, spheres: 2000 }
    }
}

/// Everything that is reported.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Who played what, measured; by environment, panel and method.
    pub entries: Vec<Entry>,
    /// One method beside another on the same tasks.
    pub comparisons: Vec<Comparison>,
    /// Training runs.
    pub runs: Vec<Run>,
    /// Some of the play behind the numbers.
    #[serde(skip)]
    pub transcripts: Vec<Transcript>,
    /// What was left out, and what else a reader should know.
    pub notes: Vec<String>,
}

impl Report {
    /// Whether there is nothing to report.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.runs.is_empty()
    }

    /// A panel's name, with its hash where another panel is called the same.
    pub(crate) fn panel_name(&self, panel: &str, hash: &str) -> String {
        let other = self.entries.iter().any(|e| e.panel == panel && e.panel_hash != hash);
        if other { format!("{panel} [{hash}]") } else { panel.to_owned() }
    }
}
