//! The one form of a path and of a host, so that every spelling of them meets the same rules and the same
//! bucket.
//!
//! A client chooses the spelling and an origin undoes it: `//admin`, `/%61dmin` and `/x/../admin` all reach
//! `/admin`.

mod readings;

use std::borrow::Cow;
use std::net::Ipv6Addr;

pub use readings::{Origin, READINGS_BYTES_MAX, READINGS_MAX, Readings, TooManyReadings};

/// The normal form of a request's path: without scheme and host, query, fragment and `;parameters`, with
/// percent-encoded visible characters decoded, `\` read as `/`, neighbouring slashes merged and dot segments
/// removed. The case of letters stays, since origins tell it apart.
#[must_use]
pub fn path(text: &str) -> Cow<'_, str> {
    let text = path_of(text);
    if is_normal(text) {
        return Cow::Borrowed(text);
    }
    let normal = without_dots(&letters(text));
    if normal == text { Cow::Borrowed(text) } else { Cow::Owned(normal) }
}

/// The normal form of a request's host: in lower case, without port and without the dot at its end.
#[must_use]
pub fn host(text: &str) -> Cow<'_, str> {
    if text.bytes().any(|byte| matches!(byte, b'%' | b'\\') || byte.is_ascii_uppercase()) {
        return Cow::Owned(bare_host(&letters(text).to_ascii_lowercase()).to_owned());
    }
    Cow::Borrowed(bare_host(text))
}

/// The same text with percent-encoded visible characters decoded and `\` as `/`. The characters that would
/// change where a path ends (`%`, `?`, `#`, `;`) and control characters stay encoded, with digits in upper
/// case; so do bytes that are not UTF-8.
#[must_use]
pub fn letters(text: &str) -> Cow<'_, str> {
    if !text.bytes().any(|byte| byte == b'%' || byte == b'\\') {
        return Cow::Borrowed(text);
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, others)) = rest.split_first() {
        rest = others;
        match first {
            b'\\' => bytes.push(b'/'),
            b'%' => match encoded(others) {
                Some(byte) => {
                    rest = others.get(2..).unwrap_or_default();
                    push_decoded(&mut bytes, byte);
                }
                // A percent sign that encodes nothing must not begin to, next to what is decoded behind it.
                None => push_decoded(&mut bytes, b'%'),
            },
            other => bytes.push(*other),
        }
    }
    Cow::Owned(escaped(&bytes).into_owned())
}

/// Bytes as text: those that are not UTF-8 become `%` and two hexadecimal digits each.
#[must_use]
pub fn escaped(bytes: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = std::str::from_utf8(bytes) {
        return Cow::Borrowed(text);
    }
    let mut text = String::with_capacity(bytes.len() + 16);
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        for byte in chunk.invalid() {
            text.extend(['%', hex(byte >> 4), hex(byte & 15)]);
        }
    }
    Cow::Owned(text)
}

/// The path of a request's target.
fn path_of(text: &str) -> &str {
    let end = text.find(['?', '#']).unwrap_or(text.len());
    let target = text.get(..end).unwrap_or(text);
    if target.starts_with('/') {
        return target;
    }
    // Origins serve the path behind any scheme, and gateways pass any on.
    let Some((scheme, rest)) = target.split_once("://") else { return target };
    let is_scheme = scheme.starts_with(|first: char| first.is_ascii_alphabetic())
        && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
    if !is_scheme {
        return target;
    }
    rest.find('/').and_then(|at| rest.get(at..)).unwrap_or("/")
}

/// True if a path surely is in normal form. One that may be and is looked at closer costs no more than time.
fn is_normal(path: &str) -> bool {
    let mut before = b'/';
    if !path.starts_with('/') {
        before = 0;
    }
    let rest = path.strip_prefix('/').unwrap_or(path);
    rest.bytes().all(|byte| {
        let odd = matches!(byte, b'%' | b';' | b'\\') || (before == b'/' && matches!(byte, b'/' | b'.'));
        before = byte;
        !odd
    }) && !path.starts_with('.')
}

/// Cuts the parameters of each segment off, merges slashes and removes dot segments.
fn without_dots(path: &str) -> String {
    let absolute = path.starts_with('/');
    let mut kept: Vec<&str> = Vec::new();
    let mut ends_in_slash = false;
    for segment in path.split('/') {
        let segment = segment.split(';').next().unwrap_or_default();
        ends_in_slash = matches!(segment, "" | "." | "..");
        match segment {
            "" | "." => {}
            ".." => drop(kept.pop()),
            other => kept.push(other),
        }
    }
    let mut normal = String::with_capacity(path.len());
    for segment in &kept {
        if absolute || !normal.is_empty() {
            normal.push('/');
        }
        normal.push_str(segment);
    }
    if (ends_in_slash && !kept.is_empty()) || (absolute && kept.is_empty()) {
        normal.push('/');
    }
    normal
}

/// The byte that two hexadecimal digits name.
fn encoded(digits: &[u8]) -> Option<u8> {
    let digit = |place: usize| char::from(*digits.get(place)?).to_digit(16);
    u8::try_from(digit(0)? * 16 + digit(1)?).ok()
}

fn push_decoded(bytes: &mut Vec<u8>, byte: u8) {
    match byte {
        b'\\' => bytes.push(b'/'),
        hidden if is_hidden(hidden) => push_encoded(bytes, hidden),
        other => bytes.push(other),
    }
}

/// True if this stays encoded in every form: it would change where a path ends, or is no visible character.
const fn is_hidden(byte: u8) -> bool {
    matches!(byte, b'%' | b'?' | b'#' | b';' | 0..=0x1f | 0x7f)
}

fn push_encoded(bytes: &mut Vec<u8>, byte: u8) {
    let mut digits = [0; 2];
    for (digit, nibble) in digits.iter_mut().zip([byte >> 4, byte & 15]) {
        *digit = u8::try_from(hex(nibble)).unwrap_or(b'0');
    }
    bytes.push(b'%');
    bytes.extend_from_slice(&digits);
}

fn hex(nibble: u8) -> char {
    char::from_digit(u32::from(nibble), 16).unwrap_or_default().to_ascii_uppercase()
}

/// The host's name alone, without what stands behind a colon: origins take that for a port, whatever it is.
/// The colons of an IPv6 address are none of it. Looks at each sign a fixed number of times, however many
/// dots and blanks a client puts.
fn bare_host(host: &str) -> &str {
    let host = without_end(host.trim_start());
    let name = if host.starts_with('[') {
        host.find(']').map_or(host, |at| host.get(..=at).unwrap_or(host))
    } else if host.parse::<Ipv6Addr>().is_ok() {
        host
    } else {
        host.split(':').next().unwrap_or(host)
    };
    without_end(name)
}

/// The text without the dots and blanks at its end.
fn without_end(text: &str) -> &str {
    text.trim_end_matches(|sign: char| sign == '.' || sign.is_whitespace())
}

/// True if no origin takes this for another host than [`host`] does: no user, path, query, escape or blank
/// stands in it. An empty text names no host, and is none that could be mistaken.
#[must_use]
pub fn names_one_host(text: &str) -> bool {
    !text.trim().contains(|sign: char| sign.is_whitespace() || "@%/?#\\".contains(sign))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_spelling_of_a_path_has_one_form() {
        for spelling in [
            "/admin",
            "//admin",
            "///admin",
            "/%61dmin",
            "/%61%64%6D%69%6e",
            "/./admin",
            "/././admin",
            "/x/../admin",
            "/x/y/../../admin",
            "/%2e/admin",
            "/x/%2E%2e/admin",
            "/x%2f..%2Fadmin",
            "/%2fadmin",
            "/\\admin",
            "\\admin",
            "/x/..\\admin",
            "/%5cadmin",
            "/admin;v=1",
            "/;a=b/admin",
            "/x/..;/admin",
            "/x;p/..;q/admin;r",
            "/../admin",
            "/../../admin",
            "/admin?x=1",
            "/admin?",
            "/admin#top",
            "http://host/admin",
            "HTTPS://host:1//admin?x",
            "ftp://host/admin",
            "x-a+b.1://host/admin#y",
            "ws:///admin",
        ] {
            assert_eq!(path(spelling), "/admin", "{spelling}");
        }
    }

    #[test]
    fn what_differs_for_an_origin_stays_apart() {
        for (text, normal) in [
            ("/", "/"),
            ("", ""),
            ("*", "*"),
            ("/ADMIN", "/ADMIN"),
            ("/admin/", "/admin/"),
            ("/admin/.", "/admin/"),
            ("/admin/x/..", "/admin/"),
            ("/..", "/"),
            ("/a%3Fb", "/a%3Fb"),
            ("/a%3fb", "/a%3Fb"),
            ("/a%252e", "/a%252e"),
            ("/%zz%4", "/%25zz%254"),
            ("/%%361", "/%2561"),
            ("/a%20b", "/a b"),
            ("/caf%C3%A9", "/café"),
            ("/caf%e9", "/caf%E9"),
            ("/.well-known/x", "/.well-known/x"),
            ("/a/...", "/a/..."),
            ("/%40me", "/@me"),
            ("a/./b", "a/b"),
            ("/a%00", "/a%00"),
            ("http://host", "/"),
            ("1x://host/admin", "1x:/host/admin"),
        ] {
            assert_eq!(path(text), normal, "{text}");
        }
    }

    #[test]
    fn a_path_in_normal_form_is_not_copied() {
        for text in ["/api/things?page=1", "/a.b/c", "/.well-known/x", "/ä"] {
            assert!(matches!(path(text), Cow::Borrowed(_)), "{text}");
        }
    }

    #[test]
    fn every_spelling_of_a_host_has_one_form() {
        for spelling in [
            "admin.example.com",
            "ADMIN.example.com",
            "Admin.Example.Com:443",
            "admin.example.com.",
            "admin.example.com.:80",
            "admin.example.com:",
            "%61dmin.example.com",
            " admin.example.com ",
            "admin.example.com:x",
            "admin.example.com:80:80",
            "admin.example.com:80x",
            "admin.example.com:-1",
            "admin.example.com.:x",
            "admin.example.com. . :80. .",
            "admin.example.com::1",
            "admin.example.com:@x",
        ] {
            assert_eq!(host(spelling), "admin.example.com", "{spelling}");
        }
        assert_eq!(host("[2001:DB8::1]:80"), "[2001:db8::1]");
        assert_eq!(host("[::1]"), "[::1]");
        assert_eq!(host("2001:db8::1"), "2001:db8::1");
        assert_eq!(host("[2001:db8::1]:x"), "[2001:db8::1]");
        assert_eq!(host("[::1"), "[::1");
        assert_eq!(host("::1"), "::1");
        assert_eq!(host("a:b"), "a");
        assert_eq!(host(":80"), "");
        assert_eq!(host(""), "");
    }

    #[test]
    fn a_long_host_costs_no_more_than_its_length() {
        // A pass for each dot would take minutes.
        let long = format!("a{}", ".%20".repeat(400_000));
        assert_eq!(host(&long), "a");
    }

    #[test]
    fn a_host_that_origins_may_take_for_another_is_told() {
        for text in
            ["", "admin.example.com", " a:80 ", "[::1]:80", "a.:x", "a_b", "münchen.example", "a;b", "a,b"]
        {
            assert!(names_one_host(text), "{text}");
        }
        for text in ["x@a", "%61", "a/b", "a?b", "a#b", "a\\b", "a b", "a\tb", "a: 80", "a%00"] {
            assert!(!names_one_host(text), "{text}");
        }
    }

    #[test]
    fn bytes_that_are_not_utf8_stay_apart() {
        assert_eq!(escaped(b"u1\xff"), "u1%FF");
        assert_eq!(escaped(b"u1\xfe\xc3\xa9\xc3"), "u1%FEé%C3");
    }

    proptest! {
        #[test]
        fn a_normal_form_is_its_own(text in "[/.%;\\\\2aA5cCeEfF?x é]{0,16}") {
            let once = path(&text).into_owned();
            prop_assert_eq!(path(&once), once.as_str());
        }

        #[test]
        fn a_hosts_normal_form_is_its_own(text in "[:.%2aA\\[\\]@ é]{0,16}") {
            let once = host(&text).into_owned();
            let twice = host(&once).into_owned();
            prop_assert_eq!(twice, once);
        }

        #[test]
        fn any_text_is_read_without_panic(text in ".*", bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let _ = (path(&text), host(&text), escaped(&bytes));
        }
    }
}
