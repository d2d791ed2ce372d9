//! Looks at the cluster as this daemon sees it, and tells its operator what is wrong: in the log once when it
//! begins and once when it is over, in `/readyz` and `tidegate regions` for as long as it lasts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::certificate_life::{CertificateLife, CertificateStage, DAY_SECONDS};
use super::events;
use crate::core::event::{EventKind, EventRecord};
use crate::core::notice::{Notice, NoticeChange, NoticeKind, Notices};
use crate::core::regions::NodeName;
use crate::core::regions::compared::{Compared, Digests};
use crate::core::rule::{Mode, OnPartition};
use crate::core::time::{Span, Timestamp};
use crate::engine::Engine;
use crate::engine::notices::{ComparedRule, NoticeSource};
use crate::engine::status::WorldStatus;
use crate::peer::{CertificateDates, LinkStatus, Member, Peers, Refuser, certificate};

/// Time between two looks.
const PERIOD: Duration = Duration::from_millis(250);
/// Within this clocks do not disturb `gossip`.
const CLOCKS_APART_MICROS: u64 = 20_000;
/// Most names in one sentence.
const NAMED_MAX: usize = 5;

/// The look-out.
#[derive(Clone)]
pub(super) struct Look {
    pub(super) engine: Arc<Engine>,
    pub(super) peers: Arc<Peers>,
    pub(super) dates: Arc<Mutex<CertificateDates>>,
}

impl Look {
    /// Runs until `stop`.
    pub(super) async fn run(self, stop: CancellationToken) {
        let mut ticks = interval(PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut notices = Notices::default();
        let (mut revision, mut rules, mut shown) = (None, Vec::new(), Vec::new());
        let mut lives = self.certificates_in_force().map(|(_, life)| life);
        self.engine.publish_notices(NoticeSource::Cluster, Vec::new());
        self.gauge();
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                _ = ticks.tick() => {}
            }
            let loaded = self.engine.loaded().revision;
            let listed = self.engine.regions();
            // A region that is drained has no share of any rule.
            if revision.as_ref() != Some(&(loaded, Arc::clone(&listed))) {
                revision = Some((loaded, Arc::clone(&listed)));
                rules = self.engine.compared_rules();
                let digests = rules.iter().map(|rule| (rule.id.clone(), rule.settings.clone()));
                self.peers.set_digests(&Digests::of(digests));
            }
            self.peers.set_regions(&listed.names);
            if self.peers.is_leaving() {
                continue;
            }
            let now = self.engine.now();
            let found = self.found(now, &rules);
            for (life, (which, read)) in lives.iter_mut().zip(self.certificates_in_force()) {
                life.replace(read.ends());
                let is_its =
                    |notice: &&Notice| notice.kind == NoticeKind::Certificate && notice.subject == which;
                if let Some(notice) = life.next_to_tell(now).and_then(|_| found.iter().find(is_its)) {
                    let (subject, text) = (notice.subject.clone(), notice.text.clone());
                    let event = EventRecord::of_subject(EventKind::Certificate, now, subject, text);
                    self.engine.events().tell(event);
                }
            }
            for change in notices.handle_look(now, found) {
                self.tell(&change, now);
            }
            self.gauge();
            let now_shown: Vec<Notice> = notices.shown().cloned().collect();
            if now_shown != shown {
                shown.clone_from(&now_shown);
                self.engine.publish_notices(NoticeSource::Cluster, now_shown);
            }
        }
    }

    /// Tells of a notice that begins or is over, as an event and in the log.
    fn tell(&self, change: &NoticeChange, now: Timestamp) {
        if let Some(event) = events::of_notice(change, now) {
            self.engine.events().tell(event);
        }
        match change {
            NoticeChange::Begun(notice) => {
                tracing::warn!(about = notice.kind.as_str(), "{}", notice.text);
            }
            NoticeChange::Over(notice) => {
                tracing::info!(about = notice.kind.as_str(), "{}", notice.over);
            }
        }
    }

    fn gauge(&self) {
        let metrics = self.engine.metrics();
        for (which, life) in self.certificates_in_force() {
            #[expect(clippy::cast_precision_loss, reason = "a gauge is a float")]
            let ends = life.ends() as f64;
            metrics.gauge("certificate_expires_timestamp_seconds", "certificate", which).set(ends);
        }
    }

    /// The certificates between daemons, by the names that metrics and events have for them.
    fn certificates_in_force(&self) -> [(&'static str, CertificateLife); 2] {
        let dates = *self.dates.lock().unwrap_or_else(PoisonError::into_inner);
        [("node", dates.node), ("authority", dates.authority)]
            .map(|(which, ends)| (which, CertificateLife::new(ends)))
    }

    fn found(&self, now: Timestamp, rules: &[ComparedRule]) -> Vec<Notice> {
        let members = self.peers.members();
        let members: Vec<Member> = members.borrow().iter().filter(|member| member.live).cloned().collect();
        let world = self.engine.world();
        let mut found = self.away(&world);
        self.lists(&members, &mut found);
        self.agreement(&mut found);
        burning(&world, &mut found);
        self.compare(&members, rules, &mut found);
        clocks(&world, &mut found);
        self.links(&members, &mut found);
        self.certificates(now, &mut found);
        self.twice(&mut found);
        found
    }

    /// Regions that are out of reach.
    fn away(&self, world: &WorldStatus) -> Vec<Notice> {
        if world.cut_off.is_empty() {
            return Vec::new();
        }
        let applies = self.applies();
        let away = |region: &String| {
            let (kind, text) = if world.unseen.contains(region) {
                (
                    NoticeKind::Unseen,
                    format!("region {region}, which peers.regions lists, has not been heard yet: {applies}"),
                )
            } else {
                (NoticeKind::CutOff, format!("region {region} is cut off: {applies}"))
            };
            Notice { kind, subject: region.clone(), text, over: format!("region {region} is heard") }
        };
        world.cut_off.iter().map(away).collect()
    }

    /// Returns what rules do while a region is away.
    fn applies(&self) -> String {
        let (_, rules) = self.engine.world_rules();
        let mut policies: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for rule in rules.iter().filter(|rule| rule.global.mode == Mode::Gossip) {
            policies.entry(policy(rule.global.on_partition)).or_default().push(&rule.name.name);
        }
        let gossip =
            policies.into_iter().map(|(policy, rules)| format!("on_partition={policy} for {}", some(&rules)));
        let mut applies: Vec<String> = gossip.collect();
        let standings = self.engine.shares_standing();
        let waiting = standings.iter().filter(|standing| standing.waits);
        let waiting: Vec<&str> = waiting.map(|standing| standing.rule.name.as_str()).collect();
        if !waiting.is_empty() {
            let waiting = some(&waiting);
            applies.push(format!(
                "escrow and split rules admit nothing before all regions have agreed ({waiting})"
            ));
        }
        if standings.iter().any(|standing| !standing.waits) {
            let other = if waiting.is_empty() { "" } else { "other " };
            applies.push(format!("{other}escrow and split rules spend what this region holds"));
        }
        if applies.is_empty() { "no worldwide limit depends on it".to_owned() } else { applies.join("; ") }
    }

    /// Regions that some daemons list and others do not.
    fn lists(&self, members: &[Member], found: &mut Vec<Notice>) {
        let (own, list) = (&self.engine.name().region, self.engine.regions());
        let listed = &list.names;
        let mut add = |subject: String, text: String, region: &str| {
            let over = format!("region {region} is listed everywhere");
            found.push(Notice { kind: NoticeKind::Regions, subject, text, over });
        };
        if list.removed.contains(own) {
            add(format!("here {own}"), removed(&self.engine.name().node, own), own);
        }
        for member in members {
            let (region, node) = (&member.name.region, &member.name.node);
            if list.removed.contains(region) && !list.removed.contains(own) {
                add(format!("here {region} {node}"), removed(node, region), region);
            }
            if !listed.is_empty() && !listed.contains(region) && !list.removed.contains(region) {
                add(
                    format!("here {region}"),
                    format!(
                        "region {region} ({node}) is not in this daemon's peers.regions: what it admits is not counted here, and it \
                         spends nothing of escrow and split rules until every region lists it"
                    ),
                    region,
                );
            }
            let Some(theirs) = member.regions.as_ref().filter(|theirs| !theirs.is_empty()) else { continue };
            for missing in listed.iter().filter(|listed| !theirs.contains(listed)) {
                let text = not_listed_there(missing, missing == own, &member.name);
                add(format!("there {region} {missing}"), text, missing);
            }
            let unknown = theirs.iter().filter(|named| !listed.contains(named) && *named != region);
            for missing in unknown.filter(|_| !listed.is_empty()) {
                let text = format!(
                    "region {missing} is not in this daemon's peers.regions, but in those of {region}/{node}"
                );
                add(format!("here {missing}"), text, missing);
            }
        }
    }

    /// Exact rules that wait for the regions to agree.
    fn agreement(&self, found: &mut Vec<Notice>) {
        let standings = self.engine.shares_standing();
        let waits: Vec<_> = standings.iter().filter(|standing| standing.waits).collect();
        let Some(first) = waits.first() else { return };
        let rules: Vec<&str> = waits.iter().map(|standing| standing.rule.name.as_str()).collect();
        let missing: Vec<&str> = first.waiting_for.iter().map(String::as_str).collect();
        let missing =
            if missing.is_empty() { "what was spent before a change".to_owned() } else { some(&missing) };
        found.push(Notice {
            kind: NoticeKind::Agreement,
            subject: String::new(),
            text: format!(
                "nothing is admitted by the escrow and split rules {} until every region says the same regions and weights: \
                 waiting for {missing}",
                some(&rules)
            ),
            over: "all regions say the same regions and weights: escrow and split rules admit their shares".to_owned(),
        });
    }

    /// Worldwide rules that are not the same everywhere.
    fn compare(&self, members: &[Member], rules: &[ComparedRule], found: &mut Vec<Notice>) {
        let mut different = BTreeSet::new();
        let ours = Digests::of(rules.iter().map(|rule| (rule.id.clone(), rule.settings.clone())));
        for member in members {
            let Some(theirs) = &member.digests else { continue };
            let by = format!("{}/{}", member.name.region, member.name.node);
            for rule in rules {
                let text = match Digests::compare(theirs, &rule.id, &rule.settings) {
                    Compared::Same => continue,
                    Compared::Different => format!(
                        "rule {} is not the same in {by}: its limit, window, algorithm, per, mode, on_partition or shares differ",
                        rule.name
                    ),
                    Compared::Missing => {
                        format!("rule {} is worldwide here, but {by} has no such rule", rule.name)
                    }
                };
                different.insert(rule.name.clone());
                found.push(Notice {
                    kind: NoticeKind::Rules,
                    subject: format!("{} {}", member.name.region, rule.name),
                    text,
                    over: format!("rule {} is the same in region {}", rule.name, member.name.region),
                });
            }
            let more = theirs.unknown_to(&ours);
            if more > 0 {
                found.push(Notice {
                    kind: NoticeKind::Rules,
                    subject: format!("{} others", member.name.region),
                    text: format!("{by} has {more} worldwide rules that are not here"),
                    over: format!(
                        "region {} has no other worldwide rules than this daemon",
                        member.name.region
                    ),
                });
            }
        }
        self.engine.follow_differences(different);
    }

    /// Finds daemons that do not answer, and those that do not accept each other.
    fn links(&self, members: &[Member], found: &mut Vec<Notice>) {
        let (joins, links) = (self.peers.joins(), self.peers.links());
        let up: BTreeSet<_> = links.iter().filter(|link| link.connected).map(|link| link.address).collect();
        for link in links.iter().filter(|link| !link.connected && !link.own) {
            let LinkStatus { address, peer, error: Some(error), refused, .. } = link else { continue };
            let who = peer.as_ref().map_or_else(
                || format!("the daemon at {address}"),
                |name| format!("{}/{} at {address}", name.region, name.node),
            );
            let answers = members
                .iter()
                .any(|member| peer.as_ref() == Some(&member.name) && up.contains(&member.address));
            let (kind, text) = match refused {
                Some(Refuser::There) => {
                    (NoticeKind::Refused, format!("{who} does not accept this daemon's certificate: {error}"))
                }
                Some(Refuser::Versions) => (NoticeKind::Refused, format!("{who} is not heard: {error}")),
                Some(Refuser::Here) => {
                    (NoticeKind::Refused, format!("the certificate of {who} is not accepted here: {error}"))
                }
                None if joins.contains(address) && !answers => (
                    NoticeKind::Join,
                    format!("nobody answers at {address}, which peers.join names: {error}"),
                ),
                None => continue,
            };
            let over = format!("{address} is not in trouble any more");
            found.push(Notice { kind, subject: address.to_string(), text, over });
        }
    }

    /// Certificates that two daemons show at once.
    fn twice(&self, found: &mut Vec<Notice>) {
        for (NodeName { region, node }, places) in self.peers.twice() {
            let places: Vec<String> = places.iter().map(ToString::to_string).collect();
            let places: Vec<&str> = places.iter().map(String::as_str).collect();
            found.push(Notice {
                kind: NoticeKind::Twice,
                subject: format!("{region}/{node}"),
                text: format!(
                    "several daemons say that they are {region}/{node}, at {}: its certificate was copied, perhaps stolen; if you \
                     did not copy it, revoke it and issue another",
                    some(&places)
                ),
                over: format!("one daemon says that it is {region}/{node}"),
            });
        }
    }

    /// Certificates of this daemon that end soon.
    fn certificates(&self, now: Timestamp, found: &mut Vec<Notice>) {
        for (which, life) in self.certificates_in_force() {
            let (what, remedy) = if which == "node" {
                ("this daemon's certificate", "renew it with `tidegate cert renew`")
            } else {
                (
                    "the certificate of the cluster's authority",
                    "make a new authority with `tidegate cert ca` and have every daemon accept both meanwhile",
                )
            };
            let day = certificate::date(life.ends());
            let when = match life.stage(now) {
                CertificateStage::Holds => continue,
                CertificateStage::EndsSoon => {
                    format!("ends on {day}, in {} days", life.left(now) / DAY_SECONDS)
                }
                CertificateStage::Ended => format!("ended on {day}: no new link can be made"),
            };
            found.push(Notice {
                kind: NoticeKind::Certificate,
                subject: which.to_owned(),
                text: format!("{what} {when}: {remedy}"),
                over: format!("{what} was replaced"),
            });
        }
    }
}

/// Exact rules of which this region admits less, because its store does not know what was spent.
fn burning(world: &WorldStatus, found: &mut Vec<Notice>) {
    for rights in world.rights.iter().filter(|rights| rights.in_doubt > 0) {
        let (rule, buckets) = (&rights.rule, rights.in_doubt);
        found.push(Notice {
            kind: NoticeKind::Burning,
            subject: rule.clone(),
            text: format!(
                "rule {rule} burns rights of {buckets} buckets: the store began too late to know what was spent of them, so this \
                 region admits less of them until their windows end, or their levels have refilled"
            ),
            over: format!("rule {rule} burns no rights any more"),
        });
    }
}

/// Clocks further apart than can be explained by what is not known of the way between.
fn clocks(world: &WorldStatus, found: &mut Vec<Notice>) {
    for peer in &world.peers {
        let (Some(ahead), Some(rtt)) = (peer.ahead, peer.rtt) else { continue };
        if ahead.unsigned_abs() <= CLOCKS_APART_MICROS.saturating_add(Span(rtt.0 / 2).micros()) {
            continue;
        }
        let by = format!("{}/{}", peer.name.region, peer.name.node);
        let way = if ahead > 0 { "ahead of" } else { "behind" };
        found.push(Notice {
            kind: NoticeKind::Clock,
            subject: by.clone(),
            text: format!(
                "the clock of {by} is {} ms {way} this daemon's: gossip rules count in different windows; run NTP on both",
                ahead.unsigned_abs() / 1_000
            ),
            over: format!("the clock of {by} agrees with this daemon's"),
        });
    }
}

const fn policy(on_partition: OnPartition) -> &'static str {
    match on_partition {
        OnPartition::Share => "share",
        OnPartition::Freeze => "freeze",
        OnPartition::LastKnown => "last_known",
        OnPartition::Ignore => "ignore",
        OnPartition::Deny => "deny",
    }
}

/// The first few names, and how many more there are.
fn some(names: &[&str]) -> String {
    let first = names.iter().take(NAMED_MAX).copied().collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(NAMED_MAX) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

/// Says that a region was removed whose daemon is there.
fn removed(node: &str, region: &str) -> String {
    format!(
        "region {region} was removed, and its daemon {node} is there: it admits nothing of escrow and split rules, and what it \
         admits of others is not counted elsewhere; stop it, or add the region again"
    )
}

/// Says that a member does not list a region that this daemon lists, which may be its own.
fn not_listed_there(missing: &str, is_own: bool, member: &NodeName) -> String {
    let NodeName { region, node } = member;
    if is_own {
        format!(
            "region {missing}, which is this daemon's, is not in the peers.regions of {region}/{node}: nothing is \
             spent here of escrow and split rules until every region has listed it"
        )
    } else {
        format!("region {missing} is not in the peers.regions of {region}/{node}, but in this daemon's")
    }
}
