//! The explanation why somebody is limited: the decision as it would be, what its buckets hold, and what was
//! counted of them lately. Nothing is charged, and nothing is asked but the store.

use std::collections::BTreeMap;

use super::Engine;
use super::hot::{is_shadow, shown_identity};
use super::identity::{Inquiry, rewritten};
use super::loaded::Loaded;
use super::status::BucketStatus;
use crate::core::algorithm::Counting;
use crate::core::decision::Decision;
use crate::core::denial_cause::DenialCause;
use crate::core::hot::HotBucket;
use crate::core::key::{Key, identity_values};
use crate::core::request::{Attributes, Cost, Request};
use crate::core::rule::Mode;
use crate::core::ruleset::Compiled;
use crate::core::time::Span;

/// Most buckets of one answer: those of the request come first, then those that were denied most.
pub const WHY_BUCKETS_MAX: usize = 20;

/// The reasons for which a client is limited, or that it is not.
#[derive(Debug, Clone)]
pub struct Why {
    /// The answer as it would be now.
    pub decision: Decision,
    /// The buckets that decide it, and others of the same client that were denied lately.
    pub buckets: Vec<WhyBucket>,
}

/// One bucket of the client.
#[derive(Debug, Clone)]
pub struct WhyBucket {
    /// Its contents. Its identity is as it may be shown.
    pub status: BucketStatus,
    /// Domain of the rule that counts the bucket.
    pub domain: String,
    /// True if the rule's denials are only logged.
    pub shadow: bool,
    /// True if the request would be counted here.
    pub matches: bool,
    /// True if the bucket would say no: to the request, or to one permit where the request is not counted.
    pub denies: bool,
    /// The thing that the rule names to use instead, where it denies nobody.
    pub use_instead: Option<String>,
    /// Time until the cost could pass, when denied; `None` if never. For a request that is not counted, the
    /// time until the bucket is unused again, or its window ends.
    pub retry: Option<Span>,
    /// Reason of a denial, if it denies the request.
    pub cause: Option<DenialCause>,
    /// Its counts of late, if it has a place among the counted.
    pub hot: Option<HotBucket>,
    /// Permits that each region is known to have admitted, this one first; others only where they have told.
    pub used_by: Vec<(String, u64)>,
}

impl Engine {
    /// Returns why `request` is limited. Besides the buckets that decide it, those are told of that were
    /// denied lately and whose identity agrees with the request's attributes: so a client is found by its
    /// name alone. Where `rule` names one, its bucket is told whatever the request matches: that of a rule
    /// that counts all has no name by which it could be found. Looks at every rule in force: not for threads
    /// that decide.
    pub async fn why(&self, request: &Request<'_>, rule: Option<&str>) -> Option<Why> {
        let loaded = self.loaded.load_full();
        let asked = std::slice::from_ref(request);
        let persons = self.find_for(Inquiry::Operator, &loaded.set, asked).await;
        let decision = self.ask_of(&loaded, (asked, &persons)).await.into_iter().next()?;
        let mut told = Told { keys: Vec::new(), buckets: Vec::new() };
        for ruled in &decision.rules {
            let Some(compiled) = loaded.set.by_name(&ruled.rule) else { continue };
            let Some((status, key)) = self.bucket_and_key(&loaded, &ruled.rule, (request, &persons)).await
            else {
                continue;
            };
            let denies = !ruled.allowed;
            let retry = if denies { ruled.retry } else { Some(Span::ZERO) };
            let (mut bucket, key) = self.why_bucket(&loaded, compiled, key, status);
            bucket.cause = ruled.cause;
            told.add((bucket, key), true, denies, retry);
        }
        if let Some(compiled) = rule.and_then(|name| loaded.set.by_name(name))
            && let Some((status, key)) =
                self.bucket_and_key(&loaded, &compiled.rule.name, (request, &persons)).await
            && !told.keys.contains(&key)
        {
            told.add_unmatched(self.why_bucket(&loaded, compiled, key, status));
        }
        let rewritten = rewritten(asked, &persons);
        let [known] = rewritten.as_deref().unwrap_or(asked) else { return None };
        let denied = self.denied_of(&loaded, request.domain, &known.attributes, WHY_BUCKETS_MAX);
        for (compiled, bucket) in denied {
            if bucket.is_long || told.keys.contains(&bucket.key) || told.buckets.len() >= WHY_BUCKETS_MAX {
                continue;
            }
            let values = identity_values(bucket.key.identity()).unwrap_or_default();
            let attributes: Attributes<'_> =
                compiled.rule.per.iter().map(String::as_str).zip(values).collect();
            let whose = Request::new(&compiled.rule.domain, attributes, Cost::Peek);
            let persons = self.find_for(Inquiry::Glance, &loaded.set, std::slice::from_ref(&whose)).await;
            let status = self.bucket_and_key(&loaded, &compiled.rule.name, (&whose, &persons)).await;
            let Some((status, key)) = status.filter(|(_, key)| *key == bucket.key) else { continue };
            told.add_unmatched(self.why_bucket(&loaded, &compiled, key, status));
        }
        Some(Why { decision, buckets: told.buckets })
    }

    fn why_bucket(
        &self,
        loaded: &Loaded,
        compiled: &Compiled,
        key: Key,
        mut status: BucketStatus,
    ) -> (WhyBucket, Key) {
        status.identity = shown_identity(compiled, &key);
        let region = &self.name().region;
        let others = status.by_region.iter().flat_map(BTreeMap::iter);
        let others = others.filter(|(other, _)| *other != region);
        let others: Vec<(String, u64)> = others.map(|(other, used)| (other.clone(), *used)).collect();
        // A store is charged for what other regions used of a level.
        let charged: u64 = match compiled.rule.algorithm.counting() {
            Counting::Level if status.mode == Some(Mode::Gossip) => {
                others.iter().map(|(_, used)| *used).sum()
            }
            _ => 0,
        };
        let own = (region.clone(), status.used.saturating_sub(charged));
        let bucket = WhyBucket {
            domain: compiled.rule.domain.clone(),
            shadow: is_shadow(loaded, compiled),
            matches: false,
            denies: false,
            use_instead: compiled.rule.answer.as_ref().and_then(|answer| answer.use_instead.clone()),
            retry: None,
            cause: None,
            hot: self.hot.find(&key, self.now()),
            used_by: std::iter::once(own).chain(others).collect(),
            status,
        };
        (bucket, key)
    }
}

/// The buckets that are told so far.
struct Told {
    keys: Vec<Key>,
    buckets: Vec<WhyBucket>,
}

impl Told {
    fn add(&mut self, (bucket, key): (WhyBucket, Key), matches: bool, denies: bool, retry: Option<Span>) {
        self.keys.push(key);
        self.buckets.push(WhyBucket { matches, denies, retry, ..bucket });
    }

    /// Adds one in which the request would not be counted.
    fn add_unmatched(&mut self, told: (WhyBucket, Key)) {
        let status = &told.0.status;
        let denies = status.remaining == 0;
        let retry = Some(if denies { status.reset } else { Span::ZERO });
        self.add(told, false, denies, retry);
    }
}
