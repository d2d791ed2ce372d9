//! Marks: how much of its own rights in a window a store may have spent that is lost with its process.
//!
//! A store spends no more of a window's own rights than its bucket's mark, which is noted outside of the
//! process before. So whoever comes after a loss mints what lies above the mark: it was not spent. A mark is
//! raised by eighths of the share, and lowered where rights of other regions came for what was spent. The
//! first one, of two eighths, needs no note of its bucket: it is noted once for all buckets of a rule.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::hash::Hasher;

use siphasher::sip::SipHasher13;

use super::super::super::super::algorithm::Counting;
use super::super::super::super::calendar::Windows;
use super::super::super::super::key::{Key, Shape};
use super::super::super::super::rule::{Mode, Rule};
use super::super::super::super::time::{Span, Timestamp};
use super::super::{EscrowSafety, RECOVERY_MARGIN, moves_as};
use super::is_known;
use super::lives::Breaks;

/// Windows shorter than this burn as a whole: they are over soon.
pub const MARKED_WINDOW: Span = Span::from_secs(10);
/// Steps in which a share is spent.
const STEPS: u64 = 8;
/// Steps that no bucket notes.
const FIRST_STEPS: u64 = 2;
/// First marks of one rule, by when they began. More: the oldest goes, and its windows burn.
const FIRSTS_MAX: usize = 8;

const fn step_of(share: u64) -> u64 {
    if share == 0 { 1 } else { share.div_ceil(STEPS) }
}

/// The mark of a bucket of which nothing is noted, of a share of this size.
#[must_use]
pub fn first_mark(share: u64) -> u64 {
    step_of(share).saturating_mul(FIRST_STEPS).min(share)
}

/// The mark to note where `spent` permits of a share are to be gone.
#[must_use]
pub fn raised_mark(spent: u64, share: u64) -> u64 {
    let step = step_of(share);
    spent.div_ceil(step).saturating_mul(step).min(share.max(spent))
}

/// The mark to note in place of one that lies far above what is spent, since rights came for it from other
/// regions; `None`: it does not.
#[must_use]
pub fn lowered_mark(mark: u64, spent: u64, share: u64) -> Option<u64> {
    let step = step_of(share);
    let lower = raised_mark(spent.saturating_add(step), share);
    (mark > lower.saturating_add(step)).then_some(lower)
}

/// True of a rule whose buckets have marks, where its windows are long enough.
#[must_use]
pub fn has_marks(rule: &Rule) -> bool {
    let escrowed = rule.global.as_ref().is_some_and(|global| global.mode == Mode::Escrow);
    escrowed && moves_as(rule.algorithm) == Counting::Window
}

/// True of windows that are long enough for marks.
#[must_use]
pub fn are_marked(windows: Windows) -> bool {
    windows.shortest() >= MARKED_WINDOW
}

/// The mark of one bucket in one window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct WindowMark {
    /// The most that may be spent of its own rights, what earlier memories may have spent included.
    pub permits: u64,
    /// What earlier memories may have spent: their last mark.
    pub burnt: u64,
}

/// The first marks of a rule's buckets: for the windows that begin a clock margin after an instant or later.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RuleMarks(Vec<(Timestamp, u64)>);

impl RuleMarks {
    /// From `since` on each bucket keeps to a first mark of so many permits.
    pub fn begin(&mut self, since: Timestamp, permits: u64) {
        self.0.retain(|(known, _)| *known < since);
        if self.0.last().is_none_or(|(_, known)| *known != permits) {
            self.0.push((since, permits));
        }
        if self.0.len() > FIRSTS_MAX {
            self.0.remove(0);
        }
    }

    /// Nothing was spent before the first of them was noted, in no window.
    pub fn begin_first(&mut self) {
        if let Some((since, _)) = self.0.first_mut() {
            *since = Timestamp(0);
        }
    }

    /// Returns what the buckets of which nothing is noted may have spent in a window. `None`: not all that
    /// was spent in it kept to marks.
    #[must_use]
    pub fn spent(&self, window: u64, windows: Windows, safety: &EscrowSafety) -> Option<u64> {
        let begins = |since: Timestamp| since == Timestamp(0) || is_known(window, windows, since);
        let known = self.0.iter().rev().find(|(since, _)| begins(*since)).map(|(_, permits)| *permits);
        known.or_else(|| (!safety.marks_have_a_beginning).then(|| self.kept(window, windows)).flatten())
    }

    /// The first mark that a bucket keeps to in a window, whether or not all of it is known. `None`: the rule
    /// has none.
    #[must_use]
    pub fn kept(&self, window: u64, windows: Windows) -> Option<u64> {
        let begun = self.0.iter().rev().find(|(since, _)| is_known(window, windows, *since));
        begun.or_else(|| self.0.first()).map(|(_, permits)| *permits)
    }

    fn text(&self) -> String {
        let firsts: Vec<String> =
            self.0.iter().map(|(since, permits)| format!("{}:{permits}", since.0)).collect();
        if firsts.is_empty() { "-".to_owned() } else { firsts.join(",") }
    }

    fn read(text: &str) -> Option<Self> {
        if text == "-" {
            return Some(Self::default());
        }
        let first = |text: &str| {
            let (since, permits) = text.split_once(':')?;
            Some((Timestamp(since.parse().ok()?), permits.parse().ok()?))
        };
        let firsts = text.split(',').map(first).collect::<Option<Vec<_>>>()?;
        let in_order = firsts.iter().zip(firsts.iter().skip(1)).all(|((one, _), (next, _))| one < next);
        (in_order && firsts.len() <= FIRSTS_MAX).then_some(Self(firsts))
    }
}

/// Something that is noted outside of the process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MarkNote {
    /// The first marks of a rule, in place of those noted before. Without any its windows burn.
    Rule {
        /// Text that names the rule's buckets in every process.
        identity: String,
        /// The number that stands for it in keys.
        shape: Shape,
        /// A number that no shape had so far.
        next: u32,
        /// Its first marks.
        firsts: RuleMarks,
    },
    /// A bucket may spend so much.
    Mark {
        /// The key of the bucket.
        key: Vec<u8>,
        /// The index of the window.
        window: u64,
        /// The mark.
        permits: u64,
        /// When the window is over.
        until: Timestamp,
    },
    /// The weights of this digest are noted now.
    Beside(Vec<u8>),
    /// The process is alive at this instant.
    Alive(Timestamp),
    /// Nothing lived between these instants.
    Break(Timestamp, Timestamp),
    /// Marks of windows that were over by then may be missing.
    Pruned(Timestamp),
}

/// Windows of which notes say nothing, whatever rule they are of.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct UnknownWindows {
    /// Windows that began in them were counted by somebody else, if at all.
    pub breaks: Breaks,
    /// Marks of windows that were over by then were forgotten: a clock that was ahead is right again.
    pub pruned: Timestamp,
}

impl UnknownWindows {
    /// True of a window that may have been spent as a whole.
    #[must_use]
    pub fn contain(&self, window: u64, windows: Windows) -> bool {
        (self.pruned > Timestamp(0) && windows.end(window) <= self.pruned)
            || self.breaks.cover(window, windows)
    }

    /// The same as notes.
    pub fn notes(&self) -> impl Iterator<Item = MarkNote> {
        let breaks = self.breaks.all().map(|(from, to)| MarkNote::Break(from, to));
        breaks.chain([MarkNote::Pruned(self.pruned)])
    }
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2 + 1);
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    // An empty word would not be one.
    if text.is_empty() { "-".to_owned() } else { text }
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    if text == "-" {
        return Some(Vec::new());
    }
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let byte = |pair: &[u8; 2]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    if rest.is_empty() { pairs.iter().map(byte).collect() } else { None }
}

fn sum_of(text: &str) -> u64 {
    let mut hasher = SipHasher13::new();
    hasher.write(text.as_bytes());
    hasher.finish()
}

impl MarkNote {
    /// One line, which [`Self::read`] reads.
    #[must_use]
    pub fn line(&self) -> String {
        let mut text = match self {
            Self::Rule { identity, shape, next, firsts } => {
                format!("rule {} {} {next} {}", hex(identity.as_bytes()), shape.0, firsts.text())
            }
            Self::Mark { key, window, permits, until } => {
                format!("mark {} {window} {permits} {}", hex(key), until.0)
            }
            Self::Beside(digest) => format!("beside {}", hex(digest)),
            Self::Alive(at) => format!("alive {}", at.0),
            Self::Break(from, to) => format!("break {} {}", from.0, to.0),
            Self::Pruned(at) => format!("pruned {}", at.0),
        };
        let sum = sum_of(&text);
        let _ = writeln!(text, " {sum:016x}");
        text
    }

    /// Reads a line without its end. `None`: it is damaged, or another version wrote it.
    #[must_use]
    pub fn read(line: &str) -> Option<Self> {
        let (text, sum) = line.rsplit_once(' ')?;
        if u64::from_str_radix(sum, 16).ok()? != sum_of(text) {
            return None;
        }
        let words: Vec<&str> = text.split(' ').collect();
        match words.as_slice() {
            ["rule", identity, shape, next, firsts] => Some(Self::Rule {
                identity: String::from_utf8(unhex(identity)?).ok()?,
                shape: Shape(shape.parse().ok()?),
                next: next.parse().ok()?,
                firsts: RuleMarks::read(firsts)?,
            }),
            ["mark", key, window, permits, until] => Some(Self::Mark {
                key: unhex(key)?,
                window: window.parse().ok()?,
                permits: permits.parse().ok()?,
                until: Timestamp(until.parse().ok()?),
            }),
            ["beside", digest] => Some(Self::Beside(unhex(digest)?)),
            ["alive", at] => Some(Self::Alive(Timestamp(at.parse().ok()?))),
            ["break", from, to] => {
                Some(Self::Break(Timestamp(from.parse().ok()?), Timestamp(to.parse().ok()?)))
            }
            ["pruned", at] => Some(Self::Pruned(Timestamp(at.parse().ok()?))),
            _ => None,
        }
    }
}

/// All that is noted: what is known after a loss.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RememberedMarks {
    rules: BTreeMap<Shape, (String, RuleMarks)>,
    next: u32,
    /// By key and window: the mark, and when the window is over.
    marks: BTreeMap<(Vec<u8>, u64), (u64, Timestamp)>,
    beside: Vec<u8>,
    /// The last sign of life of whoever noted all this.
    alive: Timestamp,
    unknown: UnknownWindows,
}

impl RememberedMarks {
    /// Takes in a note, in the order in which they were written.
    pub fn handle(&mut self, note: MarkNote) {
        match note {
            MarkNote::Rule { identity, shape, next, firsts } => {
                self.next = self.next.max(next);
                self.rules.insert(shape, (identity, firsts));
            }
            MarkNote::Mark { key, window, permits, until } => {
                self.marks.insert((key, window), (permits, until));
            }
            MarkNote::Beside(digest) => self.beside = digest,
            // Where the clock was set back meanwhile the last one counts, too.
            MarkNote::Alive(at) => self.alive = at,
            MarkNote::Break(from, to) => self.unknown.breaks.add(from, to),
            MarkNote::Pruned(at) => self.unknown.pruned = self.unknown.pruned.max(at),
        }
    }

    /// Begins the next life: forgets windows that are over, and rules and buckets of which it does not know
    /// all. Of windows that began since the last sign of life it knows nothing.
    pub fn prune(&mut self, now: Timestamp) {
        if self.alive > Timestamp(0) {
            self.unknown.breaks.add(self.alive, now);
        } else {
            // Nobody vouches for what is noted.
            self.rules.clear();
        }
        self.unknown.pruned = self.unknown.pruned.max(now);
        self.alive = now;
        self.rules.retain(|_, (_, firsts)| *firsts != RuleMarks::default());
        let rules = &self.rules;
        let of_rule =
            |key: &[u8]| Key::shape_of(key).is_some_and(|shape| rules.contains_key(&shape.of_rule()));
        self.marks.retain(|(key, _), (_, until)| now < *until + RECOVERY_MARGIN && of_rule(key));
    }

    /// The digest of the weights that were noted last.
    #[must_use]
    pub fn beside(&self) -> &[u8] {
        &self.beside
    }

    /// The last sign of life.
    #[must_use]
    pub const fn alive(&self) -> Timestamp {
        self.alive
    }

    /// Windows of which it knows nothing.
    #[must_use]
    pub const fn unknown(&self) -> &UnknownWindows {
        &self.unknown
    }

    /// Returns what the shapes of its rules stand for, and a number that no shape had.
    #[must_use]
    pub fn shapes(&self) -> (Vec<(String, Shape)>, u32) {
        let shapes = self.rules.iter().map(|(shape, (identity, _))| (identity.clone(), *shape));
        (shapes.collect(), self.next)
    }

    /// The first marks of each rule, with what its shape stands for.
    pub fn rules(&self) -> impl Iterator<Item = (Shape, &str, &RuleMarks)> {
        self.rules.iter().map(|(shape, (identity, firsts))| (*shape, identity.as_str(), firsts))
    }

    /// The key, window and mark of each bucket that has a note, and when the window is over.
    pub fn marks(&self) -> impl Iterator<Item = (&[u8], u64, u64, Timestamp)> {
        self.marks.iter().map(|((key, window), (permits, until))| (key.as_slice(), *window, *permits, *until))
    }

    /// The same as notes, for the next process to find.
    pub fn notes(&self) -> impl Iterator<Item = MarkNote> {
        let rules = self.rules.iter().map(|(shape, (identity, firsts))| MarkNote::Rule {
            identity: identity.clone(),
            shape: *shape,
            next: self.next,
            firsts: firsts.clone(),
        });
        let marks = self.marks().map(|(key, window, permits, until)| MarkNote::Mark {
            key: key.to_vec(),
            window,
            permits,
            until,
        });
        rules.chain(marks).chain(self.unknown.notes()).chain([MarkNote::Alive(self.alive)])
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HOUR: Span = Span::from_secs(3_600);

    fn hours() -> Windows {
        Windows::new(HOUR, None)
    }

    fn at(hours: u64, seconds: u64) -> Timestamp {
        Timestamp(hours * HOUR.0) + Span::from_secs(seconds)
    }

    proptest! {
        #[test]
        fn a_mark_covers_what_is_spent_and_loses_at_most_an_eighth_beyond(
            (share, spent) in (0_u64..5_000).prop_flat_map(|share| (Just(share), 0..=share)),
        ) {
            let mark = raised_mark(spent, share);
            prop_assert!((spent..=share).contains(&mark), "{mark}");
            prop_assert!(mark - spent <= share.div_ceil(8), "{mark}");
            prop_assert!(first_mark(share) <= share.min(2 * share.div_ceil(8)));
            prop_assert_eq!(raised_mark(mark, share), mark, "a mark is enough for itself");
            for high in [mark, share] {
                if let Some(lower) = lowered_mark(high, spent, share) {
                    prop_assert!(spent < lower && lower < high && lower - spent <= 2 * share.div_ceil(8));
                } else {
                    prop_assert!(high - spent <= 3 * share.div_ceil(8));
                }
            }
        }

        #[test]
        fn what_is_noted_is_read_again_and_a_note_that_is_damaged_is_none(
            key in proptest::collection::vec(any::<u8>(), 0..40),
            (window, permits, until) in any::<(u64, u64, u64)>(),
            (since, shape) in any::<(u64, u32)>(),
            at in any::<usize>(),
        ) {
            let mut firsts = RuleMarks::default();
            firsts.begin(Timestamp(since / 2), permits);
            firsts.begin(Timestamp(since / 2 + 7), permits ^ 1);
            let (identity, next) = (format!("{key:?} \n"), shape ^ 9);
            for note in [
                MarkNote::Mark { key: key.clone(), window, permits, until: Timestamp(until) },
                MarkNote::Rule { identity: identity.clone(), shape: Shape(shape), next, firsts },
                MarkNote::Rule { identity, shape: Shape(shape), next, firsts: RuleMarks::default() },
                MarkNote::Beside(key),
                MarkNote::Alive(Timestamp(until)),
                MarkNote::Break(Timestamp(since), Timestamp(until)),
                MarkNote::Pruned(Timestamp(since)),
            ] {
                let line = note.line();
                let text = line.strip_suffix('\n').unwrap();
                prop_assert_eq!(MarkNote::read(text), Some(note));
                let mut damaged = text.as_bytes().to_vec();
                let at = at % damaged.len();
                damaged[at] = if damaged[at] == b'7' { b'8' } else { b'7' };
                prop_assert_eq!(MarkNote::read(std::str::from_utf8(&damaged).unwrap()), None);
                prop_assert_eq!(MarkNote::read(&text[..text.len() - 1]), None);
            }
        }
    }

    #[test]
    fn a_first_mark_speaks_of_windows_that_begin_after_it_was_noted() {
        let mut firsts = RuleMarks::default();
        let spent = |firsts: &RuleMarks, window| firsts.spent(window, hours(), &EscrowSafety::ALL);
        assert_eq!((spent(&firsts, 5), firsts.kept(5, hours())), (None, None));
        firsts.begin(at(5, 10), 25);
        assert_eq!((spent(&firsts, 5), spent(&firsts, 6)), (None, Some(25)));
        assert_eq!(firsts.kept(5, hours()), Some(25), "it is kept to from the beginning on");
        // Within the clock margin of the next window: a clock that was ahead had begun it.
        firsts.begin(Timestamp(at(9, 0).0 - 500_000), 50);
        assert_eq!((spent(&firsts, 9), spent(&firsts, 10)), (Some(25), Some(50)));
        assert_eq!(firsts.kept(9, hours()), Some(25));
        // The same again changes nothing.
        let before = firsts.clone();
        firsts.begin(at(12, 0), 50);
        assert_eq!(firsts, before);
        firsts.begin_first();
        assert_eq!((spent(&firsts, 1), spent(&firsts, 10)), (Some(25), Some(50)));
    }

    #[test]
    fn first_marks_of_a_rule_are_bounded_and_the_oldest_windows_burn() {
        let mut firsts = RuleMarks::default();
        for hour in 0..20 {
            firsts.begin(at(hour, 10), hour);
        }
        let spent = |window| firsts.spent(window, hours(), &EscrowSafety::ALL);
        assert_eq!((spent(11), spent(12), spent(13), spent(40)), (None, None, Some(12), Some(19)));
    }

    #[test]
    fn the_last_mark_counts_and_what_is_over_or_of_no_rule_is_forgotten() {
        let mut known = RememberedMarks::default();
        let (rule, other) = (Shape(16), Shape(24));
        let key = |shape: Shape| shape.0.to_le_bytes().to_vec();
        let mark = |shape, window, permits, until| MarkNote::Mark { key: key(shape), window, permits, until };
        let mut firsts = RuleMarks::default();
        firsts.begin(at(1, 0), 2);
        let note = |shape, firsts| MarkNote::Rule { identity: format!("{shape:?}"), shape, next: 32, firsts };
        known.handle(note(rule, firsts.clone()));
        known.handle(note(other, firsts.clone()));
        for note in [
            mark(rule, 5, 4, at(6, 0)),
            mark(rule, 5, 6, at(6, 0)),
            mark(rule, 5, 5, at(6, 0)),
            mark(rule, 4, 9, at(5, 0)),
            mark(other, 5, 3, at(6, 0)),
            note(other, RuleMarks::default()),
            MarkNote::Beside(vec![1]),
            MarkNote::Beside(vec![2]),
            MarkNote::Alive(at(5, 9)),
        ] {
            known.handle(note);
        }
        known.prune(at(5, 10));
        assert_eq!(known.marks().collect::<Vec<_>>(), [(key(rule).as_slice(), 5, 5, at(6, 0))]);
        assert_eq!(known.shapes(), (vec![(format!("{rule:?}"), rule)], 32));
        assert_eq!(known.beside(), [2]);
        let mut again = RememberedMarks::default();
        known.notes().for_each(|note| again.handle(note));
        again.handle(MarkNote::Beside(vec![2]));
        assert_eq!(again, known);
    }

    #[test]
    fn windows_that_began_after_the_last_sign_of_life_are_unknown_to_all_that_come_after() {
        let mut known = RememberedMarks::default();
        let unknown = |known: &RememberedMarks| {
            (8..16).filter(|hour| known.unknown().contain(*hour, hours())).collect::<Vec<_>>()
        };
        known.handle(MarkNote::Alive(at(10, 1_200)));
        known.prune(at(11, 1_860));
        // Those that are over, and the one that another daemon may have begun.
        assert_eq!(unknown(&known), [8, 9, 10, 11]);
        let mut next = RememberedMarks::default();
        known.notes().for_each(|note| next.handle(note));
        next.handle(MarkNote::Alive(at(11, 3_599)));
        next.prune(at(11, 3_601));
        assert!(next.unknown().breaks.cover(11, hours()), "for a life after, too");
        assert!(next.unknown().breaks.cover(12, hours()), "it began between two lives");
        assert!(!next.unknown().contain(13, hours()));
    }

    #[test]
    fn a_window_whose_marks_were_forgotten_by_a_clock_that_was_ahead_is_unknown() {
        let mut known = RememberedMarks::default();
        known.handle(MarkNote::Alive(at(10, 600)));
        known.prune(at(10, 601));
        assert!(!known.unknown().contain(10, hours()), "it is in progress");
        for now in [at(12, 0), at(10, 900)] {
            let mut next = RememberedMarks::default();
            known.notes().for_each(|note| next.handle(note));
            next.prune(now);
            known = next;
        }
        assert!(known.unknown().contain(10, hours()));
        assert_eq!(known.unknown().pruned, at(12, 0));
    }
}
