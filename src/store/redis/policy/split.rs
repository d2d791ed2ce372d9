//! A key hotter than one server can bear, counted in several sub-keys: `split_keys` of its rule.
//!
//! Each sub-key holds its part of the limit, and the parts sum to the limit exactly, so that together they
//! never admit more. Their names are chosen so that their slots lie evenly over all slots. A check takes the
//! sub-key whose turn it is and, where that denies, the others, before it is denied.
//! `docs/concepts/counting-in-redis.md` says what that costs.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::join_all;
use smallvec::SmallVec;

use crate::core::algorithm::{Limit, Verdict};
use crate::core::key::Key;
use crate::core::request::{Cost, ReportedCost};
use crate::core::reservation::{Commit, ReservationFate, ReservationId, ReservedCost};
use crate::core::reservation_terms::OnLapse;
use crate::core::ruleset::Compiled;
use crate::core::time::{Span, Timestamp};
use crate::engine::clock::Deadline;
use crate::engine::port::{BucketInfo, Charge, ChargeResult, HeldLimit, Intent, Outcome};
use crate::store::redis::batch::names::parts_of;
use crate::store::redis::policy::decide::Core;

/// The part of a limit that sub-key `index` holds.
pub(in crate::store::redis) fn share(limit: Limit, index: u32, parts: u32) -> Limit {
    let part = |permits: u32| permits / parts + u32::from(index < permits % parts);
    Limit { permits: part(limit.permits), burst: part(limit.burst), queue: part(limit.queue), ..limit }
}

/// The key of sub-key `index`: the identity with one more value.
pub(in crate::store::redis) fn sub_key(key: &Key, index: u32) -> Key {
    let text = index.to_string();
    let mut identity: SmallVec<[u8; 62]> = SmallVec::from_slice(key.identity());
    identity.push(u8::try_from(text.len()).unwrap_or(u8::MAX));
    identity.extend_from_slice(text.as_bytes());
    Key::from_identity(key.shape(), &identity)
}

/// The questions that one charge has asked so far.
#[derive(Debug, Default)]
struct Asked {
    denied: SmallVec<[ChargeResult; 4]>,
}

impl Core {
    /// Decides charges as one. Charges of split keys go to a sub-key each.
    pub(in crate::store::redis) async fn decide_whole(
        self: &Arc<Self>,
        charges: &[Charge<'_>],
        intent: Intent,
        now: Timestamp,
    ) -> Outcome {
        let deadline = Deadline::after(self.timeout);
        if charges.iter().any(|charge| parts_of(&charge.rule.rule) > 1) {
            return Box::pin(self.decide_split(charges, intent, now, deadline)).await;
        }
        self.decide(charges, intent, now, deadline).await
    }

    async fn decide_split(
        self: &Arc<Self>,
        charges: &[Charge<'_>],
        intent: Intent,
        now: Timestamp,
        deadline: Deadline,
    ) -> Outcome {
        // A shadow rule's "no" stops nothing, so its other sub-keys would never be asked: it is decided by
        // itself.
        let alone = |charge: &Charge<'_>| {
            charge.cost.is_report() || (!charge.enforced && parts_of(&charge.rule.rule) > 1)
        };
        // A report is charged whatever the others say, and once however often those are tried.
        let mut reports: SmallVec<[ChargeResult; 2]> = SmallVec::new();
        for charge in charges.iter().filter(|charge| charge.cost.is_report()) {
            reports.push(match charge.cost {
                Cost::Commit(commit) => self.commit_over_parts(charge, &commit, intent, now, deadline).await,
                _ => self.report_over_parts(charge, intent, now, deadline).await,
            });
        }
        let reported = charges.iter().filter(|charge| charge.cost.is_report()).zip(&reports);
        let fits = reported
            .fold(true, |fits, (charge, counted)| fits && (counted.verdict.admitted || !charge.enforced));
        let intent = if fits { intent } else { Intent::Ask };
        let mut reports = reports.into_iter();
        let together: Vec<Charge<'_>> = charges.iter().filter(|charge| !alone(charge)).copied().collect();
        let main = self.decide_over_parts(&together, intent, now, deadline).await;
        let intent = if main.admitted { intent } else { Intent::Ask };
        let mut rest = main.counted.into_iter();
        let mut counted = SmallVec::new();
        for charge in charges {
            if charge.cost.is_report() {
                counted.extend(reports.next());
            } else if alone(charge) {
                let own = Charge { enforced: true, ..*charge };
                counted.extend(self.decide_over_parts(&[own], intent, now, deadline).await.counted);
            } else {
                counted.extend(rest.next());
            }
        }
        Outcome { admitted: main.admitted && fits, counted }
    }

    /// Charges a report to the sub-keys in turn, each as far as it has room, and what is left evenly to all
    /// of them, as debts.
    async fn report_over_parts(
        self: &Arc<Self>,
        charge: &Charge<'_>,
        intent: Intent,
        now: Timestamp,
        deadline: Deadline,
    ) -> ChargeResult {
        let parts = parts_of(&charge.rule.rule);
        let turn = self.turn();
        let Cost::Report(report) = charge.cost else {
            return crate::store::redis::policy::fallback::passed(charge);
        };
        let mut left = report.permits;
        let mut all: SmallVec<[ChargeResult; 4]> = SmallVec::new();
        let ask = async |more: u32, permits: u64, debt_max: u32| {
            let (key, limit) = part(charge, turn.wrapping_add(more));
            let cost = Cost::Report(ReportedCost { permits, debt_max });
            let own = Charge { key: &key, limit, cost, ..*charge };
            self.decide(&[own], intent, now, deadline).await.counted.first().copied()
        };
        if parts == 1 {
            return ask(0, left, report.debt_max)
                .await
                .unwrap_or_else(|| crate::store::redis::policy::fallback::passed(charge));
        }
        for more in 0..parts {
            let Some(counted) = ask(more, left.max(1), 0).await else { continue };
            let fits = if intent == Intent::Charge { counted.reported } else { counted.verdict.remaining };
            left = left.saturating_sub(fits);
            all.push(counted);
            if left == 0 || counted.verdict.admitted {
                left = 0;
                break;
            }
        }
        let fits = left == 0;
        let mut reported = report.permits - left;
        if left > 0 && intent == Intent::Charge {
            let even = |amount: u64, more: u32| {
                let parts = u64::from(parts);
                amount / parts + u64::from(u64::from(more) < amount % parts)
            };
            let debts = (0..parts).map(async |more| {
                let debt_max = u32::try_from(even(u64::from(report.debt_max), more)).unwrap_or(u32::MAX);
                ask(more, even(left, more).max(1), debt_max).await
            });
            let debts = join_all(debts).await;
            reported += debts.iter().flatten().map(|counted| counted.reported).sum::<u64>();
            all = debts.into_iter().flatten().collect();
        }
        let Some(mut counted) = all.last().copied() else {
            return crate::store::redis::policy::fallback::passed(charge);
        };
        let asked = Asked { denied: if fits { SmallVec::new() } else { all } };
        counted.verdict.admitted = fits;
        counted.reported = reported.min(report.permits);
        put_into_words(charge, &asked, &mut counted);
        counted
    }

    /// Settles a reservation in the sub-key that holds it. That it is settled is remembered in the sub-key
    /// that its id names first, whoever held it. A reservation that none of them holds any more is a report.
    async fn commit_over_parts(
        self: &Arc<Self>,
        charge: &Charge<'_>,
        commit: &Commit,
        intent: Intent,
        now: Timestamp,
        deadline: Deadline,
    ) -> ChargeResult {
        let (parts, turn) = (parts_of(&charge.rule.rule), turn_of(commit.id));
        let ask = async |more: u32, cost: Cost, intent: Intent| {
            let (key, limit) = part(charge, turn.wrapping_add(more));
            let own = Charge { key: &key, limit, cost, ..*charge };
            let counted = self.decide(&[own], intent, now, deadline).await.counted.first().copied();
            counted.unwrap_or_else(|| crate::store::redis::policy::fallback::passed(charge))
        };
        if parts == 1 || intent == Intent::Ask {
            return ask(0, charge.cost, intent).await;
        }
        let question = ReservedCost { id: commit.id, permits: 1, ttl: Span(1), on_lapse: OnLapse::Release };
        let held = (0..parts).map(|more| ask(more, Cost::Reserve(question), Intent::Ask));
        let held = join_all(held).await;
        let holder = (0..).zip(&held).find(|(_, counted)| {
            matches!(counted.reservation, Some(ReservationFate::HeldBefore { .. })) && !counted.degraded
        });
        if let Some((0, _)) = holder {
            return ask(0, charge.cost, intent).await;
        }
        let first = ask(0, Cost::Commit(Commit { actual: 0, ..*commit }), intent).await;
        match holder {
            _ if first.reservation == Some(ReservationFate::Repeated) => first,
            Some((more, _)) => ask(more, charge.cost, intent).await,
            None if commit.actual == 0 => first,
            None => {
                let cost = Cost::Report(ReportedCost { permits: commit.actual, debt_max: commit.debt_max });
                let counted =
                    self.report_over_parts(&Charge { cost, ..*charge }, intent, now, deadline).await;
                let uncharged = commit.actual.saturating_sub(counted.reported);
                ChargeResult { reservation: Some(ReservationFate::Lapsed), uncharged, ..counted }
            }
        }
    }

    /// Tries sub-key after sub-key where one denies, until all pass, or a charge has no sub-key left, or time
    /// is up.
    async fn decide_over_parts(
        self: &Arc<Self>,
        charges: &[Charge<'_>],
        intent: Intent,
        now: Timestamp,
        deadline: Deadline,
    ) -> Outcome {
        let reserved = charges.iter().find_map(|charge| match charge.cost {
            Cost::Reserve(reserve) => Some(turn_of(reserve.id)),
            _ => None,
        });
        let turn = reserved.unwrap_or_else(|| self.turn());
        let mut asked: Vec<Asked> = charges.iter().map(|_| Asked::default()).collect();
        loop {
            let place = |asked: &Asked| turn.wrapping_add(u32::try_from(asked.denied.len()).unwrap_or(0));
            let keys: Vec<(Key, Limit)> =
                charges.iter().zip(&asked).map(|(charge, asked)| part(charge, place(asked))).collect();
            let parts: Vec<Charge<'_>> = charges
                .iter()
                .zip(&keys)
                .map(|(charge, (key, limit))| Charge { key, limit: *limit, ..*charge })
                .collect();
            let held = match (parts.as_slice(), intent) {
                ([only], Intent::Charge) => self.decide_from_lease(only),
                _ => None,
            };
            let mut outcome = match held {
                Some(outcome) => outcome,
                None => self.decide(&parts, intent, now, deadline).await,
            };
            let again =
                !outcome.admitted && note(charges, &mut asked, &outcome) && !deadline.left().is_zero();
            if again {
                continue;
            }
            if outcome.admitted && intent == Intent::Charge {
                self.refund_the_rest(charges, turn, &mut outcome, now, deadline).await;
            }
            for ((charge, asked), counted) in charges.iter().zip(&asked).zip(&mut outcome.counted) {
                put_into_words(charge, asked, counted);
            }
            return outcome;
        }
    }

    /// Gives back from the other sub-keys what the first did not hold.
    async fn refund_the_rest(
        self: &Arc<Self>,
        charges: &[Charge<'_>],
        turn: u32,
        outcome: &mut Outcome,
        now: Timestamp,
        deadline: Deadline,
    ) {
        for (charge, counted) in charges.iter().zip(&mut outcome.counted) {
            let Cost::Refund(permits) = charge.cost else { continue };
            for more in 1..parts_of(&charge.rule.rule) {
                let left = permits.saturating_sub(counted.returned);
                if left == 0 || deadline.left().is_zero() {
                    break;
                }
                let (key, limit) = part(charge, turn.wrapping_add(more));
                let rest = Charge { key: &key, limit, cost: Cost::Refund(left), ..*charge };
                let refunded = self.decide(&[rest], Intent::Charge, now, deadline).await;
                counted.returned += refunded.counted.first().map_or(0, |counted| counted.returned);
            }
        }
    }

    /// Decides one charge from memory, if permits were drawn for its key or all its denials are remembered.
    pub(in crate::store::redis) fn decide_from_leases(
        self: &Arc<Self>,
        charge: &Charge<'_>,
    ) -> Option<Outcome> {
        let parts = parts_of(&charge.rule.rule);
        if parts == 1 {
            return self.decide_from_lease(charge);
        }
        let turn = self.turn();
        let mut asked = Asked::default();
        for more in 0..parts {
            let (key, limit) = part(charge, turn.wrapping_add(more));
            let mut outcome = self.decide_from_lease(&Charge { key: &key, limit, ..*charge })?;
            let counted = outcome.counted.first_mut()?;
            if !counted.verdict.admitted {
                asked.denied.push(*counted);
            }
            if counted.verdict.admitted || more + 1 == parts {
                put_into_words(charge, &asked, counted);
                return Some(outcome);
            }
        }
        None
    }

    /// Returns what a key's sub-keys hold together.
    pub(in crate::store::redis) async fn bucket_whole(
        &self,
        rule: &Compiled,
        key: &Key,
        held: HeldLimit,
        now: Timestamp,
    ) -> Option<BucketInfo> {
        let parts = parts_of(&rule.rule);
        if parts == 1 {
            return self.bucket(rule, key, held, now).await;
        }
        let all = (0..parts).map(async |index| {
            let limit = share(held.limit, index, parts);
            (self.bucket(rule, &sub_key(key, index), limit.into(), now).await, limit)
        });
        let all = join_all(all).await;
        all.iter().any(|(info, _)| info.is_some()).then(|| {
            let sum =
                |of: fn(&BucketInfo) -> u64| all.iter().filter_map(|(info, _)| info.as_ref()).map(of).sum();
            let unused: u64 = all
                .iter()
                .filter(|(info, _)| info.is_none())
                .map(|(_, limit)| u64::from(limit.permits))
                .sum();
            let infos = || all.iter().filter_map(|(info, _)| info.as_ref());
            let remaining: u64 = sum(|info| info.verdict.remaining);
            let remaining = remaining.saturating_add(unused);
            let reset = infos().map(|info| info.verdict.reset).max().unwrap_or(Span::ZERO);
            let retry =
                if remaining > 0 { None } else { infos().filter_map(|info| info.verdict.retry).min() };
            BucketInfo {
                used: sum(|info| info.used),
                verdict: Verdict { admitted: remaining > 0, remaining, reset, retry, delay: Span::ZERO },
                view: None,
                error_bound: 0,
                degraded: infos().any(|info| info.degraded),
                penalty: None,
            }
        })
    }

    /// Forgets a key with all its sub-keys; see [`crate::engine::port::Store::reset`].
    pub(in crate::store::redis) async fn reset_whole(&self, rule: &Compiled, key: &Key) -> Option<bool> {
        let parts = parts_of(&rule.rule);
        if parts == 1 {
            return self.reset(rule, key).await;
        }
        let all = (0..parts).map(async |index| self.reset(rule, &sub_key(key, index)).await);
        let all: Option<Vec<bool>> = join_all(all).await.into_iter().collect();
        Some(all?.contains(&true))
    }

    /// Spread by the golden ratio: whoever takes every second turn still comes by every sub-key.
    fn turn(&self) -> u32 {
        self.turns.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b1) >> 8
    }
}

/// The turn of a reservation, the same in every daemon: so that its commit, and who reserves again by the
/// same id, come by the same sub-keys.
fn turn_of(id: ReservationId) -> u32 {
    id.0.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes) >> 8)
}

/// The sub-key whose turn it is, and its limit; of a key that is not split the key itself.
fn part(charge: &Charge<'_>, turn: u32) -> (Key, Limit) {
    let parts = parts_of(&charge.rule.rule);
    if parts == 1 {
        return (charge.key.clone(), charge.limit);
    }
    let index = turn % parts;
    (sub_key(charge.key, index), share(charge.limit, index, parts))
}

/// Takes note of who denied. Says whether asking their next sub-keys may help: everyone who denied has one.
fn note(charges: &[Charge<'_>], asked: &mut [Asked], outcome: &Outcome) -> bool {
    let mut helps = false;
    let mut final_ = false;
    for ((charge, asked), counted) in charges.iter().zip(asked).zip(&outcome.counted) {
        if counted.verdict.admitted || !charge.enforced {
            continue;
        }
        asked.denied.push(*counted);
        let parts = usize::try_from(parts_of(&charge.rule.rule)).unwrap_or(1);
        final_ |= asked.denied.len() >= parts;
        helps = true;
    }
    helps && !final_
}

/// Speaks of the whole key. A charge that passed knows one sub-key and takes the others for like it; one that
/// was denied has asked them all.
fn put_into_words(charge: &Charge<'_>, asked: &Asked, counted: &mut ChargeResult) {
    let parts = u64::from(parts_of(&charge.rule.rule));
    if parts == 1 {
        return;
    }
    let whole = u64::from(charge.limit.permits.max(charge.limit.burst));
    let (mut remaining, mut used, mut known) = (counted.verdict.remaining, counted.used, 1);
    if !counted.verdict.admitted && !asked.denied.is_empty() {
        let all = &asked.denied;
        remaining = all.iter().map(|counted| counted.verdict.remaining).sum();
        used = all.iter().map(|counted| counted.used).sum();
        known = u64::try_from(all.len()).unwrap_or(1);
        counted.verdict.retry = all.iter().filter_map(|counted| counted.verdict.retry).min();
        counted.verdict.reset = all.iter().map(|counted| counted.verdict.reset).max().unwrap_or_default();
    }
    let all_alike = |amount: u64| (amount.saturating_mul(parts) / known).min(whole);
    (counted.verdict.remaining, counted.used) = (all_alike(remaining), all_alike(used));
    counted.degraded |= asked.denied.iter().any(|counted| counted.degraded);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::algorithm::Algorithm;
    use crate::core::key::Shape;
    use crate::store::redis::batch::names;
    use crate::store::redis::client::slots::{SLOTS, slot_of_key};
    use crate::store::redis::sample::rule;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn parts_sum_to_the_limit_exactly(permits: u32, burst: u32, parts in 1..=64_u32) {
            let limit = Limit { calendar: None, permits, window: Span::from_secs(1), burst, queue: 0 };
            let all: Vec<Limit> = (0..parts).map(|index| share(limit, index, parts)).collect();
            let sum = |of: fn(&Limit) -> u32| all.iter().map(|limit| u64::from(of(limit))).sum::<u64>();
            prop_assert_eq!(sum(|limit| limit.permits), u64::from(permits));
            prop_assert_eq!(sum(|limit| limit.burst), u64::from(burst));
        }

        #[test]
        fn sub_keys_lie_evenly_over_the_slots_and_never_share_a_name(user in ".{0,6}", parts in 2..=64_u32) {
            let mut rule = rule("r", Algorithm::Gcra);
            rule.split_keys = parts;
            let key = Key::new(Shape(0), [user.as_str()]);
            for index in 0..parts {
                let name = names::bucket(&rule, &sub_key(&key, index), rule.windows());
                let stripe = usize::from(name.slot.0) * usize::try_from(parts).unwrap() / SLOTS;
                prop_assert_eq!(stripe, usize::try_from(index).unwrap());
                prop_assert_eq!(name.slot, slot_of_key(&name.key));
            }
        }
    }

    #[test]
    fn a_sub_key_can_be_told_by_its_name() {
        let mut rule = rule("hot", Algorithm::Gcra);
        rule.split_keys = 4;
        let key = Key::new(Shape(0), ["u_42"]);
        let name = names::bucket(&rule, &sub_key(&key, 2), rule.windows());
        let text = String::from_utf8(name.key).unwrap();
        assert!(text.starts_with("tg:{user=u_42#") && text.ends_with("}:hot"), "{text}");
    }
}
