//! `sim`: the load generator, and the protocol between regions under virtual time.

mod load;

use clap::Parser;

/// Simulations and load for Tidegate.
#[derive(Debug, Parser)]
#[command(version)]
enum Command {
    /// Ask a running daemon as fast as it answers, and report what that cost.
    #[command(subcommand)]
    Load(load::Load),
}

fn main() -> anyhow::Result<()> {
    match Command::parse() {
        Command::Load(load) => load.run(),
    }
}
