//! `mage train`: training runs.

use crate::{
    App,
    cli::TrainArgs,
    command::recipe::compose_and_warn,
    interrupt::Interrupted,
    output::{BOLD, DIM, GOOD, Output, styled, write_stderr},
    progress::{TrainingProgress, estimate},
    table::{below_memoryless, duration, gap_share, grouped, score, table},
    task_selection::{print_warnings, read_population, usage_in},
    text::shell_quote,
    usage,
};
use anyhow::Context;
use mage_core::{MeanEstimate, gap_closed};
use mage_train::{
    ResourcePlan,
    eval::EvalResult,
    recipe::Recipe,
    run_dir::{RunDir, checkpoint_path, last_model, update_seconds},
    train::{Resumed, TrainEnv, TrainOutcome, Training},
};
use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, Ordering},
    },
};

/// Number of directories that a new run tries, in case other processes create them at the same time.
const MAX_CONCURRENT_STARTS: usize = 1000;

pub(crate) fn run(app: &App, args: &TrainArgs, out: &Output) -> anyhow::Result<()> {
    let recipe = recipe(args, out)?;
    let env = train_env(app, &recipe)?;
    print_warnings(&*env.env_spec, &env.population, &recipe.env.split, out)?;
    if args.dry_run {
        return dry_run(args, &recipe, &env, out);
    }
    let started = Arc::new(AtomicBool::new(false));
    let message = "stopping after this update or evaluation; press Ctrl-C again to stop immediately";
    let stop = handle_ctrl_c(message, Arc::clone(&started))?;
    let mut progress = TrainingProgress::new(*out);
    let mut training = match &args.resume {
        Some(dir) => {
            let playable = env.env_spec.info().seats > 1;
            let mut show = |e| progress.show(e);
            match out.engine_spinner(|| Training::resume(recipe, env, dir, args.force, Arc::clone(&stop), &mut show))? {
                Resumed::Finished(outcome) => return already_finished(&outcome, dir, playable, out),
                Resumed::Running(training) => training,
            }
        }
        None => {
            let dirs = args.out.clone().map_or_else(|| numbered_directories(&args.recipes), |dir| vec![dir]);
            let created = out.engine_spinner(|| Training::create(recipe, env, dirs, Arc::clone(&stop)));
            // A directory that exists is a mistake on the command line.
            Box::new(created.map_err(|e| match e {
                mage_train::Error::NotEmpty { .. } => usage(e),
                e => e.into(),
            })?)
        }
    };
    started.store(true, Ordering::Relaxed);
    let outcome = training.run(&mut |e| progress.show(e));
    progress.clear();
    let dir = training.path().to_owned();
    let resume = || styled(BOLD, format!("mage train --resume {}", shell_quote(&dir)));
    if outcome.is_err() && last_model(&dir).is_ok() {
        out.hint(format!("the last checkpoint is kept; resume with {}", resume()));
    }
    let outcome = outcome?;
    let finished = outcome.after.is_some();
    if out.json {
        let event = if finished { "finished" } else { "stopped" };
        out.object(&serde_json::json!({ "event": event, "outcome": outcome }))?;
    } else if !finished {
        let (done, total) = (outcome.updates, outcome.total_updates);
        let progress = match outcome.before {
            None => "stopped before the first update; the warm start will be repeated".to_owned(),
            Some(_) if done == total => {
                format!("stopped after all {total} updates; checkpoint saved, final evaluation missing")
            }
            Some(_) => format!("stopped after {done} of {total} updates; checkpoint saved"),
        };
        out.line(format!("{progress}; resume with {}", resume()))?;
    }
    if !finished {
        return Err(Interrupted.into());
    }
    if out.json {
        return Ok(());
    }
    report(&outcome, &dir, training.has_opponent_seat(), out)
}

/// Reports a finished run that the user tried to resume.
fn already_finished(outcome: &TrainOutcome, dir: &Path, playable: bool, out: &Output) -> anyhow::Result<()> {
    if out.json {
        return out.object(&serde_json::json!({ "event": "finished", "outcome": outcome }));
    }
    out.hint(format!("{} is already finished after {} updates; nothing to do", dir.display(), outcome.total_updates));
    report(outcome, dir, playable, out)
}

/// Installs a Ctrl-C handler: the first Ctrl-C prints `message` and requests a stop, the second exits.
pub(super) fn stop_on_ctrl_c(message: &'static str) -> anyhow::Result<Arc<AtomicU8>> {
    handle_ctrl_c(message, Arc::new(AtomicBool::new(true)))
}

/// Like [`stop_on_ctrl_c`], but Ctrl-C exits immediately until `started` is set: before that there is nothing to save.
fn handle_ctrl_c(message: &'static str, started: Arc<AtomicBool>) -> anyhow::Result<Arc<AtomicU8>> {
    let stop = Arc::new(AtomicU8::new(0));
    let handler = Arc::clone(&stop);
    ctrlc::set_handler(move || match (handler.fetch_add(1, Ordering::Relaxed), started.load(Ordering::Relaxed)) {
        (0, true) => write_stderr(message),
        _ => std::process::exit(130),
    })
    .context("cannot listen for Ctrl-C")?;
    Ok(stop)
}

/// The recipe of a new run, or of a resumed run with the user's overrides.
fn recipe(args: &TrainArgs, out: &Output) -> anyhow::Result<Recipe> {
    let set = args.overrides.to_set();
    let Some(dir) = &args.resume else { return compose_and_warn(&args.recipes, &set, out) };
    let stored = RunDir::recipe(dir).map_err(usage)?;
    let mut composer = mage_train::recipe::Composer::new();
    composer.add_text(&stored.to_toml(), "the run's recipe").map_err(usage)?;
    for setting in &set {
        composer.set(setting).map_err(usage)?;
    }
    composer.finish().map_err(usage)
}

/// Environment, population and prompts of a recipe.
pub(super) fn train_env(app: &App, recipe: &Recipe) -> anyhow::Result<TrainEnv> {
    let env_spec = Arc::clone(app.registry.get(&recipe.env.name).map_err(usage)?);
    let population = match recipe.env.population.as_str() {
        "" => env_spec.default_population(),
        name => read_population(&*env_spec, name)?,
    };
    if population.env != env_spec.id() {
        return Err(usage(format!("population {} is for {}", recipe.env.population, population.env)));
    }
    let usage_error = |e| usage_in(&recipe.env.population, &e);
    env_spec.check(&population).map_err(usage_error)?;
    population.in_split(&recipe.env.split).map_err(usage_error)?;
    population.in_split(&recipe.eval.split).map_err(usage_error)?;
    Ok(TrainEnv {
        prompts: app.prompts.get(&recipe.env.name)?,
        population,
        env_spec,
        commit: option_env!("MAGE_COMMIT").map(str::to_owned),
        // Printed immediately, also during a progress bar, to explain delays.
        status_log: mage_train::status_log(|line| write_stderr(line)),
    })
}

/// Those of runs/kuhn-1, runs/kuhn-2, … that do not exist. Another process may create one of them first.
fn numbered_directories(recipes: &[String]) -> Vec<PathBuf> {
    let stem = |name: &String| {
        let path = Path::new(name);
        let file = if path.extension().is_some_and(|e| e == "toml") { path.file_stem().map(Path::new) } else { None };
        file.unwrap_or(path).display().to_string().replace(['/', '\\'], "-")
    };
    let name = recipes.iter().map(stem).collect::<Vec<_>>().join("-");
    let free = (1..).map(|n| PathBuf::from(format!("runs/{name}-{n}"))).filter(|path| !path.exists());
    free.take(MAX_CONCURRENT_STARTS).collect()
}

fn dry_run(args: &TrainArgs, recipe: &Recipe, env: &TrainEnv, out: &Output) -> anyhow::Result<()> {
    if let Some(file) = args.out.as_ref().filter(|f| f.exists()) {
        return Err(usage(format!("--out {}: the file exists already", file.display())));
    }
    let plan = out.spinner("measuring an update", || ResourcePlan::new(recipe, env))?;
    if let Some(file) = &args.out {
        std::fs::write(file, recipe.to_toml()).with_context(|| format!("cannot write {}", file.display()))?;
    }
    if out.json {
        return out.object(&plan);
    }
    let unknown = || "unknown without a tokenizer and a list of legal actions".to_owned();
    let about = |tokens: Option<u64>| tokens.map_or_else(unknown, |n| format!("about {}", grouped(n)));
    let device = plan.servers.clone().or_else(|| plan.gpu.clone()).unwrap_or_else(|| "cpu".to_owned());
    let mut rows = vec![("device", device), ("parameters", grouped(plan.parameters))];
    if plan.trainable_parameters != plan.parameters {
        rows.push(("  trainable (adapter)", grouped(plan.trainable_parameters)));
    }
    rows.extend([
        ("episodes per update", grouped(plan.episodes)),
        ("prompt tokens per update", about(plan.prompt_tokens)),
        ("completion tokens per update, at most", about(plan.response_tokens)),
    ]);
    // Memory and time of remote servers are unknown.
    if plan.servers.is_none() {
        rows.extend(local_resources(&plan));
    }
    out.line(table(&["", ""], rows.into_iter().map(|(k, v)| vec![k.to_owned(), v])))?;
    for warning in &plan.warnings {
        out.warn(warning);
    }
    if plan.too_large() {
        out.warn(match plan.adapter_may_fit() && !recipe.model.path.is_empty() {
            true => {
                "not enough memory; end other programs, choose a smaller model, or train a LoRA adapter (engine.lora_rank) \
                 instead of all weights"
            }
            false => "not enough memory; end other programs or choose a smaller model",
        });
    }
    if !plan.weights_available {
        out.warn("the model's weights do not exist yet; the plan is based on its configuration");
    }
    match &args.out {
        Some(file) => out.hint(format!("resolved recipe: {}; nothing else was written", file.display())),
        None => out.hint("nothing was written; remove --dry-run to train"),
    }
    Ok(())
}

/// Rows of the plan with memory and time on this machine.
fn local_resources(plan: &ResourcePlan) -> Vec<(&'static str, String)> {
    let unknown = || "not measured".to_owned();
    let mut rows = vec![
        ("weights, gradients and optimizer state", bytes(plan.state_bytes)),
        ("KV cache per token", bytes(plan.kv_bytes_per_token)),
        ("activations per token in training", bytes(plan.activation_bytes_per_token)),
    ];
    let gpu_memory = [
        ("reserved for training passes", plan.pass_bytes),
        ("reserved for sampling steps and other programs", plan.reserved_bytes),
        ("available for the KV cache", plan.kv_cache_bytes),
    ];
    rows.extend(plan.pass_tokens.map(|n| ("tokens per training pass", n.to_string())));
    rows.extend(gpu_memory.into_iter().filter_map(|(label, n)| Some((label, bytes(n?)))));
    let (used, free) = match plan.gpu {
        Some(_) => ("host memory in use", "free GPU memory"),
        None => ("memory in use", "free memory"),
    };
    rows.extend([
        (used, plan.resident_bytes.map_or_else(unknown, bytes)),
        (free, plan.free_bytes.map_or_else(unknown, bytes)),
        ("time per update", plan.seconds_per_update.map_or_else(unknown, |s| format!("about {s:.2} s"))),
        ("time for all updates", plan.total_seconds.map_or_else(unknown, |s| format!("about {}", duration(s)))),
    ]);
    rows
}

/// A number of bytes with a binary unit.
fn bytes(n: u64) -> String {
    match n as f64 {
        n if n < 1024.0 => format!("{n:.0} B"),
        n if n < 1_048_576.0 => format!("{:.1} KiB", n / 1024.0),
        n if n < 1_073_741_824.0 => format!("{:.1} MiB", n / 1_048_576.0),
        n => format!("{:.1} GiB", n / 1_073_741_824.0),
    }
}

fn report(outcome: &TrainOutcome, dir: &Path, playable: bool, out: &Output) -> anyhow::Result<()> {
    let (Some(after), Some(without_memory)) = (&outcome.after, &outcome.without_memory) else { return Ok(()) };
    let kind = if after.exact { "exact expectations" } else { "sampled" };
    out.line(format!(
        "\n{}: {}, mean ± standard error over {} tasks, {kind}",
        styled(BOLD, "by episode"),
        outcome.unit,
        after.score.first().map_or(0, |e| e.count)
    ))?;
    for (result, when) in
        [(outcome.before.as_ref(), "before"), (Some(after), "after"), (Some(without_memory), "without memory")]
    {
        for (reason, count) in result.iter().flat_map(|result| &result.failures) {
            out.warn(format!("evaluation {when}: {count} tasks failed: {reason}"));
        }
    }
    let mut header = vec!["episode", "before", "after", "without memory"];
    if outcome.ceilings.is_some() {
        header.extend(["memoryless optimum", "Bayes-adaptive optimum"]);
    }
    let at = |r: Option<&EvalResult>, n: usize| r.and_then(|r| r.score.get(n)).map_or_else(|| "-".to_owned(), estimate);
    let rows = (0..after.score.len()).map(|n| {
        let mut row =
            vec![(n + 1).to_string(), at(outcome.before.as_ref(), n), at(Some(after), n), at(Some(without_memory), n)];
        if let Some(c) = &outcome.ceilings {
            row.push(c.mean.memoryless.get(n).map_or_else(|| "-".to_owned(), |v| score(*v)));
            row.push(c.mean.sum.by_episode.get(n).map_or_else(|| "-".to_owned(), |v| score(*v)));
        }
        row
    });
    out.line(table(&header, rows))?;
    let last = after.score.len().saturating_sub(1);
    let slice = |name: String,
                 before: Option<&Vec<MeanEstimate>>,
                 after: &[MeanEstimate],
                 without_memory: Option<&Vec<MeanEstimate>>| {
        let cell = |v: Option<&MeanEstimate>| v.map_or_else(|| "-".to_owned(), estimate);
        vec![
            name,
            cell(before.and_then(|b| b.get(last))),
            cell(after.first()),
            cell(after.get(last)),
            cell(without_memory.and_then(|w| w.get(last))),
        ]
    };
    if after.by_opponent.len() + after.by_seat.len() > 2 {
        let opponents = after.by_opponent.iter().map(|(name, curve)| {
            slice(
                name.clone(),
                outcome.before.as_ref().and_then(|b| b.by_opponent.get(name)),
                curve,
                without_memory.by_opponent.get(name),
            )
        });
        let seats = after.by_seat.iter().map(|(seat, curve)| {
            slice(
                format!("seat {seat}"),
                outcome.before.as_ref().and_then(|b| b.by_seat.get(seat)),
                curve,
                without_memory.by_seat.get(seat),
            )
        });
        let last = format!("episode {}", last + 1);
        let header = [
            "opponent or seat",
            &format!("before, {last}"),
            "after, episode 1",
            &format!("after, {last}"),
            "without memory",
        ];
        out.line(format!("\n{}", table(&header, opponents.chain(seats))))?;
    }
    if let (Some(c), Some(e)) = (&outcome.ceilings, after.score.get(last)) {
        let (low, high) = (c.mean.memoryless[last], c.mean.sum.by_episode[last]);
        match gap_closed(*e, low, high) {
            None => {}
            Some(share) if below_memoryless(share) => {
                out.line(format!("\nbelow the memoryless optimum in episode {} ({})", last + 1, score(low)))?;
            }
            Some(share) => out.line(format!(
                "\n{} of the gap between memoryless and Bayes-adaptive optimum closed in episode {}",
                styled(GOOD, gap_share(share)),
                last + 1
            ))?,
        }
    }
    let mut closing = format!(
        "\n{} update{} in {}; metrics, trajectories and checkpoints: {}\nmodel: {}",
        outcome.updates,
        if outcome.updates == 1 { "" } else { "s" },
        duration(update_seconds(dir)),
        dir.display(),
        last_model(dir)?.display()
    );
    if let Some((update, best)) = outcome.best.filter(|(update, _)| *update != outcome.updates) {
        let path = dir.join(checkpoint_path(update));
        closing += &format!("\nbest model: {}, score {} after {update} updates", path.display(), score(best));
    }
    out.line(styled(DIM, closing))?;
    let run = shell_quote(dir);
    let mut next = vec![("evaluate it", format!("mage eval {run}"))];
    next.extend(playable.then(|| ("play against it", format!("mage play --against {run}"))));
    next.push(("report", format!("mage report {run}")));
    next.push(("metrics", format!("tensorboard --logdir {run}")));
    next.into_iter().for_each(|(what, command)| out.hint(format!("{what}: {}", styled(BOLD, command))));
    Ok(())
}
