//! What the descriptors of a call come to, and how it is told.

use prost::bytes::{Bytes, BytesMut};
use prost::encoding::{WireType, encode_key};
use serde_json::{Map, Value, json};
use smallvec::SmallVec;

use super::call::{Planned, Slot};
use crate::api::rls::answer::{
    CODE_OK, CODE_OVER_LIMIT, CurrentLimit, RESPONSE_HEADER, StatusLine, begin, bytes_len, framed, header,
    number, unit, write_status,
};
use crate::api::rls::wire::{CallerLimit, Descriptor, RequestMessage};
use crate::core::decision::{Decision, RuleOutcome};
use crate::core::envoy::{DescriptorLimit, ServiceSettings, Vote, VoteKind, is_over, merge_metadata};
use crate::core::time::Span;
use crate::engine::decide::Decisions;

/// Names of units, by their numbers in an answer.
pub(super) const UNITS: [&str; 8] = ["UNKNOWN", "SECOND", "MINUTE", "HOUR", "DAY", "MONTH", "YEAR", "WEEK"];

/// An answer.
pub(super) struct Judged<'a> {
    /// Whether the call is denied.
    pub(super) over: bool,
    /// What each descriptor is told.
    pub(super) statuses: SmallVec<[StatusLine<'a>; 2]>,
    /// Headers for the client.
    pub(super) headers: Vec<(String, String)>,
    /// What filters of the gateway are told.
    pub(super) metadata: Option<Map<String, Value>>,
}

/// What the rule of a descriptor said.
pub(super) fn outcome(decision: Option<&Decision>) -> Option<&RuleOutcome> {
    decision?.rules.first()
}

/// Judges a call by what its questions were answered.
pub(super) fn judge<'a>(
    settings: &ServiceSettings,
    asked: &RequestMessage<'_>,
    planned: &Planned<'a>,
    decisions: &Decisions,
) -> Judged<'a> {
    let mut statuses = SmallVec::new();
    let mut votes: SmallVec<[Vote; 4]> = SmallVec::new();
    let mut decided = decisions.iter();
    for slot in &planned.slots {
        let (line, vote) = told(settings, slot, &mut decided);
        statuses.push(line);
        votes.push(vote);
    }
    // An answer has a status for each descriptor that was read.
    statuses.truncate(asked.descriptors.len());
    let headers = settings.headers.as_ref().map(|names| headers(names, &statuses, &votes));
    let metadata = settings.metadata.then(|| metadata(asked, planned, &statuses));
    Judged { over: is_over(votes), statuses, headers: headers.unwrap_or_default(), metadata }
}

/// What one descriptor is told, and how it counts. `decided` has the decisions of those that are counted.
fn told<'a>(
    settings: &ServiceSettings,
    slot: &Slot<'a>,
    decided: &mut std::slice::Iter<'_, Decision>,
) -> (StatusLine<'a>, Vote) {
    let quota = |quota: bool| if quota { VoteKind::Quota } else { VoteKind::Ordinary };
    let nothing = |over, kind| (StatusLine { over, limit: None, remaining: 0 }, Vote { over, kind });
    match slot {
        Slot::Unmatched | Slot::Replaced => nothing(false, quota(settings.quota)),
        Slot::Unjudged => nothing(true, VoteKind::Ordinary),
        Slot::Unlimited(_) => {
            let (mut line, vote) = nothing(false, VoteKind::Absent);
            line.remaining = u64::from(u32::MAX);
            (line, vote)
        }
        Slot::Counted(limit) => {
            // Without an outcome the rules have just changed, and the engine has no such limit any more.
            let Some(ruled) = outcome(decided.next()) else { return nothing(false, quota(settings.quota)) };
            let over = !ruled.allowed && !limit.is_some_and(|limit| limit.shadow);
            let name = limit.map_or("", |limit| limit.name.as_str());
            let (permits, window, reset) = (ruled.limit, ruled.window, ruled.reset);
            let remaining = if ruled.allowed { ruled.remaining } else { 0 };
            let limit_told = CurrentLimit { permits, window, name, reset };
            let kind = quota(settings.quota || limit.is_some_and(|limit| limit.quota));
            (StatusLine { over, limit: Some(limit_told), remaining }, Vote { over, kind })
        }
    }
}

/// The headers of the descriptor with the least left; of the last ordinary one that is over, if any is.
fn headers(names: &[String; 3], statuses: &[StatusLine<'_>], votes: &[Vote]) -> Vec<(String, String)> {
    let (mut least, mut left): (Option<&CurrentLimit<'_>>, _) = (None, u64::from(u32::MAX));
    for (line, vote) in statuses.iter().zip(votes) {
        let Some(limit) = &line.limit else { continue };
        let denies = vote.over && vote.kind == VoteKind::Ordinary;
        if denies || line.remaining < left {
            (least, left) = (Some(limit), line.remaining);
        }
    }
    let Some(limit) = least else { return Vec::new() };
    let values = [u64::from(limit.permits), left, limit.reset.secs_up()];
    names.iter().cloned().zip(values.map(|value| value.to_string())).collect()
}

/// What was asked, and the metadata of the limits that let their descriptors pass.
fn metadata(
    asked: &RequestMessage<'_>,
    planned: &Planned<'_>,
    statuses: &[StatusLine<'_>],
) -> Map<String, Value> {
    let mut told = Map::new();
    told.insert("domain".to_owned(), json!(asked.domain));
    told.insert("descriptors".to_owned(), asked.descriptors.iter().map(shown_descriptor).collect());
    if asked.hits_addend > 0 {
        told.insert("hitsAddend".to_owned(), json!(asked.hits_addend));
    }
    let mut merged = Map::new();
    for (slot, _) in planned.slots.iter().zip(statuses).filter(|(_, line)| !line.over) {
        if let Some(own) = slot.limit().and_then(|limit| limit.metadata.as_ref()) {
            merge_metadata(&mut merged, own);
        }
    }
    if !merged.is_empty() {
        told.insert("metadata".to_owned(), Value::Object(merged));
    }
    told
}

fn shown_descriptor(descriptor: &Descriptor<'_>) -> Value {
    let mut shown = Map::new();
    let entries = descriptor.entries.iter().map(|(key, value)| json!(format!("{key}={value}")));
    shown.insert("entries".to_owned(), entries.collect());
    if let Some(hits) = descriptor.hits_addend {
        shown.insert("hitsAddend".to_owned(), json!(hits));
    }
    if let Some(CallerLimit { requests, unit }) = descriptor.limit {
        let unit = usize::try_from(unit).ok().and_then(|unit| UNITS.get(unit)).copied();
        let text = format!("requests_per_unit:{requests} unit:{}", unit.unwrap_or("UNKNOWN"));
        shown.insert("limit".to_owned(), json!(text));
    }
    Value::Object(shown)
}

/// A limit as `/rlconfig` tells it.
pub(super) fn rule_line(limit: &DescriptorLimit) -> String {
    let (permits, window) = limit.rate.map_or((0, Span::ZERO), |rate| (rate.permits, rate.window));
    format!(
        "{}: unit={} requests_per_unit={permits}, shadow_mode: {}, quota_mode: {}\n",
        limit.rule,
        unit_name(window),
        limit.shadow,
        limit.quota
    )
}

/// The name of the unit that is as long as a window.
pub(super) fn unit_name(window: Span) -> &'static str {
    usize::try_from(unit(window)).ok().and_then(|unit| UNITS.get(unit)).copied().unwrap_or("UNKNOWN")
}

/// `RateLimitResponse`, with the prefix that gRPC puts before it.
pub(super) fn encode(judged: &Judged<'_>) -> Bytes {
    framed(judged.statuses.len(), |message| {
        number(1, if judged.over { CODE_OVER_LIMIT } else { CODE_OK }, message);
        for line in &judged.statuses {
            write_status(line, message);
        }
        for (name, value) in &judged.headers {
            header(RESPONSE_HEADER, name, value, message);
        }
        if let Some(metadata) = &judged.metadata {
            field(6, &table(metadata), message);
        }
    })
}

fn field(number: u32, bytes: &[u8], message: &mut BytesMut) {
    begin(number, bytes.len(), message);
    message.extend_from_slice(bytes);
}

/// `google.protobuf.Struct`.
fn table(fields: &Map<String, Value>) -> BytesMut {
    let mut message = BytesMut::new();
    for (key, own) in fields {
        let own = value(own);
        begin(1, bytes_len(key.len()) + bytes_len(own.len()), &mut message);
        field(1, key.as_bytes(), &mut message);
        field(2, &own, &mut message);
    }
    message
}

/// `google.protobuf.Value`.
fn value(value: &Value) -> BytesMut {
    let mut message = BytesMut::new();
    match value {
        Value::Null => {
            encode_key(1, WireType::Varint, &mut message);
            message.extend_from_slice(&[0]);
        }
        Value::Number(number) => {
            encode_key(2, WireType::SixtyFourBit, &mut message);
            message.extend_from_slice(&number.as_f64().unwrap_or(0.0).to_le_bytes());
        }
        Value::String(text) => field(3, text.as_bytes(), &mut message),
        Value::Bool(flag) => {
            encode_key(4, WireType::Varint, &mut message);
            message.extend_from_slice(&[u8::from(*flag)]);
        }
        Value::Object(fields) => field(5, &table(fields), &mut message),
        Value::Array(list) => {
            let mut values = BytesMut::new();
            for own in list {
                field(1, &self::value(own), &mut values);
            }
            field(6, &values, &mut message);
        }
    }
    message
}
