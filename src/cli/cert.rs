//! `tidegate cert`: the certificates with which daemons know each other, from their first day to their last.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Subcommand;

use super::{Ended, say};
use crate::core::regions::NodeName;
use crate::core::time::Span;
use crate::daemon::certificate::{self, Description};
use crate::daemon::operator;
use crate::daemon::present;
use crate::daemon::renewal::{self, RenewalTerms};
use crate::daemon::revocation::{self, Revoked};
use crate::engine::clock::Clock;

/// Makes, shows, renews and revokes certificates of daemons.
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
        /// Does nothing where an authority that can sign lies there already.
        #[arg(long)]
        if_missing: bool,
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
        /// For how many days it is valid. Renew it before: `tidegate cert renew`.
        #[arg(long, default_value_t = days(certificate::NODE_VALID), value_parser = clap::value_parser!(u64).range(1..=DAYS_MAX))]
        days: u64,
        /// Does nothing where a valid certificate of the same names and authority lies there already.
        #[arg(long)]
        if_missing: bool,
    },
    /// An operator's certificate, with which `tidegate regions` signs changes for all daemons:
    /// DIR2/operator.pem and DIR2/operator.key. Keep both off the daemons.
    Operator {
        /// The folder of `tidegate cert ca`.
        #[arg(long)]
        ca: PathBuf,
        /// The operator's name, as the logs show it.
        #[arg(long)]
        name: String,
        /// The folder to write into; made if it is not there.
        #[arg(long)]
        out: PathBuf,
        /// For how many days it is valid. What it signed until then holds on.
        #[arg(long, default_value_t = days(certificate::NODE_VALID), value_parser = clap::value_parser!(u64).range(1..=DAYS_MAX))]
        days: u64,
    },
    /// Issues a daemon's certificate anew, with the same names, in the place of the one before.
    ///
    /// A daemon that runs takes it within seconds. Its key is a new one, unless it is to be kept. The two
    /// files go together at every instant.
    Renew {
        /// The folder of `tidegate cert ca`.
        #[arg(long)]
        ca: PathBuf,
        /// The folder with the daemon's node.pem and node.key.
        #[arg(long)]
        from: PathBuf,
        /// For how many days the new one is valid.
        #[arg(long, default_value_t = days(certificate::NODE_VALID), value_parser = clap::value_parser!(u64).range(1..=DAYS_MAX))]
        days: u64,
        /// Keeps the key.
        #[arg(long)]
        keep_key: bool,
        /// Renews also a certificate that another authority signed.
        #[arg(long)]
        change_authority: bool,
        /// Shows what would be written, and writes nothing.
        #[arg(long)]
        dry_run: bool,
    },
    /// Revokes certificates of daemons: adds them to DIR/revoked.pem, which every daemon is given.
    Revoke {
        /// The folder of `tidegate cert ca`.
        #[arg(long, value_name = "DIR")]
        ca: PathBuf,
        /// Certificates of daemons that this authority signed.
        #[arg(required_unless_present = "serials", value_name = "FILE")]
        files: Vec<PathBuf>,
        /// The serial number of a certificate whose file is lost; may be repeated.
        #[arg(long = "serial", value_name = "HEX")]
        serials: Vec<String>,
    },
    /// Shows whom certificates name and until when they are valid. Exit code 1 where one is not valid now.
    Show {
        /// Certificate files, such as node.pem and ca.pem, and lists of revoked certificates.
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

fn say_all(described: &Description) {
    for line in &described.lines {
        say(line);
    }
}

/// Shows a file. `false`: a certificate in it is not valid now.
fn shown(file: &Path) -> Result<bool, anyhow::Error> {
    let described = certificate::describe(file, Clock::System.now())?;
    say_all(&described);
    Ok(described.is_valid)
}

/// Signs a certificate in the place of the one in `from`, and writes it unless this is a `dry_run`.
fn renewed(ca: &Path, from: &Path, terms: RenewalTerms, dry_run: bool) -> Result<(), anyhow::Error> {
    let renewal = renewal::prepare(ca, from, terms, Clock::System.now())?;
    let NodeName { region, node } = renewal.name();
    let path = from.join("node.pem");
    if dry_run {
        say(format_args!("{} would be renewed for node {node} of region {region}", path.display()));
    } else {
        renewal.write()?;
        let key = if terms.keep_key { "its key is the same" } else { "node.key is new, too" };
        say(format_args!("{} is renewed for node {node} of region {region}; {key}", path.display()));
    }
    say_all(&renewal.describe()?);
    Ok(())
}

impl Cert {
    /// Runs it.
    pub(super) fn run(self) -> Ended {
        match self {
            Self::Ca { out, if_missing: true, .. }
                if present::has_authority(&out, Clock::System.now()).map_err(anyhow::Error::from)? =>
            {
                say(format_args!("{} is there already", out.join("ca.pem").display()));
                shown(&out.join("ca.pem"))?;
            }
            Self::Ca { out, days, if_missing: _ } => {
                let valid = Span::from_secs(days * DAY);
                certificate::write_ca(&out, Clock::System.now(), valid).map_err(anyhow::Error::from)?;
                say(format_args!(
                    "{} and ca.key: keep the key safe, every daemon needs only ca.pem",
                    out.join("ca.pem").display()
                ));
                shown(&out.join("ca.pem"))?;
            }
            Self::Show { files } => {
                let mut all = true;
                for file in &files {
                    all &= shown(file)?;
                }
                return Ok(if all { ExitCode::SUCCESS } else { ExitCode::FAILURE });
            }
            Self::Issue { ca, region, node, out, days, if_missing } => {
                let valid = Span::from_secs(days * DAY);
                let name = NodeName { region: region.clone(), node: node.clone() };
                let there = || present::has_node(&ca, &name, &out, Clock::System.now());
                if if_missing && there().map_err(anyhow::Error::from)? {
                    say(format_args!("{} is there already", out.join("node.pem").display()));
                    shown(&out.join("node.pem"))?;
                    return Ok(ExitCode::SUCCESS);
                }
                certificate::write_node(&ca, &name, &out, Clock::System.now(), valid)
                    .map_err(anyhow::Error::from)?;
                say(format_args!(
                    "{} and node.key name node {node} of region {region}",
                    out.join("node.pem").display()
                ));
                shown(&out.join("node.pem"))?;
            }
            Self::Operator { ca, name, out, days } => {
                let valid = Span::from_secs(days * DAY);
                operator::write(&ca, &name, &out, Clock::System.now(), valid).map_err(anyhow::Error::from)?;
                let path = out.join("operator.pem");
                say(format_args!(
                    "{} and operator.key sign for operator {name}: no daemon needs them",
                    path.display()
                ));
                shown(&path)?;
            }
            Self::Renew { ca, from, days, keep_key, change_authority, dry_run } => {
                let valid = Span::from_secs(days * DAY);
                renewed(&ca, &from, RenewalTerms { valid, keep_key, change_authority }, dry_run)?;
            }
            Self::Revoke { ca, files, serials } => {
                let revoked = revocation::revoke(&ca, &files, &serials, Clock::System.now());
                let Revoked { path, certificates } = revoked.map_err(anyhow::Error::from)?;
                let what = if certificates == 1 { "certificate" } else { "certificates" };
                say(format_args!(
                    "{} revokes {certificates} {what}: give it to every daemon (peers.tls.revoked)",
                    path.display()
                ));
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}
