//! Judges real daemons by what their clients saw and what is public: answers, `/metrics` and logs. It knows
//! nothing of what happens inside.
//!
//! A request counts for a window only if it was sent and answered within it, so what is found is a lower
//! bound: a slow machine makes the judge see less, and it says how much it could not judge.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use tidegate::core::algorithm::Algorithm;
use tidegate::core::rule::OnPartition;

use super::answers::Answer;
use super::clients::{ANSWER_WITHIN, Seen, Stall};
use super::clock::any_is_wrong;
use crate::model::shell::windowed;
use crate::number::{float, index, len};
use crate::plan::{FaultKind, Plan, Way};

/// The part of what was admitted that may at most be of unknown window.
const UNKNOWN_MAX: f64 = 0.1;
/// The time that daemons may take to notice a cut, or to load a changed rule.
const NOTICED: Duration = Duration::from_secs(2);
/// A machine that stands still for so long is no judge of how fast something is.
const STALL: Duration = Duration::from_millis(150);
/// After a fault the limit must be used again within this.
const USED_AGAIN: Duration = Duration::from_secs(3);
const USED: f64 = 0.95;
/// A fault as it truly happened, since the first request.
#[derive(Debug, Clone)]
pub(super) struct Happened {
    pub(super) kind: FaultKind,
    pub(super) from: Duration,
    /// When it was put right, or when what it asked for was done.
    pub(super) until: Duration,
}

/// The faults as they happened, and what daemons said of themselves meanwhile.
#[derive(Debug, Default)]
pub(super) struct Told {
    pub(super) faults: Vec<Happened>,
    /// Before the first fault.
    pub(super) healthy: Vec<Page>,
    /// Before each fault was put right, and at the end, with the time since the first request.
    pub(super) meanwhile: Vec<(Duration, Vec<Page>)>,
    /// The parts of the story that could not be played on this machine, and why.
    pub(super) unplayed: Vec<String>,
}

/// A daemon's `/metrics`.
#[derive(Debug, Clone)]
pub(super) struct Page {
    pub(super) daemon: String,
    pub(super) region: usize,
    pub(super) metrics: String,
}

/// The contents of PostgreSQL when all is over.
#[derive(Debug, Clone)]
pub(super) struct Remembered {
    /// Denials in `audit_log`: the region of each by its name, and when it was decided there, since the
    /// epoch.
    pub(super) denials: Vec<(String, Duration)>,
    /// Records that daemons dropped, as they say.
    pub(super) dropped: u64,
}

/// All that is known of a run from outside.
#[derive(Debug)]
pub(super) struct Evidence<'a> {
    pub(super) plan: &'a Plan,
    pub(super) way: Way,
    /// When the first request could be sent, since the epoch: the beginning of a window.
    pub(super) begun: Duration,
    pub(super) seen: &'a [Seen],
    /// Requests that came due and that no client could send in time.
    pub(super) unsent: u64,
    /// When this machine kept the clients from running.
    pub(super) stalls: Vec<Stall>,
    pub(super) told: &'a Told,
    /// Name, region and log of each daemon.
    pub(super) daemons: Vec<(String, usize, String)>,
    /// Rows that PostgreSQL has, if daemons share one.
    pub(super) remembered: Option<Remembered>,
}

/// The finding if nothing in a run could break a promise.
pub(super) const NOTHING: &str = "nothing here could break it";

/// A promise was kept, broken or not judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kept {
    Yes,
    No,
    /// Nothing in this run could have broken it.
    NotJudged,
}

impl Kept {
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Yes => "kept",
            Self::No => "BROKEN",
            Self::NotJudged => "not judged",
        }
    }
}

/// A promise to users.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Promise {
    /// In a few words, for whoever has not read the manual.
    pub(super) title: &'static str,
    /// A sentence of the manual, word for word, and in brackets its page and what it speaks of there. Empty
    /// for what the judge promises of itself.
    pub(super) manual: &'static str,
}

/// A promise with what was found.
#[derive(Debug, Clone)]
pub(super) struct Verdict {
    pub(super) promise: Promise,
    pub(super) kept: Kept,
    pub(super) found: String,
}

impl Verdict {
    fn new(promise: Promise, worst: Option<(bool, String)>) -> Self {
        match worst {
            Some((kept, found)) => Self { promise, kept: if kept { Kept::Yes } else { Kept::No }, found },
            None => Self { promise, kept: Kept::NotJudged, found: NOTHING.to_owned() },
        }
    }

    /// Returns whether anything in the run could have broken it.
    pub(super) fn says_something(&self) -> bool {
        self.found != NOTHING
    }
}

/// One user's window: permits surely admitted in it.
type Windows = HashMap<(u64, u64), u64>;

impl Evidence<'_> {
    /// All promises, in the order of the page.
    pub(super) fn verdicts(&self) -> Vec<Verdict> {
        vec![
            self.limit_holds(),
            self.gossip_is_near(),
            self.logs_are_held(),
            self.sides_keep_to_policy(),
            self.who_is_added_spends(),
            self.share_is_inherited(),
            self.local_is_held(),
            self.bound_is_one(),
            self.limit_is_used(),
            self.used_again(),
            self.everyone_is_answered(),
            self.health_is_quiet(),
            self.faults_are_told(),
            self.all_is_right_again(),
            self.cut_is_named(),
            self.causes_are_named(),
            self.clocks_are_known(),
            self.nothing_waits_for_the_database(),
            self.denials_are_remembered(),
            self.waiting_helps(),
            self.first_requests_pass(),
            self.all_was_played(),
            self.enough_is_known(),
        ]
    }

    fn window(&self) -> Duration {
        Duration::from_micros(self.plan.rule.window.0.max(1))
    }

    fn index(&self, at: Duration) -> u64 {
        u64::try_from(at.as_micros() / self.window().as_micros()).unwrap_or(u64::MAX)
    }

    /// The window of what was decided by the clock of its region, if only one can be meant.
    fn sure_window(&self, seen: &Seen) -> Option<u64> {
        let (low, high) = self.clock(seen.ask.region, (self.since(seen.sent), self.since(seen.answered)));
        let window = self.index(moved(seen.sent, low));
        (self.index(moved(seen.answered, high)) == window).then_some(window)
    }

    fn admitted(&self) -> impl Iterator<Item = &Seen> {
        self.seen.iter().filter(|seen| seen.answer.admitted())
    }

    /// Since the first request.
    fn since(&self, at: Duration) -> Duration {
        at.saturating_sub(self.begun)
    }

    /// The largest limit that a daemon may have decided by between two instants.
    fn limit_between(&self, from: Duration, until: Duration) -> u64 {
        let (mut largest, mut last) = (0, u64::from(self.plan.rule.limit));
        for fault in &self.told.faults {
            let FaultKind::Limit(limit) = fault.kind else { continue };
            if fault.from + NOTICED > from {
                largest = largest.max(last);
            }
            if fault.from <= until {
                last = u64::from(limit);
            }
        }
        largest.max(last)
    }

    /// True where this span of time is free of all that the manual excepts.
    fn is_plain(&self, from: Duration, until: Duration) -> bool {
        !self.told.faults.iter().any(|fault| {
            let excepted = match fault.kind {
                FaultKind::Crash { region, .. }
                | FaultKind::Restart { region, .. }
                | FaultKind::Renamed { region, .. } => self.plan.counts_in_memory(region),
                FaultKind::Roll | FaultKind::Join { .. } | FaultKind::Leave { .. } => {
                    (0..self.plan.regions.len()).any(|region| self.plan.counts_in_memory(region))
                }
                FaultKind::StoreLost { .. }
                | FaultKind::PrimaryLost { .. }
                | FaultKind::Failover { .. }
                | FaultKind::StoreFlushed { .. }
                | FaultKind::StoreFull { .. }
                | FaultKind::StoreFrozen { .. }
                | FaultKind::Limit(_)
                | FaultKind::Weights(_) => true,
                // A region that goes back into a window may spend its share of it again.
                FaultKind::ClockStep { .. } => true,
                _ => false,
            };
            excepted && fault.from <= until && fault.until + NOTICED + self.window() >= from
        })
    }

    /// True where an operator deleted what a Redis held, in a window that touches this span: nobody knows
    /// then what it had admitted.
    fn is_flushed(&self, from: Duration, until: Duration) -> bool {
        self.told.faults.iter().any(|fault| {
            matches!(fault.kind, FaultKind::StoreFlushed { .. })
                && fault.from <= until
                && fault.until + NOTICED + self.window() >= from
        })
    }

    /// True where the machine stood still for so long between two instants. Promises about time cannot be
    /// judged then.
    fn stalled(&self, longest: Duration, (from, until): (Duration, Duration)) -> bool {
        self.stalls.iter().any(|stall| {
            let end = self.since(stall.until);
            stall.length >= longest && end >= from && end.saturating_sub(stall.length) <= until
        })
    }

    fn limit_holds(&self) -> Verdict {
        const ESCROW: Promise = Promise {
            title: "Escrow never admits more than the limit",
            manual: "Never above the limit, whatever happens to network, clocks or processes (docs/concepts/escrow.md)",
        };
        const SPLIT: Promise = Promise {
            title: "Split never admits more than the limit",
            manual: "The limit is never exceeded while each region's store keeps its counts (docs/concepts/split.md)",
        };
        const SHARES: Promise = Promise {
            title: "In a cut all sides together admit no more than the limit",
            manual: "Under `gossip` that is so with `on_partition = \"share\"` and `\"deny\"` (docs/concepts/partitions.md: nothing is above the limit while a region is cut off)",
        };
        match self.way {
            Way::Gossip => {
                let shared = matches!(self.plan.rule.on_partition, OnPartition::Share | OnPartition::Deny);
                let cuts: Vec<&Happened> = self
                    .told
                    .faults
                    .iter()
                    .filter(|fault| {
                        let cut = matches!(fault.kind, FaultKind::Cut { .. });
                        shared && (cut || !self.silenced(fault).is_empty())
                    })
                    .collect();
                let in_a_cut = |from: Duration, until: Duration| {
                    cuts.iter().any(|cut| cut.from + NOTICED <= from && until <= cut.until)
                };
                Verdict::new(SHARES, self.highest(in_a_cut))
            }
            // A deletion by an operator is forgotten without a trace.
            Way::Escrow => Verdict::new(ESCROW, self.highest(|from, until| !self.is_flushed(from, until))),
            // A region's memory that is lost may spend its share once more.
            _ => Verdict::new(SPLIT, self.highest(|from, until| self.is_plain(from, until))),
        }
    }

    /// The fullest of what `judged` says may be judged, and whether it is within the limit.
    fn highest(&self, judged: impl Fn(Duration, Duration) -> bool) -> Option<(bool, String)> {
        match self.plan.rule.algorithm {
            Algorithm::FixedWindow => self.fullest_window(judged),
            // Without fixed windows a clock that is set forward admits early what it would have admitted
            // later.
            _ if any_is_wrong(self.plan) => None,
            Algorithm::SlidingLog => self.fullest_interval(judged),
            Algorithm::SlidingWindow if self.way != Way::Gossip => self.fullest_of_sliding(judged),
            algorithm if !windowed(algorithm) => self.highest_level(judged),
            _ => None,
        }
    }

    pub(super) fn fullest_window(
        &self,
        judged: impl Fn(Duration, Duration) -> bool,
    ) -> Option<(bool, String)> {
        let mut windows = Windows::new();
        for seen in self.admitted() {
            if let Some(window) = self.sure_window(seen) {
                *windows.entry((seen.ask.user, window)).or_default() += seen.ask.cost;
            }
        }
        let span = |window: u64| {
            let from = self.since(
                self.window() * u32::try_from(window - self.index(self.begun)).unwrap_or(u32::MAX)
                    + self.begun,
            );
            (from, from + self.window())
        };
        let judged: Vec<(u64, u64, u64)> = windows
            .into_iter()
            .filter(|((_, window), _)| *window >= self.index(self.begun))
            .filter_map(|((_, window), admitted)| {
                let (from, until) = span(window);
                judged(from, until)
                    .then(|| (admitted, self.limit_between(from, until), window - self.index(self.begun)))
            })
            .collect();
        let above = judged.iter().filter(|(admitted, limit, _)| admitted > limit).count();
        let (admitted, limit, window) = judged
            .iter()
            .max_by_key(|(admitted, limit, _)| admitted.saturating_sub(*limit).max(*admitted))?;
        let found = format!(
            "{} windows judged, {above} above; the fullest is window {window} with {admitted} of {limit}",
            judged.len()
        );
        Some((above == 0, found))
    }

    /// Judges algorithms without windows: never more than the burst, and what refills, in any interval.
    /// Answers may be as late as the slowest, so what refills meanwhile is allowed as well.
    fn highest_level(&self, judged: impl Fn(Duration, Duration) -> bool) -> Option<(bool, String)> {
        let rate = |from, until| float(self.limit_between(from, until)) / self.window().as_secs_f64();
        let burst = float(u64::from(self.plan.rule.burst));
        let mut list: Vec<&Seen> = self.admitted().collect();
        list.sort_by_key(|seen| seen.answered);
        let slowest = list.iter().map(|seen| seen.answered.saturating_sub(seen.sent)).max()?;
        let most = rate(Duration::ZERO, Duration::from_micros(self.plan.length.0));
        let allowed = burst + most * slowest.as_secs_f64();
        let mut levels: HashMap<u64, (Duration, f64)> = HashMap::new();
        let (mut count, mut worst) = (0_u64, None::<(f64, Duration)>);
        for seen in list {
            let at = self.since(seen.answered);
            let (last, level) = levels.entry(seen.ask.user).or_insert((at, 0.0));
            // Admissions outside of the promise are not held against those that come after.
            let promised = judged(at, at);
            *level = (*level - rate(*last, at) * at.saturating_sub(*last).as_secs_f64()).max(0.0);
            *last = at;
            if !promised {
                *level = 0.0;
                continue;
            }
            *level += float(seen.ask.cost);
            count += 1;
            if worst.is_none_or(|(most, _)| *level > most) {
                worst = Some((*level, at));
            }
        }
        let (level, at) = worst?;
        let found = format!(
            "{count} admissions judged; the highest level is {level:.0} of {allowed:.0} at {:.1} s (burst {burst:.0}, slowest answer {} ms)",
            at.as_secs_f64(),
            slowest.as_millis()
        );
        Some((level <= allowed, found))
    }

    /// Permits asked for, and admitted, in each second since the first request.
    pub(super) fn seconds(&self) -> Vec<(u64, u64)> {
        let mut seconds: Vec<(u64, u64)> = Vec::new();
        for seen in self.seen {
            let at = usize::try_from(self.since(seen.sent).as_secs()).unwrap_or(usize::MAX).min(1 << 20);
            if seconds.len() <= at {
                seconds.resize(at + 1, (0, 0));
            }
            if let Some((asked, admitted)) = seconds.get_mut(at) {
                *asked += seen.ask.cost;
                *admitted += if seen.answer.admitted() { seen.ask.cost } else { 0 };
            }
        }
        seconds
    }

    /// Returns whether another fault happens between two instants.
    fn disturbed(&self, fault: &Happened, (from, until): (Duration, Duration)) -> bool {
        let others = self.told.faults.iter().filter(|other| !std::ptr::eq(*other, fault));
        others.into_iter().any(|other| other.from <= until && other.until + NOTICED >= from)
    }

    /// The part of what could be admitted that was, before the first fault: of demand that moves not all can
    /// be used.
    fn used_before(&self, seconds: &[(u64, u64)]) -> f64 {
        let rate = float(u64::from(self.plan.rule.limit)) / self.window().as_secs_f64();
        let first = self.told.faults.iter().map(|fault| fault.from.as_secs()).min().unwrap_or_default();
        let (mut could, mut did) = (0.0, 0.0);
        for (asked, admitted) in seconds.iter().take(index(first)) {
            could += float(*asked).min(rate);
            did += float(*admitted);
        }
        if could > 0.0 { (did / could).min(1.0) } else { 1.0 }
    }

    fn used_again(&self) -> Verdict {
        const PROMISE: Promise = Promise {
            title: "Use is back within three seconds after a fault",
            manual: "Within three seconds 95 % of what was used before is used again (docs/concepts/partitions.md, Recovery)",
        };
        if self.way == Way::Split || self.window() > Duration::from_secs(1) || self.plan.demand.users > 1 {
            return Verdict::new(PROMISE, None);
        }
        let seconds = self.seconds();
        let used_before = self.used_before(&seconds);
        let mut slowest: Option<(Duration, &str)> = None;
        let mut judged = 0_usize;
        for fault in &self.told.faults {
            let heals = matches!(
                fault.kind,
                FaultKind::Cut { .. }
                    | FaultKind::Crash { .. }
                    | FaultKind::Stop { .. }
                    | FaultKind::Restart { .. }
                    | FaultKind::Slow { .. }
                    | FaultKind::Storm { .. }
            );
            let first = index(fault.until.as_nanos().div_ceil(1_000_000_000).try_into().unwrap_or(u64::MAX));
            let looked_at = (fault.until, fault.until + USED_AGAIN + Duration::from_secs(1));
            let again = self.disturbed(fault, looked_at);
            if !heals || again || first + 4 > seconds.len() || self.stalled(STALL, looked_at) {
                continue;
            }
            let limit = self.limit_between(looked_at.0, looked_at.1);
            let rate = float(limit) / self.window().as_secs_f64();
            let back = seconds.iter().enumerate().skip(first).find(|(_, (asked, admitted))| {
                let could = float(*asked).min(rate);
                could > 0.0 && float(*admitted) >= USED * used_before * could
            });
            let took =
                back.map(|(at, _)| Duration::from_secs(crate::number::place(at)).saturating_sub(fault.until));
            let took = took.unwrap_or(Duration::MAX);
            // Daemons that had too little of the machine could not do better.
            if took > USED_AGAIN && self.is_starved(looked_at) {
                continue;
            }
            judged += 1;
            if slowest.is_none_or(|(most, _)| took > most) {
                slowest = Some((took, fault.kind.word()));
            }
        }
        let found = slowest.map(|(took, word)| {
            let text = match took {
                Duration::MAX => "never".to_owned(),
                took => format!("{:.1} s", took.as_secs_f64()),
            };
            (took <= USED_AGAIN, format!("{judged} judged, the slowest after the {word}: {text}"))
        });
        Verdict::new(PROMISE, found)
    }

    fn everyone_is_answered(&self) -> Verdict {
        const PROMISE: Promise = Promise {
            title: "Every request is answered, also while daemons are restarted",
            manual: "Then no request is lost (docs/tasks/run-in-production.md, Restart without losing a request)",
        };
        let excused = |seen: &Seen| {
            let waited = (self.since(seen.sent), self.since(seen.answered));
            self.stalled(ANSWER_WITHIN / 4, waited)
                || self.told.faults.iter().any(|fault| {
                    let hit = match fault.kind {
                        FaultKind::Crash { region, .. } | FaultKind::Stop { region, .. } => {
                            region == seen.ask.region
                        }
                        FaultKind::StoreLost { region } => {
                            self.plan.counts_in_memory(region) && region == seen.ask.region
                        }
                        FaultKind::GatewayLost { region } => region == seen.ask.region,
                        _ => false,
                    };
                    let (sent, answered) = (self.since(seen.sent), self.since(seen.answered));
                    hit && sent <= fault.until + NOTICED && answered + ANSWER_WITHIN >= fault.from
                })
        };
        let failed: Vec<(&Seen, &str)> = self
            .seen
            .iter()
            .filter_map(|seen| match &seen.answer {
                Answer::Failed(why) => Some((seen, why.as_str())),
                Answer::Unasked => Some((seen, "the gateway let it pass, and no daemon had decided it")),
                _ => None,
            })
            .collect();
        let lost: Vec<&(&Seen, &str)> = failed.iter().filter(|(seen, _)| !excused(seen)).collect();
        let example = lost.first().map_or_else(String::new, |(seen, why)| {
            format!("; the first at {:.1} s: {why}", self.since(seen.sent).as_secs_f64())
        });
        let nobody = self.seen.iter().filter(|seen| matches!(seen.answer, Answer::NobodyReady)).count();
        let found = format!(
            "{} asked, {} without an answer of daemons that were killed or stopped, {} of others{example}; {nobody} not asked, since no daemon of the region was ready",
            self.seen.len(),
            failed.len() - lost.len(),
            lost.len(),
        );
        Verdict::new(PROMISE, Some((lost.is_empty(), found)))
    }

    /// Never broken: where a machine cannot play something, nothing was judged.
    fn all_was_played(&self) -> Verdict {
        const PROMISE: Promise = Promise { title: "All faults of the story were played", manual: "" };
        match self.told.unplayed.is_empty() {
            true => Verdict::new(PROMISE, None),
            false => {
                Verdict { promise: PROMISE, kept: Kept::NotJudged, found: self.told.unplayed.join("; ") }
            }
        }
    }

    fn enough_is_known(&self) -> Verdict {
        const PROMISE: Promise = Promise {
            title: "The judge could judge: at most a tenth of what was admitted is of unknown window",
            manual: "",
        };
        let admitted = self.admitted().count();
        let unknown = self.admitted().filter(|seen| self.sure_window(seen).is_none()).count();
        let part = len(unknown) / len(admitted.max(1));
        let due = float(self.unsent) + len(self.seen.len());
        let unsent = float(self.unsent) / due.max(1.0) * 100.0;
        let longest = self.stalls.iter().map(|stall| stall.length).max().unwrap_or_default();
        let found = format!(
            "{admitted} admitted, {:.2} % of unknown window; clients were too busy to send {unsent:.2} % of what came due; the machine stood still for {} ms at most",
            part * 100.0,
            longest.as_millis()
        );
        Verdict::new(PROMISE, Some((part <= UNKNOWN_MAX && admitted > 0, found)))
    }

    /// In each second since the first request: how many ms half of the answers took at most, and 99 of 100.
    pub(super) fn latencies_in_time(&self) -> Vec<(f64, f64, f64)> {
        let mut seconds: BTreeMap<u64, Vec<Duration>> = BTreeMap::new();
        // A few are sent when the last second is over.
        let end = Duration::from_micros(self.plan.length.0);
        let asked = self.seen.iter().filter(|seen| self.since(seen.sent) < end);
        for seen in asked.filter(|seen| seen.answer.decision().is_some()) {
            let took = seen.answered.saturating_sub(seen.sent);
            seconds.entry(self.since(seen.sent).as_secs()).or_default().push(took);
        }
        let of_second = |(second, mut all): (u64, Vec<Duration>)| {
            all.sort_unstable();
            let at =
                |part: usize| all.get(all.len() * part / 100).map_or(0.0, |took| took.as_secs_f64() * 1e3);
            (float(second), at(50), at(99))
        };
        seconds.into_iter().map(of_second).collect()
    }

    /// Returns how long answers took: the median, 99 of 100, and the longest.
    pub(super) fn latencies(&self) -> [Duration; 3] {
        let decided = self.seen.iter().filter(|seen| seen.answer.decision().is_some());
        let mut all: Vec<Duration> = decided.map(|seen| seen.answered.saturating_sub(seen.sent)).collect();
        all.sort_unstable();
        let at = |part: usize| {
            all.get((all.len() * part / 100).min(all.len().saturating_sub(1))).copied().unwrap_or_default()
        };
        [at(50), at(99), at(100)]
    }
}

mod added;
mod alarms;
mod bound;
mod causes;
mod clocks;
mod database;
mod denials;
mod local;
mod logs;
mod near;
mod sides;
mod used;
mod waiting;

use self::clocks::moved;

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(super) use self::tests::promises;
