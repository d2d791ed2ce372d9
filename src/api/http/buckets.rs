//! `/v1/buckets?rule=…&user=…`: what one bucket holds, here and by what is known of the world; `DELETE` has it count from
//! zero.

use std::sync::Arc;

use super::rules::no_rule;
use super::{Answered, query, reply};
use crate::api::Doors;
use crate::api::error::{Code, Refusal};
use crate::api::wire::{BucketJson, ResetJson};
use crate::core::request::{Attributes, Cost, Request};
use crate::core::ruleset::Compiled;
use crate::engine::loaded::Loaded;

/// Shows the bucket of the rule named by `rule` for the attributes that the other parameters give.
pub(super) async fn show(doors: &Doors, query: &str) -> Answered {
    let asked = Asked::read(doors, query)?;
    let compiled = asked.compiled()?;
    let request = asked.request(compiled)?;
    let bucket = doors.engine.bucket(&asked.rule, &request).await.ok_or_else(no_buckets)?;
    Ok(reply::json(&BucketJson::new(&bucket)))
}

/// Has that bucket count from zero. A store that does not answer is a refusal: nothing is known to have changed.
pub(super) async fn reset(doors: &Doors, query: &str) -> Answered {
    let asked = Asked::read(doors, query)?;
    let compiled = asked.compiled()?;
    let request = asked.request(compiled)?;
    let reset = doors.engine.reset(&asked.rule, &request).await.ok_or_else(no_buckets)?;
    let away = "the region's store does not answer, so the bucket may be as it was: try again";
    let existed = reset.existed.ok_or_else(|| Refusal::new(Code::NoStore, away))?;
    let by = doors.engine.name();
    tracing::info!(rule = %reset.rule, node = %by.node, existed, "a bucket was reset by hand");
    Ok(reply::json(&ResetJson::new(&reset, existed)))
}

/// A rule and attributes, as the query names them.
struct Asked {
    rule: String,
    pairs: Vec<(String, String)>,
    loaded: Arc<Loaded>,
}

impl Asked {
    fn read(doors: &Doors, query: &str) -> Result<Self, Refusal> {
        let mut pairs = query::pairs(query)?;
        let place = pairs.iter().position(|(name, _)| name == "rule");
        let place = place.ok_or_else(|| Refusal::of_field("rule", "say whose bucket: rule=NAME"))?;
        let (_, rule) = pairs.remove(place);
        Ok(Self { rule, pairs, loaded: doors.engine.loaded() })
    }

    fn compiled(&self) -> Result<&Compiled, Refusal> {
        self.loaded.set.by_name(&self.rule).map(|compiled| &**compiled).ok_or_else(|| no_rule(&self.rule))
    }

    fn request<'a>(&'a self, compiled: &'a Compiled) -> Result<Request<'a>, Refusal> {
        let pairs = self.pairs.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let attributes: Attributes<'_> = pairs.collect();
        let request = Request { domain: &compiled.rule.domain, attributes, cost: Cost::Peek, limit: None };
        let missing = |name: &&String| request.attribute(name).is_none_or(str::is_empty);
        if let Some(name) = compiled.rule.per.iter().find(missing) {
            let message = format!("the rule has one bucket for each {name:?}: give its value");
            return Err(Refusal::of_field(name.clone(), message));
        }
        Ok(request)
    }
}

fn no_buckets() -> Refusal {
    Refusal::of_field("rule", "this rule counts nothing and has no buckets")
}
