//! The spans of changes to rules: who, what, and the revision that came of it.

use serde_json::Value;

use super::rules::{Place, rule, send};
use super::support::daemon::Daemon;
use super::support::receiver::Receiver;
use super::support::spans::{TRACE, config, span, traceparent};

#[test]
fn a_change_of_rules_quotas_and_users_is_a_span_with_its_revision() {
    let (place, receiver) = (Place::new(), Receiver::start(200));
    let daemon = Daemon::with("", &(place.config() + &config(&receiver, "")), &[]);
    let caller = traceparent(TRACE, true);
    let headers = [("content-type", "application/json"), ("traceparent", caller.as_str())];
    let put = send(&daemon, "PUT", "/v1/rules/search", &headers, &rule("search", 5));
    assert_eq!(put.status, 200, "{put:?}");
    let revision = put.json()["revision"].to_string();
    let seen = span(&receiver, "the rule that was put", |span| span.name == "PUT /v1/rules/{name}");
    assert_eq!((seen.trace.as_str(), seen.get("tidegate.revision")), (TRACE, revision.as_str()));
    assert_eq!((seen.get("tidegate.target"), seen.get("tidegate.actor")), ("search", "local"));
    assert_eq!(seen.get("tidegate.dry_run"), "");
    let tried = send(&daemon, "DELETE", "/v1/rules/search?dry_run=true", &[], &Value::Null);
    assert_eq!(tried.status, 200, "{tried:?}");
    let seen = span(&receiver, "what was only tried", |span| span.get("tidegate.dry_run") == "true");
    assert_eq!((seen.name.as_str(), seen.parent.as_str()), ("DELETE /v1/rules/{name}", ""));
    let blocked = send(&daemon, "POST", "/v1/users/ann/block", &[], &serde_json::json!({ "reason": "x" }));
    assert_eq!(blocked.status, 200, "{blocked:?}");
    let seen = span(&receiver, "the block", |span| span.name == "POST /v1/users/{id}/block");
    assert_eq!((seen.get("tidegate.target"), seen.failed), ("ann", false), "{seen:?}");
}
