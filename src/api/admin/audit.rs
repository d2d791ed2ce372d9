//! `GET /v1/audit`: single decisions, newest first. `GET /v1/usage`: sums of them, and what a user has left.

use std::net::IpAddr;

use super::audit_json::{AuditJson, DecidedJson, QuotaJson, UsageJson, UsageRowJson};
use super::parameters::Parameters;
use super::{AdminCall, AdminRoute};
use crate::api::error::{Code, Refusal};
use crate::api::http::{Answered, reply};
use crate::core::audit::Outcome;
use crate::core::time::{Span, Timestamp};
use crate::core::written::format_moment;
use crate::engine::admin::Role;
use crate::engine::history::{Cursor, DecisionsAsked, Group, History, StepOfTime, UsageAsked};

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

fn history<'c>(call: &AdminCall<'c>) -> Result<&'c dyn History, Refusal> {
    call.doors.admin.history.as_deref().ok_or_else(|| {
        let message = "this daemon remembers no decisions: it has no database. Name one in [postgres] url";
        Refusal::new(Code::Conflict, message)
    })
}

async fn decisions(call: AdminCall<'_>) -> Answered {
    let history = history(&call)?;
    let now = call.doors.engine.now();
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
        outcome: given.take("outcome").map(|text| outcome(&text)).transpose()?,
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

fn outcome(text: &str) -> Result<Outcome, Refusal> {
    Outcome::from_text(text)
        .ok_or_else(|| Refusal::of_field("outcome", "must be allowed, denied or shadow_denied"))
}

fn cursor(text: &str) -> Result<Cursor, Refusal> {
    let read = || {
        let (at, shown) = text.split_once('-')?;
        Some(Cursor { at: Timestamp(at.parse().ok()?), shown: shown.parse().ok()? })
    };
    read().ok_or_else(|| Refusal::of_field("after", "must be the `next` of an earlier answer"))
}

async fn usage(call: AdminCall<'_>) -> Answered {
    let history = history(&call)?;
    let now = call.doors.engine.now();
    let mut given = Parameters(call.query()?);
    let steps = [StepOfTime::Minute, StepOfTime::Hour, StepOfTime::Day];
    let by = match given.take("by") {
        None => StepOfTime::Hour,
        Some(text) => steps
            .into_iter()
            .find(|step| step.as_str() == text)
            .ok_or_else(|| Refusal::of_field("by", "must be minute, hour or day"))?,
    };
    let group = match given.take("group") {
        None => ("time", Group::Time),
        Some(text) => Group::ALL
            .into_iter()
            .find(|(name, _)| *name == text)
            .ok_or_else(|| Refusal::of_field("group", "must be time, rule, user, path or region"))?,
    };
    let since = match by {
        StepOfTime::Minute => HOUR,
        StepOfTime::Hour => Span(HOUR.micros() * 24),
        StepOfTime::Day => Span(HOUR.micros() * 24 * 30),
    };
    let asked = UsageAsked {
        by,
        from: given.moment("from", now)?.unwrap_or(Timestamp(now.micros().saturating_sub(since.micros()))),
        to: given.moment("to", now)?.unwrap_or(now + HOUR),
        group: group.1,
        rule: given.take("rule"),
        user: given.take("user").filter(|user| !user.is_empty()),
        path: given.take("path").filter(|path| !path.is_empty()),
        region: given.take("region"),
        limit: given.limit()?,
    };
    let domain = given.take("domain").filter(|domain| !domain.is_empty());
    given.finish()?;
    let of_users = asked.user.is_some() || asked.group == Group::User;
    let of_paths = asked.path.is_some() || asked.group == Group::Path;
    if of_users && of_paths {
        let message = "sums are kept for each user and for each path, not for both: ask /v1/audit";
        return Err(Refusal::of_field("path", message));
    }
    let rows = history.usage(&asked).await.map_err(|error| Refusal::new(Code::Away, error.0))?;
    let engine = &call.doors.engine;
    let quotas = match &asked.user {
        Some(user) => Some(engine.quotas(user, domain.as_deref(), asked.rule.as_deref()).await),
        None => None,
    };
    Ok(reply::json(&UsageJson {
        by: by.as_str(),
        group: group.0,
        from: format_moment(asked.from),
        to: format_moment(asked.to),
        rows: rows.iter().map(|row| UsageRowJson::new(row, group.0)).collect(),
        quotas: quotas.as_ref().map(|quotas| quotas.buckets.iter().map(QuotaJson::new).collect()),
        quotas_more: quotas.as_ref().is_some_and(|quotas| quotas.more),
    }))
}
