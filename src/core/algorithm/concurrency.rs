//! `concurrency`: who holds places now. A place is free again when its holder gives it back, or a hold (the
//! limit's `window`) after it was acquired or last renewed.
//!
//! Bound: at no instant do more than `limit` places have holders. A clock that steps back frees none early
//! and keeps none for longer than a hold from then on: whoever would end later ends then. Places held above a
//! lowered limit are not renewed, so a hold later they are no more. Memory: at most about 120 bytes for each
//! place of the limit.

use std::collections::{BTreeMap, BTreeSet};

use super::{Limit, Verdict};
use crate::hold::{Hold, HoldStep, Holder};
use crate::time::{Span, Timestamp};

/// Largest limit of a `concurrency` rule, whose memory grows with it.
pub const CONCURRENCY_LIMIT_MAX: u32 = 100_000;
/// Most places that one holder may acquire, so that every step is short. More are never admitted.
pub const PLACES_PER_HOLDER_MAX: u64 = 1_000;
/// Shortest hold.
pub const HOLD_MIN: Span = Span::from_millis(100);
/// Longest hold.
pub const HOLD_MAX: Span = Span::from_secs(24 * 3_600);

/// The holders of one bucket.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct Concurrency {
    /// `None` while there is none: most buckets are idle most of the time.
    holders: Option<Box<Holders>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(from = "Vec<WrittenHolder>", into = "Vec<WrittenHolder>")]
struct Holders {
    by_name: BTreeMap<Holder, Places>,
    /// The same by when their hold ends, soonest first.
    by_end: BTreeSet<(Timestamp, Holder)>,
    /// Places of all of them, those that have ended and are not yet forgotten included.
    places: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Places {
    count: u64,
    ends: Timestamp,
}

/// A holder, its places and when its hold ends, as another process reads it.
type WrittenHolder = (Holder, u64, Timestamp);

impl From<Holders> for Vec<WrittenHolder> {
    fn from(holders: Holders) -> Self {
        holders.by_name.into_iter().map(|(holder, places)| (holder, places.count, places.ends)).collect()
    }
}

impl From<Vec<WrittenHolder>> for Holders {
    fn from(written: Vec<WrittenHolder>) -> Self {
        let mut holders = Self::default();
        for (holder, count, ends) in written {
            holders.insert(holder, count, ends);
        }
        holders
    }
}

impl Holders {
    fn insert(&mut self, holder: Holder, count: u64, ends: Timestamp) {
        self.remove(holder);
        self.by_name.insert(holder, Places { count, ends });
        self.by_end.insert((ends, holder));
        self.places = self.places.saturating_add(count);
    }

    fn remove(&mut self, holder: Holder) -> Option<Places> {
        let places = self.by_name.remove(&holder)?;
        self.by_end.remove(&(places.ends, holder));
        self.places = self.places.saturating_sub(places.count);
        Some(places)
    }

    fn held(&self, holder: Holder, now: Timestamp) -> Option<Places> {
        self.by_name.get(&holder).copied().filter(|places| places.ends > now)
    }

    fn used(&self, now: Timestamp) -> u64 {
        let ended = self.by_end.iter().take_while(|(ends, _)| *ends <= now);
        ended.fold(self.places, |left, (_, holder)| left.saturating_sub(self.count(*holder)))
    }

    fn count(&self, holder: Holder) -> u64 {
        self.by_name.get(&holder).map_or(0, |places| places.count)
    }

    fn newest(&self) -> Timestamp {
        self.by_end.last().map_or(Timestamp(0), |(ends, _)| *ends)
    }

    /// When `needed` of the places in use at `now` have ended.
    fn freed(&self, needed: u64, now: Timestamp) -> Timestamp {
        let mut freed = 0_u64;
        for (ends, holder) in self.by_end.iter().skip_while(|(ends, _)| *ends <= now) {
            freed = freed.saturating_add(self.count(*holder));
            if freed >= needed {
                return *ends;
            }
        }
        self.newest()
    }

    /// Forgets who has ended, and has nobody hold for longer than from now on.
    fn tidy(&mut self, hold: Span, now: Timestamp) {
        while let Some((_, holder)) = self.by_end.first().copied().filter(|(ends, _)| *ends <= now) {
            self.remove(holder);
        }
        self.keep_no_longer(hold, now);
    }

    fn keep_no_longer(&mut self, hold: Span, now: Timestamp) {
        while let Some((_, holder)) = self.by_end.last().copied().filter(|(ends, _)| *ends > now + hold) {
            let count = self.count(holder);
            self.insert(holder, count, now + hold);
        }
    }
}

impl Concurrency {
    fn used_at(&self, now: Timestamp) -> u64 {
        self.holders.as_ref().map_or(0, |holders| holders.used(now))
    }

    fn newest(&self) -> Timestamp {
        self.holders.as_ref().map_or(Timestamp(0), |holders| holders.newest())
    }

    fn held(&self, holder: Holder, now: Timestamp) -> Option<Places> {
        self.holders.as_ref()?.held(holder, now)
    }

    /// See [`super::State::bring_places_back`].
    pub(super) fn keep_no_longer(&mut self, limit: &Limit, now: Timestamp) {
        if let Some(holders) = &mut self.holders {
            holders.keep_no_longer(limit.window, now);
        }
    }

    /// How long until `needed` places are free, at most a hold: nobody who is there now stays longer without
    /// renewing.
    fn free_in(&self, needed: u64, limit: &Limit, now: Timestamp) -> Span {
        let ends = self.holders.as_ref().map_or(now, |holders| holders.freed(needed, now));
        ends.since(now).min(limit.window)
    }

    fn reset(&self, limit: &Limit, now: Timestamp) -> Span {
        self.newest().since(now).min(limit.window)
    }

    pub(super) fn check(&self, limit: &Limit, now: Timestamp, cost: u64) -> Verdict {
        let permits = u64::from(limit.permits);
        let (used, asked) = (self.used_at(now), cost.max(1));
        let free = permits.saturating_sub(used);
        let admitted = asked <= free.min(PLACES_PER_HOLDER_MAX);
        let possible = asked <= permits.min(PLACES_PER_HOLDER_MAX);
        let taken = if admitted { cost } else { 0 };
        let needed = used.saturating_add(asked).saturating_sub(permits);
        Verdict {
            admitted,
            remaining: free - taken,
            reset: if taken > 0 { limit.window } else { self.reset(limit, now) },
            retry: (!admitted && possible).then(|| self.free_in(needed, limit, now)),
            delay: Span::ZERO,
        }
    }

    /// Returns what a holder's step would be answered at `now`. Changes nothing.
    ///
    /// A holder may acquire again, or renew, unless more is held than the limit allows since it was lowered.
    pub(super) fn check_hold(&self, limit: &Limit, now: Timestamp, hold: &Hold) -> Verdict {
        let held = self.held(hold.holder, now).is_some();
        if hold.step == HoldStep::Acquire && !held {
            return self.check(limit, now, hold.places);
        }
        let (used, permits) = (self.used_at(now), u64::from(limit.permits));
        let keeps = held && used <= permits;
        let renews = keeps && hold.step != HoldStep::Release;
        Verdict {
            admitted: keeps || hold.step == HoldStep::Release,
            remaining: permits.saturating_sub(used),
            reset: if renews { limit.window } else { self.reset(limit, now) },
            retry: (hold.step == HoldStep::Acquire && !keeps)
                .then(|| self.free_in(used.saturating_sub(permits), limit, now)),
            delay: Span::ZERO,
        }
    }

    /// Returns the places that this holder has at `now`.
    pub(super) fn places_of(&self, holder: Holder, now: Timestamp) -> Option<u64> {
        self.held(holder, now).map(|held| held.count)
    }

    /// True if this holder has places at `now`.
    #[cfg(test)]
    pub(super) fn holds(&self, holder: Holder, now: Timestamp) -> bool {
        self.held(holder, now).is_some()
    }

    /// Carries out a step that [`Self::check_hold`] has just admitted. Returns the places that it newly took,
    /// kept or gave back.
    pub(super) fn step(&mut self, limit: &Limit, now: Timestamp, hold: &Hold) -> u64 {
        let held = self.held(hold.holder, now);
        let holders = self.holders.get_or_insert_default();
        holders.tidy(limit.window, now);
        let ends = now + limit.window;
        let moved = match (hold.step, held) {
            (HoldStep::Release, held) => {
                holders.remove(hold.holder);
                held.map_or(0, |held| held.count)
            }
            (step, Some(held)) => {
                holders.insert(hold.holder, held.count, ends);
                if step == HoldStep::Renew { held.count } else { 0 }
            }
            (HoldStep::Acquire, None) if hold.places > 0 => {
                holders.insert(hold.holder, hold.places, ends);
                hold.places
            }
            (_, None) => 0,
        };
        if holders.by_name.is_empty() {
            self.holders = None;
        }
        moved
    }

    /// Takes places of which nobody knows who holds them: what a daemon has heard of a region's bucket.
    pub(super) fn take(&mut self, limit: &Limit, now: Timestamp, cost: u64) {
        let known = self.held(Holder::UNKNOWN, now).map_or(0, |held| held.count);
        let holders = self.holders.get_or_insert_default();
        holders.tidy(limit.window, now);
        holders.insert(Holder::UNKNOWN, known.saturating_add(cost), now + limit.window);
    }

    /// Only a holder gives back, by its own step.
    #[expect(clippy::unused_self, clippy::needless_pass_by_ref_mut, reason = "as every machine's")]
    pub(super) const fn refund(&mut self, _: &Limit, _: Timestamp, _: u64) -> u64 {
        0
    }

    pub(super) fn used(&self, _: &Limit, now: Timestamp) -> u64 {
        self.used_at(now)
    }

    pub(super) fn expiry(&self, _: &Limit) -> Timestamp {
        self.newest()
    }

    /// Returns who holds how many places at `now`, as far as it is known who.
    pub(super) fn known(&self, now: Timestamp) -> Vec<(Holder, u64)> {
        let holders = self.holders.iter().flat_map(|holders| &holders.by_name);
        let live = holders.filter(|(holder, places)| **holder != Holder::UNKNOWN && places.ends > now);
        live.map(|(holder, places)| (*holder, places.count)).collect()
    }

    pub(super) fn heap_bytes(&self) -> usize {
        let each = size_of::<(Holder, Places)>() + size_of::<(Timestamp, Holder)>();
        // Nodes of a tree are half full at worst.
        self.holders.as_ref().map_or(0, |held| size_of::<Holders>() + 2 * each * held.by_name.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HOLD: Span = Span::from_secs(30);
    const START: Timestamp = Timestamp(1_790_000_000_000_000);

    fn limit(permits: u32) -> Limit {
        Limit { calendar: None, permits, window: HOLD, burst: permits, queue: 0 }
    }

    fn hold(step: HoldStep, holder: u8, places: u64) -> Hold {
        Hold { step, holder: Holder([holder; 16]), places }
    }

    /// Asks and, if it may, does. The verdict and what moved.
    fn step(
        bucket: &mut Concurrency,
        limit: &Limit,
        now: Timestamp,
        step: HoldStep,
        who: u8,
        places: u64,
    ) -> (Verdict, u64) {
        let hold = hold(step, who, places);
        let verdict = bucket.check_hold(limit, now, &hold);
        let moved = if verdict.admitted { bucket.step(limit, now, &hold) } else { 0 };
        (verdict, moved)
    }

    fn acquire(bucket: &mut Concurrency, limit: &Limit, now: Timestamp, who: u8) -> bool {
        step(bucket, limit, now, HoldStep::Acquire, who, 1).0.admitted
    }

    /// What a bucket is, in the plainest words: everyone's places and when they end.
    #[derive(Default)]
    struct Plain(Vec<(u8, u64, u64)>);

    impl Plain {
        fn used(&self, now: u64) -> u64 {
            self.0.iter().filter(|(_, _, ends)| *ends > now).map(|(_, places, _)| places).sum()
        }

        /// When as many as `needed` places are free, found by trying every instant at which one ends.
        fn free_in(&self, needed: u64, permits: u64, now: u64) -> u64 {
            let mut ends: Vec<u64> =
                self.0.iter().map(|(_, _, ends)| *ends).filter(|ends| *ends > now).collect();
            ends.sort_unstable();
            let enough = |at: &&u64| self.used(**at) + needed <= permits;
            ends.iter().find(enough).map_or(0, |at| at - now).min(HOLD.0)
        }

        fn acquire(&mut self, who: u8, places: u64, permits: u64, now: u64) -> (bool, Option<u64>) {
            self.settle(now);
            let used = self.used(now);
            if let Some(own) = self.0.iter_mut().find(|(own, ..)| *own == who) {
                if used <= permits {
                    own.2 = now + HOLD.0;
                    return (true, None);
                }
                return (false, Some(self.free_in(0, permits, now)));
            }
            if used + places <= permits {
                self.0.push((who, places, now + HOLD.0));
                return (true, None);
            }
            (false, (places <= permits).then(|| self.free_in(places, permits, now)))
        }

        fn settle(&mut self, now: u64) {
            self.0.retain(|(_, _, ends)| *ends > now);
            self.0.iter_mut().for_each(|(_, _, ends)| *ends = (*ends).min(now + HOLD.0));
        }
    }

    proptest! {
        #[test]
        fn it_answers_as_a_plain_list_of_holders_does(
            permits in prop::collection::vec(0..8_u32, 1..4),
            history in prop::collection::vec((0..3_u8, 0..6_u8, 1..4_u64, -40_000_000_i64..40_000_000, any::<prop::sample::Index>()), 1..60),
        ) {
            let (mut bucket, mut plain, mut now) = (Concurrency::default(), Plain::default(), START);
            for (act, who, places, later, which) in history {
                now = Timestamp(now.0.saturating_add_signed(later));
                let limit = limit(permits[which.index(permits.len())]);
                let allowed = u64::from(limit.permits);
                match act {
                    0 => {
                        let mut copy = Plain(plain.0.clone());
                        let (fits, retry) = copy.acquire(who, places, allowed, now.0);
                        let (verdict, moved) = step(&mut bucket, &limit, now, HoldStep::Acquire, who, places);
                        prop_assert_eq!((verdict.admitted, verdict.retry), (fits, retry.map(Span)));
                        let held_before = plain.0.iter().any(|(own, _, ends)| *own == who && *ends > now.0);
                        prop_assert_eq!(moved, if fits && !held_before { places } else { 0 });
                        // A denied one changes nothing, not even what has ended.
                        if fits { plain = copy; }
                    }
                    1 => {
                        let used = plain.used(now.0);
                        let kept = plain.0.iter().any(|(own, _, ends)| *own == who && *ends > now.0) && used <= allowed;
                        let (verdict, _) = step(&mut bucket, &limit, now, HoldStep::Renew, who, 0);
                        prop_assert_eq!(verdict.admitted, kept);
                        if kept {
                            plain.settle(now.0);
                            plain.0.iter_mut().filter(|(own, ..)| *own == who).for_each(|own| own.2 = now.0 + HOLD.0);
                        }
                    }
                    _ => {
                        let had: u64 = plain.0.iter().filter(|(own, _, ends)| *own == who && *ends > now.0).map(|own| own.1).sum();
                        let (_, moved) = step(&mut bucket, &limit, now, HoldStep::Release, who, 0);
                        prop_assert_eq!(moved, had);
                        plain.settle(now.0);
                        plain.0.retain(|(own, ..)| *own != who);
                    }
                }
                prop_assert_eq!(bucket.used(&limit, now), plain.used(now.0));
                let newest = plain.0.iter().map(|(_, _, ends)| *ends).max().unwrap_or(0);
                prop_assert_eq!(bucket.expiry(&limit).0, newest);
            }
        }

        #[test]
        fn no_instant_sees_more_held_than_the_limit(
            permits in 0..10_u32,
            history in prop::collection::vec((0..3_u8, 0..20_u8, 1..5_u64, 0..20_000_000_u64), 1..80),
        ) {
            let (mut bucket, limit, mut now) = (Concurrency::default(), limit(permits), START);
            for (act, who, places, later) in history {
                now = now + Span(later);
                let act = [HoldStep::Acquire, HoldStep::Renew, HoldStep::Release][usize::from(act)];
                step(&mut bucket, &limit, now, act, who, places);
                prop_assert!(bucket.used(&limit, now) <= u64::from(permits));
            }
        }
    }

    #[test]
    fn the_eleventh_of_ten_waits_until_one_gives_back() {
        let (mut bucket, limit) = (Concurrency::default(), limit(10));
        assert!((0..10).all(|who| acquire(&mut bucket, &limit, START, who)));
        let (verdict, _) = step(&mut bucket, &limit, START + Span::from_secs(1), HoldStep::Acquire, 10, 1);
        assert_eq!((verdict.admitted, verdict.retry), (false, Some(Span::from_secs(29))));
        assert_eq!(step(&mut bucket, &limit, START, HoldStep::Release, 3, 0).1, 1);
        assert_eq!(step(&mut bucket, &limit, START, HoldStep::Release, 3, 0).1, 0, "freed once");
        assert!(acquire(&mut bucket, &limit, START, 10));
        assert!(!acquire(&mut bucket, &limit, START, 11));
    }

    #[test]
    fn who_acquires_twice_holds_once() {
        let (mut bucket, limit) = (Concurrency::default(), limit(2));
        assert!(acquire(&mut bucket, &limit, START, 1) && acquire(&mut bucket, &limit, START, 1));
        assert_eq!(bucket.used(&limit, START), 1);
        assert!(acquire(&mut bucket, &limit, START, 2) && acquire(&mut bucket, &limit, START, 1));
    }

    #[test]
    fn a_hold_ends_unless_it_is_renewed_and_does_not_come_back() {
        let (mut bucket, limit) = (Concurrency::default(), limit(1));
        assert!(acquire(&mut bucket, &limit, START, 1));
        let late = START + Span::from_secs(20);
        assert!(step(&mut bucket, &limit, late, HoldStep::Renew, 1, 0).0.admitted);
        assert!(!acquire(&mut bucket, &limit, START + HOLD, 2));
        let end = late + HOLD;
        assert!(bucket.holds(Holder([1; 16]), Timestamp(end.0 - 1)));
        assert!(!step(&mut bucket, &limit, end, HoldStep::Renew, 1, 0).0.admitted);
        assert!(acquire(&mut bucket, &limit, end, 2));
    }

    #[test]
    fn a_clock_that_steps_back_frees_nobody_early_and_keeps_nobody_longer_than_a_hold() {
        let (mut bucket, limit) = (Concurrency::default(), limit(2));
        assert!(acquire(&mut bucket, &limit, START, 1));
        let back = Timestamp(START.0 - 3_600_000_000);
        assert!(acquire(&mut bucket, &limit, back, 2), "a place was free");
        assert!(!acquire(&mut bucket, &limit, Timestamp(back.0 + HOLD.0 - 1), 3), "both still hold");
        assert!(acquire(&mut bucket, &limit, back + HOLD, 3), "an hour would be for ever");
    }

    #[test]
    fn above_a_lowered_limit_nothing_is_renewed() {
        let mut bucket = Concurrency::default();
        assert!((0..4).all(|who| acquire(&mut bucket, &limit(4), START, who)));
        let renewed = |bucket: &mut Concurrency, who| {
            step(bucket, &limit(3), START + Span(1), HoldStep::Renew, who, 0).0.admitted
        };
        assert!(!renewed(&mut bucket, 0));
        step(&mut bucket, &limit(3), START, HoldStep::Release, 1, 0);
        assert!(renewed(&mut bucket, 0));
    }

    #[test]
    fn a_cost_above_what_one_holder_may_have_never_passes() {
        let (bucket, limit) = (Concurrency::default(), limit(CONCURRENCY_LIMIT_MAX));
        assert!(bucket.check(&limit, START, PLACES_PER_HOLDER_MAX).admitted);
        let denied = bucket.check(&limit, START, PLACES_PER_HOLDER_MAX + 1);
        assert_eq!((denied.admitted, denied.retry), (false, None));
    }

    #[test]
    fn a_bucket_without_holders_takes_no_memory() {
        let (mut bucket, limit) = (Concurrency::default(), limit(5));
        assert!(acquire(&mut bucket, &limit, START, 1));
        assert!(bucket.heap_bytes() > 0);
        step(&mut bucket, &limit, START, HoldStep::Release, 1, 0);
        assert_eq!(bucket.heap_bytes(), 0);
    }
}
