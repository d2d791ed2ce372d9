//! Facts as they lie on the region's shelf: JSON, with the version of its shape in each name, so that daemons
//! of different builds never read each other's.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Fact, Kind, NameRef};
use crate::core::identity::{ApiKey, Block, User, UserLimit};
use crate::core::time::Timestamp;

/// Where a fact lies.
pub(super) fn name(name: NameRef<'_>) -> String {
    match name.kind {
        Kind::User => format!("1:user:{}", name.id),
        Kind::Key => format!("1:key:{}", name.id),
    }
}

#[derive(Serialize, Deserialize)]
struct Shelved {
    somebody: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tier: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    limits: Vec<(String, u32, u32)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    block: Option<(Option<String>, Option<u64>)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<ShelvedKey>,
}

#[derive(Serialize, Deserialize)]
struct ShelvedKey {
    salt: [u8; 16],
    hash: [u8; 32],
    user: Option<String>,
    active: bool,
    expires: Option<u64>,
    revoked: bool,
}

/// Writes a fact.
pub(super) fn write(fact: &Fact) -> Vec<u8> {
    let limits =
        |own: &[UserLimit]| own.iter().map(|own| (own.rule.clone(), own.permits, own.burst)).collect();
    let mut shelved =
        Shelved { somebody: fact.is_somebody(), tier: None, limits: vec![], block: None, key: None };
    match fact {
        Fact::User(Some(user)) => {
            shelved.tier.clone_from(&user.tier);
            shelved.limits = limits(&user.overrides);
            let block = user.blocked.as_ref();
            shelved.block = block.map(|block| (block.reason.clone(), block.until.map(Timestamp::micros)));
        }
        Fact::Key(Some(key)) => {
            shelved.tier.clone_from(&key.tier);
            shelved.limits = limits(&key.overrides);
            shelved.key = Some(ShelvedKey {
                salt: key.salt,
                hash: key.hash,
                user: key.user.clone(),
                active: key.active,
                expires: key.expires.map(Timestamp::micros),
                revoked: key.revoked,
            });
        }
        Fact::User(None) | Fact::Key(None) => {}
    }
    // Strings, numbers and truth values alone always become JSON.
    serde_json::to_vec(&shelved).unwrap_or_default()
}

/// Reads a fact; `None` if it cannot be one of this name.
pub(super) fn read(name: NameRef<'_>, bytes: &[u8]) -> Option<Fact> {
    let shelved: Shelved = serde_json::from_slice(bytes).ok()?;
    if !shelved.somebody {
        return Some(Fact::absent(name.kind));
    }
    let limit = |(rule, permits, burst)| UserLimit { rule, permits, burst };
    let overrides = shelved.limits.into_iter().map(limit).collect();
    let (id, tier) = (name.id.to_owned(), shelved.tier);
    match name.kind {
        Kind::User => {
            let block = shelved.block;
            let blocked = block.map(|(reason, until)| Block { reason, until: until.map(Timestamp) });
            Some(Fact::User(Some(Arc::new(User { id, tier, overrides, blocked }))))
        }
        Kind::Key => {
            let ShelvedKey { salt, hash, user, active, expires, revoked } = shelved.key?;
            let expires = expires.map(Timestamp);
            let key = ApiKey { id, salt, hash, user, tier, overrides, active, expires, revoked };
            Some(Fact::Key(Some(Arc::new(key))))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_on_the_shelf_comes_back_the_same() {
        let overrides = vec![UserLimit { rule: "r".to_owned(), permits: 3, burst: 4 }];
        let blocked = Some(Block { reason: Some("spam".to_owned()), until: Some(Timestamp(9)) });
        let user =
            User { id: "u".to_owned(), tier: Some("pro".to_owned()), overrides: overrides.clone(), blocked };
        let key = ApiKey {
            id: "k".to_owned(),
            salt: [1; 16],
            hash: [2; 32],
            user: Some("u".to_owned()),
            tier: None,
            overrides,
            active: true,
            expires: Some(Timestamp(5)),
            revoked: true,
        };
        let named = |kind, id| NameRef { kind, id };
        for (name, fact) in [
            (named(Kind::User, "u"), Fact::User(Some(Arc::new(user)))),
            (named(Kind::Key, "k"), Fact::Key(Some(Arc::new(key)))),
            (named(Kind::User, "u"), Fact::User(None)),
            (named(Kind::Key, "k"), Fact::Key(None)),
        ] {
            assert_eq!(read(name, &write(&fact)), Some(fact));
        }
        for broken in [&b""[..], b"{}", b"{\"somebody\":true", b"null"] {
            assert_eq!(read(named(Kind::Key, "k"), broken), None);
        }
        assert_ne!(name(named(Kind::User, "k")), name(named(Kind::Key, "k")));
    }
}
