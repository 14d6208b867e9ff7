//! What is said about one entrant?

use super::{EvalPolicy, Results, request_stats::RequestStats};
use crate::{
    cli::EvalArgs,
    output::{BOLD, DIM, Output, styled},
    table::{score, table},
};
use mage_core::{
    Bootstrap, Ceiling, CeilingComparison, EpisodeConfig, EpisodeMetrics, MeanEstimate, MemoryMode, MemoryScope,
    MetaEpisodeResult, MetricSlice, MetricSummary, RateEstimate, UnplayedEpisodes, compare_to_ceiling, summarise,
};
use mage_env::{
    Hash,
    solvers::{OracleReport, bound_label},
};
use mage_remote::TokenPrices;
use mage_report::chart::{Chart, Kind, Series, svg};
use mage_train::eval::{Agent, ModelAgent};
use serde::Serialize;
use serde_json::{Value, json};

/// Everything an evaluation has to say about one entrant.
#[derive(Serialize)]
pub(super) struct Report<'a> {
    name: &'a str,
    env: &'a str,
    policy: &'a str,
    /// The method's name; a trained policy's own when absent.
    approach: Option<&'static str>,
    memory: MemoryMode,
    memory_scope: MemoryScope,
    embeddings: Option<&'a str>,
    split: &'a str,
    unit: &'a str,
    episodes: u32,
    tasks: u64,
    seed: u64,
    seeds: u64,
    panel: Hash,
    /// The hash of everything about how it was played: settings, memory, sampling.
    method: Hash,
    /// What records call the weights.
    weights: &'a str,
    settings: &'a EpisodeConfig,
    drawn: Option<Value>,
    /// All meta-episodes; a task with all its seeds is one observation.
    summary: MetricSummary,
    /// With several seeds: each by itself.
    by_seed: Option<Vec<MetricSlice>>,
    against: Option<CeilingComparison>,
    ceilings: Option<&'a OracleReport>,
    /// The same where every episode was played.
    #[serde(skip)]
    score_ceilings: Option<&'a OracleReport>,
    tally: &'a RequestStats,
    cost: Option<f64>,
    errors: u64,
}

/// Everybody's scores by episode next to the ceilings, as SVG.
pub(super) fn drawing(reports: &[Report<'_>], early_stop: bool) -> String {
    let measured = reports.iter().enumerate().map(|(n, report)| {
        let curve = report.summary.overall.by_episode.iter();
        let points = curve.filter_map(|at| {
            let interval = at.score.interval.map(|i| (i.low, i.high));
            Some((f64::from(at.k), at.score.mean?, interval))
        });
        Series { name: report.name.to_owned(), kind: Kind::Measured(n), points: points.collect() }
    });
    let exact = reports.iter().find_map(|r| r.score_ceilings).into_iter().flat_map(|c| {
        [
            Series::exact("opponent known", &c.mean.full_info, "2 4"),
            Series::exact(&format!("best learner ({})", known(c)), &c.mean.sum.by_episode, "none"),
            Series::exact("best without memory", &c.mean.memoryless, "6 4"),
        ]
    });
    let series: Vec<Series> = measured.chain(exact).collect();
    let (first, whose) = (&reports[0], if early_stop { ", of tasks not yet won" } else { "" });
    let title = format!("{}: {} tasks of {} episodes, 95 % intervals{whose}", first.env, first.tasks, first.episodes);
    svg(&Chart { title: &title, x_label: "episode", y_label: first.unit, percent: false, series: &series })
}

impl<'a> Report<'a> {
    pub(super) fn new(
        args: &'a EvalArgs,
        entrant: &'a EvalPolicy,
        unit: &'a str,
        results: &'a Results,
        ceilings: Option<&'a OracleReport>,
        prices: Option<TokenPrices>,
    ) -> Self {
        let evaluation = &entrant.evaluations[0];
        let bootstrap = Bootstrap::default();
        let several = args.seeds > 1;
        let all = results.numbered(|_| true);
        let measure = |results: &[(usize, MetaEpisodeResult)]| {
            summarise(results, args.episodes, UnplayedEpisodes::NotCounted, bootstrap)
        };
        // Later episodes of an early stop are those of tasks not yet won: ceilings of scores are for all of them.
        let score_ceilings = ceilings.filter(|_| !args.early_stop);
        let against = score_ceilings.map(|c| {
            let lines = Ceiling { memoryless: c.mean.memoryless.clone(), adaptive: c.mean.sum.by_episode.clone() };
            compare_to_ceiling(&all, &lines, bootstrap)
        });
        Report {
            name: &entrant.name,
            env: &args.env,
            policy: evaluation.agent.name(),
            approach: entrant.approach.map(mage_core::PromptMethod::name),
            memory: evaluation.episode_config.memory,
            memory_scope: entrant.scope,
            embeddings: entrant.embeddings.as_deref(),
            split: args.selection.split(),
            unit,
            episodes: args.episodes,
            tasks: args.tasks,
            seed: args.seed,
            seeds: args.seeds,
            panel: evaluation.task_set.hash(),
            method: evaluation.method(),
            weights: evaluation.agent.id(),
            settings: &evaluation.episode_config,
            drawn: match &evaluation.agent {
                Agent::Model(model) => Some(asked_for(args, model, &evaluation.episode_config)),
                _ => None,
            },
            summary: measure(&all),
            by_seed: several.then(|| {
                (0..args.seeds as usize).map(|s| measure(&results.numbered(|p| p.seed == s)).overall).collect()
            }),
            against,
            ceilings,
            score_ceilings,
            tally: &results.tally,
            cost: prices.map(|p| results.tally.cost(p)),
            errors: results.errors,
        }
    }

    pub(super) fn print(&self, out: &Output) -> anyhow::Result<()> {
        let memory = match (self.approach, self.memory, self.memory_scope) {
            (Some("a-mem" | "memento"), _, MemoryScope::Shared) => "one memory for all tasks",
            (Some("a-mem"), ..) => "notes in memory",
            (Some("memento"), ..) => "cases in memory",
            (Some("cot"), ..) => "step by step, without memory",
            (_, MemoryMode::None, _) => "memory blanked",
            _ => "reflections in memory",
        };
        let seeds = if self.seeds > 1 { format!(" with {} seeds", self.seeds) } else { String::new() };
        out.line(format!(
            "{} plays {}, {}{}, {memory}: {} tasks of {} episodes{seeds}, {}",
            styled(BOLD, self.name),
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
        if let Some(ceilings) = self.score_ceilings.filter(|c| c.learner_is_lower_bound()) {
            let error = score(ceilings.max_gap());
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
                invalid.trials,
                short(&self.panel)
            ),
        ))?;
        self.print_calls(out)
    }

    /// What a model was asked beside playing, and what it took.
    fn print_calls(&self, out: &Output) -> anyhow::Result<()> {
        let (bad, asked) = self.tally.memory();
        let tokens = (self.tally.prompt_tokens, self.tally.answer_tokens);
        let mut parts = Vec::new();
        if self.drawn.is_some() && asked > 0 {
            parts.push(format!("{bad} of {asked} memory calls unusable"));
        }
        if tokens != (0, 0) {
            parts.push(format!("{} tokens read, {} written", tokens.0, tokens.1));
        }
        parts.extend(self.cost.map(|c| format!("cost {c:.2}")));
        if self.errors > 0 {
            parts.push(format!("{} meta-episodes could not be finished", self.errors));
        }
        if parts.is_empty() { Ok(()) } else { out.line(styled(DIM, parts.join("; "))) }
    }

    fn print_curve(&self, out: &Output) -> anyhow::Result<()> {
        let curve = &self.summary.overall.by_episode;
        let mut header = vec!["episode", "n", "score"];
        if let Some(ceilings) = self.score_ceilings {
            // Next to too low a best, one has come further than one has.
            let way = if ceilings.learner_is_lower_bound() { "of the way, at most" } else { "of the way" };
            header.extend(["without memory", best_learner(ceilings), way]);
        }
        let rows = curve.iter().map(|at| {
            let i = at.k as usize - 1;
            let mut row = vec![at.k.to_string(), at.score.count.to_string(), mean(&at.score)];
            if let (Some(ceilings), Some(against)) = (self.score_ceilings, &self.against) {
                row.push(score(ceilings.mean.memoryless[i]));
                row.push(score(ceilings.mean.sum.by_episode[i]));
                row.push(against.by_episode.get(i).and_then(|a| a.gap_fraction).map_or_else(|| "-".to_owned(), way));
            }
            row
        });
        out.line(format!("\n{}", table(&header, rows)))?;
        let cells = |of: &RateEstimate| [of.tasks.to_string(), rate(of)];
        let best = self.ceilings.map_or(&[][..], |c| &c.mean.pass_at_k);
        let rows = curve.iter().map(|at| {
            let i = at.k as usize - 1;
            let mut row = vec![at.k.to_string()];
            row.extend(cells(&at.won));
            row.extend(cells(&at.pass_at_k));
            row.extend(best.get(i).map(|p| format!("{} %", percent(*p))));
            row
        });
        let mut header = vec!["episode", "n", "won", "n", "won by then (Pass@k)"];
        header.extend((!best.is_empty()).then_some("at best"));
        out.line(format!("\n{}", table(&header, rows)))?;
        if self.stopped() {
            let why = "tasks stop at their first win: scores and wins of an episode are of the tasks not yet won (n)";
            out.line(styled(DIM, format!("\n{why}")))?;
        }
        if curve.iter().all(|at| at.drew.hits == 0) {
            return Ok(());
        }
        let rows = curve.iter().map(|at| {
            let mut row = vec![at.k.to_string()];
            row.extend(cells(&at.drew));
            row.extend(cells(&at.draw_or_win_at_k));
            row
        });
        out.line(format!("\n{}", table(&["episode", "n", "drew", "n", "won or drew by then"], rows)))
    }

    /// Whether some tasks stopped at a win.
    fn stopped(&self) -> bool {
        self.summary.overall.by_episode.iter().any(|at| at.won.trials < at.pass_at_k.trials)
    }

    /// First and last episode by opponent and by seat, each opponent next to the best response to it.
    fn print_opponents(&self, out: &Output) -> anyhow::Result<()> {
        // The last episode of tasks that stop at a win is of few of them; whether they were won is known of all.
        let stopped = self.stopped();
        let last = if stopped { format!("won within {}", self.episodes) } else { format!("episode {}", self.episodes) };
        let mut header = vec!["against", "n", "episode 1"];
        if self.episodes > 1 {
            header.push(&last);
        }
        if self.score_ceilings.is_some() {
            header.push("best response");
        }
        let row = |name: String, slice: &MetricSlice, best: Option<f64>| {
            let mut row = vec![name, slice.tasks.to_string()];
            row.extend(slice.by_episode.first().map(|at| mean(&at.score)));
            let at_last = |at: &EpisodeMetrics| if stopped { rate(&at.pass_at_k) } else { mean(&at.score) };
            row.extend(slice.by_episode.last().filter(|_| self.episodes > 1).map(at_last));
            if self.score_ceilings.is_some() {
                row.push(best.map_or_else(|| "-".to_owned(), score));
            }
            row
        };
        let best = |name: &str| {
            let values = &self.score_ceilings?.mean.best_response;
            values.iter().find(|v| v.name == name).map(|v| v.value)
        };
        let opponents = self.summary.by_opponent.iter().map(|(name, s)| row(name.clone(), s, best(name)));
        let seats = self.summary.by_seat.iter().map(|(seat, s)| row(format!("from seat {seat}"), s, None));
        out.line(format!("\n{}", table(&header, opponents.chain(seats))))
    }
}

/// A share in percent with one decimal.
pub(super) fn percent(x: f64) -> String {
    format!("{:.1}", 100.0 * x)
}

/// How far it has come from the best without memory to the best learner: `72 % [61, 84]`. Nothing where there is no telling how
/// sure that is.
fn way(share: MeanEstimate) -> String {
    let whole = |x: f64| format!("{:.0}", 100.0 * x);
    match (share.mean, share.interval) {
        (Some(x), Some(i)) => format!("{} % [{}, {}]", whole(x), whole(i.low), whole(i.high)),
        _ => "-".to_owned(),
    }
}

/// How the best learner's line is known.
fn known(ceilings: &OracleReport) -> &'static str {
    bound_label(!ceilings.sampled_opponents.is_empty(), ceilings.learner_is_lower_bound())
}

/// What a column of the best learner's scores is called.
fn best_learner(ceilings: &OracleReport) -> &'static str {
    match known(ceilings) {
        "exact" => "best learner",
        "at least" => "best learner, at least",
        "estimated" => "best learner, estimated",
        _ => "best learner, estimated, at least",
    }
}

pub(super) fn mean(m: &MeanEstimate) -> String {
    match (m.mean, m.interval) {
        (Some(x), Some(i)) => format!("{} [{}, {}]", score(x), score(i.low), score(i.high)),
        (Some(x), None) => score(x),
        (None, _) => "-".to_owned(),
    }
}

fn rate(r: &RateEstimate) -> String {
    r.rate.map_or_else(
        || "-".to_owned(),
        |p| format!("{} % [{}, {}]", percent(p), percent(r.interval.low), percent(r.interval.high)),
    )
}

fn short(hash: &Hash) -> String {
    hash.to_string()[..8].to_owned()
}

/// How answers were asked for, as it was sent: each call has its own length and seed, and what an endpoint was not told is its own
/// affair.
fn asked_for(args: &EvalArgs, model: &ModelAgent, settings: &EpisodeConfig) -> Value {
    let remote = args.remote.model.as_deref() == Some(&model.name);
    let mut asked = json!(model.decoding);
    if let Some(params) = asked["params"].as_object_mut() {
        params.remove("seed");
        params.remove("max_tokens");
        params.insert("play_tokens".to_owned(), json!(settings.play_tokens));
        params.insert("reflect_tokens".to_owned(), json!(settings.reflect_tokens));
    }
    if remote {
        if args.sampling.thinking.is_none() {
            asked["thinking"] = Value::Null;
        }
        asked["request"] = json!(args.remote.extra_body);
    }
    asked
}
