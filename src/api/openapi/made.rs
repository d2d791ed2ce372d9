//! The OpenAPI document is made from the tables of routes, so that no route is missing and none is invented.
//! [`DESCRIBED`] says what a route asks and answers, in words and by the types themselves, which are in
//! [`schemas`]; a test holds that no route is left out.

use serde_json::{Map, Value, json};

use super::{openapi_json, schemas};
use crate::api::admin;
use crate::api::http::routes::ROUTES;
use crate::engine::admin::Role;

/// Method, path, summary, schema of the body (empty: none), schema of the answer, parameters of the query.
type Described = (&'static str, &'static str, &'static str, &'static str, &'static str, &'static [Parameter]);
/// Name, type, whether it must be there, meaning.
type Parameter = (&'static str, &'static str, bool, &'static str);

/// Bodies of which nothing must be said: none at all is `{}`.
const BODIES_MAY_BE_ABSENT: [&str; 6] =
    ["UserBody", "BlockBody", "ReasonBody", "KeyDraft", "KeyBody", "TierBody"];

const CHANGE: &[Parameter] = &[
    ("dry_run", "boolean", false, "Only says what would change."),
    ("reason", "string", false, "Why; kept in the history."),
];
const CHANGE_OF_ALL: &[Parameter] = &[
    CHANGE[0],
    CHANGE[1],
    ("merge", "boolean", false, "Keeps the rules that the body lacks, as they are stored."),
];
const DESCRIBED: &[Described] = &[
    (
        "POST",
        "/v1/check",
        "Decides one request, or up to 1,000, and charges them",
        "CheckBody",
        "CheckAnswer",
        &[],
    ),
    (
        "POST",
        "/v1/report",
        "Charges what was used already, in full and whatever is left",
        "Report",
        "Decision",
        &[],
    ),
    (
        "POST",
        "/v1/explain",
        "Says which rules decide a request and why; charges nothing",
        "Check",
        "Explanation",
        &[],
    ),
    (
        "POST",
        "/v1/acquire",
        "Decides one request and has it hold places of concurrency rules",
        "Acquisition",
        "Decision",
        &[],
    ),
    ("POST", "/v1/renew", "Keeps what a lease holds for another hold", "Lease", "Renewed", &[]),
    ("POST", "/v1/release", "Gives back what a lease holds", "Lease", "Released", &[]),
    (
        "POST",
        "/v1/reserve",
        "Reserves permits, all or none, before a cost is known",
        "ReserveBody",
        "Decision",
        &[],
    ),
    ("POST", "/v1/commit", "Charges what a reservation has used", "CommitBody", "Committed", &[]),
    ("POST", "/v1/cancel", "Releases what is reserved", "CancelBody", "Committed", &[]),
    ("GET", "/v1/rules", "The rules in force, in order of precedence", "", "RuleSet", &[]),
    (
        "PUT",
        "/v1/rules",
        "Makes these rules, and no others, the rules in force",
        "RuleSetBody",
        "Changed",
        CHANGE_OF_ALL,
    ),
    (
        "GET",
        "/v1/rules/history",
        "Who changed what and when, newest first",
        "",
        "History",
        &[
            ("rule", "string", false, "Only what changed this rule."),
            ("before", "integer", false, "Only revisions before this one."),
            ("limit", "integer", false, "At most so many, from 1 to 1000; 50 unless said."),
        ],
    ),
    ("POST", "/v1/rules/rollback", "Goes back to the rules of a revision", "RollbackBody", "Changed", CHANGE),
    (
        "GET",
        "/v1/rules/{name}",
        "One rule, with every default spelled out, or as it was written",
        "",
        "OneRule",
        &[("written", "boolean", false, "As it was written: without defaults.")],
    ),
    ("PUT", "/v1/rules/{name}", "Adds a rule, or replaces the one of this name", "Rule", "Changed", CHANGE),
    ("DELETE", "/v1/rules/{name}", "Deletes a rule", "", "Changed", CHANGE),
    ("GET", "/v1/quotas/{rule}", "What each region may spend of a worldwide rule's limit", "", "Quotas", &[]),
    ("PUT", "/v1/quotas/{rule}", "Sets what each region may spend", "QuotasBody", "Changed", CHANGE),
    ("GET", "/v1/regions", "The daemons of the cluster, their links and who is cut off", "", "Regions", &[]),
    ("PUT", "/v1/regions/{region}", "Adds, drains or removes a region", "RegionBody", "RegionChanged", &[]),
    (
        "GET",
        "/v1/buckets",
        "What one bucket holds; further parameters are the attributes that the rule's `per` names",
        "",
        "Bucket",
        &[("rule", "string", true, "The rule."), ("user", "string", false, "Whose, for a rule per user.")],
    ),
    (
        "DELETE",
        "/v1/buckets",
        "Has one bucket count from zero; parameters as for GET",
        "",
        "Reset",
        &[("rule", "string", true, "The rule."), ("user", "string", false, "Whose, for a rule per user.")],
    ),
    ("GET", "/v1/users", "Users, by name", "", "Users", USERS),
    ("GET", "/v1/users/{id}", "One user", "", "OneUser", &[]),
    ("PUT", "/v1/users/{id}", "Makes a user, or says all of one anew", "UserBody", "OneUser", &[]),
    ("PATCH", "/v1/users/{id}", "Changes what is given, or makes the user", "UserBody", "OneUser", &[]),
    ("DELETE", "/v1/users/{id}", "Forgets a user and the user's keys", "", "Removed", &[]),
    ("POST", "/v1/users/{id}/block", "Refuses a user from now on", "BlockBody", "OneUser", &[]),
    ("POST", "/v1/users/{id}/unblock", "Lets a user ask again", "ReasonBody", "OneUser", &[]),
    ("GET", "/v1/keys", "API keys, by name; never a secret", "", "Keys", KEYS),
    ("POST", "/v1/keys", "Makes an API key and shows it, once", "KeyDraft", "MadeKey", &[]),
    ("GET", "/v1/keys/{id}", "One API key", "", "OneKey", &[]),
    ("PATCH", "/v1/keys/{id}", "Changes what is given of an API key", "KeyBody", "OneKey", &[]),
    ("DELETE", "/v1/keys/{id}", "Takes an API key back, for ever", "", "OneKey", &[]),
    ("POST", "/v1/keys/{id}/revoke", "Takes an API key back, for ever", "ReasonBody", "OneKey", &[]),
    ("GET", "/v1/tiers", "The tiers that users and keys may have", "", "Tiers", &[]),
    ("GET", "/v1/tiers/{name}", "One tier", "", "OneTier", &[]),
    ("PUT", "/v1/tiers/{name}", "Makes a tier, or describes it anew", "TierBody", "OneTier", &[]),
    ("DELETE", "/v1/tiers/{name}", "Forgets a tier that nobody has", "", "Removed", &[]),
    (
        "GET",
        "/v1/hot",
        "Who asks most, lately: the heaviest buckets and rules of this daemon",
        "",
        "Hot",
        HOT,
    ),
    (
        "GET",
        "/v1/rates",
        "Requests, denials, degraded answers and cost by time, of the last hour or day, as this daemon decided",
        "",
        "Rates",
        RATES,
    ),
    (
        "GET",
        "/v1/why",
        "Why a client is limited; further parameters are attributes, as in user=u_42. Charges nothing",
        "",
        "Why",
        WHY,
    ),
    ("GET", "/v1/audit", "Single decisions, newest first", "", "Audit", PAST_DECISIONS),
    ("GET", "/v1/usage", "Sums of decisions, and what a user or API key has left", "", "Usage", PAST_USAGE),
    (
        "GET",
        "/v1/stream",
        "What changes by itself, each second, as server-sent events: `regions` and `ready`",
        "",
        "events",
        &[],
    ),
    ("GET", "/v1/me", "Who asks, and in which role", "", "Me", &[]),
    (
        "GET",
        "/v1/changes",
        "What operators changed besides rules and quotas, newest first",
        "",
        "Changes",
        CHANGES,
    ),
    (
        "GET",
        "/readyz",
        "Whether gateways should ask this daemon, and how it stands with its rules",
        "",
        "Ready",
        &[],
    ),
    ("GET", "/healthz", "Whether the process lives", "", "text", &[]),
    ("GET", "/metrics", "Every metric in the Prometheus text format", "", "text", &[]),
    ("GET", "/", "What can be asked here", "", "text", &[]),
    ("GET", "/openapi.json", "This document", "", "Any", &[]),
    (
        "GET",
        "/v1/authorize",
        "Forward-auth: 200, or the rule's status, with rate-limit headers",
        "",
        "text",
        AUTHORIZE,
    ),
    (
        "POST",
        "/v1/authorize",
        "Forward-auth: 200, or the rule's status, with rate-limit headers",
        "",
        "text",
        AUTHORIZE,
    ),
];
const AFTER: Parameter = ("after", "string", false, "Those whose name comes after this one.");
const PAGE: Parameter = ("limit", "integer", false, "At most so many, from 1 to 1000; 100 unless said.");
const USERS: &[Parameter] = &[
    ("tier", "string", false, "Of this tier."),
    ("blocked", "boolean", false, "Only those who are blocked, or are not."),
    ("search", "string", false, "Those whose id has this text in it, whatever the case of its letters."),
    AFTER,
    PAGE,
];
const KEYS: &[Parameter] = &[
    ("user", "string", false, "Of this user."),
    ("tier", "string", false, "Of this tier."),
    ("revoked", "boolean", false, "Only those that were taken back, or were not."),
    ("search", "string", false, "Those whose name, user or note has this text in it, whatever its case."),
    AFTER,
    PAGE,
];
const PAST_DECISIONS: &[Parameter] = &[
    ("from", "string", false, "From when on: RFC 3339, or how long ago, such as 24h. 24h unless said."),
    ("to", "string", false, "Until when."),
    ("user", "string", false, "Of this user."),
    ("key", "string", false, "Of this API key, by its public name or its fingerprint."),
    ("address", "string", false, "From this address."),
    ("rule", "string", false, "By this rule."),
    ("region", "string", false, "In this region."),
    (
        "outcome",
        "string",
        false,
        "allowed, throttled, denied, blocked, shadow_denied, diverted or committed, or several with commas between them.",
    ),
    ("cause", "string", false, "Denied for this cause, such as used_up."),
    ("request_id", "string", false, "On the request that its gateway named so (X-Request-Id)."),
    ("limit", "integer", false, "At most so many, from 1 to 1000; 100 unless said."),
    ("after", "string", false, "What follows an earlier answer: its `next`."),
];
const PAST_USAGE: &[Parameter] = &[
    (
        "by",
        "string",
        false,
        "The step of time, in UTC: minute, hour (unless said), day (of keys unless said) or month.",
    ),
    (
        "group",
        "string",
        false,
        "What a row is the sum of: time (unless said), rule, user, key, path or region.",
    ),
    (
        "from",
        "string",
        false,
        "From when on: RFC 3339, or how long ago, such as 24h. Unless said 1h, 24h, 30 days or a year, as `by` is.",
    ),
    ("to", "string", false, "Until when."),
    ("user", "string", false, "Of this user; also tells what is left. Not together with a key or path."),
    (
        "key",
        "string",
        false,
        "Of this API key, by its public name or its fingerprint; also tells what is left. By day or month.",
    ),
    ("path", "string", false, "Of this path."),
    ("rule", "string", false, "Of this rule."),
    ("domain", "string", false, "What is left by rules of this domain alone."),
    ("region", "string", false, "In this region."),
    ("limit", "integer", false, "At most so many rows, from 1 to 1000; 100 unless said."),
];
const HOT: &[Parameter] = &[
    ("by", "string", false, "What rows are ordered by: denied (unless said), requests or cost."),
    ("rule", "string", false, "Only buckets of this rule."),
    ("limit", "integer", false, "At most so many rows, from 1 to 1000; 100 unless said."),
];
const RATES: &[Parameter] = &[(
    "span",
    "string",
    false,
    "Of which time: hour (unless said), in steps of ten seconds, or day, in minutes.",
)];
const WHY: &[Parameter] = &[
    ("domain", "string", false, "The gateway's namespace of rules; default unless said."),
    ("cost", "integer", false, "Permits that the request would ask for; 1 unless said."),
    ("rule", "string", false, "Also the bucket of this rule, whatever the request matches."),
    ("user", "string", false, "Whose requests."),
    ("path", "string", false, "To this path."),
];
const CHANGES: &[Parameter] = &[
    ("target", "string", false, "Of this, such as a user's id."),
    ("action", "string", false, "Of this kind, such as user.block or bucket.reset."),
    ("before", "integer", false, "Only those before the change of this id."),
    ("limit", "integer", false, "At most so many, from 1 to 1000; 50 unless said."),
];
const AUTHORIZE: &[Parameter] = &[
    ("domain", "string", false, "The gateway's domain."),
    ("cost", "integer", false, "Permits asked for; 1 unless said."),
];

fn made() -> Value {
    let mut paths = Map::new();
    let mut add = |method: &str, path: &str, role: Option<&str>| {
        let operations = paths.entry(path).or_insert_with(|| json!({}));
        operations[method.to_lowercase()] = operation(method, path, role);
    };
    for (path, _, methods) in ROUTES {
        methods.split(", ").filter(|method| *method != "HEAD").for_each(|method| {
            // Looks at rules, as admin routes do.
            add(method, path, (*path == "/v1/explain").then_some(Role::Viewer.name()));
        });
    }
    for route in admin::routes() {
        add(route.method, route.path, Some(route.role.name()));
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Tidegate",
            "version": env!("CARGO_PKG_VERSION"),
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
            "description": "Checks for gateways, and the admin interface. Admin routes name the role they need; without configured tokens clients on this machine may look, and the daemon's own user may change on the admin socket.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas::all(),
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
        },
    })
}

fn operation(method: &str, path: &str, role: Option<&str>) -> Value {
    let described = DESCRIBED.iter().find(|(own, known, ..)| *own == method && *known == path);
    let (_, _, summary, body, answer, query) = described.copied().unwrap_or(("", "", "", "", "Any", &[]));
    let name = path.trim_matches('/').replace(['/', '.', '{', '}'], "_");
    let mut operation = json!({
        "operationId": format!("{}_{name}", method.to_lowercase()),
        "summary": summary,
        "responses": { "200": answered(answer), "default": error(answer) },
    });
    let mut parameters: Vec<Value> = path
        .split('/')
        .filter_map(|segment| segment.strip_prefix('{')?.strip_suffix('}'))
        .map(|name| json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string", "minLength": 1 } }))
        .collect();
    for (name, kind, required, meaning) in query {
        let mut schema = json!({ "type": kind });
        if *name == "limit" {
            (schema["minimum"], schema["maximum"]) = (json!(1), json!(1_000));
        }
        parameters.push(json!({ "name": name, "in": "query", "required": required, "schema": schema, "description": meaning }));
    }
    if !parameters.is_empty() {
        operation["parameters"] = json!(parameters);
    }
    if !body.is_empty() {
        let schema = json!({ "$ref": format!("#/components/schemas/{body}") });
        let required = !BODIES_MAY_BE_ABSENT.contains(&body);
        operation["requestBody"] =
            json!({ "required": required, "content": { "application/json": { "schema": schema } } });
    }
    if let Some(role) = role {
        operation["security"] = json!([{}, { "token": [] }]);
        operation["description"] = json!(format!("Needs role {role}."));
    }
    operation
}

fn answered(schema: &str) -> Value {
    if schema == "text" {
        return json!({ "description": "As asked.", "content": { "text/plain": { "schema": { "type": "string" } } } });
    }
    if schema == "events" {
        return json!({ "description": "As asked.", "content": { "text/event-stream": { "schema": { "type": "string" } } } });
    }
    let schema = json!({ "$ref": format!("#/components/schemas/{schema}") });
    json!({ "description": "As asked.", "content": { "application/json": { "schema": schema } } })
}

/// A refusal; what answers in text may also deny in text.
fn error(answer: &str) -> Value {
    let mut content = json!({ "application/json": { "schema": { "$ref": "#/components/schemas/Error" } } });
    if answer == "text" {
        content["text/plain"] = json!({ "schema": { "type": "string" } });
    }
    if answer == "Ready" {
        content["application/json"]["schema"] = json!({ "anyOf": [
            { "$ref": "#/components/schemas/Error" }, { "$ref": "#/components/schemas/Ready" }] });
    }
    json!({ "description": "Refused, with the reason.", "content": content })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_description_is_of_a_route_that_is_there_and_every_schema_is_known() {
        let document = made();
        for (method, path, _, body, answer, _) in DESCRIBED {
            assert!(
                document["paths"][*path][method.to_lowercase()].is_object(),
                "{method} {path} is no route"
            );
            for schema in [body, answer]
                .into_iter()
                .filter(|schema| !schema.is_empty() && **schema != "text" && **schema != "events")
            {
                assert!(document["components"]["schemas"][*schema].is_object(), "{schema} is no schema");
            }
        }
        let text = document.to_string();
        for reference in text.split("#/components/schemas/").skip(1) {
            let name: String = reference.chars().take_while(char::is_ascii_alphanumeric).collect();
            assert!(
                document["components"]["schemas"][&name].is_object(),
                "{name} is referred to and not there"
            );
        }
    }

    /// Asserts that an object says all that its schema wants, and nothing that it does not name, all the way
    /// down.
    fn fits(schemas: &Map<String, Value>, schema: &Value, value: &Value, place: &str) {
        let named = schema["$ref"].as_str().and_then(|path| path.rsplit('/').next());
        let schema = named.map_or(schema, |name| &schemas[name]);
        match value {
            Value::Object(fields) if schema["properties"].is_object() => {
                for required in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str)
                {
                    assert!(fields.contains_key(required), "{place} lacks {required}");
                }
                for (name, field) in fields {
                    let described = &schema["properties"][name];
                    assert!(described.is_object(), "{place}.{name} is not described");
                    fits(schemas, described, field, &format!("{place}.{name}"));
                }
            }
            Value::Array(items) => {
                items.iter().for_each(|item| fits(schemas, &schema["items"], item, place));
            }
            _ => assert!(
                ["type", "anyOf", "additionalProperties"].iter().any(|word| !schema[*word].is_null()),
                "{place} has no type"
            ),
        }
    }

    #[test]
    fn what_regions_and_buckets_answer_is_described_whole() {
        use crate::api::wire::{
            BucketJson, ChangingJson, ErrorBoundJson, NoticeJson, PeerJson, RegionsJson, RightsJson,
            StoreJson,
        };
        use crate::core::algorithm::{Allowance, WindowAllowance};
        use crate::core::penalty::Penalty;
        use crate::core::regions::NodeName;
        use crate::core::regions::escrow::EscrowRule;
        use crate::core::time::Span;
        use crate::core::wire::WireVersion;
        use crate::engine::status::{BucketStatus, PeerStatus, ServerHealth, StoreHealth};

        let server = ServerHealth {
            address: "a:1".to_owned(),
            role: "primary",
            breaker: Some("open"),
            rtt: Some(Span(1_500)),
            error: Some(("gone".to_owned(), Span(7))),
            warning: Some("more room".to_owned()),
        };
        let health = StoreHealth {
            topology: Some("single"),
            servers: vec![server],
            daemons: Some(2),
            problems: vec!["a:1 is away".to_owned()],
            ..StoreHealth::default()
        };
        let peer = PeerStatus {
            name: NodeName { region: "us".to_owned(), node: "us-1".to_owned() },
            address: "b:2".to_owned(),
            connected: true,
            version: Some(WireVersion::NEWEST),
            live: true,
            draining: false,
            rtt: Some(Span(80)),
            lag: None,
            ahead: Some(-4_000),
            bytes: (1, 2),
            error: Some("no route".to_owned()),
        };
        let sums = || std::iter::once(("us".to_owned(), 3)).collect();
        let rights = EscrowRule { in_doubt: 1, given: sums(), taken: sums(), ..EscrowRule::default() };
        let names = ["us".to_owned()];
        let regions = RegionsJson {
            region: "eu",
            node: "eu-1",
            live: true,
            store: StoreJson::new(&health),
            configured: &names,
            drained: &[],
            removed: &[],
            peers: vec![PeerJson::new(&peer)],
            cut_off: &names,
            unseen: &names,
            rules: vec![ErrorBoundJson { rule: "r", error_bound: 1, because: "shares" }],
            rights: vec![RightsJson::new(&rights)],
            changing: vec![ChangingJson { rule: "r", first: false, waiting_for: &names }],
            notices: vec![NoticeJson { about: "rules", text: "rule r is not the same" }],
        };
        let schemas = schemas::all();
        fits(&schemas, &schemas["Regions"], &serde_json::to_value(&regions).unwrap(), "regions");

        let bucket = BucketStatus {
            rule: "r".to_owned(),
            identity: Vec::new(),
            limit: 1,
            window: Span(1),
            mode: None,
            used: 0,
            remaining: 1,
            reset: Span(1),
            reset_at: None,
            view: Some(Allowance::Window(WindowAllowance::default())),
            by_region: Some(sums()),
            error_bound: 0,
            degraded: false,
            penalty: Some(Penalty { left: Span(1), multiplier: 2, begun: false }),
        };
        let bucket = serde_json::to_value(BucketJson::new(&bucket)).unwrap();
        assert_eq!(bucket["world"]["by_region"]["us"], 3);
        fits(&schemas, &schemas["Bucket"], &bucket, "bucket");
    }

    #[test]
    fn every_route_is_described() {
        let described = |method: &str, path: &str| {
            DESCRIBED.iter().any(|(own, known, ..)| *own == method && *known == path)
        };
        let open = ROUTES.iter().flat_map(|(path, _, methods)| {
            methods.split(", ").filter(|method| *method != "HEAD").map(|method| (method, *path))
        });
        let admin = admin::routes().map(|route| (route.method, route.path));
        let missing: Vec<_> = open.chain(admin).filter(|(method, path)| !described(method, path)).collect();
        assert!(missing.is_empty(), "without a word in DESCRIBED: {missing:?}");
    }

    #[test]
    fn the_committed_document_is_current() {
        let mut made = serde_json::to_string_pretty(&made()).unwrap();
        made.push('\n');
        if std::env::var_os("WRITE_OPENAPI").is_some() {
            let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/openapi.json");
            return std::fs::write(path, made).unwrap();
        }
        assert!(
            openapi_json() == made,
            "docs/openapi.json is not current: WRITE_OPENAPI=1 cargo test --lib committed_document"
        );
    }
}
