//! `tidegate top`: who asks most now, live; on anything but a terminal, and with `--once`, one table.

use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::time::Duration;

use clap::{Args, ValueEnum};
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use serde_json::Value;

use self::screen::{Step, TopScreen};
use super::client::query;
use super::table::{plain, table};
use super::why::identity;
use super::{Ended, Failure, Server, say, whole};
use crate::engine::clock::Stopwatch;

mod draw;
mod screen;

/// Time between two questions to the daemon.
const EVERY: Duration = Duration::from_secs(1);
/// Time between two looks for keys and answers.
const TICK: Duration = Duration::from_millis(100);
/// Rows that are asked for, and that a filter looks through.
const ROWS: u32 = 200;
/// Rows of a table that is printed once, unless said.
const PRINTED: u32 = 20;
/// Questions that wait for the one before. More: the next second asks anew.
const WANTED_MAX: usize = 4;

/// The order of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum TopBy {
    /// Requests.
    Requests,
    /// Those that were denied.
    Denied,
    /// Permits charged.
    Cost,
}

impl TopBy {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::Denied => "denied",
            Self::Cost => "cost",
        }
    }
}

/// The clients that ask most now.
#[derive(Debug, Args)]
pub(super) struct Top {
    /// The order of rows; keys r, d and c change it.
    #[arg(long, value_enum, default_value_t = TopBy::Requests)]
    by: TopBy,
    /// Prints one table and ends, as it does where standard output is no terminal.
    #[arg(long)]
    once: bool,
    /// Only buckets of this rule, in what is printed once.
    #[arg(long)]
    rule: Option<String>,
    /// Most rows of what is printed once.
    #[arg(long, default_value_t = PRINTED, value_parser = whole::<u32>)]
    limit: u32,
    #[command(flatten)]
    server: Server,
}

/// The question of the screen.
enum Wanted {
    /// The heaviest buckets and rules, and the regions.
    Now(TopBy),
    /// The reasons for which a bucket is limited.
    Why(String),
}

/// The daemon's answer.
enum Fetched {
    /// The heaviest, and the regions.
    Now(Result<(Value, Value), String>),
    /// The reasons for which a bucket is limited.
    Why(Result<Value, String>),
}

impl Top {
    /// Shows it.
    pub(super) fn run(self) -> Ended {
        if self.server.json || self.once || !std::io::stdout().is_terminal() {
            return self.print();
        }
        // A daemon that cannot be reached is named before the screen is taken over.
        let first = fetch(&self.server, self.by)?;
        let mut screen = TopScreen::new(self.by);
        screen.take(Fetched::Now(Ok(first)));
        let (wanted, fetched) = ask_aside(Arc::new(self.server))?;
        let mut terminal = ratatui::try_init().map_err(broken)?;
        let ended = live(&mut terminal, &mut screen, &wanted, &fetched);
        ratatui::restore();
        ended.map_err(broken)?;
        Ok(ExitCode::SUCCESS)
    }

    fn print(&self) -> Ended {
        let route = query(
            "/v1/hot",
            &[
                ("by", Some(self.by.as_str().to_owned())),
                ("rule", self.rule.clone()),
                ("limit", Some(self.limit.to_string())),
            ],
        );
        let reply = self.server.get(&route)?;
        if !reply.json["buckets"].is_array() {
            return Err(self.server.is_no_daemon());
        }
        say(if self.server.json { reply.text.trim_end().to_owned() } else { printed(&reply.json) });
        Ok(ExitCode::SUCCESS)
    }
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn broken(error: std::io::Error) -> Failure {
    Failure::Failed(anyhow::anyhow!("the terminal cannot be used: {error}; --once prints one table"))
}

/// Asks the daemon on a thread of its own, so that keys are answered while it is slow.
fn ask_aside(server: Arc<Server>) -> Result<(SyncSender<Wanted>, Receiver<Fetched>), Failure> {
    let (ask, wanted) = mpsc::sync_channel(WANTED_MAX);
    let (tell, fetched) = mpsc::channel();
    let asks = move || {
        // Ends with the screen, which holds the other ends.
        for wanted in wanted {
            let told = match wanted {
                Wanted::Now(by) => Fetched::Now(fetch(&server, by).map_err(|failure| words(&failure))),
                Wanted::Why(route) => {
                    let reply = server.get(&route).map(|reply| reply.json);
                    Fetched::Why(reply.map_err(|failure| words(&failure)))
                }
            };
            if tell.send(told).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new().name("top".to_owned()).spawn(asks).map_err(broken)?;
    Ok((ask, fetched))
}

fn words(failure: &Failure) -> String {
    match failure {
        Failure::Failed(error) | Failure::Unfetched(error) => format!("{error:#}"),
        Failure::Usage(text) | Failure::Unreached(text) => text.clone(),
    }
}

fn fetch(server: &Server, by: TopBy) -> Result<(Value, Value), Failure> {
    let asked = [("by", Some(by.as_str().to_owned())), ("limit", Some(ROWS.to_string()))];
    let hot = server.get(&query("/v1/hot", &asked))?;
    if !hot.json["buckets"].is_array() {
        return Err(server.is_no_daemon());
    }
    Ok((hot.json, server.get("/v1/regions")?.json))
}

/// Draws and reads keys until it is left.
fn live(
    terminal: &mut ratatui::DefaultTerminal,
    screen: &mut TopScreen,
    wanted: &SyncSender<Wanted>,
    fetched: &Receiver<Fetched>,
) -> std::io::Result<()> {
    let mut asked = Stopwatch::start();
    loop {
        while let Ok(told) = fetched.try_recv() {
            screen.take(told);
        }
        terminal.draw(|frame| draw::draw(screen, frame))?;
        let step = match event::poll(TICK)?.then(event::read).transpose()? {
            Some(Event::Key(key)) if key.kind != KeyEventKind::Release => screen.press(key),
            _ => Step::Nothing,
        };
        // Full: the daemon is slow, and the next second asks anew.
        match step {
            Step::Quit => return Ok(()),
            Step::Why(route) => drop(wanted.try_send(Wanted::Why(route))),
            Step::Ask => drop(wanted.try_send(Wanted::Now(screen.by()))),
            Step::Nothing => {}
        }
        if asked.elapsed() >= EVERY {
            asked = Stopwatch::start();
            drop(wanted.try_send(Wanted::Now(screen.by())));
        }
    }
}

/// A count as a rate, for people: to the nearest digit that is shown.
fn rate(count: &Value, span_ms: u64) -> String {
    let nearest = |number: u64, unit: u64| number.saturating_add(unit / 2) / unit;
    let tenths = nearest(count.as_u64().unwrap_or(0).saturating_mul(10_000), span_ms.max(1));
    match tenths {
        0..1_000 => format!("{}.{}", tenths / 10, tenths % 10),
        1_000..100_000 => nearest(tenths, 10).to_string(),
        // From 999,500 on it would be "1000k".
        100_000..9_995_000 => format!("{}k", nearest(tenths, 10_000)),
        _ => {
            let tenths = nearest(tenths, 1_000_000);
            format!("{}.{}M", tenths / 10, tenths % 10)
        }
    }
}

/// A part of a whole in percent.
fn percent(share: &Value) -> String {
    format!("{:.1}%", share.as_f64().unwrap_or(0.0) * 100.0)
}

/// One table of buckets and one of rules.
fn printed(hot: &Value) -> String {
    let rows = |name: &str| hot[name].as_array().cloned().unwrap_or_default();
    let span_ms = hot["span_ms"].as_u64().unwrap_or(0);
    let by = hot["by"].as_str().unwrap_or_default();
    let (buckets, rules) = (rows("buckets"), rows("rules"));
    let rates = |row: &Value| ["requests", "denied", "cost"].map(|name| rate(&row[name], span_ms));
    let mut lines = vec![format!(
        "{} in region {}: {} decisions/s of rules, {} denied/s, by {by} lately",
        plain(hot["node"].as_str().unwrap_or_default()),
        plain(hot["region"].as_str().unwrap_or_default()),
        rate(&hot["all"]["requests"], span_ms),
        rate(&hot["all"]["denied"], span_ms),
    )];
    if buckets.is_empty() {
        lines.push(format!("No bucket had {by} lately."));
    } else {
        let mut shown = table(&["rule", "key", "requests/s", "denied/s", "cost/s", "share"], &[2, 3, 4, 5]);
        for row in &buckets {
            let [requests, denied, cost] = rates(row);
            shown.add_row([rule_of(row), key_of(row), requests, denied, cost, percent(&row["share"])]);
        }
        lines.push(shown.to_string());
    }
    if !rules.is_empty() {
        let mut shown = table(&["rule", "requests/s", "denied/s", "cost/s", "share"], &[1, 2, 3, 4]);
        for row in &rules {
            let [requests, denied, cost] = rates(row);
            shown.add_row([rule_of(row), requests, denied, cost, percent(&row["share"])]);
        }
        lines.push(format!("\n{shown}"));
    }
    lines.join("\n")
}

/// The name of a row's rule, with a mark where its denials are only logged.
fn rule_of(row: &Value) -> String {
    let shadow = if row["shadow"].as_bool() == Some(true) { " (shadow)" } else { "" };
    plain(row["rule"].as_str().unwrap_or("-")) + shadow
}

/// The name of a bucket, in one line.
fn key_of(row: &Value) -> String {
    if row["long"].as_bool() == Some(true) {
        "(too long to be kept)".to_owned()
    } else {
        identity(&row["identity"])
    }
}

/// Columns and lines of the terminal; `None` where there is none.
pub(super) fn terminal_size() -> Option<(u16, u16)> {
    ratatui::crossterm::terminal::size().ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{printed, rate};

    #[test]
    fn a_rate_is_the_nearest_that_its_digits_can_say() {
        for (count, span_ms, said) in [
            (0, 20_000, "0.0"),
            (1, 20_000, "0.1"),
            (2, 25_000, "0.1"),
            (1_999, 20_000, "100"),
            (1_996_000, 1_000, "2.0M"),
            (1_940_000, 1_000, "1.9M"),
            (19_600, 1_000, "20k"),
            (999_600, 1_000, "1.0M"),
            (999_400, 1_000, "999k"),
            (5, 0, "5000"),
        ] {
            assert_eq!(rate(&json!(count), span_ms), said, "{count} in {span_ms} ms");
        }
    }

    #[test]
    fn a_rule_that_only_logs_is_marked_and_sums_are_decisions_by_rules() {
        let row = |rule: &str, shadow: bool| json!({ "rule": rule, "identity": { "user": "u" }, "shadow": shadow, "requests": 40, "denied": 4, "cost": 36 });
        let rows = [row("watched", true), row("held", false)];
        let hot = json!({ "region": "eu", "node": "eu-1", "by": "requests", "span_ms": 10_000,
                          "all": { "requests": 80, "denied": 8, "cost": 72 }, "buckets": rows, "rules": rows });
        let shown = printed(&hot);
        assert_eq!(shown.matches("watched (shadow)").count(), 2, "{shown}");
        assert!(!shown.contains("held (shadow)") && shown.contains("8.0 decisions/s of rules"), "{shown}");
    }
}
