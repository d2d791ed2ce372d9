//! Buckets as answers show them, and what the world leaves of them.

use std::collections::BTreeMap;

#[cfg(test)]
use schemars::JsonSchema;
use serde::Serialize;

use super::PenaltyJson;
use crate::core::algorithm::Allowance;
use crate::core::rule::Mode;
use crate::engine::status::{BucketReset, BucketStatus};

/// The contents of a bucket.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[cfg_attr(test, schemars(rename = "Bucket"))]
pub struct BucketJson<'a> {
    /// The rule.
    pub rule: &'a str,
    /// Whose it is: the values of the rule's `per`.
    #[cfg_attr(test, schemars(with = "BTreeMap<String, String>"))]
    pub identity: serde_json::Map<String, serde_json::Value>,
    /// Permits per window.
    pub limit: u32,
    /// The window; 0: none, as of `concurrency` rules.
    pub window_ms: u64,
    /// Permits in use in this region; of a bucket without windows under `gossip` in all of them, as far as
    /// they told.
    pub used: u64,
    /// Permits left.
    pub remaining: u64,
    /// Until it is unused again, or its window ends.
    pub reset_ms: u64,
    /// True if the store did not answer, so that the daemon tells only what it knows by itself.
    pub degraded: bool,
    /// The penalty that shuts the client out; absent where there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub penalty: Option<PenaltyJson>,
    /// The other regions; absent before anything was heard of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub world: Option<BucketWorldJson<'a>>,
}

/// The part that the world leaves one bucket in this region.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[cfg_attr(test, schemars(rename = "BucketWorld"))]
pub struct BucketWorldJson<'a> {
    /// Permits that this region may admit in the window; of a bucket without windows those that are never
    /// kept back for the others.
    pub budget: u32,
    /// Permits that the other regions are known to have admitted in the window; of a bucket without windows
    /// those of them that are in use still. Null where it is not known: under `escrow`, where nobody tells,
    /// and of a bucket without windows that is not among those of `by_region`.
    pub others_used: Option<u64>,
    /// The same by region, of the 64 buckets nearest to their limits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by_region: Option<&'a BTreeMap<String, u64>>,
    /// True if `used` holds those of the others, too: of a bucket without windows under `gossip`.
    pub in_used: bool,
    /// The most by which the worldwide count may lie above the believed one, in permits.
    pub error_bound: u64,
}

impl<'a> BucketJson<'a> {
    /// Returns what this bucket holds.
    #[must_use]
    pub fn new(bucket: &'a BucketStatus) -> Self {
        Self {
            rule: &bucket.rule,
            identity: identity_json(&bucket.identity),
            limit: bucket.limit,
            window_ms: bucket.window.millis_up(),
            used: bucket.used,
            remaining: bucket.remaining,
            reset_ms: bucket.reset.millis_up(),
            degraded: bucket.degraded,
            penalty: bucket.penalty.as_ref().map(PenaltyJson::new),
            world: BucketWorldJson::of(bucket),
        }
    }
}

impl<'a> BucketWorldJson<'a> {
    /// Returns what the world leaves this bucket, if anything was heard of it.
    #[must_use]
    pub fn of(bucket: &'a BucketStatus) -> Option<Self> {
        let by_region = bucket.by_region.as_ref();
        let (budget, others_used, in_used) = match bucket.view? {
            Allowance::Window(view) => (view.budget, Some(view.others), false),
            // Permits that are held back are no use: in a cut they are all that the others might take.
            Allowance::Level(view) => {
                let used = by_region.map(|regions| regions.values().copied().fold(0, u64::saturating_add));
                (bucket.limit.saturating_sub(view.held_back_max), used, true)
            }
            Allowance::Kept { .. } => (0, None, false),
        };
        let others_used = others_used.filter(|_| bucket.mode != Some(Mode::Escrow));
        Some(Self { budget, others_used, by_region, in_used, error_bound: bucket.error_bound })
    }
}

/// Returns what all regions are known to have used of a worldwide bucket; `None` where nobody tells: under
/// `escrow` and `split`, and before anything was heard of it.
#[must_use]
pub fn used_worldwide(bucket: &BucketStatus) -> Option<u64> {
    let world = BucketWorldJson::of(bucket).filter(|_| bucket.mode == Some(Mode::Gossip))?;
    match world.in_used {
        true => Some(bucket.used),
        false => Some(bucket.used.saturating_add(world.others_used?)),
    }
}

/// A bucket that counts from zero again.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[cfg_attr(test, schemars(rename = "Reset", deny_unknown_fields))]
pub struct ResetJson<'a> {
    /// The rule.
    pub rule: &'a str,
    /// Whose it is: the values of the rule's `per`.
    #[cfg_attr(test, schemars(with = "BTreeMap<String, String>"))]
    pub identity: serde_json::Map<String, serde_json::Value>,
    /// True if there was one.
    pub existed: bool,
}

impl<'a> ResetJson<'a> {
    /// Returns what became of this bucket.
    #[must_use]
    pub fn new(reset: &'a BucketReset, existed: bool) -> Self {
        Self { rule: &reset.rule, identity: identity_json(&reset.identity), existed }
    }
}

fn identity_json(identity: &[(String, String)]) -> serde_json::Map<String, serde_json::Value> {
    identity.iter().map(|(name, value)| (name.clone(), value.as_str().into())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::algorithm::{LevelAllowance, WindowAllowance};
    use crate::core::time::{Span, Timestamp};

    #[test]
    fn what_others_used_of_a_level_is_what_they_told_and_not_what_is_held_back() {
        let window = WindowAllowance { budget: 60, others: 20, ..WindowAllowance::default() };
        let level = LevelAllowance {
            since: Timestamp(1),
            held_back: 21,
            growth: 0,
            held_back_max: 40,
            capacity: 100,
        };
        let told = |view: Allowance, mode: Mode, regions: Option<[u64; 2]>| {
            let bucket = BucketStatus {
                rule: "r".to_owned(),
                identity: Vec::new(),
                limit: 100,
                window: Span(1),
                mode: Some(mode),
                used: 50,
                remaining: 29,
                reset: Span(1),
                reset_at: None,
                view: Some(view),
                by_region: regions
                    .map(|[eu, us]| BTreeMap::from([("eu".to_owned(), eu), ("us".to_owned(), us)])),
                error_bound: 3,
                degraded: false,
                penalty: None,
            };
            let all = match (mode, view) {
                (Mode::Gossip, Allowance::Window(_)) => Some(70),
                (Mode::Gossip, Allowance::Level(_)) => Some(50),
                _ => None,
            };
            assert_eq!(used_worldwide(&bucket), all, "{mode:?} {view:?}");
            BucketWorldJson::of(&bucket).map(|world| (world.budget, world.others_used, world.in_used))
        };
        let (window, level) = (Allowance::Window(window), Allowance::Level(level));
        assert_eq!(told(level, Mode::Gossip, Some([28, 2])), Some((60, Some(30), true)));
        assert_eq!(told(level, Mode::Gossip, Some([0, 0])), Some((60, Some(0), true)), "nothing is used");
        assert_eq!(told(level, Mode::Gossip, None), Some((60, None, true)), "nobody says whose it is");
        assert_eq!(told(window, Mode::Gossip, None), Some((60, Some(20), false)));
        assert_eq!(told(window, Mode::Escrow, None), Some((60, None, false)), "nobody tells");
    }
}
