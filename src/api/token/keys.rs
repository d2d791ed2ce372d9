//! The keys of a JWKS file (RFC 7517). Each stands for the one algorithm that its type means.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, DecodingKey, crypto};
use serde::Deserialize;

use super::Invalid;
use super::claims::Header;
use crate::api::credentials::decodings;

/// Most keys of a file.
const KEYS_MAX: usize = 100;
/// Shortest secret of HS256, in bytes (RFC 7518, 3.2).
const SECRET_BYTES_MIN: usize = 32;
/// Most keys tried for a token that does not say which one signed it.
const TRIED_MAX: usize = 8;
/// Most bytes that a lax spelling of one signature is tried as.
const SPELLINGS_MAX: usize = 3;

/// A file of keys that cannot be used: a sentence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct KeyProblem(String);

/// Keys that check signatures.
#[derive(Default)]
pub struct KeySet {
    keys: Vec<Key>,
    skipped: Vec<String>,
}

impl std::fmt::Debug for KeySet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeySet").field("keys", &self.keys.len()).finish_non_exhaustive()
    }
}

struct Key {
    id: Option<String>,
    algorithm: Algorithm,
    key: DecodingKey,
}

#[derive(Deserialize)]
struct File {
    keys: Vec<serde_json::Value>,
}

#[derive(Deserialize)]
struct Jwk {
    kty: String,
    kid: Option<String>,
    alg: Option<String>,
    #[serde(rename = "use")]
    usage: Option<String>,
    crv: Option<String>,
    k: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

impl KeySet {
    /// Reads a JWKS document. Keys for other purposes or algorithms are skipped.
    ///
    /// # Errors
    /// When it is none, or holds keys of which none can be used.
    pub fn from_json(text: &str) -> Result<Self, KeyProblem> {
        let file: File = serde_json::from_str(text)
            .map_err(|error| KeyProblem(format!("expected a JWKS document, {{\"keys\": […]}}: {error}")))?;
        if file.keys.len() > KEYS_MAX {
            return Err(KeyProblem(format!(
                "it has {} keys, at most {KEYS_MAX} are possible",
                file.keys.len()
            )));
        }
        let (mut keys, mut skipped) = (Vec::new(), Vec::new());
        for (place, json) in file.keys.into_iter().enumerate() {
            let read = serde_json::from_value(json).map_err(|error| error.to_string()).and_then(read);
            match read {
                Ok(key) => keys.push(key),
                Err(why) => skipped.push(format!("keys[{place}]: {why}")),
            }
        }
        // None at all is an answer: the last key was withdrawn.
        if keys.is_empty() && !skipped.is_empty() {
            return Err(KeyProblem(format!("it holds no key that can be used: {}", skipped.join("; "))));
        }
        Ok(Self { keys, skipped })
    }

    /// Returns how many keys there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Returns whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// The keys that were skipped, and why.
    #[must_use]
    pub fn skipped(&self) -> &[String] {
        &self.skipped
    }

    /// Checks that a key of this set signed it, and tells whether the signature is spelled as it should be.
    /// Nobody signs how it is spelled, and libraries (PyJWT, golang-jwt) take lax spellings: whoever chose
    /// one would be nobody here and somebody to the service.
    pub(super) fn verify(&self, header: &Header, signed: &str, signature: &str) -> Result<bool, Invalid> {
        let algorithm = match header.alg.as_str() {
            "HS256" => Algorithm::HS256,
            "RS256" => Algorithm::RS256,
            "ES256" => Algorithm::ES256,
            "EdDSA" => Algorithm::EdDSA,
            other => return Err(Invalid::Algorithm(other.chars().take(32).collect())),
        };
        let mine = |key: &&Key| key.algorithm == algorithm && (header.kid.is_none() || header.kid == key.id);
        let fitting = || self.keys.iter().filter(mine).take(TRIED_MAX);
        if fitting().next().is_none() {
            return Err(Invalid::UnknownKey);
        }
        for decoded in decodings(signature.as_bytes()).into_iter().take(SPELLINGS_MAX) {
            let exact = URL_SAFE_NO_PAD.encode(decoded);
            let signs =
                |key: &Key| crypto::verify(&exact, signed.as_bytes(), &key.key, algorithm).unwrap_or(false);
            if fitting().any(signs) {
                return Ok(exact == signature);
            }
        }
        Err(Invalid::Signature)
    }
}

fn read(jwk: Jwk) -> Result<Key, String> {
    if jwk.usage.as_deref().is_some_and(|usage| usage != "sig") {
        return Err("it is not for signatures".to_owned());
    }
    let (name, algorithm) = match (jwk.kty.as_str(), jwk.crv.as_deref()) {
        ("oct", _) => ("HS256", Algorithm::HS256),
        ("RSA", _) => ("RS256", Algorithm::RS256),
        ("EC", Some("P-256")) => ("ES256", Algorithm::ES256),
        ("OKP", Some("Ed25519")) => ("EdDSA", Algorithm::EdDSA),
        (kty, crv) => return Err(format!("type {kty:?} {} is not known", crv.unwrap_or_default())),
    };
    if let Some(other) = jwk.alg.as_deref().filter(|alg| *alg != name) {
        return Err(format!("a key of this type is for {name}, not for {other:?}"));
    }
    let part = |name: &str, part: &Option<String>| part.clone().ok_or_else(|| format!("{name:?} is missing"));
    let wrong = |_| "its parts are not those of a key".to_owned();
    let key = match algorithm {
        Algorithm::HS256 => {
            let secret = URL_SAFE_NO_PAD.decode(part("k", &jwk.k)?).map_err(|_| "\"k\" is not base64url")?;
            if secret.len() < SECRET_BYTES_MIN {
                return Err(format!(
                    "a secret has at least {SECRET_BYTES_MIN} bytes, this one has {}",
                    secret.len()
                ));
            }
            DecodingKey::from_secret(&secret)
        }
        Algorithm::RS256 => {
            DecodingKey::from_rsa_components(&part("n", &jwk.n)?, &part("e", &jwk.e)?).map_err(wrong)?
        }
        Algorithm::ES256 => {
            DecodingKey::from_ec_components(&part("x", &jwk.x)?, &part("y", &jwk.y)?).map_err(wrong)?
        }
        _ => DecodingKey::from_ed_components(&part("x", &jwk.x)?).map_err(wrong)?,
    };
    Ok(Key { id: jwk.kid, algorithm, key })
}
