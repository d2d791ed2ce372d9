//! Who is asking: tokens and addresses out of headers, and users and keys that are kept in the rules file.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use serde_json::{Value, json};

use super::support::daemon::Daemon;
use super::support::{eventually, http};

const RULES: &str = r#"# Kept by hand.
[[rules]]
name = "user"      # each user
per = ["user"]
limit = 100
window = "24h"
[[rules]]
name = "pro"
match = { tier = "pro" }
per = ["user"]
limit = 500
window = "24h"
[[rules]]
name = "ip"
per = ["ip"]
limit = 1000
window = "24h"
[[rules]]
name = "key"
per = ["api_key"]
limit = 10
window = "24h"

[[tiers]]
name = "basic"
[[tiers]]
name = "pro"
[[users]]
id = "ann"         # from the beginning
tier = "basic"
"#;

fn rules_of(reply: &http::Reply) -> String {
    reply.header("ratelimit-policy").unwrap_or_default().to_owned()
}

/// A token signed with HS256.
fn token(secret: &[u8], claims: &Value) -> String {
    let part = |value: &Value| BASE64.encode(value.to_string());
    let signed = format!("{}.{}", part(&json!({ "alg": "HS256", "typ": "JWT" })), part(claims));
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, secret);
    format!("{signed}.{}", BASE64.encode(ring::hmac::sign(&key, signed.as_bytes())))
}

fn jwks(secret: &[u8]) -> String {
    json!({ "keys": [{ "kty": "oct", "k": BASE64.encode(secret) }] }).to_string()
}

#[test]
fn a_token_names_its_user_and_an_invalid_one_counts_by_its_address() {
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("jwks.json");
    let (secret, next): (&[u8], &[u8]) = (&[7; 32], &[8; 32]);
    std::fs::write(&keys, jwks(secret)).unwrap();
    let config = format!("[identity]\njwt = {{ keys = {keys:?}, issuers = [\"me\"] }}\n");
    let daemon = Daemon::with(RULES, &config, &[]);
    let far = 4_102_444_800_u64;
    let good = |secret: &[u8]| token(secret, &json!({ "sub": "ann", "iss": "me", "exp": far }));
    let ask = |token: &str| {
        let headers = [("authorization", &*format!("Bearer {token}")), ("x-forwarded-for", "192.0.2.1")];
        rules_of(&http::get(daemon.http, "/v1/authorize", &headers))
    };
    assert!(ask(&good(secret)).contains("\"user\";q=100"));
    let none = format!("{}..", BASE64.encode(json!({ "alg": "none" }).to_string()));
    for bad in [
        good(next),
        none,
        token(secret, &json!({ "sub": "ann", "iss": "me", "exp": 1 })),
        token(secret, &json!({ "sub": "ann", "iss": "you", "exp": far })),
        token(secret, &json!({ "sub": "ann", "iss": "me" })),
        "a.b.c".to_owned(),
    ] {
        let rules = ask(&bad);
        assert!(
            rules.contains("\"ip\"") && !rules.contains("\"user\"") && !rules.contains("\"key\""),
            "{bad}: {rules}"
        );
    }
    // Where gateways pass the header on among the attributes.
    let attributes =
        |token: &str| json!({ "attributes": { "authorization": format!("Bearer {token}") }, "cost": 0 });
    assert_eq!(daemon.post("/v1/check", &attributes(&good(secret))).json()["rule"], "user");
    assert_eq!(daemon.post("/v1/check", &attributes(&good(next))).json()["rule"], Value::Null);
    let batch = json!({ "checks": [attributes(&good(secret)), attributes(&good(next))] });
    let batch = daemon.post("/v1/check", &batch).json();
    assert_eq!(
        (&batch["decisions"][0]["rule"], &batch["decisions"][1]["rule"]),
        (&json!("user"), &Value::Null)
    );

    // The keys change while the daemon runs; a broken file changes nothing.
    std::fs::write(&keys, "{").unwrap();
    daemon.process.signal("HUP");
    eventually("the broken file is told of", || {
        daemon.log().contains("those before stay in force").then_some(())
    });
    assert!(ask(&good(secret)).contains("\"user\""));
    std::fs::write(&keys, jwks(next)).unwrap();
    daemon.process.signal("HUP");
    eventually("the new key", || ask(&good(next)).contains("\"user\"").then_some(()));
    assert!(!ask(&good(secret)).contains("\"user\""), "what the former key signed is forgotten");
    assert!(daemon.metric("tidegate_identity_tokens_total{result=\"invalid\"}").unwrap() > 5.0);
    // The last key goes with the list, or with the file.
    std::fs::write(&keys, "{\"keys\":[]}").unwrap();
    daemon.process.signal("HUP");
    eventually("no key is left", || (!ask(&good(next)).contains("\"user\"")).then_some(()));
    std::fs::write(&keys, jwks(next)).unwrap();
    daemon.process.signal("HUP");
    eventually("the key is back", || ask(&good(next)).contains("\"user\"").then_some(()));
    std::fs::remove_file(&keys).unwrap();
    eventually("no file is left", || (!ask(&good(next)).contains("\"user\"")).then_some(()));
}

#[test]
fn an_invalid_token_is_refused_where_that_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("jwks.json");
    std::fs::write(&keys, jwks(&[7; 32])).unwrap();
    let config = format!("[identity]\njwt = {{ keys = {keys:?}, on_invalid = \"refuse\" }}\n");
    let daemon = Daemon::with(RULES, &config, &[]);
    let refused = http::get(daemon.http, "/v1/authorize", &[("authorization", "Bearer a.b.c")]);
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (401, &json!("invalid_token")));
    let body = json!({ "attributes": { "authorization": "Bearer a.b.c" } });
    assert_eq!(daemon.post("/v1/check", &body).status, 401);
    assert_eq!(http::get(daemon.http, "/v1/authorize", &[]).status, 200);
    let mine = token(&[7; 32], &json!({ "sub": "ann", "exp": 4_102_444_800_u64 }));
    let headers = [("authorization", &*format!("Bearer {mine}")), ("x-tidegate-user", "bob")];
    let contradicted = http::get(daemon.http, "/v1/authorize", &headers);
    assert_eq!(
        (contradicted.status, &contradicted.json()["error"]["field"]),
        (400, &json!("x-tidegate-user"))
    );
}

#[test]
fn one_client_has_one_bucket_however_its_address_is_written() {
    let daemon = Daemon::with_rules(RULES);
    let remaining = |hops: &str| {
        let reply = http::get(daemon.http, "/v1/authorize", &[("x-forwarded-for", hops)]);
        reply.header("x-ratelimit-remaining").unwrap().parse::<u64>().unwrap()
    };
    for (turn, same) in [
        "::ffff:203.0.113.9",
        "203.0.113.9",
        "203.0.113.9:4711",
        "[::ffff:cb00:7109]:1",
        "9.9.9.9, 203.0.113.9",
    ]
    .iter()
    .enumerate()
    {
        assert_eq!(remaining(same), 999 - u64::try_from(turn).unwrap(), "{same}");
    }
    for (turn, same) in
        ["2001:db8:0:7::1", "2001:0DB8::7:ffff:0:0:2", "[2001:db8:0:7::3]:80"].iter().enumerate()
    {
        assert_eq!(remaining(same), 999 - u64::try_from(turn).unwrap(), "{same}");
    }
    let by_check = daemon.check(&[("ip", "2001:db8:0:7:8::")]);
    assert_eq!(by_check["remaining"], 996, "the same by every server");
    // What is no address is the proxy's own, whatever stands beside it.
    for (turn, bad) in [
        "x",
        "256.1.1.1",
        "1.1.1",
        "[::1",
        "1.1.1.1:99999",
        "for=1.1.1.1",
        "2001:db8:::1",
        "<script>",
        "-",
        "203.0.113.9, %00",
    ]
    .iter()
    .enumerate()
    {
        assert_eq!(remaining(bad), 999 - u64::try_from(turn).unwrap(), "{bad}");
    }
}

#[test]
fn a_file_that_lists_no_tiers_has_those_of_its_rules_and_users_and_no_other() {
    let (rules, _) = RULES.split_once("[[tiers]]").unwrap();
    let daemon = Daemon::with_rules(&format!("{rules}[[users]]\nid = \"ann\"\ntier = \"basic\"\n"));
    for tier in ["pro", "basic"] {
        let set = daemon.run(&["users", "set", "bob", "--tier", tier]);
        assert_eq!(set.code, 0, "{set:?}");
    }
    for words in [&["users", "set", "bob", "--tier", "nope"][..], &["keys", "create", "--tier", "nope"]] {
        let refused = daemon.run(words);
        assert!(refused.code == 1 && refused.err.contains("there is no such tier"), "{refused:?}");
    }
}

#[test]
fn users_and_keys_are_kept_in_the_rules_file_where_there_is_no_database() {
    let daemon = Daemon::with_rules(RULES);
    let ok = |arguments: &[&str]| {
        let ran = daemon.run(arguments);
        assert_eq!(ran.code, 0, "{arguments:?}: {}", ran.both());
        ran.out
    };
    let file = || std::fs::read_to_string(daemon.folder().join("rules.toml")).unwrap();
    ok(&["users", "set", "bob", "--tier", "pro", "--limit", "user=7"]);
    assert_eq!(daemon.check_cost(&[("user", "bob")], 0)["limit"], 7);
    ok(&["users", "block", "ann", "--reason", "scraping"]);
    let refused = daemon.check(&[("user", "ann")]);
    assert_eq!(
        (&refused["allowed"], &refused["rule"], &refused["message"]),
        (&json!(false), &json!("user_blocked"), &json!("scraping"))
    );
    assert!(
        file().contains("# Kept by hand.") && file().contains("id = \"ann\"         # from the beginning"),
        "{}",
        file()
    );
    assert!(ok(&["users", "list"]).contains("bob"));
    ok(&["users", "unblock", "ann"]);
    assert_eq!(daemon.check(&[("user", "ann")])["allowed"], true);

    let made: Value =
        serde_json::from_str(&ok(&["keys", "create", "--user", "bob", "--expires", "1h", "--json"])).unwrap();
    let (secret, id) = (made["secret"].as_str().unwrap(), made["key"]["id"].as_str().unwrap());
    assert!(file().contains(id) && !file().contains(secret.rsplit_once('_').unwrap().1));
    let decision = daemon.check_cost(&[("api_key", secret)], 0);
    let names: Vec<_> =
        decision["rules"].as_array().unwrap().iter().map(|one| one["rule"].as_str().unwrap()).collect();
    assert_eq!(names, ["key", "pro", "user"]);
    ok(&["keys", "revoke", id]);
    assert_eq!(daemon.check(&[("api_key", secret)])["rule"], "key_revoked");
    assert!(ok(&["keys", "show", id]).contains("revoked"));

    ok(&["tiers", "set", "gold", "--description", "dearest"]);
    assert!(ok(&["tiers", "list"]).contains("dearest"));
    let held = daemon.run(&["tiers", "remove", "pro"]);
    let sentence = "\"pro\" is still the tier of user \"bob\": give them another tier first";
    assert!(held.code == 1 && held.err.contains(sentence), "{}", held.both());
    ok(&["tiers", "remove", "gold"]);
    let refused = daemon.run(&["users", "set", "bob", "--tier", "gold"]);
    assert!(refused.code == 1 && refused.err.contains("not listed under [[tiers]]"), "{}", refused.both());
    for filter in [&["users", "list", "--tier", "gold"][..], &["users", "list", "--blocked"]] {
        let out = ok(filter);
        assert!(out.starts_with("No user ") && !out.contains("No users."), "{filter:?}: {out}");
    }
    assert!(ok(&["keys", "list", "--user", "ann"]).starts_with("No key "));
    assert_eq!(daemon.run(&["users", "show", "nobody"]).code, 1);
    let found = |query: &str, list: &str| daemon.get(query).json()[list].as_array().unwrap().len();
    assert_eq!((found("/v1/users?search=BO", "users"), found("/v1/users?search=zz", "users")), (1, 0));
    assert_eq!((found("/v1/keys?search=Bob", "keys"), found("/v1/keys?search=zz", "keys")), (1, 0));
    assert_eq!((found("/v1/keys?revoked=true", "keys"), found("/v1/keys?revoked=false", "keys")), (1, 0));
    ok(&["users", "remove", "bob"]);
    assert!(!file().contains("bob\"\ntier"));
}
