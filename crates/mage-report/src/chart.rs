//! Line charts with confidence bands, as SVG.
//!
//! Measured lines are coloured, upper limits are grey. Colours are attributes, so that a file is self-contained; the
//! report page overrides them by class for its light and dark themes.

use super::interval_estimate::score;
use std::fmt::Write;

/// Colours that are distinguishable with colour blindness and legible on white and on black.
const COLOURS: [&str; 8] = ["#d1495b", "#2f7fc1", "#2a9d6f", "#b07aa1", "#c98a12", "#6f4cc2", "#8c564b", "#17a2b8"];

/// One line of a chart.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Name in the legend.
    pub name: String,
    /// Appearance.
    pub style: LineStyle,
    /// Points in order of x.
    pub points: Vec<PlotPoint>,
}

impl Series {
    /// An upper limit by episode.
    pub fn ceiling(name: &str, values: &[f64], dashes: &'static str) -> Self {
        let points = (1..).zip(values).map(|(k, y)| (f64::from(k), *y, None)).collect();
        Series { name: name.to_owned(), style: LineStyle::Ceiling(dashes), points }
    }
}

/// x, y and the interval of y.
pub type PlotPoint = (f64, f64, Option<(f64, f64)>);

/// Appearance of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineStyle {
    /// Measured values, with the index of the colour.
    Measured(usize),
    /// An upper limit, with its `stroke-dasharray`.
    Ceiling(&'static str),
}

impl LineStyle {
    fn colour(self) -> &'static str {
        match self {
            LineStyle::Measured(n) => COLOURS[n % COLOURS.len()],
            LineStyle::Ceiling(_) => "#777777",
        }
    }

    /// Dash pattern. Lines of the same colour have different patterns, and overlapping lines show through each other's
    /// gaps.
    fn dashes(self) -> &'static str {
        match self {
            LineStyle::Ceiling(dashes) => dashes,
            LineStyle::Measured(n) => ["none", "9 4", "3 3", "10 3 2 3"][(n + n / COLOURS.len()) % 4],
        }
    }

    /// Shape of the points, as a path around (0, 0).
    fn marker(self) -> Option<&'static str> {
        const MARKERS: [&str; 5] = [
            "M-3.6,0a3.6,3.6 0 1,0 7.2,0a3.6,3.6 0 1,0 -7.2,0z",
            "M-3.3,-3.3h6.6v6.6h-6.6z",
            "M0,-4.4L4.2,3.2H-4.2z",
            "M0,-4.8L4.6,0L0,4.8L-4.6,0z",
            "M0,4.4L4.2,-3.2H-4.2z",
        ];
        match self {
            LineStyle::Ceiling(_) => None,
            LineStyle::Measured(n) => Some(MARKERS[n % MARKERS.len()]),
        }
    }
}

/// Horizontal offset between lines in pixels, so that points of identical lines do not overlap.
const LINE_OFFSET: f64 = 4.0;

pub(super) const WIDTH: f64 = 680.0;
const LEFT: f64 = 74.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 46.0;
const PLOT: f64 = 290.0;

/// A line chart.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart<'a> {
    /// Title.
    pub title: &'a str,
    /// Label of the x axis.
    pub x_label: &'a str,
    /// Label of the y axis.
    pub y_label: &'a str,
    /// Whether y is a rate, plotted in percent from 0 to 100.
    pub percent: bool,
    /// Lines, in the order of the legend.
    pub series: &'a [Series],
}

/// Renders the chart to an SVG document.
pub fn svg(chart: &Chart<'_>) -> String {
    let Chart { title, x_label, y_label, percent, series } = *chart;
    let all = || series.iter().flat_map(|s| &s.points);
    let bounds = |values: &mut dyn Iterator<Item = f64>| {
        values.filter(|v| v.is_finite()).fold((f64::MAX, f64::MIN), |(lo, hi), v| (lo.min(v), hi.max(v)))
    };
    let (x_low, x_high) = bounds(&mut all().map(|p| p.0));
    let ends = |p: &PlotPoint| p.2.map_or([p.1, p.1, p.1], |(low, high)| [low, p.1, high]);
    let (y_low, y_high) = if percent { (0.0, 1.0) } else { bounds(&mut all().flat_map(ends)) };
    // A constant line gets an axis of length one, centred on it.
    let (y_low, y_high) = if y_high - y_low < 1e-6 { (y_low - 0.5, y_low + 0.5) } else { (y_low, y_high) };
    let (x_low, x_high) = if x_low < x_high { (x_low, x_high) } else { (x_low - 0.5, x_low + 0.5) };
    let step = tick_step(y_high - y_low);
    let (low, high) = ((y_low / step).floor() * step, (y_high / step).ceil() * step);
    let high = if high > low { high } else { low + step };
    let at_x = |x: f64| LEFT + 14.0 + (WIDTH - LEFT - RIGHT - 28.0) * (x - x_low) / (x_high - x_low);
    let at_y = |y: f64| TOP + PLOT * (high - y) / (high - low);

    // Only if the points are far enough apart.
    let measured = series.iter().filter(|s| matches!(s.style, LineStyle::Measured(_))).count();
    let sparse = series.iter().all(|s| s.points.len() <= 30);
    let offset = |i: usize| match measured {
        2.. if sparse => LINE_OFFSET.min(26.0 / measured as f64) * (i as f64 - (measured - 1) as f64 / 2.0),
        _ => 0.0,
    };
    let shift = |i: usize, s: &Series| if matches!(s.style, LineStyle::Measured(_)) { offset(i) } else { 0.0 };

    // The legend is below the plot, with as many entries per line as fit.
    let mut legend = Vec::new();
    let (mut x, mut y) = (LEFT, TOP + PLOT + 70.0);
    for s in series {
        let width = 38.0 + 7.2 * s.name.chars().count() as f64;
        if x + width > WIDTH && x > LEFT {
            (x, y) = (LEFT, y + 22.0);
        }
        legend.push((x, y));
        x += width + 10.0;
    }
    let mut svg = svg_header(WIDTH, y + 18.0, title);
    let ticks = ((high - low) / step).round() as usize;
    for i in 0..=ticks {
        let value = low + step * i as f64;
        let y = at_y(value);
        let _ = writeln!(
            svg,
            "<line class=\"grid\" x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{y:.1}\" stroke=\"#e3e3e3\"/>",
            WIDTH - RIGHT
        );
        let label = if percent { format!("{:.0} %", 100.0 * value) } else { format_tick(value, step) };
        text(&mut svg, LEFT - 8.0, y + 4.5, "end", "faint", &label);
    }
    let x_step = if x_high - x_low <= 12.0 { 1.0 } else { tick_step(x_high - x_low) };
    let mut tick = (x_low / x_step).ceil() * x_step;
    while tick <= x_high + 1e-9 {
        text(&mut svg, at_x(tick), TOP + PLOT + 20.0, "middle", "faint", &format_tick(tick, x_step));
        tick += x_step;
    }
    text(&mut svg, (LEFT + WIDTH - RIGHT) / 2.0, TOP + PLOT + 42.0, "middle", "ink", x_label);
    let _ = writeln!(
        svg,
        "<text class=\"ink\" transform=\"translate(15 {:.1}) rotate(-90)\" text-anchor=\"middle\" fill=\"#222222\">{}</text>",
        TOP + PLOT / 2.0,
        escape(y_label)
    );
    // Many overlapping bands must not hide the lines.
    let opacity = (0.5 / series.len().max(1) as f64).clamp(0.05, 0.14);
    for (i, s) in series.iter().enumerate() {
        let at_x = |x: f64| at_x(x) + shift(i, s);
        let band: Vec<_> = s.points.iter().filter_map(|p| p.2.map(|i| (p.0, i))).collect();
        if band.len() > 1 {
            let up = band.iter().map(|(x, (low, _))| (x, low));
            let down = band.iter().rev().map(|(x, (_, high))| (x, high));
            let vertices: Vec<String> =
                up.chain(down).map(|(x, y)| format!("{:.1},{:.1}", at_x(*x), at_y(*y))).collect();
            let _ = writeln!(
                svg,
                "<polygon points=\"{}\" fill=\"{}\" fill-opacity=\"{opacity:.2}\"/>",
                vertices.join(" "),
                s.style.colour()
            );
        }
    }
    // Upper limits are drawn first, so that lines that reach them stay visible.
    let is_ceiling = |s: &Series| matches!(s.style, LineStyle::Ceiling(_));
    let order = [true, false]
        .into_iter()
        .flat_map(|first| series.iter().enumerate().filter(move |(_, s)| is_ceiling(s) == first));
    for (i, s) in order {
        let at_x = |x: f64| at_x(x) + shift(i, s);
        let path: Vec<String> = s.points.iter().map(|p| format!("{:.1},{:.1}", at_x(p.0), at_y(p.1))).collect();
        stroke(&mut svg, &format!("<polyline points=\"{}\" fill=\"none\"", path.join(" ")), s.style);
        let marker = s.style.marker().filter(|_| s.points.len() <= 30);
        for ((x, y, interval), marker) in s.points.iter().filter_map(|p| Some((p, marker?))) {
            let interval = interval
                .map_or_else(String::new, |(a, b)| format!(" [{}, {}]", format_y(a, percent), format_y(b, percent)));
            let _ = writeln!(
                svg,
                "<path transform=\"translate({:.1} {:.1})\" d=\"{marker}\" fill=\"{}\"><title>{}</title></path>",
                at_x(*x),
                at_y(*y),
                s.style.colour(),
                escape(&format!("{}, {x_label} {x}: {}{interval}", s.name, format_y(*y, percent)))
            );
        }
    }
    for (s, (x, y)) in series.iter().zip(legend) {
        stroke(&mut svg, &format!("<line x1=\"{x:.1}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{y:.1}\"", x + 24.0), s.style);
        if let Some(marker) = s.style.marker() {
            let (x, colour) = (x + 12.0, s.style.colour());
            let _ = writeln!(svg, "<path transform=\"translate({x:.1} {y:.1})\" d=\"{marker}\" fill=\"{colour}\"/>");
        }
        text(&mut svg, x + 30.0, y + 4.5, "start", "ink", &s.name);
    }
    svg.push_str("</svg>\n");
    svg
}

fn stroke(svg: &mut String, shape: &str, style: LineStyle) {
    let class = if matches!(style, LineStyle::Ceiling(_)) { "ceiling" } else { "line" };
    let _ = writeln!(
        svg,
        "{shape} class=\"{class}\" stroke=\"{}\" stroke-width=\"2\" stroke-dasharray=\"{}\"/>",
        style.colour(),
        style.dashes()
    );
}

/// The start of an SVG document, with its title.
pub(super) fn svg_header(width: f64, height: f64, title: &str) -> String {
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\" \
         aria-label=\"{}\" font-family=\"system-ui, sans-serif\" font-size=\"13\">\n\
         <rect class=\"paper\" width=\"{width:.0}\" height=\"{height:.0}\" fill=\"#ffffff\"/>\n",
        escape(title)
    );
    // A long title gets a smaller font.
    let size = (1.62 * (width - 32.0) / title.chars().count().max(1) as f64).clamp(9.0, 15.0);
    let _ = writeln!(
        svg,
        "<text class=\"ink\" x=\"16\" y=\"26\" font-size=\"{size:.1}\" font-weight=\"600\" fill=\"#222222\">{}</text>",
        escape(title)
    );
    svg
}

pub(super) fn text(svg: &mut String, x: f64, y: f64, anchor: &str, class: &str, content: &str) {
    let fill = if class == "faint" { "#666666" } else { "#222222" };
    let _ = writeln!(
        svg,
        "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"{fill}\">{}</text>",
        escape(content)
    );
}

fn format_y(x: f64, percent: bool) -> String {
    if percent { format!("{:.1} %", 100.0 * x) } else { score(x) }
}

/// A tick label with as many decimals as the distance between ticks needs.
fn format_tick(x: f64, step: f64) -> String {
    let decimals = (-step.log10()).ceil().clamp(0.0, 6.0) as usize;
    let x = if x.abs() < step / 1000.0 { 0.0 } else { x };
    format!("{x:.decimals$}")
}

/// Distance between grid lines: 1, 2 or 5 times a power of ten, for about six lines.
fn tick_step(range: f64) -> f64 {
    let rough = (range / 6.0).max(1e-6);
    let power = 10_f64.powf(rough.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|m| m * power).find(|s| *s >= rough * 0.999).unwrap_or(10.0 * power)
}

/// Escapes text for elements and attributes of HTML and SVG.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            // XML has no representation of control characters.
            c if c.is_control() && !matches!(c, '\n' | '\t') => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}
