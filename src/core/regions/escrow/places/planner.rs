//! What one daemon does about one bucket of places ([`super`]): makes its memory known to others,
//! lends what nobody holds to whoever is refused, and gives back what it borrowed once it lies idle.
//!
//! Nothing here matters to exactness: the store lends only what is its own and free, and nothing where it is
//! told to give back alone.

use super::super::bucket::{BucketNotes, EscrowBucket, LastStatement, RegionStatement};
use super::super::ledger::{Step, StepResult};
use super::super::planner::{GAP, UNIT};
use super::super::window::{RegionEstimate, SpendingTime, need, window_transfers};
use super::super::{Escrow, slides};
use super::{PlacesLedger, PlacesStep};
use crate::regions::membership::{RegionId, Regions};
use crate::time::{Span, Timestamp};
use crate::wire::rights::{RightKind, Total, Transfer};

/// A region that does not know the own memory is told of it at most this often.
const INTRODUCTION_GAP: Span = Span::from_millis(200);
/// Places never wait for a window to end: nothing is kept back for a surprise.
const SPENDING: Span = Span::from_secs(1);

impl Escrow {
    /// How often what was lent is confirmed.
    pub(in super::super) fn confirmation_gap(&self) -> Span {
        Span(self.config.margins.loan_life.0 / 6)
    }

    /// Has the store take in what other regions said of their memories and of the own one.
    pub(in super::super) fn open_sessions(&mut self, now: Timestamp, id: usize) {
        let Some(bucket) = self.bucket(id) else { return };
        let Some((_, ledger)) = bucket.current_places(now) else { return };
        let BucketNotes::Places { asked_to_recover } = bucket.notes else { return };
        let own = self.own_region();
        let mut steps = Vec::new();
        let (mut noted, mut strangers) = (Vec::new(), Vec::new());
        for (region, partner) in bucket.partners() {
            let name = self.regions.name(region);
            let Some(heard) = partner.heard.filter(|_| bucket.rule.shares.contains_key(name)) else {
                continue;
            };
            let Some(places) = partner.as_places().filter(|_| partner.session != 0) else { continue };
            let said = |totals: &[Total]| {
                let ours = |total: &&Total| total.region == own && total.session == ledger.session;
                totals.iter().find(ours).map(|total| total.permits)
            };
            let (has, gave) = (said(&places.totals.taken), said(&places.totals.given));
            let known = ledger.partner(name);
            if known.is_some_and(|known| known.session > partner.session) {
                continue;
            }
            let met = known.filter(|known| known.session == partner.session);
            let taken = met.map_or(0, |met| met.taken);
            let news = known.is_none_or(|known| {
                let confirms = gave.is_some_and(|gave| gave >= taken || !known.is_uncounted);
                let old = heard.since(known.heard) >= Span(self.confirmation_gap().0 / 2);
                (has.is_some() && !known.has_reported)
                    || (confirms && taken > 0 && (known.is_uncounted || old))
            });
            // Not again at once, whatever the store makes of it: its clock may be another.
            if (met.is_none() || news) && has_rested(now, places.noted) {
                let (region_name, session) = (name.to_owned(), partner.session);
                steps.push((heard, PlacesStep::OpenSession { region: region_name, session, has, gave }));
                noted.push(region);
            }
            let rested = places.introduced.is_none_or(|at| heard > at && now.since(at) >= INTRODUCTION_GAP);
            if has.is_none() && rested {
                strangers.push(region);
            }
        }
        let reported = |name: &String| ledger.partner(name).is_some_and(|known| known.has_reported);
        let recovers = ledger.is_recovering()
            && has_rested(now, asked_to_recover)
            && bucket.rule.others(own).all(reported);
        if recovers {
            let regions = bucket.rule.others(own).cloned().collect();
            steps.push((now, PlacesStep::ConfirmRecovery { regions }));
        }
        let Some(bucket) = self.bucket_mut(id) else { return };
        if let (true, BucketNotes::Places { asked_to_recover }) = (recovers, &mut bucket.notes) {
            *asked_to_recover = Some(now);
        }
        for region in noted {
            if let Some(places) = bucket.partner_mut(region).as_places_mut() {
                places.noted = Some(now);
            }
        }
        for (heard, step) in steps {
            bucket.wait(Step::Places { heard, step });
        }
        for region in strangers {
            if let Some(bucket) = self.bucket_mut(id) {
                let partner = bucket.partner_mut(region);
                partner.owes_statement = true;
                if let Some(places) = partner.as_places_mut() {
                    places.introduced = Some(now);
                }
            }
            self.owe(id, region);
        }
    }

    /// Has the store lend what others want more, and give back what is not wanted here.
    pub(in super::super) fn give_places(&mut self, now: Timestamp, id: usize) {
        let Some(bucket) = self.bucket(id) else { return };
        let Some((balance, ledger)) = bucket.current_places(now) else { return };
        let unseen = self.unseen && slides(bucket.rule.rule.algorithm);
        let ahead = self.config.interval + self.owd_max() + self.owd_max();
        let holdings: Vec<RegionEstimate> = (0..self.regions.len())
            .map(|region| self.places_of(now, bucket, (balance, ledger), (region, ahead)))
            .collect();
        let spending = SpendingTime {
            limit: u64::from(bucket.rule.rule.limit.permits),
            length: SPENDING,
            elapsed: SPENDING,
            owd_max: self.owd_max(),
        };
        let mut gifts = window_transfers(spending, &holdings);
        let mut lendable = if unseen { 0 } else { ledger.owned.saturating_sub(ledger.lent()) };
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
            if partner.session != 0 && !is_uncounted(ledger, name) {
                let back = owned.min(homeward);
                homeward -= back;
                *gift += back;
            }
        }
        let give = if unseen { PlacesStep::GiveBack } else { PlacesStep::Give };
        let step = |giving| Step::Places { heard: now, step: give(giving) };
        self.give(now, id, (&gifts, u64::MAX), step);
    }

    /// What is believed of one region's places.
    fn places_of(
        &self,
        now: Timestamp,
        bucket: &EscrowBucket,
        (own, ledger): (&StepResult, &PlacesLedger),
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
            let wanted = millionths(bucket.wanted(RightKind::Places));
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
        let reachable =
            !is_uncounted(ledger, self.regions.name(region)) && self.is_reachable(now, partner, region, GAP);
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

    /// Whether a region can honestly have sent so many: what it owns at most, and what it gives back.
    pub(in super::super) fn can_have_places(
        &mut self,
        now: Timestamp,
        id: usize,
        region: RegionId,
        sent: &Transfer,
    ) -> bool {
        let from = self.regions.name(region);
        let Some(bucket) = self.bucket(id) else { return false };
        let Some(balance) = bucket.current(now) else { return false };
        let back = balance.ledger.given_to(from, sent.session);
        let honest = bucket.rule.shares.contains_key(from)
            && sent.permits <= bucket.share_of(from).minted_most.saturating_add(back);
        self.tally.beyond = self.tally.beyond.saturating_add(u64::from(!honest));
        honest
    }

    /// Whether the others should hear of the places here.
    pub(in super::super) fn places_worth_telling(
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
        let ledger = bucket.balance.as_ref().and_then(|balance| balance.ledger.as_places());
        let recovering = ledger.is_some_and(PlacesLedger::is_recovering);
        let interval = self.config.interval;
        (changed && since >= GAP)
            || (since >= interval && (new.wanted > 0 || (asked && off)))
            || (hot && recovering && since >= Span(interval.0.saturating_mul(5)))
            || (bucket.has_loans() && since >= self.confirmation_gap())
    }
}

/// Whether the store gives a region nothing, because that has not counted what was borrowed from a memory it
/// lost.
fn is_uncounted(ledger: &PlacesLedger, region: &str) -> bool {
    ledger.partner(region).is_some_and(|partner| partner.is_uncounted)
}

fn has_rested(now: Timestamp, since: Option<Timestamp>) -> bool {
    since.is_none_or(|since| now.since(since) >= GAP || now < since)
}
