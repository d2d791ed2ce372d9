//! The regions that share limits, changed while the daemon runs: the port between the admin routes and what
//! keeps the list.

use std::fmt;

use super::port::Later;
use crate::core::region_list::{REGION_CHANGES_MAX, RegionState, Signed};

/// Changes how regions stand.
pub trait RegionListing: Send + Sync + 'static {
    /// Changes one region. With an operator's signature of it, and the stamp that it is of, it tells the
    /// other daemons, and waits a moment for them to say the same.
    fn change<'a>(
        &'a self,
        region: &'a str,
        state: RegionState,
        signed: Option<(u64, Signed)>,
    ) -> Later<'a, Result<RegionChanged, RegionRefused>>;
}

/// A region that was changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegionChanged {
    /// State of the region before; `None`: nobody listed it.
    pub before: Option<RegionState>,
    /// Rules with shares of their own, of which a region that was added has none.
    pub without_share: Vec<String>,
    /// Daemons that are there and have not said yet that they know of the change, as `region/node`.
    pub waiting_for: Vec<String>,
    /// The operator who signed it; `None`: nobody did, and the other daemons do not take it.
    pub signed_by: Option<String>,
}

/// Reasons why a region was not changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RegionRefused {
    /// The daemon speaks with no others.
    Alone,
    /// Its configuration lists no regions, so whoever is seen takes part.
    NobodyListed,
    /// No region can have this name.
    NoName(String),
    /// It is not listed, so there is nothing to drain or to remove.
    NotListed(String),
    /// It is the daemon's own, of which only the others can say that it is there no more.
    Own(String),
    /// These rules would have no region with a share.
    LastWithShare(Vec<String>),
    /// It may hold a share still.
    HasShare(String),
    /// Others still wait to hold what it had.
    Waits(Vec<String>),
    /// Daemons of it are there.
    Alive(Vec<String>),
    /// The certificate that signs it is not an operator's, and why.
    NotSigned(String),
    /// A newer change of the region is known, or the signature is of a time to come.
    NotNow,
    /// Too many regions were changed already.
    NoRoom,
    /// The change was not noted on disk, so nothing was changed.
    NotNoted(String),
}

impl fmt::Display for RegionRefused {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Alone => to.write_str("this daemon speaks with no others: there is no [peers.tls]"),
            Self::NobodyListed => to.write_str(
                "peers.regions lists no regions, so every region that is seen takes part: list them first",
            ),
            Self::NoName(region) => {
                write!(
                    to,
                    "{region:?} is no name of a region: 1 to 64 letters, digits, \".\", \"_\" and \"-\""
                )
            }
            Self::NotListed(region) => write!(to, "region {region:?} is not listed"),
            Self::Own(region) => {
                write!(
                    to,
                    "region {region:?} is this daemon's own: stop its daemons, then ask one of another region"
                )
            }
            Self::LastWithShare(rules) => {
                write!(to, "no other region has a share of {}: give one a share first", rules.join(", "))
            }
            Self::HasShare(region) => write!(
                to,
                "region {region:?} may hold shares: drain it first. If its daemons are gone and cannot come back, \
                 say that it is gone"
            ),
            Self::Waits(who) => {
                write!(to, "its share is not given up yet: waiting for {}", who.join(", "))
            }
            Self::Alive(nodes) => write!(to, "daemons of it are there: stop {} first", nodes.join(", ")),
            Self::NotSigned(why) => write!(to, "the change is not signed by an operator: {why}"),
            Self::NotNow => to.write_str(
                "a newer change of the region is known here, or the clock of whoever signed is more than ten seconds ahead: look at \
                 `tidegate regions` and at that clock, and sign again",
            ),
            Self::NoRoom => write!(to, "{REGION_CHANGES_MAX} regions were changed already"),
            Self::NotNoted(why) => write!(to, "the change could not be noted, so nothing was changed: {why}"),
        }
    }
}

/// The list of a daemon that can change nothing.
pub struct NoRegionListing;

impl RegionListing for NoRegionListing {
    fn change<'a>(
        &'a self,
        _: &'a str,
        _: RegionState,
        _: Option<(u64, Signed)>,
    ) -> Later<'a, Result<RegionChanged, RegionRefused>> {
        Box::pin(async { Err(RegionRefused::Alone) })
    }
}
