//! `sim cluster`: the daemon's own network code (`tidegate::peer` with quinn, TLS, the codec and the driver
//! of the protocol) on a simulated UDP network, run twice: the same seed must send the same packets at the
//! same instants.
//!
//! Membership is scripted, since chitchat draws from the machine's randomness; so do TLS's keys, which change
//! bytes but no lengths: certificates are Ed25519, whose signatures are all equally long.

mod port;
mod socket;

use std::collections::BTreeMap;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use clap::Args;
use rcgen::{
    BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, PKCS_ED25519, SanType, SerialNumber,
};
use tidegate::core::algorithm::Algorithm;
use tidegate::core::regions::{NodeName, ReplicaConfig};
use tidegate::core::rule::OnPartition;
use tidegate::core::time::Span;
use tidegate::core::wire::WireVersion;
use tidegate::peer::{Member, Peers, PeersConfig, TlsPem, Wire, identity, sync};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use self::port::{Port, SharedPort, virtual_now};
use self::socket::{Socket, Trace};
use crate::model::shell::{RuleInForce, Store};
use crate::number::{float, place};
use crate::pattern::Pattern;
use crate::plan::{Plan, RulePlan, Way};
use crate::virtual_world::{Dice, Weather};

const PORT: u16 = 7_946;
/// The name that every certificate of ours bears, beside the node's own.
const SERVER_NAME: &str = tidegate::peer::certificate::SERVER_NAME;
/// In percent: daemons that do not hear each other go 50 % above the limit with this demand, or more.
const OVERSHOOT_MAX: f64 = 5.0;
/// The time between two requests to a host.
const BEAT: Duration = Duration::from_millis(10);

/// The cluster.
#[derive(Debug, Clone, Args)]
pub(crate) struct Settings {
    /// Regions, of one daemon each.
    #[arg(long, default_value_t = 3)]
    regions: usize,
    /// Longest one-way delay; the shortest is half of it.
    #[arg(long, default_value = "40ms", value_parser = crate::patterns::span)]
    delay: Span,
    /// Percent of packets lost.
    #[arg(long, default_value_t = 1.0)]
    loss: f64,
    /// Permits per second worldwide; three times as much is asked for.
    #[arg(long, default_value_t = 1_000)]
    limit: u32,
    /// Virtual seconds.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// The last region is cut off in the middle third.
    #[arg(long)]
    cut: bool,
    /// So many regions have daemons of the wire version before the newest.
    #[arg(long, default_value_t = 0)]
    older: usize,
    /// Chooses everything that looks random.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// The figures of a run.
#[derive(Debug, Default, Clone, PartialEq)]
struct Run {
    packets: Vec<(u64, SocketAddr, SocketAddr, usize)>,
    /// By window: permits admitted worldwide.
    admitted: BTreeMap<u64, u64>,
    frames: u64,
    refused: u64,
}

/// Runs the cluster twice.
pub(crate) fn run(settings: &Settings, out: &mut impl Write) -> anyhow::Result<()> {
    ensure!((2..=10).contains(&settings.regions), "--regions takes 2 to 10");
    ensure!(settings.older <= settings.regions, "--older takes no more than --regions");
    // Only the first caller's is installed; all install the same.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let (one, other) = (once(settings)?, once(settings)?);
    let bytes: usize = one.packets.iter().map(|(.., len)| len).sum();
    writeln!(
        out,
        "{} daemons over simulated UDP for {} s, {} ms, {} % loss: {} packets, {bytes} bytes, {} frames handled, {} refused",
        settings.regions,
        settings.seconds,
        settings.delay.0 / 1_000,
        settings.loss,
        one.packets.len(),
        one.frames,
        one.refused
    )?;
    let windows: Vec<u64> = one.admitted.values().copied().collect();
    let whole = windows.get(2..windows.len().saturating_sub(1)).unwrap_or_default();
    let limit = float(u64::from(settings.limit));
    let worst = whole.iter().map(|&admitted| float(admitted) / limit * 100.0 - 100.0).fold(0.0, f64::max);
    let used: f64 = whole.iter().map(|&admitted| float(admitted).min(limit) / limit * 100.0).sum();
    writeln!(
        out,
        "{} whole windows: worst overshoot {worst:.2} %, use {:.2} %",
        whole.len(),
        used / float(place(whole.len().max(1)))
    )?;
    ensure!(!whole.is_empty() && one.frames > 0, "the daemons did not speak with each other");
    ensure!(one.refused == 0, "{} messages were refused", one.refused);
    let together = settings.older == 0 || settings.cut || worst < OVERSHOOT_MAX;
    ensure!(together, "daemons of two wire versions went {worst:.2} % above the limit");
    let same = one.packets.iter().zip(&other.packets).take_while(|(a, b)| a == b).count();
    if one != other {
        return Err(anyhow!(
            "the second run was another one: packets differ from number {same} on: {:?} and {:?}",
            one.packets.get(same),
            other.packets.get(same)
        ));
    }
    writeln!(out, "run again: the same {} packets at the same instants", one.packets.len())?;
    Ok(())
}

fn once(settings: &Settings) -> anyhow::Result<Run> {
    let mut sim = turmoil::Builder::new()
        .simulation_duration(Duration::from_secs(settings.seconds + 60))
        .tick_duration(Duration::from_millis(1))
        .min_message_latency(settings.delay.to_std() / 2)
        .max_message_latency(settings.delay.to_std())
        .fail_rate(0.0)
        .udp_capacity(10_000)
        .rng_seed(settings.seed)
        .build();
    let trace = Trace::default();
    let admitted = Arc::new(Mutex::new(BTreeMap::<u64, u64>::new()));
    let authority = Authority::new()?;
    let plan = plan(settings)?;
    let rule = RuleInForce::new(&plan, Way::Gossip)?;
    let names: Vec<NodeName> = (0..settings.regions)
        .map(|at| NodeName { region: format!("region-{at}"), node: "n0".to_owned() })
        .collect();
    let ports: Vec<SharedPort> = names
        .iter()
        .map(|name| Arc::new(Port::new(Store::new(&plan), rule.clone(), name.region.clone())))
        .collect();
    for (at, name) in names.iter().enumerate() {
        let host = Host {
            at,
            name: name.clone(),
            names: names.clone(),
            tls: authority.issue(name)?,
            port: Arc::clone(&ports[at]),
            trace: Arc::clone(&trace),
            admitted: Arc::clone(&admitted),
            seed: settings.seed,
            // Three times the limit, evenly, in beats of 10 ms.
            per_beat: f64::from(settings.limit) * 3.0 / 100.0 / float(place(settings.regions)),
            loss: settings.loss / 100.0,
            is_older: at < settings.older,
        };
        sim.client(host_name(at), host.run(Duration::from_secs(settings.seconds)));
    }
    let third = Duration::from_secs(settings.seconds) / 3;
    let last = host_name(settings.regions - 1);
    let (mut is_cut, mut done) = (false, false);
    while !done {
        done = sim.step().map_err(|error| anyhow!("{error}"))?;
        let cut = settings.cut && (third..third * 2).contains(&sim.elapsed());
        if cut != is_cut {
            is_cut = cut;
            for other in (0..settings.regions - 1).map(host_name) {
                if cut { sim.partition(last.as_str(), other) } else { sim.repair(last.as_str(), other) }
            }
        }
    }
    let packets = std::mem::take(&mut *trace.lock().unwrap_or_else(PoisonError::into_inner));
    let admitted = std::mem::take(&mut *admitted.lock().unwrap_or_else(PoisonError::into_inner));
    let counts = ports.iter().map(|port| *port.counts.lock().unwrap_or_else(PoisonError::into_inner));
    let (frames, refused) = counts.fold((0, 0), |(a, b), (c, d)| (a + c, b + d));
    Ok(Run { packets, admitted, frames, refused })
}

fn host_name(at: usize) -> String {
    format!("region-{at}")
}

fn plan(settings: &Settings) -> anyhow::Result<Plan> {
    let window = Span::from_secs(1);
    let rule = RulePlan {
        limit: settings.limit,
        window,
        algorithm: Algorithm::FixedWindow,
        burst: settings.limit,
        on_partition: OnPartition::Share,
        wait: Span::from_millis(100),
    };
    let pattern = Pattern::parse("bal3", settings.regions, window).context("a pattern of ours")?;
    let weather = Weather::spread(settings.regions, settings.delay, &mut Dice::new(settings.seed, 3));
    Ok(Plan::ordinary(settings.regions, rule, pattern, weather))
}

/// Everything that one host begins with.
struct Host {
    at: usize,
    name: NodeName,
    names: Vec<NodeName>,
    tls: TlsPem,
    port: SharedPort,
    trace: Trace,
    admitted: Arc<Mutex<BTreeMap<u64, u64>>>,
    seed: u64,
    per_beat: f64,
    loss: f64,
    is_older: bool,
}

impl Host {
    async fn run(self, length: Duration) -> turmoil::Result {
        let here = SocketAddr::new(turmoil::lookup(host_name(self.at)), PORT);
        let unspecified = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), PORT);
        let inner = turmoil::net::UdpSocket::bind(unspecified).await?;
        let dice = Dice::new(self.seed, 40 + place(self.at));
        let socket = Socket::new(inner, here, Arc::clone(&self.trace), dice, self.loss);
        let mut seed = [u8::try_from(self.at).unwrap_or(0); 32];
        seed[..8].copy_from_slice(&self.seed.to_le_bytes());
        let wire = Wire::simulated(Arc::new(quinn::TokioRuntime), Arc::new(socket), seed);
        let incarnation = virtual_now().0 / 1_000;
        let config = PeersConfig {
            listen: here,
            advertise: Some(here),
            join: Vec::new(),
            name: self.name.clone(),
            incarnation,
            gossip_interval: tidegate::peer::GOSSIP_INTERVAL_DEFAULT,
            tls: self.tls.clone(),
            tracer: None,
            versions: if self.is_older { vec![WireVersion::PREVIOUS] } else { WireVersion::SPOKEN.into() },
        };
        let others = self.names.iter().enumerate().filter(|(at, _)| *at != self.at);
        let members: Vec<Member> = others.map(|(at, name)| member(at, name)).collect();
        let (_named, members) = watch::channel(members);
        let (peers, events) = Peers::start_among(config, wire, members)?;
        let replica = ReplicaConfig {
            regions: self.names.iter().map(|name| name.region.clone()).collect(),
            ..ReplicaConfig::new(self.name.clone(), incarnation)
        };
        let stop = CancellationToken::new();
        let port: Arc<dyn tidegate::engine::world::WorldPort> = Arc::clone(&self.port) as _;
        let driver = tokio::spawn(sync::run(port, Arc::new(peers), events, replica, stop.clone()));
        self.demand(length).await;
        stop.cancel();
        driver.await?;
        Ok(())
    }

    async fn demand(&self, length: Duration) {
        let mut dice = Dice::new(self.seed, 20 + place(self.at));
        let mut beats = tokio::time::interval(BEAT);
        while turmoil::elapsed() < length {
            beats.tick().await;
            for _ in 0..dice.poisson(self.per_beat) {
                if let Some(window) = self.port.ask(0) {
                    let mut admitted = self.admitted.lock().unwrap_or_else(PoisonError::into_inner);
                    *admitted.entry(window).or_default() += 1;
                }
            }
        }
    }
}

fn member(at: usize, name: &NodeName) -> Member {
    Member {
        name: name.clone(),
        address: SocketAddr::new(turmoil::lookup(host_name(at)), PORT),
        incarnation: 1,
        draining: false,
        sees_capacity: true,
        live: true,
        shares: None,
        rules: None,
        regions: None,
        region_changes: None,
        region_orders: None,
        digests: None,
    }
}

/// Issues certificates whose signatures are all equally long.
struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> anyhow::Result<Self> {
        let key = KeyPair::generate_for(&PKCS_ED25519)?;
        let mut params = CertificateParams::new(Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.serial_number = Some(SerialNumber::from(1_u64));
        let pem = params.self_signed(&key)?.pem();
        Ok(Self { pem, issuer: Issuer::new(params, key) })
    }

    fn issue(&self, node: &NodeName) -> anyhow::Result<TlsPem> {
        let key = KeyPair::generate_for(&PKCS_ED25519)?;
        let mut params = CertificateParams::new(vec![SERVER_NAME.to_owned()])?;
        params.subject_alt_names.push(SanType::URI(identity::uri(node).try_into()?));
        params.serial_number = Some(SerialNumber::from(2_u64));
        let certificate = params.signed_by(&key, &self.issuer)?;
        Ok(TlsPem {
            ca: self.pem.clone().into_bytes(),
            cert: certificate.pem().into_bytes(),
            key: key.serialize_pem().into_bytes(),
            revoked: Vec::new(),
        })
    }
}
