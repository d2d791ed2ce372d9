//! The members of the cluster: `chitchat`'s opinion, held against certificates.
//!
//! A node is listed once its certificate was seen, on a connection in either direction, and only while nobody
//! with another certificate answers at the address it is said to have. So a member of the cluster cannot
//! invent nodes or redirect them. It can still lie about facts: gossip is not signed, so a member can repeat,
//! delay or falsify the *facts* about a real node (that it drains, which of its processes it is, that it
//! still lives). Counts are not facts of gossip: they come from the node itself, on its own connection.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use chitchat::{Chitchat, ChitchatConfig, ChitchatHandle, ChitchatId, FailureDetectorConfig, NodeState};
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;

use super::PeerEvent;
use super::chitchat::Carrier;
use super::contacts::Contacts;
use super::counters::Refusal;
use super::identity;
use super::rules::{RulesStatement, SavedRules};
use crate::core::region_list::RegionChanges;
use crate::core::regions::NodeName;
use crate::core::regions::compared::Digests;
use crate::core::regions::split::{Birth, Phase, WeightsStatement};

/// The gossip of another cluster id is not answered. Certificates keep clusters apart and handshakes agree on
/// versions, so it never changes.
const CLUSTER_ID: &str = "tidegate/1";
/// A node is dead after this many mean intervals without a heartbeat.
const PHI_THRESHOLD: f64 = 8.0;
/// Dead nodes are remembered this long; a restarted one is a new one to `chitchat`.
const DEAD_KEPT: Duration = Duration::from_secs(600);
const DELETED_KEPT: Duration = Duration::from_secs(3_600);
/// A gossip task that died is started again after this long.
const RESTART_AFTER: Duration = Duration::from_secs(1);

const DRAINING: &str = "draining";
const SHARES: &str = "shares";
const RULES: &str = "rules";
const REGIONS: &str = "regions";
const REGION_CHANGES: &str = "region_changes";
const REGION_ORDERS: &str = "region_orders";
const DIGESTS: &str = "digests";
/// Said by every daemon whose version sees what capacity of sliding `escrow` rules is lent.
const CAPACITY: &str = "capacity";
const SEEN: &str = "seen";
/// A longer list of regions is not told.
const REGIONS_BYTES_MAX: usize = 4_096;

/// Another node of the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its region and node, as its certificate names them.
    pub name: NodeName,
    /// The address at which it is dialled.
    pub address: SocketAddr,
    /// Begin of its process, in ms since the epoch.
    pub incarnation: u64,
    /// True if it is shutting down.
    pub draining: bool,
    /// True if its version sees in a store what capacity of sliding `escrow` rules is lent.
    pub sees_capacity: bool,
    /// True if membership believes it alive.
    pub live: bool,
    /// Weights of `split` rules that it holds, once it has said so.
    pub shares: Option<WeightsStatement>,
    /// Set of rules that it decides by, if it has one to give.
    pub rules: Option<RulesStatement>,
    /// The regions that it lists, once it has said so.
    pub regions: Option<Vec<String>>,
    /// Changes that it knows of the regions that are listed. Nobody takes its word for them.
    pub region_changes: Option<RegionChanges>,
    /// The changes that operators signed, as they travel: see [`RegionChanges::read_orders`].
    pub region_orders: Option<Arc<str>>,
    /// Digests of its worldwide rules, once it has said them.
    pub digests: Option<Digests>,
}

/// The facts that we tell of ourselves.
#[derive(Debug)]
pub(super) struct Facts {
    pub(super) name: NodeName,
    pub(super) incarnation: u64,
    pub(super) draining: AtomicBool,
    pub(super) shares: Mutex<Option<WeightsStatement>>,
    pub(super) rules: Arc<SavedRules>,
    /// The regions that this daemon lists, what it knows of changes of them, and the digests of its rules, as
    /// they travel.
    pub(super) regions: Mutex<Option<String>>,
    pub(super) region_changes: Mutex<Option<String>>,
    pub(super) region_orders: Mutex<Option<String>>,
    pub(super) digests: Mutex<Option<String>>,
    /// Something of the above has changed.
    pub(super) changed: Notify,
}

impl Facts {
    pub(super) fn new(name: NodeName, incarnation: u64, rules: Arc<SavedRules>) -> Self {
        Self {
            name,
            incarnation,
            draining: AtomicBool::new(false),
            shares: Mutex::default(),
            rules,
            regions: Mutex::default(),
            region_changes: Mutex::default(),
            region_orders: Mutex::default(),
            digests: Mutex::default(),
            changed: Notify::new(),
        }
    }

    fn pairs(&self) -> Vec<(&'static str, String)> {
        let mut pairs =
            vec![(DRAINING, self.draining.load(Ordering::Relaxed).to_string()), (CAPACITY, SEEN.to_owned())];
        let shares = *self.shares.lock().unwrap_or_else(PoisonError::into_inner);
        pairs.extend(shares.map(|word| (SHARES, said(&word))));
        pairs.extend(self.rules.word().map(|word| (RULES, word.text())));
        let facts = [
            (REGIONS, &self.regions),
            (REGION_CHANGES, &self.region_changes),
            (REGION_ORDERS, &self.region_orders),
            (DIGESTS, &self.digests),
        ];
        for (key, fact) in facts {
            let fact = fact.lock().unwrap_or_else(PoisonError::into_inner).clone();
            pairs.extend(fact.map(|text| (key, text)));
        }
        pairs
    }
}

/// The task that keeps the list of members.
pub(super) struct Membership {
    pub(super) facts: Arc<Facts>,
    pub(super) carrier: Carrier,
    pub(super) contacts: Arc<Contacts>,
    pub(super) join: watch::Receiver<BTreeSet<SocketAddr>>,
    pub(super) interval: Duration,
    pub(super) members: watch::Sender<Vec<Member>>,
    pub(super) events: mpsc::Sender<PeerEvent>,
    /// Number of times that the gossip was begun again.
    pub(super) restarts: AtomicU64,
}

/// The gossip of one incarnation, which ends with whoever holds it.
struct Gossip(ChitchatHandle);

impl Drop for Gossip {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The state at the last look, to tell changes by.
#[derive(Default)]
struct Before {
    impostors: HashSet<ChitchatId>,
    /// A list that found no room in the channel.
    untold: bool,
}

impl Membership {
    /// Starts the gossip.
    pub(super) async fn begin(&self) -> anyhow::Result<ChitchatHandle> {
        let config = ChitchatConfig {
            chitchat_id: ChitchatId::new(
                identity::path(&self.facts.name),
                self.facts.incarnation.saturating_add(self.restarts.load(Ordering::Relaxed)),
                self.carrier.advertise,
            ),
            cluster_id: CLUSTER_ID.to_owned(),
            gossip_interval: self.interval,
            listen_addr: self.carrier.advertise,
            // Names are resolved here, not there: its look-up has no deadline.
            seed_nodes: Vec::new(),
            failure_detector_config: FailureDetectorConfig::new(
                PHI_THRESHOLD,
                100,
                Duration::from_secs(10),
                self.interval.saturating_mul(2),
                DEAD_KEPT,
            ),
            marked_for_deletion_grace_period: DELETED_KEPT,
            catchup_callback: None,
            extra_liveness_predicate: None,
        };
        let facts = self.facts.pairs().into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        chitchat::spawn_chitchat(config, facts, &self.carrier).await
    }

    /// Keeps the list until `stop`, starting the gossip again should it die. `begun`: the gossip, if it goes
    /// on already.
    pub(super) async fn run(self: Arc<Self>, begun: Option<ChitchatHandle>, stop: CancellationToken) {
        let mut begun = begun.map(Gossip);
        loop {
            if let Some(Gossip(handle)) = &begun {
                tokio::select! {
                    biased;
                    () = stop.cancelled() => return,
                    () = self.watch(handle) => {}
                }
                tracing::error!("the membership task died; starting it again");
            }
            drop(begun.take());
            self.carrier.counters.gossip_restarted();
            self.restarts.fetch_add(1, Ordering::Relaxed);
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = sleep(RESTART_AFTER) => {}
            }
            begun = self.begin().await.ok().map(Gossip);
        }
    }

    /// Looks at every interval, and at once when our own facts change. Returns when the gossip has died.
    async fn watch(&self, handle: &ChitchatHandle) {
        let mut ticks = interval(self.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut before = Before::default();
        let died = handle.termination_watcher();
        tokio::pin!(died);
        loop {
            let spread = tokio::select! {
                biased;
                _ = &mut died => return,
                () = self.facts.changed.notified() => true,
                _ = ticks.tick() => false,
            };
            self.look(handle, &mut before, spread).await;
        }
    }

    async fn look(&self, handle: &ChitchatHandle, before: &mut Before, spread: bool) {
        let nodes = handle.with_chitchat(|chitchat| self.exchange_facts(chitchat)).await;
        self.carrier.roster.reset(nodes.iter().map(|(id, _)| id.clone()));
        let found = self.judge(nodes, before);
        let joins = self.join.borrow().clone();
        self.dial(handle, &found, &joins, spread);
        self.publish(found, before);
    }

    /// Puts our facts in, should they have changed or somebody else have changed them, and takes all others'
    /// out.
    fn exchange_facts(&self, chitchat: &mut Chitchat) -> Vec<(ChitchatId, Option<Member>)> {
        let own = chitchat.self_node_state();
        for (key, value) in self.facts.pairs() {
            if own.get(key) != Some(value.as_str()) {
                own.set(key, value);
            }
        }
        let live: HashSet<ChitchatId> = chitchat.live_nodes().cloned().collect();
        chitchat
            .node_states()
            .iter()
            .map(|(id, state)| (id.clone(), member(id, state, live.contains(id))))
            .collect()
    }

    /// Keeps those whose certificates bear out what is said of them, each node once.
    fn judge(&self, nodes: Vec<(ChitchatId, Option<Member>)>, before: &mut Before) -> Vec<Member> {
        let mut impostors = HashSet::new();
        let mut found = BTreeMap::<NodeName, (u64, Member)>::new();
        let mut addresses = self.contacts.claims();
        addresses.extend(self.join.borrow().iter());
        for (id, member) in nodes {
            let Some(member) = member.filter(|member| member.name != self.facts.name) else { continue };
            addresses.insert(member.address);
            match self.carrier.links.get_or_dial(member.address).and_then(|link| link.peer()) {
                Some(peer) if peer == member.name => {}
                None if self.contacts.knows(&member.name) => {}
                None => continue,
                Some(_) => {
                    if member.live {
                        impostors.insert(id);
                    }
                    continue;
                }
            }
            let rank = (member.live, id.generation_id);
            let best = found.get(&member.name).map(|(generation, best)| (best.live, *generation));
            if best.is_none_or(|best| rank > best) {
                found.insert(member.name.clone(), (id.generation_id, member));
            }
        }
        for id in impostors.difference(&before.impostors) {
            tracing::warn!(node = ?id, "another certificate answers at the address that this node is said to have");
            self.carrier.counters.refuse(Refusal::Impostor);
        }
        before.impostors = impostors;
        self.carrier.links.keep_only(&addresses);
        found.into_values().map(|(_, member)| member).collect()
    }

    /// Routes to members, and knocks where a member should be and none is known.
    fn dial(&self, handle: &ChitchatHandle, found: &[Member], joins: &BTreeSet<SocketAddr>, spread: bool) {
        let links = &self.carrier.links;
        links.route(found.iter().map(|member| (member.name.clone(), member.address)));
        for address in joins {
            let Some(link) = links.get_or_dial(*address).filter(|link| !link.is_own()) else { continue };
            let there = |member: &&Member| {
                member.live && (member.address == *address || link.peer().as_ref() == Some(&member.name))
            };
            if found.iter().find(there).is_none() {
                // Only to a closed channel could this fail, and then the gossip has ended.
                let _ = handle.gossip(*address);
            }
        }
        for member in found.iter().filter(|member| spread && member.live) {
            let _ = handle.gossip(member.address);
        }
    }

    fn publish(&self, found: Vec<Member>, before: &mut Before) {
        let changed = self.members.send_if_modified(|members| {
            let changed = *members != found;
            if changed {
                members.clone_from(&found);
            }
            changed
        });
        if changed || before.untold {
            before.untold = self.events.try_send(PeerEvent::Members(found)).is_err();
        }
    }
}

/// Returns what is said of a node; `None` if it has not said enough yet.
fn member(id: &ChitchatId, state: &NodeState, live: bool) -> Option<Member> {
    Some(Member {
        name: identity::parse_path(&id.node_id)?,
        address: id.gossip_advertise_addr,
        incarnation: id.generation_id,
        draining: state.get(DRAINING)? == "true",
        sees_capacity: state.get(CAPACITY) == Some(SEEN),
        live,
        shares: state.get(SHARES).and_then(word),
        rules: state.get(RULES).and_then(RulesStatement::read),
        regions: state.get(REGIONS).and_then(listed),
        region_changes: state.get(REGION_CHANGES).and_then(RegionChanges::read),
        region_orders: state.get(REGION_ORDERS).map(Arc::from),
        digests: state.get(DIGESTS).and_then(Digests::read),
    })
}

/// A list of regions as it travels; `None` if it is too long.
pub(super) fn list(regions: &[String]) -> Option<String> {
    let names: Vec<String> = regions.iter().map(|region| identity::escaped(region)).collect();
    Some(names.join(",")).filter(|text| text.len() <= REGIONS_BYTES_MAX)
}

/// Reads what [`list`] wrote.
fn listed(text: &str) -> Option<Vec<String>> {
    if text.len() > REGIONS_BYTES_MAX {
        return None;
    }
    text.split(',').filter(|name| !name.is_empty()).map(identity::unescaped).collect()
}

/// Returns what a daemon says of its shares, as it travels.
fn said(word: &WeightsStatement) -> String {
    let birth = word.birth.text().map(|birth| format!(" {birth}")).unwrap_or_default();
    format!("{} {} {}{birth}", word.stamp, word.digest, word.phase.as_str())
}

/// Reads what [`said`] wrote.
fn word(text: &str) -> Option<WeightsStatement> {
    let mut parts = text.split(' ');
    let (stamp, digest) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    // A daemon that says no phase may be in any.
    let phase = parts.next().and_then(|text| Phase::ALL.into_iter().find(|phase| phase.as_str() == text));
    let birth = parts.next().map_or(Birth::Known, Birth::read);
    Some(WeightsStatement { stamp, digest, phase: phase.unwrap_or(Phase::Changing), birth })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_regions_and_a_word_come_back_as_they_were_said() {
        let regions: Vec<String> = ["eu-west", "a,b", "ü /"].map(str::to_owned).into();
        assert_eq!(listed(&list(&regions).unwrap()), Some(regions));
        assert_eq!(listed(&list(&[]).unwrap()), Some(Vec::new()));
        assert_eq!(list(&vec!["x".repeat(250); 64]), None);
        assert_eq!(listed("a,%zz"), None);
        let said = WeightsStatement { stamp: 7, digest: 9, phase: Phase::Waiting, birth: Birth::Known };
        assert_eq!(word("7 9 waiting"), Some(said), "an older daemon does not say how it began");
        for birth in [Birth::Known, Birth::New { life: 5 }, Birth::First { life: 5, all: 6 }] {
            let said = WeightsStatement { birth, ..said };
            assert_eq!(word(&super::said(&said)), Some(said));
        }
        assert_eq!(
            word("7 9"),
            Some(WeightsStatement { phase: Phase::Changing, ..said }),
            "an older daemon says no phase"
        );
        assert_eq!(word("7"), None);
    }
}
