//! The tables as bars: signing on the left, verifying on the right, each with a scale of its own.
//!
//! Written by hand: text and bars take their colours from the reader's preference for light or dark, and the background
//! is left to the page.

use super::table::{Figure, Rate, Table};
use crate::perf::Task;
use std::fmt::Write;

/// One drawing of all tables, one below the other.
pub(super) fn render(tables: &[Table], rate: Rate) -> String {
    let mut drawing = String::new();
    let mut y = MARGIN;
    for table in tables {
        one(&mut drawing, table, y);
        y += height(table);
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{y}\" viewBox=\"0 0 {WIDTH} {y}\" role=\"img\">\n\
         <title>DKIM signing and verifying, {}</title>\n{STYLE}{drawing}</svg>\n",
        rate.unit()
    )
}

const WIDTH: usize = 1000;
const MARGIN: usize = 12;
/// Where bars begin, and how long the longest one is; its figure stands behind it.
const PANELS: [usize; 2] = [310, 650];
const LONGEST: f64 = 200.0;
const ROW: usize = 24;
const BAR: usize = 16;
/// The workload, then the names of the panels.
const HEAD: usize = 46;

const STYLE: &str = "<style>\n\
    text { font: 13px system-ui, sans-serif; fill: #24292f; }\n\
    .head { font-weight: 600; }\n\
    .soft { fill: #57606a; }\n\
    .sign { fill: #0969da; }\n\
    .verify { fill: #1a7f37; }\n\
    @media (prefers-color-scheme: dark) {\n\
    \x20 text { fill: #e6edf3; }\n\
    \x20 .soft { fill: #9198a1; }\n\
    \x20 .sign { fill: #58a6ff; }\n\
    \x20 .verify { fill: #3fb950; }\n\
    }\n\
    </style>\n";

fn height(table: &Table) -> usize {
    HEAD + ROW * table.rows.len() + MARGIN
}

fn one(drawing: &mut String, table: &Table, top: usize) {
    text(drawing, MARGIN, top + 14, "head", &table.workload, None);
    for ((name, task), x) in [("sign", Task::Sign), ("verify", Task::Verify)]
        .into_iter()
        .zip(PANELS)
    {
        text(drawing, x, top + 36, "soft", name, None);
        let figures = table.rows.iter().filter_map(|row| row.figure(task));
        let most = figures.map(|figure| figure.rate).fold(0.0, f64::max);
        for (index, row) in table.rows.iter().enumerate() {
            let y = top + HEAD + ROW * index;
            if let Some(figure) = row.figure(task) {
                bar(drawing, name, x, y, figure, most);
            } else {
                text(drawing, x + 6, y + 13, "soft", "-", None);
            }
        }
    }
    for (index, row) in table.rows.iter().enumerate() {
        let y = top + HEAD + ROW * index + 13;
        let name = row.name();
        text(drawing, MARGIN, y, "", &shortened(&name), Some(&name));
    }
}

fn bar(drawing: &mut String, class: &str, x: usize, y: usize, figure: Figure, most: f64) {
    let share = if most > 0.0 { figure.rate / most } else { 0.0 };
    // A bar that cannot be seen would be none.
    let length = (share * LONGEST).max(1.0);
    let _ = writeln!(
        drawing,
        "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{length:.1}\" height=\"{BAR}\" rx=\"2\"/>"
    );
    let shown = match figure.percent {
        Some(percent) => format!("{:.0} ({percent:.0} %)", figure.rate),
        None => format!("{:.0}", figure.rate),
    };
    // Not negative, and at most LONGEST.
    let behind = x + length.ceil() as usize + 6;
    text(drawing, behind, y + 13, "", &shown, None);
}

/// A line of text, with what it stands for where it was cut.
fn text(drawing: &mut String, x: usize, y: usize, class: &str, line: &str, whole: Option<&str>) {
    let class = match class {
        "" => String::new(),
        class => format!(" class=\"{class}\""),
    };
    let title = match whole {
        Some(whole) if whole != line => format!("<title>{}</title>", escaped(whole)),
        _ => String::new(),
    };
    let _ = writeln!(
        drawing,
        "<text{class} x=\"{x}\" y=\"{y}\">{title}{}</text>",
        escaped(line)
    );
}

/// What fits beside the bars; the end, which names the engine, stays.
fn shortened(name: &str) -> String {
    const MOST: usize = 42;
    let count = name.chars().count();
    if count <= MOST {
        return name.to_owned();
    }
    let end: String = name.chars().skip(count - MOST / 2).collect();
    let start: String = name.chars().take(MOST - MOST / 2 - 1).collect();
    format!("{start}…{end}")
}

/// Character data in XML; what XML cannot hold at all is left out.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c if c.is_control() => out.push(' '),
            '\u{fffe}' | '\u{ffff}' => (),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::table::{tables, tests::runs};
    use super::*;

    #[test]
    fn bars_are_as_long_as_their_share_of_the_longest() {
        let drawing = render(&tables(&runs(), None, Rate::Wall).unwrap(), Rate::Wall);
        // Signing: 1600, 3000 and 400 of 3000, times 200.
        for (class, lengths) in [
            ("sign", ["106.7", "200.0", "26.7"].as_slice()),
            ("verify", &["200.0", "200.0"]),
        ] {
            let bars: Vec<&str> = drawing
                .lines()
                .filter(|line| line.starts_with(&format!("<rect class=\"{class}\"")))
                .filter_map(|line| line.split("width=\"").nth(1)?.split('"').next())
                .collect();
            assert_eq!(bars, lengths);
        }
        assert!(drawing.contains(">3000 (188 %)</text>"));
        assert!(drawing.contains("prefers-color-scheme: dark"));
    }

    #[test]
    fn labels_cannot_break_the_drawing() {
        let mut runs = runs();
        runs[0].label = Some("<b> & \u{1}\"x\"".into());
        runs[1].label = Some("x".repeat(100));
        let drawing = render(&tables(&runs, None, Rate::Wall).unwrap(), Rate::Wall);
        assert!(drawing.contains(">&lt;b&gt; &amp;  &quot;x&quot;, aws-lc</text>"));
        let name = format!("{}, aws-lc", "x".repeat(100));
        assert!(drawing.contains(&format!("<title>{name}</title>")));
        assert_eq!(shortened(&name).chars().count(), 42);
        assert!(shortened(&name).ends_with("x, aws-lc"));
        // Every element that begins ends.
        assert_eq!(
            drawing.matches("<text").count(),
            drawing.matches("</text>").count()
        );
    }
}
