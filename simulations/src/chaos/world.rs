//! A plan as real processes: certificates, daemons, stores, the network between them, and what goes wrong.

mod orders;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use serde_json::Value;
use tempfile::TempDir;
use tidegate::core::written::format_span;

use super::clients::{Target, get};
use super::clock::Clocks;
use super::cluster::Cluster;
use super::daemon::{Daemon, Redis};
use super::disk::Disk;
use super::gateway::{self, Gateway};
use super::judge::{Page, Remembered};
use super::postgres::Postgres;
use super::process::free_port;
use super::wan::Wan;
use crate::BadInput;
use crate::model::shell::{partition_word, windowed};
use crate::plan::{FaultKind, GatewayKind, Plan, Region, StoreKind, Way};

/// The longest that daemons may take to find each other.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longer than usual: all regions and their clients share one machine here, which stands still now and then.
const STORE_TIMEOUT: &str = "200ms";
/// The folder below a daemon's at which the disk that fills is mounted.
const DISK: &str = "disk";

/// The address at which a daemon speaks with others.
#[derive(Debug)]
struct Member {
    region: usize,
    name: String,
    listens: SocketAddr,
    /// Address at which the others reach it: a relay.
    reached: SocketAddr,
}

/// All regions.
pub(super) struct World {
    plan: Plan,
    way: Way,
    program: PathBuf,
    /// In the order of `members`.
    pub(super) daemons: Vec<Daemon>,
    members: Vec<Member>,
    /// Regions that are added later: nobody else lists them, and they do not run.
    unlisted: Vec<usize>,
    wan: Wan,
    /// By region, where one counts in it.
    redis: BTreeMap<usize, Redis>,
    clusters: BTreeMap<usize, Cluster>,
    database: Option<Postgres>,
    clocks: Option<Clocks>,
    /// One for each region, where clients do not ask the daemons themselves.
    gateways: Vec<Gateway>,
    /// The rule as it is now.
    limit: u32,
    weights: Vec<u32>,
    /// Regions that were removed.
    removed: Vec<usize>,
    /// Small disks, by the place of their daemon.
    disks: BTreeMap<usize, Disk>,
    /// The parts of the story that cannot be played here, and why.
    unplayed: Vec<String>,
    /// Last, so that all processes are gone before their files.
    folder: TempDir,
}

impl World {
    /// Makes everything that its daemons need; they do not run until [`Self::start`].
    pub(super) fn new(plan: &Plan, way: Way, program: &Path) -> anyhow::Result<Self> {
        can_be_played(plan, way)?;
        let folder = TempDir::new()?;
        let wan = Wan::new(plan.weather.clone(), plan.regions.len(), plan.seed)?;
        let clocks = Clocks::new(plan, folder.path().join("clocks"))?;
        let variables = |region| clocks.as_ref().map(|clocks| clocks.variables(region)).unwrap_or_default();
        let (mut clusters, mut redis) = (BTreeMap::new(), BTreeMap::new());
        for place in 0..plan.regions.len() {
            match plan.store_of(place) {
                StoreKind::Memory => {}
                StoreKind::Redis => {
                    let server =
                        Redis::start(folder.path().join(format!("redis-{place}")), variables(place))?;
                    redis.insert(place, server);
                }
                StoreKind::Cluster => {
                    let folder = folder.path().join(format!("cluster-{place}"));
                    clusters.insert(place, Cluster::start(&folder, variables(place))?);
                }
            }
        }
        tidegate(program, folder.path(), &["cert", "ca", "--out", "ca"])?;
        let (limit, weights) = (plan.rule.limit, plan.regions.iter().map(|region| region.weight).collect());
        let database = plan.database.then(|| Postgres::start(program)).transpose()?;
        let mut world = Self {
            plan: plan.clone(),
            way,
            program: program.to_owned(),
            daemons: Vec::new(),
            members: Vec::new(),
            unlisted: plan.faults.iter().filter_map(|fault| fault.kind.adds()).collect(),
            wan,
            redis,
            clusters,
            database,
            clocks,
            gateways: Vec::new(),
            limit,
            weights,
            removed: Vec::new(),
            disks: BTreeMap::new(),
            unplayed: Vec::new(),
            folder,
        };
        world.make()?;
        Ok(world)
    }

    /// Starts all daemons, and waits until each hears every other region.
    pub(super) async fn start(&mut self) -> anyhow::Result<()> {
        self.write_rules()?;
        let unlisted = &self.unlisted;
        let begin = |daemon: &&mut Daemon| !unlisted.contains(&daemon.region);
        self.daemons.iter_mut().filter(begin).try_for_each(Daemon::start)?;
        for daemon in self.daemons.iter_mut().filter(begin) {
            daemon.wait_until_ready().await?;
        }
        self.wait_until_connected().await?;
        self.start_gateways().await
    }

    /// Returns the folder in which all its processes have their files.
    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    async fn start_gateways(&mut self) -> anyhow::Result<()> {
        if self.plan.gateway == GatewayKind::Direct {
            return Ok(());
        }
        let service = gateway::service().await?;
        for region in 0..self.plan.regions.len() {
            let of_region = self.daemons.iter().filter(|daemon| daemon.region == region);
            let daemons: Vec<SocketAddr> = of_region.map(|daemon| self.asked_at(daemon)).collect();
            let folder = self.folder.path().join(format!("gateway-{region}"));
            let mut gateway = Gateway::start(self.plan.gateway, &folder, &daemons, service)?;
            for daemon in daemons {
                gateway.asks(daemon).await?;
            }
            self.gateways.push(gateway);
        }
        Ok(())
    }

    /// Returns the address at which a gateway asks a daemon.
    const fn asked_at(&self, daemon: &Daemon) -> SocketAddr {
        match self.plan.gateway {
            GatewayKind::Envoy => daemon.grpc,
            GatewayKind::Direct | GatewayKind::Nginx => daemon.http,
        }
    }

    /// Whom the clients of a region ask.
    pub(super) fn targets(&self, region: usize) -> Vec<Arc<Target>> {
        let target = |address| Arc::new(Target::new(address, self.plan.gateway));
        match self.gateways.get(region) {
            Some(gateway) => vec![target(gateway.address)],
            None => {
                let of_region = self.daemons.iter().filter(|daemon| daemon.region == region);
                of_region.map(|daemon| target(daemon.http)).collect()
            }
        }
    }

    /// Every daemon's certificate, folder and configuration.
    fn make(&mut self) -> anyhow::Result<()> {
        for (region, planned) in self.plan.regions.iter().enumerate() {
            for daemon in 0..planned.daemons {
                let listens = free_port()?;
                let reached = self.wan.way_to(listens, region)?;
                self.members.push(Member {
                    region,
                    name: format!("{}-{daemon}", planned.name),
                    listens,
                    reached,
                });
            }
        }
        let top = self.folder.path().to_owned();
        for place in 0..self.members.len() {
            let Some(Member { region, name, .. }) = self.members.get(place) else { continue };
            self.issue(&top, &self.plan.regions[*region].name, name, name)?;
            let (region, name) = (*region, name.clone());
            let config = self.config(place);
            let mut daemon =
                Daemon::new(&self.program, top.join(format!("{name}-daemon")), (region, name), &config)?;
            if let Some(clocks) = &self.clocks {
                daemon.set_variables(clocks.variables(region));
            }
            self.daemons.push(daemon);
        }
        self.make_disks()
    }

    /// A small disk for each daemon whose disk will be full.
    fn make_disks(&mut self) -> anyhow::Result<()> {
        for fault in &self.plan.faults {
            let FaultKind::DiskFull { region, daemon } = fault.kind else { continue };
            let Some(place) = self.place_of(region, daemon) else { continue };
            let Some(member) = self.members.get(place) else { continue };
            let folder = self.folder.path().join(format!("{}-daemon", member.name)).join(DISK);
            match Disk::mount(folder)? {
                Ok(disk) => drop(self.disks.insert(place, disk)),
                Err(why) => self.unplayed.push(format!("the disk of {} did not fill: {why}", member.name)),
            }
        }
        Ok(())
    }

    fn disk_of(&self, region: usize, daemon: usize) -> Option<&Disk> {
        self.disks.get(&self.place_of(region, daemon)?)
    }

    /// The place of a region's daemon among all daemons.
    fn place_of(&self, region: usize, daemon: usize) -> Option<usize> {
        let of_region = |(_, member): &(usize, &Member)| member.region == region;
        self.members.iter().enumerate().filter(of_region).nth(daemon).map(|(place, _)| place)
    }

    /// The parts of the story that could not be played on this machine, and why.
    pub(super) fn unplayed(&self) -> &[String] {
        &self.unplayed
    }

    /// The configuration of the daemon at this place, as it is to be now.
    fn config(&self, place: usize) -> String {
        let Some(Member { region, name, listens, reached }) = self.members.get(place) else {
            return String::new();
        };
        let of_region =
            |region: usize| self.plan.regions.get(region).map_or("", |region| region.name.as_str());
        let file = |name: &str| self.folder.path().join(name).display().to_string();
        let others = self.members.iter().filter(|other| other.reached != *reached);
        let there = others.filter(|other| !self.removed.contains(&other.region));
        let join: Vec<String> = there.map(|other| other.reached.to_string()).collect();
        // A region that is added lists itself; the others list it when they are told to.
        let is_listed = |other: &usize| other == region || !self.unlisted.contains(other);
        let listed = (0..self.plan.regions.len()).filter(is_listed);
        let regions: Vec<&str> = listed.map(of_region).collect();
        let single =
            |redis: &Redis| format!("topology = \"single\"\nnodes = [\"redis://{}\"]", redis.address);
        let store = self.redis.get(region).map(single);
        let store = store.or_else(|| self.clusters.get(region).map(Cluster::nodes));
        let keys = self.plan.store_keys_max.map_or_else(String::new, |keys| format!("max_keys = {keys}\n"));
        let store = store.map_or_else(
            || if keys.is_empty() { String::new() } else { format!("[store]\n{keys}") },
            |nodes| {
                format!(
                    "[store]\nbackend = \"redis\"\n{keys}[store.redis]\n{nodes}\ntimeout = \"{STORE_TIMEOUT}\"\n"
                )
            },
        );
        // The files that have to outlive the daemon lie on its small disk, if it has one.
        let on_disk = self.plan.faults.iter().any(|fault| match fault.kind {
            FaultKind::DiskFull { region, daemon } => self.place_of(region, daemon) == Some(place),
            _ => false,
        });
        let (spool, shares) = match on_disk {
            true => {
                (format!("[audit]\nspool = \"{DISK}/spool\"\n"), format!("shares = \"{DISK}/shares.json\"\n"))
            }
            false => (String::new(), String::new()),
        };
        let database = self
            .database
            .as_ref()
            .map_or_else(String::new, |database| format!("[postgres]\nurl = \"{}\"\n", database.url()));
        // Envoy takes up to two seconds to notice, so it is given as long as a daemon gives it by itself.
        let drain = if self.plan.gateway == GatewayKind::Envoy { "" } else { "drain = \"2s\"\n" };
        format!(
            "region = \"{}\"\nnode = \"{name}\"\n[listen]\npeer = \"{listens}\"\n{drain}{store}{database}{spool}[peers]\njoin = {join:?}\n{shares}\
             advertise = \"{reached}\"\nregions = {regions:?}\n[peers.tls]\nca = {:?}\ncert = {:?}\nkey = {:?}\n",
            of_region(*region),
            file("ca/ca.pem"),
            file(&format!("{name}/node.pem")),
            file(&format!("{name}/node.key")),
        )
    }

    /// The rules file as it is now.
    fn rules(&self) -> String {
        let named = self.plan.regions.iter().zip(&self.weights).enumerate();
        let shares: Vec<(&str, u32)> = named
            .filter(|(place, _)| !self.unlisted.contains(place))
            .map(|(_, (region, weight))| (region.name.as_str(), *weight))
            .collect();
        rules_of(&self.plan, self.way, self.limit, &where_they_differ(shares))
    }

    async fn wait_until_connected(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        let there = self.plan.regions.len() - self.unlisted.len();
        for daemon in self.daemons.iter().filter(|daemon| !self.unlisted.contains(&daemon.region)) {
            loop {
                let page = get(daemon.http, "/v1/regions").await.map(|(_, text)| text).unwrap_or_default();
                if hears_all(&serde_json::from_str(&page).unwrap_or_default(), there) {
                    break;
                }
                if Instant::now() > deadline {
                    bail!("{} does not hear all other regions: {page}\n{}", daemon.name, daemon.log());
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        Ok(())
    }

    /// Something breaks, or is put right again.
    pub(super) async fn fault(&mut self, fault: &FaultKind, broken: bool) -> anyhow::Result<()> {
        match fault {
            FaultKind::Cut { regions, inward, outward } => self.wan.cut(regions, (*inward, *outward), broken),
            FaultKind::Storm { loss, jitter } if broken => self.wan.storm(*loss, *jitter),
            FaultKind::Storm { .. } => self.wan.storm(self.plan.weather.loss, self.plan.weather.jitter),
            FaultKind::Slow { regions, inward, outward, by } => {
                self.wan.slow(regions, (*inward, *outward), *by, broken);
            }
            FaultKind::Crash { region, daemon } => {
                let daemon = self.daemon(*region, *daemon)?;
                if broken { daemon.kill() } else { daemon.start()? }
            }
            FaultKind::Stop { region, daemon } => {
                self.daemon(*region, *daemon)?.signal(if broken { "STOP" } else { "CONT" })?;
            }
            FaultKind::StoreLost { region } if broken => match self.redis.get_mut(region) {
                Some(redis) => redis.start_again()?,
                None => {
                    for daemon in self.daemons.iter_mut().filter(|daemon| daemon.region == *region) {
                        daemon.kill();
                        daemon.start()?;
                    }
                }
            },
            FaultKind::Limit(limit) if broken => {
                self.limit = *limit;
                self.write_rules()?;
            }
            FaultKind::Weights(weights) if broken => {
                self.weights.clone_from(weights);
                self.write_rules()?;
            }
            FaultKind::Roll if broken => self.roll().await?,
            FaultKind::Restart { region, daemon } if broken => {
                if let Some(place) = self.place_of(*region, *daemon) {
                    self.restart(place).await?;
                }
            }
            FaultKind::Failover { region } if broken => {
                if let Some(cluster) = self.clusters.get_mut(region) {
                    cluster.fail_over()?;
                }
            }
            FaultKind::StoreFlushed { region } if broken => {
                self.redis.get(region).map_or(Ok(()), Redis::flush)?;
                self.clusters.get(region).map_or(Ok(()), Cluster::flush)?;
            }
            FaultKind::StoreLost { .. }
            | FaultKind::Limit(_)
            | FaultKind::Weights(_)
            | FaultKind::Roll
            | FaultKind::Restart { .. }
            | FaultKind::Failover { .. }
            | FaultKind::StoreFlushed { .. } => {}
            FaultKind::ClockStep { region, by } => {
                if let Some(clocks) = &mut self.clocks {
                    clocks.step(*region, if broken { *by } else { by.saturating_neg() })?;
                }
            }
            FaultKind::PrimaryLost { region } => match self.clusters.get_mut(region) {
                Some(cluster) if broken => cluster.kill_primary(),
                Some(cluster) => cluster.start_again()?,
                None => {}
            },
            FaultKind::DatabaseLost => match &mut self.database {
                Some(database) if broken => database.kill()?,
                Some(database) => database.start_again().await?,
                None => {}
            },
            FaultKind::DatabaseFrozen => {
                if let Some(database) = &self.database {
                    database.signal(if broken { "STOP" } else { "CONT" })?;
                }
            }
            FaultKind::DatabaseReadOnly => {
                if let Some(database) = &self.database {
                    database.set_read_only(broken)?;
                }
            }
            FaultKind::StoreFull { region } => {
                if let Some(redis) = self.redis.get(region) {
                    redis.set_full(broken)?;
                }
            }
            FaultKind::StoreFrozen { region } => {
                if let Some(redis) = self.redis.get(region) {
                    redis.signal(if broken { "STOP" } else { "CONT" })?;
                }
            }
            FaultKind::DiskFull { region, daemon } => {
                if let Some(disk) = self.disk_of(*region, *daemon) {
                    disk.set_full(broken)?;
                }
            }
            FaultKind::GatewayLost { region } => match self.gateways.get_mut(*region) {
                Some(gateway) if broken => gateway.kill(),
                Some(gateway) => gateway.start_again()?,
                None => {}
            },
            FaultKind::LogLost { region, daemon } if broken => {
                self.daemon(*region, *daemon)?.lose_reader();
            }
            FaultKind::Certificates if broken => {
                let all: Vec<usize> = (0..self.plan.regions.len()).collect();
                self.renew_certificates(&all, None)?;
            }
            FaultKind::CertificatesEnd { region, after } => {
                self.renew_certificates(&[*region], broken.then_some(*after))?;
            }
            FaultKind::Leave { region } if broken => self.remove(*region).await?,
            FaultKind::Join { region, listed } if broken => self.add(*region, *listed).await?,
            FaultKind::Renamed { region, daemon } if broken => self.rename(*region, *daemon).await?,
            FaultKind::LogLost { .. }
            | FaultKind::Certificates
            | FaultKind::Leave { .. }
            | FaultKind::Join { .. }
            | FaultKind::Renamed { .. } => {}
        }
        Ok(())
    }

    /// `/metrics` of every daemon; empty where one does not answer.
    pub(super) async fn pages(&self) -> Vec<Page> {
        let mut pages = Vec::new();
        for daemon in &self.daemons {
            let page = tokio::time::timeout(Duration::from_secs(1), get(daemon.http, "/metrics")).await;
            let metrics = page.ok().flatten().map(|(_, page)| page).unwrap_or_default();
            pages.push(Page { daemon: daemon.name.clone(), region: daemon.region, metrics });
        }
        pages
    }

    /// Returns what PostgreSQL remembers of the denials that clients saw, once it has had time to hear of
    /// all.
    pub(super) async fn remembered(&self, seen: u64) -> anyhow::Result<Option<Remembered>> {
        let Some(database) = &self.database else { return Ok(None) };
        let deadline = Instant::now() + PATIENCE;
        loop {
            let dropped = dropped(&self.pages().await);
            let rows = database.denials().unwrap_or_default().len();
            if crate::number::place(rows) + dropped >= seen || Instant::now() > deadline {
                // Long enough for what would be written twice.
                tokio::time::sleep(Duration::from_secs(2)).await;
                return Ok(Some(Remembered { denials: database.denials()?, dropped }));
            }
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
    }

    fn write_rules(&self) -> anyhow::Result<()> {
        let rules = self.rules();
        self.daemons.iter().try_for_each(|daemon| daemon.set_rules(&rules))
    }

    fn daemon(&mut self, region: usize, daemon: usize) -> anyhow::Result<&mut Daemon> {
        let mut of_region = self.daemons.iter_mut().filter(|known| known.region == region);
        of_region.nth(daemon).with_context(|| format!("region {region} has no daemon {daemon}"))
    }
}

/// Records that these daemons say they dropped.
fn dropped(pages: &[Page]) -> u64 {
    let lines = pages.iter().flat_map(|page| page.metrics.lines());
    let counts = lines.filter(|line| line.starts_with("tidegate_audit_dropped_total"));
    counts.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
}

/// Weights of regions, if they are not all the same: a rule without any divides its limit equally.
pub(super) fn where_they_differ(shares: Vec<(&str, u32)>) -> Vec<(&str, u32)> {
    let first = shares.first().map(|(_, weight)| *weight);
    if shares.iter().any(|(_, weight)| Some(*weight) != first) { shares } else { Vec::new() }
}

/// The rules file that holds a plan's limit by this mode, with this limit and these weights of regions; none:
/// all the same.
pub(super) fn rules_of(plan: &Plan, way: Way, limit: u32, shares: &[(&str, u32)]) -> String {
    let rule = &plan.rule;
    let algorithm = serde_json::json!(rule.algorithm);
    let who = if plan.gateway == GatewayKind::Nginx { "api_key" } else { "user" };
    let mut text = format!(
        "[[rules]]\nname = \"world\"\nper = [\"{who}\"]\nalgorithm = {algorithm}\nlimit = {limit}\nwindow = \"{}\"\n",
        format_span(rule.window)
    );
    if !windowed(rule.algorithm) {
        text += &format!("burst = {}\n", rule.burst);
    }
    text += &format!("[rules.global]\nmode = \"{}\"\n", way.word());
    if way == Way::Gossip {
        text += &format!("on_partition = \"{}\"\n", partition_word(rule.on_partition));
    }
    if !shares.is_empty() {
        let shares: Vec<String> =
            shares.iter().map(|(region, weight)| format!("{region} = {weight}")).collect();
        text += &format!("shares = {{ {} }}\n", shares.join(", "));
    }
    text
}

/// Returns whether this page of `/v1/regions` says that all of so many regions are heard, and none was just
/// begun.
pub(super) fn hears_all(page: &Value, regions: usize) -> bool {
    let peers = page.get("peers").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let is = |peer: &Value, name: &str| peer.get(name).and_then(Value::as_bool) == Some(true);
    let heard: std::collections::BTreeSet<&str> = peers
        .iter()
        .filter(|peer| is(peer, "connected") && is(peer, "live"))
        .filter_map(|peer| peer.get("region")?.as_str())
        .collect();
    let begins = page.get("rules").is_some_and(|rules| rules.to_string().contains("\"start\""));
    heard.len() + 1 >= regions && !begins
}

fn can_be_played(plan: &Plan, way: Way) -> anyhow::Result<()> {
    let refuse = |why: &str| Err(BadInput(format!("{}: {why}", plan.name)).into());
    if !matches!(way, Way::Gossip | Way::Split | Way::Escrow) {
        return refuse("real daemons hold a limit by gossip, split or escrow");
    }
    let any = |is: fn(&FaultKind) -> bool| plan.faults.iter().any(|fault| is(&fault.kind));
    if !plan.database && any(FaultKind::is_of_the_database) {
        return refuse("what happens to PostgreSQL needs database = true");
    }
    for fault in &plan.faults {
        let (region, needs): (usize, &[StoreKind]) = match fault.kind {
            FaultKind::PrimaryLost { region } | FaultKind::Failover { region } => {
                (region, &[StoreKind::Cluster])
            }
            FaultKind::StoreFull { region } | FaultKind::StoreFrozen { region } => {
                (region, &[StoreKind::Redis])
            }
            FaultKind::StoreFlushed { region } => (region, &[StoreKind::Redis, StoreKind::Cluster]),
            // A cluster loses one primary (primary-lost), and not everything at once.
            FaultKind::StoreLost { region } => (region, &[StoreKind::Memory, StoreKind::Redis]),
            _ => continue,
        };
        if !needs.contains(&plan.store_of(region)) {
            let known = StoreKind::WORDS.iter().filter(|(_, kind)| needs.contains(kind));
            let words: Vec<String> = known.map(|(word, _)| format!("{word:?}")).collect();
            return refuse(&format!("{} needs store = {}", fault.kind.word(), words.join(" or ")));
        }
    }
    if !plan.database && any(|kind| matches!(kind, FaultKind::DiskFull { .. })) {
        return refuse("disk-full needs database = true: the spool of the audit log is what fills");
    }
    if plan.gateway == GatewayKind::Direct && any(|kind| matches!(kind, FaultKind::GatewayLost { .. })) {
        return refuse("gateway-lost needs a gateway: \"envoy\" or \"nginx\"");
    }
    let changes = any(|kind| matches!(kind, FaultKind::Join { .. } | FaultKind::Leave { .. }));
    if changes
        && (plan.gateway != GatewayKind::Direct || plan.regions.iter().any(|region| region.weight != 1))
    {
        return refuse("join and leave need regions of the same weight that clients ask themselves");
    }
    if way == Way::Gossip && any(|kind| matches!(kind, FaultKind::Leave { .. })) {
        return refuse("leave needs shares: by gossip no region has one to give away");
    }
    if plan.gateway != GatewayKind::Direct && plan.demand.cost != 1 {
        return refuse("a request through a gateway costs 1");
    }
    let fits = |(place, region): (usize, &Region)| region.daemons == 1 || !plan.counts_in_memory(place);
    if plan.regions.iter().enumerate().all(fits) {
        return Ok(());
    }
    refuse("several daemons of a region need store = \"redis\" or \"cluster\"")
}

fn tidegate(program: &Path, folder: &Path, arguments: &[&str]) -> anyhow::Result<()> {
    let mut command = Command::new(program);
    let ran = command.args(arguments).current_dir(folder).output();
    let ran = ran.with_context(|| {
        format!(
            "{} cannot be run: build it with `cargo build --workspace`, or name it with --tidegate",
            program.display()
        )
    })?;
    if !ran.status.success() {
        bail!("tidegate {}: {}", arguments.join(" "), String::from_utf8_lossy(&ran.stderr));
    }
    Ok(())
}

/// The daemon's program beside this one.
pub(super) fn program(named: Option<&PathBuf>) -> anyhow::Result<PathBuf> {
    let path = match named {
        Some(path) => path.clone(),
        None => std::env::current_exe()?.with_file_name("tidegate"),
    };
    std::path::absolute(&path).with_context(|| format!("{} is no path", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_names_shares_only_where_they_are_given() {
        let text = "[rule]\nlimit = 10\nwindow = \"1s\"\n[demand]\npattern = \"bal2\"\n";
        let plan = crate::plan::read("s.toml", text).unwrap();
        let rules = |shares: &[(&str, u32)]| rules_of(&plan, Way::Split, 10, shares);
        assert!(!rules(&where_they_differ(vec![("eu", 1), ("us", 1)])).contains("shares"));
        let gone = rules(&where_they_differ(vec![("eu", 1), ("us", 0)]));
        assert!(gone.contains("shares = { eu = 1, us = 0 }"), "{gone}");
        assert!(rules(&[("eu", 1), ("us", 1)]).contains("shares = { eu = 1, us = 1 }"));
    }
}
