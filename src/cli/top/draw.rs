//! Draws `tidegate top`. Eighty columns are enough; what is wider has longer keys.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Paragraph, Row, Table, TableState, Wrap};
use serde_json::Value;

use super::super::regions::show_bounds;
use super::super::table::{plain, span};
use super::screen::{Closer, Pane, TopScreen};
use super::{TopBy, key_of, percent, rate, rule_of};

const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const CHOSEN: Style = Style::new().add_modifier(Modifier::REVERSED);

/// Draws all of it.
pub(super) fn draw(screen: &TopScreen, frame: &mut Frame<'_>) {
    let [head, tabs, body, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Min(1),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(Paragraph::new(headline(screen)).style(BOLD), head);
    frame.render_widget(Paragraph::new(tabs_line(screen)), tabs);
    match &screen.closer {
        Some(closer) => draw_closer(closer, frame, body),
        None => draw_rows(screen, frame, body),
    }
    frame.render_widget(Paragraph::new(footer(screen)), foot);
}

fn headline(screen: &TopScreen) -> String {
    let hot = &screen.hot;
    let span_ms = hot["span_ms"].as_u64().unwrap_or(0);
    let [requests, denied, cost] =
        ["requests", "denied", "cost"].map(|name| rate(&hot["all"][name], span_ms));
    format!(
        "tidegate top  {}/{}  {requests} decisions/s of rules  {denied} denied/s  {cost} cost/s",
        word(&hot["region"]),
        word(&hot["node"])
    )
}

fn tabs_line(screen: &TopScreen) -> String {
    let mut line = String::new();
    for (number, pane) in (1..).zip(Pane::ALL) {
        let title = pane.title();
        line += &if pane == screen.pane {
            format!("[{number} {title}] ")
        } else {
            format!(" {number} {title}  ")
        };
    }
    if screen.pane != Pane::Regions {
        line += match screen.by() {
            TopBy::Requests => " by requests",
            TopBy::Denied => " by denied",
            TopBy::Cost => " by cost",
        };
    }
    if let Some(rule) = &screen.of_rule {
        line += &format!("  rule: {}", plain(rule));
    }
    if screen.is_typing || !screen.filter.is_empty() {
        let cursor = if screen.is_typing { "_" } else { "" };
        line += &format!("  filter: {}{cursor}", screen.filter);
    }
    line
}

fn footer(screen: &TopScreen) -> String {
    if let Some(trouble) = &screen.trouble {
        return format!("! {}", plain(trouble));
    }
    let keys = match (screen.is_typing, screen.closer.is_some(), screen.pane) {
        (true, ..) => "Enter keeps the filter  Esc clears it",
        (_, true, _) => "Esc back  Enter asks again  Up/Down scroll  q quit",
        (_, _, Pane::Keys) => "r/d/c order  / filter  Tab next  Enter why  q quit",
        (_, _, Pane::Rules) => "r/d/c order  / filter  Tab next  Enter its keys  q quit",
        (_, _, Pane::Regions) => "/ filter  Tab next  q quit",
    };
    keys.to_owned()
}

fn draw_closer(closer: &Closer, frame: &mut Frame<'_>, area: Rect) {
    let mut lines = vec![Line::styled(closer.title.clone(), BOLD), Line::default()];
    if closer.lines.is_empty() {
        lines.push(Line::raw("Asking ..."));
    }
    lines.extend(closer.lines.iter().map(|line| Line::raw(line.as_str())));
    let text = Paragraph::new(lines).wrap(Wrap { trim: false }).scroll((closer.scroll, 0));
    frame.render_widget(text, area);
}

fn draw_rows(screen: &TopScreen, frame: &mut Frame<'_>, area: Rect) {
    let rows = screen.rows();
    if rows.is_empty() {
        frame.render_widget(Paragraph::new(nothing(screen)).wrap(Wrap { trim: false }), area);
        return;
    }
    let span_ms = screen.hot["span_ms"].as_u64().unwrap_or(0);
    let (headings, widths): (&[&str], &[Constraint]) = match screen.pane {
        Pane::Keys => (&KEYS, &KEY_WIDTHS),
        Pane::Rules => (&RULES, &RULE_WIDTHS),
        Pane::Regions => (&REGIONS, &REGION_WIDTHS),
    };
    let cells = rows.iter().map(|row| {
        let cells = match screen.pane {
            Pane::Keys => key_cells(row, span_ms),
            Pane::Rules => rule_cells(row, span_ms),
            Pane::Regions => region_cells(row, &screen.regions),
        };
        Row::new(aligned(screen.pane, cells))
    });
    let table = Table::new(cells, widths.iter().copied())
        .header(
            Row::new(aligned(screen.pane, headings.iter().map(|text| (*text).to_owned()).collect()))
                .style(BOLD),
        )
        .row_highlight_style(CHOSEN);
    let mut state = TableState::default().with_selected(Some(screen.selected()));
    if screen.pane != Pane::Regions {
        frame.render_stateful_widget(table, area, &mut state);
        return;
    }
    // The bounds of worldwide rules stand below the daemons.
    let height = u16::try_from(rows.len() + 2).unwrap_or(u16::MAX);
    let [above, below] = Layout::vertical([Constraint::Length(height), Constraint::Min(0)]).areas(area);
    frame.render_stateful_widget(table, above, &mut state);
    frame.render_widget(Paragraph::new(bounds(&screen.regions)).wrap(Wrap { trim: false }), below);
}

const KEYS: [&str; 6] = ["rule", "key", "requests/s", "denied/s", "cost/s", "share"];
const KEY_WIDTHS: [Constraint; 6] = [
    Constraint::Length(16),
    Constraint::Min(16),
    Constraint::Length(10),
    Constraint::Length(8),
    Constraint::Length(7),
    Constraint::Length(6),
];
const RULES: [&str; 6] = ["rule", "domain", "requests/s", "denied/s", "cost/s", "share"];
const RULE_WIDTHS: [Constraint; 6] = [
    Constraint::Min(20),
    Constraint::Length(14),
    Constraint::Length(10),
    Constraint::Length(8),
    Constraint::Length(7),
    Constraint::Length(6),
];
const REGIONS: [&str; 6] = ["region", "node", "state", "round trip", "lag", "clock"];
const REGION_WIDTHS: [Constraint; 6] = [
    Constraint::Length(16),
    Constraint::Min(16),
    Constraint::Length(10),
    Constraint::Length(10),
    Constraint::Length(9),
    Constraint::Length(9),
];

/// Numbers stand on the right.
fn aligned(pane: Pane, cells: Vec<String>) -> Vec<Cell<'static>> {
    let words = if pane == Pane::Regions { 3 } else { 2 };
    let cell = |(place, text): (usize, String)| {
        let line = Line::raw(text);
        Cell::from(if place < words { line } else { line.right_aligned() })
    };
    cells.into_iter().enumerate().map(cell).collect()
}

fn key_cells(row: &Value, span_ms: u64) -> Vec<String> {
    vec![
        rule_of(row),
        key_of(row),
        rate(&row["requests"], span_ms),
        rate(&row["denied"], span_ms),
        rate(&row["cost"], span_ms),
        percent(&row["share"]),
    ]
}

fn rule_cells(row: &Value, span_ms: u64) -> Vec<String> {
    let mut cells = key_cells(row, span_ms);
    if let Some(second) = cells.get_mut(1) {
        *second = word(&row["domain"]);
    }
    cells
}

fn region_cells(row: &Value, regions: &Value) -> Vec<String> {
    let flag = |name: &str| row[name].as_bool() == Some(true);
    let is_in = |list: &Value| list.as_array().is_some_and(|names| names.contains(&row["region"]));
    let state = match (flag("draining"), is_in(&regions["cut_off"]), flag("connected"), flag("live")) {
        (true, ..) => "draining",
        (_, true, ..) if is_in(&regions["unseen"]) => "not heard yet",
        (_, true, ..) => "cut off",
        (_, _, true, true) => "connected",
        (_, _, false, true) => "link down",
        _ => "silent",
    };
    let millis = |name: &str| row[name].as_u64().map_or_else(|| "-".to_owned(), span);
    let clock = row["clock_ahead_ms"].as_i64();
    vec![
        word(&row["region"]),
        word(&row["node"]),
        state.to_owned(),
        millis("rtt_ms"),
        millis("lag_ms"),
        clock.map_or_else(|| "-".to_owned(), |ahead| format!("{ahead:+} ms")),
    ]
}

/// Returns how far worldwide rules may be off; nothing of those that are exact.
fn bounds(regions: &Value) -> String {
    let rules = regions["rules"].as_array().map_or(&[][..], Vec::as_slice);
    let mut lines = Vec::new();
    show_bounds(&mut lines, rules);
    lines.iter().map(|line| plain(line)).collect::<Vec<_>>().join("\n")
}

fn nothing(screen: &TopScreen) -> String {
    if !screen.filter.is_empty() {
        return format!("Nothing here has {:?} in its name. Esc clears the filter.", screen.filter);
    }
    if let Some(rule) = &screen.of_rule {
        return format!("No bucket of rule {} is among the heaviest. Esc shows all keys.", plain(rule));
    }
    let all = |what: &str| screen.hot["all"][what].as_u64().unwrap_or(0);
    match (screen.pane, screen.by()) {
        (Pane::Regions, _) => {
            format!("No other daemons: limits hold in this region alone.\n\n{}", bounds(&screen.regions))
        }
        (Pane::Keys, _) if all("denied") > 0 => format!(
            "No bucket was asked lately: about {} denials without one, by a block or because the regions have not agreed. 2 shows the \
             rules.",
            all("denied")
        ),
        (_, TopBy::Denied) => "Nobody was denied lately. r orders by requests.".to_owned(),
        (_, TopBy::Cost) if all("requests") > 0 => {
            "Nothing was charged lately. r orders by requests.".to_owned()
        }
        _ => "Nothing was asked lately.".to_owned(),
    }
}

fn word(value: &Value) -> String {
    value.as_str().map_or_else(|| "-".to_owned(), plain)
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::screen::tests::{screen, type_in};
    use super::super::{Fetched, TopBy};
    use super::*;
    use serde_json::json;

    fn drawn(screen: &TopScreen, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(screen, frame)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let rows = buffer.content().chunks(usize::from(width));
        let line =
            |cells: &[ratatui::buffer::Cell]| cells.iter().map(|cell| cell.symbol().to_owned()).collect();
        rows.map(line).collect::<Vec<String>>().join("\n")
    }

    #[test]
    fn the_heaviest_keys_fit_eighty_columns() {
        let shown = drawn(&screen(), 80, 24);
        for text in [
            "eu/eu-1",
            "8.0 decisions/s of rules",
            "[1 Keys]",
            "by requests",
            "search",
            "user=u_42",
            "3.0",
            "25.0%",
            "q quit",
        ] {
            assert!(shown.contains(text), "{text} is not in\n{shown}");
        }
    }

    #[test]
    fn rules_and_regions_have_panes_of_their_own() {
        let mut screen = screen();
        type_in(&mut screen, "2");
        assert!(drawn(&screen, 80, 24).contains("default"), "{}", drawn(&screen, 80, 24));
        type_in(&mut screen, "3");
        let shown = drawn(&screen, 80, 24);
        for text in ["us-1", "connected", "80 ms", "search: up to 3 more"] {
            assert!(shown.contains(text), "{text} is not in\n{shown}");
        }
    }

    #[test]
    fn a_rule_in_shares_is_never_above_its_limit_and_a_chosen_rule_is_named() {
        let mut screen = screen();
        screen.regions["rules"] = json!([{ "rule": "seats", "error_bound": 100, "because": "shares" }]);
        type_in(&mut screen, "3");
        let shown = drawn(&screen, 80, 24);
        assert!(shown.contains("seats: never above its limit") && !shown.contains("more may"), "{shown}");
        type_in(&mut screen, "2j\n");
        assert!(drawn(&screen, 80, 24).contains("rule: upload"), "{}", drawn(&screen, 80, 24));
    }

    #[test]
    fn a_bucket_shows_why_and_trouble_is_told() {
        let mut screen = screen();
        type_in(&mut screen, "\n");
        assert!(drawn(&screen, 80, 24).contains("Asking"));
        let why = json!({ "limited": true, "decision": { "allowed": false, "rule": "search", "status": 429, "retry_after_ms": 5_000 } });
        screen.take(Fetched::Why(Ok(why)));
        let shown = drawn(&screen, 80, 24);
        assert!(shown.contains("search denies with status 429; free in 5 s."), "{shown}");
        screen.take(Fetched::Now(Err("no daemon answered".to_owned())));
        assert!(drawn(&screen, 80, 24).contains("! no daemon answered"));
    }

    #[test]
    fn nothing_panics_on_a_screen_that_is_too_small_or_empty() {
        for (width, height) in [(1, 1), (20, 3), (300, 100)] {
            drawn(&screen(), width, height);
            drawn(&TopScreen::new(TopBy::Denied), width, height);
        }
        assert!(drawn(&TopScreen::new(TopBy::Denied), 80, 24).contains("Nobody was denied lately"));
        let mut blocked = TopScreen::new(TopBy::Denied);
        blocked.hot = json!({ "buckets": [], "rules": [], "all": { "requests": 9, "denied": 9, "cost": 0 } });
        assert!(
            drawn(&blocked, 80, 24).contains("about 9 denials without one"),
            "{}",
            drawn(&blocked, 80, 24)
        );
    }
}
