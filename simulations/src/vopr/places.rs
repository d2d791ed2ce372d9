//! Worlds of holders: places of a `concurrency` rule under `escrow`, lent between regions whose memories,
//! clocks and links fail.
//!
//! The machine and the store's steps are the daemon's. A holder counts until it has given back or its hold is
//! over by the clock of its region, also when the store that admitted it has forgotten: what is checked at
//! every step is how many there are.

use std::fmt::Write as _;

use tidegate::core::algorithm::{Algorithm, Limit};
use tidegate::core::hold::{Hold, HoldStep, Holder};
use tidegate::core::region_list::RegionList;
use tidegate::core::regions::escrow::places::PlacesTerms;
use tidegate::core::regions::escrow::{
    Escrow, EscrowConfig, EscrowSafety, Event, ReferenceStore, StepRequest, rights_frame_bytes,
};
use tidegate::core::regions::{Member, NodeName, Touched, WorldKey, WorldRule};
use tidegate::core::rule::{Global, Mode};
use tidegate::core::share::Weights;
use tidegate::core::time::{Span, Timestamp};
use tidegate::core::wire::RuleName;
use tidegate::core::wire::rights::RightsFrame;

mod case;
mod check;

pub(super) use self::case::PlacesCase;

use super::play::Summary;
use crate::dice::Dice;
use crate::model::START;
use crate::network::Network;
use crate::number::{index, place};

const STEP: Span = Span::from_millis(10);
/// Steps of peace: longer than any memory is in doubt.
const PEACE_STEPS: u64 = 1_250;
/// Of these the last, in which nobody asks but one region at a time: two seconds until borrowed places go
/// home by themselves, and some round trips until they are where they are asked for.
const PROOF_STEPS: u64 = 400;
/// Steps between two looks at what is dear to look at.
const LOOK_STEPS: u64 = 10;
/// Farthest that a clock is ever off: two of them, one back and one ahead, must stay within the margin of a
/// second.
const CLOCK_MAX: u64 = 200_000;
const FLYING_MAX: usize = 20_000;

/// One region: its store, its daemon, and who holds places there.
struct Region {
    name: NodeName,
    machine: Escrow,
    alive: bool,
    vaults: Vec<ReferenceStore>,
    begun: Timestamp,
    ahead: i64,
    /// Holders whom the store knows: user, name, places and when the hold is over.
    holders: Vec<(usize, Holder, u64, Timestamp)>,
    /// Holders whom it has forgotten.
    ghosts: Vec<(usize, u64, Timestamp)>,
    tallies: Vec<Touched>,
    asks: Vec<StepRequest>,
    mood: f64,
}

struct World<'c> {
    case: &'c PlacesCase,
    safety: EscrowSafety,
    now: Timestamp,
    regions: Vec<Region>,
    weights: Vec<u32>,
    /// Weights that are to be in force, and from when they may be alone.
    next: Option<(Vec<u32>, Timestamp)>,
    network: Network<RightsFrame>,
    dice: Dice,
    names: u64,
    steps: u64,
    admitted: u64,
    faults: u64,
    trace: Option<Vec<u8>>,
}

/// Plays a case with these safety rules in force.
///
/// # Errors
/// The first violation, in a sentence.
pub(crate) fn play(
    case: &PlacesCase,
    safety: EscrowSafety,
    trace: Option<Vec<u8>>,
) -> Result<(Summary, Option<Vec<u8>>), String> {
    let mut world = World::new(case, safety, trace);
    for _ in 0..case.steps {
        world.trouble();
        world.demand();
        world.step()?;
    }
    world.peace();
    for step in 0..PEACE_STEPS {
        if step < PEACE_STEPS - PROOF_STEPS {
            world.demand();
        }
        world.step()?;
    }
    world.everyone_serves()?;
    let summary = Summary {
        daemons: place(world.regions.len()),
        frames: world.network.traffic.frames,
        admitted: world.admitted,
        faults: world.faults,
    };
    Ok((summary, world.trace))
}

fn rule_name() -> RuleName {
    RuleName { domain: "default".to_owned(), name: "in-flight".to_owned() }
}

fn world_key(user: usize) -> WorldKey {
    WorldKey { rule: rule_name(), identity: user.to_be_bytes().to_vec() }
}

fn untouched(user: usize) -> Touched {
    Touched {
        key: world_key(user),
        window: 0,
        offered: 0,
        admitted: 0,
        returned: 0,
        refused: 0,
        largest: 1,
        own: None,
        without_allowance: false,
    }
}

impl<'c> World<'c> {
    fn new(case: &'c PlacesCase, safety: EscrowSafety, trace: Option<Vec<u8>>) -> Self {
        let regions = case.weights.len();
        let mut world = Self {
            case,
            safety,
            now: START,
            regions: Vec::new(),
            weights: case.weights.clone(),
            next: None,
            network: Network::new(case.weather.clone(), (0..regions).collect(), case.seed),
            dice: Dice::new(case.seed, 22),
            names: 0,
            steps: 0,
            admitted: 0,
            faults: 0,
            trace,
        };
        for at in 0..regions {
            let name = NodeName { region: format!("r{at}"), node: "n".to_owned() };
            // Half of the worlds were there before; the others begin, and nobody knows what was before.
            let begun = if case.seed.is_multiple_of(2) { Timestamp(0) } else { START };
            let region = Region {
                machine: world.machine(&name),
                name,
                alive: true,
                vaults: Vec::new(),
                begun,
                ahead: 0,
                holders: Vec::new(),
                ghosts: Vec::new(),
                tallies: (0..world.users()).map(untouched).collect(),
                asks: Vec::new(),
                mood: 1.0,
            };
            world.regions.push(region);
            world.begin_store(at, begun);
        }
        world.meet();
        world
    }

    fn users(&self) -> usize {
        index(self.case.users)
    }

    fn named(weights: &[u32]) -> Vec<(String, u32)> {
        weights.iter().enumerate().map(|(at, weight)| (format!("r{at}"), *weight)).collect()
    }

    fn machine(&self, name: &NodeName) -> Escrow {
        let config = EscrowConfig {
            regions: RegionList::of((0..self.case.weights.len()).map(|at| format!("r{at}")).collect()),
            margins: self.case.margins,
            safety: self.safety,
            ..EscrowConfig::new(name.clone())
        };
        let mut machine = Escrow::new(config);
        machine.handle_rules(self.now, &[self.rule()]);
        machine
    }

    fn rule(&self) -> WorldRule {
        let weights = self.next.as_ref().map_or(&self.weights, |(weights, _)| weights);
        let global = Global { shares: Self::named(weights), ..Global::new(Mode::Escrow) };
        let limit = Limit {
            calendar: None,
            permits: self.case.limit,
            window: self.case.hold,
            burst: self.case.limit,
            queue: 0,
        };
        WorldRule { name: rule_name(), algorithm: Algorithm::Concurrency, limit, global }
    }

    /// What a region may own now: the least by all weights that somebody may still hold to.
    fn share(&self, at: usize) -> u64 {
        let of = |weights: &[u32]| {
            Weights::new(&Self::named(weights), &[], &[]).of(u64::from(self.case.limit), &format!("r{at}"))
        };
        let next = self.next.as_ref().map_or(u64::MAX, |(weights, _)| of(weights));
        of(&self.weights).min(next)
    }

    fn begin_store(&mut self, at: usize, begun: Timestamp) {
        let terms = PlacesTerms {
            share: self.share(at),
            hold: self.case.hold,
            begun,
            margins: self.case.margins,
            safety: self.safety,
        };
        let users = self.users();
        let Some(region) = self.regions.get_mut(at) else { return };
        region.begun = begun;
        region.vaults = (0..users).map(|_| ReferenceStore::places(terms)).collect();
        let forgotten = std::mem::take(&mut region.holders);
        region.ghosts.extend(forgotten.into_iter().map(|(user, _, places, ends)| (user, places, ends)));
    }

    fn clock(&self, at: usize) -> Timestamp {
        let ahead = self.regions.get(at).map_or(0, |region| region.ahead);
        Timestamp(self.now.0.saturating_add_signed(ahead))
    }

    fn meet(&mut self) {
        let members: Vec<Member> = self
            .regions
            .iter()
            .map(|one| Member { name: one.name.clone(), live: one.alive, draining: false })
            .collect();
        for at in 0..self.regions.len() {
            let now = self.clock(at);
            let trips: Vec<Span> = (0..members.len())
                .map(|other| self.network.delay(at, other) + self.network.delay(other, at))
                .collect();
            let Some(region) = self.regions.get_mut(at) else { continue };
            region.machine.handle_members(now, &members);
            for (member, trip) in members.iter().zip(trips) {
                region.machine.handle_link(now, &member.name, trip);
            }
        }
    }

    fn note(&mut self, text: std::fmt::Arguments<'_>) {
        if let Some(trace) = &mut self.trace {
            let mut line = String::new();
            let _ = writeln!(line, "{} {text}", self.now.0);
            trace.extend_from_slice(line.as_bytes());
        }
    }

    /// A holder's step in a region. Whether it was admitted.
    fn hold(&mut self, at: usize, user: usize, hold: Hold) -> bool {
        let (now, length) = (self.clock(at), self.case.hold);
        let Some(region) = self.regions.get_mut(at).filter(|region| region.alive) else { return false };
        let Some(vault) = region.vaults.get_mut(user) else { return false };
        let (may, moved) = vault.step(now, &hold);
        let whose = |one: &(usize, Holder, u64, Timestamp)| (one.0, one.1) == (user, hold.holder);
        match hold.step {
            HoldStep::Acquire => {
                if let Some(tally) = region.tallies.get_mut(user) {
                    tally.offered += hold.places;
                    if may {
                        tally.admitted += hold.places;
                    } else {
                        tally.refused = tally.refused.max(hold.places);
                    }
                }
                if moved > 0 {
                    region.holders.push((user, hold.holder, moved, now + length));
                    self.admitted += moved;
                }
            }
            HoldStep::Renew if may => {
                if let Some(one) = region.holders.iter_mut().find(|one| whose(one)) {
                    one.3 = now + length;
                }
            }
            HoldStep::Renew => {}
            HoldStep::Release => region.holders.retain(|one| !whose(one)),
        }
        // A clock that stepped back keeps nobody for longer than a hold.
        if moved > 0 {
            let of_user = region.holders.iter_mut().filter(|one| one.0 == user);
            of_user.for_each(|one| one.3 = one.3.min(now + length));
        }
        may
    }

    fn acquire(&mut self, at: usize, user: usize, places: u64) -> bool {
        self.names += 1;
        let mut name = [0; 16];
        name.iter_mut().zip(self.names.to_be_bytes()).for_each(|(to, from)| *to = from);
        let holder = Holder(name);
        let admitted = self.hold(at, user, Hold { step: HoldStep::Acquire, holder, places });
        self.note(format_args!("r{at} {places} places for u{user}: {admitted}"));
        admitted
    }

    fn demand(&mut self) {
        for at in 0..self.regions.len() {
            if self.dice.chance(0.01) {
                let mood = self.dice.pick(&[0.0, 0.0, 0.3, 1.0, 5.0]).copied().unwrap_or(1.0);
                if let Some(region) = self.regions.get_mut(at) {
                    region.mood = mood;
                }
            }
            let mood = self.regions.get(at).map_or(0.0, |region| region.mood);
            for _ in 0..self.dice.poisson(mood * self.case.eagerness) {
                let user = index(self.dice.below(self.case.users));
                let places = self.dice.between(1, self.case.cost_max);
                self.acquire(at, user, places);
            }
            let known = self.regions.get(at).map_or(0, |region| region.holders.len());
            for _ in 0..known.min(20) {
                if !self.dice.chance(0.05) {
                    continue;
                }
                let which = index(self.dice.below(place(known)));
                let step = if self.dice.chance(0.5) { HoldStep::Release } else { HoldStep::Renew };
                let one = self.regions.get(at).and_then(|region| region.holders.get(which)).copied();
                if let Some((user, holder, ..)) = one {
                    self.hold(at, user, Hold { step, holder, places: 0 });
                }
            }
        }
    }

    /// Whatever breaks in this step.
    fn trouble(&mut self) {
        let regions = place(self.regions.len());
        let case = self.case;
        if self.dice.chance(case.cut) {
            let one = index(self.dice.below(regions));
            let (inward, outward) =
                *self.dice.pick(&[(true, true), (true, false), (false, true)]).unwrap_or(&(true, true));
            let cut = self.dice.chance(0.6);
            self.network.cut(&[one], inward, outward, cut);
            self.faults += 1;
        }
        if self.dice.chance(case.crash) {
            let at = index(self.dice.below(regions));
            let kill = self.regions.get(at).is_some_and(|region| region.alive) && self.dice.chance(0.5);
            if kill {
                self.kill(at);
            } else {
                self.restart(at);
            }
            self.faults += 1;
        }
        if self.dice.chance(case.lost) {
            let at = index(self.dice.below(regions));
            let now = self.clock(at);
            self.begin_store(at, now);
            self.note(format_args!("r{at} loses its store"));
            self.faults += 1;
        }
        if self.dice.chance(case.clock) {
            let off = i64::try_from(self.dice.below(CLOCK_MAX)).unwrap_or(0);
            let off = if self.dice.chance(0.5) { off } else { -off };
            let at = index(self.dice.below(regions));
            if let Some(region) = self.regions.get_mut(at) {
                region.ahead = off;
            }
            self.faults += 1;
        }
        if self.next.is_none() && self.dice.chance(case.reshare) {
            let weights: Vec<u32> =
                self.weights.iter().map(|_| u32::try_from(self.dice.between(0, 4)).unwrap_or(1)).collect();
            if weights.iter().any(|weight| *weight > 0) {
                // All agree at once, which is the earliest that larger shares may come.
                let from = self.now + case.hold + case.margins.recall(case.hold);
                self.next = Some((weights, from));
                self.set_shares();
                self.faults += 1;
            }
        }
    }

    fn set_shares(&mut self) {
        let rule = self.rule();
        for at in 0..self.regions.len() {
            let (share, now) = (self.share(at), self.clock(at));
            let Some(region) = self.regions.get_mut(at) else { continue };
            region.vaults.iter_mut().for_each(|vault| vault.set_share(share));
            region.machine.handle_rules(now, std::slice::from_ref(&rule));
        }
    }

    fn kill(&mut self, at: usize) {
        if let Some(region) = self.regions.get_mut(at) {
            region.alive = false;
        }
        self.meet();
    }

    /// The daemon begins anew; the store of every other seed is its own memory.
    fn restart(&mut self, at: usize) {
        let Some(name) = self.regions.get(at).map(|region| region.name.clone()) else { return };
        let machine = self.machine(&name);
        if let Some(region) = self.regions.get_mut(at) {
            (region.machine, region.alive) = (machine, true);
            region.asks.clear();
        }
        if self.case.seed % 4 < 2 {
            let now = self.clock(at);
            self.begin_store(at, now);
        }
        self.meet();
        self.note(format_args!("r{at} begins anew"));
    }

    fn peace(&mut self) {
        self.network.mend();
        self.network.weather.loss = 0.0;
        self.network.weather.reorder = 0.0;
        for at in 0..self.regions.len() {
            if self.regions.get(at).is_some_and(|region| !region.alive) {
                self.restart(at);
            }
        }
        self.meet();
    }

    fn step(&mut self) -> Result<(), String> {
        self.now = self.now + STEP;
        if let Some((weights, _)) = self.next.clone().filter(|(_, from)| *from <= self.now) {
            self.weights = weights;
            self.next = None;
            self.set_shares();
        }
        while let Some(flight) = self.network.landed(self.now) {
            let now = self.clock(flight.to);
            let Some(from) = self.regions.get(flight.from).map(|region| region.name.clone()) else {
                continue;
            };
            let Some(region) = self.regions.get_mut(flight.to).filter(|region| region.alive) else {
                continue;
            };
            if let Err(refused) = region.machine.handle_frame(now, &from, flight.message) {
                return Err(format!("an honest frame was refused: {}", refused.as_str()));
            }
            self.carry_out(flight.to);
        }
        for at in 0..self.regions.len() {
            let now = self.clock(at);
            let Some(region) = self.regions.get_mut(at).filter(|region| region.alive) else { continue };
            for ask in std::mem::take(&mut region.asks) {
                answer(region, now, &ask);
            }
            for (user, tally) in region.tallies.iter_mut().enumerate() {
                if tally.offered > 0 {
                    region.machine.handle_touched(now, &std::mem::replace(tally, untouched(user)));
                }
            }
            region.machine.handle_timeout(now);
            self.carry_out(at);
        }
        self.check()
    }

    fn carry_out(&mut self, at: usize) {
        let now = self.clock(at);
        let (slow, names) =
            (self.case.slow, self.regions.iter().map(|one| one.name.clone()).collect::<Vec<_>>());
        let Some(region) = self.regions.get_mut(at) else { return };
        while let Some(ask) = region.machine.poll_ask() {
            if slow {
                region.asks.push(ask);
            } else {
                answer(region, now, &ask);
            }
        }
        let mut moved = Vec::new();
        while let Some(event) = region.machine.poll_event() {
            if let Event::Gave { to, permits } = event {
                moved.push((to, permits));
            }
        }
        while let Some((to, frame)) = region.machine.poll_transmit(now) {
            let Some(to) = names.iter().position(|name| *name == to) else { continue };
            self.network.send(self.now, at, to, rights_frame_bytes(&frame), &frame);
        }
        for (to, permits) in moved {
            self.note(format_args!("r{at} gave {permits} to {to}"));
        }
    }
}

fn answer(region: &mut Region, now: Timestamp, ask: &StepRequest) {
    let user = ask.key.identity.as_slice().try_into().map_or(0, usize::from_be_bytes);
    let balance = region.vaults.get_mut(user).and_then(|vault| vault.carry_out(now, ask));
    region.machine.handle_balance(now, &ask.key, balance);
}
