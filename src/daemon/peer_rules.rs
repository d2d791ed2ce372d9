//! Rules from and for peers: tells them which set the own database gave, and takes a newer one from them
//! while that is away.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::database_rules::DatabaseRules;
use super::unfit::Unfit;
use crate::core::regions::NodeName;
use crate::database::given::Giver;
use crate::database::stored::Version;
use crate::peer::{Member, Peers, RulesStatement};
use crate::telemetry::traces::SpanKind;

/// Time between two looks at what the others have, besides when it changes.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);
/// Time that the own database may take to have what a peer has: a replica lags.
const PATIENCE: Duration = Duration::from_secs(1);
/// Longest time for a set to come.
const FETCH_DEADLINE: Duration = Duration::from_secs(30);
/// Sets that are not asked for again, because what came was not right. More: all are forgotten, and may be
/// tried once more.
const SHUNNED_MAX: usize = 256;

/// Sets that were not right when they came, by who gave them: a peer that lies about a set keeps nobody from
/// taking it elsewhere.
type Shunned = HashSet<(NodeName, [u8; 32])>;

/// Both directions, until `stop`.
pub(super) async fn run(rules: Arc<DatabaseRules>, peers: Arc<Peers>, stop: CancellationToken) {
    let mut offers = rules.offer.subscribe();
    let mut members = peers.members();
    let mut shunned = Shunned::new();
    for reason in Unfit::WORDS {
        rules.engine.metrics().counter("peer_rules_refused_total", "reason", reason).increment(0);
    }
    let mut looks = interval(LOOK_INTERVAL);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    offers.mark_changed();
    let accepted = |giver: &Giver| peers.still_accepts(&giver.chain);
    let mut trust = peers.trust_changes();
    rules.take_given_before(accepted).await;
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            changed = offers.changed() => {
                if changed.is_err() {
                    return;
                }
                // Nobody but the daemon that gave rules hands them on.
                let offer = offers.borrow_and_update().clone();
                if let Some(offer) = offer.filter(|offer| offer.of_database) {
                    let Version { generation, revision } = offer.version;
                    let (length, digest) = (offer.bytes.len(), offer.digest);
                    peers.offer_rules(RulesStatement { generation, revision, length, digest }, offer.bytes);
                }
                continue;
            }
            changed = trust.changed() => {
                if changed.is_err() {
                    return;
                }
                rules.drop_given_unless(accepted).await;
                continue;
            }
            changed = members.changed() => {
                if changed.is_err() {
                    return;
                }
            }
            _ = looks.tick() => {}
        }
        let seen = members.borrow_and_update().clone();
        stop.run_until_cancelled(Box::pin(catch_up(&rules, &peers, &seen, &mut shunned))).await;
    }
}

fn version(word: &RulesStatement) -> Version {
    Version { generation: word.generation, revision: word.revision }
}

/// Takes the newest set that a peer has, if it is newer than the own one; the next newest if that is not
/// right.
async fn catch_up(rules: &DatabaseRules, peers: &Peers, members: &[Member], shunned: &mut Shunned) {
    let own = &rules.engine.name().region;
    let holders = holders(members, own, shunned);
    let newest = holders.first().map(|(member, word)| (*member, version(word)));
    let Some((says, newest)) = newest else { return rules.note_ahead(None).await };
    if !rules.wants(newest).await {
        return rules.note_ahead(None).await;
    }
    // The own database is asked first: what it holds counts, whatever others say.
    rules.look().await;
    if rules.is_reachable() && rules.wants(newest).await {
        tokio::time::sleep(PATIENCE).await;
        rules.look().await;
    }
    if rules.is_reachable() {
        let ahead = rules.wants(newest).await.then(|| {
            format!(
                "{}/{} says that it has newer rules (revision {}) than PostgreSQL, which answers here, so they are not taken: \
                 this database lags, that daemon uses another, or it is not honest",
                says.name.region, says.name.node, newest.revision
            )
        });
        return rules.note_ahead(ahead).await;
    }
    if !rules.needs_peers().await {
        return;
    }
    for (member, word) in holders {
        if rules.wants(version(&word)).await {
            try_to_take(rules, peers, member, word, shunned).await;
        }
    }
}

/// The members that have a set of rules and are not shunned for it: the newest first, and of those the
/// nearest.
fn holders<'m>(members: &'m [Member], own: &str, shunned: &Shunned) -> Vec<(&'m Member, RulesStatement)> {
    let mut holders: Vec<(&Member, RulesStatement)> = members
        .iter()
        .filter(|member| member.live)
        .filter_map(|member| Some((member, member.rules?)))
        .filter(|(member, word)| !shunned.contains(&(member.name.clone(), word.digest)))
        .collect();
    holders.sort_by_key(|(member, word)| {
        (Reverse(version(word)), Reverse(member.name.region == own), member.name.node.clone())
    });
    holders
}

/// Takes the set of a peer. Where it is not right, it says so, and shuns the peer if it stays so.
async fn try_to_take(
    rules: &DatabaseRules,
    peers: &Peers,
    member: &Member,
    word: RulesStatement,
    shunned: &mut Shunned,
) {
    let mut span = rules.engine.tracer().map(|tracer| {
        let mut span = tracer.open(None, "rules from peer", SpanKind::Client);
        span.set("tidegate.peer.region", member.name.region.as_str());
        span.set("tidegate.peer.node", member.name.node.as_str());
        span.set("tidegate.revision", word.revision);
        span.set("tidegate.region", rules.engine.name().region.as_str());
        span
    });
    let Err(unfit) = take(rules, peers, member, word).await else { return };
    if let Some(span) = &mut span {
        span.fail(&unfit.to_string());
    }
    let peer = format!("{}/{}", member.name.region, member.name.node);
    tracing::warn!(%peer, revision = word.revision, "a peer's newer rules were not taken: {unfit}");
    rules.engine.metrics().counter("peer_rules_refused_total", "reason", unfit.word()).increment(1);
    if unfit.stays() {
        if shunned.len() >= SHUNNED_MAX {
            shunned.clear();
        }
        shunned.insert((member.name.clone(), word.digest));
    }
}

async fn take(
    rules: &DatabaseRules,
    peers: &Peers,
    member: &Member,
    word: RulesStatement,
) -> Result<(), Unfit> {
    let (bytes, chain) = peers.fetch_rules(&member.name, word, FETCH_DEADLINE).await?;
    let node = format!("{}/{}", member.name.region, member.name.node);
    rules.take_from_peer(bytes, version(&word), Giver { node, chain }).await
}
