//! `tokens.toml`: who may use the admin routes. Only hashes are kept; a token itself is shown once,
//! when it is made.
//!
//! ```toml
//! [[tokens]]
//! name = "ci"
//! role = "operator"
//! hash = "hmac-sha256:<salt>:<digest>"
//! ```
//! A token has 256 random bits, so a plain keyed hash cannot be turned back; the salt keeps equal tokens
//! from showing.

use std::fmt::Write as _;

use ring::hmac;
use ring::rand::{SecureRandom as _, SystemRandom};

use crate::core::written::{At, Fields, Problem, Problems, TreeNode};
use crate::engine::admin::Role;

/// Most tokens of one daemon: each is tried for every admin request.
const TOKENS_MAX: usize = 1_000;
/// Longest name of a token, in bytes.
const NAME_BYTES_MAX: usize = 64;
/// The first word of every hash.
const SCHEME: &str = "hmac-sha256";
/// The first letters of every token, by which scanners find leaked ones.
const PREFIX: &str = "tgt_";
const SECRET_BYTES: usize = 32;
const SALT_BYTES: usize = 16;
const DIGEST_BYTES: usize = 32;

/// The tokens of one file.
#[derive(Debug, Clone, Default)]
pub struct Tokens(Vec<Token>);

#[derive(Debug, Clone)]
struct Token {
    name: String,
    role: Role,
    /// HMAC-SHA256 key made of the token's salt, when the file is read.
    key: hmac::Key,
    digest: Vec<u8>,
}

/// A token that was just made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Made {
    /// The token that its holder sends. It is nowhere else.
    pub token: String,
    /// TOML lines that the operator adds to `tokens.toml`; they hold the hash alone.
    pub entry: String,
}

impl Tokens {
    /// Reads the file's text.
    ///
    /// # Errors
    /// Every problem with its place.
    pub fn from_toml(file: &str, text: &str) -> Result<Self, Vec<Problem>> {
        let mut problems = Problems::new(file, text);
        let root = TreeNode::from_toml(text).map_err(|(at, message)| problems.report(&at, message));
        let tokens = root.ok().and_then(|root| read(&root, &mut problems));
        match tokens {
            Some(tokens) if problems.is_empty() => Ok(Self(tokens)),
            _ => Err(problems.into_list()),
        }
    }

    /// Returns whose token this is. Every token is tried, each in constant time, so that the time taken tells
    /// nothing.
    #[must_use]
    pub fn find(&self, token: &str) -> Option<(&str, Role)> {
        let mut found = None;
        for known in &self.0 {
            if hmac::verify(&known.key, token.as_bytes(), &known.digest).is_ok() {
                found = Some((known.name.as_str(), known.role));
            }
        }
        found
    }

    /// True if there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns how many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }
}

/// Makes a token.
///
/// # Errors
/// A name that no token may have, or a system without randomness.
pub fn make(name: &str, role: Role) -> Result<Made, String> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control) {
        return Err(format!("a token's name has 1 to {NAME_BYTES_MAX} bytes and no control characters"));
    }
    let (mut secret, mut salt) = ([0; SECRET_BYTES], [0; SALT_BYTES]);
    let random = SystemRandom::new();
    if random.fill(&mut secret).and_then(|()| random.fill(&mut salt)).is_err() {
        return Err("the system gives no random numbers".to_owned());
    }
    let token = format!("{PREFIX}{}", hex(&secret));
    let digest = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &salt), token.as_bytes());
    let entry = format!(
        "[[tokens]]\nname = {}\nrole = \"{}\"\nhash = \"{SCHEME}:{}:{}\"\n",
        toml::Value::from(name),
        role.name(),
        hex(&salt),
        hex(digest.as_ref())
    );
    Ok(Made { token, entry })
}

fn read(root: &TreeNode, problems: &mut Problems<'_>) -> Option<Vec<Token>> {
    let mut fields = Fields::open(root, problems)?;
    let nodes = fields.list("tokens", problems).unwrap_or_default();
    fields.finish(problems);
    if let Some(node) = nodes.get(TOKENS_MAX) {
        problems.report(&node.at, format!("a file has at most {TOKENS_MAX} tokens"));
        return None;
    }
    let mut tokens: Vec<Token> = Vec::with_capacity(nodes.len());
    for node in nodes {
        let Some(token) = read_token(node, problems) else { continue };
        if tokens.iter().any(|other| other.name == token.name) {
            problems.report(&node.at, format!("token name {:?} is used twice", token.name));
        }
        tokens.push(token);
    }
    Some(tokens)
}

fn read_token(node: &TreeNode, problems: &mut Problems<'_>) -> Option<Token> {
    let mut fields = Fields::open(node, problems)?;
    for key in ["name", "role", "hash"] {
        if !fields.has(key) {
            problems
                .report(fields.at, format!("{key} is missing: `tidegate admin token` writes whole entries"));
        }
    }
    let name = fields.text("name", NAME_BYTES_MAX, problems).map(str::to_owned);
    let role = fields.word("role", &Role::ALL, problems);
    let at = fields.take("hash").map(|entry| entry.node.at.clone());
    let hash = fields.text("hash", 1_024, problems).map(str::to_owned);
    fields.finish(problems);
    let (key, digest) = read_hash(&hash?, &at?, problems)?;
    Some(Token { name: name?, role: role?, key, digest })
}

fn read_hash(text: &str, at: &At, problems: &mut Problems<'_>) -> Option<(hmac::Key, Vec<u8>)> {
    let parts: Vec<&str> = text.split(':').collect();
    let read = match parts[..] {
        [SCHEME, salt, digest] => unhex(salt)
            .filter(|salt| salt.len() >= SALT_BYTES)
            .zip(unhex(digest).filter(|digest| digest.len() == DIGEST_BYTES)),
        _ => None,
    };
    if read.is_none() {
        let sentence = format!(
            "hash must be {SCHEME}:SALT:DIGEST as `tidegate admin token` prints it, never the token itself"
        );
        problems.report(at, sentence);
    }
    read.map(|(salt, digest)| (hmac::Key::new(hmac::HMAC_SHA256, &salt), digest))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    if !text.is_ascii() || !text.len().is_multiple_of(2) {
        return None;
    }
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_made_token_is_found_by_its_hash_alone() {
        let (ci, ops) = (make("ci", Role::Viewer).unwrap(), make("o\"ps", Role::Admin).unwrap());
        let tokens = Tokens::from_toml("tokens.toml", &format!("{}{}", ci.entry, ops.entry)).unwrap();
        assert_eq!(tokens.find(&ci.token), Some(("ci", Role::Viewer)));
        assert_eq!(tokens.find(&ops.token), Some(("o\"ps", Role::Admin)));
        assert_eq!(tokens.find(&ci.token[1..]), None);
        assert_eq!(tokens.find(""), None);
        assert!(!ci.entry.contains(&ci.token[PREFIX.len()..]));
        assert_ne!(make("ci", Role::Viewer).unwrap().token, ci.token);
    }

    #[test]
    fn a_file_with_problems_says_where_and_gives_nobody_access() {
        let text =
            "[[tokens]]\nname = \"a\"\nrole = \"root\"\nhash = \"tgt_secret\"\n[[tokens]]\nname = \"a\"\n";
        let problems = Tokens::from_toml("tokens.toml", text).unwrap_err();
        let problems: Vec<_> = problems.iter().map(ToString::to_string).collect();
        assert_eq!(problems.len(), 4, "{problems:?}");
        assert!(problems[0].starts_with("tokens.toml:3:8: role must be one of viewer, operator, admin"));
        assert!(problems[1].starts_with("tokens.toml:4:8: hash must be hmac-sha256:SALT:DIGEST"));
        assert!(!problems.iter().any(|problem| problem.contains("tgt_secret")), "{problems:?}");
    }
}
