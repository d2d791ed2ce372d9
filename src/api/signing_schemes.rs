//! Schemes of `Authorization` that sign each request: what stands there is another text each time, so the
//! client is called by the name or the id of the key among the parameters.

use std::borrow::Cow;

use percent_encoding::percent_decode;
use smallvec::SmallVec;

/// Clients, by a part of the text or by what that decodes to.
type Signers<'h> = SmallVec<[Cow<'h, [u8]>; 2]>;
/// A scheme, and the parameters that say who signs: those of the first row that the client gives.
type Scheme = (&'static [u8], &'static [&'static [&'static [u8]]]);

const SCHEMES: &[Scheme] = &[
    (b"digest", &[&[b"username", b"username*"]]),
    (b"hawk", &[&[b"id"]]),
    (b"signature", &[&[b"keyid"]]),
    (b"oauth", &[&[b"oauth_token"], &[b"oauth_consumer_key"]]),
];
/// How the schemes of Amazon's fourth version begin (`AWS4-HMAC-SHA256`).
const AWS4: &[u8] = b"aws4-";
const AWS4_PARAMETERS: &[&[&[u8]]] = &[&[b"credential"]];
/// Schemes that write the key's id before a colon, and the signature behind it.
const BEFORE_COLON: [&[u8]; 3] = [b"aws", b"sharedkey", b"sharedkeylite"];

/// Returns who signs a request by this scheme, each as often as it is said; none where the scheme signs
/// nothing, or does not say it.
pub(super) fn signers<'h>(scheme: &[u8], behind: &'h [u8]) -> Signers<'h> {
    let is = |name: &[u8]| scheme.eq_ignore_ascii_case(name);
    if BEFORE_COLON.into_iter().any(is) {
        let id = behind.split(|byte| *byte == b':').next().filter(|id| id.len() < behind.len());
        return id
            .map(<[u8]>::trim_ascii)
            .filter(|id| !id.is_empty())
            .map(Cow::Borrowed)
            .into_iter()
            .collect();
    }
    let is_aws4 = scheme.get(..AWS4.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(AWS4));
    let of_scheme = || SCHEMES.iter().find(|(name, _)| is(name)).map(|(_, rows)| *rows);
    let Some(rows) = is_aws4.then_some(AWS4_PARAMETERS).or_else(of_scheme) else {
        return Signers::new();
    };
    rows.iter().map(|names| named(behind, names, is_aws4)).find(|found| !found.is_empty()).unwrap_or_default()
}

/// The values of the parameters of these names. A comma within quotes begins a parameter, too: some readers
/// see none there.
fn named<'h>(text: &'h [u8], names: &[&[u8]], is_scoped: bool) -> Signers<'h> {
    let begins = std::iter::once(0).chain((1..text.len()).filter(|at| text.get(at - 1) == Some(&b',')));
    let mut found = Signers::new();
    for parameter in begins.filter_map(|at| text.get(at..)) {
        let parameter = parameter.trim_ascii_start();
        let Some(equals) = parameter.iter().position(|byte| *byte == b'=') else { break };
        let (name, value) = parameter.split_at(equals);
        let name = name.trim_ascii_end();
        if !names.iter().any(|known| name.eq_ignore_ascii_case(known)) {
            continue;
        }
        let value = value.get(1..).unwrap_or_default().trim_ascii_start();
        let value = match value.strip_prefix(b"\"") {
            Some(quoted) => quoted.split(|byte| *byte == b'"').next(),
            None => value.split(|byte| b", \t\"".contains(byte)).next(),
        };
        // The scope of a credential of Amazon's names the day: its id stands before that.
        let value = value.and_then(|value| value.split(|byte| is_scoped && *byte == b'/').next());
        let value = match value.unwrap_or_default() {
            extended if name.ends_with(b"*") => {
                let behind = extended.rsplit(|byte| *byte == b'\'').next().unwrap_or_default();
                Cow::from(percent_decode(behind))
            }
            value => Cow::Borrowed(value),
        };
        if !value.is_empty() && !found.contains(&value) {
            found.push(value);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> SmallVec<[String; 2]> {
        let (scheme, behind) = text.split_once(' ').unwrap();
        let signers = signers(scheme.as_bytes(), behind.as_bytes());
        signers.iter().map(|signer| String::from_utf8_lossy(signer).into_owned()).collect()
    }

    #[test]
    fn whoever_signs_is_called_by_the_name_or_the_id_of_the_key() {
        for (text, signers) in [
            ("Digest username=\"ann\", realm=\"r\", nonce=\"1\", response=\"2\"", &["ann"][..]),
            ("digest realm=\"r\",USERNAME = ann,nonce=\"1\"", &["ann"]),
            ("Digest username*=UTF-8''J%C3%A4s%C3%B8n, nonce=\"1\"", &["Jäsøn"]),
            ("Digest username=\"made-up\", username=\"ann\"", &["made-up", "ann"]),
            ("Digest realm=\"x, username=made-up\", username=\"ann\"", &["made-up", "ann"]),
            ("AWS4-HMAC-SHA256 Credential=AKIA1/20260101/eu/s3/aws4_request, Signature=2", &["AKIA1"]),
            ("aws4-ecdsa-p256-sha256 SignedHeaders=host,Credential=AKIA1/20260102/s3", &["AKIA1"]),
            ("AWS AKIA1:frJIUN8DYpKDtOLCwo//yllqDzg=", &["AKIA1"]),
            ("SharedKey account:c2lnbmF0dXJl", &["account"]),
            ("Hawk id=\"ann\", ts=\"1\", ext=\"id of mine\", mac=\"2\"", &["ann"]),
            ("Signature keyId=\"rsa-1\",algorithm=\"hs2019\",signature=\"2\"", &["rsa-1"]),
            ("OAuth oauth_consumer_key=\"app\", oauth_token=\"\", oauth_nonce=\"1\"", &["app"]),
            ("OAuth oauth_consumer_key=\"app\", oauth_token=\"ann\", oauth_nonce=\"1\"", &["ann"]),
        ] {
            assert_eq!(of(text).as_slice(), signers, "{text}");
        }
    }

    #[test]
    fn a_scheme_that_says_nobody_has_no_signer() {
        for text in
            ["Digest nonce=\"1\"", "Bearer id=1", "Custom id=1, sig=2", "Hawk =", "Digest username", "AWS x"]
        {
            assert_eq!(of(text).len(), 0, "{text}");
        }
    }
}
