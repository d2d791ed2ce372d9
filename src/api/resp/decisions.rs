//! `TG.CHECK`, `TG.REPORT`, `TG.RESERVE`, `TG.COMMIT` and `TG.CANCEL`: what `/v1/check` and its relatives do,
//! by the rules in force.

use std::borrow::Cow;
use std::sync::Arc;

use super::arity;
use super::parse::{Arguments, number};
use super::reply::Answers;
use crate::api::Servers;
use crate::api::client_identity::ClientIdentity;
use crate::api::delivery::{Deliveries, Given};
use crate::api::wire::{DecisionJson, read_reservation, reservation_text};
use crate::core::decision::Decision;
use crate::core::request::{ATTRIBUTES_MAX, Attributes, Cost, Request, TEXT_BYTES_MAX};
use crate::core::reservation::{ReservationId, ReservedCost, TTL_DEFAULT};
use crate::core::reservation_terms::OnLapse;
use crate::core::written::parse_span;
use crate::engine::reserve::{MadeReservation, new_reservation, report_of, reservation_of};

/// The answer to a client that asked wrongly.
type Wrong = Cow<'static, str>;
const CHECK: &[u8] = b"TG.CHECK";
const REPORT: &[u8] = b"TG.REPORT";
/// In the place of an amount: what the rules estimate.
const ESTIMATE: &[u8] = b"*";
/// Fields of the answer to a decision.
const FIELDS: usize = 8;

fn domain_of(bytes: &[u8]) -> Result<&str, Wrong> {
    let domain = text(bytes)?;
    if domain.is_empty() || domain.len() > TEXT_BYTES_MAX {
        return Err(format!("ERR a domain has 1 to {TEXT_BYTES_MAX} bytes").into());
    }
    Ok(domain)
}

fn text(bytes: &[u8]) -> Result<&str, Wrong> {
    std::str::from_utf8(bytes).map_err(|_| "ERR domains, names and values are UTF-8".into())
}

/// A whole number of at least `least`.
fn count(bytes: &[u8], least: u64) -> Result<u64, Wrong> {
    let read = number(bytes).and_then(|number| u64::try_from(number).ok());
    read.filter(|number| *number >= least).ok_or_else(|| {
        format!("ERR value is not an integer or out of range: it must be at least {least}").into()
    })
}

/// Reads names and values in turn.
fn attributes<'a>(words: &'a [Cow<'_, [u8]>]) -> Result<Attributes<'a>, Wrong> {
    let pairs = words.chunks_exact(2);
    if !pairs.remainder().is_empty() {
        return Err("ERR an attribute has a name and a value: one of them is missing".into());
    }
    if pairs.len() > ATTRIBUTES_MAX {
        return Err(format!("ERR a request has at most {ATTRIBUTES_MAX} attributes").into());
    }
    let mut out = Attributes::new();
    for pair in pairs {
        if let [name, value] = pair {
            if name.is_empty() || name.len() > TEXT_BYTES_MAX {
                return Err(format!("ERR the name of an attribute has 1 to {TEXT_BYTES_MAX} bytes").into());
            }
            out.push((text(name)?, text(value)?));
        }
    }
    Ok(out)
}

/// Reads `TG.CHECK domain cost [name value …]`, or `TG.REPORT domain cost id [name value …]`, whose id may be
/// empty and then names no report.
fn question<'a>(command: &'a Arguments<'_>) -> Result<Request<'a>, Wrong> {
    let (name, words) = command.split_first().ok_or("ERR there is no command")?;
    if name.eq_ignore_ascii_case(CHECK) {
        let [domain, cost, named @ ..] = words else { return Err(arity("tg.check")) };
        let cost = Cost::from_signed(i64::try_from(count(cost, 0)?).unwrap_or(i64::MAX));
        return Ok(Request::new(domain_of(domain)?, attributes(named)?, cost));
    }
    let [domain, cost, id, named @ ..] = words else { return Err(arity("tg.report")) };
    let cost = Cost::report(count(cost, 0)?);
    let request = Request::new(domain_of(domain)?, attributes(named)?, cost);
    let report = match text(id)? {
        "" => None,
        id => Some(report_of(id, &request)),
    };
    Ok(Request { report, ..request })
}

/// True if it is a check or a report.
pub(super) fn is_check(command: &Arguments<'_>) -> bool {
    let is = |name: &[u8]| name.eq_ignore_ascii_case(CHECK) || name.eq_ignore_ascii_case(REPORT);
    command.first().is_some_and(|name| is(name))
}

/// The same question with what is known of its client in the place of what it says.
fn put_in<'b>(asked: Result<Request<'b>, Wrong>, identity: &'b ClientIdentity) -> Result<Request<'b>, Wrong> {
    let [request] = identity.stand_in([asked?]).map_err(|refusal| format!("ERR {}", refusal.message))?;
    Ok(request)
}

/// Answers checks and reports that arrived together, each by itself and in its place; where the store has to
/// be waited for, at one wait for many. Returns how many were asked wrongly.
pub(super) async fn checks(servers: &Servers, commands: &[Arguments<'_>], answers: &mut Answers) -> u64 {
    let loading = servers.knows_rules().err().map(|refusal| format!("LOADING {}", refusal.message));
    let read = |command| match &loading {
        Some(loading) => Err(Wrong::from(loading.clone())),
        None => question(command),
    };
    // Requests borrow it, so it is dropped after them.
    let mut identities = Vec::with_capacity(commands.len());
    let asked: Vec<_> = commands.iter().map(read).collect();
    let identity = |asked: &Result<Request<'_>, Wrong>| match asked {
        Ok(request) => ClientIdentity::read(servers, std::slice::from_ref(request)),
        Err(_) => ClientIdentity::default(),
    };
    identities.extend(asked.iter().map(identity));
    let (mut right, mut wrong) = (Vec::new(), Vec::new());
    for placed in asked.into_iter().zip(&identities).map(|(asked, identity)| put_in(asked, identity)) {
        match placed {
            Ok(request) => {
                right.push(request);
                wrong.push(None);
            }
            Err(error) => wrong.push(Some(error)),
        }
    }
    let (errors, mut wrong) = (commands.len() - right.len(), wrong.into_iter());
    let region = &servers.engine.name().region;
    let answer = |request: &Request<'_>, decision: &Decision| {
        // Up to the place of this one, which has no error.
        while let Some(Some(error)) = wrong.next() {
            answers.error(&error);
        }
        tell(answers, request, decision, region, Following::Use);
    };
    servers.engine.decide_each(&right, answer).await;
    wrong.flatten().for_each(|error| answers.error(&error));
    u64::try_from(errors).unwrap_or(u64::MAX)
}

/// `TG.RESERVE domain amount ttl id [name value …]`; an amount of `*` is estimated, an empty ttl is a minute,
/// an empty id is made.
pub(super) async fn reserve(
    servers: &Servers,
    deliveries: &Arc<Deliveries>,
    words: &[Cow<'_, [u8]>],
    answers: &mut Answers,
) -> Result<(), Wrong> {
    let [domain, amount, ttl, id, named @ ..] = words else { return Err(arity("tg.reserve")) };
    let is_estimated = &amount[..] == ESTIMATE;
    let permits = if is_estimated { 1 } else { count(amount, 1)? };
    let ttl = match text(ttl)? {
        "" => TTL_DEFAULT,
        text => parse_span(text)
            .filter(|ttl| ttl.0 > 0)
            .ok_or("ERR ttl is a time such as 30s or 5m, above zero")?,
    };
    let mut request = Request::new(domain_of(domain)?, attributes(named)?, Cost::Peek);
    let reserved: ReservationId = match text(id)? {
        "" => new_reservation().map_err(|error| format!("ERR {error}"))?,
        id => reservation_of(id, &request),
    };
    // Not of one that the caller named: it may be asking again under that name by now, and then has it.
    let deliveries = id.is_empty().then_some(deliveries);
    let reserved = ReservedCost { id: reserved, permits, ttl, on_lapse: OnLapse::default() };
    servers.knows_rules().map_err(|refusal| format!("LOADING {}", refusal.message))?;
    request.cost = Cost::Reserve(reserved);
    let asked = [request];
    let identity = ClientIdentity::read(servers, &asked);
    let mut asked = identity.stand_in(asked).map_err(|refusal| format!("ERR {}", refusal.message))?;
    let engine = &servers.engine;
    if is_estimated {
        let [request] = &mut asked;
        let permits = engine.estimate(request).await;
        request.cost = Cost::Reserve(ReservedCost { permits, ..reserved });
    }
    let mut decisions = engine.decide(&asked).get().await;
    let made = engine.reservation(&mut decisions);
    let [request] = &asked;
    let decision = decisions.first().ok_or("ERR there was no decision")?;
    let named = decision.use_instead();
    let following = match (&made, named) {
        (_, Some(_)) => 3,
        (Some(_), None) => 2,
        (None, None) => 0,
    };
    tell(answers, request, decision, &engine.name().region, Following::Fields(following));
    if let Some(MadeReservation { reservation, ttl, .. }) = made {
        answers.bulk(reservation_text(&reservation).as_bytes());
        answers.integer(signed(ttl.millis_up()));
        if let Some(deliveries) = deliveries {
            deliveries.answers(0, deliveries.hold(Given::Reservation(reservation)));
        }
    } else if named.is_some() {
        // Nothing is held, and what to use instead keeps its place.
        answers.null();
        answers.null();
    }
    if let Some(named) = named {
        answers.bulk(named.as_bytes());
    }
    Ok(())
}

/// `TG.COMMIT reservation actual`: whether it was settled by this call, whether it had lapsed, whether the
/// store did not answer.
pub(super) async fn commit(
    servers: &Servers,
    words: &[Cow<'_, [u8]>],
    answers: &mut Answers,
) -> Result<(), Wrong> {
    let [reservation, actual] = words else { return Err(arity("tg.commit")) };
    settle(servers, reservation, count(actual, 0)?, answers).await
}

/// `TG.CANCEL reservation`.
pub(super) async fn cancel(
    servers: &Servers,
    words: &[Cow<'_, [u8]>],
    answers: &mut Answers,
) -> Result<(), Wrong> {
    let [reservation] = words else { return Err(arity("tg.cancel")) };
    settle(servers, reservation, 0, answers).await
}

async fn settle(
    servers: &Servers,
    reservation: &[u8],
    actual: u64,
    answers: &mut Answers,
) -> Result<(), Wrong> {
    let read = text(reservation).ok().and_then(read_reservation);
    let reservation =
        read.ok_or("ERR this is no reservation: give back the text that TG.RESERVE answered")?;
    let done = servers.engine.commit(&reservation, actual).await.map_err(|error| format!("ERR {error}"))?;
    answers.array(3);
    for flag in [done.committed, done.lapsed, done.degraded] {
        answers.integer(i64::from(flag));
    }
    Ok(())
}

/// The fields of an answer that follow those of every decision.
#[derive(Clone, Copy)]
enum Following {
    /// The thing to use instead, if a rule names one.
    Use,
    /// So many, which the caller writes.
    Fields(usize),
}

/// Answers allowed (1 or 0), limit, remaining, milliseconds until it may pass (-1: never), milliseconds until
/// the reset, milliseconds to hold it back, whether the store did not answer, and the tightest rule. Limit,
/// remaining, reset and rule are null where no rule applied.
fn tell(answers: &mut Answers, request: &Request<'_>, decision: &Decision, region: &str, more: Following) {
    let json = DecisionJson::new(request, decision, region);
    let maybe = |answers: &mut Answers, number: Option<u64>| match number {
        Some(number) => answers.integer(signed(number)),
        None => answers.null(),
    };
    let (named, more) = match more {
        Following::Use => (json.use_instead, usize::from(json.use_instead.is_some())),
        Following::Fields(more) => (None, more),
    };
    answers.array(FIELDS + more);
    answers.integer(i64::from(json.allowed));
    maybe(answers, json.limit.map(u64::from));
    maybe(answers, json.remaining);
    answers.integer(json.retry_after_ms.map_or(-1, signed));
    maybe(answers, json.reset_ms);
    answers.integer(signed(json.delay_ms));
    answers.integer(i64::from(json.degraded));
    match json.rule {
        Some(rule) => answers.bulk(rule.as_bytes()),
        None => answers.null(),
    }
    if let Some(named) = named {
        answers.bulk(named.as_bytes());
    }
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
