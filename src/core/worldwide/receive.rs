//! Judges frames from other daemons and takes in what they say.
//!
//! A frame is judged whole before anything of it is taken, so that a refused one changes nothing.

use super::super::time::{Span, Timestamp};
use super::super::wire::{
    COUNTS_MAX, DEMAND_MAX, Frame, IDENTITY_BYTES_MAX, NAME_BYTES_MAX, REPORTS_MAX, Report, Scope,
};
use super::link::Arrival;
use super::regions::{RegionId, Regions};
use super::replica::Replica;
use super::{NodeName, WorldKey};

/// Farther ahead of the own clock nothing is believed.
const FUTURE_MAX: Span = Span::from_secs(10);

/// Why a frame was refused. Nothing of it was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It names this very daemon as its sender.
    #[error("the frame claims to come from this daemon")]
    OwnName,
    /// Its sender's region is not one of the configured regions.
    #[error("the sender's region is not in the cluster's configuration")]
    UnknownRegion,
    /// It speaks for a region or a daemon that is not the sender's to speak for.
    #[error("the sender speaks for a region or daemon that is not its own")]
    Foreign,
    /// It was sent, or speaks of something, more than ten seconds ahead of the own clock.
    #[error("the frame comes from the future")]
    Future,
    /// It holds more, or longer, than any honest frame.
    #[error("the frame is larger than any honest one")]
    TooLarge,
    /// There is no room for another daemon.
    #[error("there is no room for another daemon")]
    NoRoom,
}

impl Refused {
    /// A short name for a metric's label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::OwnName => "own_name",
            Self::UnknownRegion => "unknown_region",
            Self::Foreign => "foreign",
            Self::Future => "future",
            Self::TooLarge => "too_large",
            Self::NoRoom => "no_room",
        }
    }
}

impl Replica {
    /// A frame has come from the daemon that `from` names, as its certificate proves.
    ///
    /// Duplicates, old windows, smaller counts and unknown rules are no errors: they are passed over and counted.
    ///
    /// # Errors
    /// Why the frame was refused as a whole.
    pub fn handle_frame(&mut self, now: Timestamp, from: &NodeName, frame: Frame) -> Result<(), Refused> {
        let region = self.judge(now, from, &frame)?;
        let lag = signed(now.0).saturating_sub(signed(frame.sent.0));
        let own_incarnation = self.config.incarnation;
        let link = self.link_to(from).ok_or(Refused::NoRoom)?;
        let arrival = link.arrived(now, frame.incarnation, frame.seq, lag);
        if arrival == Arrival::Duplicate {
            self.tally.duplicates = self.tally.duplicates.saturating_add(1);
            return Ok(());
        }
        link.slowest = frame.slowest.min(Span::from_secs(1));
        if let Some(seen) = frame.seen {
            link.landed(own_incarnation, seen);
        }
        let place = self.speakers.get(region).and_then(|names| names.get(&from.node)).copied();
        if arrival == Arrival::Restarted
            && let Some(place) = place
        {
            self.introduce(place);
        }
        if region != Regions::OWN {
            self.regions.heard(region, now, now.since(frame.sent));
        }
        self.tally.frames_in = self.tally.frames_in.saturating_add(1);
        for report in frame.reports {
            self.take_in(now, region, from, report);
        }
        Ok(())
    }

    fn judge(&mut self, now: Timestamp, from: &NodeName, frame: &Frame) -> Result<RegionId, Refused> {
        if *from == self.config.name {
            return Err(Refused::OwnName);
        }
        if from.region.len() > NAME_BYTES_MAX
            || from.node.len() > NAME_BYTES_MAX
            || frame.reports.len() > REPORTS_MAX
        {
            return Err(Refused::TooLarge);
        }
        let horizon = now + FUTURE_MAX;
        if frame.sent > horizon {
            return Err(Refused::Future);
        }
        for report in &frame.reports {
            if report.identity.len() > IDENTITY_BYTES_MAX
                || report.counts.len() > COUNTS_MAX
                || report.demand > DEMAND_MAX
            {
                return Err(Refused::TooLarge);
            }
            if report.counts.iter().any(|count| count.node.len() > NAME_BYTES_MAX) {
                return Err(Refused::TooLarge);
            }
            if report.stamp > horizon || report.counts.iter().any(|count| count.since > horizon) {
                return Err(Refused::Future);
            }
            if !self.may_say(from, report) {
                return Err(Refused::Foreign);
            }
        }
        let region = self.regions.place(&from.region, now).ok_or(Refused::UnknownRegion)?;
        while self.speakers.len() < self.regions.len() {
            self.speakers.push(std::collections::BTreeMap::new());
        }
        Ok(region)
    }

    /// A daemon speaks for itself to its siblings; its owner speaks for a region to other regions; and inside a region
    /// the owner passes on what other regions said.
    fn may_say(&self, from: &NodeName, report: &Report) -> bool {
        let sibling = from.region == self.config.name.region;
        match &report.scope {
            Scope::Node => sibling && report.counts.iter().all(|count| count.node == from.node),
            Scope::Region(region) if sibling => self.regions.find(region).is_some(),
            Scope::Region(region) => *region == from.region,
        }
    }

    fn take_in(&mut self, now: Timestamp, region: RegionId, from: &NodeName, report: Report) {
        self.tally.reports_in = self.tally.reports_in.saturating_add(1);
        let key = WorldKey { rule: report.rule.clone(), identity: report.identity.clone() };
        if !self.rules.contains_key(&key.rule) {
            self.tally.unknown_rules = self.tally.unknown_rules.saturating_add(1);
            return;
        }
        let Some(id) = self.follow(now, &key) else { return };
        let Some(bucket) = self.keys.get_mut(id) else { return };
        if !bucket.speaks_of(report.window, now) {
            self.tally.other_windows = self.tally.other_windows.saturating_add(1);
            return;
        }
        let mut newcomer = None;
        match &report.scope {
            Scope::Node => {
                if !bucket.siblings.iter().any(|sibling| sibling.node == from.node) {
                    // It counts this bucket too from now on: it must hear what the others said so far.
                    newcomer = self.speakers.get(region).and_then(|names| names.get(&from.node)).copied();
                }
                if bucket.hear_sibling(now, &from.node, &report) {
                    self.look(now, id);
                }
                self.changed(now, id);
                if newcomer.is_some() && self.keys.get(id).is_some_and(|bucket| self.owns(bucket)) {
                    self.owe_everything(id, newcomer);
                }
            }
            Scope::Region(name) => {
                let Some(speaker) = self.regions.find(name) else { return };
                let (here, keys) = self.here();
                let Some(bucket) = keys.get_mut(id) else { return };
                let heard = bucket.hear_region(now, speaker, &report, here);
                let again = bucket.next_look(now);
                self.keys.wake_at(id, again);
                self.tally.no_room = self.tally.no_room.saturating_add(u64::from(heard.full));
                self.tally.late = self.tally.late.saturating_add(u64::from(heard.late));
                self.tally.backwards = self.tally.backwards.saturating_add(u64::from(heard.backwards));
                self.tally.beyond = self.tally.beyond.saturating_add(u64::from(heard.beyond));
                self.look(now, id);
                // A sibling may know what this owner did not: then all siblings must hear it.
                let owned = self.keys.get(id).is_some_and(|bucket| self.owns(bucket));
                if region != Regions::OWN || (heard.changed && owned && speaker != Regions::OWN) {
                    self.spread(id, speaker, report.window, true);
                }
                if speaker == Regions::OWN {
                    self.changed(now, id);
                }
            }
        }
    }
}

fn signed(micros: u64) -> i64 {
    i64::try_from(micros).unwrap_or(i64::MAX)
}
