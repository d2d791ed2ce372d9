//! The parts of a token, read: what its header and its claims say.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde_json::Value;

use super::{Invalid, TokenSettings};
use crate::core::request::TEXT_BYTES_MAX;
use crate::core::time::Timestamp;

/// The header of a token, which describes its signature.
#[derive(Debug, Deserialize)]
pub(super) struct Header {
    pub(super) alg: String,
    pub(super) kid: Option<String>,
    crit: Option<Value>,
}

impl Header {
    pub(super) fn read(part: &str) -> Result<Self, Invalid> {
        let bytes = decode(part)?;
        let header: Self =
            serde_json::from_slice(&bytes).map_err(|_| Invalid::Malformed("its header is not JSON"))?;
        if header.crit.is_some() {
            return Err(Invalid::Malformed("its header asks for extensions that are not known here"));
        }
        Ok(header)
    }
}

/// The claims of a token.
#[derive(Debug)]
pub(super) struct Claims(serde_json::Map<String, Value>);

impl Claims {
    pub(super) fn read(part: &str) -> Result<Self, Invalid> {
        let bytes = decode(part)?;
        let claims = serde_json::from_slice(&bytes);
        claims.map(Self).map_err(|_| Invalid::Malformed("its claims are not a JSON object"))
    }

    /// Checks whether issuer and audience are those that are asked for.
    pub(super) fn accepted(&self, settings: &TokenSettings) -> Result<(), Invalid> {
        let issuer = self.0.get("iss").and_then(Value::as_str);
        if !settings.issuers.is_empty()
            && !issuer.is_some_and(|issuer| settings.issuers.iter().any(|known| known == issuer))
        {
            return Err(Invalid::Claim("iss".into()));
        }
        let wanted = |value: &Value| {
            value.as_str().is_some_and(|text| settings.audiences.iter().any(|known| known == text))
        };
        let named = match self.0.get("aud") {
            Some(Value::Array(list)) => list.iter().any(wanted),
            Some(one) => wanted(one),
            None => false,
        };
        if settings.audiences.is_empty() || named { Ok(()) } else { Err(Invalid::Claim("aud".into())) }
    }

    /// A claim that must be a text, fit to be an attribute's value.
    pub(super) fn text(&self, claim: &str) -> Result<&str, Invalid> {
        let text = self.0.get(claim).and_then(Value::as_str);
        let text = text.filter(|text| (1..=TEXT_BYTES_MAX).contains(&text.len()));
        text.ok_or_else(|| Invalid::Claim(claim.to_owned().into()))
    }

    /// A point in time, in seconds since the epoch, perhaps with a fraction.
    pub(super) fn time(&self, claim: &'static str) -> Result<Option<Timestamp>, Invalid> {
        let Some(value) = self.0.get(claim) else { return Ok(None) };
        if let Some(seconds) = value.as_u64() {
            return Ok(Some(Timestamp(seconds.saturating_mul(1_000_000))));
        }
        let seconds = value.as_f64().filter(|seconds| seconds.is_finite() && *seconds >= 0.0);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "not negative, and saturating is what is meant"
        )]
        let micros = seconds.map(|seconds| Timestamp((seconds * 1e6) as u64));
        micros.map(Some).ok_or(Invalid::Claim(claim.into()))
    }
}

fn decode(part: &str) -> Result<Vec<u8>, Invalid> {
    URL_SAFE_NO_PAD.decode(part).map_err(|_| Invalid::Malformed("a part of it is not base64url"))
}
