//! `[events]`: where events are sent.

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::as_text;
use super::path::path;
use crate::core::time::Span;
use crate::core::written::{Fields, Problems};

/// Longest address of a receiver, in bytes.
pub(super) const URL_BYTES_MAX: usize = 4_096;
/// The most bytes that may wait for the receiver.
const SPOOL_BYTES_DEFAULT: u64 = 64 << 20;

/// `[events]`: where events are sent. Without it they are only logged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Events {
    /// `url`: where batches of events are posted; `https://` or `http://`.
    #[serde(serialize_with = "without_query")]
    pub url: String,
    /// `secret`: the file of the secret that signs them, at least 16 bytes; read again for each batch.
    /// Relative paths begin at the configuration file's folder.
    pub secret: PathBuf,
    /// `spool`: the folder where events wait for the receiver. Relative as `secret`. Default
    /// `"events-spool"`.
    pub spool: PathBuf,
    /// `spool_max_bytes`: how much may wait there, from 1 MiB; what comes then is dropped and counted.
    /// Default `67_108_864`.
    pub spool_max_bytes: u64,
    /// `timeout`: for one attempt, from 100ms to 60s. Default `"10s"`.
    #[serde(serialize_with = "as_text")]
    pub timeout: Span,
    /// `keep`: how long a batch is sent again and again before it is given up, from 1m to 30d. Default
    /// `"1d"`.
    #[serde(serialize_with = "as_text")]
    pub keep: Span,
}

/// Tokens stand in queries, and in what comes before the host.
#[expect(clippy::ptr_arg, reason = "serde passes references")]
pub(super) fn without_query<S: serde::Serializer>(url: &String, serializer: S) -> Result<S::Ok, S::Error> {
    let shown = url.split(['?', '#']).next().unwrap_or_default();
    match (shown.split_once("://"), shown.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => serializer.serialize_str(&format!("{scheme}://…@{host}")),
        _ => serializer.serialize_str(shown),
    }
}

/// Reads `[events]`; `None` where there is none.
pub(super) fn read(fields: &mut Fields<'_>, folder: &Path, problems: &mut Problems<'_>) -> Option<Events> {
    let mut table = fields.table("events", problems)?;
    for (name, hint) in [
        ("url", "where to, such as \"https://hooks.example/tidegate\""),
        ("secret", "the file that signs them"),
    ] {
        if !table.has(name) {
            problems.report(table.at, format!("{name} is missing: [events] says {hint}"));
        }
    }
    let url = table.text("url", URL_BYTES_MAX, problems).unwrap_or_default().to_owned();
    let host = ["https://", "http://"].iter().find_map(|scheme| url.strip_prefix(scheme));
    if let (Some(entry), true) =
        (table.take("url"), host.is_none_or(|host| host.is_empty() || host.contains(' ')))
    {
        problems.report(&entry.node.at, "url must be https://host/path or http://host/path");
    }
    let secret = path(&mut table, "secret", folder, problems).unwrap_or_default();
    let spool = path(&mut table, "spool", folder, problems).unwrap_or_else(|| folder.join("events-spool"));
    let bytes = table.integer("spool_max_bytes", 1 << 20, 1 << 50, problems);
    let timeout = table.span("timeout", Span::from_millis(100), Span::from_secs(60), problems);
    let keep = table.span("keep", Span::from_secs(60), Span::from_secs(30 * 86_400), problems);
    table.finish(problems);
    Some(Events {
        url,
        secret,
        spool,
        spool_max_bytes: bytes.and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(SPOOL_BYTES_DEFAULT),
        timeout: timeout.unwrap_or(Span::from_secs(10)),
        keep: keep.unwrap_or(Span::from_secs(86_400)),
    })
}
