//! Operators who ask the daemon to show or change something, and the record of what was changed.

use std::net::IpAddr;

use super::port::Later;

/// The rights of somebody. Each role may do what the ones before it may.
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
    /// Role of the token, which says what the actor may do.
    pub role: Role,
    /// The address it speaks from; `None` on a Unix socket.
    pub source: Option<IpAddr>,
}

/// Something that was changed, by whom.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    /// Operator who made the change, with role and address.
    pub actor: Actor,
    /// Name of the action, such as `user.block`.
    pub action: &'static str,
    /// To what, such as a user's id.
    pub target: String,
    /// State of the target before; `None`: it was not there.
    pub before: Option<serde_json::Value>,
    /// State of the target after; `None`: it is gone.
    pub after: Option<serde_json::Value>,
    /// Reason in the actor's own words; `None` where none was given.
    pub reason: Option<String>,
}

/// A change as it is kept.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(test, schemars(rename = "AdminChange"))]
pub struct ChangeRecord {
    /// Grows with every record of its ledger.
    pub id: u64,
    /// When, RFC 3339 in UTC.
    pub at: String,
    /// Who: a token's name; `local` where none was needed.
    pub actor: String,
    /// With which role.
    #[cfg_attr(test, schemars(extend("enum" = Role::ALL.map(|(name, _)| name))))]
    pub role: String,
    /// From which address; null: a Unix socket.
    pub source: Option<String>,
    /// Through which daemon: its region and node.
    pub region: String,
    /// The node.
    pub node: String,
    /// What was done, such as `user.block`.
    pub action: String,
    /// To what, such as a user's id.
    pub target: String,
    /// As it was; null: it was not there.
    pub before: Option<serde_json::Value>,
    /// As it is; null: it is gone.
    pub after: Option<serde_json::Value>,
    /// Why, in the actor's words.
    pub reason: Option<String>,
}

/// The records to show, newest first. `None`: any.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChangesAsked {
    /// Only changes of this target, such as a user's id.
    pub target: Option<String>,
    /// Only changes by this action, such as `bucket.reset`.
    pub action: Option<String>,
    /// Before the record of this id.
    pub before: Option<u64>,
    /// Most records of one answer, up to [`CHANGES_MAX`].
    pub limit: u32,
}

/// Most records of one answer.
pub const CHANGES_MAX: u32 = 1_000;

/// The record of changes to everything but rules and quotas, which keep a history of their own.
pub trait Ledger: Send + Sync + 'static {
    /// Records a change that has been made. A record that cannot be kept does not undo the change: whoever
    /// made it logs the sentence that comes back.
    fn record<'a>(&'a self, change: &'a Change) -> Later<'a, Result<(), String>>;

    /// Shows records, newest first; the sentence says why there is no answer.
    fn changes<'a>(&'a self, asked: &'a ChangesAsked) -> Later<'a, Result<Vec<ChangeRecord>, String>>;
}

/// A ledger that keeps nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoLedger;

impl Ledger for NoLedger {
    fn record<'a>(&'a self, _change: &'a Change) -> Later<'a, Result<(), String>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn changes<'a>(&'a self, _asked: &'a ChangesAsked) -> Later<'a, Result<Vec<ChangeRecord>, String>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }
}

/// Logs a change and records it; a record that cannot be kept is an error in the log.
pub async fn keep(ledger: &dyn Ledger, change: &Change) {
    log(change);
    if let Err(why) = ledger.record(change).await {
        let (action, target) = (change.action, change.target.as_str());
        tracing::error!(action, target, "a change was made and not recorded: {why}");
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
