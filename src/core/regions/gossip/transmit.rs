//! Makes the frames for other daemons: bounded in size, in number, and always with the newest counts.

use super::crowded::NAMES_BYTES_MAX;
use super::link::{OwedReport, SentReport};
use super::replica::Replica;
use crate::regions::membership::Regions;
use crate::regions::{NodeName, WorldKey};
use crate::time::Timestamp;
use crate::wire::{CrowdedRules, Frame, REPORTS_MAX, Report, Scope, Subject, WireVersion, compact, rounded};

/// A frame stays below this as long as one report fits into it, so that it travels as one datagram.
pub const FRAME_BYTES_MAX: usize = 1_150;
/// What a frame takes at most without reports, with the two bytes that say what it is.
const HEAD_BYTES: usize = 64;

impl Replica {
    /// The next frame and whom to send it to, or `None` if there is none to send now.
    pub fn poll_transmit(&mut self, now: Timestamp) -> Option<(NodeName, Frame)> {
        let (heartbeat, patience) = (self.heartbeat(), self.patience());
        for _ in 0..self.links.len() {
            let place = self.turn % self.links.len();
            self.turn = self.turn.wrapping_add(1);
            if self.links.get_mut(place).is_some_and(|link| link.due(now, heartbeat, patience)) {
                return self.frame_for(now, place);
            }
        }
        None
    }

    fn frame_for(&mut self, now: Timestamp, place: usize) -> Option<(NodeName, Frame)> {
        let crowded = self.crowded_here();
        let mut draft = Draft::new(now, &crowded);
        let mut told = Vec::new();
        while let Some((item, urgent)) = self.links.get_mut(place)?.next_owed() {
            let Some((report, version)) = self.report(now, place, item) else { continue };
            let key_id = report.key_id;
            if !draft.takes(report) {
                self.links.get_mut(place)?.put_back(item, urgent);
                break;
            }
            told.push(SentReport { item, version, key_id });
            if urgent {
                self.links.get_mut(place)?.repeat(now, item, version);
            }
        }
        while let Some((item, said)) = self.links.get_mut(place)?.next_repeat(now) {
            if told.iter().any(|known| known.item == item) {
                continue;
            }
            // What has changed since was told by itself.
            let report = self.report(now, place, item).filter(|(_, version)| *version == said);
            let Some((report, version)) = report else { continue };
            let key_id = report.key_id;
            if !draft.takes(report) {
                break;
            }
            told.push(SentReport { item, version, key_id });
        }
        let slowest = self.regions.slowest(now);
        let link = self.links.get_mut(place)?;
        let (seq, seen) = link.depart(now, told, draft.bytes);
        self.tally.frames_out = self.tally.frames_out.saturating_add(1);
        self.tally.reports_out =
            self.tally.reports_out.saturating_add(u64::try_from(draft.reports.len()).unwrap_or(u64::MAX));
        let incarnation = self.config.incarnation;
        let frame = Frame { incarnation, seq, sent: now, seen, slowest, crowded, reports: draft.reports };
        Some((link.name.clone(), frame))
    }

    /// What is to be said to a link of an item now, and its version; `None` if it is not known any more.
    fn report(&mut self, now: Timestamp, place: usize, item: OwedReport) -> Option<(Report, u32)> {
        let link = self.links.get(place)?;
        let (named, listener) = (&link.named, link.region);
        let bucket = self.keys.get_mut(item.key)?;
        let own_demand = bucket.own_demand_at(now);
        let (key, limits, period, own_key_ids) = bucket.tell_of(item.window)?;
        let version = period.version(item.region)?;
        let own;
        let (scope, stamp, counts, demand) = match item.region {
            None => {
                own = period.live.of_node(&self.node);
                (Scope::Node, now, own.as_slice(), own_demand)
            }
            Some(region) => {
                let told = period.told(region)?;
                let scope = Scope::Region(self.regions.name(region).to_owned());
                // Of its former life a region wants to know when it admitted something last.
                let own = region == listener && region != Regions::OWN;
                let stamp = if own { told.grown } else { told.stamp };
                (scope, stamp, told.counts.entries(), told.demand)
            }
        };
        let own_key_id = own_key_ids.speak(item.region, counts, &mut self.key_ids)?;
        let (key_id, amounts) = (own_key_id.key_id, own_key_id.amounts(counts));
        let subject = if named.knows(key_id) {
            None
        } else {
            let counters = own_key_id.counters.to_vec();
            let WorldKey { rule, identity } = key.clone();
            let decided_by = limits.said_by(item.region.unwrap_or(Regions::OWN), !counts.is_empty());
            Some(Subject { rule, identity, scope, counters, decided_by })
        };
        let demand = rounded(demand);
        Some((Report { key_id, subject, window: item.window, stamp, amounts, demand }, version))
    }
}

/// A frame that is being filled.
struct Draft {
    sent: Timestamp,
    bytes: usize,
    reports: Vec<Report>,
    measured: Vec<u8>,
}

impl Draft {
    const fn new(sent: Timestamp, crowded: &CrowdedRules) -> Self {
        let bytes = if crowded.is_none() { HEAD_BYTES } else { HEAD_BYTES + NAMES_BYTES_MAX };
        Self { sent, bytes, reports: Vec::new(), measured: Vec::new() }
    }

    /// Adds a report if the frame has room for it; an empty one always has.
    fn takes(&mut self, report: Report) -> bool {
        self.measured.clear();
        let place = (self.sent, self.reports.last());
        // The newest version takes the most bytes.
        compact::write_report(WireVersion::NEWEST, place, &report, &mut self.measured);
        let full = self.bytes + self.measured.len() > FRAME_BYTES_MAX || self.reports.len() >= REPORTS_MAX;
        if full && !self.reports.is_empty() {
            return false;
        }
        self.bytes += self.measured.len();
        self.reports.push(report);
        true
    }
}
