//! The file of admin tokens: read at the start, and again whenever its content changes.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use tokio_util::sync::CancellationToken;

use crate::api::{Guard, Tokens};

/// Time between two looks at the file.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// A file that was removed is believed to be gone after so many looks: an editor may be replacing it.
const GONE_LOOKS: u32 = 3;
/// Largest file, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Reads the configured tokens; a daemon does not start with a file that it cannot read.
pub(super) fn load(path: Option<&Path>) -> anyhow::Result<Option<Tokens>> {
    let Some(path) = path else { return Ok(None) };
    let text = read(path)?;
    match Tokens::from_toml(&path.display().to_string(), &text) {
        Ok(tokens) => {
            tracing::info!(tokens = tokens.len(), "admin tokens in force");
            Ok(Some(tokens))
        }
        Err(problems) => bail!("{}", super::problem_lines::lines(&problems)),
    }
}

fn read(path: &Path) -> anyhow::Result<String> {
    use std::io::Read as _;
    let hint =
        || format!("admin.tokens: {} cannot be read (`tidegate admin token` makes it)", path.display());
    let file = std::fs::File::open(path).with_context(hint)?;
    let mut text = String::new();
    file.take(FILE_BYTES_MAX).read_to_string(&mut text).with_context(hint)?;
    Ok(text)
}

/// Follows the file until `stop`. A file that cannot be used leaves the tokens before it in force; one that
/// was removed takes them along, and nobody is let in until it is there again.
pub(super) async fn watch(path: PathBuf, guard: Arc<Guard>, stop: CancellationToken) {
    // Unknown at first: what changed before this task began, or began again, is taken too.
    let mut last = None;
    let mut gone = 0;
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = tokio::time::sleep(LOOK_INTERVAL) => {}
        }
        let looked = path.clone();
        let now = tokio::task::spawn_blocking(move || read(&looked).ok()).await.ok().flatten();
        gone = if path.try_exists().is_ok_and(|exists| !exists) { gone + 1 } else { 0 };
        if gone == GONE_LOOKS {
            tracing::warn!(path = %path.display(), "the admin tokens are gone: nobody is let in");
            guard.set(Tokens::default());
        }
        if now == last {
            continue;
        }
        last = now;
        match load(Some(&path)) {
            Ok(Some(tokens)) => guard.set(tokens),
            Ok(None) => {}
            Err(error) => {
                tracing::error!("the admin tokens were refused, those before stay in force: {error:#}")
            }
        }
    }
}
