//! A real PgBouncer between the daemon and PostgreSQL: in session mode all is as without it; transaction
//! mode, which cannot work, is named.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::rules::{Place, insert, limit, rule, send, wait_for};
use super::support::daemon::Daemon;
use super::support::postgres::{Postgres, as_postgres};
use super::support::{eventually, free_tcp, not_judged};

/// A pooler in front of one server. Ended when dropped.
struct Pooler {
    child: Child,
    port: u16,
    /// Last, so that the pooler is gone before its folder.
    folder: TempDir,
}

impl Pooler {
    /// `None`, and said aloud: there is no PgBouncer here. It refuses parameters of the start that it does
    /// not know: it has no `ignore_startup_parameters`.
    fn start(server: &Postgres, mode: &str) -> Option<Self> {
        let Some(program) = ["/usr/sbin/pgbouncer", "/usr/bin/pgbouncer", "/usr/local/bin/pgbouncer"]
            .iter()
            .map(Path::new)
            .find(|path| path.exists())
        else {
            not_judged("PgBouncer is missing: apt-get install pgbouncer");
            return None;
        };
        let folder = tempfile::Builder::new().prefix("tg-pooler").tempdir().unwrap();
        // It does not run as root.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let port = free_tcp().port();
        let users = folder.path().join("users.txt");
        fs::write(&users, "\"postgres\" \"\"\n").unwrap();
        let file = folder.path().join("pgbouncer.ini");
        let config = format!(
            "[databases]\n* = host=127.0.0.1 port={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n\
             unix_socket_dir =\nauth_type = trust\nauth_file = {}\npool_mode = {mode}\n",
            server.port(),
            users.display()
        );
        fs::write(&file, config).unwrap();
        let log = fs::File::create(folder.path().join("pooler.log")).unwrap();
        let child = as_postgres(program)
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let pooler = Self { child, port, folder };
        eventually("the pooler listens", || {
            let here = std::net::TcpStream::connect(("127.0.0.1", port)).is_ok();
            here.then_some(())
        });
        Some(pooler)
    }

    /// A daemon that reaches its database through this.
    fn daemon(&self, place: &Place) -> Daemon {
        let (direct, through) = (format!(":{}/", place.server.port()), format!(":{}/", self.port));
        let config = place.config();
        assert!(config.contains(&direct), "{config}");
        Daemon::with("", &config.replace(&direct, &through), &[])
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("pooler.log")).unwrap_or_default()
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn changes_are_in_force_within_a_second_through_a_pooler_in_session_mode() {
    let place = Place::new();
    let Some(pooler) = Pooler::start(&place.server, "session") else { return };
    place.sql(&insert(&rule("r", 3)));
    let daemon = pooler.daemon(&place);
    wait_for(&daemon, "r", Some(3));
    let times: Vec<Duration> = (4..9)
        .map(|permits| {
            place.sql(&format!("UPDATE rules SET document = document || '{{\"limit\": {permits}}}'"));
            let begun = Instant::now();
            wait_for(&daemon, "r", Some(permits));
            begun.elapsed()
        })
        .collect();
    // A busy machine may be late once; without notifications all would be.
    let quickest = times.iter().min().unwrap();
    assert!(*quickest < Duration::from_secs(1), "{times:?}\n{}", pooler.log());
    let put = send(&daemon, "PUT", "/v1/rules/own", &[], &rule("own", 1));
    assert_eq!(put.status, 200, "{put:?}\n{}", pooler.log());
    assert_eq!((limit(&daemon, "own"), daemon.admitted(&[("user", "u")], 3)), (Some(1), 1));
    let rules = daemon.get("/readyz").json()["rules"].clone();
    assert_eq!((&rules["reachable"], &rules["problem"]), (&true.into(), &serde_json::Value::Null), "{rules}");
}

#[test]
fn a_pooler_in_transaction_mode_is_named() {
    let place = Place::new();
    let Some(pooler) = Pooler::start(&place.server, "transaction") else { return };
    place.sql(&insert(&rule("r", 3)));
    // It is not ready, so nobody waits for it here.
    let saved = tempfile::tempdir().unwrap();
    let direct = place.daemon();
    wait_for(&direct, "r", Some(3));
    let copy = saved.path().join("rules.saved.json");
    eventually("its rules are saved", || fs::copy(direct.folder().join("rules.saved.json"), &copy).ok());
    drop(direct);
    let (here, through) = (format!(":{}/", place.server.port()), format!(":{}/", pooler.port));
    let config = place
        .config()
        .replace(&here, &through)
        .replace("[postgres]", &format!("saved = {copy:?}\n[postgres]"));
    let daemon = Daemon::with("", &config, &[]);
    eventually("readiness says what is wrong", || {
        let problem = daemon.get("/readyz").json()["rules"]["problem"].as_str()?.to_owned();
        problem.contains("behind a pooler that gives each transaction a session").then_some(())
    });
    eventually("the log says what to do", || {
        daemon.log().contains("set pool_mode = session there").then_some(())
    });
}
