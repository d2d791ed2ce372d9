//! This daemon among the others: its QUIC endpoint and the task that drives the protocol between regions.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Context;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::setup::{PeersSetup, Setup, read_tls};
use super::shares::Shares;
use super::store::Opened;
use crate::config::PeerTls;
use crate::core::worldwide::ReplicaConfig;
use crate::engine::Engine;
use crate::engine::world::WorldPort;
use crate::peer::{GOSSIP_INTERVAL_DEFAULT, Member, Peers, PeersConfig, sync};

/// The part of a daemon that speaks with other daemons.
pub(super) struct World {
    peers: Arc<Peers>,
    address: SocketAddr,
    tls_files: Option<PeerTls>,
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
        tasks: &mut JoinSet<()>,
    ) -> anyhow::Result<Self> {
        let incarnation = engine.now().micros() / 1_000;
        let config = PeersConfig {
            listen: peers.listen,
            advertise: resolve(peers.advertise.as_deref()).await?,
            join: peers.join.clone(),
            name: setup.name.clone(),
            incarnation,
            gossip_interval: GOSSIP_INTERVAL_DEFAULT,
            tls: peers.tls.clone(),
        };
        let (peers_handle, events) = Peers::start(config).await?;
        let peers_handle = Arc::new(peers_handle);
        let address = peers_handle.bound().context("the peer socket has no address")?;
        let replica = ReplicaConfig {
            regions: setup.regions.clone(),
            interval: setup.interval,
            shared_store: store.is_shared(),
            ..ReplicaConfig::new(setup.name.clone(), incarnation)
        };
        let stop = stop.child_token();
        let port: Arc<dyn WorldPort> = Arc::clone(engine) as _;
        tasks.spawn(sync::run(port, Arc::clone(&peers_handle), events, replica, stop.clone()));
        let shares = Shares {
            engine: Arc::clone(engine),
            peers: Arc::clone(&peers_handle),
            path: setup.shares.clone(),
        };
        tasks.spawn(shares.run(stop.clone()));
        let siblings = Siblings {
            region: setup.name.region.clone(),
            live: Arc::clone(&store.live),
            shared_store: store.is_shared(),
        };
        tasks.spawn(siblings.watch(peers_handle.members(), stop.clone()));
        Ok(Self { peers: peers_handle, address, tls_files: peers.tls_files.clone(), stop })
    }

    /// The handle to the others.
    pub(super) const fn peers(&self) -> &Arc<Peers> {
        &self.peers
    }

    /// The bound UDP address.
    pub(super) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Reads the certificates again; links made from then on use them. What is wrong is logged, and the old ones stay.
    pub(super) async fn reload_certificates(&self) {
        let Some(files) = self.tls_files.clone() else { return };
        let read = tokio::task::spawn_blocking(move || read_tls(&files)).await;
        let replaced = match read {
            Ok(Ok(tls)) => self.peers.reload(&tls).map_err(anyhow::Error::from),
            Ok(Err(error)) => Err(error),
            Err(error) => Err(error.into()),
        };
        match replaced {
            Ok(()) => tracing::info!("new links use the certificates as they are now"),
            Err(error) => tracing::error!("the certificates were not replaced: {error:#}"),
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
    let found = tokio::net::lookup_host(text)
        .await
        .with_context(|| format!("peers.advertise: {text} is not known"))?
        .next()
        .with_context(|| format!("peers.advertise: {text} has no address"))?;
    Ok(Some(found))
}

/// The other daemons of this region.
struct Siblings {
    region: String,
    /// How many daemons of this region are alive, this one included.
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
            // With buckets in memory each daemon counts for itself, so a second one admits the limit once more.
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
