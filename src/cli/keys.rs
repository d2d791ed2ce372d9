//! `tidegate keys`: making, looking at and taking back API keys.

use std::process::ExitCode;

use clap::Subcommand;
use serde_json::{Map, Value, json};

use super::people::{self, OwnLimits, show_fields};
use super::table::table;
use super::{Ended, Failure, Server, say, try_say, whole, why_lost};

/// API keys: made here, shown once, kept as a hash.
#[derive(Debug, Subcommand)]
pub(super) enum Keys {
    /// Lists keys, by their public names.
    List {
        /// Only those of this user.
        #[arg(long)]
        user: Option<String>,
        /// Only those of this tier.
        #[arg(long)]
        tier: Option<String>,
        /// Only those after this one.
        #[arg(long)]
        after: Option<String>,
        /// At most so many.
        #[arg(long, default_value_t = 100, value_parser = whole::<u32>)]
        limit: u32,
        #[command(flatten)]
        server: Server,
    },
    /// Shows a key, without its secret, which nobody knows but its holder.
    Show {
        /// Its public name, tgk_ and twelve letters.
        id: String,
        #[command(flatten)]
        server: Server,
    },
    /// Makes a key and prints it, this once.
    Create {
        /// Whose it is.
        #[arg(long)]
        user: Option<String>,
        /// Its tier, before the user's.
        #[arg(long)]
        tier: Option<String>,
        #[command(flatten)]
        own: OwnLimits,
        /// When it ends: 2026-12-01T00:00:00Z, or a length of time such as 90d.
        #[arg(long)]
        expires: Option<String>,
        /// Its purpose.
        #[arg(long)]
        note: Option<String>,
        #[command(flatten)]
        server: Server,
    },
    /// Changes a key; what is not named stays.
    Set {
        /// Its public name.
        id: String,
        /// The tier.
        #[arg(long)]
        tier: Option<String>,
        #[command(flatten)]
        own: OwnLimits,
        /// Switches it on or off.
        #[arg(long)]
        active: Option<bool>,
        /// When it ends.
        #[arg(long)]
        expires: Option<String>,
        /// Its purpose.
        #[arg(long)]
        note: Option<String>,
        #[command(flatten)]
        server: Server,
    },
    /// Takes a key back, for ever, on every daemon.
    Revoke {
        /// Its public name.
        id: String,
        /// Why; it is recorded.
        #[arg(long)]
        reason: Option<String>,
        #[command(flatten)]
        server: Server,
    },
}

impl Keys {
    /// Runs it.
    pub(super) fn run(self) -> Ended {
        match self {
            Self::List { user, tier, after, limit, server } => {
                let nobody = match (&user, &tier, &after) {
                    (None, None, None) => None,
                    (Some(user), None, None) => Some(format!("No key is of user {user}.")),
                    (None, Some(tier), None) => Some(format!("No key has tier {tier}.")),
                    (Some(user), Some(tier), None) => Some(format!("No key of user {user} has tier {tier}.")),
                    (_, _, Some(after)) => Some(format!("No key that is asked for comes after {after}.")),
                };
                let limit = Some(limit.to_string());
                let query =
                    people::query(&[("user", user), ("tier", tier), ("after", after), ("limit", limit)]);
                list(&server, &query, nobody)
            }
            Self::Show { id, server } => people::one(&server, "GET", &route(&id, ""), None, show),
            Self::Create { user, tier, own, expires, note, server } => {
                let mut body = own.fresh()?;
                for (field, value) in
                    [("user", user), ("tier", tier), ("expires_at", expires), ("note", note)]
                {
                    value.map(|value| body.insert(field.to_owned(), value.into()));
                }
                create(&server, &body.into())
            }
            Self::Set { id, tier, own, active, expires, note, server } => {
                let mut body = own.body(&server, &route(&id, ""), "key")?;
                for (field, value) in [("tier", tier), ("expires_at", expires), ("note", note)] {
                    value.map(|value| body.insert(field.to_owned(), value.into()));
                }
                active.map(|active| body.insert("active".to_owned(), active.into()));
                people::one(&server, "PATCH", &route(&id, ""), Some(body.into()), show)
            }
            Self::Revoke { id, reason, server } => {
                let body = reason.map_or_else(|| json!({}), |reason| json!({ "reason": reason }));
                people::one(&server, "POST", &route(&id, "/revoke"), Some(body), show)
            }
        }
    }
}

fn route(id: &str, action: &str) -> String {
    format!("/v1/keys/{}{action}", people::escape(id))
}

fn create(server: &Server, body: &Value) -> Ended {
    let reply = server.ask("POST", "/v1/keys", Some(body))?;
    let (id, secret) = (people::plain(&reply.json["key"]["id"]), people::plain(&reply.json["secret"]));
    let is_shown = if server.json { try_say(reply.text.trim_end()) } else { try_say(secret) };
    if !is_shown {
        let why = why_lost();
        return Err(Failure::Failed(anyhow::anyhow!(
            "key {id} was made, and its secret is lost: {why}. It cannot be shown again: take the key back \
             with `tidegate keys revoke {id}`, and make another"
        )));
    }
    if !server.json {
        say(format_args!("\nKeep it now: it cannot be shown again. Its name is {id}."));
    }
    Ok(ExitCode::SUCCESS)
}

/// Lists keys. `nobody`: said where a question for some finds none.
fn list(server: &Server, query: &str, nobody: Option<String>) -> Ended {
    let reply = server.ask("GET", &format!("/v1/keys{query}"), None)?;
    people::print(server, &reply, |json| {
        let keys = json["keys"].as_array().map_or(&[][..], Vec::as_slice);
        if keys.is_empty() {
            let none = || "No keys. Make one with `tidegate keys create --user ID`.".to_owned();
            say(nobody.unwrap_or_else(none));
            return;
        }
        let mut rows =
            table(&["key", "user", "tier", "own limits", "state", "expires", "last seen", "note"], &[]);
        for key in keys {
            rows.add_row([
                people::plain(&key["id"]),
                people::plain(&key["user"]),
                people::plain(&key["tier"]),
                people::overrides(&key["overrides"]),
                state(key).to_owned(),
                people::plain(&key["expires_at"]),
                people::last_seen(key),
                people::plain(&key["note"]),
            ]);
        }
        say(rows);
        people::more(json);
    })
}

fn state(key: &Value) -> &'static str {
    match (key["revoked_at"].is_null(), key["active"].as_bool() == Some(true)) {
        (false, _) => "revoked",
        (true, true) => "active",
        (true, false) => "off",
    }
}

/// Shows the key of an answer as a table.
fn show(answer: &Value) {
    let key = &answer["key"];
    let mut fields = Map::new();
    for field in ["id", "user", "tier"] {
        fields.insert(field.to_owned(), key[field].clone());
    }
    fields.insert("own limits".to_owned(), people::overrides(&key["overrides"]).into());
    fields.insert("state".to_owned(), state(key).into());
    for field in ["expires_at", "note", "created_at", "created_by", "revoked_at", "revoked_by"] {
        fields.insert(field.to_owned(), key[field].clone());
    }
    fields.insert("last seen".to_owned(), people::last_seen(key).into());
    show_fields(&fields);
}
