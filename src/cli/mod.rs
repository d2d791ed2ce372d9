//! The command line: one file per command. Client commands speak to a daemon over HTTP.
//!
//! Exit codes: 0 ok, 1 failed, 2 usage or configuration, 3 daemon not reached, 4 denied, 5 differs (`rules
//! diff --exit-code`), 6 somebody else is at it (`audit archive`), 126 nobody knows whether the file is there
//! (`object get`).

use std::io::{self, ErrorKind, IsTerminal, Write as _};
use std::num::{IntErrorKind, ParseIntError};
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::OnceLock;

use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use crate::telemetry::log;

mod admin;
mod ask;
mod audit;
mod buckets;
mod capacity;
mod cert;
mod changes;
mod client;
mod config;
mod demo;
mod doctor;
mod examples;
mod hold;
mod keys;
mod migrate;
mod object;
mod people;
mod prose;
mod quota;
mod ratelimit;
mod regions;
mod reserve;
mod rules;
mod serve;
mod server_tls;
mod shells;
mod table;
mod tiers;
mod top;
mod transport;
mod usage;
mod users;
mod why;

/// A command that did not succeed.
#[derive(Debug)]
pub enum Failure {
    /// It failed.
    Failed(anyhow::Error),
    /// Wrong usage or configuration; each problem a line.
    Usage(String),
    /// No daemon answered.
    Unreached(String),
    /// It failed, and whoever runs it as a `restore_command` must not take that for the end of the archive.
    Unfetched(anyhow::Error),
}

impl Failure {
    /// Says it on standard error and gives the exit code.
    #[must_use]
    pub fn report(&self) -> ExitCode {
        match self {
            Self::Failed(error) => {
                log::say(fit(format_args!("error: {error:#}"), &io::stderr()));
                ExitCode::from(1)
            }
            Self::Usage(problems) => {
                log::say(fit(problems, &io::stderr()));
                ExitCode::from(2)
            }
            Self::Unreached(why) => {
                log::say(fit(format_args!("error: {why}"), &io::stderr()));
                ExitCode::from(3)
            }
            Self::Unfetched(error) => {
                log::say(fit(format_args!("error: {error:#}"), &io::stderr()));
                ExitCode::from(UNFETCHED)
            }
        }
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::Failed(error)
    }
}

/// The end of a command: its exit code, or why it failed.
pub type Ended = Result<ExitCode, Failure>;

/// The exit code of a file that may be there and was not fetched. PostgreSQL takes 1 to 125 for a file that
/// is not there, and a recovery would end before the last of its WAL.
const UNFETCHED: u8 = 126;

/// The exit code of a request that was denied.
const DENIED: u8 = 4;

/// A rate limiter that stands beside your gateways and holds limits worldwide.
///
/// Start with `tidegate demo`: three regions on this machine hold one limit together.
#[derive(Debug, Parser)]
#[command(name = "tidegate", version, max_term_width = 100)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Three regions on this machine, an ocean between them, load, and one limit held: live.
    Demo(demo::Demo),
    /// Runs the daemon.
    Serve(serve::Serve),
    /// Stands in for Envoy's rate limit service, by its environment.
    Ratelimit(ratelimit::Ratelimit),
    /// Looks at the daemon's configuration.
    #[command(subcommand)]
    Config(config::Config),
    /// Asks a daemon whether a request may pass; charges it. Exit code 0 allowed, 4 denied.
    Check(ask::Check),
    /// Says which rules decide a request and why; charges nothing.
    Explain(ask::Explain),
    /// Says why a client is limited: by which rule, who used it up, since when, until when; charges nothing.
    Why(why::Why),
    /// Shows who asks most now: keys, rules and regions, live.
    Top(top::Top),
    /// Has a request hold places of `concurrency` rules, and prints the lease. Exit code 0 allowed, 4 denied.
    Acquire(hold::Acquire),
    /// Keeps what a lease holds for another hold. Exit code 4 where it is no longer held.
    Renew(hold::Lease),
    /// Gives back what a lease holds.
    Release(hold::Lease),
    /// Reserves permits before a cost is known, and prints the reservation. Exit code 0 allowed, 4 denied.
    Reserve(reserve::Reserve),
    /// Charges what a reservation has used, and releases the rest.
    Commit(reserve::CommitArgs),
    /// Releases all that is reserved.
    Cancel(reserve::Reserved),
    /// Looks at rules and changes them.
    #[command(subcommand)]
    Rules(rules::Rules),
    /// Users, their tiers, limits of their own, and blocks.
    #[command(subcommand)]
    Users(users::Users),
    /// API keys: made here, shown once, kept as a hash.
    #[command(subcommand)]
    Keys(keys::Keys),
    /// The tiers that users and keys may have.
    #[command(subcommand)]
    Tiers(tiers::Tiers),
    /// Shows and sets what each region may spend of a rule's limit.
    #[command(subcommand)]
    Quota(quota::Quota),
    /// Shows the daemons of the cluster, their links and who is cut off; adds, drains and removes regions.
    Regions(regions::Regions),
    /// Shows sums of decisions: by time, rule, user, path or region; and what a user has left.
    Usage(usage::Usage),
    /// Shows single decisions, newest first; moves old months to the archive.
    Audit(audit::Audit),
    /// Shows what operators changed besides rules: users, keys, tiers, resets of buckets.
    Changes(changes::Changes),
    /// Shows what one bucket holds; has it count from zero.
    #[command(subcommand)]
    Buckets(buckets::Buckets),
    /// Looks at the configuration and at a daemon that runs, and says what to mend.
    Doctor(doctor::Doctor),
    /// Says what a load needs, by figures that were measured.
    Capacity(capacity::Capacity),
    /// Brings PostgreSQL's schema to this version.
    Migrate(migrate::Migrate),
    /// Makes tokens for the admin routes.
    #[command(subcommand)]
    Admin(admin::Admin),
    /// Makes the certificates with which daemons know each other.
    #[command(subcommand)]
    Cert(cert::Cert),
    /// Files of a folder or bucket, for scripts of backups.
    #[command(subcommand, hide = true)]
    Object(object::Object),
    /// Prints what a shell reads to complete commands and flags.
    Completions(shells::Completions),
    /// Writes a manual page for each command.
    Man(shells::Man),
}

/// Which daemon to speak to, and how to print.
#[derive(Debug, Args)]
pub(crate) struct Server {
    /// The daemon's HTTP address: a URL, host:port or unix:/path. Without a token the admin socket of a
    /// daemon of this user is used where there is one.
    #[arg(long, env = "TIDEGATE_SERVER", default_value = "http://127.0.0.1:8080")]
    server: String,
    /// A token for the admin routes.
    #[arg(long, env = "TIDEGATE_TOKEN", hide_env_values = true)]
    token: Option<String>,
    #[command(flatten)]
    tls: server_tls::ServerTls,
    /// Prints exactly what the API returned.
    #[arg(long)]
    json: bool,
}

/// Where the configuration is.
#[derive(Debug, Args)]
pub(crate) struct ConfigFile {
    /// The configuration file; without one, defaults and the environment hold.
    #[arg(long, env = "TIDEGATE_CONFIG")]
    config: Option<PathBuf>,
}

/// Runs what the arguments of the process ask for. A program that is called `ratelimit` stands in for Envoy's
/// rate limit service, whatever they are.
///
/// # Errors
/// A failure with its exit code, or the loss of what was printed.
pub fn run_process() -> Ended {
    let ended = match std::env::args_os().next() {
        Some(program) if ratelimit::is_called_so(&program) => ratelimit::run_ratelimit(),
        _ => run(read_arguments()),
    }?;
    match LOST.get() {
        Some(why) => Err(Failure::Failed(anyhow::anyhow!("standard output cannot be written: {why}"))),
        None => Ok(ended),
    }
}

/// Reads the arguments of the process; ends it where they are wrong, or ask for help.
fn read_arguments() -> Arguments {
    let mut command = examples::add(Arguments::command(), "");
    let read = Arguments::from_arg_matches_mut(&mut command.get_matches_mut());
    read.unwrap_or_else(|error| error.format(&mut command).exit())
}

/// Runs a command.
///
/// # Errors
/// What went wrong, with its exit code.
pub fn run(arguments: Arguments) -> Ended {
    match arguments.command {
        Command::Demo(demo) => demo.run(),
        Command::Serve(serve) => serve.run(),
        Command::Ratelimit(ratelimit) => ratelimit.run(),
        Command::Config(config) => config.run(),
        Command::Check(check) => check.check(),
        Command::Explain(explain) => explain.run(),
        Command::Why(why) => why.run(),
        Command::Top(top) => top.run(),
        Command::Acquire(acquire) => acquire.run(),
        Command::Renew(lease) => lease.renew(),
        Command::Release(lease) => lease.release(),
        Command::Reserve(reserve) => reserve.run(),
        Command::Commit(commit) => commit.run(),
        Command::Cancel(reserved) => reserved.cancel(),
        Command::Rules(rules) => rules.run(),
        Command::Users(users) => users.run(),
        Command::Keys(keys) => keys.run(),
        Command::Tiers(tiers) => tiers.run(),
        Command::Quota(quota) => quota.run(),
        Command::Regions(regions) => regions.run(),
        Command::Usage(usage) => usage.run(),
        Command::Audit(audit) => audit.run(),
        Command::Changes(changes) => changes.run(),
        Command::Migrate(migrate) => migrate.run(),
        Command::Admin(admin) => admin.run(),
        Command::Cert(cert) => cert.run(),
        Command::Buckets(buckets) => buckets.run(),
        Command::Doctor(doctor) => doctor.run(),
        Command::Capacity(capacity) => capacity.run(),
        Command::Object(object) => object.run(),
        Command::Completions(completions) => completions.run(),
        Command::Man(man) => man.run(),
    }
}

/// Reads a whole number of the command line.
///
/// # Errors
/// What is wanted instead.
fn whole<T: FromStr<Err = ParseIntError>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|error: ParseIntError| match error.kind() {
        IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => "the number is too large".to_owned(),
        _ => "a whole number is wanted, such as 10".to_owned(),
    })
}

/// Problems of a configuration, each a line.
#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn usage(problems: Vec<crate::config::Problem>) -> Failure {
    Failure::Usage(problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))
}

/// The environment. A variable that is no UTF-8 is read as nearly as can be, so that it stops nothing it does
/// not concern.
fn environment() -> impl Iterator<Item = (String, String)> {
    let text = |text: std::ffi::OsString| text.to_string_lossy().into_owned();
    std::env::vars_os().map(move |(name, value)| (text(name), text(value)))
}

/// The first reason for which something that was to be printed is lost: a disk that is full, for one.
static LOST: OnceLock<String> = OnceLock::new();

/// Prints one line on standard output. A reader that went away (`| head`) is no error; whatever else loses
/// the line fails the command when it ends.
fn say(text: impl std::fmt::Display) {
    let _ = try_say(text);
}

/// Prints one line on standard output. `false`: it is lost, since nobody reads it or nothing takes it.
fn try_say(text: impl std::fmt::Display) -> bool {
    let mut out = io::stdout().lock();
    let written = writeln!(out, "{text}").and_then(|()| out.flush());
    is_printed(written)
}

/// Prints sentences on standard output, as [`say`] prints a line; on a terminal they break at words.
fn say_prose(text: impl std::fmt::Display) {
    say(fit(text, &io::stdout()));
}

/// A terminal that is narrower than this breaks lines itself.
const WIDTH_MIN: u16 = 40;

/// Returns sentences as the terminal behind `to` shows them best; as they are where none is.
fn fit(text: impl std::fmt::Display, to: &impl IsTerminal) -> String {
    let text = text.to_string();
    let columns = to.is_terminal().then(top::terminal_size).flatten().map(|(columns, _)| columns);
    match columns.filter(|columns| *columns >= WIDTH_MIN) {
        Some(columns) => prose::wrap(&text, usize::from(columns), prose::hang),
        None => text,
    }
}

/// Prints bytes on standard output, as [`say`] prints a line.
fn say_bytes(bytes: &[u8]) {
    let mut out = io::stdout().lock();
    let _ = is_printed(out.write_all(bytes).and_then(|()| out.flush()));
}

fn is_printed(written: io::Result<()>) -> bool {
    if let Err(error) = &written
        && error.kind() != ErrorKind::BrokenPipe
    {
        LOST.get_or_init(|| error.to_string());
    }
    written.is_ok()
}

/// Returns why what [`try_say`] printed is lost.
fn why_lost() -> &'static str {
    LOST.get().map_or("nobody reads standard output", String::as_str)
}
