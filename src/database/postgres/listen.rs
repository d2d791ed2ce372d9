//! Notifications: a hint that something changed, at once. They may be lost with a connection, so whoever
//! listens is told when that happened, and looks for itself now and then all the same.

use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::Database;

/// The channel of rules.
pub const RULES: &str = "tidegate_rules";
/// The channel of users, keys and tiers.
pub const IDENTITIES: &str = "tidegate_identities";
/// Notifications that may wait for whoever listens. Full: they are dropped, and [`Heard::Anything`] is told.
const HEARD_WAITING_MAX: usize = 1_024;
/// Time to wait before connecting again.
const BACKOFF_MIN: Duration = Duration::from_millis(200);
const BACKOFF_MAX: Duration = Duration::from_secs(5);

/// The messages that a listener hears.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Heard {
    /// A notification's payload.
    Payload(String),
    /// It listens anew: anything may have been missed.
    Anything,
}

/// Listens on a channel until `stop`, or until the receiver is dropped.
#[must_use]
pub fn listen(database: &Database, channel: &'static str, stop: CancellationToken) -> mpsc::Receiver<Heard> {
    let (heard, receiver) = mpsc::channel(HEARD_WAITING_MAX);
    let database = database.clone();
    tokio::spawn(async move {
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            () = heard.closed() => {}
            () = keep_listening(&database, channel, &heard) => {}
        }
    });
    receiver
}

async fn keep_listening(database: &Database, channel: &'static str, heard: &mpsc::Sender<Heard>) {
    let mut backoff = BACKOFF_MIN;
    loop {
        let pool = database.listening_pool();
        if let Ok(mut listener) = database.listener(&pool, channel).await {
            backoff = BACKOFF_MIN;
            let mut missed = heard.try_send(Heard::Anything).is_err();
            // Ends with the connection.
            while let Ok(Some(notification)) = listener.try_recv().await {
                let next =
                    if missed { Heard::Anything } else { Heard::Payload(notification.payload().to_owned()) };
                missed = heard.try_send(next).is_err();
            }
        }
        tokio::time::sleep(backoff).await;
        backoff = backoff.saturating_mul(2).min(BACKOFF_MAX);
    }
}
