//! Plays one case: faults and requests, then peace.

use std::collections::BTreeMap;
use std::io::Write;

use tidegate::core::regions::GossipSafety;
use tidegate::core::regions::escrow::EscrowSafety;
use tidegate::core::rule::OnPartition;
use tidegate::core::time::Span;

use super::case::{self, Case, STEP};
use super::check::{self, Books};
use super::denial::Denial;
use super::waits::Waits;
use super::witness::Witness;
use crate::model::Model;
use crate::model::daemons::World;
use crate::model::duties::Duties;
use crate::model::shell::windowed;
use crate::number::{index, place};
use crate::plan::Way;
use crate::virtual_world::Dice;

/// The time by which a step moves in a long silence.
const PAUSE: Span = Span::from_millis(50);

/// The outcome of a case.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Summary {
    pub(crate) daemons: u64,
    pub(crate) frames: u64,
    pub(crate) admitted: u64,
    pub(crate) faults: u64,
}

impl Summary {
    /// Both together.
    pub(crate) const fn and(self, other: Self) -> Self {
        Self {
            daemons: self.daemons + other.daemons,
            frames: self.frames + other.frames,
            admitted: self.admitted + other.admitted,
            faults: self.faults + other.faults,
        }
    }
}

/// The rules of the protocol that are in force.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Enforced {
    pub(crate) safety: EscrowSafety,
    pub(crate) care: GossipSafety,
    pub(crate) duties: Duties,
}

impl Enforced {
    pub(crate) const ALL: Self =
        Self { safety: EscrowSafety::ALL, care: GossipSafety::ALL, duties: Duties::ALL };
}

/// A game in progress.
pub(crate) struct Game<'c> {
    pub(crate) case: &'c Case,
    pub(crate) world: World,
    pub(crate) books: Books,
    /// Under `gossip`, what each answer says of the world is held against it.
    witness: Option<Witness>,
    /// Under `deny`, who had to deny.
    denial: Option<Denial>,
    /// Requests that wait for rights.
    pub(super) waits: Waits,
    dice: Dice,
    /// Eagerness of each daemon at present, in turn with its peers.
    busy: Vec<f64>,
    faults: u64,
    /// Users whose budgets added up to too much at the last look.
    pub(crate) over_budget: Vec<u64>,
    /// For how many looks all have had the same horizon, and how many reports were late before that.
    pub(crate) agreed_looks: u64,
    pub(crate) late_before: u64,
    /// Record of what happened, for comparing two runs byte for byte.
    pub(crate) trace: Option<Vec<u8>>,
}

/// Plays a case with these safety rules in force.
///
/// # Errors
/// The first violation, in a sentence.
pub(crate) fn play(
    case: &Case,
    rules: Enforced,
    trace: Option<Vec<u8>>,
) -> Result<(Summary, Option<Vec<u8>>), String> {
    let mut world =
        World::with_safety(&case.plan, case.way, rules.safety).map_err(|error| format!("{error:#}"))?;
    world.set_care(rules.care);
    world.set_duties(rules.duties);
    world.give(case.own.clone());
    (0..world.daemons().len()).for_each(|at| world.tell(at));
    let denies = case.way == Way::Gossip && case.plan.rule.on_partition == OnPartition::Deny;
    // Nothing is promised of a window that does not end.
    let denies = denies && !case.endless();
    let mut game = Game {
        busy: vec![1.0; world.daemons().len()],
        denial: denies.then(|| Denial::new(&world)),
        waits: Waits::default(),
        world,
        books: Books::new(case),
        // While a user's limit changes regions divide by different ones for a while.
        witness: (case.way == Way::Gossip && case.faults.own == 0.0).then(|| Witness::new(&case.plan)),
        dice: Dice::new(case.seed, 12),
        faults: 0,
        over_budget: Vec::new(),
        agreed_looks: 0,
        late_before: 0,
        trace,
        case,
    };
    for step in 0..case.safety_steps {
        game.trouble();
        game.turn(step, true)?;
    }
    game.peace();
    game.waits.at_peace(game.world.now());
    let silent = case.silence.0 / PAUSE.0;
    for step in 0..silent {
        game.world.step(PAUSE);
        check::at_a_step(&mut game, step)?;
    }
    for step in 0..case.liveness_steps {
        // At last there is silence, so that all that was counted can be known everywhere.
        game.turn(case.safety_steps + step, step * 3 < case.liveness_steps)?;
    }
    check::at_the_end(&mut game)?;
    let summary = Summary {
        daemons: place(game.world.daemons().len()),
        frames: game.world.traffic().frames,
        admitted: game.books.admitted_in_all(),
        faults: game.faults,
    };
    Ok((summary, game.trace))
}

impl Game<'_> {
    fn turn(&mut self, step: u64, asks: bool) -> Result<(), String> {
        if let Some(denial) = &mut self.denial {
            denial.follow(&self.world);
        }
        self.books.follow(&self.world);
        if asks {
            self.requests(step)?;
            self.bear_witness()?;
        }
        self.ask_again(step)?;
        self.world.step(STEP);
        self.bear_witness()?;
        check::at_a_step(self, step)?;
        if let Some(trace) = &mut self.trace {
            let traffic = self.world.network().traffic;
            let flying = self.world.network().flying().len();
            let _ = writeln!(trace, "{step} {} {} {flying}", traffic.frames, traffic.bytes);
        }
        Ok(())
    }

    fn bear_witness(&mut self) -> Result<(), String> {
        match &mut self.witness {
            Some(witness) => witness.judge(&self.world, 0..self.case.plan.demand.users),
            None => Ok(()),
        }
    }

    fn requests(&mut self, step: u64) -> Result<(), String> {
        if let Some(arrivals) = &self.case.arrivals {
            for at in 0..self.world.daemons().len() {
                for _ in 0..self.dice.poisson(arrivals.of(at, step) * self.case.eagerness) {
                    let user = arrivals.user(&mut self.dice);
                    let cost = self.dice.between(1, self.case.cost_max);
                    self.request_or_wait(at, user, cost)?;
                }
            }
            return Ok(());
        }
        for at in 0..self.world.daemons().len() {
            if self.dice.chance(0.01) {
                // Demand is off, ordinary, or far too much.
                let mood = [0.0, 0.0, 0.2, 1.0, 4.0];
                let mood = self.dice.pick(&mood).copied().unwrap_or(1.0);
                if let Some(busy) = self.busy.get_mut(at) {
                    *busy = mood;
                }
            }
            let eager = self.busy.get(at).copied().unwrap_or(0.0) * self.case.eagerness;
            for _ in 0..self.dice.poisson(eager) {
                let user = self.dice.below(self.case.plan.demand.users);
                let cost = self.dice.between(1, self.case.cost_max);
                self.request_or_wait(at, user, cost)?;
            }
        }
        Ok(())
    }

    /// One request to one daemon. Returns whether it was admitted.
    pub(crate) fn request(&mut self, at: usize, user: u64, cost: u64) -> Result<bool, String> {
        let admitted = self.world.ask_daemon(at, user, cost);
        if let Some(trace) = &mut self.trace {
            let _ = writeln!(trace, "{at} asks {cost} for {user}: {admitted:?}");
        }
        self.note_answer((at, user, cost), admitted)?;
        Ok(admitted.is_some())
    }

    /// Enters an answer in the books, with the window that the request was admitted in.
    pub(super) fn note_answer(
        &mut self,
        (at, user, cost): (usize, u64, u64),
        admitted: Option<u64>,
    ) -> Result<(), String> {
        if let Some(denial) = &mut self.denial {
            denial.answered(&self.world, at, user, admitted.is_some())?;
        }
        let Some(window) = admitted else { return Ok(()) };
        let region = self.world.daemons().get(at).map_or(0, |daemon| daemon.region);
        if let Some(witness) = &mut self.witness {
            witness.admitted(&self.world, region, user, (window, cost));
        }
        self.books.admitted(&self.world, (at, region), user, (window, cost))
    }

    /// Breaks whatever is to break in this step.
    fn trouble(&mut self) {
        let rates = self.case.faults;
        let daemons = place(self.world.daemons().len());
        let regions = self.world.plan.regions.len();
        let region = |dice: &mut Dice| index(dice.below(place(regions)));
        if self.dice.chance(rates.cut) {
            let one = region(&mut self.dice);
            let (inward, outward) =
                *self.dice.pick(&[(true, true), (true, false), (false, true)]).unwrap_or(&(true, true));
            let cut = self.dice.chance(0.6);
            self.world.network_mut().cut(&[one], inward, outward, cut);
            self.faults += 1;
        }
        if self.dice.chance(rates.crash) {
            let at = index(self.dice.below(daemons));
            let alive = self.world.daemons().get(at).is_some_and(|daemon| daemon.alive);
            self.books.lost_daemon(at);
            if alive && self.dice.chance(0.5) {
                self.world.kill(at);
                self.others_speak(at);
            } else {
                self.restart(at);
            }
            self.faults += 1;
        }
        if self.dice.chance(rates.store_lost) && !check::starts_full(self.case) {
            let one = region(&mut self.dice);
            self.world.lose_store(one);
            self.books.lost_store(self.case, one);
            if let Some(witness) = &mut self.witness {
                witness.lost_store(&self.world);
            }
            if let Some(denial) = &mut self.denial {
                denial.began(&self.world, one);
            }
            self.faults += 1;
        }
        if self.dice.chance(rates.clock) {
            let off = i64::try_from(self.dice.below(rates.clock_max)).unwrap_or(0);
            let one = region(&mut self.dice);
            let before = self.world.clock(one);
            // A permit that left its interval by the last instant of the clock has left it.
            self.books.follow(&self.world);
            self.world.set_clock(one, if self.dice.chance(0.5) { off } else { -off });
            self.books.follow(&self.world);
            let after = self.world.clock(one);
            if after < before {
                if let Some(witness) = &mut self.witness {
                    witness.clock_set_back(&self.world, before, after);
                }
                self.books.clock_back(self.case, one, before);
            } else {
                self.books.clock_ahead(after.since(before));
            }
            self.faults += 1;
        }
        if rates.own > 0.0 && self.dice.chance(rates.own) {
            self.change_own();
            self.faults += 1;
        }
        if self.dice.chance(rates.reload) {
            self.reload();
            self.faults += 1;
        }
    }

    /// A daemon begins anew, and with it a store in its memory.
    fn restart(&mut self, at: usize) {
        let Some(region) = self.world.daemons().get(at).map(|daemon| daemon.region) else { return };
        let lost = self.world.restart(at);
        if lost {
            self.books.lost_store(self.case, region);
        }
        if let Some(witness) = &mut self.witness {
            witness.restarted(&self.world, region, lost);
        }
        self.others_speak(at);
        self.books.reloaded(&self.world);
    }

    /// A daemon has ended or begun: others of its region speak for its buckets.
    fn others_speak(&mut self, at: usize) {
        if let (Some(denial), Some(daemon)) = (&mut self.denial, self.world.daemons().get(at)) {
            denial.began(&self.world, daemon.region);
        }
    }

    /// The operators change their minds, or a daemon hears that they did.
    fn reload(&mut self) {
        if self.dice.chance(self.case.faults.limit) {
            let limit = case::limit(&mut self.dice);
            self.world.change(|plan| plan.rule.limit = limit);
        } else if self.dice.chance(0.5) {
            let shared_out = self.case.way != Way::Gossip;
            let weights: Vec<u32> = self
                .world
                .plan
                .regions
                .iter()
                .map(|_| u32::try_from(self.dice.between(1, 5)).unwrap_or(1))
                .collect();
            if shared_out {
                self.world.change(|plan| {
                    for (region, weight) in plan.regions.iter_mut().zip(&weights) {
                        region.weight = *weight;
                    }
                });
            }
        }
        let at = index(self.dice.below(place(self.world.daemons().len())));
        self.world.reload(at);
        self.books.reloaded(&self.world);
    }

    /// The operators give a user another limit, or none, or a daemon hears of the limits of all.
    fn change_own(&mut self) {
        if self.dice.chance(0.5) {
            let mut own = self.world.own.clone();
            let user = self.dice.below(self.case.plan.demand.users);
            if self.dice.chance(0.3) {
                own.remove(&user);
            } else {
                own.insert(user, case::own_limit(&mut self.dice, !windowed(self.case.plan.rule.algorithm)));
            }
            self.world.give(own);
            self.books.gave(&self.world, user);
        }
        let at = index(self.dice.below(place(self.world.daemons().len())));
        self.world.tell(at);
        self.books.reloaded(&self.world);
    }

    fn peace(&mut self) {
        self.world.network_mut().mend();
        let weather = &mut self.world.network_mut().weather;
        (weather.loss, weather.reorder) = (0.0, 0.0);
        weather.jitter = weather.jitter.min(0.1);
        for at in 0..self.world.daemons().len() {
            if self.world.daemons().get(at).is_some_and(|daemon| !daemon.alive) {
                self.restart(at);
            }
            self.world.reload(at);
        }
        self.books.reloaded(&self.world);
        self.world.meet();
    }

    /// Everyone who may ask.
    pub(crate) fn users(&self) -> std::ops::Range<u64> {
        0..self.case.plan.demand.users
    }
}

/// The permits that each region admitted of each user's bucket in each window.
pub(crate) type Truth = BTreeMap<(usize, u64, u64), (u64, u64)>;
