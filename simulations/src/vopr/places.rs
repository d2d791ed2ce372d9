//! Worlds of holders: places of a `concurrency` rule under `escrow`, lent between regions whose memories,
//! clocks and links fail. The same worlds are played with sliding windows and logs, whose capacity is lent in
//! the same way.
//!
//! The machine and the store's steps are the daemon's. A holder counts until it has given back or its hold is
//! over by the clock of its region, also when the store that admitted it has forgotten: what is checked at
//! every step is how many there are.

use std::fmt::Write as _;
use std::mem::{replace, take};

use tidegate::core::algorithm::Limit;
use tidegate::core::hold::{Hold, HoldStep, Holder};
use tidegate::core::region_list::RegionList;
use tidegate::core::regions::escrow::places::PlacesTerms;
use tidegate::core::regions::escrow::{
    Escrow, EscrowConfig, EscrowSafety, Event, StepRequest, StepResult, slides,
};
use tidegate::core::regions::{NodeName, Touched, WorldKey, WorldRule};
use tidegate::core::rule::{Global, Mode};
use tidegate::core::share::Weights;
use tidegate::core::time::{Span, Timestamp};
use tidegate::core::wire::RuleName;

mod case;
mod check;
mod sliding;

pub(super) use self::case::PlacesCase;

use super::play::Summary;
use crate::model::START;
use crate::number::{index, place};
use crate::virtual_world::{Dice, ReferenceStore, RightsHost, RightsStore, Seat, VirtualWorld, untouched};

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

/// The store of one region, and who holds places there.
struct Region {
    vaults: Vec<ReferenceStore>,
    /// Holders whom the store knows: user, name, places and when the hold is over.
    holders: Vec<(usize, Holder, u64, Timestamp)>,
    /// Holders whom it has forgotten.
    ghosts: Vec<(usize, u64, Timestamp)>,
    /// Permits that it admitted of a rule that slides, and the latest that its clock ever showed.
    admitted: Vec<sliding::Admission>,
    latest: Timestamp,
    tallies: Vec<Touched>,
    mood: f64,
}

struct World<'c> {
    case: &'c PlacesCase,
    safety: EscrowSafety,
    world: VirtualWorld<RightsHost<Region>>,
    weights: Vec<u32>,
    /// Weights that are to be in force, and from when they may be alone.
    next: Option<(Vec<u32>, Timestamp)>,
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
        daemons: place(world.regions().len()),
        frames: world.world.network.traffic.frames,
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

impl<'c> World<'c> {
    fn new(case: &'c PlacesCase, safety: EscrowSafety, trace: Option<Vec<u8>>) -> Self {
        let regions = case.weights.len();
        let mut world = Self {
            case,
            safety,
            world: VirtualWorld::new(START, case.weather.clone(), case.seed),
            weights: case.weights.clone(),
            next: None,
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
                vaults: Vec::new(),
                holders: Vec::new(),
                ghosts: Vec::new(),
                admitted: Vec::new(),
                latest: Timestamp(0),
                tallies: (0..world.users()).map(|user| untouched(world_key(user))).collect(),
                mood: 1.0,
            };
            let host = RightsHost::new(world.machine(&name), region, case.slow);
            world.world.seat(|begins| Seat::new(name, at, host, begins));
            world.begin_store(at, begun);
        }
        if let Some((at, _)) = case.older
            && let Some(seat) = world.world.daemons.get_mut(at)
        {
            seat.node.older = Some(NodeName { region: format!("r{at}"), node: "older".to_owned() });
        }
        world.world.meet();
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
        machine.handle_rules(self.world.now, &[self.rule()]);
        machine
    }

    fn rule(&self) -> WorldRule {
        let weights = self.next.as_ref().map_or(&self.weights, |(weights, _)| weights);
        let global = Global { shares: Self::named(weights), ..Global::new(Mode::Escrow) };
        let limit = self.limit();
        WorldRule { name: rule_name(), algorithm: self.case.algorithm, limit, global }
    }

    const fn limit(&self) -> Limit {
        let PlacesCase { limit, hold, .. } = *self.case;
        Limit { calendar: None, permits: limit, window: hold, burst: limit, queue: 0 }
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
            hold: self.case.counts(),
            begun,
            margins: self.case.margins,
            safety: self.safety,
        };
        let (users, algorithm, limit) = (self.users(), self.case.algorithm, self.limit());
        let Some(region) = self.region_mut(at) else { return };
        region.vaults = (0..users).map(|_| ReferenceStore::places(algorithm, limit, terms)).collect();
        region.admitted.iter_mut().for_each(|one| one.is_forgotten = true);
        let forgotten = take(&mut region.holders);
        region.ghosts.extend(forgotten.into_iter().map(|(user, _, places, ends)| (user, places, ends)));
    }

    fn regions(&self) -> &[Seat<RightsHost<Region>>] {
        &self.world.daemons
    }

    fn region(&self, at: usize) -> Option<&Region> {
        self.regions().get(at).map(|seat| &seat.node.store)
    }

    fn region_mut(&mut self, at: usize) -> Option<&mut Region> {
        self.world.daemons.get_mut(at).map(|seat| &mut seat.node.store)
    }

    fn is_alive(&self, at: usize) -> bool {
        self.regions().get(at).is_some_and(|seat| seat.alive)
    }

    fn note(&mut self, text: std::fmt::Arguments<'_>) {
        if let Some(trace) = &mut self.trace {
            let mut line = String::new();
            let _ = writeln!(line, "{} {text}", self.world.now.0);
            trace.extend_from_slice(line.as_bytes());
        }
    }

    /// A holder's step in a region. Whether it was admitted.
    fn hold(&mut self, at: usize, user: usize, hold: Hold) -> bool {
        let (now, length) = (self.world.clock(at), self.case.hold);
        if !self.is_alive(at) {
            return false;
        }
        let Some(region) = self.region_mut(at) else { return false };
        let Some(vault) = region.vaults.get_mut(user) else { return false };
        let (may, moved) = vault.step(now, &hold);
        let whose = |one: &(usize, Holder, u64, Timestamp)| (one.0, one.1) == (user, hold.holder);
        let mut taken = 0;
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
                    taken = moved;
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
        self.admitted += taken;
        may
    }

    fn acquire(&mut self, at: usize, user: usize, places: u64) -> bool {
        if slides(self.case.algorithm) {
            return self.charge(at, user, places);
        }
        self.names += 1;
        let mut name = [0; 16];
        name.iter_mut().zip(self.names.to_be_bytes()).for_each(|(to, from)| *to = from);
        let holder = Holder(name);
        let admitted = self.hold(at, user, Hold { step: HoldStep::Acquire, holder, places });
        self.note(format_args!("r{at} {places} places for u{user}: {admitted}"));
        admitted
    }

    fn demand(&mut self) {
        for at in 0..self.regions().len() {
            if self.dice.chance(0.01) {
                let mood = self.dice.pick(&[0.0, 0.0, 0.3, 1.0, 5.0]).copied().unwrap_or(1.0);
                if let Some(region) = self.region_mut(at) {
                    region.mood = mood;
                }
            }
            let mood = self.region(at).map_or(0.0, |region| region.mood);
            for _ in 0..self.dice.poisson(mood * self.case.eagerness) {
                let user = index(self.dice.below(self.case.users));
                let places = self.dice.between(1, self.case.cost_max);
                self.acquire(at, user, places);
            }
            self.ask_older(at);
            self.refund(at);
            let known = self.region(at).map_or(0, |region| region.holders.len());
            for _ in 0..known.min(20) {
                if !self.dice.chance(0.05) {
                    continue;
                }
                let which = index(self.dice.below(place(known)));
                let step = if self.dice.chance(0.5) { HoldStep::Release } else { HoldStep::Renew };
                let one = self.region(at).and_then(|region| region.holders.get(which)).copied();
                if let Some((user, holder, ..)) = one {
                    self.hold(at, user, Hold { step, holder, places: 0 });
                }
            }
        }
    }

    /// Whatever breaks in this step.
    fn trouble(&mut self) {
        let regions = place(self.regions().len());
        let case = self.case;
        if self.dice.chance(case.cut) {
            let one = index(self.dice.below(regions));
            let (inward, outward) =
                *self.dice.pick(&[(true, true), (true, false), (false, true)]).unwrap_or(&(true, true));
            let cut = self.dice.chance(0.6);
            self.world.network.cut(&[one], inward, outward, cut);
            self.faults += 1;
        }
        if self.dice.chance(case.crash) {
            let at = index(self.dice.below(regions));
            let kill = self.is_alive(at) && self.dice.chance(0.5);
            if kill {
                self.world.kill(at);
            } else {
                self.restart(at);
            }
            self.faults += 1;
        }
        if self.dice.chance(case.lost) {
            let at = index(self.dice.below(regions));
            let now = self.world.clock(at);
            self.begin_store(at, now);
            self.note(format_args!("r{at} loses its store"));
            self.faults += 1;
        }
        if self.dice.chance(case.clock) {
            let off = i64::try_from(self.dice.below(CLOCK_MAX)).unwrap_or(0);
            let off = if self.dice.chance(0.5) { off } else { -off };
            let at = index(self.dice.below(regions));
            if let Some(clock) = self.world.clocks.get_mut(at) {
                clock.ahead = off;
            }
            self.faults += 1;
        }
        if self.next.is_none() && self.dice.chance(case.reshare) {
            let weights: Vec<u32> =
                self.weights.iter().map(|_| u32::try_from(self.dice.between(0, 4)).unwrap_or(1)).collect();
            if weights.iter().any(|weight| *weight > 0) {
                // All agree at once, which is the earliest that larger shares may come.
                let counts = case.counts();
                let from = self.world.now + counts + case.margins.recall(counts);
                self.next = Some((weights, from));
                self.set_shares();
                self.faults += 1;
            }
        }
    }

    fn set_shares(&mut self) {
        let rule = self.rule();
        for at in 0..self.regions().len() {
            let (share, now) = (self.share(at), self.world.clock(at));
            let Some(seat) = self.world.daemons.get_mut(at) else { continue };
            seat.node.store.vaults.iter_mut().for_each(|vault| vault.set_share(share));
            seat.node.machine.handle_rules(now, std::slice::from_ref(&rule));
        }
    }

    /// The daemon begins anew; the store of every other seed is its own memory.
    fn restart(&mut self, at: usize) {
        let Some(name) = self.regions().get(at).map(|seat| seat.name.clone()) else { return };
        let machine = self.machine(&name);
        if let Some(seat) = self.world.daemons.get_mut(at) {
            seat.alive = true;
            seat.node.begin_again(machine);
        }
        if self.case.seed % 4 < 2 {
            let now = self.world.clock(at);
            self.begin_store(at, now);
        }
        self.world.meet();
        self.note(format_args!("r{at} begins anew"));
    }

    fn peace(&mut self) {
        self.world.network.mend();
        self.world.network.weather.loss = 0.0;
        self.world.network.weather.reorder = 0.0;
        for at in 0..self.regions().len() {
            if !self.is_alive(at) {
                self.restart(at);
            }
        }
        self.world.meet();
    }

    fn step(&mut self) -> Result<(), String> {
        self.world.step(STEP);
        self.end_older();
        if let Some((weights, _)) = self.next.clone().filter(|(_, from)| *from <= self.world.now) {
            self.weights = weights;
            self.next = None;
            self.set_shares();
        }
        if let Some(refused) = self.world.first_refused {
            return Err(format!("an honest frame was refused: {}", refused.as_str()));
        }
        for at in 0..self.regions().len() {
            let said =
                self.world.daemons.get_mut(at).map_or_else(Vec::new, |seat| take(&mut seat.node.events));
            for event in said {
                if let Event::Gave { to, permits } = event {
                    self.note(format_args!("r{at} gave {permits} to {to}"));
                }
            }
        }
        self.check()
    }
}

impl RightsStore for Region {
    fn carry_out(&mut self, now: Timestamp, _: &Escrow, ask: &StepRequest) -> Option<StepResult> {
        let user = ask.key.identity.as_slice().try_into().map_or(0, usize::from_be_bytes);
        self.vaults.get_mut(user)?.carry_out(now, ask)
    }

    fn touched(&mut self) -> Vec<Touched> {
        let asked = self.tallies.iter_mut().enumerate().filter(|(_, tally)| tally.offered > 0);
        asked.map(|(user, tally)| replace(tally, untouched(world_key(user)))).collect()
    }
}
