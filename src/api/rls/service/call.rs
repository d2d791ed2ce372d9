//! What a call asks of the engine: a question for each descriptor that is counted.

use std::collections::HashSet;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::api::error::Refusal;
use crate::api::rls::question::{self, Questions};
use crate::api::rls::wire::{CallerLimit, DESCRIPTORS_MAX, Descriptor, RequestMessage};
use crate::api::stand_in;
use crate::core::envoy::{
    CALLER_LIMIT, CountedEntries, DescriptorLimit, LimitFound, RULE, ServiceRules, caller_rule,
};
use crate::core::request::{Attributes, Cost, Forms, Request, TEXT_BYTES_MAX};

/// The unit that nobody knows, by which a caller says that it does not know its own limit.
const UNIT_UNKNOWN: i32 = 0;

/// Texts that a call's questions need besides those of its message.
pub(super) struct CallRoom {
    /// The domain as it is counted.
    domain: String,
    /// The rule that counts limits which callers bring; empty where none does.
    caller_rule: String,
    /// What names the buckets of these limits, by the place of their descriptors.
    callers: Vec<(usize, String)>,
    /// Stand-ins of values that are too long, by the places of descriptor and entry.
    long: Vec<((usize, usize), String)>,
}

impl CallRoom {
    pub(super) fn of(asked: &RequestMessage<'_>, prefix: &str) -> Self {
        let mut room = Self {
            domain: format!("{prefix}{}", asked.domain),
            caller_rule: String::new(),
            callers: Vec::new(),
            long: Vec::new(),
        };
        for (place, descriptor) in asked.descriptors.iter().enumerate() {
            if descriptor.limit.is_some() {
                let text = stand_in::descriptor(descriptor.entries.iter().copied(), 0);
                room.callers.push((place, text));
                room.caller_rule = caller_rule(asked.domain);
            }
            for (entry, (_, value)) in descriptor.entries.iter().enumerate() {
                if value.len() > TEXT_BYTES_MAX {
                    room.long.push(((place, entry), stand_in::stand_in(value)));
                }
            }
        }
        room
    }
}

/// What becomes of one descriptor.
#[derive(Debug)]
pub(super) enum Slot<'r> {
    /// No limit is for it.
    Unmatched,
    /// Another limit of the call takes the place of its own.
    Replaced,
    /// Its limit lets everything pass.
    Unlimited(&'r Arc<DescriptorLimit>),
    /// It is counted: under this limit, or under one that the caller brings.
    Counted(Option<&'r Arc<DescriptorLimit>>),
    /// It cannot be judged, and is denied.
    Unjudged,
}

/// A call that is read.
pub(super) struct Planned<'a> {
    /// One for each descriptor.
    pub(super) slots: SmallVec<[Slot<'a>; 2]>,
    /// One for each that is counted, in their order.
    pub(super) questions: Questions<'a>,
    /// Whether the domain has rules.
    pub(super) is_known: bool,
}

impl<'r> Slot<'r> {
    /// The limit that it found.
    pub(super) const fn limit(&self) -> Option<&'r Arc<DescriptorLimit>> {
        match self {
            Self::Unlimited(limit) | Self::Counted(Some(limit)) => Some(*limit),
            _ => None,
        }
    }
}

/// Finds the limit of each descriptor, and what is asked of the engine.
///
/// # Errors
/// A limit of the caller's own without a unit.
pub(super) fn plan<'a, 'b: 'a>(
    rules: &'a ServiceRules,
    asked: &'a RequestMessage<'b>,
    room: &'a CallRoom,
) -> Result<Planned<'a>, Refusal> {
    let mut planned =
        Planned { slots: SmallVec::new(), questions: Questions::new(), is_known: rules.knows(asked.domain) };
    let mut found: SmallVec<[(Slot<'a>, Option<Request<'a>>); 2]> = SmallVec::new();
    for (place, descriptor) in asked.descriptors.iter().enumerate() {
        found.push(of_descriptor(rules, asked, place, descriptor, room)?);
    }
    if rules.replaces() {
        replace(&mut found);
    }
    for (slot, question) in found {
        planned.questions.extend(question);
        planned.slots.push(slot);
    }
    if asked.descriptors_len > DESCRIPTORS_MAX {
        planned.slots.push(Slot::Unjudged);
    }
    Ok(planned)
}

fn of_descriptor<'a, 'b: 'a>(
    rules: &'a ServiceRules,
    asked: &'a RequestMessage<'b>,
    place: usize,
    descriptor: &'a Descriptor<'b>,
    room: &'a CallRoom,
) -> Result<(Slot<'a>, Option<Request<'a>>), Refusal> {
    let cost = question::cost(descriptor, asked.hits_addend);
    if let Some(own) = descriptor.limit {
        return of_caller(rules, asked.domain, place, own, cost, room);
    }
    let mut counted = CountedEntries::new();
    let LimitFound::Limit(limit) = rules.find(asked.domain, &descriptor.entries, &mut counted) else {
        return Ok((Slot::Unmatched, None));
    };
    if limit.rate.is_none() {
        return Ok((Slot::Unlimited(limit), None));
    }
    let mut attributes = Attributes::new();
    attributes.push((RULE, &limit.rule));
    for (entry, (key, value)) in counted.into_iter().enumerate() {
        let long = || room.long.iter().find(|(at, _)| *at == (place, entry));
        let short = (value.len() > TEXT_BYTES_MAX).then(long).flatten();
        attributes.push((key, short.map_or(value, |(_, text)| text.as_str())));
    }
    Ok((Slot::Counted(Some(limit)), Some(of_texts(room, attributes, cost))))
}

/// A question to the engine. The service knows no users and no keys: a text that looks like one is a text.
fn of_texts<'a>(room: &'a CallRoom, attributes: Attributes<'a>, cost: Cost) -> Request<'a> {
    let forms = Forms { texts_alone: true, ..Forms::default() };
    Request { forms, ..Request::new(&room.domain, attributes, cost) }
}

/// A limit that the caller brings needs a domain that has rules, and no rule.
fn of_caller<'a>(
    rules: &ServiceRules,
    domain: &str,
    place: usize,
    own: CallerLimit,
    cost: Cost,
    room: &'a CallRoom,
) -> Result<(Slot<'a>, Option<Request<'a>>), Refusal> {
    if own.unit == UNIT_UNKNOWN {
        let sentence = "a limit needs a unit: SECOND, MINUTE, HOUR, DAY, WEEK, MONTH or YEAR";
        return Err(Refusal::of_field(format!("descriptors[{place}].limit.unit"), sentence));
    }
    let Some(limit) = question::limit(own) else { return Ok((Slot::Unjudged, None)) };
    let text = room.callers.iter().find(|(at, _)| *at == place);
    let Some((_, text)) = text.filter(|_| rules.knows(domain)) else { return Ok((Slot::Unmatched, None)) };
    let attributes: Attributes<'a> =
        [(RULE, room.caller_rule.as_str()), (CALLER_LIMIT, text.as_str())].into_iter().collect();
    let question = of_texts(room, attributes, cost);
    Ok((Slot::Counted(None), Some(Request { limit: Some(limit), ..question })))
}

/// Takes away what other limits of the call replace: all names first, then all that have them.
fn replace<'a>(found: &mut SmallVec<[(Slot<'a>, Option<Request<'a>>); 2]>) {
    let limits = || found.iter().filter_map(|(slot, _)| slot.limit());
    let replaced: HashSet<&str> = limits().flat_map(|limit| &limit.replaces).map(String::as_str).collect();
    if replaced.is_empty() {
        return;
    }
    for (slot, question) in found {
        if slot.limit().is_some_and(|limit| replaced.contains(limit.name.as_str())) {
            (*slot, *question) = (Slot::Replaced, None);
        }
    }
}
