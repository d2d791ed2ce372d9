//! The live table: redrawn in place in a terminal, a line a second in a pipe.

use std::io::{IsTerminal, Write};

use super::load::Count;
use super::moved::Moved;
use crate::cli::say;
use crate::cli::table::table;
use crate::cli::top::terminal_size;
use crate::core::rule::Mode;

/// One region's part of the picture.
pub(super) struct Row {
    pub(super) region: String,
    pub(super) count: Count,
    /// Permits that it gave to others and was given by them, under `escrow`.
    pub(super) moved: Option<Moved>,
    /// Longest round trip to another region, and oldest news of one, in ms.
    pub(super) rtt_ms: Option<u64>,
    pub(super) lag_ms: Option<u64>,
}

/// The time that a window's figures stand for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Regions were not yet ready when it began: it is not counted.
    Starting,
    /// The part of it that has happened so far.
    Running,
    /// All of it.
    Ended,
}

impl Phase {
    /// Returns what is said after "world", or below the table.
    const fn remark(self) -> &'static str {
        match self {
            Self::Starting => ", still starting",
            Self::Running => ", so far",
            Self::Ended => "",
        }
    }
}

/// One window.
pub(super) struct Picture {
    pub(super) mode: Mode,
    pub(super) rows: Vec<Row>,
    pub(super) limit: u64,
    pub(super) phase: Phase,
    pub(super) history: History,
}

/// All finished windows together.
#[derive(Debug, Clone, Default)]
pub(super) struct History {
    pub(super) windows: u64,
    pub(super) asked: u64,
    pub(super) admitted: u64,
    /// Permits that a perfect limiter would have admitted.
    pub(super) possible: u64,
    /// Permits admitted in each window, up to its limit and to what was asked for.
    pub(super) useful: u64,
    /// Worst window, in permits above the limit.
    pub(super) over_max: u64,
    /// All windows, in permits above the limit.
    pub(super) over_sum: u64,
    /// Admitted in the last windows, oldest first.
    pub(super) recent: Vec<u64>,
}

const RECENT_MAX: usize = 40;

impl History {
    /// Adds a finished window.
    pub(super) fn add(&mut self, asked: u64, admitted: u64, limit: u64) {
        self.windows += 1;
        self.asked += asked;
        self.admitted += admitted;
        self.possible += asked.min(limit);
        self.useful += admitted.min(limit).min(asked);
        self.over_max = self.over_max.max(admitted.saturating_sub(limit));
        self.over_sum += admitted.saturating_sub(limit);
        if self.recent.len() >= RECENT_MAX {
            self.recent.remove(0);
        }
        self.recent.push(admitted);
    }

    #[expect(clippy::cast_precision_loss, reason = "a percentage for people")]
    pub(super) fn percent(part: u64, whole: u64) -> f64 {
        if whole == 0 { 0.0 } else { part as f64 / whole as f64 * 100.0 }
    }

    /// Says how many windows these are.
    pub(super) fn counted(&self) -> String {
        format!("{} window{}", self.windows, if self.windows == 1 { "" } else { "s" })
    }

    /// Overshoot over all windows, in percent of the limit.
    pub(super) fn over_mean(&self, limit: u64) -> f64 {
        Self::percent(self.over_sum, limit.saturating_mul(self.windows))
    }

    /// Returns what was admitted of what could have been, in percent.
    pub(super) fn used(&self) -> f64 {
        Self::percent(self.useful, self.possible)
    }
}

/// The terminal or pipe that the picture goes to.
pub(super) struct Screen {
    in_place: bool,
    /// Lines of the terminal that the picture before takes.
    drawn_lines: usize,
}

impl Screen {
    /// Standard output, whatever it is.
    pub(super) fn open() -> Self {
        Self { in_place: in_terminal(), drawn_lines: 0 }
    }

    /// Draws one window.
    pub(super) fn draw(&mut self, picture: &Picture) {
        if !self.in_place {
            say(line(picture));
            return;
        }
        let mut out = std::io::stdout().lock();
        let text = panel(picture);
        // A terminal may have another size than a second ago.
        let (columns, rows) = size().unwrap_or((usize::MAX, usize::MAX));
        if self.drawn_lines >= rows {
            let _ = write!(out, "\x1b[H\x1b[J");
        } else if self.drawn_lines > 0 {
            let _ = write!(out, "\x1b[{}A\x1b[J", self.drawn_lines);
        }
        self.drawn_lines = lines_in(columns, &text);
        let _ = writeln!(out, "{text}");
        let _ = out.flush();
    }
}

/// Returns true if people read standard output as it is written.
pub(super) fn in_terminal() -> bool {
    std::io::stdout().is_terminal()
}

/// Columns and lines of the terminal.
fn size() -> Option<(usize, usize)> {
    let (columns, rows) = terminal_size()?;
    Some((usize::from(columns).max(1), usize::from(rows)))
}

/// Lines that a text takes in a terminal with so many columns.
fn lines_in(columns: usize, text: &str) -> usize {
    text.lines().map(|line| line.trim_end().chars().count().div_ceil(columns).max(1)).sum()
}

fn millis(millis: Option<u64>) -> String {
    millis.map_or_else(|| "-".to_owned(), |millis| format!("{millis} ms"))
}

fn sums(picture: &Picture) -> (u64, u64) {
    let asked = picture.rows.iter().map(|row| row.count.asked).sum();
    let admitted = picture.rows.iter().map(|row| row.count.admitted).sum();
    (asked, admitted)
}

/// Returns what a daemon says was used of the limit: in the world under `gossip`; in the other modes a region
/// knows only its own use.
const fn used_heading(mode: Mode) -> &'static str {
    match mode {
        Mode::Gossip => "believes used",
        Mode::Split => "used here",
        // Beside what moved there is no room for more in 80 columns.
        Mode::Escrow => "used",
    }
}

/// Returns what its daemon said last; nothing was said where nothing was asked.
fn used(count: Count) -> String {
    if count.asked == 0 { "-".to_owned() } else { count.believed.to_string() }
}

fn permits(permits: Option<u64>) -> String {
    permits.map_or_else(|| "-".to_owned(), |permits| permits.to_string())
}

fn line(picture: &Picture) -> String {
    let (asked, admitted) = sums(picture);
    let regions = picture.rows.iter().map(|row| {
        let Count { asked, admitted, .. } = row.count;
        let known = match picture.mode {
            Mode::Gossip => format!(", believes {}", used(row.count)),
            Mode::Split => String::new(),
            Mode::Escrow => format!(
                ", gave {}, was given {}",
                permits(row.moved.map(|moved| moved.gave)),
                permits(row.moved.map(|moved| moved.was_given))
            ),
        };
        format!("{}: {asked} asked, {admitted} in, {} out{known}", row.region, asked.saturating_sub(admitted))
    });
    let rtt = picture.rows.iter().filter_map(|row| row.rtt_ms).max();
    let lag = picture.rows.iter().filter_map(|row| row.lag_ms).max();
    format!(
        "{} | world{}: {asked} asked, {admitted} of {} admitted, overshoot {:.1} % | round trip {}, lag {}",
        regions.collect::<Vec<_>>().join(" | "),
        picture.phase.remark(),
        picture.limit,
        History::percent(admitted.saturating_sub(picture.limit), picture.limit),
        millis(rtt),
        millis(lag),
    )
}

fn panel(picture: &Picture) -> String {
    let (asked, admitted) = sums(picture);
    let escrow = picture.mode == Mode::Escrow;
    let mut headings = vec!["region", "asked", "admitted", "refused", used_heading(picture.mode)];
    if escrow {
        headings.extend(["gave", "given"]);
    }
    headings.extend(["RTT", "lag"]);
    let right: Vec<usize> = (1..headings.len()).collect();
    let mut rows = table(&headings, &right).tight();
    for row in &picture.rows {
        let Count { asked, admitted, .. } = row.count;
        let mut cells = vec![
            row.region.clone(),
            asked.to_string(),
            admitted.to_string(),
            asked.saturating_sub(admitted).to_string(),
            used(row.count),
        ];
        if escrow {
            cells.push(permits(row.moved.map(|moved| moved.gave)));
            cells.push(permits(row.moved.map(|moved| moved.was_given)));
        }
        cells.extend([millis(row.rtt_ms), millis(row.lag_ms)]);
        rows.add_row(cells);
    }
    let mut world = vec![
        "worldwide".to_owned(),
        asked.to_string(),
        admitted.to_string(),
        asked.saturating_sub(admitted).to_string(),
    ];
    world.resize(headings.len(), String::new());
    rows.add_row(world);
    let history = &picture.history;
    let judged = if history.windows == 0 {
        format!("no whole window yet{}", picture.phase.remark())
    } else {
        format!(
            "{}: overshoot worst {:.1} % mean {:.2} %, use {:.1} %",
            history.counted(),
            History::percent(history.over_max, picture.limit),
            history.over_mean(picture.limit),
            history.used(),
        )
    };
    format!(
        "{rows}\nadmitted {}\n{}\nlimit    {}\n{judged}",
        bar(admitted, picture.limit),
        format_args!("history  {}", spark(&history.recent, picture.limit)),
        bar(picture.limit, picture.limit),
    )
}

/// A bar in which the limit is 50 characters long. It is never longer than 60, which a line of 80 has room
/// for.
fn bar(value: u64, limit: u64) -> String {
    let len = usize::try_from(value.saturating_mul(50) / limit.max(1)).unwrap_or(0).min(60);
    format!("{} {value}", "█".repeat(len))
}

/// The last windows; full height is the limit, `!` is above it.
fn spark(recent: &[u64], limit: u64) -> String {
    const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let level = |&admitted: &u64| {
        if admitted > limit {
            return '!';
        }
        let level = usize::try_from(admitted.saturating_mul(7) / limit.max(1)).unwrap_or(0);
        LEVELS.get(level).copied().unwrap_or('█')
    };
    recent.iter().map(level).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture(mode: Mode, regions: usize) -> Picture {
        let names =
            ["eu-west", "us-east", "ap-south", "sa-east", "us-west", "ap-north", "af-south", "me-central"];
        let count = Count { window: 1, asked: 123_456, admitted: 100_000, believed: 100_000 };
        let moved = (mode == Mode::Escrow).then_some(Moved { gave: 99_999, was_given: 99_999 });
        let row = |name: &&str| Row {
            region: (*name).to_owned(),
            count,
            moved,
            rtt_ms: Some(1_000),
            lag_ms: Some(1_000),
        };
        let mut history = History::default();
        for _ in 0..100 {
            history.add(400_000, 300_000, 100_000);
        }
        let rows = names.iter().take(regions).map(row).collect();
        Picture { mode, rows, limit: 100_000, phase: Phase::Running, history }
    }

    #[test]
    fn eight_regions_and_how_to_ask_them_fit_a_terminal_of_80_by_24_in_every_mode() {
        // The line that asks one of them, what it is for, and how an Envoy does.
        const SAID_ABOVE: usize = 6;
        for mode in [Mode::Gossip, Mode::Split, Mode::Escrow] {
            let text = panel(&picture(mode, 8));
            let widest = text.lines().map(|line| line.trim_end().chars().count()).max().unwrap();
            assert!(widest <= 80, "{mode:?}: {widest} columns\n{text}");
            assert!(lines_in(80, &text) + SAID_ABOVE < 24, "{mode:?}\n{text}");
        }
    }

    #[test]
    fn a_line_counts_as_often_as_a_narrow_terminal_breaks_it() {
        assert_eq!(lines_in(10, "0123456789\n\n01234567890"), 4);
    }
}
