//! What is known of the one who asks one question, and what follows from it.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::core::identity::{
    ApiKey, Refusal, User, Who, is_key_like, is_key_name, key_refusal, parse_key, user_block,
};
use crate::core::request::Request;
use crate::core::time::{Span, Timestamp};

/// The attribute that shows an API key.
const API_KEY: &str = "api_key";

/// One for each question of a call; empty where nothing is known of anybody.
pub(in crate::engine) type Persons = SmallVec<[Person; 1]>;

/// Why somebody is looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) enum Inquiry {
    /// A decision waits: it waits briefly, and a key counts only with its secret.
    Decision,
    /// An operator looks at many things at once: as brief, and a key may be called by its public name.
    Glance,
    /// An operator asks for somebody: a key may be called by its public name, and there is time.
    Operator,
}

/// What is known of one who asks.
#[derive(Debug, Clone, Default)]
pub(in crate::engine) struct Person {
    pub(super) user: Option<Arc<User>>,
    pub(super) key: Option<Arc<ApiKey>>,
    pub(super) shown: KeyShown,
}

/// What became of the key that a request shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum KeyShown {
    /// It shows none of ours.
    #[default]
    Nothing,
    /// It is known, or nobody could say in time: limits count by its public name.
    Name,
    /// It is wrong or unknown, and stands for nobody: as if it had not been shown.
    Worthless,
}

/// What became of a look for a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) enum KeyFound {
    /// It is known, or is none of ours.
    Yes,
    /// There is no key of this name.
    Nobody,
    /// Nobody could say in time.
    NotInTime,
}

/// Why somebody is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::engine) struct IdentityRefused {
    pub(in crate::engine) why: Refusal,
    /// What the refused one reads.
    pub(in crate::engine) message: Arc<str>,
    /// Until it is over; `None`: nobody knows.
    pub(in crate::engine) retry: Option<Span>,
}

impl Person {
    /// What stands in for what the request does not bring.
    pub(in crate::engine) fn who<'a>(&'a self, tier_default: Option<&'a str>) -> Who<'a> {
        let (user, key) = (self.user.as_deref(), self.key.as_deref());
        let tier = key.and_then(|key| key.tier.as_deref());
        let tier = tier.or_else(|| user.and_then(|user| user.tier.as_deref()));
        Who {
            user: self.owner(),
            tier: tier.or(tier_default),
            limits: [key.map_or(&[], |key| &key.overrides), user.map_or(&[], |user| &user.overrides)],
        }
    }

    /// What is known of the key that was asked for by its name.
    pub(in crate::engine) const fn key_found(&self) -> KeyFound {
        match (self.shown, &self.key) {
            (KeyShown::Worthless, _) => KeyFound::Nobody,
            (KeyShown::Name, None) => KeyFound::NotInTime,
            _ => KeyFound::Yes,
        }
    }

    /// The user whom the key belongs to.
    pub(in crate::engine) fn owner(&self) -> Option<&str> {
        self.key.as_deref()?.user.as_deref()
    }

    /// Why this one may not ask at all, if so.
    pub(in crate::engine) fn refused(&self, now: Timestamp) -> Option<IdentityRefused> {
        if let Some(why) = self.key.as_deref().and_then(|key| key_refusal(key, now)) {
            return Some(IdentityRefused { why, message: why.sentence().into(), retry: None });
        }
        let (block, retry) = user_block(self.user.as_deref()?, now)?;
        let why = Refusal::UserBlocked;
        let message = block.reason.as_deref().unwrap_or(why.sentence()).into();
        Some(IdentityRefused { why, message, retry })
    }
}

/// The key that a request shows, if it claims to be one of ours.
#[inline]
pub(super) fn shown_key<'r>(request: &Request<'r>) -> Option<&'r str> {
    request.attribute(API_KEY).filter(|text| is_key_like(text))
}

/// The public name of a key, from the whole key or from the name itself.
pub(in crate::engine) fn key_id(text: &str) -> Option<&str> {
    parse_key(text).map(|shown| shown.id).or_else(|| is_key_name(text).then_some(text))
}

/// Whether a request shows what claims to be a key of ours.
#[inline]
pub(in crate::engine) fn shows_key(request: &Request<'_>) -> bool {
    shown_key(request).is_some()
}

/// The same questions with keys by their public names alone, and without worthless ones; `None` where nothing
/// changes.
///
/// From here on nobody meets a secret: neither the store, nor the audit log, nor who explains a decision.
pub(in crate::engine) fn rewritten<'r>(
    requests: &[Request<'r>],
    persons: &Persons,
) -> Option<SmallVec<[Request<'r>; 1]>> {
    if persons.iter().all(|person| person.shown == KeyShown::Nothing) {
        return None;
    }
    let rewrite = |(request, person): (&Request<'r>, &Person)| {
        let mut request = request.clone();
        match person.shown {
            KeyShown::Nothing => {}
            KeyShown::Worthless => request.attributes.retain(|(name, _)| *name != API_KEY),
            KeyShown::Name => {
                for (_, text) in request.attributes.iter_mut().filter(|(name, _)| *name == API_KEY) {
                    *text = key_id(text).unwrap_or_default();
                }
            }
        }
        request
    };
    Some(requests.iter().zip(persons).map(rewrite).collect())
}
