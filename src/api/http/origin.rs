//! Requests that a browser sends because a page of another site asked it to.
//!
//! A browser asks first before it sends JSON to another site, and nothing here agrees. It does not ask before
//! it sends a form or a body without a type, which `curl -d` sends as well: those are told apart by the
//! headers that only browsers send.

use http::header::{HOST, HeaderMap, ORIGIN};

/// Whether this was sent for a page of another site.
pub(super) fn is_foreign(headers: &HeaderMap) -> bool {
    let text = |value: Option<&http::HeaderValue>| {
        value.map(|value| value.to_str().unwrap_or_default().to_ascii_lowercase())
    };
    if let Some(site) = text(headers.get("sec-fetch-site")) {
        return !matches!(site.as_str(), "same-origin" | "none");
    }
    let Some(origin) = text(headers.get(ORIGIN)) else { return false };
    let host = text(headers.get(HOST)).unwrap_or_default();
    origin.split_once("://").is_none_or(|(_, from)| from != host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_other_sites_are_told_from_everybody_else() {
        let foreign = |lines: &[(&'static str, &'static str)]| {
            let headers = lines.iter().map(|(name, value)| {
                (http::HeaderName::from_static(name), http::HeaderValue::from_static(value))
            });
            is_foreign(&headers.collect())
        };
        let own = ("host", "gate.example:8080");
        assert!(!foreign(&[own]));
        assert!(!foreign(&[own, ("origin", "http://gate.example:8080")]));
        assert!(!foreign(&[own, ("sec-fetch-site", "none")]));
        assert!(!foreign(&[own, ("sec-fetch-site", "same-origin"), ("origin", "http://gate.example:8080")]));
        for theirs in ["https://evil.example", "http://gate.example", "null", "gate.example:8080"] {
            assert!(foreign(&[own, ("origin", theirs)]), "{theirs}");
        }
        for site in ["cross-site", "same-site", ""] {
            assert!(foreign(&[own, ("sec-fetch-site", site)]), "{site}");
        }
    }
}
