//! The handle: start, send, look, leave, stop.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use rustls::pki_types::CertificateDer;
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::chitchat::{Carrier, Roster};
use super::codec;
use super::contacts::Contacts;
use super::counters::Counters;
use super::endpoint::{self, Endpoint, Wire};
use super::inbound::{self, Inbox};
use super::join;
use super::link::{LinkContext, LinkStatus};
use super::links::Links;
use super::membership::{self, Facts, Member, Membership};
use super::operator::{self, NotOperator};
use super::rules::{self, FetchError, RulesStatement, SavedRules};
use super::strangers::Strangers;
use super::tls::{self, TlsError, TlsPem};
use super::trust::Trust;
use crate::core::region_list::{RegionChanges, RegionOrder};
use crate::core::regions::NodeName;
use crate::core::regions::compared::Digests;
use crate::core::regions::split::WeightsStatement;
use crate::core::wire::rights::RightsFrame;
use crate::core::wire::{Frame, WireVersion};
use crate::engine::tasks::Tasks;
use crate::telemetry::traces::Tracer;

/// Time between two rounds of gossip on membership unless the configuration says otherwise.
pub const GOSSIP_INTERVAL_DEFAULT: Duration = Duration::from_millis(250);
/// Events waiting to be read. Full: frames are dropped and counted, and the list of members is told later.
pub const EVENTS_LEN_MAX: usize = 4_096;
/// Messages of `chitchat` waiting to be read. Full: it is dropped and counted.
const CHITCHAT_LEN_MAX: usize = 1_024;

/// Longest wait for connections to have said that they are over.
const FAREWELL: Duration = Duration::from_millis(200);

/// The settings by which a node meets the others.
#[derive(Debug, Clone)]
pub struct PeersConfig {
    /// UDP address that the daemon binds for the others.
    pub listen: SocketAddr,
    /// Address at which the others can dial us, if not the bound one.
    pub advertise: Option<SocketAddr>,
    /// Places to find the cluster at: addresses, or names with a port. Our own may be among them.
    pub join: Vec<String>,
    /// Our own name; our certificate must say the same.
    pub name: NodeName,
    /// Begin of this process, in ms since the epoch. Must grow with every start.
    pub incarnation: u64,
    /// Time between two rounds of gossip on membership.
    pub gossip_interval: Duration,
    /// Certificates and key by which daemons admit each other.
    pub tls: TlsPem,
    /// The tracer that takes spans; `None`: nobody is told any.
    pub tracer: Option<Arc<Tracer>>,
    /// The wire versions to speak, the newest first: all that there are, but where a test plays an older
    /// daemon.
    pub versions: Vec<WireVersion>,
}

/// Reasons why a node cannot meet the others.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The certificates cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The socket cannot be bound.
    #[error("the peer address {address} cannot be bound: {reason}")]
    Bind {
        /// UDP address that could not be bound.
        address: SocketAddr,
        /// Reason that the operating system gives.
        reason: std::io::Error,
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
    /// A node sent rights, or said what its region holds.
    Rights {
        /// Node that sent it, by its certificate.
        from: NodeName,
        /// Statements and transfers that the node sent.
        frame: RightsFrame,
    },
    /// A frame.
    Frame {
        /// Node that sent it, by its certificate.
        from: NodeName,
        /// Counts and acknowledgements that the node sent.
        frame: Frame,
        /// Length of the frame on the wire, in bytes.
        bytes: usize,
    },
    /// The members have changed: all of them but ourselves.
    Members(Vec<Member>),
}

/// Tells when other certificates are accepted than before.
pub struct TrustChanges(watch::Receiver<Arc<Trust>>);

impl TrustChanges {
    /// Waits for the next change.
    ///
    /// # Errors
    /// There will be none.
    pub async fn changed(&mut self) -> Result<(), watch::error::RecvError> {
        self.0.changed().await
    }
}

/// This node among the others. Dropping it ends everything without a word to the peers; [`Self::stop`] tells
/// them.
pub struct Peers {
    ground: Ground,
    facts: Arc<Facts>,
    members: watch::Receiver<Vec<Member>>,
    /// The addresses and names to join through.
    wanted: watch::Sender<Vec<String>>,
    joins: watch::Receiver<BTreeSet<SocketAddr>>,
    gossip_interval: Duration,
}

/// The parts that everything else needs: the socket, the links, and the tasks that end together.
struct Ground {
    endpoint: Arc<Endpoint>,
    links: Arc<Links>,
    contacts: Arc<Contacts>,
    counters: Arc<Counters>,
    rules: Arc<SavedRules>,
    advertise: SocketAddr,
    versions: Vec<WireVersion>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Ground {
    fn lay(config: &PeersConfig, wire: Option<Wire>) -> Result<Self, StartError> {
        let sides = tls::sides(&config.tls, &config.name, &config.versions)?;
        check_join(&config.join)?;
        let counters = Arc::new(Counters::default());
        let unbound = |reason| StartError::Bind { address: config.listen, reason };
        let wire = wire.map_or_else(|| Wire::bind(config.listen), Ok).map_err(unbound)?;
        let endpoint = Endpoint::on(wire, sides, Arc::clone(&counters)).map_err(unbound)?;
        let bound = endpoint.local_addr().map_err(unbound)?;
        let advertise = config.advertise.unwrap_or(bound);
        if advertise.ip().is_unspecified() || advertise.port() == 0 {
            return Err(StartError::Advertise(advertise));
        }
        let endpoint = Arc::new(endpoint);
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let context = LinkContext {
            endpoint: Arc::clone(&endpoint),
            counters: Arc::clone(&counters),
            own: config.name.clone(),
            tracer: config.tracer.clone(),
        };
        let links = Arc::new(Links::new(context, vec![advertise, bound], tasks.clone(), stop.clone()));
        Ok(Self {
            endpoint,
            links,
            contacts: Arc::default(),
            counters,
            rules: Arc::default(),
            advertise,
            versions: config.versions.clone(),
            tasks,
            stop,
        })
    }

    fn inbox(
        &self,
        own: NodeName,
        events: mpsc::Sender<PeerEvent>,
        chitchat: mpsc::Sender<(SocketAddr, Bytes)>,
    ) -> Inbox {
        Inbox {
            own,
            events,
            chitchat,
            contacts: Arc::clone(&self.contacts),
            links: Arc::clone(&self.links),
            counters: Arc::clone(&self.counters),
            rules: Arc::clone(&self.rules),
            strangers: Strangers::default(),
            versions: self.versions.clone(),
        }
    }

    fn carrier(&self, chitchat: mpsc::Receiver<(SocketAddr, Bytes)>) -> Carrier {
        Carrier {
            links: Arc::clone(&self.links),
            inbox: Arc::new(tokio::sync::Mutex::new(chitchat)),
            roster: Arc::new(Roster::default()),
            counters: Arc::clone(&self.counters),
            advertise: self.advertise,
        }
    }
}

impl std::fmt::Debug for Peers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Peers")
            .field("name", &self.facts.name)
            .field("advertise", &self.ground.advertise)
            .finish_non_exhaustive()
    }
}

impl Peers {
    /// Binds the socket and begins to look for the others. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// If the certificates, the address or the names cannot be used. That nobody is there is no error.
    pub async fn start(config: PeersConfig) -> Result<(Self, mpsc::Receiver<PeerEvent>), StartError> {
        Self::start_in(&Tasks::default(), config).await
    }

    /// The same, its tasks watched among these.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub async fn start_in(
        tasks: &Tasks,
        config: PeersConfig,
    ) -> Result<(Self, mpsc::Receiver<PeerEvent>), StartError> {
        let said = config.name.clone();
        Self::start_saying(tasks, config, said).await
    }

    /// Starts on a wire of the caller's, among members that the caller names: for simulations, where nothing
    /// may depend on chance that the seed does not choose. Nothing is gossiped.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_among(
        config: PeersConfig,
        wire: Wire,
        named: watch::Receiver<Vec<Member>>,
    ) -> Result<(Self, mpsc::Receiver<PeerEvent>), StartError> {
        let ground = Ground::lay(&config, Some(wire))?;
        let (events, events_receiver) = mpsc::channel(EVENTS_LEN_MAX);
        let (chitchat, _) = mpsc::channel(CHITCHAT_LEN_MAX);
        let facts = Facts::new(config.name.clone(), config.incarnation, Arc::clone(&ground.rules));
        let facts = Arc::new(facts);
        let inbox = Arc::new(ground.inbox(config.name, events.clone(), chitchat));
        let Ground { endpoint, tasks, stop, links, .. } = &ground;
        let follow = follow(named.clone(), Arc::clone(links), events);
        tasks.spawn(stop.clone().run_until_cancelled_owned(follow));
        tasks.spawn(inbound::accept(Arc::clone(endpoint), inbox, tasks.clone(), stop.clone()));
        let gossip_interval = config.gossip_interval;
        let ((wanted, _), (_, joins)) = (watch::channel(Vec::new()), watch::channel(BTreeSet::new()));
        Ok((Self { ground, facts, members: named, wanted, joins, gossip_interval }, events_receiver))
    }

    /// Starts, and gossips under a name that tests choose to be another's.
    async fn start_saying(
        watched: &Tasks,
        config: PeersConfig,
        said: NodeName,
    ) -> Result<(Self, mpsc::Receiver<PeerEvent>), StartError> {
        let ground = Ground::lay(&config, None)?;
        let (events, events_receiver) = mpsc::channel(EVENTS_LEN_MAX);
        let (chitchat, chitchat_receiver) = mpsc::channel(CHITCHAT_LEN_MAX);
        let inbox = Arc::new(ground.inbox(config.name, events.clone(), chitchat));
        let (addresses, _) = join::split(&config.join);
        let (resolved, join) = watch::channel(addresses);
        let (wanted, wants) = watch::channel(config.join);
        let (members_sender, members) = watch::channel(Vec::new());
        let joins = join.clone();
        let membership = Arc::new(Membership {
            facts: Arc::new(Facts::new(said, config.incarnation, Arc::clone(&ground.rules))),
            carrier: ground.carrier(chitchat_receiver),
            contacts: Arc::clone(&ground.contacts),
            join,
            interval: config.gossip_interval.max(Duration::from_millis(10)),
            members: members_sender,
            events,
            restarts: AtomicU64::new(0),
        });
        let (facts, gossip_interval) = (Arc::clone(&membership.facts), membership.interval);
        let handle = membership.begin().await.map_err(|error| StartError::Membership(error.to_string()))?;
        let Ground { endpoint, tasks, stop, .. } = &ground;
        // A task that begins again finds no handle, and begins the gossip again, too.
        let (ending, mut handle) = (stop.clone(), Some(handle));
        watched.spawn("peer_membership", stop, move || {
            Arc::clone(&membership).run(handle.take(), ending.clone())
        });
        let (endpoint, tasks, ending) = (Arc::clone(endpoint), tasks.clone(), stop.clone());
        watched.spawn("peer_connections", stop, move || {
            inbound::accept(Arc::clone(&endpoint), Arc::clone(&inbox), tasks.clone(), ending.clone())
        });
        let (ending, resolved) = (stop.clone(), Arc::new(resolved));
        watched.spawn("peer_names", stop, move || {
            let resolving = join::resolve(wants.clone(), Arc::clone(&resolved));
            let ending = ending.clone();
            async move {
                let _ = ending.run_until_cancelled_owned(resolving).await;
            }
        });
        Ok((Self { ground, facts, members, wanted, joins, gossip_interval }, events_receiver))
    }

    /// Sends a frame to a node. Never waits and never fails: what cannot be sent is dropped and counted, and
    /// a later frame carries its sums.
    pub fn send(&self, to: &NodeName, frame: &Frame) {
        self.ground.links.send(to, |version| codec::encode_frame(version, frame));
    }

    /// Sends a frame of rights, alike: what is lost is said again.
    pub fn send_rights(&self, to: &NodeName, frame: &RightsFrame) {
        self.ground.links.send(to, |version| codec::encode_rights(version, frame));
    }

    /// The other nodes, kept current.
    #[must_use]
    pub fn members(&self) -> watch::Receiver<Vec<Member>> {
        self.members.clone()
    }

    /// Returns what every link is doing.
    #[must_use]
    pub fn links(&self) -> Vec<LinkStatus> {
        let mut links: Vec<_> = self.ground.links.all().iter().map(|link| link.status()).collect();
        for link in &mut links {
            link.received_bytes =
                link.peer.as_ref().map_or(0, |peer| self.ground.contacts.received_bytes(peer));
        }
        links
    }

    /// Returns what went wrong, counted.
    #[must_use]
    pub fn counters(&self) -> &Arc<Counters> {
        &self.ground.counters
    }

    /// Returns where the others dial us.
    #[must_use]
    pub fn advertised(&self) -> SocketAddr {
        self.ground.advertise
    }

    /// The bound UDP address.
    #[must_use]
    pub fn bound(&self) -> Option<SocketAddr> {
        self.ground.endpoint.local_addr().ok()
    }

    /// New connections use these certificates from now on. Open ones go on, unless the other's certificate is
    /// not accepted any more: its authority is gone, or a list revokes it.
    ///
    /// # Errors
    /// If they cannot be used or name another node; the old ones then stay in force.
    pub fn reload(&self, tls: &TlsPem) -> Result<(), TlsError> {
        self.ground.endpoint.replace(tls::sides(tls, &self.facts.name, &self.ground.versions)?);
        Ok(())
    }

    /// Tells the others which weights of `split` rules are held here.
    pub fn set_shares(&self, word: WeightsStatement) {
        let before = self.facts.shares.lock().unwrap_or_else(PoisonError::into_inner).replace(word);
        if before != Some(word) {
            self.facts.changed.notify_one();
        }
    }

    /// Tells the others which regions this daemon lists.
    pub fn set_regions(&self, regions: &[String]) {
        self.set_fact(&self.facts.regions, membership::list(regions));
    }

    /// Tells the others what this daemon knows of changes of the regions that are listed.
    pub fn set_region_changes(&self, changes: &RegionChanges) {
        self.set_fact(&self.facts.region_changes, Some(changes.text()).filter(|text| !text.is_empty()));
        self.set_fact(&self.facts.region_orders, Some(changes.orders()).filter(|text| !text.is_empty()));
    }

    /// Nodes that are connected from two places at once, so that two daemons have one certificate, and these
    /// places.
    #[must_use]
    pub fn twice(&self) -> Vec<(NodeName, BTreeSet<SocketAddr>)> {
        self.ground.contacts.twice()
    }

    /// Returns which operator signed a change of a region.
    ///
    /// # Errors
    /// None did.
    pub fn operator_of(&self, order: &RegionOrder) -> Result<String, NotOperator> {
        operator::verify(&self.ground.endpoint.trust().borrow(), order)
    }

    /// True if a list of the cluster's authority revokes a certificate.
    #[must_use]
    pub fn is_revoked(&self, certificate: &[u8]) -> bool {
        self.ground.endpoint.trust().borrow().is_revoked(&[CertificateDer::from_slice(certificate)])
    }

    /// Tells the others what the worldwide rules in force here are like.
    pub fn set_digests(&self, digests: &Digests) {
        self.set_fact(&self.facts.digests, Some(digests.text()));
    }

    fn set_fact(&self, fact: &Mutex<Option<String>>, text: Option<String>) {
        let mut fact = fact.lock().unwrap_or_else(PoisonError::into_inner);
        if *fact != text {
            *fact = text;
            self.facts.changed.notify_one();
        }
    }

    /// Joins through these addresses and names from now on. Members that were found stay.
    ///
    /// # Errors
    /// One of them is no address and no name with a port: nothing changes.
    pub fn set_join(&self, join: Vec<String>) -> Result<(), StartError> {
        check_join(&join)?;
        self.wanted.send_if_modified(|wanted| {
            let changed = *wanted != join;
            *wanted = join;
            changed
        });
        Ok(())
    }

    /// The addresses to join through, as far as they are known: those of this daemon itself left out.
    #[must_use]
    pub fn joins(&self) -> BTreeSet<SocketAddr> {
        let joins = self.joins.borrow().clone();
        joins.into_iter().filter(|address| !self.ground.links.is_own(*address)).collect()
    }

    /// Tells the others which set of rules is in force here, and keeps its bytes for those who want them.
    pub fn offer_rules(&self, word: RulesStatement, bytes: Bytes) {
        self.ground.rules.put(word, bytes);
        self.facts.changed.notify_one();
    }

    /// Reads a set of rules from a node that gossips it, and the certificates that it shows.
    ///
    /// # Errors
    /// It did not come, or not whole.
    pub async fn fetch_rules(
        &self,
        from: &NodeName,
        word: RulesStatement,
        deadline: Duration,
    ) -> Result<(Vec<u8>, Vec<Vec<u8>>), FetchError> {
        let found = self.ground.links.connection(from);
        let (connection, version) = found.ok_or(FetchError::NotConnected)?;
        let chain = endpoint::chain_of(&connection).ok_or(FetchError::NotConnected)?;
        let chain = chain.iter().map(|certificate| certificate.to_vec()).collect();
        Ok((rules::fetch(connection, version, word, deadline).await?, chain))
    }

    /// True if certificates that were accepted before are still: no list revokes them, and their authority is
    /// one of the cluster's.
    #[must_use]
    pub fn still_accepts(&self, chain: &[Vec<u8>]) -> bool {
        let chain: Vec<_> = chain.iter().map(|der| CertificateDer::from_slice(der)).collect();
        self.ground.endpoint.trust().borrow().still_accepts(&chain).is_ok()
    }

    /// Changes when other certificates are accepted than before.
    #[must_use]
    pub fn trust_changes(&self) -> TrustChanges {
        TrustChanges(self.ground.endpoint.trust())
    }

    /// True if [`Self::leave`] was called.
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        self.facts.draining.load(Ordering::Relaxed)
    }

    /// Tells the others that this node is about to go, so that it owns no keys any more, and gives them the
    /// time to hear it, but no more than `deadline`. It still sends and receives afterwards, until
    /// [`Self::stop`].
    pub async fn leave(&self, deadline: Duration) {
        self.facts.draining.store(true, Ordering::Relaxed);
        self.facts.changed.notify_one();
        // The news takes one round trip and a half to those who are asked at once, and spreads with the
        // intervals after.
        sleep(self.gossip_interval.saturating_mul(2).max(Duration::from_millis(300)).min(deadline)).await;
    }

    /// Closes every connection, telling the peers, and waits for all of it to end, but no longer than
    /// `deadline`.
    pub async fn stop(&self, deadline: Duration) {
        self.ground.stop.cancel();
        self.ground.endpoint.close();
        self.ground.tasks.close();
        let ended = timeout(deadline, self.ground.tasks.wait());
        if ended.await.is_err() {
            tracing::warn!("work with peers did not end in time");
        }
        // The peers are told by what is sent now. To wait for their answers would only make stopping slower.
        let _ = timeout(deadline.min(FAREWELL), self.ground.endpoint.closed()).await;
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        self.ground.stop.cancel();
        self.ground.endpoint.close();
    }
}

/// Keeps links to those who are named, and tells of them.
async fn follow(mut named: watch::Receiver<Vec<Member>>, links: Arc<Links>, events: mpsc::Sender<PeerEvent>) {
    loop {
        let members = named.borrow_and_update().clone();
        links.keep_only(&members.iter().map(|member| member.address).collect());
        links.route(members.iter().map(|member| (member.name.clone(), member.address)));
        if events.send(PeerEvent::Members(members)).await.is_err() || named.changed().await.is_err() {
            return;
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::time::Timestamp;
    use crate::engine::clock::Clock;
    use crate::peer::certificate::{Authority, create_ca, issue};
    use crate::peer::counters::Refusal;

    fn now() -> Timestamp {
        Clock::System.now()
    }

    fn name(region: &str, node: &str) -> NodeName {
        NodeName { region: region.into(), node: node.into() }
    }

    fn config(ca: &Authority, name: &NodeName, join: Option<SocketAddr>) -> PeersConfig {
        let issued = issue(ca, name, now()).unwrap();
        PeersConfig {
            listen: "127.0.0.1:0".parse().unwrap(),
            advertise: None,
            join: join.iter().map(ToString::to_string).collect(),
            name: name.clone(),
            incarnation: 1,
            gossip_interval: Duration::from_millis(50),
            tls: TlsPem {
                ca: ca.certificate_pem().into(),
                cert: issued.certificate_pem.into(),
                key: issued.key_pem.into(),
                revoked: Vec::new(),
            },
            tracer: None,
            versions: WireVersion::SPOKEN.into(),
        }
    }

    #[tokio::test]
    async fn a_name_that_the_certificate_does_not_bear_out_is_never_listed() {
        let ca = create_ca(now()).unwrap();
        let (honest, _events) = Peers::start(config(&ca, &name("eu", "a"), None)).await.unwrap();
        let (other, _events_b) =
            Peers::start(config(&ca, &name("us", "b"), Some(honest.advertised()))).await.unwrap();
        let listed = || {
            let members = honest.members().borrow().clone();
            members.into_iter().map(|member| (member.name, member.address)).collect::<Vec<_>>()
        };
        let met = timeout(Duration::from_secs(5), async {
            while listed().is_empty() {
                sleep(Duration::from_millis(20)).await;
            }
        });
        met.await.unwrap();
        // One that invents a node in another region, and one that wants to be a node that is there.
        for said in [name("us", "ghost"), name("us", "b")] {
            let before = honest.counters().refused(Refusal::Impostor);
            let mallory = config(&ca, &name("ap", "mallory"), Some(honest.advertised()));
            let (mallory, _events_m) = Peers::start_saying(&Tasks::default(), mallory, said).await.unwrap();
            let counted = timeout(Duration::from_secs(5), async {
                while honest.counters().refused(Refusal::Impostor) == before {
                    sleep(Duration::from_millis(20)).await;
                }
            });
            counted.await.unwrap();
            sleep(Duration::from_millis(300)).await;
            assert_eq!(listed(), [(name("us", "b"), other.advertised())]);
            drop(mallory);
        }
    }

    #[test]
    fn addresses_to_join_through_are_checked_before_anything_is_bound() {
        for good in ["127.0.0.1:1", "[::1]:7946", "host:7946", "a.b.example:1"] {
            assert!(check_join(&[good.to_owned()]).is_ok(), "{good}");
        }
        for bad in ["", "host", ":1", "host:0", "host:99999", "::1", "http://host:1", "a b:1", "host:1:2"] {
            assert!(check_join(&[bad.to_owned()]).is_err(), "{bad}");
        }
    }
}
