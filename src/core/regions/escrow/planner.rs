//! What one daemon does about one bucket: looks at its rights, gives, and decides what to tell.

use super::super::super::algorithm::Counting;
use super::super::super::time::{Span, Timestamp};
use super::super::super::wire::rights::Total;
use super::super::membership::{RegionId, Regions};
use super::bucket::{EscrowBucket, LastStatement, RegionStatement};
use super::ledger::{Step, StepRequest, StepResult, total};
use super::level_plan::{LevelEstimate, level_transfers};
use super::window_plan::{RegionEstimate, SpendingTime, need, window_transfers};
use super::{Escrow, Event, Share, level};

/// Millionths in a permit.
const UNIT: i128 = 1_000_000;
/// Least time between two gifts to one region, and between two urgent statements.
pub(super) const GAP: Span = Span::from_millis(20);
/// The same of a bucket that refills within half a second: what waits here takes up room that refills.
const GAP_BRIEF: Span = Span::from_millis(10);
/// For so long one of the regions that gather for large costs is given to.
const GATHERED_IN_TURN: Span = Span::from_secs(4);
/// A region that cannot serve what was refused says so again after so long.
const LACKS_AGAIN: Span = Span::from_millis(500);
/// One way to a region to which there is no link.
const OWD_DEFAULT: Span = Span::from_millis(50);
/// A region that was not heard for so long gets nothing: what is sent to it would lie on the way.
const PATIENCE: Span = Span::from_millis(600);

impl Escrow {
    /// Looks at a bucket because something happened or its time has come.
    pub(super) fn plan(&mut self, now: Timestamp, id: usize) {
        let own = self.config.name.region.clone();
        let (look_gap, slow_gap) = (self.config.look_gap, self.confirmation_gap());
        if let Some(bucket) = self.bucket_mut(id) {
            bucket.forget_wants(now);
        }
        let Some(bucket) = self.bucket(id) else { return };
        // What is on its way has to be sent until it has come.
        let open = bucket.counting() == Counting::Concurrency
            && (1..self.regions.len()).any(|region| self.unacknowledged(now, id, region).is_some());
        let Some(bucket) = self.bucket_mut(id) else { return };
        let hot = bucket.is_hot(now, bucket.rule.share(&own)) || open;
        if (hot || bucket.has_loans()) && bucket.may_ask(now) {
            if open {
                bucket.keep(now);
            }
            let gap = if hot { look_gap } else { slow_gap };
            let due = bucket.looked.is_none_or(|looked| now.since(looked) >= gap || now < looked);
            if due {
                let (key, window) = (bucket.key.clone(), bucket.window_at(now));
                bucket.wait(StepRequest { key, window, step: Step::Read, own: None });
                self.next_step(now, id);
            }
        }
        self.schedule(now, id);
    }

    /// Asks the store the next thing that waits.
    pub(super) fn next_step(&mut self, now: Timestamp, id: usize) {
        let Some(bucket) = self.bucket_mut(id) else { return };
        if !bucket.may_ask(now) {
            return;
        }
        let Some(mut ask) = bucket.steps.pop_front() else { return };
        ask.own = bucket.own_limit();
        bucket.asked = Some(now);
        bucket.looked = Some(now);
        bucket.stirred = false;
        self.asks.push_back(ask);
    }

    /// Takes in what the store told.
    pub(super) fn learn(&mut self, id: usize, balance: StepResult) {
        let Some(bucket) = self.bucket_mut(id) else { return };
        let before = bucket.balance.take();
        let same = before.as_ref().filter(|before| {
            (before.ledger.window, before.ledger.session) == (balance.ledger.window, balance.ledger.session)
        });
        let mut moved = Vec::new();
        for given in &balance.ledger.given {
            let known = same.map_or(0, |before| before.ledger.given_to(&given.region, given.session));
            if given.permits > known {
                moved.push(Event::Gave { to: given.region.clone(), permits: given.permits - known });
            }
        }
        for taken in &balance.ledger.taken {
            let known = same.map_or(0, |before| before.ledger.taken_from(&taken.region, taken.session));
            if taken.permits > known {
                moved.push(Event::Took { from: taken.region.clone(), permits: taken.permits - known });
            }
        }
        let takers: Vec<String> = moved
            .iter()
            .filter_map(|event| match event {
                Event::Took { from, .. } => Some(from.clone()),
                _ => None,
            })
            .collect();
        // Who was met for the first time is to know that it was.
        let bonds = balance.ledger.given.iter().filter(|_| balance.ledger.loans.is_some());
        let is_new = |total: &&Total| {
            let before = before.as_ref().map(|before| before.ledger.given.as_slice()).unwrap_or_default();
            !before.iter().any(|known| (&known.region, known.session) == (&total.region, total.session))
        };
        let met: Vec<String> = bonds.filter(is_new).map(|total| total.region.clone()).collect();
        bucket.balance = Some(balance);
        for from in takers.into_iter().chain(met) {
            self.acknowledge(id, &from);
        }
        for event in moved {
            match &event {
                Event::Gave { permits, .. } => self.tally.given = self.tally.given.saturating_add(*permits),
                Event::Took { permits, .. } => self.tally.taken = self.tally.taken.saturating_add(*permits),
                Event::Closed { .. } | Event::Dry { .. } => {}
            }
            self.note(event);
        }
    }

    /// Owes a region a statement, which says what was received from it.
    pub(super) fn acknowledge(&mut self, id: usize, region: &str) {
        let Some(region) = self.regions.find(region).filter(|region| *region != Regions::OWN) else { return };
        if let Some(bucket) = self.bucket_mut(id) {
            bucket.partner_mut(region).owes_statement = true;
        }
        self.owe(id, region);
    }

    /// Gives, sends and tells what is to be given, sent and told, now that the own rights are known.
    pub(super) fn act(&mut self, now: Timestamp, id: usize) {
        self.close(now, id);
        let Some(bucket) = self.bucket(id) else { return };
        if bucket.current(now).is_none() {
            return;
        }
        let counting = bucket.counting();
        if self.owns(&bucket.key) {
            match counting {
                Counting::Window => self.push(now, id),
                Counting::Level => {
                    self.settle(now, id);
                    self.forward(now, id);
                }
                Counting::Concurrency => {
                    self.open_sessions(now, id);
                    self.lend(now, id);
                }
            }
        }
        self.send(now, id);
        self.tell(now, id);
        if counting == Counting::Window {
            self.run_dry(now, id);
        }
    }

    /// Says once a window that nobody has rights left.
    fn run_dry(&mut self, now: Timestamp, id: usize) {
        let Some(bucket) = self.bucket(id) else { return };
        let Some(balance) = bucket.current(now).filter(|balance| balance.free() == 0) else { return };
        let (key, window) = (bucket.key.clone(), balance.ledger.window);
        let dry = bucket.dry < window && self.config.safety.says_who_is_dry;
        if !dry || self.others_hold(now, &key) {
            return;
        }
        if let Some(bucket) = self.bucket_mut(id) {
            bucket.dry = window;
        }
        self.note(Event::Dry { key, window });
    }

    /// Has the store take out what others need more.
    fn push(&mut self, now: Timestamp, id: usize) {
        let Some(bucket) = self.bucket(id) else { return };
        let Some(balance) = bucket.current(now) else { return };
        let window = balance.ledger.window;
        let length = bucket.windows().length_of(window);
        let left = bucket.left(window, now);
        let holdings: Vec<RegionEstimate> =
            (0..self.regions.len()).map(|region| self.holding(now, bucket, balance, region)).collect();
        let course = SpendingTime {
            limit: u64::from(bucket.rule.rule.limit.permits),
            length,
            elapsed: Span(length.0.saturating_sub(left.0)),
            owd_max: self.owd_max(),
        };
        let gifts = window_transfers(course, &holdings);
        self.give(now, id, &gifts);
    }

    /// Forwards what lies idle in a bucket without windows to where it is needed.
    fn forward(&mut self, now: Timestamp, id: usize) {
        let Some(bucket) = self.bucket(id) else { return };
        let Some(balance) = bucket.current(now) else { return };
        let mut basins: Vec<LevelEstimate> =
            (0..self.regions.len()).map(|region| self.basin(now, bucket, balance, region)).collect();
        // Of those that gather for costs larger than their capacities all give to one: else none ever had
        // enough.
        let gathers = |basin: &LevelEstimate| basin.wanted > basin.capacity;
        let all = basins.iter().enumerate().filter(|(_, basin)| gathers(basin));
        let first =
            all.map(|(region, _)| region).min_by_key(|region| self.turn_to_gather(now, bucket, *region));
        for (region, basin) in basins.iter_mut().enumerate() {
            if gathers(basin) && first != Some(region) {
                (basin.wanted, basin.demand) = (0, 0);
            }
        }
        let ahead = self.config.interval + self.owd_max() + self.owd_max();
        let streams = level_transfers(ahead, &basins);
        self.give(now, id, &streams);
    }

    /// How many turns of gathering lie before that of a region: each has one after the other, as their clocks
    /// agree about.
    fn turn_to_gather(&self, now: Timestamp, bucket: &EscrowBucket, region: RegionId) -> usize {
        let regions = bucket.rule.shares.len().max(1);
        let turn = usize::try_from(now.window_index(GATHERED_IN_TURN)).unwrap_or(0);
        (self.order(bucket, region) + turn % regions) % regions
    }

    /// The place of a region among those of a bucket, as all of them count.
    pub(super) fn order(&self, bucket: &EscrowBucket, region: RegionId) -> usize {
        let name = self.regions.name(region);
        bucket.rule.shares.keys().take_while(|one| one.as_str() < name).count()
    }

    /// What is believed of one region's level.
    fn basin(
        &self,
        now: Timestamp,
        bucket: &EscrowBucket,
        own: &StepResult,
        region: RegionId,
    ) -> LevelEstimate {
        let share = bucket.rule.share(self.regions.name(region));
        let most = i128::from(share.minted) * UNIT;
        let order = self.order(bucket, region);
        let mut basin = LevelEstimate {
            capacity: most,
            refill: share.refill,
            free: most,
            order,
            ..LevelEstimate::default()
        };
        if region == Regions::OWN {
            basin.demand = bucket.demand(now);
            basin.free = i128::from(own.free()) * UNIT;
            basin.wanted = wanted(share, bucket.wanted(0));
            return basin;
        }
        // Who has said nothing needs nothing that it does not have.
        let Some(partner) = bucket.partner(region) else { return basin };
        let Some(heard) = partner.heard.filter(|heard| now.since(*heard) < bucket.memory()) else {
            return basin;
        };
        let owd = self.owd(region);
        basin.demand = partner.demand;
        basin.wanted = wanted(share, partner.wanted(now));
        basin.since = partner.lacks_for(now);
        let under_way = self.under_way(own, partner, region);
        let kept = total(&partner.given, self.own_region(), own.ledger.session);
        let coming = under_way.saturating_sub(kept);
        // When what is sent now arrives. What comes before is spent like what is there.
        let then = now.since(heard) + owd + owd;
        basin.free = basin.after(i128::from(partner.free.saturating_add(coming)) * UNIT, then);
        let gap = if basin.is_brief() { GAP_BRIEF } else { GAP };
        if self.is_reachable(now, partner, region, gap) {
            // One region that is silent must not have all that may be under way, unless that is what it
            // takes.
            let others = own.ledger.charged().saturating_sub(under_way);
            let whole = level::under_way_max(own.ledger.minted).saturating_sub(others);
            let part = i128::from(whole.div_ceil(2).saturating_sub(under_way)) * UNIT;
            let enough = basin.wanted - basin.free <= part;
            basin.room = if self.regions.len() > 2 && !basin.is_brief() && enough {
                part
            } else {
                i128::from(whole.saturating_sub(under_way)) * UNIT
            };
        }
        basin
    }

    /// Has the store charge no more what the others have acknowledged, or can never take.
    pub(super) fn settle(&mut self, now: Timestamp, id: usize) {
        let Some(bucket) = self.bucket(id) else { return };
        let Some(balance) = bucket.current(now) else { return };
        let ledger = &balance.ledger;
        let mut asks = Vec::new();
        for (region, partner) in bucket.partners() {
            let name = self.regions.name(region);
            let Some(given) = ledger.given.iter().find(|given| given.region == name) else { continue };
            let has = total(&partner.taken, self.own_region(), ledger.session);
            let later = partner.session > given.session;
            if later
                || (partner.session == given.session && has > ledger.acknowledged_by(name, given.session))
            {
                let (to, session) = (name.to_owned(), partner.session);
                let step = Step::Acknowledge { to, session, permits: has };
                asks.push(StepRequest { key: bucket.key.clone(), window: 0, step, own: None });
            }
        }
        let Some(bucket) = self.bucket_mut(id) else { return };
        asks.into_iter().for_each(|ask| bucket.wait(ask));
    }

    /// What was given to a region and is not known to have arrived.
    pub(super) fn under_way(&self, own: &StepResult, partner: &RegionStatement, region: RegionId) -> u64 {
        let acked = if partner.window == own.ledger.window {
            total(&partner.taken, self.own_region(), own.ledger.session)
        } else {
            0
        };
        own.ledger.given_to(self.regions.name(region), partner.session).saturating_sub(acked)
    }

    /// Whether what is given to a region now would arrive, and nothing was given to it just now.
    pub(super) fn is_reachable(
        &self,
        now: Timestamp,
        partner: &RegionStatement,
        region: RegionId,
        gap: Span,
    ) -> bool {
        let rested = partner.gave.is_none_or(|gave| now.since(gave) >= gap || now < gave);
        let owd = self.owd(region);
        let audible = self.heard(region).is_some_and(|heard| now.since(heard) < PATIENCE + owd);
        rested && audible && partner.session != 0
    }

    /// Has the store take out so many permits for each region.
    fn give(&mut self, now: Timestamp, id: usize, gifts: &[u64]) {
        let Some(bucket) = self.bucket(id) else { return };
        let Some(balance) = bucket.current(now) else { return };
        let window = balance.ledger.window;
        let safety = self.config.safety;
        let mut asks = Vec::new();
        for (region, permits) in gifts.iter().enumerate().skip(1).filter(|(_, permits)| **permits > 0) {
            let Some(partner) = bucket.partner(region) else { continue };
            let permits = (*permits).min(balance.free());
            let (to, session) = (self.regions.name(region).to_owned(), partner.session);
            asks.push((
                region,
                StepRequest {
                    key: bucket.key.clone(),
                    window,
                    step: Step::Give { to, session, permits },
                    own: None,
                },
            ));
        }
        let Some(bucket) = self.bucket_mut(id) else { return };
        for (region, ask) in asks {
            let partner = bucket.partner_mut(region);
            partner.gave = Some(now);
            if let (false, Step::Give { permits, .. }) = (safety.debits_before_credits, &ask.step) {
                partner.promised = (window, partner.promised_in(window).saturating_add(*permits));
            }
            bucket.wait(ask);
        }
    }

    /// What is believed of one region.
    fn holding(
        &self,
        now: Timestamp,
        bucket: &EscrowBucket,
        own: &StepResult,
        region: RegionId,
    ) -> RegionEstimate {
        let window = own.ledger.window;
        let left = bucket.left(window, now);
        let name = self.regions.name(region);
        let minted = bucket.rule.minted(name);
        let silent = RegionEstimate {
            weight: bucket.rule.weight(name),
            free: i128::from(minted) * UNIT,
            order: self.order(bucket, region),
            ..RegionEstimate::default()
        };
        if region == Regions::OWN {
            let wanted = i128::from(bucket.wanted(window)) * UNIT;
            let (free, need) = (i128::from(own.free()) * UNIT, need(bucket.demand(now), left));
            return RegionEstimate { free, need, wanted, ..silent };
        }
        let partner = bucket.partner(region).filter(|partner| partner.heard.is_some());
        // Nothing was said, so it needs nothing that it does not have.
        let Some(partner) = partner else { return silent };
        let heard = partner.heard.unwrap_or_default();
        let fresh = now.since(heard) < bucket.memory();
        let demand = if fresh { i128::from(partner.demand) } else { 0 };
        let owd = self.owd(region);
        let (free, age, wanted) = if partner.window == window {
            (partner.free, now.since(heard) + owd, partner.wanted(now))
        } else {
            (minted, now.since(bucket.start(window)), 0)
        };
        let spent = demand * i128::from(age.0) / UNIT;
        let under_way = self.under_way(own, partner, region);
        let free = (i128::from(free) * UNIT - spent).max(0) + i128::from(under_way) * UNIT;
        let demand = if fresh { partner.demand } else { 0 };
        let reachable = left > owd && self.is_reachable(now, partner, region, GAP);
        let (need, wanted) = (need(demand, left), i128::from(wanted) * UNIT);
        RegionEstimate { free, need, wanted, reachable, since: partner.lacks_for(now), ..silent }
    }

    /// Owes every region the rights that were taken out for it and that it has not acknowledged.
    fn send(&mut self, now: Timestamp, id: usize) {
        for region in 1..self.regions.len() {
            let patience = self.patience(region);
            let Some(permits) = self.unacknowledged(now, id, region) else { continue };
            let Some(bucket) = self.bucket_mut(id) else { return };
            let window = bucket.window_at(now);
            let partner = bucket.partner_mut(region);
            let under_way = partner.sent.is_some_and(|(at, of, sent)| {
                of == window && sent >= permits && now.since(at) < patience && now >= at
            });
            if !under_way {
                partner.owes_transfer = true;
                self.owe(id, region);
            }
        }
    }

    /// The total to send to a region in its present session, if it has not said that it has all that was
    /// given to it.
    pub(super) fn unacknowledged(&self, now: Timestamp, id: usize, region: RegionId) -> Option<u64> {
        let bucket = self.bucket(id)?;
        let balance = bucket.current(now).filter(|balance| balance.ledger.is_covered())?;
        let partner = bucket.partner(region)?;
        let mut given = balance.ledger.given_to(self.regions.name(region), partner.session);
        if !self.config.safety.debits_before_credits {
            given = given.max(partner.promised_in(balance.ledger.window));
        }
        let acked = if partner.window == balance.ledger.window {
            total(&partner.taken, self.own_region(), balance.ledger.session)
        } else {
            0
        };
        // A share that shrank while more was under way: whoever knows the smaller one alone believes no more
        // than that at once.
        let at_once = match bucket.counting() {
            Counting::Level => balance.ledger.minted.max(1),
            Counting::Window | Counting::Concurrency => u64::MAX,
        };
        (given > acked).then_some(given.min(acked.saturating_add(at_once)))
    }

    /// Owes the others a statement if what they believe is wrong.
    fn tell(&mut self, now: Timestamp, id: usize) {
        let Some(bucket) = self.bucket(id) else { return };
        let Some(balance) = bucket.current(now) else { return };
        let owned = self.owns(&bucket.key);
        let window = balance.ledger.window;
        let told = LastStatement {
            at: now,
            window,
            session: balance.ledger.session,
            free: balance.free(),
            demand: if owned { bucket.demand(now) } else { bucket.own_demand(now) },
            wanted: if owned { bucket.wanted(window) } else { bucket.own_wanted(window) },
            limit: bucket.held_limit(now),
        };
        let due = if owned { self.worth_telling(now, bucket, told) } else { tells_owner(now, bucket, told) };
        if !due {
            return;
        }
        let regions = if owned { 1..self.regions.len() } else { 0..1 };
        let Some(bucket) = self.bucket_mut(id) else { return };
        bucket.told = Some(told);
        for region in regions {
            if let Some(bucket) = self.bucket_mut(id) {
                let partner = bucket.partner_mut(region);
                // Also where nothing can be sent now: the others are not told again and again for its sake.
                (partner.owes_statement, partner.said) = (true, Some((window, told.wanted <= told.free)));
            }
            self.owe(id, region);
        }
    }

    /// Whether the others would go wrong by what they were told before.
    fn worth_telling(&self, now: Timestamp, bucket: &EscrowBucket, new: LastStatement) -> bool {
        if bucket.counting() == Counting::Concurrency {
            return self.places_worth_telling(now, bucket, new);
        }
        let share = bucket.rule.share(self.own_region());
        let Some(old) = bucket.told else { return bucket.is_hot(now, share) };
        let since = now.since(old.at);
        let turned = old.window < new.window && old.window + 1 == new.window;
        if (old.session, old.limit) != (new.session, new.limit) || turned {
            return true;
        }
        let (free, age) = if old.window == new.window {
            (old.free, since)
        } else {
            (share.minted, now.since(bucket.start(new.window)))
        };
        let spent = i128::from(old.demand) * i128::from(age.0) / UNIT;
        let free = i128::from(free) * UNIT;
        let limit = &bucket.rule.rule.limit;
        let (believed, whole, drain) = if bucket.counting() == Counting::Level {
            let (capacity, refill) = (i128::from(share.minted) * UNIT, share.refill);
            let basin = LevelEstimate { capacity, refill, demand: old.demand, ..LevelEstimate::default() };
            (
                basin.after(free, age),
                limit.capacity(bucket.rule.rule.algorithm),
                new.demand.saturating_sub(refill),
            )
        } else {
            ((free - spent).max(0), u64::from(limit.permits), new.demand)
        };
        let off = (believed - i128::from(new.free) * UNIT).abs();
        let tolerated = i128::from(whole) * UNIT * 3 / 100 + 2 * (spent * UNIT).isqrt();
        let (less, more) = (old.demand.min(new.demand), old.demand.max(new.demand));
        let changed = more - less > (more / 10).saturating_add(bucket.noise(more).saturating_mul(2));
        // They were told, perhaps with what they gave, that all is served.
        let lacks = new.wanted > new.free;
        let unheard = |(_, partner): (_, &RegionStatement)| {
            lacks && partner.said.is_some_and(|(window, served)| served || window != new.window)
        };
        let hungry = new.wanted > old.wanted || bucket.partners().any(unheard);
        let dry = i128::from(new.free) * UNIT < need(drain, self.owd_max() + self.owd_max());
        let others = bucket
            .partners()
            .any(|(_, partner)| partner.free > 0 || partner.window < new.window || partner.heard.is_none());
        // Where each permit counts, those who divide them have to know who has given one.
        let scarce =
            tolerated < UNIT && off >= UNIT && bucket.partners().any(|(_, one)| one.lacks_lately(now));
        let urgent = (hungry || scarce || (dry && off > UNIT)) && others && since >= GAP;
        let periodic = since >= self.config.interval && (off > tolerated || changed);
        let heartbeat = since.0 >= self.config.interval.0.saturating_mul(20);
        // What was told may be lost, and is not believed for ever.
        let again = lacks && others && since >= LACKS_AGAIN.max(self.config.interval);
        urgent || periodic || again || (heartbeat && (new.demand > 0 || old.demand > 0))
    }

    /// Settles the window before the present one, once everybody who used it has said how much.
    fn close(&mut self, now: Timestamp, id: usize) {
        let Some(bucket) = self.bucket(id) else { return };
        let Some((window, used)) = bucket.balance.as_ref().and_then(|balance| balance.ledger.closed) else {
            return;
        };
        if window <= bucket.settled || !self.owns(&bucket.key) {
            return;
        }
        let spoke = |partner: &RegionStatement| partner.heard.is_some() && partner.window >= window;
        let mut all = used;
        for (_, partner) in bucket.partners().filter(|(_, partner)| spoke(partner)) {
            match partner.closed {
                Some((of, used)) if of == window => all = all.saturating_add(used),
                _ => return,
            }
        }
        let Some(rule) = self.rules.get(&bucket.key.rule) else { return };
        let (key, limit) = (bucket.key.clone(), u64::from(bucket.largest_limit(now, &rule.rule.limit)));
        if let Some(bucket) = self.bucket_mut(id) {
            bucket.settled = window;
        }
        self.note(Event::Closed { key, window, used: all, limit });
    }

    /// When to look at a bucket again.
    pub(super) fn schedule(&mut self, now: Timestamp, id: usize) {
        let Some(bucket) = self.bucket(id) else { return };
        let mut next = bucket.expiry();
        if bucket.is_hot(now, bucket.rule.share(self.own_region())) {
            let gap = if bucket.stirred { self.config.look_gap } else { self.config.interval };
            next = next.min(bucket.looked.map_or(now, |looked| looked + gap));
            if bucket.counting() == Counting::Window {
                next = next.min(bucket.start(bucket.window_at(now).saturating_add(1)));
            }
        }
        if bucket.has_loans() {
            next = next.min(bucket.looked.map_or(now, |looked| looked + self.confirmation_gap()));
        }
        for region in 1..self.regions.len() {
            if self.unacknowledged(now, id, region).is_some() {
                let sent = bucket.partner(region).and_then(|partner| partner.sent).map_or(now, |(at, ..)| at);
                next = next.min(sent + self.patience(region));
            }
        }
        // At once would be a busy loop where the store does not answer.
        let next = next.max(now + Span::from_millis(1));
        let Some(bucket) = self.bucket_mut(id) else { return };
        if let Some(old) = bucket.alarm.replace(next) {
            self.alarms.remove(&(old, id));
        }
        self.alarms.insert((next, id));
    }

    /// Has the owner of the bucket in a region told.
    pub(super) fn owe(&mut self, id: usize, region: RegionId) {
        let Some(bucket) = self.bucket(id) else { return };
        let Some(owner) = self.owner(region, &bucket.key) else { return };
        if let Some(link) = self.links.get_mut(&owner) {
            link.owe(id);
        }
    }

    pub(super) fn own_region(&self) -> &str {
        self.regions.name(Regions::OWN)
    }

    /// When a frame of a region came last.
    pub(super) fn heard(&self, region: RegionId) -> Option<Timestamp> {
        self.regions.get(region)?.heard
    }

    /// One way to a region.
    fn owd(&self, region: RegionId) -> Span {
        self.ways.get(region).copied().flatten().map_or(OWD_DEFAULT, |(nearest, _)| nearest)
    }

    pub(super) fn owd_max(&self) -> Span {
        self.ways.iter().skip(1).flatten().map(|(_, farthest)| *farthest).max().unwrap_or(Span::ZERO)
    }

    /// Works out anew how far the regions are: every look at a bucket asks it of all of them.
    pub(super) fn measure_ways(&mut self) {
        self.ways.clear();
        self.ways.resize(self.regions.len(), None);
        for link in self.links.values().filter(|link| link.live) {
            if let Some(way) = self.ways.get_mut(link.region) {
                let owd = Span(link.rtt().0 / 2);
                let (nearest, farthest) = way.unwrap_or((owd, owd));
                *way = Some((nearest.min(owd), farthest.max(owd)));
            }
        }
    }

    /// How long a transfer may stay unacknowledged.
    fn patience(&self, region: RegionId) -> Span {
        Span(self.owd(region).0.saturating_mul(3)).max(Span::from_millis(30)) + self.config.look_gap
    }
}

/// A cost that a region was asked for, in millionths, if it can gather so much at all.
fn wanted(share: Share, cost: u64) -> i128 {
    if cost <= share.gathered { i128::from(cost) * UNIT } else { 0 }
}

/// Whether the daemon that speaks for the bucket should hear what this one is asked for.
fn tells_owner(now: Timestamp, bucket: &EscrowBucket, new: LastStatement) -> bool {
    let Some(old) = bucket.told else { return new.demand > 0 || new.wanted > 0 };
    let since = now.since(old.at);
    let hungry = (new.wanted > old.wanted || new.limit != old.limit) && since >= GAP;
    let changed = new.demand.abs_diff(old.demand) > new.demand.max(old.demand) / 10;
    hungry || (since >= Span::from_millis(100) && (changed || new.demand > 0))
}
