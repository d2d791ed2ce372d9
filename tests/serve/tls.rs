//! TLS on the HTTP listener, as curl and the command line see it: HTTP/2 by ALPN, certificates of clients,
//! certificates that are exchanged and revoked while the daemon runs.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tempfile::TempDir;
use tidegate_client::{Tidegate, WhenAway};

use crate::support::command::{self, Ran};
use crate::support::process::Process;
use crate::support::web_authority::{WebAuthority, WebCertificate};
use crate::support::{eventually, free_tcp};

const RULES: &str =
    "[[rules]]\nname = \"all\"\nalgorithm = \"fixed_window\"\nlimit = 1000\nwindow = \"1h\"\n";

/// A daemon that speaks TLS, and the files of both sides.
pub(super) struct Secured {
    folder: TempDir,
    pub(super) http: SocketAddr,
    authority: WebAuthority,
    process: Process,
}

impl Secured {
    /// Serial numbers: 1 is the daemon's, 2 the client's.
    fn start() -> Self {
        Self::with(RULES, "")
    }

    /// One with these rules, and this at the end of its `tidegate.toml`.
    pub(super) fn with(rules: &str, config: &str) -> Self {
        let (folder, http, authority) = (TempDir::new().unwrap(), free_tcp(), WebAuthority::new());
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        let both = |name: &str, made: &WebCertificate| {
            write(&format!("{name}.pem"), &made.cert);
            write(&format!("{name}.key"), &made.key);
        };
        write("ca.pem", &authority.pem);
        both("server", &authority.issue(1));
        both("client", &authority.issue(2));
        write("revoked.pem", &authority.revoke(3));
        write("rules.toml", rules);
        let config = format!(
            "[listen]\nhttp = \"{http}\"\ngrpc = \"{}\"\n[listen.http_tls]\ncert = \"server.pem\"\nkey = \"server.key\"\n\
             clients = \"ca.pem\"\nrevoked = \"revoked.pem\"\n{config}",
            free_tcp()
        );
        write("tidegate.toml", &config);
        let mut daemon = command::command(folder.path());
        daemon.args(["serve", "--config", "tidegate.toml"]).env("TIDEGATE_LISTEN__DRAIN", "0s");
        let process = Process::start(&mut daemon, &folder.path().join("daemon.log"));
        let secured = Self { folder, http, authority, process };
        eventually("the daemon answers over TLS", || secured.curl(&["--http2"], "/readyz"));
        secured
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.path().join("daemon.log")).unwrap_or_default()
    }

    /// Status and version of HTTP; `None`: the handshake failed.
    pub(super) fn curl(&self, how: &[&str], route: &str) -> Option<String> {
        self.curl_as(Some("client"), how, route)
    }

    fn curl_as(&self, client: Option<&str>, how: &[&str], route: &str) -> Option<String> {
        let mut curl = Command::new("curl");
        curl.current_dir(self.path()).args(["--silent", "--cacert", "ca.pem", "--output", "body"]);
        curl.args(["--max-time", "20", "--write-out", "%{http_code} %{http_version}"]).args(how);
        if let Some(client) = client {
            curl.args(["--cert", &format!("{client}.pem"), "--key", &format!("{client}.key")]);
        }
        let url = format!("https://localhost:{}{route}", self.http.port());
        let ran = curl.arg(url).output().expect("curl is installed");
        ran.status.success().then(|| String::from_utf8(ran.stdout).unwrap())
    }

    /// The answer to `GET`.
    pub(super) fn json(&self, route: &str) -> serde_json::Value {
        self.curl(&["--http1.1"], route).expect("the daemon answers");
        serde_json::from_slice(&std::fs::read(self.path().join("body")).unwrap()).unwrap()
    }

    /// The settings of a client with a certificate.
    pub(super) fn client(&self) -> rustls::ClientConfig {
        let read = |name: &str| std::fs::read(self.path().join(name)).unwrap();
        let chain =
            |name: &str| CertificateDer::pem_slice_iter(&read(name)).map(Result::unwrap).collect::<Vec<_>>();
        let mut roots = rustls::RootCertStore::empty();
        roots.add(chain("ca.pem").remove(0)).unwrap();
        let key = PrivateKeyDer::from_pem_slice(&read("client.key")).unwrap();
        rustls::ClientConfig::builder_with_provider(rustls::crypto::ring::default_provider().into())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_client_auth_cert(chain("client.pem"), key)
            .unwrap()
    }

    fn metric(&self, line: &str) -> Option<f64> {
        self.curl(&["--http1.1"], "/metrics")?;
        let body = std::fs::read_to_string(self.path().join("body")).unwrap();
        let found = body.lines().find_map(|text| text.strip_prefix(line))?;
        found.trim().parse().ok()
    }

    fn check(&self, more: &[&str]) -> Ran {
        let server = format!("https://localhost:{}", self.http.port());
        command::run(self.path(), &[&["check", "--server", &server, "path=/x"], more].concat())
    }
}

const EVENTS: &str = "tidegate_events_total{kind=\"certificate\"}";
const ENDS: &str = "tidegate_certificate_expires_timestamp_seconds{certificate=\"http\"}";

#[test]
fn the_client_for_rust_connects_over_tls_by_a_connector_of_ones_own() {
    let secured = Secured::start();
    let connector = hyper_rustls::HttpsConnectorBuilder::new()
        .with_tls_config(secured.client())
        .https_only()
        .enable_http1()
        .build();
    let client = Tidegate::builder(format!("https://localhost:{}", secured.http.port()))
        .connector(connector)
        .timeout(Duration::from_secs(10))
        .when_away(WhenAway::Fail);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let answer = runtime.block_on(async { client.build().unwrap().check([("path", "/x")]).await }).unwrap();
    assert_eq!(answer.remaining, Some(999));
}

#[test]
fn a_client_gets_http2_or_http1_over_tls_and_shows_its_certificate() {
    let secured = Secured::start();
    let body = ["--request", "POST", "--data", "{\"attributes\":{\"path\":\"/x\"}}"];
    let json = ["--header", "content-type: application/json"];
    assert_eq!(
        secured.curl(&[&["--http2"], &body[..], &json[..]].concat(), "/v1/check").as_deref(),
        Some("200 2")
    );
    let answer = std::fs::read_to_string(secured.path().join("body")).unwrap();
    assert!(answer.contains("\"remaining\":999"), "{answer}");
    assert_eq!(
        secured.curl(&[&["--http1.1"], &body[..], &json[..]].concat(), "/v1/check").as_deref(),
        Some("200 1.1")
    );
    // A body longer than one frame of HTTP/2, and more requests than one on a connection.
    let long = format!("{{\"attributes\":{{\"path\":\"/{}\"}}}}", "x".repeat(100_000));
    std::fs::write(secured.path().join("long.json"), long).unwrap();
    let sent = secured.curl(
        &[
            "--http2",
            "--request",
            "POST",
            "--data",
            "@long.json",
            "--header",
            "content-type: application/json",
        ],
        "/v1/check",
    );
    assert!(sent.as_deref().is_some_and(|sent| sent.ends_with(" 2")), "{sent:?}");
    assert_eq!(secured.curl(&["--http2"], "/v1/nothing").as_deref(), Some("404 2"));

    let failed = secured.metric("tidegate_tls_handshakes_failed_total{listener=\"http\"}").unwrap();
    assert_eq!(secured.curl_as(None, &["--http2"], "/readyz"), None);
    eventually("a client without a certificate is counted", || {
        secured
            .metric("tidegate_tls_handshakes_failed_total{listener=\"http\"}")
            .filter(|after| *after > failed)
    });
    eventually("the log names the client and the reason", || {
        secured.log().contains("a TLS handshake failed").then_some(())
    });
    let ends = secured.metric(ENDS);
    assert!(ends.is_some_and(|ends| ends > 1.7e9), "{ends:?}");
}

#[test]
fn commands_speak_https_and_say_what_they_do_not_trust() {
    let secured = Secured::start();
    let shown = ["--tls-ca", "ca.pem", "--tls-cert", "client.pem", "--tls-key", "client.key"];
    let ran = secured.check(&shown);
    assert_eq!(ran.code, 0, "{ran:?}");
    let ran = secured.check(&["--tls-cert", "client.pem", "--tls-key", "client.key"]);
    assert_eq!(ran.code, 3, "{ran:?}");
    assert!(ran.err.contains("--tls-ca"), "{ran:?}");
    let ran = secured.check(&["--tls-ca", "nothing.pem"]);
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(ran.err.contains("--tls-ca: nothing.pem cannot be read"), "{ran:?}");
    let ran = secured.check(&["--tls-ca", "rules.toml"]);
    assert!(ran.err.contains("--tls-ca: rules.toml holds no certificate in PEM"), "{ran:?}");
}

#[test]
fn a_client_is_let_in_by_the_name_of_its_certificate() {
    let secured = Secured::with(RULES, "names = [\"gateway.shop.example\", \"localhost\"]\n");
    let issued = |file: &str, name: &str, serial: u64| {
        let made = secured.authority.issue_for(&[name], serial);
        std::fs::write(secured.path().join(format!("{file}.pem")), &made.cert).unwrap();
        std::fs::write(secured.path().join(format!("{file}.key")), &made.key).unwrap();
    };
    issued("gateway", "gateway.shop.example", 10);
    issued("other", "other.example", 11);
    issued("wild", "*.shop.example", 12);
    let get = |client: &str| secured.curl_as(Some(client), &["--http2"], "/readyz");
    let let_in = || {
        assert_eq!(get("client").as_deref(), Some("200 2"), "the certificate of localhost");
        assert_eq!(get("gateway").as_deref(), Some("200 2"));
        assert_eq!(get("wild").as_deref(), Some("200 2"), "it is one of gateway.shop.example too");
        assert_eq!(get("other"), None, "its authority signed it, and its name is another");
        assert_eq!(secured.curl_as(None, &["--http2"], "/readyz"), None);
    };
    let_in();
    let taken = || secured.log().matches("uses its certificate as it is now").count();
    let before = taken();
    secured.process.signal("HUP");
    eventually("the daemon has read its files again", || (taken() > before).then_some(()));
    let_in();
}

#[test]
fn certificates_are_exchanged_and_revoked_while_the_daemon_runs() {
    let secured = Secured::start();
    let write = |name: &str, text: &str| std::fs::write(secured.path().join(name), text).unwrap();
    // What cannot be used leaves what is in force.
    write("server.pem", "nothing");
    eventually("the daemon has refused the file", || {
        secured.log().contains("was not replaced").then_some(())
    });
    assert_eq!(secured.curl(&["--http2"], "/readyz").as_deref(), Some("200 2"));
    // A certificate whose key is missing shows no end: the one before is in force.
    let ends = secured.metric(ENDS).unwrap();
    let soon = secured.authority.issue_until(6, SystemTime::now() + Duration::from_secs(24 * 3_600));
    let refusals = || secured.log().matches("was not replaced").count();
    let before = refusals();
    write("server.pem", &soon.cert);
    eventually("the daemon has refused the certificate", || (refusals() > before).then_some(()));
    assert_eq!(secured.metric(ENDS), Some(ends));
    assert!(!secured.log().contains("ends soon"));
    // With its key it is in force, and its end is told.
    write("server.key", &soon.key);
    eventually("the daemon says that its certificate ends soon", || {
        secured.log().contains("the certificate of listen.http ends soon").then_some(())
    });
    eventually("/readyz says so too", || {
        secured.curl(&["--http2"], "/readyz")?;
        let body = std::fs::read_to_string(secured.path().join("body")).unwrap();
        body.contains("the certificate of listen.http ends on").then_some(())
    });
    assert!(secured.metric(ENDS).is_some_and(|now| now < ends), "{ends}");
    eventually("it is an event", || (secured.metric(EVENTS)? >= 1.0).then_some(()));
    // Read again it is the same certificate, and told no more.
    let taken = || secured.log().matches("uses its certificate as it is now").count();
    let before = taken();
    secured.process.signal("HUP");
    eventually("the daemon has read its files again", || (taken() > before).then_some(()));
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(secured.metric(EVENTS), Some(1.0), "{}", secured.log());
    assert_eq!(secured.log().matches("the certificate of listen.http ends soon").count(), 1);
    let sooner = secured.authority.issue_until(8, SystemTime::now() + Duration::from_secs(12 * 3_600));
    write("server.pem", &sooner.cert);
    write("server.key", &sooner.key);
    eventually("another one is told", || (secured.metric(EVENTS)? >= 2.0).then_some(()));
    // Another authority's certificate is in force within seconds.
    let other = WebAuthority::new();
    let made = other.issue(7);
    write("server.pem", &made.cert);
    write("server.key", &made.key);
    eventually("the daemon shows its new certificate", || {
        secured.curl(&["--http2"], "/readyz").is_none().then_some(())
    });
    write("ca.pem", &format!("{}{}", secured.authority.pem, other.pem));
    eventually("clients that know the new authority are served", || secured.curl(&["--http2"], "/readyz"));
    // A client whose certificate is revoked is let in no more.
    write("revoked.pem", &secured.authority.revoke(2));
    eventually("the revoked certificate is refused", || {
        secured.curl(&["--http2"], "/readyz").is_none().then_some(())
    });
    let next = secured.authority.issue(4);
    write("next.pem", &next.cert);
    write("next.key", &next.key);
    assert_eq!(secured.curl_as(Some("next"), &["--http2"], "/readyz").as_deref(), Some("200 2"));
}
