//! Notices that an operator should know of the cluster as it stands: each told once when it begins and once
//! when it ends.
//!
//! A look hands in everything that is so now ([`Notices::handle_look`]). A notice that lasts longer than its
//! kind's patience is told, and shown for as long as it lasts. One that comes and goes is told at most once
//! in [`TOLD_AGAIN`].

use std::collections::BTreeMap;

use super::time::{Span, Timestamp};

/// Most conditions at once. More are left out; [`Notices::left_out`] says how many.
pub const NOTICES_MAX: usize = 128;
/// A notice that ended and begins again sooner than this after it was told is told only when it has lasted so
/// long.
pub const TOLD_AGAIN: Span = Span::from_secs(10);

/// Kinds of notices, by what they are about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NoticeKind {
    /// A region is out of reach.
    CutOff,
    /// No daemon of a listed region has been heard of yet.
    Unseen,
    /// Daemons do not list the same regions.
    Regions,
    /// Nothing is spent of exact limits until the regions have agreed.
    Agreement,
    /// Rights of an exact limit are burnt, since the store forgot what was spent of them.
    Burning,
    /// A worldwide rule is not the same everywhere.
    Rules,
    /// Clocks are further apart than `gossip` bears.
    Clock,
    /// Nobody answers at an address to join through.
    Join,
    /// A daemon and this one do not accept each other's certificates.
    Refused,
    /// A certificate of this daemon ends soon, or has ended.
    Certificate,
    /// Two daemons show one certificate.
    Twice,
    /// The configuration file is wrong, or says what only a restart can bring into force.
    Configuration,
}

impl NoticeKind {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::CutOff,
        Self::Unseen,
        Self::Regions,
        Self::Agreement,
        Self::Burning,
        Self::Rules,
        Self::Clock,
        Self::Join,
        Self::Refused,
        Self::Certificate,
        Self::Twice,
        Self::Configuration,
    ];

    /// The word for a metric's label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::CutOff => "cut_off",
            Self::Unseen => "unseen",
            Self::Regions => "regions",
            Self::Agreement => "agreement",
            Self::Burning => "burning",
            Self::Rules => "rules",
            Self::Clock => "clock",
            Self::Join => "join",
            Self::Refused => "refused",
            Self::Certificate => "certificate",
            Self::Twice => "twice",
            Self::Configuration => "configuration",
        }
    }

    /// So long it may last before it is shown: as long as before it is told, but what denies requests is
    /// shown at once, so that whoever asks why they are denied reads it.
    #[must_use]
    pub const fn shown_after(self) -> Span {
        match self {
            Self::Agreement => Span::ZERO,
            _ => self.patience(),
        }
    }

    /// So long it may last before it is told: what passes by itself while daemons start or rules change is
    /// not worth a line.
    #[must_use]
    pub const fn patience(self) -> Span {
        match self {
            Self::CutOff | Self::Refused | Self::Certificate | Self::Configuration => Span::ZERO,
            Self::Regions => Span::from_secs(2),
            Self::Unseen | Self::Agreement | Self::Rules | Self::Join => Span::from_secs(5),
            Self::Burning | Self::Clock | Self::Twice => Span::from_secs(10),
        }
    }
}

/// Something that is so now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// Kind of notice, by which programs tell them apart.
    pub kind: NoticeKind,
    /// The subject of the notice: the same for as long as it is the same notice.
    pub subject: String,
    /// A sentence to tell people when the notice begins.
    pub text: String,
    /// A sentence to tell people when it is over.
    pub over: String,
}

/// The change of a notice that is to be told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoticeChange {
    /// This is so.
    Begun(Notice),
    /// This is so no more.
    Over(Notice),
}

#[derive(Debug)]
struct NoticeEntry {
    notice: Notice,
    since: Timestamp,
    /// It is so, and has lasted as long as its kind may before it is shown: also where it is not told yet.
    shown: bool,
    told: bool,
    /// Instant at which it was told last, also in an earlier life.
    told_at: Option<Timestamp>,
    /// Over, and kept for [`TOLD_AGAIN`] so that it is not told at every turn.
    over: bool,
}

/// Compares looks.
#[derive(Debug, Default)]
pub struct Notices {
    entries: BTreeMap<(NoticeKind, String), NoticeEntry>,
    left_out: usize,
}

impl Notices {
    /// All of this is so at `now`, and nothing else.
    pub fn handle_look(
        &mut self,
        now: Timestamp,
        found: impl IntoIterator<Item = Notice>,
    ) -> Vec<NoticeChange> {
        let mut told = Vec::new();
        let mut seen = std::collections::BTreeSet::new();
        self.left_out = 0;
        for notice in found {
            let key = (notice.kind, notice.subject.clone());
            if !self.entries.contains_key(&key) && self.entries.len() >= NOTICES_MAX {
                self.left_out += 1;
                continue;
            }
            seen.insert(key.clone());
            let fresh = || NoticeEntry {
                notice: notice.clone(),
                since: now,
                shown: false,
                told: false,
                told_at: None,
                over: false,
            };
            let entry = self.entries.entry(key).or_insert_with(fresh);
            if std::mem::take(&mut entry.over) {
                entry.since = now;
            }
            // A clock that went back must not keep it untold.
            entry.since = entry.since.min(now);
            entry.notice = notice;
            entry.shown = now.since(entry.since) >= entry.notice.kind.shown_after();
            let again = entry.told_at.is_some_and(|at| now.since(at) < TOLD_AGAIN);
            let patience = entry.notice.kind.patience().max(if again { TOLD_AGAIN } else { Span::ZERO });
            if !entry.told && now.since(entry.since) >= patience {
                entry.told = true;
                entry.told_at = Some(now);
                told.push(NoticeChange::Begun(entry.notice.clone()));
            }
        }
        self.entries.retain(|key, entry| {
            if seen.contains(key) {
                return true;
            }
            if std::mem::take(&mut entry.told) {
                told.push(NoticeChange::Over(entry.notice.clone()));
            }
            (entry.over, entry.shown) = (true, false);
            entry.told_at.is_some_and(|at| at <= now && now.since(at) < TOLD_AGAIN)
        });
        told
    }

    /// All that is so now and has lasted as long as its kind may before it is shown.
    pub fn shown(&self) -> impl Iterator<Item = &Notice> {
        self.entries.values().filter(|entry| entry.shown).map(|entry| &entry.notice)
    }

    /// Returns how many found no room at the last look.
    #[must_use]
    pub const fn left_out(&self) -> usize {
        self.left_out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notice(kind: NoticeKind, subject: &str) -> Notice {
        Notice {
            kind,
            subject: subject.into(),
            text: format!("{subject} is away"),
            over: format!("{subject} is back"),
        }
    }

    fn at(seconds: u64) -> Timestamp {
        Timestamp(1_000_000_000 + seconds * 1_000_000)
    }

    fn texts(told: Vec<NoticeChange>) -> Vec<String> {
        told.into_iter()
            .map(|told| match told {
                NoticeChange::Begun(notice) => notice.text,
                NoticeChange::Over(notice) => notice.over,
            })
            .collect()
    }

    #[test]
    fn each_is_told_once_when_it_begins_and_once_when_it_ends() {
        let mut watch = Notices::default();
        let us = || [notice(NoticeKind::CutOff, "us")];
        assert_eq!(texts(watch.handle_look(at(0), us())), ["us is away"]);
        assert_eq!(texts(watch.handle_look(at(1), us())), [""; 0]);
        assert_eq!(watch.shown().count(), 1);
        assert_eq!(texts(watch.handle_look(at(20), [])), ["us is back"]);
        assert_eq!(watch.shown().count(), 0);
        assert_eq!(texts(watch.handle_look(at(21), us())), ["us is away"]);
    }

    #[test]
    fn passing_trouble_is_not_told() {
        let mut watch = Notices::default();
        let differs = || [notice(NoticeKind::Rules, "search")];
        for second in 0..5 {
            assert_eq!(texts(watch.handle_look(at(second), differs())), [""; 0]);
        }
        assert_eq!(texts(watch.handle_look(at(5), [])), [""; 0]);
        for second in 6..11 {
            assert_eq!(texts(watch.handle_look(at(second), differs())), [""; 0], "it begins anew");
        }
        assert_eq!(texts(watch.handle_look(at(11), differs())), ["search is away"]);
    }

    #[test]
    fn what_denies_requests_is_shown_before_it_is_told() {
        let mut watch = Notices::default();
        let waits = || [notice(NoticeKind::Agreement, "seats")];
        assert_eq!(texts(watch.handle_look(at(0), waits())), [""; 0]);
        assert_eq!(watch.shown().count(), 1);
        assert_eq!(texts(watch.handle_look(at(5), waits())), ["seats is away"]);
    }

    #[test]
    fn what_comes_and_goes_is_told_at_most_once_in_a_while() {
        let mut watch = Notices::default();
        let mut lines = 0;
        for second in 0..60 {
            let found = (second % 2 == 0).then(|| notice(NoticeKind::CutOff, "us"));
            lines += watch.handle_look(at(second), found).len();
        }
        assert!(lines <= 14, "{lines} lines in a minute");
    }

    #[test]
    fn what_is_not_told_again_yet_is_shown_all_the_same() {
        let mut watch = Notices::default();
        let us = || [notice(NoticeKind::CutOff, "us")];
        watch.handle_look(at(0), us());
        watch.handle_look(at(1), []);
        assert_eq!(watch.shown().count(), 0);
        for second in 5..9 {
            assert_eq!(texts(watch.handle_look(at(second), us())), [""; 0]);
            assert_eq!(watch.shown().count(), 1);
        }
        assert_eq!(texts(watch.handle_look(at(9), [])), [""; 0], "nor is its end");
        assert_eq!(watch.shown().count(), 0);
    }

    #[test]
    fn more_than_are_kept_are_counted() {
        let mut watch = Notices::default();
        let many = |count: usize| (0..count).map(|nth| notice(NoticeKind::Rules, &nth.to_string()));
        watch.handle_look(at(0), many(NOTICES_MAX + 3));
        assert_eq!(watch.left_out(), 3);
        watch.handle_look(at(1), many(1));
        watch.handle_look(at(2), many(NOTICES_MAX));
        assert_eq!(watch.left_out(), 0);
    }
}
