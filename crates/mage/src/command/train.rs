//! `mage train`: learn to adapt.

use crate::{
    App,
    cli::Train,
    command::recipe::compose,
    output::{BOLD, DIM, GOOD, Output, styled},
    pick::{read_population, warn},
    table::{score, table},
    usage,
};
use anyhow::Context;
use indicatif::ProgressBar;
use mage_lab::{
    Plan,
    judge::{Estimate, Judgement},
    recipe::Recipe,
    run_dir::{RunDir, last_model},
    train::{Event, Outcome, Setting, Training},
};
use std::{
    io::IsTerminal,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    time::Instant,
};

pub(crate) fn run(app: &App, args: &Train, out: &Output) -> anyhow::Result<()> {
    let recipe = recipe(args)?;
    let setting = setting(app, &recipe)?;
    warn(&*setting.factory, &setting.population, &recipe.env.split, out)?;
    if args.dry_run {
        return dry_run(args, &recipe, &setting, out);
    }
    let stop = stop_on_ctrl_c("stopping after this update; press Ctrl-C again to stop at once")?;
    let mut screen = Screen::new(*out);
    let mut training = match &args.resume {
        Some(dir) => Training::resume(recipe, setting, dir, args.force, Arc::clone(&stop), &mut |e| screen.show(e))?,
        None => {
            let dir = args.out.clone().unwrap_or_else(|| free_directory(&args.recipes));
            Training::create(recipe, setting, &dir, Arc::clone(&stop))?
        }
    };
    let outcome = training.run(&mut |e| screen.show(e));
    screen.clear();
    let outcome = outcome?;
    let dir = training.path().to_owned();
    if out.json {
        return out.object(&serde_json::json!({ "event": "finished", "outcome": outcome }));
    }
    if outcome.after.is_none() {
        let (done, of) = (outcome.updates, outcome.of);
        let where_to = match outcome.before {
            None => "stopped in the warm start, which will begin again".to_owned(),
            Some(_) => format!("stopped after {done} of {of} updates, saved"),
        };
        return out.line(format!(
            "{where_to}; go on with {}",
            styled(BOLD, format!("mage train --resume {}", dir.display()))
        ));
    }
    report(&outcome, &dir, training.hosts(), out)
}

/// Counts Ctrl-C: the first asks to stop and says so, the second stops at once.
pub(super) fn stop_on_ctrl_c(says: &'static str) -> anyhow::Result<Arc<AtomicU8>> {
    let stop = Arc::new(AtomicU8::new(0));
    let handler = Arc::clone(&stop);
    ctrlc::set_handler(move || match handler.fetch_add(1, Ordering::Relaxed) {
        0 => eprintln!("\n{says}"),
        _ => std::process::exit(130),
    })
    .context("cannot listen for Ctrl-C")?;
    Ok(stop)
}

/// The recipe of a new run, or that of the run to be resumed with what the user changes.
fn recipe(args: &Train) -> anyhow::Result<Recipe> {
    let set = args.changes.settings();
    let Some(dir) = &args.resume else { return compose(&args.recipes, &set) };
    let written = RunDir::recipe(dir).map_err(usage)?;
    let mut composer = mage_lab::recipe::Composer::new();
    composer.add_text(&written.to_toml(), "the run's recipe").map_err(usage)?;
    for setting in &set {
        composer.set(setting).map_err(usage)?;
    }
    composer.finish().map_err(usage)
}

pub(super) fn setting(app: &App, recipe: &Recipe) -> anyhow::Result<Setting> {
    let factory = Arc::clone(app.registry.get(&recipe.env.name).map_err(usage)?);
    let population = match recipe.env.population.as_str() {
        "" => factory.default_population(),
        name => read_population(&*factory, name)?,
    };
    if population.env != factory.id() {
        return Err(usage(format!("population {} is for {}", recipe.env.population, population.env)));
    }
    factory.check(&population).map_err(usage)?;
    population.in_split(&recipe.env.split).map_err(usage)?;
    population.in_split(&recipe.eval.split).map_err(usage)?;
    Ok(Setting { prompts: app.prompts.get(&recipe.env.name)?, population, factory })
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

fn dry_run(args: &Train, recipe: &Recipe, setting: &Setting, out: &Output) -> anyhow::Result<()> {
    let plan = out.waiting("trying one small update", || Plan::new(recipe, setting))?;
    if let Some(file) = &args.out {
        std::fs::write(file, recipe.to_toml()).with_context(|| format!("cannot write {}", file.display()))?;
        out.hint(format!("the resolved recipe is in {}", file.display()));
    }
    if out.json {
        return out.object(&plan);
    }
    let mega = |bytes: u64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
    let unknown = || "not tried".to_owned();
    let rows = [
        ("engine", plan.engine.clone()),
        ("parameters", plan.parameters.to_string()),
        ("episodes per update", plan.episodes.to_string()),
        ("tokens per update", format!("about {}", plan.tokens)),
        ("weights, gradients, optimiser", mega(plan.state_bytes)),
        ("memory in use now", plan.resident_bytes.map_or_else(unknown, mega)),
        ("time per update", plan.seconds_per_update.map_or_else(unknown, |s| format!("about {s:.2} s"))),
        ("time in all", plan.seconds.map_or_else(unknown, |s| format!("about {}", minutes(s)))),
    ];
    out.line(table(&["", ""], rows.into_iter().map(|(k, v)| vec![k.to_owned(), v])))?;
    out.hint("nothing was written; leave out --dry-run to train");
    Ok(())
}

pub(super) fn minutes(seconds: f64) -> String {
    if seconds < 100.0 { format!("{seconds:.0} s") } else { format!("{:.1} min", seconds / 60.0) }
}

/// Shows a run as it goes: a bar on a terminal, lines elsewhere, events for programs.
pub(super) struct Screen {
    out: Output,
    bar: Option<ProgressBar>,
    /// What the bar counts.
    counting: &'static str,
    terminal: bool,
    told: Instant,
    updates: u64,
}

impl Screen {
    pub(super) fn new(out: Output) -> Self {
        let terminal = std::io::stderr().is_terminal();
        Screen { out, bar: None, counting: "", terminal, told: Instant::now(), updates: 0 }
    }

    pub(super) fn clear(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }

    fn bar(&mut self, counting: &'static str, of: u64, from: u64) -> &ProgressBar {
        if self.counting != counting {
            self.clear();
            self.counting = counting;
        }
        self.bar.get_or_insert_with(|| {
            let bar = self.out.progress(of, counting);
            bar.set_position(from);
            bar.reset_eta();
            bar
        })
    }

    fn line(&mut self, text: &str) {
        match &self.bar {
            Some(bar) if self.terminal => bar.suspend(|| self.out.hint(text)),
            _ => self.out.hint(text),
        }
    }

    pub(super) fn show(&mut self, event: Event) {
        if self.out.json {
            if !matches!(event, Event::Judging { .. }) {
                let _ = self.out.object(&event);
            }
            return;
        }
        match event {
            Event::Started { run, parameters, from, updates } => {
                self.updates = updates;
                let go = if from == 0 { String::new() } else { format!(", {from} done") };
                self.line(&format!("{run}: {parameters} parameters, {updates} updates{go}"));
            }
            Event::Warmstart { step, steps, loss } => {
                let bar = self.bar("warm start", steps, 0);
                bar.set_position(step);
                if step == steps {
                    self.clear();
                    self.line(&format!("warm start: {steps} steps, loss {loss:.3}"));
                }
            }
            Event::Judging { done, of } => self.bar("playing the panel", of as u64, 0).set_position(done as u64),
            Event::Judged { update, judgement } => {
                if self.counting == "playing the panel" {
                    self.clear();
                }
                let how = if judgement.exact { "expected" } else { "as played" };
                self.line(&format!("after {update} updates: {} by episode, {how}", curve(&judgement.score)));
            }
            Event::Updated { update, metrics, timing } => {
                let at = |key: &str| metrics.get(key).copied().unwrap_or(f64::NAN);
                let episodes: Vec<f64> =
                    (1..).map_while(|n| metrics.get(&format!("episode_{n}/score")).copied()).collect();
                let scores: Vec<String> = episodes.iter().map(|s| format!("{s:+.2}")).collect();
                let rate = |n: f64| n / timing.get("total").copied().unwrap_or(f64::NAN);
                let tokens = rate(at("tokens/trained"));
                let text = format!("score {}  entropy {:.2}  {tokens:.0} tokens/s", scores.join(" "), at("entropy"));
                let plain = !self.terminal && self.told.elapsed().as_secs() >= 5;
                let updates = self.updates;
                let bar = self.bar("training", updates, update - 1);
                bar.set_position(update);
                bar.set_message(text.clone());
                if plain {
                    self.told = Instant::now();
                    self.line(&format!("update {update}: {text}"));
                }
            }
            Event::Saved { .. } => {}
            Event::Warning { text } => match &self.bar {
                Some(bar) => bar.suspend(|| self.out.warn(text)),
                None => self.out.warn(text),
            },
        }
    }
}

fn curve(estimates: &[Estimate]) -> String {
    estimates.iter().map(estimate).collect::<Vec<_>>().join("  ")
}

fn estimate(e: &Estimate) -> String {
    if e.se == 0.0 { score(e.mean) } else { format!("{} ± {:.3}", score(e.mean), e.se) }
}

fn report(outcome: &Outcome, dir: &Path, hosts: bool, out: &Output) -> anyhow::Result<()> {
    let (Some(after), Some(blanked)) = (&outcome.after, &outcome.blanked) else { return Ok(()) };
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
    let at = |j: Option<&Judgement>, n: usize| j.and_then(|j| j.score.get(n)).map_or_else(|| "-".to_owned(), estimate);
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
    let slice = |name: String, before: Option<&Vec<Estimate>>, after: &[Estimate], blank: Option<&Vec<Estimate>>| {
        let of = |v: Option<&Estimate>| v.map_or_else(|| "-".to_owned(), estimate);
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
        if high - low > 1e-9 {
            let share = 100.0 * (e.mean - low) / (high - low);
            out.line(format!(
                "\n{} of the way from the best memoryless policy to the best learner in episode {}",
                styled(GOOD, format!("{share:.0} %")),
                last + 1
            ))?;
        }
    }
    out.line(styled(
        DIM,
        format!(
            "\n{} updates in {}; metrics, episodes and checkpoints are in {}\nmodel: {}",
            outcome.updates,
            minutes(outcome.seconds),
            dir.display(),
            last_model(dir)?.display()
        ),
    ))?;
    if hosts {
        out.line(format!("play against it: {}", styled(BOLD, format!("mage play --against {}", dir.display()))))?;
    }
    Ok(())
}
