//! The node that serves each slot, in each of the four topologies, and a task that looks again when something
//! is wrong.

mod sentinel;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use redis::{ConnectionInfo, IntoConnectionInfo, RedisConnectionInfo, Value};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use self::sentinel::InForce;
use crate::store::redis::client::dial::SharedTls;
use crate::store::redis::client::dial::can_dial;
use crate::store::redis::client::failure::Failure;
use crate::store::redis::client::ring;
use crate::store::redis::client::slots::{ClusterSlot, SLOTS};
use crate::store::redis::servers::inspect;
use crate::store::redis::servers::map::Map;
use crate::store::redis::servers::node::{Common, Node, address_of, elsewhere};
use crate::store::redis::settings::{RedisSettings, StartError, Topology};

/// For one question about the topology.
pub(in crate::store::redis) const QUESTION_MAX: Duration = Duration::from_millis(250);
/// Between looks while all is well.
const LOOK_CALM: Duration = Duration::from_secs(5);
/// Between looks while something is wrong.
const LOOK_TROUBLE: Duration = Duration::from_millis(200);
/// Nodes that a cluster may tell of. More: those are ignored.
const NODES_MAX: usize = 1_000;

/// The topology as last seen.
pub(in crate::store::redis) struct Places {
    topology: Topology,
    master: String,
    seeds: Vec<ConnectionInfo>,
    /// Settings of the servers that the listed ones name, at an address of no meaning.
    named: ConnectionInfo,
    common: Common,
    known: Mutex<HashMap<String, Arc<Node>>>,
    /// Seeds of a cluster, sentinels: asked, but not for decisions.
    advisers: Vec<Arc<Node>>,
    map: ArcSwap<Map>,
    in_force: Mutex<InForce>,
}

impl std::fmt::Debug for Places {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Places").field("topology", &self.topology).finish_non_exhaustive()
    }
}

impl Places {
    /// Reads the addresses and begins to connect.
    pub(in crate::store::redis) fn new(
        settings: &RedisSettings,
        common: Common,
    ) -> Result<Arc<Self>, StartError> {
        let topology = settings.topology;
        let seeds = settings.nodes.iter().map(|url| read_seed(url)).collect::<Result<Vec<_>, _>>()?;
        let Some(first) = seeds.first() else { return Err(StartError::NoNodes) };
        let named = with_auth(first, settings.sentinel_master_auth.as_deref());
        if topology == Topology::Single && seeds.len() > 1 {
            return Err(StartError::TooManyNodes);
        }
        let places = Self {
            topology,
            master: settings.sentinel_master.clone(),
            seeds,
            named,
            common,
            known: Mutex::default(),
            advisers: Vec::new(),
            map: ArcSwap::from_pointee(Map::empty()),
            in_force: Mutex::default(),
        };
        Ok(places.begin())
    }

    fn begin(mut self) -> Arc<Self> {
        let start = |info: &ConnectionInfo| Node::start(info.clone(), &self.common);
        match self.topology {
            Topology::Single | Topology::Ring => {
                let nodes = self.seeds.iter().map(start).collect::<Vec<_>>();
                let addresses: Vec<String> = nodes.iter().map(|node| node.address.clone()).collect();
                let slots = ring::place(&addresses);
                self.map = ArcSwap::from_pointee(Map { nodes, slots, replicas: Vec::new() });
            }
            Topology::Cluster => {
                let nodes = self.seeds.iter().map(start).collect::<Vec<_>>();
                let known = nodes.iter().map(|node| (node.address.clone(), Arc::clone(node))).collect();
                self.known = Mutex::new(known);
                self.advisers = nodes;
            }
            Topology::Sentinel => {
                // A sentinel is asked with the nodes' own user and password, but has no databases.
                self.advisers = self.seeds.iter().map(start).collect::<Vec<_>>();
            }
        }
        Arc::new(self)
    }

    /// Returns how the servers are arranged.
    pub(in crate::store::redis) const fn topology(&self) -> Topology {
        self.topology
    }

    /// Returns those that are asked only for the others.
    pub(in crate::store::redis) fn advisers(&self) -> &[Arc<Node>] {
        &self.advisers
    }

    /// The topology as last seen.
    pub(in crate::store::redis) fn map(&self) -> arc_swap::Guard<Arc<Map>> {
        self.map.load()
    }

    /// True if keys of different slots may go in one call to one node.
    pub(in crate::store::redis) const fn joins_slots(&self) -> bool {
        !matches!(self.topology, Topology::Cluster)
    }

    /// Asks for a new look.
    pub(in crate::store::redis) fn trouble(&self) {
        self.common.trouble.notify_one();
    }

    /// The node at `host:port`, which a cluster has named.
    pub(in crate::store::redis) fn named(&self, address: &str) -> Option<Arc<Node>> {
        let (host, port) = address.rsplit_once(':')?;
        let port = port.parse().ok()?;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(node) = known.get(address) {
            return Some(Arc::clone(node));
        }
        if known.len() >= NODES_MAX || host.is_empty() {
            return None;
        }
        let info = elsewhere(&self.named, host, port);
        let node = Node::start(info, &self.common);
        known.insert(address.to_owned(), Arc::clone(&node));
        Some(node)
    }

    /// Takes note that a slot has moved, until the next look.
    pub(in crate::store::redis) fn moved(&self, slot: ClusterSlot, to: &Arc<Node>) {
        let map = self.map.load();
        let mut nodes = map.nodes.clone();
        let place = nodes.iter().position(|node| Arc::ptr_eq(node, to)).unwrap_or_else(|| {
            nodes.push(Arc::clone(to));
            nodes.len() - 1
        });
        let mut slots = map.slots.clone();
        if let (Some(own), Ok(place)) = (slots.get_mut(usize::from(slot.0)), u16::try_from(place)) {
            *own = place;
        }
        let replicas = map.replicas.clone();
        self.map.store(Arc::new(Map { nodes, slots, replicas }));
    }

    /// Looks again, now and then, and soon where there is trouble. Ends with the store.
    pub(in crate::store::redis) async fn watch(
        self: Arc<Self>,
        stop: CancellationToken,
        trouble: Arc<Notify>,
    ) {
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                _ = timeout(LOOK_CALM, trouble.notified()) => {}
            }
            if let Err(failure) = self.look().await {
                tracing::debug!(%failure, "cannot see the topology");
                trouble.notify_one();
            } else if !self.is_well() {
                trouble.notify_one();
            }
            self.inspect_newly_connected().await;
            sleep(LOOK_TROUBLE).await;
        }
    }

    /// Looks whether servers that came back are still enough. A server that is not enough is told, and asked
    /// all the same.
    async fn inspect_newly_connected(&self) {
        let map = self.map.load_full();
        for node in map.nodes().iter().filter(|node| node.is_connected()) {
            let Some(inspected) = self.inspect(node, &map).await else { continue };
            node.unsuitable(inspected.err().map(|error| error.to_string()).as_deref());
        }
    }

    /// Checks whether a connected server can do what is needed; asked once for each connection, `None` where
    /// it was.
    pub(in crate::store::redis) async fn inspect(
        &self,
        node: &Arc<Node>,
        map: &Map,
    ) -> Option<Result<(), StartError>> {
        if !node.notes.begin_inspection() {
            return None;
        }
        let identified = inspect::identify(node, self.topology).await;
        Some(match identified {
            Ok(()) => inspect::try_script(node, map, self.topology).await,
            refused => refused,
        })
    }

    fn is_well(&self) -> bool {
        let map = self.map.load();
        !map.nodes.is_empty()
            && map
                .nodes
                .iter()
                .all(|node| node.phase() == crate::store::redis::client::breaker::Phase::Closed)
    }

    /// Looks once.
    pub(in crate::store::redis) async fn look(&self) -> Result<(), Failure> {
        match self.topology {
            Topology::Single | Topology::Ring => Ok(()),
            Topology::Cluster => self.look_at_cluster().await,
            Topology::Sentinel => self.look_at_sentinels().await,
        }
    }

    async fn look_at_cluster(&self) -> Result<(), Failure> {
        let mut advisers: Vec<Arc<Node>> = self.map.load().nodes.clone();
        advisers.extend(self.advisers.iter().cloned());
        advisers.extend(self.known.lock().unwrap_or_else(PoisonError::into_inner).values().cloned());
        let mut last = Failure::NoNode;
        // A frozen node costs the whole wait, so those that are well go first.
        advisers.sort_by_key(|node| node.phase() == crate::store::redis::client::breaker::Phase::Open);
        for adviser in &advisers {
            let answer = adviser.upkeep(redis::cmd("CLUSTER").arg("SLOTS"), QUESTION_MAX).await;
            match answer.and_then(|value| self.read_slots(&value, adviser)) {
                Ok(map) => {
                    self.replace(map);
                    return Ok(());
                }
                Err(failure) => last = failure,
            }
        }
        Err(last)
    }

    fn read_slots(&self, value: &Value, adviser: &Node) -> Result<Map, Failure> {
        let own_host = adviser.address.rsplit_once(':').map_or("", |(host, _)| host);
        let mut map = Map::empty();
        let Value::Array(ranges) = value else { return Err(Failure::NoNode) };
        for range in ranges {
            let Some(Range { from, to, primary, replicas }) = read_range(range, own_host) else { continue };
            for replica in replicas.into_iter().take(NODES_MAX) {
                if !map.replicas.contains(&replica) {
                    map.replicas.push(replica);
                }
            }
            let Some(node) = self.named(&primary) else { continue };
            let place = map.nodes.iter().position(|own| Arc::ptr_eq(own, &node)).unwrap_or_else(|| {
                map.nodes.push(node);
                map.nodes.len() - 1
            });
            if let (Some(slots), Ok(place)) = (map.slots.get_mut(from..=to), u16::try_from(place)) {
                slots.fill(place);
            }
        }
        if map.nodes.is_empty() { Err(Failure::NoNode) } else { Ok(map) }
    }

    /// Puts a map in force and lets go of nodes that nothing names any more.
    fn replace(&self, map: Map) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let kept =
            |node: &Arc<Node>| map.nodes.iter().chain(&self.advisers).any(|own| Arc::ptr_eq(own, node));
        known.retain(|_, node| {
            let keep = kept(node);
            if !keep {
                node.stop();
            }
            keep
        });
        drop(known);
        self.map.store(Arc::new(map));
    }

    /// Puts the primary at `host:port` in force.
    pub(in crate::store::redis) fn name_primary(&self, address: &str) -> Result<(), Failure> {
        let node = self.named(address).ok_or(Failure::NoNode)?;
        if self.map.load().nodes().first().is_some_and(|own| Arc::ptr_eq(own, &node)) {
            return Ok(());
        }
        tracing::info!(master = %node.address, "sentinel names the primary");
        self.replace(Map { nodes: vec![node], slots: vec![0; SLOTS], replicas: Vec::new() });
        Ok(())
    }

    /// Returns what the sentinels call the primary.
    pub(in crate::store::redis) fn primary_name(&self) -> &str {
        &self.master
    }

    /// Returns which of their words is in force.
    pub(in crate::store::redis) const fn in_force(&self) -> &Mutex<InForce> {
        &self.in_force
    }

    /// Returns how to connect to the server that is listed at this place.
    pub(in crate::store::redis) fn seed(&self, place: usize) -> Option<(&ConnectionInfo, &SharedTls)> {
        Some((self.seeds.get(place)?, &self.common.tls))
    }

    /// Returns the time since the store was started.
    pub(in crate::store::redis) fn elapsed(&self) -> Duration {
        self.common.started.elapsed()
    }

    /// `host:port` of the servers that are listed.
    pub(in crate::store::redis) fn listed(&self) -> Vec<String> {
        self.seeds.iter().map(address_of).collect()
    }

    /// Nodes to ask at the start whether they are good enough.
    pub(in crate::store::redis) fn witnesses(&self) -> Vec<Arc<Node>> {
        let map = self.map.load();
        if map.nodes.is_empty() { self.advisers.clone() } else { map.nodes.clone() }
    }
}

/// The same settings with another user and password, as `user:password` or `password`; `None`: the same.
fn with_auth(info: &ConnectionInfo, auth: Option<&str>) -> ConnectionInfo {
    let Some(auth) = auth else { return info.clone() };
    let settings = RedisConnectionInfo::default().set_db(info.redis_settings().db());
    let settings = match auth.split_once(':') {
        Some((user, password)) => settings.set_username(user).set_password(password),
        None => settings.set_password(auth),
    };
    info.clone().set_redis_settings(settings)
}

/// Reads an address. One that cannot be read is told without what may be a password.
fn read_seed(url: &str) -> Result<ConnectionInfo, StartError> {
    let shown = url.split_once('?').map_or(url, |(before, _)| before);
    let refused = |why: String| match (shown.split_once("://"), shown.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => StartError::Address(format!("{scheme}://…@{host}"), why),
        _ => StartError::Address(shown.to_owned(), why),
    };
    let info = url.into_connection_info().map_err(|error| refused(error.to_string()))?;
    can_dial(&info).map_err(|why| refused(why.to_owned()))?;
    Ok(info)
}

/// One range of `CLUSTER SLOTS`.
struct Range {
    from: usize,
    to: usize,
    /// Address of the primary, as `host:port`.
    primary: String,
    replicas: Vec<String>,
}

fn read_range(range: &Value, own_host: &str) -> Option<Range> {
    let Value::Array(range) = range else { return None };
    let [Value::Int(from), Value::Int(to), primary, replicas @ ..] = range.as_slice() else { return None };
    Some(Range {
        from: usize::try_from(*from).ok()?,
        to: usize::try_from(*to).ok()?,
        primary: read_address(primary, own_host)?,
        replicas: replicas.iter().filter_map(|replica| read_address(replica, own_host)).collect(),
    })
}

fn read_address(server: &Value, own_host: &str) -> Option<String> {
    let Value::Array(server) = server else { return None };
    let [host, Value::Int(port), ..] = server.as_slice() else { return None };
    let host = match host {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::SimpleString(text) => text.clone(),
        _ => String::new(),
    };
    let host = if host.is_empty() { own_host } else { &host };
    Some(format!("{host}:{port}"))
}
