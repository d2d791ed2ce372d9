//! The orderly end: unready first, then no calls that would have to be cut off, then everything else.
//!
//! A gateway hears that a daemon leaves when it next looks at its health, and sends requests until then. So a
//! daemon turns unready at once and serves on for `listen.drain`. Then it asks clients to go elsewhere
//! (`Connection: close`, GOAWAY), and only then stops accepting.

use std::time::Duration;

use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::{Daemon, events, kept, traces};
use crate::api::Readiness;
use crate::core::time::Timestamp;
use crate::engine::clock::Deadline;

/// Longest time for what is in flight when the listeners have stopped.
pub(super) const DRAIN_SERVERS: Duration = Duration::from_secs(7);
/// Longest time for it when the daemon was told twice to stop.
const DRAIN_HURRIED: Duration = Duration::from_secs(1);
/// Time for which clients are asked to go elsewhere before the listeners stop; less where `listen.drain` is
/// less.
const CLOSING: Duration = Duration::from_secs(1);
/// Longest time for telling the other daemons that this one leaves.
const DRAIN_PEERS: Duration = Duration::from_millis(1_500);
/// Longest time for giving back permits that were drawn ahead.
const DRAIN_STORE: Duration = Duration::from_millis(500);
/// Time between two looks whether anybody is still connected.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The ways in which a daemon is asked to end.
#[derive(Debug, Clone, Default)]
pub struct Stopping {
    /// It need not wait for gateways that are not there: without an open connection it stops at once. For a
    /// person at a terminal; a supervisor's gateways may be between two connections.
    pub alone: bool,
    /// Cancelled: it stops without waiting for gateways any longer.
    pub hurry: CancellationToken,
}

impl Daemon {
    /// Turns unready, serves until gateways have noticed, finishes what is in flight, tells the other
    /// daemons, and ends: within `listen.drain` and ten seconds.
    pub async fn drain(self) {
        self.stop(Stopping::default()).await;
    }

    /// The same, and sooner if `stopping` says so.
    pub async fn stop(mut self, stopping: Stopping) {
        let gateways = self.drain.get();
        tracing::info!(serving_for = ?gateways, "draining: unready, still serving");
        self.readiness.send_replace(Readiness::Draining);
        self.wait_for_gateways(&stopping, gateways).await;
        self.stop_servers.closing.cancel();
        self.stop_servers.stop.cancel();
        self.shared.release_held();
        tracing::info!(connections = self.shared.connections(), "no longer accepting connections");
        // While this process can still tell the other regions.
        self.engine.release_reserved();
        let servers = async {
            tokio::select! {
                biased;
                () = self.servers.ended() => {}
                () = async { stopping.hurry.cancelled().await; sleep(DRAIN_HURRIED).await } => {}
            }
        };
        let leave = async {
            if let Some(world) = &self.world {
                let _ = timeout(DRAIN_PEERS, world.leave(DRAIN_PEERS)).await;
            }
        };
        let longest = DRAIN_SERVERS + Duration::from_millis(500);
        if timeout(longest, async { tokio::join!(servers, leave) }).await.is_err() {
            tracing::warn!("some connections did not finish in time and were closed");
        }
        // No decision draws ahead any more: what was drawn goes back.
        let _ = timeout(DRAIN_STORE, self.store.drain()).await;
        if let Some(audit) = &self.audit {
            audit.drain().await;
        }
        let spans = async {
            if let Some(exporting) = &self.traces {
                exporting.drain(Deadline::after(traces::DRAIN)).await;
            }
        };
        tokio::join!(self.courier.drain(Deadline::after(events::DRAIN)), spans);
        self.stop.cancel();
        let _ = timeout(Duration::from_millis(500), self.tasks.ended()).await;
        if let Some(world) = self.world.take() {
            world.stop(Duration::from_millis(500)).await;
        }
        self.leave_rights().await;
        tracing::info!("stopped");
    }

    /// Serves on until gateways have noticed that this daemon ends, for so long at most.
    async fn wait_for_gateways(&self, stopping: &Stopping, longest: Duration) {
        let closing = longest.min(CLOSING);
        tokio::select! {
            biased;
            () = stopping.hurry.cancelled() => {}
            () = self.nobody_is_connected(), if stopping.alone => {}
            () = async {
                sleep(longest.saturating_sub(closing)).await;
                self.stop_servers.closing.cancel();
                sleep(closing).await;
            } => {}
        }
    }

    /// Leaves the rights of `escrow` rules for the next process, if any are in this process's memory.
    async fn leave_rights(&self) {
        let (Some(shares), Some(memory)) = (self.shares.clone(), self.store.memory()) else { return };
        let shapes = self.engine.escrow_shapes();
        if shapes.0.is_empty() {
            return;
        }
        // The next process knows of no reservation: what came in flight goes back, too.
        self.engine.release_reserved();
        let store = memory.keep(shapes.0.iter().map(|(_, shape)| *shape), shapes.1, self.engine.now());
        let (name, beside) = (self.engine.name().clone(), shares.clone());
        let marks = self.store.marks().cloned();
        let leave = move || {
            let lived = marks.map_or(Timestamp(0), |marks| marks.live());
            kept::leave(&beside, &name, shapes, store, lived)
        };
        let left = tokio::task::spawn_blocking(leave).await;
        if let Ok(Err(error)) = left {
            let error = format!("{error:#}");
            tracing::warn!(path = %shares.display(), error, "the rights of escrow rules cannot be left beside this file for the next process, which burns what this one may have spent");
        }
    }

    async fn nobody_is_connected(&self) {
        while self.shared.connections() > 0 {
            sleep(LOOK_EVERY).await;
        }
    }
}
