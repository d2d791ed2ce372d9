//! One call to a node (in a cluster for one slot): the bytes that `lua/decide.lua` reads, and its reply. This
//! file settles the meaning of each key; [`crate::store::redis::batch::replay`] makes the verdicts.

mod write;

use std::hash::BuildHasher;
use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use redis::Value;
use smallvec::SmallVec;

use crate::core::algorithm::{
    Algorithm, Allowance, Counting, LevelAllowance, Limit, RegionUse, State, WindowAllowance,
};
use crate::core::penalty::{PenaltyRecord, PenaltyTerms};
use crate::core::regions::escrow::slides;
use crate::core::request::Cost;
use crate::core::reservation::ReservationFate;
use crate::core::time::{Span, Timestamp};
#[cfg(doc)]
use crate::engine::port::HeldLimit;
use crate::store::redis::batch::bytes::{pull, push};
use crate::store::redis::batch::epochs::{EPOCH_BYTES, ReplicationEpochs};
use crate::store::redis::batch::names;
use crate::store::redis::batch::penalties::read_penalty;
use crate::store::redis::batch::undo::UndoneCharge;
use crate::store::redis::client::failure::Failure;
use crate::store::redis::client::slots::ClusterSlot;
#[cfg(doc)]
use crate::store::slot::refunds_whole;

/// Of the instant at which the first reservation lapses.
const DUE_BYTES: usize = 7;

/// What a part asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::store::redis) enum Action {
    /// Charge all of it if it fits.
    Charge,
    /// Say what the answer would be.
    Ask,
    /// Charge all of it whether or not it fits.
    Put,
    /// The same as [`Self::Ask`], and what is reserved stays so even where it has lapsed.
    Look,
    /// Count at least so much of its bucket as used, and charge nothing.
    Restore(RegionUse),
}

impl Action {
    /// Whether it is carried out without asking, so that the script says nothing of each charge.
    pub(in crate::store::redis) const fn is_blind(self) -> bool {
        matches!(self, Self::Put | Self::Restore(_))
    }
}

/// One bucket of a part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::store::redis) struct Bucket {
    /// Its key.
    pub(in crate::store::redis) key: Vec<u8>,
    /// See [`names::shape`].
    pub(in crate::store::redis) shape: u32,
    /// How it counts.
    pub(in crate::store::redis) algorithm: Algorithm,
    /// The limit in force.
    pub(in crate::store::redis) limit: Limit,
    /// See [`HeldLimit::share`].
    pub(in crate::store::redis) share: Option<u32>,
    /// Whether the world may have a say.
    pub(in crate::store::redis) worldwide: bool,
    /// See [`refunds_whole`].
    pub(in crate::store::redis) refunds_whole: bool,
    /// What this region may use of it while no view speaks of now; `None`: all of it.
    pub(in crate::store::redis) first: Option<u32>,
    /// Whether its rights are escrowed.
    pub(in crate::store::redis) escrowed: bool,
    /// True if its places, or its capacity where it slides, are lent between regions.
    pub(in crate::store::redis) lends: bool,
    /// The largest cost that other regions' permits may come for; see `lua/rights.lua`.
    pub(in crate::store::redis) gathered: u64,
    /// Whether what is reserved of it is looked at. Calls of those who do not know of any pay nothing for it.
    pub(in crate::store::redis) noted: bool,
    /// What happens to clients that are denied too often. Calls without any pay nothing for it.
    pub(in crate::store::redis) penalty: Option<Arc<PenaltyTerms>>,
}

/// One charge of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::store::redis) struct Item {
    /// Its bucket's place in [`Part::buckets`].
    pub(in crate::store::redis) bucket: usize,
    /// What to charge.
    pub(in crate::store::redis) cost: Cost,
    /// Whether a "no" denies the whole.
    pub(in crate::store::redis) enforced: bool,
    /// For a lease: take as much of the cost as fits, but at most this part of what is free.
    pub(in crate::store::redis) lease: Option<u8>,
    /// For a refund: the charge that it gives back, and no other.
    pub(in crate::store::redis) undoes: Option<UndoneCharge>,
}

impl Item {
    /// The only charge of a part of one bucket, asked of no rule.
    pub(in crate::store::redis) const fn put(cost: Cost) -> Self {
        Self { bucket: 0, cost, enforced: false, lease: None, undoes: None }
    }
}

/// What one decision asks of one slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::store::redis) struct Part {
    /// Where its buckets lie.
    pub(in crate::store::redis) slot: ClusterSlot,
    /// What to do.
    pub(in crate::store::redis) action: Action,
    /// Its buckets, each once.
    pub(in crate::store::redis) buckets: SmallVec<[Bucket; 2]>,
    /// Its charges, in order.
    pub(in crate::store::redis) charges: SmallVec<[Item; 2]>,
}

impl Part {
    /// The same, and what is reserved of its buckets is looked at.
    pub(in crate::store::redis) fn with_notes(&self) -> Self {
        let mut part = self.clone();
        part.buckets.iter_mut().for_each(|bucket| bucket.noted = true);
        part
    }
}

/// A bucket as a reply shows it, before anything was changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::store::redis) struct Before {
    /// The value after its shape; empty if there was none.
    pub(in crate::store::redis) packed: Vec<u8>,
    /// The newest instant that it has seen; zero of holders, and where there was no bucket.
    pub(in crate::store::redis) seen: Timestamp,
    /// What undone charges of a level have given back.
    pub(in crate::store::redis) undone: u32,
    /// What the world leaves, and by how much it may err.
    pub(in crate::store::redis) view: Option<(Allowance, u64)>,
    /// Permits of a level under `escrow` that a refund cannot give back.
    pub(in crate::store::redis) unreturnable: u64,
    /// Permits that may count here of what slides under `escrow`.
    pub(in crate::store::redis) capacity: Option<HeldCapacity>,
    /// What its client did. `None`: there was no room to note that.
    pub(in crate::store::redis) penalty: Option<PenaltyRecord>,
}

/// Permits of what slides that may count in a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::store::redis) struct HeldCapacity {
    pub(in crate::store::redis) permits: u32,
    /// Rest of the recovery window, in which nothing is admitted.
    pub(in crate::store::redis) recovery: Span,
}

/// What the script says itself of a charge of a log or a lease, or of a bucket whose notes are looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::store::redis) struct Told {
    pub(in crate::store::redis) fits: bool,
    pub(in crate::store::redis) remaining: u64,
    pub(in crate::store::redis) reset: u64,
    pub(in crate::store::redis) retry: Option<u64>,
    pub(in crate::store::redis) used: u64,
    pub(in crate::store::redis) moved: u64,
    pub(in crate::store::redis) noted: Option<ToldNotes>,
}

/// What the script says of a bucket whose notes are looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::store::redis) struct ToldNotes {
    /// The fate of the reservation.
    pub(in crate::store::redis) fate: Option<ReservationFate>,
    /// Permits that had lapsed and were given back before the charge was looked at.
    pub(in crate::store::redis) lapsed: u64,
    /// Permits that were reserved until this commit, or before this reservation was asked for again.
    pub(in crate::store::redis) reserved: u64,
    /// Of a level the part of a permit, in 1/window permits, that the commit gave back beside whole ones.
    pub(in crate::store::redis) part: u64,
    /// The bucket as it was looked at.
    pub(in crate::store::redis) packed: SmallVec<[u8; 19]>,
}

/// What became of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::store::redis) enum PartFate {
    /// Everything enforced fitted.
    Admitted,
    /// Something did not.
    Denied,
    /// It would have made a key that the server has no room for. Nothing was changed, and nothing is told.
    Crowded,
    /// It did not fit, and something that was reserved has lapsed. The same, until it is asked with notes.
    Lapsed,
}

/// A whole reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::store::redis) struct Reply {
    /// The server's time.
    pub(in crate::store::redis) now: Timestamp,
    /// What became of each part.
    pub(in crate::store::redis) fates: Vec<PartFate>,
    /// Each bucket, as in [`DecideCall::buckets`].
    pub(in crate::store::redis) before: Vec<Before>,
    /// For logs and leases, in the order of the charges.
    pub(in crate::store::redis) told: Vec<Told>,
    /// A replication epoch that was not known; else empty.
    pub(in crate::store::redis) epoch: Vec<u8>,
}

/// What a call is decided by beside its parts.
#[derive(Debug, Clone, Copy)]
pub(in crate::store::redis) struct CallTerms<'a> {
    /// A test's clock in place of the server's.
    pub(in crate::store::redis) clock: Option<Timestamp>,
    /// The replication epochs that this daemon knows.
    pub(in crate::store::redis) epochs: &'a ReplicationEpochs,
    /// Keys that the server may hold before no new ones are made.
    pub(in crate::store::redis) keys_bound: Option<u64>,
}

/// Several parts that go as one call, decided in order.
#[derive(Debug)]
pub(in crate::store::redis) struct DecideCall {
    /// All buckets, each once.
    pub(in crate::store::redis) buckets: Vec<Bucket>,
    /// The parts, and where each of their buckets is in `buckets`.
    pub(in crate::store::redis) parts: Vec<(Arc<Part>, SmallVec<[usize; 2]>)>,
    /// Where a bucket is in `buckets`, by a hash of its key.
    places: HashMap<u64, usize, FixedState>,
}

impl DecideCall {
    /// A call without parts.
    pub(in crate::store::redis) fn new() -> Self {
        Self { buckets: Vec::new(), parts: Vec::new(), places: HashMap::default() }
    }

    /// Adds a part. Gives it back if it knows one of the buckets by another limit: then it must go by itself.
    pub(in crate::store::redis) fn add(&mut self, part: Arc<Part>) -> Result<(), Arc<Part>> {
        let known = self.buckets.len();
        let mut places = SmallVec::new();
        for bucket in &part.buckets {
            let hash = FixedState::default().hash_one(&bucket.key);
            match self.places.get(&hash) {
                Some(place) if self.buckets.get(*place) == Some(bucket) => places.push(*place),
                Some(_) => {
                    self.buckets.truncate(known);
                    self.places.retain(|_, place| *place < known);
                    return Err(part);
                }
                None => {
                    self.places.insert(hash, self.buckets.len());
                    places.push(self.buckets.len());
                    self.buckets.push(bucket.clone());
                }
            }
        }
        self.parts.push((part, places));
        Ok(())
    }

    /// Moves buckets whose key holds another shape to keys beside it.
    pub(in crate::store::redis) fn step_aside(&mut self, strangers: &[usize]) {
        for place in strangers {
            if let Some(bucket) = self.buckets.get_mut(*place) {
                bucket.key = names::beside(&bucket.key, bucket.shape);
            }
        }
    }

    /// Reads the reply. [`Ok`] with the places of strangers if nothing was done because of them.
    pub(in crate::store::redis) fn reply(&self, value: Value) -> Result<Result<Reply, Vec<usize>>, Failure> {
        let unexpected = || Failure::Unexpected("a reply of another shape".to_owned());
        let Value::Array(values) = value else { return Err(unexpected()) };
        let mut values = values.into_iter();
        let Some(Value::Int(now)) = values.next() else { return Err(unexpected()) };
        let mut next = || match values.next() {
            Some(Value::BulkString(bytes)) => Some(bytes),
            _ => None,
        };
        let head = next().ok_or_else(unexpected)?;
        let Ok(now) = u64::try_from(now) else { return Ok(Err(strangers(&head))) };
        let fate = |mark: &u8| fate_of(*mark).ok_or_else(unexpected);
        let fates = head.iter().map(fate).collect::<Result<Vec<_>, _>>()?;
        if fates.len() != self.parts.len() {
            return Err(unexpected());
        }
        let mut before = Vec::with_capacity(self.buckets.len());
        for bucket in &self.buckets {
            before.push(before_of(bucket.algorithm, &next().ok_or_else(unexpected)?));
        }
        for (bucket, before) in self.buckets.iter().zip(&mut before) {
            if bucket.worldwide || bucket.escrowed {
                let bytes = next().ok_or_else(unexpected)?;
                if bucket.escrowed && slides(bucket.algorithm) {
                    before.capacity = read_capacity(&bytes);
                } else if bucket.escrowed && bucket.algorithm.counting() == Counting::Level {
                    (before.view, before.unreturnable) = read_level(&bytes).unwrap_or_default();
                } else {
                    before.view = read_view(&bytes, bucket.algorithm.counting());
                }
            }
        }
        for (bucket, before) in self.buckets.iter().zip(&mut before) {
            if bucket.penalty.is_some() {
                before.penalty = read_penalty(&next().ok_or_else(unexpected)?);
            }
        }
        let mut told = Vec::new();
        let mut epoch = Vec::new();
        while let Some(bytes) = next() {
            if bytes.len() == EPOCH_BYTES {
                epoch = bytes;
                continue;
            }
            told.push(read_told(&bytes).ok_or_else(unexpected)?);
        }
        Ok(Ok(Reply { now: Timestamp(now), fates, before, told, epoch }))
    }
}

/// The places of strangers.
fn strangers(head: &[u8]) -> Vec<usize> {
    let places = head.chunks_exact(2).filter_map(|place| match place {
        [high, low] => usize::from(u16::from_be_bytes([*high, *low])).checked_sub(1),
        _ => None,
    });
    places.collect()
}

const fn fate_of(mark: u8) -> Option<PartFate> {
    match mark {
        b'0' => Some(PartFate::Denied),
        b'1' => Some(PartFate::Admitted),
        b'2' => Some(PartFate::Crowded),
        b'3' => Some(PartFate::Lapsed),
        _ => None,
    }
}

/// Reads the value of a bucket.
fn before_of(algorithm: Algorithm, value: &[u8]) -> Before {
    let packed = value.get(4..).unwrap_or_default();
    let seen = Timestamp(pull(&mut &packed[..], 7).unwrap_or(0));
    // Behind it stands when the first reservation lapses, and of a level what was undone.
    let len = packed.len().min(State::packed_max(algorithm));
    let (packed, rest) = packed.split_at(len);
    let undone = rest.get(DUE_BYTES..).and_then(|rest| rest.first_chunk().copied());
    let undone = undone.filter(|_| algorithm.counting() == Counting::Level);
    let undone = undone.map_or(0, u32::from_be_bytes);
    Before { packed: packed.to_vec(), seen, undone, ..Before::default() }
}

/// A view and its error bound as the value that `lua/aligned.lua` reads.
pub(in crate::store::redis) fn pack_view(view: &Allowance, error_bound: u64) -> Vec<u8> {
    // Of a level the numbers of what is held back have the places of those of a window.
    let (at, most, next, others, before, capacity) = match view {
        Allowance::Window(view) => {
            (view.window, view.budget, view.next_budget, view.others, view.others_before, 0)
        }
        Allowance::Level(view) => {
            (view.since.0, view.held_back_max, view.growth, view.held_back, 0, view.capacity)
        }
        // Scripts find it in the rights themselves.
        Allowance::Kept { .. } => (0, 0, 0, 0, 0, 0),
    };
    let mut bytes = Vec::with_capacity(40);
    push(&mut bytes, at, 7);
    push(&mut bytes, u64::from(most), 4);
    push(&mut bytes, u64::from(next), 4);
    push(&mut bytes, others.min(VIEW_MAX), 7);
    push(&mut bytes, before.min(VIEW_MAX), 7);
    push(&mut bytes, error_bound.min(VIEW_MAX), 7);
    push(&mut bytes, u64::from(capacity), 4);
    bytes
}

/// Larger numbers of permits mean nothing and would not fit a double.
const VIEW_MAX: u64 = 1 << 51;

/// Reads what is kept beyond the capacity of a level under `escrow`, and what no refund can give back of it.
fn read_level(bytes: &[u8]) -> Option<(Option<(Allowance, u64)>, u64)> {
    let mut rest = bytes;
    let (permits, unreturnable) = (pull(&mut rest, 5)?, pull(&mut rest, 6)?);
    Some(((permits > 0).then_some((Allowance::Kept { permits }, 0)), unreturnable))
}

/// Reads the permits of what slides that may count here, and how much is left of the recovery window.
fn read_capacity(bytes: &[u8]) -> Option<HeldCapacity> {
    let mut rest = bytes;
    let permits = u32::try_from(pull(&mut rest, 5)?).unwrap_or(u32::MAX);
    Some(HeldCapacity { permits, recovery: Span(pull(&mut rest, 7)?) })
}

fn read_view(bytes: &[u8], counting: Counting) -> Option<(Allowance, u64)> {
    let mut rest = bytes;
    let mut number = |len| pull(&mut rest, len);
    let at = number(7)?;
    let (most, next) = (u32::try_from(number(4)?).ok()?, u32::try_from(number(4)?).ok()?);
    let (others, others_before, error_bound) = (number(7)?, number(7)?, number(7)?);
    let view = match counting {
        Counting::Level => Allowance::Level(LevelAllowance {
            since: Timestamp(at),
            held_back: others,
            growth: next,
            held_back_max: most,
            // What 0.1.0 wrote says nothing of it.
            capacity: number(4).and_then(|capacity| u32::try_from(capacity).ok()).unwrap_or(0),
        }),
        Counting::Window | Counting::Concurrency => Allowance::Window(WindowAllowance {
            window: at,
            budget: most,
            next_budget: next,
            others,
            others_before,
        }),
    };
    Some((view, error_bound))
}

fn read_told(bytes: &[u8]) -> Option<Told> {
    let mut rest = bytes;
    let mut number = |len| pull(&mut rest, len);
    Some(Told {
        fits: number(1)? == 1,
        remaining: number(7)?,
        reset: number(7)?,
        retry: number(7)?.checked_sub(1),
        used: number(7)?,
        moved: number(6)?,
        noted: None,
    })
    .map(|told| Told { noted: read_told_notes(rest), ..told })
}

/// What stands behind it where notes were looked at.
fn read_told_notes(bytes: &[u8]) -> Option<ToldNotes> {
    let mut rest = bytes;
    let fate = match pull(&mut rest, 1)? {
        1 => Some(ReservationFate::Held),
        // Its permits follow.
        2 => Some(ReservationFate::HeldBefore { permits: 0 }),
        3 => Some(ReservationFate::Crowded),
        4 => Some(ReservationFate::Released),
        5 => Some(ReservationFate::Lapsed),
        6 => Some(ReservationFate::Repeated),
        _ => None,
    };
    let (lapsed, reserved, part) = (pull(&mut rest, 6)?, pull(&mut rest, 6)?, pull(&mut rest, 6)?);
    let fate = match fate {
        Some(ReservationFate::HeldBefore { .. }) => Some(ReservationFate::HeldBefore { permits: reserved }),
        fate => fate,
    };
    Some(ToldNotes { fate, lapsed, reserved, part, packed: SmallVec::from_slice(rest) })
}
