//! The rights of one region for one bucket, as its store keeps them, and the steps that change them.
//!
//! Each way of counting has a ledger and steps of its own: [`super::window`], [`super::level`] and
//! [`super::places`]. Here is what a daemon and its store say to each other of any of them.

use super::super::super::algorithm::Counting;
use super::super::super::time::Timestamp;
use super::super::super::wire::OwnLimit;
use super::super::super::wire::rights::RightKind;
use super::super::WorldKey;
use super::level::{LevelLedger, LevelStep};
use super::places::{PlacesLedger, PlacesStep};
use super::totals::{MovedRights, Taking, moved};
use super::window::{WindowLedger, WindowStep};

/// Something to be done to a ledger, atomically with decisions on its bucket. A store whose bucket counts in
/// another way refuses it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Only look.
    Read,
    /// A step on rights of a window. It changes nothing if the store is in another window.
    Window {
        /// The index of the window that it speaks of.
        window: u64,
        /// What to do.
        step: WindowStep,
    },
    /// A step on permits of a level.
    Level(LevelStep),
    /// A step on places that are lent.
    Places {
        /// When its reason was heard, by the daemon's clock.
        heard: Timestamp,
        /// What to do.
        step: PlacesStep,
    },
}

impl Step {
    /// Whether it says all that another one of the same region's session says, and is as new: totals are
    /// cumulative, so that one is then of no more use.
    pub(super) fn says_more_than(&self, other: &Self) -> bool {
        let took = |new: &Taking, old: &Taking| {
            (&new.from, new.session, new.to_session) == (&old.from, old.session, old.to_session)
                && new.permits >= old.permits
        };
        match (self, other) {
            (
                Self::Window { window, step: WindowStep::Take(new) },
                Self::Window { window: before, step: WindowStep::Take(old) },
            ) => window == before && took(new, old),
            (
                Self::Level(LevelStep::Take { taking: new, .. }),
                Self::Level(LevelStep::Take { taking: old, .. }),
            ) => took(new, old),
            (
                Self::Level(LevelStep::Acknowledge { to, session, permits }),
                Self::Level(LevelStep::Acknowledge { to: region, session: known, permits: before }),
            ) => (to, session) == (region, known) && permits >= before,
            (Self::Places { heard, step: new }, Self::Places { heard: before, step: old }) => {
                heard >= before
                    && match (new, old) {
                        (PlacesStep::Take(new), PlacesStep::Take(old)) => took(new, old),
                        (
                            PlacesStep::OpenSession { region, session, has, gave },
                            PlacesStep::OpenSession { region: known, session: of, has: had, gave: gave_then },
                        ) => (region, session) == (known, of) && has >= had && gave >= gave_then,
                        _ => false,
                    }
            }
            _ => false,
        }
    }
}

/// A step for the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepRequest {
    /// The bucket.
    pub key: WorldKey,
    /// What to do.
    pub step: Step,
    /// By which limit the bucket counts, where that is not the rule's.
    pub own: Option<OwnLimit>,
}

/// What became of a step: the ledger after it, with what has been used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepResult {
    /// The ledger.
    pub ledger: Ledger,
    /// Permits of its budget that are used or charged, or places that have holders.
    pub used: u64,
}

impl StepResult {
    /// Rights that could be spent at once.
    #[must_use]
    pub fn free(&self) -> u64 {
        self.ledger.budget().saturating_sub(self.used)
    }
}

/// One region's rights for one bucket, by what the bucket counts.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Ledger {
    /// Rights of a window.
    Window(WindowLedger),
    /// Permits of a level.
    Level(LevelLedger),
    /// Places.
    Places(PlacesLedger),
}

impl Ledger {
    /// What its bucket counts.
    #[must_use]
    pub const fn counting(&self) -> Counting {
        match self {
            Self::Window(_) => Counting::Window,
            Self::Level(_) => Counting::Level,
            Self::Places(_) => Counting::Concurrency,
        }
    }

    /// Which rights it holds.
    #[must_use]
    pub const fn kind(&self) -> RightKind {
        match self {
            Self::Window(ledger) => RightKind::Window(ledger.window),
            Self::Level(_) => RightKind::Level,
            Self::Places(_) => RightKind::Places,
        }
    }

    /// The name of this store's memory; see [`super::super::super::wire::rights::Statement::session`].
    #[must_use]
    pub const fn session(&self) -> u64 {
        match self {
            Self::Window(ledger) => ledger.session,
            Self::Level(ledger) => ledger.session,
            Self::Places(ledger) => ledger.session,
        }
    }

    /// What the region began with: its share, or less where an earlier memory may have spent it.
    #[must_use]
    pub const fn minted(&self) -> u64 {
        match self {
            Self::Window(ledger) => ledger.minted,
            Self::Level(ledger) => ledger.minted,
            Self::Places(ledger) => ledger.owned,
        }
    }

    /// What may be used.
    #[must_use]
    pub fn budget(&self) -> u64 {
        match self {
            Self::Window(ledger) => ledger.budget(),
            Self::Level(ledger) => ledger.budget(),
            Self::Places(ledger) => ledger.capacity,
        }
    }

    /// Whether rights are burnt of which the region would mint `share`, because what was lost may have spent
    /// them.
    #[must_use]
    pub const fn is_recovering(&self, share: u64) -> bool {
        match self {
            Self::Window(ledger) => ledger.minted == 0 && share > 0,
            Self::Level(_) | Self::Places(_) => self.minted() < share,
        }
    }

    /// All that went to other regions.
    pub fn given(&self) -> impl Iterator<Item = MovedRights<'_>> {
        let (window, level, places) = match self {
            Self::Window(ledger) => (Some(&ledger.given), None, None),
            Self::Level(ledger) => (None, Some(&ledger.forwarded), None),
            Self::Places(ledger) => (None, None, Some(&ledger.partners)),
        };
        let window = window.into_iter().flatten().map(MovedRights::from);
        let level = level.into_iter().flatten().map(|forwarded| forwarded.given());
        window.chain(level).chain(places.into_iter().flatten().map(|partner| partner.given()))
    }

    /// All that came from other regions.
    pub fn taken(&self) -> impl Iterator<Item = MovedRights<'_>> {
        let (totals, partners) = match self {
            Self::Window(ledger) => (Some(&ledger.taken), None),
            Self::Level(ledger) => (Some(&ledger.taken), None),
            Self::Places(ledger) => (None, Some(&ledger.partners)),
        };
        let totals = totals.into_iter().flatten().map(MovedRights::from);
        totals.chain(partners.into_iter().flatten().map(|partner| partner.taken()))
    }

    /// All that went to a region in one of its sessions.
    #[must_use]
    pub fn given_to(&self, region: &str, session: u64) -> u64 {
        moved(self.given(), region, session)
    }

    /// All that came from a region in one of its sessions.
    #[must_use]
    pub fn taken_from(&self, region: &str, session: u64) -> u64 {
        moved(self.taken(), region, session)
    }

    /// The rights of a window, if it holds such.
    #[must_use]
    pub const fn as_window(&self) -> Option<&WindowLedger> {
        if let Self::Window(ledger) = self { Some(ledger) } else { None }
    }

    /// The permits of a level, if it holds such.
    #[must_use]
    pub const fn as_level(&self) -> Option<&LevelLedger> {
        if let Self::Level(ledger) = self { Some(ledger) } else { None }
    }

    /// The places, if it holds such.
    #[must_use]
    pub const fn as_places(&self) -> Option<&PlacesLedger> {
        if let Self::Places(ledger) = self { Some(ledger) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn confirmed(ms: u64, region: &str, gave: Option<u64>) -> Step {
        let step = PlacesStep::OpenSession { region: region.to_owned(), session: 7, has: Some(4), gave };
        Step::Places { heard: Timestamp(ms * 1_000), step }
    }

    fn took(permits: u64, to_session: u64) -> Step {
        Step::Window {
            window: 3,
            step: WindowStep::Take(Taking { from: "b".to_owned(), session: 7, to_session, permits }),
        }
    }

    #[test]
    fn a_later_word_of_the_same_session_says_all_of_the_one_before() {
        assert!(confirmed(2, "b", Some(5)).says_more_than(&confirmed(1, "b", Some(5))));
        assert!(took(9, 1).says_more_than(&took(8, 1)));
        for (new, old) in [
            (confirmed(1, "b", Some(5)), confirmed(2, "b", Some(5))),
            (confirmed(2, "c", Some(5)), confirmed(1, "b", Some(5))),
            // It lets what it lent run out.
            (confirmed(2, "b", None), confirmed(1, "b", Some(5))),
            (took(8, 1), took(9, 1)),
            (took(9, 2), took(8, 1)),
            (took(9, 1), confirmed(1, "b", None)),
        ] {
            assert!(!new.says_more_than(&old), "{new:?} {old:?}");
        }
    }
}
