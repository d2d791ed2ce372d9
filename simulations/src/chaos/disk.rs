//! A small disk of its own for what a daemon has to keep, so that it can be filled.

use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};
use std::path::PathBuf;
use std::process::Command;

use anyhow::Context as _;

/// Room for a spool and the shares of a daemon that is well.
const SIZE: &str = "size=16m";
/// The file that takes all the room.
const FILLER: &str = "filler";

/// A file system in memory. It is unmounted when dropped.
#[derive(Debug)]
pub(super) struct Disk {
    folder: PathBuf,
}

impl Disk {
    /// Mounts one at this folder, which is made. The inner error says why this machine allows none: only root
    /// may mount.
    pub(super) fn mount(folder: PathBuf) -> anyhow::Result<Result<Self, String>> {
        fs::create_dir_all(&folder)?;
        let mut command = Command::new("mount");
        command.args(["-t", "tmpfs", "-o", SIZE, "tidegate-chaos"]).arg(&folder);
        Ok(match command.output() {
            Ok(mounted) if mounted.status.success() => Ok(Self { folder }),
            Ok(refused) => Err(String::from_utf8_lossy(&refused.stderr).trim().to_owned()),
            Err(error) => Err(format!("mount cannot be started: {error}")),
        })
    }

    /// Takes all the room that is left, or gives it back.
    pub(super) fn set_full(&self, full: bool) -> anyhow::Result<()> {
        let filler = self.folder.join(FILLER);
        if !full {
            return fs::remove_file(&filler).with_context(|| format!("{} stays", filler.display()));
        }
        let mut file = File::create(&filler)?;
        // Ever smaller pieces, so that not a byte is left.
        for piece in [1 << 16, 1 << 12, 1] {
            let zeros = vec![0_u8; piece];
            loop {
                match file.write(&zeros) {
                    Ok(1..) => {}
                    Ok(0) => break,
                    Err(error) if error.kind() == ErrorKind::StorageFull => break,
                    Err(error) => return Err(error).context("the disk cannot be filled"),
                }
            }
        }
        Ok(())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // A process that still has a file open there loses it when it ends.
        let _ = Command::new("umount").arg("--lazy").arg(&self.folder).status();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_takes_nothing_until_there_is_room_again() {
        let folder = tempfile::tempdir().unwrap();
        let Ok(disk) = Disk::mount(folder.path().join("disk")).unwrap() else {
            println!("skipped: this user may not mount a disk");
            return;
        };
        let file = folder.path().join("disk/file");
        disk.set_full(true).unwrap();
        assert_eq!(fs::write(&file, "x").unwrap_err().kind(), ErrorKind::StorageFull);
        disk.set_full(false).unwrap();
        fs::write(&file, "x").unwrap();
        drop(disk);
        assert!(!file.exists());
    }
}
