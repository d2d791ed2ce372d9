//! The system that a story is played on: processes that it starts itself, or daemons that are there.

use std::path::Path;
use std::sync::Arc;

use super::clients::Target;
use super::deployment::Deployment;
use super::judge::{Page, Remembered};
use super::world::World;
use crate::plan::{Plan, Way};

pub(super) enum System {
    Started(Box<World>),
    Deployed(Deployment),
}

impl System {
    /// Waits until all daemons are there and hear each other.
    pub(super) async fn start(&mut self, plan: &Plan, way: Way) -> anyhow::Result<()> {
        match self {
            Self::Started(world) => world.start().await,
            Self::Deployed(deployment) => deployment.start(plan, way).await,
        }
    }

    /// Whom the clients of a region ask.
    pub(super) fn targets(&self, region: usize, plan: &Plan) -> Vec<Arc<Target>> {
        match self {
            Self::Started(world) => world.targets(region),
            Self::Deployed(deployment) => deployment.targets(region, plan.gateway),
        }
    }

    /// `/metrics` of every daemon; empty where one does not answer.
    pub(super) async fn pages(&self) -> Vec<Page> {
        match self {
            Self::Started(world) => world.pages().await,
            Self::Deployed(deployment) => deployment.pages().await,
        }
    }

    /// The fault at this place of the story begins, or is put right.
    pub(super) async fn fault(&mut self, plan: &Plan, place: usize, begins: bool) -> anyhow::Result<()> {
        match (self, plan.faults.get(place)) {
            (Self::Started(world), Some(fault)) => world.fault(&fault.kind, begins).await,
            (Self::Started(_), None) => Ok(()),
            (Self::Deployed(deployment), _) => deployment.fault(place, begins).await,
        }
    }

    /// Returns what PostgreSQL remembers of so many denials, if it can be asked.
    pub(super) async fn remembered(&self, denied: u64) -> anyhow::Result<Option<Remembered>> {
        match self {
            Self::Started(world) => world.remembered(denied).await,
            Self::Deployed(_) => Ok(None),
        }
    }

    /// The parts of the story that could not be played here, and why.
    pub(super) fn unplayed(&self) -> Vec<String> {
        match self {
            Self::Started(world) => world.unplayed().to_vec(),
            Self::Deployed(_) => Vec::new(),
        }
    }

    /// Name, region and log of each daemon whose log can be read.
    pub(super) fn logs(&self) -> Vec<(String, usize, String)> {
        let Self::Started(world) = self else { return Vec::new() };
        world.daemons.iter().map(|daemon| (daemon.name.clone(), daemon.region, daemon.log())).collect()
    }

    /// Returns the folder in which its processes have their files.
    pub(super) fn folder(&self) -> Option<&Path> {
        match self {
            Self::Started(world) => Some(world.folder()),
            Self::Deployed(_) => None,
        }
    }
}
