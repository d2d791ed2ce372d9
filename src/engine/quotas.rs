//! The quota that a user or an API key has left of every rule that counts by it alone.

use std::collections::BTreeSet;

use super::Engine;
use super::identity::{Inquiry, KeyFound, key_id};
use super::status::BucketStatus;
use crate::core::calendar::Windows;
use crate::core::request::{Attributes, Cost, Request};
use crate::core::rule::{Condition, Rule};
use crate::core::time::{Span, Timestamp};

/// Most rules of which the remaining quota is told.
const QUOTAS_MAX: usize = 100;
/// A store's clock may differ by so much from the engine's.
const CLOCKS_DIFFER_MAX: Span = Span::from_secs(1);

/// The owner of the quotas that are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuotaOwner<'a> {
    /// A user's.
    User(&'a str),
    /// An API key's, by the value that rules count it by: the public name of a key of ours, the fingerprint
    /// of another. For a key of ours the quotas of its user are told as well.
    Key(&'a str),
}

/// The permits that are left of each quota.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Quotas {
    /// By rule, with the rule's domain, in order of precedence.
    pub buckets: Vec<(String, BucketStatus)>,
    /// True if more rules apply than are told.
    pub more: bool,
    /// The user whom the key belongs to.
    pub owner: Option<String>,
    /// Reason why every request is refused before a rule is asked, if so: `user_blocked`, `key_revoked` …
    pub refused: Option<&'static str>,
}

/// Reasons why nothing can be told of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoQuotas {
    /// There is no key of this name.
    #[error("there is no such API key: `tidegate keys list` shows them")]
    UnknownKey,
    /// Nobody could say in time whether there is one.
    #[error("the API key could not be looked up within a second: try again when the database answers")]
    NotInTime,
}

/// The facts known of the client whose quotas are asked for.
#[derive(Clone, Copy)]
struct QuotaClient<'a> {
    user: Option<&'a str>,
    key: Option<&'a str>,
    tier: Option<&'a str>,
}

impl Engine {
    /// Returns what every rule that counts by this user or key alone leaves it now; of a key also the rules
    /// that count by its user. A rule that none of its requests can reach is left out: another tier's,
    /// another user's, or one behind a rule of its group that always comes first. `domain` and `only` choose
    /// a domain and a rule.
    ///
    /// # Errors
    /// The key is none, or nobody could say.
    pub async fn quotas(
        &self,
        owner: QuotaOwner<'_>,
        domain: Option<&str>,
        only: Option<&str>,
    ) -> Result<Quotas, NoQuotas> {
        let loaded = self.loaded.load_full();
        let attribute = match owner {
            QuotaOwner::User(user) => ("user", user),
            QuotaOwner::Key(key) => ("api_key", key_id(key).unwrap_or(key)),
        };
        let request =
            |domain| Request::new(domain, [attribute].into_iter().collect::<Attributes<'_>>(), Cost::Peek);
        let persons = self.find_for(Inquiry::Operator, &loaded.set, &[request("")]).await;
        match persons.first().map(|person| person.key_found()) {
            Some(KeyFound::Nobody) => return Err(NoQuotas::UnknownKey),
            Some(KeyFound::NotInTime) => return Err(NoQuotas::NotInTime),
            Some(KeyFound::Yes) | None => {}
        }
        let who = self.who(&persons);
        let (user, key) = match owner {
            QuotaOwner::User(user) => (Some(user), None),
            QuotaOwner::Key(_) => (who.user, Some(attribute.1)),
        };
        let client = QuotaClient { user, key, tier: who.tier };
        let refused = persons.first().and_then(|person| person.refused(self.clock.now()));
        let mut quotas = Quotas {
            owner: who.user.map(str::to_owned),
            refused: refused.map(|refused| refused.why.name()),
            ..Quotas::default()
        };
        // Groups that an earlier rule decides for every request of this client.
        let mut decided: BTreeSet<(&str, &str)> = BTreeSet::new();
        for rule in loaded.set.rules().iter().map(|compiled| &compiled.rule) {
            let group = rule.group.as_deref().map(|group| (rule.domain.as_str(), group));
            let hidden = group.is_some_and(|group| decided.contains(&group));
            let reached = rule.enabled && !hidden && client.reaches(rule);
            if !reached {
                continue;
            }
            decided.extend(group.filter(|_| client.is_decided_by(rule)));
            let wanted = rule.action.counts()
                && !rule.per.is_empty()
                && rule.per.iter().all(|name| client.has(name))
                && domain.is_none_or(|domain| rule.domain == domain)
                && only.is_none_or(|only| rule.name == only);
            if !wanted {
                continue;
            }
            if quotas.buckets.len() >= QUOTAS_MAX {
                quotas.more = true;
                break;
            }
            // The client is looked up once: a hundred rules do not wait each for a source that does not
            // answer.
            let asked = request(&rule.domain);
            let bucket = self.bucket_and_key(&loaded, &rule.name, (&asked, &persons)).await;
            quotas.buckets.extend(bucket.map(|(bucket, _)| (rule.domain.clone(), bucket)));
        }
        Ok(quotas)
    }
}

impl QuotaClient<'_> {
    /// True if each of its requests has this attribute, with one value.
    fn has(&self, attribute: &str) -> bool {
        match attribute {
            "user" => self.user.is_some(),
            "api_key" => self.key.is_some(),
            _ => false,
        }
    }

    /// True if some request of this client can match the rule.
    fn reaches(&self, rule: &Rule) -> bool {
        let reaches = |condition: &Condition| match (condition.attribute.as_str(), self.user, self.key) {
            ("user", Some(user), _) => holds(condition, user),
            ("api_key", _, Some(key)) => holds(condition, key),
            ("tier", ..) => self.tier.is_some_and(|tier| holds(condition, tier)),
            _ => true,
        };
        rule.conditions.iter().all(reaches)
    }

    /// True if a rule that this client reaches decides its group for every request of the client that can
    /// count by it.
    fn is_decided_by(&self, rule: &Rule) -> bool {
        let is_known = |name: &str| name == "tier" || self.has(name);
        !rule.exact
            && rule.conditions.iter().all(|condition| is_known(&condition.attribute))
            && rule.per.iter().all(|name| self.has(name))
            && (!rule.action.counts() || rule.algorithm != crate::core::algorithm::Algorithm::Concurrency)
    }
}

fn holds(condition: &Condition, value: &str) -> bool {
    condition.any_of.iter().any(|pattern| pattern.matches_text(value))
}

/// Returns when a fixed window is over that has `left` to go by the store's clock: its end as the windows say
/// it, whether anything was counted or not. A debt outlasts the window, and ends with a later one.
pub(super) fn end_of_window(windows: Windows, now: Timestamp, left: Span) -> Timestamp {
    let slack = CLOCKS_DIFFER_MAX.min(Span(windows.shortest().micros() / 2));
    let told = now + left;
    let boundary = windows.start(windows.index(told + slack));
    let end = if told.since(boundary) <= slack { boundary } else { told };
    end.max(windows.end(windows.index(now)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_ends_where_windows_end_though_clocks_differ_a_little() {
        let windows = Windows::new(Span::from_secs(60), None);
        let now = Timestamp(30_000_000);
        for (left, end) in [(0, 60), (30_000, 60), (29_998, 60), (30_002, 60), (90_001, 120)] {
            let found = end_of_window(windows, now, Span::from_millis(left));
            assert_eq!(found, Timestamp(end * 1_000_000), "{left} ms left");
        }
        assert_eq!(
            end_of_window(Windows::new(Span::from_secs(1), None), now, Span::from_millis(999)),
            Timestamp(31_000_000)
        );
    }
}
