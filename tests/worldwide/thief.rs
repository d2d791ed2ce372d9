//! Lies of a thief who holds one node's certificate: he takes the place of a region's daemon, says what he
//! likes of a limit of 300 that three regions share, and both others are loaded. The figures are those of
//! "By mode" in `docs/concepts/trust.md`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate::core::regions::NodeName;
use tidegate::core::time::{Span, Timestamp};
use tidegate::core::wire::rights::{
    CountedLimit, MovedTotals, RightKind, RightsFrame, Statement, Transfer, WindowTotals,
};
use tidegate::core::wire::{
    Acknowledgement, Amount, Counter, CrowdedRules, DEMAND_MAX, DecidedBy, Frame, OwnLimit, Report, Scope,
    Subject, WireVersion,
};
use tidegate::engine::clock::Clock;
use tidegate::peer::{PeerEvent, Peers, PeersConfig, TlsPem};
use tokio::runtime::Runtime;
use tokio::sync::mpsc::Receiver;

use super::load::Load;
use super::support::command::run;
use super::support::{eventually, free_udp};
use super::world::{Plan, REGIONS, Store, WINDOW, Window, World, judge, sums, windows};

const LIMIT: u64 = 300;
/// Share of each region.
const SHARE: u64 = 100;
/// Place of the region whose certificate he holds.
const STOLEN: usize = 2;
/// Requests a second at each of both others: more than the limit for all.
const RATE: u64 = 350;
/// Time between two of his lies.
const EVERY: Duration = Duration::from_millis(20);
/// A limit of one bucket that nobody gave it.
const LARGER: OwnLimit = OwnLimit { permits: 30_000, burst: 30_000, queue: 0 };
/// Windows in which this machine stood still for longer than this are not judged.
const PATIENCE: Duration = Duration::from_millis(30);

/// One thing that he says, again and again.
#[derive(Debug, Clone, Copy, Default)]
enum Lie {
    /// Only that he is there.
    #[default]
    Nothing,
    /// His region admitted so much in this window.
    Admitted(u64),
    /// His region is asked for more than anybody can serve, and frames take a second to it.
    AskedFor,
    /// The bucket has a limit of its own, by which his region decides.
    OwnLimit,
    /// So many rights of this window go to every region.
    Gives(u64),
    /// His region refuses requests and needs all rights; of a bucket with this limit.
    Wants(Option<OwnLimit>),
    /// All of these at once.
    Everything,
}

/// What he has heard of the bucket and of the others.
#[derive(Default)]
struct Heard {
    lie: Lie,
    subject: Option<Subject>,
    /// Newest frame of each daemon: the begin of its process, and its number.
    frames: BTreeMap<NodeName, (u64, u64)>,
    statements: BTreeMap<NodeName, Statement>,
}

struct Thief {
    heard: Arc<Mutex<Heard>>,
    _runtime: Runtime,
}

impl Thief {
    /// Takes the place of the third region's only daemon, which is gone.
    fn join(world: &World) -> Self {
        let region = REGIONS[STOLEN];
        let node = format!("{region}-9");
        let folder = world.certificates.path();
        let issue = ["cert", "issue", "--ca", "ca", "--region", region, "--node", &node, "--out", &node];
        assert_eq!(run(folder, &issue).code, 0);
        let read = |name: &str| std::fs::read(folder.join(name)).unwrap();
        let begun = Clock::System.now();
        let config = PeersConfig {
            listen: free_udp(),
            advertise: None,
            join: world.peers[..STOLEN].iter().map(ToString::to_string).collect(),
            name: NodeName { region: region.to_owned(), node: node.clone() },
            incarnation: begun.micros() / 1_000,
            gossip_interval: Duration::from_millis(100),
            tls: TlsPem {
                ca: read("ca/ca.pem"),
                cert: read(&format!("{node}/node.pem")),
                key: read(&format!("{node}/node.key")),
                revoked: Vec::new(),
            },
            tracer: None,
            versions: WireVersion::SPOKEN.into(),
        };
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (peers, events) = runtime.block_on(Peers::start(config)).unwrap();
        let heard = Arc::new(Mutex::new(Heard::default()));
        runtime.spawn(listen(events, Arc::clone(&heard)));
        runtime.spawn(lie(peers, begun, Arc::clone(&heard)));
        for daemon in &world.daemons[..STOLEN] {
            eventually("he is taken for a daemon of his region, and its own for gone", || {
                let regions = daemon.get("/v1/regions").json();
                let his = regions["peers"].as_array()?.iter().filter(|peer| peer["region"] == region);
                let live: Vec<_> = his.filter(|peer| peer["live"] == true).collect();
                (live.len() == 1 && live[0]["node"] == *node && live[0]["connected"] == true).then_some(())
            });
        }
        Self { heard, _runtime: runtime }
    }

    fn says(&self, lie: Lie) {
        self.heard.lock().unwrap().lie = lie;
    }

    /// Waits until he knows the bucket: from the counts of the others, or from what they say of their rights.
    fn learns(&self, what: impl Fn(&Heard) -> bool) {
        eventually("he has heard of the bucket", || what(&self.heard.lock().unwrap()).then_some(()));
    }
}

async fn listen(mut events: Receiver<PeerEvent>, heard: Arc<Mutex<Heard>>) {
    while let Some(event) = events.recv().await {
        let mut heard = heard.lock().unwrap();
        match event {
            PeerEvent::Frame { from, frame, .. } => {
                if let Some(subject) = frame.reports.into_iter().find_map(|report| report.subject) {
                    heard.subject = Some(subject);
                }
                heard.frames.insert(from, (frame.incarnation, frame.seq));
            }
            PeerEvent::Rights { from, frame } => {
                if let Some(statement) = frame.statements.into_iter().next_back() {
                    heard.statements.insert(from, statement);
                }
            }
            PeerEvent::Members(_) => {}
        }
    }
}

async fn lie(peers: Peers, begun: Timestamp, heard: Arc<Mutex<Heard>>) {
    for seq in 1.. {
        tokio::time::sleep(EVERY).await;
        let now = Clock::System.now();
        let heard = heard.lock().unwrap();
        for region in &REGIONS[..STOLEN] {
            let to = NodeName { region: (*region).to_owned(), node: format!("{region}-1") };
            peers.send(&to, &counts(&heard, &to, seq, (begun, now)));
            peers.send_rights(&to, &rights(&heard, &to, now));
        }
    }
}

/// The frame of counts that he sends to a daemon.
fn counts(heard: &Heard, to: &NodeName, seq: u64, (begun, now): (Timestamp, Timestamp)) -> Frame {
    let admitted = match heard.lie {
        Lie::Admitted(permits) => permits,
        Lie::Everything => 100 * LIMIT,
        _ => 0,
    };
    let asked_for = matches!(heard.lie, Lie::AskedFor | Lie::Everything);
    let decided_by = match heard.lie {
        Lie::OwnLimit | Lie::Everything => DecidedBy::Own(LARGER),
        _ => DecidedBy::Rule,
    };
    let report = |subject: &Subject| Report {
        key_id: 1,
        subject: Some(Subject {
            scope: Scope::Region(REGIONS[STOLEN].to_owned()),
            counters: vec![Counter { node: "his".into(), since: begun }],
            decided_by,
            ..subject.clone()
        }),
        window: now.window_index(Span::from_secs(1)),
        stamp: now,
        amounts: [Amount { admitted, returned: 0 }].into_iter().collect(),
        demand: if asked_for { DEMAND_MAX } else { 0 },
    };
    let seen = heard.frames.get(to);
    Frame {
        incarnation: begun.micros() / 1_000,
        seq,
        sent: now,
        seen: seen.map(|(incarnation, seq)| Acknowledgement {
            incarnation: *incarnation,
            seq: *seq,
            before: u64::MAX,
        }),
        slowest: if asked_for { Span::from_secs(1) } else { Span::ZERO },
        crowded: CrowdedRules::NONE,
        reports: heard.subject.iter().map(report).collect(),
    }
}

/// The frame of rights that he sends to a daemon.
fn rights(heard: &Heard, to: &NodeName, now: Timestamp) -> RightsFrame {
    let window = now.window_index(Span::from_secs(1));
    let (gives, wants) = match heard.lie {
        Lie::Gives(permits) => (Some(permits), None),
        Lie::Wants(own) => (None, Some(own)),
        Lie::Everything => (Some(SHARE), Some(Some(LARGER))),
        _ => (None, None),
    };
    let known = heard.statements.get(to);
    let transfer = |(known, permits): (&Statement, u64)| Transfer {
        rule: known.rule.clone(),
        identity: known.identity.clone(),
        kind: RightKind::Window(window),
        session: 1,
        to_session: known.session,
        permits,
        limit: CountedLimit::default(),
    };
    let statement = |(known, own): (&Statement, Option<OwnLimit>)| Statement {
        stamp: now,
        session: 1,
        free: 0,
        demand: DEMAND_MAX,
        wanted: LIMIT,
        totals: MovedTotals::Window(WindowTotals {
            window,
            taken: Vec::new(),
            given: Vec::new(),
            closed: None,
        }),
        limit: CountedLimit { own, said_by_others: false },
        ..known.clone()
    };
    RightsFrame {
        sent: now,
        statements: known.zip(wants).map(statement).into_iter().collect(),
        transfers: known.zip(gives).map(transfer).into_iter().collect(),
    }
}

/// Three regions that share, of which one is his, and load on both others.
fn stolen(global: &'static str) -> (World, Thief, Vec<Load>) {
    let rtt = Duration::from_millis(20);
    let mut world = World::start(Plan { regions: 3, rtt, store: Store::Memory, limit: LIMIT, global });
    for daemon in &world.daemons {
        eventually("the regions agree on their shares", || {
            let regions = daemon.get("/v1/regions").json();
            (!regions["changing"].to_string().contains("\"first\":true")).then_some(())
        });
    }
    world.daemons[STOLEN].kill();
    let thief = Thief::join(&world);
    let honest = &world.daemons[..STOLEN];
    let loads = honest.iter().map(|daemon| Load::start(daemon.grpc, RATE, WINDOW)).collect();
    windows(2);
    (world, thief, loads)
}

/// So many windows, once a lie is everywhere.
fn then(loads: &[Load], count: u64) -> Vec<Window> {
    windows(1);
    let seen = sums(loads, windows(count));
    eprintln!("{seen:?}");
    seen
}

/// In percent of the limit: so much is used by those who ask for their shares, also where a starved machine
/// asks for less.
const USED_LEAST: f64 = 20.0;

fn refused(world: &World, reason: &str) {
    for daemon in &world.daemons[..STOLEN] {
        let line = format!("tidegate_frames_rejected_total{{reason=\"{reason}\"}}");
        eventually(reason, || daemon.metric(&line).filter(|times| *times >= 1.0));
    }
}

#[test]
fn a_thief_moves_nothing_under_split() {
    let (_world, thief, loads) = stolen("mode = \"split\"");
    for lie in [Lie::Nothing, Lie::Everything] {
        thief.says(lie);
        windows(1);
        for window in windows(4) {
            for load in &loads {
                let count = load.of(window);
                let all = count.asked.min(SHARE);
                assert!(count.admitted <= SHARE && count.admitted >= all * 90 / 100, "{lie:?}: {count:?}");
            }
        }
    }
}

#[test]
fn a_thief_lifts_no_limit_under_gossip_and_can_use_it_up() {
    let (_world, thief, loads) = stolen("mode = \"gossip\"");
    thief.learns(|heard| heard.subject.is_some());
    for lie in [Lie::Nothing, Lie::AskedFor, Lie::OwnLimit] {
        thief.says(lie);
        let held = judge(&then(&loads, 5), LIMIT, PATIENCE);
        assert!(held.over_max <= 5.0, "{lie:?}: {held:?}");
        // Who asks for everything gets his share, while the others ask for theirs.
        assert!(held.used >= USED_LEAST, "{lie:?}: {held:?}");
    }
    thief.says(Lie::Admitted(100 * LIMIT));
    let seen = then(&loads, 5);
    assert!(judge(&seen, LIMIT, PATIENCE).over_max <= 5.0);
    assert!(seen.iter().any(|window| window.admitted * 2 < window.asked.min(LIMIT)), "{seen:?}");
    // It ends with the window of which he said it last.
    thief.says(Lie::Nothing);
    let held = judge(&then(&loads, 4), LIMIT, PATIENCE);
    assert!(held.used >= USED_LEAST, "{held:?}");
}

#[test]
fn a_thief_lifts_a_limit_under_escrow_by_what_he_gives_to_every_region_and_no_more() {
    let (world, thief, loads) = stolen("mode = \"escrow\"");
    thief.learns(|heard| heard.statements.len() == STOLEN);
    // Each judges by itself what he can have: his share goes to both.
    thief.says(Lie::Gives(SHARE));
    let seen = then(&loads, 5);
    assert!(seen.iter().all(|window| window.admitted <= LIMIT + 2 * SHARE), "{seen:?}");
    assert!(seen.iter().any(|window| window.admitted > LIMIT), "the attack is not played: {seen:?}");
    // More than he can have is not taken.
    thief.says(Lie::Gives(LIMIT + SHARE));
    let seen = then(&loads, 3);
    assert!(seen.iter().all(|window| window.admitted <= LIMIT), "{seen:?}");
    refused(&world, "rights_beyond");
    // He asks for what they have: of a share that is in use, nothing leaves.
    for own in [None, Some(LARGER)] {
        thief.says(Lie::Wants(own));
        let seen = then(&loads, 4);
        assert!(seen.iter().all(|window| window.admitted <= LIMIT), "{own:?}: {seen:?}");
        let held = judge(&seen, LIMIT, PATIENCE);
        assert!(held.used >= USED_LEAST, "{own:?}: {held:?}");
    }
    // A region that nobody asks believes him, and mints by the limit that he invents; one that is asked keeps
    // to the limit that it knows.
    loads[1].set_rate(0);
    windows(11);
    for window in windows(4) {
        let count = loads[0].of(window);
        assert!(count.admitted <= LIMIT, "{count:?}");
    }
}
