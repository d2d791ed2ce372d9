//! The facts about the one who asks one question, and what follows from them.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{Kind, NameRef};
use crate::core::identity::{
    ApiKey, Refusal, User, Who, is_key_like, is_key_name, key_refusal, parse_key, user_block,
};
use crate::core::request::{API_KEY, Request};
use crate::core::time::{Span, Timestamp};

/// One for each question of a call; empty where nothing is known of anybody.
pub(in crate::engine) type Persons = SmallVec<[Person; 1]>;

/// Reasons why somebody is looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) enum Inquiry {
    /// A decision waits: it waits briefly, and a key counts only with its secret.
    Decision,
    /// An operator looks at many things at once: as brief, and a key may be called by its public name.
    Glance,
    /// An operator asks for somebody: a key may be called by its public name, and there is time.
    Operator,
}

/// The facts known of one who asks.
#[derive(Debug, Clone, Default)]
pub(in crate::engine) struct Person {
    pub(super) user: Option<Arc<User>>,
    pub(super) key: Option<Arc<ApiKey>>,
    pub(super) shown: KeyShown,
    /// Users who stand beside that one: the owner of the key where the request names another user, and who
    /// else is named.
    pub(super) beside: Vec<Arc<User>>,
    /// People who show the further credentials of the request, one for each.
    pub(super) others: Vec<Person>,
}

/// The state of the key that a request shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum KeyShown {
    /// It shows none of ours.
    #[default]
    Nothing,
    /// It is known, or nobody could say in time: limits count by its public name.
    Name,
    /// It is wrong or unknown, and none of ours: like any other secret it counts by its fingerprint, where
    /// the request brings that.
    Foreign,
    /// It is a public name alone, which is no secret: as if nothing had been shown.
    Worthless,
}

/// The outcome of a look for a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) enum KeyFound {
    /// It is known, or is none of ours.
    Yes,
    /// There is no key of this name.
    Nobody,
    /// Nobody could say in time.
    NotInTime,
}

/// Reasons why somebody is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::engine) struct IdentityRefused {
    pub(in crate::engine) why: Refusal,
    /// Sentence that the refused client reads.
    pub(in crate::engine) message: Arc<str>,
    /// Time until it is over; `None`: nobody knows.
    pub(in crate::engine) retry: Option<Span>,
}

impl Person {
    /// Returns what stands in for what the request does not bring.
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

    /// Returns what is known of the key that was asked for by its name.
    pub(in crate::engine) const fn key_found(&self) -> KeyFound {
        match (self.shown, &self.key) {
            (KeyShown::Foreign | KeyShown::Worthless, _) => KeyFound::Nobody,
            (KeyShown::Name, None) => KeyFound::NotInTime,
            _ => KeyFound::Yes,
        }
    }

    /// The user whom the key belongs to.
    pub(in crate::engine) fn owner(&self) -> Option<&str> {
        self.key.as_deref()?.user.as_deref()
    }

    /// Returns why this one may not ask at all, if so.
    pub(in crate::engine) fn refused(&self, now: Timestamp) -> Option<IdentityRefused> {
        if let Some(why) = self.key.as_deref().and_then(|key| key_refusal(key, now)) {
            return Some(IdentityRefused { why, message: why.sentence().into(), retry: None });
        }
        let users = self.user.iter().chain(&self.beside);
        let block = users.filter_map(|user| user_block(user, now)).next();
        let blocked = block.map(|(block, retry)| {
            let why = Refusal::UserBlocked;
            let message = block.reason.as_deref().unwrap_or(why.sentence()).into();
            IdentityRefused { why, message, retry }
        });
        // A user who is refused stays so, whatever stands beside.
        blocked.or_else(|| self.others.iter().find_map(|other| other.refused(now)))
    }

    /// Tells every user and key of the request that is known.
    pub(in crate::engine) fn tell_known(&self, tell: &mut dyn FnMut(NameRef<'_>)) {
        for user in self.user.iter().chain(&self.beside) {
            tell(NameRef { kind: Kind::User, id: &user.id });
        }
        if let Some(key) = &self.key {
            tell(NameRef { kind: Kind::Key, id: &key.id });
        }
        self.others.iter().for_each(|other| other.tell_known(tell));
    }

    /// The one who shows the further credential of this place.
    pub(in crate::engine) fn other(&self, place: usize) -> Option<&Self> {
        self.others.get(place)
    }

    /// The text that a credential counts by; `None`: as if it had not been shown.
    fn called<'r>(&self, text: &'r str, fingerprints: &[(&'r str, &'r str)]) -> Option<&'r str> {
        match self.shown {
            KeyShown::Nothing => Some(text),
            KeyShown::Name => Some(key_id(text).unwrap_or_default()),
            KeyShown::Worthless => None,
            KeyShown::Foreign => {
                fingerprints.iter().find(|(own, _)| *own == text).map(|(_, fingerprint)| *fingerprint)
            }
        }
    }

    fn shows_nothing(&self) -> bool {
        self.shown == KeyShown::Nothing && self.others.iter().all(Self::shows_nothing)
    }
}

/// The public name of a key, from the whole key or from the name itself.
pub(in crate::engine) fn key_id(text: &str) -> Option<&str> {
    parse_key(text).map(|shown| shown.id).or_else(|| is_key_name(text).then_some(text))
}

/// True if a request shows what claims to be a key of ours.
#[inline]
pub(in crate::engine) fn shows_key(request: &Request<'_>) -> bool {
    request.shown_credentials().any(is_key_like)
}

/// The same questions with keys by their public names alone, and wrong ones by their fingerprints; `None`
/// where nothing changes.
///
/// From here on nobody meets a secret: neither the store, nor the audit log, nor who explains a decision.
pub(in crate::engine) fn rewritten<'r>(
    requests: &[Request<'r>],
    persons: &Persons,
) -> Option<SmallVec<[Request<'r>; 1]>> {
    if persons.iter().all(Person::shows_nothing) {
        return None;
    }
    let rewrite = |(request, person): (&Request<'r>, &Person)| {
        let mut request = request.clone();
        let fingerprints = &request.forms.fingerprints;
        request.attributes.retain(|(name, text)| {
            let called = if *name == API_KEY { person.called(text, fingerprints) } else { Some(*text) };
            *text = called.unwrap_or_default();
            called.is_some()
        });
        for (text, other) in request.forms.credentials.iter_mut().zip(&person.others) {
            *text = other.called(text, fingerprints).unwrap_or_default();
        }
        request
    };
    Some(requests.iter().zip(persons).map(rewrite).collect())
}
