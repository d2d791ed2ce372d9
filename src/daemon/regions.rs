//! The regions that share limits, while the daemon runs: those that its configuration lists, what operators
//! changed since, and what operators signed that other daemons tell.
//!
//! Another daemon's word alone changes nothing. A change is noted on disk before it is told, so that it
//! outlives this daemon even where no other has heard of it.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::database_rules::DatabaseRules;
use super::noted;
use super::reload::Reloader;
use crate::core::region_list::{RegionChanges, RegionList, RegionOrder, RegionState, Signed, is_region_name};
use crate::core::regions::NodeName;
use crate::core::rule::Mode;
use crate::core::share::Weights;
use crate::core::time::Timestamp;
use crate::engine::Engine;
use crate::engine::port::Later;
use crate::engine::region_listing::{RegionChanged, RegionListing, RegionRefused};
use crate::peer::counters::Refusal;
use crate::peer::{Member, Peers};

/// So long the answer to a change waits for the other daemons to know of it.
const KNOWN_WITHIN: Duration = Duration::from_secs(2);
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// A disk that refused what others told is tried again after so long, and what is ahead of the clock.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Orders of one daemon that are looked at at once after some that no operator signed: each costs the work of
/// two signatures.
const UNSIGNED_MAX: usize = 8;

/// The list and what it is made of.
#[derive(Default)]
pub(super) struct ListedRegions {
    /// Regions that `peers.regions` of the configuration lists.
    pub(super) configured: Vec<String>,
    pub(super) changes: RegionChanges,
}

/// Keeps the list of regions.
pub(super) struct Regions {
    engine: Arc<Engine>,
    reloader: Arc<Reloader>,
    stored: Option<Arc<DatabaseRules>>,
    /// File that keeps the changes; `None`: nothing outlives the process.
    path: Option<PathBuf>,
    /// There once the daemon speaks with others, if it does.
    peers: OnceLock<Arc<Peers>>,
    known: tokio::sync::Mutex<ListedRegions>,
}

impl Regions {
    /// The list as it was read at the start.
    pub(super) fn new(
        reloader: &Arc<Reloader>,
        stored: Option<&Arc<DatabaseRules>>,
        path: Option<PathBuf>,
        listed: ListedRegions,
    ) -> Self {
        Self {
            engine: Arc::clone(reloader.engine()),
            reloader: Arc::clone(reloader),
            stored: stored.cloned(),
            path,
            peers: OnceLock::new(),
            known: tokio::sync::Mutex::new(listed),
        }
    }

    /// Follows what the other daemons know until `stop`.
    pub(super) async fn run(self: Arc<Self>, peers: Arc<Peers>, stop: CancellationToken) {
        let peers = Arc::clone(self.peers.get_or_init(|| peers));
        let mut trust = peers.trust_changes();
        self.drop_revoked(&peers).await;
        peers.set_region_changes(&self.known.lock().await.changes);
        let mut members = peers.members();
        let (mut failed, mut read) = (false, HashMap::new());
        loop {
            let seen = members.borrow_and_update().clone();
            read.retain(|name: &NodeName, _| seen.iter().any(|member| member.name == *name));
            let heard = self.hear(&peers, &seen, &mut read).await;
            let problem = heard.as_ref().err();
            if let Some(error) = problem.filter(|_| !failed) {
                let regions = "the regions that another daemon was told to change cannot be noted here, and are not changed";
                tracing::error!(%error, "{regions}; it is tried again");
            }
            failed = problem.is_some();
            let again = heard.unwrap_or(true);
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                changed = trust.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    self.drop_revoked(&peers).await;
                    // A change that was refused before may be accepted now.
                    read.clear();
                }
                changed = members.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(RETRY_AFTER), if again => {}
            }
        }
    }

    /// Drops what somebody signed whose certificate is revoked by now.
    async fn drop_revoked(&self, peers: &Peers) {
        let mut known = self.known.lock().await;
        let mut changes = known.changes.clone();
        if !changes.drop_unless(|signed| !peers.is_revoked(&signed.certificate)) {
            return;
        }
        tracing::warn!(
            "changes of regions are dropped: the certificate of the operator who signed them is revoked"
        );
        if let Err(error) = self.note(&changes).await {
            tracing::error!(%error, "that is not noted: a restart would bring them back until it is");
        }
        self.put(&mut known, changes).await;
    }

    /// Takes in what operators signed, of all that the members say. `read`: what was looked at before.
    /// Returns whether something must be looked at again.
    async fn hear(
        &self,
        peers: &Peers,
        members: &[Member],
        read: &mut HashMap<NodeName, Arc<str>>,
    ) -> Result<bool, String> {
        let now = self.engine.now();
        let mut known = self.known.lock().await;
        let mut changes = known.changes.clone();
        let is_idle = is_idle(&known.configured, members);
        let (mut news, mut early, mut looked_at) = (false, false, Vec::new());
        for member in members {
            let Some(text) = &member.region_orders else { continue };
            if read.get(&member.name) == Some(text) {
                continue;
            }
            let taken = take_orders(peers, member, text, &mut changes, now, &is_idle);
            news |= taken.news;
            early |= taken.ahead;
            if !taken.ahead {
                looked_at.push((member.name.clone(), Arc::clone(text)));
            }
        }
        if news {
            self.note(&changes).await?;
        }
        read.extend(looked_at);
        // Also without news: a region that was said to be gone may be seen.
        self.put(&mut known, changes).await;
        Ok(early)
    }

    /// The configuration lists other regions now.
    pub(super) async fn set_configured(&self, configured: Vec<String>) {
        let mut known = self.known.lock().await;
        known.configured = configured;
        let changes = known.changes.clone();
        self.put(&mut known, changes).await;
    }

    async fn note(&self, changes: &RegionChanges) -> Result<(), String> {
        let Some(path) = self.path.clone() else { return Ok(()) };
        let (name, changes) = (self.engine.name().clone(), changes.clone());
        let write = move || noted::write(&path, &name, &changes).map_err(|error| (path, error));
        match tokio::task::spawn_blocking(write).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err((path, error))) => Err(format!("{}: {error}", path.display())),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Puts a list in force and tells it to the others.
    async fn put(&self, known: &mut ListedRegions, changes: RegionChanges) {
        let before = self.engine.regions();
        known.changes = changes;
        let mut list = known.changes.over(&known.configured);
        if let Some(peers) = self.peers.get() {
            peers.set_region_changes(&known.changes);
            // The word of a region that is seen is waited for, whatever somebody said of it.
            let members = peers.members();
            let members = members.borrow();
            list.gone.retain(|gone| !members.iter().any(|member| member.live && member.name.region == *gone));
        }
        if *before == list {
            return;
        }
        tracing::info!(
            regions = %list.names.join(","),
            drained = %list.drained.join(","),
            removed = %list.removed.join(","),
            "other regions share limits from now on"
        );
        self.engine.set_regions(list);
        // Rules that named a region which was not listed are right now, perhaps.
        match &self.stored {
            Some(stored) => stored.look_again().await,
            None if self.engine.rules_status().problem.is_some() => self.reloader.again().await,
            None => {}
        }
    }

    /// Returns why a region cannot be put into a state; `None`: it can.
    fn refusal(
        &self,
        known: &ListedRegions,
        region: &str,
        state: RegionState,
        after: &RegionList,
        members: &[Member],
    ) -> Option<RegionRefused> {
        if known.configured.is_empty() {
            return Some(RegionRefused::NobodyListed);
        }
        if !is_region_name(region) {
            return Some(RegionRefused::NoName(region.to_owned()));
        }
        let own = self.engine.name().region == region;
        let before = self.engine.regions().state(region);
        if state != RegionState::Listed && before.is_none() {
            return Some(RegionRefused::NotListed(region.to_owned()));
        }
        let alive: Vec<String> = members
            .iter()
            .filter(|member| member.live && member.name.region == region)
            .map(|member| format!("{region}/{}", member.name.node))
            .collect();
        let removes = matches!(state, RegionState::Removed | RegionState::Gone);
        match state {
            _ if removes && own => Some(RegionRefused::Own(region.to_owned())),
            _ if removes && !alive.is_empty() => Some(RegionRefused::Alive(alive)),
            RegionState::Removed if before == Some(RegionState::Listed) => {
                Some(RegionRefused::HasShare(region.to_owned()))
            }
            RegionState::Removed if before == Some(RegionState::Drained) => {
                let standings = self.engine.shares_standing();
                let waits = standings.into_iter().flat_map(|standing| standing.waiting_for);
                let mut waits: Vec<String> = waits.collect();
                waits.sort_unstable();
                waits.dedup();
                (!waits.is_empty()).then_some(RegionRefused::Waits(waits))
            }
            RegionState::Drained | RegionState::Gone => {
                let without = self.rules_where(|shares, minimums| {
                    !Weights::among(shares, minimums, after)
                        .parts()
                        .any(|(_, weight, least)| weight > 0 || least > 0)
                });
                (!without.is_empty()).then_some(RegionRefused::LastWithShare(without))
            }
            RegionState::Removed | RegionState::Listed => None,
        }
    }

    /// The `split` and `escrow` rules whose shares and minimums fulfil a condition.
    fn rules_where(&self, fulfil: impl Fn(&[(String, u32)], &[(String, u32)]) -> bool) -> Vec<String> {
        let (_, rules) = self.engine.world_rules();
        let shared = rules.into_iter().filter(|rule| rule.global.mode != Mode::Gossip);
        let found = shared.filter(|rule| fulfil(&rule.global.shares, &rule.global.minimums));
        found.map(|rule| rule.name.name).collect()
    }

    async fn change_to(
        &self,
        region: &str,
        state: RegionState,
        signed: Option<(u64, Signed)>,
    ) -> Result<RegionChanged, RegionRefused> {
        let Some(peers) = self.peers.get() else { return Err(RegionRefused::Alone) };
        let (now, members) = (self.engine.now(), peers.members().borrow().clone());
        let mut known = self.known.lock().await;
        let before = self.engine.regions().state(region);
        let mut changes = known.changes.clone();
        let is_idle = is_idle(&known.configured, &members);
        if !is_region_name(region) {
            return Err(RegionRefused::NoName(region.to_owned()));
        }
        let mut signed_by = None;
        if let Some((stamp, signed)) = signed {
            let order = RegionOrder { region: region.to_owned(), state, stamp, signed };
            let operator = peers.operator_of(&order);
            signed_by = Some(operator.map_err(|why| RegionRefused::NotSigned(why.to_string()))?);
            if order.is_ahead(now) || !changes.is_news(&order) {
                return Err(RegionRefused::NotNow);
            }
            if !changes.hear(now, order, is_idle) {
                return Err(RegionRefused::NoRoom);
            }
        } else if before != Some(state) && !changes.change(now, region, state, is_idle) {
            return Err(RegionRefused::NoRoom);
        }
        let after = changes.over(&known.configured);
        if let Some(refused) = self.refusal(&known, region, state, &after, &members) {
            return Err(refused);
        }
        if changes != known.changes {
            self.note(&changes).await.map_err(RegionRefused::NotNoted)?;
            self.put(&mut known, changes.clone()).await;
        }
        drop(known);
        let names = |shares: &[(String, u32)], _: &[(String, u32)]| {
            !shares.is_empty() && !shares.iter().any(|(name, weight)| name == region && *weight > 0)
        };
        let without_share = if state == RegionState::Listed { self.rules_where(names) } else { Vec::new() };
        // Nobody else takes what is not signed: they know of it who were asked before.
        let wait = if signed_by.is_some() { KNOWN_WITHIN } else { Duration::ZERO };
        let waiting_for = known_by(peers, &changes, region, wait).await;
        Ok(RegionChanged { before, without_share, waiting_for, signed_by })
    }
}

/// What became of one member's orders.
struct OrdersTaken {
    /// One of them changed something.
    news: bool,
    /// One of them is ahead of the clock, and has to be looked at again.
    ahead: bool,
}

/// Takes in the orders that a member passes on.
fn take_orders(
    peers: &Peers,
    member: &Member,
    text: &str,
    changes: &mut RegionChanges,
    now: Timestamp,
    is_idle: &impl Fn(&str) -> bool,
) -> OrdersTaken {
    let mut taken = OrdersTaken { news: false, ahead: false };
    let mut unsigned = 0;
    for order in RegionChanges::read_orders(text).unwrap_or_default() {
        if unsigned >= UNSIGNED_MAX || !changes.is_news(&order) {
            continue;
        }
        match peers.operator_of(&order) {
            Ok(operator) => {
                let (region, state) = (order.region.clone(), order.state.as_str());
                if order.is_ahead(now) {
                    taken.ahead = true;
                } else if changes.hear(now, order, is_idle) {
                    tracing::info!(region, state, operator, "an operator changed a region");
                    taken.news = true;
                }
            }
            Err(why) => {
                unsigned += 1;
                peers.counters().refuse(Refusal::Unsigned);
                let NodeName { region, node } = &member.name;
                tracing::warn!(peer = %format!("{region}/{node}"), of = order.region, %why, "a change of a region is not taken");
            }
        }
    }
    taken
}

/// Tells the regions that are neither listed in the configuration nor seen: nobody misses a change of them.
fn is_idle(configured: &[String], members: &[Member]) -> impl Fn(&str) -> bool + use<> {
    let live = members.iter().filter(|member| member.live).map(|member| member.name.region.clone());
    let needed: HashSet<String> = configured.iter().cloned().chain(live).collect();
    move |region| !needed.contains(region)
}

/// Waits at most so long for the other daemons to know the change of a region. Returns those that do not say
/// so.
async fn known_by(peers: &Peers, changes: &RegionChanges, region: &str, most: Duration) -> Vec<String> {
    let members = peers.members();
    let mut looks = most.as_millis() / LOOK_INTERVAL.as_millis();
    loop {
        let knows = |member: &Member| {
            let theirs = member.region_changes.clone().unwrap_or_default();
            changes.is_known_in(&theirs, region)
        };
        let missing: Vec<String> = members
            .borrow()
            .iter()
            .filter(|member| member.live && !knows(member))
            .map(|member| format!("{}/{}", member.name.region, member.name.node))
            .collect();
        if missing.is_empty() || looks == 0 {
            return missing;
        }
        looks -= 1;
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}

impl RegionListing for Regions {
    fn change<'a>(
        &'a self,
        region: &'a str,
        state: RegionState,
        signed: Option<(u64, Signed)>,
    ) -> Later<'a, Result<RegionChanged, RegionRefused>> {
        Box::pin(self.change_to(region, state, signed))
    }
}
