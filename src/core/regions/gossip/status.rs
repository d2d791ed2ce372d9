//! A replica's view of the world, for operators.

use std::cmp::Reverse;

use super::bucket::{GossipBucket, UncertaintyCause};
use super::replica::{Replica, Tally};
use crate::algorithm::{Allowance, Counting};
use crate::regions::membership::RegionId;
use crate::regions::{NodeName, WorldKey};
use crate::time::{Span, Timestamp};
use crate::wire::RuleName;

/// Most buckets in one [`Status`]: the ones nearest to their limits.
pub const STATUS_KEYS_MAX: usize = 64;

/// The knowledge of a replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// Every other region, with how long it was not heard.
    pub regions: Vec<RegionStatus>,
    /// Every other daemon that the replica speaks with.
    pub peers: Vec<PeerView>,
    /// The buckets nearest to their limits, at most [`STATUS_KEYS_MAX`].
    pub keys: Vec<KeyStatus>,
    /// For each rule: how far the worldwide count of any of its buckets that regions tell each other of may
    /// lie above what is believed, and what most of that is due to.
    pub error_bounds: Vec<(RuleName, u64, UncertaintyCause)>,
    /// For each rule: permits above the limit in all closed windows of the buckets that this daemon speaks
    /// for.
    pub overshoot: Vec<(RuleName, u64)>,
    /// Number of buckets that the replica follows.
    pub keys_len: usize,
    /// After this long a report has reached everyone.
    pub horizon: Span,
    /// Counts of frames and reports since the start.
    pub tally: Tally,
}

/// One other region.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegionStatus {
    /// Name of the region, as its daemons' certificates have it.
    pub name: String,
    /// Age of the newest frame heard from it.
    pub lag: Option<Span>,
    /// Time that its newest frame took, clock offset included.
    pub delay: Option<Span>,
    /// True if it was silent for too long: the limits that span it follow `on_partition`.
    pub cut_off: bool,
    /// True if all its daemons went in good order.
    pub left: bool,
}

/// One other daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerView {
    /// Region and node of the other daemon, unique in the cluster.
    pub name: NodeName,
    /// True if membership believes it alive.
    pub live: bool,
    /// Age of the newest frame heard from it.
    pub lag: Option<Span>,
    /// Round trip of frames and their acknowledgements; `None` before the first.
    pub rtt: Option<Span>,
    /// Reports waiting to be sent to it.
    pub backlog: usize,
}

/// One bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyStatus {
    /// Rule and identity of the bucket.
    pub key: WorldKey,
    /// Permits that the own region admitted in the current window; without windows those of a level that it
    /// has in use.
    pub own: u64,
    /// Permits that each other region is known to have admitted, or to have in use, alike.
    pub others: Vec<(String, u64)>,
    /// Allowance that the store was told to enforce, if any.
    pub view: Option<Allowance>,
    /// The most by which the worldwide count may lie above the believed one, in permits.
    pub error_bound: u64,
}

impl Replica {
    /// Returns how many buckets are followed, or kept until their rule is back.
    #[must_use]
    pub fn keys_len(&self) -> usize {
        self.keys.len() + self.retired.len()
    }

    /// Returns how many regions there are, the own one included.
    #[must_use]
    pub fn regions_len(&self) -> usize {
        self.regions.listed_len()
    }

    /// Returns what this replica knows at `now`.
    #[must_use]
    pub fn status(&self, now: Timestamp) -> Status {
        let mut bounds = std::collections::BTreeMap::<&RuleName, (u64, UncertaintyCause)>::new();
        let mut hottest: Vec<(Reverse<u64>, &WorldKey, &GossipBucket)> = Vec::with_capacity(self.keys.len());
        for bucket in self.keys.iter() {
            hottest.push((Reverse(bucket.retention_priority(now)), &bucket.key, bucket));
            if !bucket.is_told_of(now) {
                continue;
            }
            let found = bucket.error_bound(now, self.standpoint());
            let worst = bounds.entry(&bucket.key.rule).or_insert(found);
            if found.0 > worst.0 {
                *worst = found;
            }
        }
        let error_bounds =
            bounds.into_iter().map(|(rule, (bound, doubt))| (rule.clone(), bound, doubt)).collect();
        if hottest.len() > STATUS_KEYS_MAX {
            hottest.select_nth_unstable_by(STATUS_KEYS_MAX, |a, b| (a.0, a.1).cmp(&(b.0, b.1)));
            hottest.truncate(STATUS_KEYS_MAX);
        }
        hottest.sort_unstable_by(|a, b| (a.0, a.1).cmp(&(b.0, b.1)));
        let region = |(_, region): (_, &crate::regions::membership::Region)| RegionStatus {
            name: region.name.clone(),
            lag: region.heard.map(|heard| now.since(heard)),
            delay: region.delay(),
            cut_off: region.cut_off,
            left: region.left,
        };
        let peer = |link: &super::link::GossipLink| PeerView {
            name: link.name.clone(),
            live: link.live,
            lag: link.heard.map(|heard| now.since(heard)),
            rtt: link.rtt(),
            backlog: link.backlog(),
        };
        Status {
            regions: self.regions.iter().skip(1).map(region).collect(),
            peers: self.links.iter().map(peer).collect(),
            keys: hottest.into_iter().map(|(.., bucket)| self.key_status(now, bucket)).collect(),
            error_bounds,
            overshoot: self.overshoot.iter().map(|(rule, above)| (rule.clone(), *above)).collect(),
            keys_len: self.keys_len(),
            horizon: self.horizon(now),
            tally: self.tally(),
        }
    }

    /// Returns what is known of one bucket; `None` if it is not followed.
    #[must_use]
    pub fn bucket(&self, now: Timestamp, key: &WorldKey) -> Option<KeyStatus> {
        Some(self.key_status(now, self.keys.get(self.keys.find(key)?)?))
    }

    /// Counters since the start.
    #[must_use]
    pub fn tally(&self) -> Tally {
        let dropped_reports = self.links.iter().map(|link| link.dropped).fold(0, u64::saturating_add);
        Tally { dropped_reports, ..self.tally }
    }

    /// Returns what the own region and each other one are known to have admitted of a bucket in `window`.
    #[must_use]
    pub fn admitted(&self, key: &WorldKey, window: u64) -> Option<(u64, Vec<(String, u64)>)> {
        let bucket = self.keys.get(self.keys.find(key)?)?;
        let period = bucket.period(window)?;
        let admitted = |id: RegionId| period.told(id).map_or(0, |told| told.counts.net());
        Some((period.live.net(), self.by_name(admitted)))
    }

    /// True if this daemon speaks for a bucket in its region.
    #[must_use]
    pub fn speaks_for(&self, key: &WorldKey) -> bool {
        self.regions.owned_by(&self.config.name.node, key)
    }

    /// True if the others keep this daemon up to date about a bucket: it speaks for it in its region, or has
    /// counted it itself. One that was told of a bucket once, as its speaker for a moment, is told again when
    /// it counts it.
    #[must_use]
    pub fn is_kept_told(&self, key: &WorldKey) -> bool {
        let Some(bucket) = self.keys.find(key).and_then(|id| self.keys.get(id)) else { return false };
        self.owns(bucket) || bucket.periods().any(|period| !period.live.of_node(&self.node).is_empty())
    }

    /// The permits of each other region by its name. One that was taken out of the list is told of for as
    /// long as something of it counts.
    fn by_name(&self, permits: impl Fn(RegionId) -> u64) -> Vec<(String, u64)> {
        let others = self.regions.iter().skip(1).map(|(id, region)| (region, permits(id)));
        let told = others.filter(|(region, permits)| region.listed || *permits > 0);
        told.map(|(region, permits)| (region.name.clone(), permits)).collect()
    }

    fn key_status(&self, now: Timestamp, bucket: &GossipBucket) -> KeyStatus {
        let (own, others) = match bucket.counting() {
            Counting::Window => self.admitted(&bucket.key, bucket.window_at(now)).unwrap_or_default(),
            Counting::Level | Counting::Concurrency => {
                let (own, others) = bucket.level_by_region(now);
                let of = |id: RegionId| {
                    others.iter().find(|(region, _)| *region == id).map_or(0, |(_, used)| *used)
                };
                (own, self.by_name(of))
            }
        };
        KeyStatus {
            key: bucket.key.clone(),
            own,
            others,
            view: bucket.view().map(|(view, _)| view),
            error_bound: bucket.error_bound(now, self.standpoint()).0,
        }
    }
}
