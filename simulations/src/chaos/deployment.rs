//! Daemons that somebody else started: where they answer, and the commands by which their operator breaks
//! them.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use serde_json::Value;
use tidegate::core::written::{Fields, Problems, TreeNode};

use super::answers::limit_of;
use super::clients::{Target, get, peek};
use super::judge::Page;
use super::world::{hears_all, rules_of, where_they_differ};
use crate::BadInput;
use crate::plan::{GatewayKind, Plan, Way};

/// The longest that daemons may take to answer and to hear each other before a story begins.
const PATIENCE: Duration = Duration::from_secs(30);
/// The longest that an operator's command may take.
const COMMAND_WITHIN: Duration = Duration::from_secs(60);
/// The longest that a page of a daemon may take.
const PAGE_WITHIN: Duration = Duration::from_secs(1);
const ADDRESS_BYTES_MAX: usize = 300;
const COMMAND_BYTES_MAX: usize = 4_096;
const DAEMONS_MAX: usize = 64;

/// A deployment as its file names it.
#[derive(Debug)]
pub(super) struct Deployment {
    /// In the order of the story's regions.
    regions: Vec<Deployed>,
    /// In the order of the story's faults.
    faults: Vec<Commands>,
}

/// The daemons of one region, and the gateway before them.
#[derive(Debug)]
struct Deployed {
    name: String,
    daemons: Vec<SocketAddr>,
    gateway: Option<SocketAddr>,
}

/// The commands by which an operator breaks something, and puts it right.
#[derive(Debug)]
struct Commands {
    begin: String,
    end: Option<String>,
}

impl Deployment {
    /// Reads where the regions of a story are, and how each of its faults is brought about.
    ///
    /// # Errors
    /// Every problem of the file, with its line; or what it lacks for this story.
    pub(super) fn read(path: &Path, plan: &Plan) -> anyhow::Result<Self> {
        let file = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|error| BadInput(format!("{file}: {error}")))?;
        let mut problems = Problems::new(&file, &text);
        let deployment = match TreeNode::from_toml(&text) {
            Ok(root) => whole(&root, &mut problems),
            Err((at, message)) => {
                problems.report(&at, message);
                None
            }
        };
        let Some(deployment) = deployment.filter(|_| problems.is_empty()) else {
            let problems: Vec<String> = problems.into_list().iter().map(ToString::to_string).collect();
            return Err(BadInput(problems.join("\n")).into());
        };
        deployment.of_story(&file, plan)
    }

    /// The same, with its regions in the story's order.
    fn of_story(mut self, file: &str, plan: &Plan) -> anyhow::Result<Self> {
        let refuse = |why: String| Err(BadInput(format!("{file}: {why}")).into());
        let mut regions = Vec::new();
        for planned in &plan.regions {
            let Some(place) = self.regions.iter().position(|region| region.name == planned.name) else {
                return refuse(format!(
                    "the story has a region {:?}, and the deployment has none",
                    planned.name
                ));
            };
            regions.push(self.regions.swap_remove(place));
        }
        if let Some(region) = self.regions.first() {
            return refuse(format!("the story has no region {:?}", region.name));
        }
        if self.faults.len() != plan.faults.len() {
            let (has, of) = (self.faults.len(), plan.faults.len());
            return refuse(format!(
                "{has} [[faults]] with commands, and the story has {of}: each needs its own, in order"
            ));
        }
        for (commands, fault) in self.faults.iter().zip(&plan.faults) {
            let heals = fault.lasts.0 > 0;
            if heals && commands.end.is_none() {
                return refuse(format!(
                    "{:?} needs `end`, a command that puts it right: the story does so after a while",
                    fault.kind.word()
                ));
            }
        }
        if plan.gateway != GatewayKind::Direct && regions.iter().any(|region| region.gateway.is_none()) {
            return refuse("the story asks gateways, and a region names none".to_owned());
        }
        self.regions = regions;
        Ok(self)
    }

    /// Waits until every daemon answers and hears all other regions, and makes sure that they hold the
    /// story's rule.
    pub(super) async fn start(&self, plan: &Plan, way: Way) -> anyhow::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        for (region, daemon) in self.daemons() {
            loop {
                let page = page(daemon, "/v1/regions").await;
                if hears_all(&serde_json::from_str(&page).unwrap_or_default(), plan.regions.len()) {
                    break;
                }
                if Instant::now() > deadline {
                    bail!("{daemon} of {} does not hear all other regions: {page}", region.name);
                }
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            let answer: Value =
                peek(daemon).await.with_context(|| format!("{daemon} answers no question"))?;
            let (limit, mode) = limit_of(&answer).unwrap_or_default();
            if (limit, mode.as_str()) != (u64::from(plan.rule.limit), way.word()) {
                let shares = plan.regions.iter().map(|region| (region.name.as_str(), region.weight));
                let rules = rules_of(plan, way, plan.rule.limit, &where_they_differ(shares.collect()));
                bail!(BadInput(format!(
                    "{daemon} of {} holds a limit of {limit} by {mode:?}; the story needs these rules, alone for what its clients ask:\n{rules}",
                    region.name
                )));
            }
        }
        Ok(())
    }

    fn daemons(&self) -> impl Iterator<Item = (&Deployed, SocketAddr)> {
        self.regions.iter().flat_map(|region| region.daemons.iter().map(move |daemon| (region, *daemon)))
    }

    /// Whom the clients of a region ask.
    pub(super) fn targets(&self, region: usize, kind: GatewayKind) -> Vec<Arc<Target>> {
        let Some(region) = self.regions.get(region) else { return Vec::new() };
        match region.gateway.filter(|_| kind != GatewayKind::Direct) {
            Some(gateway) => vec![Arc::new(Target::new(gateway, kind))],
            None => region.daemons.iter().map(|at| Arc::new(Target::new(*at, GatewayKind::Direct))).collect(),
        }
    }

    /// `/metrics` of every daemon; empty where one does not answer.
    pub(super) async fn pages(&self) -> Vec<Page> {
        let mut pages = Vec::new();
        for (place, region) in self.regions.iter().enumerate() {
            for daemon in &region.daemons {
                let metrics = page(*daemon, "/metrics").await;
                pages.push(Page { daemon: format!("{} ({daemon})", region.name), region: place, metrics });
            }
        }
        pages
    }

    /// Runs the operator's command that breaks something, or that puts it right.
    pub(super) async fn fault(&self, place: usize, begins: bool) -> anyhow::Result<()> {
        let Some(commands) = self.faults.get(place) else { return Ok(()) };
        let Some(command) = (if begins { Some(&commands.begin) } else { commands.end.as_ref() }) else {
            return Ok(());
        };
        let text = command.clone();
        let ran = tokio::task::spawn_blocking(move || Command::new("sh").args(["-c", &text]).output());
        let ran = tokio::time::timeout(COMMAND_WITHIN, ran).await;
        let ran = ran.with_context(|| format!("{command:?} takes longer than {COMMAND_WITHIN:?}"))???;
        if !ran.status.success() {
            bail!("{command:?} failed, {}: {}", ran.status, String::from_utf8_lossy(&ran.stderr).trim());
        }
        Ok(())
    }
}

async fn page(daemon: SocketAddr, path: &str) -> String {
    let page = tokio::time::timeout(PAGE_WITHIN, get(daemon, path)).await;
    page.ok().flatten().map(|(_, page)| page).unwrap_or_default()
}

fn whole(root: &TreeNode, problems: &mut Problems<'_>) -> Option<Deployment> {
    let mut fields = Fields::open(root, problems)?;
    let regions = fields.list("regions", problems).unwrap_or_default();
    let regions = regions.iter().filter_map(|node| deployed(node, problems)).collect();
    let faults = fields.list("faults", problems).unwrap_or_default();
    let faults = faults.iter().filter_map(|node| commands(node, problems)).collect();
    fields.finish(problems);
    Some(Deployment { regions, faults })
}

fn deployed(node: &TreeNode, problems: &mut Problems<'_>) -> Option<Deployed> {
    let mut fields = Fields::open(node, problems)?;
    let name = fields.text("name", 64, problems);
    let daemons = fields.texts("daemons", ADDRESS_BYTES_MAX, problems).unwrap_or_default();
    let gateway = fields.text("gateway", ADDRESS_BYTES_MAX, problems).map(str::to_owned);
    fields.finish(problems);
    if name.is_none() || !(1..=DAEMONS_MAX).contains(&daemons.len()) {
        problems.report(
            &node.at,
            format!("a region needs a name and from 1 to {DAEMONS_MAX} addresses in `daemons`"),
        );
    }
    let mut address = |written: &String| match written.to_socket_addrs().map(|mut all| all.next()) {
        Ok(Some(address)) => Some(address),
        Ok(None) => None,
        Err(error) => {
            problems
                .report(&node.at, format!("{written:?} is no address such as \"10.0.0.1:8080\": {error}"));
            None
        }
    };
    let daemons = daemons.iter().filter_map(&mut address).collect();
    let gateway = gateway.as_ref().and_then(&mut address);
    Some(Deployed { name: name?.to_owned(), daemons, gateway })
}

fn commands(node: &TreeNode, problems: &mut Problems<'_>) -> Option<Commands> {
    let mut fields = Fields::open(node, problems)?;
    let begin = fields.text("begin", COMMAND_BYTES_MAX, problems).map(str::to_owned);
    let end = fields.text("end", COMMAND_BYTES_MAX, problems).map(str::to_owned);
    fields.finish(problems);
    if begin.is_none() {
        problems.report(&node.at, "a fault needs `begin`, a command that breaks something");
    }
    Some(Commands { begin: begin?, end })
}
