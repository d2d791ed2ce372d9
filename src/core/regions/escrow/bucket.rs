//! What one daemon believes of one bucket: its own rights as the store last told them, and what the other
//! regions said.

use std::collections::VecDeque;
use std::sync::Arc;

use super::super::super::algorithm::Counting;
use super::super::super::calendar::Windows;
use super::super::super::time::{Span, Timestamp};
use super::super::super::wire::DEMAND_MAX;
use super::super::super::wire::rights::{CountedLimit, Statement, Total};
use super::super::demand::Demand;
use super::super::membership::RegionId;
use super::super::{Touched, WorldKey};
use super::ledger::{StepRequest, StepResult};
use super::own::EscrowOwnLimit;
use super::window_plan::need;
use super::{FollowedRule, Share};

/// What was heard longer ago says nothing of now. At least this, and two windows.
const MEMORY: Span = Span::from_secs(2);
/// A bucket that nothing was heard of for so long, and two windows, is forgotten.
const STILL: Span = Span::from_secs(10);
/// A store that has not answered after this long is asked again.
const ANSWER_MAX: Span = Span::from_secs(1);
/// For so long a refusal says that something is wanted.
const WANT: Span = Span::from_secs(1);
/// For so long another region is believed to want what it said: it says so again.
const BELIEVED: Span = Span::from_millis(1_500);
/// Until this has passed without a refusal, places that were borrowed are not taken back home unless somebody
/// wants them.
pub(super) const IDLE: Span = Span::from_secs(2);
/// Of places the demand is that of now: how long they are held says nothing of it.
const PLACES_WINDOW: Span = Span::from_secs(1);
/// What refills in so many seconds may come sooner than it was sent apart: words overtake each other.
const OVERTAKING_S: u128 = 1;
/// What a third region gave the sender of rights is known here within so long.
const PROVEN_WITHIN: Span = Span::from_secs(1);
/// Rights that could not be proven so long ago say nothing of those that come now.
const FORGIVEN_AFTER: Span = Span::from_secs(10);
/// Most steps that wait for the store. More are dropped; they come again.
const STEPS_MAX: usize = 64;

/// One bucket.
#[derive(Debug)]
pub(super) struct EscrowBucket {
    pub(super) key: WorldKey,
    /// With the bucket's own limit in place of the rule's, where it has one.
    pub(super) rule: Arc<FollowedRule>,
    pub(super) owned: Option<Box<EscrowOwnLimit>>,
    pub(super) alarm: Option<Timestamp>,
    /// As the store last told.
    pub(super) balance: Option<StepResult>,
    /// Since when the store owes an answer.
    pub(super) asked: Option<Timestamp>,
    pub(super) looked: Option<Timestamp>,
    pub(super) steps: VecDeque<StepRequest>,
    /// Whether something was decided since the last look.
    pub(super) stirred: bool,
    alive: Timestamp,
    demand: Demand,
    /// What this daemon saw in the present window.
    window: u64,
    admitted: u64,
    wanted: u64,
    refused: Option<Timestamp>,
    siblings: Vec<SiblingStatement>,
    partners: Vec<RegionStatement>,
    pub(super) told: Option<LastStatement>,
    /// When the store was last asked to own its whole share.
    pub(super) vouched: Option<Timestamp>,
    /// The newest window whose final count was settled.
    pub(super) settled: u64,
    /// The newest window in which nobody had rights left.
    pub(super) dry: u64,
}

/// What another region said, and what it is owed.
#[derive(Debug, Clone, Default)]
pub(super) struct RegionStatement {
    pub(super) window: u64,
    pub(super) stamp: Timestamp,
    /// When, by the own clock.
    pub(super) heard: Option<Timestamp>,
    pub(super) session: u64,
    pub(super) free: u64,
    pub(super) demand: u64,
    wanted: u64,
    /// Since when it has said that it cannot serve what it wants.
    lacks: Option<Timestamp>,
    pub(super) taken: Vec<Total>,
    pub(super) given: Vec<Total>,
    pub(super) closed: Option<(u64, u64)>,
    /// By which limit it counts.
    pub(super) limit: CountedLimit,
    /// When it was given something last.
    pub(super) gave: Option<Timestamp>,
    /// The newest transfer sent to it: when, its window and total.
    pub(super) sent: Option<(Timestamp, u64, u64)>,
    /// What it was told last: the window, and whether it served there what was wanted.
    pub(super) said: Option<(u64, bool)>,
    pub(super) owes_statement: bool,
    pub(super) owes_transfer: bool,
    /// Only where a test lets rights be sent before they are taken out: the window and their total.
    pub(super) promised: (u64, u64),
    /// When the store was last told of it.
    pub(super) noted: Option<Timestamp>,
    /// When it was last told because it did not know the own memory.
    pub(super) introduced: Option<Timestamp>,
    /// What may still be forwarded from it now, in millionths, as of when; see `believes`.
    credit: Option<(Timestamp, u128)>,
    /// What was taken off its credit in its session.
    credited: (u64, u64),
    /// Since when it has sent nothing but what it cannot have by what the others told.
    unproven: Option<Timestamp>,
}

impl RegionStatement {
    /// The largest cost that it had to refuse, as far as it said so lately.
    pub(super) fn wanted(&self, now: Timestamp) -> u64 {
        if self.heard.is_some_and(|heard| now.since(heard) < BELIEVED) { self.wanted } else { 0 }
    }

    /// Whether it lately said that it cannot serve what it wants.
    pub(super) fn lacks_lately(&self, now: Timestamp) -> bool {
        self.lacks.is_some() && self.wanted(now) > 0
    }

    /// For how long it has said that it cannot serve what it wants.
    pub(super) fn lacks_for(&self, now: Timestamp) -> Span {
        self.lacks.map_or(Span::ZERO, |since| now.since(since))
    }

    /// It sent more of a window than is known here that it can have. Whether those who gave it the rest may
    /// not have been heard yet.
    pub(super) fn may_prove(&mut self, now: Timestamp) -> bool {
        let since = self.unproven.filter(|since| now.since(*since) <= FORGIVEN_AFTER).unwrap_or(now);
        self.unproven = Some(since);
        now.since(since) <= PROVEN_WITHIN
    }

    /// It sent what it can have.
    pub(super) fn proves(&mut self) {
        self.unproven = None;
    }

    pub(super) const fn promised_in(&self, window: u64) -> u64 {
        if self.promised.0 == window { self.promised.1 } else { 0 }
    }

    /// Whether it can honestly have forwarded `permits` in all in `session`, of which `taken` are here: a
    /// region has no more to forward than its part of the burst and of the rate.
    pub(super) fn believes(
        &mut self,
        now: Timestamp,
        share: Share,
        session: u64,
        permits: u64,
        taken: u64,
    ) -> bool {
        let known = if self.credited.0 == session { self.credited.1.max(taken) } else { taken };
        let most = u128::from(share.minted_most) * 1_000_000 + u128::from(share.refill_most) * OVERTAKING_S;
        let (at, left) = self.credit.unwrap_or((now, most));
        // A thousandth more, as its clock may be faster.
        let refilled = u128::from(share.refill_most) * u128::from(now.since(at).0) / 999_000;
        let left = left.saturating_add(refilled).min(most);
        let asked = u128::from(permits.saturating_sub(known)) * 1_000_000;
        let honest = asked <= left;
        if honest {
            self.credited = (session, permits.max(known));
        }
        self.credit = Some((at.max(now), if honest { left - asked } else { left }));
        honest
    }
}

/// Another daemon of the own region.
#[derive(Debug)]
struct SiblingStatement {
    node: String,
    heard: Timestamp,
    demand: u64,
    window: u64,
    wanted: u64,
}

/// What was last told to the other regions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LastStatement {
    pub(super) at: Timestamp,
    pub(super) window: u64,
    pub(super) session: u64,
    pub(super) free: u64,
    pub(super) demand: u64,
    pub(super) wanted: u64,
    /// By which limit the region counts.
    pub(super) limit: CountedLimit,
}

impl EscrowBucket {
    pub(super) fn new(key: WorldKey, rule: Arc<FollowedRule>, now: Timestamp) -> Self {
        let limit = rule.rule.limit;
        let window = match rule.counting() {
            Counting::Concurrency => PLACES_WINDOW,
            Counting::Window | Counting::Level => limit.window,
        };
        Self {
            key,
            rule,
            owned: None,
            alarm: None,
            balance: None,
            asked: None,
            looked: None,
            steps: VecDeque::new(),
            stirred: false,
            alive: now,
            demand: Demand::new(window, limit.permits),
            window: 0,
            admitted: 0,
            wanted: 0,
            refused: None,
            siblings: Vec::new(),
            partners: Vec::new(),
            told: None,
            vouched: None,
            settled: 0,
            dry: 0,
        }
    }

    /// What it counts.
    pub(super) fn counting(&self) -> Counting {
        self.rule.counting()
    }

    pub(super) fn windows(&self) -> Windows {
        self.rule.rule.limit.windows()
    }

    /// The window that its rights are spent in now, zero where there are none. A store whose clock is ahead
    /// says so.
    pub(super) fn window_at(&self, now: Timestamp) -> u64 {
        if self.counting() != Counting::Window {
            return 0;
        }
        let told = self.balance.as_ref().map_or(0, |balance| balance.ledger.window);
        self.windows().index(now).max(told)
    }

    pub(super) fn start(&self, window: u64) -> Timestamp {
        self.windows().start(window)
    }

    /// How much of a window is to come.
    pub(super) fn left(&self, window: u64, now: Timestamp) -> Span {
        self.start(window.saturating_add(1)).since(now.max(self.start(window)))
    }

    /// The own rights, if they were told for the present window.
    pub(super) fn current(&self, now: Timestamp) -> Option<&StepResult> {
        self.balance.as_ref().filter(|balance| balance.ledger.window == self.window_at(now))
    }

    /// Takes in what was decided. `refused` is the largest cost that is still hoped for.
    pub(super) fn touch(&mut self, now: Timestamp, touched: &Touched, refused: u64) {
        self.alive = self.alive.max(now);
        self.stirred = true;
        self.demand.offered(now, touched.offered, touched.largest);
        if touched.window > self.window {
            (self.window, self.admitted, self.wanted) = (touched.window, 0, 0);
        }
        if self.counting() != Counting::Window {
            self.want(now, touched.admitted > 0, refused);
        } else if touched.window == self.window {
            self.admitted = self.admitted.saturating_add(touched.admitted).saturating_sub(touched.returned);
            self.forget_wants(now);
            // Refusals of less say nothing of whether somebody still wants the most.
            if refused > 0 && refused >= self.wanted {
                (self.wanted, self.refused) = (refused, Some(now));
            }
        }
    }

    /// Without windows a refusal is news until the next admission, and for a moment at most.
    fn want(&mut self, now: Timestamp, served: bool, refused: u64) {
        let over = self.refused.is_none_or(|refused| now.since(refused) > WANT) || served;
        if refused > 0 {
            self.wanted = refused.max(if over { 0 } else { self.wanted });
            self.refused = Some(now);
        } else if over {
            self.wanted = 0;
        }
    }

    /// Has what was refused too long ago be wanted no more: nobody may ever ask again.
    pub(super) fn forget_wants(&mut self, now: Timestamp) {
        if self.refused.is_none_or(|refused| now.since(refused) > WANT) {
            self.wanted = 0;
        }
        self.siblings.retain(|sibling| now.since(sibling.heard) < MEMORY);
    }

    /// What another daemon of the region is asked for.
    pub(super) fn hear_sibling(&mut self, now: Timestamp, node: &str, said: &Statement) {
        self.alive = self.alive.max(now);
        let (heard, demand, window, wanted) = (now, said.demand, said.window, said.wanted);
        self.siblings.retain(|sibling| sibling.node != node && now.since(sibling.heard) < MEMORY);
        if self.siblings.len() < super::super::LINKS_MAX {
            self.siblings.push(SiblingStatement { node: node.to_owned(), heard, demand, window, wanted });
        }
    }

    /// Takes in what another region said. Whether it was new.
    pub(super) fn hear(&mut self, now: Timestamp, region: RegionId, said: Statement) -> bool {
        self.alive = self.alive.max(now);
        let by_sessions = self.counting() != Counting::Window;
        let partner = self.partner_mut(region);
        let silent = partner.heard.is_none_or(|heard| now.since(heard) > MEMORY);
        let newer = (said.window, said.stamp) > (partner.window, partner.stamp);
        let known = !silent && (said.window, said.session) == (partner.window, partner.session);
        // Of two memories the later has the larger name, but where a clock went back between them: of windows
        // the newer statement then stands.
        let over = said.session < partner.session && (by_sessions || (!newer && !silent));
        if over || (!newer && !silent && said.session == partner.session) {
            return false;
        }
        partner.window = said.window;
        partner.stamp = said.stamp;
        partner.heard = Some(now);
        partner.session = said.session;
        partner.free = said.free;
        partner.demand = said.demand;
        let since = partner.lacks.filter(|_| known).unwrap_or(now);
        partner.lacks = (said.wanted > said.free).then_some(since);
        partner.wanted = said.wanted;
        partner.taken = said.taken;
        partner.given = said.given;
        partner.limit = said.limit;
        partner.closed = said.closed.or(partner.closed);
        true
    }

    pub(super) fn partner(&self, region: RegionId) -> Option<&RegionStatement> {
        self.partners.get(region)
    }

    pub(super) fn partner_mut(&mut self, region: RegionId) -> &mut RegionStatement {
        if self.partners.len() <= region {
            self.partners.resize_with(region + 1, RegionStatement::default);
        }
        &mut self.partners[region]
    }

    pub(super) fn partners(&self) -> impl Iterator<Item = (RegionId, &RegionStatement)> {
        self.partners.iter().enumerate().skip(1)
    }

    /// Permits asked for, per second, in millionths: by this daemon alone.
    pub(super) fn own_demand(&self, now: Timestamp) -> u64 {
        self.demand.at(now).min(DEMAND_MAX)
    }

    /// The same, by the whole region.
    pub(super) fn demand(&self, now: Timestamp) -> u64 {
        let fresh = |sibling: &&SiblingStatement| now.since(sibling.heard) < MEMORY;
        let others = self.siblings.iter().filter(fresh).map(|sibling| sibling.demand);
        others.fold(self.demand.at(now), u64::saturating_add).min(DEMAND_MAX)
    }

    pub(super) fn noise(&self, rate: u64) -> u64 {
        self.demand.noise(rate)
    }

    /// The largest cost that this daemon refused in `window`.
    pub(super) const fn own_wanted(&self, window: u64) -> u64 {
        if self.window == window { self.wanted } else { 0 }
    }

    /// The largest cost refused in `window` by the region that still finds no room.
    pub(super) fn wanted(&self, window: u64) -> u64 {
        let of_window = |sibling: &&SiblingStatement| sibling.window == window;
        let siblings = self.siblings.iter().filter(of_window).map(|sibling| sibling.wanted).max();
        self.own_wanted(window).max(siblings.unwrap_or(0))
    }

    /// What was heard longer ago than this says nothing of the demand now.
    pub(super) fn memory(&self) -> Span {
        match self.counting() {
            Counting::Concurrency => MEMORY,
            Counting::Window | Counting::Level => {
                Span(self.windows().length().0.saturating_mul(2)).max(MEMORY)
            }
        }
    }

    /// Whether its rights may have to move: it will use more than half of its share, or others move theirs.
    pub(super) fn is_hot(&self, now: Timestamp, share: Share) -> bool {
        let window = self.window_at(now);
        let spoken = |(_, partner): (_, &RegionStatement)| {
            partner.window.saturating_add(1) >= window
                && partner.heard.is_some_and(|heard| now.since(heard) < self.memory())
        };
        let ledger = self.current(now).map(|balance| &balance.ledger);
        let demand = self.demand(now);
        let itself = match self.counting() {
            Counting::Window => {
                let moved = ledger.is_some_and(|ledger| !ledger.given.is_empty() || !ledger.taken.is_empty());
                let used = if self.window == window { self.admitted } else { 0 };
                let wish = need(demand, self.left(window, now)) + i128::from(used) * 1_000_000;
                moved || (demand > 0 && wish * 2 > i128::from(share.minted) * 1_000_000)
            }
            Counting::Level => {
                let charged = ledger.is_some_and(|ledger| ledger.charged() > 0);
                charged || (demand > 0 && demand > share.refill / 2)
            }
            Counting::Concurrency => false,
        };
        itself || self.wanted(window) > 0 || self.partners().any(spoken)
    }

    /// Whether places are lent or borrowed, so that there is something to confirm.
    pub(super) fn has_loans(&self) -> bool {
        self.counting() == Counting::Concurrency
            && self.balance.as_ref().is_some_and(|balance| {
                let ledger = &balance.ledger;
                ledger
                    .given
                    .iter()
                    .any(|given| ledger.lent_to(&given.region) > 0 || ledger.borrowed_from(&given.region) > 0)
            })
    }

    /// Whether somebody was refused here just now, served since or not.
    pub(super) fn refused_lately(&self, now: Timestamp) -> bool {
        self.refused.is_some_and(|refused| now.since(refused) <= WANT)
    }

    /// Whether nobody was refused here for a while.
    pub(super) fn is_idle(&self, now: Timestamp) -> bool {
        self.wanted(0) == 0 && self.refused.is_none_or(|refused| now.since(refused) >= IDLE)
    }

    /// Keeps it for as long as if something were asked of it now.
    pub(super) fn keep(&mut self, now: Timestamp) {
        self.alive = self.alive.max(now);
    }

    /// Whether the store may be asked something now.
    pub(super) fn may_ask(&self, now: Timestamp) -> bool {
        self.asked.is_none_or(|asked| now.since(asked) > ANSWER_MAX)
    }

    /// Has a step wait for the store.
    pub(super) fn wait(&mut self, ask: StepRequest) {
        if self.steps.len() < STEPS_MAX && !self.steps.contains(&ask) {
            self.steps.push_back(ask);
        }
    }

    /// When it may be forgotten.
    pub(super) fn expiry(&self) -> Timestamp {
        self.alive + self.memory() + STILL
    }
}
