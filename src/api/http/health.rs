//! How the daemon is: `/healthz`, `/readyz`, `/metrics`, and the page at `/` that names the routes.

use http::HeaderValue;
use serde_json::json;

use super::{ROUTES, Reply, reply};
use crate::api::admin;
use crate::api::error::ready_status;
use crate::api::wire::store_word;
use crate::api::{Readiness, Servers};

const PROMETHEUS: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");

/// Whether gateways should ask this daemon: 200 or 503, and why. A store that does not answer is told, and no
/// reason to ask elsewhere: each rule's failure policy answers, here as in the region's other daemons.
pub(in crate::api) fn ready(doors: &Servers) -> Reply {
    let readiness = doors.readiness();
    let state = match readiness {
        Readiness::Starting => "starting",
        Readiness::Serving => "serving",
        Readiness::Impaired => "impaired",
        Readiness::Draining => "draining",
    };
    let ready = readiness == Readiness::Serving;
    let health = doors.engine.store().health();
    let store = store_word(health.state);
    let revision = doors.engine.loaded().revision;
    let rules = doors.engine.rules_status();
    let odd = doors.engine.rule_warnings();
    let warnings: Vec<String> = odd.told.iter().map(ToString::to_string).collect();
    let notices = doors.engine.notices();
    let notices: Vec<&str> = notices.iter().map(|notice| notice.text.as_str()).collect();
    let mut body = json!({
        "ready": ready,
        "state": state,
        "revision": revision,
        "store": store,
        "store_problems": health.problems,
        "rules": *rules,
        "warnings": warnings,
        "notices": notices,
    });
    let missing = doors.engine.tasks().missing();
    if !missing.is_empty() {
        body["tasks_missing"] = json!(missing);
    }
    reply::with_status(reply::json(&body), ready_status(ready))
}

/// Every metric in the Prometheus text format.
pub(super) fn metrics(doors: &Servers) -> Reply {
    reply::with_type(doors.engine.metrics().render().into_bytes(), PROMETHEUS)
}

/// What can be asked here.
pub(super) fn home(doors: &Servers) -> Reply {
    let name = doors.engine.name();
    let mut page =
        format!("Tidegate {}, node {} in region {}.\n\n", env!("CARGO_PKG_VERSION"), name.node, name.region);
    for (path, _, methods) in ROUTES {
        page.push_str(&format!("{path:<20} {methods}\n"));
    }
    for route in admin::routes() {
        page.push_str(&format!("{:<20} {}, with role {}\n", route.path, route.method, route.role.name()));
    }
    page.push_str("\nTry: curl -s http://HOST/v1/check -d '{\"attributes\":{\"user\":\"u_42\"}}'\n");
    reply::text(page)
}
