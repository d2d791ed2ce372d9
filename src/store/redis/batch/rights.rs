//! Rights of `escrow` rules in Redis: one step is one call of `lua/rights.lua`, atomic with the decisions on
//! the bucket.
//!
//! A server knows nothing of what was written before it became a primary; which of its *replication epochs*
//! the daemons have seen, and since when, is remembered here and told to every call that it matters to.

use redis::{Cmd, Value};

use crate::core::algorithm::Counting;
use crate::core::calendar::Calendar;
use crate::core::key::Key;
use crate::core::regions::escrow::level::{Forwarded, LevelLedger, LevelStep, Reserve};
use crate::core::regions::escrow::places::{LoanPartner, PlacesLedger, PlacesStep};
use crate::core::regions::escrow::window::{WindowLedger, WindowStep};
use crate::core::regions::escrow::{Giving, Ledger, Step, StepRequest, StepResult, Taking, moves_as};
use crate::core::ruleset::Compiled;
use crate::core::time::Timestamp;
use crate::core::wire::NAME_BYTES_MAX;
use crate::core::wire::rights::{ClosedWindow, Total};
use crate::engine::clock::Clock;
use crate::engine::port::HeldLimit;
use crate::store::redis::batch::bytes::{burst_or_share, pull, push, push_calendar};
use crate::store::redis::batch::epochs::{ID_BYTES, ReplicationEpochs};
use crate::store::redis::batch::names::{self, Name};
use crate::store::redis::batch::scripts::{RIGHTS, Script};

/// Larger numbers would not be exact in a double.
const PERMITS_MAX: u64 = (1 << 53) - 1;

/// One step, as it goes to Redis.
pub(in crate::store::redis) struct StepCall {
    /// The bucket.
    pub(in crate::store::redis) name: Name,
    bucket: Vec<u8>,
    step: Vec<u8>,
    calendar: Option<&'static Calendar>,
    /// Way in which its rights move.
    pub(in crate::store::redis) counting: Counting,
}

/// The numbers and the name of a step, as the script reads them.
#[derive(Debug, Clone, Copy, Default)]
struct StepFields<'s> {
    /// The index of a window; of a level how many permits may be kept beyond the capacity; of places the
    /// instant at which the reason was heard.
    first: u64,
    kind: u8,
    region: &'s str,
    session: u64,
    own: u64,
    permits: u64,
}

const GIVE: u8 = 1;
const TAKE: u8 = 2;
const ACKNOWLEDGE: u8 = 3;
const OPEN_SESSION: u8 = 4;
const CONFIRM_RECOVERY: u8 = 5;
const GIVE_BACK: u8 = 6;

impl<'s> StepFields<'s> {
    /// `None`: a bucket that counts so knows no such step.
    fn of(counting: Counting, step: &'s Step) -> Option<Self> {
        Some(match (counting, step) {
            (_, Step::Read) => Self::default(),
            (Counting::Window, Step::Window { window, step }) => {
                let fields = match step {
                    WindowStep::Give(giving) => Self::giving(giving),
                    WindowStep::Take(taking) => Self::taking(taking),
                };
                Self { first: *window, ..fields }
            }
            (Counting::Level, Step::Level(step)) => match step {
                LevelStep::Give(giving) => Self::giving(giving),
                LevelStep::Take { taking, keep } => {
                    Self { first: (*keep).min(PERMITS_MAX), ..Self::taking(taking) }
                }
                LevelStep::Acknowledge { to, session, permits } => {
                    let (kind, region, session, permits) = (ACKNOWLEDGE, to.as_str(), *session, *permits);
                    Self { kind, region, session, permits, ..Self::default() }
                }
            },
            (Counting::Concurrency, Step::Places { heard, step }) => {
                let fields = match step {
                    PlacesStep::Give(giving) => Self::giving(giving),
                    PlacesStep::GiveBack(giving) => Self { kind: GIVE_BACK, ..Self::giving(giving) },
                    PlacesStep::Take(taking) => Self::taking(taking),
                    PlacesStep::OpenSession { region, session, has, gave } => Self {
                        kind: OPEN_SESSION,
                        region,
                        session: *session,
                        own: said(*gave),
                        permits: said(*has),
                        ..Self::default()
                    },
                    PlacesStep::ConfirmRecovery { .. } => Self { kind: CONFIRM_RECOVERY, ..Self::default() },
                };
                Self { first: heard.0, ..fields }
            }
            _ => return None,
        })
    }

    fn giving(giving: &'s Giving) -> Self {
        let Giving { to, session, permits } = giving;
        Self { kind: GIVE, region: to, session: *session, permits: *permits, ..Self::default() }
    }

    fn taking(taking: &'s Taking) -> Self {
        let Taking { from, session, to_session, permits } = taking;
        Self { kind: TAKE, region: from, session: *session, own: *to_session, permits: *permits, first: 0 }
    }
}

/// A total that a region may have said: what was not said is zero, and any number one more than it is.
fn said(total: Option<u64>) -> u64 {
    total.map_or(0, |total| total.saturating_add(1))
}

/// The names of all regions that must have reported, each after its length.
fn names_of(step: &Step) -> Option<Vec<u8>> {
    let mut names = Vec::new();
    if let Step::Places { step: PlacesStep::ConfirmRecovery { regions }, .. } = step {
        for region in regions {
            names.push(u8::try_from(region.len()).ok()?);
            names.extend_from_slice(region.as_bytes());
        }
    }
    Some(names)
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
        let counting = moves_as(rule.rule.algorithm);
        let fields = StepFields::of(counting, &ask.step)?;
        if fields.region.len() > NAME_BYTES_MAX || fields.permits > PERMITS_MAX {
            return None;
        }
        let mut step = Vec::with_capacity(32 + fields.region.len());
        push(&mut step, fields.first, 7);
        step.push(fields.kind);
        push(&mut step, fields.session, 8);
        push(&mut step, fields.own, 8);
        push(&mut step, fields.permits, 7);
        step.extend_from_slice(fields.region.as_bytes());
        step.extend_from_slice(&names_of(&ask.step)?);
        Some(Self { name, bucket, step, calendar: limit.calendar, counting })
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
    counting: Counting,
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
    let ledger = match counting {
        Counting::Window => Ledger::Window(unpack_window(ledger, session)?),
        Counting::Level => Ledger::Level(unpack_level(ledger, session)?),
        Counting::Concurrency => Ledger::Places(unpack_places(ledger, session)?),
    };
    Some(StepResult { ledger, used: u64::try_from(*used).ok()? })
}

/// The head of a ledger of windows or levels, as the script writes it.
struct LedgerHead {
    window: u64,
    minted: u64,
    /// The window before and what was used of it; of a level its own session and, in milliseconds after that,
    /// until when permits are kept.
    closed: (u64, u64),
}

fn unpack_head(bytes: &[u8]) -> Option<(LedgerHead, &[u8])> {
    let mut rest = bytes;
    let window = pull(&mut rest, 7)?;
    let (_, mut rest) = rest.split_at_checked(ID_BYTES)?;
    let minted = pull(&mut rest, 5)?;
    let (_, _) = (pull(&mut rest, 5)?, pull(&mut rest, 5)?);
    let closed = (pull(&mut rest, 7)?, pull(&mut rest, 5)?);
    Some((LedgerHead { window, minted, closed }, rest))
}

/// The kinds of entries of a ledger, as the script writes them.
const GIVEN: u64 = 0;
const TAKEN: u64 = 1;
const ACKNOWLEDGED: u64 = 2;
/// Stands in a kind beside that if the permits take seven bytes and not five.
const WIDE: u64 = 16;

/// The next entry of a ledger of windows or levels, and its kind.
fn unpack_entry(rest: &mut &[u8]) -> Option<(u64, Total)> {
    let kind = pull(rest, 1)?;
    let (session, permits) = (pull(rest, 8)?, pull(rest, if kind >= WIDE { 7 } else { 5 })?);
    let len = usize::try_from(pull(rest, 1)?).ok()?;
    let (name, after) = rest.split_at_checked(len)?;
    *rest = after;
    Some((kind % WIDE, Total { region: std::str::from_utf8(name).ok()?.to_owned(), session, permits }))
}

fn unpack_window(bytes: &[u8], session: u64) -> Option<WindowLedger> {
    let (LedgerHead { window, minted, closed }, mut rest) = unpack_head(bytes)?;
    let closed = (closed.0 > 0).then_some(ClosedWindow { window: closed.0, used: closed.1 });
    let mut ledger = WindowLedger { window, session, minted, given: Vec::new(), taken: Vec::new(), closed };
    while !rest.is_empty() {
        match unpack_entry(&mut rest)? {
            (GIVEN, total) => ledger.given.push(total),
            (TAKEN, total) => ledger.taken.push(total),
            _ => return None,
        }
    }
    Some(ledger)
}

fn unpack_level(bytes: &[u8], session: u64) -> Option<LevelLedger> {
    let (head, mut rest) = unpack_head(bytes)?;
    let until = Timestamp((session / 1_000).saturating_add(head.closed.1).saturating_mul(1_000));
    let (minted, mut kept) = (head.minted, Vec::new());
    let mut ledger = LevelLedger { session, minted, forwarded: Vec::new(), taken: Vec::new(), kept: None };
    while !rest.is_empty() {
        match unpack_entry(&mut rest)? {
            (GIVEN, Total { region, session, permits }) => {
                ledger.forwarded.push(Forwarded { region, session, permits, acknowledged: 0 });
            }
            // The script writes it after what was given.
            (ACKNOWLEDGED, total) => {
                let forwarded = ledger.forwarded.iter_mut().find(|to| to.region == total.region)?;
                forwarded.acknowledged = total.permits;
            }
            (TAKEN, total) => ledger.taken.push(total),
            (_, total) => kept.push(total),
        }
    }
    ledger.kept = (!kept.is_empty()).then_some(Reserve { until, totals: kept });
    Some(ledger)
}

fn unpack_places(bytes: &[u8], session: u64) -> Option<PlacesLedger> {
    let (_, mut rest) = bytes.split_at_checked(ID_BYTES)?;
    let owned = pull(&mut rest, 5)?;
    let (capacity, share) = (pull(&mut rest, 5)?, pull(&mut rest, 5)?);
    let is_recovered = pull(&mut rest, 1)? > 0;
    let mut ledger = PlacesLedger { owned, share, capacity, is_recovered, ..PlacesLedger::new(session) };
    let _ = pull(&mut rest, 8)?;
    while !rest.is_empty() {
        let session = pull(&mut rest, 8)?;
        let (mut given, mut taken) = (pull(&mut rest, 5)?, pull(&mut rest, 5)?);
        let heard = Timestamp(pull(&mut rest, 7)?);
        let (flags, len) = (pull(&mut rest, 1)?, usize::try_from(pull(&mut rest, 1)?).ok()?);
        let (name, after) = rest.split_at_checked(len)?;
        rest = after;
        // What they have beyond five bytes.
        if flags & 4 > 0 {
            given |= pull(&mut rest, 2)? << 40;
            taken |= pull(&mut rest, 2)? << 40;
        }
        let region = std::str::from_utf8(name).ok()?.to_owned();
        let (has_reported, is_uncounted) = (flags & 1 > 0, flags & 2 > 0);
        ledger.partners.push(LoanPartner {
            region,
            session,
            given,
            taken,
            heard,
            has_reported,
            is_uncounted,
        });
    }
    Some(ledger)
}
