//! The orders of an operator to daemons that run, in the order of the manual: restarts, other certificates,
//! regions that come and go.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::bail;
use tidegate::core::regions::NodeName;
use tidegate::core::time::{Span, Timestamp};
use tidegate::peer::certificate;

use super::super::clients::since_epoch;
use super::super::daemon::Daemon;
use super::{Member, PATIENCE, World, tidegate};

/// Longer than a drain and what follows it.
const ENDS_WITHIN: Duration = Duration::from_secs(20);
/// A daemon takes rules that were written within a second.
const TAKEN: Duration = Duration::from_millis(1_500);

impl World {
    /// Every daemon of these regions is given another certificate, as the manual says: issued into another
    /// folder, put in place of the old one, and a signal. It is valid for a year, or for so long.
    pub(super) fn renew_certificates(&self, regions: &[usize], valid: Option<Span>) -> anyhow::Result<()> {
        let top = self.folder.path();
        let of_regions = || self.daemons.iter().filter(|daemon| regions.contains(&daemon.region));
        for Daemon { region, name, .. } in of_regions() {
            let of_region = self.plan.regions.get(*region).map_or("", |region| region.name.as_str());
            match valid {
                None => self.issue(top, of_region, name, "renewed")?,
                Some(valid) => {
                    let named = NodeName { region: of_region.to_owned(), node: name.clone() };
                    let now = Timestamp(u64::try_from(since_epoch().as_micros()).unwrap_or(u64::MAX));
                    // The command line counts in days.
                    certificate::write_node(&top.join("ca"), &named, &top.join("renewed"), now, valid)?;
                }
            }
            for file in ["node.pem", "node.key"] {
                std::fs::rename(top.join("renewed").join(file), top.join(name).join(file))?;
            }
            std::fs::remove_dir_all(top.join("renewed"))?;
        }
        of_regions().try_for_each(|daemon| daemon.signal("HUP"))
    }

    pub(super) fn issue(&self, top: &Path, region: &str, name: &str, out: &str) -> anyhow::Result<()> {
        let of_daemon = ["--region", region, "--node", name, "--out", out];
        tidegate(&self.program, top, &[&["cert", "issue", "--ca", "ca"][..], &of_daemon].concat())
    }

    /// Restarts every daemon in order, each when the one before is ready again.
    pub(super) async fn roll(&mut self) -> anyhow::Result<()> {
        for place in 0..self.daemons.len() {
            self.restart(place).await?;
        }
        Ok(())
    }

    /// Ends a daemon in good order.
    async fn end(&mut self, place: usize) -> anyhow::Result<()> {
        let Some(daemon) = self.daemons.get_mut(place) else { return Ok(()) };
        daemon.terminate()?;
        let deadline = Instant::now() + ENDS_WITHIN;
        while !daemon.has_ended() {
            if Instant::now() > deadline {
                bail!("{} does not end:\n{}", daemon.name, daemon.log());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// Ends a daemon in good order and starts it again.
    pub(super) async fn restart(&mut self, place: usize) -> anyhow::Result<()> {
        self.end(place).await?;
        let config = self.config(place);
        let Some(daemon) = self.daemons.get_mut(place) else { return Ok(()) };
        daemon.configure(&config)?;
        daemon.start()?;
        daemon.wait_until_ready().await?;
        // The manual: the next one goes when gateways ask this one again.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let Some(daemon) = self.daemons.get(place) else { return Ok(()) };
        let address = self.asked_at(daemon);
        match self.gateways.get_mut(daemon.region) {
            Some(gateway) => gateway.asks(address).await,
            None => Ok(()),
        }
    }

    /// Adds a region: as the manual says, or before the others list it.
    pub(super) async fn add(&mut self, region: usize, listed: bool) -> anyhow::Result<()> {
        if listed {
            self.order(region, &["add", "--yes"]).await?;
            self.unlisted.retain(|unlisted| *unlisted != region);
            self.configure_others(region)?;
        }
        for place in 0..self.daemons.len() {
            let config = self.config(place);
            let Some(daemon) = self.daemons.get_mut(place).filter(|daemon| daemon.region == region) else {
                continue;
            };
            daemon.configure(&config)?;
            daemon.start()?;
        }
        Ok(())
    }

    /// Restarts a daemon with another node name and a certificate for it.
    pub(super) async fn rename(&mut self, region: usize, daemon: usize) -> anyhow::Result<()> {
        let of_region = |member: &&mut Member| member.region == region;
        let Some(member) = self.members.iter_mut().filter(of_region).nth(daemon) else { return Ok(()) };
        let name = format!("{}-renamed", member.name);
        member.name.clone_from(&name);
        let top = self.folder.path().to_owned();
        let its_region = self.plan.regions.get(region).map_or("", |region| region.name.as_str());
        self.issue(&top, its_region, &name, &name)?;
        let Some(place) = self.members.iter().position(|member| member.name == name) else { return Ok(()) };
        self.restart(place).await?;
        if let Some(daemon) = self.daemons.get_mut(place) {
            daemon.name = name;
        }
        Ok(())
    }

    /// Removes a region, as the manual says: it is drained, its daemons end, and it is removed.
    pub(super) async fn remove(&mut self, region: usize) -> anyhow::Result<()> {
        self.order(region, &["drain", "--wait", "60s"]).await?;
        for place in 0..self.daemons.len() {
            if self.daemons.get(place).is_some_and(|daemon| daemon.region == region) {
                self.end(place).await?;
            }
        }
        let deadline = Instant::now() + PATIENCE;
        // It is refused for as long as the others see a daemon of the region.
        while let Err(error) = self.order(region, &["remove"]).await {
            if Instant::now() > deadline {
                return Err(error);
            }
            tokio::time::sleep(TAKEN).await;
        }
        self.unlisted.push(region);
        self.removed.push(region);
        self.configure_others(region)?;
        self.write_rules()
    }

    /// Gives an order about a region to a daemon of another one.
    async fn order(&self, region: usize, words: &[&str]) -> anyhow::Result<()> {
        let there = |daemon: &&Daemon| daemon.region != region && !self.unlisted.contains(&daemon.region);
        let Some(asked) = self.daemons.iter().find(there) else { bail!("nobody can be asked") };
        let name = self.plan.regions.get(region).map_or("", |region| region.name.as_str());
        let server = format!("http://{}", asked.http);
        let (order, options) = words.split_at(1);
        let all = [&["regions"], order, &[name], options, &["--server", &server]].concat();
        let arguments: Vec<String> = all.into_iter().map(str::to_owned).collect();
        let (program, folder) = (self.program.clone(), self.folder.path().to_owned());
        let ran = move || {
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            tidegate(&program, &folder, &arguments)
        };
        tokio::task::spawn_blocking(ran).await?
    }

    /// Writes the configurations of the daemons of other regions anew. They take them without a restart.
    fn configure_others(&mut self, region: usize) -> anyhow::Result<()> {
        for place in 0..self.daemons.len() {
            let config = self.config(place);
            let there =
                |daemon: &&mut Daemon| daemon.region != region && !self.unlisted.contains(&daemon.region);
            if let Some(daemon) = self.daemons.get_mut(place).filter(there) {
                daemon.configure(&config)?;
            }
        }
        Ok(())
    }
}
