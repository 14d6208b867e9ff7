//! The command line of mage, as a library, so that others can build one with environments of their own:
//!
//! ```no_run
//! fn main() -> std::process::ExitCode {
//!     let mut app = mage::App::builtin();
//!     // app.registry.register(MyEnvironment); app.prompts.add("mine", …);
//!     mage::main(&app)
//! }
//! ```
//!
//! Exit codes: 0 all went well, 1 it failed, 2 the command line or a file named on it makes no sense, 130 Ctrl-C.

mod cli;
mod command;
mod interrupt;
mod line_editor;
mod output;
mod progress;
mod table;
mod task_selection;

use clap::Parser;
use cli::{Cli, Command};
use mage_core::prompt::PromptLibrary;
use mage_env::Registry;
use output::Output;
use std::{ffi::OsString, process::ExitCode};

/// What a command line knows of.
pub struct App {
    /// The environments.
    pub registry: Registry,
    /// What agents are shown in them.
    pub prompts: PromptLibrary,
}

impl App {
    /// The built-in environments.
    pub fn builtin() -> Self {
        App { registry: Registry::builtin(), prompts: PromptLibrary::builtin() }
    }
}

/// Runs the process's command line.
pub fn main(app: &App) -> ExitCode {
    run(app, std::env::args_os())
}

/// Runs a command line.
pub fn run(app: &App, args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(e) => {
            // Help and version go to stdout and are no failure; a closed pipe is none either.
            let _ = e.print();
            return ExitCode::from(if e.use_stderr() { 2 } else { 0 });
        }
    };
    let out = Output::new(cli.json, cli.quiet);
    let result = match &cli.command {
        Command::Train(args) => command::train::run(app, args, &out),
        Command::Warmstart(args) => command::warmstart::run(app, args, &out),
        Command::Recipe(args) => command::recipe::run(args, &out),
        Command::Play(args) => command::play::run(app, args, &out),
        Command::Eval(args) => command::eval::run(app, args, &out),
        Command::Sweep(args) => command::sweep::run(app, args, &out),
        Command::Report(args) => command::report::run(args, &out),
        Command::Env(args) => command::env::run(app, args, &out),
        Command::Model(args) => command::model::run(args, &out),
        Command::Bench(args) => command::bench::run(args, &out),
        Command::Doctor(args) => command::doctor::run(app, args, &out),
        Command::Launch(args) => command::launch::run(args, &out),
        Command::Completions(args) => command::completions::run(args, &out),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) if output::is_broken_pipe(&e) => ExitCode::SUCCESS,
        Err(e) if e.is::<interrupt::Interrupted>() => ExitCode::from(130),
        Err(e) => {
            out.error(&e);
            ExitCode::from(if is_users(&e) { 2 } else { 1 })
        }
    }
}

/// Marks an error as the user's: the command line, or a file named on it, makes no sense.
#[derive(Debug)]
struct Usage(String);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// Whether an error is the user's: marked so, or an environment's complaint about what it was asked for or given to read,
/// wherever in a command it turned up.
fn is_users(e: &anyhow::Error) -> bool {
    use mage_env::Error::Write;
    let environments = |cause: &(dyn std::error::Error + 'static)| {
        let wrapped = match cause.downcast_ref::<mage_train::Error>() {
            Some(mage_train::Error::Env(e)) => Some(e),
            _ => None,
        };
        wrapped.or_else(|| cause.downcast_ref()).is_some_and(|e| !matches!(e, Write { .. }))
    };
    e.is::<Usage>() || e.chain().any(environments)
}

/// An engine's error: the user's where it is about what the engine was given, such as a model with broken numbers.
fn refused(e: mage_engine::Error) -> anyhow::Error {
    if matches!(e, mage_engine::Error::Invalid { .. }) { usage(e) } else { e.into() }
}

/// Turns any error into the user's.
fn usage(e: impl std::fmt::Display) -> anyhow::Error {
    anyhow::Error::new(Usage(e.to_string()))
}
