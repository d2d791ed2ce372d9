//! Questions of the engine to the layers around it.

use std::future::Future;
use std::pin::Pin;

use smallvec::SmallVec;

use crate::core::algorithm::{Algorithm, Allowance, Limit, RegionUse, Verdict};
use crate::core::cell::{Operation, Reply as CellReply};
use crate::core::decision::Decision;
use crate::core::key::{Key, Shape};
use crate::core::penalty::Penalty;
use crate::core::regions::StoreSeen;
use crate::core::regions::escrow::{StepRequest, StepResult};
use crate::core::request::Cost;
use crate::core::reservation::ReservationFate;
use crate::core::rule::OnFailure;
use crate::core::ruleset::Compiled;
use crate::core::time::Timestamp;
use crate::engine::status::StoreHealth;

/// A future that lives as long as what it borrows.
pub type Later<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// An answer that is there already, or one to wait for.
pub enum Answer<'a, T> {
    /// Nothing had to be waited for.
    Now(T),
    /// One wait, with a deadline of its own.
    Later(Later<'a, T>),
}

impl<T> Answer<'_, T> {
    /// Waits if need be.
    pub async fn get(self) -> T {
        match self {
            Self::Now(answer) => answer,
            Self::Later(answer) => answer.await,
        }
    }
}

/// A store of counters whose limits callers bring (the Redis protocol).
pub trait CellStore: Send + Sync + std::fmt::Debug {
    /// Carries an operation out on one key, atomically among all daemons that share the store.
    fn apply<'a>(
        &'a self,
        key: &'a [u8],
        operation: &'a Operation,
    ) -> Answer<'a, Result<CellReply, CellsAway>>;
}

/// The store of cells does not answer, and its failure policy says to refuse.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the region's Redis does not answer")]
pub struct CellsAway;

/// The answers to one call, in the order of its requests.
pub type Decisions = SmallVec<[Decision; 1]>;

/// The limit that a region is held to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldLimit {
    /// The limit that is enforced here: the region's part, or the whole one where rights to it move between
    /// regions.
    pub limit: Limit,
    /// Permits of `limit` that are the region's own where rights to all of it move: what it mints in each
    /// window, or its places. `None`: what is its own is `limit`.
    pub share: Option<u32>,
}

impl From<Limit> for HeldLimit {
    fn from(limit: Limit) -> Self {
        Self { limit, share: None }
    }
}

impl HeldLimit {
    /// Permits in each window, or places, that are the region's own. Not of levels, which have a capacity.
    #[must_use]
    pub fn own(&self) -> u32 {
        self.share.unwrap_or(self.limit.permits)
    }
}

/// A rule of windows that is about to be in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeseenRule {
    /// Shape of the keys that name its buckets.
    pub shape: Shape,
    /// Text that the shape stands for, the same in every process.
    pub identity: String,
    /// This region's share of its limit, where rights to it are minted by the window. `None`: they are not.
    pub share: Option<u64>,
}

/// One bucket to be charged as part of a decision.
#[derive(Debug, Clone, Copy)]
pub struct Charge<'a> {
    /// The rule that asks for it.
    pub rule: &'a Compiled,
    /// Bucket that the charge is on.
    pub key: &'a Key,
    /// Limit in force: the request's, the user's or the rule's.
    pub limit: Limit,
    /// This region's own part of it; see [`HeldLimit::share`].
    pub share: Option<u32>,
    /// The same in all regions together; a worldwide rule may hold this one to less.
    pub whole: &'a Limit,
    /// Permits that this region may use of it under `gossip` while its store has no view that speaks of now.
    /// `None`: all of it.
    pub first: Option<u32>,
    /// Permits to charge, give back, report or reserve.
    pub cost: Cost,
    /// True if a "no" here denies the whole; a shadow rule's does not.
    pub enforced: bool,
}

impl Charge<'_> {
    /// Returns what this region is held to.
    #[must_use]
    pub const fn held(&self) -> HeldLimit {
        HeldLimit { limit: self.limit, share: self.share }
    }
}

/// The outcome of one charge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChargeResult {
    /// Answer of the bucket to the charge.
    pub verdict: Verdict,
    /// Allowance that the world was believed to leave, for a worldwide rule that has heard of others.
    pub view: Option<Allowance>,
    /// The most by which the worldwide count may lie above the believed one, in permits.
    pub error_bound: u64,
    /// Permits in use in this region after this charge.
    pub used: u64,
    /// Permits really given back, for a refund.
    pub returned: u64,
    /// Permits charged of a report, within the limit or beyond it.
    pub reported: u64,
    /// Permits of a commit that were used and not charged.
    pub uncharged: u64,
    /// Permits that were owed, and are counted in this window now.
    pub paid: u64,
    /// Permits of what was charged that are owed, and not counted yet; below zero: of what was given back.
    pub owed: i64,
    /// Permits of lapsed reservations that were given back before the answer.
    pub lapsed: u64,
    /// The outcome of a reservation, or of places that are acquired again; of any other charge nothing.
    pub reservation: Option<ReservationFate>,
    /// Penalty in force for the client; `None` without one.
    pub penalty: Option<Penalty>,
    /// True if the failure policy answered instead of the store.
    pub degraded: bool,
}

impl ChargeResult {
    /// Permits that the bucket's window counts more, of those that were `taken`, and that it counts less: as
    /// other regions are told. They are told of permits that are owed when those are paid.
    #[must_use]
    pub fn moved(&self, taken: u64, returned: u64) -> (u64, u64) {
        let (owed, forgiven) = match self.owed {
            owed @ 0.. => (owed.unsigned_abs(), 0),
            owed => (0, owed.unsigned_abs()),
        };
        let more = taken.saturating_sub(owed).saturating_add(self.paid);
        (more, returned.saturating_sub(forgiven).saturating_add(self.lapsed))
    }

    /// Returns what it shows of the store's memory; nothing where the store did not decide.
    #[must_use]
    pub fn store_seen(&self) -> StoreSeen {
        match self.degraded {
            true => StoreSeen::default(),
            false => StoreSeen {
                used: Some(self.used),
                without_allowance: self.view.is_none(),
                ..StoreSeen::default()
            },
        }
    }
}

/// The outcome of all charges of one decision, in their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// True if every enforced charge fitted. If so each charge that fits was taken; if not, none was but the
    /// reports, which are charged always.
    pub admitted: bool,
    /// Results in the order of the charges, one for each.
    pub counted: SmallVec<[ChargeResult; 2]>,
}

/// Purposes of a decision: to charge, or only to say what the answer would be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Intent {
    /// Charge if all of it fits.
    Charge,
    /// Only say what the answer would be.
    Ask,
}

/// The state of a bucket, without charging it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BucketInfo {
    /// Permits in use in this region.
    pub used: u64,
    /// Answer that a peek would get from the bucket.
    pub verdict: Verdict,
    /// Allowance that the world leaves this region, if others have been heard of.
    pub view: Option<Allowance>,
    /// The most by which the worldwide count may lie above the believed one, in permits.
    pub error_bound: u64,
    /// True if this is only what the daemon knows by itself, because the store did not answer.
    pub degraded: bool,
    /// Penalty in force for the client; `None` without one.
    pub penalty: Option<Penalty>,
}

impl BucketInfo {
    /// Shows what is enforced instead of a told view that does not speak of now. `first` is as in [`Charge`].
    pub(super) fn hold_to(
        &mut self,
        first: Option<u32>,
        algorithm: Algorithm,
        limit: &Limit,
        now: Timestamp,
    ) {
        let view = Allowance::in_force(self.view.as_ref(), first, algorithm, limit, now);
        // The store has answered by the view that it was told.
        let Some(view) = view.filter(|_| view != self.view) else { return };
        let most = match view {
            Allowance::Window(view) => u64::from(view.budget),
            Allowance::Level(view) => limit.capacity(algorithm).saturating_sub(view.held_up(limit, now)),
            Allowance::Kept { permits } => limit.capacity(algorithm).saturating_add(permits),
        };
        self.verdict.remaining = self.verdict.remaining.min(most.saturating_sub(self.used));
        self.view = self.view.map(|_| view);
    }
}

/// A store of buckets. One decision is atomic: all of its charges or none, reports aside, which are charged
/// always.
#[expect(
    clippy::len_without_is_empty,
    reason = "how full it is, for metrics; nobody asks whether it is empty"
)]
pub trait Store: Send + Sync + 'static {
    /// True if [`Self::try_decide`] always answers.
    fn answers_at_once(&self) -> bool;

    /// Decides at once where nothing must be waited for; `None` asks the caller to use [`Self::decide`].
    fn try_decide(&self, charges: &[Charge<'_>], intent: Intent, now: Timestamp) -> Option<Outcome>;

    /// Decides with at most one wait, which has a deadline. Never fails: what cannot be asked is answered by
    /// each rule's failure policy.
    fn decide<'a>(&'a self, charges: &'a [Charge<'a>], intent: Intent, now: Timestamp) -> Later<'a, Outcome>;

    /// True if these are decided in one step, so that decisions asked for after them, before they are
    /// answered, see all of it or nothing.
    fn in_one_step(&self, charges: &[Charge<'_>]) -> bool {
        let _ = charges;
        true
    }

    /// Returns what a bucket of which this region is held to this limit holds; `None` if it is unused.
    fn bucket<'a>(
        &'a self,
        rule: &'a Compiled,
        key: &'a Key,
        held: HeldLimit,
        now: Timestamp,
    ) -> Later<'a, Option<BucketInfo>>;

    /// Enforces from now on what the world leaves of a bucket.
    fn set_allowance(
        &self,
        rule: &Compiled,
        key: &Key,
        allowance: Allowance,
        error_bound: u64,
        now: Timestamp,
    );

    /// Forgets a bucket, so that it counts from zero. `false`: it was not there; `None`: the store could not
    /// be asked.
    fn reset<'a>(&'a self, rule: &'a Compiled, key: &'a Key) -> Later<'a, Option<bool>>;

    /// Counts at least so much of a bucket with this `limit` as used: the store forgot a part of it.
    fn restore(&self, rule: &Compiled, key: &Key, limit: Limit, known: RegionUse, now: Timestamp) {
        let _ = (rule, key, limit, known, now);
    }

    /// Gives back all that is reserved of a bucket, though it has not lapsed, as notes of what is reserved
    /// end with the daemon. `None`: they outlive it.
    fn release_reserved(&self, charge: &Charge<'_>, now: Timestamp) -> Option<ChargeResult> {
        let _ = (charge, now);
        None
    }

    /// Charges what another region admitted of a bucket with this `limit`.
    fn debit(&self, rule: &Compiled, key: &Key, limit: Limit, permits: u64, now: Timestamp);

    /// Carries out a step on the rights of an `escrow` rule's bucket, atomically with decisions on it, and
    /// tells what they are then. `held` is what a charge would be given. `None`: its rights do not move, the
    /// store cannot be asked, or it has no room to remember the step.
    fn rights<'a>(
        &'a self,
        rule: &'a Compiled,
        key: &'a Key,
        held: HeldLimit,
        ask: &'a StepRequest,
        now: Timestamp,
    ) -> Answer<'a, Option<StepResult>> {
        let _ = (rule, key, held, ask, now);
        Answer::Now(None)
    }

    /// Returns whether it remembers nothing at all of an earlier life of `escrow` rules. `None`: it cannot be
    /// asked.
    fn is_new(&self) -> Answer<'_, Option<bool>> {
        Answer::Now(Some(false))
    }

    /// Nothing was spent before the store began, in no region: what it does not remember was not. `start` is
    /// the same in all daemons. `false`: it does not take that in, and goes on burning.
    fn begin_first(&self, start: u64) -> Answer<'_, bool> {
        let _ = start;
        Answer::Now(false)
    }

    /// True if it is to be told of rules before they are in force, by [`Self::foresee`].
    fn keeps_marks(&self) -> bool {
        false
    }

    /// These rules are in force from now on. `next` is above all shapes that were ever used.
    fn foresee(&self, rules: &[ForeseenRule], next: u32, now: Timestamp) {
        let _ = (rules, next, now);
    }

    /// The policy that answers for a rule where the store does not.
    fn policy(&self, rule: &Compiled) -> OnFailure {
        rule.rule.on_failure.unwrap_or_default()
    }

    /// Forgets what has expired, a bounded part at a time. Called about once a second.
    fn sweep(&self, now: Timestamp);

    /// Buckets held here, and the most there may be.
    fn len(&self) -> StoreLen;

    /// The servers it counts on, and how they are. A store without servers is always well.
    fn health(&self) -> StoreHealth {
        StoreHealth::default()
    }
}

/// The fill of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StoreLen {
    /// Number of buckets that the store holds.
    pub keys: usize,
    /// Most buckets that the store may hold.
    pub keys_max: usize,
    /// Buckets forgotten before their time to make room, since the start.
    pub evicted: u64,
    /// Charges that found no room since the start: every bucket in reach was at its limit.
    pub full: u64,
}
