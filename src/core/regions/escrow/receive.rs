//! Judges frames of rights from other daemons and takes in what they say.
//!
//! A frame is judged whole before anything of it is taken. What another region says of its own rights is
//! believed as far as it can be true: a region can pass on no more than its share and what it was given.

use super::super::super::algorithm::Counting;
use super::super::super::time::Timestamp;
use super::super::super::wire::rights::{
    RIGHTS_ENTRIES_MAX, RightKind, RightsFrame, Statement, TOTALS_MAX, Total, Transfer,
};
use super::super::super::wire::{DEMAND_MAX, IDENTITY_BYTES_MAX, NAME_BYTES_MAX};
use super::super::membership::{RegionId, Regions};
use super::super::refused::{FUTURE_MAX, Refused};
use super::super::{NodeName, WorldKey};
use super::Escrow;
use super::ledger::Step;
use super::level::LevelStep;
use super::places::PlacesStep;
use super::totals::Taking;
use super::window::WindowStep;

impl Escrow {
    /// A frame has come from the daemon that `from` names, as its certificate proves.
    ///
    /// Duplicates, other windows, lost sessions and unknown rules are no errors: they are passed over and
    /// counted.
    ///
    /// # Errors
    /// Why the frame was refused as a whole.
    pub fn handle_frame(
        &mut self,
        now: Timestamp,
        from: &NodeName,
        frame: RightsFrame,
    ) -> Result<(), Refused> {
        let region = self.judge(now, from, &frame)?;
        if region != Regions::OWN {
            let delay =
                self.links.get(from).map_or_else(Default::default, |link| super::Span(link.rtt().0 / 2));
            self.regions.heard(region, now, Some(delay));
        }
        self.tally.frames_in = self.tally.frames_in.saturating_add(1);
        for said in frame.statements {
            self.hear(now, region, from, said);
        }
        for sent in frame.transfers {
            self.take(now, region, &sent);
        }
        Ok(())
    }

    fn judge(&mut self, now: Timestamp, from: &NodeName, frame: &RightsFrame) -> Result<RegionId, Refused> {
        if *from == self.config.name {
            return Err(Refused::OwnName);
        }
        let named = |totals: &[Total]| {
            totals.len() <= TOTALS_MAX && totals.iter().all(|total| total.region.len() <= NAME_BYTES_MAX)
        };
        let honest = frame.statements.len() + frame.transfers.len() <= RIGHTS_ENTRIES_MAX
            && from.region.len() <= NAME_BYTES_MAX
            && from.node.len() <= NAME_BYTES_MAX
            && frame.statements.iter().all(|said| {
                said.identity.len() <= IDENTITY_BYTES_MAX
                    && said.demand <= DEMAND_MAX
                    && said.totals.lists().into_iter().all(named)
            })
            && frame.transfers.iter().all(|sent| sent.identity.len() <= IDENTITY_BYTES_MAX);
        if !honest {
            return Err(Refused::TooLarge);
        }
        let horizon = now + FUTURE_MAX;
        if frame.sent > horizon || frame.statements.iter().any(|said| said.stamp > horizon) {
            return Err(Refused::Future);
        }
        let region = self.regions.place(&from.region, now).ok_or(Refused::UnknownRegion)?;
        self.link_to(from).map(|_| region).ok_or(Refused::NoRoom)
    }

    fn hear(&mut self, now: Timestamp, region: RegionId, from: &NodeName, said: Statement) {
        self.tally.entries_in = self.tally.entries_in.saturating_add(1);
        let key = WorldKey { rule: said.rule.clone(), identity: said.identity.clone() };
        if !self.counts(&key, said.totals.kind()) {
            self.tally.unknown_rules = self.tally.unknown_rules.saturating_add(1);
            return;
        }
        let limit = said.limit;
        let Some(id) = self.follow(now, &key, limit.own) else { return };
        if region == Regions::OWN {
            self.hear_sibling_limit(now, id, limit);
        }
        let Some(bucket) = self.bucket_mut(id) else { return };
        let counting = bucket.counting();
        if region == Regions::OWN {
            bucket.hear_sibling(now, &from.node, &said);
        } else if is_far_ahead(said.totals.kind(), bucket.kind_at(now)) {
            self.tally.other_windows = self.tally.other_windows.saturating_add(1);
            return;
        } else {
            bucket.hear(now, region, said);
            self.hear_limit(now, id, limit);
            if self.owns(&key) && counting == Counting::Level {
                // Not at the next look: until then what was acknowledged takes up room here.
                self.settle(now, id);
                self.next_step(now, id);
            }
        }
        self.plan(now, id);
    }

    /// Whether a bucket is one of a rule that is known here and has such rights.
    fn counts(&self, key: &WorldKey, kind: RightKind) -> bool {
        self.rules.get(&key.rule).is_some_and(|rule| rule.counting() == kind.counting())
    }

    /// Rights for this region have come: the store takes them in, at most once.
    fn take(&mut self, now: Timestamp, region: RegionId, sent: &Transfer) {
        self.tally.entries_in = self.tally.entries_in.saturating_add(1);
        let key = WorldKey { rule: sent.rule.clone(), identity: sent.identity.clone() };
        if region == Regions::OWN || !self.counts(&key, sent.kind) {
            self.tally.unknown_rules = self.tally.unknown_rules.saturating_add(1);
            return;
        }
        let Some(id) = self.follow(now, &key, sent.limit.own) else { return };
        let Some(bucket) = self.bucket(id) else { return };
        if sent.kind != bucket.kind_at(now) && self.config.safety.windows_are_labels {
            // What comes early comes again.
            self.tally.other_windows = self.tally.other_windows.saturating_add(1);
            return;
        }
        let from = self.regions.name(region).to_owned();
        if let Some(balance) = bucket.current(now) {
            let ledger = &balance.ledger;
            let fenced = ledger.session() != sent.to_session && self.config.safety.sessions_are_fenced;
            let known = ledger.taken_from(&from, sent.session) >= sent.permits
                && self.config.safety.takes_are_cumulative;
            if fenced || known {
                self.tally.fenced = self.tally.fenced.saturating_add(u64::from(fenced));
                // It does not know yet what was received, or by whom.
                self.acknowledge(id, &from);
                return;
            }
        } else if bucket.counting() != Counting::Window {
            // It comes again, when the store has told what it has.
            self.ask_for(now, id, Step::Read);
            return;
        }
        let honest = match sent.kind {
            RightKind::Window(window) => self.can_have_rights(now, id, region, (window, sent)),
            RightKind::Level => self.can_have_permits(now, id, region, sent),
            RightKind::Places => self.can_have_places(now, id, region, sent),
        };
        if !honest {
            return;
        }
        let taking =
            Taking { from, session: sent.session, to_session: sent.to_session, permits: sent.permits };
        let step = match sent.kind {
            RightKind::Window(window) => Step::Window { window, step: WindowStep::Take(taking) },
            RightKind::Level => Step::Level(LevelStep::Take { taking, keep: self.may_keep(now, id) }),
            RightKind::Places => Step::Places { heard: now, step: PlacesStep::Take(taking) },
        };
        self.ask_for(now, id, step);
    }

    /// Has the store carry out a step, once it may be asked.
    fn ask_for(&mut self, now: Timestamp, id: usize, step: Step) {
        if let Some(bucket) = self.bucket_mut(id) {
            bucket.wait(step);
        }
        self.next_step(now, id);
        self.schedule(now, id);
    }
}

/// Whether something is said of a later window than the next one.
fn is_far_ahead(said: RightKind, present: RightKind) -> bool {
    match (said, present) {
        (RightKind::Window(said), RightKind::Window(present)) => said > present.saturating_add(1),
        _ => false,
    }
}
