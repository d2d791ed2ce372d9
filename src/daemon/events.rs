//! Events: where they are sent, and those that somebody must look for.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::config;
use crate::core::event::{EventKind, EventRecord};
use crate::core::notice::{Notice, NoticeChange, NoticeKind};
use crate::core::time::Timestamp;
use crate::database::events::EventCourierSetup;
use crate::engine::Engine;

/// Time between two looks at the breakers of the store's servers.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Longest time for the last events when the daemon drains; the rest waits in the spool.
pub(super) const DRAIN: Duration = Duration::from_secs(1);

/// Returns what the configuration says of sending.
pub(super) fn courier(events: &config::Events) -> EventCourierSetup {
    EventCourierSetup {
        url: events.url.clone(),
        secret: events.secret.clone(),
        spool: events.spool.clone(),
        spool_max_bytes: events.spool_max_bytes,
        timeout: events.timeout.to_std(),
        keep: events.keep,
    }
}

/// Tells when a server of the store is not asked any more, and when it is again. Runs until `stop`.
pub(super) async fn watch_breakers(engine: Arc<Engine>, stop: CancellationToken) {
    let mut ticks = interval(LOOK_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut open: BTreeSet<String> = BTreeSet::new();
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            _ = ticks.tick() => {}
        }
        let now = engine.now();
        let servers = engine.store_health().servers;
        for server in &servers {
            let told = match server.breaker {
                Some("open") if !open.contains(&server.address) => {
                    open.insert(server.address.clone());
                    let why = server.error.as_ref().map_or("", |(error, _)| error.as_str());
                    let text = format!("{} is not asked any more: {why}", server.address);
                    EventRecord::of_subject(EventKind::BreakerOpen, now, server.address.clone(), text)
                }
                // One that is half open is asked a little, and may fail again.
                Some("closed") if open.remove(&server.address) => {
                    let text = format!("{} is asked again", server.address);
                    EventRecord::of_subject(EventKind::BreakerClosed, now, server.address.clone(), text)
                }
                _ => continue,
            };
            engine.events().tell(told);
        }
        // A server that was taken out of the cluster has no breaker any more.
        open.retain(|address| servers.iter().any(|server| server.address == *address));
    }
}

/// The event that a change of the cluster's notices is, if it is one. Notices about certificates are told for
/// each stage of their lives by who looks at them.
pub(super) fn of_notice(change: &NoticeChange, now: Timestamp) -> Option<EventRecord> {
    let event = |kind, notice: &Notice, text: &str| {
        Some(EventRecord::of_subject(kind, now, notice.subject.clone(), text.to_owned()))
    };
    match change {
        NoticeChange::Begun(notice) => match notice.kind {
            NoticeKind::CutOff => event(EventKind::PartitionBegun, notice, &notice.text),
            _ => None,
        },
        NoticeChange::Over(notice) if notice.kind == NoticeKind::CutOff => {
            event(EventKind::PartitionEnded, notice, &notice.over)
        }
        NoticeChange::Over(_) => None,
    }
}
