//! The admin routes: what operators look at and change. One table says for each route its method, its path
//! and the role it needs; the guard is asked before anything of the request is read.
//!
//! A module brings its own routes in a `ROUTES` of its own, which [`TABLES`] lists.

mod audit;
mod audit_json;
mod buckets;
mod changes;
mod guard;
mod hot;
mod hot_json;
mod keys;
mod me;
mod parameters;
mod people;
mod quotas;
mod rates;
mod regions;
mod rules;
pub(super) mod stream;
pub(super) mod stream_places;
mod tiers;
mod tokens;
mod users;
mod why;

use std::time::Duration;

use http::header::CONTENT_TYPE;
use http::request::Parts;
use hyper::body::Bytes;
use percent_encoding::percent_decode_str;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use super::Servers;
use super::error::{Code, Refusal};
use super::query;
use super::reply::Answered;
use crate::core::rule::Rule;
use crate::engine::admin::{Actor, Ledger, NoLedger, Role};
use crate::engine::history::History;
use crate::engine::identity::register::{NoRegister, Register};
use crate::engine::port::Later;
use crate::engine::region_listing::{NoRegionListing, RegionListing};
use crate::engine::rulebook::{NoRuleBook, RuleBook};
use crate::telemetry::Metrics;

pub use self::guard::Guard;
#[cfg(feature = "fuzzing")]
pub(super) use self::rules::fuzzed as fuzzed_tags;
pub use self::tokens::{Made, Tokens, make as make_token};

/// Longest body of an admin request, in bytes: what a set of rules may have; 100,000 fit.
pub(super) const BODY_BYTES_MAX: usize = 64 << 20;

/// Longest wait for those who look at all rules before this one.
const TURN_WAIT: Duration = Duration::from_secs(2);

/// Writes one rule as the API shows it, the JSON shape of `rules.toml`.
pub type RuleJson = std::sync::Arc<dyn Fn(&Rule) -> serde_json::Value + Send + Sync>;

/// The parts of the daemon that the admin routes work with.
pub struct Admin {
    /// Lets in the holders of tokens, each by its role.
    pub guard: std::sync::Arc<Guard>,
    /// Writes a rule as the JSON that the routes answer.
    pub rule_json: RuleJson,
    /// Shows and changes users, keys and tiers.
    pub register: std::sync::Arc<dyn Register>,
    /// Shows and changes the list of regions that share limits.
    pub regions: std::sync::Arc<dyn RegionListing>,
    /// The source of the rules, which also changes them.
    pub rules: std::sync::Arc<dyn RuleBook>,
    /// The record of what operators changed besides rules and quotas.
    pub ledger: std::sync::Arc<dyn Ledger>,
    /// The memory of decisions; `None`: none are remembered.
    pub history: Option<std::sync::Arc<dyn History>>,
}

impl Admin {
    /// Admin routes that this machine may use without tokens, over what every daemon has.
    #[must_use]
    pub fn local(rule_json: RuleJson, metrics: &Metrics) -> Self {
        Self {
            guard: std::sync::Arc::new(Guard::new(None, metrics).with(true, None)),
            rule_json,
            register: std::sync::Arc::new(NoRegister),
            regions: std::sync::Arc::new(NoRegionListing),
            history: None,
            ledger: std::sync::Arc::new(NoLedger),
            rules: std::sync::Arc::new(NoRuleBook),
        }
    }
}

/// One request to an admin route, past the guard.
pub(super) struct AdminCall<'c> {
    pub(super) servers: &'c std::sync::Arc<Servers>,
    pub(super) head: &'c Parts,
    /// Texts of the path that stand in place of the route's `{…}`, decoded, in order.
    pub(super) params: Vec<String>,
    /// Empty unless the method brings one.
    pub(super) body: Bytes,
    /// The operator who asks; the record of every change names it.
    pub(super) actor: Actor,
}

pub(super) type Handler = for<'c> fn(AdminCall<'c>) -> Later<'c, Answered>;

/// One admin route.
pub(super) struct AdminRoute {
    pub(super) method: &'static str,
    /// Segments in braces stand for any one segment.
    pub(super) path: &'static str,
    pub(super) role: Role,
    pub(super) handler: Handler,
}

/// Every module's routes.
const TABLES: &[&[AdminRoute]] = &[
    rules::ROUTES,
    quotas::ROUTES,
    regions::ROUTES,
    buckets::ROUTES,
    audit::ROUTES,
    users::ROUTES,
    keys::ROUTES,
    tiers::ROUTES,
    changes::ROUTES,
    stream::ROUTES,
    hot::ROUTES,
    rates::ROUTES,
    why::ROUTES,
    me::ROUTES,
];

/// Every admin route.
pub(super) fn routes() -> impl Iterator<Item = &'static AdminRoute> {
    TABLES.iter().copied().flatten()
}

/// The route for a path and method.
pub(super) enum RouteFound {
    /// None has this path.
    Nothing,
    /// Some have the path, none the method: those there are, as in `Allow`.
    OtherMethods(String),
    /// This one, with what stands in its path.
    Route(&'static AdminRoute, Vec<String>),
}

/// Finds the route; HEAD is answered like GET.
pub(super) fn find(method: &str, path: &str) -> Result<RouteFound, Refusal> {
    let mut methods: Vec<&str> = Vec::new();
    for route in routes() {
        let Some(params) = params(route.path, path) else { continue };
        if route.method == method || (route.method == "GET" && method == "HEAD") {
            let decoded = params.into_iter().map(decoded).collect::<Result<_, _>>()?;
            return Ok(RouteFound::Route(route, decoded));
        }
        // Several routes may have the path: one by its name, another by what stands in its place.
        let head = (route.method == "GET").then_some("HEAD");
        for known in std::iter::once(route.method).chain(head) {
            if !methods.contains(&known) {
                methods.push(known);
            }
        }
    }
    Ok(if methods.is_empty() { RouteFound::Nothing } else { RouteFound::OtherMethods(methods.join(", ")) })
}

/// Returns what stands in the path where the pattern has braces; `None` if it does not match.
fn params<'p>(pattern: &str, path: &'p str) -> Option<Vec<&'p str>> {
    let (mut wanted, mut given) = (pattern.split('/'), path.split('/'));
    let mut params = Vec::new();
    loop {
        match (wanted.next(), given.next()) {
            (None, None) => return Some(params),
            (Some(wanted), Some(given)) if wanted.starts_with('{') => {
                if given.is_empty() {
                    return None;
                }
                params.push(given);
            }
            (Some(wanted), Some(given)) if wanted == given => {}
            _ => return None,
        }
    }
}

fn decoded(segment: &str) -> Result<String, Refusal> {
    let text = percent_decode_str(segment).decode_utf8();
    text.map(std::borrow::Cow::into_owned).map_err(|_| Refusal::of_field("path", "the path is not UTF-8"))
}

impl AdminCall<'_> {
    /// The body as JSON.
    pub(super) fn json(&self) -> Result<serde_json::Value, Refusal> {
        parsed(&self.body)
    }

    /// The same for a body that may be long.
    pub(super) async fn long_json(&self) -> Result<serde_json::Value, Refusal> {
        let body = self.body.clone();
        aside(move || parsed(&body)).await?
    }

    /// The pairs of the query.
    pub(super) fn query(&self) -> Result<Vec<(String, String)>, Refusal> {
        query::pairs(self.head.uri.query().unwrap_or_default())
    }

    /// The path's parameter at this place.
    pub(super) fn param(&self, place: usize) -> &str {
        self.params.get(place).map_or("", String::as_str)
    }
}

fn parsed(body: &[u8]) -> Result<serde_json::Value, Refusal> {
    serde_json::from_slice(body)
        .map_err(|error| Refusal::new(Code::Malformed, format!("the body is not JSON: {error}")))
}

/// Very many rules take a while to read and to write: not on a thread that serves requests.
pub(super) async fn aside<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Refusal> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| Refusal::new(Code::Away, format!("the request broke off: {error}")))
}

/// Waits for a turn to look at all rules: two may at the same time.
pub(super) async fn turn(servers: &Servers) -> Result<OwnedSemaphorePermit, Refusal> {
    let busy = || Refusal::new(Code::Overloaded, "too many explanations are asked for at this moment");
    let turn = timeout(TURN_WAIT, std::sync::Arc::clone(&servers.explaining).acquire_owned()).await;
    turn.map_err(|_| busy())?.map_err(|_| busy())
}

/// Checks whether a change may have been sent by a form of a foreign page: those can send no JSON type.
pub(super) fn check_json(head: &Parts) -> Result<(), Refusal> {
    let media =
        head.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("application/json");
    let media = media.split(';').next().unwrap_or_default().trim();
    if media.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    Err(Refusal::new(Code::UnsupportedType, "the body must be application/json"))
}

/// The types that this module reads and writes, for the OpenAPI document.
#[cfg(test)]
pub(super) mod schemas {
    use schemars::SchemaGenerator;

    use crate::api::schema::add;

    /// What it answers.
    pub(in crate::api) fn answers(generator: &mut SchemaGenerator) {
        add::<super::audit_json::AuditJson<'_>>(generator);
        add::<super::audit_json::UsageJson<'_>>(generator);
        add::<super::changes::ChangesJson>(generator);
        add::<super::hot_json::HotJson<'_>>(generator);
        add::<super::hot_json::WhyJson<'_>>(generator);
        add::<super::keys::KeysJson>(generator);
        add::<super::keys::OneKeyJson>(generator);
        add::<super::keys::MadeKeyJson>(generator);
        add::<super::me::MeJson<'_>>(generator);
        add::<super::people::RemovedJson<'_>>(generator);
        add::<super::rates::RatesJson<'_>>(generator);
        add::<super::tiers::TiersJson>(generator);
        add::<super::tiers::OneTierJson>(generator);
        add::<super::regions::RegionChangedJson>(generator);
        add::<super::users::UsersJson>(generator);
        add::<super::users::OneUserJson<'_>>(generator);
    }

    /// What it reads.
    pub(in crate::api) fn bodies(generator: &mut SchemaGenerator) {
        add::<super::keys::DraftBody>(generator);
        add::<super::keys::ChangeBody>(generator);
        add::<super::people::ReasonBody>(generator);
        add::<super::tiers::TierBody>(generator);
        add::<super::regions::RegionBody>(generator);
        add::<super::users::UserBody>(generator);
        add::<super::users::BlockBody>(generator);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn braces_stand_for_one_segment() {
        assert_eq!(params("/v1/rules/{name}", "/v1/rules/a%2Fb"), Some(vec!["a%2Fb"]));
        assert_eq!(params("/v1/rules/{name}", "/v1/rules/"), None);
        assert_eq!(params("/v1/rules/{name}", "/v1/rules/a/b"), None);
        assert_eq!(params("/v1/rules", "/v1/rules"), Some(vec![]));
        assert_eq!(params("/v1/rules", "/v1/rules/"), None);
    }

    #[test]
    fn a_known_path_with_another_method_says_which_there_are() {
        let found = |method, path| find(method, path).unwrap_or(RouteFound::Nothing);
        assert!(matches!(found("GET", "/v1/nothing"), RouteFound::Nothing));
        assert!(matches!(found("HEAD", "/v1/rules"), RouteFound::Route(..)));
        assert!(matches!(found("PATCH", "/v1/regions"), RouteFound::OtherMethods(all) if all == "GET, HEAD"));
        let both = "GET, HEAD, PUT, DELETE";
        assert!(matches!(found("TRACE", "/v1/rules/history"), RouteFound::OtherMethods(all) if all == both));
        assert!(find("GET", "/v1/rules/%ff").is_err());
    }
}
