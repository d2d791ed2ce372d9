//! The level of one bucket without windows, as every region knows it, and what the own region may take of it.
//!
//! Each region follows the same level, as it was at the *cut*: so long ago that all have heard what was told then. It refills
//! at the rule's rate, and what the regions told is taken out of it as of when they told it. Both the level and the refill are
//! divided by demand, so that the parts add up to one bucket. Since the cut each region's part refills at its own rate, no higher
//! than its part of the bucket, and what it admitted itself is taken out. A level below zero is a debt: it is carried, and so the
//! long-run rate is never exceeded.

use std::collections::VecDeque;

use smallvec::SmallVec;

use super::super::algorithm::{Limit, View};
use super::super::time::{Span, Timestamp};
use super::budget::{Account, Estate, Stake, UNIT, budgets};
use super::credit::Credit;
use super::regions::{RegionId, Regions};

/// Most reports of one region that wait for their instant. Full: the oldest is used early.
const WAITING_MAX: usize = 64;
/// Most instants at which the own count is remembered. Full: the oldest is forgotten, and what was admitted then counts as
/// admitted before the cut.
const OWN_MAX: usize = 64;
/// A bucket is at home in the region that alone asked for it in its last so many windows: what nobody asks for is mostly
/// kept there.
const HOME_WINDOWS: u64 = 16;
const HOME_PARTS: u64 = 9;
/// For so long beyond the horizon a part of the level must last: until the next report is in force.
const AHEAD: Span = Span::from_millis(100);

/// What all regions know of one bucket's level.
#[derive(Debug, Clone, Default)]
pub(super) struct Pool {
    registers: Vec<Register>,
    /// Since when it is followed here.
    since: Timestamp,
    /// What the reports in force leave, in millionths, as of `at`, the newest stamp of them; below zero is debt.
    level: i128,
    at: Timestamp,
    /// What the own store holds as used, in millionths, as of `used_at`.
    used: i128,
    used_at: Timestamp,
    /// What the own region had admitted in all, at instants since the cut before the present.
    own: VecDeque<(Timestamp, u64)>,
}

/// The own part of what all know of the bucket.
#[derive(Debug, Clone, Copy)]
struct Part {
    /// Of the level at the cut, in millionths.
    level: i128,
    /// Of the refill, in permits a window.
    rate: u64,
    /// Of the whole bucket, in millionths.
    most: i128,
}

#[derive(Debug, Clone)]
struct Register {
    in_force: Option<Account>,
    waiting: VecDeque<(Timestamp, Statement)>,
    /// How much of its count the level knows of.
    counted: u64,
    /// How much more of it is believed.
    credit: Credit,
    /// When a report in force last showed that something was asked for.
    stirred: Option<Timestamp>,
}

/// What a region told of a bucket without windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Statement {
    pub(super) account: Account,
    /// Whether it is the region's first here and tells of a count that is older than the bucket is here: what was admitted
    /// long ago has been refilled, so it may leave the bucket empty, but in no debt.
    pub(super) past: bool,
}

impl Register {
    const fn new(since: Timestamp) -> Self {
        let credit = Credit::since(since);
        Self { in_force: None, waiting: VecDeque::new(), counted: 0, credit, stirred: None }
    }

    fn newest(&self) -> Option<&Account> {
        self.waiting.back().map(|(_, statement)| &statement.account).or(self.in_force.as_ref())
    }

    /// How much the level falls by these words, and what is believed of the region after them.
    fn takes(&self, statement: Statement, level: i128, share: Share<'_>) -> (i128, Credit) {
        let mut credit = self.credit;
        let more = statement.account.admitted.saturating_sub(self.counted);
        let believed = credit.believe(statement.account.stamp, more, share.limit, share.capacity);
        let fewer = self.counted.saturating_sub(statement.account.admitted);
        let taken = (i128::from(believed) - i128::from(fewer)) * UNIT;
        (if statement.past { taken.min(level.max(0)) } else { taken }, credit)
    }
}

/// What is divided, among whom.
#[derive(Debug, Clone, Copy)]
pub(super) struct Share<'a> {
    /// The rule's own.
    pub(super) limit: Limit,
    /// What the bucket holds at most.
    pub(super) capacity: u64,
    /// Of the limit's permits, those that are divided here: less where some are kept for regions that are cut off.
    pub(super) permits: u64,
    pub(super) parties: &'a [(RegionId, u64)],
    pub(super) horizon: Span,
    pub(super) tip: u64,
}

impl Share<'_> {
    /// Permits that are worth no message to the store: half a hundredth of the bucket.
    pub(super) const fn little(&self) -> u64 {
        self.capacity / 200
    }
}

impl Pool {
    /// A full bucket.
    pub(super) fn full(capacity: u64, now: Timestamp) -> Self {
        Self { since: now, level: i128::from(capacity) * UNIT, at: now, used_at: now, ..Self::default() }
    }

    /// It holds another number of permits at most: what is used of it stays used.
    pub(super) fn resize(&mut self, before: u64, after: u64) {
        self.level += (i128::from(after) - i128::from(before)) * UNIT;
    }

    /// What the own store holds as used, in permits.
    pub(super) fn in_use(&self, now: Timestamp, limit: Limit) -> u64 {
        u64::try_from((self.used - refill(limit, now.since(self.used_at))) / UNIT).unwrap_or(0)
    }

    /// Takes in a report. Whether it came too late to be used by all at once.
    pub(super) fn hear(
        &mut self,
        now: Timestamp,
        region: RegionId,
        statement: Statement,
        horizon: Span,
    ) -> bool {
        while self.registers.len() <= region {
            self.registers.push(Register::new(self.since));
        }
        let Some(register) = self.registers.get_mut(region) else { return false };
        if register.newest().is_some_and(|known| known.stamp >= statement.account.stamp) {
            return false;
        }
        let at = statement.account.stamp + horizon;
        register.waiting.push_back((at, statement));
        if register.waiting.len() > WAITING_MAX
            && let Some((early, _)) = register.waiting.front_mut()
        {
            *early = Timestamp::default();
        }
        at < now
    }

    /// The own region had admitted so much in all by now.
    pub(super) fn admitted(&mut self, now: Timestamp, own: u64, horizon: Span) {
        // After a clock went back.
        while self.own.back().is_some_and(|(at, _)| *at > now) {
            self.own.pop_back();
        }
        while self.own.get(1).is_some_and(|(at, _)| *at + horizon <= now) || self.own.len() >= OWN_MAX {
            self.own.pop_front();
        }
        if self.own.back().is_none_or(|(at, known)| *known != own && *at < now) {
            self.own.push_back((now, own));
        }
    }

    /// The own store took `permits` in: admitted here, or charged for others; given back if negative.
    pub(super) fn stored(&mut self, now: Timestamp, permits: i128, share: Share<'_>) {
        self.used = (self.used_now(now, share) + permits * UNIT).max(0);
        self.used_at = self.used_at.max(now);
    }

    fn used_now(&self, now: Timestamp, share: Share<'_>) -> i128 {
        (self.used - refill(share.limit, now.since(self.used_at))).max(0)
    }

    /// Takes out of the level what has come into force by `now`.
    pub(super) fn advance(&mut self, now: Timestamp, share: Share<'_>) {
        loop {
            // Of two reports of one instant that of the first party is first: the same everywhere, as numbers are not.
            let place = |id| share.parties.iter().position(|&(party, _)| party == id);
            let due = self.registers.iter().enumerate().filter_map(|(id, register)| {
                register.waiting.front().filter(|(at, _)| *at <= now).map(|(at, _)| (*at, place(id), id))
            });
            let Some((at, _, id)) = due.min() else { break };
            let stamp = cut(at, share);
            self.level = self.level_at(stamp, share);
            self.at = self.at.max(stamp);
            let Some(register) = self.registers.get_mut(id) else { break };
            let Some((_, statement)) = register.waiting.pop_front() else { break };
            let (taken, credit) = register.takes(statement, self.level, share);
            self.level -= taken;
            register.credit = credit;
            let account = statement.account;
            if account.demand > 0 || account.admitted != register.counted {
                register.stirred = Some(account.stamp);
            }
            register.counted = account.admitted;
            register.in_force = Some(account);
        }
    }

    fn level_at(&self, now: Timestamp, share: Share<'_>) -> i128 {
        let capacity = i128::from(share.capacity) * UNIT;
        (self.level + refill(share.limit, now.since(self.at))).min(capacity)
    }

    /// The region that alone asked for the bucket lately, as all know it.
    fn home(&self, share: Share<'_>) -> Option<RegionId> {
        let stirred = |id: RegionId| self.registers.get(id).and_then(|register| register.stirred);
        let last = share.parties.iter().map(|&(id, _)| id).max_by_key(|&id| stirred(id))?;
        let since = stirred(last)?;
        let long = Span(share.limit.window.0.saturating_mul(HOME_WINDOWS));
        let alone =
            |&(id, _): &(RegionId, u64)| id == last || stirred(id).is_none_or(|other| other + long <= since);
        share.parties.iter().all(alone).then_some(last)
    }

    /// When the next report waits for its instant.
    pub(super) fn next_instant(&self) -> Option<Timestamp> {
        self.registers.iter().filter_map(|register| register.waiting.front().map(|(at, _)| *at)).min()
    }

    /// What the own store must keep back for the others: nothing to be kept is `None`. `own` is what the own region
    /// admitted in all until now.
    pub(super) fn view(&self, now: Timestamp, own: u64, share: Share<'_>) -> Option<View> {
        let counted = self.registers.first().map_or(0, |register| register.counted);
        let (in_force, arrived) = (self.part(now, false, share), self.part(now, true, share));
        let rate = in_force.rate;
        let part = Part { level: in_force.level.min(arrived.level), ..in_force };
        let tokens = self.since_cut(now, own, counted, part, share);
        let free = i128::from(share.capacity) * UNIT - self.used_now(now, share);
        let capacity = u32::try_from(share.capacity).unwrap_or(u32::MAX);
        let held = u64::try_from((free - tokens).max(0) / UNIT).unwrap_or(u64::MAX);
        let growth = u64::from(share.limit.permits).saturating_sub(rate);
        if held == 0 && growth == 0 {
            return None;
        }
        // So what the store is not told of, being so little, lets no region take more than its part.
        let held = held.saturating_add(share.little()).min(u64::from(capacity));
        let weights: u64 = share.parties.iter().map(|&(_, weight)| weight).sum::<u64>().max(1);
        let weight =
            share.parties.iter().find(|(id, _)| *id == Regions::OWN).map_or(0, |&(_, weight)| weight);
        // Without news it stays with the fixed share.
        let kept = u128::from(share.capacity) * u128::from(weight) / u128::from(weights);
        let most = share.capacity.saturating_sub(u64::try_from(kept).unwrap_or(share.capacity)).max(held);
        Some(View {
            window: now.0,
            budget: u32::try_from(most).unwrap_or(u32::MAX),
            next_budget: u32::try_from(growth).unwrap_or(u32::MAX),
            others: held,
            ..View::default()
        })
    }

    /// What is left of the own part of the level at the cut: it refills at the own rate, no higher than the own part of the
    /// bucket, and all that was admitted since the last report in force is taken out of it.
    fn since_cut(&self, now: Timestamp, own: u64, counted: u64, part: Part, share: Share<'_>) -> i128 {
        let limit = Limit { permits: u32::try_from(part.rate).unwrap_or(u32::MAX), ..share.limit };
        // Where the cut went back, with a longer horizon, the level did not.
        let (mut at, mut known, mut level) = (cut(now, share).max(self.at), counted, part.level);
        for (time, admitted) in self.own.iter().copied().chain([(now, own)]) {
            if time > at {
                level = (level + refill(limit, time.since(at))).min(part.most.max(level));
                at = time;
            }
            level -= (i128::from(admitted) - i128::from(known)) * UNIT;
            known = admitted;
        }
        level
    }

    /// The own part of the level at the cut, of the refill and of the bucket.
    fn part(&self, now: Timestamp, arrived: bool, share: Share<'_>) -> Part {
        let mut level = self.level_at(cut(now, share), share);
        if arrived {
            for register in self.registers.iter().skip(1) {
                let Some((_, statement)) = register.waiting.back() else { continue };
                level -= register.takes(*statement, level, share).0;
            }
        }
        // What is kept for regions that are cut off is no part of it.
        level = level * i128::from(share.permits) / i128::from(share.limit.permits.max(1));
        let home = self.home(share);
        let weights: u64 = share.parties.iter().map(|&(_, weight)| weight).fold(0, u64::saturating_add);
        let stakes: SmallVec<[Stake; 4]> = share
            .parties
            .iter()
            .map(|&(id, weight)| {
                let register = self.registers.get(id);
                let known =
                    register.and_then(|one| if arrived { one.newest() } else { one.in_force.as_ref() });
                let told = known.map(|known| Account { stamp: now, admitted: 0, demand: known.demand });
                let at_home = if home == Some(id) { weights.saturating_mul(HOME_PARTS) } else { 0 };
                Stake { weight, reserve: weight.saturating_add(at_home), told, before: 0, exact: None }
            })
            .collect();
        let own = share.parties.iter().position(|(id, _)| *id == Regions::OWN);
        let divide = |limit: u64, lasting: Span| {
            let estate =
                Estate { limit, start: now, end: now + lasting, cut: now, caution: 1_000, tip: share.tip };
            own.and_then(|own| budgets(estate, &stakes).get(own).copied()).unwrap_or(0)
        };
        let rate = divide(share.permits, share.limit.window);
        let level = match u64::try_from(level / UNIT) {
            Ok(whole) if level > 0 => i128::from(divide(whole, share.horizon + AHEAD)) * UNIT,
            _ => level * i128::from(rate) / i128::from(share.permits.max(1)),
        };
        let whole =
            u128::from(share.capacity) * u128::from(share.permits) / u128::from(share.limit.permits.max(1));
        let most = divide(u64::try_from(whole).unwrap_or(u64::MAX), share.horizon + AHEAD);
        Part { level, rate, most: i128::from(most) * UNIT }
    }

    /// The level at the cut, in permits; below zero is debt.
    #[cfg(test)]
    fn permits(&self, now: Timestamp, share: Share<'_>) -> i128 {
        self.level_at(cut(now, share), share).div_euclid(UNIT)
    }
}

/// The instant of which all know what was told: as long ago as a report takes to be in force everywhere.
fn cut(now: Timestamp, share: Share<'_>) -> Timestamp {
    Timestamp(now.0.saturating_sub(share.horizon.0))
}

/// What a limit refills in `span`, in millionths.
pub(super) fn refill(limit: Limit, span: Span) -> i128 {
    i128::from(limit.permits) * i128::from(span.0) * UNIT / i128::from(limit.window.0.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Timestamp = Timestamp(1_700_000_000_000_000);
    const PARTIES: [(RegionId, u64); 3] = [(0, 1), (1, 1), (2, 1)];
    const LIMIT: Limit = Limit { permits: 90, window: Span::from_secs(1), burst: 90, queue: 0 };

    fn share() -> Share<'static> {
        let horizon = Span::from_millis(50);
        Share { limit: LIMIT, capacity: 90, permits: 90, parties: &PARTIES, horizon, tip: 0 }
    }

    fn told(ms: u64, admitted: u64, demand: u64) -> Statement {
        let account = Account { stamp: START + Span::from_millis(ms), admitted, demand: demand * 1_000_000 };
        Statement { account, past: false }
    }

    #[test]
    fn a_full_bucket_that_nobody_asks_for_is_shared_by_weight() {
        let pool = Pool::full(90, START);
        let view = pool.view(START, 0, share()).unwrap();
        assert_eq!((view.others, view.next_budget), (60, 60));
    }

    #[test]
    fn who_alone_asks_has_all_of_it_once_that_is_in_force() {
        let mut pool = Pool::full(90, START);
        pool.hear(START, 0, told(0, 0, 10_000), share().horizon);
        let now = START + Span::from_millis(60);
        pool.advance(now, share());
        assert_eq!(pool.view(now, 0, share()), None);
    }

    #[test]
    fn a_bucket_that_refills_while_words_travel_is_used_whole() {
        let limit = Limit { permits: 1_000, burst: 50, ..LIMIT };
        let share = Share { limit, capacity: 50, permits: 1_000, horizon: Span::from_millis(70), ..share() };
        let mut pool = Pool::full(50, START);
        for tick in 1..=100 {
            let (now, own) = (START + Span::from_millis(tick * 10), tick * 10);
            pool.stored(now, 10, share);
            pool.admitted(now, own, share.horizon);
            pool.hear(now, 0, told(tick * 10, own, 1_000), share.horizon);
            pool.advance(now, share);
            // It alone asks, and all that it took has refilled.
            assert!(tick < 20 || pool.view(now, own, share).is_none(), "at {tick}");
        }
    }

    #[test]
    fn a_longer_horizon_refills_nothing_again() {
        let mut pool = Pool::full(90, START);
        pool.hear(START, 0, told(0, 0, 1_000), share().horizon);
        pool.hear(START, 1, told(0, 60, 0), share().horizon);
        let now = START + Span::from_millis(60);
        pool.advance(now, share());
        let later = Share { horizon: Span::from_millis(500), ..share() };
        // Of the thirty that were left and what refilled since.
        assert!(pool.view(now, 0, later).unwrap().others >= 90 - 30 - 6);
    }

    #[test]
    fn what_refilled_before_a_burst_into_a_full_bucket_is_not_there_after_it() {
        let mut pool = Pool::full(90, START);
        let now = START + Span::from_secs(5);
        pool.stored(now, 30, share());
        pool.admitted(now, 30, share().horizon);
        pool.advance(now, share());
        // Its part was 30 of 90, and 60 of 90 are in the store.
        assert_eq!(pool.view(now, 30, share()).unwrap().others, 60);
    }

    #[test]
    fn what_was_admitted_beyond_the_bucket_is_a_debt_that_all_carry() {
        let mut pool = Pool::full(90, START);
        for region in 0..3 {
            pool.hear(START, region, told(0, 60, 1_000), share().horizon);
        }
        let now = START + Span::from_millis(50);
        pool.advance(now, share());
        assert_eq!(pool.permits(now, share()), -90);
        pool.stored(now, 180, share());
        // Half the debt is paid after half a second; then nothing may be taken yet.
        let later = now + Span::from_millis(500);
        assert_eq!(pool.permits(later, share()), -45);
        let view = pool.view(later, 60, share()).unwrap();
        assert!(view.next_budget == 60, "{view:?}");
    }

    #[test]
    fn a_claim_beyond_all_measure_is_a_debt_of_two_buckets() {
        let mut pool = Pool::full(90, START);
        pool.hear(START, 1, told(0, 0, 1_000), share().horizon);
        for ms in 1..=20 {
            pool.hear(START, 1, told(ms, u64::MAX / 100 * ms, 1_000), share().horizon);
        }
        let now = START + Span::from_millis(70);
        pool.advance(now, share());
        // What it held, what refills in these milliseconds, and twice of both from the one that is not believed.
        let level = pool.permits(now, share());
        assert!((-95..=-85).contains(&level), "{level}");
    }

    #[test]
    fn what_was_admitted_long_before_a_daemon_began_is_no_debt() {
        let mut pool = Pool::full(90, START);
        let statement = told(0, 1_000_000, 50);
        pool.hear(START, 1, Statement { past: true, ..statement }, share().horizon);
        pool.hear(START, 1, told(10, 1_000_009, 50), share().horizon);
        let now = START + Span::from_millis(60);
        pool.advance(now, share());
        let level = pool.permits(now, share());
        assert!((-9..=0).contains(&level), "{level}");
    }

    #[test]
    fn parts_of_the_refill_add_up_to_the_rate() {
        let demands = [[1_000, 1_000, 1_000], [1_000, 10, 0], [30, 30, 30], [0, 0, 0], [5, 1_000, 40]];
        for demand in demands {
            // Each region sees the same, itself first.
            let rates = (0..3).map(|own: usize| {
                let mut pool = Pool::full(90, START);
                for (region, wanted) in demand.into_iter().enumerate() {
                    let id = if region == own {
                        0
                    } else if region < own {
                        region + 1
                    } else {
                        region
                    };
                    pool.hear(START, id, told(0, 0, wanted), share().horizon);
                }
                let now = START + Span::from_millis(60);
                pool.advance(now, share());
                let order: Vec<(RegionId, u64)> = (0..3)
                    .map(|one| {
                        (
                            if one == own {
                                0
                            } else if one < own {
                                one + 1
                            } else {
                                one
                            },
                            1,
                        )
                    })
                    .collect();
                pool.part(now, false, Share { parties: &order, ..share() }).rate
            });
            assert_eq!(rates.sum::<u64>(), 90, "{demand:?}");
        }
    }
}
