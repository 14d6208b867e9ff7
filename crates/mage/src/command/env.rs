//! `mage env`: which environments are there, what are they like, and how well can one do in them?

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
        let all: Vec<Shown> = app.registry.iter().map(|f| Shown::of(&**f)).collect();
        return out.object(&all);
    }
    let rows = app.registry.iter().map(|f| vec![f.id().to_string(), f.info().summary]);
    out.line(table(&["environment", "what it is"], rows))?;
    out.hint("\nmage env show NAME tells more about one; mage play NAME plays it.");
    Ok(())
}

/// An environment's description for programs.
#[derive(Serialize)]
struct Shown {
    id: String,
    env_info: EnvInfo,
    policies: Vec<ScriptedAgentInfo>,
    populations: Vec<&'static str>,
    /// Of the population that was asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    splits: Vec<ShownSplit>,
    #[serde(skip_serializing_if = "Option::is_none")]
    oracles: Option<Ceilings>,
}

/// A split, and what sets it apart.
#[derive(Serialize)]
struct ShownSplit {
    name: String,
    max_turns: u32,
    options: OptionMap,
}

/// The best that can be done.
#[derive(Serialize)]
#[serde(untagged)]
enum Ceilings {
    /// Against opponents.
    Games(Box<OracleReport>),
    /// In a world.
    World(WorldCeilings),
}

impl Shown {
    fn of(env_spec: &dyn EnvSpec) -> Self {
        let random = ScriptedAgentInfo::new("random", "any legal action");
        Shown {
            id: env_spec.id().to_string(),
            env_info: env_spec.info(),
            policies: [random].into_iter().chain(env_spec.scripted_agents()).collect(),
            populations: env_spec.populations().into_iter().map(|(name, _)| name).collect(),
            splits: Vec::new(),
            oracles: None,
        }
    }
}

/// The splits of a population, with the settings that are theirs alone.
fn splits(env_spec: &dyn EnvSpec, population: &Population) -> anyhow::Result<Vec<ShownSplit>> {
    let shown = |name: &str| {
        let options = population.overrides.get(name).cloned().unwrap_or_default();
        Ok(ShownSplit { name: name.to_owned(), max_turns: env_spec.max_turns(population, name)?, options })
    };
    population.splits().map(shown).collect()
}

fn show(app: &App, args: &EnvShowArgs, out: &Output) -> anyhow::Result<()> {
    let (env_spec, population) = select(app, &args.env, &args.selection)?;
    let mut shown = Shown::of(&*env_spec);
    shown.splits = splits(&*env_spec, &population)?;
    if args.oracles {
        shown.oracles = Some(ceilings(&*env_spec, &population, args, out)?);
    }
    if out.json {
        return out.object(&shown);
    }
    match &shown.oracles {
        Some(Ceilings::Games(report)) => {
            print_oracles(report, out)?;
            hint_at_splits(&population, args, out);
            Ok(())
        }
        Some(Ceilings::World(report)) => report.print(out),
        None => {
            print_schema(&shown, out)?;
            print_splits(&shown, out)?;
            print_population(&population, args.selection.split(), out)?;
            if !shown.env_info.opponents.is_empty() || env_spec.solver().is_some() {
                out.hint(format!("\nmage env show {} --oracles computes the best that can be done.", shown.id));
            }
            Ok(())
        }
    }
}

/// That there is more than was shown: selection one meets depends on the split.
fn hint_at_splits(population: &Population, args: &EnvShowArgs, out: &Output) {
    let shown = args.selection.split();
    let met = |split: &str| population.in_split(split).unwrap_or_default();
    let others = population.splits().filter(|split| !met(split).is_empty() && met(split) != met(shown));
    let others: Vec<String> = others.map(|split| format!("--split {split}")).collect();
    // Opponents named on the command line are in the split asked for alone.
    if !others.is_empty() && args.selection.opponent.is_empty() {
        out.hint(format!("\nThese are the {shown} opponents; {} shows others.", others.join(" or ")));
    }
}

fn ceilings(
    env_spec: &dyn EnvSpec,
    population: &Population,
    args: &EnvShowArgs,
    out: &Output,
) -> anyhow::Result<Ceilings> {
    let split = args.selection.split();
    let games = out.waiting("working out the ceilings", || env_spec.oracles(population, split, args.episodes))?;
    if let Some(report) = games {
        return Ok(Ceilings::Games(Box::new(report)));
    }
    if let Some(solver) = env_spec.solver() {
        let of = WorldCeilings::compute(&args.env, solver, population, args.selection.split.as_deref(), out)?;
        return Ok(Ceilings::World(of));
    }
    let told = env_spec.scripted_agents().into_iter().find(|r| r.full_info).map(|r| r.name);
    let instead = told.map_or_else(String::new, |name| {
        format!("; mage eval --env {} --policy {name} measures what is possible", args.env)
    });
    Err(usage(format!("{} has no ceilings that could be computed{instead}", args.env)))
}

fn print_schema(shown: &Shown, out: &Output) -> anyhow::Result<()> {
    let env_info = &shown.env_info;
    out.line(styled(BOLD, &env_info.title))?;
    out.line(format!(
        "{}; {} {}, at most {} turns, counted in {}",
        env_info.summary,
        env_info.seats,
        if env_info.seats == 1 { "seat" } else { "seats" },
        env_info.max_turns,
        env_info.unit
    ))?;
    if !env_info.options.is_empty() {
        let rows = env_info.options.iter().map(|o| vec![o.key.clone(), o.values.clone(), o.about.clone()]);
        out.line(format!("\n{}", columns(&["setting", "values", "what it does"], rows)))?;
    }
    if !env_info.opponents.is_empty() {
        let rows = env_info.opponents.iter().map(|(kind, about)| vec![kind.clone(), about.clone()]);
        out.line(format!("\n{}", columns(&["kind of opponent", "what it does"], rows)))?;
    }
    let rows = shown.policies.iter().map(|p| {
        let told = if p.full_info { " (told the hidden parts)" } else { "" };
        vec![p.name.clone(), format!("{}{told}", p.about)]
    });
    out.line(format!("\n{}", columns(&["policy", "how it plays"], rows)))?;
    if !shown.populations.is_empty() {
        out.line(format!("\npopulations: {}", shown.populations.join(", ")))?;
    }
    Ok(())
}

/// The splits of a world: in games they are told apart by opponents, which follow.
fn print_splits(shown: &Shown, out: &Output) -> anyhow::Result<()> {
    if !shown.env_info.opponents.is_empty() {
        return Ok(());
    }
    let value = |v: &serde_json::Value| v.as_str().map_or_else(|| v.to_string(), str::to_owned);
    let rows = shown.splits.iter().map(|split| {
        let settings = split.options.0.iter().map(|(key, v)| format!("{key}={}", value(v)));
        vec![split.name.clone(), split.max_turns.to_string(), settings.collect::<Vec<_>>().join(", ")]
    });
    out.line(format!("\n{}", columns(&["split", "turns", "settings of its own"], rows)))
}

/// TaskSelection one meets in a split, and how often.
fn print_population(population: &Population, split: &str, out: &Output) -> anyhow::Result<()> {
    let opponents = population.in_split(split)?;
    if opponents.is_empty() {
        return Ok(());
    }
    let shares = opponents.iter().map(|(share, spec)| format!("{} {:.0} %", spec.name, 100.0 * share));
    out.line(format!("\n{split} opponents: {}", shares.collect::<Vec<_>>().join(", ")))
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
        let learner = |what: &str, error: f64| {
            format!("best learner, {what}{}", if is_lower_bound(error) { ", at least" } else { "" })
        };
        let rows = [
            row("best without memory", &seat.memoryless),
            row(&learner("sum", seat.sum_gap), &seat.sum.by_episode),
            row(&learner("last", seat.last_gap), &seat.last.by_episode),
            row("opponent known", &seat.full_info),
        ];
        let header: Vec<&str> = header.iter().map(String::as_str).collect();
        out.line(table(&header, rows))?;
        if !seat.best_response.is_empty() {
            let known: Vec<String> =
                seat.best_response.iter().map(|v| format!("{} {}", v.name, score(v.value))).collect();
            out.line(styled(DIM, format!("best responses: {}", known.join(", "))))?;
        }
        if is_lower_bound(seat.last_gap.max(seat.sum_gap)) {
            let (last, sum) = (score(seat.last_gap), score(seat.sum_gap));
            out.line(styled(
                DIM,
                format!("the best learner's last episode may be up to {last} better, its sum {sum}"),
            ))?;
        }
    }
    out.line(format!("\n{}", styled(DIM, how_sure(report))))?;
    print_samples(report, out)
}

/// What is exact, what is a bound, and why.
fn how_sure(report: &OracleReport) -> &'static str {
    match (report.sampled_opponents.is_empty(), report.learner_is_lower_bound()) {
        (true, false) => "all values are exact to the decimals shown",
        (true, true) => {
            "all values are exact but those of the best learner: these opponents lead to more beliefs than could be solved, so \
             that its rows are what a policy earns that was found, and the optimum lies at most so far above"
        }
        (false, false) => {
            "all values are exact for the moves that were counted, and so estimates for the opponents themselves"
        }
        (false, true) => {
            "all values are exact for the moves that were counted, and so estimates for the opponents themselves; but the best \
             learner's rows are what a policy earns that was found (there are more beliefs than could be solved), and the \
             optimum lies at most so far above"
        }
    }
}

/// Where numbers rest on samples, how many, and what else there is to know.
fn print_samples(report: &OracleReport, out: &Output) -> anyhow::Result<()> {
    if !report.sampled_opponents.is_empty() {
        let rows = report.sampled_opponents.iter().map(|s| {
            vec![
                s.name.clone(),
                s.seat.to_string(),
                format!("{} or more in each of {} positions", s.samples, s.positions),
                score(s.fitted_value),
                s.games.to_string(),
                format!("{} ± {}", score(s.measured_value), score(s.standard_error)),
            ]
        });
        let header = ["asked, not known", "from seat", "moves", "best response to them", "fresh games", "won there"];
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
        // A population may have one seat more often than the other, or one alone.
        None => "seats as often as the population has them".to_owned(),
    }
}

fn conform(app: &App, args: &EnvConformArgs, out: &Output) -> anyhow::Result<()> {
    let env_spec = app.registry.get(&args.env).map_err(usage)?;
    let report = env_spec.conform(&args.golden, args.data.as_deref()).map_err(usage)?;
    if out.json {
        out.object(&report)?;
    } else {
        let rows = report.compared.iter().map(|(what, n)| vec![what.clone(), n.to_string()]);
        out.line(table(&["compared", "count"], rows))?;
        for (reason, n) in &report.skipped {
            out.line(format!("{n} left out: {reason}"))?;
        }
        for (key, n) in &report.ignored {
            out.line(format!("{n} with a key that is not known and was not looked at: `{key}`"))?;
        }
        if let Some(d) = &report.first {
            out.line(format!("\nfirst difference, at {}:", d.location))?;
            out.line(format!("the original: {}\nours:         {}", d.expected, d.actual))?;
        }
    }
    if report.passed() {
        if !out.json {
            out.line(styled(GOOD, "all equal"))?;
        }
        return Ok(());
    }
    match report.different {
        0 => anyhow::bail!("nothing in {} could be compared", args.golden.display()),
        n => anyhow::bail!("{}", styled(BAD, format!("{n} differ"))),
    }
}

fn generate(app: &App, args: &EnvGenerateArgs, out: &Output) -> anyhow::Result<()> {
    let (env_spec, population) = select(app, &args.env, &args.selection)?;
    print_warnings(&*env_spec, &population, args.selection.split(), out)?;
    let seats = env_spec.info().seats;
    let draw = |i| population.draw(args.selection.split(), seats, Seed::new(args.seed).child("generate").at(i));
    let tasks = (0..args.count).map(draw).collect::<Result<Vec<_>, _>>()?;
    let files = env_spec.export(&tasks, &args.out, args.data.as_deref())?;
    if out.json {
        return out.object(&files);
    }
    files.iter().try_for_each(|f| out.line(f.display()))?;
    out.hint("games of seen rooms stand among the training games: play them with --split train");
    Ok(())
}
