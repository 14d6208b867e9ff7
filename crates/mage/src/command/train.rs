//! `mage train`: learn to adapt.

use crate::{
    App,
    cli::TrainArgs,
    command::recipe::compose,
    interrupt::Interrupted,
    output::{BOLD, DIM, GOOD, Output, styled},
    progress::{TrainingProgress, estimate},
    table::{score, span, table},
    task_selection::{print_warnings, read_population, usage_in},
    usage,
};
use anyhow::Context;
use mage_remote::StatusLog;
use mage_train::{
    ResourcePlan,
    eval::evaluator::{EvalEstimate, EvalResult},
    recipe::Recipe,
    run_dir::{RunDir, checkpoint_path, last_model},
    train::{Resumed, TrainEnv, TrainOutcome, Training},
};
use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, Ordering},
    },
};

pub(crate) fn run(app: &App, args: &TrainArgs, out: &Output) -> anyhow::Result<()> {
    let recipe = recipe(args)?;
    let setting = setting(app, &recipe)?;
    print_warnings(&*setting.env_spec, &setting.population, &recipe.env.split, out)?;
    if args.dry_run {
        return dry_run(args, &recipe, &setting, out);
    }
    let begun = Arc::new(AtomicBool::new(false));
    let stop = listen("stopping after the current step; press Ctrl-C again to stop at once", Arc::clone(&begun))?;
    let mut progress = TrainingProgress::new(*out);
    let mut training = match &args.resume {
        Some(dir) => {
            let hosts = setting.env_spec.info().seats > 1;
            let mut said = |e| progress.show(e);
            match out.starting(|| Training::resume(recipe, setting, dir, args.force, Arc::clone(&stop), &mut said))? {
                Resumed::Finished(outcome) => return already_finished(&outcome, dir, hosts, out),
                Resumed::Running(training) => training,
            }
        }
        None => {
            let dir = args.out.clone().unwrap_or_else(|| free_directory(&args.recipes));
            Box::new(out.starting(|| Training::create(recipe, setting, &dir, Arc::clone(&stop)))?)
        }
    };
    begun.store(true, Ordering::Relaxed);
    let outcome = training.run(&mut |e| progress.show(e));
    progress.clear();
    let dir = training.path().to_owned();
    let go_on = || styled(BOLD, format!("mage train --resume {}", shell_word(&dir)));
    if outcome.is_err() && last_model(&dir).is_ok() {
        out.hint(format!("what was learned up to the last checkpoint is kept; go on from it with {}", go_on()));
    }
    let outcome = outcome?;
    let finished = outcome.after.is_some();
    if out.json {
        let event = if finished { "finished" } else { "stopped" };
        out.object(&serde_json::json!({ "event": event, "outcome": outcome }))?;
    } else if !finished {
        let (done, of) = (outcome.updates, outcome.total_updates);
        let where_to = match outcome.before {
            None => "stopped before the first update; the warm start will begin again".to_owned(),
            Some(_) if done == of => format!("stopped after all {of} updates, saved; the closing table is missing"),
            Some(_) => format!("stopped after {done} of {of} updates, saved"),
        };
        out.line(format!("{where_to}; go on with {}", go_on()))?;
    }
    if !finished {
        return Err(Interrupted.into());
    }
    if out.json {
        return Ok(());
    }
    report(&outcome, &dir, training.has_opponent_seat(), out)
}

/// Says what came of a run that somebody wants to go on though nothing is left to do.
fn already_finished(outcome: &TrainOutcome, dir: &Path, hosts: bool, out: &Output) -> anyhow::Result<()> {
    if out.json {
        return out.object(&serde_json::json!({ "event": "finished", "outcome": outcome }));
    }
    out.hint(format!("{} is finished, with all {} updates; nothing was done", dir.display(), outcome.total_updates));
    report(outcome, dir, hosts, out)
}

/// Counts Ctrl-C: the first asks to stop and says so, the second stops at once.
pub(super) fn stop_on_ctrl_c(says: &'static str) -> anyhow::Result<Arc<AtomicU8>> {
    listen(says, Arc::new(AtomicBool::new(true)))
}

/// The same, but the first stops at once as long as nothing has begun: who waits for an engine has nothing to save.
fn listen(says: &'static str, begun: Arc<AtomicBool>) -> anyhow::Result<Arc<AtomicU8>> {
    let stop = Arc::new(AtomicU8::new(0));
    let handler = Arc::clone(&stop);
    ctrlc::set_handler(move || match (handler.fetch_add(1, Ordering::Relaxed), begun.load(Ordering::Relaxed)) {
        (0, true) => eprintln!("\n{says}"),
        _ => std::process::exit(130),
    })
    .context("cannot listen for Ctrl-C")?;
    Ok(stop)
}

/// The recipe of a new run, or that of the run to be resumed with what the user changes.
fn recipe(args: &TrainArgs) -> anyhow::Result<Recipe> {
    let set = args.overrides.to_set();
    let Some(dir) = &args.resume else { return compose(&args.recipes, &set) };
    let written = RunDir::recipe(dir).map_err(usage)?;
    let mut composer = mage_train::recipe::Composer::new();
    composer.add_text(&written.to_toml(), "the run's recipe").map_err(usage)?;
    for setting in &set {
        composer.set(setting).map_err(usage)?;
    }
    composer.finish().map_err(usage)
}

pub(super) fn setting(app: &App, recipe: &Recipe) -> anyhow::Result<TrainEnv> {
    let env_spec = Arc::clone(app.registry.get(&recipe.env.name).map_err(usage)?);
    let population = match recipe.env.population.as_str() {
        "" => env_spec.default_population(),
        name => read_population(&*env_spec, name)?,
    };
    if population.env != env_spec.id() {
        return Err(usage(format!("population {} is for {}", recipe.env.population, population.env)));
    }
    let wrong = |e| usage_in(&recipe.env.population, &e);
    env_spec.check(&population).map_err(wrong)?;
    population.in_split(&recipe.env.split).map_err(wrong)?;
    population.in_split(&recipe.eval.split).map_err(wrong)?;
    Ok(TrainEnv {
        prompts: app.prompts.get(&recipe.env.name)?,
        population,
        env_spec,
        commit: option_env!("MAGE_COMMIT").map(str::to_owned),
        // At once and beside any picture of progress: whoever waits wants to know for what.
        status_log: StatusLog::new(|line| eprintln!("{line}")),
    })
}

/// The first of runs/kuhn-1, runs/kuhn-2, … that is free.
fn free_directory(recipes: &[String]) -> PathBuf {
    let stem = |name: &String| {
        let path = Path::new(name);
        let whole = if path.extension().is_some_and(|e| e == "toml") { path.file_stem().map(Path::new) } else { None };
        whole.unwrap_or(path).display().to_string().replace(['/', '\\'], "-")
    };
    let name = recipes.iter().map(stem).collect::<Vec<_>>().join("-");
    (1..).map(|n| PathBuf::from(format!("runs/{name}-{n}"))).find(|p| !p.exists()).unwrap_or_else(|| "runs/run".into())
}

fn dry_run(args: &TrainArgs, recipe: &Recipe, setting: &TrainEnv, out: &Output) -> anyhow::Result<()> {
    if let Some(file) = args.out.as_ref().filter(|f| f.exists()) {
        return Err(usage(format!("{}: it is there already; give --out a file that is not", file.display())));
    }
    let plan = out.waiting("trying an update", || ResourcePlan::new(recipe, setting))?;
    if let Some(file) = &args.out {
        std::fs::write(file, recipe.to_toml()).with_context(|| format!("cannot write {}", file.display()))?;
    }
    if out.json {
        return out.object(&plan);
    }
    let uncounted = || "unknown without a tokenizer and a list of legal actions".to_owned();
    let about = |tokens: Option<u64>| tokens.map_or_else(uncounted, |n| format!("about {n}"));
    let device = plan.servers.clone().or_else(|| plan.gpu.clone()).unwrap_or_else(|| "cpu".to_owned());
    let mut rows = vec![("device", device), ("parameters", plan.parameters.to_string())];
    if plan.trainable_parameters != plan.parameters {
        rows.push(("  of which an adapter's learn", plan.trainable_parameters.to_string()));
    }
    rows.extend([
        ("episodes per update", plan.episodes.to_string()),
        ("tokens of prompts per update", about(plan.prompt_tokens)),
        ("tokens of answers, at most", about(plan.response_tokens)),
    ]);
    // What servers have room for, and how long they take, is not known here.
    if plan.servers.is_none() {
        rows.extend(room(&plan));
    }
    out.line(table(&["", ""], rows.into_iter().map(|(k, v)| vec![k.to_owned(), v])))?;
    for warning in &plan.warnings {
        out.warn(warning);
    }
    if plan.too_large() {
        out.warn(match plan.adapter_may_fit() && !recipe.model.path.is_empty() {
            true => {
                "there is not the memory for it; end other programs, take a smaller model, or train an adapter in place of the \
                 whole one (engine.lora_rank)"
            }
            false => "there is not the memory for it; end other programs, or take a smaller model",
        });
    }
    if !plan.weights_available {
        out.warn("the model's numbers are not there yet: this is from its shape alone");
    }
    match &args.out {
        Some(file) => out.hint(format!("the resolved recipe is in {}, and nothing else was written", file.display())),
        None => out.hint("nothing was written; leave out --dry-run to train"),
    }
    Ok(())
}

/// The rows about this machine: memory and time.
fn room(plan: &ResourcePlan) -> Vec<(&'static str, String)> {
    let unknown = || "not tried".to_owned();
    let mut rows = vec![
        ("weights in training and sampling, gradients, optimiser", bytes(plan.state_bytes)),
        ("cache per token in flight", bytes(plan.kv_bytes_per_token)),
        ("kept per token in training", bytes(plan.activation_bytes_per_token)),
    ];
    let on_a_card = [
        ("set aside for training passes", plan.pass_bytes),
        ("set aside for sampling steps and other programs", plan.reserved_bytes),
        ("left for the cache", plan.kv_cache_bytes),
    ];
    rows.extend(plan.pass_tokens.map(|n| ("tokens per training pass", n.to_string())));
    rows.extend(on_a_card.into_iter().filter_map(|(what, n)| Some((what, bytes(n?)))));
    let (used, free) = match plan.gpu {
        Some(_) => ("memory in use now, besides the card's", "memory free on the card"),
        None => ("memory in use now", "memory free"),
    };
    rows.extend([
        (used, plan.resident_bytes.map_or_else(unknown, bytes)),
        (free, plan.free_bytes.map_or_else(unknown, bytes)),
        ("time per update", plan.seconds_per_update.map_or_else(unknown, |s| format!("about {s:.2} s"))),
        ("time for all updates", plan.total_seconds.map_or_else(unknown, |s| format!("about {}", span(s)))),
    ]);
    rows
}

/// A number of bytes in the unit that suits it.
fn bytes(n: u64) -> String {
    match n as f64 {
        n if n < 1024.0 => format!("{n:.0} B"),
        n if n < 1_048_576.0 => format!("{:.1} KiB", n / 1024.0),
        n if n < 1_073_741_824.0 => format!("{:.1} MiB", n / 1_048_576.0),
        n => format!("{:.1} GiB", n / 1_073_741_824.0),
    }
}

/// A path as a shell takes it.
pub(super) fn shell_word(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:@%".contains(c);
    match !text.is_empty() && text.chars().all(plain) {
        true => text,
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

fn report(outcome: &TrainOutcome, dir: &Path, hosts: bool, out: &Output) -> anyhow::Result<()> {
    let (Some(after), Some(blanked)) = (&outcome.after, &outcome.without_memory) else { return Ok(()) };
    let how = if after.exact { "expected over all that can happen" } else { "as played" };
    out.line(format!(
        "\n{}: {}, mean ± standard error over {} tasks, {how}",
        styled(BOLD, "by episode"),
        outcome.unit,
        after.score.first().map_or(0, |e| e.tasks)
    ))?;
    let mut header = vec!["episode", "before", "after", "memory blanked"];
    if outcome.ceilings.is_some() {
        header.extend(["best without memory", "best learner"]);
    }
    let at = |j: Option<&EvalResult>, n: usize| j.and_then(|j| j.score.get(n)).map_or_else(|| "-".to_owned(), estimate);
    let rows = (0..after.score.len()).map(|n| {
        let mut row =
            vec![(n + 1).to_string(), at(outcome.before.as_ref(), n), at(Some(after), n), at(Some(blanked), n)];
        if let Some(c) = &outcome.ceilings {
            row.push(c.mean.memoryless.get(n).map_or_else(|| "-".to_owned(), |v| score(*v)));
            row.push(c.mean.sum.by_episode.get(n).map_or_else(|| "-".to_owned(), |v| score(*v)));
        }
        row
    });
    out.line(table(&header, rows))?;
    let last = after.score.len().saturating_sub(1);
    let slice = |name: String,
                 before: Option<&Vec<EvalEstimate>>,
                 after: &[EvalEstimate],
                 blank: Option<&Vec<EvalEstimate>>| {
        let of = |v: Option<&EvalEstimate>| v.map_or_else(|| "-".to_owned(), estimate);
        vec![
            name,
            of(before.and_then(|b| b.get(last))),
            of(after.first()),
            of(after.get(last)),
            of(blank.and_then(|b| b.get(last))),
        ]
    };
    if after.by_opponent.len() + after.by_seat.len() > 2 {
        let opponents = after.by_opponent.iter().map(|(name, curve)| {
            slice(
                name.clone(),
                outcome.before.as_ref().and_then(|b| b.by_opponent.get(name)),
                curve,
                blanked.by_opponent.get(name),
            )
        });
        let seats = after.by_seat.iter().map(|(seat, curve)| {
            slice(
                format!("from seat {seat}"),
                outcome.before.as_ref().and_then(|b| b.by_seat.get(seat)),
                curve,
                blanked.by_seat.get(seat),
            )
        });
        let last = format!("episode {}", last + 1);
        let header = ["against", &format!("before, {last}"), "after, episode 1", &format!("after, {last}"), "blanked"];
        out.line(format!("\n{}", table(&header, opponents.chain(seats))))?;
    }
    if let (Some(c), Some(e)) = (&outcome.ceilings, after.score.get(last)) {
        let (low, high) = (c.mean.memoryless[last], c.mean.sum.by_episode[last]);
        let share = 100.0 * (e.mean - low) / (high - low);
        if high - low > 1e-9 && share < 0.0 {
            out.line(format!("\nworse in episode {} than the best memoryless policy ({})", last + 1, score(low)))?;
        } else if high - low > 1e-9 {
            let reach = 196.0 * e.se / (high - low);
            let sure =
                if reach > 0.0 { format!(" [{:.0}, {:.0}]", share - reach, share + reach) } else { String::new() };
            out.line(format!(
                "\n{}{sure} of the way from the best memoryless policy to the best learner in episode {}",
                styled(GOOD, format!("{share:.0} %")),
                last + 1
            ))?;
        }
    }
    let mut closing = format!(
        "\n{} updates in {}; metrics, episodes and checkpoints are in {}\nmodel: {}",
        outcome.updates,
        span(outcome.seconds),
        dir.display(),
        last_model(dir)?.display()
    );
    if let Some((update, best)) = outcome.best.filter(|(update, _)| *update != outcome.updates) {
        let better = dir.join(checkpoint_path(update));
        closing += &format!("\nbest on the panel: {}, {} after {update} updates", better.display(), score(best));
    }
    out.line(styled(DIM, closing))?;
    if hosts {
        out.line(format!("play against it: {}", styled(BOLD, format!("mage play --against {}", shell_word(dir)))))?;
    }
    Ok(())
}
