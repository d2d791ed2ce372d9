//! `tidegate cert`: the certificates with which daemons know each other.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;

use super::{Ended, say};
use crate::core::worldwide::NodeName;
use crate::daemon::certificate;
use crate::engine::clock::Clock;

/// Makes certificates.
#[derive(Debug, Subcommand)]
pub(super) enum Cert {
    /// A private certificate authority: DIR/ca.pem and DIR/ca.key. Keep the key off the daemons.
    Ca {
        /// The folder to write into; made if it is not there.
        #[arg(long)]
        out: PathBuf,
    },
    /// A daemon's certificate, naming its region and node: DIR2/node.pem and DIR2/node.key.
    Issue {
        /// The folder of `tidegate cert ca`.
        #[arg(long)]
        ca: PathBuf,
        /// The daemon's region.
        #[arg(long)]
        region: String,
        /// The daemon's name, unique in its region.
        #[arg(long)]
        node: String,
        /// The folder to write into; made if it is not there.
        #[arg(long)]
        out: PathBuf,
    },
}

impl Cert {
    /// Runs it.
    pub(super) fn run(self) -> Ended {
        match self {
            Self::Ca { out } => {
                certificate::write_ca(&out, Clock::System.now()).map_err(anyhow::Error::from)?;
                say(format_args!(
                    "{} and ca.key: keep the key safe, every daemon needs only ca.pem",
                    out.join("ca.pem").display()
                ));
            }
            Self::Issue { ca, region, node, out } => {
                let name = NodeName { region: region.clone(), node: node.clone() };
                certificate::write_node(&ca, &name, &out, Clock::System.now())
                    .map_err(anyhow::Error::from)?;
                say(format_args!(
                    "{} and node.key name node {node} of region {region}",
                    out.join("node.pem").display()
                ));
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}
