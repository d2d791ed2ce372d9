//! Who asks the daemon to show or change something, and the record of what was changed.

use std::net::IpAddr;

use super::port::Later;

/// What somebody may do. Each role may do what the ones before it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Look.
    Viewer,
    /// Change rules, quotas and users.
    Operator,
    /// Everything: API keys too.
    Admin,
}

impl Role {
    /// Every role by its name.
    pub const ALL: [(&'static str, Self); 3] =
        [("viewer", Self::Viewer), ("operator", Self::Operator), ("admin", Self::Admin)];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }
}

/// Somebody whom the guard let in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Actor {
    /// The token's name; `local` where none is needed.
    pub name: String,
    /// What it may do.
    pub role: Role,
    /// The address it speaks from; `None` on a Unix socket.
    pub source: Option<IpAddr>,
}

/// Something that was changed, by whom.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    /// Who.
    pub actor: Actor,
    /// What was done, such as `user.block`.
    pub action: &'static str,
    /// To what, such as a user's id.
    pub target: String,
    /// As it was; `None`: it was not there.
    pub before: Option<serde_json::Value>,
    /// As it is; `None`: it is gone.
    pub after: Option<serde_json::Value>,
    /// Why, in the actor's words.
    pub reason: Option<String>,
}

/// Where changes are recorded. Rules keep their own history; everything else goes here.
pub trait Ledger: Send + Sync + 'static {
    /// Records a change that has been made. A record that cannot be kept is logged and counted: it does not undo the change.
    fn record<'a>(&'a self, change: &'a Change) -> Later<'a, ()>;
}

/// A ledger that only logs.
#[derive(Debug, Clone, Copy, Default)]
pub struct Logged;

impl Ledger for Logged {
    fn record<'a>(&'a self, change: &'a Change) -> Later<'a, ()> {
        log(change);
        Box::pin(std::future::ready(()))
    }
}

/// Writes a change to the log.
pub fn log(change: &Change) {
    let source = change.actor.source.map_or_else(|| "unix".to_owned(), |address| address.to_string());
    tracing::info!(
        actor = %change.actor.name,
        role = change.actor.role.name(),
        %source,
        action = change.action,
        target = %change.target,
        reason = change.reason.as_deref().unwrap_or_default(),
        "changed by an operator"
    );
}
