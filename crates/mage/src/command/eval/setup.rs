//! Environment, task set and seeds of an evaluation: from the command line, or else from the evaluated run.

use crate::{
    App,
    cli::{EvalArgs, TaskSelection},
    output::Output,
    task_selection::{print_warnings, select},
    usage,
};
use anyhow::Context;
use mage_remote::StatusLog;
use mage_train::{
    TaskSet,
    limits::too_many_episodes,
    recipe::Recipe,
    run_dir::{ModelAddress, RunDir},
    train::{TrainEnv, eval_seed},
};
use std::{
    ffi::OsString,
    sync::{Arc, atomic::AtomicU8},
};

/// Settings shared by all policies.
pub(super) struct EvalSetup {
    pub(super) env_name: String,
    pub(super) env: TrainEnv,
    pub(super) split: String,
    pub(super) task_set: TaskSet,
    pub(super) tasks: u64,
    pub(super) episodes: u32,
    pub(super) max_turns: u32,
    /// First sampling seed; also the seed of the task set.
    pub(super) seed: u64,
    /// Number of sampling seeds.
    pub(super) seeds: u64,
    /// Requests a stop if not 0.
    pub(super) stop: Arc<AtomicU8>,
}

impl EvalSetup {
    /// Resolves the settings. Without `--env` and `--preset`, those of the first run among the policies are the
    /// defaults, so that its final evaluation is repeated.
    pub(super) fn new(app: &App, args: &EvalArgs, stop: &Arc<AtomicU8>, out: &Output) -> anyhow::Result<Self> {
        let run = match args.env {
            None => first_run(&args.policies)?,
            Some(_) => None,
        };
        let recipe = run.as_ref().map(|(_, recipe)| recipe);
        let env_name = args.env.as_ref().or(recipe.map(|r| &r.env.name)).map_or("kuhn", String::as_str).to_owned();
        let split = args.selection.split.as_ref().or(recipe.map(|r| &r.eval.split));
        let split = split.map_or(TaskSelection::DEFAULT_SPLIT, String::as_str).to_owned();
        let selection = TaskSelection { split: Some(split.clone()), ..args.selection.clone() };
        let population =
            run.as_ref().map(|(run, _)| RunDir::population(run)).transpose().context("cannot read the run")?;
        let (env_spec, population) = select(app, &env_name, &selection, population)?;
        for name in &args.policies {
            // A scripted agent may have the name of an environment.
            let name = name.to_string_lossy();
            if app.registry.get(&name).is_ok() && !env_spec.scripted_agents().iter().any(|agent| agent.name == name) {
                return Err(usage(format!("unknown policy `{name}`: it is an environment; use --env {name}")));
            }
        }
        print_warnings(&*env_spec, &population, &split, out)?;
        let env = TrainEnv {
            prompts: app.prompts.get(&env_name)?,
            env_spec,
            population,
            commit: None,
            status_log: StatusLog::default(),
        };
        let defaults = recipe.map_or((3, 2000, 0, 3), |r| (r.eval.episodes, r.eval.final_tasks as u64, r.seed, 1));
        let tasks = args.tasks.unwrap_or(defaults.1);
        let seed = args.seed.unwrap_or(defaults.2);
        let max_turns = args.max_turns.or(recipe.map(|r| r.play.max_turns)).unwrap_or(0);
        let max_turns = env.max_turns(&split, max_turns)?;
        let episodes = args.episodes.unwrap_or(defaults.0);
        let seeds = args.seeds.unwrap_or(defaults.3);
        if let Some(problem) = too_many_episodes(tasks, seeds, u64::from(episodes)) {
            return Err(usage(format!("--tasks, --seeds, --episodes: {problem}")));
        }
        let count = usize::try_from(tasks)?;
        let task_set = TaskSet::new(&*env.env_spec, &env.population, &split, count, eval_seed(seed))?;
        // Building a task reads the files that the options name, so that errors are reported before the evaluation.
        if let Some(task) = task_set.tasks().first() {
            env.env_spec.build(task)?;
        }
        Ok(EvalSetup {
            env_name,
            env,
            split,
            task_set,
            tasks,
            episodes,
            max_turns,
            seed,
            seeds,
            stop: Arc::clone(stop),
        })
    }
}

/// The first policy that is a run or a checkpoint of one.
fn first_run(policies: &[OsString]) -> anyhow::Result<Option<(std::path::PathBuf, Recipe)>> {
    for name in policies {
        if let Some(run) = ModelAddress::resolve(name).map_err(usage)?.and_then(|address| address.run) {
            let recipe = RunDir::recipe(&run)?;
            return Ok(Some((run, recipe)));
        }
    }
    Ok(None)
}
