//! What was done where, on paper?
//!
//! The picture of states and actions that the page lets one turn, from one good side, for documents that keep still.

use super::{Drawing, Entry, chart};
use std::{collections::HashMap, fmt::Write};

const WIDE: f64 = 760.0;
const TALL: f64 = 670.0;
/// Pixels for half the box, and where its middle is.
const SCALE: f64 = 170.0;
const MIDDLE: (f64, f64) = (WIDE / 2.0 + 16.0, 295.0);
/// The side it is looked at from: the page's own when it is opened.
const YAW: f64 = -0.65;
const PITCH: f64 = 0.38;

/// One picture for each entry whose moves were recorded.
pub(super) fn pictures(entries: &[Entry]) -> Vec<Drawing> {
    let shown = entries.iter().filter(|e| !e.moves.points.is_empty());
    shown.enumerate().map(|(n, entry)| picture(n + 1, entry)).collect()
}

/// Where a point of the box, from -1 to 1 in each direction, falls: across, down, and how near.
fn place(x: f64, y: f64, z: f64) -> (f64, f64, f64) {
    let (across, away) = (YAW.cos() * x + YAW.sin() * z, -YAW.sin() * x + YAW.cos() * z);
    let (up, depth) = (PITCH.cos() * y - PITCH.sin() * away, PITCH.sin() * y + PITCH.cos() * away);
    let near = 1.0 / (1.0 - 0.14 * depth);
    (MIDDLE.0 + across * SCALE * near, MIDDLE.1 - up * SCALE * near, depth)
}

/// The `i`-th of `of` on its axis.
fn along(i: usize, of: usize) -> f64 {
    if of > 1 { 2.0 * i as f64 / (of - 1) as f64 - 1.0 } else { 0.0 }
}

fn picture(number: usize, entry: &Entry) -> Drawing {
    let moves = &entry.moves;
    let title = format!("{}: what {} does where, by episode ({})", entry.panel, entry.name(), entry.player);
    let mut svg = chart::opening(WIDE, TALL, &title);
    let episodes = 1 + moves.points.iter().map(|p| p.0).max().unwrap_or(0) as usize;
    let (actions, states) = (moves.actions.len(), moves.states.len());
    walls(&mut svg, episodes);
    labels(&mut svg, episodes, &moves.actions, states);

    let mut in_episode: HashMap<u32, u64> = HashMap::new();
    moves.points.iter().for_each(|(e, _, _, n)| *in_episode.entry(*e).or_default() += n);
    let share = |(e, _, _, n): &(u32, usize, usize, u64)| *n as f64 / in_episode[e] as f64;
    let largest = moves.points.iter().map(share).fold(0.0, f64::max);
    let mut spheres: Vec<_> = moves
        .points
        .iter()
        .map(|point| {
            let (e, s, a, _) = *point;
            let at = place(along(e as usize, episodes), along(a, actions), -along(s, states));
            (at, (SCALE * 0.085 * (share(point) / largest).cbrt()).max(1.6), a)
        })
        .collect();
    spheres.sort_by(|(a, ..), (b, ..)| a.2.total_cmp(&b.2));
    svg.push_str("<defs>\n");
    for a in 0..actions {
        let hue = (a as f64 * 137.5 + 205.0) % 360.0;
        let _ = writeln!(
            svg,
            "<radialGradient id=\"sphere-{number}-{a}\" cx=\"0.35\" cy=\"0.35\" r=\"0.65\"><stop offset=\"0\" stop-color=\"{}\"/>\
             <stop offset=\"1\" stop-color=\"{}\"/></radialGradient>",
            colour(hue, 0.75, 0.78),
            colour(hue, 0.58, 0.44)
        );
    }
    svg.push_str("</defs>\n");
    for ((x, y, _), r, a) in spheres {
        let _ = writeln!(
            svg,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{r:.1}\" fill=\"url(#sphere-{number}-{a})\" fill-opacity=\"0.9\"/>"
        );
    }
    let about = "a sphere's size says how often within its episode; state 1 is the most frequent";
    chart::text(&mut svg, 16.0, TALL - 34.0, "start", "faint", about);
    if entry.early_stop {
        chart::text(&mut svg, 16.0, TALL - 14.0, "start", "faint", "later episodes are of tasks not yet won");
    }
    svg.push_str("</svg>\n");
    Drawing { id: format!("moves-{number}"), part: "moves-still", title, svg }
}

/// The bottom, the back and the side; one line an episode.
fn walls(svg: &mut String, episodes: usize) {
    let mut line = |from: [f64; 3], to: [f64; 3], stroke: &str| {
        let [(x1, y1, _), (x2, y2, _)] = [from, to].map(|[x, y, z]| place(x, y, z));
        let _ =
            writeln!(svg, "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"{stroke}\"/>");
    };
    const FAINT: &str = "#dddddd";
    for x in (0..episodes).map(|e| along(e, episodes)) {
        line([x, -1.0, -1.0], [x, -1.0, 1.0], FAINT);
        line([x, -1.0, -1.0], [x, 1.0, -1.0], FAINT);
    }
    for s in [-1.0, 0.0, 1.0] {
        line([-1.0, s, -1.0], [1.0, s, -1.0], FAINT);
        line([-1.0, -1.0, s], [1.0, -1.0, s], FAINT);
        line([-1.0, s, -1.0], [-1.0, s, 1.0], FAINT);
        line([-1.0, -1.0, s], [-1.0, 1.0, s], FAINT);
    }
    line([-1.0, -1.0, 1.0], [1.0, -1.0, 1.0], "#888888");
    line([1.0, -1.0, -1.0], [1.0, -1.0, 1.0], "#888888");
    line([-1.0, -1.0, 1.0], [-1.0, 1.0, 1.0], "#888888");
}

fn labels(svg: &mut String, episodes: usize, actions: &[String], states: usize) {
    let mut label = |content: &str, at: [f64; 3], class: &str, anchor: &str| {
        let (x, y, _) = place(at[0], at[1], at[2]);
        chart::text(svg, x, y + 4.5, anchor, class, content);
    };
    for e in (0..episodes).step_by(episodes.div_ceil(12)) {
        label(&(e + 1).to_string(), [along(e, episodes), -1.1, 1.08], "faint", "middle");
    }
    label("episode", [0.0, -1.24, 1.2], "ink", "middle");
    label("1", [1.08, -1.07, 1.0], "faint", "start");
    label(&states.to_string(), [1.08, -1.07, -1.0], "faint", "start");
    label("state", [1.16, -1.14, 0.0], "ink", "start");
    // As many names as there is room for.
    let every = actions.len().div_ceil(14).max(1);
    for (a, name) in actions.iter().enumerate().step_by(every) {
        let short: String = name.chars().take(20).collect();
        label(&short, [-1.05, along(a, actions.len()), 1.05], "faint", "end");
    }
    label("action", [-1.05, 1.16, 1.05], "ink", "end");
}

/// A colour by hue in degrees, saturation and lightness, as SVG files of any age take it.
fn colour(hue: f64, saturation: f64, lightness: f64) -> String {
    let reach = saturation * lightness.min(1.0 - lightness);
    let part = |n: f64| {
        let k = (n + hue / 30.0) % 12.0;
        (255.0 * (lightness - reach * (k - 3.0).min(9.0 - k).clamp(-1.0, 1.0))).round() as u8
    };
    format!("#{:02x}{:02x}{:02x}", part(0.0), part(8.0), part(4.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_those_of_their_hues() {
        assert_eq!(
            [colour(0.0, 1.0, 0.5), colour(120.0, 1.0, 0.5), colour(240.0, 1.0, 0.5)],
            ["#ff0000", "#00ff00", "#0000ff"]
        );
        assert_eq!(colour(77.0, 0.0, 0.5), "#808080");
    }

    #[test]
    fn the_whole_box_is_within_the_picture() {
        for corner in 0..8 {
            let [x, y, z] = [0, 1, 2].map(|i| if corner >> i & 1 == 1 { 1.0 } else { -1.0 });
            let (across, down, _) = place(x, y, z);
            assert!((30.0..WIDE - 30.0).contains(&across) && (50.0..TALL - 80.0).contains(&down), "{across} {down}");
        }
    }
}
