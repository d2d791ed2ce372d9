//! Who is let in to the admin routes.

use std::net::SocketAddr;

use super::support::daemon::{Daemon, Launch};
use super::support::{command, eventually, http};

fn status(at: SocketAddr, method: &str, path: &str, headers: &[(&str, &str)]) -> u16 {
    http::request(at, method, path, headers, b"").status
}

#[test]
fn without_tokens_this_machine_is_let_in_and_a_proxy_is_not() {
    let daemon = Daemon::with_rules("");
    assert_eq!(status(daemon.http, "GET", "/v1/rules", &[]), 200);
    let through_a_proxy = http::get(daemon.http, "/v1/rules", &[("x-forwarded-for", "127.0.0.1")]);
    assert_eq!(through_a_proxy.status, 403);
    assert!(through_a_proxy.body.contains("admin.tokens"), "{through_a_proxy:?}");
    assert_eq!(status(daemon.http, "GET", "/v1/regions", &[("origin", "https://evil.example")]), 403);
    // Gateways ask through proxies, and are answered.
    assert_eq!(status(daemon.http, "GET", "/v1/authorize", &[("x-forwarded-for", "192.0.2.1")]), 200);
    assert_eq!(status(daemon.http, "GET", "/healthz", &[("x-forwarded-for", "192.0.2.1")]), 200);
}

#[test]
fn with_tokens_a_route_opens_to_its_role_and_the_file_may_change() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = folder.path().join("tokens.toml");
    let path = tokens.display().to_string();
    let make = |name: &str, role: &str| {
        let ran = command::run(folder.path(), &["admin", "token", name, "--role", role, "--add-to", &path]);
        assert_eq!(ran.code, 0, "{ran:?}");
        ran.out.trim().to_owned()
    };
    let viewer = make("looks", "viewer");
    assert!(!std::fs::read_to_string(&tokens).unwrap().contains(&viewer));
    let launch = Launch { guarded: true, ..Launch::default() };
    let daemon = Daemon::launch(launch, "", &format!("[admin]\ntokens = {path:?}\n"), &[]);
    let bearer = |token: &str| format!("Bearer {token}");
    let refused = http::get(daemon.http, "/v1/rules", &[]);
    assert_eq!((refused.status, refused.header("www-authenticate")), (401, Some("Bearer")));
    assert_eq!(status(daemon.http, "GET", "/v1/rules", &[("authorization", &bearer(&viewer))]), 200);
    assert_eq!(daemon.run(&["rules", "list", "--token", &viewer]).code, 0);
    let server = format!("http://{}", daemon.http);
    assert_eq!(command::run(folder.path(), &["rules", "list", "--server", &server]).code, 1);
    assert_eq!(daemon.run(&["rules", "list"]).code, 0, "the daemon's own user has the admin socket");

    let second = make("second", "admin");
    // Not by trying: a token that is not known yet is a guess.
    eventually("the new token is known", || daemon.log().contains("tokens=2").then_some(()));
    assert_eq!(status(daemon.http, "GET", "/v1/rules", &[("authorization", &bearer(&second))]), 200);
    // A broken file takes nothing away.
    std::fs::write(&tokens, "[[tokens]]").unwrap();
    eventually("the broken file was noticed", || daemon.log().contains("were refused").then_some(()));
    assert_eq!(status(daemon.http, "GET", "/v1/rules", &[("authorization", &bearer(&viewer))]), 200);

    for _ in 0..10 {
        status(daemon.http, "GET", "/v1/rules", &[("authorization", "Bearer guess")]);
    }
    assert_eq!(status(daemon.http, "GET", "/v1/rules", &[("authorization", &bearer(&viewer))]), 200);
    let limited = http::get(daemon.http, "/v1/rules", &[("authorization", "Bearer guess")]);
    assert_eq!((limited.status, limited.header("retry-after")), (429, Some("60")));
    assert_eq!(daemon.metric("tidegate_admin_refused_total{reason=\"guessing\"}"), Some(1.0));
}

#[test]
fn removing_the_file_takes_every_token_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokens.toml").display().to_string();
    let ran = command::run(folder.path(), &["admin", "token", "last", "--role", "admin", "--add-to", &path]);
    let bearer = format!("Bearer {}", ran.out.trim());
    let daemon = Daemon::with("", &format!("[admin]\ntokens = {path:?}\n"), &[]);
    let asked = || status(daemon.http, "GET", "/v1/rules", &[("authorization", &bearer)]);
    assert_eq!(asked(), 200);
    std::fs::remove_file(&path).unwrap();
    eventually("that is said", || daemon.log().contains("the admin tokens are gone").then_some(()));
    assert_eq!(asked(), 401);
}
