//! A region without its Redis: what the failure policy `local` lets through.

use std::collections::HashMap;
use std::time::Duration;

use tidegate::core::algorithm::Algorithm;

use super::super::clock::any_is_wrong;
use super::{Evidence, NOTICED, Promise, Verdict};
use crate::number::place;
use crate::plan::FaultKind;

impl Evidence<'_> {
    pub(super) fn local_is_held(&self) -> Verdict {
        const PROMISE: Promise = Promise {
            title: "While Redis is away local admits at most the limit of each key in a region",
            manual: "At most `max(limit, daemons)` is so admitted in the region (docs/concepts/counting-in-redis.md, A bad day: by `local`, of each key, once an outage)",
        };
        if self.plan.rule.algorithm != Algorithm::FixedWindow || any_is_wrong(self.plan) {
            return Verdict::new(PROMISE, None);
        }
        let mut keys: HashMap<(usize, u64, u64), u64> = HashMap::new();
        let decided = self.seen.iter().filter_map(|seen| Some((seen, seen.answer.decision()?)));
        for (seen, decision) in decided.filter(|(_, decision)| decision.degraded) {
            if let Some(window) = self.sure_window(seen) {
                let admitted = if decision.admitted { seen.ask.cost } else { 0 };
                *keys.entry((seen.ask.region, seen.ask.user, window)).or_default() += admitted;
            }
        }
        let (mut above, mut worst) = (0_u64, None::<(u64, u64)>);
        for ((region, _, window), admitted) in &keys {
            let from = self.window() * u32::try_from(*window - self.index(self.begun)).unwrap_or(u32::MAX);
            let until = from + self.window();
            let daemons = self.plan.regions.get(*region).map_or(1, |region| region.daemons);
            // Each daemon admits one at least.
            let each = self.limit_between(from, until).max(place(daemons));
            let allowed = each * place(self.outages(*region, from, until)).max(1);
            above += u64::from(*admitted > allowed);
            if worst.is_none_or(|(most, of)| {
                admitted.saturating_sub(allowed) > most.saturating_sub(of) || *admitted > most
            }) {
                worst = Some((*admitted, allowed));
            }
        }
        let found = worst.map(|(most, allowed)| {
            let found = format!(
                "{} keys judged in windows without their Redis, {above} above; the most that one got is {most} of {allowed}",
                keys.len()
            );
            (above == 0, found)
        });
        Verdict::new(PROMISE, found)
    }

    /// Returns how often a region was without its Redis between two instants.
    fn outages(&self, region: usize, from: Duration, until: Duration) -> usize {
        let of_region = self.told.faults.iter().filter(|fault| match fault.kind {
            FaultKind::StoreLost { region: of }
            | FaultKind::StoreFull { region: of }
            | FaultKind::StoreFrozen { region: of }
            | FaultKind::PrimaryLost { region: of }
            | FaultKind::Failover { region: of } => of == region,
            _ => false,
        });
        of_region.filter(|fault| fault.from <= until && fault.until + NOTICED >= from).count()
    }
}
