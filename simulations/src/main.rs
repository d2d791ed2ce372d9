//! `sim`: the protocol between regions under virtual time, and a load generator for real daemons.
//!
//! The very code of the daemon, a network that delays and loses, and demand from a seeded generator: the same
//! seed prints the same bytes. Only `load` and `chaos` know sockets and a real clock.

mod chaos;
mod cluster;
mod compare;
mod drive;
mod load;
mod measure;
mod model;
mod pattern;
mod patterns;
mod plan;
mod report;
mod run;
mod scale;
mod virtual_world;
mod vopr;

use std::io::Write;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use virtual_world::number;

/// The allocator that the daemon has too.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Simulates regions that share a limit. In virtual time the same seed repeats exactly what happens.
#[derive(Debug, Parser)]
#[command(name = "sim", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// A scenario file: every way to hold its limit, as a table, plots and a page.
    Run(run::Settings),
    /// All demand patterns, a line each, with flags instead of a file.
    Patterns(patterns::Settings),
    /// The tables of the results page, measured again, beside the figures given there.
    Compare(compare::Settings),
    /// Random worlds under random faults, then peace; the invariants are checked at every step.
    Vopr(vopr::Vopr),
    /// Limits as people write them: overshoot, false denials and untrue waits, counted.
    People(vopr::People),
    /// The seeds that once failed, and whether every scenario can be read.
    Check(vopr::Check),
    /// Every seed twice: is what happens the same, byte for byte?
    Meta(vopr::Meta),
    /// Each safety rule of `escrow` switched off in turn: does something go wrong?
    Mutate(vopr::Mutate),
    /// The daemon's own network code, quinn included, on simulated UDP: the same seed, the same packets.
    Cluster(cluster::Settings),
    /// Real daemons, broken on purpose and judged by what their clients saw.
    Chaos(chaos::Settings),
    /// Each repair of the daemon reverted in turn, and the daemon built so: does `chaos` notice?
    Reverted(chaos::Reverted),
    /// Fifty regions and ten million keys: memory, bytes, CPU time and error.
    Scale(scale::Settings),
    /// Asks a running daemon as fast as it answers, and says what that cost.
    #[command(subcommand)]
    Load(load::Load),
}

/// The arguments cannot be used: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct BadInput(pub(crate) String);

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let mut out = std::io::stdout().lock();
    let done = match arguments.command {
        Command::Run(settings) => run::run(&settings, &mut out),
        Command::Patterns(settings) => patterns::run(&settings, &mut out),
        Command::Compare(settings) => compare::run(&settings, &mut out),
        Command::Vopr(settings) => settings.run(&mut out),
        Command::People(settings) => settings.run(&mut out),
        Command::Check(settings) => settings.run(&mut out),
        Command::Meta(settings) => settings.run(&mut out),
        Command::Mutate(settings) => settings.run(&mut out),
        Command::Cluster(settings) => cluster::run(&settings, &mut out),
        Command::Chaos(settings) => chaos::run(&settings, &mut out),
        Command::Reverted(settings) => settings.run(&mut out),
        Command::Scale(settings) => scale::run(&settings, &mut out),
        Command::Load(load) => load.run(&mut out),
    };
    let Err(error) = done else { return ExitCode::SUCCESS };
    let _ = writeln!(std::io::stderr(), "sim: {error:#}");
    ExitCode::from(match () {
        () if error.is::<BadInput>() => 2,
        () if error.is::<chaos::Unplayed>() => 3,
        () => 1,
    })
}
