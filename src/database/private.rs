//! Files and folders that only this daemon's user may read: they hold users, addresses and paths of other
//! people.

use std::fs::{DirBuilder, File, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

const FILE_MODE: u32 = 0o600;
const FOLDER_MODE: u32 = 0o700;

/// Makes a file, or empties the one of that name. Blocks.
///
/// # Errors
/// What the system says.
pub fn create(path: &Path) -> io::Result<File> {
    let file = File::options().write(true).create(true).truncate(true).mode(FILE_MODE).open(path)?;
    // One that was there kept its own mode.
    file.set_permissions(Permissions::from_mode(FILE_MODE))?;
    Ok(file)
}

/// Makes a folder and those above it, unless they are there: their modes are then the operator's business.
/// Blocks.
///
/// # Errors
/// What the system says.
pub fn create_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn nobody_else_reads_what_is_made_or_made_anew() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("a/b");
        create_folder(&inner).unwrap();
        assert_eq!((mode(&inner), mode(&folder.path().join("a"))), (FOLDER_MODE, FOLDER_MODE));
        let file = inner.join("file");
        std::fs::write(&file, "before").unwrap();
        std::fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
        drop(create(&file).unwrap());
        assert_eq!((mode(&file), std::fs::read(&file).unwrap()), (FILE_MODE, Vec::new()));
    }
}
