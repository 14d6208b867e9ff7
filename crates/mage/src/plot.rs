//! How does a curve over episodes look?
//!
//! Draws a small SVG line chart: exact lines, and measured points with their intervals. No dependencies, no fonts to
//! install, readable on light and dark pages.

use std::fmt::Write;

/// A chart over episodes 1, 2, ….
pub(crate) struct Chart<'a> {
    pub(crate) title: &'a str,
    pub(crate) unit: &'a str,
    pub(crate) lines: Vec<Line<'a>>,
    pub(crate) points: Points<'a>,
}

/// An exact line.
pub(crate) struct Line<'a> {
    pub(crate) name: &'a str,
    pub(crate) colour: &'static str,
    pub(crate) dashes: &'static str,
    pub(crate) values: Vec<f64>,
}

/// Measured points, each with an interval if it has one.
pub(crate) struct Points<'a> {
    pub(crate) name: &'a str,
    pub(crate) values: Vec<(f64, Option<(f64, f64)>)>,
}

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 400.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 196.0;
const TOP: f64 = 48.0;
const BOTTOM: f64 = 52.0;
const POINT_COLOUR: &str = "#d1495b";

impl Chart<'_> {
    /// The chart as an SVG document.
    pub(crate) fn svg(&self) -> String {
        let episodes = self.points.values.len();
        let exact = self.lines.iter().flat_map(|l| l.values.iter().copied());
        let measured = self.points.values.iter().flat_map(|(x, i)| {
            let (low, high) = i.unwrap_or((*x, *x));
            [*x, low, high]
        });
        let (low, high) = exact.chain(measured).fold((f64::MAX, f64::MIN), |(lo, hi), x| (lo.min(x), hi.max(x)));
        let step = tick_step(high - low);
        let (low, high) = ((low / step).floor() * step, (high / step).ceil() * step);
        let high = if high > low { high } else { low + step };
        let at = |episode: usize| LEFT + (WIDTH - LEFT - RIGHT) * (episode as f64 + 0.5) / episodes as f64;
        let height = |x: f64| TOP + (HEIGHT - TOP - BOTTOM) * (high - x) / (high - low);

        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
             font-size=\"13\">\n<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#ffffff\"/>\n"
        );
        text(&mut svg, LEFT, 26.0, "start", "#222222", self.title);
        for i in 0..=((high - low) / step).round() as usize {
            let x = low + step * i as f64;
            let y = height(x);
            let _ = writeln!(
                svg,
                "<line x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{y:.1}\" stroke=\"#e3e3e3\"/>",
                WIDTH - RIGHT
            );
            text(&mut svg, LEFT - 8.0, y + 4.5, "end", "#555555", &crate::table::trimmed(x));
        }
        for episode in 0..episodes {
            text(&mut svg, at(episode), HEIGHT - BOTTOM + 22.0, "middle", "#555555", &(episode + 1).to_string());
        }
        let middle = (LEFT + WIDTH - RIGHT) / 2.0;
        text(&mut svg, middle, HEIGHT - 10.0, "middle", "#222222", "episode");
        let _ = writeln!(
            svg,
            "<text transform=\"translate(16 {:.1}) rotate(-90)\" text-anchor=\"middle\" fill=\"#222222\">{}</text>",
            (TOP + HEIGHT - BOTTOM) / 2.0,
            escaped(self.unit)
        );
        for line in &self.lines {
            let path: Vec<String> =
                line.values.iter().enumerate().map(|(i, x)| format!("{:.1},{:.1}", at(i), height(*x))).collect();
            let _ = writeln!(
                svg,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\" stroke-dasharray=\"{}\"/>",
                path.join(" "),
                line.colour,
                line.dashes
            );
        }
        for (i, (x, interval)) in self.points.values.iter().enumerate() {
            let (cx, cy) = (at(i), height(*x));
            if let Some((low, high)) = interval {
                let _ = writeln!(
                    svg,
                    "<line x1=\"{cx:.1}\" y1=\"{:.1}\" x2=\"{cx:.1}\" y2=\"{:.1}\" stroke=\"{POINT_COLOUR}\" \
                     stroke-width=\"1.5\"/>",
                    height(*low),
                    height(*high)
                );
            }
            let _ = writeln!(svg, "<circle cx=\"{cx:.1}\" cy=\"{cy:.1}\" r=\"4\" fill=\"{POINT_COLOUR}\"/>");
        }
        self.legend(&mut svg);
        svg.push_str("</svg>\n");
        svg
    }

    fn legend(&self, svg: &mut String) {
        let x = WIDTH - RIGHT + 14.0;
        let mut y = TOP + 14.0;
        for line in &self.lines {
            let _ = writeln!(
                svg,
                "<line x1=\"{x}\" y1=\"{y}\" x2=\"{}\" y2=\"{y}\" stroke=\"{}\" stroke-width=\"2\" \
                 stroke-dasharray=\"{}\"/>",
                x + 24.0,
                line.colour,
                line.dashes
            );
            text(svg, x + 32.0, y + 4.5, "start", "#222222", line.name);
            y += 24.0;
        }
        let _ = writeln!(svg, "<circle cx=\"{}\" cy=\"{y}\" r=\"4\" fill=\"{POINT_COLOUR}\"/>", x + 12.0);
        text(svg, x + 32.0, y + 4.5, "start", "#222222", self.points.name);
    }
}

/// A round distance between grid lines: 1, 2 or 5 times a power of ten, about six of them.
fn tick_step(range: f64) -> f64 {
    let rough = (range / 6.0).max(1e-9);
    let power = 10_f64.powf(rough.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|m| m * power).find(|s| *s >= rough).unwrap_or(10.0 * power)
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, colour: &str, content: &str) {
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"{colour}\">{}</text>",
        escaped(content)
    );
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grid_lines_are_round() {
        for (range, step) in [(0.3, 0.05), (6.0, 1.0), (13.0, 5.0), (0.0, 1e-9)] {
            assert!((tick_step(range) - step).abs() < 1e-12, "{range}");
        }
    }

    #[test]
    fn charts_are_well_formed_and_hold_every_point() {
        let line = Line { name: "a < b", colour: "#000000", dashes: "4", values: vec![0.0, 0.5] };
        let points = Points { name: "measured", values: vec![(0.1, Some((0.0, 0.2))), (0.4, None)] };
        let svg = Chart { title: "t & t", unit: "chips", lines: vec![line], points }.svg();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        assert!(svg.contains("a &lt; b") && svg.contains("t &amp; t"));
        assert_eq!(svg.matches("<circle").count(), 3, "two points and one in the legend");
        assert!(!svg.contains("NaN"));
    }
}
