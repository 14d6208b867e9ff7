//! `mage eval`: how good is an agent?

use crate::{
    App,
    cli::{Eval, Memory},
    output::{BOLD, DIM, Output, styled},
    pick::{pick, warn},
    plot::{Chart, Line, Points},
    table::{score, table},
    usage,
};
use anyhow::Context;
use mage_core::{
    Against, Bootstrap, Ceiling, EpisodeRecord, Mean, MemoryMode, MetaResult, Rate, Settings, Slice, Summary, Unplayed,
    against, summarise,
};
use mage_env::{Hash, Seed, oracle::OracleReport};
use mage_lab::{
    Panel,
    evaluate::{Agent, Evaluation},
    store::{RecordStore, read_records},
};
use serde::Serialize;
use std::{collections::HashSet, path::Path, sync::Arc};

pub(crate) fn run(app: &App, args: &Eval, out: &Output) -> anyhow::Result<()> {
    let (factory, population) = pick(app, &args.env, &args.whom)?;
    let schema = factory.schema();
    let split = args.whom.split();
    warn(&*factory, &population, split, out)?;
    let agent = Agent::find(&*factory, &args.policy, &population, split, args.episodes).map_err(usage)?;
    let settings = Settings {
        early_stop: args.early_stop,
        memory: match args.memory {
            Memory::None => MemoryMode::None,
            Memory::Reflection => MemoryMode::ReflectionOnly,
        },
        max_turns: match args.turns {
            Some(turns) => turns,
            None => factory.max_turns(&population, split)?,
        },
        ..Settings::compact(&schema, args.episodes)
    };
    let seed = Seed::new(args.seed);
    let evaluation = Evaluation {
        prompts: app.prompts.get(&args.env)?,
        settings: Arc::new(settings),
        panel: Panel::new(&population, split, schema.seats, usize::try_from(args.tasks)?, seed)?
            .dealt(&*factory, seed)?,
        agent,
        seed,
        factory: Arc::clone(&factory),
    };
    // Files that the options name are read here for the first time: better now than within the panel.
    if let Some(task) = evaluation.panel.tasks().first() {
        factory.build(task)?;
    }
    let results = play(&evaluation, args.records.as_deref(), out)?;
    let ceilings = if args.early_stop {
        out.hint("No ceilings with --early-stop: they are for all tasks, its later episodes for those not yet won.");
        None
    } else {
        let ceilings = out.waiting("working out the ceilings", || factory.oracles(&population, split, args.episodes));
        // What was played is worth telling without them.
        ceilings.unwrap_or_else(|e| {
            out.warn(format!("no ceilings to compare with: {e}"));
            None
        })
    };
    let report = Report::new(args, &evaluation, &schema.unit, &results, ceilings);
    if let Some(path) = &args.plot {
        std::fs::write(path, report.chart().svg()).with_context(|| format!("cannot write {}", path.display()))?;
        out.hint(format!("drawn into {}", path.display()));
    }
    if out.json { out.object(&report) } else { report.print(out) }
}

/// Plays the panel, or what is missing of it in the record file.
fn play(evaluation: &Evaluation, records: Option<&Path>, out: &Output) -> anyhow::Result<Vec<MetaResult>> {
    let tasks = evaluation.panel.tasks();
    let bar = out.progress(tasks.len() as u64, "playing");
    let mut results = Vec::new();
    let mut each = |record: &EpisodeRecord| {
        bar.inc(1);
        results.extend(record.result());
    };
    match records {
        None => evaluation.run(each)?,
        Some(path) => {
            let mut store = RecordStore::open(path)?;
            if store.repaired_bytes() > 0 {
                out.warn(format!("{}: dropped a record that was half written", path.display()));
            }
            let mut wanted: HashSet<_> = tasks.iter().enumerate().map(|(i, t)| evaluation.key(i, t)).collect();
            for record in read_records(path)? {
                let record = record?;
                if wanted.remove(&record.key) {
                    each(&record);
                }
            }
            evaluation.run_into(&mut store, each)?;
        }
    }
    bar.finish_and_clear();
    Ok(results)
}

/// Everything an evaluation has to say.
#[derive(Serialize)]
struct Report<'a> {
    env: &'a str,
    policy: &'a str,
    memory: MemoryMode,
    split: &'a str,
    unit: &'a str,
    episodes: u32,
    tasks: u64,
    seed: u64,
    panel: Hash,
    method: Hash,
    summary: Summary,
    against: Option<Against>,
    ceilings: Option<OracleReport>,
    #[serde(skip)]
    title: String,
}

impl<'a> Report<'a> {
    fn new(
        args: &'a Eval,
        evaluation: &'a Evaluation,
        unit: &'a str,
        results: &[MetaResult],
        ceilings: Option<OracleReport>,
    ) -> Self {
        let bootstrap = Bootstrap { seed: evaluation.seed.child("bootstrap"), ..Bootstrap::default() };
        let against = ceilings.as_ref().map(|c| {
            let lines = Ceiling { memoryless: c.mean.memoryless.clone(), adaptive: c.mean.sum.by_episode.clone() };
            against(results, &lines, bootstrap)
        });
        Report {
            env: &args.env,
            policy: evaluation.agent.name(),
            memory: evaluation.settings.memory,
            split: args.whom.split(),
            unit,
            episodes: args.episodes,
            tasks: args.tasks,
            seed: args.seed,
            panel: evaluation.panel.hash(),
            method: Hash::of(&*evaluation.settings),
            summary: summarise(results, args.episodes, Unplayed::NotCounted, bootstrap),
            against,
            ceilings,
            title: format!("{}: {} tasks of {} episodes, 95 % intervals", args.env, args.tasks, args.episodes),
        }
    }

    fn chart(&self) -> Chart<'_> {
        let line = |name, colour, dashes, values: &[f64]| Line { name, colour, dashes, values: values.to_vec() };
        let lines = self.ceilings.iter().flat_map(|c| {
            [
                line("opponent known", "#8d99ae", "2 4", &c.mean.informed),
                line(best_learner(c), "#1d3557", "none", &c.mean.sum.by_episode),
                line("best without memory", "#2a9d8f", "6 4", &c.mean.memoryless),
            ]
        });
        let curve = &self.summary.overall.by_episode;
        let values = curve.iter().filter_map(|at| Some((at.score.mean?, at.score.interval.map(|i| (i.low, i.high)))));
        Chart {
            title: &self.title,
            unit: self.unit,
            lines: lines.collect(),
            points: Points { name: self.policy, values: values.collect() },
        }
    }

    fn print(&self, out: &Output) -> anyhow::Result<()> {
        let memory = if self.memory == MemoryMode::None { "memory blanked" } else { "reflections in memory" };
        out.line(format!(
            "{} plays {}, {}{}, {memory}: {} tasks of {} episodes, {}",
            styled(BOLD, self.policy),
            self.env,
            self.split,
            if self.summary.by_opponent.is_empty() { "" } else { " opponents" },
            self.tasks,
            self.episodes,
            self.unit
        ))?;
        self.print_curve(out)?;
        if !self.summary.by_opponent.is_empty() {
            self.print_opponents(out)?;
        }
        if let Some(ceilings) = self.ceilings.as_ref().filter(|c| c.learner_may_be_better()) {
            let error = score(ceilings.error());
            out.line(styled(DIM, format!("\nthe best learner may be up to {error} better than shown")))?;
        }
        for note in self.ceilings.iter().flat_map(|c| &c.notes) {
            out.line(styled(DIM, format!("note: {note}")))?;
        }
        let invalid = &self.summary.overall.invalid;
        out.line(styled(
            DIM,
            format!(
                "\ninvalid actions {} of {}; brackets are 95 % intervals; panel {}",
                rate(invalid),
                invalid.of,
                short(&self.panel)
            ),
        ))
    }

    fn print_curve(&self, out: &Output) -> anyhow::Result<()> {
        let curve = &self.summary.overall.by_episode;
        let mut header = vec!["episode", "n", "score"];
        if let Some(ceilings) = &self.ceilings {
            // Next to too low a best, one has come further than one has.
            let way = if ceilings.learner_may_be_better() { "of the way, at most" } else { "of the way" };
            header.extend(["without memory", best_learner(ceilings), way]);
        }
        let rows = curve.iter().map(|at| {
            let i = at.k as usize - 1;
            let mut row = vec![at.k.to_string(), at.score.count.to_string(), mean(&at.score)];
            if let (Some(ceilings), Some(against)) = (&self.ceilings, &self.against) {
                row.push(score(ceilings.mean.memoryless[i]));
                row.push(score(ceilings.mean.sum.by_episode[i]));
                let share = against.by_episode.get(i).and_then(|a| a.share).and_then(|s| s.mean);
                row.push(share.map_or_else(|| "-".to_owned(), |s| format!("{:.0} %", 100.0 * s)));
            }
            row
        });
        out.line(format!("\n{}", table(&header, rows)))?;
        let rows = curve.iter().map(|at| {
            vec![
                at.k.to_string(),
                at.won.of.to_string(),
                rate(&at.won),
                at.pass_at_k.of.to_string(),
                rate(&at.pass_at_k),
            ]
        });
        out.line(format!("\n{}", table(&["episode", "n", "won", "n", "won by then (Pass@k)"], rows)))
    }

    /// First and last episode by opponent and by seat, each opponent next to the best response to it.
    fn print_opponents(&self, out: &Output) -> anyhow::Result<()> {
        let last = format!("episode {}", self.episodes);
        let mut header = vec!["against", "n", "episode 1"];
        if self.episodes > 1 {
            header.push(&last);
        }
        if self.ceilings.is_some() {
            header.push("best response");
        }
        let row = |name: String, slice: &Slice, best: Option<f64>| {
            let mut row = vec![name, slice.meta_episodes.to_string()];
            row.extend(slice.by_episode.first().map(|at| mean(&at.score)));
            row.extend(slice.by_episode.last().filter(|_| self.episodes > 1).map(|at| mean(&at.score)));
            if self.ceilings.is_some() {
                row.push(best.map_or_else(|| "-".to_owned(), score));
            }
            row
        };
        let best = |name: &str| {
            let values = &self.ceilings.as_ref()?.mean.best_response;
            values.iter().find(|v| v.name == name).map(|v| v.value)
        };
        let opponents = self.summary.by_opponent.iter().map(|(name, s)| row(name.clone(), s, best(name)));
        let seats = self.summary.by_seat.iter().map(|(seat, s)| row(format!("from seat {seat}"), s, None));
        out.line(format!("\n{}", table(&header, opponents.chain(seats))))
    }
}

/// What a column of the best learner's scores is called.
fn best_learner(ceilings: &OracleReport) -> &'static str {
    if ceilings.learner_may_be_better() { "best learner, at least" } else { "best learner" }
}

fn mean(m: &Mean) -> String {
    match (m.mean, m.interval) {
        (Some(x), Some(i)) => format!("{} [{}, {}]", score(x), score(i.low), score(i.high)),
        (Some(x), None) => score(x),
        (None, _) => "-".to_owned(),
    }
}

fn rate(r: &Rate) -> String {
    r.rate.map_or_else(
        || "-".to_owned(),
        |p| {
            let percent = |x: f64| format!("{:.1}", 100.0 * x);
            format!("{} % [{}, {}]", percent(p), percent(r.interval.low), percent(r.interval.high))
        },
    )
}

fn short(hash: &Hash) -> String {
    hash.to_string()[..8].to_owned()
}
