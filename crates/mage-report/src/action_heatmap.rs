//! Heatmap of the actions in the most frequent states (rows) by episode (columns).

use super::{
    Figure, MethodResult, StateCounts,
    heatmap::{self, Heatmap, HeatmapRow},
    text::single_line,
};

/// Maximum number of characters of a state or an action in the name of a row.
const MAX_NAME: usize = 36;

/// The heatmap of a result with trajectories.
pub(super) fn heatmap(task_set: &str, result: &MethodResult) -> Option<Figure> {
    let counts = &result.actions;
    let shown: u64 = counts.states.iter().flat_map(|state| &state.steps).sum();
    if shown == 0 {
        return None;
    }
    let title = format!("{task_set}: actions of {} ({}) by state and episode", result.name(), result.policy);
    let share = 100.0 * shown as f64 / counts.steps as f64;
    let stop = if result.early_stop { "; later episodes: tasks not yet won" } else { "" };
    let unit = format!("of steps in the state; these states have {share:.0} % of all steps{stop}");
    let episodes = counts.states.iter().map(|state| state.steps.len()).max().unwrap_or(0);
    let heatmap = Heatmap {
        title: &title,
        columns: (1..=episodes).map(|k| format!("ep. {k}")).collect(),
        rows: (1..).zip(&counts.states).flat_map(|(n, state)| rows(n, state)).collect(),
        scale: (0.0, 1.0),
        format: |x| format!("{:.0} %", 100.0 * x),
        unit: &unit,
    };
    let id = format!("actions {task_set} {} {}", result.name(), result.policy);
    Some(heatmap::figure(&id, "actions", &heatmap))
}

/// One row per action of a state. The first line of a state that is a drawing says little: it has its number instead.
fn rows(number: usize, state: &StateCounts) -> impl Iterator<Item = HeatmapRow> {
    let is_line = !state.state.trim().contains('\n');
    let name = if is_line { short(&state.state) } else { format!("state {number}") };
    state.actions.iter().map(move |(action, counts)| {
        let cell = |(count, steps): (&u64, &u64)| {
            let tooltip = format!("{count} of {steps} steps in the state: {}", state.state);
            (*steps > 0).then(|| (*count as f64 / *steps as f64, tooltip))
        };
        HeatmapRow {
            name: format!("{name}: {}", short(action)),
            cells: counts.iter().zip(&state.steps).map(cell).collect(),
        }
    })
}

/// The text on one line, shortened.
fn short(text: &str) -> String {
    let line = single_line(text).split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(MAX_NAME) {
        None => line,
        Some((end, _)) => format!("{}…", &line[..end]),
    }
}
