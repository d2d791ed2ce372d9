//! What Envoy's request means: one question to the engine for each descriptor.

use smallvec::SmallVec;

use super::in_flight;
use super::wire::{CallerLimit, DESCRIPTORS_MAX, Descriptor, RequestMessage, Undecodable, decode, repaired};
use crate::api::error::{Code, Refusal};
use crate::core::request::{ATTRIBUTES_MAX, Cost, LimitOverride, Request, TEXT_BYTES_MAX};
use crate::core::time::Span;

/// The questions of one call, in the order of its descriptors.
pub(super) type Questions<'b> = SmallVec<[Request<'b>; 1]>;

/// What one call asks.
#[derive(Debug)]
pub(super) struct RateLimitCall<'b> {
    /// One for each descriptor.
    pub(super) questions: Questions<'b>,
    /// Places of descriptors that cannot be judged. They are denied: to Envoy an error would mean that all
    /// may pass.
    pub(super) denied: SmallVec<[usize; 1]>,
    /// Leases of requests in flight that are done. Their descriptors ask nothing.
    pub(super) leases: Vec<&'b str>,
}

/// What Envoy calls the client's address, and what rules call it.
const REMOTE_ADDRESS: &str = "remote_address";
const IP: &str = "ip";

const DAY: Span = Span::from_secs(86_400);

impl From<Undecodable> for Refusal {
    fn from(error: Undecodable) -> Self {
        Self::new(Code::Malformed, format!("the message is not the call's request: {error}"))
    }
}

/// Reads the questions of a message. `room` holds another spelling of it where its texts are not UTF-8.
///
/// # Errors
/// Only for what a gateway itself has got wrong: Envoy lets a request pass whose call is refused.
pub(super) fn read<'b>(message: &'b [u8], room: &'b mut Vec<u8>) -> Result<RateLimitCall<'b>, Refusal> {
    match decode(message) {
        Err(Undecodable::Text) => {
            *room = repaired(message)?;
            of_message(decode(room)?)
        }
        asked => of_message(asked?),
    }
}

/// The questions of a request that is read.
///
/// # Errors
/// As [`read`].
pub(super) fn of_message(asked: RequestMessage<'_>) -> Result<RateLimitCall<'_>, Refusal> {
    check_domain(&asked)?;
    let mut call = RateLimitCall { questions: Questions::new(), denied: SmallVec::new(), leases: Vec::new() };
    let overfull = asked.descriptors_len > DESCRIPTORS_MAX;
    for descriptor in asked.descriptors {
        if let Some(lease) = in_flight::given_back(&descriptor.entries) {
            call.leases.push(lease);
            continue;
        }
        let (place, cost) = (call.questions.len(), cost(&descriptor, asked.hits_addend));
        let limit = descriptor.limit.map(limit);
        let mut attributes = descriptor.entries;
        let cost = in_flight::acquired(&mut attributes, cost);
        if overfull || attributes.len() > ATTRIBUTES_MAX || limit == Some(None) {
            call.denied.push(place);
            attributes.clear();
        }
        for (name, _) in &mut attributes {
            if *name == REMOTE_ADDRESS {
                *name = IP;
            }
        }
        let question = Request::new(asked.domain, attributes, cost);
        call.questions.push(Request { limit: limit.flatten(), ..question });
    }
    Ok(call)
}

fn check_domain(asked: &RequestMessage<'_>) -> Result<(), Refusal> {
    if !(1..=TEXT_BYTES_MAX).contains(&asked.domain.len()) {
        let message =
            format!("a domain has 1 to {TEXT_BYTES_MAX} bytes, this one has {}", asked.domain.len());
        return Err(Refusal::of_field("domain", message));
    }
    if asked.descriptors_len == 0 {
        return Err(Refusal::of_field("descriptors", "a request has at least one descriptor"));
    }
    Ok(())
}

/// A descriptor's own hits, where it says them, also zero: that is a peek. Else the request's, where zero
/// means one.
pub(super) fn cost(descriptor: &Descriptor<'_>, request_hits: u32) -> Cost {
    match (
        descriptor.hits_addend.unwrap_or_else(|| u64::from(request_hits.max(1))),
        descriptor.is_negative_hits,
    ) {
        (0, _) => Cost::Peek,
        (hits, false) => Cost::Take(hits),
        (hits, true) => Cost::Refund(hits),
    }
}

/// The limit that stands in for the rule's; `None` for a unit that is unknown. Months have 30 days and years
/// 365.
pub(super) fn limit(own: CallerLimit) -> Option<LimitOverride> {
    let window = match own.unit {
        1 => Span::from_secs(1),
        2 => Span::from_secs(60),
        3 => Span::from_secs(3_600),
        4 => DAY,
        5 => Span(30 * DAY.micros()),
        6 => Span(365 * DAY.micros()),
        7 => Span(7 * DAY.micros()),
        _ => return None,
    };
    Some(LimitOverride { permits: own.requests, window })
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

    fn with_call<R>(message: &[u8], then: impl FnOnce(RateLimitCall<'_>) -> R) -> Result<R, Refusal> {
        read(message, &mut Vec::new()).map(then)
    }

    fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
        let entry = |(key, value): &(&str, &str)| Entry { key: (*key).into(), value: (*value).into() };
        RateLimitDescriptor { entries: entries.iter().map(entry).collect(), ..Default::default() }
    }

    fn request(descriptors: Vec<RateLimitDescriptor>) -> RateLimitRequest {
        RateLimitRequest { domain: "web".into(), descriptors, hits_addend: 0 }
    }

    fn costs(request: &RateLimitRequest) -> Vec<Cost> {
        let costs = |call: RateLimitCall<'_>| call.questions.iter().map(|question| question.cost).collect();
        with_call(&request.encode_to_vec(), costs).unwrap()
    }

    /// Places of descriptors that are denied, and how many there are in all.
    fn denied(request: &RateLimitRequest) -> (Vec<usize>, usize) {
        with_call(&request.encode_to_vec(), |call| (call.denied.to_vec(), call.questions.len())).unwrap()
    }

    fn refused(request: &RateLimitRequest) -> String {
        let refusal = with_call(&request.encode_to_vec(), |_| ()).unwrap_err();
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
    fn remote_addresses_are_ips_and_values_stay_what_they_are() {
        let asked = request(vec![
            descriptor(&[("remote_address", "1.2.3.4")]),
            descriptor(&[("a", ""), ("remote_address", "2001:db8::1"), ("a", "b")]),
        ]);
        let entries = |call: RateLimitCall<'_>| {
            let entries = |question: &Request<'_>| {
                question.attributes.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>()
            };
            call.questions.iter().map(entries).collect::<Vec<_>>()
        };
        let entries = with_call(&asked.encode_to_vec(), entries).unwrap();
        assert_eq!(entries, [vec!["ip=1.2.3.4"], vec!["a=", "ip=2001:db8::1", "a=b"]]);
    }

    #[test]
    fn an_override_of_a_unit_that_is_unknown_denies_its_descriptor_alone() {
        let mut asked = request(vec![descriptor(&[("a", "b")]), descriptor(&[("c", "d")])]);
        for (unit, good) in [(0, false), (1, true), (7, true), (8, false), (-1, false), (i32::MAX, false)] {
            asked.descriptors[0].limit = Some(RateLimitOverride { requests_per_unit: 5, unit });
            let places: &[usize] = if good { &[] } else { &[0] };
            assert_eq!(denied(&asked), (places.to_vec(), 2), "{unit}");
        }
        asked.descriptors[0].limit =
            Some(RateLimitOverride { requests_per_unit: 5, unit: RateLimitUnit::Month.into() });
        let days = |call: RateLimitCall<'_>| call.questions[0].limit.unwrap().window.micros() / DAY.micros();
        assert_eq!(with_call(&asked.encode_to_vec(), days), Ok(30));
    }

    #[test]
    fn a_descriptor_acquires_or_gives_back_where_an_entry_says_so() {
        let asked = request(vec![
            descriptor(&[("user", "ann"), ("tidegate_acquire", "1")]),
            descriptor(&[("user", "ann"), ("tidegate_lease", "abc")]),
            descriptor(&[("user", "ann")]),
        ]);
        let read = |call: RateLimitCall<'_>| {
            let names = |question: &Request<'_>| {
                question.attributes.iter().map(|(name, _)| (*name).to_owned()).collect()
            };
            let names: Vec<Vec<String>> = call.questions.iter().map(names).collect();
            let costs: Vec<Cost> = call.questions.iter().map(|question| question.cost).collect();
            (names, costs, call.leases.iter().map(|lease| (*lease).to_owned()).collect::<Vec<_>>())
        };
        let (names, costs, leases) = with_call(&asked.encode_to_vec(), read).unwrap();
        assert_eq!(names, [vec!["user"], vec!["user"]]);
        assert_eq!(leases, ["abc"]);
        assert!(matches!(costs[..], [Cost::Hold(hold), Cost::Take(1)] if hold.places == 1), "{costs:?}");
    }

    #[test]
    fn only_what_a_gateway_has_got_wrong_is_an_invalid_argument() {
        assert_eq!(
            refused(&RateLimitRequest { domain: String::new(), ..request(vec![descriptor(&[])]) }),
            "domain"
        );
        assert_eq!(refused(&request(vec![])), "descriptors");
    }

    #[test]
    fn too_many_of_anything_is_denied_and_too_long_is_read() {
        let (places, len) = denied(&request(vec![descriptor(&[]); DESCRIPTORS_MAX + 1]));
        assert_eq!((places.len(), len), (DESCRIPTORS_MAX, DESCRIPTORS_MAX));
        let wide = request(vec![descriptor(&[("a", "b")]), descriptor(&[("a", "b"); 65])]);
        assert_eq!(denied(&wide), (vec![1], 2));
        let long = "x".repeat(TEXT_BYTES_MAX + 1);
        let odd = [descriptor(&[("", "x")]), descriptor(&[("c", &long)]), descriptor(&[(&long, "x")])];
        assert_eq!(denied(&request(odd.to_vec())), (vec![], 3));
    }

    #[test]
    fn texts_that_are_not_utf8_are_read_too() {
        let mut message = request(vec![descriptor(&[("user", "u1#"), ("#", "x")])]).encode_to_vec();
        for byte in message.iter_mut().filter(|byte| **byte == b'#') {
            *byte = 0xff;
        }
        let user = |call: RateLimitCall<'_>| call.questions[0].attribute("user").map(str::to_owned);
        assert_eq!(with_call(&message, user).unwrap().as_deref(), Some("u1%FF"));
    }
}
