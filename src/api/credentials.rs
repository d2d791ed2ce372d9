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
use crate::core::identity::is_key_like;
use crate::engine::identity::secret::fingerprint;

const BEARER: &[u8] = b"bearer";
/// Most values that one header shows.
const VALUES_MAX: usize = 8;

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

    /// What the request shows in them, each secret once: a key of ours itself, since the engine knows it and
    /// keeps its name alone; of any other its fingerprint. `is_token`: `Authorization` shows a token.
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
            let secrets = match *name {
                AUTHORIZATION if is_token => continue,
                AUTHORIZATION => secrets_of_authorization(value.as_bytes()),
                _ => values(value.as_bytes()).map(trimmed).map(Cow::Borrowed).collect(),
            };
            let secrets = secrets.into_iter().filter(|secret| !secret.is_empty());
            for (place, secret) in secrets.map(called).enumerate() {
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
fn values(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|byte| *byte == b',')
}

/// The words of a header: split at runs of whatever some service takes for white space.
pub(super) fn words(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|byte| is_blank(*byte)).filter(|word| !word.is_empty())
}

/// Python and JavaScript split at more than space and tab; headers come to them as Latin-1.
const fn is_blank(byte: u8) -> bool {
    matches!(byte, b'\t'..=b'\r' | 0x1c..=b' ' | 0x85 | 0xa0)
}

fn trimmed(mut value: &[u8]) -> &[u8] {
    while let [first, rest @ ..] = value
        && is_blank(*first)
    {
        value = rest;
    }
    while let [rest @ .., last] = value
        && is_blank(*last)
    {
        value = rest;
    }
    value
}

/// True for the scheme `Bearer`, also with something behind it that is no letter.
pub(super) fn is_bearer(word: &[u8]) -> bool {
    word.get(..BEARER.len()).is_some_and(|scheme| scheme.eq_ignore_ascii_case(BEARER))
        && word.get(BEARER.len()).is_none_or(|byte| !byte.is_ascii_alphanumeric())
}

/// Returns the secret in the value of an `Authorization`: the word behind the scheme, or the only word. Of
/// `Basic` it is decoded; of a scheme with parameters (`Digest`, `AWS4-HMAC-SHA256`) it is all of them.
fn secret_of_authorization(value: &[u8]) -> Option<Cow<'_, [u8]>> {
    let mut words = words(value);
    let scheme = words.next()?;
    let Some(secret) = words.next() else { return Some(Cow::Borrowed(behind_bearer(scheme))) };
    if scheme.eq_ignore_ascii_case(b"basic") {
        let decoded = basic(secret);
        return Some(if decoded.is_empty() { Cow::Borrowed(secret) } else { Cow::Owned(decoded) });
    }
    if is_bearer(scheme) || !is_parameter(secret) {
        return Some(Cow::Borrowed(secret));
    }
    let behind = trimmed(value).get(scheme.len()..).unwrap_or_default();
    Some(Cow::Borrowed(trimmed(behind)))
}

/// Returns the secrets in an `Authorization` that may have come more often than once.
fn secrets_of_authorization(value: &[u8]) -> SmallVec<[Cow<'_, [u8]>; 2]> {
    let mut words = words(value);
    let has_parameters =
        words.next().is_some_and(|scheme| !is_bearer(scheme)) && words.next().is_some_and(is_parameter);
    if has_parameters {
        return secret_of_authorization(value).into_iter().collect();
    }
    values(value).filter_map(secret_of_authorization).collect()
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
        // What white space was cut out of the middle of a letter stays as it came.
        _ => Cow::Borrowed(text),
    }
}

/// True for `name=value`, and not for a secret that ends in padding.
fn is_parameter(word: &[u8]) -> bool {
    let padded = word.iter().rposition(|byte| !matches!(byte, b'=' | b',')).map_or(0, |last| last + 1);
    word.get(..padded).is_some_and(|bare| bare.contains(&b'='))
}

/// Decodes as a lenient reader does: of either alphabet, without padding too, past what is in neither. So all
/// spellings that some reader takes for the same are the same.
fn basic(word: &[u8]) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(word.len());
    let (mut bits, mut held) = (0_u32, 0_u8);
    for byte in word.iter().take_while(|byte| **byte != b'=') {
        let digit = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' | b'-' => 62,
            b'/' | b'_' => 63,
            _ => continue,
        };
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
            &[("authorization", b"Bearer \t k1 trailing")],
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
        assert_eq!(only.shown(&headers, true).unwrap().len(), 0);
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
        ] {
            assert_eq!(
                shown(&[("authorization", format!("Basic {spelling}").as_bytes())]),
                own,
                "{spelling}"
            );
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
    fn of_a_scheme_with_parameters_all_of_them_count() {
        let of = |text: &str| shown(&[("authorization", text.as_bytes())]);
        assert_eq!(of("Digest username=\"a\", nonce=\"n\""), [fingerprint(b"username=\"a\", nonce=\"n\"")]);
        assert_ne!(of("AWS4 Credential=a/b, Signature=x"), of("AWS4 Credential=a/b, Signature=y"));
        assert_eq!(of("Bearer a=b x"), [fingerprint(b"a=b")]);
        assert_eq!(of("Token YWI= x"), [fingerprint(b"YWI=")]);
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
