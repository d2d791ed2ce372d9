//! One daemon without its sockets: the machines of all three modes and the store they speak for. The few
//! lines between them are the engine's and the peer task's in the daemon.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use tidegate::core::algorithm::{Algorithm, Limit};
use tidegate::core::decision::Decision;
use tidegate::core::region_list::RegionList;
use tidegate::core::regions::escrow::{
    Escrow, EscrowConfig, EscrowSafety, Event, StepRequest, StepResult, dry_mark, rights_frame_bytes,
};
use tidegate::core::regions::gossip::uncertainty::{self, OtherStores, OwnStore};
use tidegate::core::regions::split::{InForce, Saved, Split, WeightsStatement};
use tidegate::core::regions::{Member, NodeName, Policy, Refused, Replica, ReplicaConfig, WorldKey};
use tidegate::core::request::Cost;
use tidegate::core::rule::Mode;
use tidegate::core::share::Weights;
use tidegate::core::time::{Span, Timestamp};
use tidegate::core::wire::rights::RightsFrame;
use tidegate::core::wire::{Frame, OwnLimit, WireVersion};
use tidegate::peer::codec::encode_frame;

use super::duties::Duties;
use super::engine::{DaemonEngine, Engines};
use super::rights::{Memory, Vaults};
use super::shell::{Decided, RuleInForce, Store, Tallies, mode, windowed, world_key};
use crate::number::place;
use crate::plan::{Plan, Way};
use crate::virtual_world::Host;

/// The time after which a store forgets what has expired: as in the daemon.
const SWEEP: Span = Span::from_secs(1);
/// The members of the cluster tell each other so often what `split` wants told: as chitchat does.
const FACTS: Span = Span::from_millis(250);
/// For so long what a replica said of the others holds: as in the daemon.
const SAID_FOR: Span = Span::from_millis(100);
/// The bytes of membership's word on shares, with its share of the gossip.
const WORD_BYTES: usize = 32;

/// The messages that daemons send each other.
#[derive(Debug, Clone)]
pub(crate) enum Message {
    Frame(Rc<Frame>),
    Rights(Rc<RightsFrame>),
    Word(WeightsStatement),
}

/// The store of a region, or of one daemon.
#[derive(Debug, Clone)]
pub(crate) struct Books {
    store: Store,
    vaults: Rc<RefCell<Vaults>>,
    /// The newest window that a permit of each user was counted in.
    newest: Rc<RefCell<BTreeMap<u64, u64>>>,
}

/// The facts that a daemon is told when it begins.
#[derive(Debug)]
pub(crate) struct Setting<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) way: Way,
    pub(crate) safety: EscrowSafety,
    pub(crate) name: NodeName,
    pub(crate) revision: u64,
    pub(crate) own: &'a OwnLimits,
    /// Its place among all daemons, and what is known only to whole engines where it has one.
    pub(crate) engine: Option<(usize, &'a Engines)>,
}

/// Users' own limits.
pub(crate) type OwnLimits = BTreeMap<u64, OwnLimit>;

/// One daemon.
#[derive(Debug)]
pub(crate) struct Node {
    name: NodeName,
    regions: Vec<String>,
    mode: Mode,
    rule: RuleInForce,
    /// In place of all that else stands for one.
    pub(crate) engine: Option<DaemonEngine>,
    /// Users' own limits, as it knows them.
    own: OwnLimits,
    algorithm: Algorithm,
    pub(crate) replica: Replica,
    pub(crate) escrow: Escrow,
    split: Split,
    /// The weights in force and the region's part of the rule's limit by them, where each has one.
    share: Option<(InForce, Limit)>,
    words: Vec<(NodeName, Option<WeightsStatement>)>,
    pub(crate) books: Books,
    pub(crate) tallies: Tallies,
    next_sweep: Timestamp,
    /// By true time.
    next_word: Timestamp,
    /// The last state of the other stores that the engine has, and when the own store began if it ends with
    /// its process.
    elsewhere: (OtherStores, Timestamp),
    own_store: OwnStore,
    /// The region's share of a `gossip` rule, and whether the protocol holds the region to it now.
    part: Option<(Weights, bool)>,
    /// Duties that are done for its machines.
    pub(crate) duties: Duties,
    /// Windows that closed above their limit, by the daemon's own alarm.
    pub(crate) alarms: u64,
    /// By bucket: the newest window in which no region has rights left, as far as is known.
    dry: BTreeMap<WorldKey, u64>,
}

impl Books {
    pub(crate) fn new(plan: &Plan, session: u64, begun: Timestamp, safety: EscrowSafety) -> Self {
        let vaults = Vaults::new(Memory { session, begun, safety }, plan.rule.algorithm);
        let store = Store::sized(plan.keys_max.max(64), begun, safety);
        Self { store, vaults: Rc::new(RefCell::new(vaults)), newest: Rc::default() }
    }

    /// The same with this store.
    pub(crate) fn in_store(self, store: Store) -> Self {
        Self { store, ..self }
    }

    /// The window in which the store counted what it admitted in `window` by the clock: one that went back
    /// does not bring back a window of a bucket.
    fn counted_in(&self, user: u64, window: u64) -> u64 {
        let mut newest = self.newest.borrow_mut();
        let newest = newest.entry(user).or_default();
        *newest = window.max(*newest);
        *newest
    }

    /// The clock goes back from `before`: buckets of windows that were over by then may be gone.
    pub(crate) fn clock_back(&self, before: u64) {
        self.newest.borrow_mut().retain(|_, newest| *newest >= before);
    }

    /// Looks at the rights.
    pub(crate) fn rights<T>(&self, look: impl FnOnce(&Vaults) -> T) -> T {
        look(&self.vaults.borrow())
    }
}

fn names(plan: &Plan) -> Vec<String> {
    plan.regions.iter().map(|region| region.name.clone()).collect()
}

impl Host for Node {
    type Message = Message;

    fn meet(&mut self, now: Timestamp, members: &[(Member, Span)]) {
        let list: Vec<Member> = members.iter().map(|(member, _)| member.clone()).collect();
        self.replica.handle_members(now, &list);
        self.escrow.handle_members(now, &list);
        for (member, trip) in members.iter().filter(|(member, _)| member.name != self.name) {
            self.replica.handle_link(now, &member.name, *trip);
            self.escrow.handle_link(now, &member.name, *trip);
        }
        let known = std::mem::take(&mut self.words);
        let word = |name: &NodeName| known.iter().find(|(known, _)| known == name).and_then(|known| known.1);
        // A daemon that is down is a member still: it may hold whatever it last loaded.
        let others = list.into_iter().filter(|member| member.name != self.name);
        self.words = others.map(|member| (member.name.clone(), word(&member.name))).collect();
        if self.mode != Mode::Gossip {
            self.split.handle_members(now, self.words.clone());
            self.note_share();
        }
    }

    fn hear(&mut self, now: Timestamp, from: &NodeName, message: Message) -> Result<(), Refused> {
        match message {
            Message::Frame(frame) => {
                let frame = self.duties.heard(Frame::clone(&frame), now);
                self.replica.handle_frame(now, from, frame)
            }
            Message::Rights(frame) => self.escrow.handle_frame(now, from, RightsFrame::clone(&frame)),
            Message::Word(word) => {
                if let Some(known) = self.words.iter_mut().find(|(name, _)| name == from) {
                    known.1 = Some(word);
                }
                let mut words = self.words.clone();
                if !self.duties.waits_for_others {
                    // As if all had said what this daemon wants.
                    let own = self.split.word();
                    words.iter_mut().for_each(|(_, word)| *word = Some(own));
                }
                self.split.handle_members(now, words);
                self.note_share();
                Ok(())
            }
        }
    }

    fn tick(&mut self, now: Timestamp) {
        let touched = match &self.engine {
            Some(engine) => engine.drain(now),
            None => self.tallies.drain(),
        };
        match self.mode {
            Mode::Gossip => {
                for touched in touched {
                    self.replica.handle_touched(now, &touched);
                }
                self.replica.handle_timeout(now);
            }
            Mode::Escrow => {
                for touched in touched {
                    self.escrow.handle_touched(now, &touched);
                }
                self.escrow.handle_timeout(now);
            }
            Mode::Split => {}
        }
        if self.mode != Mode::Gossip && self.split.handle_timeout(self.duties.clock_of_shares(now)) {
            self.note_share();
        }
        if now >= self.next_sweep {
            self.next_sweep = now + SWEEP;
            match &self.engine {
                Some(engine) => engine.sweep(now),
                None => self.books.store.sweep(now),
            }
        }
    }

    fn carry_out(&mut self, now: Timestamp) -> Vec<(NodeName, usize, Message)> {
        let mut out = Vec::new();
        match self.mode {
            Mode::Gossip => {
                self.elsewhere = (self.replica.elsewhere(), now);
                if let Some(engine) = &self.engine {
                    let regions = self.replica.regions_len();
                    engine.follow(self.elsewhere.0, (self.replica.poll_crowded().as_deref(), regions), now);
                } else if let Some((part, rules)) = self.part.as_mut().zip(self.replica.poll_crowded()) {
                    part.1 = !rules.is_empty();
                }
                while let Some(effect) = self.replica.poll_effect() {
                    let effect = self.duties.told(effect);
                    match &self.engine {
                        Some(engine) => engine.apply(&effect),
                        None => self.books.store.apply(&self.rule, &effect, now),
                    }
                }
                while let Some((to, frame)) = self.replica.poll_transmit(now) {
                    out.push((
                        to,
                        encode_frame(WireVersion::NEWEST, &frame).map_or(0, |bytes| bytes.len()),
                        Message::Frame(Rc::new(frame)),
                    ));
                }
            }
            Mode::Escrow => {
                while let Some(ask) = self.escrow.poll_ask() {
                    let balance = self.carry_out_of(&ask, now);
                    self.escrow.handle_balance(now, &ask.key, balance);
                }
                while let Some(event) = self.escrow.poll_event() {
                    match event {
                        Event::Closed { used, limit, .. } => self.alarms += u64::from(used > limit),
                        Event::Dry { key, window } => {
                            self.dry.insert(key, window);
                        }
                        _ => {}
                    }
                }
                while let Some((to, frame)) = self.escrow.poll_transmit(now) {
                    out.push((to, rights_frame_bytes(&frame), Message::Rights(Rc::new(frame))));
                }
            }
            Mode::Split => {}
        }
        out
    }
}

impl Node {
    pub(crate) fn new(
        setting: &Setting<'_>,
        rule: RuleInForce,
        books: Books,
        before: Option<Saved>,
        now: Timestamp,
    ) -> Self {
        let Setting { plan, way, safety, name, revision, own, engine } = setting;
        let room = engine.as_ref().and_then(|(at, engines)| engines.rooms.get(*at)).copied();
        let keys_max = room.unwrap_or(plan.keys_max);
        let engine = engine.map(|(at, engines)| {
            DaemonEngine::new((name, at), engines, books.store.memory(), before.clone(), now)
        });
        let listed = || RegionList::of(names(plan));
        let regions = engine.as_ref().map_or_else(listed, |engine| engine.regions().clone());
        let replica = ReplicaConfig {
            regions: regions.names.clone(),
            interval: plan.interval,
            keys_max,
            shared_store: plan.shared_store,
            suppresses_reports: plan.suppresses_reports,
            policy: if *way == Way::GossipCut { Policy::Cut } else { Policy::Tidegate },
            ..ReplicaConfig::new(name.clone(), now.0 / 1_000)
        };
        let escrow = EscrowConfig {
            regions,
            interval: plan.interval,
            keys_max,
            safety: *safety,
            ..EscrowConfig::new(name.clone())
        };
        let mut node = Self {
            mode: mode(*way),
            regions: names(plan),
            engine,
            algorithm: plan.rule.algorithm,
            replica: Replica::new(replica),
            escrow: Escrow::new(escrow),
            split: Split::new(name.clone(), before),
            share: None,
            name: name.clone(),
            words: Vec::new(),
            rule: rule.clone(),
            own: OwnLimits::clone(own),
            books,
            tallies: Tallies::default(),
            next_sweep: now + SWEEP,
            next_word: now,
            elsewhere: (
                OtherStores {
                    stores: place(plan.regions.len() - 1),
                    regions: place(plan.regions.len()),
                    ..OtherStores::default()
                },
                now,
            ),
            own_store: if plan.shared_store { OwnStore::Lasting } else { OwnStore::Begun(now) },
            part: None,
            duties: Duties::ALL,
            alarms: 0,
            dry: BTreeMap::new(),
        };
        match setting.engine {
            Some((at, engines)) => node.load_whole((at, engines), *revision, now),
            None => node.load(plan, rule, *revision, now),
        }
        node
    }

    /// Other regions are listed from now on, as where nobody starts the daemon again. The rules must be
    /// loaded once more, and members told.
    pub(crate) fn relist(&mut self, regions: RegionList, now: Timestamp) {
        self.replica.handle_regions(now, &regions.names);
        self.escrow.handle_regions(now, regions.clone());
        if let Some(engine) = &mut self.engine {
            engine.relist(regions, now);
        }
    }

    /// The operators' rules go to the whole engine, and from there to the protocol.
    pub(crate) fn load_whole(&mut self, (at, engines): (usize, &Engines), revision: u64, now: Timestamp) {
        let Some(engine) = &mut self.engine else { return };
        engine.load(engines, at, now);
        let rules = engine.rules();
        self.escrow.handle_rules(now, &rules);
        self.replica.handle_rules(now, revision, rules);
    }

    /// New rules are in force.
    pub(crate) fn load(&mut self, plan: &Plan, rule: RuleInForce, revision: u64, now: Timestamp) {
        let world: Vec<_> = rule.world_rule().into_iter().collect();
        if self.mode != Mode::Gossip {
            self.split.handle_rules(now, rule.split_rule(&names(plan)).into_iter().collect());
        }
        match self.mode {
            Mode::Gossip => self.replica.handle_rules(now, revision, world),
            Mode::Escrow => self.escrow.handle_rules(now, &world),
            Mode::Split => {}
        }
        self.rule = rule;
        self.note_share();
    }

    /// Returns what it wrote to its disk, if anything.
    pub(crate) fn saved(&self) -> Option<Saved> {
        match &self.engine {
            Some(engine) => engine.noted(),
            None => (self.mode != Mode::Gossip).then(|| self.split.saved()),
        }
    }

    /// It tells the others of its shares from then on, by true time.
    pub(crate) const fn tell_from(&mut self, first: Timestamp) {
        self.next_word = first;
    }

    /// A word to every member about the shares that this daemon holds, if it is time to say so.
    pub(crate) fn word_if_due(&mut self, now: Timestamp, true_now: Timestamp) -> Option<(Message, usize)> {
        if true_now < self.next_word {
            return None;
        }
        self.next_word = true_now + FACTS;
        self.word(now)
    }

    fn word(&mut self, now: Timestamp) -> Option<(Message, usize)> {
        let word = match &mut self.engine {
            Some(engine) => engine.agree(&self.words, now),
            None => self.split.word(),
        };
        (self.mode != Mode::Gossip).then_some((Message::Word(word), WORD_BYTES))
    }

    /// Returns what its engine, whole, answers one request.
    pub(crate) fn answer(&self, user: u64, cost: Cost, now: Timestamp) -> Option<Decision> {
        self.engine.as_ref()?.decide(user, cost, now)
    }

    /// Its engine, where it has a whole one.
    pub(crate) const fn engine(&self) -> Option<&DaemonEngine> {
        self.engine.as_ref()
    }

    /// The limits of users that the operators gave them.
    pub(crate) fn know(&mut self, own: &OwnLimits) {
        self.own.clone_from(own);
    }

    /// The limit that it holds for a user.
    pub(crate) fn limit(&self, user: u64) -> Limit {
        self.limit_of(self.own.get(&user).copied())
    }

    fn limit_of(&self, own: Option<OwnLimit>) -> Limit {
        own.map_or(self.rule.limit(), |own| own.in_place_of(self.rule.limit()))
    }

    /// The region's part of the rule's limit, where each has one: what it may admit, or what it mints.
    pub(crate) fn share(&self) -> Option<Limit> {
        self.share.as_ref().map(|(_, share)| *share)
    }

    /// Works the share out anew, wherever it may have changed: every request needs it.
    fn note_share(&mut self) {
        self.share = self.in_force().map(|in_force| {
            let of = |whole: u32| {
                u32::try_from(in_force.of(u64::from(whole), &self.name.region)).unwrap_or(u32::MAX)
            };
            let limit = self.rule.limit();
            let share = Limit { permits: of(limit.permits), burst: of(limit.burst), ..limit };
            (in_force, share)
        });
    }

    fn in_force(&self) -> Option<InForce> {
        if self.mode == Mode::Gossip {
            return None;
        }
        self.split.in_force(&self.rule.world_rule()?.name)
    }

    /// The same of any limit at `now`.
    pub(crate) fn part_of(&self, limit: Limit, now: Timestamp) -> Option<Limit> {
        if limit == self.rule.limit() {
            return self.share();
        }
        let (in_force, _) = self.share.as_ref()?;
        Some(in_force.part(limit, &self.name.region, now))
    }

    /// Keeps to the region's share of a `gossip` rule while the protocol says so, as the engine does.
    pub(crate) fn keep_to_shares(&mut self) {
        let global = self.rule.world_rule().map(|rule| rule.global);
        self.part =
            global.map(|global| (Weights::new(&global.shares, &global.minimums, &self.regions), false));
    }

    /// The daemon ends in good order: the others are told its last counts.
    pub(crate) fn end(&mut self, now: Timestamp) {
        self.tick(now);
        self.replica.handle_end(now);
    }

    /// The limit that requests are held to where no mode divides it.
    fn held_to(&self, limit: Limit) -> Limit {
        let Some((weights, true)) = &self.part else { return limit };
        let of =
            |whole: u32| u32::try_from(weights.of(u64::from(whole), &self.name.region)).unwrap_or(u32::MAX);
        Limit { permits: of(limit.permits), burst: of(limit.burst), ..limit }
    }

    /// Returns what the region may use of it while its store has no view that speaks of now.
    fn first_of(&self, limit: Limit) -> Option<u32> {
        let held = matches!(self.part, Some((_, true)));
        if held { None } else { self.rule.first_of(limit, &self.name.region, self.elsewhere.0.regions) }
    }

    /// Decides one request. The window that it was admitted in, if it was.
    pub(crate) fn decide(&mut self, user: u64, cost: u64, now: Timestamp) -> Option<u64> {
        let (admitted, decided) = self.charge(user, cost, now);
        let own = self.own.get(&user).copied();
        self.tallies.note(&self.rule, (user, own), cost, decided, now);
        admitted
    }

    /// Decides again on a request that was refused and waits. It was offered once, so the others are told of
    /// it only if it is admitted.
    pub(crate) fn decide_again(&mut self, user: u64, cost: u64, now: Timestamp) -> Option<u64> {
        let (admitted, decided) = self.charge(user, cost, now);
        let window = admitted?;
        let own = self.own.get(&user).copied();
        self.tallies.note(&self.rule, (user, own), cost, decided, now);
        Some(window)
    }

    fn charge(&self, user: u64, cost: u64, now: Timestamp) -> (Option<u64>, Decided) {
        let own = self.own.get(&user).copied();
        let whole = self.limit_of(own);
        let share = self.part_of(whole, now).map(|part| match self.mode {
            Mode::Escrow => self.duties.minted(part),
            Mode::Gossip | Mode::Split => part,
        });
        if let Some(part) = share.filter(|_| self.mode == Mode::Escrow) {
            // A clock that went back does not bring back a window: rights of the newest one are used.
            let admitted = self.books.vaults.borrow_mut().decide(&world_key(user), now, cost, (part, whole));
            return (admitted, Decided { admitted: admitted.is_some(), ..Decided::default() });
        }
        let limit = share.unwrap_or_else(|| self.held_to(whole));
        let decided = match limit.permits {
            0 => Decided::default(),
            _ => self.books.store.decide(&self.rule, (limit, self.first_of(limit)), user, cost, now),
        };
        let window = if windowed(self.algorithm) { now.window_index(limit.window) } else { 0 };
        let counted = || if self.mode == Mode::Split { self.books.counted_in(user, window) } else { window };
        (decided.admitted.then(counted), decided)
    }

    /// `believed_used` and `error_bound` of an answer about a user's bucket.
    pub(crate) fn believes(&self, user: u64, now: Timestamp) -> Option<(u64, u64)> {
        let answered = self.books.store.peek(
            (&self.rule, self.limit(user), self.first_of(self.limit(user))),
            user,
            now,
        )?;
        let (algorithm, limit) = (self.algorithm, self.limit(user));
        let (said, at) = self.elsewhere;
        let elsewhere =
            OtherStores { settled: said.settled && now <= at + SAID_FOR, own_store: self.own_store, ..said };
        let bound = uncertainty::error_bound(algorithm, &limit, &answered, elsewhere, now);
        Some((uncertainty::believed(&limit, &answered, now), bound))
    }

    fn carry_out_of(&self, ask: &StepRequest, now: Timestamp) -> Option<StepResult> {
        if let Some(engine) = &self.engine {
            return engine.rights(ask, now);
        }
        let limit = self.limit_of(ask.own);
        let part = self.part_of(limit, now).unwrap_or(Limit { permits: 0, burst: 0, ..limit });
        let part = self.duties.minted(part);
        self.books.vaults.borrow_mut().carry_out(now, ask, (part, limit))
    }

    /// Returns whether a request of this cost that was refused may wait for rights, by the rules of the
    /// engine.
    pub(crate) fn may_wait(&self, user: u64, cost: u64, now: Timestamp) -> bool {
        let limit = self.limit(user);
        let mark = dry_mark(self.algorithm, limit.windows(), now);
        let dry = self.dry.get(&world_key(user)).is_some_and(|dry| *dry >= mark);
        !dry && cost <= u64::from(limit.permits)
    }

    /// Returns whether another region is believed to hold rights of a user's bucket.
    pub(crate) fn hopes(&self, user: u64, now: Timestamp) -> bool {
        self.escrow.others_hold(now, &world_key(user))
    }

    pub(crate) fn late_reports(&self) -> u64 {
        self.replica.tally().late
    }

    /// Returns what the own region and each other one are known to have admitted of a user's bucket in
    /// `window`.
    pub(crate) fn admitted(&self, user: u64, window: u64) -> Option<(u64, Vec<(String, u64)>)> {
        let key = world_key(user);
        if self.replica.is_kept_told(&key) { self.replica.admitted(&key, window) } else { None }
    }
}
