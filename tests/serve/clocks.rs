//! A region whose clock is wrong: both sides say so where operators look.

use super::regions::{Authority, connected};
use super::support::command::faketime;
use super::support::daemon::{Daemon, Launch};
use super::support::{eventually, free_udp, not_judged};

const RULES: &str = "[[rules]]\nname = \"worldwide\"\nper = [\"user\"]\nalgorithm = \"fixed_window\"\nlimit = 60\nwindow = \"24h\"\n\
                     [rules.global]\nmode = \"gossip\"\n";

fn notices(daemon: &Daemon) -> String {
    daemon.get("/readyz").json()["notices"].to_string()
}

#[test]
fn clocks_that_differ_are_told_by_the_log_and_readyz_of_both_daemons() {
    if faketime().is_none() {
        not_judged("libfaketime is not installed; tests/run installs it");
        return;
    }
    let (authority, peers) = (Authority::new(), [free_udp(), free_udp()]);
    let config = |place: usize, region: &str| {
        authority.config(region, &format!("{region}-1"), peers[place], &peers[..1])
    };
    let right = Daemon::with(RULES, &config(0, "eu-west"), &[]);
    let launch = Launch { clock_ahead: Some("+0.5"), ..Launch::default() };
    let wrong = Daemon::launch(launch, RULES, &config(1, "us-east"), &[]);
    for (daemon, by, way) in
        [(&right, "us-east/us-east-1", "ahead of"), (&wrong, "eu-west/eu-west-1", "behind")]
    {
        eventually("they are connected", || (connected(daemon) == 1).then_some(()));
        let of_clock = |text: &str| {
            let begin = format!("the clock of {by} is ");
            let end =
                format!(" ms {way} this daemon's: gossip rules count in different windows; run NTP on both");
            let at = text.find(&begin)? + begin.len();
            let millis: u64 = text[at..].split(&end).next()?.parse().ok()?;
            Some(millis)
        };
        let millis = eventually("the notice", || of_clock(&notices(daemon)));
        // What a frame waits at either end is taken for the clock.
        assert!((300..=700).contains(&millis), "{millis} ms, and they are 500 apart");
        let logged = daemon.log();
        let line = logged.lines().find(|line| of_clock(line).is_some()).unwrap_or_else(|| panic!("{logged}"));
        assert!(line.contains("WARN") && line.contains("clock"), "{line}");
        assert_eq!(daemon.metric("tidegate_notices{about=\"clock\"}"), Some(1.0));
        let shown = daemon.run(&["regions"]).out;
        assert!(of_clock(&shown.replace('\n', " ")).is_some(), "{shown}");
    }
}
