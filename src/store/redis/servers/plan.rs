//! From charges to parts, one for each slot (or node), and from their answers to one outcome.
//!
//! Charges of several identities lie in several slots, and no call reaches over two. They are reserved
//! everywhere at once; where one denies, the others give back what they took. The page
//! `docs/concepts/counting-in-redis.md` tells what that leaves uncertain.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::core::hold::{Hold, HoldStep};
use crate::core::request::Cost;
use crate::core::reservation::{Commit, ReservationFate};
use crate::core::rule::Mode;
use crate::engine::port::{Charge, ChargeResult, Intent};
use crate::store::escrowed::{gathered, is_escrowed, lends};
use crate::store::redis::batch::call::{Action, Bucket, Item, Part};
use crate::store::redis::batch::names;
use crate::store::redis::batch::replay::Answered;
use crate::store::redis::client::slots::ClusterSlot;
use crate::store::redis::servers::map::Map;
use crate::store::slot::refunds_whole;

/// One part, and which charges it holds.
#[derive(Debug)]
pub(in crate::store::redis) struct Planned {
    /// Part of the decision that goes to Redis together.
    pub(in crate::store::redis) part: Arc<Part>,
    /// Places in the decision's charges, in the order of the part's.
    pub(in crate::store::redis) places: SmallVec<[usize; 2]>,
}

/// The bucket of a charge in Redis.
pub(in crate::store::redis) fn bucket_of(charge: &Charge<'_>) -> (ClusterSlot, Bucket) {
    let rule = &charge.rule.rule;
    let name = names::bucket(rule, charge.key, charge.limit.windows());
    let bucket = Bucket {
        key: name.key,
        shape: names::shape(rule, rule.algorithm, charge.limit.windows()),
        algorithm: rule.algorithm,
        limit: charge.limit,
        share: charge.share,
        // A request's own window counts in a bucket that no other region knows.
        worldwide: rule.global.as_ref().is_some_and(|global| global.mode == Mode::Gossip)
            && charge.limit.windows() == rule.windows(),
        refunds_whole: refunds_whole(charge.rule),
        first: charge.first,
        escrowed: is_escrowed(charge.rule),
        lends: lends(charge.rule, charge.key, &charge.held(), charge.whole),
        gathered: gathered(charge.rule, charge.key, &charge.held(), charge.whole),
        noted: false,
        penalty: rule.penalty.clone(),
    };
    (name.slot, bucket)
}

/// Splits charges into parts that one call each can decide: by slot, or by node where calls may reach over
/// slots.
pub(in crate::store::redis) fn split(
    charges: &[Charge<'_>],
    intent: Intent,
    joined: Option<&Map>,
) -> SmallVec<[Planned; 1]> {
    let action = match intent {
        Intent::Charge => Action::Charge,
        Intent::Ask => Action::Ask,
    };
    let mut parts: SmallVec<[(Part, SmallVec<[usize; 2]>); 1]> = SmallVec::new();
    for (place, charge) in charges.iter().enumerate() {
        let (slot, bucket) = bucket_of(charge);
        let found = parts.iter().position(|(part, _)| {
            // The same bucket by two limits (a request's own beside the rule's) cannot be told apart in one
            // call.
            let clash = |own: &Bucket| own.key == bucket.key && *own != bucket;
            lie_together(joined, part.slot, slot) && !part.buckets.iter().any(clash)
        });
        let index = found.unwrap_or_else(|| {
            let part = Part { slot, action, buckets: SmallVec::new(), charges: SmallVec::new() };
            parts.push((part, SmallVec::new()));
            parts.len() - 1
        });
        let Some((part, places)) = parts.get_mut(index) else { continue };
        let bucket = part.buckets.iter().position(|own| *own == bucket).unwrap_or_else(|| {
            part.buckets.push(bucket);
            part.buckets.len() - 1
        });
        part.charges.push(Item {
            bucket,
            cost: charge.cost,
            enforced: charge.enforced,
            lease: None,
            undoes: None,
        });
        places.push(place);
    }
    let noted = charges.iter().any(|charge| charge.cost.is_reserved());
    let planned = |(part, places): (Part, _)| {
        let part = Arc::new(if noted { part.with_notes() } else { part });
        Planned { part, places }
    };
    parts.into_iter().map(planned).collect()
}

/// True if one call may reach two slots.
fn lie_together(joined: Option<&Map>, one: ClusterSlot, other: ClusterSlot) -> bool {
    let nodes = joined.and_then(|map| map.node(one).zip(map.node(other)));
    nodes.map_or(one == other, |(own, other)| Arc::ptr_eq(own, other))
}

/// A charge that Redis did not answer, with its bucket there.
pub(in crate::store::redis) struct Unanswered<'a> {
    pub(in crate::store::redis) charge: &'a Charge<'a>,
    pub(in crate::store::redis) bucket: &'a Bucket,
    pub(in crate::store::redis) slot: ClusterSlot,
}

/// The charges of a part that brought no answer.
pub(in crate::store::redis) fn unanswered<'a>(
    planned: &'a Planned,
    charges: &'a [Charge<'a>],
) -> Vec<Unanswered<'a>> {
    let both = planned.places.iter().zip(&planned.part.charges);
    let unanswered = |(place, item): (&usize, &Item)| {
        Some(Unanswered {
            charge: charges.get(*place)?,
            bucket: planned.part.buckets.get(item.bucket)?,
            slot: planned.part.slot,
        })
    };
    both.filter_map(unanswered).collect()
}

/// Returns the part that gives back what this one took, as far as it still counts; `None` if it took nothing.
pub(in crate::store::redis) fn undo(part: &Part, answered: &Answered) -> Option<Part> {
    let mut charges = SmallVec::new();
    for (item, charged) in part.charges.iter().zip(&answered.charges) {
        let cost = match item.cost {
            Cost::Take(permits) if charged.counted.verdict.admitted => Cost::Refund(permits),
            Cost::Refund(_) if charged.counted.returned > 0 => Cost::Take(charged.counted.returned),
            Cost::Reserve(reserve) if charged.counted.reservation == Some(ReservationFate::Held) => {
                Cost::Commit(Commit { id: reserve.id, actual: 0, debt_max: 0 })
            }
            // A holder who held already keeps what an earlier decision gave.
            Cost::Hold(hold) if hold.step == HoldStep::Acquire && charged.counted.returned > 0 => {
                Cost::Hold(Hold { step: HoldStep::Release, ..hold })
            }
            _ => continue,
        };
        // It may come in the next window, which never took it. A note names its charge itself.
        charges.push(Item { cost, undoes: Some(charged.taken), ..*item });
    }
    (!charges.is_empty()).then(|| Part {
        slot: part.slot,
        action: Action::Put,
        buckets: part.buckets.clone(),
        charges,
    })
}

/// Changes the answer of a charge that fitted, now that another part has denied the whole and its permits go
/// back.
pub(in crate::store::redis) fn untaken(counted: &mut ChargeResult, cost: Cost) {
    let permits = match cost {
        // Nothing goes back of a holder who held already.
        Cost::Hold(_) => counted.returned,
        // Reported permits stay charged.
        Cost::Report(_) | Cost::Commit(_) => 0,
        // Nothing goes back of permits that were reserved before.
        Cost::Reserve(_) if counted.reservation != Some(ReservationFate::Held) => 0,
        cost => cost.taken(),
    };
    if counted.verdict.admitted && permits > 0 {
        counted.verdict.remaining = counted.verdict.remaining.saturating_add(permits);
        counted.verdict.delay = crate::core::time::Span::ZERO;
        counted.used = counted.used.saturating_sub(permits);
    }
    if !matches!(cost, Cost::Commit(_)) {
        counted.returned = 0;
    }
}
