//! Judges frames of rights from other daemons and takes in what they say.
//!
//! A frame is judged whole before anything of it is taken. What another region says of its own rights is
//! believed as far as it can be true: a region can pass on no more than its share and what it was given.

use super::super::super::algorithm::Counting;
use super::super::super::time::Timestamp;
use super::super::super::wire::rights::{
    RIGHTS_ENTRIES_MAX, RightsFrame, Statement, TOTALS_MAX, Total, Transfer,
};
use super::super::super::wire::{DEMAND_MAX, IDENTITY_BYTES_MAX, NAME_BYTES_MAX};
use super::super::membership::{RegionId, Regions};
use super::super::refused::{FUTURE_MAX, Refused};
use super::super::{NodeName, WorldKey};
use super::Escrow;
use super::ledger::{Step, StepRequest};

/// So many permits that find no room are kept where somebody was refused just now.
const KEPT_FEW: u64 = 4;

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
                    && named(&said.taken)
                    && named(&said.given)
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
        if !self.rules.contains_key(&key.rule) {
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
        let ahead = u64::from(counting == Counting::Window);
        if region == Regions::OWN {
            bucket.hear_sibling(now, &from.node, &said);
        } else if said.window > bucket.window_at(now).saturating_add(ahead) {
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

    /// Rights for this region have come: the store takes them in, at most once.
    fn take(&mut self, now: Timestamp, region: RegionId, sent: &Transfer) {
        self.tally.entries_in = self.tally.entries_in.saturating_add(1);
        let key = WorldKey { rule: sent.rule.clone(), identity: sent.identity.clone() };
        if region == Regions::OWN || !self.rules.contains_key(&key.rule) {
            self.tally.unknown_rules = self.tally.unknown_rules.saturating_add(1);
            return;
        }
        let Some(id) = self.follow(now, &key, sent.limit.own) else { return };
        let from = self.regions.name(region).to_owned();
        let labels = self.config.safety.windows_are_labels;
        let allowed = self.passes_on(id, region, sent.window);
        let Some(bucket) = self.bucket(id) else { return };
        let counting = bucket.counting();
        let window = bucket.window_at(now);
        if sent.window != window && labels {
            // What comes early comes again.
            self.tally.other_windows = self.tally.other_windows.saturating_add(1);
            return;
        }
        if let Some(balance) = bucket.current(now) {
            let ledger = &balance.ledger;
            let fenced = ledger.session != sent.to_session && self.config.safety.sessions_are_fenced;
            let known = ledger.taken_from(&from, sent.session) >= sent.permits
                && self.config.safety.takes_are_cumulative;
            if fenced || known {
                self.tally.fenced = self.tally.fenced.saturating_add(u64::from(fenced));
                // It does not know yet what was received, or by whom.
                self.acknowledge(id, &from);
                return;
            }
            let taken = ledger.taken_from(&from, sent.session);
            let others =
                ledger.taken.iter().filter(|taken| taken.region == from && taken.session != sent.session);
            let others: u64 = others.map(|taken| taken.permits).fold(0, u64::saturating_add);
            let honest = match counting {
                Counting::Window => others.saturating_add(sent.permits) <= allowed,
                Counting::Level => {
                    let share = bucket.share_of(&from);
                    self.bucket_mut(id).is_none_or(|bucket| {
                        bucket.partner_mut(region).believes(now, share, sent.session, sent.permits, taken)
                    })
                }
                Counting::Concurrency => {
                    // What it owns at most, and what it gives back.
                    let most = ledger.given_to(&from, sent.session);
                    let member = bucket.rule.shares.contains_key(&from);
                    member && sent.permits <= bucket.share_of(&from).minted_most.saturating_add(most)
                }
            };
            if !honest {
                let all = others.saturating_add(sent.permits);
                let beyond = match counting {
                    Counting::Window => all.saturating_sub(allowed),
                    Counting::Level | Counting::Concurrency => u64::MAX,
                };
                self.doubt(now, id, region, beyond);
                return;
            }
        } else if counting != Counting::Window {
            // It comes again, when the store has told what it has.
            if let Some(bucket) = self.bucket_mut(id) {
                bucket.wait(StepRequest { key, window, step: Step::Read, own: None });
            }
            self.next_step(now, id);
            self.schedule(now, id);
            return;
        } else if sent.permits > allowed {
            self.doubt(now, id, region, sent.permits - allowed);
            return;
        }
        if let Some(bucket) = self.bucket_mut(id) {
            bucket.partner_mut(region).proves();
        }
        let (session, to_session, permits) = (sent.session, sent.to_session, sent.permits);
        let keep = self.bucket(id).filter(|_| counting == Counting::Level).map_or(0, |bucket| {
            let room = bucket.current(now).map_or(0, |balance| balance.ledger.minted);
            // Two may have given for one refusal, as neither knew of the other: the next request finds it.
            let few = if bucket.refused_lately(now) { KEPT_FEW } else { 0 };
            bucket.wanted(0).saturating_sub(room).max(few)
        });
        let step = Step::Take { from, session, to_session, permits, keep };
        let window = if counting == Counting::Concurrency { now.0 } else { sent.window };
        if let Some(bucket) = self.bucket_mut(id) {
            bucket.wait(StepRequest { key, window, step, own: None });
        }
        self.next_step(now, id);
        self.schedule(now, id);
    }

    /// A region sent `beyond` permits more than it can have by what is known here. What a third region gave
    /// it of a window is known soon, and comes again until then; what exceeds all that third regions have
    /// never can be.
    fn doubt(&mut self, now: Timestamp, id: usize, region: RegionId, beyond: u64) {
        let (own, from) = (self.regions.name(Regions::OWN), self.regions.name(region));
        let others = self.bucket(id).map_or(0, |bucket| {
            let thirds = bucket.rule.shares.keys().filter(|name| *name != own && *name != from);
            thirds.map(|name| bucket.share_of(name).minted_most).fold(0, u64::saturating_add)
        });
        let bucket = self.bucket_mut(id).filter(|_| beyond <= others);
        let tally = match bucket.is_some_and(|bucket| bucket.partner_mut(region).may_prove(now)) {
            true => &mut self.tally.early,
            false => &mut self.tally.beyond,
        };
        *tally = tally.saturating_add(1);
    }

    /// The most that a region can honestly have given away in a window (without windows see
    /// `RegionStatement::believes`): its share and what others gave to it.
    fn passes_on(&self, id: usize, region: RegionId, window: u64) -> u64 {
        let Some(bucket) = self.bucket(id) else { return 0 };
        let name = self.regions.name(region);
        let to_it = |totals: &[Total]| {
            totals
                .iter()
                .filter(|total| total.region == name)
                .fold(0, |sum: u64, total| sum.saturating_add(total.permits))
        };
        let own = bucket.balance.as_ref().filter(|balance| balance.ledger.window == window);
        let mut all =
            bucket.share_of(name).minted_most.saturating_add(own.map_or(0, |own| to_it(&own.ledger.given)));
        for (other, partner) in bucket.partners() {
            if other != region && partner.window == window {
                all = all.saturating_add(to_it(&partner.given));
            }
        }
        all
    }
}
