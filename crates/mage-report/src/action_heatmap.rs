//! Heatmap of the actions in the most frequent states (rows) by episode (columns).

use super::{
    Figure, MethodResult, StateCounts,
    heatmap::{Heatmap, HeatmapRow, svg},
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
    let title = format!(
        "{task_set}: actions of {} ({}) in the most frequent states, {:.0} % of its steps, by episode",
        result.name(),
        result.policy,
        100.0 * shown as f64 / counts.steps as f64
    );
    let episodes = counts.states.iter().map(|state| state.steps.len()).max().unwrap_or(0);
    let svg = svg(&Heatmap {
        title: &title,
        columns: (1..=episodes).map(|k| format!("ep. {k}")).collect(),
        rows: counts.states.iter().flat_map(rows).collect(),
        scale: (0.0, 1.0),
        format: |x| format!("{:.0} %", 100.0 * x),
        unit: if result.early_stop {
            "of steps in the state; later: tasks not yet won"
        } else {
            "of steps in the state"
        },
    });
    Some(Figure {
        id: format!("actions {task_set} {} {}", result.name(), result.policy),
        section: "actions",
        title,
        svg,
    })
}

/// One row per action of a state.
fn rows(state: &StateCounts) -> impl Iterator<Item = HeatmapRow> {
    state.actions.iter().map(|(action, counts)| {
        let cell = |(count, steps): (&u64, &u64)| {
            let tooltip = format!("{count} of {steps} steps in the state: {}", state.state);
            (*steps > 0).then(|| (*count as f64 / *steps as f64, tooltip))
        };
        HeatmapRow {
            name: format!("{}: {}", short(&state.state), short(action)),
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
