//! Tasks that must be done now and then: forget what has expired, give back what has lapsed, drain
//! histograms, publish gauges, read rates.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::engine::Engine;
use crate::engine::status::WorldStatus;
use crate::engine::world::WorldPort;

/// Time between two rounds of upkeep.
const PERIOD: Duration = Duration::from_secs(1);

/// Runs until `stop`. `alone`: no task speaks with other daemons, so nobody else says how worldwide rules
/// stand.
pub(super) async fn run(engine: Arc<Engine>, alone: bool, stop: CancellationToken) {
    let tasks = engine.metrics().plain_gauge("tasks");
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = engine.owed_is_due() => engine.pay_owed().await,
            () = engine.turns_are_left() => engine.give_back_turns().await,
            _ = ticks.tick() => {
                once(&engine);
                tokio::select! {
                    biased;
                    () = stop.cancelled() => return,
                    () = engine.give_back_lapsed() => {}
                }
                tasks.set(alive());
                if alone {
                    WorldPort::publish(&*engine, WorldStatus::default());
                }
            }
        }
    }
}

/// Tasks that have not ended, of everything that this process runs.
#[expect(clippy::cast_precision_loss, reason = "a gauge is a float")]
fn alive() -> f64 {
    tokio::runtime::Handle::current().metrics().num_alive_tasks() as f64
}

#[expect(clippy::cast_precision_loss, reason = "a gauge is a float")]
fn once(engine: &Engine) {
    let store = engine.store();
    store.sweep(engine.now());
    let len = store.len();
    let metrics = engine.metrics();
    metrics.keys.set(len.keys as f64);
    metrics.keys_evicted.absolute(len.evicted);
    metrics.keys_full.absolute(len.full);
    engine.publish_hot();
    engine.read_rates();
    if let Some(lookups) = engine.lookups() {
        lookups.upkeep();
    }
    metrics.upkeep();
}
