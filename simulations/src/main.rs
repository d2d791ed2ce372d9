//! `sim`: the protocol between regions under virtual time, and a load generator for real daemons.
//!
//! The very code of the daemon, a network that delays and loses, and demand from a seeded generator: the same seed prints
//! the same bytes. Only `load` knows sockets and a real clock.

mod check;
mod dice;
mod load;
mod measure;
mod network;
mod pattern;
mod run;
mod store;
mod world;

use clap::{Parser, Subcommand};

/// Simulates regions that share a limit.
#[derive(Debug, Parser)]
#[command(name = "sim", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// One demand pattern, one line of figures.
    Run(run::Settings),
    /// All demand patterns, one line each.
    Patterns(run::Settings),
    /// Random faults, then peace: does every replica come to know the truth?
    Check(check::Settings),
    /// Asks a running daemon as fast as it answers, and says what that cost.
    #[command(subcommand)]
    Load(load::Load),
}

fn main() -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match Arguments::parse().command {
        Command::Run(settings) => run::one(&settings, &mut out),
        Command::Patterns(settings) => run::all(&settings, &mut out),
        Command::Check(settings) => check::run(&settings, &mut out),
        Command::Load(load) => load.run(&mut out),
    }
}
