//! Shell completion of names and values: the shell asks the program itself, which knows its environments and runs.
//!
//! `mage completions SHELL` prints the script that registers the program; the script sets [`VARIABLE`].

use super::{CompletionsArgs, command};
use crate::{App, command::eval::preset_names as task_set_names, output::Output};
use clap::Command;
use clap_complete::{
    CompleteEnv,
    engine::{ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter},
    env::Shells,
};
use mage_core::PromptMethod;
use mage_env::EnvSpec;
use mage_report::find_runs;
use mage_train::{
    recipe::{Recipe, builtin_names, explain},
    sweep::preset_names,
};
use std::{
    ffi::{OsStr, OsString},
    path::Path,
    sync::Arc,
};

/// Environment variable with the name of the shell that asks for completions.
const VARIABLE: &str = "MAGE_COMPLETE";

/// A name with its description.
type Named = (String, String);

/// Answers a shell that asks for completions; `false` for an ordinary command line.
pub(crate) fn answer(app: &App, args: &[OsString]) -> clap::error::Result<bool> {
    let current_dir = std::env::current_dir().ok();
    let with_completers = || attach(command(), &CompletionNames::of(app));
    CompleteEnv::with_factory(with_completers).var(VARIABLE).try_complete(args.to_vec(), current_dir.as_deref())
}

/// `mage completions`: prints the registration script.
pub(crate) fn print_registration(args: &CompletionsArgs, out: &Output) -> anyhow::Result<()> {
    let shell = args.shell.to_string();
    let shells = Shells::builtins();
    let completer = shells.completer(&shell).ok_or_else(|| anyhow::anyhow!("no completion for {shell}"))?;
    let mut script = Vec::new();
    completer.write_registration(VARIABLE, "mage", "mage", "mage", &mut script)?;
    out.line(String::from_utf8_lossy(&script).trim_end())
}

/// CompletionNames that values can have.
struct CompletionNames {
    recipes: Arc<Vec<Named>>,
    keys: Arc<Vec<Named>>,
    environments: Arc<Vec<Named>>,
    presets: Arc<Vec<Named>>,
    policies: Arc<Vec<Named>>,
    methods: Arc<Vec<Named>>,
    populations: Arc<Vec<Named>>,
    opponents: Arc<Vec<Named>>,
    sweeps: Arc<Vec<Named>>,
    devices: Arc<Vec<Named>>,
}

impl CompletionNames {
    fn of(app: &App) -> Self {
        let plain = |names: &mut dyn Iterator<Item = String>| Arc::new(names.map(|n| (n, String::new())).collect());
        let each = |list: fn(&dyn EnvSpec) -> Vec<Named>| {
            let mut all: Vec<Named> = app.registry.iter().flat_map(|env| list(&**env)).collect();
            all.sort();
            all.dedup_by(|a, b| a.0 == b.0);
            Arc::new(all)
        };
        let agents = |env: &dyn EnvSpec| -> Vec<Named> {
            env.scripted_agents().into_iter().map(|agent| (agent.name, agent.description)).collect()
        };
        let populations = |env: &dyn EnvSpec| -> Vec<Named> {
            env.populations().into_iter().map(|(name, _)| (name.to_owned(), env.id().to_string())).collect()
        };
        // The prefix `tiny/` is optional.
        let sweeps =
            preset_names().into_iter().flat_map(|name| [name.strip_prefix("tiny/").map(str::to_owned), Some(name)]);
        let environments = |env: &dyn EnvSpec| vec![(env.id().to_string(), env.info().summary)];
        // `KEY=`, so that the value can be typed at once.
        let keys = explain("", &Recipe::default())
            .unwrap_or_default()
            .into_iter()
            .map(|f| (format!("{}=", f.key), f.description));
        CompletionNames {
            recipes: plain(&mut builtin_names().into_iter()),
            keys: Arc::new(keys.collect()),
            environments: each(environments),
            presets: Arc::new(task_set_names()),
            policies: each(agents),
            methods: plain(&mut PromptMethod::ALL.into_iter().map(|m| m.name().to_owned())),
            populations: each(populations),
            opponents: each(|env| env.info().opponents),
            sweeps: plain(&mut sweeps.flatten().chain(["list".to_owned(), "show".to_owned()])),
            devices: plain(&mut ["auto", "cpu", "cuda"].map(str::to_owned).into_iter()),
        }
    }

    /// The completer of an argument, by its id.
    fn completer(&self, id: &str) -> Option<ArgValueCompleter> {
        let names = |names: &Arc<Vec<Named>>| Values { names: Arc::clone(names), runs: false, paths: None };
        let toml = |names| Values { paths: Some("toml"), ..names };
        let models = |names| Values { runs: true, paths: Some(""), ..names };
        let none = Arc::default();
        Some(ArgValueCompleter::new(match id {
            "recipes" | "engine" => toml(names(&self.recipes)),
            "set" | "key" => names(&self.keys),
            "names" => {
                let keys = self.keys.iter().map(|(key, help)| (key.trim_end_matches('=').to_owned(), help.clone()));
                toml(names(&Arc::new(keys.chain(self.recipes.iter().cloned()).collect())))
            }
            "env" => names(&self.environments),
            "preset" => names(&self.presets),
            "method" => names(&self.methods),
            "population" => toml(names(&self.populations)),
            "opponent" => names(&self.opponents),
            "sweep" => toml(names(&self.sweeps)),
            "device" => names(&self.devices),
            "policies" => models(names(&self.policies)),
            "model" | "adapter" | "against" | "resume" | "a" | "b" => models(names(&none)),
            _ => return None,
        }))
    }
}

/// Adds completers to all arguments of a command and its subcommands.
fn attach(command: Command, names: &CompletionNames) -> Command {
    let command = command.mut_args(|arg| match names.completer(arg.get_id().as_str()) {
        Some(completer) => arg.add(completer),
        None => arg,
    });
    command.mut_subcommands(|subcommand| attach(subcommand, names))
}

/// Completion of a value by names, runs and paths.
struct Values {
    names: Arc<Vec<Named>>,
    runs: bool,
    /// Also paths with this extension; any for an empty one.
    paths: Option<&'static str>,
}

impl ValueCompleter for Values {
    fn complete(&self, current: &OsStr) -> Vec<CompletionCandidate> {
        let typed = current.to_string_lossy();
        let candidate = |(name, help): &Named| {
            let help = (!help.is_empty()).then(|| help.clone().into());
            CompletionCandidate::new(name.clone()).help(help)
        };
        let mut found: Vec<_> =
            self.names.iter().filter(|(name, _)| name.starts_with(&*typed)).map(candidate).collect();
        if self.runs {
            let runs = find_runs(Path::new("runs")).unwrap_or_default();
            let checkpoints: &[&str] = if typed.contains('@') { &["@best", "@latest"] } else { &[""] };
            let addresses =
                runs.iter().flat_map(|run| checkpoints.iter().map(|name| format!("{}{name}", run.display())));
            found.extend(addresses.filter(|address| address.starts_with(&*typed)).map(CompletionCandidate::new));
        }
        if let Some(extension) = self.paths {
            let wanted = move |path: &Path| extension.is_empty() || path.extension().is_some_and(|e| e == extension);
            found.extend(PathCompleter::any().filter(wanted).complete(current));
        }
        found
    }
}
