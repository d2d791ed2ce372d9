//! What one daemon does about one bucket of places ([`super::places`]): makes its memory known to others,
//! lends what nobody holds to whoever is refused, and gives back what it borrowed once it lies idle.
//!
//! Nothing here matters to exactness: the store lends only what is its own and free.

use smallvec::SmallVec;

use super::super::super::time::{Span, Timestamp};
use super::super::super::wire::rights::Total;
use super::super::membership::{RegionId, Regions};
use super::Escrow;
use super::bucket::{EscrowBucket, LastStatement, RegionStatement};
use super::ledger::{Ledger, Step, StepRequest, StepResult};
use super::planner::GAP;
use super::window_plan::{RegionEstimate, SpendingTime, need, window_transfers};

/// Millionths in a permit.
const UNIT: i128 = 1_000_000;
/// A region that does not know the own memory is told of it at most this often.
const INTRODUCTION_GAP: Span = Span::from_millis(200);
/// Places never wait for a window to end: nothing is kept back for a surprise.
const COURSE: Span = Span::from_secs(1);

impl Escrow {
    /// How often what was lent is confirmed.
    pub(super) fn confirmation_gap(&self) -> Span {
        Span(self.config.margins.loan_life.0 / 6)
    }

    /// Has the store take in what other regions said of their memories and of the own one.
    pub(super) fn open_sessions(&mut self, now: Timestamp, id: usize) {
        let Some(bucket) = self.bucket(id) else { return };
        let Some(balance) = bucket.current(now) else { return };
        let (own, ledger) = (self.own_region(), &balance.ledger);
        let mut steps = Vec::new();
        let (mut noted, mut strangers) = (Vec::new(), Vec::new());
        for (region, partner) in bucket.partners() {
            let name = self.regions.name(region);
            let Some(heard) = partner.heard.filter(|_| bucket.rule.shares.contains_key(name)) else {
                continue;
            };
            if partner.session == 0 {
                continue;
            }
            let said = |totals: &[Total]| {
                let ours = |total: &&Total| total.region == own && total.session == ledger.session;
                totals.iter().find(ours).map(|total| total.permits)
            };
            let (has, gave) = (said(&partner.taken), said(&partner.given));
            let known = ledger.given.iter().find(|given| given.region == name).map(|given| given.session);
            if known.is_some_and(|known| known > partner.session) {
                continue;
            }
            let met = known == Some(partner.session);
            let taken = ledger.taken_from(name, partner.session);
            let news = ledger.bond(name).is_none_or(|bond| {
                let confirms = gave.is_some_and(|gave| gave >= taken || !bond.carried);
                let old = heard.since(bond.heard) >= Span(self.confirmation_gap().0 / 2);
                (has.is_some() && !bond.told) || (confirms && taken > 0 && (bond.carried || old))
            });
            // Not again at once, whatever the store makes of it: its clock may be another.
            if (!met || news) && has_rested(now, partner.noted) {
                let name = name.to_owned();
                steps
                    .push((heard.0, Step::OpenSession { region: name, session: partner.session, has, gave }));
                noted.push(region);
            }
            let rested = partner.introduced.is_none_or(|at| heard > at && now.since(at) >= INTRODUCTION_GAP);
            if has.is_none() && rested {
                strangers.push(region);
            }
        }
        let told = |name: &String| ledger.bond(name).is_some_and(|bond| bond.told);
        let vouches =
            in_doubt(balance) && has_rested(now, bucket.vouched) && bucket.rule.others(own).all(told);
        if vouches {
            steps
                .push((now.0, Step::ConfirmRecovery { regions: bucket.rule.others(own).cloned().collect() }));
        }
        let Some(bucket) = self.bucket_mut(id) else { return };
        if vouches {
            bucket.vouched = Some(now);
        }
        for region in noted {
            bucket.partner_mut(region).noted = Some(now);
        }
        for (window, step) in steps {
            bucket.wait(StepRequest { key: bucket.key.clone(), window, step, own: None });
        }
        for region in strangers {
            if let Some(bucket) = self.bucket_mut(id) {
                let partner = bucket.partner_mut(region);
                (partner.introduced, partner.owes_statement) = (Some(now), true);
            }
            self.owe(id, region);
        }
    }

    /// Has the store lend what others want more, and give back what is not wanted here.
    pub(super) fn lend(&mut self, now: Timestamp, id: usize) {
        let Some(bucket) = self.bucket(id) else { return };
        let Some(balance) = bucket.current(now) else { return };
        let ledger = &balance.ledger;
        let ahead = self.config.interval + self.owd_max() + self.owd_max();
        let holdings: Vec<RegionEstimate> = (0..self.regions.len())
            .map(|region| self.places_of(now, bucket, balance, (region, ahead)))
            .collect();
        let course = SpendingTime {
            limit: u64::from(bucket.rule.rule.limit.permits),
            length: COURSE,
            elapsed: COURSE,
            owd_max: self.owd_max(),
        };
        let mut gifts = window_transfers(course, &holdings);
        let mut lendable = ledger.minted.saturating_sub(ledger.lent());
        let mut homeward = 0_u64;
        for (region, gift) in gifts.iter_mut().enumerate().skip(1) {
            let back = (*gift).min(ledger.borrowed_from(self.regions.name(region)));
            let lent = (*gift - back).min(lendable);
            lendable -= lent;
            homeward = homeward.saturating_add(*gift - back - lent);
            *gift = back + lent;
        }
        if bucket.is_idle(now) {
            let needed = holdings.first().map_or(0, |own| u64::try_from(own.need / UNIT).unwrap_or(0));
            let given: u64 = gifts.iter().sum();
            homeward = homeward.max(balance.free().saturating_sub(given).saturating_sub(needed));
        }
        // What belongs to one region and is wanted by another goes home first.
        for (region, gift) in gifts.iter_mut().enumerate().skip(1) {
            let Some(partner) = bucket.partner(region).filter(|partner| has_rested(now, partner.gave)) else {
                continue;
            };
            let name = self.regions.name(region);
            let owned = ledger.borrowed_from(name).saturating_sub(*gift);
            if partner.session != 0 && !is_carried(ledger, name) {
                let back = owned.min(homeward);
                homeward -= back;
                *gift += back;
            }
        }
        self.hand_over(now, id, &gifts);
    }

    /// Has the store take out so many places for each region.
    fn hand_over(&mut self, now: Timestamp, id: usize, gifts: &[u64]) {
        let early = !self.config.safety.debits_before_credits;
        let names: SmallVec<[String; 8]> =
            (0..self.regions.len()).map(|region| self.regions.name(region).to_owned()).collect();
        let Some(bucket) = self.bucket_mut(id) else { return };
        for ((region, permits), name) in gifts.iter().enumerate().zip(names).skip(1) {
            if *permits == 0 {
                continue;
            }
            let before = bucket.balance.as_ref();
            let partner = bucket.partner(region);
            let session = partner.map_or(0, |partner| partner.session);
            let given = before.map_or(0, |balance| balance.ledger.given_to(&name, session));
            let partner = bucket.partner_mut(region);
            partner.gave = Some(now);
            if early {
                partner.promised = (0, given.saturating_add(*permits));
            }
            let step = Step::Give { to: name, session, permits: *permits };
            bucket.wait(StepRequest { key: bucket.key.clone(), window: now.0, step, own: None });
        }
    }

    /// What is believed of one region's places.
    fn places_of(
        &self,
        now: Timestamp,
        bucket: &EscrowBucket,
        own: &StepResult,
        (region, ahead): (RegionId, Span),
    ) -> RegionEstimate {
        let millionths = |permits: u64| i128::from(permits) * UNIT;
        // Who is silent has nothing to offer and asks for nothing.
        let silent = RegionEstimate {
            weight: bucket.rule.weight(self.regions.name(region)),
            order: self.order(bucket, region),
            ..RegionEstimate::default()
        };
        if region == Regions::OWN {
            let demand = bucket.demand(now);
            let need = if demand > 0 { need(demand, ahead) } else { 0 };
            let wanted = millionths(bucket.wanted(0));
            return RegionEstimate { free: millionths(own.free()), need, wanted, ..silent };
        }
        let Some(partner) = bucket.partner(region) else { return silent };
        let fresh = partner.heard.is_some_and(|heard| now.since(heard) < bucket.memory());
        if !fresh {
            return silent;
        }
        let free = partner.free.saturating_add(self.under_way(own, partner, region));
        let wanted = partner.wanted(now);
        let need = if wanted > 0 { need(partner.demand, ahead) } else { 0 };
        let carried = is_carried(&own.ledger, self.regions.name(region));
        let reachable = !carried && self.is_reachable(now, partner, region, GAP);
        let since = partner.lacks_for(now);
        RegionEstimate {
            free: millionths(free),
            need,
            wanted: millionths(wanted),
            reachable,
            since,
            ..silent
        }
    }

    /// Whether the others should hear of the places here.
    pub(super) fn places_worth_telling(
        &self,
        now: Timestamp,
        bucket: &EscrowBucket,
        new: LastStatement,
    ) -> bool {
        let hot = bucket.is_hot(now, bucket.rule.share(self.own_region()));
        let Some(old) = bucket.told else { return hot || bucket.has_loans() };
        let since = now.since(old.at);
        if (old.session, old.limit) != (new.session, new.limit) {
            return true;
        }
        let fresh =
            |partner: &RegionStatement| partner.heard.is_some_and(|heard| now.since(heard) < bucket.memory());
        let asked = new.wanted > 0 || bucket.partners().any(|(_, one)| one.wanted(now) > 0 && fresh(one));
        let tolerated = u64::from(bucket.rule.rule.limit.permits) * 3 / 100;
        let off = new.free.abs_diff(old.free) > tolerated || (new.free == 0) != (old.free == 0);
        let changed = new.wanted > old.wanted || (new.wanted == 0 && old.wanted > 0);
        let doubt = bucket.balance.as_ref().is_some_and(in_doubt);
        let interval = self.config.interval;
        (changed && since >= GAP)
            || (since >= interval && (new.wanted > 0 || (asked && off)))
            || (hot && doubt && since >= Span(interval.0.saturating_mul(5)))
            || (bucket.has_loans() && since >= self.confirmation_gap())
    }
}

/// Whether the store does not own its share yet.
fn in_doubt(balance: &StepResult) -> bool {
    balance.ledger.loans.as_ref().is_some_and(|loans| balance.ledger.minted < loans.share)
}

/// Whether the store gives a region nothing, because that has not counted what was borrowed from a memory it
/// lost.
fn is_carried(ledger: &Ledger, region: &str) -> bool {
    ledger.bond(region).is_some_and(|bond| bond.carried)
}

fn has_rested(now: Timestamp, since: Option<Timestamp>) -> bool {
    since.is_none_or(|since| now.since(since) >= GAP || now < since)
}
