//! The bytes of a call: the command as Redis reads it.

use super::{Action, Bucket, CallTerms, DecideCall, Item};
use crate::core::algorithm::{Algorithm, Counting, Limit};
use crate::core::hold::{HOLDER_BYTES, Hold, HoldStep, Holder};
use crate::core::regions::escrow::moves_as;
use crate::core::request::Cost;
use crate::core::reservation_terms::OnLapse;
use crate::core::time::Timestamp;
use crate::engine::clock::Clock;
use crate::engine::port::HeldLimit;
use crate::store::redis::batch::bytes::{burst_or_share, push, push_calendar};
use crate::store::redis::batch::names;
use crate::store::redis::batch::penalties::packed_penalties;
use crate::store::redis::batch::scripts::Script;
use crate::store::redis::batch::undo::UndoneCharge;
use crate::store::redis::client::resp;

/// More than any bucket holds: larger costs are all alike.
const COST_MAX: u64 = 1 << 33;

/// Stands for no first share: only what was told is enforced.
const FIRST_NONE: u32 = u32::MAX;

/// What a call says beside its buckets and parts.
struct CallFlags {
    escrowed: bool,
    has_first: bool,
    has_calendar: bool,
    has_noted: bool,
    has_penalty: bool,
    undoes: bool,
    /// Number of all keys.
    keys: usize,
    /// Number of keys that hold what the world leaves.
    views: usize,
}

impl CallFlags {
    fn of(call: &DecideCall) -> Self {
        let (views, noted, penalised) =
            (call.views().count(), call.noted().count(), call.penalised().count());
        let mut items = call.parts.iter().flat_map(|(part, _)| &part.charges);
        Self {
            escrowed: call.buckets.iter().any(|bucket| bucket.escrowed),
            has_first: call.buckets.iter().any(|bucket| bucket.first.is_some()),
            has_calendar: call.buckets.iter().any(|bucket| bucket.limit.calendar.is_some()),
            has_noted: noted > 0,
            has_penalty: penalised > 0,
            undoes: items.any(|item| item.undoes.is_some()),
            keys: call.buckets.len() + views + 2 * noted + penalised,
            views,
        }
    }

    /// Number of arguments behind the parts.
    fn arguments(&self, keys_bound: Option<u64>) -> usize {
        match (self.has_calendar, self.has_first, keys_bound) {
            _ if self.has_penalty => 6,
            _ if self.has_noted || self.undoes => 5,
            (true, ..) => 4,
            (_, true, _) => 3,
            (_, _, Some(_)) => 2,
            (_, _, None) => usize::from(self.escrowed),
        }
    }
}

impl DecideCall {
    /// Buckets of which the world leaves a part.
    fn views(&self) -> impl Iterator<Item = &Bucket> {
        self.buckets.iter().filter(|bucket| bucket.worldwide || bucket.escrowed)
    }

    fn noted(&self) -> impl Iterator<Item = &Bucket> {
        self.buckets.iter().filter(|bucket| bucket.noted)
    }

    fn penalised(&self) -> impl Iterator<Item = &Bucket> {
        self.buckets.iter().filter(|bucket| bucket.penalty.is_some())
    }

    /// Appends the command, by the script's hash or with its whole text (which loads it). The clock of
    /// `terms` is for tests.
    pub(in crate::store::redis) fn write(
        &self,
        into: &mut Vec<u8>,
        script: &Script,
        whole: bool,
        terms: CallTerms<'_>,
    ) {
        let flags = CallFlags::of(self);
        resp::begin(into, flags.keys + 6 + flags.arguments(terms.keys_bound));
        if whole {
            resp::word(into, b"EVAL");
            resp::word(into, script.text.as_bytes());
        } else {
            resp::word(into, b"EVALSHA");
            resp::word(into, script.hash.as_bytes());
        }
        resp::word(into, itoa::Buffer::new().format(flags.keys).as_bytes());
        self.write_names(into);
        match terms.clock {
            Some(now) => resp::word(into, itoa::Buffer::new().format(now.0).as_bytes()),
            None => resp::word(into, b""),
        }
        resp::word(into, &self.packed_buckets());
        resp::word(into, &self.packed_parts());
        self.write_arguments(into, &flags, terms);
    }

    fn write_names(&self, into: &mut Vec<u8>) {
        for bucket in &self.buckets {
            resp::word(into, &bucket.key);
        }
        for bucket in self.views() {
            let name = if bucket.escrowed { names::rights(&bucket.key) } else { names::view(&bucket.key) };
            resp::word(into, &name);
        }
        for name in self.noted().flat_map(|bucket| names::notes(&bucket.key)) {
            resp::word(into, &name);
        }
        for bucket in self.penalised() {
            resp::word(into, &names::penalty(&bucket.key));
        }
    }

    /// Appends the arguments behind the parts. One that is left out in the midst is empty.
    fn write_arguments(&self, into: &mut Vec<u8>, flags: &CallFlags, terms: CallTerms<'_>) {
        let CallTerms { clock, epochs, keys_bound } = terms;
        let arguments = flags.arguments(keys_bound);
        if flags.escrowed {
            resp::word(into, &epochs.packed());
        } else if arguments > 1 {
            resp::word(into, b"");
        }
        match keys_bound {
            Some(bound) => resp::word(into, itoa::Buffer::new().format(bound).as_bytes()),
            None if arguments > 1 => resp::word(into, b""),
            None => {}
        }
        if flags.has_first {
            let mut shares = Vec::with_capacity(flags.views * 4);
            let first = |bucket: &Bucket| bucket.first.map_or(FIRST_NONE, |first| first.min(FIRST_NONE - 1));
            self.views().for_each(|bucket| push(&mut shares, first(bucket).into(), 4));
            resp::word(into, &shares);
        } else if arguments > 3 {
            resp::word(into, b"");
        }
        if flags.has_calendar {
            resp::word(into, &self.packed_calendars(clock.unwrap_or_else(|| Clock::System.now())));
        } else if arguments > 4 {
            resp::word(into, b"");
        }
        if flags.has_noted {
            let marks: Vec<u8> = self.buckets.iter().map(|bucket| u8::from(bucket.noted)).collect();
            resp::word(into, &marks);
        } else if arguments > 4 {
            resp::word(into, b"");
        }
        if flags.has_penalty {
            let terms = self.buckets.iter().map(|bucket| bucket.penalty.as_deref());
            resp::word(into, &packed_penalties(terms));
        }
    }

    /// The windows of those that count by a calendar. The server's clock finds its own among them.
    fn packed_calendars(&self, now: Timestamp) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (place, bucket) in (1..).zip(&self.buckets) {
            if let Some(calendar) = bucket.limit.calendar {
                push_calendar(&mut bytes, place, calendar, now);
            }
        }
        bytes
    }

    fn packed_buckets(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.buckets.len() * 23);
        for bucket in &self.buckets {
            let Limit { permits, window, queue, .. } = bucket.limit;
            let held = HeldLimit { limit: bucket.limit, share: bucket.share };
            push(&mut bytes, u64::from(bucket.shape), 4);
            push(&mut bytes, u64::from(permits), 4);
            push(&mut bytes, window.0.max(1), 6);
            push(&mut bytes, u64::from(burst_or_share(bucket.algorithm, held)), 4);
            push(&mut bytes, u64::from(queue), 4);
            let kind = match bucket.algorithm {
                _ if !bucket.escrowed => u8::from(bucket.worldwide),
                algorithm if moves_as(algorithm) == Counting::Concurrency && !bucket.lends => 3,
                _ => 2,
            };
            bytes.push(kind | u8::from(bucket.refunds_whole) << 2);
        }
        bytes
    }

    fn packed_parts(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.parts.len() * (16 + HOLDER_BYTES));
        for (part, places) in &self.parts {
            bytes.push(match part.action {
                Action::Charge => 0,
                Action::Ask => 1,
                Action::Put => 2,
                Action::Look => 3,
                Action::Restore(_) => 4,
            });
            push(&mut bytes, u64::try_from(part.charges.len()).unwrap_or(0), 2);
            for item in &part.charges {
                let place = places.get(item.bucket).copied().unwrap_or(0);
                push(&mut bytes, u64::try_from(place + 1).unwrap_or(0), 2);
                pack_item(&mut bytes, item, self.buckets.get(place));
            }
            if let Action::Restore(known) = part.action {
                push(&mut bytes, known.window, 7);
                push(&mut bytes, known.used.min(COST_MAX), 5);
                push(&mut bytes, known.before.min(COST_MAX), 5);
            }
        }
        bytes
    }
}

/// Appends one charge of a bucket.
fn pack_item(bytes: &mut Vec<u8>, item: &Item, bucket: Option<&Bucket>) {
    let (kind, permits, holder) = match (item.lease, item.cost) {
        (Some(_), cost) => (3, cost.taken(), Holder::UNKNOWN),
        (None, Cost::Peek) => (0, 0, Holder::UNKNOWN),
        (None, Cost::Take(permits)) => (1, permits, Holder::UNKNOWN),
        (None, Cost::Refund(permits)) => (2, permits, Holder::UNKNOWN),
        (None, Cost::Reserve(reserve)) => (1, reserve.permits, Holder::UNKNOWN),
        (None, Cost::Commit(commit)) => (1, commit.actual, Holder::UNKNOWN),
        (None, Cost::Report(report)) => (1, report.permits, Holder::UNKNOWN),
        (None, Cost::Hold(Hold { step, holder, places })) => (step_code(step), places, holder),
    };
    let holds = bucket.is_some_and(|bucket| bucket.algorithm == Algorithm::Concurrency);
    bytes.push(kind | u8::from(item.enforced) << 2 | part_code(item, bucket, holds) << 3);
    push(bytes, permits.min(COST_MAX), 5);
    if let (Cost::Refund(_), Some(UndoneCharge { charge, undone })) = (item.cost, item.undoes) {
        push(bytes, charge.at.0, 7);
        push(bytes, charge.used.min(COST_MAX), 5);
        push(bytes, undone.into(), 4);
    }
    match item.cost {
        Cost::Report(report) => push(bytes, u64::from(report.debt_max), 4),
        Cost::Reserve(reserve) if !holds => {
            bytes.extend_from_slice(&reserve.id.0);
            push(bytes, reserve.noted_for().0, 4);
        }
        Cost::Commit(commit) if !holds => {
            bytes.extend_from_slice(&commit.id.0);
            push(bytes, u64::from(commit.debt_max), 4);
        }
        _ => {}
    }
    if holds {
        bytes.extend_from_slice(&holder.0);
    }
}

/// Says of a lease which part of what is free it may take, and of another charge what is special in it.
fn part_code(item: &Item, bucket: Option<&Bucket>, holds: bool) -> u8 {
    match item.cost {
        _ if item.lease.is_some() => item.lease.unwrap_or(0).min(31),
        Cost::Report(_) => 1,
        Cost::Reserve(reserve) if !holds => match reserve.on_lapse {
            OnLapse::Release => 2,
            OnLapse::Charge => 5,
        },
        Cost::Commit(_) if !holds => 3,
        Cost::Refund(_) if item.undoes.is_some() => 1,
        // So that the script does not take the short way.
        Cost::Take(_) if bucket.is_some_and(|bucket| bucket.noted) => 4,
        _ => 0,
    }
}

/// What a step is to the script: as what it does to the places, a charge or a refund. Renewing stands where
/// other buckets have leases.
const fn step_code(step: HoldStep) -> u8 {
    match step {
        HoldStep::Acquire => 1,
        HoldStep::Release => 2,
        HoldStep::Renew => 3,
    }
}
