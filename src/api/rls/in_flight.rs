//! Requests in flight of a stock Envoy: a place is acquired when a request begins, and given back when its
//! stream is done.
//!
//! Envoy keeps the lease as dynamic metadata of the request, and a descriptor that is sent at the stream's
//! end brings it back. A request that was denied has no lease, so nothing is given back that was not taken.

use smallvec::SmallVec;

use crate::api::Servers;
use crate::api::delivery::Given;
use crate::api::error::{Code, Refusal};
use crate::api::wire::{lease_text, read_lease};
use crate::core::decision::Decision;
use crate::core::hold::{Hold, HoldStep, Holder};
use crate::core::request::{Cost, Request};
use crate::engine::hold::new_holder;

/// The entry by which a descriptor acquires as many places as it has hits.
const ACQUIRE: &str = "tidegate_acquire";
/// The entry whose value is the lease that a descriptor gives back.
const LEASE: &str = "tidegate_lease";

type Entries<'b> = SmallVec<[(&'b str, &'b str); 8]>;

/// The lease that a descriptor gives back; it asks nothing else.
pub(super) fn given_back<'b>(entries: &Entries<'b>) -> Option<&'b str> {
    entries.iter().find(|(name, _)| *name == LEASE).map(|(_, lease)| *lease)
}

/// The cost of a descriptor that acquires, without the entry that says so; any other stays as it is.
pub(super) fn acquired(entries: &mut Entries<'_>, cost: Cost) -> Cost {
    if !entries.iter().any(|(name, _)| *name == ACQUIRE) {
        return cost;
    }
    entries.retain(|(name, _)| *name != ACQUIRE);
    match cost {
        Cost::Take(places) => Cost::Hold(Hold { step: HoldStep::Acquire, holder: Holder::UNKNOWN, places }),
        cost => cost,
    }
}

/// Names the holder of a call that acquires: one for all of its descriptors, which nobody can guess.
pub(super) fn name_holder(questions: &mut [Request<'_>]) -> Result<(), Refusal> {
    let mut holders = questions.iter_mut().filter_map(|question| match &mut question.cost {
        Cost::Hold(hold) => Some(&mut hold.holder),
        _ => None,
    });
    let Some(first) = holders.next() else { return Ok(()) };
    *first = new_holder().map_err(|error| Refusal::new(Code::Internal, error.to_string()))?;
    holders.for_each(|holder| *holder = *first);
    Ok(())
}

/// What a call has acquired, as Envoy is to bring it back; `None` if it acquired nothing.
pub(super) fn lease_of(decisions: &[Decision]) -> Option<String> {
    Given::places(decisions).as_ref().map(lease_text)
}

/// Gives back what these leases hold. A text that is none is counted as a call that makes no sense: nobody
/// reads the answer.
pub(super) async fn give_back(servers: &Servers, leases: &[&str]) {
    for text in leases {
        match read_lease(text) {
            Some(lease) => drop(servers.engine.step(&lease, HoldStep::Release).await),
            None => servers.rls.rejected.increment(1),
        }
    }
}
