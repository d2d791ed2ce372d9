//! What a user has left of every rule that counts by user alone.

use std::collections::BTreeSet;

use super::Engine;
use super::status::BucketStatus;
use crate::core::request::{Attributes, Cost, Request};
use crate::core::rule::{Condition, Rule};

/// Most rules of which a user's remaining quota is told.
const QUOTAS_MAX: usize = 100;

/// What is left for a user.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Quotas {
    /// By rule, with the rule's domain, in order of precedence.
    pub buckets: Vec<(String, BucketStatus)>,
    /// Whether more rules apply than are told.
    pub more: bool,
}

impl Engine {
    /// What every rule that counts by user alone leaves this user now. A rule that no request of this user
    /// can reach is left out: another tier's, another user's, or one behind a rule of its group that always
    /// comes first. `domain` and `only` choose a domain and a rule.
    pub async fn quotas(&self, user: &str, domain: Option<&str>, only: Option<&str>) -> Quotas {
        let loaded = self.loaded.load_full();
        let attributes: Attributes<'_> = [("user", user)].into_iter().collect();
        let whose = [Request::new("", attributes, Cost::Peek)];
        let persons = self.find(&loaded.set, &whose).await;
        let tier = self.who(&persons).tier.map(str::to_owned);
        let mut quotas = Quotas::default();
        // Groups that an earlier rule decides for every request of this user.
        let mut decided: BTreeSet<(&str, &str)> = BTreeSet::new();
        for rule in loaded.set.rules().iter().map(|compiled| &compiled.rule) {
            let group = rule.group.as_deref().map(|group| (rule.domain.as_str(), group));
            let hidden = group.is_some_and(|group| decided.contains(&group));
            let reached = rule.enabled && !hidden && reaches(rule, user, tier.as_deref());
            if !reached {
                continue;
            }
            decided.extend(group.filter(|_| decides_always(rule)));
            let wanted = rule.action.counts()
                && rule.per.iter().eq(["user"])
                && domain.is_none_or(|domain| rule.domain == domain)
                && only.is_none_or(|only| rule.name == only);
            if !wanted {
                continue;
            }
            if quotas.buckets.len() >= QUOTAS_MAX {
                quotas.more = true;
                break;
            }
            let attributes: Attributes<'_> = [("user", user)].into_iter().collect();
            let request = Request::new(&rule.domain, attributes, Cost::Peek);
            let bucket = self.bucket(&rule.name, &request).await;
            quotas.buckets.extend(bucket.map(|bucket| (rule.domain.clone(), bucket)));
        }
        quotas
    }
}

/// Whether some request of this user can match the rule.
fn reaches(rule: &Rule, user: &str, tier: Option<&str>) -> bool {
    rule.conditions.iter().all(|condition| match condition.attribute.as_str() {
        "user" => holds(condition, user),
        "tier" => tier.is_some_and(|tier| holds(condition, tier)),
        _ => true,
    })
}

fn holds(condition: &Condition, value: &str) -> bool {
    condition.any_of.iter().any(|pattern| pattern.matches_text(value))
}

/// Whether a rule that this user reaches decides its group for every request of the user that can count by
/// user.
fn decides_always(rule: &Rule) -> bool {
    let known = |name: &str| matches!(name, "user" | "tier");
    !rule.exact
        && rule.conditions.iter().all(|condition| known(&condition.attribute))
        && rule.per.iter().all(|name| name == "user")
        && (!rule.action.counts() || rule.algorithm != crate::core::algorithm::Algorithm::Concurrency)
}
