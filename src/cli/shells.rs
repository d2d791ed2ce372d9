//! `tidegate completions` and `tidegate man`: what shells and readers of manuals are given, made from the
//! commands themselves.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Command, CommandFactory};
use clap_complete::Shell;

use super::{Arguments, Ended, examples, say_bytes};

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
        let mut command = Arguments::command().disable_help_subcommand(true);
        command.build();
        write_pages(&command, "", &self.dir).with_context(context)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Writes the page of a command, and of each below it. `path`: the command's words without the program's.
fn write_pages(command: &Command, path: &str, dir: &Path) -> std::io::Result<()> {
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        write_pages(sub, &examples::below(path, sub.get_name()), dir)?;
    }
    let manual = clap_mangen::Man::new(command.clone());
    let mut page = Vec::new();
    manual.render(&mut page)?;
    examples::add_to_page(&mut page, path)?;
    std::fs::write(dir.join(manual.get_filename()), page)
}
