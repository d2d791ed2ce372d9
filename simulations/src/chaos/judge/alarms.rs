//! Alarms of `/metrics`: still in health, raised by faults, and still again when all has been put right.

use std::time::Duration;

use super::{Evidence, Happened, Kept, NOTICED, Page, Promise, STALL, Verdict};
use crate::plan::{FaultKind, Way};

/// Counters and gauges that stay at zero while nothing is wrong.
const ALARMS: [&str; 24] = [
    "tidegate_frames_rejected_total",
    "tidegate_peer_dropped_total{queue=\"queue_full\"}",
    "tidegate_task_ends_total",
    "tidegate_log_lines_lost_total",
    "tidegate_degraded_decisions_total",
    "tidegate_audit_dropped_total",
    "tidegate_events_dropped_total",
    "tidegate_peer_rules_refused_total",
    "tidegate_store_errors_total",
    "tidegate_store_trouble",
    "tidegate_notices",
    "tidegate_rule_reload_failures_total",
    "tidegate_config_reload_failures_total",
    "tidegate_rules_refused",
    "tidegate_unmatched_requests_total",
    "tidegate_rule_warnings",
    "tidegate_rules_unsaved",
    "tidegate_admin_refused_total",
    "tidegate_connections_evicted_total",
    "tidegate_connections_refused_total",
    "tidegate_holds_total{event=\"gone\"}",
    "tidegate_world_keys_dropped_total",
    "tidegate_store_evicted_keys_total",
    "tidegate_keys_full_total",
];
/// Gauges that are zero where something is wrong.
const UP: [&str; 2] = ["tidegate_rules_source_up", "tidegate_peer_connected"];
/// This metric is an alarm of `escrow` alone.
const OVERSHOOT: &str = "tidegate_global_overshoot_permits_total";
/// News of a region is late beyond this.
const LAG: f64 = 1.0;
/// Gauges among them: zero again when nothing is wrong any more.
const STATES: [&str; 2] = ["tidegate_store_trouble", "tidegate_notices"];
/// The time that daemons may take to notice that all is right again: they look at their stores every few
/// seconds.
const RIGHT_AGAIN: Duration = Duration::from_secs(6);
/// A link over which nothing comes ends within this.
const LINKS_END: Duration = Duration::from_secs(5);
/// Daemons try to make a link again at least so often.
const LINKS_BEGIN: Duration = Duration::from_secs(5);
/// After so long without spool and PostgreSQL more records wait than are kept in memory.
const FILLS: Duration = Duration::from_secs(5);

/// The lines that begin with one of these names, with their values.
fn values<'a>(page: &'a Page, names: &'a [&'a str]) -> impl Iterator<Item = (&'a str, f64)> {
    let lines = page.metrics.lines().filter(|line| names.iter().any(|name| line.starts_with(name)));
    lines.filter_map(|line| Some((line, line.rsplit(' ').next()?.parse().ok()?)))
}

/// An alarm that has to be raised, from which value on, and the daemons that tell it.
type Raised<'a> = (String, f64, Vec<&'a Page>);

impl Evidence<'_> {
    pub(super) fn health_is_quiet(&self) -> Verdict {
        const PROMISE: Promise = Promise {
            title: "No alarm rises in health",
            manual: "In health no alarm rises (docs/reference/metrics.md, Alerts)",
        };
        let first = self.told.faults.iter().map(|fault| fault.from).min().unwrap_or(Duration::MAX);
        // A region whose clock is wrong from the beginning is no health.
        if self.begins_wrong() || self.stalled(STALL, (Duration::ZERO, first)) {
            return Verdict::new(PROMISE, None);
        }
        let mut names = ALARMS.to_vec();
        names.extend((self.way == Way::Escrow).then_some(OVERSHOOT));
        let zero = Self::all_are_zero(PROMISE, &self.told.healthy, &names, "before the first fault");
        let down: Vec<String> = self.told.healthy.iter().flat_map(|page| self.is_down(page)).collect();
        match down.is_empty() || zero.kept == Kept::No {
            true => zero,
            false => Verdict::new(PROMISE, Some((false, down.join("; ")))),
        }
    }

    /// The gauges of a daemon that should be above zero and are not.
    fn is_down(&self, page: &Page) -> Vec<String> {
        // A daemon with nobody beside it has no link to its own region, nor to one that is added later.
        let away = |line: &str| {
            let regions = self.plan.regions.iter().enumerate();
            let mut named = regions.filter(|(_, region)| line.contains(&format!("\"{}\"", region.name)));
            named.any(|(place, _)| {
                place == page.region || self.plan.faults.iter().any(|fault| fault.kind.adds() == Some(place))
            })
        };
        let down = values(page, &UP).filter(|(line, value)| *value <= 0.0 && !away(line));
        down.map(|(line, _)| format!("{}: {line}", page.daemon)).collect()
    }

    fn begins_wrong(&self) -> bool {
        self.plan.regions.iter().any(|region| region.ahead != 0 || region.drift_ppm != 0)
    }

    fn all_are_zero(promise: Promise, pages: &[Page], names: &[&str], when: &str) -> Verdict {
        let (mut looked, mut raised) = (0, Vec::new());
        for page in pages {
            for (line, value) in values(page, names) {
                looked += 1;
                if value > 0.0 {
                    raised.push(format!("{}: {line}", page.daemon));
                }
            }
        }
        let found = match raised.is_empty() {
            true => format!("{looked} values {when}, all zero"),
            false => raised.join("; "),
        };
        Verdict::new(promise, (looked > 0).then_some((raised.is_empty(), found)))
    }

    /// Returns what is looked at while a fault lasts: the alarm that it raises, and the daemons that tell it.
    fn told_by(&self, fault: &Happened) -> Option<(&'static str, Vec<&Page>)> {
        let lasts = matches!(fault.kind, FaultKind::LogLost { .. } | FaultKind::Join { listed: false, .. });
        let around = |at: Duration| at > fault.from && (at <= fault.until || lasts);
        let (_, pages) = self.told.meanwhile.iter().rfind(|(at, _)| around(*at))?;
        let of = |is: &dyn Fn(&Page) -> bool| pages.iter().filter(|page| is(page)).collect();
        match &fault.kind {
            FaultKind::StoreFull { region } => {
                Some(("tidegate_store_trouble{kind=\"full\"}", of(&|page| page.region == *region)))
            }
            FaultKind::StoreFrozen { region } => {
                Some(("tidegate_store_trouble", of(&|page| page.region == *region)))
            }
            // Records that wait in memory go on to PostgreSQL, if it takes them.
            FaultKind::DiskFull { region, daemon } => {
                let page = pages.iter().filter(|page| page.region == *region).skip(*daemon).take(1).collect();
                let away = self.told.faults.iter().any(|other| {
                    other.kind.is_of_the_database()
                        && other.until.min(fault.until) >= other.from.max(fault.from) + FILLS
                });
                (away && self.told.unplayed.is_empty()).then_some(("tidegate_audit_dropped_total", page))
            }
            FaultKind::CertificatesEnd { region, .. } => {
                Some(("tidegate_notices{about=\"certificate\"}", of(&|page| page.region == *region)))
            }
            FaultKind::DatabaseLost | FaultKind::DatabaseReadOnly => {
                let denied = self.seen.iter().any(|seen| {
                    let at = self.since(seen.answered);
                    seen.answer.denied() && at > fault.from && at + NOTICED < fault.until
                });
                denied.then(|| ("tidegate_audit_spooled_bytes", of(&|page| page.region == 0)))
            }
            FaultKind::Cut { .. } | FaultKind::Crash { .. } | FaultKind::Stop { .. } => {
                let silenced = self.silenced(fault);
                let hears = |page: &Page| !silenced.contains(&page.region);
                (!silenced.is_empty()).then(|| ("tidegate_notices{about=\"cut_off\"}", of(&hears)))
            }
            FaultKind::LogLost { region, daemon } => {
                let all_daemons = pages.iter().filter(|page| page.region == *region);
                let page = all_daemons.skip(*daemon).take(1).collect();
                // Nothing is written in health, so there is nothing to lose.
                let writes = self.told.faults.iter().any(|other| {
                    other.from > fault.from
                        && matches!(other.kind, FaultKind::Limit(_) | FaultKind::Cut { .. })
                });
                writes.then_some(("tidegate_log_lines_lost_total{reason=\"unwritten\"}", page))
            }
            FaultKind::Join { listed: false, .. } => {
                Some(("tidegate_notices{about=\"regions\"}", of(&|_| true)))
            }
            _ => None,
        }
    }

    /// Regions that are not heard any more are long in telling anything, for all who hear the others.
    fn late_by(&self, fault: &Happened) -> Vec<Raised<'_>> {
        let silenced = self.silenced(fault);
        let around = |at: Duration| at > fault.from && at <= fault.until;
        let found = self.told.meanwhile.iter().rfind(|(at, _)| around(*at));
        let Some((_, pages)) = found.filter(|_| matches!(fault.kind, FaultKind::Cut { .. })) else {
            return Vec::new();
        };
        let hears: Vec<&Page> = pages.iter().filter(|page| !silenced.contains(&page.region)).collect();
        let named = silenced.iter().filter_map(|region| self.plan.regions.get(*region));
        let alarm = |name: &str| format!("tidegate_peer_lag_seconds{{region=\"{name}\"}}");
        named.map(|region| (alarm(&region.name), LAG, hears.clone())).collect()
    }

    /// The daemons that do not accept the certificate of a region that has ended, once links had to be made
    /// anew.
    fn refused_by(&self, fault: &Happened) -> Option<(&'static str, Vec<&Page>)> {
        let FaultKind::CertificatesEnd { region, .. } = fault.kind else { return None };
        let anew = self.told.faults.iter().any(|other| match &other.kind {
            FaultKind::Cut { regions, .. } => {
                regions.contains(&region)
                    && other.until.saturating_sub(other.from) >= LINKS_END
                    && other.from > fault.from
                    && other.until + LINKS_BEGIN < fault.until
            }
            _ => false,
        });
        let (_, pages) =
            self.told.meanwhile.iter().rfind(|(at, _)| *at > fault.from && *at <= fault.until)?;
        let others = pages.iter().filter(|page| page.region != region).collect();
        anew.then_some(("tidegate_notices{about=\"refused\"}", others))
    }

    pub(super) fn faults_are_told(&self) -> Verdict {
        const PROMISE: Promise = Promise {
            title: "What goes wrong raises its alarm",
            manual: "What goes wrong raises its alarm while it lasts (docs/reference/metrics.md, Alerts)",
        };
        let (mut told, mut missing) = (Vec::new(), Vec::new());
        for fault in &self.told.faults {
            let span = (fault.from, fault.until);
            // The daemon that these happen to tells them, whatever else happens.
            let own = matches!(
                fault.kind,
                FaultKind::LogLost { .. } | FaultKind::DiskFull { .. } | FaultKind::CertificatesEnd { .. }
            );
            if self.disturbed(fault, span) && !own {
                continue;
            }
            let above_zero = self.told_by(fault).into_iter().chain(self.refused_by(fault));
            let above_zero = above_zero.map(|(alarm, pages)| (alarm.to_owned(), 0.0, pages));
            for (alarm, above, pages) in above_zero.chain(self.late_by(fault)) {
                for page in pages.into_iter().filter(|page| !page.metrics.is_empty()) {
                    if values(page, &[&alarm]).any(|(_, value)| value > above) {
                        told.push(alarm.clone());
                    } else {
                        let word = fault.kind.word();
                        missing.push(format!("{} does not raise {alarm} in the {word}", page.daemon));
                    }
                }
            }
        }
        let count = told.len() + missing.len();
        told.sort_unstable();
        told.dedup();
        let found = match missing.is_empty() {
            true if count == 1 => format!("one alarm raised: {}", told.join(", ")),
            true => format!("{count} times an alarm raised: {}", told.join(", ")),
            false => missing.join("; "),
        };
        Verdict::new(PROMISE, (count > 0).then_some((missing.is_empty(), found)))
    }

    pub(super) fn all_is_right_again(&self) -> Verdict {
        const PROMISE: Promise = Promise {
            title: "Nothing is said to be wrong once all is right again",
            manual: "When all has been put right, nothing is said to be wrong (docs/reference/metrics.md, Alerts)",
        };
        let last = self.told.faults.iter().map(|fault| fault.until).max();
        let end = self.told.meanwhile.last();
        let (Some(last), Some((at, pages))) = (last, end) else { return Verdict::new(PROMISE, None) };
        let stays = |fault: &Happened| matches!(fault.kind, FaultKind::Join { listed: false, .. });
        let wrong = self.begins_wrong() || self.told.faults.iter().any(stays);
        if wrong || last + RIGHT_AGAIN > *at || self.stalled(STALL, (last, *at)) {
            return Verdict::new(PROMISE, None);
        }
        Self::all_are_zero(PROMISE, pages, &STATES, "at the end")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Alarms of the manual that are judged elsewhere or that no story can bring about, with the reason.
    const OTHERS: [(&str, &str); 16] = [
        ("tidegate_tasks", "a trend over hours"),
        ("tidegate_connections", "the trend beside it"),
        ("tidegate_certificate_expires_timestamp_seconds", "its notice is judged"),
        ("tidegate_peer_lag_seconds", "judged in cuts"),
        ("tidegate_peer_clock_offset_seconds", "judged by itself"),
        ("tidegate_late_reports_total", "a trend: a late report now and then is health"),
        ("tidegate_global_error_bound", "judged against what was used"),
        (
            "tidegate_audit_spooled_bytes",
            "above zero for a moment in health; judged while PostgreSQL is away",
        ),
        ("tidegate_events_spooled_bytes", "no story has a receiver"),
        ("tidegate_trace_exports_total", "no story has a collector"),
        ("tidegate_world_keys", "beside a bound that no story reaches"),
        ("tidegate_store_memory_used_bytes", "`store_trouble` is judged where a Redis is full"),
        ("tidegate_store_memory_max_bytes", "the bound beside it"),
        ("tidegate_keys", "beside a bound; `keys_full_total` is judged"),
        ("tidegate_global_overshoot_permits_total", "of `escrow` alone"),
        ("tidegate_holds_total", "`gone` alone"),
    ];

    #[test]
    fn every_alarm_of_the_manual_is_judged_or_has_a_reason_not_to_be() {
        let page = include_str!("../../../../docs/reference/metrics.md");
        let alerts = page.split("\n## ").find(|section| section.starts_with("Alerts")).unwrap();
        let rows = alerts.lines().filter(|line| line.starts_with("| `tidegate_"));
        let cells = rows.filter_map(|row| row.split('|').nth(1));
        let names: Vec<&str> = cells
            .flat_map(|cell| cell.split(|at: char| !at.is_ascii_alphanumeric() && at != '_'))
            .filter(|word| word.starts_with("tidegate_"))
            .collect();
        assert!(names.len() > 25, "{names:?}");
        let judged = |name: &str| {
            let metric = |alarm: &&str| alarm.split('{').next() == Some(name);
            ALARMS.iter().chain(&UP).any(metric) || OTHERS.iter().any(|(other, _)| *other == name)
        };
        let missing: Vec<&&str> = names.iter().filter(|name| !judged(name)).collect();
        assert!(missing.is_empty(), "no story judges these alarms of the manual: {missing:?}");
        let gone = ALARMS.iter().chain(&UP).filter(|alarm| !page.contains(alarm.split('{').next().unwrap()));
        // The manual names metrics without their prefix in its tables.
        let gone: Vec<&&str> = gone
            .filter(|alarm| !page.contains(alarm.trim_start_matches("tidegate_").split('{').next().unwrap()))
            .collect();
        assert!(gone.is_empty(), "the manual does not know {gone:?}");
    }
}
