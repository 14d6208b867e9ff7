//! How well can one do in the tasks of a world, split by split?

use crate::{
    output::{BOLD, DIM, Output, styled},
    table::columns,
};
use mage_core::{Bootstrap, MeanEstimate, RateEstimate};
use mage_env::{Population, SolvedSplit, WorldSolver};
use serde::Serialize;
use std::collections::BTreeMap;

/// What a solver that sees everything reaches, next to random play.
#[derive(Serialize)]
pub(crate) struct WorldCeilings {
    env: String,
    splits: Vec<SplitCeilings>,
    /// Splits whose tasks are not at hand, and why.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    left_out: BTreeMap<String, String>,
}

#[derive(Serialize)]
struct SplitCeilings {
    split: String,
    turns: u32,
    budget: String,
    tasks: usize,
    /// Tasks a search was given up on before it could tell; the shares leave them out.
    undecided: usize,
    solvable_in_time: RateEstimate,
    least: BTreeMap<&'static str, MeanEstimate>,
    won_at_random: RateEstimate,
}

impl WorldCeilings {
    /// Of one split, or of all whose tasks are at hand.
    pub(crate) fn compute(
        env: &str,
        solver: &dyn WorldSolver,
        population: &Population,
        split: Option<&str>,
        out: &Output,
    ) -> anyhow::Result<Self> {
        let mut ceilings = WorldCeilings { env: env.to_owned(), splits: Vec::new(), left_out: BTreeMap::new() };
        for name in split.map_or_else(|| population.splits().collect(), |asked| vec![asked]) {
            let bar = out.progress(0, "solving");
            let solved = solver.solve(population, name, &mut |done, of| {
                bar.set_length(of as u64);
                bar.set_position(done as u64);
            });
            bar.finish_and_clear();
            match solved {
                Ok(solved) => ceilings.splits.push(SplitCeilings::of(&solved)),
                // A split that was asked for must be there.
                Err(e) if split.is_some() => return Err(e.into()),
                Err(e) => drop(ceilings.left_out.insert(name.to_owned(), e.to_string())),
            }
        }
        Ok(ceilings)
    }

    pub(crate) fn print(&self, out: &Output) -> anyhow::Result<()> {
        out.line(format!("{}, what a solver that sees everything reaches", styled(BOLD, &self.env)))?;
        let measures: Vec<&str> = self.splits.first().map_or_else(Vec::new, |s| s.least.keys().copied().collect());
        let header = [&["split", "tasks", "turns", "solvable in them"][..], &measures, &["won at random"]].concat();
        let rows = self.splits.iter().map(|s| {
            let turns = format!("{} ({})", s.turns, s.budget);
            let mut row = vec![s.split.clone(), s.tasks.to_string(), turns, percent(&s.solvable_in_time)];
            row.extend(s.least.values().map(average));
            row.push(percent(&s.won_at_random));
            row
        });
        out.line(format!("\n{}", columns(&header, rows)))?;
        for s in self.splits.iter().filter(|s| s.undecided > 0) {
            let text = format!("{}: the search was given up on {} tasks, which no share counts", s.split, s.undecided);
            out.line(styled(DIM, text))?;
        }
        for (split, why) in &self.left_out {
            out.line(styled(DIM, format!("{split} left out: {why}")))?;
        }
        out.line(styled(DIM, "brackets are 95 % intervals"))
    }
}

impl SplitCeilings {
    fn of(solved: &SolvedSplit) -> Self {
        let tasks = &solved.tasks;
        let bootstrap = Bootstrap::default().child("ceilings").child(&solved.split);
        let least = solved.measures.iter().enumerate().map(|(i, measure)| {
            let values = tasks.iter().filter_map(|t| t.min_costs[i]).map(f64::from);
            (*measure, bootstrap.child(measure).mean(values))
        });
        SplitCeilings {
            split: solved.split.clone(),
            turns: solved.turns,
            budget: solved.budget.clone(),
            tasks: tasks.len(),
            undecided: tasks.iter().filter(|t| t.within_turns.is_none()).count(),
            solvable_in_time: RateEstimate::from_bools(tasks.iter().filter_map(|t| t.within_turns)),
            least: least.collect(),
            won_at_random: RateEstimate::from_bools(tasks.iter().map(|t| t.solved_by_random)),
        }
    }
}

fn percent(r: &RateEstimate) -> String {
    let of = |x: f64| format!("{:.1}", 100.0 * x);
    let interval = format!("[{}, {}]", of(r.interval.low), of(r.interval.high));
    r.rate.map_or_else(|| "-".to_owned(), |p| format!("{} % {interval}", of(p)))
}

fn average(m: &MeanEstimate) -> String {
    match (m.mean, m.interval) {
        (Some(x), Some(i)) => format!("{x:.1} [{:.1}, {:.1}]", i.low, i.high),
        (Some(x), None) => format!("{x:.1}"),
        (None, _) => "-".to_owned(),
    }
}
