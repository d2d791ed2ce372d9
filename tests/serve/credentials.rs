//! Who asks is who is counted: whatever a client shows beside its credential, and however it spells it.

use serde_json::{Value, json};

use super::support::daemon::Daemon;
use super::support::http;
use super::support::rls::{descriptor, request};

const RULES: &str = r#"
# Kept by hand.
[[rules]]
name = "key"
per = ["api_key"]
algorithm = "fixed_window"
limit = 3
window = "24h"

[[rules]]
name = "owner"
per = ["user"]
algorithm = "fixed_window"
limit = 6
window = "24h"
"#;

fn status(daemon: &Daemon, headers: &str) -> u16 {
    let head = format!("GET /v1/authorize HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}\r\n\r\n");
    http::raw(daemon.http, head.as_bytes()).unwrap().status
}

fn made(daemon: &Daemon, user: &str) -> (String, String) {
    assert_eq!(daemon.run(&["users", "set", user]).code, 0);
    let ran = daemon.run(&["keys", "create", "--user", user, "--json"]);
    assert_eq!(ran.code, 0, "{}", ran.both());
    let made: Value = serde_json::from_str(&ran.out).unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    (text(&made["secret"]), text(&made["key"]["id"]))
}

#[test]
fn a_credential_that_is_shown_is_counted_whatever_stands_beside_it() {
    let daemon = Daemon::with_rules(RULES);
    let real = "authorization: Bearer real";
    assert_eq!([(); 4].map(|()| status(&daemon, real)), [200, 200, 200, 429]);
    for beside in [
        "x-api-key: made-up",
        "x-api-key: tgk_",
        "x-api-key:",
        "x_api_key: made-up",
        "x-api-key: tgk_abcdefGHI012",
    ] {
        assert_eq!(status(&daemon, &format!("{real}\r\n{beside}")), 429, "{beside}");
        assert_eq!(status(&daemon, &format!("{beside}\r\n{real}")), 429, "{beside}");
    }
    // Both are counted, so that either is what the service may have read.
    assert_eq!(status(&daemon, "x-api-key: another"), 200);
    assert_eq!(status(&daemon, "x-api-key: another\r\nauthorization: Bearer one"), 200);
    assert_eq!(status(&daemon, "x-api-key: another\r\nauthorization: Bearer two"), 200);
    assert_eq!(status(&daemon, "x-api-key: another\r\nauthorization: Bearer three"), 429);
    let decided =
        http::get(daemon.http, "/v1/authorize", &[("x-api-key", "p"), ("authorization", "Bearer q")]);
    assert_eq!(decided.header("ratelimit-policy").unwrap().matches("\"key\"").count(), 2, "{decided:?}");
    let whole = "tgk_abcdefGHI012_abcdefghijklmnopqrstuvwxyzABCDEF";
    for unknown in ["tgk_", "tgk_abc_def", whole] {
        let statuses = [(); 4].map(|()| status(&daemon, &format!("x-api-key: {unknown}")));
        assert_eq!(statuses, [200, 200, 200, 429], "{unknown} counts like any other secret");
        let asked = || daemon.rls().ask(request(vec![descriptor(&[("api_key", &format!("{unknown}x"))])]));
        let codes = [(); 4].map(|()| asked().unwrap().overall_code);
        // A whole key is found wherever it stands, and this one is used up.
        let expected = if unknown == whole { [2; 4] } else { [1, 1, 1, 2] };
        assert_eq!(codes, expected, "{unknown}");
    }
}

#[test]
fn a_client_that_signs_each_request_is_one_client() {
    type Signed = fn(u32) -> String;
    let daemon = Daemon::with_rules(RULES);
    let schemes: [(&str, Signed); 4] = [
        ("Digest", |turn| format!("username=\"d\", nonce=\"{turn}\", uri=\"/\", response=\"{turn}\"")),
        ("AWS4-HMAC-SHA256", |turn| {
            format!("Credential=A/2026010{turn}/eu/s3/aws4_request, SignedHeaders=host, Signature={turn}")
        }),
        ("Hawk", |turn| format!("id=\"h\", ts=\"{turn}\", nonce=\"{turn}\", mac=\"{turn}\"")),
        ("Signature", |turn| format!("keyId=\"s\",algorithm=\"hs2019\",signature=\"{turn}\"")),
    ];
    for (scheme, parameters) in schemes {
        let asked = |turn| status(&daemon, &format!("authorization: {scheme} {}", parameters(turn)));
        assert_eq!([1, 2, 3, 4, 5].map(asked), [200, 200, 200, 429, 429], "{scheme}");
    }
}

#[test]
fn an_authorization_in_a_descriptor_is_one_however_it_is_spelled() {
    let daemon = Daemon::with_rules(&RULES.replace("\"api_key\"", "\"authorization\""));
    let ask = |text: &str| {
        let asked = request(vec![descriptor(&[("authorization", text)])]);
        daemon.rls().ask(asked).unwrap().overall_code
    };
    let spellings = ["Bearer real", "bearer  real", "Bearer\treal", "BEARER real junk"];
    assert_eq!(spellings.map(ask), [1, 1, 1, 2]);
    assert_eq!(["Basic cmVhbA==", "basic cmVhbA", "Basic cmVhbB==", "Basic  cmVhbA="].map(ask), [1, 1, 1, 2]);
}

#[test]
fn who_is_revoked_or_blocked_stays_so_whatever_stands_beside() {
    let daemon = Daemon::with_rules(RULES);
    let (revoked, id) = made(&daemon, "ann");
    assert_eq!(daemon.run(&["keys", "revoke", &id]).code, 0);
    let (blocked, _) = made(&daemon, "bob");
    let (good, _) = made(&daemon, "cyd");
    assert_eq!(daemon.run(&["users", "block", "bob"]).code, 0);
    let authorize = |headers: &[(&str, &str)]| http::get(daemon.http, "/v1/authorize", headers).status;
    let ask =
        |entries: &[(&str, &str)]| daemon.rls().ask(request(vec![descriptor(entries)])).unwrap().overall_code;
    for secret in [&revoked, &blocked] {
        let bearer = format!("Bearer\t{secret}");
        assert_eq!(authorize(&[("x-api-key", secret)]), 403);
        assert_eq!(authorize(&[("authorization", &bearer), ("x-api-key", "x")]), 403);
        assert_eq!(authorize(&[("authorization", "Bearer x"), ("x-api-key", secret)]), 403);
        assert_eq!(authorize(&[("authorization", &bearer), ("x-api-key", &good)]), 403);
        assert_eq!(authorize(&[("x-api-key", secret), ("x-tidegate-user", "cyd")]), 403);
        assert_eq!(daemon.check(&[("api_key", secret), ("user", "cyd")])["allowed"], false);
        assert_eq!(ask(&[("api_key", "x"), ("api_key", secret)]), 2);
        assert_eq!(ask(&[("user", "cyd"), ("api_key", secret)]), 2);
    }
    assert_eq!(ask(&[("user", "cyd"), ("user", "bob")]), 2, "either of two users");
    assert_eq!(authorize(&[("x-api-key", &good), ("authorization", "Bearer x")]), 200);
    // The owner's limit holds beside anything, too.
    let beside = |number: usize| {
        authorize(&[("authorization", &format!("Bearer {good}")), ("x-api-key", &number.to_string())])
    };
    assert_eq!([1, 2, 3].map(beside), [200, 200, 429], "three by the key");
}

#[test]
fn one_setting_says_which_header_carries_the_credential() {
    let config = "[identity]\ncredentials = [\"Authorization\"]\n";
    let daemon = Daemon::with(RULES, config, &[]);
    assert_eq!([(); 4].map(|()| status(&daemon, "x-api-key: other")), [200; 4], "not read");
    let both = |number: usize| status(&daemon, &format!("authorization: real\r\nx-api-key: {number}"));
    assert_eq!([0, 1, 2, 3].map(both), [200, 200, 200, 429]);
    let own = Daemon::with(RULES, "[identity]\ncredentials = [\"apikey\"]\n", &[]);
    assert_eq!([(); 4].map(|()| status(&own, "apikey: k\r\nauthorization: Basic x")), [200, 200, 200, 429]);
    assert_eq!(status(&own, "apikey: k\r\napikey: j"), 400);
}

#[test]
fn addresses_are_read_alike_at_every_server() {
    let rules = r#"
[[rules]]
name = "ban"
match = { ip = ["198.51.100.9", "203.0.113.0/24", "2001:db8:bad::1"] }
action = "block"

[[rules]]
name = "each"
per = ["ip"]
algorithm = "fixed_window"
limit = 100
window = "24h"
"#;
    let daemon = Daemon::with_rules(rules);
    let client = daemon.rls();
    for banned in [
        "198.51.100.9",
        "198.51.100.9:1",
        " 198.51.100.9",
        "::ffff:198.51.100.9",
        "[::ffff:198.51.100.9]:99",
        "203.0.113.7:5555",
        "2001:DB8:bad::1",
        "[2001:db8:bad::1]",
        "[2001:db8:bad:0::1]:443",
        "2001:db8:bad::1%eth0",
        "[2001:db8:bad::1%eth0]:443",
    ] {
        assert_eq!(daemon.check(&[("ip", banned)])["allowed"], false, "{banned}");
        for name in ["remote_address", "ip"] {
            let asked = request(vec![descriptor(&[(name, banned)])]);
            assert_eq!(client.ask(asked).unwrap().overall_code, 2, "{name} {banned}");
        }
        if !banned.contains('%') {
            let headers = [("x-forwarded-for", banned)];
            assert_eq!(http::get(daemon.http, "/v1/authorize", &headers).status, 403, "{banned}");
        }
    }
    let mut left = 100;
    for same in ["192.0.2.1", "192.0.2.1:80", "192.0.2.1:81", "::ffff:192.0.2.1", "[::ffff:c000:201]:9"] {
        left -= 1;
        assert_eq!(daemon.check(&[("ip", same)])["remaining"], left, "{same}");
    }
    let bucket = daemon.get("/v1/buckets?rule=each&ip=192.0.2.1%3A4711").json();
    assert_eq!(bucket["used"], 5, "{bucket}");
}

#[test]
fn a_path_that_is_read_in_several_ways_is_held_in_each_at_every_route() {
    let rules = r#"
[[rules]]
name = "login"
match = { path = "/login*" }
per = ["user"]
algorithm = "fixed_window"
limit = 3
window = "24h"

[[rules]]
name = "public"
match = { path = "/public/*" }
action = "allow"
"#;
    const READ: &[&str] = &[
        "/login/..;/x",
        "/login/..;a=b/x",
        "/login/..\\x",
        "/login/..%5cx",
        "/login/%2e%2e;/x",
        "/login/.%2e;/x",
        "/login/x/..;/..;/y",
        "/login/..;/public/x",
        "/login/../public/x",
        "/login/..%2fpublic/x",
        "/x/../login",
        "//login",
        "//public/login",
    ];
    let daemon = Daemon::with_rules(rules);
    let client = daemon.rls();
    assert_eq!(daemon.admitted(&[("user", "u"), ("path", "/login")], 4), 3);
    for path in READ {
        assert_eq!(daemon.check(&[("user", "u"), ("path", path)])["allowed"], false, "{path}");
        let headers = [("x-tidegate-user", "u"), ("x-original-uri", *path)];
        assert_eq!(http::get(daemon.http, "/v1/authorize", &headers).status, 429, "{path}");
        let asked = request(vec![descriptor(&[("user", "u"), ("path", path)])]);
        assert_eq!(client.ask(asked).unwrap().overall_code, 2, "{path}");
        let explained = daemon.post("/v1/explain", &json!({ "attributes": { "user": "u", "path": path } }));
        assert_eq!(explained.json()["decision"]["allowed"], false, "{path}: {explained:?}");
    }
    assert_eq!(daemon.check(&[("user", "u"), ("path", "/public/x")])["allowed"], true);
    assert_eq!(
        daemon.check(&[("user", "u"), ("path", "/public/%61")])["allowed"],
        true,
        "all readings agree"
    );
    // Once, however many of its readings meet the rule.
    let both = daemon.check(&[("user", "v"), ("path", "//login/%2e/x")]);
    assert_eq!((&both["remaining"], both["rules"].as_array().unwrap().len()), (&json!(2), 1), "{both}");
    let collapsed = Daemon::with(rules, "[requests]\norigin = \"collapsed\"\n", &[]);
    assert_eq!(collapsed.admitted(&[("user", "u"), ("path", "/login")], 4), 3);
    assert_eq!(
        collapsed.check(&[("user", "u"), ("path", "/login/..;/x")])["allowed"],
        true,
        "Tomcat serves /x"
    );
    let odd = json!({ "attributes": { "path": "//a;b/%2e/x%2Fy\\z/../%61" } });
    let refused = daemon.post("/v1/check", &odd);
    assert_eq!((refused.status, &refused.json()["error"]["field"]), (400, &json!("path")));
    let asked = request(vec![descriptor(&[("path", "//a;b/%2e/x%2Fy\\z/../%61")])]);
    assert_eq!(client.ask(asked).unwrap().overall_code, 2);
}
