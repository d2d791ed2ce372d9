//! The setup that a daemon is started with: everything resolved, nothing to interpret.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;

use super::admin_socket::AdminSocket;
use super::store::StoreSetup;
use crate::api::CredentialHeaders;
use crate::api::token::{OnInvalid, TokenSettings};
use crate::config::{self, Backend, Config, PeerTls};
use crate::core::algorithm::Algorithm;
use crate::core::regions::{KEYS_MAX_DEFAULT, NodeName};
use crate::core::rule::{Global, Mode, Rule};
use crate::core::time::Span;
use crate::core::uri::Origin;
use crate::database::postgres::PostgresSettings;
use crate::engine::identity::LookupSettings;
use crate::engine::pace::HELD_ANSWERS_MAX;
use crate::peer::TlsPem;
use crate::peer::certificate::{self, Authority};
use crate::store::redis::{LeaseSettings, RedisSettings, Topology};

/// Sources of rules.
#[derive(Debug, Clone)]
pub enum RulesSource {
    /// Always these.
    Fixed(Vec<Rule>),
    /// A file, read again when it changes.
    File(PathBuf),
    /// PostgreSQL, with the last set kept in this file.
    Database {
        /// File in which the last set is kept.
        saved: PathBuf,
        /// True if rules of other daemons are taken while the database is away.
        from_peers: bool,
    },
    /// None: everything passes.
    Nothing,
}

/// The address and certificates by which this daemon meets the others.
#[derive(Debug, Clone)]
pub struct PeersSetup {
    /// UDP address that the daemon binds for the others.
    pub listen: SocketAddr,
    /// Address at which the others reach it, as host:port, if not the bound one.
    pub advertise: Option<String>,
    /// Daemons to join through, as host:port.
    pub join: Vec<String>,
    /// The cluster's authority, this daemon's certificate and its key.
    pub tls: TlsPem,
    /// Files that these came from, to read them again; `None` if they never change.
    pub tls_files: Option<PeerTls>,
}

/// The ways in which a daemon finds out who is asking.
#[derive(Debug, Clone, Default)]
pub struct IdentitySetup {
    /// The tier where no other is known.
    pub default_tier: Option<String>,
    /// Settings of look-ups; `None`: nobody is looked up in the database.
    pub lookups: Option<LookupSettings>,
    /// JSON web tokens: the file of keys, and what a token must be.
    pub tokens: Option<(PathBuf, TokenSettings)>,
}

impl IdentitySetup {
    /// The setup that a configuration asks for.
    fn of(config: &Config) -> Self {
        let identity = &config.identity;
        let looks_up = config.postgres.is_some() && identity.source == config::Source::Postgres;
        let fresh = identity.cache_ttl.to_std();
        let lookups = LookupSettings {
            timeout: identity.lookup_timeout.to_std(),
            cache_bytes: u64::from(identity.cache_mib) << 20,
            fresh,
            fresh_absent: fresh.min(LookupSettings::default().fresh_absent),
        };
        let tokens = identity.jwt.as_ref().map(|jwt| {
            let settings = TokenSettings {
                user_claim: jwt.user_claim.clone(),
                issuers: jwt.issuers.clone(),
                audiences: jwt.audiences.clone(),
                leeway: jwt.leeway,
                on_invalid: match jwt.on_invalid {
                    config::OnInvalid::Address => OnInvalid::Address,
                    config::OnInvalid::Refuse => OnInvalid::Refuse,
                },
            };
            (jwt.keys.clone(), settings)
        });
        Self { default_tier: identity.default_tier.clone(), lookups: looks_up.then_some(lookups), tokens }
    }
}

/// Everything a daemon needs to start.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Region and node of the daemon, unique in the cluster.
    pub name: NodeName,
    /// The HTTP port, `host:port` or `unix:/path`; `None` for none.
    pub http: Option<String>,
    /// The gRPC port, spelled as `http` is; `None` for none.
    pub grpc: Option<String>,
    /// The port of the Redis protocol, alike.
    pub resp: Option<String>,
    /// TLS on the port of the Redis protocol; `None` for none.
    pub resp_tls: Option<config::ListenerTls>,
    /// The file with the passwords that its clients may show; `None`: they show none.
    pub resp_passwords: Option<PathBuf>,
    /// The port for those who watch the daemon, alike.
    pub metrics: Option<String>,
    /// TLS on the HTTP port; `None` for none.
    pub http_tls: Option<config::ListenerTls>,
    /// TLS on the gRPC port, alike.
    pub grpc_tls: Option<config::ListenerTls>,
    /// Time to serve on, unready, once it is to stop.
    pub drain: Duration,
    /// Most connections of one listener, where the limit of open files allows as many.
    pub connections_max: usize,
    /// Most connections of one client address; 0: any number.
    pub address_connections_max: usize,
    /// Most answers that are held back at once.
    pub held_answers_max: usize,
    /// True if HTTP clients may give back.
    pub http_refunds: bool,
    /// Socket on which the user of the daemon may change everything.
    pub admin_socket: AdminSocket,
    /// True if everybody on this machine may.
    pub admin_local: bool,
    /// Source of the rules: fixed ones, a file, the database, or none.
    pub rules: RulesSource,
    /// True if every rule only logs.
    pub shadow: bool,
    /// Store that keeps the buckets: memory or Redis.
    pub store: StoreSetup,
    /// The files of TLS towards Redis, watched; `None` for none.
    pub redis_tls: Option<config::RedisTls>,
    /// The other daemons; `None` for none.
    pub peers: Option<PeersSetup>,
    /// Every region that may hold a share.
    pub regions: Vec<String>,
    /// File that notes the weights of `split` rules; `None` for none.
    pub shares: Option<PathBuf>,
    /// Time between two reports of a bucket to other daemons.
    pub interval: Span,
    /// Most buckets of worldwide limits followed, of each mode that follows any.
    pub world_keys_max: usize,
    /// Hops of `X-Forwarded-For`, from the right, that are ours.
    pub trusted_proxies: u8,
    /// IPv6 addresses are grouped by this many leading bits.
    pub ipv6_prefix: u8,
    /// The headers in which clients show credentials.
    pub credentials: CredentialHeaders,
    /// True if paths and hosts are brought into one form.
    pub normalize: bool,
    /// Habits of the origin in reading paths, by which they are brought into one form.
    pub origin: Origin,
    /// The file of admin tokens; `None`: clients on this machine may look.
    pub admin_tokens: Option<PathBuf>,
    /// Database of rules, identities and the audit log; `None` for none.
    pub postgres: Option<PostgresSettings>,
    /// Settings by which to find out who is asking.
    pub identity: IdentitySetup,
    /// Settings of the audit log; `None` for none, and without a database.
    pub audit: Option<config::Audit>,
    /// Receiver of events; `None`: they are only logged.
    pub events: Option<config::Events>,
    /// Collector of spans; `None`: none are made.
    pub traces: Option<config::Traces>,
    /// Settings of the stand-in for Envoy's rate limit service; `None`: it is none.
    pub stand_in: Option<config::StandIn>,
}

impl Setup {
    /// Returns what a configuration asks for.
    ///
    /// # Errors
    /// A certificate file that cannot be read.
    pub fn of(config: &Config) -> anyhow::Result<Self> {
        let peers = peers_of(config);
        Ok(Self {
            name: NodeName { region: config.region.clone(), node: config.node.clone() },
            http: Some(config.listen.http.to_string()),
            grpc: Some(config.listen.grpc.to_string()),
            resp: config.listen.resp.as_ref().map(ToString::to_string),
            resp_tls: config.listen.resp_tls.clone(),
            resp_passwords: config.listen.resp_passwords.clone(),
            metrics: config.listen.metrics.as_ref().map(ToString::to_string),
            http_tls: config.listen.http_tls.clone(),
            grpc_tls: config.listen.grpc_tls.clone(),
            drain: config.listen.drain.to_std(),
            connections_max: usize::try_from(config.listen.max_connections).unwrap_or(usize::MAX),
            address_connections_max: usize::try_from(config.listen.max_connections_per_address)
                .unwrap_or(usize::MAX),
            held_answers_max: usize::try_from(config.listen.max_held_answers).unwrap_or(usize::MAX),
            http_refunds: config.listen.http_refunds,
            admin_socket: AdminSocket::of(config.listen.admin.as_ref()),
            admin_local: config.admin.local,
            rules: rules_of(&config.rules),
            shadow: config.rules.shadow,
            store: store_of(&config.store, format!("{}/{}", config.region, config.node))?,
            redis_tls: Some(config.store.redis.tls.clone())
                .filter(|tls| config.store.backend == Backend::Redis && !tls.is_empty()),
            peers: peers?,
            regions: config.peers.regions.clone(),
            shares: Some(config.peers.shares.clone()),
            interval: config.peers.interval,
            world_keys_max: usize::try_from(config.peers.max_keys).unwrap_or(usize::MAX),
            trusted_proxies: config.identity.trusted_proxies,
            ipv6_prefix: config.identity.ipv6_prefix,
            credentials: CredentialHeaders::new(&config.identity.credentials)
                .context("identity.credentials")?,
            normalize: config.requests.normalize,
            origin: config.requests.origin,
            admin_tokens: config.admin.tokens.clone(),
            postgres: super::schema::settings(config),
            identity: IdentitySetup::of(config),
            audit: config.audit.clone().filter(|audit| audit.enabled),
            events: config.events.clone(),
            traces: config.traces.clone(),
            stand_in: None,
        })
    }
}

fn peers_of(config: &Config) -> anyhow::Result<Option<PeersSetup>> {
    let Some(files) = &config.peers.tls else { return Ok(None) };
    Ok(Some(PeersSetup {
        listen: config.listen.peer,
        advertise: config.peers.advertise.clone(),
        join: config.peers.join.clone(),
        tls: read_tls(files)?,
        tls_files: Some(files.clone()),
    }))
}

fn rules_of(rules: &config::Rules) -> RulesSource {
    match rules.source {
        config::Source::Postgres => RulesSource::Database {
            saved: rules.saved.clone(),
            from_peers: rules.from_peers == config::FromPeers::Away,
        },
        config::Source::File => RulesSource::File(rules.file.clone()),
    }
}

fn store_of(store: &config::Store, name: String) -> anyhow::Result<StoreSetup> {
    let keys_max = usize::try_from(store.max_keys).unwrap_or(usize::MAX);
    Ok(match store.backend {
        Backend::Memory => StoreSetup::Memory { keys_max },
        Backend::Redis => StoreSetup::Redis(Box::new(RedisSettings {
            topology: match store.redis.topology {
                config::Topology::Cluster => Topology::Cluster,
                config::Topology::Ring => Topology::Ring,
                config::Topology::Sentinel => Topology::Sentinel,
                config::Topology::Single => Topology::Single,
            },
            nodes: store.redis.nodes.clone(),
            sentinel_master: store.redis.sentinel_master.clone(),
            sentinel_master_auth: store.redis.sentinel_master_auth.clone(),
            timeout: store.redis.timeout.to_std(),
            on_failure: store.redis.on_failure,
            lease: LeaseSettings { permits_max: store.lease.max, ttl: store.lease.ttl.to_std() },
            tls: super::redis_tls::redis_tls(&store.redis.tls)?,
            server_keys_max: store.redis.max_keys,
            name,
            keys_max,
            ..RedisSettings::default()
        })),
    })
}

/// Most readings of certificate and key because the certificate changed meanwhile.
const READS_MAX: u32 = 10;

/// Reads the files of mutual TLS. Certificate and key are of one time, should somebody replace them.
///
/// # Errors
/// Which of them cannot be read, and why.
pub(super) fn read_tls(files: &PeerTls) -> anyhow::Result<TlsPem> {
    let read = |what: &str, path: &PathBuf| {
        std::fs::read(path).with_context(|| {
            format!("peers.tls.{what}: {} cannot be read (`tidegate cert` makes these files)", path.display())
        })
    };
    let (mut cert, mut key) = (read("cert", &files.cert)?, read("key", &files.key)?);
    for _ in 1..READS_MAX {
        let again = read("cert", &files.cert)?;
        if again == cert {
            break;
        }
        (cert, key) = (again, read("key", &files.key)?);
    }
    let revoked = files.revoked.as_ref().map(|path| read("revoked", path)).transpose()?;
    Ok(TlsPem { ca: read("ca", &files.ca)?, cert, key, revoked: revoked.unwrap_or_default() })
}

/// A region of `tidegate demo`.
#[derive(Debug)]
pub struct DemoRegion<'a> {
    /// Name of the region that the daemon is to count for.
    pub region: &'a str,
    /// Names of all regions of the demo, this one included.
    pub regions: &'a [String],
    /// Authority that signs the certificates of all daemons of the demo.
    pub ca: &'a Authority,
    /// Address on which its relay listens; the others dial that.
    pub advertise: SocketAddr,
    /// Addresses on which the relays of all regions listen.
    pub join: &'a [SocketAddr],
    /// Limit that all regions of the demo hold together.
    pub rule: DemoRule,
    /// True to use the ports a daemon has by default, if they are free.
    pub default_ports: bool,
}

/// The one limit of `tidegate demo`.
#[derive(Debug, Clone, Copy)]
pub struct DemoRule {
    /// Permits per window in all regions together.
    pub limit: u32,
    /// Length of the window in which the limit counts.
    pub window: Span,
    /// The mode in which it is held.
    pub mode: Mode,
}

/// Makes the setup of one region of the demo.
///
/// # Errors
/// When a certificate cannot be made.
pub fn demo_setup(demo: DemoRegion<'_>) -> anyhow::Result<Setup> {
    let name = NodeName { region: demo.region.to_owned(), node: format!("{}-1", demo.region) };
    let issued = certificate::issue(demo.ca, &name, crate::engine::clock::Clock::System.now())?;
    let port = |default: u16| {
        let wanted = SocketAddr::from(([127, 0, 0, 1], default));
        let free = demo.default_ports && std::net::TcpListener::bind(wanted).is_ok();
        if free { wanted.to_string() } else { "127.0.0.1:0".to_owned() }
    };
    let rule = Rule {
        message: Some("The world has used up this limit.".to_owned()),
        global: Some(Global::new(demo.rule.mode)),
        ..Rule::new("demo", Algorithm::FixedWindow, demo.rule.limit, demo.rule.window)
    };
    Ok(Setup {
        name,
        http: Some(port(8080)),
        grpc: Some(port(8081)),
        resp: None,
        resp_tls: None,
        resp_passwords: None,
        metrics: None,
        http_tls: None,
        grpc_tls: None,
        // The gateways of the demo are its own.
        drain: Duration::ZERO,
        connections_max: 1_000,
        address_connections_max: 0,
        held_answers_max: HELD_ANSWERS_MAX,
        http_refunds: true,
        admin_socket: AdminSocket::Usual,
        admin_local: false,
        rules: RulesSource::Fixed(vec![rule]),
        shadow: false,
        store: StoreSetup::Memory { keys_max: 100_000 },
        redis_tls: None,
        peers: Some(PeersSetup {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            advertise: Some(demo.advertise.to_string()),
            join: demo
                .join
                .iter()
                .filter(|address| **address != demo.advertise)
                .map(ToString::to_string)
                .collect(),
            tls: TlsPem {
                ca: demo.ca.certificate_pem().as_bytes().to_vec(),
                cert: issued.certificate_pem.into_bytes(),
                key: issued.key_pem.into_bytes(),
                revoked: Vec::new(),
            },
            tls_files: None,
        }),
        regions: demo.regions.to_vec(),
        shares: None,
        interval: Span::from_millis(50),
        world_keys_max: KEYS_MAX_DEFAULT,
        trusted_proxies: 1,
        ipv6_prefix: 64,
        credentials: CredentialHeaders::default(),
        normalize: true,
        origin: Origin::Any,
        admin_tokens: None,
        postgres: None,
        identity: IdentitySetup::default(),
        audit: None,
        events: None,
        traces: None,
        stand_in: None,
    })
}
