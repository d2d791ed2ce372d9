//! Numbers for shapes: the same rule keeps its number, and so its buckets, from one rule set to the next.

use std::collections::HashMap;
use std::sync::Arc;

use super::Compiled;
use crate::algorithm::Algorithm;
use crate::calendar::Windows;
use crate::key::{SHAPES_PER_RULE, Shape};
use crate::rule::Rule;
use crate::time::Span;

const DAY: u64 = 24 * 3_600;

/// The windows that a request may put in place of a rule's: those that Envoy's units name. Any other length
/// is read as the next longer one of these, which is stricter and never looser.
pub const OVERRIDE_WINDOWS: [Span; 7] = [
    Span::from_secs(1),
    Span::from_secs(60),
    Span::from_secs(3_600),
    Span::from_secs(DAY),
    Span::from_secs(7 * DAY),
    Span::from_secs(30 * DAY),
    Span::from_secs(365 * DAY),
];

/// Shapes remembered that the newest rule set does not use, so that a rule that comes back finds its buckets
/// again. More: all unused ones are forgotten.
const UNUSED_MAX: usize = 100_000;

/// Gives every shape its number, for as long as the process lives. Numbers are never used again.
#[derive(Debug, Default)]
pub struct Shapes {
    known: HashMap<Identity, KnownShape>,
    next: u32,
    generation: u64,
    /// Numbers that an earlier process gave, by what they stand for.
    kept: HashMap<String, Shape>,
}

/// The identity of a shape's buckets; any change here means fresh buckets.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Identity {
    domain: String,
    name: String,
    algorithm: Algorithm,
    windows: Windows,
    per: Vec<String>,
}

#[derive(Debug, Clone, Copy)]
struct KnownShape {
    shape: Shape,
    generation: u64,
}

impl Identity {
    fn of(rule: &Rule) -> Self {
        Self {
            domain: rule.domain.clone(),
            name: rule.name.clone(),
            algorithm: rule.algorithm,
            // Places stay held when only the hold changes.
            windows: if rule.algorithm == Algorithm::Concurrency {
                Span::ZERO.into()
            } else {
                rule.windows()
            },
            per: rule.per.clone(),
        }
    }

    /// The same text for the same buckets, also in another process.
    fn text(&self) -> String {
        let Self { domain, name, algorithm, windows, per } = self;
        let calendar = windows.calendar().map(|calendar| format!("{:?}", calendar.name()));
        format!("{domain:?} {name:?} {} {} {calendar:?} {per:?}", algorithm.code(), windows.length().0)
    }
}

impl Shapes {
    /// Returns what the numbers of these shapes stand for, and the next number, for a later process.
    #[must_use]
    pub fn keep(&self, wanted: impl Fn(Shape) -> bool) -> (Vec<(String, Shape)>, u32) {
        let wanted = self.known.iter().filter(|(_, known)| wanted(known.shape));
        (wanted.map(|(identity, known)| (identity.text(), known.shape)).collect(), self.next)
    }

    /// Goes on with what an earlier process kept, before any rule is compiled. `false`: some of its numbers
    /// stand for something else here.
    #[must_use]
    pub fn restore(&mut self, (kept, next): (Vec<(String, Shape)>, u32)) -> bool {
        let taken = |(_, shape): &(String, Shape)| self.known.values().any(|known| known.shape == *shape);
        if kept.iter().any(taken) {
            return false;
        }
        self.next = self.next.max(next);
        self.kept = kept.into_iter().collect();
        true
    }

    /// The rule's shape; `None` once four billion numbers are spent (536 million different rules).
    pub(super) fn of(&mut self, rule: &Rule) -> Option<Shape> {
        let identity = Identity::of(rule);
        let generation = self.generation;
        if let Some(known) = self.known.get_mut(&identity) {
            known.generation = generation;
            return Some(known.shape);
        }
        let kept = if self.kept.is_empty() { None } else { self.kept.remove(&identity.text()) };
        let shape = match kept {
            Some(shape) => shape,
            None => {
                let shape = Shape(self.next);
                self.next = self.next.checked_add(SHAPES_PER_RULE)?;
                shape
            }
        };
        self.known.insert(identity, KnownShape { shape, generation });
        Some(shape)
    }

    /// Opens the next rule set: what it does not ask for may be forgotten after it.
    pub(super) fn begin(&mut self) {
        self.generation += 1;
    }

    /// Closes a rule set that compiled.
    pub(super) fn end(&mut self, used: usize) {
        if self.is_crowded(used) {
            let generation = self.generation;
            self.known.retain(|_, known| known.generation == generation);
        }
    }

    /// Closes a change that made this set of another: only what the change put has been asked for.
    pub(super) fn end_of_change(&mut self, rules: &[Arc<Compiled>]) {
        if self.is_crowded(rules.len()) {
            self.begin();
            for compiled in rules {
                let _ = self.of(&compiled.rule);
            }
            self.end(rules.len());
        }
    }

    fn is_crowded(&self, used: usize) -> bool {
        self.known.len().saturating_sub(used) > UNUSED_MAX
    }
}

/// The shape and the window that count when a request brings this window for a rule of this shape and window.
#[must_use]
pub(super) fn overridden(own: Shape, own_windows: Windows, asked: Span) -> (Shape, Windows) {
    if Windows::from(asked) == own_windows {
        return (own, own_windows);
    }
    let longest = (SHAPES_PER_RULE - 1, OVERRIDE_WINDOWS[OVERRIDE_WINDOWS.len() - 1]);
    let (offset, window) =
        (1..).zip(OVERRIDE_WINDOWS).find(|(_, window)| *window >= asked).unwrap_or(longest);
    let windows = Windows::from(window);
    if windows == own_windows {
        return (own, own_windows);
    }
    (Shape(own.0.saturating_add(offset)), windows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_process_gives_kept_rules_their_numbers_and_others_new_ones() {
        let rule =
            |name: &str, seconds| Rule::new(name, Algorithm::FixedWindow, 10, Span::from_secs(seconds));
        let mut before = Shapes::default();
        let shapes =
            [("a", 1), ("b", 1), ("c", 1)].map(|(name, window)| before.of(&rule(name, window)).unwrap());
        let mut after = Shapes::default();
        assert!(after.restore(before.keep(|shape| shape != shapes[1])));
        assert!(!before.restore((vec![("other".to_owned(), shapes[0])], 8)), "it stands for something here");
        assert_eq!(after.of(&rule("c", 1)), Some(shapes[2]));
        for (name, window) in [("b", 1), ("a", 2), ("d", 1)] {
            let shape = after.of(&rule(name, window)).unwrap();
            assert!(shape.0 >= 3 * SHAPES_PER_RULE, "{name}: {shape:?}");
        }
        assert_eq!(after.of(&rule("a", 1)), Some(shapes[0]));
    }

    #[test]
    fn an_override_with_the_rules_own_window_keeps_the_bucket() {
        let minute = Span::from_secs(60);
        assert_eq!(overridden(Shape(16), minute.into(), minute), (Shape(16), minute.into()));
    }

    #[test]
    fn every_override_window_has_a_shape_of_its_own() {
        let own = Span::from_millis(1_500);
        let mut shapes: Vec<u32> =
            OVERRIDE_WINDOWS.iter().map(|window| overridden(Shape(8), own.into(), *window).0.0).collect();
        shapes.dedup();
        assert_eq!(shapes, (9..16).collect::<Vec<_>>());
    }

    #[test]
    fn an_override_of_odd_length_is_read_as_the_next_longer_unit() {
        let own = Span::from_secs(1);
        assert_eq!(overridden(Shape(0), own.into(), Span::from_secs(61)).1.length(), Span::from_secs(3_600));
        assert_eq!(overridden(Shape(0), own.into(), Span(u64::MAX)).1.length(), Span::from_secs(365 * DAY));
    }
}
