//! `GET /v1/audit`: single decisions, newest first. `GET /v1/usage`: sums of them, and what a user or key has
//! left.

use std::net::IpAddr;

use super::audit_json::{AuditJson, DecidedJson, QuotaJson, UsageJson, UsageRowJson};
use super::parameters::Parameters;
use super::{AdminCall, AdminRoute};
use crate::api::error::{Code, Refusal};
use crate::api::reply::{self, Answered};
use crate::core::audit::Outcome;
use crate::core::denial_cause::DenialCause;
use crate::core::identity::parse_key;
use crate::core::time::{Span, Timestamp};
use crate::core::written::format_moment;
use crate::engine::admin::Role;
use crate::engine::history::{Cursor, DecisionsAsked, Group, History, Recorded, StepOfTime, UsageAsked};
use crate::engine::quotas::{NoQuotas, QuotaOwner, Quotas};

pub(super) const ROUTES: &[AdminRoute] = &[
    AdminRoute {
        method: "GET",
        path: "/v1/audit",
        role: Role::Viewer,
        handler: |call| Box::pin(decisions(call)),
    },
    AdminRoute {
        method: "GET",
        path: "/v1/usage",
        role: Role::Viewer,
        handler: |call| Box::pin(usage(call)),
    },
];

const HOUR: Span = Span::from_secs(3_600);
const DAY: Span = Span::from_secs(86_400);

fn history<'c>(call: &AdminCall<'c>) -> Result<&'c dyn History, Refusal> {
    call.servers.admin.history.as_deref().ok_or_else(|| {
        let message = "this daemon remembers no decisions: it has no database. Name one in [postgres] url";
        Refusal::new(Code::Conflict, message)
    })
}

async fn decisions(call: AdminCall<'_>) -> Answered {
    let history = history(&call)?;
    let now = call.servers.engine.now();
    let mut given = Parameters(call.query()?);
    let asked = DecisionsAsked {
        from: given
            .moment("from", now)?
            .unwrap_or(Timestamp(now.micros().saturating_sub(24 * HOUR.micros()))),
        to: given.moment("to", now)?.unwrap_or(now + HOUR),
        user: given.take("user"),
        key: given.take("key"),
        address: given.take("address").map(address).transpose()?,
        rule: given.take("rule"),
        region: given.take("region"),
        outcomes: given.take("outcome").map(|text| outcomes(&text)).transpose()?.unwrap_or_default(),
        cause: given.take("cause").map(|text| cause(&text)).transpose()?,
        request_id: given.take("request_id").filter(|name| !name.is_empty()),
        limit: given.limit()?,
        after: given.take("after").map(|text| cursor(&text)).transpose()?,
    };
    given.finish()?;
    let decided = history.decisions(&asked).await.map_err(|error| Refusal::new(Code::Away, error.0))?;
    let full = decided.len() >= usize::try_from(asked.limit).unwrap_or(usize::MAX);
    let next = decided.last().filter(|_| full).map(|last| {
        let same = decided.iter().filter(|row| row.at == last.at).count();
        let before = asked.after.filter(|after| after.at == last.at).map_or(0, |after| after.shown);
        format!("{}-{}", last.at.micros(), u32::try_from(same).unwrap_or(u32::MAX).saturating_add(before))
    });
    Ok(reply::json(&AuditJson { decisions: decided.iter().map(DecidedJson::new).collect(), next }))
}

fn address(text: String) -> Result<IpAddr, Refusal> {
    text.parse().map_err(|_| Refusal::of_field("address", "must be an address such as 203.0.113.7"))
}

/// Returns one outcome or several.
fn outcomes(text: &str) -> Result<Vec<Outcome>, Refusal> {
    let outcomes: Option<Vec<_>> = text.split(',').map(Outcome::from_text).collect();
    outcomes.filter(|outcomes| outcomes.len() <= Outcome::ALL.len()).ok_or_else(|| {
        let words = Outcome::WORDS.join(", ");
        Refusal::of_field("outcome", format!("must be one of {words}, or several with commas between them"))
    })
}

fn cause(text: &str) -> Result<DenialCause, Refusal> {
    DenialCause::from_text(text).ok_or_else(|| {
        Refusal::of_field("cause", format!("must be one of {}", DenialCause::WORDS.join(", ")))
    })
}

fn cursor(text: &str) -> Result<Cursor, Refusal> {
    let read = || {
        let (at, shown) = text.split_once('-')?;
        Some(Cursor { at: Timestamp(at.parse().ok()?), shown: shown.parse().ok()? })
    };
    read().ok_or_else(|| Refusal::of_field("after", "must be the `next` of an earlier answer"))
}

async fn usage(call: AdminCall<'_>) -> Answered {
    let mut given = Parameters(call.query()?);
    let domain = given.take("domain").filter(|domain| !domain.is_empty());
    let (asked, group) = usage_asked(given, call.servers.engine.now())?;
    // The buckets say how much is left, also where no decision is remembered.
    let history = match history(&call) {
        Ok(history) => Some(history),
        Err(_) if asked.user.is_some() || asked.key.is_some() => None,
        Err(nothing) => return Err(nothing),
    };
    let rows = match history {
        Some(history) => history.usage(&asked).await.map_err(|error| Refusal::new(Code::Away, error.0))?,
        None => Vec::new(),
    };
    let recorded = history.map(History::recorded);
    let quotas = quotas(&call, &asked, domain.as_deref(), rows.is_empty()).await?;
    Ok(reply::json(&UsageJson {
        by: asked.by.as_str(),
        group,
        from: format_moment(asked.from),
        to: format_moment(asked.to),
        allowed_sample: recorded.as_deref().map(Recorded::allowed_sample),
        exact_rules: recorded.as_deref().map_or(&[], |recorded| &recorded.exact_rules),
        rows: rows.iter().map(|row| UsageRowJson::new(row, group)).collect(),
        quotas: quotas.as_ref().map(|quotas| quotas.buckets.iter().map(QuotaJson::new).collect()),
        quotas_more: quotas.as_ref().is_some_and(|quotas| quotas.more),
        owner: quotas.as_ref().and_then(|quotas| quotas.owner.as_deref()),
        refused: quotas.as_ref().and_then(|quotas| quotas.refused),
    }))
}

/// Returns which sums the parameters ask for, and the name of their group.
fn usage_asked(mut given: Parameters, now: Timestamp) -> Result<(UsageAsked, &'static str), Refusal> {
    let group = match given.take("group") {
        None => ("time", Group::Time),
        Some(text) => Group::ALL
            .into_iter()
            .find(|(name, _)| *name == text)
            .ok_or_else(|| Refusal::of_field("group", "must be time, rule, user, key, path or region"))?,
    };
    let user = given.take("user").filter(|user| !user.is_empty());
    let key = given.take("key").filter(|key| !key.is_empty());
    let path = given.take("path").filter(|path| !path.is_empty());
    let of_keys = key.is_some() || group.1 == Group::Key;
    let by = match given.take("by") {
        None if of_keys => StepOfTime::Day,
        None => StepOfTime::Hour,
        Some(text) => StepOfTime::ALL
            .into_iter()
            .find(|step| step.as_str() == text)
            .ok_or_else(|| Refusal::of_field("by", "must be minute, hour, day or month"))?,
    };
    if of_keys && matches!(by, StepOfTime::Minute | StepOfTime::Hour) {
        let message = "sums of keys are kept by day: ask by day or month, or /v1/audit for single decisions";
        return Err(Refusal::of_field("by", message));
    }
    let kinds = [
        ("user", user.is_some() || group.1 == Group::User),
        ("key", of_keys),
        ("path", path.is_some() || group.1 == Group::Path),
    ];
    let mut wanted = kinds.iter().filter(|(_, wanted)| *wanted);
    if let (Some(_), Some((second, _))) = (wanted.next(), wanted.next()) {
        let message = "sums are kept for each user, for each key and for each path, not for two of them: \
                       ask /v1/audit";
        return Err(Refusal::of_field(*second, message));
    }
    let since = match by {
        StepOfTime::Minute => HOUR,
        StepOfTime::Hour => DAY,
        StepOfTime::Day => Span(DAY.micros() * 30),
        StepOfTime::Month => Span(DAY.micros() * 365),
    };
    let asked = UsageAsked {
        by,
        from: given.moment("from", now)?.unwrap_or(Timestamp(now.micros().saturating_sub(since.micros()))),
        to: given.moment("to", now)?.unwrap_or(now + HOUR),
        group: group.1,
        rule: given.take("rule"),
        user,
        // The secret part goes no further.
        key: key.map(|key| parse_key(&key).map(|shown| shown.id.to_owned()).unwrap_or(key)),
        path,
        region: given.take("region"),
        limit: given.limit()?,
    };
    given.finish()?;
    Ok((asked, group.0))
}

/// The quotas of the user or key that was asked for. A key that is none is refused, unless something of it
/// is remembered: it was removed.
async fn quotas(
    call: &AdminCall<'_>,
    asked: &UsageAsked,
    domain: Option<&str>,
    nothing_remembered: bool,
) -> Result<Option<Quotas>, Refusal> {
    let owner = match (&asked.user, &asked.key) {
        (Some(user), _) => QuotaOwner::User(user),
        (None, Some(key)) => QuotaOwner::Key(key),
        (None, None) => return Ok(None),
    };
    match call.servers.engine.quotas(owner, domain, asked.rule.as_deref()).await {
        Ok(quotas) => Ok(Some(quotas)),
        Err(NoQuotas::UnknownKey) if !nothing_remembered => Ok(Some(Quotas::default())),
        Err(why @ NoQuotas::UnknownKey) => Err(Refusal::new(Code::NoKey, why.to_string())),
        Err(why @ NoQuotas::NotInTime) => Err(Refusal::new(Code::Away, why.to_string())),
    }
}
