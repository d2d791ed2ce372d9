//! A name service that does not answer: Redis, PostgreSQL and peers are named, and a daemon waits for one
//! look-up of each.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, UdpSocket};
use std::process::Command;
use std::time::{Duration, Instant};

use super::support::authority::Authority;
use super::support::daemon::{Daemon, Launch};
use super::support::{eventually, free_udp, not_judged, postgres};

const RULES: &str = "[[rules]]\nname = \"r\"\nper = [\"user\"]\nalgorithm = \"fixed_window\"\nlimit = 5\nwindow = \"24h\"\non_failure = \"local\"\n";
const NAMES: [&str; 3] = ["cache", "database", "peer"];
/// Longer than any call waits, so that whoever tries again does.
const WATCHED: Duration = Duration::from_secs(14);

/// A name service that hears everything and says nothing.
fn silent() -> (UdpSocket, Ipv4Addr) {
    let [.., high, low] = std::process::id().to_be_bytes();
    let address = Ipv4Addr::new(127, 9, high, low.clamp(1, 254));
    let socket = UdpSocket::bind((address, 53)).unwrap();
    socket.set_nonblocking(true).unwrap();
    (socket, address)
}

/// Sockets by which somebody waits for an answer of this name service.
fn waiting(address: Ipv4Addr) -> usize {
    let remote = format!("{:08X}:0035", u32::from_ne_bytes(address.octets()));
    let open = std::fs::read_to_string("/proc/net/udp").unwrap();
    open.lines().filter(|line| line.split_whitespace().nth(2) == Some(&*remote)).count()
}

#[test]
fn a_dead_name_service_costs_one_look_up_for_each_name() {
    let can = Command::new("unshare").args(["--mount", "true"]).status().is_ok_and(|status| status.success());
    if !postgres::is_root() || !can {
        not_judged("a name service of its own needs root and mount namespaces");
        return;
    }
    let (service, address) = silent();
    let authority = Authority::new();
    let [cache, database, peer] = NAMES.map(|name| format!("{name}.example.test"));
    let config = format!(
        "region = \"eu\"\nnode = \"eu-1\"\n[listen]\npeer = \"{}\"\n[store]\nbackend = \"redis\"\n\
         [store.redis]\ntopology = \"single\"\nnodes = [\"redis://{cache}:6379\"]\n\
         [postgres]\nurl = \"postgres://tidegate@{database}:5432/tidegate\"\ntimeout = \"1s\"\n[audit]\nspool = \"spool\"\n\
         [peers]\njoin = [\"{peer}:7946\"]\n{}",
        free_udp(),
        authority.issue("eu", "eu-1"),
    );
    let launch = Launch { name_service: Some(address), ..Launch::default() };
    let daemon = Daemon::launch(launch, RULES, &config, &[]);
    let mut asked = BTreeSet::new();
    let mut hear = || {
        let mut buffer = [0; 2_048];
        while let Ok((len, _)) = service.recv_from(&mut buffer) {
            let text = String::from_utf8_lossy(&buffer[..len]).into_owned();
            asked.extend(NAMES.into_iter().filter(|name| text.contains(name)));
        }
        (asked.len() == NAMES.len()).then_some(())
    };
    eventually("every name is looked up", &mut hear);
    let (begun, mut most) = (Instant::now(), 0);
    while begun.elapsed() < WATCHED {
        most = most.max(waiting(address));
        // Everything else goes on, and wants its user, its bucket and its record.
        let ann = daemon.check(&[("user", "ann")]);
        assert_eq!(ann["degraded"], true, "{ann}");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!((1..=NAMES.len()).contains(&most), "{most} look-ups at once, of {} names", NAMES.len());
    assert_eq!(daemon.get("/readyz").status, 200);
}
