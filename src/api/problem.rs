//! A denial as a problem document (RFC 9457), of the type that draft-ietf-httpapi-ratelimit-headers-10
//! defines for quotas.

use http::header::{ACCEPT, HeaderMap};
use serde::Serialize;

use super::error::decision_status;
use super::headers::counted;
use crate::core::decision::Decision;

/// The media type.
pub(super) const PROBLEM_JSON: &str = "application/problem+json";
const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
const QUOTA_EXCEEDED_TITLE: &str = "Request cannot be satisfied as assigned quota has been exceeded";

#[derive(Serialize)]
struct Problem<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    title: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<&'a str>,
    #[serde(rename = "violated-policies", skip_serializing_if = "Vec::is_empty")]
    violated_policies: Vec<&'a str>,
}

/// True if a client asks for problem documents by name.
pub(super) fn accepts(headers: &HeaderMap) -> bool {
    let ranges = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    ranges.flat_map(|value| value.split(',')).any(|range| {
        let mut parts = range.split(';').map(str::trim);
        let named = parts.next().is_some_and(|name| name.eq_ignore_ascii_case(PROBLEM_JSON));
        let weight = parts.find_map(|part| part.strip_prefix("q=").or_else(|| part.strip_prefix("Q=")));
        named && weight.is_none_or(|weight| weight.parse::<f32>().is_ok_and(|weight| weight > 0.0))
    })
}

/// The document of a denial: where its rule wants one, and where a client that accepts one gets a 429 whose
/// text is of no other type. It
/// names the status only where `answers` says that the answer has the rule's: over gRPC the gateway chooses.
pub(super) fn of_denial(decision: &Decision, accepted: bool, answers: bool) -> Option<Vec<u8>> {
    if decision.allowed {
        return None;
    }
    let denying = decision.tightest.and_then(|index| decision.rules.get(index));
    let wants = denying.and_then(|ruled| ruled.answer.as_ref()).is_some_and(|answer| answer.problem);
    let asked_for = accepted && decision.status == 429 && decision.message_type().is_none();
    if !wants && !asked_for {
        return None;
    }
    let status = decision_status(decision.status);
    let violated = decision.rules.iter().filter(|ruled| !ruled.allowed && !ruled.shadow && counted(ruled));
    let violated_policies: Vec<&str> = violated.map(|ruled| &*ruled.rule).collect();
    let (kind, title) = match violated_policies.is_empty() {
        true => ("about:blank", status.canonical_reason().unwrap_or("Denied")),
        false => (QUOTA_EXCEEDED, QUOTA_EXCEEDED_TITLE),
    };
    let detail = decision.message.as_deref();
    let said = answers.then(|| status.as_u16());
    let problem = Problem { kind, title, status: said, detail, violated_policies };
    serde_json::to_vec(&problem).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn only_who_names_the_type_accepts_it() {
        let accepted =
            |value: &'static str| accepts(&HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(value))]));
        assert!(accepted("text/html, application/problem+json"));
        assert!(accepted("Application/Problem+JSON; q=0.1"));
        for other in
            ["*/*", "application/json", "application/problem+json;q=0", "application/problem+json;q=x"]
        {
            assert!(!accepted(other), "{other}");
        }
    }
}
