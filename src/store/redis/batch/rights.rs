//! Rights of `escrow` rules in Redis: one step is one call of `lua/rights.lua`, atomic with the decisions on
//! the bucket.
//!
//! A server knows nothing of what was written before it became a primary; which of its *replication epochs*
//! the daemons have seen, and since when, is remembered here and told to every call that it matters to.

use redis::{Cmd, Value};

use crate::core::algorithm::{Algorithm, Counting};
use crate::core::calendar::Calendar;
use crate::core::key::Key;
use crate::core::regions::escrow::places::{LoanBook, LoanPartner};
use crate::core::regions::escrow::{Ledger, Reserve, Step, StepRequest, StepResult};
use crate::core::ruleset::Compiled;
use crate::core::time::Timestamp;
use crate::core::wire::NAME_BYTES_MAX;
use crate::core::wire::rights::Total;
use crate::engine::clock::Clock;
use crate::engine::port::HeldLimit;
use crate::store::redis::batch::bytes::{burst_or_share, pull, push, push_calendar};
use crate::store::redis::batch::epochs::{ID_BYTES, ReplicationEpochs};
use crate::store::redis::batch::names::{self, Name};
use crate::store::redis::batch::scripts::{RIGHTS, Script};

/// Larger numbers would not be exact in a double, or in their place in a value.
const PERMITS_MAX: u64 = (1 << 40) - 1;

/// One step, as it goes to Redis.
pub(in crate::store::redis) struct StepCall {
    /// The bucket.
    pub(in crate::store::redis) name: Name,
    bucket: Vec<u8>,
    step: Vec<u8>,
    calendar: Option<&'static Calendar>,
    /// Whether it is about places that are lent.
    pub(in crate::store::redis) places: bool,
}

impl StepCall {
    /// `None` for a step that no honest region asks for.
    pub(in crate::store::redis) fn new(
        rule: &Compiled,
        key: &Key,
        held: HeldLimit,
        ask: &StepRequest,
    ) -> Option<Self> {
        let limit = held.limit;
        let name = names::bucket(&rule.rule, key, rule.rule.windows());
        let mut bucket = Vec::with_capacity(23);
        push(&mut bucket, u64::from(names::shape(&rule.rule, rule.rule.algorithm, limit.windows())), 4);
        push(&mut bucket, u64::from(limit.permits), 4);
        push(&mut bucket, limit.window.0.max(1), 6);
        push(&mut bucket, u64::from(burst_or_share(rule.rule.algorithm, held)), 4);
        push(&mut bucket, u64::from(limit.queue), 4);
        bucket.push(2);
        let mut names = Vec::new();
        // What was not said is zero, and any number one more than it is.
        let said = |total: &Option<u64>| total.map_or(0, |total| total.saturating_add(1));
        let (kind, region, session, own, permits) = match &ask.step {
            Step::Read => (0, "", 0, 0, 0),
            Step::OpenSession { region, session, has, gave } => {
                (4, region.as_str(), *session, said(gave), said(has))
            }
            Step::ConfirmRecovery { regions } => {
                for region in regions {
                    names.push(u8::try_from(region.len()).ok()?);
                    names.extend_from_slice(region.as_bytes());
                }
                (5, "", 0, 0, 0)
            }
            Step::Give { to, session, permits } => (1, to.as_str(), *session, 0, *permits),
            Step::Take { from, session, to_session, permits, .. } => {
                (2, from.as_str(), *session, *to_session, *permits)
            }
            Step::Acknowledge { to, session, permits } => (3, to.as_str(), *session, 0, *permits),
        };
        if region.len() > NAME_BYTES_MAX || permits > PERMITS_MAX {
            return None;
        }
        let mut step = Vec::with_capacity(32 + region.len());
        // Without windows there is room for another number.
        let window = match ask.step {
            Step::Take { keep, .. } if rule.counting() == Counting::Level => keep.min(PERMITS_MAX),
            _ => ask.window,
        };
        push(&mut step, window, 7);
        step.push(kind);
        push(&mut step, session, 8);
        push(&mut step, own, 8);
        push(&mut step, permits, 5);
        step.extend_from_slice(region.as_bytes());
        step.extend_from_slice(&names);
        let places = rule.rule.algorithm == Algorithm::Concurrency;
        Some(Self { name, bucket, step, calendar: limit.calendar, places })
    }

    /// The command, by the script's hash or with its whole text.
    pub(in crate::store::redis) fn command(
        &self,
        whole: bool,
        clock: Option<Timestamp>,
        epochs: &ReplicationEpochs,
    ) -> Cmd {
        let mut command = Cmd::new();
        let script: &Script = &RIGHTS;
        if whole {
            command.arg("EVAL").arg(&script.text);
        } else {
            command.arg("EVALSHA").arg(&script.hash);
        }
        command.arg(2).arg(&self.name.key).arg(names::rights(&self.name.key));
        match clock {
            Some(now) => command.arg(now.0),
            None => command.arg(""),
        };
        command.arg(&self.bucket).arg(epochs.packed()).arg(&self.step);
        if let Some(calendar) = self.calendar {
            let mut around = Vec::new();
            push_calendar(&mut around, 1, calendar, clock.unwrap_or_else(|| Clock::System.now()));
            command.arg("").arg("").arg(around);
        }
        command
    }
}

/// Reads a reply. `None`: the key holds something else, or the reply is of another shape.
pub(in crate::store::redis) fn read(
    value: Value,
    places: bool,
    epochs: &ReplicationEpochs,
) -> Option<StepResult> {
    let Value::Array(values) = value else { return None };
    let [
        Value::Int(_),
        Value::BulkString(ledger),
        Value::Int(used),
        Value::BulkString(session),
        Value::BulkString(epoch),
    ] = values.as_slice()
    else {
        return None;
    };
    epochs.learn(epoch);
    let session = pull(&mut session.as_slice(), 8)?;
    let ledger = if places { unpack_places(ledger, session) } else { unpack(ledger, session) };
    Some(StepResult { ledger: ledger?, used: u64::try_from(*used).ok()? })
}

fn unpack(bytes: &[u8], session: u64) -> Option<Ledger> {
    let mut rest = bytes;
    let window = pull(&mut rest, 7)?;
    let (_, mut rest) = rest.split_at_checked(ID_BYTES)?;
    let minted = pull(&mut rest, 5)?;
    let (_, _) = (pull(&mut rest, 5)?, pull(&mut rest, 5)?);
    let closed = (pull(&mut rest, 7)?, pull(&mut rest, 5)?);
    let mut ledger = Ledger { window, session, minted, ..Ledger::default() };
    // Without windows the session is kept in the place of the window before.
    ledger.closed = (window > 0 && closed.0 > 0).then_some(closed);
    let until = Timestamp((session / 1_000).saturating_add(closed.1).saturating_mul(1_000));
    while !rest.is_empty() {
        let kind = pull(&mut rest, 1)?;
        let (session, permits) = (pull(&mut rest, 8)?, pull(&mut rest, 5)?);
        let len = usize::try_from(pull(&mut rest, 1)?).ok()?;
        let (name, after) = rest.split_at_checked(len)?;
        rest = after;
        let total = Total { region: std::str::from_utf8(name).ok()?.to_owned(), session, permits };
        match kind {
            0 => ledger.given.push(total),
            1 => ledger.taken.push(total),
            2 => ledger.acknowledged.push(total),
            _ => {
                let kept = ledger.kept.get_or_insert_with(|| Box::new(Reserve { until, totals: Vec::new() }));
                kept.totals.push(total);
            }
        }
    }
    Some(ledger)
}

fn unpack_places(bytes: &[u8], session: u64) -> Option<Ledger> {
    let (_, mut rest) = bytes.split_at_checked(ID_BYTES)?;
    let minted = pull(&mut rest, 5)?;
    let (capacity, share) = (pull(&mut rest, 5)?, pull(&mut rest, 5)?);
    let mut loans = LoanBook { share, capacity, vouched: pull(&mut rest, 1)? > 0, bonds: Vec::new() };
    let mut ledger = Ledger { session, minted, ..Ledger::default() };
    let _ = pull(&mut rest, 8)?;
    while !rest.is_empty() {
        let session = pull(&mut rest, 8)?;
        let (given, taken) = (pull(&mut rest, 5)?, pull(&mut rest, 5)?);
        let heard = Timestamp(pull(&mut rest, 7)?);
        let (flags, len) = (pull(&mut rest, 1)?, usize::try_from(pull(&mut rest, 1)?).ok()?);
        let (name, after) = rest.split_at_checked(len)?;
        rest = after;
        let region = std::str::from_utf8(name).ok()?.to_owned();
        ledger.given.push(Total { region: region.clone(), session, permits: given });
        ledger.taken.push(Total { region: region.clone(), session, permits: taken });
        loans.bonds.push(LoanPartner { region, heard, told: flags & 1 > 0, carried: flags & 2 > 0 });
    }
    ledger.loans = Some(Box::new(loans));
    Some(ledger)
}
