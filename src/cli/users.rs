//! `tidegate users`: who they are, their tiers and limits of their own, and blocks.

use clap::Subcommand;
use serde_json::{Map, Value, json};

use super::people::{self, BlockTerms, OwnLimits, show_fields};
use super::table::table;
use super::{Ended, Server, say, whole};

/// Users, their tiers, limits of their own, and blocks.
#[derive(Debug, Subcommand)]
pub(super) enum Users {
    /// Lists users, by id.
    List {
        /// Only those of this tier.
        #[arg(long)]
        tier: Option<String>,
        /// Only those that are blocked.
        #[arg(long)]
        blocked: bool,
        /// Only those after this id.
        #[arg(long)]
        after: Option<String>,
        /// At most so many.
        #[arg(long, default_value_t = 100, value_parser = whole::<u32>)]
        limit: u32,
        #[command(flatten)]
        server: Server,
    },
    /// Shows a user.
    Show {
        /// The user's id.
        id: String,
        #[command(flatten)]
        server: Server,
    },
    /// Gives a user a tier or limits of its own; what is not named stays.
    Set {
        /// The user's id.
        id: String,
        /// The tier.
        #[arg(long, conflicts_with = "no_tier")]
        tier: Option<String>,
        /// No tier of its own.
        #[arg(long)]
        no_tier: bool,
        #[command(flatten)]
        own: OwnLimits,
        /// Why; it is recorded.
        #[arg(long)]
        reason: Option<String>,
        #[command(flatten)]
        server: Server,
    },
    /// Refuses everything that a user asks, on every daemon.
    Block {
        /// The user's id.
        id: String,
        #[command(flatten)]
        block: BlockTerms,
        #[command(flatten)]
        server: Server,
    },
    /// Lifts a block.
    Unblock {
        /// The user's id.
        id: String,
        /// Why; it is recorded.
        #[arg(long)]
        reason: Option<String>,
        #[command(flatten)]
        server: Server,
    },
    /// Removes a user, and the keys that are this user's.
    Remove {
        /// The user's id.
        id: String,
        #[command(flatten)]
        server: Server,
    },
}

impl Users {
    /// Runs it.
    pub(super) fn run(self) -> Ended {
        match self {
            Self::List { tier, blocked, after, limit, server } => {
                let nobody = match (blocked, &tier, &after) {
                    (true, None, None) => Some("No user is blocked.".to_owned()),
                    (true, Some(tier), None) => Some(format!("No user of tier {tier} is blocked.")),
                    (false, Some(tier), None) => Some(format!("No user has tier {tier}.")),
                    (_, _, Some(after)) => Some(format!("No user that is asked for comes after {after}.")),
                    (false, None, None) => None,
                };
                let blocked = blocked.then(|| "true".to_owned());
                let query = people::query(&[
                    ("tier", tier),
                    ("blocked", blocked),
                    ("after", after),
                    ("limit", Some(limit.to_string())),
                ]);
                list(&server, &query, nobody)
            }
            Self::Show { id, server } => people::one(&server, "GET", &route(&id, ""), None, show),
            Self::Set { id, tier, no_tier, own, reason, server } => {
                let mut body = own.body(&server, &route(&id, ""), "user")?;
                if tier.is_some() || no_tier {
                    body.insert("tier".to_owned(), tier.into());
                }
                reason.map(|reason| body.insert("reason".to_owned(), reason.into()));
                people::one(&server, "PATCH", &route(&id, ""), Some(body.into()), show)
            }
            Self::Block { id, block, server } => {
                people::one(&server, "POST", &route(&id, "/block"), Some(block.body()), show)
            }
            Self::Unblock { id, reason, server } => {
                let body = reason.map_or_else(|| json!({}), |reason| json!({ "reason": reason }));
                people::one(&server, "POST", &route(&id, "/unblock"), Some(body), show)
            }
            Self::Remove { id, server } => people::removed(&server, &route(&id, "")),
        }
    }
}

fn route(id: &str, action: &str) -> String {
    format!("/v1/users/{}{action}", people::escape(id))
}

/// Lists users. `nobody`: said where a question for some finds none.
fn list(server: &Server, query: &str, nobody: Option<String>) -> Ended {
    let reply = server.ask("GET", &format!("/v1/users{query}"), None)?;
    people::print(server, &reply, |json| {
        let users = json["users"].as_array().map_or(&[][..], Vec::as_slice);
        if users.is_empty() {
            let none = || "No users. Make one with `tidegate users set ID --tier TIER`.".to_owned();
            say(nobody.unwrap_or_else(none));
            return;
        }
        let mut rows = table(&["user", "tier", "own limits", "blocked", "last seen"], &[]);
        for user in users {
            rows.add_row([
                people::plain(&user["id"]),
                people::plain(&user["tier"]),
                people::overrides(&user["overrides"]),
                blocked(&user["blocked"]),
                people::last_seen(user),
            ]);
        }
        say(rows);
        people::more(json);
    })
}

fn blocked(block: &Value) -> String {
    if !block.is_object() {
        return String::new();
    }
    let until =
        block["until"].as_str().map_or_else(|| "for good".to_owned(), |until| format!("until {until}"));
    let reason = block["reason"].as_str().map(|reason| format!(": {reason}")).unwrap_or_default();
    format!("{until}{reason}")
}

/// Shows the user of an answer as a table.
fn show(answer: &Value) {
    let user = &answer["user"];
    let mut fields = Map::new();
    for field in ["id", "tier"] {
        fields.insert(field.to_owned(), user[field].clone());
    }
    fields.insert("own limits".to_owned(), people::overrides(&user["overrides"]).into());
    fields.insert("blocked".to_owned(), blocked(&user["blocked"]).into());
    for field in ["created_at", "updated_at"] {
        fields.insert(field.to_owned(), user[field].clone());
    }
    fields.insert("last seen".to_owned(), people::last_seen(user).into());
    show_fields(&fields);
}
