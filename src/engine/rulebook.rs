//! The source of rules, which also changes them: the port between the admin routes and the file or the
//! database that holds them.

use serde_json::Value;

use super::admin::Actor;
use super::port::Later;
use crate::core::written::Problem;

/// An edit of the rules, as somebody asks for it.
#[derive(Debug, Clone, PartialEq)]
pub enum Edit {
    /// These rules and no others, each in the shape of `rules.toml`.
    Replace(Vec<Value>),
    /// These rules, each new or in place of the one of its name, beside what is there.
    Merge(Vec<Value>),
    /// This rule, new or in place of the one of its name.
    Put {
        /// Name of the rule that is made or replaced.
        name: String,
        /// Rule as JSON, not checked yet.
        rule: Value,
    },
    /// This rule no longer.
    Delete(String),
    /// The set as it was at this revision.
    Rollback(u64),
    /// These shares of a rule, and no others.
    Quotas {
        /// Name of the rule whose shares change.
        rule: String,
        /// All shares of the rule: it keeps no others.
        quotas: Vec<Quota>,
    },
}

impl Edit {
    /// The only rule that it can change; `None`: any.
    #[must_use]
    pub fn rule(&self) -> Option<&str> {
        match self {
            Self::Put { name, .. } | Self::Delete(name) | Self::Quotas { rule: name, .. } => Some(name),
            Self::Replace(_) | Self::Merge(_) | Self::Rollback(_) => None,
        }
    }
}

/// The part of a rule's limit that one region may spend.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Quota {
    /// Name of the region that the share is of.
    pub region: String,
    /// Weight of the region among all of the rule's.
    pub weight: u32,
    /// Its share is never below this part of the limit.
    pub min_percent: u8,
}

/// An edit with its circumstances.
#[derive(Debug, Clone, PartialEq)]
pub struct EditRequest {
    /// Edit to make, all of it or nothing.
    pub edit: Edit,
    /// The revision that the edit was made for; another one refuses it. `None`: whichever it is.
    pub expected: Option<u64>,
    /// True to say what would change, and to change nothing.
    pub dry_run: bool,
    /// Operator who asks for it, for the history.
    pub actor: Actor,
    /// Reason in the actor's own words; `None` where none was given.
    pub reason: Option<String>,
}

/// One rule, or one region's quota of it, before and after.
#[derive(Debug, Clone, PartialEq)]
pub struct RuleChange {
    /// `rule` or `quota`.
    pub kind: &'static str,
    /// Name of the rule.
    pub rule: String,
    /// Name of the region, of a quota.
    pub region: Option<String>,
    /// Document as it was; `None`: it was not there.
    pub before: Option<Value>,
    /// Document as it is; `None`: it is gone.
    pub after: Option<Value>,
}

/// The outcome of an edit.
#[derive(Debug, Clone, PartialEq)]
pub struct Done {
    /// The revision that holds it; for a dry run, and where nothing changed, the one that was there.
    pub revision: u64,
    /// Changes that the edit makes, rule by rule.
    pub changes: Vec<RuleChange>,
}

/// One revision of the rules.
#[derive(Debug, Clone, PartialEq)]
pub struct Revision {
    /// Number of the revision; later ones have higher numbers.
    pub revision: u64,
    /// Instant at which it took force, RFC 3339 in UTC.
    pub at: String,
    /// Author of the revision: a token's name, or a role of the database.
    pub actor: String,
    /// Address that the change came from; `None` where none is known.
    pub source: Option<String>,
    /// Action: `put`, `delete`, `replace`, `rollback`, `quotas`, `sql`, `file`.
    pub action: String,
    /// Reason that the actor gave; `None` for none.
    pub reason: Option<String>,
    /// Number of rules and quotas that it changed.
    pub changes_total: u64,
    /// Changes that it made; the first of them where they are very many.
    pub changes: Vec<RuleChange>,
}

/// One rule as its author wrote it, with nothing that is only meant.
#[derive(Debug, Clone, PartialEq)]
pub struct WrittenRule {
    /// Revision at which it stands so: a change that is made for it is a change of this text.
    pub revision: u64,
    /// Document in the shape of `rules.toml`.
    pub rule: Value,
}

/// The revisions to show, newest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShownRevisions {
    /// Only those that changed this rule.
    pub rule: Option<String>,
    /// Only revisions before this one, which is not included.
    pub before: Option<u64>,
    /// Most revisions that one answer shows.
    pub limit: u32,
}

/// Reasons why an edit was not made. Nothing was changed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum EditRefused {
    /// The rules would be wrong: every problem.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Wrong(Vec<Problem>),
    /// There is no such rule.
    #[error("there is no rule {0:?}")]
    NoRule(String),
    /// There is no such revision, or it is not kept any more.
    #[error("there is no revision {0}, or it is not kept any more")]
    NoRevision(u64),
    /// Somebody changed the rules meanwhile.
    #[error("the rules are at revision {0} by now: look at what changed, and try again with that revision")]
    Stale(u64),
    /// The place where rules are kept does not answer or takes no changes now.
    #[error("{0}")]
    Away(String),
    /// Rules cannot be changed here, and what to do instead.
    #[error("{0}")]
    Impossible(String),
}

/// The source of rules, which also changes them.
pub trait RuleBook: Send + Sync + 'static {
    /// Makes an edit: as a whole or not at all, and only if the set that comes of it is right. The daemon
    /// decides by it once this returns.
    fn edit(&self, asked: EditRequest) -> Later<'_, Result<Done, EditRefused>>;

    /// Returns what became of the rules, newest first.
    fn history(&self, shown: ShownRevisions) -> Later<'_, Result<Vec<Revision>, EditRefused>>;

    /// Returns the rule of this name as it was written.
    fn written(&self, name: String) -> Later<'_, Result<WrittenRule, EditRefused>>;
}

/// Rules that nobody can change.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoRuleBook;

impl RuleBook for NoRuleBook {
    fn edit(&self, _asked: EditRequest) -> Later<'_, Result<Done, EditRefused>> {
        let refused = EditRefused::Impossible("the rules of this daemon cannot be changed".to_owned());
        Box::pin(std::future::ready(Err(refused)))
    }

    fn history(&self, _shown: ShownRevisions) -> Later<'_, Result<Vec<Revision>, EditRefused>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    fn written(&self, _name: String) -> Later<'_, Result<WrittenRule, EditRefused>> {
        let refused = EditRefused::Impossible("the rules of this daemon are not written anywhere".to_owned());
        Box::pin(std::future::ready(Err(refused)))
    }
}

/// How it stands with the rules in force, for `/readyz`.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RulesStatus {
    /// `file`, `postgres`, `none`, or of a daemon that stands in for the Envoy rate limit service `folder` or
    /// `xds`.
    #[cfg_attr(test, schemars(extend("enum" = ["file", "postgres", "none", "folder", "xds"])))]
    pub source: &'static str,
    /// Where the set in force came from: `file`, `database`, `saved`, `peer REGION/NODE`; empty before there
    /// is one.
    pub from: String,
    /// True if the source answers; a file does while it can be read.
    pub reachable: bool,
    /// Why it does not, or why its newest set is not in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// The revision that the source holds, where it is not the one in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused_revision: Option<u64>,
    /// Why the set in force is not saved on this machine, to start from while the source is away.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unsaved: Option<String>,
}
