//! The one virtual world: hosts on a clock that only the world moves, with a network between them that
//! delays, jitters, loses, doubles, reorders and cuts. The same seed repeats every byte.
//!
//! Each test says what a host is: a daemon with all its machines in `sim`, one machine and its store in the
//! unit tests of a protocol, which read these very files.

mod clock;
mod dice;
pub(crate) mod network;
pub(crate) mod number;
mod reference_store;
mod rights;
pub(crate) mod switches;
mod weather;

use tidegate_core::regions::{Member, NodeName, Refused};
use tidegate_core::time::{Span, Timestamp};

pub(crate) use self::clock::Clock;
pub(crate) use self::dice::Dice;
pub(crate) use self::network::Network;
use self::number::place;
pub(crate) use self::reference_store::ReferenceStore;
pub(crate) use self::rights::{RightsHost, RightsStore, untouched};
pub(crate) use self::weather::Weather;

/// A host tells its machines so often what was decided, and lets them act: as in the daemon.
pub(crate) const TICK: Span = Span::from_millis(10);

/// One daemon and the store that it counts in: it stands at a place of the world.
///
/// Every instant is by the clock of its region.
pub(crate) trait Host {
    type Message: Clone;

    /// These are in the cluster, itself among them, each with the round trip to it.
    fn meet(&mut self, now: Timestamp, members: &[(Member, Span)]);

    /// A message came.
    ///
    /// # Errors
    /// Why it is refused.
    fn hear(&mut self, now: Timestamp, from: &NodeName, message: Self::Message) -> Result<(), Refused>;

    /// Time passed.
    fn tick(&mut self, now: Timestamp);

    /// Carries out what its machines ask for. Returns what is to be sent: to whom, how many bytes, and the
    /// message.
    fn carry_out(&mut self, now: Timestamp) -> Vec<(NodeName, usize, Self::Message)>;
}

/// A host and its place in the world.
#[derive(Debug)]
pub(crate) struct Seat<H> {
    pub(crate) name: NodeName,
    pub(crate) region: usize,
    pub(crate) node: H,
    pub(crate) alive: bool,
    /// False until it begins: then the others know of it.
    pub(crate) known: bool,
    /// By true time.
    next_tick: Timestamp,
}

/// Hosts, network and time.
#[derive(Debug)]
pub(crate) struct VirtualWorld<H: Host> {
    /// True time.
    pub(crate) now: Timestamp,
    pub(crate) daemons: Vec<Seat<H>>,
    /// By region.
    pub(crate) clocks: Vec<Clock>,
    pub(crate) network: Network<H::Message>,
    /// By receiver and sender: the instant at which the newest message was sent that a region has of another.
    heard: Vec<Vec<Timestamp>>,
    /// Messages that a host refused, and why it refused the first.
    pub(crate) refused: u64,
    pub(crate) first_refused: Option<Refused>,
}

/// The host at this place acts first so long after its beginning: hosts do not tick in step.
pub(crate) fn phase(at: usize) -> Span {
    Span(place(at) * 3_700 % TICK.0)
}

impl<H> Seat<H> {
    /// A host that begins at `now`, by true time, at this place.
    pub(crate) fn new(name: NodeName, region: usize, node: H, (now, at): (Timestamp, usize)) -> Self {
        Self { name, region, node, alive: true, known: true, next_tick: now + phase(at) }
    }

    fn member(&self) -> Member {
        Member { name: self.name.clone(), live: self.alive, draining: false, sees_capacity: true }
    }
}

impl<H: Host> VirtualWorld<H> {
    /// A world without hosts, and with as many regions as its weather knows.
    pub(crate) fn new(now: Timestamp, weather: Weather, seed: u64) -> Self {
        let regions = weather.delay.len();
        Self {
            now,
            daemons: Vec::new(),
            clocks: vec![Clock::default(); regions],
            network: Network::new(weather, seed),
            heard: vec![vec![now; regions]; regions],
            refused: 0,
            first_refused: None,
        }
    }

    /// A host begins at the next place; `begin` is told the time and the place. Nobody knows of it before all
    /// [`Self::meet`].
    pub(crate) fn seat(&mut self, begin: impl FnOnce((Timestamp, usize)) -> Seat<H>) {
        let seat = begin((self.now, self.daemons.len()));
        self.network.add(seat.region);
        self.daemons.push(seat);
    }

    /// The time that a region's clock shows.
    pub(crate) fn clock(&self, region: usize) -> Timestamp {
        self.clocks.get(region).map_or(self.now, |clock| clock.read(self.now))
    }

    /// The same of the region of the host at a place.
    pub(crate) fn clock_of(&self, at: usize) -> Timestamp {
        self.daemons.get(at).map_or(self.now, |daemon| self.clock(daemon.region))
    }

    /// The instant at which the newest message was sent that region `to` has of region `from`.
    pub(crate) fn heard_from(&self, to: usize, from: usize) -> Timestamp {
        self.heard.get(to).and_then(|row| row.get(from)).copied().unwrap_or_default()
    }

    /// The age of the oldest newest message that any region has of any other.
    pub(crate) fn lag(&self) -> Span {
        let oldest = self.heard.iter().enumerate().flat_map(|(to, row)| {
            row.iter().enumerate().filter(move |(from, _)| *from != to).map(|(_, &sent)| sent)
        });
        oldest.min().map_or(Span::ZERO, |sent| self.now.since(sent))
    }

    /// Ends a host without a word.
    pub(crate) fn kill(&mut self, at: usize) {
        if let Some(daemon) = self.daemons.get_mut(at) {
            daemon.alive = false;
        }
        self.meet();
    }

    /// Everyone alive learns who is alive.
    pub(crate) fn meet(&mut self) {
        let members: Vec<(Member, usize)> = self
            .daemons
            .iter()
            .filter(|daemon| daemon.known)
            .map(|daemon| (daemon.member(), daemon.region))
            .collect();
        for at in 0..self.daemons.len() {
            let Some(region) = self.daemons.get(at).map(|daemon| daemon.region) else { continue };
            let now = self.clock(region);
            let trips: Vec<Span> = members
                .iter()
                .map(|(_, other)| self.network.delay(region, *other) + self.network.delay(*other, region))
                .collect();
            if let Some(daemon) = self.daemons.get_mut(at).filter(|daemon| daemon.alive) {
                let members: Vec<(Member, Span)> =
                    members.iter().map(|(member, _)| member.clone()).zip(trips).collect();
                daemon.node.meet(now, &members);
            }
        }
    }

    /// Time moves on, and everything happens that is due.
    pub(crate) fn step(&mut self, step: Span) {
        self.receive(self.now + step);
        for at in 0..self.daemons.len() {
            if self.tick(at) {
                self.pump(at);
            }
        }
    }

    /// Everything that arrives by `end`.
    pub(crate) fn receive(&mut self, end: Timestamp) {
        while let Some(flight) = self.network.landed(end) {
            self.now = self.now.max(flight.at);
            let Some((from, source)) =
                self.daemons.get(flight.from).map(|daemon| (daemon.name.clone(), daemon.region))
            else {
                continue;
            };
            let Some(region) = self.daemons.get(flight.to).map(|daemon| daemon.region) else { continue };
            let now = self.clock(region);
            let Some(daemon) = self.daemons.get_mut(flight.to).filter(|daemon| daemon.alive) else {
                continue;
            };
            if let Some(newest) = self.heard.get_mut(region).and_then(|row| row.get_mut(source)) {
                *newest = (*newest).max(flight.sent);
            }
            if let Err(refused) = daemon.node.hear(now, &from, flight.message) {
                self.refused += 1;
                self.first_refused.get_or_insert(refused);
            }
            self.pump(flight.to);
        }
        self.now = end;
    }

    /// A host acts if it is time, and is to be [`Self::pump`]ed then. False where it was not time.
    pub(crate) fn tick(&mut self, at: usize) -> bool {
        let (now, true_now) = (self.clock_of(at), self.now);
        let Some(daemon) = self.daemons.get_mut(at) else { return false };
        if !daemon.alive || true_now < daemon.next_tick {
            return false;
        }
        daemon.next_tick = daemon.next_tick.max(true_now - TICK) + TICK;
        daemon.node.tick(now);
        true
    }

    /// Carries out what a host's machines ask for, and sends what they say.
    pub(crate) fn pump(&mut self, at: usize) {
        let now = self.clock_of(at);
        let Some(daemon) = self.daemons.get_mut(at) else { return };
        for (to, bytes, message) in daemon.node.carry_out(now) {
            let Some(to) = self.daemons.iter().position(|daemon| daemon.name == to) else { continue };
            self.network.send(self.now, at, to, bytes, &message);
        }
    }
}
