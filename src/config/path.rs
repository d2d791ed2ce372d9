//! Paths of the configuration.

use std::path::{Path, PathBuf};

use crate::core::written::{At, Fields, Problems, text};

/// Longest path, in bytes.
pub(super) const PATH_BYTES_MAX: usize = 4_096;

/// A path; relative ones of the file begin at its folder.
pub(super) fn path(
    fields: &mut Fields<'_>,
    key: &'static str,
    folder: &Path,
    problems: &mut Problems<'_>,
) -> Option<PathBuf> {
    let entry = fields.take(key)?;
    let text = text(&entry.node, key, PATH_BYTES_MAX, problems)?;
    if text.contains('\0') {
        problems.report(&entry.node.at, format!("{key} must be a path, without NUL"));
        return None;
    }
    match entry.node.at {
        At::Offset(_) => Some(folder.join(text)),
        At::Field(_) | At::Outside(_) => Some(PathBuf::from(text)),
    }
}
