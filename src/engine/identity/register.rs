//! Users, API keys and tiers as operators see and change them: the port, and what goes through it.

#[cfg(test)]
use schemars::JsonSchema;
use serde::{Serialize, Serializer};

use crate::core::identity::{Block, UserLimit};
use crate::core::time::Timestamp;
use crate::core::written::format_moment;
use crate::engine::admin::Actor;
use crate::engine::port::Later;

/// Most entries of one page.
pub const PAGE_MAX: u32 = 1_000;

/// A user, with everything that is known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[cfg_attr(test, schemars(rename = "User", deny_unknown_fields))]
pub struct UserRecord {
    /// The user, as rules and identities name it.
    pub id: String,
    /// The user's tier; null: none.
    pub tier: Option<String>,
    /// Limits of the user's own, by rule.
    #[serde(serialize_with = "as_table")]
    #[cfg_attr(test, schemars(with = "std::collections::BTreeMap<String, OwnLimit>"))]
    pub overrides: Vec<UserLimit>,
    /// The block; null: the user may ask.
    pub blocked: Option<BlockRecord>,
    /// RFC 3339; absent where it is not known.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "as_moment")]
    #[cfg_attr(test, schemars(with = "Option<String>"))]
    pub created_at: Option<Timestamp>,
    /// RFC 3339; absent where it is not known.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "as_moment")]
    #[cfg_attr(test, schemars(with = "Option<String>"))]
    pub updated_at: Option<Timestamp>,
    /// When a request named the user last, to the minute; absent where none is remembered.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "as_moment")]
    #[cfg_attr(test, schemars(with = "Option<String>"))]
    pub last_seen_at: Option<Timestamp>,
}

/// A block, with its beginning where that is known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[cfg_attr(test, schemars(rename = "Block", deny_unknown_fields))]
pub struct BlockRecord {
    /// Why, in the operator's words.
    pub reason: Option<String>,
    /// RFC 3339; null: until it is lifted.
    #[serde(serialize_with = "as_moment")]
    #[cfg_attr(test, schemars(with = "Option<String>"))]
    pub until: Option<Timestamp>,
    /// RFC 3339; absent where it is not known.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "as_moment")]
    #[cfg_attr(test, schemars(with = "Option<String>"))]
    pub since: Option<Timestamp>,
}

/// An API key, without anything of its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[cfg_attr(test, schemars(rename = "Key", deny_unknown_fields))]
pub struct KeyRecord {
    /// The key's public name.
    pub id: String,
    /// Whose it is; null: nobody's.
    pub user: Option<String>,
    /// The key's own tier; null: the user's.
    pub tier: Option<String>,
    /// Limits of the key's own, by rule.
    #[serde(serialize_with = "as_table")]
    #[cfg_attr(test, schemars(with = "std::collections::BTreeMap<String, OwnLimit>"))]
    pub overrides: Vec<UserLimit>,
    /// True if it may be used.
    pub active: bool,
    /// What its operator noted.
    pub note: String,
    /// RFC 3339; null: it does not expire.
    #[serde(serialize_with = "as_moment")]
    #[cfg_attr(test, schemars(with = "Option<String>"))]
    pub expires_at: Option<Timestamp>,
    /// RFC 3339; null where it is not known.
    #[serde(serialize_with = "as_moment")]
    #[cfg_attr(test, schemars(with = "Option<String>"))]
    pub created_at: Option<Timestamp>,
    /// Who made it; null where that is not known.
    pub created_by: Option<String>,
    /// RFC 3339; null: it was not taken back.
    #[serde(serialize_with = "as_moment")]
    #[cfg_attr(test, schemars(with = "Option<String>"))]
    pub revoked_at: Option<Timestamp>,
    /// Who took it back.
    pub revoked_by: Option<String>,
    /// When a request showed the key last, to the minute; absent where none is remembered.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "as_moment")]
    #[cfg_attr(test, schemars(with = "Option<String>"))]
    pub last_seen_at: Option<Timestamp>,
}

/// A tier.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[cfg_attr(test, schemars(rename = "Tier", deny_unknown_fields))]
pub struct TierRecord {
    /// Its name.
    pub name: String,
    /// Its purpose.
    pub description: String,
}

/// The users or keys to list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// Only users or keys of this tier.
    pub tier: Option<String>,
    /// Only keys that belong to this user.
    pub user: Option<String>,
    /// Users that are blocked, or are not.
    pub blocked: Option<bool>,
    /// Keys that were taken back, or were not.
    pub revoked: Option<bool>,
    /// Only users whose id has this text in it, and keys whose name, user or note has; case does not matter.
    pub search: Option<String>,
    /// Only names that come after this one.
    pub after: Option<String>,
    /// At most so many, up to [`PAGE_MAX`].
    pub limit: u32,
}

impl Filter {
    /// True if one of these texts has in it what is searched, or nothing is.
    #[must_use]
    pub fn finds(&self, texts: &[&str]) -> bool {
        self.search.as_deref().is_none_or(|search| {
            let search = search.to_lowercase();
            texts.iter().any(|text| text.to_lowercase().contains(&search))
        })
    }
}

/// The changes to a user. `None`: stays.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UserChange {
    /// `Some(None)` takes the tier away; `Some(Some)` sets another.
    pub tier: Option<Option<String>>,
    /// Limits of the user's own, in place of those before.
    pub overrides: Option<Vec<UserLimit>>,
    /// `Some(None)` lifts the block; `Some(Some)` sets one.
    pub blocked: Option<Option<Block>>,
    /// Action as the record names it, such as `user.block`.
    pub action: &'static str,
    /// Reason in the actor's own words; `None` where none was given.
    pub reason: Option<String>,
}

/// A key to be made.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are those of the key, which documents them")]
pub struct KeyDraft {
    pub user: Option<String>,
    pub tier: Option<String>,
    pub overrides: Vec<UserLimit>,
    pub expires: Option<Timestamp>,
    pub note: String,
}

/// The changes to a key. `None`: stays.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are those of the key, which documents them")]
pub struct KeyChange {
    pub tier: Option<Option<String>>,
    pub overrides: Option<Vec<UserLimit>>,
    pub active: Option<bool>,
    pub expires: Option<Option<Timestamp>>,
    pub note: Option<String>,
    /// True to take the key back, for ever.
    pub revoke: bool,
    /// Action as the record names it, such as `key.revoke`.
    pub action: &'static str,
    /// Reason in the actor's own words; `None` where none was given.
    pub reason: Option<String>,
}

/// Reasons why something was not shown or changed: each with a sentence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RegisterError {
    /// There is nobody of this name.
    #[error("there is no {0} {1:?}")]
    Nobody(&'static str, String),
    /// The request cannot be met: which field, and why.
    #[error("{1}")]
    Refused(&'static str, String),
    /// The database is away, slow, or cannot take it now.
    #[error("{0}")]
    Away(String),
    /// Here nothing of this kind can be changed.
    #[error("{0}")]
    Unsupported(&'static str),
    /// This cannot happen.
    #[error("{0}")]
    Failed(String),
}

/// Holders of a tier that a sentence names.
pub const HOLDERS_NAMED: usize = 3;

impl RegisterError {
    /// Nobody made this tier.
    #[must_use]
    pub fn no_tier() -> Self {
        let text = "there is no such tier: `tidegate tiers list` shows them, `tidegate tiers set` makes one";
        Self::Refused("tier", text.to_owned())
    }

    /// A tier stays since somebody has it: the first users and the first keys, one more of each than are
    /// named if there are more.
    #[must_use]
    pub fn tier_in_use(name: &str, users: &[String], keys: &[String]) -> Self {
        let named = |(what, holders): (&str, &[String])| {
            let first: Vec<_> = holders.iter().take(HOLDERS_NAMED).map(|id| format!("{id:?}")).collect();
            let more = if holders.len() > HOLDERS_NAMED { " and others" } else { "" };
            let plural = if holders.len() == 1 { "" } else { "s" };
            (!first.is_empty()).then(|| format!("{what}{plural} {}{more}", first.join(", ")))
        };
        let who: Vec<_> = [("user", users), ("key", keys)].into_iter().filter_map(named).collect();
        let who = if who.is_empty() { "somebody".to_owned() } else { who.join(" and ") };
        Self::Refused("tier", format!("{name:?} is still the tier of {who}: give them another tier first"))
    }
}

/// The result of a call of the register.
pub type Registered<'a, T> = Later<'a, Result<T, RegisterError>>;

/// The store of users, keys and tiers. Every change is recorded, with who made it and from where.
pub trait Register: Send + Sync + 'static {
    /// Users, by id.
    fn users(&self, filter: Filter) -> Registered<'_, Vec<UserRecord>>;
    /// One user.
    fn user<'a>(&'a self, id: &'a str) -> Registered<'a, UserRecord>;
    /// Changes a user, who is made if there is none.
    fn change_user<'a>(
        &'a self,
        actor: &'a Actor,
        id: &'a str,
        change: UserChange,
    ) -> Registered<'a, UserRecord>;
    /// Removes a user, and the keys that are this user's.
    fn remove_user<'a>(&'a self, actor: &'a Actor, id: &'a str) -> Registered<'a, ()>;
    /// Keys, by their public names.
    fn keys(&self, filter: Filter) -> Registered<'_, Vec<KeyRecord>>;
    /// One key.
    fn key<'a>(&'a self, id: &'a str) -> Registered<'a, KeyRecord>;
    /// Makes a key; the second is the whole key, which nobody can show again.
    fn make_key<'a>(&'a self, actor: &'a Actor, draft: KeyDraft) -> Registered<'a, (KeyRecord, String)>;
    /// Changes a key.
    fn change_key<'a>(
        &'a self,
        actor: &'a Actor,
        id: &'a str,
        change: KeyChange,
    ) -> Registered<'a, KeyRecord>;
    /// Every tier.
    fn tiers(&self) -> Registered<'_, Vec<TierRecord>>;
    /// Makes or changes a tier.
    fn put_tier<'a>(&'a self, actor: &'a Actor, tier: TierRecord) -> Registered<'a, TierRecord>;
    /// Removes a tier that nobody has.
    fn remove_tier<'a>(&'a self, actor: &'a Actor, name: &'a str) -> Registered<'a, ()>;
}

/// The register of a daemon without one: nobody is written down, and nobody can be.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoRegister;

impl NoRegister {
    const NOWHERE: RegisterError = RegisterError::Unsupported(
        "this daemon has neither a database nor a rules file to keep users and keys in",
    );
}

impl Register for NoRegister {
    fn users(&self, _: Filter) -> Registered<'_, Vec<UserRecord>> {
        Box::pin(async { Ok(Vec::new()) })
    }
    fn user<'a>(&'a self, id: &'a str) -> Registered<'a, UserRecord> {
        Box::pin(async move { Err(RegisterError::Nobody("user", id.to_owned())) })
    }
    fn change_user<'a>(&'a self, _: &'a Actor, _: &'a str, _: UserChange) -> Registered<'a, UserRecord> {
        Box::pin(async { Err(Self::NOWHERE) })
    }
    fn remove_user<'a>(&'a self, _: &'a Actor, _: &'a str) -> Registered<'a, ()> {
        Box::pin(async { Err(Self::NOWHERE) })
    }
    fn keys(&self, _: Filter) -> Registered<'_, Vec<KeyRecord>> {
        Box::pin(async { Ok(Vec::new()) })
    }
    fn key<'a>(&'a self, id: &'a str) -> Registered<'a, KeyRecord> {
        Box::pin(async move { Err(RegisterError::Nobody("API key", id.to_owned())) })
    }
    fn make_key<'a>(&'a self, _: &'a Actor, _: KeyDraft) -> Registered<'a, (KeyRecord, String)> {
        Box::pin(async { Err(Self::NOWHERE) })
    }
    fn change_key<'a>(&'a self, _: &'a Actor, _: &'a str, _: KeyChange) -> Registered<'a, KeyRecord> {
        Box::pin(async { Err(Self::NOWHERE) })
    }
    fn tiers(&self) -> Registered<'_, Vec<TierRecord>> {
        Box::pin(async { Ok(Vec::new()) })
    }
    fn put_tier<'a>(&'a self, _: &'a Actor, _: TierRecord) -> Registered<'a, TierRecord> {
        Box::pin(async { Err(Self::NOWHERE) })
    }
    fn remove_tier<'a>(&'a self, _: &'a Actor, _: &'a str) -> Registered<'a, ()> {
        Box::pin(async { Err(Self::NOWHERE) })
    }
}

#[expect(clippy::ref_option, reason = "serde passes references")]
fn as_moment<S: Serializer>(at: &Option<Timestamp>, serializer: S) -> Result<S::Ok, S::Error> {
    at.map(format_moment).serialize(serializer)
}

/// `{"search-free": {"limit": 500, "burst": 500}}`.
fn as_table<S: Serializer>(limits: &[UserLimit], serializer: S) -> Result<S::Ok, S::Error> {
    let own = |own: &UserLimit| OwnLimit { limit: own.permits, burst: own.burst };
    serializer.collect_map(limits.iter().map(|limit| (&limit.rule, own(limit))))
}

/// A limit of somebody's own.
#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[cfg_attr(test, schemars(deny_unknown_fields))]
struct OwnLimit {
    /// Permits per window.
    limit: u32,
    /// Permits at once.
    burst: u32,
}
