//! `TG.CHECK`, `TG.REPORT`, `TG.RESERVE`, `TG.COMMIT` and `TG.CANCEL`: what `/v1/check` and its relatives do,
//! by the rules in force.

use std::borrow::Cow;
use std::sync::Arc;

use super::parse::number;
use super::reply::Answers;
use crate::api::Servers;
use crate::api::client_identity::ClientIdentity;
use crate::api::delivery::{Deliveries, Given};
use crate::api::wire::{DecisionJson, read_reservation, reservation_text};
use crate::core::request::{ATTRIBUTES_MAX, Attributes, Cost, Request, TEXT_BYTES_MAX};
use crate::core::reservation::{ReservationId, ReservedCost, TTL_DEFAULT};
use crate::core::reservation_terms::OnLapse;
use crate::core::written::parse_span;
use crate::engine::reserve::{new_reservation, report_of, reservation_of};

/// The answer to a client that asked wrongly.
type Wrong = Cow<'static, str>;
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

/// The question of one command.
struct DecisionCall<'a> {
    domain: &'a [u8],
    named: &'a [Cow<'a, [u8]>],
    cost: Cost,
    report: Option<ReservationId>,
    /// True if the rules say how much is reserved.
    is_estimated: bool,
    /// Gives back what is reserved unless the answer is delivered. `None` also where the caller named the
    /// reservation: it may be asking again under that name by now, and then has it.
    deliveries: Option<&'a Arc<Deliveries>>,
}

impl DecisionCall<'_> {
    fn request(&self) -> Result<Request<'_>, Wrong> {
        let request = Request::new(domain_of(self.domain)?, attributes(self.named)?, self.cost);
        Ok(Request { report: self.report, ..request })
    }
}

/// `TG.CHECK domain cost [name value …]`.
pub(super) async fn check(
    servers: &Servers,
    words: &[Cow<'_, [u8]>],
    answers: &mut Answers,
) -> Result<(), Wrong> {
    let [domain, cost, named @ ..] = words else { return Err(arity("tg.check")) };
    let cost = Cost::from_signed(i64::try_from(count(cost, 0)?).unwrap_or(i64::MAX));
    let asked = DecisionCall { domain, named, cost, report: None, is_estimated: false, deliveries: None };
    decide(servers, &asked, answers).await
}

/// `TG.REPORT domain cost id [name value …]`; an empty id names no report.
pub(super) async fn report(
    servers: &Servers,
    words: &[Cow<'_, [u8]>],
    answers: &mut Answers,
) -> Result<(), Wrong> {
    let [domain, cost, id, named @ ..] = words else { return Err(arity("tg.report")) };
    let cost = Cost::report(count(cost, 0)?);
    let report = (!id.is_empty()).then(|| text(id).map(report_of)).transpose()?;
    let asked = DecisionCall { domain, named, cost, report, is_estimated: false, deliveries: None };
    decide(servers, &asked, answers).await
}

/// `TG.RESERVE domain amount ttl id [name value …]`; an amount of `*` is estimated, an empty ttl is a minute,
/// an empty id is made.
pub(super) async fn reserve(
    (servers, deliveries): (&Servers, &Arc<Deliveries>),
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
    let reserved: ReservationId = match text(id)? {
        "" => new_reservation().map_err(|error| format!("ERR {error}"))?,
        id => reservation_of(id),
    };
    let cost = Cost::Reserve(ReservedCost { id: reserved, permits, ttl, on_lapse: OnLapse::default() });
    let deliveries = id.is_empty().then_some(deliveries);
    let asked = DecisionCall { domain, named, cost, report: None, is_estimated, deliveries };
    decide(servers, &asked, answers).await
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

/// Answers allowed (1 or 0), limit, remaining, milliseconds until it may pass (-1: never), milliseconds until
/// the reset, milliseconds to hold it back, whether the store did not answer, and the tightest rule. Limit,
/// remaining, reset and rule are null where no rule applied. A reservation that was made follows, with the
/// milliseconds until it lapses.
async fn decide(servers: &Servers, asked: &DecisionCall<'_>, answers: &mut Answers) -> Result<(), Wrong> {
    servers.knows_rules().map_err(|refusal| format!("LOADING {}", refusal.message))?;
    let requests = [asked.request()?];
    let identity = ClientIdentity::read(servers, &requests);
    let mut requests = identity.stand_in(requests).map_err(|refusal| format!("ERR {}", refusal.message))?;
    let engine = &servers.engine;
    if asked.is_estimated {
        let [request] = &mut requests;
        let permits = engine.estimate(request).await;
        if let Cost::Reserve(reserved) = request.cost {
            request.cost = Cost::Reserve(ReservedCost { permits, ..reserved });
        }
    }
    let mut decisions = engine.decide(&requests).get().await;
    let made = engine.reservation(&mut decisions);
    let [request] = &requests;
    let decision = decisions.first().ok_or("ERR there was no decision")?;
    let json = DecisionJson::new(request, decision, &engine.name().region);
    let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let maybe = |answers: &mut Answers, number: Option<u64>| match number {
        Some(number) => answers.integer(signed(number)),
        None => answers.null(),
    };
    answers.array(FIELDS + if made.is_some() { 2 } else { 0 });
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
    if let Some((reservation, ttl)) = made {
        answers.bulk(reservation_text(&reservation).as_bytes());
        answers.integer(signed(ttl.millis_up()));
        if let Some(deliveries) = asked.deliveries {
            deliveries.answers(0, deliveries.hold(Given::Reservation(reservation)));
        }
    }
    Ok(())
}

fn arity(command: &str) -> Wrong {
    format!("ERR wrong number of arguments for '{command}' command").into()
}
