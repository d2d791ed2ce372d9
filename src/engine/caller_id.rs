//! Ids that callers give their reports, reservations and acquisitions, so that one that is sent again counts
//! once.
//!
//! An id names one thing among requests of the same domain and attributes. Callers number theirs each for
//! itself, and some gateways hand on what a client has chosen: an id for everybody would have the requests of
//! two callers count once in a bucket that both share.

use ring::digest::{Context, Digest, SHA256};
use smallvec::SmallVec;

use crate::core::request::{REQUEST_ID, Request};

/// Digests the id and the request that it names. A request that is sent again may have another
/// [`REQUEST_ID`], and its attributes in another order.
pub(super) fn digest_of(id: &str, request: &Request<'_>) -> Digest {
    let named = request.attributes.iter().copied().filter(|(name, _)| *name != REQUEST_ID);
    let mut named: SmallVec<[(&str, &str); 8]> = named.collect();
    // Stable: the values of an attribute that repeats stay in their order.
    named.sort_by_key(|(name, _)| *name);
    let mut digest = Context::new(&SHA256);
    // With each text's length before it, no two lists of texts are the same bytes.
    let mut add = |text: &str| {
        digest.update(&u64::try_from(text.len()).unwrap_or(u64::MAX).to_be_bytes());
        digest.update(text.as_bytes());
    };
    add(id);
    add(request.domain);
    for (name, value) in named {
        add(name);
        add(value);
    }
    digest.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::request::{Attributes, Cost};

    fn digest(id: &str, domain: &str, attributes: &[(&str, &str)]) -> Vec<u8> {
        let attributes: Attributes<'_> = attributes.iter().copied().collect();
        digest_of(id, &Request::new(domain, attributes, Cost::Peek)).as_ref().to_vec()
    }

    #[test]
    fn an_id_names_one_request_of_one_caller() {
        let ann = digest("1", "d", &[("user", "ann"), ("path", "/x")]);
        assert_eq!(ann, digest("1", "d", &[("path", "/x"), ("user", "ann")]), "in another order");
        let named = [("request_id", "7"), ("user", "ann"), ("path", "/x")];
        assert_eq!(ann, digest("1", "d", &named), "under another name of the gateway's");
        for (id, domain, attributes) in [
            ("2", "d", [("user", "ann"), ("path", "/x")]),
            ("1", "e", [("user", "ann"), ("path", "/x")]),
            ("1", "d", [("user", "bob"), ("path", "/x")]),
            ("1", "d", [("user", "annpath"), ("", "/x")]),
        ] {
            assert_ne!(ann, digest(id, domain, &attributes), "{id} {domain} {attributes:?}");
        }
        let (one, other) = ([("ip", "1"), ("ip", "2")], [("ip", "2"), ("ip", "1")]);
        assert_ne!(digest("1", "d", &one), digest("1", "d", &other), "values have an order");
    }
}
