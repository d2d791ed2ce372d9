//! The common part of the routes of users, keys and tiers: reading what operators write, and telling what
//! went wrong.

use std::collections::BTreeMap;

#[cfg(test)]
use schemars::JsonSchema;
use serde::de::{DeserializeOwned, Deserializer};
use serde::{Deserialize, Serialize};

use super::AdminCall;
use super::rules::meant_rule;
use crate::api::Servers;
use crate::api::error::{Code, Refusal};
use crate::api::json_object::read_object;
use crate::core::identity::UserLimit;
use crate::core::request::TEXT_BYTES_MAX;
use crate::core::time::Timestamp;
use crate::core::written::{parse_moment, parse_span};
use crate::engine::identity::NameRef;
use crate::engine::identity::register::{Filter, PAGE_MAX, RegisterError};

/// Entries of one page, unless asked otherwise.
const PAGE_DEFAULT: u32 = 100;
/// Longest note or reason, in bytes.
pub(super) const NOTE_BYTES_MAX: usize = 4_096;

/// Limits of somebody's own as operators write them: `{"search-free": {"limit": 500}}`.
pub(super) type OverridesBody = BTreeMap<String, OwnLimitBody>;

/// A limit of somebody's own, of a rule that counts.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct OwnLimitBody {
    /// Permits per window.
    limit: u32,
    /// Permits at once; the limit unless said.
    burst: Option<u32>,
}

/// The reason of a change.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct ReasonBody {
    /// Why, in the operator's words; it is kept in the record of changes.
    #[cfg_attr(test, schemars(length(max = NOTE_BYTES_MAX)))]
    reason: Option<String>,
}

impl ReasonBody {
    /// Reads the reason of a request.
    pub(super) fn read(call: &AdminCall<'_>) -> Result<Option<String>, Refusal> {
        body::<Self>(call)?.reason.map(|reason| note("reason", reason)).transpose()
    }
}

/// The thing that was removed.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[cfg_attr(test, schemars(rename = "Removed", deny_unknown_fields))]
pub(in crate::api) struct RemovedJson<'a> {
    /// Its name.
    pub(super) removed: &'a str,
}

/// A field that may be absent, null, or there.
pub(super) fn given<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    json: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(json).map(Some)
}

/// Reads a body; an empty one is `{}`.
pub(super) fn body<T: DeserializeOwned>(call: &AdminCall<'_>) -> Result<T, Refusal> {
    let bytes = if call.body.is_empty() { b"{}" } else { &call.body[..] };
    read_object(bytes).map_err(|error| {
        let code = if error.is_data() { Code::Invalid } else { Code::Malformed };
        Refusal::new(code, format!("the body is not what this route reads: {error}"))
    })
}

/// A text of 1 to 1,024 bytes that a database can hold.
pub(super) fn name(field: &'static str, text: &str) -> Result<String, Refusal> {
    if !(1..=TEXT_BYTES_MAX).contains(&text.len()) || text.contains('\0') {
        let message = format!("{field} has 1 to {TEXT_BYTES_MAX} bytes, none of them NUL");
        return Err(Refusal::of_field(field, message));
    }
    Ok(text.to_owned())
}

/// The same where it is there.
pub(super) fn name_if(field: &'static str, text: Option<String>) -> Result<Option<String>, Refusal> {
    text.map(|text| name(field, &text)).transpose()
}

/// A note or a reason.
pub(super) fn note(field: &'static str, text: String) -> Result<String, Refusal> {
    if text.len() > NOTE_BYTES_MAX || text.contains('\0') {
        let message = format!("{field} has at most {NOTE_BYTES_MAX} bytes, none of them NUL");
        return Err(Refusal::of_field(field, message));
    }
    Ok(text)
}

/// Limits of somebody's own, for rules that there are.
pub(super) fn limits(servers: &Servers, overrides: OverridesBody) -> Result<Vec<UserLimit>, Refusal> {
    let loaded = servers.engine.loaded();
    let limit = |(rule, own): (String, OwnLimitBody)| {
        let field = || format!("overrides.{rule}");
        let Some(compiled) = loaded.set.by_name(&rule) else {
            let near = meant_rule(&loaded.set, &rule);
            return Err(Refusal::of_field(field(), format!("there is no rule {rule:?}{near}")));
        };
        if !compiled.rule.action.counts() {
            return Err(Refusal::of_field(
                field(),
                format!("rule {rule:?} does not count, so it has no limit"),
            ));
        }
        Ok(UserLimit { burst: own.burst.unwrap_or(own.limit), permits: own.limit, rule })
    };
    overrides.into_iter().map(limit).collect()
}

/// A point in time: RFC 3339, or a length of time from now such as `24h`.
pub(super) fn moment(servers: &Servers, field: &'static str, text: &str) -> Result<Timestamp, Refusal> {
    let now = servers.engine.now();
    let at = parse_moment(text).or_else(|| parse_span(text).map(|span| now + span));
    let wrong = || {
        let expected = "a point in time such as \"2026-12-01T00:00:00Z\" or a length of time such as \"24h\"";
        Refusal::of_field(field, format!("{field} must be {expected}"))
    };
    let at = at.ok_or_else(wrong)?;
    if at <= now {
        return Err(Refusal::of_field(field, format!("{field} must lie ahead: it is over already")));
    }
    Ok(at)
}

/// The same where it is there.
pub(super) fn moment_if(
    servers: &Servers,
    field: &'static str,
    text: Option<String>,
) -> Result<Option<Timestamp>, Refusal> {
    text.map(|text| moment(servers, field, &text)).transpose()
}

/// Returns which to list: `after`, `limit`, and what `known` names besides.
pub(super) fn filter(call: &AdminCall<'_>, known: &[&str]) -> Result<Filter, Refusal> {
    let mut filter = Filter { limit: PAGE_DEFAULT, ..Filter::default() };
    for (name, value) in call.query()? {
        let wrong = |expected: &str| Refusal::of_field(name.clone(), format!("{name} must be {expected}"));
        if value.contains('\0') {
            return Err(wrong("without NUL"));
        }
        match name.as_str() {
            "after" => filter.after = Some(value),
            "limit" => {
                let limit = value.parse().ok().filter(|limit| (1..=PAGE_MAX).contains(limit));
                filter.limit = limit.ok_or_else(|| wrong(&format!("a number from 1 to {PAGE_MAX}")))?;
            }
            "tier" if known.contains(&"tier") => filter.tier = Some(value),
            "user" if known.contains(&"user") => filter.user = Some(value),
            "blocked" if known.contains(&"blocked") => {
                filter.blocked = Some(value.parse().map_err(|_| wrong("true or false"))?);
            }
            "revoked" if known.contains(&"revoked") => {
                filter.revoked = Some(value.parse().map_err(|_| wrong("true or false"))?);
            }
            "search" if value.len() > TEXT_BYTES_MAX => {
                return Err(wrong(&format!("a text of at most {TEXT_BYTES_MAX} bytes")));
            }
            "search" if known.contains(&"search") => filter.search = Some(value),
            _ => return Err(Refusal::of_field(name.clone(), format!("the query does not know {name:?}"))),
        }
    }
    Ok(filter)
}

/// Returns when somebody was last seen: as it is written down, or what this daemon has not written yet.
pub(super) fn last_seen(
    call: &AdminCall<'_>,
    name: NameRef<'_>,
    written: Option<Timestamp>,
) -> Option<Timestamp> {
    written.max(call.servers.engine.sightings().of(name))
}

/// Returns what went wrong, as the API tells it.
pub(super) fn refusal(error: RegisterError) -> Refusal {
    let sentence = error.to_string();
    match error {
        RegisterError::Nobody("user", _) => Refusal::new(Code::NoUser, sentence),
        RegisterError::Nobody("tier", _) => Refusal::new(Code::NoTier, sentence),
        RegisterError::Nobody(..) => Refusal::new(Code::NoKey, sentence),
        RegisterError::Refused(field, message) => Refusal::of_field(field, message),
        RegisterError::Away(_) => Refusal::new(Code::Away, sentence),
        RegisterError::Unsupported(_) => Refusal::new(Code::Conflict, sentence),
        RegisterError::Failed(_) => {
            tracing::error!("users and keys: {sentence}");
            Refusal::new(Code::Internal, sentence)
        }
    }
}
