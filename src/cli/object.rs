//! `tidegate object`: files of a folder or bucket, for the scripts that make backups.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;

use super::{Ended, Failure, say};
use crate::daemon::{self, FetchError};

/// Files of a folder (file:///folder/name) or bucket (s3://bucket/name), for scripts of backups. A bucket is
/// reached by AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION and AWS_ENDPOINT.
#[derive(Debug, Subcommand)]
pub(super) enum Object {
    /// Writes a file there, as a whole or not at all.
    Put {
        /// The file.
        file: PathBuf,
        /// Its place.
        url: String,
        /// Never over another file: the same one may be there already.
        #[arg(long)]
        new: bool,
    },
    /// Fetches a file from there, as a whole or not at all. Exit code 1: there is none. 126: it may be there,
    /// and was not fetched, so that PostgreSQL stops (`restore_command`) instead of ending its recovery
    /// early.
    Get {
        /// Its place.
        url: String,
        /// Where it is to be.
        file: PathBuf,
    },
    /// Lists all files below a folder or bucket, a name a line.
    List {
        /// The folder or bucket.
        url: String,
    },
    /// Removes files; those that are not there are removed already.
    Remove {
        /// Their places.
        #[arg(required = true)]
        urls: Vec<String>,
    },
}

impl Object {
    /// Runs it.
    pub(super) fn run(self) -> Ended {
        match self {
            Self::Put { file, url, new } => daemon::put_object(&file, &url, new)?,
            Self::Get { url, file } => daemon::get_object(&url, &file).map_err(|error| match error {
                FetchError::Absent(error) => Failure::Failed(error),
                FetchError::Failed(error) => Failure::Unfetched(error),
            })?,
            Self::List { url } => daemon::list_objects(&url)?.into_iter().for_each(say),
            Self::Remove { urls } => urls.iter().try_for_each(|url| daemon::remove_object(url))?,
        }
        Ok(ExitCode::SUCCESS)
    }
}
