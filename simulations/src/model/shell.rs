//! One daemon without its sockets: the store that decides and the replica that speaks with the others, both
//! the very code of the product, and the few lines between them that the engine has in the daemon.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::anyhow;
use serde_json::json;
use tidegate::core::algorithm::{Algorithm, Counting, Limit};
use tidegate::core::key::Key;
use tidegate::core::regions::escrow::level::RECOVERY_WINDOW;
use tidegate::core::regions::escrow::places::{Margins, counted_for};
use tidegate::core::regions::escrow::{EscrowSafety, moves_as};
use tidegate::core::regions::gossip::uncertainty::BucketAnswer;
use tidegate::core::regions::split::SplitRule;
use tidegate::core::regions::{Effect, FirstShare, StoreSeen, Touched, WorldKey, WorldRule};
use tidegate::core::request::Cost;
use tidegate::core::rule::{Mode, OnPartition};
use tidegate::core::ruleset::{Compiled, RuleSet, Shapes};
use tidegate::core::share::Weights;
use tidegate::core::time::{Span, Timestamp};
use tidegate::core::wire::{OwnLimit, RuleName};
use tidegate::database::document;
use tidegate::engine::port::{Charge, ChargeResult, Intent, Store as _};
use tidegate::store::MemoryStore;

use crate::plan::{Plan, RulePlan, Way};

/// The name of the one rule.
const RULE: &str = "per-user";

/// The counts of a region's store, or of one daemon's.
#[derive(Debug, Clone)]
pub(crate) struct Store(Arc<MemoryStore>);

/// The decision of a store on one request.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Decided {
    pub(crate) admitted: bool,
    /// Memory of the store, as the answer shows it.
    pub(crate) store: StoreSeen,
}

/// The effects of a daemon on each bucket and window since its replica was last told.
#[derive(Debug, Default)]
pub(crate) struct Tallies(BTreeMap<(Key, u64), Touched>);

/// The rule as every daemon reads it.
#[derive(Debug, Clone)]
pub(crate) struct RuleInForce {
    compiled: Arc<Compiled>,
}

/// Returns whether the algorithm counts by aligned windows.
pub(crate) const fn windowed(algorithm: Algorithm) -> bool {
    matches!(algorithm.counting(), Counting::Window)
}

/// The limit of a plan.
pub(crate) const fn limit(rule: &RulePlan) -> Limit {
    Limit { calendar: None, permits: rule.limit, window: rule.window, burst: rule.burst, queue: 0 }
}

/// The bucket of a user.
pub(crate) fn user_name(user: u64) -> String {
    // At least five digits. Every request needs it, and to format with a width takes longer than to decide.
    let digits = user.to_string();
    let zeros = "00000".get(digits.len()..).unwrap_or("");
    ["u", zeros, digits.as_str()].concat()
}

/// The one rule's bucket of a user as the protocol names it.
pub(crate) fn world_key(user: u64) -> WorldKey {
    let rule = RuleName { domain: "default".to_owned(), name: RULE.to_owned() };
    let name = user_name(user);
    let mut identity = vec![u8::try_from(name.len()).unwrap_or(0)];
    identity.extend_from_slice(name.as_bytes());
    WorldKey { rule, identity }
}

impl RuleInForce {
    /// Reads the rule of a plan as a daemon reads `rules.toml`, so that it may say what a file may say.
    pub(crate) fn new(plan: &Plan, way: Way) -> anyhow::Result<Self> {
        let regions: Vec<String> = plan.regions.iter().map(|region| region.name.clone()).collect();
        let mut rule = document::rule_from_json(&written(plan, way), &regions).map_err(|problems| {
            let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
            anyhow!("the rule of {:?} is none: {}", plan.name, problems.join("; "))
        })?;
        if let Some(global) = &mut rule.global {
            global.mode = mode(way);
        }
        let set = RuleSet::compile(vec![rule], &mut Shapes::default())
            .map_err(|conflicts| anyhow!("the rule conflicts with itself: {conflicts:?}"))?;
        let compiled = set.by_name(RULE).cloned().ok_or_else(|| anyhow!("the rule is gone"))?;
        Ok(Self { compiled })
    }

    /// As the protocol knows it.
    pub(crate) fn world_rule(&self) -> Option<WorldRule> {
        let rule = &self.compiled.rule;
        Some(WorldRule {
            name: RuleName { domain: rule.domain.clone(), name: rule.name.clone() },
            algorithm: rule.algorithm,
            limit: self.compiled.limit,
            global: rule.global.clone()?,
        })
    }

    /// As the machine of shares knows it.
    pub(crate) fn split_rule(&self, regions: &[String]) -> Option<SplitRule> {
        let rule = &self.compiled.rule;
        let global = rule.global.as_ref()?;
        Some(SplitRule {
            name: RuleName { domain: rule.domain.clone(), name: rule.name.clone() },
            weights: Weights::new(&global.shares, &global.minimums, regions),
            algorithm: rule.algorithm,
            limit: self.compiled.limit,
            recall: match global.mode {
                Mode::Escrow => match moves_as(rule.algorithm) {
                    Counting::Window => Span::ZERO,
                    Counting::Level => RECOVERY_WINDOW,
                    Counting::Concurrency => {
                        Margins::USUAL.recall(counted_for(rule.algorithm, self.compiled.limit.window))
                    }
                },
                Mode::Gossip | Mode::Split => Span::ZERO,
            },
        })
    }

    /// Returns what `region` may use of a `gossip` limit while its store has no view that speaks of now, as
    /// the engine works it out.
    pub(crate) fn first_of(&self, limit: Limit, region: &str, regions: u64) -> Option<u32> {
        let rule = &self.compiled.rule;
        let global = rule.global.as_ref().filter(|global| global.mode == Mode::Gossip)?;
        FirstShare::new(global, region).of(limit.capacity(rule.algorithm), regions)
    }

    fn key(&self, user: u64) -> Key {
        Key::new(self.compiled.shape, [user_name(user).as_str()])
    }

    pub(crate) fn limit(&self) -> Limit {
        self.compiled.limit
    }
}

/// The rule as `rules.toml` would have it.
fn written(plan: &Plan, way: Way) -> serde_json::Value {
    let rule = &plan.rule;
    let mut global = json!({ "mode": "gossip", "on_partition": partition_word(rule.on_partition) });
    if way == Way::Split {
        global = json!({ "mode": "split" });
    }
    if plan.regions.iter().any(|region| region.weight != 1) {
        let shares = plan.regions.iter().map(|region| (region.name.clone(), json!(region.weight)));
        global["shares"] = serde_json::Value::Object(shares.collect());
    }
    let mut document = json!({
        "name": RULE,
        "per": ["user"],
        "limit": rule.limit,
        "window": tidegate::core::written::format_span(rule.window),
        "algorithm": rule.algorithm,
        "global": global,
    });
    if !windowed(rule.algorithm) {
        document["burst"] = json!(rule.burst);
    }
    document
}

/// The mode of a way that is the product's.
pub(crate) const fn mode(way: Way) -> Mode {
    match way {
        Way::Split => Mode::Split,
        Way::Escrow | Way::EscrowWait => Mode::Escrow,
        _ => Mode::Gossip,
    }
}

pub(crate) const fn partition_word(on_partition: OnPartition) -> &'static str {
    match on_partition {
        OnPartition::Share => "share",
        OnPartition::Freeze => "freeze",
        OnPartition::LastKnown => "last_known",
        OnPartition::Ignore => "ignore",
        OnPartition::Deny => "deny",
    }
}

impl Store {
    pub(crate) fn new(plan: &Plan) -> Self {
        Self(Arc::new(MemoryStore::new(plan.keys_max.max(64))))
    }

    /// A store for so many buckets that remembers nothing from before `begun`.
    pub(crate) fn sized(keys_max: usize, begun: Timestamp, safety: EscrowSafety) -> Self {
        Self(Arc::new(MemoryStore::new(keys_max).begun(begun).with_safety(safety)))
    }

    pub(crate) fn memory(&self) -> Arc<MemoryStore> {
        Arc::clone(&self.0)
    }

    /// Decides one request against `limit`, of which `first` may be used while no view speaks of now.
    pub(crate) fn decide(
        &self,
        rule: &RuleInForce,
        (limit, first): (Limit, Option<u32>),
        user: u64,
        cost: u64,
        now: Timestamp,
    ) -> Decided {
        let key = rule.key(user);
        let charge = Charge {
            rule: &rule.compiled,
            key: &key,
            limit,
            share: None,
            whole: &rule.compiled.limit,
            first,
            cost: Cost::Take(cost),
            enforced: true,
        };
        let Some(outcome) = self.0.try_decide(&[charge], Intent::Charge, now) else {
            return Decided::default();
        };
        let counted = || outcome.counted.iter();
        Decided {
            admitted: outcome.admitted && counted().all(|one| !one.degraded),
            store: counted().next().map(ChargeResult::store_seen).unwrap_or_default(),
        }
    }

    /// Its answer to a cost of zero, which charges nothing.
    pub(crate) fn peek(
        &self,
        (rule, limit, first): (&RuleInForce, Limit, Option<u32>),
        user: u64,
        now: Timestamp,
    ) -> Option<BucketAnswer> {
        let key = rule.key(user);
        let charge = Charge {
            rule: &rule.compiled,
            key: &key,
            limit,
            share: None,
            whole: &rule.compiled.limit,
            first,
            cost: Cost::Peek,
            enforced: true,
        };
        let outcome = self.0.try_decide(&[charge], Intent::Ask, now)?;
        let counted = outcome.counted.first()?;
        Some(BucketAnswer {
            used: counted.used,
            remaining: counted.verdict.remaining,
            view: counted.view,
            error_bound: counted.error_bound,
        })
    }

    /// Carries out what the protocol asks for.
    pub(crate) fn apply(&self, rule: &RuleInForce, effect: &Effect, now: Timestamp) {
        let local = |key: &WorldKey| Key::from_identity(rule.compiled.shape, &key.identity);
        match effect {
            Effect::View { key, view, error_bound } => {
                self.0.set_allowance(&rule.compiled, &local(key), *view, *error_bound, now);
            }
            Effect::Restore { key, known, own } => {
                let limit = own.map_or(rule.limit(), |own| own.in_place_of(rule.limit()));
                self.0.restore(&rule.compiled, &local(key), limit, *known, now);
            }
            Effect::Debit { key, permits, own } => {
                let limit = own.map_or(rule.limit(), |own| own.in_place_of(rule.limit()));
                self.0.debit(&rule.compiled, &local(key), limit, *permits, now);
            }
        }
    }

    /// Forgets what has expired.
    pub(crate) fn sweep(&self, now: Timestamp) {
        self.0.sweep(now);
    }
}

impl Tallies {
    /// Notes what was decided.
    pub(crate) fn note(
        &mut self,
        rule: &RuleInForce,
        (user, own): (u64, Option<OwnLimit>),
        cost: u64,
        decided: Decided,
        now: Timestamp,
    ) {
        let length = rule.limit().window;
        let window = if windowed(rule.compiled.rule.algorithm) { now.window_index(length) } else { 0 };
        let key = rule.key(user);
        let world_key = || WorldKey {
            rule: RuleName { domain: "default".to_owned(), name: RULE.to_owned() },
            identity: key.identity().to_vec(),
        };
        let tally = self.0.entry((key.clone(), window)).or_insert_with(|| Touched {
            key: world_key(),
            window,
            offered: 0,
            admitted: 0,
            returned: 0,
            refused: 0,
            largest: 0,
            own,
            store: StoreSeen::default(),
        });
        tally.own = own;
        tally.store.without_allowance |= decided.store.without_allowance;
        tally.store.used = tally.store.used.max(decided.store.used);
        tally.offered += cost;
        tally.largest = tally.largest.max(cost);
        if decided.admitted {
            tally.admitted += cost;
        } else {
            tally.refused = tally.refused.max(cost);
        }
    }

    /// Takes everything out.
    pub(crate) fn drain(&mut self) -> Vec<Touched> {
        std::mem::take(&mut self.0).into_values().collect()
    }
}
