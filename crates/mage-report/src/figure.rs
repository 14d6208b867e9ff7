//! Figures of a report.

use super::{
    CurvePoint, IntervalEstimate, MethodResult, Report, TrainingRun, action_scatter,
    chart::{self, Chart, LineStyle, Series},
    opponent_heatmap, paper_results,
};
use mage_core::MeanEstimate;
use mage_env::Hash;
use std::collections::{BTreeMap, BTreeSet};

/// A figure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Figure {
    /// Identifier for file names and links.
    pub id: String,
    /// Section of the report.
    pub section: &'static str,
    /// Title.
    pub title: String,
    /// SVG document.
    pub svg: String,
}

/// All figures of a report.
pub fn figures(report: &Report) -> Vec<Figure> {
    let mut all = Vec::new();
    let colours = Colours::new(report);
    let task_sets: BTreeSet<(&str, &str)> =
        report.results.iter().map(|r| (r.task_set.as_str(), r.task_set_hash.as_str())).collect();
    for (task_set, hash) in task_sets {
        let results: Vec<&MethodResult> =
            report.results.iter().filter(|r| r.task_set == task_set && r.task_set_hash == hash).collect();
        let task_set = report.task_set_name(task_set, hash);
        all.extend(task_set_figures(&task_set, hash, &results, &colours));
        all.extend(opponent_heatmap::heatmap(&task_set, hash, &results, &report.results));
    }
    let envs: BTreeSet<&str> = report.runs.iter().map(|r| r.env.as_str()).collect();
    for env in envs {
        let runs: Vec<&TrainingRun> = report.runs.iter().filter(|r| r.env == env).collect();
        // A ceiling belongs to its population.
        let populations: BTreeSet<Option<Hash>> = runs.iter().map(|r| r.population).collect();
        for population in &populations {
            let runs: Vec<&TrainingRun> = runs.iter().copied().filter(|r| r.population == *population).collect();
            let hash = population.filter(|_| populations.len() > 1).map(|hash| hash.to_string()[..8].to_owned());
            all.extend(learning_curves(env, hash.as_deref(), &runs, &colours));
        }
    }
    all.extend(action_scatter::figures(&report.results));
    all
}

/// Method and policy of each colour index. A method has the same colour in all figures.
struct Colours(Vec<(String, String)>);

impl Colours {
    /// Assigns colours to the paper's methods first, from the last row of Table 1 up. Runs share the colour of their
    /// method.
    fn new(report: &Report) -> Self {
        let mut all = Colours(Vec::new());
        let rank = |r: &&MethodResult| {
            paper_results::TABLE.iter().rev().position(|(name, _)| *name == r.method).unwrap_or(usize::MAX)
        };
        let mut results: Vec<&MethodResult> = report.results.iter().collect();
        results.sort_by_key(rank);
        for result in results {
            if !all.0.iter().any(|(name, policy)| (name, policy) == (&result.name(), &result.policy)) {
                all.0.push((result.name(), result.policy.clone()));
            }
        }
        for run in &report.runs {
            if !all.0.iter().any(|(name, _)| *name == run.label) {
                all.0.push((run.label.clone(), String::new()));
            }
        }
        all
    }

    fn of_result(&self, result: &MethodResult) -> usize {
        let same = |(name, policy): &(String, String)| (name, policy) == (&result.name(), &result.policy);
        self.0.iter().position(same).unwrap_or(0)
    }

    fn of_run(&self, name: &str) -> usize {
        self.0.iter().position(|(method, _)| method == name).unwrap_or(0)
    }
}

fn task_set_figures(task_set: &str, hash: &str, results: &[&MethodResult], colours: &Colours) -> Vec<Figure> {
    let mut all = Vec::new();
    let series = |metric: &dyn Fn(&CurvePoint) -> IntervalEstimate, selected: &[&MethodResult]| -> Vec<Series> {
        // The label contains the policy if several policies share the method, and the number of tasks if it changes.
        let label = |r: &MethodResult| {
            let name = match results.iter().filter(|o| o.name() == r.name()).count() {
                1 => r.name(),
                _ => format!("{} ({})", r.name(), r.policy),
            };
            let tasks = |m: Option<&CurvePoint>| m.map_or(0, |m| metric(m).n);
            match (tasks(r.curve.first()), tasks(r.curve.last())) {
                (first, last) if first == last => name,
                (first, last) => format!("{name} ({first} tasks, {last} at the end)"),
            }
        };
        let points = |r: &MethodResult| {
            r.curve.iter().filter_map(|m| metric(m).value.map(|y| (f64::from(m.k), y, metric(m).interval))).collect()
        };
        let one = |r: &&MethodResult| Series {
            name: label(r),
            style: LineStyle::Measured(colours.of_result(r)),
            points: points(r),
        };
        selected.iter().map(one).collect()
    };
    let mut pass = series(&|m| m.pass, results);
    if let Some(best) = results.iter().filter_map(|r| r.ceiling.as_ref()).find(|c| !c.pass_at_k.is_empty()) {
        let name = format!("Bayes-adaptive optimum ({})", best.qualifier());
        pass.push(Series::ceiling(&name, &best.pass_at_k, "none"));
    }
    if pass.iter().any(|s| !s.points.is_empty()) {
        let title = format!("{task_set}: won within k episodes (Pass@k)");
        let chart =
            Chart { title: &title, x_label: "episodes k", y_label: "rate of tasks", percent: true, series: &pass };
        all.push(figure(&format!("pass-{hash}"), "curves", &chart));
    }
    let unit = results.first().map_or("score", |r| r.unit.as_str());
    let mut score = series(&|m| m.score, results);
    if let Some(ceiling) = results.iter().find_map(|r| r.score_ceiling()) {
        let name = format!("Bayes-adaptive optimum ({})", ceiling.bayes_qualifier());
        score.push(Series::ceiling(&name, &ceiling.bayes_adaptive, "none"));
        let name = format!("memoryless optimum ({})", ceiling.qualifier());
        score.push(Series::ceiling(&name, &ceiling.memoryless, "6 4"));
    }
    let scope = match (results.iter().any(|r| r.early_stop), results.iter().all(|r| r.early_stop)) {
        (_, true) => ", tasks not yet won",
        (true, false) => ", tasks not yet won where tasks stop early",
        _ => "",
    };
    let title = format!("{task_set}: score by episode{scope}");
    let by_episode = |title, series| Chart { title, x_label: "episode", y_label: unit, percent: false, series };
    all.push(figure(&format!("score-{hash}"), "curves", &by_episode(&title, &score)));
    if results.iter().any(|r| r.ablation.is_some()) {
        let ablated: BTreeSet<&str> =
            results.iter().filter(|r| r.ablation.is_some()).map(|r| r.method.as_str()).collect();
        let selected: Vec<&MethodResult> =
            results.iter().copied().filter(|r| ablated.contains(r.method.as_str())).collect();
        let id = format!("ablation-{hash}");
        // With early stopping, only Pass@k covers all tasks.
        if selected.iter().any(|r| r.early_stop) {
            let title = format!("{task_set}: ablations, won within k episodes");
            let series = series(&|m| m.pass, &selected);
            let (x_label, y_label) = ("episodes k", "rate of tasks");
            let chart = Chart { title: &title, x_label, y_label, percent: true, series: &series };
            all.push(figure(&id, "ablations", &chart));
        } else {
            let title = format!("{task_set}: ablations, score by episode");
            all.push(figure(&id, "ablations", &by_episode(&title, &series(&|m| m.score, &selected))));
        }
    }
    all
}

fn figure(id: &str, section: &'static str, chart: &Chart<'_>) -> Figure {
    Figure { id: id.to_owned(), section, title: chart.title.to_owned(), svg: chart::svg(chart) }
}

/// Score of the last episode by update, of runs with one population, whose hash is given if there are several. Runs that
/// differ only in their seed are averaged.
fn learning_curves(env: &str, population: Option<&str>, runs: &[&TrainingRun], colours: &Colours) -> Option<Figure> {
    let names: BTreeSet<&String> = runs.iter().map(|r| &r.label).collect();
    let mut series = Vec::new();
    for name in names {
        let same_name: Vec<&&TrainingRun> = runs.iter().filter(|r| r.label == *name).collect();
        let mut by_update: BTreeMap<u64, Vec<(f64, f64)>> = BTreeMap::new();
        // Rollouts have other opponents than evaluations: their scores are used only if no run was evaluated yet.
        let evaluated = same_name.iter().any(|run| !run.eval_curve.is_empty());
        for run in &same_name {
            for point in &run.eval_curve {
                by_update.entry(point.update).or_default().push((point.score, point.se));
            }
            if !evaluated {
                run.rollout_curve.iter().for_each(|(u, score)| by_update.entry(*u).or_default().push((*score, 0.0)));
            }
        }
        let points = by_update.into_iter().map(|(update, scores)| match scores.as_slice() {
            [(score, se)] => (update as f64, *score, Some((score - 1.96 * se, score + 1.96 * se))),
            several => {
                let estimate = IntervalEstimate::from(&MeanEstimate::of(several.iter().map(|(s, _)| *s)));
                (update as f64, estimate.value.unwrap_or_default(), estimate.interval)
            }
        });
        let seeds = if same_name.len() > 1 { format!(" ({} seeds)", same_name.len()) } else { String::new() };
        let points = points.collect();
        let style = LineStyle::Measured(colours.of_run(name));
        series.push(Series { name: format!("{name}{seeds}"), style, points });
    }
    series.retain(|s| !s.points.is_empty());
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
    let title = format!("{env}{of}: score of the last episode during training");
    let id = format!("learning-{}{}", file_name(env), population.map_or_else(String::new, |hash| format!("-{hash}")));
    let chart = Chart { title: &title, x_label: "updates", y_label: unit, percent: false, series: &series };
    Some(figure(&id, "learning", &chart))
}

/// Replaces characters that are not safe in file names.
fn file_name(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect()
}
