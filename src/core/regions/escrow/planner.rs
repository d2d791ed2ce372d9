//! The plan of one daemon for one bucket, whatever it counts: it looks at its rights, sends what was given,
//! and decides what to tell. The planner of each way of counting works out what it gives.

use smallvec::SmallVec;

use super::super::super::algorithm::Counting;
use super::super::super::time::{Span, Timestamp};
use super::super::super::wire::rights::RightKind;
use super::super::membership::{RegionId, Regions};
use super::bucket::{EscrowBucket, LastStatement, RegionStatement};
use super::ledger::{Ledger, Step, StepResult};
use super::places::LoanPartner;
use super::totals::{Giving, MovedRights};
use super::window::need;
use super::{Escrow, Event};

/// Millionths in a permit.
pub(super) const UNIT: i128 = 1_000_000;
/// Least time between two gifts to one region, and between two urgent statements.
pub(super) const GAP: Span = Span::from_millis(20);
/// A region that cannot serve what was refused says so again after so long.
const LACKS_AGAIN: Span = Span::from_millis(500);
/// One way to a region to which there is no link.
const OWD_DEFAULT: Span = Span::from_millis(50);
/// A region that was not heard for so long gets nothing: what is sent to it would lie on the way.
const AUDIBLE_FOR: Span = Span::from_millis(600);

/// What the other regions believe of this one by what they were told last.
#[derive(Debug, Clone, Copy)]
pub(super) struct Extrapolated {
    /// Free permits, in millionths.
    pub(super) believed: i128,
    /// Permits that they take for spent since, in millionths.
    pub(super) spent: i128,
    /// Permits of which a small part does not matter.
    pub(super) whole: u64,
    /// By how much the rights here become fewer, in millionths of a permit a second.
    pub(super) drain: u64,
}

impl Escrow {
    /// Looks at a bucket because something happened or its time has come.
    pub(super) fn plan(&mut self, now: Timestamp, id: usize) {
        let own = self.config.name.region.clone();
        let (look_gap, slow_gap) = (self.config.look_gap, self.confirmation_gap());
        if let Some(bucket) = self.bucket_mut(id) {
            bucket.forget_wants(now);
        }
        let Some(bucket) = self.bucket(id) else { return };
        // A transfer has to be sent until it has come.
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
                bucket.wait(Step::Read);
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
    pub(super) fn take_in_balance(&mut self, id: usize, balance: StepResult) {
        let Some(bucket) = self.bucket_mut(id) else { return };
        if balance.ledger.counting() != bucket.counting() {
            // Another rule of that name was in force when the store answered.
            return;
        }
        let before = bucket.balance.take();
        let same = before.as_ref().filter(|before| {
            (before.ledger.kind(), before.ledger.session())
                == (balance.ledger.kind(), balance.ledger.session())
        });
        let mut moved = Vec::new();
        for MovedRights { region, session, permits } in balance.ledger.given() {
            let known = same.map_or(0, |before| before.ledger.given_to(region, session));
            if permits > known {
                moved.push(Event::Gave { to: region.to_owned(), permits: permits - known });
            }
        }
        for MovedRights { region, session, permits } in balance.ledger.taken() {
            let known = same.map_or(0, |before| before.ledger.taken_from(region, session));
            if permits > known {
                moved.push(Event::Took { from: region.to_owned(), permits: permits - known });
            }
        }
        let takers: Vec<String> = moved
            .iter()
            .filter_map(|event| match event {
                Event::Took { from, .. } => Some(from.clone()),
                _ => None,
            })
            .collect();
        // A region that was met for the first time is to know that it was.
        let before = before.as_ref().and_then(|before| before.ledger.as_places());
        let is_new = |partner: &&LoanPartner| {
            let known = before.and_then(|before| before.partner(&partner.region));
            known.is_none_or(|known| known.session != partner.session)
        };
        let partners = balance.ledger.as_places().map(|ledger| ledger.partners.as_slice());
        let new = partners.unwrap_or_default().iter().filter(is_new);
        let met: Vec<String> = new.map(|partner| partner.region.clone()).collect();
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
    pub(super) fn give_and_tell(&mut self, now: Timestamp, id: usize) {
        self.close(now, id);
        let Some(bucket) = self.bucket(id) else { return };
        if bucket.current(now).is_none() {
            return;
        }
        let counting = bucket.counting();
        if self.owns(&bucket.key) {
            match counting {
                Counting::Window => self.give_window_rights(now, id),
                Counting::Level => {
                    self.settle(now, id);
                    self.give_level_permits(now, id);
                }
                Counting::Concurrency => {
                    self.open_sessions(now, id);
                    self.give_places(now, id);
                }
            }
        }
        self.owe_transfers(now, id);
        self.tell(now, id);
        self.run_dry(now, id);
    }

    /// The place of a region among those of a bucket, as all of them count.
    pub(super) fn order(&self, bucket: &EscrowBucket, region: RegionId) -> usize {
        let name = self.regions.name(region);
        bucket.rule.shares.keys().take_while(|one| one.as_str() < name).count()
    }

    /// Returns what was given to a region and is not known to have arrived.
    pub(super) fn under_way(&self, own: &StepResult, partner: &RegionStatement, region: RegionId) -> u64 {
        let ledger = &own.ledger;
        let acked = partner.has_of(ledger.kind(), self.own_region(), ledger.session());
        ledger.given_to(self.regions.name(region), partner.session).saturating_sub(acked)
    }

    /// True if what is given to a region now would arrive, and nothing was given to it just now.
    pub(super) fn is_reachable(
        &self,
        now: Timestamp,
        partner: &RegionStatement,
        region: RegionId,
        gap: Span,
    ) -> bool {
        let rested = partner.gave.is_none_or(|gave| now.since(gave) >= gap || now < gave);
        let owd = self.owd(region);
        let audible = self.heard(region).is_some_and(|heard| now.since(heard) < AUDIBLE_FOR + owd);
        rested && audible && partner.session != 0
    }

    /// Has the store take out so many permits for each region, but no more than `most` for one, by a step of
    /// its kind.
    pub(super) fn give(
        &mut self,
        now: Timestamp,
        id: usize,
        (gifts, most): (&[u64], u64),
        step: impl Fn(Giving) -> Step,
    ) {
        let early = !self.config.safety.debits_before_credits;
        let names: SmallVec<[String; 8]> =
            (0..self.regions.len()).map(|region| self.regions.name(region).to_owned()).collect();
        let Some(bucket) = self.bucket_mut(id) else { return };
        let Some(kind) = bucket.current(now).map(|balance| balance.ledger.kind()) else { return };
        for ((region, permits), to) in gifts.iter().enumerate().zip(names).skip(1) {
            let Some(session) = bucket.partner(region).map(|partner| partner.session) else { continue };
            if *permits == 0 {
                continue;
            }
            let permits = (*permits).min(most);
            let given = bucket.balance.as_ref().map_or(0, |balance| balance.ledger.given_to(&to, session));
            let partner = bucket.partner_mut(region);
            partner.gave = Some(now);
            if early {
                let before = if kind == RightKind::Places { given } else { partner.promised_of(kind) };
                partner.promised = Some((kind, before.saturating_add(permits)));
            }
            bucket.wait(step(Giving { to, session, permits }));
        }
    }

    /// Owes every region the rights that were taken out for it and that it has not acknowledged.
    fn owe_transfers(&mut self, now: Timestamp, id: usize) {
        for region in 1..self.regions.len() {
            let resend_after = self.resend_after(region);
            let Some(permits) = self.unacknowledged(now, id, region) else { continue };
            let Some(bucket) = self.bucket_mut(id) else { return };
            let kind = bucket.kind_at(now);
            let partner = bucket.partner_mut(region);
            let under_way = partner.sent.is_some_and(|sent| {
                sent.kind == kind
                    && sent.permits >= permits
                    && now.since(sent.at) < resend_after
                    && now >= sent.at
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
        let ledger = &bucket.current(now)?.ledger;
        if ledger.as_places().is_some_and(|places| !places.is_covered()) {
            return None;
        }
        let (partner, name) = (bucket.partner(region), self.regions.name(region));
        let session = self.receiving_session(bucket, ledger, region);
        let mut given = ledger.given_to(name, session);
        if !self.config.safety.debits_before_credits {
            given = given.max(partner.map_or(0, |partner| partner.promised_of(ledger.kind())));
        }
        let has =
            |partner: &RegionStatement| partner.has_of(ledger.kind(), self.own_region(), ledger.session());
        let settled = ledger.as_level().map_or(0, |level| level.acknowledged_by(name, session));
        let acked = partner.map_or(0, has).max(settled);
        // A share that shrank while more was under way: whoever knows the smaller one alone believes no more
        // than that at once.
        let at_once = ledger.as_level().map_or(u64::MAX, |level| level.minted.max(1));
        (given > acked).then_some(given.min(acked.saturating_add(at_once)))
    }

    /// The session to which a region is sent its rights: the one that it named, else the one that the store
    /// gave to. So a daemon that began anew reaches also a region that has nothing to say; one that has them
    /// already answers so. Zero: it has no session, or no daemon to receive them.
    pub(super) fn receiving_session(&self, bucket: &EscrowBucket, ledger: &Ledger, region: RegionId) -> u64 {
        if let Some(partner) = bucket.partner(region).filter(|partner| partner.heard.is_some()) {
            return partner.session;
        }
        if self.regions.get(region).is_none_or(|region| region.ring.nodes().is_empty()) {
            return 0;
        }
        let name = self.regions.name(region);
        let given = ledger.given().filter(|given| given.region == name);
        given.map(|given| given.session).max().unwrap_or(0)
    }

    /// Owes the others a statement if what they believe is wrong.
    fn tell(&mut self, now: Timestamp, id: usize) {
        let Some(bucket) = self.bucket(id) else { return };
        let Some(balance) = bucket.current(now) else { return };
        let owned = self.owns(&bucket.key);
        let kind = balance.ledger.kind();
        let told = LastStatement {
            at: now,
            kind,
            session: balance.ledger.session(),
            free: balance.free(),
            demand: if owned { bucket.demand(now) } else { bucket.own_demand(now) },
            wanted: if owned { bucket.wanted(kind) } else { bucket.own_wanted(kind) },
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
                (partner.owes_statement, partner.said) = (true, Some((kind, told.wanted <= told.free)));
            }
            self.owe(id, region);
        }
    }

    /// True if the others would go wrong by what they were told before.
    fn worth_telling(&self, now: Timestamp, bucket: &EscrowBucket, new: LastStatement) -> bool {
        if new.kind == RightKind::Places {
            return self.places_worth_telling(now, bucket, new);
        }
        let Some(old) = bucket.told else {
            return bucket.is_hot(now, bucket.rule.share(self.own_region()));
        };
        let since = now.since(old.at);
        let turned = match (old.kind, new.kind) {
            (RightKind::Window(old), RightKind::Window(new)) => old < new && old + 1 == new,
            _ => false,
        };
        if (old.session, old.limit) != (new.session, new.limit) || turned {
            return true;
        }
        let Extrapolated { believed, spent, whole, drain } = match new.kind {
            RightKind::Window(window) => self.window_extrapolated(now, bucket, (old, new), window),
            RightKind::Level | RightKind::Places => self.level_extrapolated(now, bucket, (old, new)),
        };
        let off = (believed - i128::from(new.free) * UNIT).abs();
        let tolerated = i128::from(whole) * UNIT * 3 / 100 + 2 * (spent * UNIT).isqrt();
        let (less, more) = (old.demand.min(new.demand), old.demand.max(new.demand));
        let changed = more - less > (more / 10).saturating_add(bucket.noise(more).saturating_mul(2));
        // They were told, perhaps with what they gave, that all is served.
        let lacks = new.wanted > new.free;
        let unheard = |(_, partner): (_, &RegionStatement)| {
            lacks && partner.said.is_some_and(|(kind, served)| served || kind != new.kind)
        };
        let hungry = new.wanted > old.wanted || bucket.partners().any(unheard);
        let dry = i128::from(new.free) * UNIT < need(drain, self.owd_max() + self.owd_max());
        let others = bucket
            .partners()
            .any(|(_, partner)| partner.free > 0 || partner.kind() < new.kind || partner.heard.is_none());
        // Where each permit counts, those who divide them have to know who has given one.
        let scarce =
            tolerated < UNIT && off >= UNIT && bucket.partners().any(|(_, one)| one.lacks_lately(now));
        let urgent = (hungry || scarce || (dry && off > UNIT)) && others && since >= GAP;
        let periodic = since >= self.config.interval && (off > tolerated || changed);
        let heartbeat = since.0 >= self.config.interval.0.saturating_mul(20);
        // A statement may be lost, and is not believed for ever.
        let again = lacks && others && since >= LACKS_AGAIN.max(self.config.interval);
        urgent || periodic || again || (heartbeat && (new.demand > 0 || old.demand > 0))
    }

    /// When to look at a bucket again.
    pub(super) fn schedule(&mut self, now: Timestamp, id: usize) {
        let Some(bucket) = self.bucket(id) else { return };
        let mut next = bucket.expiry();
        if bucket.is_hot(now, bucket.rule.share(self.own_region())) {
            let gap = if bucket.stirred { self.config.look_gap } else { self.config.interval };
            next = next.min(bucket.looked.map_or(now, |looked| looked + gap));
            next = bucket.next_window(now).map_or(next, |turn| next.min(turn));
        }
        if bucket.has_loans() {
            next = next.min(bucket.looked.map_or(now, |looked| looked + self.confirmation_gap()));
        }
        for region in 1..self.regions.len() {
            if self.unacknowledged(now, id, region).is_some() {
                let sent =
                    bucket.partner(region).and_then(|partner| partner.sent).map_or(now, |sent| sent.at);
                next = next.min(sent + self.resend_after(region));
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
    pub(super) fn owd(&self, region: RegionId) -> Span {
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
    fn resend_after(&self, region: RegionId) -> Span {
        Span(self.owd(region).0.saturating_mul(3)).max(Span::from_millis(30)) + self.config.look_gap
    }
}

/// True if the daemon that speaks for the bucket should hear what this one is asked for.
fn tells_owner(now: Timestamp, bucket: &EscrowBucket, new: LastStatement) -> bool {
    let Some(old) = bucket.told else { return new.demand > 0 || new.wanted > 0 };
    let since = now.since(old.at);
    let hungry = (new.wanted > old.wanted || new.limit != old.limit) && since >= GAP;
    let changed = new.demand.abs_diff(old.demand) > new.demand.max(old.demand) / 10;
    hungry || (since >= Span::from_millis(100) && (changed || new.demand > 0))
}
