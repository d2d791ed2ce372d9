//! Files as people write them, and the rules that come of them.

use super::*;
use crate::core::request::{Attributes, Cost, Request};
use crate::core::ruleset::RuleSet;
use crate::database::imported::tests::set;

const FILE: &str = r#"
_format_version: "3.0"
_transform: true
services:
- name: orders
  url: http://orders.internal:8080
  routes:
  - name: list-orders
    paths: [/orders]
    methods: [GET]
  - name: create-order
    paths: ['~/orders/(?<id>\d+)$']
    plugins:
    - name: rate-limiting
      config:
        second: 2
        limit_by: header
        header_name: X-Tenant
        policy: redis
        redis: { host: redis.internal, port: 6379 }
        fault_tolerant: false
        error_code: 503
        error_message: Too many orders
  plugins:
  - name: key-auth
  - name: rate-limiting
    tags: [team-a]
    config: { minute: 20, hour: 500, policy: redis, redis_host: redis.internal, sync_rate: -1 }
- name: media
  id: 5a0a9a63-1f0c-4d5a-9d4b-0d1b9f1c0e01
  url: http://media.internal
routes:
- name: health
  paths: [/health]
  service: media
  plugins:
  - name: rate-limiting
    enabled: false
    config: { second: 1 }
consumers:
- username: anna
  keyauth_credentials: [{ key: secret }]
  plugins:
  - name: rate-limiting
    config: { minute: 1000 }
plugins:
- name: rate-limiting
  config: { minute: 5, day: 1000, month: 10000.0, policy: cluster, hide_client_headers: true }
- name: rate-limiting
  service: { id: 5a0a9a63-1f0c-4d5a-9d4b-0d1b9f1c0e01 }
  consumer: anna
  config: { second: 5, limit_by: path, path: /films }
- name: rate-limiting-advanced
  service: media
  config:
    limit: [10, 90]
    window_size: [60, 5400]
    window_type: sliding
    disable_penalty: true
    identifier: ip
    strategy: redis
    namespace: a1b2
"#;

fn imported(text: &str) -> Imported {
    import(&[("kong.yaml".to_owned(), text.to_owned())]).unwrap()
}

/// The names of the rules that count a request from an address.
fn holds(set: &RuleSet, named: &[(&str, &str)]) -> String {
    let attributes: Attributes<'_> = [("ip", "192.0.2.1")].into_iter().chain(named.iter().copied()).collect();
    let request = Request::new("default", attributes, Cost::Take(1));
    let matches = set.matches(&request);
    let counting = matches.iter().filter(|found| found.key.is_some());
    let mut names: Vec<_> = counting.map(|found| found.rule.rule.name.clone()).collect();
    names.sort_unstable();
    names.join(" ")
}

fn rule<'a>(imported: &'a Imported, name: &str) -> &'a ImportedRule {
    let names: Vec<_> = imported.rules.iter().map(|rule| rule.name.as_str()).collect();
    imported.rules.iter().find(|rule| rule.name == name).unwrap_or_else(|| panic!("{name}: {names:?}"))
}

#[test]
fn a_request_is_held_to_the_most_specific_instance() {
    let imported = imported(FILE);
    assert_eq!(imported.inexact, [""; 0]);
    let set = set(imported.rules.clone());
    let holds = |named: &[(&str, &str)]| holds(&set, named);
    let (orders, create) = (("service", "orders"), ("route", "create-order"));
    let (bob, anna) = (("user", "bob"), ("user", "anna"));
    assert_eq!(holds(&[orders, ("route", "list-orders"), bob]), "orders.hour orders.minute");
    assert_eq!(holds(&[orders, ("route", "list-orders")]), "orders.hour.ip orders.minute.ip");
    // The route's instance is run in the place of its service's, whose second window it has not.
    assert_eq!(holds(&[orders, create, bob, ("x-tenant", "t")]), "create-order.second");
    assert_eq!(holds(&[orders, create, bob]), "create-order.second.ip");
    // A consumer's is run in the place of both.
    assert_eq!(holds(&[orders, create, anna]), "anna.minute");
    assert_eq!(
        holds(&[("service", "media"), anna, ("path", "/films")]),
        "anna.media.second media.1m media.90m"
    );
    assert_eq!(
        holds(&[("service", "media"), anna, ("path", "/x")]),
        "anna.media.second.ip media.1m media.90m"
    );
    // An instance that is not enabled is none.
    let health = [("service", "media"), ("route", "health"), bob];
    assert_eq!(holds(&health), "kong.day kong.minute kong.month media.1m media.90m");
    assert_eq!(holds(&[]), "kong.day.ip kong.minute.ip kong.month.ip");
}

#[test]
fn windows_and_answers_become_those_of_rules() {
    let imported = imported(FILE);
    let minute = rule(&imported, "orders.minute");
    assert_eq!(
        (minute.algorithm, minute.limit, minute.window.as_deref(), minute.calendar),
        (Some("fixed_window"), Some(20), Some("1m"), None)
    );
    // Redis counts a request in both windows before either denies it.
    assert_eq!((minute.charge, minute.debt, minute.on_failure), (Some("always"), Some("window"), None));
    let create = rule(&imported, "create-order.second");
    assert_eq!(create.per, ["x-tenant"]);
    assert_eq!((create.charge, create.on_failure, create.status), (None, Some("closed"), Some(503)));
    assert_eq!(create.message.as_deref(), Some("Too many orders"));
    let month = rule(&imported, "kong.month");
    assert_eq!((month.limit, month.window.as_deref(), month.calendar), (Some(10_000), None, Some("month")));
    assert_eq!((month.charge, month.per.as_slice()), (None, &["user".to_owned()][..]));
    let media = rule(&imported, "media.90m");
    assert_eq!((media.algorithm, media.window.as_deref()), (Some("sliding_window"), Some("90m")));
    assert_eq!(rule(&imported, "anna.minute").per, ["user"]);
    for sentence in [
        "`kong.router.get_route().name` as `X-Tidegate-Route`",
        "`kong.router.get_service().name` as `X-Tidegate-Service`",
        "as `X-Tidegate-User`",
        "`kong.request.get_header(\"x-tenant\")`, and nothing where there is none, as `X-Tidegate-x-tenant`",
        "\"path\" is read in its normal form",
        "\"ip\" is read as an address",
        "consumers[0].plugins[0]: each node of Kong counts by itself there",
    ] {
        let found = imported.notes.iter().filter(|note| note.contains(sentence)).count();
        assert_eq!(found, 1, "{sentence}: {:?}", imported.notes);
    }
}

#[test]
fn what_is_left_out_is_said_with_its_place() {
    let text = r#"
_format_version: "3.0"
services:
- name: a
  routes:
  - paths: [/a]
    plugins: [{ name: rate-limiting, config: { minute: 1 } }]
  plugins:
  - { name: rate-limiting, config: { second: many, minute: 0, hour: 7, error_code: 200, custom: 1 } }
  - { name: response-ratelimiting, config: { limits: { sms: { minute: 10 } } } }
  - { name: ai-rate-limiting-advanced, config: {} }
  - { name: rate-limiting, config: { minute: 2 } }
- name: b
  plugins:
  - { name: rate-limiting, condition: 'http.path ^= "/x"', config: { minute: 3 } }
- name: c
  plugins:
  - name: rate-limiting-advanced
    protocols: [grpc]
    config:
      limit: [5, 6]
      window_size: [10, 99999999]
      throttling: { enabled: true }
      enforce_consumer_groups: true
      namespace: n
- { name: d, plugins: [{ name: rate-limiting, config: { minute: 5, limit_by: principal } }] }
- { name: e*, plugins: [{ name: rate-limiting, config: { minute: 5 } }] }
- { name: f, plugins: [{ name: rate-limiting, config: { policy: local } }] }
- { name: g, plugins: [{ name: rate-limiting, config: { minute: 5, limit_by: path, path: /a?b=1 } }] }
consumers:
- username: z
  plugins: [{ name: rate-limiting, config: { minute: 9, limit_by: ip } }]
plugins:
- { name: rate-limiting, config: { minute: 100, limit_by: ip } }
- { name: rate-limiting-advanced, config: { limit: [7], window_size: [10], window_type: fixed, namespace: n, compound_identifier: [consumer, ip] } }
- { name: rate-limiting-advanced, route: nowhere, config: { limit: [7], window_size: [] } }
- { name: rate-limiting, route: { id: 77 }, _config: none, config: { minute: 5 } }
"#;
    let imported = imported(text);
    let said = imported.inexact.join("\n");
    for sentence in [
        "kong.yaml: services[0].routes[0].plugins[0]: its route has no name",
        "kong.yaml: services[0].plugins[0].config.second: must be a whole number from 1",
        "services[0].plugins[0].config.minute: must be a whole number from 1",
        "services[0].plugins[0].config.error_code: rules deny with a status from 400 to 599",
        "services[0].plugins[0].config.custom: is unknown and dropped",
        "services[0].plugins[1]: response-ratelimiting counts by headers of responses",
        "services[0].plugins[2]: ai-rate-limiting-advanced counts tokens",
        "services[0].plugins[3]: is for the same requests as kong.yaml: services[0].plugins[0]",
        "services[1].plugins[0].condition: rules evaluate no such expression",
        "services[2].plugins[0].protocols: rules see no protocol",
        "services[2].plugins[0].config.window_size[1]: must be whole seconds",
        "services[2].plugins[0].config.disable_penalty: Kong counts denied requests too",
        "services[2].plugins[0].config.throttling: requests beyond the limit are denied here",
        "services[2].plugins[0].config.enforce_consumer_groups: overrides",
        "services[3].plugins[0].config.limit_by: rules cannot count by \"principal\"",
        "services[4].plugins[0]: its service \"e*\" has a *",
        "services[5].plugins[0].config: has no limit of second",
        "services[6].plugins[0].config.path: \"/a?b=1\" rules here see paths without their queries",
        "kong.yaml: plugins[0]: Kong counts in the same counters as for kong.yaml: consumers[0].plugins[0]",
        "kong.yaml: plugins[1]: Kong counts in the same counters as for kong.yaml: services[2].plugins[0]",
        "kong.yaml: plugins[1].config.compound_identifier: requests that lack one",
        "kong.yaml: plugins[2].config.limit: needs as many numbers as window_size",
        "kong.yaml: plugins[3]: its route has no name",
    ] {
        assert!(said.contains(sentence), "{sentence}: {said}");
    }
    let set = set(imported.rules);
    // Requests of an instance that is left out are not counted by a wider one.
    assert_eq!(holds(&set, &[("service", "b")]), "kong.10s.ip");
    assert_eq!(holds(&set, &[("service", "a"), ("user", "u")]), "a.hour kong.10s");
    assert_eq!(holds(&set, &[("service", "other"), ("route", "nowhere")]), "kong.minute");
}

#[test]
fn groups_of_consumers_stand_between_a_consumer_and_everybody() {
    let text = r#"{ "_format_version": "1.1",
      "consumers": [{ "username": "anna", "groups": [{ "name": "gold" }],
                      "plugins": [{ "name": "rate-limiting", "config": { "minute": 1 } }] }],
      "consumer_groups": [{ "name": "gold", "plugins": [{ "name": "rate-limiting", "config": { "minute": 9 } }] }],
      "plugins": [{ "name": "rate-limiting", "_config": "few", "config": { "policy": "redis" } },
                  { "name": "rate-limiting", "consumer_group": "gold", "route": "r", "_config": "few" }],
      "_plugin_configs": { "few": { "minute": 3, "limit_by": "credential", "policy": "local" } } }"#;
    let imported = imported(text);
    assert_eq!(imported.inexact, [""; 0]);
    let set = set(imported.rules.clone());
    let gold = ("consumer-group", "gold");
    assert_eq!(holds(&set, &[("user", "anna"), gold]), "anna.minute");
    assert_eq!(holds(&set, &[("user", "bob"), gold]), "gold.minute");
    assert_eq!(holds(&set, &[("credential", "c"), gold, ("route", "r")]), "gold.r.minute");
    assert_eq!(holds(&set, &[("credential", "c")]), "kong.minute");
    assert_eq!(holds(&set, &[]), "kong.minute.ip");
    assert_eq!(rule(&imported, "gold.minute").limit, Some(9));
}

#[test]
fn several_files_are_read_as_one() {
    let services = "_format_version: '3.0'\nservices: [{ name: a, id: 1f, routes: [{ name: r }] }]";
    let plugins =
        "_format_version: '3.0'\nplugins: [{ name: rate-limiting, service: { id: 1f }, config: { day: 4 } }]";
    let files = [("1.yaml", services), ("2.yaml", plugins)];
    let imported = import(&files.map(|(name, text)| (name.to_owned(), text.to_owned()))).unwrap();
    assert_eq!(
        imported.rules.iter().map(|rule| rule.name.as_str()).collect::<Vec<_>>(),
        ["a.day", "a.day.ip"]
    );
}

#[test]
fn a_text_that_is_no_file_of_kong_is_refused() {
    for (text, why) in [
        ("services: []", "f: is no declarative file of Kong: _format_version is expected"),
        ("kind: KongPlugin\nplugin: rate-limiting", "f: is no declarative file of Kong"),
        ("- a", "f: is no declarative file of Kong"),
        ("a: [", "f: is no YAML"),
    ] {
        let problems = import(&[("f".to_owned(), text.to_owned())]).unwrap_err();
        assert!(problems[0].to_string().starts_with(why), "{text}: {problems:?}");
    }
}
