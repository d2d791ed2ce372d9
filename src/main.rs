//! The binary: the TLS provider, the command line, the error chain, the exit code.

use std::process::ExitCode;

use tidegate::cli;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // Fails only when one is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    match cli::run_process() {
        Ok(code) => code,
        Err(failure) => failure.report(),
    }
}
