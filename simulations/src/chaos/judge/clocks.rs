//! Regions whose clocks are wrong: which window one counts in, and whether the others know.

use std::time::Duration;

use super::super::clock::any_is_wrong;
use super::{Evidence, Page, Promise, STALL, Verdict};
use crate::number::float;
use crate::plan::FaultKind;

/// A process may have begun so long before the first request, and its clock drifts from then on.
const BEFORE: Duration = Duration::from_secs(60);
/// The time that a daemon may take until it knows that a clock is another one.
const KNOWN_WITHIN: Duration = Duration::from_secs(5);
/// A daemon goes by the fastest frame of the last minute, which is that of the clock that was ahead most.
const REMEMBERED: Duration = Duration::from_secs(65);
/// Besides half a round trip: what a busy machine adds.
const TOLERANCE: f64 = 0.02;

/// An instant by a clock that is so many microseconds ahead.
pub(super) fn moved(at: Duration, ahead: i64) -> Duration {
    let by = Duration::from_micros(ahead.unsigned_abs());
    if ahead < 0 { at.saturating_sub(by) } else { at + by }
}

impl Evidence<'_> {
    /// Returns how far a region's clock was ahead between two instants since the first request: at least, and
    /// at most.
    pub(super) fn clock(&self, region: usize, (from, until): (Duration, Duration)) -> (i64, i64) {
        let Some(planned) = self.plan.regions.get(region) else { return (0, 0) };
        let running = Duration::from_micros(self.plan.length.0) + BEFORE;
        let drift = i64::try_from(running.as_micros()).unwrap_or(i64::MAX).saturating_mul(planned.drift_ppm)
            / 1_000_000;
        let (mut low, mut high) = (planned.ahead + drift.min(0), planned.ahead + drift.max(0));
        for fault in &self.told.faults {
            let FaultKind::ClockStep { region: of, by } = fault.kind else { continue };
            let (moved_at, back_at) = (fault.from, fault.until);
            if of != region || until < moved_at {
                continue;
            }
            // Around the instants at which it moves it may be either. One that steps back counts on in the
            // window that it had reached, as if it had not, until it reads again what it had read.
            let slack = Duration::from_millis(100);
            let behind = |steps_back: bool| {
                if steps_back { Duration::from_micros(by.unsigned_abs()) } else { Duration::ZERO }
            };
            let surely = from > moved_at + slack + behind(by < 0) && until + slack < back_at;
            let over = from > back_at + slack + behind(by > 0);
            low += if surely || (!over && by < 0) { by } else { 0 };
            high += if surely || (!over && by > 0) { by } else { 0 };
        }
        (low, high)
    }

    pub(super) fn clocks_are_known(&self) -> Verdict {
        const PROMISE: Promise = Promise {
            title: "Wrong clocks are known",
            manual: "`tidegate_peer_clock_offset_seconds{region}` (in `tidegate regions`: `clock`) is how far one is ahead, as well as half a round trip tells (docs/concepts/clocks.md)",
        };
        if !any_is_wrong(self.plan) {
            return Verdict::new(PROMISE, None);
        }
        let slower = self.told.faults.iter().map(|fault| match &fault.kind {
            FaultKind::Slow { by, .. } => by.0,
            _ => 0,
        });
        let longest = self.plan.weather.longest().0 + slower.sum::<u64>();
        let longest = float(longest) / 1e6 * (1.0 + self.plan.weather.jitter);
        let allowed = longest + TOLERANCE;
        let (mut looked, mut worst) = (0_u64, None::<(f64, String)>);
        let all = self.told.meanwhile.iter().map(|(at, pages)| (*at, pages));
        for (at, Page { daemon, region, metrics }) in
            all.flat_map(|(at, pages)| pages.iter().map(move |page| (at, page)))
        {
            for (place, other) in self.plan.regions.iter().enumerate() {
                let name = format!("tidegate_peer_clock_offset_seconds{{region=\"{}\"}}", other.name);
                let line = metrics.lines().find_map(|line| line.strip_prefix(&name));
                let Some(shown) = line.and_then(|value| value.trim().parse::<f64>().ok()) else { continue };
                let ahead = |memory: Duration| {
                    let span = (at.saturating_sub(memory), at);
                    let (own, other) = (self.clock(*region, span), self.clock(place, span));
                    (other.0 - own.1, other.1 - own.0)
                };
                // A process that stood still sent late, and its frames say so for as long as they are
                // remembered.
                if self.stalled(STALL, (at.saturating_sub(REMEMBERED), at)) {
                    continue;
                }
                let (low, high) = (ahead(KNOWN_WITHIN).0, ahead(REMEMBERED).1);
                looked += 1;
                #[expect(clippy::cast_precision_loss, reason = "an offset of some seconds")]
                let (low, high) = (low as f64 / 1e6, high as f64 / 1e6);
                let off = (low - shown).max(shown - high).max(0.0);
                if worst.as_ref().is_none_or(|(most, _)| off > *most) {
                    let found = format!(
                        "{daemon} said at {:.1} s that {} is {shown:.3} s ahead, and it was {low:.3} to {high:.3}",
                        at.as_secs_f64(),
                        other.name
                    );
                    worst = Some((off, found));
                }
            }
        }
        let found = worst.map(|(off, example)| {
            (
                off <= allowed,
                format!("{looked} values, {off:.3} s off at most where {allowed:.3} is allowed: {example}"),
            )
        });
        Verdict::new(PROMISE, found)
    }
}
