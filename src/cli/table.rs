//! Tables for people: no wider than the terminal, and with colour where there is one.

use std::fmt::{self, Write as _};

use comfy_table::presets::NOTHING;
use comfy_table::{Cell, CellAlignment, Color, Table, TableComponent};

use super::prose;

/// A column of words is made no narrower than this where its cells break.
const NARROW: usize = 12;

/// Words of a state in which something is lost, or nobody gets through.
const BAD: [&str; 9] =
    ["blocked", "broken", "cut off", "denied", "down", "expired", "open", "revoked", "silent"];
/// Words of a state that is worth a look.
const ODD: [&str; 8] = [
    "attention",
    "committed",
    "diverted",
    "draining",
    "half_open",
    "link down",
    "shadow_denied",
    "throttled",
];
/// Words of a state that is as it should be.
const GOOD: [&str; 4] = ["active", "allowed", "connected", "ok"];

/// A table with these headings; columns named in `right` are numbers.
pub(super) fn table(headings: &[&str], right: &[usize]) -> Rows {
    Rows {
        headings: headings.iter().map(|heading| (*heading).to_owned()).collect(),
        right: right.to_vec(),
        usual: Vec::new(),
        rows: Vec::new(),
        // Lines may have any length if no terminal reads this.
        width: Table::new().width().map(usize::from),
        colours: std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
        tight: false,
    }
}

/// Rows below headings. Where they are wider than the terminal, columns that say nothing are left out, then
/// columns stand closer together, then cells break at words. Where even a word finds no room, each row
/// becomes a block of lines, a field a line.
#[derive(Debug, Clone)]
pub(super) struct Rows {
    headings: Vec<String>,
    right: Vec<usize>,
    /// The value of a column that says nothing where all rows have it.
    usual: Vec<(usize, &'static str)>,
    rows: Vec<Vec<String>>,
    /// Columns of the terminal; `None` where there is none.
    width: Option<usize>,
    /// True for a terminal; a pipe gets no colours.
    colours: bool,
    /// Columns stand one beside the other with no more than they need between them.
    tight: bool,
}

impl Rows {
    /// The same in as few columns of the terminal as can be.
    pub(super) const fn tight(mut self) -> Self {
        self.tight = true;
        self
    }

    /// The same with values that need not be said where all rows of the column have them.
    pub(super) fn usual(mut self, usual: &[(usize, &'static str)]) -> Self {
        self.usual = usual.to_vec();
        self
    }

    /// Adds one. A cell may have several lines.
    pub(super) fn add_row<T: Into<String>>(&mut self, cells: impl IntoIterator<Item = T>) -> &mut Self {
        let readable = |cell: T| cell.into().split('\n').map(plain).collect::<Vec<_>>().join("\n");
        self.rows.push(cells.into_iter().map(readable).collect());
        self
    }

    fn as_table(&self, colours: bool) -> Table {
        let mut table = Table::new();
        table.load_preset(NOTHING).set_header(&self.headings);
        table
            .set_style(TableComponent::HeaderLines, '─')
            .set_style(TableComponent::MiddleHeaderIntersections, ' ');
        for &column in &self.right {
            if let Some(column) = table.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        if self.tight {
            for column in table.column_iter_mut() {
                column.set_padding((0, 1));
            }
        }
        let cell = |text: &String| match colour(text).filter(|_| colours) {
            Some(colour) => Cell::new(text).fg(colour),
            None => Cell::new(text),
        };
        for row in &self.rows {
            table.add_row(row.iter().map(cell));
        }
        table
    }

    /// The columns that the table takes.
    fn columns(&self) -> usize {
        widest_line(&self.as_table(false).to_string())
    }

    /// The same in at most so many columns; `None` where a word finds no room.
    fn fitted(&self, width: usize) -> Option<Self> {
        let mut rows = self.clone();
        if rows.columns() > width {
            rows = rows.telling();
        }
        if rows.columns() > width {
            rows.tight = true;
        }
        if rows.columns() > width {
            rows.break_cells(width)?;
        }
        Some(rows)
    }

    /// The same without columns of which every row says nothing, or the usual. The first one names the row,
    /// and stays.
    fn telling(&self) -> Self {
        let says = |column: usize| {
            let usual = self.usual.iter().find(|(of, _)| *of == column).map(|(_, text)| *text);
            let tells = |cell: &String| !cell.is_empty() && Some(cell.as_str()) != usual;
            column == 0 || self.rows.iter().any(|row| row.get(column).is_some_and(tells))
        };
        let kept: Vec<usize> = (0..self.headings.len()).filter(|column| says(*column)).collect();
        let pick = |cells: &Vec<String>| -> Vec<String> {
            kept.iter().filter_map(|column| cells.get(*column).cloned()).collect()
        };
        let right = kept.iter().enumerate().filter(|(_, column)| self.right.contains(column));
        Self {
            headings: pick(&self.headings),
            right: right.map(|(place, _)| place).collect(),
            usual: Vec::new(),
            rows: self.rows.iter().map(&pick).collect(),
            width: self.width,
            colours: self.colours,
            tight: self.tight,
        }
    }

    /// Breaks headings, and cells of words, until the table has at most so many columns. `None` where a word
    /// finds no room.
    fn break_cells(&mut self, width: usize) -> Option<()> {
        let (mut widths, mut least) = (Vec::new(), Vec::new());
        for (place, heading) in self.headings.iter().enumerate() {
            let column = || self.rows.iter().filter_map(move |row| row.get(place));
            let cells = column().map(|cell| widest_line(cell)).max().unwrap_or(0);
            let words = column().map(|cell| longest_word(cell)).max().unwrap_or(0);
            // A number and its unit stay together.
            let least_of_cells =
                if self.right.contains(&place) { cells } else { words.max(cells.min(NARROW)) };
            widths.push(cells.max(widest_line(heading)));
            least.push(least_of_cells.max(longest_word(heading)));
        }
        for _ in width..self.columns() {
            let narrower = widths.iter_mut().zip(&least).filter(|(wide, least)| **wide > **least);
            let (widest, _) = narrower.max_by_key(|(wide, _)| **wide)?;
            *widest -= 1;
        }
        let broken = |cells: &Vec<String>| -> Vec<String> {
            cells.iter().zip(&widths).map(|(cell, width)| prose::wrap(cell, *width, |_| 0)).collect()
        };
        let (headings, rows) = (broken(&self.headings), self.rows.iter().map(&broken).collect());
        (self.headings, self.rows) = (headings, rows);
        Some(())
    }

    /// A block for each row: its fields with their headings, those without a value left out.
    fn as_blocks(&self) -> String {
        let widest = self.headings.iter().map(|heading| heading.chars().count()).max().unwrap_or(0);
        let mut text = String::new();
        for row in &self.rows {
            if !text.is_empty() {
                text.push('\n');
            }
            for (heading, value) in self.headings.iter().zip(row).filter(|(_, value)| !value.is_empty()) {
                let mut lines = value.lines();
                let _ = writeln!(text, "{heading:<widest$}  {}", lines.next().unwrap_or_default());
                for line in lines {
                    let _ = writeln!(text, "{:widest$}  {line}", "");
                }
            }
        }
        text.truncate(text.trim_end().len());
        text
    }
}

impl fmt::Display for Rows {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(width) = self.width else { return write!(to, "{}", self.as_table(self.colours)) };
        match self.fitted(width) {
            Some(rows) => write!(to, "{}", rows.as_table(self.colours)),
            None => to.write_str(&self.telling().as_blocks()),
        }
    }
}

/// Letters of the longest line, without what is blank at its end.
fn widest_line(text: &str) -> usize {
    text.lines().map(|line| line.trim_end().chars().count()).max().unwrap_or(0)
}

fn longest_word(text: &str) -> usize {
    text.split_whitespace().map(|word| word.chars().count()).max().unwrap_or(0)
}

/// The colour of a word that stands for a state.
fn colour(text: &str) -> Option<Color> {
    match text {
        _ if BAD.contains(&text) => Some(Color::Red),
        _ if ODD.contains(&text) => Some(Color::Yellow),
        _ if GOOD.contains(&text) => Some(Color::Green),
        _ => None,
    }
}

/// A text that moves no cursor and turns no line round: what clients send may hold anything.
pub(super) fn plain(text: &str) -> String {
    let moves = |letter: char| {
        letter.is_control() || matches!(letter, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.chars().map(|letter| if moves(letter) { '·' } else { letter }).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    fn decisions(width: usize) -> String {
        let mut rows = table(&["at", "outcome", "path", "used"], &[3]);
        rows.add_row(["2026-11-25T22:00:00Z", "denied", "/search/with/a/long/path", "7"]);
        rows.add_row(["2026-11-25T22:00:01Z", "allowed", "", "8"]);
        Rows { width: Some(width), ..rows }.to_string()
    }

    #[test]
    fn what_a_client_chose_moves_no_cursor() {
        let mut rows = table(&["user", "path"], &[]);
        rows.add_row(["\u{1b}]0;owned\u{7}\u{1b}[2J", "/a\u{9b}2J\u{202e}b\nsecond"]);
        let shown = rows.to_string();
        assert!(shown.contains("·]0;owned··[2J") && shown.contains("/a·2J·b"), "{shown}");
        assert!(shown.lines().any(|line| line.trim() == "second"), "{shown}");
        assert!(!shown.chars().any(|letter| letter.is_control() && letter != '\n'), "{shown:?}");
    }

    #[test]
    fn what_is_too_wide_for_the_terminal_is_told_a_line_for_each_field() {
        let wide = decisions(80);
        assert_eq!(wide.lines().count(), 4, "{wide}");
        assert!(wide.lines().all(|line| line.chars().count() <= 80), "{wide}");
        let narrow = decisions(40);
        assert_eq!(
            narrow,
            "at       2026-11-25T22:00:00Z\noutcome  denied\npath     /search/with/a/long/path\nused     7\n\n\
             at       2026-11-25T22:00:01Z\noutcome  allowed\nused     8"
        );
    }

    /// Rules as `rules list` shows them, on a terminal of so many columns.
    fn rules(width: usize, domain: &str) -> String {
        let headings = ["rule", "domain", "match", "limit", "how", "priority", "action"];
        let mut rows = table(&headings, &[3, 5]).usual(&[(1, "default"), (5, "100"), (6, "reject")]);
        for number in 0..10 {
            let (name, limit) = (format!("search-{number}"), "100 requests / 1m".to_owned());
            let of = "method=GET path=/api/search/*".to_owned();
            let how = "sliding_window, gossip".to_owned();
            rows.add_row([name, domain.to_owned(), of, limit, how, "100".to_owned(), "reject".to_owned()]);
        }
        Rows { width: Some(width), ..rows }.to_string()
    }

    #[test]
    fn what_says_nothing_is_left_out_before_a_cell_breaks() {
        let whole = rules(200, "default");
        assert!(whole.contains("domain") && whole.contains("priority"), "{whole}");
        let fewer = rules(96, "default");
        assert!(!fewer.contains("domain") && !fewer.contains("priority"), "{fewer}");
        assert_eq!(fewer.lines().count(), 12, "a line for each rule, and the headings: {fewer}");
        for domain in ["default", "edge"] {
            let narrow = rules(80, domain);
            assert!(narrow.lines().all(|line| line.trim_end().chars().count() <= 80), "{narrow}");
            assert_eq!(narrow.contains("domain"), domain == "edge", "{narrow}");
            assert_eq!(narrow.matches("100 requests / 1m").count(), 10, "a limit stays whole: {narrow}");
            assert!(narrow.lines().count() <= 32 && narrow.contains('─'), "it is a table: {narrow}");
        }
    }

    #[test]
    fn a_state_has_a_colour_and_another_word_none() {
        assert_eq!(colour("denied"), Some(Color::Red));
        assert_eq!(colour("connected"), Some(Color::Green));
        assert_eq!(colour("eu"), None);
        // Of a breaker: one that is closed lets calls through.
        assert_eq!((colour("closed"), colour("open")), (None, Some(Color::Red)));
        assert_eq!(colour("half_open"), Some(Color::Yellow));
        let mut rows = table(&["a"], &[]);
        rows.add_row(["denied"]);
        assert!(!rows.to_string().contains('\u{1b}'), "it is no terminal that reads this");
    }
}
