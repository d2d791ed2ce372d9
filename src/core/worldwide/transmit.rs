//! Makes the frames for other daemons: bounded in size, in number, and always with the newest counts.

use super::super::time::Timestamp;
use super::super::wire::{Frame, REPORTS_MAX, Report, Scope};
use super::NodeName;
use super::link::Item;
use super::replica::Replica;

/// A frame stays below this as long as one report fits into it, so that it travels as one datagram.
pub const FRAME_BYTES_MAX: usize = 1_150;
/// What a frame takes without reports.
const HEAD_BYTES: usize = 48;
/// What the numbers of a report, and of one of its counts, take at most in the usual case.
const REPORT_BYTES: usize = 32;
const COUNT_BYTES: usize = 22;

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
        let mut size = Size::default();
        let mut reports: Vec<Report> = Vec::new();
        let mut items = Vec::new();
        while let Some((item, urgent)) = self.links.get_mut(place)?.next_owed() {
            let Some((report, version)) = self.report(now, item) else { continue };
            if !size.takes(&report) {
                self.links.get_mut(place)?.put_back(item);
                break;
            }
            reports.push(report);
            items.push((item, version));
            if urgent {
                self.links.get_mut(place)?.echo(now, item, version);
            }
        }
        while let Some((item, said)) = self.links.get_mut(place)?.next_echo(now) {
            // What has changed since was told by itself.
            let Some((report, _)) = self.report(now, item).filter(|(_, version)| *version == said) else {
                continue;
            };
            if items.iter().any(|(known, _)| *known == item) {
                continue;
            }
            if !size.takes(&report) {
                break;
            }
            reports.push(report);
            items.push((item, said));
        }
        let slowest = self.regions.slowest(now);
        let link = self.links.get_mut(place)?;
        let (seq, seen) = link.depart(now, items, size.bytes);
        self.tally.frames_out = self.tally.frames_out.saturating_add(1);
        self.tally.reports_out =
            self.tally.reports_out.saturating_add(u64::try_from(reports.len()).unwrap_or(u64::MAX));
        let frame = Frame { incarnation: self.config.incarnation, seq, sent: now, seen, slowest, reports };
        Some((link.name.clone(), frame))
    }

    /// What is to be said of an item now, and its version; `None` if it is not known any more.
    fn report(&self, now: Timestamp, item: Item) -> Option<(Report, u32)> {
        let bucket = self.keys.get(item.key)?;
        let period = bucket.period(item.window)?;
        let version = period.version(item.region)?;
        let (scope, stamp, counts, demand) = match item.region {
            None => {
                (Scope::Node, now, period.live.entries_of(&self.config.name.node), bucket.own_demand_at(now))
            }
            Some(region) => {
                let told = period.told(region)?;
                let scope = Scope::Region(self.regions.name(region).to_owned());
                (scope, told.stamp, told.counts.entries().to_vec(), told.demand)
            }
        };
        let (rule, identity) = (bucket.key.rule.clone(), bucket.key.identity.clone());
        Some((Report { rule, identity, scope, window: item.window, stamp, counts, demand }, version))
    }
}

/// About how many bytes a frame takes on the wire, without the network's own headers.
#[must_use]
pub fn frame_bytes(frame: &Frame) -> usize {
    frame.reports.iter().map(estimated_bytes).fold(HEAD_BYTES, usize::saturating_add)
}

/// How large a frame becomes.
struct Size {
    bytes: usize,
    reports: usize,
}

impl Default for Size {
    fn default() -> Self {
        Self { bytes: HEAD_BYTES, reports: 0 }
    }
}

impl Size {
    /// Adds a report if the frame has room for it; an empty one always has.
    fn takes(&mut self, report: &Report) -> bool {
        let length = estimated_bytes(report);
        let full = self.bytes + length > FRAME_BYTES_MAX || self.reports >= REPORTS_MAX;
        if full && self.reports > 0 {
            return false;
        }
        self.bytes += length;
        self.reports += 1;
        true
    }
}

fn estimated_bytes(report: &Report) -> usize {
    let scope = match &report.scope {
        Scope::Node => 0,
        Scope::Region(name) => name.len() + 1,
    };
    let counts: usize = report.counts.iter().map(|count| count.node.len() + COUNT_BYTES).sum();
    REPORT_BYTES + report.rule.domain.len() + report.rule.name.len() + report.identity.len() + scope + counts
}
