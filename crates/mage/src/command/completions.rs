//! `mage completions`: shell completion scripts.

use crate::{
    cli::{Cli, CompletionsArgs},
    output::Output,
};
use clap::CommandFactory;

pub(crate) fn run(args: &CompletionsArgs, out: &Output) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "mage", &mut script);
    out.line(String::from_utf8_lossy(&script).trim_end())
}
