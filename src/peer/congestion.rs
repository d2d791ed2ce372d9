//! The bound on bytes that are under way on a link: CUBIC, but never less than reports need.
//!
//! Reports are few and small, so a link is almost never full, and CUBIC grows its window only where it is.
//! Each lost packet shrinks it all the same: with one of a hundred lost it falls to two packets, less than
//! what a long link carries in one round trip, and reports wait at their sender although the network is
//! empty. A frame that waits is taken for lost and told again, so that more waits. The messages of daemons
//! are bounded elsewhere: a link may always carry what its allowance of reports sends within a round trip.

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quinn::congestion::{Controller, ControllerFactory, ControllerMetrics, Cubic, CubicConfig};
use quinn_proto::RttEstimator;

use crate::core::regions::{BYTES_AT_ONCE, BYTES_PER_SECOND};

/// Bytes that may be under way until a round trip is known: a few more than new connections may begin with
/// (RFC 9002, section 7.2, 14,720), which no network takes for an attack.
const WINDOW_MIN: u64 = 16 * 1_024;
/// This part of every frame goes out for names, acknowledgements and QUIC itself, in percent.
const OVERHEAD: u64 = 20;
/// No link is longer.
const RTT_MAX: Duration = Duration::from_secs(2);

/// Makes a controller for each connection.
#[derive(Debug, Default)]
pub(super) struct Congestion(Arc<CubicConfig>);

impl ControllerFactory for Congestion {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        let cubic = Cubic::new(Arc::clone(&self.0), now, current_mtu);
        Box::new(Floored { cubic, least: WINDOW_MIN })
    }
}

/// CUBIC with a floor.
#[derive(Debug, Clone)]
struct Floored {
    cubic: Cubic,
    /// Bytes that may be under way whatever is lost.
    least: u64,
}

/// Returns what the allowance of reports sends within a round trip, and at once.
fn allowance(rtt: Duration) -> u64 {
    let micros = u64::try_from(rtt.min(RTT_MAX).as_micros()).unwrap_or(u64::MAX);
    (BYTES_PER_SECOND * micros / 1_000_000 + BYTES_AT_ONCE) * (100 + OVERHEAD) / 100
}

impl Controller for Floored {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        self.cubic.on_sent(now, bytes, last_packet_number);
    }

    fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, app_limited: bool, rtt: &RttEstimator) {
        self.least = allowance(rtt.get());
        self.cubic.on_ack(now, sent, bytes, app_limited, rtt);
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, app_limited: bool, largest: Option<u64>) {
        self.cubic.on_end_acks(now, in_flight, app_limited, largest);
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, persistent: bool, lost_bytes: u64) {
        self.cubic.on_congestion_event(now, sent, persistent, lost_bytes);
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.cubic.on_mtu_update(new_mtu);
    }

    fn window(&self) -> u64 {
        self.cubic.window().max(self.least)
    }

    fn metrics(&self) -> ControllerMetrics {
        self.cubic.metrics()
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        self.cubic.initial_window().max(WINDOW_MIN)
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(clippy::disallowed_methods, reason = "the controller of quinn counts in real time")]
    fn losses_leave_room_for_reports() {
        let mut controller = Arc::new(Congestion::default()).build(Instant::now(), 1_200);
        for _ in 0..50 {
            controller.on_congestion_event(Instant::now(), Instant::now(), true, 1_200);
        }
        assert_eq!(controller.window(), WINDOW_MIN);
    }

    #[test]
    fn a_longer_link_carries_more_at_once() {
        assert_eq!(allowance(Duration::from_millis(80)), 135_321);
        assert_eq!(allowance(Duration::from_hours(1)), allowance(RTT_MAX));
    }
}
