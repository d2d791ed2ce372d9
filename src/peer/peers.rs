//! The handle: start, send, look, leave, stop.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::codec;
use super::contacts::Contacts;
use super::counters::Counters;
use super::endpoint::Endpoint;
use super::gossip::{Carrier, Roster};
use super::inbound::{self, Inbox};
use super::join;
use super::link::{LinkContext, LinkStatus};
use super::links::Links;
use super::membership::{Facts, Member, Membership};
use super::tls::{self, TlsError, TlsPem};
use crate::core::wire::Frame;
use crate::core::worldwide::NodeName;

/// How often membership is gossiped unless the configuration says otherwise.
pub const GOSSIP_INTERVAL_DEFAULT: Duration = Duration::from_millis(250);
/// Events waiting to be read. Full: frames are dropped and counted, and the list of members is told later.
pub const EVENTS_LEN_MAX: usize = 4_096;
/// Gossip waiting to be read. Full: it is dropped and counted.
const GOSSIP_LEN_MAX: usize = 1_024;

/// How a node meets the others.
#[derive(Debug, Clone)]
pub struct PeersConfig {
    /// The UDP address to bind.
    pub listen: SocketAddr,
    /// Where the others can dial us, if not at the bound address.
    pub advertise: Option<SocketAddr>,
    /// Where to find the cluster: addresses, or names with a port. Our own may be among them.
    pub join: Vec<String>,
    /// Who we are; our certificate must say the same.
    pub name: NodeName,
    /// When this process began, in ms since the epoch. Must grow with every start.
    pub incarnation: u64,
    /// How often membership is gossiped.
    pub gossip_interval: Duration,
    /// Certificates.
    pub tls: TlsPem,
}

/// Why a node cannot meet the others.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The certificates cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The socket cannot be bound.
    #[error("the peer address {address} cannot be bound: {source}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// Nobody could dial us at such an address.
    #[error("the others cannot dial {0}: set peers.advertise to an address that they can reach")]
    Advertise(SocketAddr),
    /// An address to join through is none.
    #[error("{0:?} in peers.join is not an address or name with a port")]
    Join(String),
    /// The membership could not begin.
    #[error("the membership could not begin: {0}")]
    Membership(String),
}

/// Something from the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerEvent {
    /// A frame.
    Frame {
        /// Who sent it, by certificate.
        from: NodeName,
        /// What it says.
        frame: Frame,
        /// Its length on the wire.
        bytes: usize,
    },
    /// The members have changed: all of them but ourselves.
    Members(Vec<Member>),
}

/// This node among the others. Dropping it ends everything without a word to the peers; [`Self::stop`] tells them.
pub struct Peers {
    endpoint: Arc<Endpoint>,
    links: Arc<Links>,
    contacts: Arc<Contacts>,
    counters: Arc<Counters>,
    facts: Arc<Facts>,
    members: watch::Receiver<Vec<Member>>,
    advertise: SocketAddr,
    gossip_interval: Duration,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl std::fmt::Debug for Peers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Peers")
            .field("name", &self.facts.name)
            .field("advertise", &self.advertise)
            .finish_non_exhaustive()
    }
}

impl Peers {
    /// Binds the socket and begins to look for the others. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// If the certificates, the address or the names cannot be used. That nobody is there is no error.
    pub async fn start(config: PeersConfig) -> Result<(Self, mpsc::Receiver<PeerEvent>), StartError> {
        let sides = tls::sides(&config.tls, &config.name)?;
        check_join(&config.join)?;
        let counters = Arc::new(Counters::default());
        let unbound = |source| StartError::Bind { address: config.listen, source };
        let endpoint = Endpoint::bind(config.listen, sides, Arc::clone(&counters)).map_err(unbound)?;
        let bound = endpoint.local_addr().map_err(unbound)?;
        let advertise = config.advertise.unwrap_or(bound);
        if advertise.ip().is_unspecified() || advertise.port() == 0 {
            return Err(StartError::Advertise(advertise));
        }
        let (endpoint, contacts) = (Arc::new(endpoint), Arc::new(Contacts::default()));
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let context = LinkContext {
            endpoint: Arc::clone(&endpoint),
            counters: Arc::clone(&counters),
            own: config.name.clone(),
        };
        let links = Arc::new(Links::new(context, vec![advertise, bound], tasks.clone(), stop.clone()));

        let (events, events_receiver) = mpsc::channel(EVENTS_LEN_MAX);
        let (gossip, gossip_receiver) = mpsc::channel(GOSSIP_LEN_MAX);
        let inbox = Inbox {
            own: config.name.clone(),
            events: events.clone(),
            gossip,
            contacts: Arc::clone(&contacts),
            links: Arc::clone(&links),
            counters: Arc::clone(&counters),
        };
        let facts = Arc::new(Facts {
            name: config.name,
            incarnation: config.incarnation,
            draining: AtomicBool::new(false),
            revision: AtomicU64::new(0),
            changed: Notify::new(),
        });
        let (addresses, names) = join::split(&config.join);
        let (resolved, join): (_, watch::Receiver<BTreeSet<SocketAddr>>) = watch::channel(addresses.clone());
        let (members_sender, members) = watch::channel(Vec::new());
        let membership = Membership {
            facts: Arc::clone(&facts),
            carrier: Carrier {
                links: Arc::clone(&links),
                inbox: Arc::new(tokio::sync::Mutex::new(gossip_receiver)),
                roster: Arc::new(Roster::default()),
                counters: Arc::clone(&counters),
                advertise,
            },
            contacts: Arc::clone(&contacts),
            join,
            interval: config.gossip_interval.max(Duration::from_millis(10)),
            members: members_sender,
            events,
        };
        let gossip_interval = membership.interval;
        let handle = membership.begin(0).await.map_err(|error| StartError::Membership(error.to_string()))?;
        tasks.spawn(membership.run(handle, stop.clone()));
        tasks.spawn(inbound::accept(Arc::clone(&endpoint), Arc::new(inbox), tasks.clone(), stop.clone()));
        tasks.spawn(stop.clone().run_until_cancelled_owned(join::resolve(addresses, names, resolved)));
        let peers = Self {
            endpoint,
            links,
            contacts,
            counters,
            facts,
            members,
            advertise,
            gossip_interval,
            tasks,
            stop,
        };
        Ok((peers, events_receiver))
    }

    /// Sends a frame to a node. Never waits and never fails: what cannot be sent is dropped and counted, and a later
    /// frame carries its sums.
    pub fn send(&self, to: &NodeName, frame: &Frame) {
        match codec::encode_frame(frame) {
            Ok(bytes) => {
                self.links.send(to, bytes);
            }
            Err(why) => self.counters.refuse(why),
        }
    }

    /// The other nodes, kept current.
    #[must_use]
    pub fn members(&self) -> watch::Receiver<Vec<Member>> {
        self.members.clone()
    }

    /// What every link is doing.
    #[must_use]
    pub fn links(&self) -> Vec<LinkStatus> {
        let mut links: Vec<_> = self.links.all().iter().map(|link| link.status()).collect();
        for link in &mut links {
            link.received_bytes = link.peer.as_ref().map_or(0, |peer| self.contacts.received_bytes(peer));
        }
        links
    }

    /// What went wrong, counted.
    #[must_use]
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// Where the others dial us.
    #[must_use]
    pub fn advertised(&self) -> SocketAddr {
        self.advertise
    }

    /// The bound UDP address.
    #[must_use]
    pub fn bound(&self) -> Option<SocketAddr> {
        self.endpoint.local_addr().ok()
    }

    /// New connections use these certificates from now on; open ones go on as they are.
    ///
    /// # Errors
    /// If they cannot be used or name another node; the old ones then stay in force.
    pub fn reload(&self, tls: &TlsPem) -> Result<(), TlsError> {
        self.endpoint.replace(tls::sides(tls, &self.facts.name)?);
        Ok(())
    }

    /// Tells the others which revision of the rules is in force here.
    pub fn set_revision(&self, revision: u64) {
        if self.facts.revision.swap(revision, Ordering::Relaxed) != revision {
            self.facts.changed.notify_one();
        }
    }

    /// Tells the others that this node is about to go, so that it owns no keys any more, and gives them the time to
    /// hear it, but no more than `deadline`. It still sends and receives afterwards, until [`Self::stop`].
    pub async fn leave(&self, deadline: Duration) {
        self.facts.draining.store(true, Ordering::Relaxed);
        self.facts.changed.notify_one();
        // The news takes one round trip and a half to those who are asked at once, and spreads with the intervals after.
        sleep(self.gossip_interval.saturating_mul(2).max(Duration::from_millis(300)).min(deadline)).await;
    }

    /// Closes every connection, telling the peers, and waits for all of it to end, but no longer than `deadline`.
    pub async fn stop(self, deadline: Duration) {
        self.stop.cancel();
        self.endpoint.close();
        self.tasks.close();
        let ended = timeout(deadline, async {
            self.tasks.wait().await;
            self.endpoint.closed().await;
        });
        if ended.await.is_err() {
            tracing::warn!("connections to peers did not end in time");
        }
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        self.stop.cancel();
        self.endpoint.close();
    }
}

fn check_join(join: &[String]) -> Result<(), StartError> {
    let names_a_port = |text: &String| {
        text.parse::<SocketAddr>().is_ok()
            || text.rsplit_once(':').is_some_and(|(name, port)| {
                !name.is_empty()
                    && !name.contains([':', '/', ' '])
                    && port.parse::<u16>().is_ok_and(|port| port > 0)
            })
    };
    match join.iter().find(|text| !names_a_port(text)) {
        Some(text) => Err(StartError::Join(text.clone())),
        None => Ok(()),
    }
}
