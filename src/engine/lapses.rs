//! The end of reservations that nobody settles, of worldwide rules: what they held goes back when they have
//! lapsed, and the other regions are told.

use super::Engine;
use super::decide::TakenCost;
use super::port::ChargeResult;
use super::reserve::ReservedBucket;
use crate::core::key::Key;
use crate::core::open_reservations::OpenBucket;
use crate::core::request::Cost;
use crate::core::reservation::{ReservationFate, ReservationId};
use crate::core::reservation_notes::LAPSES_MAX;
use crate::core::reservation_terms::OnLapse;
use crate::core::ruleset::Match;
use crate::core::time::{Span, Timestamp};

/// So much later it is looked at: the store counts a reservation's time from when it was asked, by its own
/// clock.
const LATE: Span = Span::from_secs(1);
/// Time after which a store is asked again that did not answer.
const AGAIN: Span = Span::from_secs(5);
/// Most questions to the store at once, each of up to [`LAPSES_MAX`] reservations.
const ROUNDS_MAX: usize = 50;

impl Engine {
    /// Remembers what was just reserved of a worldwide rule until it has lapsed, unless it stays charged
    /// then.
    pub(super) fn follow_reserved(
        &self,
        (found, key): (&Match<'_>, &Key),
        taken: TakenCost,
        counted: &ChargeResult,
        now: Timestamp,
    ) {
        let Cost::Reserve(reserve) = taken.cost else { return };
        let held = taken.charged && counted.reservation == Some(ReservationFate::Held);
        // A request's own limit with another window counts in buckets that no other region knows.
        if held && reserve.on_lapse == OnLapse::Release && key.shape() == found.rule.shape {
            let bucket = OpenBucket { key: key.clone(), own_limit: found.own_limit };
            self.reservations.follow(reserve.id, now + reserve.noted_for() + LATE, bucket);
        }
    }

    /// Gives back what has lapsed of worldwide rules, of the reservations that this daemon made. Called about
    /// once a second.
    pub async fn give_back_lapsed(&self) {
        for _ in 0..ROUNDS_MAX {
            let now = self.clock.now();
            let lapsed = self.reservations.open().take_due(now, LAPSES_MAX);
            if lapsed.is_empty() || !self.lapse(lapsed, now).await {
                return;
            }
        }
    }

    /// `false`: the store did not answer for some of these, and is asked again later.
    async fn lapse(&self, lapsed: Vec<OpenBucket>, now: Timestamp) -> bool {
        let (loaded, regions) = (self.loaded.load_full(), self.regions_known());
        let mut known = Vec::with_capacity(lapsed.len());
        for bucket in lapsed {
            // Of a rule that is gone, or counts in other buckets now, nothing can go back.
            let Some(rule) = loaded.worldwide(bucket.key.shape()) else { continue };
            let reserved = ReservedBucket::new(&loaded, rule, bucket.key.clone(), bucket.own_limit, now);
            known.push((bucket, reserved));
        }
        let nothing = (ReservationId::NONE, 0);
        let charges: Vec<_> =
            known.iter().map(|(_, reserved)| reserved.commit(&loaded, regions, nothing)).collect();
        if charges.is_empty() {
            return true;
        }
        let outcome = self.settle_reserved(&charges, now).await;
        let mut all = true;
        for ((bucket, reserved), counted) in known.iter().zip(&outcome.counted) {
            self.tell_commit(reserved, counted, now);
            if counted.degraded {
                all = false;
                self.reservations.follow(ReservationId::NONE, now + AGAIN, bucket.clone());
            }
        }
        all
    }

    /// Gives back all that is reserved of worldwide rules where it would be forgotten with this process: none
    /// that comes after it could. Each commit is charged in full then.
    pub fn release_reserved(&self) {
        if !self.store.answers_at_once() {
            return;
        }
        let (loaded, regions, now) = (self.loaded.load_full(), self.regions_known(), self.clock.now());
        let open = self.reservations.open().take_all();
        for OpenBucket { key, own_limit } in open {
            let Some(rule) = loaded.worldwide(key.shape()) else { continue };
            let reserved = ReservedBucket::new(&loaded, rule, key, own_limit, now);
            let charge = reserved.commit(&loaded, regions, (ReservationId::NONE, 0));
            if let Some(counted) = self.store.release_reserved(&charge, now) {
                self.tell_commit(&reserved, &counted, now);
            }
        }
    }
}
