//! Who may change something: the user of the daemon, on a socket that only that user can open; nobody else
//! without a token.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use serde_json::json;

use super::support::daemon::{Daemon, Launch};
use super::support::{command, http};

const RULES: &str = "[[rules]]\nname = \"all\"\nper = [\"user\"]\nalgorithm = \"fixed_window\"\nlimit = 5\nwindow = \"24h\"\n";

/// As it is without configuration.
fn guarded(config: &str) -> Daemon {
    Daemon::launch(Launch { guarded: true, ..Launch::default() }, RULES, config, &[])
}

fn socket(daemon: &Daemon) -> PathBuf {
    daemon.folder().join("tidegate").join(format!("127.0.0.1-{}.sock", daemon.http.port()))
}

#[test]
fn the_command_line_of_the_same_user_changes_rules_without_being_told_anything() {
    let daemon = guarded("");
    std::fs::write(daemon.folder().join("new.toml"), RULES.replace("limit = 5", "limit = 9")).unwrap();
    let applied = daemon.run(&["rules", "apply", "new.toml"]);
    assert_eq!(applied.code, 0, "{applied:?}");
    assert_eq!(
        daemon.get("/v1/rules/all").json()["rule"]["limit"],
        9,
        "looking needs no token on this machine"
    );
    assert_eq!(daemon.run(&["explain", "user=ann"]).code, 0);
    let mode = std::fs::metadata(socket(&daemon)).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o600);
    let server = format!("unix:{}", socket(&daemon).display());
    let ran = command::run(daemon.folder(), &["users", "block", "mallory", "--server", &server]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert_eq!(daemon.check(&[("user", "mallory")])["allowed"], false);
}

#[test]
fn whoever_else_comes_from_this_machine_may_only_look_and_is_told_how_to_change() {
    let daemon = guarded("");
    // As a proxy on this machine asks: it says nothing of whom it asks for.
    let host = daemon.http.to_string();
    let change = |method: &str, path: &str, body: &str| {
        let headers = [("content-type", "application/json")];
        http::request(daemon.http, method, path, &headers, body.as_bytes())
    };
    let blocked = r#"{"action":"block","match":{"user":"*"}}"#;
    for (method, path, body) in [
        ("PUT", "/v1/rules/blocked", blocked),
        ("PUT", "/v1/rules", r#"{"rules":[]}"#),
        ("DELETE", "/v1/rules/all", ""),
        ("DELETE", "/v1/buckets?rule=all&user=ann", ""),
        ("POST", "/v1/users/ann/block", "{}"),
        ("POST", "/v1/keys", "{}"),
    ] {
        let refused = change(method, path, body);
        assert_eq!(refused.status, 403, "{method} {path} at {host}: {refused:?}");
        let message = refused.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(message.contains(socket(&daemon).to_str().unwrap()), "{message}");
        assert!(message.contains("--token"), "{message}");
    }
    assert_eq!(daemon.check(&[("user", "ann")])["allowed"], true);
    // From a folder where no socket is found, as another user would.
    let elsewhere = tempfile::TempDir::new().unwrap();
    let server = format!("http://{}", daemon.http);
    let list = command::run(elsewhere.path(), &["rules", "list", "--server", &server]);
    assert_eq!(list.code, 0, "{list:?}");
    let delete = command::run(elsewhere.path(), &["rules", "delete", "all", "--server", &server]);
    assert!(delete.code == 1 && delete.err.contains("may only look"), "{delete:?}");
}

#[test]
fn with_admin_local_this_machine_may_change_and_the_log_warns() {
    let daemon = guarded("[admin]\nlocal = true\n[listen]\nadmin = \"off\"\n");
    assert_eq!(http::request(daemon.http, "DELETE", "/v1/buckets?rule=all&user=ann", &[], b"").status, 200);
    assert!(daemon.log().contains("admin.local"), "{}", daemon.log());
    assert!(!socket(&daemon).exists());
}

#[test]
fn a_rule_is_shown_as_it_was_written_and_saved_with_nothing_beside_it() {
    let daemon = guarded("[admin]\nlocal = true\n[listen]\nadmin = \"off\"\n");
    let get = |path: &str| http::get(daemon.http, path, &[]);
    let shown = get("/v1/rules/all?written=true");
    let written =
        json!({ "name": "all", "per": ["user"], "algorithm": "fixed_window", "limit": 5, "window": "24h" });
    assert_eq!(shown.json()["rule"], written, "{shown:?}");
    assert_eq!(get("/v1/rules/all").json()["rule"]["priority"], 100, "else with every default");
    assert_eq!(get("/v1/rules/nothing?written=true").status, 404);
    for wrong in ["written=maybe", "colour=red"] {
        assert_eq!(get(&format!("/v1/rules/all?{wrong}")).status, 400, "{wrong}");
    }

    let (mut rule, revision) = (written, shown.json()["revision"].clone());
    rule["limit"] = json!(6);
    let put = |query: &str| {
        let body = json!({ "rule": rule, "revision": revision }).to_string();
        http::request(daemon.http, "PUT", &format!("/v1/rules/all?{query}"), &[], body.as_bytes()).json()
    };
    assert_eq!(put("dry_run=true")["changes"][0]["differences"], json!(["limit: 5 → 6"]));
    assert_eq!(put("reason=more")["changes"][0]["differences"], json!(["limit: 5 → 6"]));
    let text = std::fs::read_to_string(daemon.folder().join("rules.toml")).unwrap();
    assert_eq!(text, RULES.replace("limit = 5", "limit = 6"));
    let newest = get("/v1/rules/history").json()["history"][0].clone();
    assert_eq!((&newest["reason"], &newest["action"]), (&json!("more"), &json!("put")), "{newest}");
    assert_eq!(newest["changes"][0]["differences"], json!(["limit: 5 → 6"]), "{newest}");
}

#[test]
fn whoever_asks_is_told_its_name_and_role() {
    let me = |daemon: &Daemon, token: &str| {
        let bearer = format!("Bearer {token}");
        let headers = [("authorization", bearer.as_str())];
        http::get(daemon.http, "/v1/me", if token.is_empty() { &[][..] } else { &headers[..] })
    };
    assert_eq!(me(&guarded(""), "").json(), json!({ "name": "local", "role": "viewer" }));
    let folder = tempfile::TempDir::new().unwrap();
    let tokens = folder.path().join("tokens.toml").display().to_string();
    let token = |name: &str, role: &str| {
        let made =
            command::run(folder.path(), &["admin", "token", name, "--role", role, "--add-to", &tokens]);
        made.out.trim().to_owned()
    };
    let (looks, may) = (token("looks", "viewer"), token("may", "operator"));
    let daemon = guarded(&format!("[admin]\ntokens = {tokens:?}\nlocal = true\n"));
    assert_eq!(me(&daemon, "").json(), json!({ "name": "local", "role": "admin" }));
    assert_eq!(me(&daemon, &looks).json(), json!({ "name": "looks", "role": "viewer" }));
    assert_eq!(me(&daemon, &may).json(), json!({ "name": "may", "role": "operator" }));
    assert_eq!(me(&daemon, "guess").status, 401);
}

#[test]
fn wrong_tokens_are_logged_and_the_right_one_is_let_in_all_the_same() {
    let folder = tempfile::TempDir::new().unwrap();
    let tokens = folder.path().join("tokens.toml").display().to_string();
    let made = command::run(folder.path(), &["admin", "token", "ci", "--role", "admin", "--add-to", &tokens]);
    let right = format!("Bearer {}", made.out.trim());
    let daemon = guarded(&format!("[admin]\ntokens = {tokens:?}\n"));
    let status = |token: &str| http::get(daemon.http, "/v1/rules", &[("authorization", token)]).status;
    let guesses: Vec<u16> = (0..12).map(|_| status("Bearer guess")).collect();
    assert_eq!(guesses[..10], [401; 10]);
    assert_eq!(guesses[10..], [429; 2]);
    assert_eq!(status(&right), 200);
    let logged = daemon.log().lines().filter(|line| line.contains("wrong admin token")).count();
    assert!((1..=6).contains(&logged), "{}", daemon.log());
    let asked =
        command::run(folder.path(), &["rules", "list", "--server", &format!("http://{}", daemon.http)]);
    assert!(asked.code == 1 && asked.err.contains("--token or TIDEGATE_TOKEN"), "{asked:?}");
    assert_eq!(http::get(daemon.http, "/v1/rules", &[]).status, 401, "with tokens looking needs one, too");
    let explain = json!({ "attributes": { "user": "ann" } }).to_string();
    assert_eq!(http::post(daemon.http, "/v1/explain", &explain).status, 401);
    assert_eq!(http::post(daemon.http, "/v1/check", &explain).status, 200);
}

#[test]
fn pages_of_other_sites_cannot_have_a_browser_ask_and_curl_can() {
    let daemon = guarded("");
    let body = br#"{"attributes":{"user":"ann"},"cost":-1000000}"#;
    let form = ("content-type", "application/x-www-form-urlencoded");
    let ask = |path: &str, headers: &[(&str, &str)]| http::request(daemon.http, "POST", path, headers, body);
    assert_eq!(ask("/v1/check", &[form]).status, 200, "curl -d");
    assert_eq!(ask("/v1/check", &[]).status, 200);
    assert_eq!(ask("/v1/check", &[form, ("origin", "https://evil.example")]).status, 403);
    assert_eq!(ask("/v1/check", &[("origin", "https://evil.example")]).status, 403);
    assert_eq!(ask("/v1/check", &[form, ("sec-fetch-site", "cross-site")]).status, 403);
    let site = [("sec-fetch-site", "cross-site")];
    assert_eq!(http::get(daemon.http, "/v1/authorize?cost=-5", &site).status, 403);
    let gateway = [site[0], ("x-forwarded-uri", "/a"), ("origin", "https://shop.example")];
    assert_eq!(
        http::get(daemon.http, "/v1/authorize", &gateway).status,
        200,
        "gateways pass such headers on"
    );
    assert_eq!(http::get(daemon.http, "/v1/authorize?cost=1&cost=2", &[]).status, 400);
}

#[test]
fn giving_back_may_be_switched_off_for_http_clients() {
    let daemon = guarded("[listen]\nhttp_refunds = false\n");
    let status = |cost: i64| {
        daemon.post("/v1/check", &json!({ "attributes": { "user": "ann" }, "cost": cost })).status
    };
    assert_eq!((status(2), status(0), status(-1)), (200, 200, 403));
    let batch = json!({ "checks": [{ "attributes": { "user": "ann" } }, { "attributes": {}, "cost": -1 }] });
    assert_eq!(daemon.post("/v1/check", &batch).status, 403);
    assert_eq!(http::get(daemon.http, "/v1/authorize?cost=-1", &[]).status, 403);
    assert_eq!(
        daemon.check_cost(&[("user", "ann")], 0)["remaining"],
        3,
        "of a refused batch nothing is charged"
    );
}

/// How long each thread of a daemon has had a processor, by its id, in nanoseconds.
fn worked(daemon: &Daemon) -> std::collections::BTreeMap<String, u64> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", daemon.process.id())).unwrap();
    tasks
        .flatten()
        .filter_map(|task| {
            let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
            let nanos = text.split_whitespace().next()?.parse().ok()?;
            Some((task.file_name().into_string().ok()?, nanos))
        })
        .collect()
}

/// On the one thread that decides an explanation would stand before every decision. Who does the work is told
/// by the processor time of threads, which a busy machine does not change.
#[test]
fn explanations_are_made_beside_the_thread_that_decides() {
    let many: String = (0..3_000)
        .map(|n| format!("[[rules]]\nname = \"r{n:05}\"\nmatch = {{ path = \"*/p{n}\" }}\nalgorithm = \"fixed_window\"\nlimit = 5\nwindow = \"1m\"\n"))
        .collect();
    let launch = Launch { guarded: true, threads: Some(1), ..Launch::default() };
    let daemon = Daemon::launch(launch, &many, "", &[]);
    let body = json!({ "attributes": { "path": "/p2999" } });
    let during = |work: &dyn Fn()| {
        let before = worked(&daemon);
        work();
        let mut after = worked(&daemon);
        for (thread, nanos) in &mut after {
            *nanos -= before.get(thread).copied().unwrap_or_default();
        }
        after
    };
    let deciding = during(&|| {
        let client = daemon.rls();
        for _ in 0..2_000 {
            let ask = super::support::rls::request(vec![super::support::rls::descriptor(&[("path", "/a")])]);
            assert_eq!(client.ask(ask).unwrap().statuses.len(), 1);
        }
    });
    let (decides, _) = deciding.iter().max_by_key(|(_, nanos)| **nanos).unwrap();
    let explaining = during(&|| {
        for _ in 0..300 {
            assert_eq!(daemon.post("/v1/explain", &body).status, 200);
        }
    });
    let (own, all) = (explaining[decides], explaining.values().sum::<u64>());
    eprintln!(
        "300 explanations took {} ms, {} of them of the thread that decides",
        all / 1_000_000,
        own / 1_000_000
    );
    assert!(own < all / 2, "{own} of {all} ns: {explaining:?}");
    assert_eq!(daemon.check(&[("path", "/p2999")])["allowed"], true);
}

#[test]
fn an_explanation_lists_the_rules_that_match_and_not_every_one_of_very_many() {
    let many: String = (0..3_000)
        .map(|n| format!("[[rules]]\nname = \"r{n:05}\"\nmatch = {{ path = \"/p{n}\" }}\nalgorithm = \"fixed_window\"\nlimit = 5\nwindow = \"1m\"\n"))
        .collect();
    let daemon = Daemon::launch(Launch { guarded: true, ..Launch::default() }, &many, "", &[]);
    let reply = daemon.post("/v1/explain", &json!({ "attributes": { "path": "/p2999" } })).json();
    let considered = reply["considered"].as_array().unwrap();
    assert_eq!((considered.len(), &reply["left_out"]), (1_000, &json!(2_000)));
    let first = considered.first().unwrap();
    assert_eq!((&first["rule"], &first["outcome"]), (&json!("r02999"), &json!("decides")));
    let shown = daemon.run(&["explain", "path=/p2999"]).out;
    assert!(shown.contains("It matches and decides."), "{shown}");
    assert!(shown.contains("2999 other rules of the domain do not match (--all)."), "{shown}");
    assert!(shown.lines().count() < 15, "what decides is in sight: {} lines", shown.lines().count());
    let none = daemon.run(&["explain", "path=/nowhere"]).out;
    assert!(none.contains("No rule matches") && none.lines().count() < 25, "{none}");
    let all = daemon.run(&["explain", "path=/p2999", "--all"]).out;
    assert!(all.contains("2000 further rules"), "{}", all.lines().last().unwrap_or_default());
}
