//! The world that is simulated: regions, their network, the rule, the demand, and what goes wrong when.

mod read;

use tidegate::core::algorithm::Algorithm;
use tidegate::core::rule::OnPartition;
use tidegate::core::time::Span;

#[cfg(test)]
pub(crate) use self::read::fault_words;
pub(crate) use self::read::read;
use crate::pattern::Pattern;
use crate::virtual_world::Weather;

/// A world to simulate.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) name: String,
    /// Purpose of the scenario, in a sentence or two.
    pub(crate) about: String,
    pub(crate) regions: Vec<Region>,
    pub(crate) rule: RulePlan,
    pub(crate) weather: Weather,
    pub(crate) demand: Demand,
    /// By the time they begin.
    pub(crate) faults: Vec<Fault>,
    /// Each is run on its own, with the same arrivals.
    pub(crate) ways: Vec<Way>,
    pub(crate) length: Span,
    /// Time by which a step moves.
    pub(crate) step: Span,
    pub(crate) seed: u64,
    /// Between two reports.
    pub(crate) interval: Span,
    /// True if the daemons of a region share one store, as with Redis.
    pub(crate) shared_store: bool,
    /// True if that of real daemons is a Redis cluster.
    pub(crate) cluster: bool,
    /// Gateway that clients of real daemons ask.
    pub(crate) gateway: GatewayKind,
    /// True if real daemons share one PostgreSQL, and remember in it what they decided.
    pub(crate) database: bool,
    /// Most buckets that a daemon follows.
    pub(crate) keys_max: usize,
    /// Most buckets that the store of a real daemon holds in memory; `None`: as many as it does by itself.
    pub(crate) store_keys_max: Option<u64>,
    /// True if gossip tells only what others would otherwise guess wrong.
    pub(crate) suppresses_reports: bool,
}

/// Whom the clients of a region ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum GatewayKind {
    /// The daemons themselves, over HTTP.
    #[default]
    Direct,
    /// A stock Envoy, which asks the region's daemons over gRPC.
    Envoy,
    /// A stock nginx, which asks them by `auth_request`.
    Nginx,
}

impl GatewayKind {
    /// Each with its word in scenario files.
    pub(crate) const WORDS: [(&'static str, Self); 3] =
        [("direct", Self::Direct), ("envoy", Self::Envoy), ("nginx", Self::Nginx)];
}

/// The store in which the daemons of a region count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StoreKind {
    /// Each in its own memory.
    Memory,
    /// In one Redis server.
    Redis,
    /// In a Redis cluster of three primaries and three replicas.
    Cluster,
}

impl StoreKind {
    /// Each with its word in scenario files.
    pub(crate) const WORDS: [(&'static str, Self); 3] =
        [("memory", Self::Memory), ("redis", Self::Redis), ("cluster", Self::Cluster)];
}

/// A region.
#[derive(Debug, Clone)]
pub(crate) struct Region {
    pub(crate) name: String,
    pub(crate) daemons: usize,
    /// Another store than the other regions have. Real daemons only.
    pub(crate) store: Option<StoreKind>,
    /// Its part of the limit where parts are fixed.
    pub(crate) weight: u32,
    /// Microseconds by which its clock is ahead at the start.
    pub(crate) ahead: i64,
    /// Speed of its clock beyond the usual one, in parts per million.
    pub(crate) drift_ppm: i64,
}

/// The worldwide rule.
#[derive(Debug, Clone)]
pub(crate) struct RulePlan {
    pub(crate) limit: u32,
    pub(crate) window: Span,
    pub(crate) algorithm: Algorithm,
    pub(crate) burst: u32,
    pub(crate) on_partition: OnPartition,
    /// Time that a request may wait for rights if the way is [`Way::EscrowWait`].
    pub(crate) wait: Span,
}

/// The clients that ask, and for how much.
#[derive(Debug, Clone)]
pub(crate) struct Demand {
    pub(crate) pattern: Pattern,
    /// Users, each with a bucket of its own.
    pub(crate) users: u64,
    /// The exponent by which demand falls from user to user; the pattern's load is the first one's.
    pub(crate) zipf: f64,
    /// Permits that one request asks for.
    pub(crate) cost: u64,
    /// True if a client of real daemons that is denied asks once more when it has waited as long as it was
    /// told.
    pub(crate) retry: bool,
}

/// Something that goes wrong.
#[derive(Debug, Clone)]
pub(crate) struct Fault {
    /// Since the start.
    pub(crate) at: Span,
    /// Until it is put right again; zero: never.
    pub(crate) lasts: Span,
    pub(crate) kind: FaultKind,
}

/// The faults. Regions and daemons by place.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum FaultKind {
    /// Nothing gets through between these regions and the others.
    Cut { regions: Vec<usize>, inward: bool, outward: bool },
    /// A daemon dies; with a store of its own it loses it.
    Crash { region: usize, daemon: usize },
    /// A region's store loses everything.
    StoreLost { region: usize },
    /// A region's clock jumps by this many microseconds.
    ClockStep { region: usize, by: i64 },
    /// The limit becomes another one.
    Limit(u32),
    /// The operators give the regions other weights, daemon by daemon.
    Weights(Vec<u32>),
    /// More of the messages are lost.
    Storm { loss: f64, jitter: f64 },
    /// The messages between these regions and the others take so much longer.
    Slow { regions: Vec<usize>, inward: bool, outward: bool, by: Span },
    /// A daemon ends in good order, and begins again. Real daemons only.
    Restart { region: usize, daemon: usize },
    /// A daemon stands still: it is there, and answers nobody. Real daemons only.
    Stop { region: usize, daemon: usize },
    /// All daemons are restarted in order, each when the one before is ready again. Real daemons only.
    Roll,
    /// The fullest primary of a region's Redis cluster is killed, and starts again empty. Real daemons only.
    PrimaryLost { region: usize },
    /// The replica of the fullest primary of a region's Redis cluster is told to take over. Real daemons
    /// only.
    Failover { region: usize },
    /// All that a region's Redis holds is deleted, and it goes on. Real daemons only.
    StoreFlushed { region: usize },
    /// PostgreSQL is killed, and starts again with its data. Real daemons only.
    DatabaseLost,
    /// PostgreSQL stands still: it is there, and answers nobody. Real daemons only.
    DatabaseFrozen,
    /// PostgreSQL answers, and takes nothing. Real daemons only.
    DatabaseReadOnly,
    /// A region's Redis takes nothing more. Real daemons only.
    StoreFull { region: usize },
    /// A region's Redis stands still: it is there, and answers nobody. Real daemons only.
    StoreFrozen { region: usize },
    /// The disk that a daemon keeps its spool and its shares on is full. Real daemons only.
    DiskFull { region: usize, daemon: usize },
    /// The gateway of a region is killed, and started again. Real daemons only.
    GatewayLost { region: usize },
    /// The reader of a daemon's log is gone for good. Real daemons only.
    LogLost { region: usize, daemon: usize },
    /// Every daemon is given another certificate of the same authority. Real daemons only.
    Certificates,
    /// The daemons of a region are given certificates that end so soon, and others when the fault is over.
    /// Real daemons only.
    CertificatesEnd { region: usize, after: Span },
    /// A region is removed for good, as the manual says. Real daemons only.
    Leave { region: usize },
    /// A region that was not there is added, in the manual's order or before the others list it. Real daemons
    /// only.
    Join { region: usize, listed: bool },
    /// A daemon ends, and begins again under another name. Real daemons only.
    Renamed { region: usize, daemon: usize },
}

impl FaultKind {
    /// Its word in scenario files.
    pub(crate) const fn word(&self) -> &'static str {
        match self {
            Self::Cut { .. } => "cut",
            Self::Crash { .. } => "crash",
            Self::StoreLost { .. } => "store-lost",
            Self::ClockStep { .. } => "clock-step",
            Self::Limit(_) => "limit",
            Self::Weights(_) => "weights",
            Self::Storm { .. } => "storm",
            Self::Slow { .. } => "slow",
            Self::Restart { .. } => "restart",
            Self::Stop { .. } => "stop",
            Self::Roll => "roll",
            Self::PrimaryLost { .. } => "primary-lost",
            Self::Failover { .. } => "failover",
            Self::StoreFlushed { .. } => "store-flushed",
            Self::DatabaseLost => "database-lost",
            Self::DatabaseFrozen => "database-frozen",
            Self::DatabaseReadOnly => "database-read-only",
            Self::StoreFull { .. } => "store-full",
            Self::StoreFrozen { .. } => "store-frozen",
            Self::DiskFull { .. } => "disk-full",
            Self::GatewayLost { .. } => "gateway-lost",
            Self::LogLost { .. } => "log-lost",
            Self::Certificates => "certificates",
            Self::CertificatesEnd { .. } => "certificates-end",
            Self::Leave { .. } => "leave",
            Self::Join { .. } => "join",
            Self::Renamed { .. } => "renamed",
        }
    }

    /// The region that is added.
    pub(crate) const fn adds(&self) -> Option<usize> {
        match self {
            Self::Join { region, .. } => Some(*region),
            _ => None,
        }
    }

    /// Returns whether PostgreSQL is kept from answering or from taking anything.
    pub(crate) const fn is_of_the_database(&self) -> bool {
        matches!(self, Self::DatabaseLost | Self::DatabaseFrozen | Self::DatabaseReadOnly)
    }

    /// Returns whether virtual time knows nothing like it.
    pub(crate) const fn needs_processes(&self) -> bool {
        matches!(
            self,
            Self::Stop { .. }
                | Self::Restart { .. }
                | Self::Roll
                | Self::PrimaryLost { .. }
                | Self::Failover { .. }
                | Self::StoreFlushed { .. }
                | Self::DatabaseLost
                | Self::DatabaseFrozen
                | Self::DatabaseReadOnly
                | Self::StoreFull { .. }
                | Self::StoreFrozen { .. }
                | Self::DiskFull { .. }
                | Self::GatewayLost { .. }
                | Self::LogLost { .. }
                | Self::Certificates
                | Self::CertificatesEnd { .. }
                | Self::Leave { .. }
                | Self::Join { .. }
                | Self::Renamed { .. }
        )
    }
}

/// The mode in which the limit is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Way {
    /// Mode `gossip`.
    Gossip,
    /// Mode `gossip`, always by common cuts.
    GossipCut,
    /// Mode `split`.
    Split,
    /// Mode `escrow`.
    Escrow,
    /// Mode `escrow` with `wait`.
    EscrowWait,
    /// One store for all, a round trip away.
    Central,
    /// Own count plus the last known counts of the others, told every ten seconds.
    Naive10s,
    /// The same every tenth of a second.
    Naive100ms,
}

impl Way {
    /// All of them, with the words of scenario files.
    pub(crate) const WORDS: [(&'static str, Self); 8] = [
        ("gossip", Self::Gossip),
        ("gossip-cut", Self::GossipCut),
        ("split", Self::Split),
        ("escrow", Self::Escrow),
        ("escrow-wait", Self::EscrowWait),
        ("central", Self::Central),
        ("naive-10s", Self::Naive10s),
        ("naive-100ms", Self::Naive100ms),
    ];

    /// Its word.
    pub(crate) fn word(self) -> &'static str {
        Self::WORDS.iter().find(|(_, way)| *way == self).map_or("", |(word, _)| word)
    }

    /// Its name in tables.
    pub(crate) const fn title(self) -> &'static str {
        match self {
            Self::Gossip => "gossip",
            Self::GossipCut => "gossip, cuts alone",
            Self::Split => "split",
            Self::Escrow => "escrow",
            Self::EscrowWait => "escrow + wait",
            Self::Central => "central store",
            Self::Naive10s => "naive gossip 10 s",
            Self::Naive100ms => "naive gossip 100 ms",
        }
    }
}

impl Plan {
    /// An ordinary world with this many regions of one daemon each: for commands that take flags.
    pub(crate) fn ordinary(regions: usize, rule: RulePlan, pattern: Pattern, weather: Weather) -> Self {
        Self {
            name: pattern.name(),
            about: String::new(),
            regions: (0..regions).map(Region::numbered).collect(),
            rule,
            weather,
            demand: Demand { pattern, users: 1, zipf: 1.0, cost: 1, retry: false },
            faults: Vec::new(),
            ways: vec![Way::Gossip],
            length: Span::from_secs(60),
            step: Span::from_millis(1),
            seed: 1,
            interval: Span::from_millis(100),
            shared_store: false,
            cluster: false,
            gateway: GatewayKind::Direct,
            database: false,
            keys_max: 1_000,
            store_keys_max: None,
            suppresses_reports: true,
        }
    }
}

impl Plan {
    /// Returns the store in which the real daemons of a region count.
    pub(crate) fn store_of(&self, region: usize) -> StoreKind {
        let of_all = match (self.shared_store, self.cluster) {
            (_, true) => StoreKind::Cluster,
            (true, false) => StoreKind::Redis,
            (false, false) => StoreKind::Memory,
        };
        self.regions.get(region).and_then(|region| region.store).unwrap_or(of_all)
    }

    /// Returns whether the counts of a region end with its real daemons.
    pub(crate) fn counts_in_memory(&self, region: usize) -> bool {
        self.store_of(region) == StoreKind::Memory
    }
}

impl Region {
    /// A region named by its place.
    pub(crate) fn numbered(place: usize) -> Self {
        Self { name: format!("region-{place}"), daemons: 1, store: None, weight: 1, ahead: 0, drift_ppm: 0 }
    }
}
