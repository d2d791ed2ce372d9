//! The state of the daemon: `/readyz`, which the stream of the console shows too.

#[cfg(test)]
use schemars::JsonSchema;
use serde::Serialize;

use super::error::ready_status;
use super::reply::{self, Reply};
use super::wire::store_word;
use super::{Readiness, Servers};
use crate::engine::rulebook::RulesStatus;

/// The state of a daemon, of its store and of its rules.
#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[cfg_attr(test, schemars(rename = "Ready"))]
pub(super) struct ReadyJson<'a> {
    /// True if gateways should ask this daemon.
    ready: bool,
    /// The state of the daemon.
    #[cfg_attr(test, schemars(extend("enum" = ["starting", "serving", "impaired", "draining"])))]
    state: &'static str,
    /// The revision of the rules in force.
    revision: u64,
    /// The state of the store: `ok`, `degraded` (some servers do not answer, or not everything) or `down`.
    #[cfg_attr(test, schemars(extend("enum" = crate::api::schema::STORE_WORDS)))]
    store: &'static str,
    /// The troubles of the store, a sentence each.
    store_problems: &'a [String],
    /// The state of the rules in force.
    rules: &'a RulesStatus,
    /// Rules that are valid and hardly meant so.
    warnings: Vec<String>,
    /// The troubles of the cluster now, as this daemon sees them.
    notices: Vec<&'a str>,
    /// Background tasks that ended and do not start again; absent when there are none.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    tasks_missing: &'a [&'static str],
}

/// Answers 200 where gateways should ask this daemon, else 503, and why. A store that does not answer is
/// told, and no reason to ask elsewhere: each rule's failure policy answers, here as in the region's other
/// daemons.
pub(super) fn ready(servers: &Servers) -> Reply {
    let readiness = servers.readiness();
    let state = match readiness {
        Readiness::Starting => "starting",
        Readiness::Serving => "serving",
        Readiness::Impaired => "impaired",
        Readiness::Draining => "draining",
    };
    let ready = readiness == Readiness::Serving;
    let health = servers.engine.store().health();
    let store = store_word(health.state);
    let odd = servers.engine.rule_warnings();
    let notices = servers.engine.notices();
    let body = ReadyJson {
        ready,
        state,
        revision: servers.engine.loaded().revision,
        store,
        store_problems: &health.problems,
        rules: &servers.engine.rules_status(),
        warnings: odd.told.iter().map(ToString::to_string).collect(),
        notices: notices.iter().map(|notice| notice.text.as_str()).collect(),
        tasks_missing: &servers.engine.tasks().missing(),
    };
    reply::with_status(reply::json(&body), ready_status(ready))
}
