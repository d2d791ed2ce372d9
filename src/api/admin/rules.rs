//! `/v1/rules…`: what is in force, in order of precedence; changes to it, each as a whole or not at all; and
//! its history.
//!
//! Every answer carries `revision`, and the same as `ETag`. A change with `If-Match`, or with `revision` in
//! its body, is refused if the rules have changed since.

use http::header::{ETAG, IF_MATCH, IF_NONE_MATCH};
use http::{HeaderValue, StatusCode};
use serde_json::Value;

use super::parameters::Parameters;
use super::{AdminCall, AdminRoute, aside};
use crate::api::error::{Code, Refusal};
use crate::api::reply::{self, Answered, Reply};
use crate::api::wire::rules::{
    ChangedJson, HistoryJson, OneRuleJson, RevisionJson, RuleChangeJson, RuleSetJson,
};
use crate::core::ruleset::RuleSet;
use crate::core::written::{TextPlace, suggestion};
use crate::engine::admin::Role;
use crate::engine::rulebook::{Done, Edit, EditRefused, EditRequest, ShownRevisions, WrittenRule};

/// Most revisions told at once, and how many unless asked otherwise.
const HISTORY_MAX: u32 = 1_000;
const HISTORY_DEFAULT: u32 = 50;
/// Most rules among which the one is looked for that a mistyped name may mean.
const LOOKED_AT_MAX: usize = 10_000;
/// Longest reason for a change, in bytes.
const REASON_BYTES_MAX: usize = 4_096;

pub(super) const ROUTES: &[AdminRoute] = &[
    AdminRoute {
        method: "GET",
        path: "/v1/rules",
        role: Role::Viewer,
        handler: |call| Box::pin(async move { all(&call).await }),
    },
    AdminRoute {
        method: "PUT",
        path: "/v1/rules",
        role: Role::Operator,
        handler: |call| Box::pin(replace(call)),
    },
    AdminRoute {
        method: "GET",
        path: "/v1/rules/history",
        role: Role::Viewer,
        handler: |call| Box::pin(history(call)),
    },
    AdminRoute {
        method: "POST",
        path: "/v1/rules/rollback",
        role: Role::Operator,
        handler: |call| Box::pin(rollback(call)),
    },
    AdminRoute {
        method: "GET",
        path: "/v1/rules/{name}",
        role: Role::Viewer,
        handler: |call| Box::pin(async move { one(&call).await }),
    },
    AdminRoute {
        method: "PUT",
        path: "/v1/rules/{name}",
        role: Role::Operator,
        handler: |call| Box::pin(put(call)),
    },
    AdminRoute {
        method: "DELETE",
        path: "/v1/rules/{name}",
        role: Role::Operator,
        handler: |call| Box::pin(delete(call)),
    },
];

/// Every rule, with the revision of the set.
async fn all(call: &AdminCall<'_>) -> Answered {
    let servers = call.servers;
    let (loaded, shown) = (servers.engine.loaded(), std::sync::Arc::clone(&servers.admin.rule_json));
    let revision = loaded.revision;
    if is_known(call, revision) {
        return Ok(not_modified(revision));
    }
    let text = servers.rules_text.get(revision, None, move || {
        let rules: Vec<_> = loaded.set.rules().iter().map(|compiled| shown(&compiled.rule)).collect();
        let mut text = Vec::new();
        // Fails only for maps whose keys are no strings, and there are none.
        let _ = serde_json::to_writer(&mut text, &RuleSetJson { revision, rules });
        text.into()
    });
    Ok(tagged(revision, reply::json_bytes(text.await?)))
}

/// One rule, named by the path: as it is meant, with every default, or as it was written.
async fn one(call: &AdminCall<'_>) -> Answered {
    let (servers, name) = (call.servers, call.param(0));
    let mut given = Parameters(call.query()?);
    let written = match given.take("written").as_deref() {
        None | Some("false") => false,
        Some("true") => true,
        Some(_) => return Err(Refusal::of_field("written", "must be true or false")),
    };
    given.finish()?;
    if written {
        let written = servers.admin.rules.written(name.to_owned()).await.map_err(refused)?;
        let WrittenRule { revision, rule } = written;
        return Ok(tagged(revision, reply::json(&OneRuleJson { revision, rule })));
    }
    let loaded = servers.engine.loaded();
    let compiled = loaded.set.by_name(name).ok_or_else(|| no_rule(&loaded.set, name))?;
    if is_known(call, loaded.revision) {
        return Ok(not_modified(loaded.revision));
    }
    let rule = (servers.admin.rule_json)(&compiled.rule);
    Ok(tagged(loaded.revision, reply::json(&OneRuleJson { revision: loaded.revision, rule })))
}

async fn replace(call: AdminCall<'_>) -> Answered {
    let mut body = call.long_json().await?;
    let expected = expected(&call, &body)?;
    known_fields(&body, &["rules", "revision"], |key| match key {
        "users" | "tiers" => {
            "rules are put without users and tiers, which have routes of their own".to_owned()
        }
        _ => "the body knows only `rules` and `revision`".to_owned(),
    })?;
    let Some(Value::Array(rules)) = body.get_mut("rules").map(Value::take) else {
        return Err(Refusal::of_field("rules", "the body must be {\"rules\": […]}, all of them"));
    };
    let merges = call.query()?.iter().any(|(name, value)| name == "merge" && value == "true");
    edit(&call, if merges { Edit::Merge(rules) } else { Edit::Replace(rules) }, expected).await
}

async fn put(call: AdminCall<'_>) -> Answered {
    let mut body = call.json()?;
    // As GET shows it, or the rule alone.
    let wrapped = body.get("rule").is_some_and(Value::is_object);
    let expected = if wrapped { expected(&call, &body)? } else { expected(&call, &Value::Null)? };
    let rule = if wrapped { body["rule"].take() } else { body };
    let loaded = call.servers.engine.loaded();
    let is_any = |tag: &HeaderValue| tag.as_bytes().trim_ascii() == b"*";
    let makes = call.head.headers.get(IF_NONE_MATCH).is_some_and(is_any);
    let changes = call.head.headers.get(IF_MATCH).is_some_and(is_any);
    let is_there = loaded.set.by_name(call.param(0)).is_some();
    if makes && is_there {
        return Err(Refusal::new(
            Code::Stale,
            "there is a rule of this name, and If-None-Match: * asks for none",
        ));
    }
    if changes && !is_there {
        return Err(Refusal::new(Code::Stale, "there is no rule of this name, and If-Match: * asks for one"));
    }
    // A rule that somebody else makes meanwhile is in a later revision than this one, which has none.
    let expected = if makes { expected.or(Some(loaded.revision)) } else { expected };
    edit(&call, Edit::Put { name: call.param(0).to_owned(), rule }, expected).await
}

async fn delete(call: AdminCall<'_>) -> Answered {
    let expected = expected(&call, &Value::Null)?;
    edit(&call, Edit::Delete(call.param(0).to_owned()), expected).await
}

async fn rollback(call: AdminCall<'_>) -> Answered {
    let body = call.json()?;
    let expected = expected(&call, &Value::Null)?;
    known_fields(&body, &["revision"], |_| "the body knows only `revision`".to_owned())?;
    let revision = body.get("revision").and_then(Value::as_u64);
    let revision = revision
        .ok_or_else(|| Refusal::of_field("revision", "say which revision to go back to: a whole number"))?;
    edit(&call, Edit::Rollback(revision), expected).await
}

async fn history(call: AdminCall<'_>) -> Answered {
    let mut shown = ShownRevisions { rule: None, before: None, limit: HISTORY_DEFAULT };
    for (name, value) in call.query()? {
        let number =
            || value.parse::<u64>().map_err(|_| Refusal::of_field(name.clone(), "is no whole number"));
        match name.as_str() {
            "rule" => shown.rule = Some(value),
            "before" => shown.before = Some(number()?),
            "limit" => {
                let limit = u32::try_from(number()?).ok().filter(|limit| (1..=HISTORY_MAX).contains(limit));
                let message = format!("must be from 1 to {HISTORY_MAX}");
                shown.limit = limit.ok_or_else(|| Refusal::of_field("limit", message))?;
            }
            _ => return Err(Refusal::of_field(name, "the query knows only `rule`, `before` and `limit`")),
        }
    }
    let revisions = call.servers.admin.rules.history(shown).await.map_err(refused)?;
    let revision = call.servers.engine.loaded().revision;
    let history = revisions.into_iter().map(RevisionJson::from).collect();
    Ok(tagged(revision, reply::json(&HistoryJson { revision, history })))
}

/// Makes an edit and tells what came of it.
pub(super) async fn edit(call: &AdminCall<'_>, edit: Edit, expected: Option<u64>) -> Answered {
    let (mut dry_run, mut reason) = (false, None);
    for (name, value) in call.query()? {
        match (name.as_str(), value.as_str()) {
            ("dry_run", "true") => dry_run = true,
            ("dry_run", "false") => {}
            ("dry_run", _) => return Err(Refusal::of_field("dry_run", "must be true or false")),
            ("merge", "true" | "false") if matches!(edit, Edit::Replace(_) | Edit::Merge(_)) => {}
            ("reason", _) if value.len() > REASON_BYTES_MAX || value.contains('\0') => {
                let message =
                    format!("a reason has at most {REASON_BYTES_MAX} bytes, and none of them is NUL");
                return Err(Refusal::of_field("reason", message));
            }
            ("reason", _) => reason = Some(value).filter(|reason| !reason.is_empty()),
            _ => return Err(Refusal::of_field(name, "the query knows only `dry_run` and `reason`")),
        }
    }
    // Later nothing else says to which revision it went back.
    let reason = match (&edit, reason) {
        (Edit::Rollback(revision), Some(reason)) => Some(format!("{reason} (back to revision {revision})")),
        (Edit::Rollback(revision), None) => Some(format!("back to revision {revision}")),
        (_, reason) => reason,
    };
    let asked = EditRequest { edit, expected, dry_run, actor: call.actor.clone(), reason };
    let edited = call.servers.admin.rules.edit(asked).await;
    let Done { revision, changes } = edited.map_err(|why| match why {
        EditRefused::NoRule(name) => no_rule(&call.servers.engine.loaded().set, &name),
        why => refused(why),
    })?;
    let written = aside(move || {
        let changes = changes.into_iter().map(RuleChangeJson::from).collect();
        reply::json(&ChangedJson { revision, dry_run, changes })
    });
    Ok(tagged(revision, written.await?))
}

/// The revision that the change was made for: `If-Match`, else what the body says.
pub(super) fn expected(call: &AdminCall<'_>, body: &Value) -> Result<Option<u64>, Refusal> {
    if let Some(tag) = call.head.headers.get(IF_MATCH) {
        let text = tag.to_str().unwrap_or_default().trim();
        return if text == "*" { Ok(None) } else { one_of(text, call.servers.engine.loaded().revision) };
    }
    match body.get("revision") {
        None | Some(Value::Null) => Ok(None),
        Some(number) => {
            let number =
                number.as_u64().ok_or_else(|| Refusal::of_field("revision", "must be a whole number"))?;
            Ok(Some(number))
        }
    }
}

/// The revision of a list of tags (RFC 9110, 13.1.1) that a change is made for: the one in force where it is
/// among them, else any of them. A weak tag matches none.
fn one_of(tags: &str, in_force: u64) -> Result<Option<u64>, Refusal> {
    let (mut named, mut weak) = (None, false);
    for tag in tags.split(',').map(str::trim).filter(|tag| !tag.is_empty()) {
        if tag.starts_with("W/") {
            weak = true;
            continue;
        }
        let number = tag.trim_matches('"').parse();
        let number = number.map_err(|_| {
            Refusal::of_field("If-Match", "must be a revision, such as \"12\", or a list of them")
        })?;
        named = if number == in_force { Some(number) } else { named.or(Some(number)) };
        if named == Some(in_force) {
            break;
        }
    }
    match named {
        None if weak => Err(Refusal::new(Code::Stale, "a weak tag (W/) matches no revision for a change")),
        None => Err(Refusal::of_field("If-Match", "names no revision")),
        named => Ok(named),
    }
}

/// True if the client has this revision already.
fn is_known(call: &AdminCall<'_>, revision: u64) -> bool {
    let Some(tags) = call.head.headers.get(IF_NONE_MATCH) else { return false };
    let tags = tags.to_str().unwrap_or_default();
    let strong = |tag: &str| tag.strip_prefix("W/").unwrap_or(tag).trim_matches('"').to_owned();
    tags.split(',').map(str::trim).any(|tag| tag == "*" || strong(tag) == revision.to_string())
}

/// The answer to a client that has this revision.
fn not_modified(revision: u64) -> Reply {
    tagged(revision, reply::with_status(reply::text(""), StatusCode::NOT_MODIFIED))
}

/// Refuses what the body should not have.
pub(super) fn known_fields(
    body: &Value,
    known: &[&str],
    sentence: impl Fn(&str) -> String,
) -> Result<(), Refusal> {
    let Some(fields) = body.as_object() else {
        return Err(Refusal::new(Code::Invalid, "the body must be a JSON object"));
    };
    match fields.keys().find(|key| !known.contains(&key.as_str())) {
        Some(key) => Err(Refusal::of_field(key.chars().take(64).collect::<String>(), sentence(key))),
        None => Ok(()),
    }
}

pub(super) fn tagged(revision: u64, mut reply: Reply) -> Reply {
    if let Ok(tag) = HeaderValue::from_str(&format!("\"{revision}\"")) {
        reply.headers_mut().insert(ETAG, tag);
    }
    reply
}

/// Returns why an edit was not made, as an answer.
pub(super) fn refused(refused: EditRefused) -> Refusal {
    let message = refused.to_string();
    match refused {
        EditRefused::Wrong(problems) => {
            let field = problems.first().and_then(|problem| match &problem.place {
                TextPlace::Field(field) if !field.is_empty() => Some(field.clone()),
                _ => None,
            });
            Refusal { field, ..Refusal::new(Code::Invalid, message) }
        }
        EditRefused::NoRule(_) => Refusal::new(Code::NoRule, message),
        EditRefused::NoRevision(_) => Refusal::new(Code::NoRevision, message),
        EditRefused::Stale(_) => Refusal::new(Code::Stale, message),
        EditRefused::Away(_) => Refusal::new(Code::Away, message),
        EditRefused::Impossible(_) => Refusal::new(Code::Conflict, message),
    }
}

/// There is no rule of this name; perhaps one of this set is meant.
pub(super) fn no_rule(set: &RuleSet, name: &str) -> Refusal {
    let near = meant_rule(set, name);
    let name: String = name.chars().take(64).collect();
    Refusal::new(Code::NoRule, format!("there is no rule {name:?}{near}"))
}

/// Returns which rule may be meant by a name that is none's, behind a sentence on it.
pub(super) fn meant_rule(set: &RuleSet, name: &str) -> String {
    let known = set.rules().iter().take(LOOKED_AT_MAX).map(|compiled| compiled.rule.name.as_str());
    suggestion(name, known).map(|near| format!("; did you mean {near:?}?")).unwrap_or_default()
}

/// Reads an `If-Match` as a stranger wrote it.
#[cfg(feature = "fuzzing")]
pub(in crate::api) fn fuzzed(tags: &str) {
    for in_force in [0, 12, u64::MAX] {
        if let Ok(named) = one_of(tags, in_force) {
            let tag = format!("\"{}\"", named.unwrap_or_default());
            // The revision that was taken is read as itself.
            assert!(
                named.is_some_and(|named| one_of(&tag, in_force).is_ok_and(|again| again == Some(named)))
            );
        }
    }
}
