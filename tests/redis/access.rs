//! Who may use Redis, over what, and which Redis is enough: TLS, ACL users, the files in `deploy/redis`,
//! versions.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use crate::redis_servers::{Server, free_port, until};
use crate::redis_store::{compiled, key, per_second, runtime, settings};
use crate::support::command;
use crate::support::daemon::Daemon;
use crate::support::process::Process;
use serde_json::json;
use tempfile::TempDir;
use tidegate::core::algorithm::Algorithm;
use tidegate::core::request::Cost;
use tidegate::engine::clock::Clock;
use tidegate::engine::port::{Charge, Intent, Store};
use tidegate::store::redis::{RedisStore, StartError, Topology};
use tidegate::telemetry::Metrics;

const RULES: &str = r#"
[[rules]]
name = "window"
per = ["user"]
algorithm = "sliding_window"
limit = 5
window = "24h"
[[rules]]
name = "log"
per = ["user"]
algorithm = "sliding_log"
limit = 5
window = "24h"
[[rules]]
name = "level"
per = ["user"]
algorithm = "gcra"
limit = 5
window = "24h"
"#;

fn start(topology: Topology, url: &str) -> Result<RedisStore, StartError> {
    let live = Arc::new(AtomicUsize::new(1));
    runtime().block_on(RedisStore::start(settings(topology, vec![url.to_owned()]), live, &Metrics::new()))
}

fn refused(url: &str) -> String {
    start(Topology::Single, url).map(|_| ()).expect_err("it is refused").to_string()
}

/// A private authority, which it returns, and a certificate for servers on loopback, as `ca.crt`,
/// `server.crt` and `server.key`.
fn certificates(dir: &Path) -> rcgen::Issuer<'static, rcgen::KeyPair> {
    let ca_key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::default();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    params.distinguished_name.push(rcgen::DnType::CommonName, "a test's authority");
    let ca = params.self_signed(&ca_key).unwrap();
    let issuer = rcgen::Issuer::new(params, ca_key);
    let key = rcgen::KeyPair::generate().unwrap();
    let names = vec!["127.0.0.1".to_owned(), "localhost".to_owned()];
    let server = rcgen::CertificateParams::new(names).unwrap().signed_by(&key, &issuer).unwrap();
    std::fs::write(dir.join("ca.crt"), ca.pem()).unwrap();
    std::fs::write(dir.join("server.crt"), server.pem()).unwrap();
    std::fs::write(dir.join("server.key"), key.serialize_pem()).unwrap();
    issuer
}

/// A client's certificate that ends in this year, in the files that its daemon reads.
fn client(issuer: &rcgen::Issuer<'_, rcgen::KeyPair>, year: i32, [cert, key]: [&Path; 2]) {
    let own = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(vec!["daemon".to_owned()]).unwrap();
    params.not_after = rcgen::date_time_ymd(year, 1, 1);
    std::fs::write(cert, params.signed_by(&own, issuer).unwrap().pem()).unwrap();
    std::fs::write(key, own.serialize_pem()).unwrap();
}

/// Six servers with the files of `deploy/redis`, only paths and ports changed, made a cluster by its `admin`.
struct Deployed {
    _servers: Vec<Process>,
    ports: Vec<u16>,
    /// Last, so that the servers are gone before their folders.
    dir: TempDir,
}

/// The users of `deploy/redis` with passwords of our own.
pub(super) fn users() -> String {
    let deployed = include_str!("../../deploy/redis/users.acl").to_owned();
    (1..=4).fold(deployed, |users, number| {
        users.replace(&format!("#SHA256-OF-PASSWORD-{number}"), &format!(">change-me-{number}"))
    })
}

#[test]
fn redis_does_not_start_before_somebody_chose_passwords() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("users.acl");
    std::fs::write(&file, include_str!("../../deploy/redis/users.acl")).unwrap();
    let ended = Command::new("redis-server")
        .args(["--port", "0", "--save", "", "--unixsocket"])
        .arg(dir.path().join("socket"))
        .arg("--dir")
        .arg(dir.path())
        .arg("--aclfile")
        .arg(&file)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ended.stdout).into_owned();
    assert!(!ended.status.success() && said.contains("ACL"), "{said}");
}

impl Deployed {
    fn start() -> Self {
        let dir = TempDir::new().unwrap();
        certificates(dir.path());
        std::fs::write(dir.path().join("users.acl"), users()).unwrap();
        let ports: Vec<u16> = (0..6).map(|_| free_port()).collect();
        let servers = ports.iter().map(|port| Self::server(dir.path(), *port)).collect();
        let cluster = Self { dir, ports, _servers: servers };
        for port in &cluster.ports {
            until("a server to answer", Duration::from_secs(10), || {
                cluster.cli(*port, &["PING"]).contains("PONG")
            });
        }
        let addresses: Vec<String> = cluster.ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        let mut words = vec!["--cluster", "create", "--cluster-replicas", "1", "--cluster-yes"];
        words.splice(2..2, addresses.iter().map(String::as_str));
        let made = cluster.cli(cluster.ports[0], &words);
        assert!(made.contains("16384 slots covered"), "{made}");
        until("all to agree", Duration::from_secs(20), || {
            cluster.ports.iter().all(|port| cluster.cli(*port, &["CLUSTER", "INFO"]).contains("state:ok"))
        });
        cluster
    }

    fn server(dir: &Path, port: u16) -> Process {
        let home = dir.join(port.to_string());
        std::fs::create_dir(&home).unwrap();
        let text = include_str!("../../deploy/redis/redis.conf")
            .replace("bind 0.0.0.0", "bind 127.0.0.1")
            .replace("masterauth PASSWORD-3", "masterauth change-me-3")
            .replace("tls-port 6379", &format!("tls-port {port}\ncluster-port {}", free_port()))
            .replace("/etc/redis/tls", &dir.display().to_string())
            .replace("/etc/redis/users.acl", &dir.join("users.acl").display().to_string())
            .replace("/var/lib/redis", &home.display().to_string());
        assert!(!text.contains("/etc/"), "every path is substituted");
        let file = home.join("redis.conf");
        std::fs::write(&file, text).unwrap();
        Process::start(Command::new("redis-server").arg(&file), &home.join("log"))
    }

    fn cli(&self, port: u16, words: &[&str]) -> String {
        let output = Command::new("redis-cli")
            .args(["-p", &port.to_string(), "--tls", "--cacert"])
            .arg(self.dir.path().join("ca.crt"))
            .args(["--user", "admin", "--pass", "change-me-1", "--no-auth-warning"])
            .args(words)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn config(&self, user: &str, ca: &Path) -> String {
        format!(
            "[store]\nbackend = \"redis\"\n[store.redis]\nnodes = [\"rediss://{user}@127.0.0.1:{}\"]\n\
             timeout = \"500ms\"\n[store.redis.tls]\nca = \"{}\"\n",
            self.ports[0],
            ca.display()
        )
    }
}

#[test]
fn a_daemon_works_on_the_deployed_configuration_with_tls_and_its_few_rights() {
    let cluster = Deployed::start();
    let ca = cluster.dir.path().join("ca.crt");
    let daemon = Daemon::with(RULES, &cluster.config("tidegate:change-me-2", &ca), &[]);
    for user in 0..20 {
        let user = format!("u{user}");
        let last = daemon.check_cost(&[("user", &user)], 3);
        assert_eq!((&last["allowed"], &last["degraded"]), (&json!(true), &json!(false)), "{last}");
        assert_eq!(daemon.check_cost(&[("user", &user)], 3)["allowed"], false);
        assert_eq!(daemon.check_cost(&[("user", &user)], -1)["degraded"], false);
    }
    let reset =
        crate::support::http::request(daemon.http, "DELETE", "/v1/buckets?rule=log&user=u1", &[], b"");
    assert_eq!(reset.json()["existed"], true, "{reset:?}");
    let regions = daemon.get("/v1/regions").json();
    assert_eq!(regions["store"]["state"], "ok", "{regions}");
    for port in &cluster.ports {
        let refused = cluster.cli(*port, &["ACL", "LOG"]);
        assert!(refused.trim().is_empty(), "a user was refused something: {refused}");
        until("replicas to follow with their own user", Duration::from_secs(30), || {
            !cluster.cli(*port, &["INFO", "replication"]).contains("master_link_status:down")
        });
    }

    // Who is not signed by that authority is not spoken to, and the daemon says so.
    let other = TempDir::new().unwrap();
    certificates(other.path());
    let config = cluster.config("tidegate:change-me-2", &other.path().join("ca.crt"));
    let wary = Daemon::with(RULES, &config, &[]);
    assert_eq!(wary.check(&[("user", "u1")])["degraded"], true);
    assert!(wary.log().to_lowercase().contains("certificate"), "{}", wary.log());
    let shown = wary.get("/v1/regions").json();
    assert_eq!(shown["store"]["state"], "down", "{shown}");
    assert!(shown["store"]["servers"].to_string().to_lowercase().contains("certificate"), "{shown}");

    // A wrong password is told at the start.
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.path().join("tidegate.toml"), cluster.config("tidegate:wrong", &ca)).unwrap();
    let ran = command::run(
        folder.path(),
        &["serve", "--config", "tidegate.toml", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"],
    );
    assert!(ran.code != 0 && ran.err.contains("refuses this user"), "{ran:?}");
    assert!(!ran.both().contains("wrong"), "the password is not repeated: {ran:?}");
}

#[test]
fn a_server_that_asks_who_it_is_gets_the_daemons_own_certificate() {
    let dir = TempDir::new().unwrap();
    certificates(dir.path());
    let file = |name: &str| dir.path().join(name).display().to_string();
    let port = free_port();
    let mut command = Command::new("redis-server");
    command.args(["--port", "0", "--tls-port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""]);
    command.args(["--tls-auth-clients", "yes", "--tls-ca-cert-file", &file("ca.crt")]);
    command.args(["--tls-cert-file", &file("server.crt"), "--tls-key-file", &file("server.key")]);
    let _server = Process::start(&mut command, &dir.path().join("log"));
    until("the server to listen", Duration::from_secs(10), || {
        std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
    });
    let config = |own: &str| {
        format!(
            "[store]\nbackend = \"redis\"\n[store.redis]\ntopology = \"single\"\ntimeout = \"500ms\"\n\
             nodes = [\"rediss://127.0.0.1:{port}\"]\n[store.redis.tls]\nca = \"{}\"\n{own}",
            file("ca.crt")
        )
    };
    let own = format!("cert = \"{}\"\nkey = \"{}\"\n", file("server.crt"), file("server.key"));
    let known = Daemon::with(RULES, &config(&own), &[]);
    let answer = known.check_cost(&[("user", "u1")], 1);
    assert_eq!((&answer["allowed"], &answer["degraded"]), (&json!(true), &json!(false)), "{answer}");

    let ends = known.metric("tidegate_certificate_expires_timestamp_seconds{certificate=\"redis\"}");
    assert!(ends > Some(1.7e9), "{ends:?}");

    let unknown = Daemon::with(RULES, &config(""), &[]);
    assert_eq!(unknown.check(&[("user", "u1")])["degraded"], true);
    assert_eq!(unknown.get("/v1/regions").json()["store"]["state"], "down");
}

#[test]
fn files_of_tls_that_are_replaced_are_used_by_a_daemon_that_runs() {
    let (dir, other) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let issuer = certificates(dir.path());
    let stranger = certificates(other.path());
    let file = |name: &str| dir.path().join(name).display().to_string();
    let port = free_port();
    let mut command = Command::new("redis-server");
    command.args(["--port", "0", "--tls-port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""]);
    command.args(["--tls-auth-clients", "yes", "--tls-ca-cert-file", &file("ca.crt")]);
    command.args(["--tls-cert-file", &file("server.crt"), "--tls-key-file", &file("server.key")]);
    let _server = Process::start(&mut command, &dir.path().join("log"));
    until("the server to listen", Duration::from_secs(10), || {
        std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
    });
    let trusted = dir.path().join("trusted.pem");
    std::fs::copy(other.path().join("ca.crt"), &trusted).unwrap();
    let [cert, key] = ["client.crt", "client.key"].map(|name| dir.path().join(name));
    client(&stranger, 2100, [&cert, &key]);
    let config = format!(
        "[store]\nbackend = \"redis\"\n[store.redis]\ntopology = \"single\"\ntimeout = \"500ms\"\n\
         nodes = [\"rediss://127.0.0.1:{port}\"]\n[store.redis.tls]\nca = {trusted:?}\ncert = {cert:?}\nkey = {key:?}\n"
    );
    let daemon = Daemon::with(RULES, &config, &[]);
    let ends = || daemon.metric("tidegate_certificate_expires_timestamp_seconds{certificate=\"redis\"}");
    until("its end to be told", Duration::from_secs(15), || ends() == Some(4_102_444_800.0));
    assert_eq!(daemon.check(&[("user", "u1")])["degraded"], true);
    until("the log to name the cause", Duration::from_secs(10), || {
        daemon.log().contains("invalid peer certificate")
    });
    std::fs::copy(dir.path().join("ca.crt"), &trusted).unwrap();
    let degraded = || daemon.check_cost(&[("user", "u1")], 0)["degraded"] == true;
    until("the new authority to be trusted", Duration::from_secs(15), || {
        daemon.log().contains("new connections to Redis use store.redis.tls as it is now")
    });
    assert!(degraded(), "Redis does not know who signed the daemon's certificate");
    client(&issuer, 2101, [&cert, &key]);
    until("the new certificate to be shown", Duration::from_secs(15), || !degraded());
    until("its end to be told", Duration::from_secs(15), || ends() == Some(4_133_980_800.0));
}

#[test]
fn a_user_who_lacks_a_right_is_refused_at_the_start_by_the_name_of_the_command() {
    let server = Server::start(&[]);
    let users = users();
    let few = users.lines().find(|line| line.starts_with("user tidegate"));
    let rights: Vec<&str> = few.expect("the user is there").split(' ').skip(3).collect();
    let set = |minus: &str| {
        let mut words = vec!["ACL", "SETUSER", "tidegate", "reset", "on"];
        words.extend(&rights);
        words.extend((!minus.is_empty()).then_some(minus));
        let made = server.command(&words).unwrap_or_default();
        assert!(made.contains("OK"), "{words:?}: {made}");
    };
    let url = format!("redis://tidegate:change-me-2@127.0.0.1:{}", server.port);
    set("");
    start(Topology::Single, &url).map(|_| ()).expect("with all of them it works");
    for command in [
        "info",
        "evalsha",
        "eval",
        "time",
        "get",
        "set",
        "pexpire",
        "del",
        "lindex",
        "llen",
        "lpush",
        "rpush",
        "rpop",
        "ltrim",
        "lrange",
        "lset",
        "hget",
        "hset",
        "hdel",
        "hexists",
        "hincrby",
        "hmget",
        "zadd",
        "zrem",
        "zcard",
        "zcount",
        "zscore",
        "zrange",
        "zremrangebyscore",
        "ping",
    ] {
        set(&format!("-{command}"));
        let told = start(Topology::Single, &url).err().map(|error| error.to_string().to_lowercase());
        let told = told.unwrap_or_else(|| panic!("without {command} it starts"));
        assert!(told.contains(command) && told.contains("refuses this user"), "without {command}: {told}");
    }
    set("");
    server.command(&["ACL", "SETUSER", "tidegate", "resetkeys", "~other:*"]);
    let told = refused(&url);
    assert!(told.contains("refuses this user") && told.contains("keys"), "{told}");
}

#[test]
fn wrong_passwords_users_and_schemes_are_told_without_repeating_them() {
    let server = Server::start(&["--requirepass", "right"]);
    for user in ["", ":no-good@", "nobody:no-good@"] {
        let told = refused(&format!("redis://{user}127.0.0.1:{}", server.port));
        assert!(told.contains("refuses this user") && !told.contains("no-good"), "{told}");
    }
    let told = refused("http://u:no-good@127.0.0.1:1");
    assert!(told.contains("http") && !told.contains("no-good"), "{told}");
    let store = start(Topology::Single, &format!("redis://:right@127.0.0.1:{}", server.port)).unwrap();
    let rule = compiled("r", Algorithm::Gcra, per_second(10), 0);
    let key = key(&rule, "u");
    let charge = Charge {
        rule: &rule,
        key: &key,
        limit: rule.limit,
        share: None,
        whole: &rule.limit,
        first: None,
        cost: Cost::Take(1),
        enforced: true,
    };
    let outcome = runtime().block_on(store.decide(&[charge], Intent::Charge, Clock::System.now()));
    assert!(!outcome.counted[0].degraded);
}

#[test]
fn a_plain_server_that_is_written_with_tls_is_told_so() {
    let server = Server::start(&[]);
    let url = format!("rediss://127.0.0.1:{}", server.port);
    let store =
        start(Topology::Single, &url).expect("a server that does not answer is no reason not to start");
    until("it to be told", Duration::from_secs(10), || {
        store.health().problems.iter().any(|problem| problem.contains("is written redis://, not rediss://"))
    });
}

/// Every command of the scripts, also over a slot map, as the user of `deploy/redis`.
fn counts_as_the_deployed_user(program: &str) {
    let dir = TempDir::new().unwrap();
    let users = dir.path().join("users.acl");
    std::fs::write(&users, self::users().replace("user default off", "")).unwrap();
    for topology in [Topology::Single, Topology::Cluster] {
        let clustered = if topology == Topology::Cluster { "yes" } else { "no" };
        let server = Server::start_program(
            program,
            &["--cluster-enabled", clustered, "--aclfile", &users.display().to_string()],
        );
        if topology == Topology::Cluster {
            let slots: Vec<String> = (0..16_384).map(|slot| slot.to_string()).collect();
            let mut words = vec!["CLUSTER", "ADDSLOTS"];
            words.extend(slots.iter().map(String::as_str));
            assert!(server.command(&words).is_some_and(|answer| answer.contains("OK")));
            until("the cluster to be well", Duration::from_secs(10), || {
                server.command(&["CLUSTER", "INFO"]).is_some_and(|info| info.contains("state:ok"))
            });
        }
        let url = format!("redis://tidegate:change-me-2@127.0.0.1:{}", server.port);
        let store = start(topology, &url).unwrap();
        for (index, algorithm) in
            (1..).zip([Algorithm::SlidingWindow, Algorithm::SlidingLog, Algorithm::Gcra])
        {
            let rule = compiled(&format!("r{index}"), algorithm, per_second(3), index * 8);
            // One instant: in the next window there is room again.
            let now = Clock::System.now();
            let admitted = (0..9).filter(|_| {
                let key = key(&rule, "u");
                let charge = Charge {
                    rule: &rule,
                    key: &key,
                    limit: rule.limit,
                    share: None,
                    whole: &rule.limit,
                    first: None,
                    cost: Cost::Take(1),
                    enforced: true,
                };
                let outcome = runtime().block_on(store.decide(&[charge], Intent::Charge, now));
                assert!(!outcome.counted[0].degraded, "{algorithm:?} on {program}");
                outcome.admitted
            });
            assert_eq!(admitted.count(), 3, "{algorithm:?} on {program}");
        }
        let refused = server.command(&["ACL", "LOG"]).unwrap_or_default();
        assert!(refused.starts_with("*0"), "{program} refused something: {refused}");
    }
}

#[test]
fn the_deployed_user_can_count_on_every_version_that_is_supported() {
    counts_as_the_deployed_user("redis-server");
    for program in [crate::redis_servers::OLDEST, crate::redis_servers::VALKEY] {
        if let Some(program) = crate::redis_servers::other_program(program) {
            counts_as_the_deployed_user(&program);
        }
    }
}

/// A server that says it is an old one, and knows nothing else.
#[test]
fn a_server_that_is_too_old_is_refused_at_the_start() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        use std::io::{Read, Write};
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            std::thread::spawn(move || {
                let mut asked = [0; 4_096];
                while let Ok(length) = stream.read(&mut asked) {
                    let text = String::from_utf8_lossy(&asked[..length]).to_uppercase();
                    let info = "redis_version:5.0.14\r\nredis_mode:standalone\r\n";
                    let answer = match text.as_str() {
                        "" => return,
                        ping if ping.contains("PING") => "+PONG\r\n".to_owned(),
                        info_ if info_.contains("INFO") => format!("${}\r\n{info}\r\n", info.len()),
                        _ => "-ERR unknown command\r\n".to_owned(),
                    };
                    let _ = stream.write_all(answer.as_bytes());
                }
            });
        }
    });
    let told = refused(&format!("redis://{address}"));
    assert!(told.contains("5.0.14") && told.contains("6.2"), "{told}");
}
