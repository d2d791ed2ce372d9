//! Users' blocks and API keys, as they are written beside the rules.

use std::collections::HashMap;

use super::{Unique, entry, read_override, read_tier};
use crate::core::identity::{ApiKey, Block, is_key_like};
use crate::core::request::TEXT_BYTES_MAX;
use crate::core::rule::Rule;
use crate::core::time::Timestamp;
use crate::core::written::{Fields, Problems, TreeNode, parse_moment};

/// Longest reason of a block, in bytes.
const REASON_BYTES_MAX: usize = 4_096;

/// The names that users and keys may use.
#[derive(Clone, Copy)]
pub(super) struct KnownNames<'k> {
    pub(super) rules: &'k [Rule],
    pub(super) tiers: &'k [String],
}

/// `blocked = true`, or `blocked = { reason = "…", until = "2026-12-01T00:00:00Z" }`.
pub(super) fn block(fields: &mut Fields<'_>, problems: &mut Problems<'_>) -> Option<Block> {
    use crate::core::written::Value;
    let entry = fields.take("blocked")?;
    if let Value::Boolean(blocked) = entry.node.value {
        return blocked.then_some(Block { reason: None, until: None });
    }
    let mut table = Fields::open(&entry.node, problems)?;
    let reason = table.text("reason", REASON_BYTES_MAX, problems).map(str::to_owned);
    let until = moment(&mut table, "until", problems);
    table.finish(problems);
    Some(Block { reason, until })
}

/// `[[keys]]`.
pub(super) fn keys(nodes: &[TreeNode], known: KnownNames<'_>, problems: &mut Problems<'_>) -> Vec<ApiKey> {
    let by_name: HashMap<&str, &Rule> = known.rules.iter().map(|rule| (rule.name.as_str(), rule)).collect();
    let mut unique = Unique::new("key id");
    let mut keys = Vec::new();
    for node in nodes {
        if let Some(entry) = entry(node, "id") {
            unique.check(&entry.node, problems);
        }
        keys.extend(key(node, &by_name, known.tiers, problems));
    }
    keys
}

fn key(
    node: &TreeNode,
    rules: &HashMap<&str, &Rule>,
    tiers: &[String],
    problems: &mut Problems<'_>,
) -> Option<ApiKey> {
    let mut fields = Fields::open(node, problems)?;
    for needed in ["id", "salt", "hash"] {
        if !fields.has(needed) {
            problems.report(
                fields.at,
                format!(
                    "{needed} is missing: a key needs id, salt and hash; `tidegate keys create` writes them"
                ),
            );
        }
    }
    let id = fields.text("id", TEXT_BYTES_MAX, problems);
    if let Some(id) = id.filter(|id| !is_key_like(id)) {
        problems.report(fields.at, format!("id must be that of a key, tgk_ and twelve letters, not {id:?}"));
    }
    let salt = bytes(&mut fields, "salt", problems);
    let hash = bytes(&mut fields, "hash", problems);
    let user = fields.text("user", TEXT_BYTES_MAX, problems).map(str::to_owned);
    let tier = read_tier(&mut fields, tiers, problems);
    let overrides = fields.table("overrides", problems).map_or_else(Vec::new, |own| {
        own.entries().iter().filter_map(|entry| read_override(entry, rules, problems)).collect()
    });
    let active = fields.boolean("active", problems).unwrap_or(true);
    let expires = moment(&mut fields, "expires_at", problems);
    let revoked = moment(&mut fields, "revoked_at", problems).is_some();
    for told in ["note", "created_at", "created_by", "revoked_by"] {
        fields.text(told, REASON_BYTES_MAX, problems);
    }
    fields.finish(problems);
    Some(ApiKey {
        id: id?.to_owned(),
        salt: salt?,
        hash: hash?,
        user,
        tier,
        overrides,
        active,
        expires,
        revoked,
    })
}

/// A point in time, as RFC 3339 writes it.
fn moment(fields: &mut Fields<'_>, key: &'static str, problems: &mut Problems<'_>) -> Option<Timestamp> {
    let text = fields.text(key, TEXT_BYTES_MAX, problems)?;
    let at = parse_moment(text);
    if at.is_none() {
        let expected = "a point in time in quotes such as \"2026-12-01T00:00:00Z\"";
        problems.report(fields.at, format!("{key} must be {expected}, not {text:?}"));
    }
    at
}

/// So many bytes, as two hexadecimal digits each.
fn bytes<const LEN: usize>(
    fields: &mut Fields<'_>,
    key: &'static str,
    problems: &mut Problems<'_>,
) -> Option<[u8; LEN]> {
    let text = fields.text(key, TEXT_BYTES_MAX, problems)?;
    let read = from_hex(text);
    if read.is_none() {
        problems.report(fields.at, format!("{key} must be {} hexadecimal digits", 2 * LEN));
    }
    read
}

fn from_hex<const LEN: usize>(text: &str) -> Option<[u8; LEN]> {
    if text.len() != 2 * LEN || !text.is_ascii() {
        return None;
    }
    let mut bytes = [0; LEN];
    for (place, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * place..2 * place + 2)?, 16).ok()?;
    }
    Some(bytes)
}
