//! The binary: the TLS provider, the command line, the error chain, the exit code.

use std::process::ExitCode;

use clap::Parser;
use tidegate::cli::{self, Arguments};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // Fails only when one is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    match cli::run(Arguments::parse()) {
        Ok(code) => code,
        Err(failure) => failure.report(),
    }
}
