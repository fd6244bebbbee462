//! The tables in Markdown.

use super::table::{Rate, Table, VIRTUAL_CLOCK, cells, clock, has_virtual_clock};

/// All tables, each under a heading.
pub(super) fn render(tables: &[Table], rate: Rate) -> String {
    let rendered: Vec<String> = tables.iter().map(|table| one(table, rate)).collect();
    rendered.join("\n")
}

fn one(table: &Table, rate: Rate) -> String {
    let mut text = format!(
        "### {}\n\n| machine | engine | MHz | sign | % | cor% | verify | % | cor% |\n\
         |---|---|--:|--:|--:|--:|--:|--:|--:|\n",
        escaped(&table.workload)
    );
    for row in &table.rows {
        let mut all = vec![
            escaped(&row.machine),
            escaped(&row.engine),
            escaped(&clock(row)),
        ];
        all.extend(cells(row.sign));
        all.extend(cells(row.verify));
        text.push_str(&format!("| {} |\n", all.join(" | ")));
    }
    let mut notes = vec![format!("In {}.", rate.unit())];
    if let Some(base) = table.base {
        notes.push(format!("100 % is {}.", escaped(&table.rows[base].name())));
    }
    if has_virtual_clock(table) {
        notes.push(format!("{}.", escaped(VIRTUAL_CLOCK)));
    }
    text.push_str(&format!("\n{}\n", notes.join(" ")));
    text
}

/// Labels are whatever somebody typed.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\r' => out.push(' '),
            '|' | '*' | '_' | '`' | '<' | '[' | ']' | '\\' => out.extend(['\\', c]),
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
    fn each_row_is_a_line_and_labels_cannot_break_it() {
        let mut runs = runs();
        runs[1].label = Some("a|b\n*".into());
        runs[1].machine.is_virtual = true;
        let tables = tables(&runs[..2], None, Rate::Cpu).unwrap();
        assert_eq!(
            render(&tables, Rate::Cpu),
            "### rsa-sha256, 2048 bits, relaxed/simple, size 1024, 1 thread\n\n\
             | machine | engine | MHz | sign | % | cor% | verify | % | cor% |\n\
             |---|---|--:|--:|--:|--:|--:|--:|--:|\n\
             | old | aws-lc | 2000 | 3200 | 100 | 100 | - | - | - |\n\
             | a\\|b \\* | aws-lc | 2500\\* | 6000 | 188 | 150 | - | - | - |\n\n\
             In messages per second of CPU time. 100 % is old, aws-lc. \
             \\* the clock a virtual machine is told; cor% is only as good as it.\n"
        );
    }
}
