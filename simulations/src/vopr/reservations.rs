//! Worlds in which permits are reserved before a cost is known: by one region alone, by fixed shares, and
//! worldwide. The judge sees what clients see. Permits that were admitted, are reserved, or were committed
//! within their reservation are never more than the limit, whatever lapses, comes twice or never comes; and
//! where a region counts for itself, each answer is exactly what that leaves.

use std::collections::BTreeMap;

use serde_json::json;
use tidegate::core::algorithm::Algorithm;
use tidegate::core::request::Cost;
use tidegate::core::reservation::{Reservation, ReservationId};
use tidegate::core::reservation_terms::OnLapse;
use tidegate::core::time::{Span, Timestamp};

use super::play::Summary;
use super::whole::{Held, Play, SECOND, STEP, engines, weather};
use crate::number::{float, index, place, seconds};
use crate::plan::{Plan, Way};
use crate::virtual_world::Dice;

/// So long permits are reserved; then all that is under way ends.
const RESERVED: u64 = 4 * SECOND;
const USERS: u64 = 2;

/// A world of reservations.
#[derive(Debug, Clone)]
pub(crate) struct ReservationsCase {
    held: Held,
    plan: Plan,
    on_lapse: OnLapse,
    /// Some clients use more than they reserved, or commit when it has lapsed.
    goes_beyond: bool,
    /// Time for which permits are reserved.
    ttl: Span,
    /// The most that one reserves.
    amount_max: u64,
    /// A region that is cut off from a step to another.
    cut: Option<(usize, u64, u64)>,
    /// When the first region's daemon and its memory are lost.
    lost: Option<u64>,
}

impl ReservationsCase {
    pub(crate) fn draw(seed: u64) -> Self {
        let mut dice = Dice::new(seed, 76);
        let regions = index(dice.between(2, 3));
        let ways = [None, Some(Way::Split), Some(Way::Gossip), Some(Way::Escrow), Some(Way::Escrow)];
        let way = dice.pick(&ways).copied().flatten();
        let limit = u32::try_from(dice.between(12, 90)).unwrap_or(12);
        let algorithms =
            [Algorithm::FixedWindow, Algorithm::FixedWindow, Algorithm::TokenBucket, Algorithm::Gcra];
        let held = Held {
            way,
            algorithm: dice.pick(&algorithms).copied().unwrap_or(Algorithm::FixedWindow),
            limit,
            burst: limit,
            window: Span::from_millis(*dice.pick(&[500, 1_000, 2_000]).unwrap_or(&1_000)),
        };
        let weather = weather(&mut dice, regions, 0.03);
        // Between two steps, so that nothing lapses just when it is looked at.
        let ttl = Span(STEP.0 * dice.between(10, held.window.0 / STEP.0 - 1) + STEP.0 / 2);
        let from = dice.between(1, RESERVED / 2);
        let cut = (way.is_some() && dice.chance(0.4))
            .then(|| (index(dice.below(place(regions))), from, from + dice.between(SECOND / 2, 2 * SECOND)));
        let lost = (way == Some(Way::Escrow) && dice.chance(0.3)).then(|| dice.between(1, RESERVED));
        Self {
            held,
            plan: held.plan(seed, regions, weather),
            on_lapse: if dice.chance(0.5) { OnLapse::Release } else { OnLapse::Charge },
            goes_beyond: dice.chance(0.4),
            ttl,
            amount_max: (u64::from(limit) / dice.between(3, 8)).max(1),
            cut,
            lost,
        }
    }

    /// In words, for who reads of a failure.
    pub(crate) fn describe(&self) -> String {
        format!(
            "{}, {} regions, up to {} permits reserved for {} ms{}, {:?} when they lapse, longest way {} ms, loss {:.1} %{}{}",
            self.held.describe(),
            self.plan.regions.len(),
            self.amount_max,
            self.ttl.0 / 1_000,
            if self.goes_beyond { " and more used" } else { "" },
            self.on_lapse,
            self.plan.weather.longest().0 / 1_000,
            self.plan.weather.loss * 100.0,
            self.cut.map_or_else(String::new, |(region, from, to)| {
                format!(", region {region} cut off in steps {from} to {to}")
            }),
            self.lost.map_or_else(String::new, |at| format!(", a memory lost in step {at}"))
        )
    }

    fn is_windowed(&self) -> bool {
        self.held.algorithm == Algorithm::FixedWindow
    }

    /// True where the judge can tell each answer beforehand.
    fn is_exact(&self) -> bool {
        matches!(self.held.way, None | Some(Way::Split)) && self.is_windowed() && !self.goes_beyond
    }
}

/// A client's reservation.
#[derive(Debug, Clone)]
struct Pending {
    token: Reservation,
    region: usize,
    user: u64,
    window: u64,
    amount: u64,
    /// By its region's clock.
    lapses: Timestamp,
    lapsed: bool,
    /// In which step its client says what it used; `None`: never.
    committed_in: Option<u64>,
}

/// A user's bucket as it must count, without what was used beyond a reservation.
#[derive(Debug, Default)]
struct Books {
    /// By window, and in it by region.
    windows: BTreeMap<u64, Vec<u64>>,
    tokens: f64,
    at: Timestamp,
}

struct Game<'c> {
    case: &'c ReservationsCase,
    play: Play,
    books: Vec<Books>,
    pending: Vec<Pending>,
    step: u64,
    last_id: u128,
    /// By user, permits admitted since all that was reserved has ended.
    admitted_in_peace: Vec<u64>,
}

/// Plays a case; `releases` is whether a commit releases what it does not use.
///
/// # Errors
/// The first violation, in a sentence.
pub(crate) fn play(case: &ReservationsCase, releases: bool) -> Result<Summary, String> {
    let mut rule = case.held.written(&[]);
    rule["debt_max"] = json!(1_000_000);
    rule["on_lapse"] = json!(case.on_lapse);
    let mut play = Play::new(&case.plan, case.held, engines(&case.plan, &rule))?;
    play.settle();
    let now = play.world.now();
    let full = || Books { tokens: f64::from(case.held.burst), at: now, ..Books::default() };
    let books = (0..USERS).map(|_| full()).collect();
    let none = vec![0; index(USERS)];
    let mut game =
        Game { case, play, books, pending: Vec::new(), step: 0, last_id: 0, admitted_in_peace: none };
    let window = case.held.window.0 / STEP.0;
    // By then debts are paid, and nothing is left of what a lost memory may have given.
    let peace = (RESERVED / window + 8) * window;
    for step in 0..peace + 4 * window {
        game.step = step;
        game.turn(step >= peace, releases)
            .map_err(|why| format!("{why}, {} ms after the start", step * STEP.0 / 1_000))?;
    }
    game.judge_peace()?;
    Ok(game.play.summary())
}

impl Game<'_> {
    fn turn(&mut self, peace: bool, releases: bool) -> Result<(), String> {
        if let Some((region, from, to)) = self.case.cut
            && (self.step == from || self.step == to)
        {
            self.play.world.network_mut().cut(&[region], true, true, self.step == from);
            self.play.faults += 1;
        }
        if self.case.lost == Some(self.step) {
            self.play.world.restart(0);
            self.play.faults += 1;
        }
        self.lapse();
        self.commit_due(releases)?;
        let regions = self.case.plan.regions.len();
        let whole = 2.0 * f64::from(self.case.held.limit) * float(STEP.0) / float(self.case.held.window.0);
        let first = index(self.play.dice.below(place(regions)));
        for region in (0..regions).map(|at| (at + first) % regions) {
            for user in 0..USERS {
                for _ in 0..self.play.dice.poisson(whole / float(place(regions))) {
                    let reserves = self.step < RESERVED && self.play.dice.chance(0.3);
                    if reserves { self.reserve(region, user)? } else { self.take(region, user, peace)? }
                }
            }
        }
        self.play.step();
        Ok(())
    }

    fn window(&self, region: usize) -> u64 {
        if !self.case.is_windowed() {
            return 0;
        }
        self.play.world.clock(region).window_index(self.case.held.window)
    }

    /// Frees what has lapsed, unless the rule says otherwise.
    fn lapse(&mut self) {
        for at in 0..self.pending.len() {
            let one = &self.pending[at];
            if one.lapsed || self.play.world.clock(one.region) < one.lapses {
                continue;
            }
            let (user, region, window, amount) = (one.user, one.region, one.window, one.amount);
            self.pending[at].lapsed = true;
            if self.case.on_lapse == OnLapse::Release {
                self.give_back(user, region, window, amount);
            }
        }
    }

    fn give_back(&mut self, user: u64, region: usize, window: u64, permits: u64) {
        let (now, held) = (self.play.world.now(), self.case.held);
        let books = &mut self.books[index(user)];
        if let Some(of_window) = books.windows.get_mut(&window) {
            of_window[region] -= permits;
        }
        books.refill(now, &held);
        books.tokens = (books.tokens + float(permits)).min(f64::from(held.burst));
    }

    /// An answer to who wants so many permits, held against what there is.
    fn answered(&mut self, region: usize, user: u64, permits: u64, allowed: bool) -> Result<(), String> {
        let (window, regions) = (self.window(region), self.case.plan.regions.len());
        let (now, held) = (self.play.world.now(), self.case.held);
        let part = match held.way {
            None => u64::from(held.limit),
            Some(_) => held.part(held.limit, region, regions),
        };
        let (is_exact, is_windowed) = (self.case.is_exact(), self.case.is_windowed());
        let books = &mut self.books[index(user)];
        let of_window = books.windows.entry(window).or_insert_with(|| vec![0; regions]);
        let used = of_window[region];
        if is_exact && allowed != (used + permits <= part) {
            let said = if allowed { "admits" } else { "refuses" };
            return Err(format!("a bucket with {used} of {part} permits in use {said} {permits}"));
        }
        if !allowed {
            return Ok(());
        }
        of_window[region] += permits;
        let sums: Vec<u64> = of_window.clone();
        books.refill(now, &held);
        books.tokens -= float(permits);
        let own_limit_each = held.way.is_none();
        let above = match (is_windowed, own_limit_each) {
            (true, true) => sums[region].saturating_sub(u64::from(held.limit)),
            (true, false) => sums.iter().sum::<u64>().saturating_sub(u64::from(held.limit)),
            (false, true) => 0,
            // Time moves in steps, and each region's clock rounds to a microsecond.
            (false, false) => {
                u64::from(books.tokens < -1e-3 - f64::from(held.limit) / seconds(held.window) * 1e-5)
            }
        };
        if above > 0 && held.way != Some(Way::Gossip) {
            return Err(format!(
                "user {user} has {above} permits above the limit, by region {sums:?}; {:.3} are left of the curve",
                books.tokens
            ));
        }
        Ok(())
    }

    fn take(&mut self, region: usize, user: u64, peace: bool) -> Result<(), String> {
        let Some(decision) = self.play.request(region, user, Cost::Take(1)) else { return Ok(()) };
        self.admitted_in_peace[index(user)] += u64::from(peace && decision.allowed);
        self.answered(region, user, 1, decision.allowed)
    }

    fn reserve(&mut self, region: usize, user: u64) -> Result<(), String> {
        self.last_id += 1;
        let id = ReservationId(self.last_id.to_be_bytes());
        let amount = self.play.dice.between(1, self.case.amount_max);
        let ttl = self.case.ttl;
        let Some((decision, token)) = self.play.world.reserve(region, user, (id, amount, ttl)) else {
            return Ok(());
        };
        self.answered(region, user, amount, decision.allowed)?;
        let Some(token) = token else {
            return if decision.allowed { Err("a reservation has no token".to_owned()) } else { Ok(()) };
        };
        // The answer was lost, and the client asks again: nothing more is taken.
        if self.play.dice.chance(0.1) {
            let again = self.play.world.reserve(region, user, (id, amount, ttl));
            if again.is_none_or(|(again, _)| !again.allowed) {
                return Err(format!(
                    "a reservation of {amount} permits is refused when it is asked for again"
                ));
            }
        }
        let longest = ttl.0 / STEP.0 * if self.case.goes_beyond { 14 } else { 9 } / 10;
        let lasts = self.play.dice.between(1, longest.max(1));
        let committed_in = (!self.play.dice.chance(0.15)).then_some(self.step + lasts);
        let (window, lapses) = (self.window(region), self.play.world.clock(region) + ttl);
        self.pending.push(Pending {
            token,
            region,
            user,
            window,
            amount,
            lapses,
            lapsed: false,
            committed_in,
        });
        Ok(())
    }

    /// Clients whose calls are over say what they used.
    fn commit_due(&mut self, releases: bool) -> Result<(), String> {
        let (due, pending) = std::mem::take(&mut self.pending)
            .into_iter()
            .partition(|one: &Pending| one.committed_in.is_some_and(|at| at <= self.step));
        self.pending = pending;
        for one in due {
            self.commit(&one, releases)?;
        }
        Ok(())
    }

    fn commit(&mut self, one: &Pending, releases: bool) -> Result<(), String> {
        let most = if self.case.goes_beyond { one.amount * 3 / 2 } else { one.amount };
        let actual = self.play.dice.between(0, most);
        let said = if releases { actual } else { actual.max(one.amount) };
        let Some(done) = self.play.world.commit(one.region, &one.token, said) else { return Ok(()) };
        let Ok(done) = done else { return Err(format!("a commit is refused: {done:?}")) };
        let forgotten = self.case.lost.is_some_and(|at| at <= self.step) && one.region == 0;
        let lapsed = one.lapsed && self.case.on_lapse == OnLapse::Release;
        if !forgotten && (!done.committed && actual > 0 || done.lapsed != lapsed) {
            let (state, amount) = (if lapsed { "has lapsed" } else { "is held" }, one.amount);
            return Err(format!("the commit of {actual} permits of {amount} that {state} is {done:?}"));
        }
        if !one.lapsed || self.case.on_lapse == OnLapse::Charge {
            self.give_back(one.user, one.region, one.window, one.amount.saturating_sub(actual));
        }
        // Its answer was lost, and it is said again.
        if self.play.dice.chance(0.1)
            && let Some(Ok(again)) = self.play.world.commit(one.region, &one.token, said)
            && again.committed
            && !forgotten
        {
            return Err(format!("a commit of {actual} permits is charged twice"));
        }
        Ok(())
    }

    /// Nothing is reserved any more: the whole limit can be used again.
    fn judge_peace(&self) -> Result<(), String> {
        let flows = 4 * u64::from(self.case.held.limit);
        // A level whose memory was lost keeps three quarters empty for a minute.
        let tenths = if self.case.lost.is_some() && !self.case.is_windowed() { 5 } else { 7 };
        for (user, admitted) in self.admitted_in_peace.iter().enumerate() {
            if *admitted * 10 < flows * tenths {
                return Err(format!(
                    "only {admitted} of {flows} permits are admitted to user {user} when nothing is reserved any more"
                ));
            }
        }
        Ok(())
    }
}

impl Books {
    fn refill(&mut self, now: Timestamp, held: &Held) {
        let rate = f64::from(held.limit) / seconds(held.window);
        self.tokens = (self.tokens + rate * seconds(now.since(self.at))).min(f64::from(held.burst));
        self.at = now;
    }
}
