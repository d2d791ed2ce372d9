//! The product: daemons on one virtual clock, each with the machines of a daemon, a store, and a network
//! between them.

use anyhow::Context;
use tidegate::core::algorithm::Limit;
use tidegate::core::decision::Decision;
use tidegate::core::region_list::RegionList;
use tidegate::core::regions::escrow::EscrowSafety;
use tidegate::core::regions::split::Saved;
use tidegate::core::regions::{GossipSafety, NodeName};
use tidegate::core::request::Cost;
use tidegate::core::reservation::{Reservation, ReservationId};
use tidegate::core::rule::Mode;
use tidegate::core::time::{Span, Timestamp};
use tidegate::engine::reserve::{CommitRefused, Committed};

use super::duties::Duties;
use super::engine::Engines;
use super::node::{Books, Message, Node, OwnLimits, Setting};
use super::shell::{RuleInForce, Store, mode};
use super::{Answer, Ask, Late, Model, START};
use crate::number::{index, place};
use crate::plan::{FaultKind, Plan, Way};
use crate::virtual_world::network::Traffic;
use crate::virtual_world::{Clock, Dice, Network, Seat, VirtualWorld, phase};

/// Requests of one region that may wait for rights. Full: the next one is refused.
const WAITING_MAX: usize = 10_000;

/// One daemon and its place in the world.
pub(crate) type Daemon = Seat<Node>;

/// Daemons, network and time.
#[derive(Debug)]
pub(crate) struct World {
    world: VirtualWorld<Node>,
    pub(crate) plan: Plan,
    pub(crate) way: Way,
    pub(crate) safety: EscrowSafety,
    /// The rule that the operators want: a daemon has it once it was reloaded.
    pub(crate) rule: RuleInForce,
    /// The users' own limits that they want.
    pub(crate) own: OwnLimits,
    /// The whole engines of the daemons, if they have any.
    pub(crate) engines: Option<Engines>,
    keeps_to_shares: bool,
    /// Rules of `gossip` in force.
    care: GossipSafety,
    duties: Duties,
    /// Memories of stores so far.
    sessions: u64,
    revision: u64,
    dice: Dice,
    waiting: Vec<(Ask, Timestamp)>,
    answered: Vec<Late>,
}

impl World {
    pub(crate) fn new(plan: &Plan, way: Way) -> anyhow::Result<Self> {
        Self::with_safety(plan, way, EscrowSafety::ALL)
    }

    /// The same with some rules of `escrow` switched off.
    pub(crate) fn with_safety(plan: &Plan, way: Way, safety: EscrowSafety) -> anyhow::Result<Self> {
        Self::build(plan, way, safety, None)
    }

    /// The same with daemons that have whole engines.
    pub(crate) fn of_engines(plan: &Plan, way: Way, engines: Engines) -> anyhow::Result<Self> {
        Self::build(plan, way, EscrowSafety::ALL, Some(engines))
    }

    fn build(plan: &Plan, way: Way, safety: EscrowSafety, engines: Option<Engines>) -> anyhow::Result<Self> {
        let rule =
            RuleInForce::new(plan, way).with_context(|| format!("{} cannot be simulated", way.title()))?;
        let mut plan = plan.clone();
        // Shares and rights belong to a region: several daemons of one have to share its store.
        plan.shared_store |= mode(way) != Mode::Gossip;
        let regions = plan.regions.len();
        let nodes: Vec<usize> = (0..regions)
            .flat_map(|region| std::iter::repeat_n(region, plan.regions[region].daemons.max(1)))
            .collect();
        let mut virtual_world = VirtualWorld::new(START, plan.weather.clone(), plan.seed);
        virtual_world.clocks =
            plan.regions.iter().map(|region| Clock::new(region.ahead, region.drift_ppm, START)).collect();
        let mut world = Self {
            world: virtual_world,
            way,
            safety,
            rule,
            own: OwnLimits::new(),
            engines,
            keeps_to_shares: false,
            care: GossipSafety::ALL,
            duties: Duties::ALL,
            sessions: 0,
            revision: 1,
            dice: Dice::new(plan.seed, 5),
            waiting: Vec::new(),
            answered: Vec::new(),
            plan,
        };
        for (at, &region) in nodes.iter().enumerate() {
            let shared = world.books_of(region).filter(|_| world.plan.shared_store);
            // The cluster was there before the simulation began.
            let books = shared.unwrap_or_else(|| world.new_books(Timestamp(0)));
            let daemon = world.begin(at, region, books, None);
            world.world.seat(|_| daemon);
        }
        world.meet();
        Ok(world)
    }

    /// Rules of `gossip` that are in force, also in daemons that begin from now on.
    pub(crate) fn set_care(&mut self, care: GossipSafety) {
        self.care = care;
        self.world.daemons.iter_mut().for_each(|daemon| daemon.node.replica.set_care(care));
    }

    /// Sets what daemons do for their machines, also those that begin from now on.
    pub(crate) fn set_duties(&mut self, duties: Duties) {
        self.duties = duties;
        self.world.daemons.iter_mut().for_each(|daemon| daemon.node.duties = duties);
    }

    /// Daemons keep to their shares as the engine has them do, where the protocol says so: also those that
    /// begin from now on.
    pub(crate) fn keep_to_shares(&mut self) {
        self.keeps_to_shares = true;
        self.world.daemons.iter_mut().for_each(|daemon| daemon.node.keep_to_shares());
    }

    /// A daemon says its last words.
    pub(crate) fn end(&mut self, at: usize) {
        let Some(region) = self.world.daemons.get(at).map(|daemon| daemon.region) else { return };
        let now = self.clock(region);
        if let Some(daemon) = self.world.daemons.get_mut(at) {
            daemon.node.end(now);
        }
        self.world.pump(at);
    }

    fn books_of(&self, region: usize) -> Option<Books> {
        self.world
            .daemons
            .iter()
            .find(|daemon| daemon.region == region)
            .map(|daemon| daemon.node.books.clone())
    }

    /// An empty store, which remembers nothing from before `begun`.
    fn new_books(&mut self, begun: Timestamp) -> Books {
        self.sessions += 1;
        let books = Books::new(&self.plan, self.sessions, begun, self.safety);
        match &self.engines {
            Some(engines) => books.in_store(Store::sized(engines.store_keys, begun, engines.safety)),
            None => books,
        }
    }

    fn begin(&self, at: usize, region: usize, books: Books, before: Option<Saved>) -> Seat<Node> {
        let first: usize = self.plan.regions.iter().take(region).map(|region| region.daemons.max(1)).sum();
        let region_name = self.plan.regions.get(region).map(|region| region.name.clone()).unwrap_or_default();
        let name = NodeName { region: region_name, node: format!("n{}", at - first) };
        let setting = Setting {
            plan: &self.plan,
            way: self.way,
            safety: self.safety,
            name: name.clone(),
            revision: self.revision,
            own: &self.own,
            engine: self.engines.as_ref().map(|engines| (at, engines)),
        };
        let mut node = Node::new(&setting, self.rule.clone(), books, before, self.clock(region));
        node.replica.set_care(self.care);
        node.duties = self.duties;
        if self.keeps_to_shares {
            node.keep_to_shares();
        }
        node.tell_from(self.now() + phase(at));
        Seat::new(name, region, node, (self.now(), at))
    }

    /// True time.
    pub(crate) const fn now(&self) -> Timestamp {
        self.world.now
    }

    /// The time that a region's clock shows.
    pub(crate) fn clock(&self, region: usize) -> Timestamp {
        self.world.clock(region)
    }

    /// Daemons by place, with those that are down.
    pub(crate) fn daemons(&self) -> &[Seat<Node>] {
        &self.world.daemons
    }

    pub(crate) fn daemons_mut(&mut self) -> &mut [Seat<Node>] {
        &mut self.world.daemons
    }

    pub(crate) const fn network(&self) -> &Network<Message> {
        &self.world.network
    }

    pub(crate) const fn network_mut(&mut self) -> &mut Network<Message> {
        &mut self.world.network
    }

    /// Something happened that loses messages.
    pub(crate) fn note_loss(&mut self) {
        self.world.network.note_loss(self.world.now);
    }

    /// Frames that a machine refused.
    pub(crate) const fn refused(&self) -> u64 {
        self.world.refused
    }

    /// The instant at which the newest frame was sent that region `to` has of region `from`.
    pub(crate) fn heard_from(&self, to: usize, from: usize) -> Timestamp {
        self.world.heard_from(to, from)
    }

    /// Everyone alive learns who is alive.
    pub(crate) fn meet(&mut self) {
        self.world.meet();
    }

    /// The daemons of a region that are alive, by place.
    pub(crate) fn alive(&self, region: usize) -> Vec<usize> {
        let daemons = self.world.daemons.iter().enumerate();
        daemons.filter(|(_, one)| one.region == region && one.alive).map(|(at, _)| at).collect()
    }

    /// The place of a region's daemon.
    fn place_of(&self, region: usize, daemon: usize) -> Option<usize> {
        let daemons = self.world.daemons.iter().enumerate();
        daemons.filter(|(_, one)| one.region == region).map(|(at, _)| at).nth(daemon)
    }

    /// Ends a daemon without a word.
    pub(crate) fn kill(&mut self, at: usize) {
        self.world.kill(at);
    }

    /// Starts a daemon anew, with nothing in memory. It finds there what it had written to its disk. Returns
    /// whether a store was lost with it.
    pub(crate) fn restart(&mut self, at: usize) -> bool {
        let noted = self.world.daemons.get(at).and_then(|old| old.node.saved());
        self.restart_with(at, noted)
    }

    /// The same where it finds this on its disk.
    pub(crate) fn restart_with(&mut self, at: usize, before: Option<Saved>) -> bool {
        let Some(old) = self.world.daemons.get(at) else { return false };
        let region = old.region;
        let kept = match &self.engines {
            Some(engines) => engines.keeps_stores,
            None => self.plan.shared_store && self.world.daemons.len() > self.plan.regions.len(),
        };
        let books = if kept {
            old.node.books.clone()
        } else {
            // A store in the daemon's own memory went with it.
            let now = self.clock(region);
            self.new_books(now)
        };
        let daemon = self.begin(at, region, books, before);
        if let Some(old) = self.world.daemons.get_mut(at) {
            *old = daemon;
        }
        self.meet();
        !kept
    }

    /// The largest limit that any daemon holds for a user, or will when it is started again.
    pub(crate) fn largest_limit(&self, user: u64) -> u64 {
        let held = self.world.daemons.iter().map(|daemon| daemon.node.limit(user).permits);
        held.chain([self.limit(user).permits]).map(u64::from).max().unwrap_or(0)
    }

    /// The limit that the operators want for a user.
    pub(crate) fn limit(&self, user: u64) -> Limit {
        let limit = self.rule.limit();
        self.own.get(&user).map_or(limit, |own| own.in_place_of(limit))
    }

    /// The operators give users other limits of their own. A daemon has them once it is [`Self::tell`].
    pub(crate) fn give(&mut self, own: OwnLimits) {
        self.own = own;
    }

    /// A daemon hears of the users' own limits.
    pub(crate) fn tell(&mut self, at: usize) {
        if let Some(daemon) = self.world.daemons.get_mut(at) {
            daemon.node.know(&self.own);
        }
    }

    /// A region's store loses everything.
    pub(crate) fn lose_store(&mut self, region: usize) {
        let now = self.clock(region);
        let books = self.new_books(now);
        let shared = self.plan.shared_store;
        for at in 0..self.world.daemons.len() {
            if self.world.daemons.get(at).is_none_or(|daemon| daemon.region != region) {
                continue;
            }
            // A daemon that is down finds the new store too when it comes back.
            let books = if shared { books.clone() } else { self.new_books(now) };
            if let Some(daemon) = self.world.daemons.get_mut(at) {
                daemon.node.books = books;
            }
        }
    }

    /// A daemon loads the rules that the operators want now.
    pub(crate) fn reload(&mut self, at: usize) {
        let Some(region) = self.world.daemons.get(at).map(|daemon| daemon.region) else { return };
        let now = self.clock(region);
        if let Some(daemon) = self.world.daemons.get_mut(at) {
            daemon.node.know(&self.own);
            match &self.engines {
                Some(engines) => daemon.node.load_whole((at, engines), self.revision, now),
                None => daemon.node.load(&self.plan, self.rule.clone(), self.revision, now),
            }
        }
    }

    /// A daemon that runs lists other regions from now on.
    pub(crate) fn relist(&mut self, at: usize, regions: RegionList) {
        let Some(region) = self.world.daemons.get(at).map(|daemon| daemon.region) else { return };
        let now = self.clock(region);
        if let Some(daemon) = self.world.daemons.get_mut(at) {
            daemon.node.relist(regions, now);
        }
        self.reload(at);
        self.meet();
    }

    /// The operators want another limit or other weights. Daemons have them once they [`Self::reload`].
    pub(crate) fn change(&mut self, change: impl FnOnce(&mut Plan)) {
        let mut plan = self.plan.clone();
        change(&mut plan);
        // A rule that cannot be read leaves the rules as they are, as in the daemon.
        if let Ok(rule) = RuleInForce::new(&plan, self.way) {
            (self.plan, self.rule) = (plan, rule);
            self.revision += 1;
        }
    }

    /// Moves a clock.
    pub(crate) fn step_clock(&mut self, region: usize, by: i64) {
        if let Some(clock) = self.world.clocks.get_mut(region) {
            clock.ahead = clock.ahead.saturating_add(by);
        }
    }

    /// Sets a clock to be ahead by so much.
    pub(crate) fn set_clock(&mut self, region: usize, ahead: i64) {
        let before = self.clock(region);
        if let Some(clock) = self.world.clocks.get_mut(region) {
            clock.ahead = ahead;
        }
        if self.clock(region) < before {
            let window = before.window_index(self.plan.rule.window);
            let daemons = self.world.daemons.iter().filter(|daemon| daemon.region == region);
            daemons.for_each(|daemon| daemon.node.books.clock_back(window));
        }
    }

    /// A request to one daemon. The window that it was admitted in, if it was.
    pub(crate) fn ask_daemon(&mut self, at: usize, user: u64, cost: u64) -> Option<u64> {
        let now = self.world.daemons.get(at).map(|daemon| self.clock(daemon.region))?;
        let daemon = self.world.daemons.get_mut(at).filter(|daemon| daemon.alive)?;
        daemon.node.decide(user, cost, now)
    }

    /// A request that was refused before, and has waited since. The window that it was admitted in, if it
    /// was.
    pub(crate) fn ask_again(&mut self, at: usize, user: u64, cost: u64) -> Option<u64> {
        let now = self.world.daemons.get(at).map(|daemon| self.clock(daemon.region))?;
        let daemon = self.world.daemons.get_mut(at).filter(|daemon| daemon.alive)?;
        daemon.node.decide_again(user, cost, now)
    }

    /// Returns whether a daemon that has refused a request may let it wait for rights.
    pub(crate) fn may_wait(&self, at: usize, user: u64, cost: u64) -> bool {
        let daemon = self.world.daemons.get(at).filter(|daemon| daemon.alive);
        daemon.is_some_and(|daemon| daemon.node.may_wait(user, cost, self.clock(daemon.region)))
    }

    /// Returns what the whole engine of a daemon answers one request; `None` where nobody answers.
    pub(crate) fn call(&self, at: usize, user: u64, cost: Cost) -> Option<Decision> {
        let daemon = self.world.daemons.get(at).filter(|daemon| daemon.alive)?;
        daemon.node.answer(user, cost, self.clock(daemon.region))
    }

    /// Permits that a region's daemon reserves for a user; see [`DaemonEngine::reserve`].
    pub(crate) fn reserve(
        &self,
        at: usize,
        user: u64,
        asked: (ReservationId, u64, Span),
    ) -> Option<(Decision, Option<Reservation>)> {
        let daemon = self.world.daemons.get(at).filter(|daemon| daemon.alive)?;
        daemon.node.engine()?.reserve(user, asked, self.clock(daemon.region))
    }

    /// A daemon settles a reservation; see [`DaemonEngine::commit`].
    pub(crate) fn commit(
        &self,
        at: usize,
        reservation: &Reservation,
        actual: u64,
    ) -> Option<Result<Committed, CommitRefused>> {
        let daemon = self.world.daemons.get(at).filter(|daemon| daemon.alive)?;
        daemon.node.engine()?.commit(reservation, actual, self.clock(daemon.region))
    }

    fn tick(&mut self, at: usize) {
        if !self.world.tick(at) {
            return;
        }
        // Before anything changes nobody needs to know.
        let matters = self.way == Way::Split || self.revision > 1 || self.engines.is_some();
        let (now, true_now) = (self.world.clock_of(at), self.world.now);
        let daemon = self.world.daemons.get_mut(at);
        let word = daemon.and_then(|daemon| daemon.node.word_if_due(now, true_now)).filter(|_| matters);
        if let Some((word, bytes)) = word {
            for to in (0..self.world.daemons.len()).filter(|&to| to != at) {
                self.world.network.send(true_now, at, to, bytes, &word);
            }
        }
        self.world.pump(at);
    }

    /// Asks again for those who wait for rights.
    fn retry(&mut self) {
        let now = self.world.now;
        let wait = self.plan.rule.wait;
        for (ask, since) in std::mem::take(&mut self.waiting) {
            let at = self.choose(ask.region);
            if let Some(window) = at.and_then(|at| self.ask_daemon(at, ask.user, ask.cost)) {
                self.answered.push(Late { ask, admitted: Some(window), delay: now.since(since) });
            } else if now.since(since) >= wait || at.is_none_or(|at| !self.hopes(at, ask.user)) {
                self.answered.push(Late { ask, admitted: None, delay: now.since(since) });
            } else {
                self.waiting.push((ask, since));
            }
        }
    }

    fn hopes(&self, at: usize, user: u64) -> bool {
        self.world.daemons.get(at).is_some_and(|daemon| daemon.node.hopes(user, self.clock(daemon.region)))
    }

    fn choose(&mut self, region: usize) -> Option<usize> {
        let alive = self.alive(region);
        let choice = if alive.len() > 1 { index(self.dice.below(place(alive.len()))) } else { 0 };
        alive.get(choice).copied()
    }
}

impl Model for World {
    fn ask(&mut self, ask: Ask) -> Answer {
        let Some(at) = self.choose(ask.region) else { return Answer::Refused };
        if let Some(window) = self.ask_daemon(at, ask.user, ask.cost) {
            return Answer::Admitted { window };
        }
        if self.way == Way::EscrowWait && self.waiting.len() < WAITING_MAX && self.hopes(at, ask.user) {
            self.waiting.push((ask, self.world.now));
            return Answer::Waits;
        }
        Answer::Refused
    }

    fn step(&mut self, step: Span) {
        self.world.receive(self.world.now + step);
        for at in 0..self.daemons().len() {
            self.tick(at);
        }
        if !self.waiting.is_empty() {
            self.retry();
        }
    }

    fn late(&mut self) -> Vec<Late> {
        std::mem::take(&mut self.answered)
    }

    fn fault(&mut self, fault: &FaultKind, broken: bool) {
        match fault {
            FaultKind::Cut { regions, inward, outward } => {
                self.world.network.cut(regions, *inward, *outward, broken);
            }
            FaultKind::Crash { region, daemon } => match (self.place_of(*region, *daemon), broken) {
                (Some(at), true) => self.kill(at),
                (Some(at), false) => {
                    self.restart(at);
                }
                (None, _) => {}
            },
            FaultKind::StoreLost { region } if broken => self.lose_store(*region),
            FaultKind::ClockStep { region, by } => {
                self.step_clock(*region, if broken { *by } else { by.saturating_neg() });
            }
            FaultKind::Limit(limit) if broken => {
                self.change(|plan| plan.rule.limit = *limit);
                (0..self.world.daemons.len()).for_each(|at| self.reload(at));
            }
            FaultKind::Weights(weights) if broken => {
                self.change(|plan| {
                    for (region, weight) in plan.regions.iter_mut().zip(weights) {
                        region.weight = *weight;
                    }
                });
                (0..self.world.daemons.len()).for_each(|at| self.reload(at));
            }
            FaultKind::StoreLost { .. }
            | FaultKind::Limit(_)
            | FaultKind::Weights(_)
            | FaultKind::Stop { .. }
            | FaultKind::Restart { .. }
            | FaultKind::Failover { .. }
            | FaultKind::StoreFlushed { .. }
            | FaultKind::Roll
            | FaultKind::PrimaryLost { .. }
            | FaultKind::DatabaseLost
            | FaultKind::DatabaseFrozen
            | FaultKind::DatabaseReadOnly
            | FaultKind::StoreFull { .. }
            | FaultKind::StoreFrozen { .. }
            | FaultKind::DiskFull { .. }
            | FaultKind::GatewayLost { .. }
            | FaultKind::LogLost { .. }
            | FaultKind::Certificates
            | FaultKind::CertificatesEnd { .. }
            | FaultKind::Leave { .. }
            | FaultKind::Join { .. }
            | FaultKind::Renamed { .. } => {}
            FaultKind::Slow { regions, inward, outward, by } => {
                self.world.network.weather.slow(regions, (*inward, *outward), *by, broken);
            }
            FaultKind::Storm { loss, jitter } => {
                let calm = &self.plan.weather;
                let (loss, jitter) = if broken { (*loss, *jitter) } else { (calm.loss, calm.jitter) };
                (self.world.network.weather.loss, self.world.network.weather.jitter) = (loss, jitter);
            }
        }
    }

    fn traffic(&self) -> Traffic {
        self.world.network.traffic
    }

    fn lag(&self) -> Span {
        self.world.lag()
    }

    fn late_reports(&self) -> u64 {
        self.world.daemons.iter().map(|daemon| daemon.node.late_reports()).sum()
    }
}
