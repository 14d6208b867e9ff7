//! Figures of training: evaluation scores and metrics by update. Runs that differ only in their seed are one line.

use super::{
    Figure, IntervalEstimate, TrainingRun,
    chart::{Chart, LineStyle, PlotPoint, Series},
    figure::{Colours, figure},
    training_run::MetricByUpdate,
};
use mage_env::Hash;
use std::collections::{BTreeMap, BTreeSet};

/// Figures of all runs, by environment.
pub(super) fn figures(runs: &[TrainingRun], colours: &Colours) -> Vec<Figure> {
    let mut all = Vec::new();
    let envs: BTreeSet<&str> = runs.iter().map(|r| r.env.as_str()).collect();
    for env in envs {
        let runs: Vec<&TrainingRun> = runs.iter().filter(|r| r.env == env).collect();
        // A ceiling belongs to its population.
        let populations: BTreeSet<Option<Hash>> = runs.iter().map(|r| r.population).collect();
        for population in &populations {
            let runs: Vec<&TrainingRun> = runs.iter().copied().filter(|r| r.population == *population).collect();
            let hash = population.filter(|_| populations.len() > 1).map(|hash| hash.to_string()[..8].to_owned());
            all.extend(learning_curves(env, hash.as_deref(), &runs, colours));
        }
        all.extend(METRICS.iter().filter_map(|metric| metric_curves(env, metric, &runs, colours)));
        all.extend(curves_by_part(env, &RETURN, &return_parts(&runs), &runs, colours));
        all.extend(curves_by_part(env, &TIME, &time_parts(&runs), &runs, colours));
    }
    all
}

/// A metric of `metrics.jsonl`, or several of them.
struct Metric {
    /// First word of the file name.
    id: &'static str,
    key: &'static str,
    title: &'static str,
    y_label: &'static str,
}

const fn metric(id: &'static str, key: &'static str, title: &'static str, y_label: &'static str) -> Metric {
    Metric { id, key, title, y_label }
}

/// Metrics with one figure each.
const METRICS: [Metric; 6] = [
    metric("loss", "loss", "policy loss with entropy and KL terms", "loss"),
    metric("entropy", "entropy", "entropy of sampled actions", "nats per token"),
    metric("kl-play", "kl/play", "KL divergence of actions from the reference policy", "nats per token"),
    metric("kl-reflect", "kl/reflect", "KL divergence of reflections from the reference policy", "nats per token"),
    metric("clip-fraction", "ratio/clip_frac", "clip fraction", "fraction of tokens"),
    metric("gradient-norm", "optim/grad_norm", "gradient norm before clipping", "norm"),
];

const RETURN: Metric = metric("return", "", "return of training episodes", "return");
const TIME: Metric = metric("time", "", "time of an update", "seconds");

/// What a line of several runs and its band are.
const RANGE: &str = "seeds, mean and range";

/// Lines of runs by label, in its order.
fn lines<'r>(
    runs: &[&'r TrainingRun],
    colours: &Colours,
    points_of: impl Fn(&[&'r TrainingRun]) -> Vec<PlotPoint>,
) -> Vec<Series> {
    let labels: BTreeSet<&String> = runs.iter().map(|r| &r.label).collect();
    let line = |label: &String| {
        let same: Vec<&TrainingRun> = runs.iter().copied().filter(|r| r.label == *label).collect();
        let seeds = if same.len() > 1 { format!(" ({} {RANGE})", same.len()) } else { String::new() };
        let style = LineStyle::Measured(colours.of_run(label));
        Series { name: format!("{label}{seeds}"), style, points: points_of(&same) }
    };
    labels.into_iter().map(line).filter(|line| !line.points.is_empty()).collect()
}

/// Points of values by update, each with its interval: of several runs their mean and their range. An interval of the mean
/// of few runs would be many times wider than the curve is high.
fn points(values: impl Iterator<Item = PlotPoint>) -> Vec<PlotPoint> {
    let mut by_update: BTreeMap<u64, Vec<PlotPoint>> = BTreeMap::new();
    values.for_each(|point| by_update.entry(point.0 as u64).or_default().push(point));
    let mean = |points: Vec<PlotPoint>| {
        if let [point] = points.as_slice() {
            return *point;
        }
        let values = points.iter().map(|point| point.1);
        let range = values.clone().fold((f64::MAX, f64::MIN), |(low, high), v| (low.min(v), high.max(v)));
        (points[0].0, values.sum::<f64>() / points.len() as f64, Some(range))
    };
    by_update.into_values().map(mean).collect()
}

/// Points of a metric of `metrics.jsonl`.
fn metric_points(runs: &[&TrainingRun], key: &str) -> Vec<PlotPoint> {
    let by_update = runs.iter().filter_map(|run| run.metrics.get(key)).flatten();
    points(by_update.map(|(update, value)| (*update as f64, *value, None)))
}

/// One figure of a metric with a line per label.
fn metric_curves(env: &str, metric: &Metric, runs: &[&TrainingRun], colours: &Colours) -> Option<Figure> {
    let series = lines(runs, colours, |runs| metric_points(runs, metric.key));
    chart(env, metric, metric.title, &series)
}

fn chart(env: &str, metric: &Metric, title: &str, series: &[Series]) -> Option<Figure> {
    let title = format!("{env}: {title}");
    let chart = Chart { title: &title, x_label: "updates", y_label: metric.y_label, percent: false, series };
    (!series.is_empty()).then(|| figure(&format!("{} {env}", metric.id), "training", &chart))
}

/// Curves of a metric in parts, each with its name and its key: one figure with a line per part if all runs share a
/// label, otherwise one figure per part with a line per label.
fn curves_by_part(
    env: &str,
    metric: &Metric,
    parts: &[(String, String)],
    runs: &[&TrainingRun],
    colours: &Colours,
) -> Vec<Figure> {
    let Some(first) = runs.first() else { return Vec::new() };
    if runs.iter().all(|run| run.label == first.label) {
        let part = |(n, (name, key)): (usize, &(String, String))| Series {
            name: name.clone(),
            style: LineStyle::Measured(n),
            points: metric_points(runs, key),
        };
        let series: Vec<Series> = parts.iter().enumerate().map(part).filter(|line| !line.points.is_empty()).collect();
        let seeds = if runs.len() > 1 { format!(", {} {RANGE}", runs.len()) } else { String::new() };
        return chart(env, metric, &format!("{} by update{seeds}", metric.title), &series).into_iter().collect();
    }
    let figure = |(name, key): &(String, String)| {
        let series = lines(runs, colours, |runs| metric_points(runs, key));
        let figure = chart(env, metric, &format!("{}, {name}", metric.title), &series)?;
        Some(Figure { id: format!("{} {env} {name}", metric.id), ..figure })
    };
    parts.iter().filter_map(figure).collect()
}

/// Episodes of rollouts: all of them for one label, the first and the last for several.
fn return_parts(runs: &[&TrainingRun]) -> Vec<(String, String)> {
    let key = |k: u32| format!("episode_{k}/score");
    let has = |k: &u32| runs.iter().any(|run| run.metrics.contains_key(&key(*k)));
    let all: Vec<u32> = (1..).take_while(has).collect();
    let several = runs.iter().any(|run| run.label != runs[0].label);
    let ends = |k: &&u32| !several || **k == 1 || Some(*k) == all.last();
    all.iter().filter(ends).map(|k| (format!("episode {k}"), key(*k))).collect()
}

/// Phases of an update that take at least a hundredth of its time in some run.
fn time_parts(runs: &[&TrainingRun]) -> Vec<(String, String)> {
    const PHASES: [&str; 7] = ["total", "rollout", "reference", "train", "evaluate", "checkpoint", "other"];
    let sum = |run: &TrainingRun, phase: &str| {
        run.metrics.get(&format!("seconds/{phase}")).map_or(0.0, |by_update: &MetricByUpdate| by_update.values().sum())
    };
    let matters = |phase: &&str| runs.iter().any(|run| sum(run, phase) > 0.01 * sum(run, "total"));
    PHASES.into_iter().filter(matters).map(|phase| (phase.to_owned(), format!("seconds/{phase}"))).collect()
}

/// Score of the last episode by update, of runs with one population, whose hash is given if there are several.
fn learning_curves(env: &str, population: Option<&str>, runs: &[&TrainingRun], colours: &Colours) -> Option<Figure> {
    let mut series = lines(runs, colours, |runs| {
        points(runs.iter().flat_map(|run| &run.eval_curve).map(|p| {
            let interval = IntervalEstimate::from(&p.estimate()).interval;
            (p.update as f64, p.score, interval)
        }))
    });
    let last = series.iter().flat_map(|s| &s.points).map(|p| p.0).fold(f64::NAN, f64::max);
    if !last.is_finite() {
        return None;
    }
    let ceiling = runs.iter().find_map(|r| r.ceiling.as_ref());
    if let (Some((memoryless, bayes_adaptive)), Some(ceiling)) =
        (runs.iter().find_map(|r| r.last_episode_ceiling), ceiling)
    {
        let line = |name: &str, y, dashes| Series {
            name: name.to_owned(),
            style: LineStyle::Ceiling(dashes),
            points: vec![(0.0, y, None), (last, y, None)],
        };
        let name = format!("Bayes-adaptive optimum ({})", ceiling.bayes_qualifier());
        series.push(line(&name, bayes_adaptive, "none"));
        series.push(line(&format!("memoryless optimum ({})", ceiling.qualifier()), memoryless, "6 4"));
    }
    let unit = runs.first().map_or("score", |r| r.unit.as_str());
    let of = population.map_or_else(String::new, |hash| format!(", population {hash}"));
    let title = format!("{env}{of}: score of the last episode in evaluations during training");
    let chart = Chart { title: &title, x_label: "updates", y_label: unit, percent: false, series: &series };
    Some(figure(&format!("learning {env}{of}"), "training", &chart))
}
