//! This daemon among the others: its QUIC endpoint and the task that drives the protocol between regions.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::notices::Look;
use super::peer_certificates::{PeerCertificates, checked, named};
use super::setup::{PeersSetup, Setup};
use super::shares::Shares;
use super::store::Opened;
use crate::core::regions::ReplicaConfig;
use crate::core::wire::WireVersion;
use crate::engine::Engine;
use crate::engine::names;
use crate::engine::tasks::Tasks;
use crate::engine::world::WorldPort;
use crate::peer::{GOSSIP_INTERVAL_DEFAULT, Member, Peers, PeersConfig, sync};

/// Longest time to look up the name in `peers.advertise` at the start.
const ADVERTISE_MAX: Duration = Duration::from_secs(10);

/// The part of a daemon that speaks with other daemons.
pub(super) struct World {
    peers: Arc<Peers>,
    address: SocketAddr,
    /// Files of its certificates, if they come from files.
    certificates: Option<Arc<PeerCertificates>>,
    /// Stops the protocol, after it has told the others that this daemon goes.
    stop: CancellationToken,
}

impl World {
    pub(super) async fn start(
        setup: &Setup,
        peers: &PeersSetup,
        store: &Opened,
        engine: &Arc<Engine>,
        stop: &CancellationToken,
        tasks: &Tasks,
    ) -> anyhow::Result<Self> {
        let dates = checked(&peers.tls, peers.tls_files.as_ref(), engine.now())?;
        let incarnation = engine.now().micros() / 1_000;
        let config = PeersConfig {
            listen: peers.listen,
            advertise: resolve(peers.advertise.as_deref()).await?,
            join: peers.join.clone(),
            name: setup.name.clone(),
            incarnation,
            gossip_interval: GOSSIP_INTERVAL_DEFAULT,
            tls: peers.tls.clone(),
            tracer: engine.tracer().cloned(),
            versions: WireVersion::SPOKEN.into(),
        };
        let (peers_handle, events) =
            Peers::start_in(tasks, config).await.with_context(|| named(peers.tls_files.as_ref()))?;
        let peers_handle = Arc::new(peers_handle);
        let address = peers_handle.bound().context("the peer socket has no address")?;
        let replica = ReplicaConfig {
            regions: engine.regions().names.clone(),
            interval: setup.interval,
            keys_max: setup.world_keys_max,
            shared_store: store.is_shared(),
            ..ReplicaConfig::new(setup.name.clone(), incarnation)
        };
        let stop = stop.child_token();
        let port: Arc<dyn WorldPort> = Arc::clone(engine) as _;
        sync::start(tasks, port, Arc::clone(&peers_handle), events, replica, &stop);
        let shares = Shares {
            engine: Arc::clone(engine),
            peers: Arc::clone(&peers_handle),
            path: setup.shares.clone(),
            marks: store.marks().cloned(),
        };
        let ending = stop.clone();
        tasks.spawn("shares", &stop, move || shares.clone().run(ending.clone()));
        let siblings = Siblings {
            region: setup.name.region.clone(),
            live: Arc::clone(&store.live),
            shared_store: store.is_shared(),
        };
        let (members, ending) = (peers_handle.members(), stop.clone());
        tasks.spawn("siblings", &stop, move || siblings.clone().watch(members.clone(), ending.clone()));
        let dates = Arc::new(Mutex::new(dates));
        let look =
            Look { engine: Arc::clone(engine), peers: Arc::clone(&peers_handle), dates: Arc::clone(&dates) };
        let ending = stop.clone();
        tasks.spawn("notices", &stop, move || look.clone().run(ending.clone()));
        let certificates = peers.tls_files.clone().map(|files| {
            let (own, tls) = (Arc::clone(&peers_handle), peers.tls.clone());
            Arc::new(PeerCertificates::new(own, files, dates, tls))
        });
        if let Some(certificates) = &certificates {
            tasks.spawn_on("peer_tls", &stop, certificates, PeerCertificates::watch);
        }
        Ok(Self { peers: peers_handle, address, certificates, stop })
    }

    /// The handle to the others.
    pub(super) const fn peers(&self) -> &Arc<Peers> {
        &self.peers
    }

    /// The bound UDP address.
    pub(super) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Reads the certificates again, and uses them from now on. A fault is logged, and the old ones stay.
    pub(super) async fn reload_certificates(&self) {
        if let Some(certificates) = &self.certificates {
            certificates.reload().await;
        }
    }

    /// Tells the others that this daemon is about to go.
    pub(super) async fn leave(&self, deadline: Duration) {
        self.peers.leave(deadline).await;
    }

    /// Ends every link.
    pub(super) async fn stop(self, deadline: Duration) {
        self.stop.cancel();
        self.peers.stop(deadline).await;
    }
}

/// Looks up a host name.
async fn resolve(advertise: Option<&str>) -> anyhow::Result<Option<SocketAddr>> {
    let Some(text) = advertise else { return Ok(None) };
    if let Ok(address) = text.parse() {
        return Ok(Some(address));
    }
    let (host, port) = text.rsplit_once(':').context("peers.advertise must be host:port")?;
    let port = port.parse().with_context(|| format!("peers.advertise: {port:?} is no port"))?;
    let found = names::shared().addresses(host, ADVERTISE_MAX).await.context("peers.advertise")?;
    Ok(found.first().map(|address| SocketAddr::new(*address, port)))
}

/// The other daemons of this region.
#[derive(Clone)]
struct Siblings {
    region: String,
    /// Number of daemons of this region that are alive, this one included.
    live: Arc<AtomicUsize>,
    shared_store: bool,
}

impl Siblings {
    /// Counts them until `stop`, and warns of one that counts for itself.
    async fn watch(self, mut members: watch::Receiver<Vec<Member>>, stop: CancellationToken) {
        let mut warned = false;
        loop {
            let siblings: Vec<String> = members
                .borrow_and_update()
                .iter()
                .filter(|member| member.live && member.name.region == self.region)
                .map(|member| member.name.node.clone())
                .collect();
            self.live.store(siblings.len() + 1, Ordering::Relaxed);
            // With buckets in memory each daemon counts for itself, so a second one admits the limit once
            // more.
            match siblings.first().filter(|_| !self.shared_store) {
                Some(node) if !warned => {
                    let region = &self.region;
                    tracing::warn!(
                        region,
                        node,
                        "another daemon of this region is up: with the store in memory each counts for itself, so limits of the region alone hold for each of them"
                    );
                    warned = true;
                }
                Some(_) => {}
                None => warned = false,
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                changed = members.changed() => if changed.is_err() { return },
            }
        }
    }
}
