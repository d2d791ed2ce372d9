//! A Redis cluster of three primaries and three replicas as the store of one region.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};

use super::process::{PATIENCE, Process, free_port};

const SERVERS: usize = 6;
const LOOK: Duration = Duration::from_millis(50);
/// As in `deploy/redis/local-cluster`: a replica takes over when its primary was silent for so many
/// milliseconds.
const NODE_TIMEOUT: &str = "2000";

/// Six servers. Each keeps its folder, in which it knows the others, and nothing of what it counted.
#[derive(Debug)]
pub(super) struct Cluster {
    servers: Vec<Server>,
    variables: Vec<(String, String)>,
    /// The server that is gone.
    lost: Option<usize>,
}

#[derive(Debug)]
struct Server {
    address: SocketAddr,
    folder: PathBuf,
    process: Option<Process>,
}

impl Cluster {
    /// Starts it with these environment variables, and waits until every slot is served.
    pub(super) fn start(folder: &std::path::Path, variables: Vec<(String, String)>) -> anyhow::Result<Self> {
        let servers = (0..SERVERS)
            .map(|place| {
                let folder = folder.join(place.to_string());
                std::fs::create_dir_all(&folder)?;
                Ok(Server { address: free_port()?, folder, process: None })
            })
            .collect::<anyhow::Result<Vec<_>>>()?;
        let mut cluster = Self { servers, variables, lost: None };
        (0..SERVERS).try_for_each(|place| cluster.run(place))?;
        for server in &cluster.servers {
            wait_until("a server of the cluster answers", || server.ask(&["PING"]).contains("PONG"))?;
        }
        let mut create = Command::new("redis-cli");
        create.args(["--cluster", "create"]);
        create.args(cluster.servers.iter().map(|server| server.address.to_string()));
        let made = create.args(["--cluster-replicas", "1", "--cluster-yes"]).output()?;
        if !made.status.success() {
            bail!("redis-cli --cluster create: {}", String::from_utf8_lossy(&made.stdout));
        }
        for server in &cluster.servers {
            wait_until("the cluster serves every slot", || {
                let nodes = server.ask(&["CLUSTER", "NODES"]);
                let replicas = nodes.lines().filter(|line| line.contains("slave")).count();
                replicas == SERVERS / 2 && server.ask(&["CLUSTER", "INFO"]).contains("cluster_state:ok")
            })?;
        }
        Ok(cluster)
    }

    /// Returns what a daemon's file says of it.
    pub(super) fn nodes(&self) -> String {
        let urls: Vec<String> =
            self.servers.iter().take(2).map(|server| format!("\"redis://{}\"", server.address)).collect();
        format!("topology = \"cluster\"\nnodes = [{}]", urls.join(", "))
    }

    /// Kills the primary that holds most keys.
    pub(super) fn kill_primary(&mut self) {
        self.lost = self.fullest();
        if let Some(server) = self.lost.and_then(|place| self.servers.get_mut(place)) {
            server.process = None;
        }
    }

    /// Tells the replica of the primary that holds most keys to take over, and waits until it has.
    pub(super) fn fail_over(&self) -> anyhow::Result<()> {
        let primary = self.fullest().and_then(|place| self.servers.get(place));
        let port = primary.context("the cluster has no primary")?.address.port().to_string();
        let follows = |server: &&Server| {
            let role = server.ask(&["ROLE"]);
            role.starts_with("slave") && role.lines().any(|line| line.trim() == port)
        };
        let replica = self.servers.iter().find(follows).context("the fullest primary has no replica")?;
        let said = replica.ask(&["CLUSTER", "FAILOVER"]);
        ensure!(said.trim() == "OK", "CLUSTER FAILOVER: {}", said.trim());
        wait_until("the replica has taken over", || replica.ask(&["ROLE"]).starts_with("master"))
    }

    /// Deletes all that it holds.
    pub(super) fn flush(&self) -> anyhow::Result<()> {
        for server in self.servers.iter().filter(|server| server.ask(&["ROLE"]).starts_with("master")) {
            let said = server.ask(&["FLUSHALL"]);
            ensure!(said.trim() == "OK", "FLUSHALL: {}", said.trim());
        }
        Ok(())
    }

    /// The place of the primary that holds most keys.
    fn fullest(&self) -> Option<usize> {
        let keys = |server: &Server| {
            let is_primary = server.process.is_some() && server.ask(&["ROLE"]).starts_with("master");
            is_primary.then(|| server.ask(&["DBSIZE"]).trim().parse::<u64>().unwrap_or_default())
        };
        let fullest =
            self.servers.iter().enumerate().filter_map(|(place, server)| Some((keys(server)?, place)));
        fullest.max().map(|(_, place)| place)
    }

    /// Starts the server that was killed. It is empty, and a replica from now on if another one took over.
    pub(super) fn start_again(&mut self) -> anyhow::Result<()> {
        self.lost.take().map_or(Ok(()), |place| self.run(place))
    }

    fn run(&mut self, place: usize) -> anyhow::Result<()> {
        let Some(server) = self.servers.get_mut(place) else { return Ok(()) };
        let mut command = Command::new("redis-server");
        command.args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
        command.args(["--cluster-enabled", "yes", "--cluster-node-timeout", NODE_TIMEOUT]);
        command.arg("--port").arg(server.address.port().to_string()).current_dir(&server.folder);
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        let process = Process::start(&mut command, &server.folder.join("redis.log"))
            .context("a region's store is a Redis cluster: is redis-server installed?")?;
        server.process = Some(process);
        Ok(())
    }
}

impl Server {
    /// Returns what it answers, as `redis-cli` prints it; nothing where it does not.
    fn ask(&self, words: &[&str]) -> String {
        let mut command = Command::new("redis-cli");
        command.arg("-p").arg(self.address.port().to_string()).args(words);
        command
            .output()
            .map_or_else(|_| String::new(), |output| String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

fn wait_until(what: &str, done: impl Fn() -> bool) -> anyhow::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        if Instant::now() > deadline {
            bail!("waited in vain until {what}");
        }
        std::thread::sleep(LOOK);
    }
    Ok(())
}
