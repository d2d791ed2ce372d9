//! This daemon among the others: its QUIC endpoint and the task that drives the protocol between regions.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::setup::{PeersSetup, Setup, read_tls};
use crate::config::PeerTls;
use crate::core::worldwide::ReplicaConfig;
use crate::engine::Engine;
use crate::engine::world::WorldPort;
use crate::peer::{GOSSIP_INTERVAL_DEFAULT, Peers, PeersConfig, sync};

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
            ..ReplicaConfig::new(setup.name.clone(), incarnation)
        };
        let stop = stop.child_token();
        let port: Arc<dyn WorldPort> = Arc::clone(engine) as _;
        tasks.spawn(sync::run(port, Arc::clone(&peers_handle), events, replica, stop.clone()));
        tasks.spawn(warn_of_siblings(Arc::clone(&peers_handle), setup.name.region.clone(), stop.clone()));
        Ok(Self { peers: peers_handle, address, tls_files: peers.tls_files.clone(), stop })
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

/// With buckets in memory each daemon counts for itself, so a second one in the region admits the limit once more.
async fn warn_of_siblings(peers: Arc<Peers>, region: String, stop: CancellationToken) {
    let mut members = peers.members();
    drop(peers);
    let mut warned = false;
    loop {
        let sibling = members
            .borrow_and_update()
            .iter()
            .find(|member| member.live && member.name.region == region)
            .map(|member| member.name.node.clone());
        match sibling {
            Some(node) if !warned => {
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
