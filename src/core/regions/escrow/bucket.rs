//! What one daemon believes of one bucket: its own rights as the store last told them, and what the other
//! regions said.

use std::collections::VecDeque;
use std::sync::Arc;

use super::super::super::algorithm::Counting;
use super::super::super::calendar::Windows;
use super::super::super::time::{Span, Timestamp};
use super::super::super::wire::DEMAND_MAX;
use super::super::super::wire::rights::{CountedLimit, MovedTotals, RightKind, Statement};
use super::super::demand::Demand;
use super::super::membership::RegionId;
use super::super::{Touched, WorldKey};
use super::ledger::{Ledger, Step, StepRequest, StepResult};
use super::level::{LevelLedger, LevelPartner};
use super::own_limit::EscrowOwnLimit;
use super::places::{PlacesLedger, PlacesPartner};
use super::totals::total;
use super::window::{WindowLedger, WindowPartner, lasting_need};
use super::{FollowedRule, Share};

/// What was heard longer ago says nothing of now. At least this, and two windows.
const MEMORY: Span = Span::from_secs(2);
/// A bucket that nothing was heard of for so long, and two windows, is forgotten.
const STILL: Span = Span::from_secs(10);
/// A store that has not answered after this long is asked again.
const ANSWER_MAX: Span = Span::from_secs(1);
/// For so long a refusal says that something is wanted.
const WANT: Span = Span::from_secs(1);
/// Refusals that lie further apart are not of one and the same want.
const LACKS_APART: Span = Span::from_secs(5);
/// For so long another region is believed to want what it said: it says so again.
const BELIEVED: Span = Span::from_millis(1_500);
/// Until this has passed without a refusal, places that were borrowed are not taken back home unless somebody
/// wants them.
pub(super) const IDLE: Span = Span::from_secs(2);
/// Of places the demand is that of now: how long they are held says nothing of it.
const PLACES_WINDOW: Span = Span::from_secs(1);
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
    /// True if something was decided since the last look.
    pub(super) stirred: bool,
    alive: Timestamp,
    demand: Demand,
    wanted: u64,
    refused: Option<Timestamp>,
    /// The first of the refusals since something was admitted here last, if they go on.
    lacks: Option<Timestamp>,
    /// Newest [`super::dry_mark`] up to which nobody has any; zero: somebody may have.
    pub(super) dry: u64,
    siblings: Vec<SiblingStatement>,
    partners: Vec<RegionStatement>,
    pub(super) told: Option<LastStatement>,
    pub(super) notes: BucketNotes,
}

/// What is noted of a bucket beyond that, by what it counts.
#[derive(Debug)]
pub(super) enum BucketNotes {
    Window(WindowNotes),
    Level,
    Places {
        /// When the store was last asked to own its whole share.
        asked_to_recover: Option<Timestamp>,
    },
}

/// What is noted of windows.
#[derive(Debug, Default)]
pub(super) struct WindowNotes {
    /// The window in which this daemon saw something last, and what it admitted there.
    window: u64,
    admitted: u64,
    /// The newest window whose final count was settled.
    pub(super) settled: u64,
}

/// What another region said, and what it is owed.
#[derive(Debug, Clone)]
pub(super) struct RegionStatement {
    pub(super) stamp: Timestamp,
    /// When, by the own clock.
    pub(super) heard: Option<Timestamp>,
    pub(super) session: u64,
    pub(super) free: u64,
    pub(super) demand: u64,
    wanted: u64,
    /// Since when it has said that it cannot serve what it wants.
    lacks: Option<Timestamp>,
    /// By which limit it counts.
    pub(super) limit: CountedLimit,
    /// When it was given something last.
    pub(super) gave: Option<Timestamp>,
    /// The newest transfer sent to it.
    pub(super) sent: Option<SentTransfer>,
    /// What it was told last: of which rights, and whether they served what was wanted.
    pub(super) said: Option<(RightKind, bool)>,
    pub(super) owes_statement: bool,
    pub(super) owes_transfer: bool,
    /// Only where a test lets rights be sent before they are taken out: which, and their total.
    pub(super) promised: Option<(RightKind, u64)>,
    pub(super) rights: PartnerRights,
}

/// What another region said of its rights, by what the bucket counts.
#[derive(Debug, Clone)]
pub(super) enum PartnerRights {
    Window(WindowPartner),
    Level(LevelPartner),
    Places(PlacesPartner),
}

/// A transfer that was sent.
#[derive(Debug, Clone, Copy)]
pub(super) struct SentTransfer {
    pub(super) at: Timestamp,
    pub(super) kind: RightKind,
    pub(super) permits: u64,
}

impl RegionStatement {
    const fn new(counting: Counting) -> Self {
        Self {
            stamp: Timestamp(0),
            heard: None,
            session: 0,
            free: 0,
            demand: 0,
            wanted: 0,
            lacks: None,
            limit: CountedLimit { own: None, said_by_others: false },
            gave: None,
            sent: None,
            said: None,
            owes_statement: false,
            owes_transfer: false,
            promised: None,
            rights: match counting {
                Counting::Window => PartnerRights::Window(WindowPartner::new()),
                Counting::Level => PartnerRights::Level(LevelPartner::new()),
                Counting::Concurrency => PartnerRights::Places(PlacesPartner::new()),
            },
        }
    }

    /// Which rights it spoke of.
    pub(super) const fn kind(&self) -> RightKind {
        match &self.rights {
            PartnerRights::Window(partner) => RightKind::Window(partner.totals.window),
            PartnerRights::Level(_) => RightKind::Level,
            PartnerRights::Places(_) => RightKind::Places,
        }
    }

    /// Returns what it says to have, of rights of this kind that a region's session gave it.
    pub(super) fn has_of(&self, kind: RightKind, region: &str, session: u64) -> u64 {
        if self.kind() != kind {
            return 0;
        }
        let taken = match &self.rights {
            PartnerRights::Window(partner) => &partner.totals.taken,
            PartnerRights::Level(partner) => &partner.totals.settled,
            PartnerRights::Places(partner) => &partner.totals.taken,
        };
        total(taken, region, session)
    }

    pub(super) const fn as_window_mut(&mut self) -> Option<&mut WindowPartner> {
        if let PartnerRights::Window(partner) = &mut self.rights { Some(partner) } else { None }
    }

    pub(super) const fn as_window(&self) -> Option<&WindowPartner> {
        if let PartnerRights::Window(partner) = &self.rights { Some(partner) } else { None }
    }

    pub(super) const fn as_level_mut(&mut self) -> Option<&mut LevelPartner> {
        if let PartnerRights::Level(partner) = &mut self.rights { Some(partner) } else { None }
    }

    pub(super) const fn as_level(&self) -> Option<&LevelPartner> {
        if let PartnerRights::Level(partner) = &self.rights { Some(partner) } else { None }
    }

    pub(super) const fn as_places_mut(&mut self) -> Option<&mut PlacesPartner> {
        if let PartnerRights::Places(partner) = &mut self.rights { Some(partner) } else { None }
    }

    pub(super) const fn as_places(&self) -> Option<&PlacesPartner> {
        if let PartnerRights::Places(partner) = &self.rights { Some(partner) } else { None }
    }

    /// The largest cost that it had to refuse, as far as it said so lately.
    pub(super) fn wanted(&self, now: Timestamp) -> u64 {
        if self.heard.is_some_and(|heard| now.since(heard) < BELIEVED) { self.wanted } else { 0 }
    }

    /// True if it lately said that it cannot serve what it wants.
    pub(super) fn lacks_lately(&self, now: Timestamp) -> bool {
        self.lacks.is_some() && self.wanted(now) > 0
    }

    /// For how long it has said that it cannot serve what it wants.
    pub(super) fn lacks_for(&self, now: Timestamp) -> Span {
        self.lacks.map_or(Span::ZERO, |since| now.since(since))
    }

    pub(super) fn promised_of(&self, kind: RightKind) -> u64 {
        self.promised.filter(|(of, _)| *of == kind).map_or(0, |(_, permits)| permits)
    }
}

/// Another daemon of the own region.
#[derive(Debug)]
struct SiblingStatement {
    node: String,
    heard: Timestamp,
    demand: u64,
    kind: RightKind,
    wanted: u64,
}

/// What was last told to the other regions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LastStatement {
    pub(super) at: Timestamp,
    pub(super) kind: RightKind,
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
        let (window, notes) = match rule.counting() {
            Counting::Window => (limit.window, BucketNotes::Window(WindowNotes::default())),
            Counting::Level => (limit.window, BucketNotes::Level),
            Counting::Concurrency => (PLACES_WINDOW, BucketNotes::Places { asked_to_recover: None }),
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
            wanted: 0,
            refused: None,
            lacks: None,
            dry: 0,
            siblings: Vec::new(),
            partners: Vec::new(),
            told: None,
            notes,
        }
    }

    /// Returns what it counts.
    pub(super) fn counting(&self) -> Counting {
        self.rule.counting()
    }

    pub(super) fn windows(&self) -> Windows {
        self.rule.rule.limit.windows()
    }

    /// Which rights are spent now. A store whose clock is ahead says so.
    pub(super) fn kind_at(&self, now: Timestamp) -> RightKind {
        match self.counting() {
            Counting::Window => RightKind::Window(self.window_at(now)),
            Counting::Level => RightKind::Level,
            Counting::Concurrency => RightKind::Places,
        }
    }

    /// The window that rights are spent in now.
    fn window_at(&self, now: Timestamp) -> u64 {
        let told = self.balance.as_ref().and_then(|balance| balance.ledger.as_window());
        self.windows().index(now).max(told.map_or(0, |ledger| ledger.window))
    }

    /// When the next window begins, where there are any.
    pub(super) fn next_window(&self, now: Timestamp) -> Option<Timestamp> {
        let RightKind::Window(window) = self.kind_at(now) else { return None };
        Some(self.start(window.saturating_add(1)))
    }

    pub(super) fn start(&self, window: u64) -> Timestamp {
        self.windows().start(window)
    }

    /// How much of a window is to come.
    pub(super) fn left(&self, window: u64, now: Timestamp) -> Span {
        self.start(window.saturating_add(1)).since(now.max(self.start(window)))
    }

    /// The own rights, if they were told of those that are spent now.
    pub(super) fn current(&self, now: Timestamp) -> Option<&StepResult> {
        self.balance.as_ref().filter(|balance| balance.ledger.kind() == self.kind_at(now))
    }

    /// The same of a window.
    pub(super) fn current_window(&self, now: Timestamp) -> Option<(&StepResult, &WindowLedger)> {
        let balance = self.current(now)?;
        Some((balance, balance.ledger.as_window()?))
    }

    /// The same of a level.
    pub(super) fn current_level(&self, now: Timestamp) -> Option<(&StepResult, &LevelLedger)> {
        let balance = self.current(now)?;
        Some((balance, balance.ledger.as_level()?))
    }

    /// The same of places.
    pub(super) fn current_places(&self, now: Timestamp) -> Option<(&StepResult, &PlacesLedger)> {
        let balance = self.current(now)?;
        Some((balance, balance.ledger.as_places()?))
    }

    /// Takes in what was decided. `refused` is the largest cost that is still hoped for.
    pub(super) fn touch(&mut self, now: Timestamp, touched: &Touched, refused: u64) {
        self.alive = self.alive.max(now);
        self.stirred = true;
        self.demand.offered(now, touched.offered, touched.largest);
        self.note_lack(now, touched, refused);
        let BucketNotes::Window(notes) = &mut self.notes else {
            return self.want(now, touched.admitted > 0, refused);
        };
        if touched.window > notes.window {
            (notes.window, notes.admitted, self.wanted) = (touched.window, 0, 0);
        }
        if touched.window == notes.window {
            notes.admitted = notes.admitted.saturating_add(touched.admitted).saturating_sub(touched.returned);
            self.forget_wants(now);
            // Refusals of less say nothing of whether somebody still wants the most.
            if refused > 0 && refused >= self.wanted {
                (self.wanted, self.refused) = (refused, Some(now));
            }
        }
    }

    /// Notes since when all are refused. Whoever comes back much later is the first again.
    fn note_lack(&mut self, now: Timestamp, touched: &Touched, refused: u64) {
        let turned = matches!(&self.notes, BucketNotes::Window(notes) if touched.window > notes.window);
        let over = self.refused.is_none_or(|refused| now.since(refused) > LACKS_APART);
        if turned || over || touched.admitted > 0 {
            self.lacks = None;
        }
        if refused > 0 {
            self.lacks.get_or_insert(now);
        }
    }

    /// Since when all are refused here.
    pub(super) const fn lacks_since(&self) -> Option<Timestamp> {
        self.lacks
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
        let (heard, demand, kind, wanted) = (now, said.demand, said.totals.kind(), said.wanted);
        self.siblings.retain(|sibling| sibling.node != node && now.since(sibling.heard) < MEMORY);
        if self.siblings.len() < super::super::LINKS_MAX {
            self.siblings.push(SiblingStatement { node: node.to_owned(), heard, demand, kind, wanted });
        }
    }

    /// Takes in what another region said. Whether it was new.
    pub(super) fn hear(&mut self, now: Timestamp, region: RegionId, said: Statement) -> bool {
        self.alive = self.alive.max(now);
        let by_sessions = self.counting() != Counting::Window;
        let partner = self.partner_mut(region);
        let silent = partner.heard.is_none_or(|heard| now.since(heard) > MEMORY);
        let (kind, known_kind) = (said.totals.kind(), partner.kind());
        let newer = (kind, said.stamp) > (known_kind, partner.stamp);
        let known = !silent && (kind, said.session) == (known_kind, partner.session);
        // Of two memories the later has the larger name, but where a clock went back between them: of windows
        // the newer statement then stands.
        let over = said.session < partner.session && (by_sessions || (!newer && !silent));
        if over || (!newer && !silent && said.session == partner.session) {
            return false;
        }
        match (&mut partner.rights, said.totals) {
            (PartnerRights::Window(partner), MovedTotals::Window(totals)) => partner.hear(totals),
            (PartnerRights::Level(partner), MovedTotals::Level(totals)) => partner.totals = totals,
            (PartnerRights::Places(partner), MovedTotals::Places(totals)) => partner.totals = totals,
            // It counts in another way, by another rule of that name.
            _ => return false,
        }
        partner.stamp = said.stamp;
        partner.heard = Some(now);
        partner.session = said.session;
        partner.free = said.free;
        partner.demand = said.demand;
        let since = partner.lacks.filter(|_| known).unwrap_or(now);
        partner.lacks = (said.wanted > said.free).then_some(since);
        partner.wanted = said.wanted;
        partner.limit = said.limit;
        true
    }

    pub(super) fn partner(&self, region: RegionId) -> Option<&RegionStatement> {
        self.partners.get(region)
    }

    pub(super) fn partner_mut(&mut self, region: RegionId) -> &mut RegionStatement {
        if self.partners.len() <= region {
            self.partners.resize(region + 1, RegionStatement::new(self.counting()));
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

    /// The largest cost that this daemon refused of these rights.
    pub(super) fn own_wanted(&self, kind: RightKind) -> u64 {
        match (&self.notes, kind) {
            (BucketNotes::Window(notes), RightKind::Window(window)) if notes.window != window => 0,
            _ => self.wanted,
        }
    }

    /// The largest cost refused of these rights by the region that still finds no room.
    pub(super) fn wanted(&self, kind: RightKind) -> u64 {
        let siblings = self.siblings.iter().filter(|sibling| sibling.kind == kind);
        self.own_wanted(kind).max(siblings.map(|sibling| sibling.wanted).max().unwrap_or(0))
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

    /// True if its rights may have to move: it will use more than half of its share, or others move theirs.
    pub(super) fn is_hot(&self, now: Timestamp, share: Share) -> bool {
        let kind = self.kind_at(now);
        let spoken = |(_, partner): (_, &RegionStatement)| {
            speaks_lately(partner.kind(), kind)
                && partner.heard.is_some_and(|heard| now.since(heard) < self.memory())
        };
        let ledger = self.current(now).map(|balance| &balance.ledger);
        let demand = self.demand(now);
        let itself = match (&self.notes, kind) {
            (BucketNotes::Window(notes), RightKind::Window(window)) => {
                let ledger = ledger.and_then(Ledger::as_window);
                let moved = ledger.is_some_and(|ledger| !ledger.given.is_empty() || !ledger.taken.is_empty());
                let used = if notes.window == window { notes.admitted } else { 0 };
                let used = i128::from(used) * 1_000_000;
                let wish = lasting_need(demand, self.left(window, now), used) + used;
                moved || (demand > 0 && wish * 2 > i128::from(share.minted) * 1_000_000)
            }
            (BucketNotes::Level, _) => {
                let charged = ledger.and_then(Ledger::as_level).is_some_and(|ledger| ledger.charged() > 0);
                charged || (demand > 0 && demand > share.refill / 2)
            }
            (BucketNotes::Places { .. } | BucketNotes::Window(_), _) => false,
        };
        itself || self.wanted(kind) > 0 || self.partners().any(spoken)
    }

    /// True if places are lent or borrowed, so that there is something to confirm.
    pub(super) fn has_loans(&self) -> bool {
        let ledger = self.balance.as_ref().and_then(|balance| balance.ledger.as_places());
        ledger.is_some_and(PlacesLedger::has_loans)
    }

    /// True if somebody was refused here just now, served since or not.
    pub(super) fn refused_lately(&self, now: Timestamp) -> bool {
        self.refused.is_some_and(|refused| now.since(refused) <= WANT)
    }

    /// True if nobody was refused here for a while.
    pub(super) fn is_idle(&self, now: Timestamp) -> bool {
        self.wanted(RightKind::Places) == 0 && self.refused.is_none_or(|refused| now.since(refused) >= IDLE)
    }

    /// Keeps it for as long as if something were asked of it now.
    pub(super) fn keep(&mut self, now: Timestamp) {
        self.alive = self.alive.max(now);
    }

    /// True if the store may be asked something now.
    pub(super) fn may_ask(&self, now: Timestamp) -> bool {
        self.asked.is_none_or(|asked| now.since(asked) > ANSWER_MAX)
    }

    /// Has a step wait for the store; in the place of one that says less of the same. Else a store that
    /// answers slowly would be told everything as often as it was heard meanwhile, and answer all the later.
    pub(super) fn wait(&mut self, step: Step) {
        if let Some(waiting) = self.steps.iter_mut().find(|waiting| step.says_more_than(&waiting.step)) {
            waiting.step = step;
            return;
        }
        let ask = StepRequest { key: self.key.clone(), step, own: None };
        if self.steps.len() < STEPS_MAX && !self.steps.contains(&ask) {
            self.steps.push_back(ask);
        }
    }

    /// When it may be forgotten.
    pub(super) fn expiry(&self) -> Timestamp {
        self.alive + self.memory() + STILL
    }
}

/// True if what was said of some rights still says something of those that are spent now.
const fn speaks_lately(said: RightKind, present: RightKind) -> bool {
    match (said, present) {
        (RightKind::Window(said), RightKind::Window(present)) => said.saturating_add(1) >= present,
        _ => true,
    }
}
