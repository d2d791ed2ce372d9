//! What one daemon does about the permits of a level: forwards what lies idle to where it is needed, and has
//! its store charge no more what has come there.
//!
//! Nothing here matters to exactness: the store forwards only what is free.

use super::super::bucket::{EscrowBucket, LastStatement};
use super::super::ledger::{Step, StepResult};
use super::super::planner::{Extrapolated, GAP, UNIT};
use super::super::totals::total;
use super::super::{Escrow, Share};
use super::{LevelEstimate, LevelLedger, LevelStep, level_transfers, under_way_max};
use crate::regions::membership::{RegionId, Regions};
use crate::time::{Span, Timestamp};
use crate::wire::rights::{RightKind, Transfer};

/// Least time between two gifts to one region of a bucket that refills within half a second: what waits here
/// takes up room that refills.
const GAP_BRIEF: Span = Span::from_millis(10);
/// For so long one of the regions that gather for large costs is given to.
const GATHERED_IN_TURN: Span = Span::from_secs(4);
/// So many permits that find no room are kept where somebody was refused just now.
const KEPT_FEW: u64 = 4;

impl Escrow {
    /// Forwards what lies idle in a level to where it is needed.
    pub(in super::super) fn give_level_permits(&mut self, now: Timestamp, id: usize) {
        let Some(bucket) = self.bucket(id) else { return };
        let Some((balance, ledger)) = bucket.current_level(now) else { return };
        let free = balance.free();
        let mut estimates: Vec<LevelEstimate> = (0..self.regions.len())
            .map(|region| self.level_estimate(now, bucket, (balance, ledger), region))
            .collect();
        // Of those that gather for costs larger than their capacities all give to one: else none ever had
        // enough.
        let gathers = |estimate: &LevelEstimate| estimate.wanted > estimate.capacity;
        let all = estimates.iter().enumerate().filter(|(_, estimate)| gathers(estimate));
        let first =
            all.map(|(region, _)| region).min_by_key(|region| self.turn_to_gather(now, bucket, *region));
        for (region, estimate) in estimates.iter_mut().enumerate() {
            if gathers(estimate) && first != Some(region) {
                (estimate.wanted, estimate.demand) = (0, 0);
            }
        }
        let ahead = self.config.interval + self.owd_max() + self.owd_max();
        let streams = level_transfers(ahead, &estimates);
        self.give(now, id, (&streams, free), |giving| Step::Level(LevelStep::Give(giving)));
    }

    /// How many turns of gathering lie before that of a region: each has one after the other, as their clocks
    /// agree about.
    fn turn_to_gather(&self, now: Timestamp, bucket: &EscrowBucket, region: RegionId) -> usize {
        let regions = bucket.rule.shares.len().max(1);
        let turn = usize::try_from(now.window_index(GATHERED_IN_TURN)).unwrap_or(0);
        (self.order(bucket, region) + turn % regions) % regions
    }

    /// What is believed of one region's level.
    fn level_estimate(
        &self,
        now: Timestamp,
        bucket: &EscrowBucket,
        (own, ledger): (&StepResult, &LevelLedger),
        region: RegionId,
    ) -> LevelEstimate {
        let share = bucket.rule.share(self.regions.name(region));
        let most = i128::from(share.minted) * UNIT;
        let order = self.order(bucket, region);
        let mut estimate = LevelEstimate {
            capacity: most,
            refill: share.refill,
            free: most,
            order,
            ..LevelEstimate::default()
        };
        if region == Regions::OWN {
            estimate.demand = bucket.demand(now);
            estimate.free = i128::from(own.free()) * UNIT;
            estimate.wanted = wanted(share, bucket.wanted(RightKind::Level));
            return estimate;
        }
        // Who has said nothing needs nothing that it does not have.
        let Some(partner) = bucket.partner(region) else { return estimate };
        let Some(heard) = partner.heard.filter(|heard| now.since(*heard) < bucket.memory()) else {
            return estimate;
        };
        let owd = self.owd(region);
        estimate.demand = partner.demand;
        estimate.wanted = wanted(share, partner.wanted(now));
        estimate.since = partner.lacks_for(now);
        let under_way = self.under_way(own, partner, region);
        let kept = partner
            .as_level()
            .map_or(0, |partner| total(&partner.totals.kept, self.own_region(), ledger.session));
        let coming = under_way.saturating_sub(kept);
        // When what is sent now arrives. What comes before is spent like what is there.
        let then = now.since(heard) + owd + owd;
        estimate.free = estimate.after(i128::from(partner.free.saturating_add(coming)) * UNIT, then);
        let gap = if estimate.is_brief() { GAP_BRIEF } else { GAP };
        if self.is_reachable(now, partner, region, gap) {
            // One region that is silent must not have all that may be under way, unless that is what it
            // takes.
            let others = ledger.charged().saturating_sub(under_way);
            let whole = under_way_max(ledger.minted).saturating_sub(others);
            let part = i128::from(whole.div_ceil(2).saturating_sub(under_way)) * UNIT;
            let enough = estimate.wanted - estimate.free <= part;
            estimate.room = if self.regions.len() > 2 && !estimate.is_brief() && enough {
                part
            } else {
                i128::from(whole.saturating_sub(under_way)) * UNIT
            };
        }
        estimate
    }

    /// Has the store charge no more what the others have acknowledged, or can never take.
    pub(in super::super) fn settle(&mut self, now: Timestamp, id: usize) {
        let Some(bucket) = self.bucket(id) else { return };
        let Some((_, ledger)) = bucket.current_level(now) else { return };
        let mut steps = Vec::new();
        for (region, partner) in bucket.partners() {
            let name = self.regions.name(region);
            let Some(forwarded) = ledger.forwarded_to(name) else { continue };
            let has = partner.has_of(RightKind::Level, self.own_region(), ledger.session);
            let later = partner.session > forwarded.session;
            if later || (partner.session == forwarded.session && has > forwarded.acknowledged) {
                let (to, session) = (name.to_owned(), partner.session);
                steps.push(Step::Level(LevelStep::Acknowledge { to, session, permits: has }));
            }
        }
        let Some(bucket) = self.bucket_mut(id) else { return };
        steps.into_iter().for_each(|step| bucket.wait(step));
    }

    /// What the others believe of the level here.
    pub(in super::super) fn level_extrapolated(
        &self,
        now: Timestamp,
        bucket: &EscrowBucket,
        (old, new): (LastStatement, LastStatement),
    ) -> Extrapolated {
        let (share, age) = (bucket.rule.share(self.own_region()), now.since(old.at));
        let (capacity, refill) = (i128::from(share.minted) * UNIT, share.refill);
        let estimate = LevelEstimate { capacity, refill, demand: old.demand, ..LevelEstimate::default() };
        Extrapolated {
            believed: estimate.after(i128::from(old.free) * UNIT, age),
            spent: i128::from(old.demand) * i128::from(age.0) / UNIT,
            whole: bucket.rule.rule.limit.capacity(bucket.rule.rule.algorithm),
            drain: new.demand.saturating_sub(refill),
        }
    }

    /// Whether a region can honestly have forwarded so much.
    pub(in super::super) fn can_have_permits(
        &mut self,
        now: Timestamp,
        id: usize,
        region: RegionId,
        sent: &Transfer,
    ) -> bool {
        let from = self.regions.name(region).to_owned();
        let Some(bucket) = self.bucket_mut(id) else { return false };
        let Some(balance) = bucket.current(now) else { return false };
        let taken = balance.ledger.taken_from(&from, sent.session);
        let share = bucket.share_of(&from);
        let partner = bucket.partner_mut(region).as_level_mut();
        let honest =
            partner.is_some_and(|partner| partner.believes(now, share, sent.session, sent.permits, taken));
        self.tally.beyond = self.tally.beyond.saturating_add(u64::from(!honest));
        honest
    }

    /// How many permits that come now may be kept beyond the capacity.
    pub(in super::super) fn may_keep(&self, now: Timestamp, id: usize) -> u64 {
        let Some(bucket) = self.bucket(id) else { return 0 };
        let room = bucket.current(now).map_or(0, |balance| balance.ledger.minted());
        // Two may have given for one refusal, as neither knew of the other: the next request finds it.
        let few = if bucket.refused_lately(now) { KEPT_FEW } else { 0 };
        bucket.wanted(RightKind::Level).saturating_sub(room).max(few)
    }
}

/// A cost that a region was asked for, in millionths, if it can gather so much at all.
fn wanted(share: Share, cost: u64) -> i128 {
    if cost <= share.gathered { i128::from(cost) * UNIT } else { 0 }
}
