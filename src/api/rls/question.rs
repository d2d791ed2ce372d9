//! What Envoy's request means: one question to the engine for each descriptor.

use smallvec::SmallVec;

use super::wire::{Asked, DESCRIPTORS_MAX, Descriptor, Undecodable, decode};
use crate::api::asker::Asker;
use crate::api::error::{Code, Refusal};
use crate::core::request::{ATTRIBUTES_MAX, Cost, LimitOverride, Request, TEXT_BYTES_MAX};
use crate::core::time::Span;

/// The questions of one call, in the order of its descriptors.
pub(super) type Questions<'b> = SmallVec<[Request<'b>; 1]>;

/// What Envoy calls the client's address, and what rules call it.
const REMOTE_ADDRESS: &str = "remote_address";
const IP: &str = "ip";

const DAY: Span = Span::from_secs(86_400);

impl From<Undecodable> for Refusal {
    fn from(error: Undecodable) -> Self {
        Self::new(Code::Malformed, format!("the message is no RateLimitRequest: {}", error.0))
    }
}

/// The same questions with what `asker` puts into the place of some attributes.
pub(super) fn of<'b>(asker: &'b Asker, questions: Questions<'b>) -> Result<Questions<'b>, Refusal> {
    asker.stand_in(questions)
}

/// Reads the questions of a message.
pub(super) fn read(message: &[u8]) -> Result<Questions<'_>, Refusal> {
    let asked = decode(message)?;
    check_domain(&asked)?;
    let mut questions = Questions::new();
    for (index, descriptor) in asked.descriptors.into_iter().enumerate() {
        let at = |part: &str| format!("descriptors[{index}]{part}");
        let cost = cost(&descriptor, asked.hits_addend);
        let limit =
            descriptor.limit.map(limit).transpose().map_err(|why| Refusal::of_field(at(".limit"), why))?;
        let mut question = Request { domain: asked.domain, attributes: descriptor.entries, cost, limit };
        check_entries(&mut question, &at)?;
        questions.push(question);
    }
    Ok(questions)
}

fn check_domain(asked: &Asked<'_>) -> Result<(), Refusal> {
    if !(1..=TEXT_BYTES_MAX).contains(&asked.domain.len()) {
        let message =
            format!("a domain has 1 to {TEXT_BYTES_MAX} bytes, this one has {}", asked.domain.len());
        return Err(Refusal::of_field("domain", message));
    }
    if !(1..=DESCRIPTORS_MAX).contains(&asked.descriptors_len) {
        let message = format!(
            "a request has 1 to {DESCRIPTORS_MAX} descriptors, this one has {}",
            asked.descriptors_len
        );
        return Err(Refusal::of_field("descriptors", message));
    }
    Ok(())
}

/// Names have 1 to 1,024 bytes and values no more; what has an empty value is not there.
fn check_entries(question: &mut Request<'_>, at: &dyn Fn(&str) -> String) -> Result<(), Refusal> {
    if question.attributes.len() > ATTRIBUTES_MAX {
        let message = format!("a descriptor has at most {ATTRIBUTES_MAX} entries");
        return Err(Refusal::of_field(at(".entries"), message));
    }
    let mut some_empty = false;
    for (entry, (name, value)) in question.attributes.iter_mut().enumerate() {
        for (what, text) in [("key", &*name), ("value", &*value)] {
            if text.len() > TEXT_BYTES_MAX || (text.is_empty() && what == "key") {
                let message =
                    format!("a {what} has 1 to {TEXT_BYTES_MAX} bytes, this one has {}", text.len());
                return Err(Refusal::of_field(at(&format!(".entries[{entry}].{what}")), message));
            }
        }
        some_empty |= value.is_empty();
        if *name == REMOTE_ADDRESS {
            *name = IP;
        }
    }
    if some_empty {
        question.attributes.retain(|(_, value)| !value.is_empty());
    }
    Ok(())
}

/// A descriptor's own hits, where it says them, also zero: that is a peek. Else the request's, where zero means one.
fn cost(descriptor: &Descriptor<'_>, request_hits: u32) -> Cost {
    match (
        descriptor.hits_addend.unwrap_or_else(|| u64::from(request_hits.max(1))),
        descriptor.is_negative_hits,
    ) {
        (0, _) => Cost::Peek,
        (hits, false) => Cost::Take(hits),
        (hits, true) => Cost::Refund(hits),
    }
}

/// The limit that stands in for the rule's. Months have 30 days and years 365.
fn limit((permits, unit): (u32, i32)) -> Result<LimitOverride, String> {
    let window = match unit {
        1 => Span::from_secs(1),
        2 => Span::from_secs(60),
        3 => Span::from_secs(3_600),
        4 => DAY,
        5 => Span(30 * DAY.micros()),
        6 => Span(365 * DAY.micros()),
        other => return Err(format!("an override needs a unit from SECOND to YEAR, {other} is none")),
    };
    Ok(LimitOverride { permits, window })
}

#[cfg(test)]
mod tests {
    use super::*;
    use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
    use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
        Entry, RateLimitOverride,
    };
    use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
    use envoy_types::pb::envoy::r#type::v3::RateLimitUnit;
    use envoy_types::pb::google::protobuf::UInt64Value;
    use prost::Message as _;

    fn with_questions<R>(
        message: &[u8],
        prefix: u8,
        then: impl FnOnce(&[Request<'_>]) -> R,
    ) -> Result<R, Refusal> {
        let questions = read(message)?;
        let asker = Asker::of_addresses(&questions, prefix);
        of(&asker, questions).map(|questions| then(&questions))
    }

    fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
        let entry = |(key, value): &(&str, &str)| Entry { key: (*key).into(), value: (*value).into() };
        RateLimitDescriptor { entries: entries.iter().map(entry).collect(), ..Default::default() }
    }

    fn request(descriptors: Vec<RateLimitDescriptor>) -> RateLimitRequest {
        RateLimitRequest { domain: "web".into(), descriptors, hits_addend: 0 }
    }

    fn costs(request: &RateLimitRequest) -> Vec<Cost> {
        let costs = |questions: &[Request<'_>]| questions.iter().map(|question| question.cost).collect();
        with_questions(&request.encode_to_vec(), 64, costs).unwrap()
    }

    fn refused(request: &RateLimitRequest) -> String {
        let refusal = with_questions(&request.encode_to_vec(), 64, |_| ()).unwrap_err();
        assert_eq!(refusal.grpc_status(), 3);
        refusal.field.unwrap()
    }

    #[test]
    fn hits_are_the_descriptors_own_or_the_requests_or_one() {
        let mut asked = request(vec![descriptor(&[]); 5]);
        asked.descriptors[1].hits_addend = Some(UInt64Value { value: 0 });
        asked.descriptors[2].hits_addend = Some(UInt64Value { value: u64::MAX });
        asked.descriptors[3].is_negative_hits = true;
        asked.descriptors[4] = RateLimitDescriptor {
            hits_addend: Some(UInt64Value { value: 0 }),
            is_negative_hits: true,
            ..Default::default()
        };
        assert_eq!(
            costs(&asked),
            [Cost::Take(1), Cost::Peek, Cost::Take(u64::MAX), Cost::Refund(1), Cost::Peek]
        );
        asked.hits_addend = u32::MAX;
        assert_eq!(costs(&asked)[0], Cost::Take(u64::from(u32::MAX)));
        assert_eq!(costs(&asked)[3], Cost::Refund(u64::from(u32::MAX)));
    }

    #[test]
    fn remote_addresses_are_ips_grouped_by_their_prefix() {
        let asked = request(vec![
            descriptor(&[("remote_address", "1.2.3.4")]),
            descriptor(&[("a", "b"), ("remote_address", "2001:db8::1")]),
            descriptor(&[("remote_address", "no address: at all")]),
        ]);
        let ips = |questions: &[Request<'_>]| {
            questions.iter().map(|question| question.attribute("ip").unwrap().to_owned()).collect::<Vec<_>>()
        };
        let ips = with_questions(&asked.encode_to_vec(), 64, ips).unwrap();
        assert_eq!(ips, ["1.2.3.4", "2001:db8::", "no address: at all"]);
    }

    #[test]
    fn an_empty_value_is_as_if_it_were_not_there() {
        let asked = request(vec![descriptor(&[("a", ""), ("b", "x")])]);
        let has = |questions: &[Request<'_>]| {
            (questions[0].attribute("a").is_some(), questions[0].attribute("b").is_some())
        };
        assert_eq!(with_questions(&asked.encode_to_vec(), 64, has), Ok((false, true)));
    }

    #[test]
    fn an_override_needs_a_unit_that_is_known() {
        let mut asked = request(vec![descriptor(&[("a", "b")])]);
        for (unit, good) in [(0, false), (1, true), (6, true), (7, false), (-1, false), (i32::MAX, false)] {
            asked.descriptors[0].limit = Some(RateLimitOverride { requests_per_unit: 5, unit });
            let window =
                |questions: &[Request<'_>]| questions[0].limit.map(|limit| (limit.permits, limit.window));
            match with_questions(&asked.encode_to_vec(), 64, window) {
                Ok(Some((permits, window))) => assert!(good && permits == 5 && window.micros() > 0, "{unit}"),
                Ok(None) => panic!("{unit} was dropped"),
                Err(refusal) => {
                    assert!(!good && refusal.field.as_deref() == Some("descriptors[0].limit"), "{unit}")
                }
            }
        }
        asked.descriptors[0].limit =
            Some(RateLimitOverride { requests_per_unit: 5, unit: RateLimitUnit::Month.into() });
        let days = |questions: &[Request<'_>]| questions[0].limit.unwrap().window.micros() / DAY.micros();
        assert_eq!(with_questions(&asked.encode_to_vec(), 64, days), Ok(30));
    }

    #[test]
    fn what_makes_no_sense_is_an_invalid_argument_with_its_place() {
        assert_eq!(
            refused(&RateLimitRequest { domain: String::new(), ..request(vec![descriptor(&[])]) }),
            "domain"
        );
        assert_eq!(refused(&request(vec![])), "descriptors");
        assert_eq!(refused(&request(vec![descriptor(&[]); DESCRIPTORS_MAX + 1])), "descriptors");
        assert_eq!(refused(&request(vec![descriptor(&[("", "x")])])), "descriptors[0].entries[0].key");
        let long = "x".repeat(TEXT_BYTES_MAX + 1);
        assert_eq!(
            refused(&request(vec![descriptor(&[]), descriptor(&[("a", "b"), ("c", &long)])])),
            "descriptors[1].entries[1].value"
        );
        assert_eq!(refused(&request(vec![descriptor(&[(&long, "x")])])), "descriptors[0].entries[0].key");
        assert_eq!(refused(&request(vec![descriptor(&[("a", "b"); 65])])), "descriptors[0].entries");
    }
}
