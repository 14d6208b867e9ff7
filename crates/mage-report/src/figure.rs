//! Figures of a report.

use super::{
    CurvePoint, IntervalEstimate, MethodResult, Report, action_heatmap,
    chart::{self, Chart, LineStyle, Series},
    opponent_heatmap, paper_results,
    text::slug,
    training_curves,
};
use std::collections::BTreeSet;

/// A figure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Figure {
    /// Name of its files, and identifier for links: lower-case letters, digits and hyphens, unique in the report.
    pub id: String,
    /// Section of the report.
    pub section: &'static str,
    /// Title.
    pub title: String,
    /// SVG document.
    pub svg: String,
    /// Whether it needs the whole width of a page.
    pub wide: bool,
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
        all.extend(task_set_figures(&task_set, &results, &colours));
        all.extend(opponent_heatmap::heatmap(&task_set, &results, &report.results));
    }
    all.extend(training_curves::figures(&report.runs, &colours));
    for result in &report.results {
        all.extend(action_heatmap::heatmap(&report.task_set_name(&result.task_set, &result.task_set_hash), result));
    }
    name_files(&mut all);
    all
}

/// Makes file names of the figures' names. Equal ones are numbered in their order.
fn name_files(figures: &mut [Figure]) {
    let mut used = BTreeSet::new();
    for figure in figures {
        let name = slug(&figure.id);
        let numbered = std::iter::once(name.clone()).chain((2..).map(|n| format!("{name}-{n}")));
        figure.id = numbered.into_iter().find(|id| used.insert(id.clone())).unwrap_or(name);
    }
}

/// Method and policy of each colour index. A method has the same colour in all figures.
pub(super) struct Colours(Vec<(String, String)>);

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

    pub(super) fn of_run(&self, name: &str) -> usize {
        self.0.iter().position(|(method, _)| method == name).unwrap_or(0)
    }
}

fn task_set_figures(task_set: &str, results: &[&MethodResult], colours: &Colours) -> Vec<Figure> {
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
        all.push(figure(&format!("pass {task_set}"), "curves", &chart));
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
    all.push(figure(&format!("score {task_set}"), "curves", &by_episode(&title, &score)));
    if results.iter().any(|r| r.ablation.is_some()) {
        let ablated: BTreeSet<&str> =
            results.iter().filter(|r| r.ablation.is_some()).map(|r| r.method.as_str()).collect();
        let selected: Vec<&MethodResult> =
            results.iter().copied().filter(|r| ablated.contains(r.method.as_str())).collect();
        let id = format!("ablations {task_set}");
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

pub(super) fn figure(id: &str, section: &'static str, chart: &Chart<'_>) -> Figure {
    Figure { id: id.to_owned(), section, title: chart.title.to_owned(), svg: chart::svg(chart), wide: false }
}
