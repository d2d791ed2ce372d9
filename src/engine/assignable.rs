//! Permits that gateways spend by themselves: which rules can be assigned, what is left of them, and how
//! permits are taken.

use std::sync::Arc;

use super::Engine;
use crate::core::algorithm::Algorithm;
use crate::core::decision::{Decision, RuleOutcome};
use crate::core::quota_assignments::{RightsLeft, WINDOW_LEAST};
use crate::core::request::{Cost, Request};
use crate::core::rule::{Action, Charging, Mode, Rule};
use crate::core::time::Timestamp;

/// What can be assigned of the buckets that a request falls in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Assignable {
    /// No rule limits it.
    Unlimited,
    /// A rule or the client's identity denies it, whatever is left.
    Denied,
    /// So much, of all rules together.
    Left(RightsLeft),
    /// A rule that cannot be assigned counts it.
    Unassignable {
        /// Its name.
        rule: Arc<str>,
        /// Why it cannot.
        why: &'static str,
    },
    /// Nobody can say: the store does not answer.
    Unknown,
}

/// Why a rule's permits cannot be assigned; `None`: they can.
fn refused(rule: &Rule) -> Option<&'static str> {
    if !matches!(rule.algorithm, Algorithm::FixedWindow | Algorithm::SlidingWindow) {
        Some("it counts neither in a fixed nor in a sliding window")
    } else if rule.windows().shortest() < WINDOW_LEAST {
        Some("its window is shorter than a minute")
    } else if rule.split_keys > 1 {
        Some("its bucket is split into several")
    } else if rule.action == Action::Throttle {
        Some("it delays requests")
    } else if rule.names_another() {
        Some("it names something to use instead, which gateways do not tell by themselves")
    } else if rule.price.is_some() || rule.charge == Charging::Always {
        Some("its requests have costs, and to a gateway each costs 1")
    } else if rule.penalty.is_some() {
        Some("it has penalties, and a gateway does not say whom it denied")
    } else {
        None
    }
}

/// True if something other than a limit denies a request. A limit that has nothing left, because all of it is
/// assigned, denies it too, and that ends no assignment.
fn is_blocked(decision: &Decision) -> bool {
    let denies = |counts| {
        let denies = |ruled: &RuleOutcome| !ruled.allowed && !ruled.shadow && ruled.action.counts() == counts;
        decision.rules.iter().any(denies)
    };
    !decision.allowed && (denies(false) || !denies(true))
}

impl Engine {
    /// Returns what is left of the rules that count a request. Charges nothing.
    pub async fn rights_left(&self, request: &Request<'_>) -> Assignable {
        let asked = [Request { cost: Cost::Peek, may_wait: false, ..request.clone() }];
        let decisions = self.ask(&asked).get().await;
        match decisions.first() {
            Some(decision) => self.assignable(decision, self.now()),
            None => Assignable::Unknown,
        }
    }

    fn assignable(&self, decision: &Decision, now: Timestamp) -> Assignable {
        let loaded = self.loaded();
        let mut left: Option<RightsLeft> = None;
        for ruled in decision.rules.iter().filter(|ruled| ruled.action.counts() && !ruled.shadow) {
            let Some(compiled) = loaded.set.by_name(&ruled.rule) else { return Assignable::Unknown };
            if let Some(why) = refused(&compiled.rule) {
                return Assignable::Unassignable { rule: Arc::clone(&ruled.rule), why };
            }
            if ruled.degraded {
                return Assignable::Unknown;
            }
            let windows = compiled.rule.windows();
            let index = windows.index(now);
            let (begins, ends) = (windows.start(index), windows.end(index));
            let mode = compiled.rule.global.as_ref().map(|global| global.mode);
            let may_grow = matches!(mode, Some(Mode::Gossip | Mode::Escrow));
            let own = RightsLeft { permits: ruled.remaining, begins, ends, may_grow };
            left = Some(left.map_or(own, |left| RightsLeft {
                permits: left.permits.min(own.permits),
                begins: left.begins.max(begins),
                ends: left.ends.min(ends),
                may_grow: left.may_grow || may_grow,
            }));
        }
        match left {
            _ if is_blocked(decision) => Assignable::Denied,
            Some(left) => Assignable::Left(left),
            None => Assignable::Unlimited,
        }
    }

    /// Takes permits to assign them, all or none.
    pub async fn take_rights(&self, request: &Request<'_>, permits: u64) -> bool {
        let asked = [Request { cost: Cost::Take(permits), may_wait: false, ..request.clone() }];
        let decisions = self.decide(&asked).get().await;
        decisions.first().is_some_and(|decision| {
            decision.allowed && decision.rules.iter().all(|ruled| ruled.shadow || !ruled.degraded)
        })
    }

    /// Charges permits that gateways may spend in this window, whatever is left of it.
    pub async fn charge_spent(&self, request: &Request<'_>, permits: u64) {
        let asked = [Request { cost: Cost::report(permits), may_wait: false, ..request.clone() }];
        let _ = self.decide(&asked).get().await;
    }
}
