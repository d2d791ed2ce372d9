//! Rules of other rate limiters, read from their files and written as ours.

use std::path::PathBuf;

use crate::database::imported::{self, Imported, Unread};
use crate::database::{envoy, file, kong, limitador, nginx};

/// The outcome of an import of another rate limiter's files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Foreign {
    /// Our rules, as TOML; they were read back without a problem.
    pub toml: String,
    /// Parts that could not be expressed, or not exactly: a sentence each, with its place.
    pub inexact: Vec<String>,
    /// Attributes that mean more here, or have to be sent: a sentence each, with its place.
    pub notes: Vec<String>,
}

/// Reads files of the Envoy rate limit service.
///
/// # Errors
/// A file that cannot be read, or rules that are none here: a sentence each.
pub fn import_envoy(files: &[PathBuf]) -> Result<Foreign, Vec<String>> {
    import(files, envoy::import)
}

/// Reads declarative files of Kong, as if they were one.
///
/// # Errors
/// A file that cannot be read, or rules that are none here: a sentence each.
pub fn import_kong(files: &[PathBuf]) -> Result<Foreign, Vec<String>> {
    import(files, kong::import)
}

/// Reads files of Limitador's limits.
///
/// # Errors
/// A file that cannot be read, or rules that are none here: a sentence each.
pub fn import_limitador(files: &[PathBuf]) -> Result<Foreign, Vec<String>> {
    import(files, limitador::import)
}

/// Reads files of nginx, as if one included the others.
///
/// # Errors
/// A file that cannot be read, or rules that are none here: a sentence each.
pub fn import_nginx(files: &[PathBuf]) -> Result<Foreign, Vec<String>> {
    import(files, nginx::import)
}

/// Has files read by their names and texts, and says of every one why it cannot be.
fn import(
    files: &[PathBuf],
    read: impl FnOnce(&[(String, String)]) -> Result<Imported, Vec<Unread>>,
) -> Result<Foreign, Vec<String>> {
    let (mut texts, mut problems) = (Vec::new(), Vec::new());
    for path in files {
        match file::read_once(path) {
            Ok(text) => texts.push((path.display().to_string(), text)),
            Err(problem) => problems.push(problem.to_string()),
        }
    }
    match read(&texts) {
        Ok(imported) if problems.is_empty() => foreign(imported),
        Ok(_) => Err(problems),
        Err(unread) => {
            problems.extend(unread.iter().map(ToString::to_string));
            Err(problems)
        }
    }
}

fn foreign(Imported { rules, inexact, notes }: Imported) -> Result<Foreign, Vec<String>> {
    let toml =
        imported::to_toml(rules).map_err(|error| vec![format!("the rules cannot be written: {error}")])?;
    // Values that no rule can have show here, at their rule.
    crate::database::document::from_toml("the rules that came of it", &toml, &[])
        .map_err(|problems| problems.iter().map(ToString::to_string).collect::<Vec<_>>())?;
    Ok(Foreign { toml, inexact, notes })
}
