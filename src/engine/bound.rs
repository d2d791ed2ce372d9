//! How far the worldwide use of a limit may lie above what a region believes: of one bucket, and of every worldwide rule.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::loaded::Loaded;
use super::status::WorldStatus;
use crate::core::algorithm::{Algorithm, Limit};
use crate::core::rule::Mode;
use crate::core::ruleset::Compiled;
use crate::core::worldwide::escrow::EscrowRule;

/// Most rules told of which nothing moved and nothing was heard.
const QUIET_MAX: usize = 1_000;

/// Permits by which a bucket's worldwide use may exceed what its region believes. `whole` is the limit in all regions, `own`
/// what this region is held to, `used` and `remaining` what its store answered, and `told` what the protocol between
/// regions worked out, if it speaks of this mode.
///
/// Never too small: rights that are on their way, or whose fate nobody knows, count as used by others.
#[must_use]
pub(super) fn of_bucket(
    mode: Mode,
    algorithm: Algorithm,
    (whole, own): (&Limit, &Limit),
    (used, remaining): (u64, u64),
    told: u64,
) -> u64 {
    let whole = whole.capacity(algorithm);
    match mode {
        Mode::Gossip => told,
        // The others may have spent all that is not ours.
        Mode::Split => whole.saturating_sub(own.capacity(algorithm)),
        // What is used and what is left here are the rights that this region holds now, with any store; nobody else can
        // have spent those.
        Mode::Escrow => whole.saturating_sub(used.saturating_add(remaining)),
    }
}

/// Of every worldwide rule in force its name, the worst bound of its buckets, and what that is due to; see
/// [`WorldStatus::error_bounds`]. `status` has those that the protocol between regions follows buckets of; of the others at most
/// [`QUIET_MAX`] are told.
pub(super) fn of_rules(loaded: &Loaded, status: &WorldStatus) -> Vec<(String, u64, &'static str)> {
    let told: HashMap<&str, (u64, &'static str)> = status
        .error_bounds
        .iter()
        .map(|(rule, bound, because)| (rule.as_str(), (*bound, *because)))
        .collect();
    let rights: HashMap<&str, &EscrowRule> =
        status.rights.iter().map(|rights| (rights.rule.as_str(), rights)).collect();
    let spoken: BTreeSet<&str> = told.keys().chain(rights.keys()).copied().collect();
    let counts = |compiled: &&Arc<Compiled>| {
        compiled.rule.global.is_some() && compiled.rule.enabled && compiled.rule.action.counts()
    };
    let quiet = loaded.set.worldwide().iter().filter(counts);
    // However many rules there are, no more of them are looked at than are told of.
    let quiet = quiet.filter(|compiled| !spoken.contains(compiled.rule.name.as_str())).take(QUIET_MAX);
    let moving = spoken.iter().filter_map(|name| loaded.set.by_name(name)).filter(counts);
    let bounds = moving.chain(quiet).map(|compiled| {
        let (name, algorithm) = (compiled.rule.name.as_str(), compiled.rule.algorithm);
        let (told, rights) = (told.get(name), rights.get(name));
        let (bound, because) = match loaded.own_of(compiled) {
            Some(own) => {
                let held = least_held(algorithm, own.capacity(algorithm), rights.copied());
                (compiled.limit.capacity(algorithm).saturating_sub(held), "shares")
            }
            None => told.copied().unwrap_or((0, "none")),
        };
        (name.to_owned(), bound, if bound > 0 { because } else { "none" })
    });
    bounds.collect()
}

/// The least that this region holds of any of a rule's buckets, going by its `share` and by what moved.
fn least_held(algorithm: Algorithm, share: u64, rights: Option<&EscrowRule>) -> u64 {
    match rights {
        // What flows from a bucket without windows stays charged to it, or refills.
        Some(_) if algorithm.is_level() => share,
        Some(rights) if rights.in_doubt > 0 => 0,
        // In the worst case all that was given came from one bucket.
        Some(rights) => share.saturating_sub(rights.given.values().copied().fold(0, u64::saturating_add)),
        None => share,
    }
}

/// What the gauges of single rules change to when `after` is published where `before` was: name of the gauge, rule and value.
/// What a rule that is no longer there had comes first, as zero.
pub(super) fn rule_gauges<'a>(
    before: &'a WorldStatus,
    after: &'a WorldStatus,
) -> impl Iterator<Item = (&'static str, &'a str, u64)> {
    let (was, is) = (of_status(before), of_status(after));
    let gone: Vec<_> =
        was.keys().filter(|of| !is.contains_key(of)).map(|(gauge, rule)| (*gauge, *rule, 0)).collect();
    let changed = is.into_iter().filter(move |(of, value)| was.get(of) != Some(value));
    gone.into_iter().chain(changed.map(|((gauge, rule), value)| (gauge, rule, value)))
}

/// By gauge and rule.
fn of_status(status: &WorldStatus) -> BTreeMap<(&'static str, &str), u64> {
    let bounds =
        status.error_bounds.iter().map(|(rule, bound, _)| (("global_error_bound", rule.as_str()), *bound));
    let rights = status.rights.iter().flat_map(|rights| {
        let burning = u64::try_from(rights.in_doubt).unwrap_or(u64::MAX);
        [("rights_free", rights.free), ("rights_under_way", rights.under_way), ("rights_burning", burning)]
            .map(|(gauge, value)| ((gauge, rights.rule.as_str()), value))
    });
    bounds.chain(rights).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::time::Span;
    use crate::database::document;
    use crate::engine::Engine;
    use crate::engine::clock::Clock;
    use crate::engine::world::WorldPort;
    use crate::store::memory::MemoryStore;
    use crate::telemetry::Metrics;

    fn status(bounds: &[(&str, u64)], rights: &[(&str, u64)]) -> WorldStatus {
        let rights = rights.iter().map(|(rule, free)| EscrowRule {
            rule: (*rule).to_owned(),
            free: *free,
            ..EscrowRule::default()
        });
        let bounds = bounds.iter().map(|(rule, bound)| ((*rule).to_owned(), *bound, "lag"));
        WorldStatus { error_bounds: bounds.collect(), rights: rights.collect(), ..WorldStatus::default() }
    }

    #[test]
    fn the_gauges_of_a_rule_that_is_gone_fall_to_zero() {
        let before = status(&[("kept", 4), ("gone", 7)], &[("gone", 3)]);
        let after = status(&[("kept", 5), ("new", 6)], &[]);
        let set: Vec<_> = rule_gauges(&before, &after).collect();
        let expected = [
            ("global_error_bound", "gone", 0),
            ("rights_burning", "gone", 0),
            ("rights_free", "gone", 0),
            ("rights_under_way", "gone", 0),
            ("global_error_bound", "kept", 5),
            ("global_error_bound", "new", 6),
        ];
        assert_eq!(set, expected);
        assert_eq!(rule_gauges(&after, &after).count(), 0, "only once");
    }

    #[test]
    fn every_worldwide_rule_is_published_and_one_that_goes_is_published_no_more() {
        let rule = |name: &str, algorithm: &str, mode: &str| {
            format!(
                "[[rules]]\nname = \"{name}\"\nalgorithm = \"{algorithm}\"\nlimit = 12\nwindow = \"1m\"\n\
                 [rules.global]\nmode = \"{mode}\"\nshares = {{ here = 1, there = 2 }}\n"
            )
        };
        let gossips = rule("told", "fixed_window", "gossip").replace("shares = { here = 1, there = 2 }", "");
        let all = [
            gossips.clone(),
            gossips.replace("told", "quiet"),
            rule("split", "token_bucket", "split"),
            rule("moved", "fixed_window", "escrow"),
            rule("still", "sliding_window", "escrow"),
        ];
        let name = crate::core::worldwide::NodeName { region: "here".to_owned(), node: "here-1".to_owned() };
        let store = Arc::new(MemoryStore::new(100));
        let engine = Engine::new(name, Clock::Manual(1_800_000_000_000_000.into()), store, Metrics::new());
        let load = |text: &str| {
            let read = document::from_toml("rules.toml", text, &[]).unwrap();
            engine.load(read.rules, read.users, false).unwrap();
        };
        let published = |status: WorldStatus| {
            WorldPort::publish(&engine, status);
            let mut bounds = engine.world().error_bounds.clone();
            bounds.sort();
            bounds
                .into_iter()
                .map(|(rule, bound, because)| format!("{rule} {bound} {because}"))
                .collect::<Vec<_>>()
        };
        let gauge = |rule: &str| {
            let text = engine.metrics().render();
            let line = format!("tidegate_global_error_bound{{rule=\"{rule}\"}} ");
            text.lines().find_map(|one| one.strip_prefix(line.as_str())).map(str::to_owned)
        };
        load(&all.concat());
        let mut told = status(&[("told", 3)], &[("moved", 1)]);
        told.rights[0].given.insert("there".to_owned(), 2);
        let expected = ["moved 10 shares", "quiet 0 none", "split 8 shares", "still 8 shares", "told 3 lag"];
        assert_eq!(published(told.clone()), expected);
        assert_eq!((gauge("told").as_deref(), gauge("moved").as_deref()), (Some("3"), Some("10")));
        told.rights[0].in_doubt = 1;
        assert_eq!(published(told)[0], "moved 12 shares", "what this region minted may be spent");
        load(&all[2]);
        assert_eq!(published(WorldStatus::default()), ["split 8 shares"]);
        assert_eq!((gauge("told").as_deref(), gauge("split").as_deref()), (Some("0"), Some("8")));
    }

    #[test]
    fn what_is_not_ours_the_others_may_have_spent() {
        let limit = |permits, burst| Limit { permits, window: Span::from_secs(60), burst, queue: 0 };
        let (whole, own) = (limit(100, 900), limit(30, 270));
        let bound = |mode, algorithm| of_bucket(mode, algorithm, (&whole, &own), (12, 28), 5);
        assert_eq!(bound(Mode::Gossip, Algorithm::FixedWindow), 5);
        assert_eq!(bound(Mode::Split, Algorithm::FixedWindow), 70);
        assert_eq!(bound(Mode::Split, Algorithm::TokenBucket), 630);
        // Ten were taken from others.
        assert_eq!(bound(Mode::Escrow, Algorithm::FixedWindow), 60);
        assert_eq!(bound(Mode::Escrow, Algorithm::Gcra), 860);
        let more = of_bucket(Mode::Escrow, Algorithm::FixedWindow, (&whole, &own), (u64::MAX, 1), 0);
        assert_eq!(more, 0);
    }
}
