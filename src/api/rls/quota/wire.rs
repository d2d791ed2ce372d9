//! The messages of Envoy's rate limit quota service, read and written straight.

use prost::bytes::{BufMut as _, Bytes, BytesMut};
use prost::encoding::{WireType, encode_key, encode_varint};

use super::super::answer::{begin, bytes_len, framed, number, number_len};
use super::super::wire::{Decoded, bytes, next, skip, text, varint};
use crate::core::quota_assignments::{QuotaTerms, UsageReport};
use crate::core::time::Span;

/// Most buckets that are read of one report.
pub(super) const ROWS_MAX: usize = 20_000;
/// Most pairs of one bucket's id.
pub(super) const PAIRS_MAX: usize = 32;

/// `RateLimitQuotaUsageReports`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Reports<'b> {
    pub(super) domain: &'b str,
    pub(super) rows: Vec<Row<'b>>,
}

/// `BucketQuotaUsage`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Row<'b> {
    /// The id as it came: the answer says it again.
    pub(super) id: &'b [u8],
    /// Its pairs by name, whatever order they came in.
    pub(super) pairs: Vec<(&'b str, &'b str)>,
    pub(super) usage: UsageReport,
}

/// Reads a report. Rows beyond [`ROWS_MAX`] are left out.
pub(super) fn decode(mut message: &[u8]) -> Decoded<Reports<'_>> {
    let mut reports = Reports::default();
    while let Some(field) = next(&mut message)? {
        match field.number {
            1 => reports.domain = text(&field, &mut message)?,
            2 => {
                let row = row(bytes(&field, &mut message)?)?;
                if reports.rows.len() < ROWS_MAX {
                    reports.rows.push(row);
                }
            }
            _ => skip(&field, &mut message)?,
        }
    }
    Ok(reports)
}

fn row(mut message: &[u8]) -> Decoded<Row<'_>> {
    let usage = UsageReport { allowed: 0, denied: 0, elapsed: Span::ZERO };
    let mut row = Row { id: &[], pairs: Vec::new(), usage };
    while let Some(field) = next(&mut message)? {
        match field.number {
            1 => row.id = bytes(&field, &mut message)?,
            2 => row.usage.elapsed = duration(bytes(&field, &mut message)?)?,
            3 => row.usage.allowed = varint(&field, &mut message)?,
            4 => row.usage.denied = varint(&field, &mut message)?,
            _ => skip(&field, &mut message)?,
        }
    }
    let mut id = row.id;
    while let Some(field) = next(&mut id)? {
        match field.number {
            1 => {
                let pair = pair(bytes(&field, &mut id)?)?;
                // One more tells that there are too many.
                if row.pairs.len() <= PAIRS_MAX {
                    row.pairs.push(pair);
                }
            }
            _ => skip(&field, &mut id)?,
        }
    }
    row.pairs.sort_unstable();
    Ok(row)
}

fn pair(mut message: &[u8]) -> Decoded<(&str, &str)> {
    let mut pair = ("", "");
    while let Some(field) = next(&mut message)? {
        match field.number {
            1 => pair.0 = text(&field, &mut message)?,
            2 => pair.1 = text(&field, &mut message)?,
            _ => skip(&field, &mut message)?,
        }
    }
    Ok(pair)
}

fn duration(mut message: &[u8]) -> Decoded<Span> {
    let (mut seconds, mut nanos) = (0, 0);
    while let Some(field) = next(&mut message)? {
        match field.number {
            1 => seconds = varint(&field, &mut message)?,
            2 => nanos = varint(&field, &mut message)?,
            _ => skip(&field, &mut message)?,
        }
    }
    // Below zero is a number beyond all time, and then no time at all.
    let micros = seconds.checked_mul(1_000_000).and_then(|micros| micros.checked_add(nanos / 1_000));
    Ok(Span(micros.filter(|micros| i64::try_from(*micros).is_ok()).unwrap_or(0)))
}

/// What a gateway is to do with a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Strategy {
    /// Lets everything pass.
    Allow,
    /// Lets nothing pass.
    Deny,
    /// Lets pass what this bucket has.
    Bucket(QuotaTerms),
    /// The same, and the bucket is full whatever it replaces.
    Fresh(QuotaTerms),
    /// Forgets it.
    Abandon,
}

/// One action of an answer.
#[derive(Debug)]
pub(super) struct BucketAction {
    /// The bucket's id as the gateway wrote it.
    pub(super) id: Bytes,
    pub(super) strategy: Strategy,
    /// How long it holds, in whole seconds.
    pub(super) ttl_s: u32,
}

/// Writes an answer, with the prefix that gRPC puts before it.
pub(super) fn encode(actions: &[BucketAction]) -> Bytes {
    framed(actions.len(), |message| {
        for action in actions {
            // One token bucket inherits how full another was, and begins full after a blanket rule. All of a
            // message takes effect at once.
            if let Strategy::Fresh(_) = action.strategy {
                nested(1, &body(action, Strategy::Deny), message);
            }
            nested(1, &body(action, action.strategy), message);
        }
    })
}

/// `BucketAction`.
fn body(action: &BucketAction, strategy: Strategy) -> BytesMut {
    let mut body = BytesMut::new();
    begin(1, action.id.len(), &mut body);
    body.extend_from_slice(&action.id);
    match strategy {
        Strategy::Abandon => begin(3, 0, &mut body),
        strategy => nested(2, &assignment(strategy, action.ttl_s), &mut body),
    }
    body
}

fn nested(field: u32, message: &[u8], into: &mut BytesMut) {
    begin(field, message.len(), into);
    into.put_slice(message);
}

/// `QuotaAssignmentAction`.
fn assignment(strategy: Strategy, ttl_s: u32) -> BytesMut {
    let (mut message, ttl) = (BytesMut::new(), u64::from(ttl_s));
    begin(2, number_len(ttl), &mut message);
    number(1, ttl, &mut message);
    let mut limit = BytesMut::new();
    match strategy {
        // A choice of several is written also where it is zero.
        Strategy::Allow => blanket(0, &mut limit),
        Strategy::Bucket(terms) | Strategy::Fresh(terms) if terms != QuotaTerms::DENY => {
            nested(3, &token_bucket(terms), &mut limit);
        }
        Strategy::Deny | Strategy::Bucket(_) | Strategy::Fresh(_) | Strategy::Abandon => {
            blanket(1, &mut limit);
        }
    }
    nested(3, &limit, &mut message);
    message
}

fn blanket(rule: u64, limit: &mut BytesMut) {
    encode_key(1, WireType::Varint, limit);
    encode_varint(rule, limit);
}

fn token_bucket(terms: QuotaTerms) -> BytesMut {
    let mut bucket = BytesMut::new();
    let (tokens, interval) = (u64::from(terms.tokens_per_fill), u64::from(terms.fill_interval.max(1)));
    number(1, u64::from(terms.max_tokens), &mut bucket);
    begin(2, number_len(tokens), &mut bucket);
    number(1, tokens, &mut bucket);
    begin(3, number_len(interval), &mut bucket);
    number(1, interval, &mut bucket);
    debug_assert!(bucket.len() <= bytes_len(32), "three numbers");
    bucket
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use envoy_types::pb::envoy::service::rate_limit_quota::v3::rate_limit_quota_response::BucketAction as Action;
    use envoy_types::pb::envoy::service::rate_limit_quota::v3::rate_limit_quota_response::bucket_action::{
        BucketAction as Kind, QuotaAssignmentAction,
    };
    use envoy_types::pb::envoy::service::rate_limit_quota::v3::rate_limit_quota_usage_reports::BucketQuotaUsage;
    use envoy_types::pb::envoy::service::rate_limit_quota::v3::{
        BucketId, RateLimitQuotaResponse, RateLimitQuotaUsageReports,
    };
    use envoy_types::pb::envoy::r#type::v3::rate_limit_strategy::{BlanketRule, Strategy as Limit};
    use envoy_types::pb::google::protobuf::Duration;
    use prost::Message as _;

    use super::*;

    fn id(pairs: &[(&str, &str)]) -> BucketId {
        let pairs = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        BucketId { bucket: pairs.collect::<HashMap<_, _>>() }
    }

    #[test]
    fn a_report_is_read_as_the_generated_types_wrote_it() {
        let pairs = [("user", "ann"), ("path", "/a"), ("z", "")];
        let usage = BucketQuotaUsage {
            bucket_id: Some(id(&pairs)),
            time_elapsed: Some(Duration { seconds: 5, nanos: 1_000 }),
            num_requests_allowed: 7,
            num_requests_denied: 3,
        };
        let none =
            BucketQuotaUsage { time_elapsed: Some(Duration { seconds: -1, nanos: 0 }), ..Default::default() };
        let message =
            RateLimitQuotaUsageReports { domain: "web".into(), bucket_quota_usages: vec![usage, none] };
        let bytes = message.encode_to_vec();
        let read = decode(&bytes).unwrap();
        assert_eq!(read.domain, "web");
        assert_eq!(read.rows[0].pairs, [("path", "/a"), ("user", "ann"), ("z", "")]);
        assert_eq!(BucketId::decode(read.rows[0].id).unwrap(), id(&pairs));
        assert_eq!(read.rows[0].usage, UsageReport { allowed: 7, denied: 3, elapsed: Span(5_000_001) });
        assert_eq!(read.rows[1].usage.elapsed, Span::ZERO);
    }

    #[test]
    fn an_answer_is_read_by_the_generated_types() {
        let own = id(&[("user", "ann")]);
        let terms = QuotaTerms { max_tokens: 7, tokens_per_fill: 5, fill_interval: 10 };
        let strategies = [
            Strategy::Allow,
            Strategy::Deny,
            Strategy::Bucket(QuotaTerms::DENY),
            Strategy::Bucket(terms),
            Strategy::Fresh(terms),
            Strategy::Abandon,
        ];
        let actions =
            strategies.map(|strategy| BucketAction { id: own.encode_to_vec().into(), strategy, ttl_s: 15 });
        let message = encode(&actions);
        let read = RateLimitQuotaResponse::decode(&message[5..]).unwrap();
        let limits: Vec<Option<Limit>> = read
            .bucket_action
            .into_iter()
            .map(|Action { bucket_id, bucket_action }| {
                assert_eq!(bucket_id, Some(own.clone()));
                match bucket_action {
                    Some(Kind::QuotaAssignmentAction(QuotaAssignmentAction {
                        assignment_time_to_live,
                        rate_limit_strategy,
                    })) => {
                        assert_eq!(assignment_time_to_live, Some(Duration { seconds: 15, nanos: 0 }));
                        rate_limit_strategy.unwrap().strategy
                    }
                    _ => None,
                }
            })
            .collect();
        let deny = Some(Limit::BlanketRule(BlanketRule::DenyAll.into()));
        let [allow, denied, empty, bucket, before, fresh, abandoned] = &*limits else { panic!("seven") };
        assert_eq!(*allow, Some(Limit::BlanketRule(BlanketRule::AllowAll.into())));
        assert_eq!((denied, empty, abandoned), (&deny, &deny, &None));
        assert_eq!((before, fresh), (&deny, bucket), "a blanket rule empties it, and then it is full");
        let Some(Limit::TokenBucket(bucket)) = bucket else { panic!("{bucket:?}") };
        let tokens = bucket.tokens_per_fill.as_ref().map(|tokens| tokens.value);
        assert_eq!((bucket.max_tokens, tokens), (7, Some(5)));
        assert_eq!(bucket.fill_interval, Some(Duration { seconds: 10, nanos: 0 }));
    }
}
