//! The protocol between regions over real connections: what one region admits, the other's store is told.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on should stop loudly")]

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate::core::algorithm::{Algorithm, Limit};
use tidegate::core::regions::escrow::window::{WindowLedger, WindowStep};
use tidegate::core::regions::escrow::{Ledger, Step, StepRequest, StepResult};
use tidegate::core::regions::{Effect, NodeName, ReplicaConfig, StoreSeen, Touched, WorldKey, WorldRule};
use tidegate::core::rule::{Global, Mode};
use tidegate::core::time::{Span, Timestamp};
use tidegate::core::wire::rights::{CountedLimit, RightKind, RightsFrame, Transfer};
use tidegate::core::wire::{
    Amount, Counter, CrowdedRules, DecidedBy, Frame, Report, RuleName, Scope, Subject, WireVersion,
};
use tidegate::engine::clock::Clock;
use tidegate::engine::port::Answer;
use tidegate::engine::status::WorldStatus;
use tidegate::engine::world::WorldPort;
use tidegate::peer::certificate::{Authority, create_ca, issue};
use tidegate::peer::{Peers, PeersConfig, TlsPem, sync};
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

const WINDOW: Span = Span::from_secs(3_600);

/// A store and an engine that only remember.
#[derive(Default)]
struct Remembered {
    touched: Mutex<Vec<Touched>>,
    effects: Mutex<Vec<Effect>>,
    status: Mutex<WorldStatus>,
    /// What is an alarm, what is none, and all else: each by its name.
    refused: Mutex<HashMap<String, u64>>,
    passed_over: Mutex<HashMap<String, u64>>,
    counted: Mutex<HashMap<String, u64>>,
}

fn count(counters: &Mutex<HashMap<String, u64>>, what: &str, times: u64) {
    *counters.lock().unwrap().entry(what.to_owned()).or_default() += times;
}

/// The names of what was counted at all, in order.
fn raised(counters: &Mutex<HashMap<String, u64>>) -> Vec<String> {
    let counters = counters.lock().unwrap();
    let mut raised: Vec<String> =
        counters.iter().filter(|(_, times)| **times > 0).map(|(name, _)| name.clone()).collect();
    raised.sort_unstable();
    raised
}

impl Remembered {
    fn count(&self, what: &str, times: u64) {
        count(&self.counted, what, times);
    }

    fn counted(&self, what: &str) -> u64 {
        self.counted.lock().unwrap().get(what).copied().unwrap_or_default()
    }

    /// Waits until this is an alarm.
    async fn refuses(&self, reason: &str) {
        eventually(reason, || self.refused.lock().unwrap().get(reason).is_some_and(|times| *times > 0)).await;
    }

    /// Waits until this is counted as what happens in health.
    async fn passes_over(&self, reason: &str) {
        eventually(reason, || self.passed_over.lock().unwrap().get(reason).is_some_and(|times| *times > 0))
            .await;
    }

    fn status(&self) -> WorldStatus {
        self.status.lock().unwrap().clone()
    }

    /// What the newest view of the bucket says that others admitted.
    fn others(&self) -> u64 {
        let effects = self.effects.lock().unwrap();
        effects
            .iter()
            .rev()
            .find_map(|effect| match effect {
                Effect::View { key, view, .. } if *key == bucket() => {
                    view.as_window().map(|view| view.others)
                }
                _ => None,
            })
            .unwrap_or_default()
    }

    fn admit(&self, permits: u64) {
        let window = self.now().window_index(WINDOW);
        let touched = Touched {
            key: bucket(),
            window,
            offered: permits,
            admitted: permits,
            returned: 0,
            refused: 0,
            largest: 1,
            own: None,
            store: StoreSeen::default(),
        };
        self.touched.lock().unwrap().push(touched);
    }
}

fn bucket() -> WorldKey {
    WorldKey {
        rule: RuleName { domain: "default".into(), name: "search".into() },
        identity: b"u_42".to_vec(),
    }
}

/// A bucket whose rights move.
fn seats() -> WorldKey {
    WorldKey { rule: RuleName { domain: "default".into(), name: "seats".into() }, identity: b"u_42".to_vec() }
}

/// Names the memory of the store that only remembers.
const SESSION: u64 = 5;

impl WorldPort for Remembered {
    fn drain(&self, into: &mut Vec<Touched>) {
        into.append(&mut self.touched.lock().unwrap());
    }
    fn apply(&self, effect: &Effect) {
        self.effects.lock().unwrap().push(effect.clone());
    }
    fn revision(&self) -> u64 {
        1
    }
    fn rules(&self) -> (u64, Vec<WorldRule>) {
        let rule = WorldRule {
            name: bucket().rule,
            algorithm: Algorithm::FixedWindow,
            limit: Limit { calendar: None, permits: 1_000, window: WINDOW, burst: 1_000, queue: 0 },
            global: Global::new(Mode::Gossip),
        };
        let seats = WorldRule {
            name: seats().rule,
            global: Global::new(Mode::Escrow),
            limit: rule.limit,
            ..rule.clone()
        };
        (1, vec![rule, seats])
    }
    fn rights<'a>(&'a self, ask: &'a StepRequest) -> Answer<'a, Option<StepResult>> {
        let mut ledger = WindowLedger { session: SESSION, ..WindowLedger::default() };
        ledger.enter(self.now().window_index(WINDOW), 500, 0);
        if let Step::Window { step: WindowStep::Take(taking), .. } = &ask.step {
            self.count("taken", taking.permits);
        }
        Answer::Now(Some(StepResult { ledger: Ledger::Window(ledger), used: 0 }))
    }
    fn now(&self) -> Timestamp {
        Clock::System.now()
    }
    fn publish(&self, status: WorldStatus) {
        *self.status.lock().unwrap() = status;
    }
    fn refused(&self, reason: &'static str, times: u64) {
        count(&self.refused, reason, times);
    }
    fn passed_over(&self, reason: &'static str, times: u64) {
        count(&self.passed_over, reason, times);
    }
    fn dropped(&self, queue: &'static str, times: u64) {
        self.count(queue, times);
    }
    fn traffic(&self, region: &str, sent: u64, received: u64) {
        self.count(&format!("{region} sent"), sent);
        self.count(&format!("{region} received"), received);
    }
    fn updates(&self, frames: u64) {
        self.count("updates", frames);
    }
    fn overshoot(&self, rule: &str, permits: u64) {
        self.count(rule, permits);
    }
}

struct Region {
    port: Arc<Remembered>,
    peers: Arc<Peers>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Region {
    async fn start(ca: &Authority, region: &str, join: Option<&Self>) -> Self {
        Self::start_speaking(&WireVersion::SPOKEN, ca, region, join).await
    }

    async fn start_speaking(
        versions: &[WireVersion],
        ca: &Authority,
        region: &str,
        join: Option<&Self>,
    ) -> Self {
        let name = NodeName { region: region.into(), node: format!("{region}-1") };
        let issued = issue(ca, &name, Clock::System.now()).unwrap();
        let incarnation = Clock::System.now().micros() / 1_000;
        let config = PeersConfig {
            listen: "127.0.0.1:0".parse().unwrap(),
            advertise: None,
            join: join.iter().map(|other| other.peers.advertised().to_string()).collect(),
            name: name.clone(),
            incarnation,
            gossip_interval: Duration::from_millis(100),
            tls: TlsPem {
                ca: ca.certificate_pem().into(),
                cert: issued.certificate_pem.into(),
                key: issued.key_pem.into(),
                revoked: Vec::new(),
            },
            tracer: None,
            versions: versions.into(),
        };
        let (peers, events) = Peers::start(config).await.unwrap();
        let (peers, port, stop) =
            (Arc::new(peers), Arc::new(Remembered::default()), CancellationToken::new());
        let mut replica = ReplicaConfig::new(name, incarnation);
        replica.regions = vec!["eu".into(), "us".into()];
        // Seven of a thousand would not be worth a word.
        replica.suppresses_reports = false;
        let task = tokio::spawn(sync::run(
            Arc::clone(&port) as Arc<dyn WorldPort>,
            Arc::clone(&peers),
            events,
            replica,
            stop.clone(),
        ));
        Self { port, peers, stop, task }
    }

    async fn end(self) {
        self.stop.cancel();
        self.task.await.unwrap();
        self.peers.stop(Duration::from_secs(2)).await;
    }
}

async fn eventually(what: &str, is: impl Fn() -> bool) {
    for _ in 0..300 {
        if is() {
            return;
        }
        sleep(Duration::from_millis(20)).await;
    }
    panic!("never: {what}");
}

#[tokio::test]
async fn what_one_region_admits_the_other_is_told() {
    let ca = create_ca(Clock::System.now()).unwrap();
    let eu = Region::start(&ca, "eu", None).await;
    let us = Region::start(&ca, "us", Some(&eu)).await;
    eventually("they see each other", || {
        [&eu, &us].iter().all(|region| {
            let status = region.port.status();
            status.cut_off.is_empty() && status.peers.iter().any(|peer| peer.connected && peer.lag.is_some())
        })
    })
    .await;
    eu.port.admit(7);
    eventually("seven are told", || us.port.others() == 7).await;
    eu.port.admit(5);
    us.port.admit(100);
    eventually("twelve are told", || us.port.others() == 12).await;
    eventually("a hundred are told back", || eu.port.others() == 100).await;

    sleep(Duration::from_millis(450)).await;
    let status = us.port.status();
    let peer = &status.peers[0];
    assert!(peer.live && peer.rtt.is_some() && peer.bytes.0 > 0 && peer.bytes.1 > 0, "{peer:?}");
    // One clock for both: whatever a busy machine adds, it is not minutes.
    assert!(peer.ahead.is_some_and(|micros| micros.unsigned_abs() < 60_000_000), "{peer:?}");
    assert_eq!(status.buckets, [(bucket(), std::iter::once(("eu".to_owned(), 12)).collect())]);
    assert!(us.port.counted("eu sent") > 0 && us.port.counted("eu received") > 0);
    assert!(us.port.counted("updates") > 10);

    // Who goes in good order is seen going; who is gone is seen to be silent.
    us.peers.leave(Duration::from_secs(1)).await;
    eventually("draining is told", || eu.port.status().peers.iter().any(|peer| peer.draining)).await;
    us.end().await;
    eventually("it is dead", || eu.port.status().peers.iter().all(|peer| !peer.live && !peer.connected))
        .await;
    eu.end().await;
}

/// A region whose daemon has the wire version before the newest counts with the others, in `gossip` and in
/// `escrow`, and goes on to do so when it is upgraded.
#[tokio::test]
async fn a_region_of_the_older_wire_version_counts_with_the_others_until_it_is_upgraded_and_after() {
    let ca = create_ca(Clock::System.now()).unwrap();
    let eu = Region::start(&ca, "eu", None).await;
    let us = Region::start_speaking(&[WireVersion::PREVIOUS], &ca, "us", Some(&eu)).await;
    let spoken = |version| {
        let speaks = move |region: &Region| {
            let status = region.port.status();
            status.cut_off.is_empty()
                && status.peers.iter().any(|peer| peer.version == Some(version) && peer.lag.is_some())
        };
        move |regions: [&Region; 2]| regions.into_iter().all(speaks)
    };
    eventually("both speak the older", || spoken(WireVersion::PREVIOUS)([&eu, &us])).await;
    eu.port.admit(7);
    us.port.admit(100);
    eventually("a hundred are told", || eu.port.others() == 100).await;
    eventually("seven are told", || us.port.others() == 7).await;
    assert_eq!([raised(&eu.port.refused), raised(&us.port.refused)], [[], [] as [&str; 0]]);
    us.end().await;
    let us = Region::start(&ca, "us", Some(&eu)).await;
    eventually("both speak the newest", || spoken(WireVersion::NEWEST)([&eu, &us])).await;
    us.port.admit(20);
    eventually("no count is lost", || eu.port.others() == 120).await;
    // Its store knows nothing of the hundred that its process before had admitted.
    eventually("in neither direction", || us.port.others() == 107).await;
    us.end().await;
    eu.end().await;
}

#[tokio::test]
async fn a_region_that_falls_silent_is_cut_off_and_its_return_is_noticed() {
    let ca = create_ca(Clock::System.now()).unwrap();
    let eu = Region::start(&ca, "eu", None).await;
    let us = Region::start(&ca, "us", Some(&eu)).await;
    us.port.admit(9);
    eventually("nine are told", || eu.port.others() == 9).await;
    us.end().await;
    eventually("us is cut off", || eu.port.status().cut_off == ["us"]).await;
    let us = Region::start(&ca, "us", Some(&eu)).await;
    eventually("us is back", || eu.port.status().cut_off.is_empty()).await;
    us.port.admit(3);
    // What the one before it admitted stays counted.
    eventually("both are counted", || eu.port.others() == 12).await;
    us.end().await;
    eu.end().await;
}

fn report(scope: Scope, rule: &str, admitted: u64, stamp: Timestamp) -> Report {
    let subject = Subject {
        rule: RuleName { domain: "default".into(), name: rule.into() },
        identity: b"u_42".to_vec(),
        scope,
        counters: vec![Counter { node: "us-1".into(), since: Timestamp(1) }],
        decided_by: DecidedBy::Unknown,
    };
    Report {
        key_id: 1,
        subject: Some(subject),
        window: stamp.window_index(WINDOW),
        stamp,
        amounts: std::iter::once(Amount { admitted, returned: 0 }).collect(),
        demand: 0,
    }
}

/// A region, and what another one speaks to its daemon with: the test speaks for that one.
async fn linked() -> (Region, Arc<Peers>, NodeName) {
    let ca = create_ca(Clock::System.now()).unwrap();
    let eu = Region::start(&ca, "eu", None).await;
    let us = Region::start(&ca, "us", Some(&eu)).await;
    eventually("they see each other", || {
        let status = us.port.status();
        status.peers.iter().any(|peer| peer.connected && peer.lag.is_some())
    })
    .await;
    let Region { peers, stop, task, .. } = us;
    stop.cancel();
    task.await.unwrap();
    (eu, peers, NodeName { region: "eu".into(), node: "eu-1".into() })
}

/// A member with a good certificate sends what no honest one would: each is counted by its reason, and none
/// of it counts.
#[tokio::test]
async fn lies_of_a_member_are_refused_and_counted_by_reason() {
    let (eu, peers, to) = linked().await;
    // A process that began later than the one before.
    let incarnation = Clock::System.now().micros() / 1_000;
    let mut seq = 0;
    let mut send = |reports: Vec<Report>, ahead: Span| {
        seq += 1;
        let now = Clock::System.now();
        let (sent, crowded) = (now + ahead, CrowdedRules::NONE);
        let frame = Frame { incarnation, seq, sent, seen: None, slowest: Span::ZERO, crowded, reports };
        peers.send(&to, &frame);
        frame
    };
    let us_region = || Scope::Region("us".into());
    let now = || Clock::System.now();

    let good = send(vec![report(us_region(), "search", 20, now())], Span::ZERO);
    eventually("twenty are believed", || eu.port.others() == 20).await;
    peers.send(&to, &good);
    eu.port.passes_over("duplicate").await;
    send(vec![report(us_region(), "search", 30, now())], Span::from_secs(60));
    eu.port.refuses("future").await;
    send(vec![report(Scope::Region("ap".into()), "search", 30, now())], Span::ZERO);
    eu.port.refuses("foreign").await;
    send(vec![report(us_region(), "nothing", 30, now())], Span::ZERO);
    eu.port.refuses("unknown_rule").await;
    send(vec![report(us_region(), "search", 19, now())], Span::ZERO);
    eu.port.refuses("backwards").await;
    let mut old = report(us_region(), "search", 30, now());
    old.window -= 5;
    send(vec![old], Span::ZERO);
    eu.port.refuses("other_window").await;
    assert_eq!(eu.port.others(), 20);
    send(vec![report(us_region(), "search", 21, now())], Span::ZERO);
    eventually("the truth is still believed", || eu.port.others() == 21).await;
    // What a region with a lost store may truly have done, or a lie: heard, and believed up to twice the
    // limit.
    send(vec![report(us_region(), "search", 1_000_000, now())], Span::ZERO);
    eu.port.refuses("beyond_limit").await;
    eventually("no more than twice the limit is believed", || eu.port.others() == 2_000).await;
    // An alarm is what no honest member sends, and nothing else: what came twice is none.
    let alarms = ["backwards", "beyond_limit", "foreign", "future", "other_window", "unknown_rule"];
    assert_eq!(raised(&eu.port.refused), alarms);
    assert_eq!(raised(&eu.port.passed_over), ["duplicate"]);
    peers.stop(Duration::from_secs(2)).await;
    eu.end().await;
}

/// The same of rights: what cannot be true is not taken, and counted by its reason.
#[tokio::test]
async fn rights_that_cannot_be_are_not_taken_and_counted_by_reason() {
    let (eu, peers, to) = linked().await;
    let send = |transfer: Transfer| {
        let frame =
            RightsFrame { sent: Clock::System.now(), statements: Vec::new(), transfers: vec![transfer] };
        peers.send_rights(&to, &frame);
    };
    let transfer = |permits: u64| Transfer {
        rule: seats().rule,
        identity: seats().identity,
        kind: RightKind::Window(Clock::System.now().window_index(WINDOW)),
        session: 9,
        to_session: SESSION,
        permits,
        limit: CountedLimit::default(),
    };

    send(Transfer { rule: RuleName { name: "nothing".into(), ..seats().rule }, ..transfer(1) });
    eu.port.refuses("rights_unknown_rule").await;
    let sent = Clock::System.now() + Span::from_secs(60);
    peers.send_rights(&to, &RightsFrame { sent, statements: Vec::new(), transfers: vec![transfer(1)] });
    eu.port.refuses("future").await;
    let early = RightKind::Window(Clock::System.now().window_index(WINDOW) + 9);
    send(Transfer { kind: early, ..transfer(1) });
    eu.port.passes_over("rights_window").await;
    // The rule counts windows here.
    send(Transfer { kind: RightKind::Level, ..transfer(1) });
    let unknown = || eu.port.refused.lock().unwrap().get("rights_unknown_rule").copied();
    eventually("it is counted with those of unknown rules", || unknown() == Some(2)).await;
    // Half of the limit is its share, and nobody gave it more.
    send(transfer(501));
    eu.port.refuses("rights_beyond").await;
    assert_eq!(eu.port.counted("taken"), 0);
    send(transfer(500));
    eventually("500 are taken", || eu.port.counted("taken") > 0).await;
    let meant_for_another = Transfer { to_session: SESSION - 1, ..transfer(1) };
    send(meant_for_another);
    eu.port.refuses("rights_fenced").await;
    assert_eq!(eu.port.counted("taken"), 500);
    let alarms = ["future", "rights_beyond", "rights_fenced", "rights_unknown_rule"];
    assert_eq!(raised(&eu.port.refused), alarms);
    assert_eq!(raised(&eu.port.passed_over), ["rights_window"]);
    peers.stop(Duration::from_secs(2)).await;
    eu.end().await;
}

/// Whoever has no certificate of the cluster's authority gets no word in.
#[tokio::test]
async fn frames_from_outside_the_cluster_do_nothing_but_raise_a_counter() {
    let ca = create_ca(Clock::System.now()).unwrap();
    let eu = Region::start(&ca, "eu", None).await;
    let stranger = Region::start(&create_ca(Clock::System.now()).unwrap(), "us", Some(&eu)).await;
    stranger.port.admit(700);
    // Every counter is there from the start, at zero.
    let refused = || {
        let raised = raised(&eu.port.refused);
        ["handshake", "certificate", "identity", "tls"].iter().any(|why| raised.contains(&(*why).to_owned()))
    };
    eventually("the stranger is refused", refused).await;
    assert_eq!(eu.port.others(), 0);
    assert!(eu.port.status().peers.is_empty());
    stranger.end().await;
    eu.end().await;
}
