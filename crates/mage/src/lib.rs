//! The command line of mage as a library, for programs that add their own environments:
//!
//! ```no_run
//! fn main() -> std::process::ExitCode {
//!     let mut app = mage::App::builtin();
//!     // app.register(my_environment());
//!     mage::main(&app)
//! }
//! ```
//!
//! Exit codes: 0 success, 1 failure, 2 invalid arguments or input file, 130 interrupted (Ctrl-C).

mod bar;
mod cli;
mod command;
mod interrupt;
mod line_editor;
mod output;
mod progress;
mod table;
mod task_selection;
mod text;

use cli::{Command, complete, suggest};
use mage_core::prompt::PromptLibrary;
use mage_env::{EnvSpec, Registry};
use output::Output;
use std::{ffi::OsString, process::ExitCode};

/// Environments and prompts of a command line.
pub struct App {
    /// Environments.
    pub registry: Registry,
    /// Prompt templates.
    pub prompts: PromptLibrary,
}

impl App {
    /// The built-in environments.
    pub fn builtin() -> Self {
        App { registry: Registry::builtin(), prompts: PromptLibrary::builtin() }
    }

    /// Adds or replaces an environment. Without templates in [`prompts`](App::prompts), its prompts consist of its rules,
    /// observations and legal actions.
    pub fn register(&mut self, spec: impl EnvSpec + 'static) {
        self.prompts.add_default(spec.id().as_str(), spec.rules());
        self.registry.register(spec);
    }
}

/// Runs the process's command line.
pub fn main(app: &App) -> ExitCode {
    run(app, std::env::args_os())
}

/// Runs a command line.
pub fn run(app: &App, args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args: Vec<OsString> = args.into_iter().collect();
    match complete::answer(app, &args) {
        Ok(false) => {}
        Ok(true) => return ExitCode::SUCCESS,
        Err(e) => return invalid_arguments(e, &args),
    }
    let cli = match cli::parse(&args) {
        Ok(cli) => cli,
        Err(e) => return invalid_arguments(e, &args),
    };
    let out = Output::new(cli.json, cli.quiet);
    let result = match &cli.command {
        Command::Train(args) => command::train::run(app, args, &out),
        Command::Warmstart(args) => command::warmstart::run(app, args, &out),
        Command::Recipe(args) => command::recipe::run(args, &out),
        Command::Play(args) => command::play::run(app, args, &out),
        Command::Eval(args) => command::eval::run(app, args, &out),
        Command::Sweep(args) => command::sweep::run(app, args, &out),
        Command::Runs(args) => command::runs::run(args, &out),
        Command::Report(args) => command::report::run(args, &out),
        Command::Env(args) => command::env::run(app, args, &out),
        Command::Model(args) => command::model::run(args, &out),
        Command::Bench(args) => command::bench::run(args, &out),
        Command::Doctor(args) => command::doctor::run(app, args, &out),
        Command::Launch(args) => command::launch::run(args, &out),
        Command::Completions(args) => complete::print_registration(args, &out),
        Command::Man(args) => command::man::run(args, &out),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) if output::is_broken_pipe(&e) => ExitCode::SUCCESS,
        Err(e) if e.is::<interrupt::Interrupted>() => ExitCode::from(130),
        Err(e) => {
            let code = if is_usage_error(&e) { 2 } else { 1 };
            out.error(&e, code);
            ExitCode::from(code)
        }
    }
}

/// Prints help, the version, or an error of the command line.
fn invalid_arguments(e: clap::Error, args: &[OsString]) -> ExitCode {
    if !e.use_stderr() {
        // A closed pipe is not a failure.
        let _ = e.print();
        return ExitCode::SUCCESS;
    }
    let text = suggest::text(&suggest::with_suggestion(e, args));
    match args.iter().take_while(|arg| *arg != "--").any(|arg| arg == "--json") {
        true => output::json_error(text.trim(), 2),
        false => anstream::eprint!("{}", text::stderr_width().map_or(text.clone(), |width| text::wrap(&text, width))),
    }
    ExitCode::from(2)
}

/// Invalid arguments or an invalid input file.
#[derive(Debug)]
struct UsageError(String);

impl std::fmt::Display for UsageError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}

/// Whether an error is caused by arguments or input files: a [`UsageError`], an invalid recipe, an invalid model, or an
/// environment's error about its options or data.
fn is_usage_error(e: &anyhow::Error) -> bool {
    use mage_env::Error::Write;
    let is_input_error = |cause: &(dyn std::error::Error + 'static)| match cause.downcast_ref::<mage_train::Error>() {
        Some(mage_train::Error::Recipe { .. } | mage_train::Error::Engine(mage_engine::Error::Invalid { .. })) => true,
        Some(mage_train::Error::Env(e)) => !matches!(e, Write { .. }),
        _ => cause.downcast_ref().is_some_and(|e| !matches!(e, Write { .. })),
    };
    e.is::<UsageError>() || e.chain().any(is_input_error)
}

/// Converts an engine's error; invalid input, such as a model with non-finite weights, becomes a usage error.
fn engine_error(e: mage_engine::Error) -> anyhow::Error {
    if matches!(e, mage_engine::Error::Invalid { .. }) { usage(e) } else { e.into() }
}

/// Converts an error to a usage error.
fn usage(e: impl std::fmt::Display) -> anyhow::Error {
    anyhow::Error::new(UsageError(e.to_string()))
}
