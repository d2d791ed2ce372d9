//! The log names what went wrong: a region that is cut off, and every other cause that an operator must find.

use super::{Evidence, Happened, NOTICED, Promise, Verdict};
use crate::plan::FaultKind;

/// A fault that is over sooner may not have been noticed by all.
const LASTS: std::time::Duration = std::time::Duration::from_secs(3);
/// A call to PostgreSQL that is not answered fails after this.
const CALL_FAILS: std::time::Duration = std::time::Duration::from_secs(5);

/// The words that the log of a daemon must say of a fault.
struct Line {
    /// The daemons that must log it.
    logged_by: Vec<usize>,
    /// Any of these.
    words: &'static [&'static str],
}

impl Evidence<'_> {
    /// The regions that the others cannot hear meanwhile.
    pub(super) fn silenced(&self, fault: &Happened) -> Vec<usize> {
        if fault.until.saturating_sub(fault.from) < NOTICED {
            return Vec::new();
        }
        match &fault.kind {
            FaultKind::Cut { regions, outward: true, .. } => regions.clone(),
            FaultKind::Crash { region, .. } | FaultKind::Stop { region, .. }
                if self.plan.regions.get(*region).is_some_and(|region| region.daemons == 1) =>
            {
                vec![*region]
            }
            _ => Vec::new(),
        }
    }

    pub(super) fn cut_is_named(&self) -> Verdict {
        const PROMISE: Promise = Promise {
            title: "The log names a region that is cut off, and says when it is heard again",
            manual: "That a region is cut off is logged as a warning, with what its rules do meanwhile (docs/concepts/partitions.md; that it is heard again is a line too)",
        };
        let (mut looked, mut missing) = (0, Vec::new());
        // A daemon that is away meanwhile logs nothing of it.
        let alone = |fault: &&Happened| !self.disturbed(fault, (fault.from, fault.until + NOTICED));
        let faults = self.told.faults.iter().filter(alone);
        for region in faults.flat_map(|fault| self.silenced(fault)) {
            let name = self.plan.regions.get(region).map_or("", |region| region.name.as_str());
            let all_hear = self.plan.regions.len() < 2;
            for (daemon, _, log) in self.daemons.iter().filter(|(_, of, _)| *of != region && !all_hear) {
                looked += 1;
                for line in [format!("region {name} is cut off"), format!("region {name} is heard")] {
                    if !log.contains(&line) {
                        missing.push(format!("{daemon} never logged \"{line}\""));
                    }
                }
            }
        }
        let found = if missing.is_empty() { format!("{looked} logs name it") } else { missing.join("; ") };
        Verdict::new(PROMISE, (looked > 0).then_some((missing.is_empty(), found)))
    }

    pub(super) fn causes_are_named(&self) -> Verdict {
        const PROMISE: Promise = Promise {
            title: "The log names the cause of what goes wrong",
            manual: "What goes wrong is a line of the log that names the cause (docs/reference/metrics.md, Logs)",
        };
        let (mut looked, mut missing) = (0, Vec::new());
        for fault in &self.told.faults {
            let Some(Line { logged_by, words }) = self.line_of(fault) else { continue };
            for (daemon, _, log) in logged_by.iter().filter_map(|place| self.daemons.get(*place)) {
                looked += 1;
                if !words.iter().any(|word| log.contains(word)) {
                    missing.push(format!("{daemon} never logged {words:?} in the {}", fault.kind.word()));
                }
            }
        }
        let found = if missing.is_empty() { format!("{looked} logs name it") } else { missing.join("; ") };
        Verdict::new(PROMISE, (looked > 0).then_some((missing.is_empty(), found)))
    }

    /// The words that must be in each log, where that is clear.
    fn line_of(&self, fault: &Happened) -> Option<Line> {
        let lasts = fault.until.saturating_sub(fault.from);
        let of_region = |region: usize| -> Vec<usize> {
            let daemons = self.daemons.iter().enumerate();
            daemons.filter(|(_, (_, of, _))| *of == region).map(|(place, _)| place).collect()
        };
        let others = |region: usize| -> Vec<usize> {
            let daemons = self.daemons.iter().enumerate();
            daemons.filter(|(_, (_, of, _))| *of != region).map(|(place, _)| place).collect()
        };
        // A daemon that is away meanwhile logs nothing of it, and one whose log is lost nothing at all.
        let hidden = self.told.faults.iter().any(|other| match other.kind {
            FaultKind::LogLost { .. } => other.from <= fault.until,
            FaultKind::Crash { .. } | FaultKind::Stop { .. } => {
                other.from <= fault.until && other.until + NOTICED >= fault.from
            }
            _ => false,
        });
        if hidden || (lasts < LASTS && !matches!(fault.kind, FaultKind::Join { .. })) {
            return None;
        }
        let (logged_by, words): (Vec<usize>, &'static [&'static str]) = match &fault.kind {
            FaultKind::StoreFull { region } if self.is_asked(*region, fault) => {
                (of_region(*region), &["redis has no memory left"])
            }
            FaultKind::StoreFrozen { region } if self.is_asked(*region, fault) => {
                (of_region(*region), &["redis answers too late", "redis does not answer"])
            }
            FaultKind::DatabaseLost | FaultKind::DatabaseReadOnly if self.is_denied(fault) => {
                (self.who_denied(fault), &["records of decisions wait in the spool"])
            }
            FaultKind::DatabaseFrozen if self.is_denied(fault) && lasts > CALL_FAILS + NOTICED => {
                (self.who_denied(fault), &["records of decisions wait in the spool"])
            }
            FaultKind::CertificatesEnd { region, .. } => (
                of_region(*region),
                &["this daemon's certificate ends on", "this daemon's certificate ended on"],
            ),
            FaultKind::ClockStep { .. } => return None,
            FaultKind::Join { region, listed: false } => {
                let mut all = others(*region);
                all.extend(of_region(*region));
                (all, &["is not in this daemon's peers.regions", "is not in the peers.regions of"])
            }
            _ => return None,
        };
        Some(Line { logged_by, words })
    }

    /// True if a region was asked all the while.
    fn is_asked(&self, region: usize, fault: &Happened) -> bool {
        let asked = self.seen.iter().filter(|seen| {
            let sent = self.since(seen.sent);
            seen.ask.region == region && sent > fault.from && sent < fault.until
        });
        asked.count() >= 50
    }

    /// True if anybody was denied so early in a fault that it had to be written meanwhile.
    fn is_denied(&self, fault: &Happened) -> bool {
        !self.who_denied(fault).is_empty()
    }

    /// The only daemons of regions whose clients were denied early in a fault.
    fn who_denied(&self, fault: &Happened) -> Vec<usize> {
        let denied = |region: usize| {
            self.seen.iter().any(|seen| {
                let at = self.since(seen.answered);
                seen.ask.region == region
                    && seen.answer.denied()
                    && at > fault.from
                    && at + NOTICED < fault.until
            })
        };
        let alone = |region: usize| self.plan.regions.get(region).is_some_and(|region| region.daemons == 1);
        let daemons = self.daemons.iter().enumerate();
        daemons.filter(|(_, (_, of, _))| alone(*of) && denied(*of)).map(|(place, _)| place).collect()
    }
}
