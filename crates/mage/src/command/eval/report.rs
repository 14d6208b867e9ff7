//! Report of one policy: text, JSON and plot.

use super::{EvalPolicy, PolicyResults, request_stats::RequestStats, setup::EvalSetup};
use crate::{
    cli::EvalArgs,
    output::{BOLD, DIM, Output, styled},
    table::{gap_share, grouped, score, table},
};
use mage_core::{
    Ceiling, CeilingComparison, EpisodeConfig, EpisodeMetrics, MeanEstimate, MemoryMode, MemoryScope,
    MetaEpisodeResult, MetricSlice, MetricSummary, RateEstimate, UnplayedEpisodes, compare_to_ceiling, summarise,
};
use mage_engine::{SamplingParams, Thinking};
use mage_env::{
    Hash,
    solvers::{OracleReport, bound_label},
};
use mage_remote::TokenPrices;
use mage_report::chart::{Chart, LineStyle, Series, svg};
use mage_train::policy::{DecodingConfig, PolicyKind};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// What exact scores are.
const EXACT_NOTE: &str =
    "; exact scores are expectations over moves and deals, given the reflections that were sampled";

/// Results of one policy, as printed with `--json` and written by `--summary`.
#[derive(Serialize)]
pub(super) struct PolicyReport<'a> {
    name: &'a str,
    env: &'a str,
    /// Name of the policy without its prompt method.
    policy: &'a str,
    /// Prompt method; absent for a trained policy with the method of its training.
    prompt_method: Option<&'static str>,
    memory: MemoryMode,
    memory_scope: MemoryScope,
    embeddings: Option<&'a str>,
    split: &'a str,
    unit: String,
    episodes: u32,
    tasks: u64,
    seed: u64,
    seeds: u64,
    task_set: Hash,
    /// Hash of episode configuration, memory and sampling.
    method: Hash,
    /// Identifier of the weights in trajectories.
    weights: &'a str,
    episode_config: &'a EpisodeConfig,
    /// Sampling parameters; absent for scripted agents.
    sampling: Option<Value>,
    #[serde(skip)]
    decoding: Option<&'a DecodingConfig>,
    /// Thinking mode of a model; `None` if the request leaves it to the endpoint.
    #[serde(skip)]
    thinking: Option<Thinking>,
    /// Metrics over all meta-episodes; a task with all its seeds is one observation.
    summary: MetricSummary,
    /// Metrics of each seed, if there are several.
    by_seed: Option<Vec<MetricSlice>>,
    /// Score relative to the upper bounds.
    relative: Option<CeilingComparison>,
    ceilings: Option<&'a OracleReport>,
    /// Upper bounds of scores; absent with early stopping.
    #[serde(skip)]
    score_ceilings: Option<&'a OracleReport>,
    requests: &'a RequestStats,
    cost: Option<f64>,
    /// Failed meta-episodes.
    errors: u64,
    /// Failed meta-episodes by reason.
    failures: &'a BTreeMap<String, u64>,
}

/// Plot of scores by episode with upper bounds, as SVG.
pub(super) fn plot(reports: &[PolicyReport<'_>], early_stop: bool) -> String {
    let measured = reports.iter().enumerate().map(|(n, report)| {
        let curve = report.summary.overall.by_episode.iter();
        let points = curve.filter_map(|at| {
            let interval = at.score.interval.map(|i| (i.low, i.high));
            Some((f64::from(at.k), at.score.mean?, interval))
        });
        Series { name: report.name.to_owned(), style: LineStyle::Measured(n), points: points.collect() }
    });
    let ceilings = reports.iter().find_map(|r| r.score_ceilings).into_iter().flat_map(|c| {
        [
            Series::ceiling("known opponent", &c.mean.full_info, "2 4"),
            Series::ceiling(&format!("Bayes-adaptive optimum ({})", qualifier(c)), &c.mean.sum.by_episode, "none"),
            Series::ceiling("memoryless optimum", &c.mean.memoryless, "6 4"),
        ]
    });
    let series: Vec<Series> = measured.chain(ceilings).collect();
    let (first, scope) = (&reports[0], if early_stop { ", tasks not yet won" } else { "" });
    let title = format!("{}: {} tasks of {} episodes, 95 % intervals{scope}", first.env, first.tasks, first.episodes);
    svg(&Chart { title: &title, x_label: "episode", y_label: &first.unit, percent: false, series: &series })
}

impl<'a> PolicyReport<'a> {
    pub(super) fn new(
        args: &'a EvalArgs,
        setup: &'a EvalSetup,
        policy: &'a EvalPolicy,
        results: &'a PolicyResults,
        ceilings: Option<&'a OracleReport>,
        prices: Option<TokenPrices>,
    ) -> Self {
        let evaluator = &policy.evaluators[0];
        let (named, config) = (&evaluator.policy, evaluator.builder.config());
        let several = setup.seeds > 1;
        let endpoint = matches!(named.kind, PolicyKind::Chat(_));
        let thinking = named.decoding.as_ref().map(|decoding| decoding.thinking);
        let thinking = thinking.filter(|_| !endpoint || args.sampling.thinking.is_some());
        let all = results.by_task(|_| true);
        let measure =
            |results: &[(usize, MetaEpisodeResult)]| summarise(results, setup.episodes, UnplayedEpisodes::NotCounted);
        // With early stopping, later episodes cover only the tasks not yet won, but ceilings of scores cover all tasks.
        let score_ceilings = ceilings.filter(|_| !args.early_stop);
        let relative = score_ceilings.map(|c| {
            let curves = Ceiling { memoryless: c.mean.memoryless.clone(), adaptive: c.mean.sum.by_episode.clone() };
            compare_to_ceiling(&all, &curves)
        });
        PolicyReport {
            name: &policy.name,
            env: &setup.env_name,
            policy: &named.name,
            prompt_method: policy.prompt_method.map(mage_core::PromptMethod::name),
            memory: config.memory,
            memory_scope: policy.scope,
            embeddings: policy.embeddings.as_deref(),
            split: &setup.split,
            unit: setup.env.env_spec.info().unit,
            episodes: setup.episodes,
            tasks: setup.tasks,
            seed: setup.seed,
            seeds: setup.seeds,
            task_set: evaluator.task_set.hash(),
            method: evaluator.method(),
            weights: &named.id,
            episode_config: config,
            sampling: named
                .decoding
                .as_ref()
                .map(|decoding| sampling_json(decoding, thinking, config, endpoint.then_some(&args.remote.extra_body))),
            decoding: named.decoding.as_ref(),
            thinking,
            summary: measure(&all),
            by_seed: several.then(|| {
                (0..setup.seeds as usize).map(|s| measure(&results.by_task(|r| r.seed == s)).overall).collect()
            }),
            relative,
            ceilings,
            score_ceilings,
            requests: &results.requests,
            cost: prices.map(|p| results.requests.cost(p)),
            errors: results.errors(),
            failures: &results.failures,
        }
    }

    /// Prints all tables; `separate` puts an empty line before them.
    pub(super) fn print(&self, out: &Output, separate: bool) -> anyhow::Result<()> {
        let memory = match (self.prompt_method, self.memory, self.memory_scope) {
            (Some("a-mem" | "memento"), _, MemoryScope::Shared) => "one memory shared by all tasks",
            (Some("a-mem"), ..) => "memory items",
            (Some("memento"), ..) => "memory of cases",
            (Some("cot"), ..) => "step-by-step reasoning without memory",
            (_, MemoryMode::None, _) => "without memory",
            _ => "memory of reflections",
        };
        let seeds = if self.seeds > 1 { format!(" with {} seeds", self.seeds) } else { String::new() };
        out.line(format!(
            "{}{} on {}, {}{}, {memory}: {} tasks of {} episodes{seeds}, {}",
            if separate { "\n" } else { "" },
            styled(BOLD, self.name),
            self.env,
            self.split,
            if self.summary.by_opponent.is_empty() { "" } else { " opponents" },
            self.tasks,
            self.episodes,
            self.unit
        ))?;
        // Without a finished meta-episode there are only failures.
        if self.summary.overall.meta_episodes == 0 {
            return self.print_requests(out);
        }
        self.print_curve(out)?;
        if !self.summary.by_opponent.is_empty() {
            self.print_opponents(out)?;
        }
        if let Some(ceilings) = self.score_ceilings.filter(|c| c.bayes_adaptive_is_lower_bound()) {
            let error = score(ceilings.max_gap());
            out.line(styled(DIM, format!("\nthe Bayes-adaptive optimum is a lower bound, at most {error} too low")))?;
        }
        for note in self.ceilings.iter().flat_map(|c| &c.notes) {
            out.line(styled(DIM, format!("note: {note}")))?;
        }
        let invalid = &self.summary.overall.invalid;
        out.line(styled(
            DIM,
            format!(
                "\ninvalid actions {} of {}; brackets are 95 % intervals; task set {}{}",
                rate(invalid),
                invalid.trials,
                short(&self.task_set),
                if self.summary.overall.exact { EXACT_NOTE } else { "" }
            ),
        ))?;
        self.print_requests(out)
    }

    /// Prints sampling parameters, memory requests, tokens, cost and failures.
    fn print_requests(&self, out: &Output) -> anyhow::Result<()> {
        if let Some(decoding) = self.decoding {
            out.line(styled(DIM, sampling_line(&decoding.params, self.episode_config, self.thinking)))?;
        }
        let (invalid, count) = self.requests.memory_requests();
        let tokens = (self.requests.prompt_tokens, self.requests.completion_tokens);
        let mut parts = Vec::new();
        if self.sampling.is_some() && count > 0 {
            parts.push(format!("{invalid} of {count} memory requests had an invalid completion"));
        }
        if tokens != (0, 0) {
            let [prompt, completion] = [tokens.0, tokens.1].map(grouped);
            parts.push(format!("{prompt} prompt tokens, {completion} completion tokens"));
        }
        parts.extend(self.cost.map(|c| format!("cost {c:.2}")));
        if !parts.is_empty() {
            out.line(styled(DIM, parts.join("; ")))?;
        }
        if self.errors > 0 {
            let plural = if self.errors == 1 { "" } else { "s" };
            out.line(format!("{} meta-episode{plural} failed:", self.errors))?;
        }
        let mut failures: Vec<_> = self.failures.iter().collect();
        failures.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        failures.into_iter().try_for_each(|(problem, count)| out.line(format!("  {count} × {problem}")))
    }

    fn print_curve(&self, out: &Output) -> anyhow::Result<()> {
        let curve = &self.summary.overall.by_episode;
        let mut header = vec!["episode", "n", self.score_header()];
        if let Some(ceilings) = self.score_ceilings {
            // Relative to a lower bound of the optimum, the fraction is an upper bound.
            let fraction = if ceilings.bayes_adaptive_is_lower_bound() { "gap closed, at most" } else { "gap closed" };
            header.extend(["memoryless optimum", bayes_adaptive_header(ceilings), fraction]);
        }
        let rows = curve.iter().map(|at| {
            let i = at.k as usize - 1;
            let mut row = vec![at.k.to_string(), at.score.count.to_string(), mean(&at.score)];
            if let (Some(ceilings), Some(relative)) = (self.score_ceilings, &self.relative) {
                row.push(score(ceilings.mean.memoryless[i]));
                row.push(score(ceilings.mean.sum.by_episode[i]));
                row.push(
                    relative.by_episode.get(i).and_then(|a| a.gap_fraction).map_or_else(|| "-".to_owned(), gap_share),
                );
            }
            row
        });
        out.line(format!("\n{}", table(&header, rows)))?;
        let cells = |r: &RateEstimate| [r.tasks.to_string(), rate(r)];
        let exact_wins = curve.iter().all(|at| at.win_probability.is_some());
        let best = self.ceilings.map_or(&[][..], |c| &c.mean.pass_at_k);
        let rows = curve.iter().map(|at| {
            let i = at.k as usize - 1;
            let mut row = vec![at.k.to_string()];
            match at.win_probability.filter(|_| exact_wins) {
                Some(won) => row.extend([won.count.to_string(), probability(&won)]),
                None => row.extend(cells(&at.won)),
            }
            row.extend(cells(&at.pass_at_k));
            row.extend(best.get(i).map(|p| format!("{} %", percent(*p))));
            row
        });
        let won = if exact_wins { "won (exact)" } else { "won" };
        let mut header = vec!["episode", "n", won, "n", "Pass@k"];
        header.extend((!best.is_empty()).then_some("best Pass@k"));
        out.line(format!("\n{}", table(&header, rows)))?;
        if self.stopped() {
            let note = "tasks stop after their first win: scores and wins of an episode cover the n tasks not yet won";
            out.line(styled(DIM, format!("\n{note}")))?;
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
        out.line(format!("\n{}", table(&["episode", "n", "drew", "n", "draw or win within k"], rows)))
    }

    /// Column header of scores: exact expectations, or sampled.
    fn score_header(&self) -> &'static str {
        if self.summary.overall.exact { "score (exact)" } else { "score (sampled)" }
    }

    /// Whether some tasks stopped after a win.
    fn stopped(&self) -> bool {
        self.summary.overall.by_episode.iter().any(|at| at.won.trials < at.pass_at_k.trials)
    }

    /// First and last episode by opponent and by seat, with the score of the best response to each opponent.
    fn print_opponents(&self, out: &Output) -> anyhow::Result<()> {
        // With early stopping, the last episode covers few tasks, but Pass@k covers all.
        let stopped = self.stopped();
        let last = if stopped { format!("won within {}", self.episodes) } else { format!("episode {}", self.episodes) };
        let mut header = vec!["opponent or seat", "n", "episode 1"];
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
        let seats = self.summary.by_seat.iter().map(|(seat, s)| row(format!("seat {seat}"), s, None));
        out.line(format!("\n{}", table(&header, opponents.chain(seats))))
    }
}

/// One row per policy.
pub(super) fn summary_table(reports: &[PolicyReport<'_>]) -> String {
    let episodes = reports[0].episodes;
    let has = |any: fn(&PolicyReport<'_>) -> bool| reports.iter().any(any);
    let (ceilings, tokens) = (has(|r| r.relative.is_some()), has(|r| r.requests.completion_tokens > 0));
    let (costs, failures) = (has(|r| r.cost.is_some()), has(|r| r.errors > 0));
    let last = format!("ep {episodes}");
    let pass = format!("Pass@{episodes}");
    let mut header = vec!["policy", "n", "scores", "ep 1"];
    if episodes > 1 {
        header.extend([last.as_str(), "gain"]);
    }
    header.push(&pass);
    let optional = [(ceilings, "gap closed"), (tokens, "tokens"), (costs, "cost"), (failures, "failed")];
    header.extend(optional.into_iter().filter_map(|(shown, name)| shown.then_some(name)));
    let dash = || "-".to_owned();
    let rows = reports.iter().map(|r| {
        let curve = &r.summary.overall.by_episode;
        let scores = [curve.first(), curve.last()].map(|at| at.and_then(|at| at.score.mean));
        let mut row = vec![r.name.to_owned(), r.summary.overall.tasks.to_string()];
        row.push(if r.summary.overall.exact { "exact" } else { "sampled" }.to_owned());
        row.push(scores[0].map_or_else(dash, score));
        if episodes > 1 {
            row.push(scores[1].map_or_else(dash, score));
            row.push(scores[0].zip(scores[1]).map_or_else(dash, |(first, last)| score(last - first)));
        }
        row.push(curve.last().and_then(|at| at.pass_at_k.rate).map_or_else(dash, |p| format!("{} %", percent(p))));
        if ceilings {
            let last = r.relative.as_ref().and_then(|c| c.by_episode.last()?.gap_fraction);
            row.push(last.map_or_else(dash, gap_share));
        }
        if tokens {
            row.push(grouped(r.requests.completion_tokens));
        }
        if costs {
            row.push(r.cost.map_or_else(dash, |c| format!("{c:.2}")));
        }
        if failures {
            row.push(r.errors.to_string());
        }
        row
    });
    table(&header, rows)
}

/// A rate in percent with one decimal.
pub(super) fn percent(x: f64) -> String {
    format!("{:.1}", 100.0 * x)
}

/// Qualifier of the Bayes-adaptive optimum: exact, a lower bound, or an estimate.
fn qualifier(ceilings: &OracleReport) -> &'static str {
    bound_label(!ceilings.sampled_opponents.is_empty(), ceilings.bayes_adaptive_is_lower_bound())
}

/// Column header of the Bayes-adaptive optimum.
fn bayes_adaptive_header(ceilings: &OracleReport) -> &'static str {
    match qualifier(ceilings) {
        "exact" => "Bayes-adaptive optimum",
        "at least" => "Bayes-adaptive optimum, at least",
        "estimated" => "Bayes-adaptive optimum, estimated",
        _ => "Bayes-adaptive optimum, estimated, at least",
    }
}

pub(super) fn mean(m: &MeanEstimate) -> String {
    match (m.mean, m.interval) {
        (Some(x), Some(i)) => format!("{} [{}, {}]", score(x), score(i.low), score(i.high)),
        (Some(x), None) => score(x),
        (None, _) => "-".to_owned(),
    }
}

/// A mean probability in percent.
fn probability(m: &MeanEstimate) -> String {
    match (m.mean, m.interval) {
        (Some(x), Some(i)) => format!("{} % [{}, {}]", percent(x), percent(i.low), percent(i.high)),
        (Some(x), None) => format!("{} %", percent(x)),
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

/// Sampling parameters of a model, token budgets and thinking in one line.
pub(crate) fn sampling_line(params: &SamplingParams, config: &EpisodeConfig, thinking: Option<Thinking>) -> String {
    let mut parts = vec![format!("temperature {}", params.temperature), format!("top-p {}", params.top_p)];
    parts.push(if params.top_k == 0 { "no top-k".to_owned() } else { format!("top-k {}", params.top_k) });
    parts.extend((params.min_p > 0.0).then(|| format!("min-p {}", params.min_p)));
    parts.push(format!("at most {} tokens per action", config.play_tokens));
    parts.push(format!("{} per reflection", config.reflect_tokens));
    parts.push(format!("thinking {}", thinking_text(thinking)));
    format!("sampling: {}", parts.join(", "))
}

/// Sampling parameters as sent. Length and seed are per request; `extra_body` exists for endpoints only.
fn sampling_json(
    decoding: &DecodingConfig,
    thinking: Option<Thinking>,
    config: &EpisodeConfig,
    extra_body: Option<&Vec<String>>,
) -> Value {
    let mut sampling = json!(decoding);
    if let Some(params) = sampling["params"].as_object_mut() {
        params.remove("seed");
        params.remove("max_tokens");
        params.insert("play_tokens".to_owned(), json!(config.play_tokens));
        params.insert("reflect_tokens".to_owned(), json!(config.reflect_tokens));
    }
    sampling["thinking"] = json!(thinking);
    if let Some(fields) = extra_body {
        sampling["extra_body"] = json!(fields);
    }
    sampling
}

/// States how turn limits, token budgets, thinking modes and sampling parameters of the policies differ, if they do:
/// scores are then not comparable without reservation.
pub(super) fn setting_differences(reports: &[PolicyReport<'_>]) -> Option<String> {
    let names = ["turns", "play tokens", "reflection tokens", "thinking", "temperature", "top-p", "top-k", "min-p"];
    let settings: Vec<[Option<String>; 8]> = reports
        .iter()
        .map(|report| {
            let (config, params) = (report.episode_config, report.decoding.map(|decoding| &decoding.params));
            let of_model = |text: String| params.map(|_| text);
            [
                Some(config.max_turns.to_string()),
                of_model(config.play_tokens.to_string()),
                of_model(config.reflect_tokens.to_string()),
                of_model(thinking_text(report.thinking).to_owned()),
                params.map(|params| params.temperature.to_string()),
                params.map(|params| params.top_p.to_string()),
                params.map(|params| params.top_k.to_string()),
                params.map(|params| params.min_p.to_string()),
            ]
        })
        .collect();
    // Policies without a model have turn limits only.
    let differs = |i: &usize| {
        let mut values = settings.iter().filter_map(|of_policy| of_policy[*i].as_ref());
        values.next().is_some_and(|first| values.any(|other| other != first))
    };
    let shown: Vec<usize> = (0..names.len()).filter(differs).collect();
    if shown.is_empty() {
        return None;
    }
    let header: Vec<&str> = std::iter::once("policy").chain(shown.iter().map(|i| names[*i])).collect();
    let rows = reports.iter().zip(&settings).map(|(report, of_policy)| {
        let cells = shown.iter().map(|i| of_policy[*i].clone().unwrap_or_else(|| "-".to_owned()));
        std::iter::once(report.name.to_owned()).chain(cells).collect()
    });
    Some(format!("The policies had different settings:\n\n{}", table(&header, rows)))
}

fn thinking_text(thinking: Option<Thinking>) -> &'static str {
    match thinking {
        Some(Thinking::On) => "on",
        Some(Thinking::Off) => "off",
        None => "unknown (the endpoint's default)",
    }
}
