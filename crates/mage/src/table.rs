//! Text tables and number formats.
//!
//! A table that is wider than the terminal gets smaller in steps, until it fits: headers over several lines, one space
//! between columns, no intervals, shorter texts, fewer columns. A cell is never broken.

use crate::{
    output::{BOLD, DIM, styled},
    text::{shorten, stdout_width, wrap},
};
use mage_core::MeanEstimate;
use textwrap::core::display_width;

/// Narrowest first column of a table that does not fit.
const MIN_FIRST: usize = 10;
/// Narrowest other column of texts.
const MIN_TEXT: usize = 6;

/// A table of numbers, which are right-aligned. The first column and columns of texts are left-aligned.
pub(crate) fn table<R>(header: &[&str], rows: R) -> String
where
    R: IntoIterator<Item = Vec<String>>,
{
    fit_numbers(header, rows.into_iter().collect(), stdout_width().unwrap_or(usize::MAX))
}

/// A table of texts, all columns left-aligned. The last column is wrapped at words.
pub(crate) fn columns<R>(header: &[&str], rows: R) -> String
where
    R: IntoIterator<Item = Vec<String>>,
{
    fit_texts(header, rows.into_iter().collect(), stdout_width().unwrap_or(usize::MAX))
}

fn fit_numbers(header: &[&str], mut rows: Vec<Vec<String>>, limit: usize) -> String {
    let mut header: Vec<Vec<String>> = header.iter().map(|h| vec![(*h).to_owned()]).collect();
    let mut gap = 2;
    let mut omitted = Vec::new();
    if width(&header, &rows, gap) > limit {
        header = stacked(&header, &rows);
    }
    if width(&header, &rows, gap) > limit {
        gap = 1;
    }
    if width(&header, &rows, gap) > limit && rows.iter().flatten().any(|cell| without_interval(cell) != *cell) {
        rows.iter_mut().flatten().for_each(|cell| *cell = without_interval(cell));
        header = stacked(&header, &rows);
        gap = if width(&header, &rows, 2) <= limit { 2 } else { 1 };
        omitted.push("intervals".to_owned());
    }
    // The first column is shortened first, then the widest.
    let mut texts: Vec<usize> = (0..header.len()).filter(|column| is_text(&rows, *column)).collect();
    texts.sort_by_key(|column| (*column > 0, std::cmp::Reverse(column_width(&header, &rows, *column))));
    for column in &texts {
        let excess = width(&header, &rows, gap).saturating_sub(limit);
        let least = if *column == 0 { MIN_FIRST } else { MIN_TEXT };
        let cells = rows.iter_mut().filter_map(|row| row.get_mut(*column));
        let present = cells.map(|cell| display_width(cell)).max().unwrap_or(0);
        if excess > 0 && present > least {
            let shorter = present.saturating_sub(excess).max(least);
            let cells = rows.iter_mut().filter_map(|row| row.get_mut(*column));
            cells.for_each(|cell| *cell = shorten(cell, shorter, *column == 0));
            header[*column].iter_mut().for_each(|word| *word = shorten(word, shorter, false));
        }
    }
    let mut dropped = 0;
    while width(&header, &rows, gap) > limit && header.len() > 2 {
        header.pop();
        rows.iter_mut().for_each(|row| drop(row.pop()));
        dropped += 1;
    }
    if dropped > 0 {
        omitted.push(format!("{dropped} column{}", if dropped == 1 { "" } else { "s" }));
    }
    let mut text = render(&header, &rows, gap, |column| !texts.contains(&column));
    if !omitted.is_empty() {
        let note = format!("without {}: the terminal has only {limit} columns", omitted.join(" and "));
        text = format!("{text}\n{}", styled(DIM, wrap(&note, limit)));
    }
    text
}

fn fit_texts(header: &[&str], rows: Vec<Vec<String>>, limit: usize) -> String {
    let header: Vec<Vec<String>> = header.iter().map(|h| vec![(*h).to_owned()]).collect();
    if width(&header, &rows, 2) <= limit {
        return render(&header, &rows, 2, |_| false);
    }
    let last = header.len() - 1;
    let before = (0..last).map(|column| column_width(&header, &rows, column) + 2).sum::<usize>();
    let room = limit.saturating_sub(before);
    // A narrow last column would be hard to read: its text goes below the others, indented.
    let (indent, below) = if room >= 24.min(limit / 2) { (before, false) } else { (4, true) };
    let width = limit.saturating_sub(indent).max(1);
    let others: Vec<Vec<String>> = rows.iter().map(|row| row[..last].to_vec()).collect();
    let starts = render(&header[..last], &others, 2, |_| false);
    let mut lines = Vec::new();
    for (row, start) in rows.iter().zip(starts.lines().skip(1)) {
        let text = &row[last];
        let mut wrapped: Vec<String> =
            wrap(text, width).lines().map(|line| format!("{}{line}", " ".repeat(indent))).collect();
        match (below, wrapped.first_mut()) {
            (true, _) => lines.push(start.to_owned()),
            (false, Some(first)) => {
                let padding = " ".repeat(before.saturating_sub(display_width(start)));
                *first = format!("{start}{padding}{}", first.trim_start());
            }
            (false, None) => wrapped.push(start.to_owned()),
        }
        lines.extend(wrapped);
    }
    let names: Vec<String> = (0..header.len())
        .map(|c| format!("{:<w$}", header[c][0], w = if c == last { 0 } else { column_width(&header, &rows, c) }))
        .collect();
    let names = if below { &names[..last] } else { &names[..] };
    lines.insert(0, styled(BOLD, names.join("  ").trim_end()));
    lines.join("\n")
}

/// Whether a column contains texts: the first one does, others if a cell begins with a letter.
fn is_text(rows: &[Vec<String>], column: usize) -> bool {
    let mut cells = rows.iter().filter_map(|row| row.get(column));
    column == 0 || cells.any(|cell| cell.starts_with(char::is_alphabetic))
}

/// Headers over several lines: each as narrow as the cells of its column and its longest word allow.
fn stacked(header: &[Vec<String>], rows: &[Vec<String>]) -> Vec<Vec<String>> {
    let column = |(i, lines): (usize, &Vec<String>)| {
        let text = lines.join(" ");
        let cells = rows.iter().filter_map(|row| row.get(i)).map(|cell| display_width(cell)).max().unwrap_or(0);
        let word = text.split(' ').map(display_width).max().unwrap_or(0);
        wrap(&text, cells.max(word)).lines().map(str::to_owned).collect()
    };
    header.iter().enumerate().map(column).collect()
}

fn column_width(header: &[Vec<String>], rows: &[Vec<String>], column: usize) -> usize {
    let cells = rows.iter().filter_map(|row| row.get(column));
    header[column].iter().chain(cells).map(|cell| display_width(cell)).max().unwrap_or(0)
}

fn width(header: &[Vec<String>], rows: &[Vec<String>], gap: usize) -> usize {
    let columns = (0..header.len()).map(|column| column_width(header, rows, column)).sum::<usize>();
    columns + gap * header.len().saturating_sub(1)
}

/// The lines of a table, without spaces at their ends. The header is bold.
fn render(header: &[Vec<String>], rows: &[Vec<String>], gap: usize, right: impl Fn(usize) -> bool) -> String {
    let widths: Vec<usize> = (0..header.len()).map(|column| column_width(header, rows, column)).collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let cells = cells.zip(&widths).enumerate().map(|(column, (cell, width))| {
            let padding = " ".repeat(width.saturating_sub(display_width(cell)));
            if right(column) { format!("{padding}{cell}") } else { format!("{cell}{padding}") }
        });
        cells.collect::<Vec<_>>().join(&" ".repeat(gap)).trim_end().to_owned()
    };
    let height = header.iter().map(Vec::len).max().unwrap_or(0);
    // Short headers stand at the bottom.
    let word = |lines: &Vec<String>, n: usize| {
        (n + lines.len()).checked_sub(height).map(|i| lines[i].clone()).unwrap_or_default()
    };
    let heads = (0..height).map(|n| header.iter().map(|lines| word(lines, n)).collect::<Vec<_>>());
    let mut lines: Vec<String> = heads.map(|words| styled(BOLD, line(&mut words.iter().map(String::as_str)))).collect();
    lines.extend(rows.iter().map(|row| line(&mut row.iter().map(String::as_str))));
    lines.join("\n")
}

/// A number without its interval: ` [low, high]` or ` ± x`.
fn without_interval(cell: &str) -> String {
    let end = cell.find(" [").or_else(|| cell.find(" ± ")).unwrap_or(cell.len());
    cell[..end].to_owned()
}

/// A signed score with three decimals.
pub(crate) fn score(x: f64) -> String {
    // Values that round to zero have no sign.
    let x = if x.abs() < 0.0005 { 0.0 } else { x };
    format!("{x:.3}")
}

/// Fraction of the gap between memoryless and Bayes-adaptive optimum: `72 % [61, 84]`. A value that is below the
/// memoryless optimum by more than its uncertainty is only named, since a negative percentage has no meaning.
pub(crate) fn gap_share(share: MeanEstimate) -> String {
    let whole = |x: f64| format!("{:.0}", 100.0 * x);
    match (share.mean, share.interval) {
        _ if below_memoryless(share) => "below memoryless".to_owned(),
        (Some(x), Some(i)) => format!("{} % [{}, {}]", whole(x), whole(i.low), whole(i.high)),
        (Some(x), None) => format!("{} %", whole(x)),
        (None, _) => "-".to_owned(),
    }
}

/// Whether a share of the gap is negative by more than its uncertainty.
pub(crate) fn below_memoryless(share: MeanEstimate) -> bool {
    share.mean.is_some_and(|x| share.interval.map_or(x, |i| i.high) < 0.0)
}

/// A count with its digits in groups of three: `26,336`.
pub(crate) fn grouped(n: impl ToString) -> String {
    let digits = n.to_string();
    let separated = |(i, c): (usize, char)| match i > 0 && (digits.len() - i).is_multiple_of(3) {
        true => format!(",{c}"),
        false => c.to_string(),
    };
    digits.chars().enumerate().map(separated).collect()
}

/// A rate with at most four digits, followed by a space.
pub(crate) fn rounded(rate: f64) -> String {
    match rate {
        r if r >= 1e4 => format!("{:.0}k ", r / 1e3),
        r if r >= 1e3 => format!("{:.1}k ", r / 1e3),
        r => format!("{r:.0} "),
    }
}

/// A rate with two significant digits.
pub(crate) fn significant(rate: f64) -> String {
    match rate {
        r if r >= 10.0 => rounded(r).trim_end().to_owned(),
        r if r >= 1.0 => format!("{r:.1}"),
        r => format!("{r:.2}"),
    }
}

/// A duration in seconds, minutes or hours.
pub(crate) fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 100.0 => format!("{s:.0} s"),
        s if s < 6000.0 => format!("{:.1} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: [&str; 6] =
        ["episode", "n", "score", "memoryless optimum", "Bayes-adaptive optimum", "gap closed, at most"];

    fn rows() -> Vec<Vec<String>> {
        let row = |[k, gap]: [&str; 2]| {
            [k, "12000", "0.218 [0.106, 0.330]", "0.125", "0.197", gap].map(str::to_owned).to_vec()
        };
        [["1", "-"], ["10", "86 % [14, 159]"]].map(row).to_vec()
    }

    fn widest(text: &str) -> usize {
        text.lines().map(display_width).max().unwrap()
    }

    #[test]
    fn a_table_fits_every_width_without_breaking_a_cell() {
        let natural = widest(&fit_numbers(&HEADER, rows(), usize::MAX));
        assert!(natural > 90);
        for limit in 30..=natural {
            let text = fit_numbers(&HEADER, rows(), limit);
            assert!(widest(&text) <= limit, "{limit}:\n{text}");
            assert!(text.contains("0.218"), "{limit}:\n{text}");
        }
        let at = |limit| fit_numbers(&HEADER, rows(), limit);
        assert!(at(80).contains("0.218 [0.106, 0.330]") && at(80).contains("86 % [14, 159]"), "{}", at(80));
        assert!(at(60).contains("without intervals") && at(60).contains("86 %"), "{}", at(60));
        assert!(at(30).contains("without intervals and 2\ncolumns"), "{}", at(30));
    }

    #[test]
    fn texts_are_shortened_before_columns_are_dropped() {
        let header = ["run", "state", "updates", "last", "gap", "method", "env", "best", "seed", "time"];
        let row = |run: &str, method: &str, env: &str| {
            let cells = [run, "finished", "300/300", "-0.123", "-100 %", method, env, "-0.120", "1", "12.3 min"];
            cells.map(str::to_owned).to_vec()
        };
        let rows = vec![
            row("sweeps/a-long-name/table1/kuhn/MAGE-0/run", "own-episode, omit the previous return", "tictactoe"),
            row("runs/kuhn-1", "MAGE", "kuhn"),
        ];
        let text = fit_numbers(&header, rows.clone(), 80);
        let lines: Vec<&str> = text.lines().skip(1).collect();
        assert!(lines.iter().all(|line| display_width(line) <= 80), "{text}");
        assert!(lines[0].starts_with('…') && lines[0].contains("GE-0/run ") && lines[0].contains("finished"), "{text}");
        for limit in [40, 60] {
            let text = fit_numbers(&header, rows.clone(), limit);
            assert!(text.lines().all(|line| display_width(line) <= limit), "{text}");
            assert!(text.contains("-0.123"), "{text}");
        }
        let text = fit_numbers(&header, rows.clone(), 200);
        assert!(rows.iter().flatten().all(|cell| text.contains(cell)), "{text}");
        assert_eq!([shorten("abcdef", 4, true), shorten("abcdef", 4, false)], ["…def", "abc…"]);
    }

    #[test]
    fn a_share_of_the_gap_is_a_percentage_unless_it_is_negative() {
        let share = |mean, interval: Option<(f64, f64)>| {
            let interval = interval.map(|(low, high)| mage_core::ConfidenceInterval { low, high });
            gap_share(MeanEstimate { count: 9, mean: Some(mean), se: None, interval })
        };
        assert_eq!(share(0.72, Some((0.61, 0.84))), "72 % [61, 84]");
        assert_eq!(share(0.72, None), "72 %");
        assert_eq!(share(-0.1, Some((-0.4, 0.2))), "-10 % [-40, 20]", "it may be above");
        assert_eq!([share(-9.0, Some((-9.5, -8.5))), share(-0.1, None)], ["below memoryless"; 2]);
    }

    #[test]
    fn digits_are_grouped() {
        let groups = [0_u32, 999, 1000, 26_336, 1_234_567].map(grouped);
        assert_eq!(groups, ["0", "999", "1,000", "26,336", "1,234,567"]);
    }

    #[test]
    fn a_table_that_fits_has_one_line_per_row() {
        let text = fit_numbers(&["policy", "n"], vec![vec!["bayes".into(), "1800".into()]], 80);
        assert_eq!(text, format!("{}\nbayes   1800", styled(BOLD, "policy     n")));
    }

    #[test]
    fn the_last_column_of_texts_is_wrapped_at_words() {
        let row = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
        let rows = || {
            vec![
                row(["kuhn", "two-player", "a small poker game with three cards"]),
                row(["tictactoe", "game", "short"]),
            ]
        };
        let header = ["name", "kind", "description"];
        assert_eq!(fit_texts(&header, rows(), 80).lines().count(), 3);
        let narrow = fit_texts(&header, rows(), 48);
        let expected = [
            "kuhn       two-player  a small poker game with",
            "                       three cards",
            "tictactoe  game        short",
        ];
        assert_eq!(narrow.lines().skip(1).collect::<Vec<_>>(), expected, "{narrow}");
        let below = fit_texts(&header, rows(), 30);
        assert!(widest(&below) <= 30 && below.contains("\n    a small poker game with"), "{below}");
    }
}
