//! Credentials: the secrets that a request shows, in the headers that carry them.
//!
//! A client chooses which headers it sends and how it spells them, and the service behind the gateway reads
//! one of them. So each header that carries credentials is read, what services take for the same secret is
//! the same here, and every one that is shown is judged and counted.

use std::borrow::Cow;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue, InvalidHeaderName};
use smallvec::SmallVec;

use super::error::Refusal;
use super::signing_schemes::signers;
use crate::core::identity::{KEY_NAME_LEN, KEY_PREFIX, KEY_SECRET_LEN, is_key_like, parse_key};
use crate::engine::identity::secret::fingerprint;

const BEARER: &[u8] = b"bearer";
/// Most values that one header shows.
pub(super) const VALUES_MAX: usize = 8;
/// Bytes of a key of ours.
const KEY_BYTES: usize = KEY_PREFIX.len() + KEY_NAME_LEN + 1 + KEY_SECRET_LEN;

/// Secrets in the value of one header: a part of it, or what a part decodes to.
type Secrets<'h> = SmallVec<[Cow<'h, [u8]>; 2]>;

/// The headers in which clients show credentials, the one first that a request is called by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CredentialHeaders(Arc<[HeaderName]>);

impl Default for CredentialHeaders {
    fn default() -> Self {
        Self(Arc::new([HeaderName::from_static("x-api-key"), AUTHORIZATION]))
    }
}

impl CredentialHeaders {
    /// The headers of these names.
    ///
    /// # Errors
    /// When one of them is no name of a header.
    pub fn new(names: &[String]) -> Result<Self, InvalidHeaderName> {
        names.iter().map(|name| HeaderName::try_from(name.as_str())).collect::<Result<_, _>>().map(Self)
    }

    /// Returns what the request shows in them, each secret once: a key of ours itself, since the engine knows
    /// it and keeps its name alone; of any other its fingerprint. `is_token`: `Authorization` shows a token.
    ///
    /// # Errors
    /// For a header that says two things: this daemon would read one of them, and the service perhaps the
    /// other.
    pub(super) fn shown<'h>(
        &self,
        headers: &'h HeaderMap,
        is_token: bool,
    ) -> Result<SmallVec<[Cow<'h, str>; 2]>, Refusal> {
        let mut shown: SmallVec<[Cow<'h, str>; 2]> = SmallVec::new();
        for name in self.0.iter() {
            let Some(value) = single(headers, name)? else { continue };
            let value = value.as_bytes();
            let mut secrets = if *name == AUTHORIZATION {
                secrets_of_authorization(value)
            } else {
                values(value).map(trimmed).flat_map(readings).map(Cow::Borrowed).collect()
            };
            // A token is judged as one; what stands beside it is a credential whatever its form.
            let is_judged = is_token && *name == AUTHORIZATION;
            let counts_besides = |secret: &[u8]| !is_judged || !is_token_like(secret);
            secrets.retain(|secret| !secret.is_empty() && counts_besides(secret));
            let mut all: SmallVec<[Cow<'h, str>; 4]> = SmallVec::new();
            for secret in secrets {
                all.extend(keys_within(&secret).map(|key| Cow::Owned(key.to_owned())));
                all.push(called(secret));
            }
            // Keys of ours are found wherever they stand: whoever is refused stays so in any spelling.
            all.extend(keys_within(value).map(Cow::Borrowed));
            for (place, secret) in distinct(all).into_iter().enumerate() {
                if place >= VALUES_MAX {
                    let sentence = format!("has more than {VALUES_MAX} values");
                    return Err(Refusal::of_field(name.as_str(), sentence));
                }
                if !shown.contains(&secret) {
                    shown.push(secret);
                }
            }
        }
        Ok(shown)
    }
}

/// The same secrets, each once.
fn distinct(all: SmallVec<[Cow<'_, str>; 4]>) -> SmallVec<[Cow<'_, str>; 4]> {
    let mut each: SmallVec<[Cow<'_, str>; 4]> = SmallVec::new();
    for secret in all {
        if !each.contains(&secret) {
            each.push(secret);
        }
    }
    each
}

/// Every whole key of ours within a text, whatever stands around it.
fn keys_within(text: &[u8]) -> impl Iterator<Item = &str> {
    let begins = |part: &&[u8]| part.starts_with(KEY_PREFIX.as_bytes());
    let parts = text.windows(KEY_BYTES).filter(begins).filter_map(|part| std::str::from_utf8(part).ok());
    parts.filter(|part| parse_key(part).is_some())
}

/// True for what has the form of a JSON web token.
fn is_token_like(secret: &[u8]) -> bool {
    secret.iter().filter(|byte| **byte == b'.').count() == 2
}

/// Names a secret.
fn called(secret: Cow<'_, [u8]>) -> Cow<'_, str> {
    match secret {
        Cow::Borrowed(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) if is_key_like(text) => text.into(),
            _ => fingerprint(bytes).into(),
        },
        Cow::Owned(bytes) => fingerprint(&bytes).into(),
    }
}

/// The value of a header of this name, or of one that differs from it by `_` for `-`: services behind CGI and
/// WSGI take both for one.
pub(super) fn single<'h>(
    headers: &'h HeaderMap,
    name: &HeaderName,
) -> Result<Option<&'h HeaderValue>, Refusal> {
    let alike = |other: &HeaderName| {
        other.as_str().contains('_')
            && other.as_str().len() == name.as_str().len()
            && other
                .as_str()
                .bytes()
                .zip(name.as_str().bytes())
                .all(|(one, two)| one == two || (one, two) == (b'_', b'-'))
    };
    let others = headers.keys().filter(|other| alike(other)).flat_map(|other| headers.get_all(other));
    let mut values = headers.get_all(name).iter().chain(others);
    let first = values.next();
    if values.any(|value| Some(value) != first) {
        return Err(Refusal::of_field(name.as_str(), "is given twice, with different values"));
    }
    Ok(first)
}

/// The values of a header that came once or more often: some gateways join them by commas.
pub(super) fn values(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|byte| *byte == b',')
}

/// The credentials in one attribute, as [`values`]: each as it came, and every key of ours.
pub(super) fn credentials_of(value: &str) -> SmallVec<[&str; 2]> {
    let mut found: SmallVec<[&str; 2]> = SmallVec::new();
    for part in value.split(',').map(trimmed_text).chain(keys_within(value.as_bytes())) {
        if !part.is_empty() && !found.contains(&part) {
            found.push(part);
        }
    }
    found
}

/// A text without white space around it, also where that came as bytes that are not UTF-8.
fn trimmed_text(mut text: &str) -> &str {
    loop {
        let bare = text.trim().trim_start_matches("%A0").trim_end_matches("%A0");
        let bare = bare.trim_start_matches("%85").trim_end_matches("%85");
        if bare.len() == text.len() {
            return bare;
        }
        text = bare;
    }
}

/// The words of a header: split at runs of whatever some service takes for white space.
pub(super) fn words(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = value;
    std::iter::from_fn(move || {
        rest = without_blanks(rest);
        let blank_at = |at: &usize| rest.get(*at..).is_some_and(|from| blank(from) > 0);
        let end = (0..rest.len()).find(blank_at).unwrap_or(rest.len());
        let (word, behind) = rest.split_at(end);
        rest = behind;
        (!word.is_empty()).then_some(word)
    })
}

/// The length of the white space that a text begins with; 0: it begins with none. Python and JavaScript take
/// more than space and tab for it, of headers in Latin-1; Go and Rust the same of UTF-8.
const fn blank(text: &[u8]) -> usize {
    match text {
        [b'\t'..=b'\r' | 0x1c..=b' ' | 0x85 | 0xa0, ..] => 1,
        [0xc2, 0x85 | 0xa0, ..] => 2,
        [0xe2, 0x80, 0x80..=0x8a | 0xa8 | 0xa9 | 0xaf, ..]
        | [0xe1, 0x9a, 0x80, ..]
        | [0xe2, 0x81, 0x9f, ..]
        | [0xe3, 0x80, 0x80, ..] => 3,
        _ => 0,
    }
}

fn without_blanks(mut value: &[u8]) -> &[u8] {
    while let (1.., Some(rest)) = (blank(value), value.get(blank(value)..)) {
        value = rest;
    }
    value
}

fn trimmed(value: &[u8]) -> &[u8] {
    let mut value = without_blanks(value);
    let ends_blank = |value: &[u8]| {
        let begins = [3, 2, 1].map(|len| value.len().checked_sub(len));
        begins.into_iter().flatten().find(|at| value.get(*at..).is_some_and(|end| blank(end) == end.len()))
    };
    while let Some(begin) = ends_blank(value) {
        value = value.get(..begin).unwrap_or_default();
    }
    value
}

/// A word as it came, and without what services take off it: what stands behind a semicolon, the name
/// `token=`, quotes (as Rails does), and what a gateway puts in the place of bytes that are not UTF-8.
fn readings(word: &[u8]) -> SmallVec<[&[u8]; 2]> {
    let bare = bare(word);
    let other = (bare != word && !bare.is_empty()).then_some(bare);
    std::iter::once(word).chain(other).collect()
}

/// Returns the word without parameters, the prefix `token=`, and quotes around it.
pub(super) fn bare(word: &[u8]) -> &[u8] {
    let word = word.split(|byte| *byte == b';').next().unwrap_or_default();
    let mut word = word.strip_prefix(b"token=").unwrap_or(word);
    let is_around = |byte: &u8| matches!(byte, b'"' | b'\'' | b'!');
    while let [first, rest @ ..] = word
        && is_around(first)
    {
        word = rest;
    }
    while let [rest @ .., last] = word
        && is_around(last)
    {
        word = rest;
    }
    word
}

/// True for the scheme `Bearer`, also with something behind it that is no letter.
pub(super) fn is_bearer(word: &[u8]) -> bool {
    word.get(..BEARER.len()).is_some_and(|scheme| scheme.eq_ignore_ascii_case(BEARER))
        && word.get(BEARER.len()).is_none_or(|byte| !byte.is_ascii_alphanumeric())
}

/// Returns the secret in the value of an `Authorization`: the word behind the scheme, or the only word. It is
/// decoded for `Basic`; for a scheme that signs each request (`Digest`, `AWS4-HMAC-SHA256`) it is who signs,
/// and for another one with parameters all of them.
fn secret_of_authorization(value: &[u8]) -> Option<Cow<'_, [u8]>> {
    let mut words = words(value);
    let scheme = words.next()?;
    let Some(secret) = words.next() else { return Some(Cow::Borrowed(behind_bearer(scheme))) };
    if scheme.eq_ignore_ascii_case(b"basic") {
        let decoded = decodings(secret).into_iter().next();
        return Some(decoded.map_or(Cow::Borrowed(secret), Cow::Owned));
    }
    let behind = behind_scheme(value, scheme);
    if let Some(signer) = signers(scheme, behind).into_iter().next() {
        return Some(signer);
    }
    Some(Cow::Borrowed(if is_bearer(scheme) || !is_parameter(secret) { secret } else { behind }))
}

/// Returns all that follows the scheme.
fn behind_scheme<'h>(value: &'h [u8], scheme: &[u8]) -> &'h [u8] {
    trimmed(trimmed(value).get(scheme.len()..).unwrap_or_default())
}

/// Returns the secrets in an `Authorization` that may have come more often than once: every one that some
/// service reads.
fn secrets_of_authorization(value: &[u8]) -> Secrets<'_> {
    let mut secrets = Secrets::new();
    let mut words = words(value);
    let scheme = words.next().unwrap_or_default();
    secrets.extend(signers(scheme, behind_scheme(value, scheme)));
    let has_parameters = !secrets.is_empty()
        || !is_bearer(scheme)
            && !scheme.eq_ignore_ascii_case(b"basic")
            && !scheme.eq_ignore_ascii_case(b"token")
            && words.next().is_some_and(is_parameter);
    if has_parameters && secrets.is_empty() {
        secrets.extend(secret_of_authorization(value));
    }
    for part in values(value) {
        // Among parameters only what begins with a scheme of its own is another one.
        let scheme = self::words(part).next().unwrap_or_default();
        if !has_parameters || is_bearer(scheme) || scheme.eq_ignore_ascii_case(b"basic") {
            add_secrets(part, &mut secrets);
        }
    }
    if scheme.eq_ignore_ascii_case(b"basic") {
        // Some readers decode all that follows, past blanks and commas.
        secrets.extend(decodings(behind_scheme(value, scheme)).into_iter().map(Cow::Owned));
    }
    secrets
}

/// Adds the secrets in one `Authorization`: the word behind the scheme, the last one, or the only one.
fn add_secrets<'h>(value: &'h [u8], secrets: &mut Secrets<'h>) {
    let mut words = words(value);
    let Some(scheme) = words.next() else { return };
    let Some(secret) = words.next() else {
        secrets.extend(readings(behind_bearer(scheme)).into_iter().map(Cow::Borrowed));
        return;
    };
    if scheme.eq_ignore_ascii_case(b"basic") {
        let decoded = decodings(secret);
        if decoded.is_empty() {
            secrets.push(Cow::Borrowed(secret));
        }
        secrets.extend(decoded.into_iter().map(Cow::Owned));
        return;
    }
    for word in std::iter::once(secret).chain(words.last()) {
        secrets.extend(readings(word).into_iter().map(Cow::Borrowed));
    }
}

/// Returns what follows `Bearer` in a word that has both: a gateway may have put a visible character in the
/// place of white space that is not ASCII.
pub(super) fn behind_bearer(word: &[u8]) -> &[u8] {
    if !is_bearer(word) {
        return word;
    }
    let behind = word.get(BEARER.len()..).unwrap_or_default();
    let from = behind.iter().position(u8::is_ascii_alphanumeric);
    from.and_then(|from| behind.get(from..)).unwrap_or(word)
}

/// The one text of an `Authorization` that comes among the attributes, however its client spelled it: scheme
/// and secret with a blank between them, `Bearer` and `Basic` with a capital, and what `Basic` encodes in one
/// encoding.
pub(super) fn canonical_authorization(text: &str) -> Cow<'_, str> {
    let mut all = words(text.as_bytes());
    let (Some(scheme), Some(first)) = (all.next(), all.next()) else { return Cow::Borrowed(text.trim()) };
    let known = [&b"Bearer"[..], b"Basic"].into_iter().find(|known| scheme.eq_ignore_ascii_case(known));
    let secret = match secret_of_authorization(text.as_bytes()) {
        Some(Cow::Owned(decoded)) => Cow::Owned(STANDARD.encode(decoded).into_bytes()),
        Some(secret) => secret,
        None => Cow::Borrowed(first),
    };
    let made = [known.unwrap_or(scheme), b" ", &secret].concat();
    match String::from_utf8(made) {
        Ok(made) if made != text => Cow::Owned(made),
        // A part that white space cut out of the middle of a letter stays as it came.
        _ => Cow::Borrowed(text),
    }
}

/// True for `name=value`, and not for a secret that ends in padding.
fn is_parameter(word: &[u8]) -> bool {
    let padded = word.iter().rposition(|byte| !matches!(byte, b'=' | b',')).map_or(0, |last| last + 1);
    word.get(..padded).is_some_and(|bare| bare.contains(&b'='))
}

/// The place at which a reader of base64 takes a text to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// At the first `=`: Node, Ruby.
    Padding,
    /// The end is at whole padding; one out of place is passed over: Python.
    WholePadding,
    /// At its end: PHP.
    Text,
}

/// Returns each reading that lenient readers of base64 have of a text, once: with or without the characters
/// of its other alphabet, past what is in neither, up to where they take it to end. A text that is written as
/// it should be has one.
pub(super) fn decodings(text: &[u8]) -> SmallVec<[Vec<u8>; 1]> {
    let mut found: SmallVec<[Vec<u8>; 1]> = SmallVec::new();
    for both in [true, false] {
        for end in [End::Padding, End::WholePadding, End::Text] {
            let decoded = decode(text, both, end);
            if !decoded.is_empty() && !found.contains(&decoded) {
                found.push(decoded);
            }
        }
    }
    found
}

fn decode(text: &[u8], both: bool, end: End) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(text.len());
    let (mut bits, mut held) = (0_u32, 0_u8);
    let (mut digits, mut padding) = (0_u8, 0_u8);
    for byte in text {
        let digit = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            b'-' if both => 62,
            b'_' if both => 63,
            b'=' => {
                padding = if digits < 2 { 0 } else { padding.saturating_add(1) };
                let is_whole = digits >= 2 && digits.saturating_add(padding) >= 4;
                if end == End::Padding || (end == End::WholePadding && is_whole) {
                    break;
                }
                continue;
            }
            _ => continue,
        };
        (digits, padding) = ((digits + 1) % 4, 0);
        (bits, held) = (bits << 6 | u32::from(digit), held + 6);
        if held >= 8 {
            held -= 8;
            decoded.extend(u8::try_from(bits >> held & 0xff));
        }
        bits &= (1 << held) - 1;
    }
    decoded
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "tgk_abcdefGHI012_abcdefghijklmnopqrstuvwxyzABCDEF";

    fn headers(lines: &[(&str, &[u8])]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(HeaderName::try_from(*name).unwrap(), HeaderValue::from_bytes(value).unwrap());
        }
        headers
    }

    fn shown(lines: &[(&str, &[u8])]) -> Vec<String> {
        let headers = headers(lines);
        let shown = CredentialHeaders::default().shown(&headers, false).unwrap();
        shown.into_iter().map(Cow::into_owned).collect()
    }

    #[test]
    fn a_secret_is_the_same_by_whichever_header_it_comes_and_however_it_is_spelled() {
        let own = [fingerprint(b"k1")];
        for lines in [
            &[("x-api-key", &b"k1"[..])][..],
            &[("x-api-key", b"k1\xa0")],
            &[("x_api_key", b"k1")],
            &[("authorization", b"k1")],
            &[("authorization", b"Bearer k1")],
            &[("authorization", b"bearer  k1")],
            &[("authorization", b"Bearer\tk1")],
            &[("authorization", b"Bearer \t k1 k1")],
            &[("x-api-key", b"\xe2\x80\x89k1\xc2\xa0")],
            &[("authorization", b"Bearer\xe3\x80\x80k1\xe2\x80\x83")],
            &[("authorization", b"Bearer\xa0k1")],
            &[("authorization", b"Bearer!k1")],
            &[("authorization", b"Bearer k1, Bearer k1")],
            &[("x-api-key", b"k1, k1,")],
            &[("authorization", b"Token k1")],
            &[("x-api-key", b"k1"), ("authorization", b"Bearer k1")],
            &[("x-api-key", b""), ("authorization", b"Bearer k1")],
        ] {
            assert_eq!(shown(lines), own, "{lines:?}");
        }
        assert_eq!(shown(&[("authorization", format!("Bearer\t{KEY}").as_bytes())]), [KEY]);
    }

    #[test]
    fn every_secret_that_is_shown_is_there() {
        let both = shown(&[("authorization", b"Bearer k2"), ("x-api-key", b"k1")]);
        assert_eq!(both, [fingerprint(b"k1"), fingerprint(b"k2")]);
        // Envoy and newer versions of nginx join what comes twice.
        assert_eq!(shown(&[("x-api-key", b"k1,k2")]), both);
        assert_eq!(shown(&[("authorization", b"Bearer k1,bearer k2")]), both);
        let many = headers(&[("x-api-key", b"1,2,3,4,5,6,7,8,9")]);
        assert_eq!(
            CredentialHeaders::default().shown(&many, false).unwrap_err().field.as_deref(),
            Some("x-api-key")
        );
        assert_eq!(shown(&[("authorization", b"Bearer ")]), [fingerprint(b"Bearer")]);
        for nothing in [&[("authorization", &b""[..])][..], &[("x-api-key", b" ")], &[]] {
            assert_eq!(shown(nothing).len(), 0);
        }
    }

    #[test]
    fn only_the_headers_that_carry_credentials_are_read() {
        let only = CredentialHeaders::new(&["authorization".to_owned()]).unwrap();
        let headers = headers(&[("authorization", b"Bearer k2"), ("x-api-key", b"k1")]);
        assert_eq!(only.shown(&headers, false).unwrap().as_slice(), [fingerprint(b"k2")]);
        assert!(CredentialHeaders::new(&["no header".to_owned()]).is_err());
    }

    #[test]
    fn basic_credentials_are_what_they_decode_to() {
        let own = shown(&[("authorization", b"Basic dXNlcjpwYXNzdw==")]);
        assert_eq!(own, [fingerprint(b"user:passw")]);
        for spelling in [
            "dXNlcjpwYXNzdw",
            "dXNlcjpwYXNzdx==",
            "dXNlcjpwYXNzd.w==",
            "dXNlcjpwYXNzdw==x",
            "dXNlcjpwYXNzdw=== x",
            "=dXNlcjpwYXNzdw==",
            "dXN=lcjpwYXNzdw==",
            "dXNl-cjpwYXNzdw==",
            "_dXNlcjpwYXNzdw==",
            "! dXNlcjpwYXNzdw==",
            "dXNlcj pwYXNzdw==",
            ",dXNlcj,pwYXNzdw==",
        ] {
            let shown = shown(&[("authorization", format!("Basic {spelling}").as_bytes())]);
            assert!(shown.contains(&own[0]), "{spelling}: {shown:?}");
        }
        assert_eq!(shown(&[("authorization", b"Basic -_8")]), shown(&[("authorization", b"basic +/8=")]));
        assert_eq!(shown(&[("authorization", b"Basic .")]), [fingerprint(b".")]);
    }

    #[test]
    fn an_authorization_among_the_attributes_has_one_text() {
        for spelling in ["Bearer k", "bearer  k", "BEARER\tk", " Bearer k trailing ", "Bearer\u{b}k"] {
            assert_eq!(canonical_authorization(spelling), "Bearer k", "{spelling:?}");
        }
        for spelling in ["Basic dXNlcg==", "basic dXNlcg", "Basic dXNlch== x"] {
            assert_eq!(canonical_authorization(spelling), "Basic dXNlcg==", "{spelling:?}");
        }
        for other in ["k", "", "Token k", "Digest a=\"b\", c=\"d\""] {
            assert_eq!(canonical_authorization(other), other);
        }
        assert!(matches!(canonical_authorization("Bearer k"), Cow::Borrowed(_)));
    }

    #[test]
    fn every_word_that_a_service_may_read_is_there() {
        let own = fingerprint(b"k1");
        for text in [
            "Bearer k1 trailing",
            "Bearer x k1",
            "Bearer \"k1\"",
            "Bearer k1;n=1",
            "Token token=\"k1\", nonce=\"2\"",
            "Bearer token=k1",
            "Digest a=b, Bearer k1",
            "Bearer x,Bearer k1",
            "Bearer k1!",
        ] {
            assert!(shown(&[("authorization", text.as_bytes())]).contains(&own), "{text}");
        }
    }

    #[test]
    fn a_key_of_ours_is_found_wherever_it_stands() {
        let basic = STANDARD.encode(format!("u:{KEY}"));
        for text in [
            format!("Bearer {KEY} a.b.c"),
            format!("Bearer a.b.c,Bearer {KEY}"),
            format!("{KEY} x"),
            format!("Bearer \"{KEY}\";x"),
            format!("Basic {basic}"),
        ] {
            for is_token in [false, true] {
                let headers = headers(&[("authorization", text.as_bytes())]);
                let shown = CredentialHeaders::default().shown(&headers, is_token).unwrap();
                assert!(shown.iter().any(|own| own == KEY), "{text}: {shown:?}");
                assert!(!is_token || !shown.contains(&Cow::from(fingerprint(b"a.b.c"))), "{text}");
            }
        }
        assert!(shown(&[("x-api-key", format!("Bearer {KEY}").as_bytes())]).iter().any(|own| own == KEY));
    }

    #[test]
    fn of_a_scheme_with_parameters_all_of_them_count() {
        let of = |text: &str| shown(&[("authorization", text.as_bytes())]);
        assert_eq!(of("Custom name=\"a\", nonce=\"n\""), [fingerprint(b"name=\"a\", nonce=\"n\"")]);
        assert_ne!(of("Custom user=a, signature=x"), of("Custom user=a, signature=y"));
        assert_eq!(of("Bearer a=b x"), [fingerprint(b"a=b"), fingerprint(b"x")]);
        assert_eq!(of("Token YWI= x"), [fingerprint(b"YWI="), fingerprint(b"x")]);
    }

    #[test]
    fn whoever_signs_each_request_is_one_client() {
        let of = |text: &str| shown(&[("authorization", text.as_bytes())]);
        assert_eq!(of("Digest username=\"a\", nonce=\"n\""), [fingerprint(b"a")]);
        assert_eq!(of("AWS4-HMAC-SHA256 Credential=a/b, Signature=x"), [fingerprint(b"a")]);
        assert_eq!(of("AWS a:x"), [fingerprint(b"a")]);
        // Another credential beside it is one, too.
        assert_eq!(of("Hawk id=\"a\", mac=\"x\", Bearer k1"), [fingerprint(b"a"), fingerprint(b"k1")]);
        assert_eq!(canonical_authorization("digest nonce=\"n\", username=\"a\""), "digest a");
    }

    #[test]
    fn a_header_that_says_two_things_is_refused() {
        let twice = |lines: &[(&str, &[u8])]| {
            CredentialHeaders::default().shown(&headers(lines), false).map(|shown| shown.len())
        };
        assert!(twice(&[("x-api-key", b"k1"), ("x-api-key", b"k1")]).is_ok());
        for (one, other) in
            [("x-api-key", "x-api-key"), ("x-api-key", "x_api-key"), ("authorization", "authorization")]
        {
            let refused = twice(&[(one, b"k1"), (other, b"k2")]).unwrap_err();
            assert_eq!(refused.field.as_deref(), Some(one));
        }
    }
}
