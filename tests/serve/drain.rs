//! How a daemon ends: unready first, serving until gateways have noticed, then asking clients to go, then
//! gone.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use prost::Message as _;

use super::support::daemon::{Daemon, Launch};
use super::support::{SOON, eventually, http, rls};
use super::wire::{self, Came};

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

/// A connection of HTTP/2 that is read as bytes, and what it has brought so far.
struct Kept {
    socket: TcpStream,
    read: Vec<u8>,
}

impl Kept {
    fn open(daemon: &Daemon) -> Self {
        let mut socket = TcpStream::connect(daemon.grpc).unwrap();
        socket.set_nonblocking(true).unwrap();
        socket.write_all(wire::PREFACE).unwrap();
        Self { socket, read: Vec::new() }
    }

    fn call(&mut self, stream: u32) {
        let message = rls::request(vec![rls::descriptor(&[("user", "ann")])]).encode_to_vec();
        let length = u32::try_from(message.len()).unwrap().to_be_bytes();
        let body = [&[0][..], &length, &message].concat();
        let path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
        self.socket.write_all(&wire::post(stream, path, "application/grpc", &body)).unwrap();
    }

    fn came(&mut self) -> Vec<Came> {
        // Nothing more is there, or the daemon has closed it.
        let _ = self.socket.read_to_end(&mut self.read);
        wire::frames(&self.read)
    }

    fn until(&mut self, what: &str, frame: Came) {
        eventually(what, || self.came().contains(&frame).then_some(()));
    }
}

#[test]
fn a_connection_is_told_to_go_once_it_has_begun_a_call_and_no_call_is_lost() {
    let mut daemon = draining("4s");
    let (mut busy, mut fresh) = (Kept::open(&daemon), Kept::open(&daemon));
    busy.call(1);
    busy.until("the call is answered", Came::Answer(1));
    daemon.process.signal("TERM");
    busy.until("it is told to go", Came::GoAway);
    // Some clients lose a call that they begin on a connection which told them to go before.
    assert!(!fresh.came().contains(&Came::GoAway), "{:?}", fresh.came());
    fresh.call(1);
    fresh.until("its first call is answered", Came::Answer(1));
    fresh.until("then it is told to go, too", Came::GoAway);
    let answered = |frame: &Came| *frame == Came::Answer(1);
    let came = fresh.came();
    assert!(
        came.iter().position(answered) < came.iter().position(|frame| *frame == Came::GoAway),
        "{came:?}"
    );
    assert_eq!(daemon.process.wait(Duration::from_secs(30)).code(), Some(0), "{}", daemon.log());
}
