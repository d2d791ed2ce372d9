//! Rules of other rate limiters, read from their files and written as ours.

use std::path::PathBuf;

use crate::database::{envoy, file, nginx};

/// The outcome of an import of another rate limiter's files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Foreign {
    /// Our rules, as TOML; they were read back without a problem.
    pub toml: String,
    /// Parts that could not be expressed, or not exactly: a sentence each, with its place.
    pub inexact: Vec<String>,
    /// Keys that are attributes of ours, and so mean more than their text: a sentence each, with its place.
    pub notes: Vec<String>,
}

/// Reads files of the Envoy rate limit service.
///
/// # Errors
/// A file that cannot be read, or rules that are none here: a sentence each.
pub fn import_envoy(files: &[PathBuf]) -> Result<Foreign, Vec<String>> {
    let imported = read(files, envoy::import)?;
    foreign(envoy::to_toml(imported.rules), imported.inexact, imported.notes)
}

/// Reads files of nginx, as if one included the others.
///
/// # Errors
/// A file that cannot be read, or rules that are none here: a sentence each.
pub fn import_nginx(files: &[PathBuf]) -> Result<Foreign, Vec<String>> {
    let imported = read(files, nginx::import)?;
    foreign(nginx::to_toml(imported.rules), imported.inexact, imported.notes)
}

/// Has files read by their names and texts, and says of every one why it cannot be.
fn read<T, E: ToString>(
    files: &[PathBuf],
    import: impl FnOnce(&[(String, String)]) -> Result<T, Vec<E>>,
) -> Result<T, Vec<String>> {
    let (mut texts, mut problems) = (Vec::new(), Vec::new());
    for path in files {
        match file::read(path) {
            Ok(text) => texts.push((path.display().to_string(), text)),
            Err(problem) => problems.push(problem.to_string()),
        }
    }
    match import(&texts) {
        Ok(imported) if problems.is_empty() => Ok(imported),
        Ok(_) => Err(problems),
        Err(unread) => {
            problems.extend(unread.iter().map(ToString::to_string));
            Err(problems)
        }
    }
}

fn foreign(
    toml: Result<String, toml::ser::Error>,
    inexact: Vec<String>,
    notes: Vec<String>,
) -> Result<Foreign, Vec<String>> {
    let toml = toml.map_err(|error| vec![format!("the rules cannot be written: {error}")])?;
    // Values that no rule can have show here, at their rule.
    crate::database::document::from_toml("the rules that came of it", &toml, &[])
        .map_err(|problems| problems.iter().map(ToString::to_string).collect::<Vec<_>>())?;
    Ok(Foreign { toml, inexact, notes })
}
