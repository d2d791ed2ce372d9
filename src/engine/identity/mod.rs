//! Identities: users and API keys, found without holding up a decision.
//!
//! Facts live in a database. Near at hand is a bounded cache ([`lookups`]); behind it the region's Redis,
//! where there is one ([`Shelf`]); behind that the database ([`Source`]). A fact that is not at hand is
//! waited for a few milliseconds at most; after that the request is decided without it, and it is there for
//! the next one. Users and keys are those written beside the rules if nothing is configured.

pub mod lookups;
pub mod register;
pub mod secret;
pub mod sightings;

mod load;
mod pending_look_ups;
mod person;
mod shelved;

use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use super::port::Later;
use crate::core::identity::{ApiKey, User};

pub(super) use lookups::Directory;
pub(super) use person::{IdentityRefused, Inquiry, KeyFound, Person, Persons, key_id, rewritten, shows_key};

/// Time for which facts lie on the shelf.
const SHELF_TIME: Duration = Duration::from_secs(60);
/// Time for which a change keeps facts off the shelf: longer than any read from before it takes.
const BAR_TIME: Duration = Duration::from_secs(10);

/// Kinds of identities that can be looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A user, by id.
    User,
    /// An API key, by its public name.
    Key,
}

/// The name of somebody.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct IdentityName {
    /// Kind of identity: a user or an API key.
    pub kind: Kind,
    /// The user's id, or the key's public name.
    pub id: Box<str>,
}

/// The same, borrowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NameRef<'a> {
    /// Kind of identity: a user or an API key.
    pub kind: Kind,
    /// The user's id, or the key's public name.
    pub id: &'a str,
}

impl NameRef<'_> {
    fn to_owned(self) -> IdentityName {
        IdentityName { kind: self.kind, id: self.id.into() }
    }
}

impl IdentityName {
    /// The same, borrowed.
    #[must_use]
    pub fn as_ref(&self) -> NameRef<'_> {
        NameRef { kind: self.kind, id: &self.id }
    }
}

impl Hash for NameRef<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.kind.hash(state);
        self.id.hash(state);
    }
}

impl Hash for IdentityName {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_ref().hash(state);
    }
}

impl quick_cache::Equivalent<IdentityName> for NameRef<'_> {
    fn equivalent(&self, name: &IdentityName) -> bool {
        *self == name.as_ref()
    }
}

/// The facts known of somebody. `None`: that there is nobody of this name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fact {
    /// A user.
    User(Option<Arc<User>>),
    /// An API key.
    Key(Option<Arc<ApiKey>>),
}

impl Fact {
    /// That there is nobody of this kind.
    #[must_use]
    pub const fn absent(kind: Kind) -> Self {
        match kind {
            Kind::User => Self::User(None),
            Kind::Key => Self::Key(None),
        }
    }

    /// True if there is somebody.
    #[must_use]
    pub const fn is_somebody(&self) -> bool {
        matches!(self, Self::User(Some(_)) | Self::Key(Some(_)))
    }
}

/// Reasons why nobody could be looked up just now: a sentence for the log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unreachable(pub String);

/// The last source of facts. Each call has a deadline of its own.
pub trait Source: Send + Sync + 'static {
    /// Looks these up. A name that is not in the answer does not exist.
    fn load<'a>(
        &'a self,
        names: &'a [IdentityName],
    ) -> Later<'a, Result<Vec<(IdentityName, Fact)>, Unreachable>>;
}

/// Facts that the daemons of a region keep for each other. Never waits long, never fails: what it cannot do
/// it leaves.
pub trait Shelf: Send + Sync + 'static {
    /// Returns what lies there for each of these names.
    fn fetch<'a>(&'a self, names: &'a [String]) -> Later<'a, Vec<Option<Vec<u8>>>>;
    /// Puts facts there for so long, where nothing lies yet.
    fn keep<'a>(&'a self, facts: &'a [(String, Vec<u8>)], time: Duration) -> Later<'a, ()>;
    /// Takes away what lies there, and lets nothing be put there for so long: what a slow daemon read before
    /// a change must not come back after it. `false` if some may lie there still.
    fn bar<'a>(&'a self, names: &'a [String], time: Duration) -> Later<'a, bool>;
}

/// The settings of look-ups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LookupSettings {
    /// Longest time that a decision waits for a fact.
    pub timeout: Duration,
    /// Most memory for facts, in bytes.
    pub cache_bytes: u64,
    /// Older facts are looked up again, while they are still used.
    pub fresh: Duration,
    /// The same for those who do not exist.
    pub fresh_absent: Duration,
}

impl Default for LookupSettings {
    fn default() -> Self {
        Self {
            timeout: Duration::from_millis(5),
            cache_bytes: 64 << 20,
            fresh: Duration::from_secs(300),
            fresh_absent: Duration::from_secs(30),
        }
    }
}
