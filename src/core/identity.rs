//! Facts about those who ask, besides what the request says: users, API keys, tiers.
//!
//! Facts, already checked; where they are kept and how they are found is the engine's business.

use super::time::{Span, Timestamp};

/// The begin of a key's public name; see [`ApiKey::id`]. No attribute value that begins so is taken for
/// anything but a key.
pub const KEY_PREFIX: &str = "tgk_";
/// Letters of a key's name after [`KEY_PREFIX`]: 62 random bits, so that two keys never meet.
pub const KEY_NAME_LEN: usize = 12;
/// Letters of a key's secret part: 190 random bits, which nobody finds by trying.
pub const KEY_SECRET_LEN: usize = 32;

/// That somebody may not ask at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// Told to the one who is blocked.
    pub reason: Option<String>,
    /// Its end; `None`: until it is lifted.
    pub until: Option<Timestamp>,
}

impl Block {
    /// True if it holds at `now`.
    #[must_use]
    pub fn holds(&self, now: Timestamp) -> bool {
        self.until.is_none_or(|until| now < until)
    }
}

/// A user who is written down besides the rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// The value of attribute `user`; 1 to 1,024 bytes, unique.
    pub id: String,
    /// Stands for attribute `tier` where a request of this user brings none.
    pub tier: Option<String>,
    /// Limits of this user's own, at most one for a rule.
    pub overrides: Vec<UserLimit>,
    /// May not ask at all, while it holds.
    pub blocked: Option<Block>,
}

/// A limit for one user in place of a rule's. The window stays the rule's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserLimit {
    /// Name of the rule whose limit it replaces for this user or key.
    pub rule: String,
    /// Permits per window, in place of the rule's own.
    pub permits: u32,
    /// Capacity of bucket algorithms, in place of the rule's own.
    pub burst: u32,
}

/// The facts known of an API key. The secret itself is known to nobody but its holder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiKey {
    /// Its public name, `tgk_` and twelve letters or digits: what limits count by, and what people call it.
    pub id: String,
    /// Makes the hash of each key another function.
    pub salt: [u8; 16],
    /// HMAC-SHA256 of the secret part under the salt.
    pub hash: [u8; 32],
    /// Id of the user that it belongs to; `None` where it belongs to nobody.
    pub user: Option<String>,
    /// Stands for attribute `tier` where the request brings none; before the user's.
    pub tier: Option<String>,
    /// Limits of this key's own; before the user's.
    pub overrides: Vec<UserLimit>,
    /// True if it is switched on.
    pub active: bool,
    /// From then on it is refused.
    pub expires: Option<Timestamp>,
    /// True if it was taken back, for ever.
    pub revoked: bool,
}

/// The parts of a key as its holder shows it: `tgk_<name>_<secret>`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShownKey<'a> {
    /// Public name that the request showed; see [`ApiKey::id`].
    pub id: &'a str,
    /// Secret part as the request showed it, not checked yet.
    pub secret: &'a str,
}

/// True if this text claims to be a key of ours or the name of one.
#[must_use]
pub fn is_key_like(text: &str) -> bool {
    text.starts_with(KEY_PREFIX)
}

/// True if this text is the public name of a key of ours, without its secret; see [`ApiKey::id`].
#[must_use]
pub fn is_key_name(text: &str) -> bool {
    let name = text.strip_prefix(KEY_PREFIX);
    name.is_some_and(|name| name.len() == KEY_NAME_LEN && is_plain(name))
}

fn is_plain(part: &str) -> bool {
    part.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// Takes a key apart; `None` if it is none of ours.
#[must_use]
pub fn parse_key(text: &str) -> Option<ShownKey<'_>> {
    let id_len = KEY_PREFIX.len() + KEY_NAME_LEN;
    let (id, secret) = (text.get(..id_len)?, text.get(id_len..)?.strip_prefix('_')?);
    let is_key = is_key_name(id) && secret.len() == KEY_SECRET_LEN && is_plain(secret);
    is_key.then_some(ShownKey { id, secret })
}

/// The facts that stand in for what a request does not bring itself.
#[derive(Debug, Clone, Copy, Default)]
pub struct Who<'a> {
    /// Stands for attribute `user` of the request; `None` leaves it as it came.
    pub user: Option<&'a str>,
    /// Stands for attribute `tier` where the request brings none.
    pub tier: Option<&'a str>,
    /// Limits of its own; where a rule is in both, the first counts.
    pub limits: [&'a [UserLimit]; 2],
}

impl<'a> Who<'a> {
    /// The own limit for a rule of this name.
    #[must_use]
    pub fn limit(&self, rule: &str) -> Option<&'a UserLimit> {
        self.limits.into_iter().flatten().find(|own| own.rule == rule)
    }

    /// Returns what is known of a user alone.
    #[must_use]
    pub fn of_user(user: &'a User) -> Self {
        Self { user: None, tier: user.tier.as_deref(), limits: [&user.overrides, &[]] }
    }
}

/// Reasons why somebody is refused before any rule is asked. Its name stands where a rule's would.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The user is blocked.
    UserBlocked,
    /// The key was taken back.
    KeyRevoked,
    /// The key's time is over.
    KeyExpired,
    /// The key is switched off.
    KeyInactive,
}

impl Refusal {
    /// Every one.
    pub const ALL: [Self; 4] = [Self::UserBlocked, Self::KeyRevoked, Self::KeyExpired, Self::KeyInactive];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::UserBlocked => "user_blocked",
            Self::KeyRevoked => "key_revoked",
            Self::KeyExpired => "key_expired",
            Self::KeyInactive => "key_inactive",
        }
    }

    /// Returns what the refused one reads, where the block does not say its reason.
    #[must_use]
    pub const fn sentence(self) -> &'static str {
        match self {
            Self::UserBlocked => "This user is blocked.",
            Self::KeyRevoked => "This API key was revoked.",
            Self::KeyExpired => "This API key has expired.",
            Self::KeyInactive => "This API key is switched off.",
        }
    }
}

/// Returns why this key is refused at `now`, if it is.
#[must_use]
pub fn key_refusal(key: &ApiKey, now: Timestamp) -> Option<Refusal> {
    if key.revoked {
        return Some(Refusal::KeyRevoked);
    }
    if key.expires.is_some_and(|expires| expires <= now) {
        return Some(Refusal::KeyExpired);
    }
    (!key.active).then_some(Refusal::KeyInactive)
}

/// The block that holds for this user at `now`, if any, and how long it lasts.
#[must_use]
pub fn user_block(user: &User, now: Timestamp) -> Option<(&Block, Option<Span>)> {
    let block = user.blocked.as_ref().filter(|block| block.holds(now))?;
    Some((block, block.until.map(|until| until.since(now))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KEY: &str = "tgk_abcdefGHI012_abcdefghijklmnopqrstuvwxyzABCDEF";

    #[test]
    fn a_key_is_taken_apart_only_if_it_is_one_of_ours() {
        let shown = parse_key(KEY).unwrap();
        assert_eq!((shown.id, shown.secret.len()), ("tgk_abcdefGHI012", KEY_SECRET_LEN));
        for other in [
            "",
            "tgk_",
            "tgk_abcdefGHI012",
            &KEY[1..],
            &KEY[..KEY.len() - 1],
            &format!("{KEY}x"),
            &KEY.replace('c', "-"),
        ] {
            assert_eq!(parse_key(other), None, "{other}");
        }
    }

    #[test]
    fn a_block_ends_at_its_time_and_a_key_at_its_own() {
        let block = |until| Block { reason: None, until };
        assert!(block(None).holds(Timestamp(5)) && block(Some(Timestamp(6))).holds(Timestamp(5)));
        assert!(!block(Some(Timestamp(5))).holds(Timestamp(5)));
        let mut key = ApiKey {
            id: String::new(),
            salt: [0; 16],
            hash: [0; 32],
            user: None,
            tier: None,
            overrides: vec![],
            active: true,
            expires: Some(Timestamp(5)),
            revoked: false,
        };
        assert_eq!(key_refusal(&key, Timestamp(4)), None);
        assert_eq!(key_refusal(&key, Timestamp(5)), Some(Refusal::KeyExpired));
        key.active = false;
        assert_eq!(key_refusal(&key, Timestamp(4)), Some(Refusal::KeyInactive));
        key.revoked = true;
        assert_eq!(key_refusal(&key, Timestamp(5)), Some(Refusal::KeyRevoked));
    }

    proptest! {
        #[test]
        fn any_text_is_taken_apart_without_panic(text in ".{0,60}") {
            let _ = parse_key(&text);
            let _ = parse_key(&format!("tgk_{text}"));
        }
    }
}
