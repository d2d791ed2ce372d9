//! API keys: making them, and telling the right secret from a wrong one.
//!
//! A key is `tgk_<name>_<secret>`. The name is public: the row is found by it, limits count by it, people
//! speak of it. Only an HMAC-SHA256 of the secret under a salt of the row's own is kept. A salt rather than a
//! pepper known to the servers: there is then no further secret to give to every daemon and to lose, and
//! against guessing neither is needed, since a secret is 190 random bits and not a word that somebody chose.
//! For the same reason one round of a fast hash is enough, and a key costs a decision less than a
//! microsecond.

use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};

use crate::core::identity::{ApiKey, KEY_NAME_LEN, KEY_PREFIX, KEY_SECRET_LEN};

/// Hexadecimal digits of a [`fingerprint`].
pub const FINGERPRINT_DIGITS: usize = 32;
const LETTERS: &[u8; 62] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";

/// The operating system gave no random bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the operating system gave no random bytes")]
pub struct NoRandomness;

/// A new key: what its holder gets, once, and what is kept of it.
#[derive(Clone)]
pub struct NewKey {
    /// Whole key that its holder gets, once. A secret.
    pub text: String,
    /// Public name of the key, by which it is found and shown.
    pub id: String,
    /// Random salt that makes each key's hash another function.
    pub salt: [u8; 16],
    /// Hash of the secret, which alone is kept.
    pub hash: [u8; 32],
}

impl std::fmt::Debug for NewKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NewKey").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Makes a key.
///
/// # Errors
/// When there is no randomness.
pub fn new_key() -> Result<NewKey, NoRandomness> {
    let random = SystemRandom::new();
    let id = format!("{KEY_PREFIX}{}", letters(&random, KEY_NAME_LEN)?);
    let secret = letters(&random, KEY_SECRET_LEN)?;
    let mut salt = [0; 16];
    random.fill(&mut salt).map_err(|_| NoRandomness)?;
    let hash = hash_of(&salt, &secret);
    Ok(NewKey { text: format!("{id}_{secret}"), id, salt, hash })
}

/// Returns what is kept of a secret.
#[must_use]
pub fn hash_of(salt: &[u8; 16], secret: &str) -> [u8; 32] {
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, salt), secret.as_bytes());
    let mut hash = [0; 32];
    hash.copy_from_slice(tag.as_ref());
    hash
}

/// True if this is the key's secret. Takes as long for a wrong one as for the right one.
#[must_use]
pub fn is_secret_of(key: &ApiKey, secret: &str) -> bool {
    hmac::verify(&hmac::Key::new(hmac::HMAC_SHA256, &key.salt), secret.as_bytes(), &key.hash).is_ok()
}

/// The name that limits know a secret by that is none of ours: the first 128 bits of its SHA-256, in
/// hexadecimal. A rule matches such a key by this; `printf %s KEY | sha256sum | cut -c1-32` prints it.
#[must_use]
pub fn fingerprint(secret: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, secret);
    let nibbles = digest.as_ref().iter().flat_map(|byte| [byte >> 4, byte & 15]);
    let digit = |nibble| char::from_digit(u32::from(nibble), 16).unwrap_or_default();
    nibbles.take(FINGERPRINT_DIGITS).map(digit).collect()
}

/// Random letters and digits, each as likely as any other.
fn letters(random: &SystemRandom, len: usize) -> Result<String, NoRandomness> {
    let mut text = String::with_capacity(len);
    while text.len() < len {
        let mut bytes = [0; 64];
        random.fill(&mut bytes).map_err(|_| NoRandomness)?;
        // 248 is the largest multiple of 62: bytes above it would make some letters likelier.
        let fair = bytes.iter().filter(|byte| **byte < 248);
        let letter = fair.filter_map(|byte| LETTERS.get(usize::from(byte % 62)));
        text.extend(letter.take(len - text.len()).map(|letter| char::from(*letter)));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::identity::parse_key;

    #[test]
    fn a_fingerprint_is_what_sha256sum_prints() {
        assert_eq!(fingerprint(b"abc"), "ba7816bf8f01cfea414140de5dae2223");
    }

    #[test]
    fn a_new_key_is_recognised_and_no_other_is() {
        let (new, other) = (new_key().unwrap(), new_key().unwrap());
        assert_ne!(new.text, other.text);
        let shown = parse_key(&new.text).unwrap();
        assert_eq!(shown.id, new.id);
        let key = ApiKey {
            id: new.id.clone(),
            salt: new.salt,
            hash: new.hash,
            user: None,
            tier: None,
            overrides: vec![],
            active: true,
            expires: None,
            revoked: false,
        };
        assert!(is_secret_of(&key, shown.secret));
        assert!(!is_secret_of(&key, parse_key(&other.text).unwrap().secret));
        assert!(!is_secret_of(&key, ""));
        assert!(!format!("{new:?}").contains(shown.secret));
    }
}
