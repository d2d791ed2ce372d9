//! Kuadrant's rate limit service, so that its gateway plug-in works when its address is changed. The
//! services, names and numbers are those of `kuadrant.proto`.
//!
//! A gateway without reservations checks when a request comes and reports when its response has been sent;
//! one with them reserves and commits.

use bytes::Bytes;

use super::message::Message;
use super::question::{self, Questions, RateLimitCall};
use super::wire::{self, Decoded, RequestMessage, Undecodable};
use super::{
    CallReply, OwnCall, Respond, Span as CallSpan, Way, answer, deny, end, refuse, reply, tell, whole,
};
use crate::api::Servers;
use crate::api::client_identity::ClientIdentity;
use crate::api::delivery::Given;
use crate::api::error::{Code, Refusal};
use crate::api::wire::{read_reservation, reservation_text};
use crate::core::decision::Decision;
use crate::core::hold::HoldStep;
use crate::core::request::Cost;
use crate::core::reservation::{ReservedCost, TTL_DEFAULT};
use crate::core::reservation_terms::OnLapse;
use crate::core::time::Span;
use crate::engine::reserve::new_reservation;

/// The calls of the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    /// Asks whether anything is left.
    Check,
    /// Says what was used.
    Report,
    /// Takes permits before it is known how many are used.
    Reserve,
    /// Says how many of them were used.
    Commit,
}

impl Call {
    /// The call of this path; `None` if it is no call of this service.
    pub(super) fn of(path: &str) -> Option<Self> {
        match path.strip_prefix("/kuadrant.service.ratelimit.v1.RateLimitService/")? {
            "CheckRateLimit" => Some(Self::Check),
            "Report" => Some(Self::Report),
            "Reserve" => Some(Self::Reserve),
            "Commit" => Some(Self::Commit),
            _ => None,
        }
    }
}

/// Answers one call.
pub(super) async fn answer(call: OwnCall, asked: Call, message: Message, respond: Respond) {
    let OwnCall { servers, way, mut span, .. } = call;
    let (servers, span) = (&servers, &mut span);
    let answered = match whole(servers, message).await {
        Ok(message) => match asked {
            Call::Check => check(servers, &message, span).await.map(CallReply::from),
            Call::Report => report(servers, &message, span).await.map(CallReply::from),
            Call::Reserve => reserve(servers, &way, &message, span).await,
            Call::Commit => commit(servers, &message).await.map(CallReply::from),
        },
        Err(refusal) => Err(refusal),
    };
    match answered {
        Ok(answer) => {
            end(span.take(), None);
            reply(&way, respond, answer);
        }
        Err(refusal) => {
            end(span.take(), Some(&refusal));
            refuse(servers, respond, &refusal);
        }
    }
}

/// Whatever the hits are, nothing is charged: a descriptor is over its limit when nothing is left.
async fn check(servers: &Servers, message: &[u8], span: &mut CallSpan) -> Result<Bytes, Refusal> {
    let mut room = Vec::new();
    let RateLimitCall { mut questions, mut denied, .. } = question::read(message, &mut room)?;
    questions.iter_mut().for_each(|question| question.cost = Cost::Peek);
    let client_identity = ClientIdentity::read(servers, &questions);
    let questions = client_identity.put(questions);
    let invalid = client_identity.refused().map(|refusal| refusal.message.as_ref().into());
    if invalid.is_some() {
        denied = (0..questions.len()).collect();
    }
    let decisions = servers.engine.decide(&questions).get().await;
    let decisions = deny(decisions, &denied, invalid);
    tell(span, &questions, &decisions);
    Ok(answer::encode(&questions, &decisions))
}

async fn report(servers: &Servers, message: &[u8], span: &mut CallSpan) -> Result<Bytes, Refusal> {
    let mut room = Vec::new();
    let call = question::read(message, &mut room)?;
    let mut questions = judged(call);
    for question in &mut questions {
        match question.cost {
            Cost::Take(hits) => question.cost = Cost::report(hits),
            // A report has no answer with a lease, so nobody could give such places back.
            Cost::Hold(hold) if hold.step == HoldStep::Acquire => question.cost = Cost::Peek,
            _ => {}
        }
    }
    let client_identity = ClientIdentity::read(servers, &questions);
    let questions = client_identity.stand_in(questions)?;
    let decisions = servers.engine.decide(&questions).get().await;
    tell(span, &questions, &decisions);
    Ok(answer::reported())
}

/// The questions that can be judged: what has too many attributes names no bucket.
fn judged(call: RateLimitCall<'_>) -> Questions<'_> {
    let RateLimitCall { questions, denied, .. } = call;
    let places = questions.into_iter().enumerate();
    places.filter(|(place, _)| !denied.contains(place)).map(|(_, question)| question).collect()
}

async fn reserve(
    servers: &Servers,
    way: &Way,
    message: &[u8],
    span: &mut CallSpan,
) -> Result<CallReply, Refusal> {
    let room;
    let ReserveRequest { asked, amount, ttl } = match ReserveRequest::decode(message) {
        Err(Undecodable::Text) => {
            room = wire::repaired(message)?;
            ReserveRequest::decode(&room)?
        }
        request => request?,
    };
    let RateLimitCall { questions, denied, .. } = question::of_message(asked)?;
    let ttl = ttl.map_or(Ok(TTL_DEFAULT), TtlMessage::span)?;
    let id = new_reservation().map_err(|error| Refusal::new(Code::Internal, error.to_string()))?;
    let client_identity = ClientIdentity::read(servers, &questions);
    if !denied.is_empty() || client_identity.refused().is_some() {
        return Ok(answer::reserved(None).into());
    }
    let mut questions = client_identity.put(questions);
    for question in &mut questions {
        // An amount of nothing holds nothing: the same check, and a commit that charges it all. One request
        // holds at most a half of a limit, or an amount beyond it would never pass.
        question.cost = match amount {
            0 => Cost::Peek,
            amount => {
                let half = servers.engine.reservable_most(question).await / 2;
                let permits = amount.min(half.max(1));
                Cost::Reserve(ReservedCost { id, permits, ttl, on_lapse: OnLapse::default() })
            }
        };
    }
    let mut decisions = servers.engine.decide(&questions).get().await;
    tell(span, &questions, &decisions);
    // The answer has no place for what to use instead: to whoever reads no more than this it is a denial.
    let passes = |decision: &Decision| decision.allowed && decision.use_instead().is_none();
    let all_pass = decisions.iter().all(passes);
    let made = servers.engine.reservation(&mut decisions);
    if !all_pass {
        if let Some(made) = made {
            // The permits that other rules hold are given back, or lapse.
            let _ = servers.engine.commit(&made.reservation, 0).await;
        }
        return Ok(answer::reserved(None).into());
    }
    // Where no rule applies there is nothing to commit.
    let Some(made) = made else {
        return Ok(answer::reserved(Some("")).into());
    };
    let answer = answer::reserved(Some(&reservation_text(&made.reservation)));
    Ok(CallReply { answer, given: Some(way.deliveries.hold(Given::Reservation(made.reservation))) })
}

async fn commit(servers: &Servers, message: &[u8]) -> Result<Bytes, Refusal> {
    let room;
    let CommitRequest { asked, reservation, actual } = match CommitRequest::decode(message) {
        Err(Undecodable::Text) => {
            room = wire::repaired(message)?;
            CommitRequest::decode(&room)?
        }
        request => request?,
    };
    if let Some(reservation) = read_reservation(reservation)
        && let Ok(done) = servers.engine.commit(&reservation, actual).await
    {
        return Ok(answer::committed(done.committed && !done.lapsed));
    }
    // Nobody here knows that reservation, so it is a report of what the descriptors name.
    let mut questions = judged(question::of_message(asked)?);
    questions.iter_mut().for_each(|question| question.cost = Cost::report(actual));
    let client_identity = ClientIdentity::read(servers, &questions);
    let questions = client_identity.stand_in(questions)?;
    servers.engine.decide(&questions).get().await;
    Ok(answer::committed(false))
}

/// `ReserveRequest`.
#[derive(Debug, Default)]
struct ReserveRequest<'b> {
    asked: RequestMessage<'b>,
    amount: u64,
    ttl: Option<TtlMessage>,
}

impl<'b> ReserveRequest<'b> {
    fn decode(message: &'b [u8]) -> Decoded<Self> {
        let (mut amount, mut ttl) = (0, None);
        let asked = wire::decode_with(message, |field, message| match field.number {
            3 => {
                amount = wire::varint(field, message)?;
                Ok(())
            }
            4 => TtlMessage::read(wire::bytes(field, message)?, ttl.get_or_insert_default()),
            _ => wire::skip(field, message),
        })?;
        Ok(Self { asked, amount, ttl })
    }
}

/// `CommitRequest`.
#[derive(Debug, Default)]
struct CommitRequest<'b> {
    asked: RequestMessage<'b>,
    reservation: &'b str,
    actual: u64,
}

impl<'b> CommitRequest<'b> {
    fn decode(message: &'b [u8]) -> Decoded<Self> {
        let (mut reservation, mut actual) = ("", 0);
        let asked = wire::decode_with(message, |field, message| match field.number {
            3 => {
                // No reservation of ours is anything but ASCII.
                let bytes = wire::bytes(field, message)?;
                reservation = std::str::from_utf8(bytes).unwrap_or_default();
                Ok(())
            }
            4 => {
                actual = wire::varint(field, message)?;
                Ok(())
            }
            _ => wire::skip(field, message),
        })?;
        Ok(Self { asked, reservation, actual })
    }
}

/// `google.protobuf.Duration`.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct TtlMessage {
    seconds: i64,
    nanos: i64,
}

impl TtlMessage {
    fn read(mut message: &[u8], into: &mut Self) -> Decoded<()> {
        while let Some(field) = wire::next(&mut message)? {
            match field.number {
                1 => into.seconds = wire::varint(&field, &mut message)?.cast_signed(),
                2 => into.nanos = wire::varint(&field, &mut message)?.cast_signed(),
                _ => wire::skip(&field, &mut message)?,
            }
        }
        Ok(())
    }

    /// The time, above zero. One that is longer than permits are ever reserved is shortened later.
    fn span(self) -> Result<Span, Refusal> {
        let micros = self.seconds.saturating_mul(1_000_000).saturating_add(self.nanos / 1_000);
        let span = u64::try_from(micros).ok().filter(|micros| *micros > 0).map(Span);
        span.ok_or_else(|| Refusal::of_field("ttl", "is a time above zero, of whole microseconds"))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use prost::Message as _;

    use super::*;
    use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
    use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;

    /// The message as generated types would have it.
    #[derive(Clone, PartialEq, prost::Message)]
    struct Reserving {
        #[prost(string, tag = "1")]
        domain: String,
        #[prost(message, repeated, tag = "2")]
        descriptors: Vec<RateLimitDescriptor>,
        #[prost(uint64, tag = "3")]
        amount: u64,
        #[prost(message, optional, tag = "4")]
        ttl: Option<prost_types::Duration>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    struct Committing {
        #[prost(string, tag = "1")]
        domain: String,
        #[prost(message, repeated, tag = "2")]
        descriptors: Vec<RateLimitDescriptor>,
        #[prost(string, tag = "3")]
        reservation_id: String,
        #[prost(uint64, tag = "4")]
        actual_amount: u64,
    }

    fn descriptors() -> impl Strategy<Value = Vec<RateLimitDescriptor>> {
        let entry = (".{0,8}", ".{0,20}").prop_map(|(key, value)| Entry { key, value });
        let descriptor = proptest::collection::vec(entry, 0..4)
            .prop_map(|entries| RateLimitDescriptor { entries, ..Default::default() });
        proptest::collection::vec(descriptor, 0..4)
    }

    proptest! {
        #[test]
        fn requests_are_read_as_generated_types_write_them(
            domain in ".{0,20}", descriptors in descriptors(), amount: u64, seconds: i64, nanos: i32,
            reservation_id in ".{0,60}",
        ) {
            let ttl = Some(prost_types::Duration { seconds, nanos });
            let request = Reserving { domain: domain.clone(), descriptors: descriptors.clone(), amount, ttl };
            let message = request.encode_to_vec();
            let read = ReserveRequest::decode(&message).unwrap();
            prop_assert_eq!(read.asked.domain, &domain);
            prop_assert_eq!(read.asked.descriptors.len(), descriptors.len());
            prop_assert_eq!(read.amount, amount);
            prop_assert_eq!(read.ttl, Some(TtlMessage { seconds, nanos: nanos.into() }));
            let request = Committing { domain, descriptors, reservation_id, actual_amount: amount };
            let message = request.encode_to_vec();
            let read = CommitRequest::decode(&message).unwrap();
            prop_assert_eq!(read.reservation, &request.reservation_id);
            prop_assert_eq!(read.actual, amount);
        }

        #[test]
        fn any_bytes_are_read_without_panic(message in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = ReserveRequest::decode(&message).map(|request| request.ttl.map(TtlMessage::span));
            let _ = CommitRequest::decode(&message);
        }
    }

    #[test]
    fn a_time_is_above_zero() {
        let of = |seconds, nanos| TtlMessage { seconds, nanos }.span().map(|span| span.0).ok();
        assert_eq!(of(2, 500_000_000), Some(2_500_000));
        assert_eq!((of(0, 0), of(-1, 0), of(0, -1_000), of(0, 999)), (None, None, None, None));
        assert_eq!(of(i64::MAX, 0), Some(i64::MAX.unsigned_abs()));
    }
}
