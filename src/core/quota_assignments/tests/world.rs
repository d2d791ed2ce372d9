//! One daemon, its rule's bucket, and gateways on networks that do as they like.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::client::{Client, Counters};
use crate::quota_assignments::{Assignment, QuotaTable, RightsLeft, UsageReport};
use crate::time::{Span, Timestamp};

pub(super) const STEP: Span = Span::from_millis(50);
/// One way of a network in fair weather.
const WAY: Span = Span::from_millis(40);
const PING_EVERY: Span = Span::from_secs(1);

#[derive(Debug, Clone, Copy)]
enum Down {
    Assignment(Assignment),
    Ping(Timestamp),
}

#[derive(Debug, Clone, Copy)]
enum Up {
    Report(Counters, Span),
    Pong(Timestamp),
}

/// One connection: bytes in their order, each not before its time.
#[derive(Debug)]
struct Line {
    stream: u64,
    down: VecDeque<(Timestamp, Down)>,
    up: VecDeque<(Timestamp, Up)>,
    /// No byte of either way arrives before that.
    stalled: Timestamp,
    /// The daemon has given it up; what is on its way down is read all the same.
    is_reset: bool,
    has_joined: bool,
    pinged: Option<Timestamp>,
    anchor: Option<Timestamp>,
    ping_at: Timestamp,
    looked: Timestamp,
}

/// A gateway process with its line, if it has one.
#[derive(Debug)]
pub(super) struct Gateway {
    client: Client,
    line: Option<Line>,
    /// Requests a second.
    pub(super) demand: u64,
    owed: u64,
    pub(super) passed: u64,
    pub(super) asked: u64,
}

pub(super) struct QuotaWorld {
    pub(super) now: Timestamp,
    table: QuotaTable,
    name: Arc<[u8]>,
    streams: u64,
    limit: u64,
    window: Span,
    /// Permits counted by the rule's bucket, by window.
    counted: BTreeMap<u64, u64>,
    /// Permits really used, by window.
    pub(super) used: BTreeMap<u64, u64>,
    pub(super) gateways: Vec<Gateway>,
    /// Other askers of the same bucket, in permits a second.
    pub(super) others: u64,
    pub(super) messages: u64,
}

impl Gateway {
    /// It ends for good, and asks nobody any more.
    pub(super) fn retire(&mut self) {
        self.client = Client::default();
    }
}

impl QuotaWorld {
    /// Buckets that the daemon remembers.
    pub(super) fn buckets(&self) -> usize {
        self.table.len()
    }

    pub(super) fn new(limit: u64, window: Span) -> Self {
        Self {
            now: Timestamp(1_800_000_000_000_000),
            table: QuotaTable::new(1_000),
            name: b"bucket".as_slice().into(),
            streams: 0,
            limit,
            window,
            counted: BTreeMap::new(),
            used: BTreeMap::new(),
            gateways: Vec::new(),
            others: 0,
            messages: 0,
        }
    }

    pub(super) fn add(&mut self, demand: u64) {
        let client = Client::default();
        self.gateways.push(Gateway { client, line: None, demand, owed: 0, passed: 0, asked: 0 });
    }

    /// A process ends without a word. Its connection ends a way later.
    pub(super) fn kill(&mut self, at: usize) {
        if let Some(line) = self.gateways[at].line.take() {
            self.leave(&line);
        }
        self.gateways[at].client = Client::default();
    }

    /// Bytes of a gateway's connection are held back for so long.
    pub(super) fn stall(&mut self, at: usize, length: Span) {
        let until = self.now + length;
        if let Some(line) = &mut self.gateways[at].line {
            line.stalled = line.stalled.max(until);
        }
    }

    /// A connection breaks at both ends; what is on its way is lost.
    pub(super) fn cut(&mut self, at: usize) {
        if let Some(line) = self.gateways[at].line.take() {
            self.leave(&line);
        }
    }

    /// The daemon resets a connection. The gateway reads first what is on its way.
    pub(super) fn reset(&mut self, at: usize) {
        if let Some(mut line) = self.gateways[at].line.take() {
            self.leave(&line);
            line.is_reset = true;
            self.gateways[at].line = Some(line);
        }
    }

    fn leave(&mut self, line: &Line) {
        if line.has_joined && !line.is_reset {
            self.table.leave(line.stream, &Arc::clone(&self.name), self.now);
        }
    }

    fn index(&self) -> u64 {
        self.now.window_index(self.window)
    }

    fn count(&mut self, permits: u64, is_forced: bool) -> bool {
        let counted = self.counted.entry(self.now.window_index(self.window)).or_default();
        let fits = *counted + permits <= self.limit;
        if fits || is_forced {
            *counted += permits;
        }
        fits
    }

    fn carried(&mut self, permits: u64) {
        if let Some(bucket) = self.table.get(&self.name) {
            bucket.carried(permits);
        }
    }

    pub(super) fn step(&mut self) {
        self.now = self.now + STEP;
        let ends = Timestamp::window_start(self.index() + 1, self.window);
        for (name, permits) in self.table.turn(self.now, 100) {
            self.count(permits, true);
            let more = self.table.enter(&name, ends, self.now);
            self.count(more, true);
            self.carried(permits + more);
        }
        for at in 0..self.gateways.len() {
            self.ask(at);
            self.carry(at);
            self.look(at);
        }
        let others = self.others * STEP.0 / 1_000_000;
        for _ in 0..others {
            if self.count(1, false) {
                *self.used.entry(self.index()).or_default() += 1;
            }
        }
    }

    /// Requests reach a gateway, and its tick.
    fn ask(&mut self, at: usize) {
        let (now, index) = (self.now, self.index());
        let gateway = &mut self.gateways[at];
        gateway.owed += gateway.demand * STEP.0;
        while gateway.owed >= 1_000_000 {
            gateway.owed -= 1_000_000;
            gateway.asked += 1;
            if gateway.client.request(now) {
                gateway.passed += 1;
                *self.used.entry(index).or_default() += 1;
            }
        }
        let Some((counters, elapsed)) = gateway.client.report(now) else { return };
        if gateway.line.is_none() {
            self.streams += 1;
            gateway.line = Some(Line {
                stream: self.streams,
                down: VecDeque::new(),
                up: VecDeque::new(),
                stalled: now,
                is_reset: false,
                has_joined: false,
                pinged: None,
                anchor: None,
                ping_at: now,
                looked: now,
            });
        }
        if let Some(line) = &mut gateway.line {
            line.up.push_back((now + WAY, Up::Report(counters, elapsed)));
        }
    }

    /// Bytes arrive.
    fn carry(&mut self, at: usize) {
        let now = self.now;
        while let Some(line) = &mut self.gateways[at].line
            && now >= line.stalled
            && let Some((arrives, down)) = line.down.pop_front()
        {
            if arrives > now {
                line.down.push_front((arrives, down));
                break;
            }
            match down {
                Down::Assignment(assignment) => self.gateways[at].client.assigned(assignment, now),
                Down::Ping(sent) => line.up.push_back((now + WAY, Up::Pong(sent))),
            }
        }
        let line = &self.gateways[at].line;
        if line.as_ref().is_some_and(|line| line.is_reset && line.down.is_empty() && now >= line.stalled) {
            self.gateways[at].line = None;
        }
        while let Some(line) = &mut self.gateways[at].line
            && !line.is_reset
            && now >= line.stalled
            && let Some((arrives, up)) = line.up.pop_front()
        {
            if arrives > now {
                line.up.push_front((arrives, up));
                break;
            }
            match up {
                Up::Report(counters, elapsed) => self.reported(at, counters, elapsed),
                Up::Pong(sent) => {
                    (line.pinged, line.anchor) = (None, Some(sent));
                    let stream = line.stream;
                    if let Some(bucket) = self.table.get(&self.name) {
                        bucket.received(stream, sent, now);
                    }
                }
            }
        }
    }

    fn reported(&mut self, at: usize, counters: Counters, elapsed: Span) {
        let Some(line) = &mut self.gateways[at].line else { return };
        if !std::mem::replace(&mut line.has_joined, true) {
            self.table.join(line.stream, &self.name, self.now).unwrap();
        }
        let (now, stream, anchor) = (self.now, line.stream, line.anchor);
        let usage = UsageReport { allowed: counters.allowed, denied: counters.denied, elapsed };
        if let Some(bucket) = self.table.get(&self.name) {
            bucket.report(stream, usage, anchor, now);
        }
        self.assign(at);
    }

    /// What the daemon does for a stream in its own time.
    fn look(&mut self, at: usize) {
        let now = self.now;
        let Some(line) = self.gateways[at].line.as_mut().filter(|line| !line.is_reset) else { return };
        let Some(bucket) = self.table.get(&self.name).filter(|_| line.has_joined) else { return };
        if bucket.is_overdue(line.stream, now) {
            return self.reset(at);
        }
        let is_due = bucket.due(line.stream, line.looked).is_some_and(|due| due <= now);
        line.looked = now;
        if line.pinged.is_none() && (now >= line.ping_at || bucket.awaits_receipt(line.stream)) {
            (line.pinged, line.ping_at) = (Some(now), now + PING_EVERY);
            line.down.push_back((now + WAY, Down::Ping(now)));
        }
        if is_due {
            self.assign(at);
        }
    }

    fn assign(&mut self, at: usize) {
        let (now, name, index) = (self.now, Arc::clone(&self.name), self.index());
        let (begins, ends) =
            (Timestamp::window_start(index, self.window), Timestamp::window_start(index + 1, self.window));
        let forced = self.table.enter(&name, ends, now);
        self.count(forced, true);
        self.carried(forced);
        let counted = self.counted.get(&index).copied().unwrap_or(0);
        let left = RightsLeft { permits: self.limit.saturating_sub(counted), begins, ends, may_grow: false };
        let Some(line) = &self.gateways[at].line else { return };
        let stream = line.stream;
        let Some(plan) = self.table.get(&name).and_then(|bucket| bucket.plan(stream, left, now)) else {
            return;
        };
        let taken = plan.take == 0 || self.count(plan.take, false);
        let Some(bucket) = self.table.get(&name) else { return };
        let Some(assignment) = bucket.assign(stream, plan, taken, now) else { return };
        bucket.written(stream, now);
        self.messages += 1;
        if let Some(line) = &mut self.gateways[at].line {
            // A PING of this instant would not prove it.
            line.down.push_back((now + WAY, Down::Assignment(assignment)));
        }
    }

    /// Never is more used in a window than the limit.
    pub(super) fn check(&self) {
        for (window, used) in &self.used {
            let counted = self.counted.get(window).copied().unwrap_or(0);
            assert!(
                used <= &self.limit && *used <= counted,
                "{used} of {} used, {counted} counted",
                self.limit
            );
        }
    }
}
