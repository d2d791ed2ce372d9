//! What regions gave each other under `escrow`, as the daemons' own metrics count it.

use std::collections::{HashMap, VecDeque};

/// Windows remembered: the shortest are shown some time after they ended.
const WINDOWS_MAX: usize = 16;

/// Permits that one region gave to others, and was given by them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Moved {
    pub(super) gave: u64,
    pub(super) was_given: u64,
}

/// What each region has moved since the start, by name. `metrics`: the text of every daemon's `/metrics`.
pub(super) fn moved(metrics: &[String]) -> HashMap<String, Moved> {
    let mut all = HashMap::<String, Moved>::new();
    for (from, to, permits) in metrics.iter().flat_map(|text| text.lines()).filter_map(read) {
        let giver = all.entry(from.to_owned()).or_default();
        giver.gave = giver.gave.saturating_add(permits);
        let taker = all.entry(to.to_owned()).or_default();
        taker.was_given = taker.was_given.saturating_add(permits);
    }
    all
}

/// The giver, the taker and the permits of one line.
fn read(line: &str) -> Option<(&str, &str, u64)> {
    let rest = line.strip_prefix("tidegate_rights_moved_total{from=\"")?;
    let (from, rest) = rest.split_once("\",to=\"")?;
    let (to, permits) = rest.split_once("\"} ")?;
    Some((from, to, permits.trim().parse().ok()?))
}

impl Moved {
    /// What was moved since `before`.
    pub(super) const fn since(self, before: Self) -> Self {
        Self {
            gave: self.gave.saturating_sub(before.gave),
            was_given: self.was_given.saturating_sub(before.was_given),
        }
    }
}

/// What was moved, window by window.
#[derive(Debug, Default)]
pub(super) struct Movements {
    /// The window that runs, what had been moved before it, and what has been since.
    window: u64,
    before: HashMap<String, Moved>,
    now: HashMap<String, Moved>,
    /// The windows before it, oldest first.
    recent: VecDeque<(u64, HashMap<String, Moved>)>,
}

impl Movements {
    /// Whether another window runs than when it was last taken in.
    pub(super) const fn turns(&self, window: u64) -> bool {
        window != self.window
    }

    /// Takes in what has been moved since the start, while `window` runs. What was moved since the last time
    /// belongs to the window that ran then.
    pub(super) fn take(&mut self, window: u64, totals: HashMap<String, Moved>) {
        let since = |(region, moved): (&String, &Moved)| {
            let before = self.before.get(region).copied().unwrap_or_default();
            (region.clone(), moved.since(before))
        };
        self.now = totals.iter().map(since).collect();
        if self.turns(window) {
            if self.recent.len() >= WINDOWS_MAX {
                self.recent.pop_front();
            }
            self.recent.push_back((self.window, std::mem::take(&mut self.now)));
            self.before = totals;
            self.window = window;
        }
    }

    /// What a region moved in a window; `None` where that is not known any more.
    pub(super) fn of(&self, window: u64, region: &str) -> Option<Moved> {
        let moved = if self.turns(window) {
            &self.recent.iter().find(|(known, _)| *known == window)?.1
        } else {
            &self.now
        };
        Some(moved.get(region).copied().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_moved_belongs_to_the_window_that_ran() {
        let total = |gave| HashMap::from([("a".to_owned(), Moved { gave, was_given: 0 })]);
        let gave = |movements: &Movements, window| movements.of(window, "a").map(|moved| moved.gave);
        let mut movements = Movements::default();
        movements.take(7, total(10));
        movements.take(7, total(13));
        assert_eq!(gave(&movements, 7), Some(3));
        movements.take(8, total(14));
        assert_eq!((gave(&movements, 7), gave(&movements, 8)), (Some(4), Some(0)));
        movements.take(8, total(20));
        assert_eq!((gave(&movements, 8), gave(&movements, 9)), (Some(6), None));
        for window in 9..100 {
            movements.take(window, total(20 + window));
        }
        assert_eq!((movements.recent.len(), gave(&movements, 7)), (WINDOWS_MAX, None));
    }

    #[test]
    fn what_one_gave_another_was_given() {
        let metric = "tidegate_rights_moved_total";
        let texts = [
            format!(
                "# TYPE {metric} counter\n{metric}{{from=\"a\",to=\"b\"}} 3\n{metric}{{from=\"a\",to=\"c\"}} 4\n"
            ),
            format!("other{{from=\"a\",to=\"b\"}} 9\n{metric}{{from=\"b\",to=\"a\"}} 5\n"),
        ];
        let moved = moved(&texts);
        assert_eq!(moved.get("a"), Some(&Moved { gave: 7, was_given: 5 }));
        assert_eq!(moved.get("b"), Some(&Moved { gave: 5, was_given: 3 }));
        assert_eq!(moved.get("c"), Some(&Moved { gave: 0, was_given: 4 }));
        assert_eq!(
            Moved { gave: 7, was_given: 5 }.since(Moved { gave: 4, was_given: 5 }),
            Moved { gave: 3, was_given: 0 }
        );
    }
}
