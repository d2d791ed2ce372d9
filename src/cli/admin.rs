//! `tidegate admin`: tokens for the admin routes.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::{Subcommand, ValueEnum};

use super::{Ended, Failure, say, try_say, why_lost};
use crate::daemon;
use crate::engine::admin::Role;

/// Makes tokens for the admin routes.
#[derive(Debug, Subcommand)]
pub(super) enum Admin {
    /// Makes a token: prints it once, and its hashed entry for tokens.toml, or adds that to a file.
    Token {
        /// Whose it is; changes are recorded under this name.
        name: String,
        /// What it may do.
        #[arg(long, value_enum)]
        role: Roles,
        /// Adds the entry to this file instead of printing it; a daemon notices within a second.
        #[arg(long)]
        add_to: Option<PathBuf>,
        /// Prints token and entry as JSON.
        #[arg(long)]
        json: bool,
    },
}

/// The roles as the command line takes them.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum Roles {
    /// Looks.
    Viewer,
    /// Changes rules, quotas and users.
    Operator,
    /// Does everything.
    Admin,
}

impl Admin {
    /// Runs it.
    pub(super) fn run(self) -> Ended {
        let Self::Token { name, role, add_to, json } = self;
        let role = match role {
            Roles::Viewer => Role::Viewer,
            Roles::Operator => Role::Operator,
            Roles::Admin => Role::Admin,
        };
        let made = daemon::make_token(&name, role).map_err(Failure::Usage)?;
        if let Some(path) = &add_to {
            add(path, &made.entry)?;
        }
        let is_shown = if json {
            let (token, entry) = (&made.token, &made.entry);
            try_say(serde_json::json!({ "name": name, "role": role, "token": token, "entry": entry }))
        } else {
            try_say(&made.token)
        };
        if let Some(path) = add_to.as_ref().filter(|_| !is_shown) {
            let (file, why) = (path.display(), why_lost());
            return Err(Failure::Failed(anyhow::anyhow!(
                "the entry of {name} was added to {file}, and the token itself is lost: {why}. It cannot be \
                 shown again: take its entry out of the file, and make another"
            )));
        }
        if !json && add_to.is_none() {
            say(format_args!(
                "\nThis is the only time it is shown. Its entry for admin.tokens:\n\n{}",
                made.entry
            ));
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Adds an entry at the end of the file, which only its owner may read.
fn add(path: &Path, entry: &str) -> anyhow::Result<()> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let mut options = std::fs::OpenOptions::new();
    let file = options.create(true).append(true).mode(0o600).open(path);
    let mut file = file.with_context(|| format!("{} cannot be written", path.display()))?;
    let begins = file.metadata().is_ok_and(|metadata| metadata.len() == 0);
    let separator = if begins { "" } else { "\n" };
    file.write_all(format!("{separator}{entry}").as_bytes())
        .with_context(|| format!("{} cannot be written", path.display()))
}
