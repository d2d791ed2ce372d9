//! The reasons why a charge was denied: told from what its store answered and what is known here of the other
//! regions.

use crate::core::algorithm::{Allowance, Counting};
use crate::core::decision::RuleOutcome;
use crate::core::denial_cause::DenialCause;
use crate::core::regions::escrow::{dry_mark, moves_as, slides};
use crate::core::regions::gossip::uncertainty::{self, BucketAnswer, OtherStores};
use crate::core::request::Cost;
use crate::core::reservation::ReservationFate;
use crate::core::rule::Mode;
use crate::core::ruleset::Match;
use crate::core::time::Timestamp;
use crate::engine::Engine;
use crate::engine::loaded::Loaded;
use crate::engine::port::ChargeResult;

impl Engine {
    /// Returns why a charge was denied. Apart from what passes, which never comes here.
    #[cold]
    pub(super) fn cause_of(
        &self,
        (loaded, found): (&Loaded, &Match<'_>),
        ruled: &RuleOutcome,
        (cost, counted): (Cost, &ChargeResult),
        (elsewhere, now): (OtherStores, Timestamp),
    ) -> DenialCause {
        if counted.degraded || counted.reservation == Some(ReservationFate::Crowded) {
            return DenialCause::Degraded;
        }
        if counted.penalty.is_some() {
            return DenialCause::Penalty;
        }
        let algorithm = found.rule.rule.algorithm;
        let asked = asked_of(cost);
        let mode = found.rule.rule.global.as_ref().map(|global| global.mode);
        // Under `gossip` more may come from the other regions than this one has.
        let never = ruled.retry.is_none() && mode != Some(Mode::Gossip);
        let (whole, own) = (found.whole.capacity(algorithm), found.limit.capacity(algorithm));
        // No cost is too large for a limit of nothing: whatever asks finds it used up.
        if (never && own > 0) || (asked > whole && whole > 0) {
            return DenialCause::TooLarge;
        }
        let has_room = match mode {
            None => false,
            // Nobody tells this region what the others have used of theirs, and no cut changes that.
            Some(Mode::Split) if own > 0 && counted.used.saturating_add(asked) <= whole => {
                return DenialCause::Elsewhere;
            }
            Some(Mode::Split) => false,
            Some(Mode::Gossip) => {
                let ChargeResult { used, view, error_bound, .. } = *counted;
                let answered = BucketAnswer { used, remaining: ruled.remaining, view, error_bound };
                uncertainty::has_room(algorithm, &found.whole, &answered, asked, now)
            }
            Some(Mode::Escrow) if self.is_burnt((loaded, found), counted, asked) => {
                return DenialCause::Burnt;
            }
            Some(Mode::Escrow) => self.may_lie_elsewhere(found, counted, asked, (elsewhere, now)),
        };
        match (has_room, elsewhere.cut_off) {
            (false, _) => DenialCause::UsedUp,
            (true, false) => DenialCause::Elsewhere,
            (true, true) => DenialCause::CutOff,
        }
    }

    /// True if other regions of an `escrow` rule may send within a round trip what was denied for this
    /// `cause`.
    #[cold]
    pub(super) fn may_be_sent(
        &self,
        found: &Match<'_>,
        (cost, counted): (Cost, &ChargeResult),
        cause: DenialCause,
        (elsewhere, now): (OtherStores, Timestamp),
    ) -> bool {
        match cause {
            DenialCause::Elsewhere => true,
            // What others send counts beside what is burnt. A bucket that slides is shut until all that it
            // forgot is over.
            DenialCause::Burnt => {
                !slides(found.rule.rule.algorithm)
                    && self.may_lie_elsewhere(found, counted, asked_of(cost), (elsewhere, now))
            }
            _ => false,
        }
    }

    /// True if a cost would fit, had the store not forgotten what was spent of this region's rights.
    fn is_burnt(&self, (loaded, found): (&Loaded, &Match<'_>), counted: &ChargeResult, asked: u64) -> bool {
        let algorithm = found.rule.rule.algorithm;
        let needed = counted.used.saturating_add(asked);
        let own = u64::from(found.share.unwrap_or(found.limit.permits));
        let world = self.world();
        let name = &found.rule.rule.name;
        let rights = world.rights.iter().find(|rights| rights.rule == *name);
        // A share that has just grown is not there yet: nothing of it was forgotten.
        let in_doubt = rights.is_some_and(|rights| rights.in_doubt > 0) && !loaded.grows(found.rule);
        match (moves_as(algorithm), counted.view.as_ref()) {
            // The budget lacks what was not minted of the region's share.
            (Counting::Window, Some(Allowance::Window(view))) => {
                let missing = own.saturating_sub(u64::from(view.next_budget));
                missing > 0 && needed <= u64::from(view.budget).saturating_add(missing)
            }
            (Counting::Window, _) => false,
            // A bucket that denies within its share, of which nothing was lent, is shut until it knows.
            (Counting::Concurrency, _) if slides(algorithm) => {
                let lends = rights.is_some_and(|rights| rights.given.values().any(|given| *given > 0));
                needed <= own && (in_doubt || !lends)
            }
            (Counting::Level | Counting::Concurrency, _) => in_doubt,
        }
    }

    /// True if what this region lacks may lie in other regions. Nobody tells it what those have spent, and
    /// one that is cut off does not say that it has none.
    fn may_lie_elsewhere(
        &self,
        found: &Match<'_>,
        counted: &ChargeResult,
        asked: u64,
        (elsewhere, now): (OtherStores, Timestamp),
    ) -> bool {
        let algorithm = found.rule.rule.algorithm;
        let window = dry_mark(algorithm, found.limit.windows(), now);
        let is_dry = || found.key.as_ref().is_some_and(|key| self.waits.is_dry(key, window));
        counted.used.saturating_add(asked) <= found.whole.capacity(algorithm)
            && (!is_dry() || elsewhere.cut_off)
    }
}

/// Permits that must be free for a cost to pass.
fn asked_of(cost: Cost) -> u64 {
    if cost.is_report() { 1 } else { cost.taken().max(1) }
}
