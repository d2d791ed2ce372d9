//! The Redis protocol, asked by redis-rs: one connection at a time, many tasks on one connection, pipelines,
//! scripts, its own form of `INCREX`, passwords, TLS and Unix sockets; in both versions of the protocol.

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncCommands as _, Client, ErrorKind, Expiry, IncrexOptions, IncrexResult, RedisResult, Script,
    TlsCertificates, Value, cmd, pipe,
};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use super::support::daemon::Daemon;
use super::support::free_tcp;
use super::support::web_authority::WebAuthority;

const RULES: &str =
    "[[rules]]\nname = \"a\"\nper = [\"user\"]\nalgorithm = \"fixed_window\"\nlimit = 3\nwindow = \"1d\"\n";
const SCRIPT: &str = "return redis.call('cl.throttle',KEYS[1],ARGV[1],ARGV[2],ARGV[3],ARGV[4])";

/// Limited, limit, left, seconds until it passes, seconds until all is left.
type Throttled = [i64; 5];
/// Allowed, limit, left, milliseconds until it passes and until the reset, held back, store away, rule.
type Decided = (i64, Option<i64>, Option<i64>, i64, Option<i64>, i64, i64, Option<String>);
/// The same, with a reservation and the milliseconds until it lapses.
type Reserved = (i64, i64, i64, i64, i64, i64, i64, String, String, i64);

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// A daemon and a client for each version of the protocol.
fn started() -> (Daemon, [(&'static str, Client); 2]) {
    let resp = free_tcp();
    let daemon = Daemon::with(RULES, &format!("[listen]\nresp = \"{resp}\"\n"), &[]);
    let client = |version| Client::open(format!("redis://{resp}/?protocol={version}")).unwrap();
    (daemon, ["resp2", "resp3"].map(|version| (version, client(version))))
}

async fn throttle(connection: &mut MultiplexedConnection, key: &str, numbers: &[i64]) -> Throttled {
    cmd("CL.THROTTLE").arg(key).arg(numbers).query_async(connection).await.unwrap()
}

async fn check(connection: &mut MultiplexedConnection, cost: i64, user: &str) -> Decided {
    cmd("TG.CHECK").arg("default").arg(cost).arg("user").arg(user).query_async(connection).await.unwrap()
}

#[test]
fn limits_that_the_caller_brings_are_counted_by_every_way_of_asking() {
    let (_daemon, clients) = started();
    for (version, client) in clients {
        let key = |name: &str| format!("{name}-{version}");
        let mut plain = client.get_connection().unwrap();
        let told: Throttled = cmd("CL.THROTTLE").arg(key("k")).arg(&[15, 30, 60]).query(&mut plain).unwrap();
        assert_eq!(told, [0, 16, 15, -1, 2], "{version}");
        let pong: String = cmd("PING").query(&mut plain).unwrap();
        assert_eq!(pong, "PONG");
        runtime().block_on(async {
            let mut connection = client.get_multiplexed_async_connection().await.unwrap();
            let told = throttle(&mut connection, &key("k"), &[15, 30, 60, 5]).await;
            assert_eq!(told[..3], [0, 16, 10], "{version}: the same key");
            // Many tasks on one connection: their calls arrive together, and each has its own answer.
            let tasks = (0..50).map(|_| {
                let (mut connection, key) = (connection.clone(), key("many"));
                async move { throttle(&mut connection, &key, &[9, 1, 3_600]).await[0] }
            });
            let limited: i64 = futures_util::future::join_all(tasks).await.into_iter().sum();
            assert_eq!(limited, 40, "{version}");
            // A pipeline without MULTI; one wrong call leaves the others.
            let mut calls = pipe();
            for _ in 0..100 {
                calls.cmd("CL.THROTTLE").arg(key("piped")).arg(&[49, 1, 3_600]);
            }
            let told: Vec<Throttled> = calls.query_async(&mut connection).await.unwrap();
            assert_eq!(told.iter().map(|one| one[0]).sum::<i64>(), 50, "{version}");
            let mut calls = pipe();
            calls.ignore_errors();
            for period in ["60", "soon", "60"] {
                calls.cmd("CL.THROTTLE").arg(key("wrong")).arg(&["0", "1", period]);
            }
            let told: Vec<RedisResult<Throttled>> = calls.query_async(&mut connection).await.unwrap();
            let first: Vec<_> = told.iter().map(|one| one.as_ref().ok().map(|one| one[0])).collect();
            assert_eq!(first, [Some(0), None, Some(1)], "{version}");
            let wrong = told[1].as_ref().unwrap_err().to_string();
            assert!(wrong.contains("Couldn't parse as integer: soon"), "{version}: {wrong}");
            // By its sum first, then as a whole.
            let told: Throttled = Script::new(SCRIPT)
                .key(key("script"))
                .arg(&[15, 30, 60, 1])
                .invoke_async(&mut connection)
                .await
                .unwrap();
            assert_eq!(told, [0, 16, 15, -1, 2], "{version}");
            let deleted: i64 = connection.del(key("piped")).await.unwrap();
            assert_eq!(deleted, 1, "{version}");
            let refused: RedisResult<Value> = pipe().atomic().cmd("PING").query_async(&mut connection).await;
            assert!(refused.is_err(), "{version}: there are no transactions");
        });
    }
}

#[test]
fn increx_is_its_own_call_and_answers_whole_numbers_and_fractions() {
    let (_daemon, clients) = started();
    for (version, client) in clients {
        runtime().block_on(async {
            let mut connection = client.get_multiplexed_async_connection().await.unwrap();
            let (key, other) = (format!("count-{version}"), format!("part-{version}"));
            let window = || IncrexOptions::default().upper_bound(2).with_expiration(Expiry::EX(60)).enx();
            for expected in [(1, 1), (2, 1), (2, 0)] {
                let told: IncrexResult = connection.increx(&key, 1, window()).await.unwrap();
                assert_eq!(told.as_i64().unwrap(), expected, "{version}");
            }
            let left: i64 = connection.ttl(&key).await.unwrap();
            assert!((40..=60).contains(&left), "{version}: {left}");
            let parts = IncrexOptions::default().upper_bound(1.0).saturate();
            let told: IncrexResult = connection.increx(&other, 0.75, parts).await.unwrap();
            assert_eq!(told.as_f64().unwrap(), (0.75, 0.75), "{version}");
            let parts = IncrexOptions::default().upper_bound(1.0).saturate();
            let told: IncrexResult = connection.increx(&other, 0.75, parts).await.unwrap();
            assert_eq!(told.as_f64().unwrap(), (1.0, 0.25), "{version}");
        });
    }
}

#[test]
fn decisions_and_reservations_are_those_of_the_rules() {
    let (daemon, clients) = started();
    for (version, client) in clients {
        runtime().block_on(async {
            let mut connection = client.get_multiplexed_async_connection().await.unwrap();
            let user = format!("u-{version}");
            let first = check(&mut connection, 1, &user).await;
            assert_eq!((first.0, first.1, first.2, &*first.7.unwrap()), (1, Some(3), Some(2), "a"));
            assert_eq!(daemon.check(&[("user", &user)])["remaining"], 1, "the same bucket as over HTTP");
            for _ in 0..2 {
                let mut report = cmd("TG.REPORT");
                report.arg("default").arg(1).arg(format!("once-{version}")).arg("user").arg(&user);
                let told: Decided = report.query_async(&mut connection).await.unwrap();
                assert_eq!((told.0, told.2), (1, Some(0)), "{version}: charged once");
            }
            let denied = check(&mut connection, 1, &user).await;
            assert!(denied.0 == 0 && denied.3 > 0, "{version}: {denied:?}");
            let unlimited: Decided = cmd("TG.CHECK")
                .arg(&["default", "1", "who", "x"])
                .query_async(&mut connection)
                .await
                .unwrap();
            assert_eq!((unlimited.0, unlimited.1, unlimited.7), (1, None, None), "{version}");
            let other = format!("r-{version}");
            let mut reserve = cmd("TG.RESERVE");
            reserve.arg(&["default", "3", "30s", "", "user", &other]);
            let held: Reserved = reserve.query_async(&mut connection).await.unwrap();
            assert_eq!((held.0, held.2), (1, 0), "{version}");
            assert_eq!(check(&mut connection, 1, &other).await.0, 0, "{version}: all of it is reserved");
            let settled: (i64, i64, i64) =
                cmd("TG.COMMIT").arg(&held.8).arg(1).query_async(&mut connection).await.unwrap();
            assert_eq!(settled, (1, 0, 0), "{version}");
            let settled: (i64, i64, i64) =
                cmd("TG.CANCEL").arg(&held.8).query_async(&mut connection).await.unwrap();
            assert_eq!(settled, (0, 0, 0), "{version}: once");
            assert_eq!(check(&mut connection, 2, &other).await.0, 1, "{version}: two came back");
            // Checks of many users in one read, each answered in its place.
            let mut calls = pipe();
            for number in 0..64 {
                calls.cmd("TG.CHECK").arg(&["default", "2", "user", &format!("p{}-{version}", number / 2)]);
            }
            let told: Vec<Decided> = calls.query_async(&mut connection).await.unwrap();
            let allowed: Vec<i64> = told.iter().map(|one| one.0).collect();
            assert_eq!(allowed, [1, 0].repeat(32), "{version}: the second of each finds one left");
        });
    }
}

#[test]
fn who_shows_no_password_or_a_wrong_one_is_told_so() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("passwords");
    std::fs::write(&file, "first\nsecond\n").unwrap();
    let resp = free_tcp();
    let config = format!("[listen]\nresp = \"{resp}\"\nresp_passwords = \"{}\"\n", file.display());
    let _daemon = Daemon::with(RULES, &config, &[]);
    for version in ["resp2", "resp3"] {
        let open = |shown: &str| Client::open(format!("redis://{shown}{resp}/?protocol={version}")).unwrap();
        runtime().block_on(async {
            for shown in [":first@", "anybody:second@"] {
                let mut connection = open(shown).get_multiplexed_async_connection().await.unwrap();
                assert_eq!(throttle(&mut connection, shown, &[1, 1, 60]).await[..2], [0, 2], "{version}");
            }
            let refused = open(":wrong@").get_multiplexed_async_connection().await.err().unwrap();
            let is_told =
                refused.kind() == ErrorKind::AuthenticationFailed || refused.code() == Some("WRONGPASS");
            assert!(is_told, "{version}: {refused}");
            let asked = match open("").get_multiplexed_async_connection().await {
                Ok(mut connection) => cmd("PING").query_async::<Value>(&mut connection).await,
                Err(refused) => Err(refused),
            };
            let told = asked.unwrap_err().to_string();
            assert!(told.contains("NOAUTH") || told.contains("uthenticat"), "{version}: {told}");
        });
    }
}

#[test]
fn tls_and_unix_sockets_carry_the_same_protocol() {
    let (folder, authority) = (TempDir::new().unwrap(), WebAuthority::new());
    let own = authority.issue(1);
    for (name, text) in [("own.pem", &own.cert), ("own.key", &own.key)] {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    let (resp, path) = (free_tcp(), folder.path().display().to_string());
    let config = format!(
        "[listen]\nresp = \"{resp}\"\n[listen.resp_tls]\ncert = \"{path}/own.pem\"\nkey = \"{path}/own.key\"\n"
    );
    let _secured = Daemon::with(RULES, &config, &[]);
    let _local = Daemon::with(RULES, &format!("[listen]\nresp = \"unix:{path}/resp\"\n"), &[]);
    let _ = rustls::crypto::ring::default_provider().install_default();
    let certificates = |pem: &str| TlsCertificates { client_tls: None, root_cert: Some(pem.into()) };
    let at = format!("rediss://localhost:{}/?protocol=resp3", resp.port());
    let stranger = Client::build_with_tls(at.as_str(), certificates(&WebAuthority::new().pem)).unwrap();
    let secured = Client::build_with_tls(at.as_str(), certificates(&authority.pem)).unwrap();
    let local = Client::open(format!("redis+unix://{path}/resp?protocol=resp3")).unwrap();
    runtime().block_on(async {
        for client in [secured, local] {
            let mut connection = client.get_multiplexed_async_connection().await.unwrap();
            let mut calls = pipe();
            for _ in 0..200 {
                calls.cmd("CL.THROTTLE").arg("k").arg(&[99, 1, 3_600]);
            }
            let told: Vec<Throttled> = calls.query_async(&mut connection).await.unwrap();
            assert_eq!(told.iter().map(|one| one[0]).sum::<i64>(), 100);
        }
        let refused = stranger.get_multiplexed_async_connection().await.err().unwrap();
        assert_eq!(refused.kind(), ErrorKind::Io, "{refused}");
    });
}
