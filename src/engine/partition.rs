//! The partition key of an answer: which bucket it speaks of, without saying whose it is.

use ring::digest;

use crate::core::answer::PartitionKey;
use crate::core::ruleset::Match;

/// The key, where the rule wants one and has a bucket for each of several.
pub(super) fn partition_key(found: &Match<'_>) -> Option<PartitionKey> {
    let rule = &found.rule.rule;
    let wanted = rule.answer.as_ref().is_some_and(|answer| answer.partition_key);
    let identity = found.key.as_ref().filter(|_| wanted)?.identity();
    if identity.is_empty() {
        return None;
    }
    let mut hash = digest::Context::new(&digest::SHA256);
    for part in [rule.domain.as_bytes(), rule.name.as_bytes()] {
        hash.update(part);
        hash.update(&[0]);
    }
    hash.update(identity);
    hash.finish().as_ref().first_chunk().copied().map(PartitionKey)
}
