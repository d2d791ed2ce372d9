//! Permits drawn ahead for hot keys, and denials remembered, so that most checks of them need no call.
//!
//! Permits that are drawn are charged in Redis at once, so the limit can not be exceeded; what is left goes
//! back. A draw asks for what the key's rate needs for [`DRAW_FOR`], and takes at most half of what is free,
//! divided by the region's daemons: near the limit draws shrink to nothing and the last permits are decided
//! one by one. Permits of a window die with it.
//!
//! This file keeps the books; calls are made by the store. Time is an argument, counted from any fixed start.

use std::hash::BuildHasher;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use crate::core::algorithm::{Algorithm, Counting, Limit, State, Verdict};
use crate::core::key::Key;
use crate::core::request::{Cost, ReportedCost};
use crate::core::rule::Mode;
use crate::core::time::{Span, Timestamp};
use crate::engine::port::{Charge, ChargeResult};
use crate::store::redis::batch::call::Bucket;
use crate::store::redis::batch::undo::UndoneCharge;
use crate::store::redis::client::slots::ClusterSlot;

/// A draw is for this long.
const DRAW_FOR: Duration = Duration::from_millis(50);
/// Fewer than this are not worth a draw.
const DRAW_MIN: u64 = 2;
/// A new draw begins when what is left lasts only this long.
const DRAW_AHEAD: Duration = Duration::from_millis(3);
/// Rates are measured over at least this long.
const MEASURED: Duration = Duration::from_millis(20);
/// Keys watched in all, and parts that are locked one at a time.
const KEYS_MAX: usize = 16_384;
const SHARDS: usize = 16;

/// The books of all hot keys.
#[derive(Debug)]
pub(in crate::store::redis) struct Leases {
    shards: [Mutex<HashMap<Key, Hot, RandomState>>; SHARDS],
    hasher: RandomState,
    permits_max: u32,
    ttl: Duration,
}

/// The facts known of one key.
#[derive(Debug)]
struct Hot {
    limit: Limit,
    /// Checks since `since`, and checks a second before that.
    count: u32,
    since: Duration,
    rate: f64,
    drawing: bool,
    held: Option<DrawnPermits>,
    denied: Option<Denied>,
    /// So many times permits were taken out and are not in line to go back yet.
    leaving: u32,
    /// When permits were last in line to go back: a denial that was asked for before is none now.
    freed: Duration,
}

/// Permits drawn and not yet used.
#[derive(Debug)]
struct DrawnPermits {
    left: u64,
    /// So many were left after the newest draw, and of them so many have drained from a level by then.
    whole: u64,
    drained: u64,
    until: Duration,
    /// End of the window that they belong to, for algorithms with windows.
    window_ends: Option<Duration>,
    /// The bucket after the draw, at the server's time and ours.
    state: State,
    server: Timestamp,
    taken: UndoneCharge,
    at: Duration,
    bucket: Bucket,
    slot: ClusterSlot,
}

#[derive(Debug, Clone, Copy)]
struct Denied {
    cost: u64,
    until: Duration,
    verdict: Verdict,
    at: Duration,
    used: u64,
}

/// Permits to give back.
#[derive(Debug)]
pub(in crate::store::redis) struct Leftover {
    /// The bucket as the rules name it.
    pub(in crate::store::redis) key: Key,
    pub(in crate::store::redis) slot: ClusterSlot,
    pub(in crate::store::redis) bucket: Bucket,
    /// Permits of the draw that are not used.
    pub(in crate::store::redis) permits: u64,
    /// So many of them can go back at most. None where their window has ended, and of a level what may have
    /// drained.
    pub(in crate::store::redis) back: u64,
    /// The charge that they are of.
    pub(in crate::store::redis) taken: UndoneCharge,
}

/// Advice on one check.
#[derive(Debug)]
pub(in crate::store::redis) enum Advice {
    /// Answered from memory.
    Answer(ChargeResult),
    /// Ask Redis.
    Ask,
}

/// What is drawn ahead for a key that denies a decision.
#[derive(Debug)]
pub(in crate::store::redis) enum DrawnAhead {
    /// A draw is under way, or permits are about to go back: look again in a moment.
    Moving,
    /// These are to go back at once.
    Held(Box<Leftover>),
    /// Permits have gone back since the decision was asked.
    WentBack,
    /// Nothing has to do with the denial.
    Nothing,
}

/// The yield of a draw.
#[derive(Debug)]
pub(in crate::store::redis) struct Drawn {
    pub(in crate::store::redis) permits: u64,
    pub(in crate::store::redis) state: State,
    pub(in crate::store::redis) server: Timestamp,
    /// Names the charge in Redis, so that it can be undone.
    pub(in crate::store::redis) taken: UndoneCharge,
    /// Time since the start at which the call was sent.
    pub(in crate::store::redis) sent: Duration,
    pub(in crate::store::redis) bucket: Bucket,
    pub(in crate::store::redis) slot: ClusterSlot,
}

/// True if permits of this charge can be drawn ahead: not where each admission has its own delay or holder,
/// nor where a view may take the budget back at any moment, nor where Redis counts each denial.
fn leasable(charge: &Charge<'_>) -> bool {
    let algorithm = match charge.rule.rule.algorithm {
        Algorithm::FixedWindow | Algorithm::SlidingWindow => true,
        Algorithm::TokenBucket | Algorithm::Gcra => charge.limit.queue == 0,
        Algorithm::SlidingLog | Algorithm::LeakyBucket | Algorithm::Concurrency => false,
    };
    let alone = charge.rule.rule.global.as_ref().is_none_or(|global| global.mode == Mode::Split);
    let counts_denials = charge.rule.rule.penalty.is_some();
    algorithm && alone && charge.enforced && !counts_denials
}

impl Leases {
    pub(in crate::store::redis) fn new(permits_max: u32, ttl: Duration) -> Self {
        let shards = std::array::from_fn(|_| Mutex::default());
        Self { shards, hasher: RandomState::default(), permits_max, ttl }
    }

    fn shard(&self, key: &Key) -> Option<MutexGuard<'_, HashMap<Key, Hot, RandomState>>> {
        let place = usize::try_from(self.hasher.hash_one(key) >> 32).unwrap_or(0) % SHARDS;
        Some(self.shards.get(place)?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns what to do with a check, and how many permits to draw now, if any.
    pub(in crate::store::redis) fn check(&self, charge: &Charge<'_>, now: Duration) -> (Advice, Option<u64>) {
        let (Cost::Take(cost) | Cost::Report(ReportedCost { permits: cost, .. })) = charge.cost else {
            return (Advice::Ask, None);
        };
        if self.permits_max == 0 || !leasable(charge) {
            return (Advice::Ask, None);
        }
        let Some(mut shard) = self.shard(charge.key) else { return (Advice::Ask, None) };
        if !shard.contains_key(charge.key) {
            if make_room(&mut shard, now) {
                shard.insert(charge.key.clone(), Hot::new(charge.limit, now));
            }
            return (Advice::Ask, None);
        }
        let Some(hot) = shard.get_mut(charge.key) else { return (Advice::Ask, None) };
        if hot.limit != charge.limit {
            // The permits that are held go back with the next sweep.
            hot.limit = charge.limit;
            hot.denied = None;
            if let Some(held) = &mut hot.held {
                held.until = now;
            }
        }
        hot.measure(now);
        // A report is charged all the same, unless nothing may be owed: then a bucket that is full stays as
        // it is.
        let stays = |cost| !matches!(cost, Cost::Report(ReportedCost { debt_max: 1.., .. }));
        // A draw that was under way at a denial may have brought permits since.
        let mut answer = hot.take(cost, now);
        if answer.is_none()
            && let Some(counted) = hot.denied(cost, now).filter(|_| stays(charge.cost))
        {
            return (Advice::Answer(counted), None);
        }
        if let Some(counted) = answer.as_mut().filter(|_| charge.cost.is_report()) {
            counted.reported = cost;
        }
        let draw = hot.wants(self.permits_max, now);
        (answer.map_or(Advice::Ask, Advice::Answer), draw)
    }

    /// Takes in what a draw has brought; `None` if it failed. Gives back what had to make way.
    pub(in crate::store::redis) fn drawn(&self, key: &Key, drawn: Option<Drawn>) -> Option<Leftover> {
        let mut shard = self.shard(key)?;
        let Some(hot) = shard.get_mut(key) else {
            return drawn.map(|drawn| Leftover {
                key: key.clone(),
                slot: drawn.slot,
                bucket: drawn.bucket,
                permits: drawn.permits,
                back: drawn.permits,
                taken: drawn.taken,
            });
        };
        hot.drawing = false;
        let drawn = drawn.filter(|drawn| drawn.permits > 0)?;
        let windows = drawn.bucket.limit.windows();
        let by_windows = drawn.bucket.algorithm.counting() == Counting::Window;
        let window = windows.index(drawn.server);
        let window_ends = by_windows.then(|| drawn.sent + windows.end(window).since(drawn.server).to_std());
        let before = hot.held.take();
        let same = before.as_ref().is_some_and(|held| {
            held.bucket == drawn.bucket && (!by_windows || windows.index(held.server) == window)
        });
        let (kept, drained) = before.as_ref().filter(|_| same).map_or((0, 0), |held| {
            let back = if by_windows { held.left } else { held.undrained(&drawn) };
            (held.left, held.left - back)
        });
        let leftover = before.filter(|held| !same && held.left > 0);
        let leftover = leftover.map(|held| held.leftover(key, drawn.sent));
        hot.leaving += u32::from(leftover.is_some());
        hot.held = Some(DrawnPermits {
            left: kept + drawn.permits,
            whole: kept + drawn.permits,
            drained,
            until: drawn.sent + self.ttl,
            window_ends,
            state: drawn.state,
            server: drawn.server,
            taken: drawn.taken,
            at: drawn.sent,
            bucket: drawn.bucket,
            slot: drawn.slot,
        });
        leftover
    }

    /// Remembers that Redis denied a check that was sent at `sent`.
    pub(in crate::store::redis) fn denied(
        &self,
        charge: &Charge<'_>,
        counted: &ChargeResult,
        sent: Duration,
    ) {
        let cost = match charge.cost {
            Cost::Take(cost) => cost,
            // It has taken what was left, so nothing more fits.
            Cost::Report(ReportedCost { debt_max: 0, .. }) => 1,
            _ => return,
        };
        let Some(retry) = counted.verdict.retry else { return };
        if self.permits_max == 0 || counted.verdict.admitted || !leasable(charge) {
            return;
        }
        let Some(mut shard) = self.shard(charge.key) else { return };
        let Some(hot) = shard.get_mut(charge.key) else { return };
        // Somebody may give permits back or raise the limit elsewhere: that is seen this much later at most.
        let until = sent + retry.to_std().min(self.ttl);
        let held = hot.held.as_ref().is_some_and(|held| held.left > 0);
        if hot.limit == charge.limit && !held && hot.leaving == 0 && hot.freed < sent {
            let (verdict, used) = (counted.verdict, counted.used);
            hot.denied = Some(Denied { cost, until, verdict, at: sent, used });
        }
    }

    /// Tells what is drawn ahead for a key that denied a decision asked at `sent`. What is held is taken out,
    /// and [`Leases::went_back`] is told of it.
    pub(in crate::store::redis) fn behind_denial(
        &self,
        key: &Key,
        sent: Duration,
        now: Duration,
    ) -> DrawnAhead {
        if self.permits_max == 0 {
            return DrawnAhead::Nothing;
        }
        let Some(mut shard) = self.shard(key) else { return DrawnAhead::Nothing };
        match shard.get_mut(key) {
            Some(hot) if hot.is_moving() => DrawnAhead::Moving,
            Some(hot) => match hot.held.take().filter(|held| held.left > 0) {
                Some(held) => {
                    hot.leaving += 1;
                    DrawnAhead::Held(Box::new(held.leftover(key, now)))
                }
                None if hot.freed >= sent => DrawnAhead::WentBack,
                None => DrawnAhead::Nothing,
            },
            None => DrawnAhead::Nothing,
        }
    }

    /// Notes that what was taken out of a key is in line to go back, or is given up where nothing is `freed`:
    /// who is asked from now on finds it free.
    pub(in crate::store::redis) fn went_back(&self, key: &Key, freed: bool, now: Duration) {
        let Some(mut shard) = self.shard(key) else { return };
        let Some(hot) = shard.get_mut(key) else { return };
        hot.leaving = hot.leaving.saturating_sub(1);
        if freed {
            (hot.denied, hot.freed) = (None, now);
        }
    }

    /// Forgets that a key was denied: this daemon has given permits of it back.
    pub(in crate::store::redis) fn gave_back(&self, key: &Key, now: Duration) {
        if self.permits_max == 0 {
            return;
        }
        let Some(mut shard) = self.shard(key) else { return };
        let Some(hot) = shard.get_mut(key) else { return };
        (hot.denied, hot.freed) = (None, now);
    }

    /// Permits of a key that are charged in Redis and not yet used.
    pub(in crate::store::redis) fn unused(&self, key: &Key, now: Duration) -> u64 {
        if self.permits_max == 0 {
            return 0;
        }
        let Some(shard) = self.shard(key) else { return 0 };
        let held = shard.get(key).and_then(|hot| hot.held.as_ref());
        held.filter(|held| !held.ended(now)).map_or(0, |held| held.left)
    }

    /// Forgets a key; what it holds goes back.
    pub(in crate::store::redis) fn forget(&self, key: &Key, now: Duration) -> Option<Leftover> {
        let hot = self.shard(key)?.remove(key)?;
        hot.held.filter(|held| held.left > 0).map(|held| held.leftover(key, now))
    }

    /// Returns what is held too long, and all of it with `all`; forgets keys that have cooled down.
    pub(in crate::store::redis) fn sweep(&self, now: Duration, all: bool) -> Vec<Leftover> {
        let mut leftovers = Vec::new();
        for shard in &self.shards {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            shard.retain(|key, hot| {
                let over = |held: &mut DrawnPermits| all || held.until <= now || held.ended(now);
                if let Some(held) = hot.held.take_if(over)
                    && held.left > 0
                {
                    hot.leaving += 1;
                    leftovers.push(held.leftover(key, now));
                }
                hot.denied = hot.denied.filter(|denied| denied.until > now);
                let idle = now.saturating_sub(hot.since) > Duration::from_secs(1);
                hot.held.is_some() || hot.is_moving() || hot.denied.is_some() || !idle
            });
        }
        leftovers
    }
}

fn make_room(shard: &mut HashMap<Key, Hot, RandomState>, now: Duration) -> bool {
    if shard.len() < KEYS_MAX / SHARDS {
        return true;
    }
    let cold = |hot: &Hot| hot.held.is_none() && !hot.is_moving() && now.saturating_sub(hot.since) > MEASURED;
    let cold = shard.iter().take(8).find(|(_, hot)| cold(hot)).map(|(key, _)| key.clone());
    cold.is_some_and(|key| shard.remove(&key).is_some())
}

impl Hot {
    const fn new(limit: Limit, now: Duration) -> Self {
        Self {
            limit,
            count: 0,
            since: now,
            rate: 0.0,
            drawing: false,
            held: None,
            denied: None,
            leaving: 0,
            freed: Duration::ZERO,
        }
    }

    /// True if permits are on their way here or back.
    const fn is_moving(&self) -> bool {
        self.drawing || self.leaving > 0
    }

    fn measure(&mut self, now: Duration) {
        self.count = self.count.saturating_add(1);
        let elapsed = now.saturating_sub(self.since);
        if elapsed >= MEASURED {
            let newest = f64::from(self.count) / elapsed.as_secs_f64();
            self.rate = (self.rate + newest) / 2.0;
            (self.count, self.since) = (0, now);
        }
    }

    fn denied(&self, cost: u64, now: Duration) -> Option<ChargeResult> {
        let denied = self.denied.filter(|denied| denied.until > now && cost == denied.cost)?;
        let passed = Span::from(now.saturating_sub(denied.at)).0;
        let left = |span: Span| Span(span.0.saturating_sub(passed));
        let verdict = Verdict {
            reset: left(denied.verdict.reset),
            retry: if cost > u64::from(self.limit.permits.max(self.limit.burst)) {
                None
            } else {
                denied.verdict.retry.map(left)
            },
            ..denied.verdict
        };
        Some(counted(verdict, denied.used))
    }

    fn take(&mut self, cost: u64, now: Duration) -> Option<ChargeResult> {
        let limit = self.limit;
        let held = self.held.as_mut().filter(|held| held.until > now && !held.ended(now))?;
        held.left = held.left.checked_sub(cost)?;
        let server = held.server + Span::from(now.saturating_sub(held.at));
        let rest = held.state.check(&limit, None, server, 0);
        let remaining = rest.remaining.saturating_add(held.left);
        let used = held.state.used(&limit, server).saturating_sub(held.left);
        let verdict = Verdict { admitted: true, remaining, retry: None, delay: Span::ZERO, ..rest };
        Some(counted(verdict, used))
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a float saturates")]
    fn wants(&mut self, permits_max: u32, now: Duration) -> Option<u64> {
        let permits = |span: Duration| (self.rate * span.as_secs_f64()) as u64;
        let left = self.held.as_ref().filter(|held| held.until > now && !held.ended(now));
        let left = left.map_or(0, |held| held.left);
        let want = permits(DRAW_FOR).min(u64::from(permits_max));
        let short = left <= permits(DRAW_AHEAD).min(u64::from(permits_max) / 2);
        let denied = self.denied.is_some_and(|denied| denied.until > now);
        if self.drawing || denied || want < DRAW_MIN || !short {
            return None;
        }
        self.drawing = true;
        Some(want)
    }
}

impl DrawnPermits {
    fn ended(&self, now: Duration) -> bool {
        self.window_ends.is_some_and(|end| now >= end)
    }

    fn leftover(self, key: &Key, now: Duration) -> Leftover {
        let back = if self.ended(now) { 0 } else { self.left.saturating_sub(self.drained) };
        let (permits, taken) = (self.left, self.unused());
        Leftover { key: key.clone(), slot: self.slot, bucket: self.bucket, permits, back, taken }
    }

    /// Returns what was charged less what was used of it since.
    fn unused(&self) -> UndoneCharge {
        let mut taken = self.taken;
        taken.charge.used = taken.charge.used.saturating_sub(self.whole - self.left);
        taken
    }

    /// Returns the permits that are left of a level and certainly had not drained at a later draw.
    fn undrained(&self, drawn: &Drawn) -> u64 {
        let back = self.left.saturating_sub(self.drained);
        let charge = self.unused().after(drawn.taken.undone, back);
        back.min(charge.left(&drawn.bucket.limit, drawn.server))
    }
}

const fn counted(verdict: Verdict, used: u64) -> ChargeResult {
    ChargeResult {
        verdict,
        view: None,
        error_bound: 0,
        used,
        returned: 0,
        reported: 0,
        uncharged: 0,
        paid: 0,
        owed: 0,
        lapsed: 0,
        reservation: None,
        penalty: None,
        degraded: false,
    }
}
