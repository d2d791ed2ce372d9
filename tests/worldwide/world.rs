//! Several regions, their daemons, the ocean between them and the load on each.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tempfile::TempDir;

use super::load::Load;
use super::ocean::Ocean;
use super::redis_servers::Server;
use super::support::command::run;
use super::support::daemon::{Daemon, Launch};
use super::support::{eventually, free_udp, not_judged};

pub(crate) const WINDOW: Duration = Duration::from_secs(1);
pub(crate) const REGIONS: [&str; 5] = ["eu-west", "us-east", "ap-south", "sa-east", "af-south"];

/// Where counters are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Store {
    Memory,
    /// A Redis for each region.
    Redis,
}

/// What to build.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) regions: usize,
    pub(crate) rtt: Duration,
    pub(crate) store: Store,
    pub(crate) limit: u64,
    /// The lines of `[rules.global]`.
    pub(crate) global: &'static str,
}

pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) ocean: Ocean,
    pub(crate) daemons: Vec<Daemon>,
    pub(crate) peers: Vec<SocketAddr>,
    pub(crate) redis: Vec<Server>,
    pub(crate) certificates: TempDir,
}

/// What happened worldwide in one window.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    pub(crate) asked: u64,
    pub(crate) admitted: u64,
    pub(crate) stall: Duration,
}

impl World {
    pub(crate) fn start(plan: Plan) -> Self {
        Self::with_rules(plan, &rules(plan, "fixed_window"))
    }

    /// The same with another rule than that of the plan.
    pub(crate) fn with_rules(plan: Plan, rules: &str) -> Self {
        Self::with_peers(plan, rules, "")
    }

    /// The same with more lines in `[peers]`.
    pub(crate) fn with_peers(plan: Plan, rules: &str, lines: &str) -> Self {
        Self::launch(plan, rules, lines, Launch::default())
    }

    /// The same, each daemon started like this.
    pub(crate) fn launch(plan: Plan, rules: &str, lines: &str, launch: Launch) -> Self {
        let certificates = TempDir::new().unwrap();
        assert_eq!(run(certificates.path(), &["cert", "ca", "--out", "ca"]).code, 0);
        let ocean = Ocean::new(plan.rtt, 10);
        let names = &REGIONS[..plan.regions];
        let peers: Vec<_> = names.iter().map(|_| free_udp()).collect();
        let ways: Vec<_> = peers.iter().map(|peer| ocean.way_to(*peer)).collect();
        let servers = if plan.store == Store::Redis { plan.regions } else { 0 };
        let redis: Vec<_> = (0..servers).map(|_| Server::start(&[])).collect();
        let daemons = (0..plan.regions)
            .map(|place| {
                let region = names[place];
                let out = format!("{region}-1");
                let issue = ["cert", "issue", "--ca", "ca", "--region", region, "--node", &out, "--out", &out];
                assert_eq!(run(certificates.path(), &issue).code, 0);
                let file = |name: &str| certificates.path().join(name).display().to_string();
                let join: Vec<_> = ways.iter().filter(|way| **way != ways[place]).map(ToString::to_string).collect();
                let store = redis.get(place).map_or_else(String::new, |server| {
                    format!(
                        "[store]\nbackend = \"redis\"\n[store.redis]\ntopology = \"single\"\nnodes = [\"{}\"]\n\
                         timeout = \"200ms\"\n",
                        server.url()
                    )
                });
                let config = format!(
                    "region = \"{region}\"\nnode = \"{out}\"\n[listen]\npeer = \"{}\"\n{store}\
                     [peers]\njoin = {join:?}\nadvertise = \"{}\"\nregions = {names:?}\n{lines}\
                     [peers.tls]\nca = \"{}\"\ncert = \"{}\"\nkey = \"{}\"\n",
                    peers[place],
                    ways[place],
                    file("ca/ca.pem"),
                    file(&format!("{out}/node.pem")),
                    file(&format!("{out}/node.key")),
                );
                Daemon::launch(launch, rules, &config, &[])
            })
            .collect();
        let world = Self { plan, ocean, daemons, peers, redis, certificates };
        world.wait_until_connected();
        world
    }

    pub(crate) fn wait_until_connected(&self) {
        for daemon in &self.daemons {
            eventually("every daemon is connected with all others", || {
                let regions = daemon.get("/v1/regions").json();
                let peers = regions["peers"].as_array()?;
                let connected = peers.iter().filter(|peer| peer["connected"] == true && peer["live"] == true);
                // And it has heard what its former life admitted: until then it keeps to its share.
                let begins = regions["rules"].to_string().contains("\"start\"");
                (connected.count() == self.plan.regions - 1 && !begins).then_some(())
            });
        }
    }

    /// Load on every region, `load` times the limit in all, by these weights.
    pub(crate) fn load(&self, load: f64, weights: &[u64]) -> Vec<Load> {
        let sum: u64 = weights.iter().sum();
        self.daemons
            .iter()
            .zip(weights)
            .map(|(daemon, weight)| {
                let rate = self.plan.limit as f64 / WINDOW.as_secs_f64() * load * *weight as f64 / sum as f64;
                Load::start(daemon.grpc, rate as u64, WINDOW)
            })
            .collect()
    }

    /// Nothing passes between this region and the others.
    pub(crate) fn cut(&self, place: usize) {
        self.ocean.cut(self.peers[place]);
    }

    pub(crate) fn heal(&self, place: usize) {
        self.ocean.heal(self.peers[place]);
    }
}

/// The plan's one rule, counted by `algorithm`.
pub(crate) fn rules(plan: Plan, algorithm: &str) -> String {
    format!(
        "[[rules]]\nname = \"world\"\nper = [\"who\"]\nalgorithm = \"{algorithm}\"\nlimit = {}\nwindow = \"1s\"\n\
         [rules.global]\n{}\n",
        plan.limit, plan.global
    )
}

/// The window that is running now.
pub(crate) fn window() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// Waits until so many windows have passed from the beginning of the next one; returns them.
pub(crate) fn windows(count: u64) -> std::ops::Range<u64> {
    let first = window() + 1;
    while window() < first + count {
        std::thread::sleep(Duration::from_millis(10));
    }
    // Their last answers.
    std::thread::sleep(Duration::from_millis(100));
    first..first + count
}

/// Adds the regions up.
pub(crate) fn sums(loads: &[Load], windows: std::ops::Range<u64>) -> Vec<Window> {
    let sum = |index| {
        let counts = loads.iter().map(|load| load.of(index));
        let zero = Window { asked: 0, admitted: 0, stall: Duration::ZERO };
        let mut sum = counts.fold(zero, |sum, count| Window {
            asked: sum.asked + count.asked,
            admitted: sum.admitted + count.admitted,
            ..sum
        });
        sum.stall = loads.iter().map(|load| load.stall(index)).max().unwrap_or_default();
        sum
    };
    windows.map(sum).collect()
}

/// How well a limit was held and used.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Held {
    /// Admitted above the limit, in percent of it: the mean over all windows, and the worst.
    pub(crate) over_mean: f64,
    pub(crate) over_max: f64,
    /// Admitted, in percent of what could have been.
    pub(crate) used: f64,
}

/// Judges windows. Those in which this machine stood still for longer than `patience` are not judged: what
/// could not be told in time says nothing of the protocol. Where that is most of them nothing is judged at
/// all, and the test says so. Both are printed.
pub(crate) fn judge(windows: &[Window], limit: u64, patience: Duration) -> Held {
    let (judged, left): (Vec<_>, Vec<_>) = windows.iter().partition(|window| window.stall <= patience);
    eprintln!("judged: {judged:?}\nnot judged: {left:?}");
    if judged.len() * 2 < windows.len() {
        not_judged(&format!("the machine stood still in {} of {} windows", left.len(), windows.len()));
        return Held { over_mean: 0.0, over_max: 0.0, used: 100.0 };
    }
    let over = |window: &Window| (window.admitted as f64 / limit as f64 - 1.0).max(0.0) * 100.0;
    let mean =
        |of: &dyn Fn(&Window) -> f64| judged.iter().copied().map(of).sum::<f64>() / judged.len() as f64;
    let could: u64 = judged.iter().map(|window| window.asked.min(limit)).sum();
    let did: u64 = judged.iter().map(|window| window.admitted.min(limit)).sum();
    let held = Held {
        over_mean: mean(&over),
        over_max: judged.iter().copied().map(over).fold(0.0, f64::max),
        used: did as f64 / could.max(1) as f64 * 100.0,
    };
    eprintln!("{held:?}");
    held
}
