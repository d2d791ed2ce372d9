//! `tidegate cert`: the certificates with which daemons know each other.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Subcommand;

use super::{Ended, say};
use crate::core::regions::NodeName;
use crate::core::time::Span;
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
        /// For how many days it is valid.
        #[arg(long, default_value_t = days(certificate::CA_VALID), value_parser = clap::value_parser!(u64).range(1..=DAYS_MAX))]
        days: u64,
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
        /// For how many days it is valid. Issue the next one before, and send the daemon SIGHUP.
        #[arg(long, default_value_t = days(certificate::NODE_VALID), value_parser = clap::value_parser!(u64).range(1..=DAYS_MAX))]
        days: u64,
    },
    /// Shows whom certificates name and until when they are valid.
    Show {
        /// Certificate files, such as node.pem and ca.pem.
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
}

const DAY: u64 = 24 * 3_600;
/// Longer than a century no certificate is made for.
const DAYS_MAX: u64 = 36_500;

const fn days(span: Span) -> u64 {
    span.micros() / 1_000_000 / DAY
}

fn shown(file: &Path) -> Result<(), anyhow::Error> {
    for line in certificate::describe(file, Clock::System.now())? {
        say(line);
    }
    Ok(())
}

impl Cert {
    /// Runs it.
    pub(super) fn run(self) -> Ended {
        match self {
            Self::Ca { out, days } => {
                let valid = Span::from_secs(days * DAY);
                certificate::write_ca(&out, Clock::System.now(), valid).map_err(anyhow::Error::from)?;
                say(format_args!(
                    "{} and ca.key: keep the key safe, every daemon needs only ca.pem",
                    out.join("ca.pem").display()
                ));
                shown(&out.join("ca.pem"))?;
            }
            Self::Show { files } => files.iter().try_for_each(|file| shown(file))?,
            Self::Issue { ca, region, node, out, days } => {
                let valid = Span::from_secs(days * DAY);
                let name = NodeName { region: region.clone(), node: node.clone() };
                certificate::write_node(&ca, &name, &out, Clock::System.now(), valid)
                    .map_err(anyhow::Error::from)?;
                say(format_args!(
                    "{} and node.key name node {node} of region {region}",
                    out.join("node.pem").display()
                ));
                shown(&out.join("node.pem"))?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}
