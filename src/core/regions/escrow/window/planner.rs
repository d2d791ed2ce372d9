//! The plan of one daemon for the rights of a window: it pushes them to regions that will run dry, and
//! settles windows that are over.
//!
//! Nothing here matters to exactness: the store gives only what is free.

use super::super::bucket::{BucketNotes, EscrowBucket, LastStatement};
use super::super::ledger::Step;
use super::super::planner::{Extrapolated, GAP, UNIT};
use super::super::totals::sum;
use super::super::{Escrow, Event};
use super::partner::{WindowPartner, to_region};
use super::{RegionEstimate, SpendingTime, WindowStep, lasting_need, window_transfers};
use crate::regions::membership::{RegionId, Regions};
use crate::time::{Span, Timestamp};
use crate::wire::rights::{ClosedWindow, RightKind, Transfer};

impl Escrow {
    /// Has the store take out what others need more.
    pub(in super::super) fn give_window_rights(&mut self, now: Timestamp, id: usize) {
        let Some(bucket) = self.bucket(id) else { return };
        let Some((balance, ledger)) = bucket.current_window(now) else { return };
        let (window, free) = (ledger.window, balance.free());
        let length = bucket.windows().length_of(window);
        let left = bucket.left(window, now);
        let estimates: Vec<RegionEstimate> =
            (0..self.regions.len()).map(|region| self.window_estimate(now, bucket, window, region)).collect();
        let spending = SpendingTime {
            limit: u64::from(bucket.rule.rule.limit.permits),
            length,
            elapsed: Span(length.0.saturating_sub(left.0)),
            owd_max: self.owd_max(),
        };
        let gifts = window_transfers(spending, &estimates);
        let step = |giving| Step::Window { window, step: WindowStep::Give(giving) };
        self.give(now, id, (&gifts, free), step);
    }

    /// Returns what is believed of one region's rights in the window.
    fn window_estimate(
        &self,
        now: Timestamp,
        bucket: &EscrowBucket,
        window: u64,
        region: RegionId,
    ) -> RegionEstimate {
        let left = bucket.left(window, now);
        let name = self.regions.name(region);
        let minted = bucket.rule.minted(name);
        let silent = RegionEstimate {
            weight: bucket.rule.weight(name),
            free: i128::from(minted) * UNIT,
            order: self.order(bucket, region),
            ..RegionEstimate::default()
        };
        let Some((own, ledger)) = bucket.current_window(now) else { return silent };
        let kind = RightKind::Window(window);
        if region == Regions::OWN {
            let wanted = i128::from(bucket.wanted(kind)) * UNIT;
            let free = i128::from(own.free()) * UNIT;
            let need = lasting_need(bucket.demand(now), left, i128::from(own.used) * UNIT);
            let moving = (i128::from(sum(&ledger.given)) - i128::from(sum(&ledger.taken))) * UNIT;
            return RegionEstimate { free, moving, need, wanted, ..silent };
        }
        let partner = bucket.partner(region).filter(|partner| partner.heard.is_some());
        // Nothing was said, so it needs nothing that it does not have.
        let Some(partner) = partner else { return silent };
        let heard = partner.heard.unwrap_or_default();
        let fresh = now.since(heard) < bucket.memory();
        let demand = if fresh { i128::from(partner.demand) } else { 0 };
        let owd = self.owd(region);
        let (free, age, wanted) = if partner.kind() == kind {
            (partner.free, now.since(heard) + owd, partner.wanted(now))
        } else {
            (minted, now.since(bucket.start(window)), 0)
        };
        let spent = demand * i128::from(age.0) / UNIT;
        let under_way = self.under_way(own, partner, region);
        let free = (i128::from(free) * UNIT - spent).max(0);
        // It has used what it was minted and given, less what it gave and has.
        let moved =
            partner.as_window().filter(|_| partner.kind() == kind).map_or(0, WindowPartner::net_taken);
        let used = (i128::from(minted) + moved) * UNIT - free;
        let free = free + i128::from(under_way) * UNIT;
        let moving = -(moved + i128::from(under_way)) * UNIT;
        let demand = if fresh { partner.demand } else { 0 };
        let reachable = left > owd && self.is_reachable(now, partner, region, GAP);
        let (need, wanted) = (lasting_need(demand, left, used), i128::from(wanted) * UNIT);
        RegionEstimate { free, moving, need, wanted, reachable, since: partner.lacks_for(now), ..silent }
    }

    /// Returns what the others believe of the rights here.
    pub(in super::super) fn window_extrapolated(
        &self,
        now: Timestamp,
        bucket: &EscrowBucket,
        (old, new): (LastStatement, LastStatement),
        window: u64,
    ) -> Extrapolated {
        let (free, age) = if old.kind == new.kind {
            (old.free, now.since(old.at))
        } else {
            (bucket.rule.minted(self.own_region()), now.since(bucket.start(window)))
        };
        let spent = i128::from(old.demand) * i128::from(age.0) / UNIT;
        let believed = (i128::from(free) * UNIT - spent).max(0);
        let whole = u64::from(bucket.rule.rule.limit.permits);
        Extrapolated { believed, spent, whole, drain: new.demand }
    }

    /// Settles the window before the present one, once everybody who used it has said how much.
    pub(in super::super) fn close(&mut self, now: Timestamp, id: usize) {
        let Some(bucket) = self.bucket(id) else { return };
        let BucketNotes::Window(notes) = &bucket.notes else { return };
        let ledger = bucket.balance.as_ref().and_then(|balance| balance.ledger.as_window());
        let Some(ClosedWindow { window, used }) = ledger.and_then(|ledger| ledger.closed) else { return };
        if window <= notes.settled || !self.owns(&bucket.key) {
            return;
        }
        let mut all = used;
        for (_, partner) in bucket.partners().filter(|(_, partner)| partner.heard.is_some()) {
            let totals = partner.as_window().map(|partner| &partner.totals);
            let Some(totals) = totals.filter(|totals| totals.window >= window) else { continue };
            match totals.closed {
                Some(closed) if closed.window == window => all = all.saturating_add(closed.used),
                _ => return,
            }
        }
        let Some(rule) = self.rules.get(&bucket.key.rule) else { return };
        let (key, limit) = (bucket.key.clone(), u64::from(bucket.largest_limit(now, &rule.rule.limit)));
        if let Some(BucketNotes::Window(notes)) = self.bucket_mut(id).map(|bucket| &mut bucket.notes) {
            notes.settled = window;
        }
        self.note(Event::Closed { key, window, used: all, limit });
    }

    /// True if a region can honestly have sent so much of a window. Rights that a third region gave it are
    /// known soon, and come again until then; rights beyond all that third regions have can never be.
    pub(in super::super) fn can_have_rights(
        &mut self,
        now: Timestamp,
        id: usize,
        region: RegionId,
        (window, sent): (u64, &Transfer),
    ) -> bool {
        let Some(bucket) = self.bucket(id) else { return false };
        let name = self.regions.name(region);
        let ledger = bucket.current_window(now).map(|(_, ledger)| ledger);
        let taken = ledger.into_iter().flat_map(|ledger| &ledger.taken);
        let other = taken.filter(|taken| taken.region == name && taken.session != sent.session);
        let all = other.fold(sent.permits, |sum, taken| sum.saturating_add(taken.permits));
        let beyond = all.saturating_sub(self.passes_on(bucket, region, window));
        let others = bucket.rule.shares.keys().filter(|one| *one != self.own_region() && *one != name);
        let others = others.map(|one| bucket.share_of(one).minted_most).fold(0, u64::saturating_add);
        let Some(bucket) = self.bucket_mut(id) else { return false };
        let Some(partner) = bucket.partner_mut(region).as_window_mut() else { return false };
        if beyond == 0 {
            partner.proves();
            return true;
        }
        let tally = match beyond <= others && partner.may_prove(now) {
            true => &mut self.tally.early,
            false => &mut self.tally.beyond,
        };
        *tally = tally.saturating_add(1);
        false
    }

    /// The most that a region can honestly have given away in a window: its share and what others gave to it.
    fn passes_on(&self, bucket: &EscrowBucket, region: RegionId, window: u64) -> u64 {
        let name = self.regions.name(region);
        let own = bucket.balance.as_ref().and_then(|balance| balance.ledger.as_window());
        let own = own.filter(|ledger| ledger.window == window);
        let own = own.map_or(0, |ledger| to_region(&ledger.given, name));
        let others = bucket.partners().filter(|(other, _)| *other != region);
        let others = others.filter_map(|(_, partner)| Some(partner.as_window()?.gave_to(name, window)));
        others.fold(bucket.share_of(name).minted_most.saturating_add(own), u64::saturating_add)
    }
}
