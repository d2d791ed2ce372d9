//! Tables for people.

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table, TableComponent};

/// A table with these headings; columns named in `right` are numbers.
pub(super) fn table(headings: &[&str], right: &[usize]) -> Table {
    let mut table = Table::new();
    table.load_preset(NOTHING).set_header(headings);
    table
        .set_style(TableComponent::HeaderLines, '─')
        .set_style(TableComponent::MiddleHeaderIntersections, ' ');
    for &column in right {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// Milliseconds as people say them.
pub(super) fn span(millis: u64) -> String {
    match millis {
        0..1_000 => format!("{millis} ms"),
        1_000..60_000 if millis.is_multiple_of(1_000) => format!("{} s", millis / 1_000),
        1_000..60_000 => format!("{}.{} s", millis / 1_000, millis % 1_000 / 100),
        60_000..3_600_000 if millis.is_multiple_of(60_000) => format!("{} min", millis / 60_000),
        60_000..3_600_000 => format!("{} min {} s", millis / 60_000, millis % 60_000 / 1_000),
        3_600_000..86_400_000 if millis.is_multiple_of(3_600_000) => format!("{} h", millis / 3_600_000),
        3_600_000..86_400_000 => format!("{} h {} min", millis / 3_600_000, millis % 3_600_000 / 60_000),
        _ if millis % 86_400_000 < 3_600_000 => format!("{} d", millis / 86_400_000),
        _ => format!("{} d {} h", millis / 86_400_000, millis % 86_400_000 / 3_600_000),
    }
}
