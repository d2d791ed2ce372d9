//! How a daemon ends: unready first, serving until gateways have noticed, then asking clients to go, then
//! gone.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use super::support::daemon::{Daemon, Launch};
use super::support::{SOON, eventually, http};

const RULES: &str = "[[rules]]\nname = \"all\"\nper = [\"user\"]\nalgorithm = \"fixed_window\"\nlimit = 1000\nwindow = \"24h\"\n";
const NOT_SERVING: i32 = 2;

fn draining(drain: &'static str) -> Daemon {
    Daemon::launch(Launch { drain: Some(drain), ..Launch::default() }, RULES, "", &[])
}

#[test]
fn a_daemon_told_to_stop_is_unready_and_serves_on_until_gateways_have_noticed() {
    let mut daemon = draining("4s");
    let client = daemon.rls();
    daemon.process.signal("TERM");
    eventually("it is unready", || (daemon.get("/readyz").status == 503).then_some(()));
    assert_eq!(client.health("").unwrap(), NOT_SERVING);
    assert_eq!(daemon.check(&[("user", "ann")])["allowed"], true, "new connections are served");
    // A connection that a gateway keeps: the answer in the last second says that it is the last.
    let mut kept = TcpStream::connect(daemon.http).unwrap();
    kept.set_read_timeout(Some(SOON)).unwrap();
    let mut answers = Vec::new();
    loop {
        kept.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
        let mut part = [0; 1_024];
        let read = kept.read(&mut part).unwrap();
        assert!(read > 0, "it was closed without a word: {answers:?}");
        let answer = String::from_utf8_lossy(&part[..read]).to_ascii_lowercase();
        let last = answer.contains("connection: close");
        answers.push(answer);
        if last {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(kept.read(&mut [0; 16]).unwrap(), 0);
    assert_eq!(daemon.process.wait(Duration::from_secs(30)).code(), Some(0), "{}", daemon.log());
    assert!(TcpStream::connect(daemon.http).is_err(), "nothing listens any more");
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let mut daemon = draining("10m");
    daemon.process.signal("TERM");
    eventually("it drains", || (daemon.get("/readyz").status == 503).then_some(()));
    daemon.process.signal("TERM");
    assert_eq!(daemon.process.wait(Duration::from_secs(30)).code(), Some(0), "{}", daemon.log());
}

#[test]
fn ctrl_c_waits_for_nobody_where_nobody_is_connected() {
    let mut daemon = draining("10m");
    assert_eq!(http::get(daemon.http, "/healthz", &[]).status, 200);
    daemon.process.signal("INT");
    assert_eq!(daemon.process.wait(Duration::from_secs(30)).code(), Some(0), "{}", daemon.log());
}
