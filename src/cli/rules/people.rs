//! `[[tiers]]`, `[[users]]` and `[[keys]]` of a rules file: how they differ from a daemon's, making them so,
//! and writing the daemon's out.
//!
//! Entries that the file lacks stay, and so do the parts of a block or a key that an entry does not name.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::cli::people::escape;
use crate::cli::{Failure, Server};
use crate::core::written::parse_moment;
use crate::daemon::WrittenPeople;
use crate::engine::clock::Clock;

/// Entries of one page.
const PAGE: u32 = 1_000;

/// One entry that differs, and the request that makes it so.
pub(super) struct EntryChange {
    /// The kind of entry as the routes name it: `tier`, `user` or `key`.
    kind: &'static str,
    name: String,
    before: Value,
    after: Value,
    method: &'static str,
    route: String,
    body: Value,
}

impl EntryChange {
    /// Returns it as changes of rules are told.
    pub(super) fn told(&self) -> Value {
        json!({ "rule": format!("{} {}", self.kind, self.name), "before": self.before, "after": self.after })
    }

    /// Makes it so.
    pub(super) fn make(&self, server: &Server) -> Result<(), Failure> {
        server.ask(self.method, &self.route, Some(&self.body)).map(drop).map_err(|failure| match failure {
            Failure::Failed(error) => {
                Failure::Failed(error.context(format!("{} {} was not applied", self.kind, self.name)))
            }
            other => other,
        })
    }
}

/// Returns what differs from what the daemon has, tiers before those who have them.
pub(super) fn changes(
    written: &WrittenPeople,
    reason: &str,
    server: &Server,
) -> Result<Vec<EntryChange>, Failure> {
    let mut changes = Vec::new();
    if !written.tiers.is_empty() {
        let there = all(server, "tiers", "name")?;
        changes.extend(written.tiers.iter().filter_map(|tier| tier_change(tier, &there)));
    }
    if !written.users.is_empty() {
        let there = all(server, "users", "id")?;
        changes.extend(written.users.iter().filter_map(|user| user_change(user, &there, reason)));
    }
    if !written.keys.is_empty() {
        let there = all(server, "keys", "id")?;
        for key in &written.keys {
            changes.extend(key_changes(key, &there, reason)?);
        }
    }
    Ok(changes)
}

/// Returns the daemon's tiers and users as a rules file has them, and how many keys it has, which no daemon
/// tells.
pub(super) fn written(server: &Server) -> Result<(Vec<Value>, Vec<Value>, usize), Failure> {
    let tiers = all(server, "tiers", "name")?.into_values().map(|tier| without(&tier, &[]));
    let user = |user: Value| {
        let mut user = without(&user, &["created_at", "updated_at", "last_seen_at"]);
        if let Some(block) = user.get_mut("blocked") {
            *block = without(block, &["since"]);
            if block.as_object().is_some_and(Map::is_empty) {
                *block = true.into();
            }
        }
        let overrides = user.get_mut("overrides").and_then(Value::as_object_mut);
        for own in overrides.into_iter().flat_map(Map::values_mut) {
            // Only buckets without windows have a burst, and theirs is the limit unless it is written.
            if own["burst"] == own["limit"] {
                *own = without(own, &["burst"]);
            }
        }
        user
    };
    let users = all(server, "users", "id")?.into_values().map(user);
    Ok((tiers.collect(), users.collect(), all(server, "keys", "id")?.len()))
}

/// The same without these fields, and without what is empty.
fn without(value: &Value, gone: &[&str]) -> Value {
    let fields = value.as_object().into_iter().flatten().filter(|(name, field)| {
        let empty = field.as_object().is_some_and(Map::is_empty) && *name != "blocked";
        !gone.contains(&name.as_str()) && !field.is_null() && !empty && field.as_str() != Some("")
    });
    Value::Object(fields.map(|(name, field)| (name.clone(), field.clone())).collect())
}

/// All entries of a list that the daemon has, by name.
fn all(server: &Server, list: &str, key: &str) -> Result<BTreeMap<String, Value>, Failure> {
    let mut all = BTreeMap::new();
    let mut after = String::new();
    loop {
        let page = if list == "tiers" { String::new() } else { format!("?limit={PAGE}{after}") };
        let reply = server.get(&format!("/v1/{list}{page}"))?;
        for entry in reply.json[list].as_array().into_iter().flatten() {
            all.insert(entry[key].as_str().unwrap_or_default().to_owned(), entry.clone());
        }
        match reply.json["next"].as_str() {
            Some(next) => after = format!("&after={}", escape(next)),
            None => return Ok(all),
        }
    }
}

fn name_of(entry: &Value, key: &str) -> String {
    entry[key].as_str().unwrap_or_default().to_owned()
}

fn tier_change(tier: &Value, there: &BTreeMap<String, Value>) -> Option<EntryChange> {
    let name = name_of(tier, "name");
    let body = json!({ "description": tier["description"].as_str().unwrap_or_default() });
    let before = there.get(&name);
    if before.is_some_and(|before| before["description"] == body["description"]) {
        return None;
    }
    let before = before.cloned().unwrap_or(Value::Null);
    let after = json!({ "name": name, "description": body["description"] });
    let route = format!("/v1/tiers/{}", escape(&name));
    Some(EntryChange { kind: "tier", name, before, after, method: "PUT", route, body })
}

/// Returns what an entry says of a tier and of limits of one's own, as the daemon tells it.
fn common(entry: &Value) -> Map<String, Value> {
    let own = entry["overrides"].as_object().cloned().unwrap_or_default();
    let own = own.into_iter().map(|(rule, own)| {
        let burst = if own["burst"].is_null() { &own["limit"] } else { &own["burst"] };
        let own = json!({ "limit": own["limit"], "burst": burst });
        (rule, own)
    });
    let mut fields = Map::new();
    fields.insert("tier".to_owned(), entry["tier"].clone());
    fields.insert("overrides".to_owned(), own.collect::<Map<_, _>>().into());
    fields
}

/// The fields of an entry that `wanted` names, as the daemon has them.
fn had(before: Option<&Value>, wanted: &Map<String, Value>) -> Value {
    let Some(before) = before else { return Value::Null };
    Value::Object(wanted.keys().map(|field| (field.clone(), before[field.as_str()].clone())).collect())
}

fn same_moment(one: &Value, other: &Value) -> bool {
    let at = |value: &Value| value.as_str().and_then(parse_moment);
    one == other || (at(one).is_some() && at(one) == at(other))
}

/// A block as both sides say it; `None` where the entry says nothing of one, or of one that has ended.
fn block_of(user: &Value) -> Option<Value> {
    let until = user["blocked"]["until"].as_str().and_then(parse_moment);
    if until.is_some_and(|until| until <= Clock::System.now()) {
        return None;
    }
    match &user["blocked"] {
        Value::Null => None,
        Value::Bool(false) => Some(Value::Null),
        Value::Bool(true) => Some(json!({ "reason": null, "until": null })),
        block => Some(json!({ "reason": block["reason"], "until": block["until"] })),
    }
}

fn same_block(one: &Value, other: &Value) -> bool {
    one.is_object() == other.is_object()
        && one["reason"] == other["reason"]
        && same_moment(&one["until"], &other["until"])
}

fn user_change(user: &Value, there: &BTreeMap<String, Value>, reason: &str) -> Option<EntryChange> {
    let name = name_of(user, "id");
    let before = there.get(&name);
    let mut wanted = common(user);
    if let Some(block) = block_of(user) {
        let now = before.and_then(block_of).unwrap_or(Value::Null);
        let kept = same_block(&block, &now);
        wanted.insert("blocked".to_owned(), if kept { now } else { block });
    }
    let mut had = had(before, &wanted);
    if let Some(block) = had.get_mut("blocked") {
        *block = before.and_then(block_of).unwrap_or(Value::Null);
    }
    if had.as_object() == Some(&wanted) {
        return None;
    }
    let mut body = wanted.clone();
    if !reason.is_empty() {
        body.insert("reason".to_owned(), reason.into());
    }
    let route = format!("/v1/users/{}", escape(&name));
    Some(EntryChange {
        kind: "user",
        name,
        before: had,
        after: wanted.into(),
        method: "PUT",
        route,
        body: body.into(),
    })
}

/// A file holds hashes, of which a daemon makes no key: it changes keys that are there.
fn key_changes(
    key: &Value,
    there: &BTreeMap<String, Value>,
    reason: &str,
) -> Result<Vec<EntryChange>, Failure> {
    let name = name_of(key, "id");
    let refused = |why: String| Err(Failure::Usage(format!("keys: {name}: {why}. Nothing was applied")));
    let Some(before) = there.get(&name) else {
        return refused(
            "the daemon has no such key, and a key is not made from a file: `tidegate keys create` makes one. \
             Take it out of the file"
                .to_owned(),
        );
    };
    if before["user"] != key["user"] {
        return refused(format!("it is the key of {}, and keys change hands never", before["user"]));
    }
    let mut wanted = common(key);
    wanted.insert("active".to_owned(), (key["active"].as_bool() != Some(false)).into());
    let note = key["note"].as_str().unwrap_or_default();
    wanted.insert("note".to_owned(), note.into());
    let expires = &key["expires_at"];
    let kept = same_moment(expires, &before["expires_at"]);
    wanted.insert("expires_at".to_owned(), if kept { &before["expires_at"] } else { expires }.clone());
    let route = format!("/v1/keys/{}", escape(&name));
    let change = |after: Map<String, Value>, method, route| {
        let mut body = if method == "POST" { Map::new() } else { after.clone() };
        if !reason.is_empty() {
            body.insert("reason".to_owned(), reason.into());
        }
        let (name, before) = (name.clone(), had(Some(before), &after));
        EntryChange { kind: "key", name, before, after: after.into(), method, route, body: body.into() }
    };
    let mut changes = Vec::new();
    let is_revoked = !before["revoked_at"].is_null();
    // The daemon says of a revoked key that it is not active, whatever was set.
    if is_revoked {
        wanted.remove("active");
    }
    wanted.retain(|field, value| before[field.as_str()] != *value);
    if !wanted.is_empty() {
        changes.push(change(wanted, "PATCH", route.clone()));
    }
    if !key["revoked_at"].is_null() && !is_revoked {
        let revoked = Map::from_iter([("revoked_at".to_owned(), key["revoked_at"].clone())]);
        changes.push(change(revoked, "POST", format!("{route}/revoke")));
    }
    if key["revoked_at"].is_null() && is_revoked {
        return refused("the daemon has revoked it, which is for ever".to_owned());
    }
    Ok(changes)
}
