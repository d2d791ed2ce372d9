//! Rules from and for peers: tells them which set is in force here, and takes a newer one from them where the own database
//! is away or behind.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::database_rules::DatabaseRules;
use crate::database::postgres::rules::Version;
use crate::peer::{Member, Peers, RulesWord};

/// How often to look at what the others have, besides when it changes.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);
/// How long the own database may take to have what a peer has: a replica lags.
const PATIENCE: Duration = Duration::from_secs(1);
/// Longest time for a set to come.
const FETCH_DEADLINE: Duration = Duration::from_secs(30);

/// Both directions, until `stop`.
pub(super) async fn run(rules: Arc<DatabaseRules>, peers: Arc<Peers>, stop: CancellationToken) {
    let mut offers = rules.offer.subscribe();
    let mut members = peers.members();
    let mut looks = interval(LOOK_INTERVAL);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    offers.mark_changed();
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            changed = offers.changed() => {
                if changed.is_err() {
                    return;
                }
                if let Some(offer) = offers.borrow_and_update().clone() {
                    let Version { generation, revision } = offer.version;
                    peers.offer_rules(RulesWord { generation, revision, digest: offer.digest }, offer.bytes);
                }
            }
            changed = members.changed() => {
                if changed.is_err() {
                    return;
                }
                let seen = members.borrow_and_update().clone();
                stop.run_until_cancelled(Box::pin(catch_up(&rules, &peers, &seen))).await;
            }
            _ = looks.tick() => {
                let seen = members.borrow().clone();
                stop.run_until_cancelled(Box::pin(catch_up(&rules, &peers, &seen))).await;
            }
        }
    }
}

fn version(word: &RulesWord) -> Version {
    Version { generation: word.generation, revision: word.revision }
}

/// Takes the newest set that a peer has, if it is newer than the own one.
async fn catch_up(rules: &DatabaseRules, peers: &Peers, members: &[Member]) {
    let has = |member: &Member| member.rules.filter(|_| member.live);
    let Some(newest) = members.iter().filter_map(|member| has(member).as_ref().map(version)).max() else {
        return;
    };
    if !rules.wants(newest).await {
        return;
    }
    // The own database is asked first; a peer is for when it is away or behind.
    rules.look().await;
    if rules.is_reachable() && rules.wants(newest).await {
        tokio::time::sleep(PATIENCE).await;
        rules.look().await;
    }
    let own = &rules.engine.name().region;
    let mut holders: Vec<(&Member, RulesWord)> = members
        .iter()
        .filter_map(|member| Some((member, has(member)?)))
        .filter(|(_, word)| version(word) == newest)
        .collect();
    // Nearest first.
    holders.sort_by_key(|(member, _)| (Reverse(member.name.region == *own), member.name.node.clone()));
    for (member, word) in holders {
        if !rules.wants(newest).await {
            return;
        }
        let name = format!("{}/{}", member.name.region, member.name.node);
        match peers.fetch_rules(&member.name, word, FETCH_DEADLINE).await {
            Ok(bytes) => {
                rules.take_from_peer(bytes, &name).await;
            }
            Err(error) => {
                tracing::warn!(peer = %name, revision = word.revision, %error, "a peer's newer rules did not come")
            }
        }
    }
}
