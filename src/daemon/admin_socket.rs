//! The admin socket: a Unix socket that only the user of the daemon can open. A client that opens it may
//! change everything.

use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use super::bound::Bound;
use crate::api::Listener;
use crate::config;

/// The mode bits by which others than the owner may write into the folder of the socket: none may be set.
const OTHERS_WRITE: u32 = 0o022;

/// The admin socket that a daemon has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AdminSocket {
    /// None.
    Off,
    /// The one that the command line of the same user looks for.
    Usual,
    /// This one.
    At(PathBuf),
}

impl AdminSocket {
    /// Returns the socket that is configured.
    pub(super) fn of(configured: Option<&config::AdminSocket>) -> Self {
        match configured {
            None => Self::Usual,
            Some(config::AdminSocket::Off) => Self::Off,
            Some(config::AdminSocket::At(path)) => Self::At(path.clone()),
        }
    }

    /// Opens it for the daemon that serves HTTP there. One that was asked for must open; the usual one may be
    /// missing.
    pub(super) async fn open(&self, http: Option<&Bound>) -> anyhow::Result<Option<Listener>> {
        match self {
            Self::Off => Ok(None),
            Self::At(path) => {
                let opened = Listener::bind_for(path, config::user_id()).await;
                let context = || format!("listen.admin: cannot listen on {}", path.display());
                opened.map(Some).with_context(context)
            }
            Self::Usual => {
                let Some(http) = http else { return Ok(None) };
                match usual(http).await {
                    Ok(listener) => Ok(Some(listener)),
                    Err(error) => {
                        tracing::warn!(
                            "there is no admin socket, so changes need a token (admin.tokens) or listen.admin: {error:#}"
                        );
                        Ok(None)
                    }
                }
            }
        }
    }
}

async fn usual(http: &Bound) -> anyhow::Result<Listener> {
    let path = match (http.address, http.text.strip_prefix("unix:")) {
        (Some(address), _) => {
            let folder = config::admin_folder();
            own(&folder)?;
            folder.join(config::admin_name(address))
        }
        (None, Some(path)) => config::admin_beside(Path::new(path)),
        (None, None) => bail!("the HTTP listener has no address"),
    };
    let opened = Listener::bind_for(&path, config::user_id()).await;
    opened.with_context(|| format!("cannot listen on {}", path.display()))
}

/// Makes the folder, or makes sure that nobody else can put a socket there.
fn own(folder: &Path) -> anyhow::Result<()> {
    match std::fs::DirBuilder::new().mode(0o700).create(folder) {
        Ok(()) => return Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error).with_context(|| format!("cannot make {}", folder.display())),
    }
    let found = std::fs::symlink_metadata(folder)?;
    if !found.is_dir() || found.uid() != config::user_id() || found.mode() & OTHERS_WRITE != 0 {
        bail!("{} is no folder that only this user can write to", folder.display());
    }
    Ok(())
}
