//! The screen of `tidegate top`, and what each key does to it. Knows no terminal and no daemon.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use serde_json::Value;

use super::super::why;
use super::{Fetched, TopBy, key_of};

/// Longest filter, in characters.
const FILTER_MAX: usize = 64;
/// Rows that page up and page down move.
const PAGE: usize = 10;

/// The kind of rows that are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pane {
    /// The heaviest buckets.
    Keys,
    /// The heaviest rules.
    Rules,
    /// The daemons of the cluster.
    Regions,
}

impl Pane {
    pub(super) const ALL: [Self; 3] = [Self::Keys, Self::Rules, Self::Regions];

    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::Keys => "Keys",
            Self::Rules => "Rules",
            Self::Regions => "Regions",
        }
    }

    const fn next(self) -> Self {
        match self {
            Self::Keys => Self::Rules,
            Self::Rules => Self::Regions,
            Self::Regions => Self::Keys,
        }
    }
}

/// The wish of a key to the caller.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    Nothing,
    /// Leave.
    Quit,
    /// Ask now, rather than in a second.
    Ask,
    /// Ask this route why.
    Why(String),
}

/// One bucket, looked at closely.
#[derive(Debug)]
pub(super) struct Closer {
    /// Name of what is shown closer, such as `RULE for KEY`.
    pub(super) title: String,
    /// Its route, asked again each time it is shown anew.
    route: String,
    /// Lines of the answer; empty: there is none yet.
    pub(super) lines: Vec<String>,
    pub(super) scroll: u16,
}

/// Everything that is shown.
#[derive(Debug)]
pub(super) struct TopScreen {
    pub(super) pane: Pane,
    by: TopBy,
    pub(super) filter: String,
    /// The rule whose keys alone are listed; `None`: those of all.
    pub(super) of_rule: Option<String>,
    /// True if typed letters go to the filter.
    pub(super) is_typing: bool,
    selected: usize,
    pub(super) hot: Value,
    pub(super) regions: Value,
    pub(super) closer: Option<Closer>,
    /// The reason for which the newest question has no answer.
    pub(super) trouble: Option<String>,
}

impl TopScreen {
    pub(super) const fn new(by: TopBy) -> Self {
        Self {
            pane: Pane::Keys,
            by,
            filter: String::new(),
            of_rule: None,
            is_typing: false,
            selected: 0,
            hot: Value::Null,
            regions: Value::Null,
            closer: None,
            trouble: None,
        }
    }

    /// The order of rows.
    pub(super) const fn by(&self) -> TopBy {
        self.by
    }

    /// Takes what the daemon said.
    pub(super) fn take(&mut self, told: Fetched) {
        match told {
            Fetched::Now(Ok((hot, regions))) => {
                // An answer to an older question does not change the order back.
                if hot["by"] == self.by.as_str() {
                    (self.hot, self.regions, self.trouble) = (hot, regions, None);
                }
            }
            Fetched::Why(Ok(why)) => {
                if let Some(closer) = &mut self.closer {
                    closer.lines = why::told(&why);
                }
            }
            Fetched::Now(Err(trouble)) | Fetched::Why(Err(trouble)) => self.trouble = Some(trouble),
        }
        self.selected = self.selected();
    }

    /// The rows of the pane that the filter lets through.
    pub(super) fn rows(&self) -> Vec<&Value> {
        let list = match self.pane {
            Pane::Keys => &self.hot["buckets"],
            Pane::Rules => &self.hot["rules"],
            Pane::Regions => &self.regions["peers"],
        };
        let rows = list.as_array().map_or(&[][..], Vec::as_slice);
        rows.iter().filter(|row| self.lets_through(row)).collect()
    }

    fn lets_through(&self, row: &Value) -> bool {
        let has = |name: &str| row[name].as_str().is_some_and(|text| text.contains(&self.filter));
        if self.of_rule.as_deref().is_some_and(|rule| row["rule"] != rule) {
            return false;
        }
        self.filter.is_empty()
            || ["rule", "region", "node"].into_iter().any(has)
            || (self.pane == Pane::Keys && key_of(row).contains(&self.filter))
    }

    /// The chosen row.
    pub(super) fn selected(&self) -> usize {
        self.selected.min(self.rows().len().saturating_sub(1))
    }

    /// The effect of a key.
    pub(super) fn press(&mut self, key: KeyEvent) -> Step {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return if key.code == KeyCode::Char('c') { Step::Quit } else { Step::Nothing };
        }
        if self.is_typing {
            self.write(key.code);
            return Step::Nothing;
        }
        if self.closer.is_some() {
            return self.press_closer(key.code);
        }
        match key.code {
            KeyCode::Char('q') => return Step::Quit,
            KeyCode::Char('r') => return self.order(TopBy::Requests),
            KeyCode::Char('d') => return self.order(TopBy::Denied),
            KeyCode::Char('c') => return self.order(TopBy::Cost),
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::Esc => self.list_all(),
            KeyCode::Tab | KeyCode::Right => self.turn(self.pane.next()),
            KeyCode::BackTab | KeyCode::Left => self.turn(self.pane.next().next()),
            KeyCode::Char('1') => self.turn(Pane::Keys),
            KeyCode::Char('2') => self.turn(Pane::Rules),
            KeyCode::Char('3') => self.turn(Pane::Regions),
            KeyCode::Down | KeyCode::Char('j') => self.selected = self.selected() + 1,
            KeyCode::Up | KeyCode::Char('k') => self.selected = self.selected().saturating_sub(1),
            KeyCode::PageDown => self.selected = self.selected() + PAGE,
            KeyCode::PageUp => self.selected = self.selected().saturating_sub(PAGE),
            KeyCode::Home => self.selected = 0,
            KeyCode::End => self.selected = usize::MAX,
            KeyCode::Enter => return self.enter(),
            _ => {}
        }
        self.selected = self.selected();
        Step::Nothing
    }

    fn press_closer(&mut self, key: KeyCode) -> Step {
        let Some(closer) = &mut self.closer else { return Step::Nothing };
        match key {
            KeyCode::Char('q') => return Step::Quit,
            KeyCode::Esc | KeyCode::Backspace | KeyCode::Left => self.closer = None,
            KeyCode::Down | KeyCode::Char('j') => {
                let last = u16::try_from(closer.lines.len().saturating_sub(1)).unwrap_or(u16::MAX);
                closer.scroll = closer.scroll.saturating_add(1).min(last);
            }
            KeyCode::Up | KeyCode::Char('k') => closer.scroll = closer.scroll.saturating_sub(1),
            KeyCode::Enter | KeyCode::Char('r') => return Step::Why(closer.route.clone()),
            _ => {}
        }
        Step::Nothing
    }

    fn write(&mut self, key: KeyCode) {
        match key {
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => {
                self.is_typing = false;
                self.filter.clear();
            }
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(letter) if self.filter.chars().count() < FILTER_MAX => self.filter.push(letter),
            _ => {}
        }
        self.selected = 0;
    }

    fn turn(&mut self, pane: Pane) {
        if self.pane != pane {
            (self.pane, self.selected) = (pane, 0);
            self.list_all();
        }
    }

    /// Lets every row through.
    fn list_all(&mut self) {
        self.filter.clear();
        self.of_rule = None;
    }

    fn order(&mut self, by: TopBy) -> Step {
        (self.by, self.selected) = (by, 0);
        Step::Ask
    }

    /// Asks why for a bucket, and shows the buckets of a rule.
    fn enter(&mut self) -> Step {
        let Some(row) = self.rows().get(self.selected()).map(|row| (*row).clone()) else {
            return Step::Nothing;
        };
        let rule = row["rule"].as_str().unwrap_or_default().to_owned();
        match self.pane {
            Pane::Keys => {
                if row["long"].as_bool() == Some(true) {
                    self.trouble = Some("The name of this bucket was too long to be kept.".to_owned());
                    return Step::Nothing;
                }
                // A bucket that is everybody's is found by its rule alone.
                let identity = row["identity"].as_object().into_iter().flatten();
                let identity = identity.filter_map(|(name, value)| Some((name.as_str(), value.as_str()?)));
                let pairs: Vec<(&str, &str)> =
                    std::iter::once(("rule", rule.as_str())).chain(identity).collect();
                let domain = row["domain"].as_str().unwrap_or("default");
                let route = why::route(domain, None, &pairs);
                let title = format!("{rule} for {}", key_of(&row));
                let closer = Closer { title, route: route.clone(), lines: Vec::new(), scroll: 0 };
                self.closer = Some(closer);
                Step::Why(route)
            }
            Pane::Rules => {
                self.turn(Pane::Keys);
                self.of_rule = Some(rule);
                Step::Nothing
            }
            Pane::Regions => Step::Nothing,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use serde_json::json;

    /// Two buckets of two rules, two rules, and one other daemon.
    pub(in super::super) fn screen() -> TopScreen {
        let bucket = |rule: &str, user: &str, requests: u64, denied: u64| {
            json!({ "rule": rule, "domain": "default", "identity": { "user": user }, "requests": requests,
                    "denied": denied, "cost": requests - denied, "share": 0.25, "shadow": false })
        };
        let rule = |rule: &str| json!({ "rule": rule, "domain": "default", "requests": 40, "denied": 4, "cost": 36, "share": 0.5 });
        let hot = json!({
            "region": "eu", "node": "eu-1", "by": "requests", "span_ms": 10_000,
            "all": { "requests": 80, "denied": 8, "cost": 72 },
            "buckets": [bucket("search", "u_42", 30, 4), bucket("upload", "u_7", 10, 0)],
            "rules": [rule("search"), rule("upload")],
        });
        let peer = json!({ "region": "us", "node": "us-1", "connected": true, "live": true, "draining": false,
                           "rtt_ms": 80, "lag_ms": 40 });
        let regions = json!({ "region": "eu", "node": "eu-1", "peers": [peer], "cut_off": [],
                              "rules": [{ "rule": "search", "error_bound": 3, "because": "lag" }] });
        let mut screen = TopScreen::new(TopBy::Requests);
        screen.take(Fetched::Now(Ok((hot, regions))));
        screen
    }

    pub(in super::super) fn type_in(screen: &mut TopScreen, keys: &str) -> Vec<Step> {
        let press = |letter: char| {
            let code = match letter {
                '\n' => KeyCode::Enter,
                '\t' => KeyCode::Tab,
                '\u{1b}' => KeyCode::Esc,
                letter => KeyCode::Char(letter),
            };
            screen.press(KeyEvent::from(code))
        };
        keys.chars().map(press).collect()
    }

    #[test]
    fn keys_order_filter_and_switch_what_is_listed() {
        let mut screen = screen();
        assert_eq!(screen.rows().len(), 2);
        assert_eq!(type_in(&mut screen, "d"), [Step::Ask]);
        assert_eq!(screen.by(), TopBy::Denied);
        type_in(&mut screen, "/u_7\n");
        assert_eq!(screen.rows().len(), 1);
        assert_eq!(screen.rows()[0]["rule"], "upload");
        type_in(&mut screen, "\u{1b}jjjj");
        assert_eq!((screen.rows().len(), screen.selected()), (2, 1));
        type_in(&mut screen, "\t");
        assert_eq!((screen.pane, screen.selected()), (Pane::Rules, 0));
        type_in(&mut screen, "j\n");
        assert_eq!((screen.pane, screen.of_rule.as_deref()), (Pane::Keys, Some("upload")));
        assert_eq!(screen.rows().len(), 1);
        type_in(&mut screen, "\u{1b}");
        assert_eq!(screen.rows().len(), 2);
        assert_eq!(type_in(&mut screen, "3q"), [Step::Nothing, Step::Quit]);
    }

    #[test]
    fn the_keys_of_a_rule_are_none_of_another_whose_keys_have_its_name() {
        let mut screen = screen();
        let row = |rule: &str| json!({ "rule": rule, "identity": { "org": "a" } });
        screen.hot["rules"] = json!([row("org"), row("team")]);
        screen.hot["buckets"] = json!([row("org"), row("team"), row("org-day")]);
        type_in(&mut screen, "2\n");
        let rules: Vec<&str> = screen.rows().iter().filter_map(|row| row["rule"].as_str()).collect();
        assert_eq!((screen.pane, rules), (Pane::Keys, vec!["org"]));
    }

    #[test]
    fn q_is_a_letter_while_a_filter_is_typed() {
        let mut screen = screen();
        assert!(type_in(&mut screen, "/q").iter().all(|step| *step == Step::Nothing));
        assert_eq!(screen.filter, "q");
        let ctrl_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(screen.press(ctrl_c), Step::Quit);
    }

    #[test]
    fn a_bucket_is_asked_why_and_left_again() {
        let mut screen = screen();
        let steps = type_in(&mut screen, "\n");
        assert_eq!(steps, [Step::Why("/v1/why?domain=default&rule=search&user=u%5F42".to_owned())]);
        screen.take(Fetched::Why(Ok(json!({ "limited": false, "decision": { "allowed": true } }))));
        assert!(screen.closer.as_ref().is_some_and(|closer| closer.lines.len() > 1));
        type_in(&mut screen, "\u{1b}");
        assert!(screen.closer.is_none());
    }

    #[test]
    fn an_answer_to_an_older_question_changes_nothing_back() {
        let mut screen = screen();
        type_in(&mut screen, "c");
        let old = json!({ "by": "requests", "buckets": [] });
        screen.take(Fetched::Now(Ok((old, Value::Null))));
        assert_eq!(screen.rows().len(), 2);
        screen.take(Fetched::Now(Err("no daemon".to_owned())));
        assert_eq!(screen.trouble.as_deref(), Some("no daemon"));
    }
}
