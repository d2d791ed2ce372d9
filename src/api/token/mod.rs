//! JSON web tokens (JWT): who a request is from, where its client shows a token that somebody we trust has
//! signed.
//!
//! Signatures are checked with the keys of a JWKS file, each of which stands for one algorithm: what the
//! token's header claims only chooses among them, so neither `none` nor a public key taken for a secret gets
//! through. A token that was checked once is remembered, since a signature costs more than a decision; its
//! times are looked at every time.

mod attribute;
mod claims;
mod keys;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::sync::Arc;

use arc_swap::ArcSwap;
use metrics::Counter;
use quick_cache::sync::Cache;
use ring::digest::{SHA256, digest};

use super::credentials;
use crate::core::time::{Span, Timestamp};
use crate::telemetry::Metrics;

use claims::{Claims, Header};

pub(super) use attribute::{FoundTokens, apply, find, refusal};
pub use keys::{KeyProblem, KeySet};

/// Longest token, in bytes: longer ones are not even looked at.
pub const TOKEN_BYTES_MAX: usize = 8_192;
/// Most tokens of one `Authorization` that are looked at.
const CANDIDATES_MAX: usize = 5;
/// Most checked tokens remembered; more push out those used least.
const REMEMBERED_MAX: usize = 20_000;

/// The conditions that a token must meet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenSettings {
    /// The claim that names the user.
    pub user_claim: String,
    /// Issuers (`iss`) that a token may name; empty accepts any.
    pub issuers: Vec<String>,
    /// Accepted audiences (`aud`), one of which the token must name; empty: any.
    pub audiences: Vec<String>,
    /// Time by which a token may be over, or not have begun, because clocks differ.
    pub leeway: Span,
    /// The treatment of a token that is not valid.
    pub on_invalid: OnInvalid,
}

/// The treatment of a token that is not valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnInvalid {
    /// The request counts by its address, as if it had brought none.
    Address,
    /// The request is refused with 401.
    Refuse,
}

/// Reasons why a token is not valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// It is too long.
    #[error("the token has more than {TOKEN_BYTES_MAX} bytes")]
    TooLong,
    /// It is no token.
    #[error("it is no JSON web token: {0}")]
    Malformed(&'static str),
    /// Its algorithm is not accepted.
    #[error("its algorithm {0:?} is not accepted: only HS256, RS256, ES256 and EdDSA are")]
    Algorithm(String),
    /// No key of the file is for it.
    #[error("no key of the key file is for it")]
    UnknownKey,
    /// The signature is not that of the key.
    #[error("its signature is wrong")]
    Signature,
    /// It is over.
    #[error("it has expired")]
    Expired,
    /// It has not begun.
    #[error("it is not valid yet")]
    NotYet,
    /// A claim is missing or not accepted.
    #[error("its claim {0:?} is missing or not accepted")]
    Claim(Cow<'static, str>),
}

/// A token that was checked.
#[derive(Debug)]
struct Checked {
    user: Arc<str>,
    expires: Timestamp,
    not_before: Timestamp,
}

/// Checks tokens.
pub struct TokenReader {
    settings: TokenSettings,
    keys: ArcSwap<KeySet>,
    remembered: Cache<[u8; 32], Arc<Checked>>,
    valid: Counter,
    invalid: Counter,
}

impl std::fmt::Debug for TokenReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenReader").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl TokenReader {
    /// Checks with these keys.
    #[must_use]
    pub fn new(settings: TokenSettings, keys: KeySet, metrics: &Metrics) -> Self {
        Self {
            settings,
            keys: ArcSwap::from_pointee(keys),
            remembered: Cache::new(REMEMBERED_MAX),
            valid: metrics.counter("identity_tokens_total", "result", "valid"),
            invalid: metrics.counter("identity_tokens_total", "result", "invalid"),
        }
    }

    /// Checks with other keys from now on; what the former ones signed is forgotten.
    pub fn replace(&self, keys: KeySet) {
        self.keys.store(Arc::new(keys));
        self.remembered.clear();
    }

    /// The user whom a token names.
    ///
    /// # Errors
    /// Why it is not valid.
    pub fn verified_user(&self, token: &str, now: Timestamp) -> Result<Arc<str>, Invalid> {
        let user = self.check(token, now);
        if user.is_ok() {
            self.valid.increment(1)
        } else {
            self.invalid.increment(1)
        }
        user
    }

    fn check(&self, token: &str, now: Timestamp) -> Result<Arc<str>, Invalid> {
        if token.len() > TOKEN_BYTES_MAX {
            return Err(Invalid::TooLong);
        }
        let mut name = [0; 32];
        name.copy_from_slice(digest(&SHA256, token.as_bytes()).as_ref());
        let keys = self.keys.load_full();
        let checked = match self.remembered.get(&name) {
            Some(checked) => checked,
            None => {
                let (checked, is_exact) = self.verify(&keys, token)?;
                let checked = Arc::new(checked);
                // A token has any number of lax spellings: they must not push out others.
                if is_exact {
                    self.remembered.insert(name, Arc::clone(&checked));
                }
                // Replaced meanwhile: the keys that signed it may be gone.
                if !Arc::ptr_eq(&keys, &self.keys.load()) {
                    self.remembered.remove(&name);
                }
                checked
            }
        };
        let leeway = self.settings.leeway;
        if checked.expires + leeway <= now {
            return Err(Invalid::Expired);
        }
        if now + leeway < checked.not_before {
            return Err(Invalid::NotYet);
        }
        Ok(Arc::clone(&checked.user))
    }

    /// Also whether its signature is spelled as it should be.
    fn verify(&self, keys: &KeySet, token: &str) -> Result<(Checked, bool), Invalid> {
        let (signed, signature) =
            token.rsplit_once('.').ok_or(Invalid::Malformed("it has no three parts"))?;
        let (header, payload) = signed.split_once('.').ok_or(Invalid::Malformed("it has no three parts"))?;
        let header = Header::read(header)?;
        let is_exact = keys.verify(&header, signed, signature)?;
        // Only what is signed is read.
        let claims = Claims::read(payload)?;
        claims.accepted(&self.settings)?;
        let checked = Checked {
            user: claims.text(&self.settings.user_claim)?.into(),
            expires: claims.time("exp")?.ok_or(Invalid::Claim("exp".into()))?,
            not_before: claims.time("nbf")?.unwrap_or_default(),
        };
        Ok((checked, is_exact))
    }
}

/// The user in the value of an `Authorization`.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum TokenUser {
    /// Nothing: it shows no token.
    Nothing,
    /// It shows a token that is not valid.
    Nobody,
    /// A valid token names this user.
    Named(Arc<str>),
}

impl TokenReader {
    /// Reads the token in the value of an `Authorization`. A valid one names its user whatever scheme stands
    /// before it, since there are services that look at the token alone.
    ///
    /// # Errors
    /// For a `Bearer` that shows no valid token, where these are refused.
    pub(super) fn user_of(&self, authorization: &[u8], now: Timestamp) -> Result<TokenUser, Invalid> {
        // Some gateways join what comes twice by commas.
        let mut schemes = credentials::values(authorization).filter_map(|one| credentials::words(one).next());
        let is_bearer = schemes.any(credentials::is_bearer);
        let mut problem = None;
        let mut named: Option<Arc<str>> = None;
        let mut looked_at = 0;
        let words = credentials::values(authorization).flat_map(credentials::words);
        for word in words {
            let word = credentials::bare(credentials::behind_bearer(word));
            let Ok(token) = std::str::from_utf8(word) else { continue };
            if token.split('.').count() != 3 {
                continue;
            }
            looked_at += 1;
            if looked_at > CANDIDATES_MAX {
                return Err(Invalid::Malformed("too many tokens stand in one `Authorization`"));
            }
            match self.verified_user(token, now) {
                Ok(user) if named.as_ref().is_some_and(|named| *named != user) => {
                    return Err(Invalid::Malformed("it comes beside the token of somebody else"));
                }
                Ok(user) => named = Some(user),
                Err(invalid) => problem = problem.or(Some(invalid)),
            }
        }
        if let Some(user) = named {
            return Ok(TokenUser::Named(user));
        }
        if !is_bearer {
            return Ok(TokenUser::Nothing);
        }
        match (self.settings.on_invalid, problem) {
            (OnInvalid::Refuse, problem) => {
                Err(problem.unwrap_or(Invalid::Malformed("`Bearer` is followed by something else")))
            }
            // A secret that is no token may be an API key.
            (OnInvalid::Address, None) => Ok(TokenUser::Nothing),
            (OnInvalid::Address, Some(_)) => Ok(TokenUser::Nobody),
        }
    }
}
