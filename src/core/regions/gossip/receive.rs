//! Judges frames from other daemons and takes in what they say.
//!
//! A frame is judged whole before anything of it is taken, so that a refused one changes nothing.

use super::bucket::{GossipBucket, ReceivedReport};
use super::bucket_table::BucketId;
use super::counts::TakenIn;
use super::key_dictionary::KeyIdMeaning;
use super::link::Arrival;
use super::replica::Replica;
use crate::regions::membership::{RegionId, Regions};
use crate::regions::refused::{FUTURE_MAX, Refused};
use crate::regions::{NodeName, WorldKey};
use crate::time::{Span, Timestamp};
use crate::wire::{
    COUNTS_MAX, CROWDED_MAX, CrowdedRules, DEMAND_MAX, Frame, IDENTITY_BYTES_MAX, NAME_BYTES_MAX,
    REPORTS_MAX, Report, Scope, Subject,
};

/// Clocks that differ by no more than this are taken to agree.
const CLOCKS_AGREE: Span = Span::from_millis(20);

impl Replica {
    /// A frame has come from the daemon that `from` names, as its certificate proves.
    ///
    /// Duplicates, old windows, smaller counts and unknown rules are no errors: they are passed over and
    /// counted.
    ///
    /// # Errors
    /// Why the frame was refused as a whole.
    pub fn handle_frame(&mut self, now: Timestamp, from: &NodeName, frame: Frame) -> Result<(), Refused> {
        let region = self.judge(now, from, &frame)?;
        let lag = signed(now.0).saturating_sub(signed(frame.sent.0));
        let (own_incarnation, heartbeat) = (self.config.incarnation, self.heartbeat());
        let link = self.link_to(from).ok_or(Refused::NoRoom)?;
        let arrival = link.arrives(now, frame.incarnation, frame.seq);
        if arrival == Some(Arrival::Duplicate) {
            self.tally.duplicates = self.tally.duplicates.saturating_add(1);
            return Ok(());
        }
        link.slowest = frame.slowest.min(Span::from_secs(1));
        let landed = match (frame.seen, arrival) {
            (Some(seen), Some(_)) => link.landed(now, own_incarnation, seen, heartbeat),
            _ => false,
        };
        let trip = link.rtt().unwrap_or(Span::ZERO);
        let reached = link.reached();
        let place = self.speakers.get(region).and_then(|names| names.get(&from.node)).copied();
        let Some(place) = place else { return Err(Refused::NoRoom) };
        if region != Regions::OWN {
            // After a standstill a frame may come before the first tick.
            self.begin(now);
            let delay = (frame.sent >= self.stood_until).then(|| now.since(frame.sent));
            self.regions.heard(region, now, delay);
            if let Some(reached) = reached {
                self.regions.answered(region, reached);
            }
            // A clock that is further off than the time until a report is used makes regions use it at other
            // instants.
            let lag = lag.unsigned_abs();
            let off = if frame.sent > now { lag } else { lag.saturating_sub(trip.0) };
            if !landed || off > CLOCKS_AGREE.0 {
                self.unsettle(now);
            }
        }
        if arrival == Some(Arrival::Restarted) {
            self.tell_everything_to(place, |_| true);
            self.regions.began_again(region, Timestamp(frame.incarnation.saturating_mul(1_000)));
            self.look_at_all(now);
        }
        self.tally.frames_in = self.tally.frames_in.saturating_add(1);
        if arrival.is_some() {
            self.hear_crowded(now, place, frame.crowded);
        }
        let mut understood = true;
        for report in frame.reports {
            understood &= self.take_report(now, place, report, arrival.is_some());
        }
        if understood
            && arrival.is_some()
            && let Some(link) = self.links.get_mut(place)
        {
            link.understood(frame.seq);
        }
        Ok(())
    }

    /// Takes in one report. `false`: its key id is not understood, so its frame must come again. Key ids of a
    /// process that is over are not kept.
    fn take_report(&mut self, now: Timestamp, place: usize, report: Report, current: bool) -> bool {
        self.tally.reports_in = self.tally.reports_in.saturating_add(1);
        let meaning = match &report.subject {
            Some(subject) => {
                let meaning = self.meaning_of((now, report.stamp), place, subject);
                if current && let Some(link) = self.links.get_mut(place) {
                    link.key_ids.name(report.key_id, meaning.clone());
                }
                Some(meaning)
            }
            None if current => {
                self.links.get_mut(place).and_then(|link| link.key_ids.meaning(report.key_id)).cloned()
            }
            None => None,
        };
        // A bucket that was followed when it was named, and is not any more, must be named again.
        let meaning = meaning.filter(|meaning| meaning.key.is_none_or(|id| self.keys.get(id).is_some()));
        let understood = meaning.and_then(|meaning| Some((meaning.counts(&report)?, meaning)));
        let Some((counts, meaning)) = understood else {
            self.tally.unnamed = self.tally.unnamed.saturating_add(1);
            return false;
        };
        if let Some(id) = meaning.key {
            let Report { window, stamp, demand, .. } = report;
            self.take_in(now, place, id, meaning.speaker, &ReceivedReport { window, stamp, counts, demand });
        }
        true
    }

    fn meaning_of(
        &mut self,
        (now, said): (Timestamp, Timestamp),
        place: usize,
        subject: &Subject,
    ) -> KeyIdMeaning {
        let key = WorldKey { rule: subject.rule.clone(), identity: subject.identity.clone() };
        let id = if self.rules.contains_key(&key.rule) {
            self.follow(now, &key, subject.decided_by.own())
        } else {
            self.tally.unknown_rules = self.tally.unknown_rules.saturating_add(1);
            self.late_rules.miss(now, &key.rule);
            None
        };
        let (id, speaker) = match &subject.scope {
            Scope::Node => (id, None),
            Scope::Region(name) => match self.regions.find(name) {
                Some(speaker) => (id, Some(speaker)),
                None => (None, None),
            },
        };
        if let Some(id) = id {
            self.hear_limit((now, said), id, speaker.unwrap_or(Regions::OWN), subject.decided_by);
        }
        let node = self.links.get(place).map(|link| &link.node);
        KeyIdMeaning::new(id, speaker, &subject.counters, node)
    }

    fn judge(&mut self, now: Timestamp, from: &NodeName, frame: &Frame) -> Result<RegionId, Refused> {
        if *from == self.config.name {
            return Err(Refused::OwnName);
        }
        if from.region.len() > NAME_BYTES_MAX
            || from.node.len() > NAME_BYTES_MAX
            || frame.reports.len() > REPORTS_MAX
            || matches!(&frame.crowded, CrowdedRules::Named(names) if names.len() > CROWDED_MAX)
        {
            return Err(Refused::TooLarge);
        }
        let horizon = now + FUTURE_MAX;
        if frame.sent > horizon {
            return Err(Refused::Future);
        }
        for report in &frame.reports {
            if report.amounts.len() > COUNTS_MAX || report.demand > DEMAND_MAX {
                return Err(Refused::TooLarge);
            }
            if report.stamp > horizon {
                return Err(Refused::Future);
            }
            // The bucket of a key id was judged when it was named.
            let Some(subject) = &report.subject else { continue };
            if subject.identity.len() > IDENTITY_BYTES_MAX
                || subject.counters.len() > COUNTS_MAX
                || subject.counters.iter().any(|counter| counter.node.len() > NAME_BYTES_MAX)
            {
                return Err(Refused::TooLarge);
            }
            if subject.counters.iter().any(|counter| counter.since > horizon) {
                return Err(Refused::Future);
            }
            if !self.may_say(from, subject) {
                return Err(Refused::Foreign);
            }
        }
        let region = self.regions.place(&from.region, now).ok_or(Refused::UnknownRegion)?;
        while self.speakers.len() < self.regions.len() {
            self.speakers.push(std::collections::BTreeMap::new());
        }
        Ok(region)
    }

    /// A daemon speaks for itself to its siblings; its owner speaks for a region to other regions, and says
    /// to a region what that told it once; and inside a region the owner passes on what other regions said.
    fn may_say(&self, from: &NodeName, subject: &Subject) -> bool {
        let sibling = from.region == self.config.name.region;
        match &subject.scope {
            Scope::Node => sibling && subject.counters.iter().all(|counter| *counter.node == *from.node),
            Scope::Region(region) if sibling => self.regions.find(region).is_some(),
            Scope::Region(region) => *region == from.region || *region == self.config.name.region,
        }
    }

    /// Takes in what is said of a window of a bucket, for `speaker` or for the sending daemon itself.
    fn take_in(
        &mut self,
        now: Timestamp,
        place: usize,
        id: BucketId,
        speaker: Option<RegionId>,
        word: &ReceivedReport,
    ) {
        let Some(link) = self.links.get(place) else { return };
        let (node, region) = (std::sync::Arc::clone(&link.node), link.region);
        let Some(bucket) = self.keys.get_mut(id) else { return };
        if !bucket.speaks_of(word.window, now) {
            // A report is told again until it is acknowledged, so many come for a window that is just over.
            let tally = &mut self.tally;
            let count = if bucket.was_lately(word.window, now) {
                &mut tally.past_windows
            } else {
                self.late_rules.miss(now, &bucket.key.rule);
                &mut tally.other_windows
            };
            *count = count.saturating_add(1);
            return;
        }
        match speaker {
            None => {
                // It counts this bucket too from now on: it must hear what the others said so far.
                let newcomer = !bucket.siblings.iter().any(|sibling| *sibling.node == *node);
                let (here, keys) = self.here();
                let Some(bucket) = keys.get_mut(id) else { return };
                let heard = bucket.hear_sibling(now, &node, word, here);
                self.note_room(now, id, heard.full);
                if heard.changed {
                    self.recompute(now, id);
                }
                self.changed(now, id);
                if newcomer && self.keys.get(id).is_some_and(|bucket| self.owns(bucket)) {
                    self.owe_everything(id, Some(place));
                }
            }
            Some(Regions::OWN) if region != Regions::OWN => {
                let (here, keys) = self.here();
                let Some(bucket) = keys.get_mut(id) else { return };
                let heard = match here.safety.hears_former {
                    true => bucket.hear_former(now, word, here),
                    false => TakenIn::default(),
                };
                self.note_room(now, id, heard.full);
                if heard.changed {
                    self.recompute(now, id);
                }
                self.changed(now, id);
            }
            Some(speaker) => {
                let (here, keys) = self.here();
                let Some(bucket) = keys.get_mut(id) else { return };
                let heard = bucket.hear_region(now, speaker, word, here);
                self.note_room(now, id, heard.full);
                self.tally.late = self.tally.late.saturating_add(u64::from(heard.late));
                self.tally.backwards = self.tally.backwards.saturating_add(u64::from(heard.backwards));
                self.tally.beyond = self.tally.beyond.saturating_add(u64::from(heard.beyond));
                if heard.late || heard.full || heard.beyond {
                    self.unsettle(now);
                }
                self.recompute(now, id);
                self.wake_in_time(now, id);
                // A sibling may know what this owner did not: then all siblings must hear it.
                let owned = self.keys.get(id).is_some_and(|bucket| self.owns(bucket));
                if region != Regions::OWN || (heard.changed && owned && speaker != Regions::OWN) {
                    self.spread(id, speaker, word.window, true);
                }
                // Others may leave the own region so little that what it did not tell is much of it.
                let untold = |bucket: &GossipBucket| bucket.is_near_limit() && bucket.has_untold(now);
                if speaker == Regions::OWN || self.keys.get(id).is_some_and(untold) {
                    self.changed(now, id);
                }
            }
        }
    }
}

fn signed(micros: u64) -> i64 {
    i64::try_from(micros).unwrap_or(i64::MAX)
}
