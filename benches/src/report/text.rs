//! The tables in columns, for a terminal.

use super::table::{Rate, Table, VIRTUAL_CLOCK, cells, clock, has_virtual_clock};

/// All tables, an empty line between them.
pub(super) fn render(tables: &[Table], rate: Rate) -> String {
    let rendered: Vec<String> = tables.iter().map(|table| one(table, rate)).collect();
    rendered.join("\n")
}

fn one(table: &Table, rate: Rate) -> String {
    let mut rows = vec![HEADINGS.map(str::to_owned).to_vec()];
    for row in &table.rows {
        let mut cells_of_row = vec![row.machine.clone(), row.engine.clone(), clock(row)];
        cells_of_row.extend(cells(row.sign));
        cells_of_row.extend(cells(row.verify));
        rows.push(cells_of_row);
    }
    let widths: Vec<usize> = (0..HEADINGS.len())
        .map(|column| {
            let lengths = rows.iter().map(|row| row[column].chars().count());
            lengths.max().unwrap_or(0)
        })
        .collect();
    let mut text = format!("{}; {}\n", table.workload, rate.unit());
    for row in &rows {
        let cells = row.iter().zip(&widths).enumerate();
        let line: Vec<String> = cells
            .map(|(column, (cell, &width))| match column {
                0 | 1 => format!("{cell:<width$}"),
                _ => format!("{cell:>width$}"),
            })
            .collect();
        text.push_str(line.join("  ").trim_end());
        text.push('\n');
    }
    if let Some(base) = table.base {
        text.push_str(&format!("100 % is {}\n", table.rows[base].name()));
    }
    if has_virtual_clock(table) {
        text.push_str(VIRTUAL_CLOCK);
        text.push('\n');
    }
    text
}

/// As in 2009.
const HEADINGS: [&str; 9] = [
    "machine", "engine", "MHz", "sign", "%", "cor%", "verify", "%", "cor%",
];

#[cfg(test)]
mod tests {
    use super::super::table::{tables, tests::runs};
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut runs = runs();
        runs[0].machine.is_virtual = true;
        let tables = tables(&runs, Some("old"), Rate::Wall).unwrap();
        assert_eq!(
            render(&tables, Rate::Wall),
            "rsa-sha256, 2048 bits, relaxed/simple, size 1024, 1 thread; messages per second\n\
             machine  engine        MHz  sign    %  cor%  verify    %  cor%\n\
             old      aws-lc      2000*  1600  100   100    8000  100   100\n\
             new      aws-lc       2500  3000  188   150       -    -     -\n\
             new      rustcrypto   2500   400   25    20    8000  100    80\n\
             100 % is old, aws-lc\n\
             * the clock a virtual machine is told; cor% is only as good as it\n"
        );
    }
}
