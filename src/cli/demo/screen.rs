//! The live table: redrawn in place in a terminal, a line a second in a pipe.

use std::io::{IsTerminal, Write};

use super::load::Count;
use crate::cli::table::table;

/// One region's part of the picture.
pub(super) struct Row {
    pub(super) region: String,
    pub(super) count: Count,
    /// Longest round trip to another region, and oldest news of one, in ms.
    pub(super) rtt_ms: Option<u64>,
    pub(super) lag_ms: Option<u64>,
}

/// One finished window.
pub(super) struct Picture {
    pub(super) rows: Vec<Row>,
    pub(super) limit: u64,
    pub(super) history: History,
}

/// All finished windows together.
#[derive(Debug, Clone, Default)]
pub(super) struct History {
    pub(super) windows: u64,
    pub(super) asked: u64,
    pub(super) admitted: u64,
    /// What a perfect limiter would have admitted.
    pub(super) possible: u64,
    /// What was admitted of that.
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

    /// Overshoot over all windows, in percent of the limit.
    pub(super) fn over_mean(&self, limit: u64) -> f64 {
        Self::percent(self.over_sum, limit.saturating_mul(self.windows))
    }

    /// What was admitted of what could have been, in percent.
    pub(super) fn used(&self) -> f64 {
        Self::percent(self.useful, self.possible)
    }
}

/// Where the picture goes.
pub(super) struct Screen {
    in_place: bool,
    drawn_lines: usize,
}

impl Screen {
    /// Standard output, whatever it is.
    pub(super) fn open() -> Self {
        Self { in_place: std::io::stdout().is_terminal(), drawn_lines: 0 }
    }

    /// Draws one finished window.
    pub(super) fn draw(&mut self, picture: &Picture) {
        let mut out = std::io::stdout().lock();
        if !self.in_place {
            let _ = writeln!(out, "{}", line(picture));
            return;
        }
        let text = panel(picture);
        if self.drawn_lines > 0 {
            let _ = write!(out, "\x1b[{}A\x1b[J", self.drawn_lines);
        }
        self.drawn_lines = text.lines().count();
        let _ = writeln!(out, "{text}");
        let _ = out.flush();
    }
}

fn millis(millis: Option<u64>) -> String {
    millis.map_or_else(|| "-".to_owned(), |millis| format!("{millis} ms"))
}

fn sums(picture: &Picture) -> (u64, u64) {
    let asked = picture.rows.iter().map(|row| row.count.asked).sum();
    let admitted = picture.rows.iter().map(|row| row.count.admitted).sum();
    (asked, admitted)
}

fn line(picture: &Picture) -> String {
    let (asked, admitted) = sums(picture);
    let regions = picture.rows.iter().map(|row| {
        let Count { asked, admitted, believed, .. } = row.count;
        format!(
            "{}: {asked} asked, {admitted} in, {} out, believes {believed}",
            row.region,
            asked - admitted.min(asked)
        )
    });
    let rtt = picture.rows.iter().filter_map(|row| row.rtt_ms).max();
    let lag = picture.rows.iter().filter_map(|row| row.lag_ms).max();
    format!(
        "{} | world: {asked} asked, {admitted} of {} admitted, overshoot {:.1} % | round trip {}, lag {}",
        regions.collect::<Vec<_>>().join(" | "),
        picture.limit,
        History::percent(admitted.saturating_sub(picture.limit), picture.limit),
        millis(rtt),
        millis(lag),
    )
}

fn panel(picture: &Picture) -> String {
    let (asked, admitted) = sums(picture);
    let headings = ["region", "asked", "admitted", "refused", "believes the world used", "round trip", "lag"];
    let mut rows = table(&headings, &[1, 2, 3, 4, 5, 6]);
    for row in &picture.rows {
        let Count { asked, admitted, believed, .. } = row.count;
        rows.add_row([
            row.region.clone(),
            asked.to_string(),
            admitted.to_string(),
            asked.saturating_sub(admitted).to_string(),
            believed.to_string(),
            millis(row.rtt_ms),
            millis(row.lag_ms),
        ]);
    }
    rows.add_row([
        "worldwide".to_owned(),
        asked.to_string(),
        format!("{admitted} of {}", picture.limit),
        asked.saturating_sub(admitted).to_string(),
        String::new(),
        String::new(),
        String::new(),
    ]);
    let history = &picture.history;
    format!(
        "{rows}\nadmitted {}\n{}\nlimit    {}\nwindows {}, overshoot worst {:.1} % mean {:.2} %, use {:.1} %",
        bar(admitted, picture.limit),
        format_args!("history  {}", spark(&history.recent, picture.limit)),
        bar(picture.limit, picture.limit),
        history.windows,
        History::percent(history.over_max, picture.limit),
        history.over_mean(picture.limit),
        history.used(),
    )
}

/// A bar in which the limit is 50 characters long.
fn bar(value: u64, limit: u64) -> String {
    let len = usize::try_from(value.saturating_mul(50) / limit.max(1)).unwrap_or(0).min(100);
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
