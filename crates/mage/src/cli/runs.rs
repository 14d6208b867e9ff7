//! Arguments of `mage runs`.

use clap::{Args, Subcommand};
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Scores are those of the last episode of a meta-episode: of the last evaluation and of the best one. The gap is the \
                  part of the gap between the memoryless and the Bayes-adaptive optimum that the last evaluation closes: \
                  `below` if it is below the memoryless optimum, `-` if the gap is smaller than the uncertainty. The time is that of the updates. A run is running (a \
                  process trains it), finished, failed (the log has the error) or stopped (`mage train --resume RUN` continues \
                  it).\n\nExamples:\n  mage runs\n  mage runs sweeps/table1\n  mage runs diff runs/kuhn-1 runs/kuhn-2\n  \
                  mage eval runs/kuhn-1@best"
)]
pub(crate) struct RunsArgs {
    /// Directory to search for runs
    #[arg(value_name = "DIR", default_value = "runs")]
    pub(crate) dir: PathBuf,
    #[command(subcommand)]
    pub(crate) command: Option<RunsCommand>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum RunsCommand {
    /// Show the scores of two runs and the recipe keys in which they differ
    Diff {
        /// Run directory
        #[arg(value_name = "RUN")]
        a: PathBuf,
        /// Run directory
        #[arg(value_name = "RUN")]
        b: PathBuf,
    },
}
