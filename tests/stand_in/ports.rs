//! The other ports of the service, its environment, and its rules in files.

use serde_json::json;

use super::asked::{StandIn, rules};
use super::support::command;
use super::support::{SOON, eventually, http};

fn one(lines: &[&str]) -> Vec<(String, serde_json::Value)> {
    vec![("d".to_owned(), rules(lines))]
}

#[test]
fn json_is_answered_as_the_message_is() {
    let daemon = StandIn::with(&one(&["k 1/day name=n"]), &[]);
    let ask = |body: &str| http::post(daemon.http, "/json", body);
    let body = r#"{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"v"}]}]}"#;
    let first = ask(body);
    assert_eq!((first.status, &first.json()["overallCode"]), (200, &json!("OK")), "case 110");
    let status = &first.json()["statuses"][0];
    let limit = json!({ "name": "n", "requestsPerUnit": 1, "unit": "DAY" });
    assert_eq!((&status["code"], &status["currentLimit"]), (&json!("OK"), &limit), "case 110");
    assert_eq!(ask(body).status, 429, "case 110");
    for wrong in ["{", r#"{"domain":""}"#, r#"{"domain":"d","descriptors":[]}"#, r#"{"odd":1}"#] {
        assert_eq!(ask(wrong).status, 400, "case 110: {wrong}");
    }
}

#[test]
fn health_is_told_by_http_and_by_grpc() {
    let daemon = StandIn::with(&one(&["k 5/day"]), &[]);
    let health = daemon.get("/healthcheck");
    assert_eq!((health.status, health.body.as_str()), (200, "OK"), "case 111");
    assert_eq!(daemon.client().health("ratelimit").unwrap(), 1, "case 111");
}

#[test]
fn health_fails_first_when_it_is_to_stop() {
    let mut daemon = StandIn::with(&one(&["k 5/day"]), &[("TIDEGATE_LISTEN__DRAIN", "20s")]);
    assert_eq!(daemon.call("d", "[k=v]"), "OK | OK 5 4");
    daemon.process.signal("TERM");
    eventually("case 113: health fails", || (daemon.get("/healthcheck").status == 500).then_some(()));
    assert_eq!(daemon.call("d", "[k=v]"), "OK | OK 5 3", "case 113: calls are answered until then");
    // A second one waits for nobody.
    daemon.process.signal("TERM");
    assert_eq!(daemon.process.wait(SOON).code(), Some(0), "case 113");
}

#[test]
fn rules_and_statistics_are_told_at_the_debug_port() {
    let lines = &["a=1", "  b=x 5/minute shadow", "k 3/hour quota", "r 2/day detailed"];
    let daemon = StandIn::with(&one(lines), &[]);
    assert_eq!(
        daemon.debug("/rlconfig"),
        "d.a_1.b_x: unit=MINUTE requests_per_unit=5, shadow_mode: true, quota_mode: false\n\
         d.k: unit=HOUR requests_per_unit=3, shadow_mode: false, quota_mode: true\n\
         d.r: unit=DAY requests_per_unit=2, shadow_mode: false, quota_mode: false\n",
        "case 114"
    );
    assert!(daemon.debug("/").contains("/rlconfig"), "case 115");
    for _ in 0..4 {
        daemon.call("d", "[k=v] [r=w]");
    }
    let text = daemon.debug("/stats");
    for line in [
        "d.k.total_hits: 4",
        "d.k.over_limit: 1",
        "d.k.near_limit: 1",
        "d.k.within_limit: 3",
        "d.r_w.over_limit: 2",
    ] {
        let line = format!("ratelimit.service.rate_limit.{line}\n");
        assert!(text.contains(&line), "cases 97, 99, 101: {line} {text}");
    }
}

#[test]
fn prometheus_has_the_series_of_the_dashboards() {
    let metrics = super::support::free_tcp();
    let address = metrics.to_string();
    let lines = &["route=route", "  masked_remote_address=0.0.0.0/0 1/day", "    third 1/day"];
    let environment = [("USE_PROMETHEUS", "true"), ("PROMETHEUS_ADDR", address.as_str())];
    let daemon = StandIn::with(&one(lines), &environment);
    for _ in 0..3 {
        daemon.call("d", "[route=route, masked_remote_address=0.0.0.0/0]");
    }
    let _ = daemon.call("", "[k=v]");
    let text = eventually("metrics are told", || {
        let text = http::get(metrics, "/metrics", &[]).body;
        text.contains("ratelimit_service_total_requests{grpc_method=\"ShouldRateLimit\"} 3").then_some(text)
    });
    let labels = "domain=\"d\",key1=\"route_route\",key2=\"masked_remote_address_0_0_0_0/0\"";
    for line in [
        format!("ratelimit_service_rate_limit_total_hits{{{labels}}} 3"),
        format!("ratelimit_service_rate_limit_over_limit{{{labels}}} 2"),
        format!("ratelimit_service_rate_limit_within_limit{{{labels}}} 1"),
        "ratelimit_service_should_rate_limit_error{err_type=\"service_error\"} 1".to_owned(),
        "ratelimit_service_config_load_success 1".to_owned(),
        "ratelimit_service_response_time_seconds_count{grpc_method=\"ShouldRateLimit\"} 3".to_owned(),
    ] {
        assert!(text.contains(&format!("{line}\n")), "cases 103, 104, 151: {line}\n{text}");
    }
}

#[test]
fn metrics_are_told_at_the_path_that_the_environment_names() {
    let metrics = super::support::free_tcp();
    let address = metrics.to_string();
    let environment =
        [("USE_PROMETHEUS", "true"), ("PROMETHEUS_ADDR", address.as_str()), ("PROMETHEUS_PATH", "/prom")];
    let daemon = StandIn::with(&one(&["k 5/day"]), &environment);
    for path in ["/prom", "/metrics"] {
        let told = http::get(metrics, path, &[]);
        assert_eq!(told.status, 200, "{path}");
        assert!(told.body.contains("ratelimit_service_config_load_success 1"), "{path}: {}", told.body);
    }
    assert_eq!(http::get(metrics, "/other", &[]).status, 404);
    assert_eq!(daemon.get("/prom").status, 404, "the port of requests tells it at /metrics");
}

#[test]
fn files_are_followed_and_wrong_ones_change_nothing() {
    let daemon = StandIn::with(&one(&["k 5/day"]), &[]);
    assert_eq!(daemon.call("d", "[k=v]"), "OK | OK 5 4");
    daemon.set_rules(0, "d", &rules(&["k 7/day"]));
    eventually("the new limit is in force", || {
        (daemon.call("d", "[k=w h=0]") == "OK | OK 7 7").then_some(())
    });
    assert_eq!(daemon.call("d", "[k=v]"), "OK | OK 7 5", "case 130: what was counted stays");
    daemon.set_rules(0, "d", &json!([{ "key": "k", "odd": 1 }]));
    eventually("the refusal is told", || {
        daemon
            .process
            .output()
            .contains("0.yaml: descriptors[0].odd: is no key that the service knows")
            .then_some(())
    });
    assert_eq!(daemon.call("d", "[k=w h=0]"), "OK | OK 7 7", "case 127");
    let metrics = eventually("the refusal is counted", || {
        let text = daemon.get("/metrics").body;
        text.contains("ratelimit_service_config_load_error 1\n").then_some(text)
    });
    assert!(metrics.contains("ratelimit_service_config_load_success 2\n"), "case 102");
}

#[test]
fn a_forced_start_is_healthy_before_rules_and_refuses_calls_until_there_are_some() {
    let wrong = vec![("d".to_owned(), json!([{ "odd": 1 }]))];
    let daemon = StandIn::with(&wrong, &[("FORCE_START_WITHOUT_INITIAL_CONFIG", "true")]);
    assert_eq!(daemon.call("d", "[k=v]"), "Unknown: no rate limit configuration loaded", "cases 108, 112");
    let needy =
        [("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"), ("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "true")];
    let daemon = StandIn::start(&wrong, &needy);
    let probe = format!("GET /healthcheck HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n", daemon.http);
    let status =
        eventually("it answers", || http::raw(daemon.http, probe.as_bytes()).map(|reply| reply.status));
    assert_eq!(status, 500, "case 112");
    assert_eq!(daemon.client().health("ratelimit").unwrap(), 2, "case 112");
    daemon.set_rules(0, "d", &rules(&["k 5/day"]));
    daemon.until_healthy();
    assert_eq!(daemon.call("d", "[k=v]"), "OK | OK 5 4");
    let mut refused = StandIn::start(&wrong, &[]);
    let ended = eventually("it does not start", || refused.process.ended());
    assert_ne!(ended.code(), Some(0));
}

#[test]
fn what_is_not_there_and_would_be_missed_stops_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let ran = command::command(folder.path())
        .arg("ratelimit")
        .envs([("BACKEND_TYPE", "memcache"), ("REDIS_PERSECOND", "true")])
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert_eq!(ran.status.code(), Some(2), "{told}");
    assert!(told.contains("BACKEND_TYPE names a store") && told.contains("REDIS_PERSECOND asks"), "{told}");
    // Called by the name of the service it is the service, and `--help` is ignored.
    let called = folder.path().join("ratelimit");
    std::os::unix::fs::symlink(command::TIDEGATE, &called).unwrap();
    let ran = command::of(called.to_str().unwrap(), folder.path())
        .arg("--help")
        .env("BACKEND_TYPE", "memcache")
        .output()
        .unwrap();
    assert_eq!(ran.status.code(), Some(2), "case 116");
}
