//! Static 3D scatter plot of episodes, states and actions: the page's interactive plot from a fixed viewpoint.

use super::{Figure, MethodResult, chart};
use std::{collections::HashMap, fmt::Write};

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 670.0;
/// Half the edge of the box in pixels.
const SCALE: f64 = 170.0;
/// Centre of the box.
const CENTRE: (f64, f64) = (WIDTH / 2.0 + 16.0, 295.0);
/// Viewpoint, equal to the initial viewpoint of the page.
const YAW: f64 = -0.65;
const PITCH: f64 = 0.38;

/// One figure per result with trajectories.
pub(super) fn figures(results: &[MethodResult]) -> Vec<Figure> {
    let with_actions = results.iter().filter(|r| !r.actions.points.is_empty());
    with_actions.enumerate().map(|(n, result)| figure(n + 1, result)).collect()
}

/// Projects a point of the box, with coordinates from -1 to 1, to pixels and depth.
fn project(x: f64, y: f64, z: f64) -> (f64, f64, f64) {
    let (right, back) = (YAW.cos() * x + YAW.sin() * z, -YAW.sin() * x + YAW.cos() * z);
    let (up, depth) = (PITCH.cos() * y - PITCH.sin() * back, PITCH.sin() * y + PITCH.cos() * back);
    let perspective = 1.0 / (1.0 - 0.14 * depth);
    (CENTRE.0 + right * SCALE * perspective, CENTRE.1 - up * SCALE * perspective, depth)
}

/// Coordinate of index `i` out of `n`, from -1 to 1.
fn coordinate(i: usize, n: usize) -> f64 {
    if n > 1 { 2.0 * i as f64 / (n - 1) as f64 - 1.0 } else { 0.0 }
}

fn figure(number: usize, result: &MethodResult) -> Figure {
    let counts = &result.actions;
    let title = format!("{}: actions of {} by state and episode ({})", result.task_set, result.name(), result.policy);
    let mut svg = chart::svg_header(WIDTH, HEIGHT, &title);
    let episodes = 1 + counts.points.iter().map(|p| p.0).max().unwrap_or(0) as usize;
    let (actions, states) = (counts.actions.len(), counts.states.len());
    walls(&mut svg, episodes);
    labels(&mut svg, episodes, &counts.actions, states);

    let mut in_episode: HashMap<u32, u64> = HashMap::new();
    counts.points.iter().for_each(|(e, _, _, n)| *in_episode.entry(*e).or_default() += n);
    let fraction = |(e, _, _, n): &(u32, usize, usize, u64)| *n as f64 / in_episode[e] as f64;
    let largest = counts.points.iter().map(fraction).fold(0.0, f64::max);
    let mut spheres: Vec<_> = counts
        .points
        .iter()
        .map(|point| {
            let (e, s, a, _) = *point;
            let position = project(coordinate(e as usize, episodes), coordinate(a, actions), -coordinate(s, states));
            (position, (SCALE * 0.085 * (fraction(point) / largest).cbrt()).max(1.6), a)
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
    let legend = "sphere size: frequency within the episode; state 1 is the most frequent";
    chart::text(&mut svg, 16.0, HEIGHT - 34.0, "start", "faint", legend);
    if result.early_stop {
        chart::text(&mut svg, 16.0, HEIGHT - 14.0, "start", "faint", "later episodes: tasks not yet won");
    }
    svg.push_str("</svg>\n");
    Figure { id: format!("actions-{number}"), section: "actions-static", title, svg }
}

/// Grid on the bottom, back and side of the box, with one line per episode.
fn walls(svg: &mut String, episodes: usize) {
    let mut line = |from: [f64; 3], to: [f64; 3], stroke: &str| {
        let [(x1, y1, _), (x2, y2, _)] = [from, to].map(|[x, y, z]| project(x, y, z));
        let _ =
            writeln!(svg, "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"{stroke}\"/>");
    };
    const FAINT: &str = "#dddddd";
    for x in (0..episodes).map(|e| coordinate(e, episodes)) {
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
        let (x, y, _) = project(at[0], at[1], at[2]);
        chart::text(svg, x, y + 4.5, anchor, class, content);
    };
    for e in (0..episodes).step_by(episodes.div_ceil(12)) {
        label(&(e + 1).to_string(), [coordinate(e, episodes), -1.1, 1.08], "faint", "middle");
    }
    label("episode", [0.0, -1.24, 1.2], "ink", "middle");
    label("1", [1.08, -1.07, 1.0], "faint", "start");
    label(&states.to_string(), [1.08, -1.07, -1.0], "faint", "start");
    label("state", [1.16, -1.14, 0.0], "ink", "start");
    // At most 14 action names fit.
    let every = actions.len().div_ceil(14).max(1);
    for (a, name) in actions.iter().enumerate().step_by(every) {
        let short: String = name.chars().take(20).collect();
        label(&short, [-1.05, coordinate(a, actions.len()), 1.05], "faint", "end");
    }
    label("action", [-1.05, 1.16, 1.05], "ink", "end");
}

/// Hex code of an HSL colour, with the hue in degrees; old SVG renderers do not support `hsl()`.
fn colour(hue: f64, saturation: f64, lightness: f64) -> String {
    let amplitude = saturation * lightness.min(1.0 - lightness);
    let channel = |n: f64| {
        let k = (n + hue / 30.0) % 12.0;
        (255.0 * (lightness - amplitude * (k - 3.0).min(9.0 - k).clamp(-1.0, 1.0))).round() as u8
    };
    format!("#{:02x}{:02x}{:02x}", channel(0.0), channel(8.0), channel(4.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hsl_colours_convert_to_hex() {
        assert_eq!(
            [colour(0.0, 1.0, 0.5), colour(120.0, 1.0, 0.5), colour(240.0, 1.0, 0.5)],
            ["#ff0000", "#00ff00", "#0000ff"]
        );
        assert_eq!(colour(77.0, 0.0, 0.5), "#808080");
    }

    #[test]
    fn the_whole_box_fits_into_the_figure() {
        for corner in 0..8 {
            let [x, y, z] = [0, 1, 2].map(|i| if corner >> i & 1 == 1 { 1.0 } else { -1.0 });
            let (px, py, _) = project(x, y, z);
            assert!((30.0..WIDTH - 30.0).contains(&px) && (50.0..HEIGHT - 80.0).contains(&py), "{px} {py}");
        }
    }
}
