//! `tidegate completions` and `tidegate man`: what shells and readers of manuals are given, made from the
//! commands themselves.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::{Arguments, Ended, say_bytes};

/// Prints what a shell reads to complete commands and flags.
#[derive(Debug, Args)]
pub(super) struct Completions {
    /// The shell.
    shell: Shell,
}

/// Writes a manual page for each command.
#[derive(Debug, Args)]
pub(super) struct Man {
    /// The folder to write into; made if it is not there.
    dir: PathBuf,
}

impl Completions {
    /// Prints them.
    pub(super) fn run(&self) -> Ended {
        let mut text = Vec::new();
        clap_complete::generate(self.shell, &mut Arguments::command(), "tidegate", &mut text);
        say_bytes(&text);
        Ok(ExitCode::SUCCESS)
    }
}

impl Man {
    /// Writes them.
    pub(super) fn run(&self) -> Ended {
        let context = || format!("cannot write manual pages into {}", self.dir.display());
        std::fs::create_dir_all(&self.dir).with_context(context)?;
        clap_mangen::generate_to(Arguments::command(), &self.dir).with_context(context)?;
        Ok(ExitCode::SUCCESS)
    }
}
