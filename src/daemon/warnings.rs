//! Looks for odd rules after every change of the rules, away from the threads that decide, and logs each
//! once.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::engine::Engine;

/// Time between two looks whether the rules changed.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Runs until `stop`. Looks at nothing before the first rules where the daemon `awaits_rules`.
pub(super) async fn watch(engine: Arc<Engine>, awaits_rules: bool, stop: CancellationToken) {
    loop {
        let own = Arc::clone(&engine);
        let new = tokio::task::spawn_blocking(move || match awaits_rules && own.loaded().revision == 0 {
            true => Vec::new(),
            false => own.look_for_warnings(),
        });
        let new = new.await;
        for warning in new.unwrap_or_default() {
            let rule = warning.rule.as_deref().unwrap_or_default();
            tracing::warn!(rule, "the rules in force are hardly meant so: {}", warning.text);
        }
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = tokio::time::sleep(LOOK_INTERVAL) => {}
        }
    }
}
