//! A rolling restart under load: whether every request that went through a gateway was decided.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use super::daemon::Daemon;
use super::http;

/// How many restarts, unless `TIDEGATE_TEST_RESTARTS` says another number.
const RESTARTS: usize = 2;
/// Clients that ask at the same time, and how long each rests between two requests.
const CLIENTS: usize = 4;
const REST: Duration = Duration::from_millis(10);

/// Restarts the daemons one after the other while clients ask through the gateway; `settle` waits until the
/// gateway asks the new daemon again.
///
/// # Panics
/// When a request was not decided: a decided one carries the limit in its headers.
pub(crate) fn restart(
    daemons: &mut [Daemon],
    gateway: SocketAddr,
    headers: &[(&str, &str)],
    settle: impl Fn(&Daemon),
) {
    let restarts = std::env::var("TIDEGATE_TEST_RESTARTS").ok().and_then(|number| number.parse().ok());
    let restarts: usize = restarts.unwrap_or(RESTARTS);
    let (over, asked) = (AtomicBool::new(false), AtomicUsize::new(0));
    let lost = std::thread::scope(|scope| {
        let ask = || {
            let mut lost = Vec::new();
            while !over.load(Ordering::Relaxed) {
                let reply = http::get(gateway, "/api/x", headers);
                asked.fetch_add(1, Ordering::Relaxed);
                if reply.status != 200 || reply.header("x-ratelimit-limit").is_none() {
                    lost.push(reply);
                }
                std::thread::sleep(REST);
            }
            lost
        };
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(ask)).collect();
        let restarted = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for turn in 0..restarts {
                let place = turn % daemons.len();
                let daemon = &mut daemons[place];
                assert_eq!(daemon.terminate().code(), Some(0), "{}", daemon.log());
                daemon.start_again();
                settle(daemon);
            }
        }));
        over.store(true, Ordering::Relaxed);
        let lost: Vec<_> = clients.into_iter().flat_map(|client| client.join().unwrap()).collect();
        if let Err(panic) = restarted {
            std::panic::resume_unwind(panic);
        }
        lost
    });
    let asked = asked.into_inner();
    eprintln!("{asked} requests through {restarts} restarts, {} lost", lost.len());
    assert!(asked > 100, "hardly any load: {asked} requests");
    assert!(lost.is_empty(), "{} of {asked} requests were lost, such as {:?}", lost.len(), lost[0]);
}
