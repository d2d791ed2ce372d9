//! Several regions in the virtual world, each with the machine of rights and a store, which may forget.

use super::*;
use crate::virtual_world::{
    self, Dice, ReferenceStore, RightsHost, RightsStore, Seat, TICK, VirtualWorld, untouched,
};

/// The network and the dice of a world.
#[derive(Debug, Clone, Copy)]
pub(super) struct Weather {
    pub(super) owd: Span,
    pub(super) jitter: Span,
    /// In thousandths.
    pub(super) loss: u32,
    pub(super) doubled: u32,
    pub(super) seed: u64,
}

pub(super) const CALM: Weather =
    Weather { owd: Span::from_millis(40), jitter: Span::ZERO, loss: 0, doubled: 0, seed: 1 };

/// A region's store.
#[derive(Debug)]
pub(super) struct StoreOfRights {
    region: String,
    ledger: ReferenceStore,
    /// Memories that it had.
    sessions: u64,
    /// The rule's limit, of which it mints this region's part.
    limit: Limit,
    regions: Vec<String>,
    /// Decisions since the machine was told last.
    tally: Touched,
}

pub(super) struct EscrowWorld {
    pub(super) world: VirtualWorld<RightsHost<StoreOfRights>>,
    pub(super) limit: Limit,
    pub(super) algorithm: Algorithm,
    /// The limit by which requests are decided, where that is not the rule's.
    pub(super) own: Option<OwnLimit>,
    pub(super) dice: Dice,
    safety: EscrowSafety,
    /// Permits by window.
    pub(super) admitted: BTreeMap<u64, u64>,
    /// Without windows: what a bucket for the whole world would hold, in permits a window, as of when.
    pub(super) reference: (i128, Timestamp),
}

impl Weather {
    fn among(&self, regions: usize) -> virtual_world::Weather {
        virtual_world::Weather {
            delay: vec![vec![self.owd; regions]; regions],
            jitter: self.jitter.to_std().as_secs_f64() / self.owd.to_std().as_secs_f64(),
            loss: f64::from(self.loss) / 1_000.0,
            double: f64::from(self.doubled) / 1_000.0,
            reorder: 0.0,
        }
    }
}

impl EscrowWorld {
    pub(super) fn new(count: usize, permits: u32, weather: Weather, safety: EscrowSafety) -> Self {
        Self::of(Algorithm::FixedWindow, count, permits, weather, safety)
    }

    pub(super) fn of(
        algorithm: Algorithm,
        count: usize,
        permits: u32,
        weather: Weather,
        safety: EscrowSafety,
    ) -> Self {
        let limit = Limit { calendar: None, permits, window: Span::from_secs(1), burst: permits, queue: 0 };
        Self::held_to(limit, algorithm, count, weather, safety)
    }

    pub(super) fn held_to(
        limit: Limit,
        algorithm: Algorithm,
        count: usize,
        weather: Weather,
        safety: EscrowSafety,
    ) -> Self {
        let mut world = Self {
            world: VirtualWorld::new(START, weather.among(count), weather.seed),
            limit,
            algorithm,
            own: None,
            dice: Dice::new(weather.seed, 2),
            safety,
            admitted: BTreeMap::new(),
            reference: (i128::from(limit.burst) * 1_000_000, START),
        };
        for place in 0..count {
            let name = NodeName { region: format!("r{place}"), node: "n".into() };
            let store = StoreOfRights {
                region: name.region.clone(),
                ledger: world.store_of(place, count, 1, Timestamp(0)),
                sessions: 1,
                limit,
                regions: names(count),
                tally: untouched(key()),
            };
            let host = RightsHost::new(world.machine_of(&name, count), store, false);
            world.world.seat(|begins| Seat::new(name, place, host, begins));
        }
        world.world.meet();
        world
    }

    fn machine_of(&self, name: &NodeName, count: usize) -> Escrow {
        let config = EscrowConfig {
            regions: RegionList::of(names(count)),
            safety: self.safety,
            ..EscrowConfig::new(name.clone())
        };
        let mut machine = Escrow::new(config);
        let global = Global::new(Mode::Escrow);
        let rule = WorldRule { name: rule_name(), algorithm: self.algorithm, limit: self.limit, global };
        machine.handle_rules(self.now(), &[rule]);
        machine
    }

    fn store_of(&self, place: usize, count: usize, session: u64, begun: Timestamp) -> ReferenceStore {
        let part = part_of(self.limit, &names(count), &format!("r{place}"));
        if self.algorithm.counting() == Counting::Level {
            let terms =
                level::LevelTerms { algorithm: self.algorithm, limit: part, begun, safety: self.safety };
            return ReferenceStore::level(terms, self.now());
        }
        if slides(self.algorithm) {
            let terms = places::PlacesTerms {
                share: u64::from(part.permits),
                hold: places::counted_for(self.algorithm, self.limit.window),
                begun,
                margins: Margins::USUAL,
                safety: self.safety,
            };
            return ReferenceStore::places(self.algorithm, self.limit, terms);
        }
        ReferenceStore::new(session, begun, self.limit.windows(), u64::from(part.permits), self.safety)
    }

    /// True time.
    pub(super) fn now(&self) -> Timestamp {
        self.world.now
    }

    /// The time that a region's clock shows.
    pub(super) fn clock(&self, place: usize) -> Timestamp {
        self.world.clock(place)
    }

    pub(super) fn set_ahead(&mut self, place: usize, ahead: i64) {
        self.world.clocks[place].ahead = ahead;
    }

    pub(super) fn cut_off(&mut self, place: usize, cut: bool) {
        self.world.network.cut(&[place], true, true, cut);
    }

    pub(super) fn set_slow(&mut self, slow: bool) {
        self.world.daemons.iter_mut().for_each(|seat| seat.node.slow = slow);
    }

    pub(super) fn count(&self) -> usize {
        self.world.daemons.len()
    }

    pub(super) fn regions(&self) -> impl Iterator<Item = &RightsHost<StoreOfRights>> {
        self.world.daemons.iter().map(|seat| &seat.node)
    }

    fn host(&self, place: usize) -> &RightsHost<StoreOfRights> {
        &self.world.daemons[place].node
    }

    fn host_mut(&mut self, place: usize) -> &mut RightsHost<StoreOfRights> {
        &mut self.world.daemons[place].node
    }

    pub(super) fn machine(&self, place: usize) -> &Escrow {
        &self.host(place).machine
    }

    pub(super) fn machine_mut(&mut self, place: usize) -> &mut Escrow {
        &mut self.host_mut(place).machine
    }

    /// The ledger of a region's store now, by its clock.
    pub(super) fn balance(&self, place: usize) -> StepResult {
        self.host(place).store.ledger.balance(self.clock(place))
    }

    /// Everything that the machines said so far, region by region.
    pub(super) fn events(&self) -> impl Iterator<Item = &Event> {
        self.regions().flat_map(|region| &region.events)
    }

    pub(super) fn request(&mut self, place: usize, cost: u64) -> bool {
        let (now, own) = (self.clock(place), self.own);
        let level = self.algorithm.counting() == Counting::Level;
        let window = if level { 0 } else { self.limit.windows().index(now) };
        let RightsHost { machine, store, .. } = self.host_mut(place);
        store.hold_to(own, machine);
        let admitted = store.ledger.decide(now, cost);
        let tally = &mut store.tally;
        tally.window = window.max(tally.window);
        tally.offered += cost;
        tally.own = own;
        if admitted.is_some() {
            tally.admitted += cost;
        } else {
            tally.refused = tally.refused.max(cost);
        }
        if let Some(window) = admitted {
            *self.admitted.entry(window).or_default() += cost;
            self.refill();
            self.reference.0 -= i128::from(cost) * 1_000_000;
        }
        admitted.is_some()
    }

    /// So many requests for one permit at each of so many ticks.
    pub(super) fn press(&mut self, place: usize, each: usize, ticks: usize) {
        for _ in 0..ticks {
            for _ in 0..each {
                self.request(place, 1);
            }
            self.tick();
        }
    }

    /// A transfer of so many permits in all comes from a region, whatever it holds.
    pub(super) fn send(&mut self, from: usize, to: usize, permits: u64) {
        let now = self.clock(to);
        let ledger = |place: usize| self.host(place).store.ledger.balance(now).ledger;
        let transfer = Transfer {
            rule: rule_name(),
            identity: key().identity,
            kind: ledger(to).kind(),
            session: ledger(from).session(),
            to_session: ledger(to).session(),
            permits,
            limit: CountedLimit::default(),
        };
        self.deliver(from, to, RightsFrame { sent: now, statements: Vec::new(), transfers: vec![transfer] });
    }

    /// A frame comes from a region, whoever wrote it.
    pub(super) fn deliver(&mut self, from: usize, to: usize, frame: RightsFrame) {
        let (now, from) = (self.clock(to), self.world.daemons[from].name.clone());
        assert_eq!(self.machine_mut(to).handle_frame(now, &from, frame), Ok(()));
        self.world.pump(to);
    }

    fn refill(&mut self) {
        let (held, at) = self.reference;
        let refilled = i128::from(self.now().since(at).0) * i128::from(self.limit.permits);
        let most = i128::from(self.limit.burst) * 1_000_000;
        self.reference = ((held + refilled).min(most), self.now());
    }

    /// The daemon and its store begin anew and remember nothing.
    pub(super) fn crash(&mut self, place: usize) {
        let (count, now) = (self.count(), self.clock(place));
        let session = self.host(place).store.sessions + 1;
        let machine = self.machine_of(&self.world.daemons[place].name, count);
        let ledger = self.store_of(place, count, session, now);
        let host = self.host_mut(place);
        host.begin_again(machine);
        (host.store.ledger, host.store.sessions, host.store.tally) = (ledger, session, untouched(key()));
        self.world.meet();
    }

    pub(super) fn tick(&mut self) {
        self.world.step(TICK);
        assert_eq!(self.world.first_refused, None, "an honest frame was refused");
    }

    /// Nothing is anywhere that was not minted: what is taken was given, and all budgets fit the limit.
    pub(super) fn check(&self) -> Result<(), String> {
        let limit = u64::from(self.limit.permits);
        if self.algorithm.counting() == Counting::Level {
            if self.reference.0 < 0 {
                return Err(format!("{} millionths above the arrival curve", -self.reference.0));
            }
        } else if let Some((window, used)) = self.admitted.iter().find(|(_, used)| **used > limit) {
            return Err(format!("{used} of {limit} in window {window}"));
        }
        let balances: Vec<StepResult> = (0..self.count()).map(|place| self.balance(place)).collect();
        for (one, balance) in balances.iter().enumerate() {
            for taken in balance.ledger.taken() {
                let Some(giver) = self.regions().position(|host| host.store.region == taken.region) else {
                    return Err(format!("taken from nowhere: {}", taken.region));
                };
                let other = &balances[giver].ledger;
                if other.kind() != balance.ledger.kind() || other.session() != taken.session {
                    continue;
                }
                let given = other.given_to(&self.host(one).store.region, balance.ledger.session());
                if taken.permits > given {
                    return Err(format!("{} taken of {given} given", taken.permits));
                }
            }
        }
        Ok(())
    }

    /// Permits admitted in whole windows after the first, of those that could have been.
    pub(super) fn used(&self, windows: u64) -> u64 {
        self.admitted.values().sum::<u64>() / windows.max(1)
    }
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|place| format!("r{place}")).collect()
}

/// A region's part of a limit that all divide evenly.
fn part_of(limit: Limit, regions: &[String], region: &str) -> Limit {
    let weights = Weights::new(&[], &[], regions);
    let part = |whole: u32| u32::try_from(weights.of(u64::from(whole), region)).unwrap();
    Limit { permits: part(limit.permits), burst: part(limit.burst), ..limit }
}

impl StoreOfRights {
    /// It is told its part of a limit with each request and each step.
    fn hold_to(&mut self, own: Option<OwnLimit>, machine: &Escrow) {
        let owned = machine.index.values().next().and_then(|id| machine.bucket(*id));
        if own.is_none() && owned.is_none_or(|bucket| bucket.owned.is_none()) {
            return;
        }
        let limit = own.map_or(self.limit, |own| own.in_place_of(self.limit));
        self.ledger.set_part(part_of(limit, &self.regions, &self.region), limit);
    }
}

impl RightsStore for StoreOfRights {
    fn carry_out(&mut self, now: Timestamp, machine: &Escrow, ask: &StepRequest) -> Option<StepResult> {
        self.hold_to(ask.own, machine);
        self.ledger.carry_out(now, ask)
    }

    fn touched(&mut self) -> Vec<Touched> {
        let tally = std::mem::replace(&mut self.tally, untouched(key()));
        if tally.offered > 0 { vec![tally] } else { Vec::new() }
    }
}
