//! Users, API keys and tiers in the database: how soon a change takes effect, and that none of it holds up a
//! decision.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::support::command::{Ran, TIDEGATE};
use super::support::daemon::Daemon;
use super::support::postgres::Postgres;
use super::support::{eventually, http};

const RULES: &str = r#"
[[rules]]
name = "free"
match = { tier = "free" }
per = ["user"]
limit = 5
window = "1h"
[[rules]]
name = "pro"
match = { tier = "pro" }
per = ["user"]
limit = 100
window = "1h"
[[rules]]
name = "by-key"
per = ["api_key"]
limit = 1000
window = "1h"
"#;

/// Longest time until a blocked user or a revoked key is refused everywhere.
const REFUSED_WITHIN: Duration = Duration::from_secs(1);

fn daemon(url: &str) -> Daemon {
    // A generous timeout, so that a busy machine does not decide as the default what these tests are not
    // about.
    let config = format!(
        "[postgres]\nurl = {url:?}\ntimeout = \"2s\"\n[identity]\ndefault_tier = \"free\"\nlookup_timeout = \"500ms\"\n"
    );
    Daemon::with(RULES, &config, &[])
}

fn rule(daemon: &Daemon, attributes: &[(&str, &str)]) -> String {
    daemon.check_cost(attributes, 0)["rule"].as_str().unwrap_or_default().to_owned()
}

fn ok(ran: Ran) -> String {
    assert_eq!(ran.code, 0, "{}", ran.both());
    ran.out
}

fn patch(daemon: &Daemon, path: &str, body: &Value) -> http::Reply {
    let headers = [("content-type", "application/json")];
    http::request(daemon.http, "PATCH", path, &headers, body.to_string().as_bytes())
}

/// How long until `holds`.
fn until(what: &str, mut holds: impl FnMut() -> bool) -> Duration {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(10), "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
    began.elapsed()
}

#[test]
fn a_blocked_user_is_refused_on_every_daemon_within_a_second() {
    let server = Postgres::start();
    let database = server.migrated(TIDEGATE);
    let daemons = [daemon(&server.url(&database)), daemon(&server.url(&database))];
    for daemon in &daemons {
        assert_eq!(rule(daemon, &[("user", "mallory")]), "free");
    }
    ok(daemons[0].run(&["users", "block", "mallory", "--reason", "scraping", "--until", "1h"]));
    for daemon in &daemons {
        let took = until("refused", || rule(daemon, &[("user", "mallory")]) == "user_blocked");
        assert!(took < REFUSED_WITHIN, "{took:?}");
        let decision = daemon.check(&[("user", "mallory")]);
        assert_eq!((&decision["status"], &decision["message"]), (&json!(403), &json!("scraping")));
        let retry = decision["retry_after_ms"].as_u64().unwrap();
        assert!((3_500_000..=3_600_000).contains(&retry), "{decision}");
    }
    assert!(ok(daemons[1].run(&["users", "show", "mallory"])).contains("scraping"));
    assert!(ok(daemons[1].run(&["users", "list", "--blocked"])).contains("mallory"));
    ok(daemons[1].run(&["users", "unblock", "mallory"]));
    for daemon in &daemons {
        until("let in again", || rule(daemon, &[("user", "mallory")]) == "free");
    }
    let recorded = "SELECT string_agg(action || ' ' || target || ' ' || actor || ' ' || coalesce(host(source), 'unix'), ', ' ORDER BY id) FROM admin_changes";
    assert_eq!(
        server.sql(&database, recorded),
        "user.block mallory local unix, user.unblock mallory local unix"
    );
    let changes = daemons[1].get("/v1/changes?target=mallory").json()["changes"].clone();
    let actions: Vec<&Value> = changes.as_array().unwrap().iter().map(|change| &change["action"]).collect();
    assert_eq!(
        actions,
        [&json!("user.unblock"), &json!("user.block")],
        "any daemon shows what was done through one"
    );
    assert_eq!((&changes[0]["source"], &changes[0]["role"]), (&Value::Null, &json!("admin")));
    let reset = http::request(daemons[0].http, "DELETE", "/v1/buckets?rule=free&user=mallory", &[], b"");
    assert_eq!(reset.status, 200, "{reset:?}");
    assert!(ok(daemons[1].run(&["changes", "--action", "bucket.reset"])).contains("free user=mallory"));
}

#[test]
fn a_file_with_a_block_list_is_applied_whole_to_the_database() {
    let server = Postgres::start();
    let database = server.migrated(TIDEGATE);
    let config = format!("[rules]\nsource = \"postgres\"\n[postgres]\nurl = {:?}\n", server.url(&database));
    let daemon = Daemon::with("", &config, &[]);
    let people = "[[tiers]]\nname = \"pro\"\n[[tiers]]\nname = \"free\"\n[[users]]\nid = \"evil\"\n\
                  blocked = true\n[[users]]\nid = \"ann\"\ntier = \"pro\"\noverrides = { \"free\" = { limit = 7 } }\n";
    std::fs::write(daemon.folder().join("f.toml"), format!("{people}{RULES}")).unwrap();
    let applied = ok(daemon.run(&["rules", "apply", "f.toml", "--reason", "block list"]));
    assert!(applied.contains("+user evil") && applied.contains("7 changed"), "{applied}");
    until("refused", || rule(&daemon, &[("user", "evil")]) == "user_blocked");
    until("the tier", || rule(&daemon, &[("user", "ann")]) == "pro");
    assert!(ok(daemon.run(&["users", "show", "ann"])).contains("free=7"));
    assert_eq!(daemon.run(&["rules", "diff", "f.toml", "--exit-code"]).code, 0);
    std::fs::write(daemon.folder().join("printed.toml"), ok(daemon.run(&["rules", "list", "--toml"])))
        .unwrap();
    ok(daemon.run(&["rules", "diff", "printed.toml", "--prune", "--exit-code"]));
    // What the file says nothing of stays, a block that was set by hand among it.
    ok(daemon.run(&["users", "block", "ann", "--reason", "by hand"]));
    assert_eq!(daemon.run(&["rules", "diff", "f.toml", "--exit-code"]).code, 0);
    let reason = server.sql(&database, "SELECT DISTINCT reason FROM admin_changes WHERE target = 'evil'");
    assert_eq!(reason, "block list");
}

#[test]
fn a_change_by_plain_sql_takes_effect_at_once_and_without_a_notification_in_a_second() {
    let server = Postgres::start();
    let database = server.migrated(TIDEGATE);
    let daemon = daemon(&server.url(&database));
    let sql = |text: &str| server.sql(&database, text);
    sql(
        "INSERT INTO tiers (name) VALUES ('free'), ('pro'); INSERT INTO users (id, tier) VALUES ('u', 'free')",
    );
    until("known", || daemon.check_cost(&[("user", "u")], 0)["rule"] == "free");
    let mut times = Vec::new();
    for round in 0..10 {
        let tier = if round % 2 == 0 { "pro" } else { "free" };
        sql(&format!("UPDATE users SET tier = '{tier}' WHERE id = 'u'"));
        times.push(until("the tier", || rule(&daemon, &[("user", "u")]) == tier));
    }
    times.sort();
    eprintln!("from commit to effect: median {:?}, longest {:?}", times[5], times[9]);
    assert!(times[5] < Duration::from_millis(100), "{times:?}");
    // Whatever made the notification be lost: the daemon looks by itself.
    sql("DROP TRIGGER users_updated ON users; DROP TRIGGER users_inserted ON users");
    sql("UPDATE users SET blocked_at = now() WHERE id = 'u'");
    let took = until("the block", || rule(&daemon, &[("user", "u")]) == "user_blocked");
    assert!(took < REFUSED_WITHIN, "{took:?}");
    // More at once than can be named.
    sql("UPDATE users SET blocked_at = NULL WHERE id = 'u';
         INSERT INTO users (id, tier) SELECT 'x' || n, 'pro' FROM generate_series(1, 3000) AS n");
    until("everybody is looked up again", || rule(&daemon, &[("user", "u")]) == "free");
    sql("TRUNCATE users CASCADE");
    until("nobody is left", || rule(&daemon, &[("user", "x1")]) == "free");
}

#[test]
fn a_block_whose_row_cannot_be_read_at_once_is_in_force_when_it_can() {
    let server = Postgres::start();
    let database = server.migrated(TIDEGATE);
    let daemon = daemon(&server.url(&database));
    server.sql(&database, "INSERT INTO users (id) VALUES ('ann'), ('bob')");
    for user in ["ann", "bob"] {
        until("known", || rule(&daemon, &[("user", user)]) == "free");
    }
    // Who waits for the table gets it at the commit, and keeps it for longer than a question may take.
    let (asked, named) = (&server, database.as_str());
    std::thread::scope(|scope| {
        let sql = |text: &'static str| scope.spawn(move || asked.sql(named, text));
        sql("BEGIN; UPDATE users SET blocked_at = now() WHERE id = 'ann'; SELECT pg_sleep(1); COMMIT");
        std::thread::sleep(Duration::from_millis(500));
        sql("BEGIN; LOCK TABLE users IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep(4); COMMIT");
    });
    eventually("the block", || (rule(&daemon, &[("user", "ann")]) == "user_blocked").then_some(()));
    let block = "UPDATE users SET blocked_at = now(), blocked_until = 'infinity' WHERE id = 'bob'";
    server.sql(&database, block);
    eventually("the endless block", || (rule(&daemon, &[("user", "bob")]) == "user_blocked").then_some(()));
    let shown = daemon.get("/v1/users/bob");
    assert_eq!(shown.status, 200, "{shown:?}");
    eventually("no lookup is open", || {
        (daemon.metric("tidegate_identity_lookups_open") == Some(0.0)).then_some(())
    });
}

#[test]
fn a_key_is_made_once_shown_once_and_refused_everywhere_when_revoked() {
    let server = Postgres::start();
    let database = server.migrated(TIDEGATE);
    let daemons = [daemon(&server.url(&database)), daemon(&server.url(&database))];
    let [one, two] = &daemons;
    ok(one.run(&["tiers", "set", "pro", "--description", "paying"]));
    ok(one.run(&["users", "set", "acme", "--tier", "pro"]));
    let made = ok(one.run(&[
        "keys",
        "create",
        "--user",
        "acme",
        "--limit",
        "by-key=7",
        "--expires",
        "90d",
        "--json",
    ]));
    let made: Value = serde_json::from_str(&made).unwrap();
    let (secret, id) = (made["secret"].as_str().unwrap(), made["key"]["id"].as_str().unwrap());
    let ask = |daemon: &Daemon, key: &str| {
        http::get(daemon.http, "/v1/authorize", &[("x-api-key", key), ("x-forwarded-for", "192.0.2.7")])
    };
    for daemon in &daemons {
        let decision = daemon.check_cost(&[("api_key", secret)], 0);
        let rules: Vec<_> =
            decision["rules"].as_array().unwrap().iter().map(|one| (&one["rule"], &one["limit"])).collect();
        assert_eq!(rules, [(&json!("by-key"), &json!(7)), (&json!("pro"), &json!(100))], "{decision}");
        assert_eq!(ask(daemon, secret).status, 200);
        let bearer =
            http::get(daemon.http, "/v1/authorize", &[("authorization", &format!("Bearer {secret}"))]);
        assert_eq!(bearer.header("x-ratelimit-limit"), Some("7"));
        // A wrong secret under the right name counts by nothing of the key's, but as any other secret.
        let wrong =
            format!("{}{}", &secret[..secret.len() - 1], if secret.ends_with('A') { 'B' } else { 'A' });
        assert_eq!(ask(daemon, &wrong).header("x-ratelimit-limit"), Some("1000"));
    }
    // Its secret is nowhere but with its holder.
    let secret_part = secret.rsplit_once('_').unwrap().1;
    let dump = server.sql(&database, "SELECT row_to_json(api_keys)::text FROM api_keys UNION ALL SELECT row_to_json(admin_changes)::text FROM admin_changes");
    assert!(dump.contains(id) && !dump.contains(secret_part), "{dump}");
    let explained = one.post("/v1/explain", &json!({ "attributes": { "api_key": secret } })).body;
    assert!(!explained.contains(secret_part) && !one.log().contains(secret_part), "{explained}");

    assert!(ok(two.run(&["keys", "show", id])).contains("active"));
    assert!(ok(two.run(&["keys", "list", "--user", "acme"])).contains(id));
    assert_eq!(patch(two, &format!("/v1/keys/{id}"), &json!({ "active": false })).status, 200);
    for daemon in &daemons {
        until("switched off", || rule(daemon, &[("api_key", secret)]) == "key_inactive");
    }
    assert_eq!(patch(two, &format!("/v1/keys/{id}"), &json!({ "active": true })).status, 200);
    for daemon in &daemons {
        until("switched on", || rule(daemon, &[("api_key", secret)]) == "by-key");
    }
    ok(two.run(&["keys", "revoke", id, "--reason", "leaked"]));
    for daemon in &daemons {
        let took = until("revoked", || rule(daemon, &[("api_key", secret)]) == "key_revoked");
        assert!(took < REFUSED_WITHIN, "{took:?}");
        assert_eq!(ask(daemon, secret).status, 403);
    }
    // For ever.
    assert_eq!(
        patch(one, &format!("/v1/keys/{id}"), &json!({ "active": true })).json()["key"]["active"],
        json!(false)
    );
}

#[test]
fn a_database_that_hangs_or_goes_delays_no_decision() {
    let mut server = Postgres::start();
    let database = server.migrated(TIDEGATE);
    let sql = "INSERT INTO tiers (name) VALUES ('pro'); INSERT INTO users (id, tier) VALUES ('known', 'pro'), ('new', 'pro')";
    server.sql(&database, sql);
    let config =
        format!("[postgres]\nurl = {:?}\n[identity]\ndefault_tier = \"free\"\n", server.url(&database));
    let daemon = Daemon::with(RULES, &config, &[]);
    until("known", || rule(&daemon, &[("user", "known")]) == "pro");
    let asked = |name: &str, many: usize| {
        let mut times: Vec<_> = (0..many)
            .map(|turn| {
                let began = Instant::now();
                daemon.check_cost(&[("user", &format!("{name}-{turn}"))], 0);
                began.elapsed()
            })
            .collect();
        times.sort();
        times
    };
    let well = asked("well", 200);
    // It takes connections and questions, and answers none: as slow as can be.
    server.signal_all("STOP");
    let began = Instant::now();
    let hung = asked("hung", 200);
    for _ in 0..50 {
        assert_eq!(rule(&daemon, &[("user", "known")]), "pro", "what is held stays in use");
    }
    assert_eq!(rule(&daemon, &[("user", "new")]), "free", "the default decides");
    eprintln!("median, longest: well {:?} {:?}, hung {:?} {:?}", well[100], well[199], hung[100], hung[199]);
    // Each would have waited for five seconds; the median is not to notice at all.
    assert!(hung[100] < well[100] * 3 + Duration::from_millis(5) && hung[199] < Duration::from_millis(500));
    assert!(began.elapsed() < Duration::from_secs(8));
    server.signal_all("CONT");
    until("it is found once the database is back", || rule(&daemon, &[("user", "new")]) == "pro");

    server.kill();
    let gone = asked("gone", 200);
    assert!(gone[100] < well[100] * 3 + Duration::from_millis(5), "{:?} {:?}", gone[100], well[100]);
    assert_eq!(rule(&daemon, &[("user", "new")]), "pro");
    let reply = patch(&daemon, "/v1/users/new", &json!({ "tier": "pro" }));
    assert_eq!((reply.status, &reply.json()["error"]["code"]), (503, &json!("unavailable")), "{reply:?}");
    server.run();
    server.sql(&database, "UPDATE users SET blocked_at = now() WHERE id = 'new'");
    // It tries to connect again every five seconds, and a database that crashed may answer none of the first
    // tries for as long.
    eventually("the block, after the database was away", || {
        (rule(&daemon, &[("user", "new")]) == "user_blocked").then_some(())
    });
}

/// A server that crashes forgets what was committed without waiting for the disk, and numbers transactions
/// from there on.
#[test]
fn a_crash_that_takes_transactions_back_hides_no_change() {
    // Nothing is written to the disk but by what waits for it.
    let mut server = Postgres::with(&["wal_writer_delay=10s"]);
    let database = server.migrated(TIDEGATE);
    let sql = "INSERT INTO tiers (name) VALUES ('pro'); INSERT INTO users (id, tier) VALUES ('new', 'pro')";
    server.sql(&database, sql);
    let daemon = daemon(&server.url(&database));
    until("known", || rule(&daemon, &[("user", "new")]) == "pro");
    server.sql(&database, "CREATE TABLE forgotten (number int)");
    let number = |server: &Postgres| {
        server.sql(&database, "SELECT pg_snapshot_xmin(pg_current_snapshot())").parse::<u64>().unwrap()
    };
    let many = "INSERT INTO forgotten VALUES (1); COMMIT; BEGIN;".repeat(20);
    // Whoever commits and waits for the disk, as the daemon does with its records, writes what came before as
    // well.
    let forgotten = (0..8).any(|_| {
        server.sql(&database, &format!("SET synchronous_commit = off; {many}"));
        let before = number(&server);
        // It looks twice a second, and what it sees now will not have been. The change comes before it looks
        // again.
        std::thread::sleep(Duration::from_millis(1_000));
        daemon.process.signal("STOP");
        server.kill();
        server.run();
        let forgotten = number(&server) < before;
        if !forgotten {
            daemon.process.signal("CONT");
        }
        forgotten
    });
    assert!(forgotten, "no transaction was forgotten");
    server.sql(&database, "UPDATE users SET blocked_at = now() WHERE id = 'new'");
    daemon.process.signal("CONT");
    until("the block, after transactions went back", || rule(&daemon, &[("user", "new")]) == "user_blocked");
}

#[test]
fn what_cannot_be_is_refused_with_a_sentence_and_nothing_changes() {
    let server = Postgres::start();
    let database = server.migrated(TIDEGATE);
    let daemon = daemon(&server.url(&database));
    let refused = |method: &str, path: &str, body: &str| {
        let headers = [("content-type", "application/json")];
        let reply = http::request(daemon.http, method, path, &headers, body.as_bytes());
        let error = &reply.json()["error"];
        let text = |name: &str| error[name].as_str().unwrap_or_default().to_owned();
        (reply.status, text("code"), text("field"), text("message"))
    };
    for (method, path, body, status, field) in [
        ("PUT", "/v1/users/u", r#"{"tier":"gold"}"#, 400, "tier"),
        ("PUT", "/v1/users/u", r#"{"teir":"gold"}"#, 400, ""),
        ("PUT", "/v1/users/u", r#"{"overrides":{"gone":{"limit":1}}}"#, 400, "overrides.gone"),
        ("PUT", "/v1/users/u", r#"{"overrides":{"free":{"limit":-1}}}"#, 400, ""),
        ("PUT", "/v1/users/u", r#"{"id":"v"}"#, 400, "id"),
        ("PUT", "/v1/users/u%00", "{}", 400, "id"),
        ("PUT", "/v1/users/u", r#"{"reason":"a\u0000"}"#, 400, "reason"),
        ("PUT", "/v1/users/u", "{", 400, ""),
        ("PUT", "/v1/users/u", "[]", 400, ""),
        ("POST", "/v1/users/u/block", r#"{"until":"yesterday"}"#, 400, "until"),
        ("POST", "/v1/users/u/block", r#"{"until":"2020-01-01T00:00:00Z"}"#, 400, "until"),
        ("POST", "/v1/users/u/unblock", "", 404, ""),
        ("GET", "/v1/users/u", "", 404, ""),
        ("DELETE", "/v1/users/u", "", 404, ""),
        ("GET", "/v1/users?limit=0", "", 400, "limit"),
        ("GET", "/v1/users?color=red", "", 400, "color"),
        ("GET", "/v1/keys?revoked=perhaps", "", 400, "revoked"),
        ("POST", "/v1/keys", r#"{"user":"nobody"}"#, 400, "user"),
        ("POST", "/v1/keys", r#"{"expires_at":"1s ago"}"#, 400, "expires_at"),
        ("POST", "/v1/keys/tgk_nothing/revoke", "", 404, ""),
        ("GET", "/v1/tiers/gold", "", 404, ""),
        ("DELETE", "/v1/tiers/gold", "", 404, ""),
        ("POST", "/v1/tiers", "{}", 405, ""),
    ] {
        let (found, _, at, message) = refused(method, path, body);
        assert_eq!((found, at.as_str()), (status, field), "{method} {path} {body}: {message}");
        assert!(!message.is_empty());
    }
    assert_eq!(server.sql(&database, "SELECT (SELECT count(*) FROM users) + (SELECT count(*) FROM api_keys) + (SELECT count(*) FROM admin_changes)"), "0");
    // A tier that somebody has stays.
    ok(daemon.run(&["tiers", "set", "pro"]));
    ok(daemon.run(&["users", "set", "u", "--tier", "pro", "--limit", "pro=500/600", "--limit", "free=1"]));
    ok(daemon.run(&["users", "set", "u", "--limit", "free="]));
    let user: Value = serde_json::from_str(&ok(daemon.run(&["users", "show", "u", "--json"]))).unwrap();
    assert_eq!(user["user"]["overrides"], json!({ "pro": { "limit": 500, "burst": 600 } }));
    let unknown = daemon.run(&["users", "set", "u", "--tier", "gold"]);
    let sentence = "there is no such tier: `tidegate tiers list` shows them, `tidegate tiers set` makes one";
    assert!(unknown.code == 1 && unknown.err.contains(sentence), "{}", unknown.both());
    let held = |sentence: &str| {
        let ran = daemon.run(&["tiers", "remove", "pro"]);
        assert!(ran.code == 1 && ran.err.contains(sentence), "{}", ran.both());
    };
    held("\"pro\" is still the tier of user \"u\": give them another tier first");
    let made: Value =
        serde_json::from_str(&ok(daemon.run(&["keys", "create", "--tier", "pro", "--json"]))).unwrap();
    held(&format!("of user \"u\" and key {}: ", made["key"]["id"]));
    let found = |query: &str, list: &str| daemon.get(query).json()[list].as_array().unwrap().len();
    assert_eq!((found("/v1/users?search=U", "users"), found("/v1/users?search=zz", "users")), (1, 0));
    assert_eq!((found("/v1/keys?search=TGK", "keys"), found("/v1/keys?search=%25", "keys")), (1, 0));
    assert_eq!((found("/v1/keys?revoked=false", "keys"), found("/v1/keys?revoked=true", "keys")), (1, 0));
    server.sql(&database, "DELETE FROM api_keys; INSERT INTO users (id, tier) SELECT 'a' || n, 'pro' FROM generate_series(1, 3) AS n");
    held("of users \"a1\", \"a2\", \"a3\" and others: ");
    server.sql(&database, "DELETE FROM users WHERE id LIKE 'a_'");
    until("its own limit", || daemon.check_cost(&[("user", "u")], 0)["limit"] == 500);
    ok(daemon.run(&["users", "remove", "u"]));
    until("removed", || rule(&daemon, &[("user", "u")]) == "free");
    ok(daemon.run(&["tiers", "remove", "pro"]));
    assert_eq!(daemon.run(&["users", "set", "v", "--limit", "free"]).code, 2);
    // A row written by hand that makes no sense harms nobody.
    server.sql(
        &database,
        r#"INSERT INTO users (id, overrides) VALUES ('w', '{"free": "many", "pro": {"limit": 3}}')"#,
    );
    eventually("decided all the same", || (rule(&daemon, &[("user", "w")]) == "free").then_some(()));
}
