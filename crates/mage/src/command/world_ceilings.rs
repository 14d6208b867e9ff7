//! Upper bounds of environments without opponents, by split: a solver with full information, next to a random policy.

use crate::{
    output::{BOLD, DIM, Output, styled},
    table::table,
};
use mage_core::{MeanEstimate, RateEstimate};
use mage_env::{Population, SolvedSplit, WorldSolver};
use serde::Serialize;
use std::collections::BTreeMap;

/// Results of a solver with full information, next to a random policy.
#[derive(Serialize)]
pub(crate) struct WorldCeilings {
    env: String,
    splits: Vec<SplitCeilings>,
    /// Splits whose tasks are not available, with the reason.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    unavailable: BTreeMap<String, String>,
}

#[derive(Serialize)]
struct SplitCeilings {
    split: String,
    max_turns: u32,
    budget: String,
    tasks: usize,
    /// Tasks on which the search reached its limit; the rates exclude them.
    undecided: usize,
    solvable: RateEstimate,
    optimal: BTreeMap<&'static str, MeanEstimate>,
    random_win_rate: RateEstimate,
}

impl WorldCeilings {
    /// Computes one split, or all splits whose tasks are available.
    pub(crate) fn compute(
        env: &str,
        solver: &dyn WorldSolver,
        population: &Population,
        split: Option<&str>,
        out: &Output,
    ) -> anyhow::Result<Self> {
        let mut ceilings = WorldCeilings { env: env.to_owned(), splits: Vec::new(), unavailable: BTreeMap::new() };
        for name in split.map_or_else(|| population.splits().collect(), |name| vec![name]) {
            let bar = out.progress(0, "solving");
            let solved = solver.solve(population, name, &mut |done, total| {
                bar.set_length(total as u64);
                bar.set_position(done as u64);
            });
            bar.finish_and_clear();
            match solved {
                Ok(solved) => ceilings.splits.push(SplitCeilings::of(&solved)),
                // A split named on the command line must be available.
                Err(e) if split.is_some() => return Err(e.into()),
                Err(e) => drop(ceilings.unavailable.insert(name.to_owned(), e.to_string())),
            }
        }
        Ok(ceilings)
    }

    pub(crate) fn print(&self, out: &Output) -> anyhow::Result<()> {
        out.line(format!("{}, solver with full information", styled(BOLD, &self.env)))?;
        let measures: Vec<&str> = self.splits.first().map_or_else(Vec::new, |s| s.optimal.keys().copied().collect());
        let header = [&["split", "tasks", "max. turns", "solvable"][..], &measures, &["random policy wins"]].concat();
        let rows = self.splits.iter().map(|s| {
            let turns = format!("{} ({})", s.max_turns, s.budget);
            let mut row = vec![s.split.clone(), s.tasks.to_string(), turns, percent(&s.solvable)];
            row.extend(s.optimal.values().map(average));
            row.push(percent(&s.random_win_rate));
            row
        });
        out.line(format!("\n{}", table(&header, rows)))?;
        for s in self.splits.iter().filter(|s| s.undecided > 0) {
            let text =
                format!("{}: the search reached its limit on {} tasks, which the rates exclude", s.split, s.undecided);
            out.line(styled(DIM, text))?;
        }
        for (split, reason) in &self.unavailable {
            out.line(styled(DIM, format!("{split} is not available: {reason}")))?;
        }
        out.line(styled(DIM, "brackets are 95 % intervals"))
    }
}

impl SplitCeilings {
    fn of(solved: &SolvedSplit) -> Self {
        let tasks = &solved.tasks;
        let optimal = solved.measures.iter().enumerate().map(|(i, measure)| {
            let values = tasks.iter().filter_map(|t| t.min_costs[i]).map(f64::from);
            (*measure, MeanEstimate::of(values))
        });
        SplitCeilings {
            split: solved.split.clone(),
            max_turns: solved.turns,
            budget: solved.budget.clone(),
            tasks: tasks.len(),
            undecided: tasks.iter().filter(|t| t.within_turns.is_none()).count(),
            solvable: RateEstimate::from_bools(tasks.iter().filter_map(|t| t.within_turns)),
            optimal: optimal.collect(),
            random_win_rate: RateEstimate::from_bools(tasks.iter().map(|t| t.solved_by_random)),
        }
    }
}

fn percent(r: &RateEstimate) -> String {
    let digits = |x: f64| format!("{:.1}", 100.0 * x);
    let interval = format!("[{}, {}]", digits(r.interval.low), digits(r.interval.high));
    r.rate.map_or_else(|| "-".to_owned(), |p| format!("{} % {interval}", digits(p)))
}

fn average(m: &MeanEstimate) -> String {
    match (m.mean, m.interval) {
        (Some(x), Some(i)) => format!("{x:.1} [{:.1}, {:.1}]", i.low, i.high),
        (Some(x), None) => format!("{x:.1}"),
        (None, _) => "-".to_owned(),
    }
}
