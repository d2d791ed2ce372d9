//! Clients that wait as long as they were told, and ask again.

use std::collections::HashMap;

use super::{Evidence, Promise, STALL, Seen, Verdict};
use crate::number::len;

/// The part that must be admitted of those who waited, and beside whom nobody asked the same bucket.
const ADMITTED: f64 = 0.95;
/// Fewer than this show nothing.
const ENOUGH: usize = 20;

impl Evidence<'_> {
    pub(super) fn waiting_helps(&self) -> Verdict {
        const PROMISE: Promise = Promise {
            title: "Whoever waits as long as retry_after says is admitted",
            manual: "A client that waits until the reset is admitted if nothing else comes (docs/reference/http.md, Headers: as long as `retry_after` says)",
        };
        let mut of_user: HashMap<u64, Vec<&Seen>> = HashMap::new();
        for seen in self.seen {
            of_user.entry(seen.ask.user).or_default().push(seen);
        }
        let (mut waited, mut helped, mut first) = (0_usize, 0_usize, None::<&Seen>);
        for seen in self.seen {
            let (Some(denied), Some(decision)) = (seen.denied_before, seen.answer.decision()) else {
                continue;
            };
            let span = (self.since(denied), self.since(seen.answered));
            let disturbed = self.told.faults.iter().any(|fault| {
                fault.from <= span.1 && fault.until + super::USED_AGAIN + self.window() >= span.0
            });
            if disturbed || self.stalled(STALL, span) {
                continue;
            }
            let all = of_user.get(&seen.ask.user).into_iter().flatten();
            let during = |other: &&&Seen| other.answered > denied && other.sent <= seen.answered;
            // Itself is one of them.
            if all.filter(during).count() > 1 {
                continue;
            }
            waited += 1;
            helped += usize::from(decision.admitted);
            if !decision.admitted {
                first = first.or(Some(seen));
            }
        }
        let example = first.map_or_else(String::new, |seen| {
            format!(
                "; the first in vain was u{} at {:.2} s, denied {:.2} s before",
                seen.ask.user,
                self.since(seen.sent).as_secs_f64(),
                seen.denied_before.map_or(0.0, |denied| seen.sent.saturating_sub(denied).as_secs_f64())
            )
        });
        let found = (waited >= ENOUGH).then(|| {
            let found = format!("{waited} waited alone, {helped} were admitted{example}");
            (len(helped) >= ADMITTED * len(waited), found)
        });
        Verdict::new(PROMISE, found)
    }
}
