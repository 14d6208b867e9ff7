//! Overview: one row per training run and one per evaluation.

use super::{ReportTable, to_strings, with_count};
use crate::{
    Report,
    interval_estimate::{NONE, gap_share, mean_and_error},
};

/// Training runs with the score of the last episode.
pub(super) fn runs(report: &Report) -> Option<ReportTable> {
    let rows = report.runs.iter().map(|run| {
        let (before, after) = (run.before(), run.after());
        let ceiling = run.last_episode_ceiling.zip(after);
        let gap = ceiling.and_then(|((low, high), score)| mage_core::gap_closed(score, low, high));
        let lower_bound = run.ceiling.as_ref().is_some_and(|c| mage_env::solvers::is_lower_bound(c.error));
        vec![
            run.path.clone(),
            run.env.clone(),
            run.label.clone(),
            run.seed.to_string(),
            run.progress(),
            mean_and_error(before.as_ref()),
            mean_and_error(after.as_ref()),
            gap_share(gap, lower_bound),
        ]
    });
    (!report.runs.is_empty()).then(|| ReportTable {
        id: "overview-runs".to_owned(),
        section: "overview",
        title: "Training runs".to_owned(),
        caption: "Score of the last episode on the run's own evaluation tasks, before and after training: mean ± standard \
                  error, without one for exact expectations. A run in progress shows its last evaluation. Gap closed: position \
                  of the score between memoryless (0 %) and Bayes-adaptive optimum (100 %), left out where the score is less \
                  certain than the gap is wide."
            .to_owned(),
        header: to_strings(&["run", "environment", "method", "seed", "updates", "before", "after", "gap closed"]),
        rows: rows.collect(),
    })
}

/// Evaluations with the scores of the first and the last episode.
pub(super) fn evaluations(report: &Report) -> Option<ReportTable> {
    let rows: Vec<Vec<String>> = report
        .results
        .iter()
        .filter_map(|r| {
            let (first, last) = (r.curve.first()?, r.curve.last()?);
            let file = match r.files.as_slice() {
                [] => NONE.to_owned(),
                [file] => file.clone(),
                [file, more @ ..] => format!("{file} and {} more", more.len()),
            };
            let lower_bound = r.ceiling.as_ref().is_some_and(|c| mage_env::solvers::is_lower_bound(c.error));
            Some(vec![
                file,
                r.env.clone(),
                report.task_set_name(&r.task_set, &r.task_set_hash),
                r.policy.clone(),
                r.name(),
                r.tasks.to_string(),
                first.score.score(),
                with_count(last.score.score(), &last.score, r.tasks),
                // With early stopping, the last episode covers the tasks not yet won.
                if r.early_stop || r.episodes < 2 { NONE.to_owned() } else { r.gain.score() },
                gap_share(r.gap_closed(), lower_bound),
            ])
        })
        .collect();
    (!rows.is_empty()).then(|| ReportTable {
        id: "overview-evaluations".to_owned(),
        section: "overview",
        title: "Evaluations".to_owned(),
        caption: "Mean scores with 95 % intervals over the n tasks. Gain: score of the last episode minus that of the first, by \
                  task. Where tasks stop after their first win, the last episode covers only the tasks not yet won: there is no \
                  gain."
            .to_owned(),
        header: to_strings(&[
            "file",
            "environment",
            "task set",
            "policy",
            "method",
            "n",
            "first episode",
            "last episode",
            "gain",
            "gap closed",
        ]),
        rows,
    })
}
