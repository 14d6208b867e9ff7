//! `mage env`: lists and describes environments, computes upper bounds, and checks conformance.

use super::world_ceilings::WorldCeilings;
use crate::{
    App,
    cli::{EnvArgs, EnvCommand, EnvConformArgs, EnvGenerateArgs, EnvShowArgs},
    output::{BAD, BOLD, DIM, GOOD, Output, styled},
    table::{columns, score, table},
    task_selection::{print_warnings, select},
    usage,
};
use mage_env::{
    EnvInfo, EnvSpec, OptionMap, Population, ScriptedAgentInfo, Seed, solvers::OracleReport, solvers::SeatOracle,
    solvers::is_lower_bound,
};
use serde::Serialize;

pub(crate) fn run(app: &App, args: &EnvArgs, out: &Output) -> anyhow::Result<()> {
    match &args.command {
        EnvCommand::List => list(app, out),
        EnvCommand::Show(args) => show(app, args, out),
        EnvCommand::Conform(args) => conform(app, args, out),
        EnvCommand::Generate(args) => generate(app, args, out),
    }
}

fn list(app: &App, out: &Output) -> anyhow::Result<()> {
    if out.json {
        let all: Vec<EnvDescription> = app.registry.iter().map(|f| EnvDescription::of(&**f)).collect();
        return out.object(&all);
    }
    let rows = app.registry.iter().map(|f| vec![f.id().to_string(), f.info().summary]);
    out.line(columns(&["environment", "summary"], rows))?;
    out.hint("\n`mage env show NAME` describes an environment; `mage play NAME` plays it.");
    Ok(())
}

/// Description of an environment, as printed with `--json`.
#[derive(Serialize)]
struct EnvDescription {
    id: String,
    env_info: EnvInfo,
    policies: Vec<ScriptedAgentInfo>,
    populations: Vec<&'static str>,
    /// Splits of the selected population.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    splits: Vec<SplitDescription>,
    #[serde(skip_serializing_if = "Option::is_none")]
    oracles: Option<EnvCeilings>,
}

/// A split with its own settings.
#[derive(Serialize)]
struct SplitDescription {
    name: String,
    max_turns: u32,
    options: OptionMap,
}

/// Upper bounds on the score.
#[derive(Serialize)]
#[serde(untagged)]
enum EnvCeilings {
    /// Against the opponents of a game.
    Games(Box<OracleReport>),
    /// On the tasks of a world.
    World(WorldCeilings),
}

impl EnvDescription {
    fn of(env_spec: &dyn EnvSpec) -> Self {
        let random = ScriptedAgentInfo::new("random", "any legal action");
        EnvDescription {
            id: env_spec.id().to_string(),
            env_info: env_spec.info(),
            policies: [random].into_iter().chain(env_spec.scripted_agents()).collect(),
            populations: env_spec.populations().into_iter().map(|(name, _)| name).collect(),
            splits: Vec::new(),
            oracles: None,
        }
    }
}

/// The splits of a population with their own settings.
fn splits(env_spec: &dyn EnvSpec, population: &Population) -> anyhow::Result<Vec<SplitDescription>> {
    let describe = |name: &str| {
        let options = population.overrides.get(name).cloned().unwrap_or_default();
        Ok(SplitDescription { name: name.to_owned(), max_turns: env_spec.max_turns(population, name)?, options })
    };
    population.splits().map(describe).collect()
}

fn show(app: &App, args: &EnvShowArgs, out: &Output) -> anyhow::Result<()> {
    let (env_spec, population) = select(app, &args.env, &args.selection, None)?;
    let mut description = EnvDescription::of(&*env_spec);
    description.splits = splits(&*env_spec, &population)?;
    if args.oracles {
        description.oracles = Some(ceilings(&*env_spec, &population, args, out)?);
    }
    if out.json {
        return out.object(&description);
    }
    match &description.oracles {
        Some(EnvCeilings::Games(report)) => {
            print_oracles(report, out)?;
            hint_other_splits(&population, args, out);
            Ok(())
        }
        Some(EnvCeilings::World(report)) => report.print(out),
        None => {
            print_info(&description, out)?;
            print_splits(&description, out)?;
            print_population(&population, args.selection.split(), out)?;
            if !description.env_info.opponents.is_empty() || env_spec.solver().is_some() {
                out.hint(format!("\n`mage env show {} --oracles` computes upper bounds on the score.", description.id));
            }
            Ok(())
        }
    }
}

/// Hints at splits with other opponents.
fn hint_other_splits(population: &Population, args: &EnvShowArgs, out: &Output) {
    let shown = args.selection.split();
    let opponents = |split: &str| population.in_split(split).unwrap_or_default();
    let others =
        population.splits().filter(|split| !opponents(split).is_empty() && opponents(split) != opponents(shown));
    let others: Vec<String> = others.map(|split| format!("--split {split}")).collect();
    // Opponents named on the command line belong to the selected split only.
    if !others.is_empty() && args.selection.opponent.is_empty() {
        out.hint(format!("\nThese are the {shown} opponents; use {} for others.", others.join(" or ")));
    }
}

fn ceilings(
    env_spec: &dyn EnvSpec,
    population: &Population,
    args: &EnvShowArgs,
    out: &Output,
) -> anyhow::Result<EnvCeilings> {
    let split = args.selection.split();
    let games = out.spinner("computing upper bounds", || env_spec.oracles(population, split, args.episodes))?;
    if let Some(report) = games {
        return Ok(EnvCeilings::Games(Box::new(report)));
    }
    if let Some(solver) = env_spec.solver() {
        let ceilings = WorldCeilings::compute(&args.env, solver, population, args.selection.split.as_deref(), out)?;
        return Ok(EnvCeilings::World(ceilings));
    }
    let full_info = env_spec.scripted_agents().into_iter().find(|r| r.full_info).map(|r| r.name);
    let alternative = full_info.map_or_else(String::new, |name| {
        format!("; evaluate the agent with full information: mage eval --env {} {name}", args.env)
    });
    Err(usage(format!("{} has no oracle{alternative}", args.env)))
}

fn print_info(description: &EnvDescription, out: &Output) -> anyhow::Result<()> {
    let env_info = &description.env_info;
    out.line(styled(BOLD, &env_info.title))?;
    out.line(format!(
        "{}; {} {}, at most {} turns, score in {}",
        env_info.summary,
        env_info.seats,
        if env_info.seats == 1 { "seat" } else { "seats" },
        env_info.max_turns,
        env_info.unit
    ))?;
    if !env_info.options.is_empty() {
        let rows = env_info.options.iter().map(|o| vec![o.key.clone(), o.values.clone(), o.description.clone()]);
        out.line(format!("\n{}", columns(&["option", "values", "description"], rows)))?;
    }
    if !env_info.opponents.is_empty() {
        let rows = env_info.opponents.iter().map(|(kind, description)| vec![kind.clone(), description.clone()]);
        out.line(format!("\n{}", columns(&["opponent kind", "description"], rows)))?;
    }
    let rows = description.policies.iter().map(|p| {
        let full_info = if p.full_info { " (full information)" } else { "" };
        vec![p.name.clone(), format!("{}{full_info}", p.description)]
    });
    out.line(format!("\n{}", columns(&["policy", "description"], rows)))?;
    if !description.populations.is_empty() {
        out.line(format!("\npopulations: {}", description.populations.join(", ")))?;
    }
    Ok(())
}

/// Prints the splits of a world. The splits of a game differ in their opponents, see [`print_population`].
fn print_splits(description: &EnvDescription, out: &Output) -> anyhow::Result<()> {
    if !description.env_info.opponents.is_empty() {
        return Ok(());
    }
    let value = |v: &serde_json::Value| v.as_str().map_or_else(|| v.to_string(), str::to_owned);
    let rows = description.splits.iter().map(|split| {
        let options = split.options.0.iter().map(|(key, v)| format!("{key}={}", value(v)));
        vec![split.name.clone(), split.max_turns.to_string(), options.collect::<Vec<_>>().join(", ")]
    });
    out.line(format!("\n{}", columns(&["split", "max. turns", "options"], rows)))
}

/// Prints the opponents of a split with their sampling probabilities.
fn print_population(population: &Population, split: &str, out: &Output) -> anyhow::Result<()> {
    let opponents = population.in_split(split)?;
    if opponents.is_empty() {
        return Ok(());
    }
    let probabilities = opponents.iter().map(|(p, spec)| format!("{} {:.0} %", spec.name, 100.0 * p));
    out.line(format!("\n{split} opponents: {}", probabilities.collect::<Vec<_>>().join(", ")))
}

fn print_oracles(report: &OracleReport, out: &Output) -> anyhow::Result<()> {
    out.line(format!(
        "{}, {} opponents, {}, over {} {}",
        styled(BOLD, &report.env),
        report.split,
        report.unit,
        report.episodes,
        if report.episodes == 1 { "episode" } else { "episodes" }
    ))?;
    for seat in report.seats.iter().chain([&report.mean]) {
        out.line(format!("\n{}", styled(BOLD, seat_title(seat))))?;
        let mut header = vec!["by episode".to_owned()];
        header.extend((1..=report.episodes).map(|n| n.to_string()));
        header.push("sum".to_owned());
        let row = |name: &str, values: &[f64]| {
            let sum = values.iter().sum();
            let cells = values.iter().copied().chain([sum]).map(score);
            [name.to_owned()].into_iter().chain(cells).collect::<Vec<_>>()
        };
        let bayes_adaptive = |objective: &str, error: f64| {
            format!("Bayes-adaptive, {objective}{}", if is_lower_bound(error) { ", at least" } else { "" })
        };
        let rows = [
            row("memoryless", &seat.memoryless),
            row(&bayes_adaptive("sum of episodes", seat.sum_gap), &seat.sum.by_episode),
            row(&bayes_adaptive("last episode", seat.last_gap), &seat.last.by_episode),
            row("known opponent", &seat.full_info),
        ];
        let header: Vec<&str> = header.iter().map(String::as_str).collect();
        out.line(table(&header, rows))?;
        if !seat.best_response.is_empty() {
            let values: Vec<String> =
                seat.best_response.iter().map(|v| format!("{} {}", v.name, score(v.value))).collect();
            out.line(styled(DIM, format!("best responses: {}", values.join(", "))))?;
        }
        if is_lower_bound(seat.last_gap.max(seat.sum_gap)) {
            let (last, sum) = (score(seat.last_gap), score(seat.sum_gap));
            out.line(styled(
                DIM,
                format!("the Bayes-adaptive rows are lower bounds: the last episode is at most {last} too low, the sum {sum}"),
            ))?;
        }
    }
    out.line(format!("\n{}", styled(DIM, accuracy_note(report))))?;
    print_samples(report, out)
}

/// Which values are exact, bounds or estimates, and why.
fn accuracy_note(report: &OracleReport) -> &'static str {
    match (report.sampled_opponents.is_empty(), report.bayes_adaptive_is_lower_bound()) {
        (true, false) => "all values are exact to the decimals shown",
        (true, true) => {
            "all values are exact except the Bayes-adaptive rows: there are too many beliefs to solve, so these rows are the score of \
             the policy that was found"
        }
        (false, false) => {
            "all values are exact for the sampled move frequencies of the opponents, and estimates for the opponents themselves"
        }
        (false, true) => {
            "all values are exact for the sampled move frequencies of the opponents, and estimates for the opponents themselves, \
             except the Bayes-adaptive rows: there are too many beliefs to solve, so these rows are the score of the policy that \
             was found"
        }
    }
}

/// Prints the sample sizes of sampled opponents, and the notes.
fn print_samples(report: &OracleReport, out: &Output) -> anyhow::Result<()> {
    if !report.sampled_opponents.is_empty() {
        let rows = report.sampled_opponents.iter().map(|s| {
            vec![
                s.name.clone(),
                s.seat.to_string(),
                format!("at least {} in each of {} positions", s.samples, s.positions),
                score(s.fitted_value),
                s.games.to_string(),
                format!("{} ± {}", score(s.measured_value), score(s.standard_error)),
            ]
        });
        let header = [
            "sampled opponent",
            "agent seat",
            "samples",
            "best response (fitted)",
            "validation games",
            "best response (validated)",
        ];
        out.line(format!("\n{}", table(&header, rows)))?;
    }
    for note in &report.notes {
        out.line(styled(DIM, format!("note: {note}")))?;
    }
    Ok(())
}

fn seat_title(seat: &SeatOracle) -> String {
    match seat.seat {
        Some(n) => format!("seat {n}"),
        None => "mean over the seat distribution of the population".to_owned(),
    }
}

/// Converts an error of a command that reads the files of an environment.
fn data_error(e: mage_env::Error) -> anyhow::Error {
    match e {
        mage_env::Error::MissingData { .. } => usage(format!("{e}; the directory can be set with --data")),
        mage_env::Error::Write { .. } => e.into(),
        e => usage(e),
    }
}

fn conform(app: &App, args: &EnvConformArgs, out: &Output) -> anyhow::Result<()> {
    let env_spec = app.registry.get(&args.env).map_err(usage)?;
    let report = env_spec.conform(&args.golden, args.data.as_deref()).map_err(data_error)?;
    if out.json {
        out.object(&report)?;
    } else {
        let rows = report.compared.iter().map(|(name, n)| vec![name.clone(), n.to_string()]);
        out.line(table(&["compared", "count"], rows))?;
        for (reason, n) in &report.skipped {
            out.line(format!("{n} skipped: {reason}"))?;
        }
        for (key, n) in &report.ignored {
            out.line(format!("{n} with the unknown key `{key}`, which was ignored"))?;
        }
        if let Some(d) = &report.first {
            out.line(format!("\nfirst difference, at {}:", d.location))?;
            out.line(format!("original: {}\nmage:     {}", d.expected, d.actual))?;
        }
    }
    if report.passed() {
        if !out.json {
            out.line(styled(GOOD, "all equal"))?;
        }
        return Ok(());
    }
    match report.different {
        0 => anyhow::bail!("{} contains nothing that can be compared", args.golden.display()),
        n => anyhow::bail!("{}", styled(BAD, format!("{n} differ"))),
    }
}

fn generate(app: &App, args: &EnvGenerateArgs, out: &Output) -> anyhow::Result<()> {
    let (env_spec, population) = select(app, &args.env, &args.selection, None)?;
    print_warnings(&*env_spec, &population, args.selection.split(), out)?;
    let seats = env_spec.info().seats;
    let sample_task =
        |i| population.sample_task(args.selection.split(), seats, Seed::new(args.seed).child("generate").at(i));
    let tasks = (0..args.count).map(sample_task).collect::<Result<Vec<_>, _>>()?;
    let files = env_spec.export(&tasks, &args.out, args.data.as_deref()).map_err(data_error)?;
    if out.json {
        return out.object(&files);
    }
    files.iter().try_for_each(|f| out.line(f.display()))?;
    out.hint("games in seen rooms belong to the split train: play them with --split train");
    Ok(())
}
