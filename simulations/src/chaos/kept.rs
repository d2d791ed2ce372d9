//! The logs of runs that broke a promise or could not be played: a world's folder is gone with it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::clients::since_epoch;

/// Folders that stay; older ones make room for a new one.
const FOLDERS: usize = 5;
/// The endings of the files that say what happened. Certificates and what databases hold are left out.
const ENDINGS: [&str; 4] = ["log", "toml", "conf", "yaml"];
/// The most bytes that are kept of one log.
const LOG_MAX: u64 = 64 << 20;

/// Copies logs and configurations from `world` into a folder of its own below `kept`, and returns that.
pub(super) fn keep(world: &Path, kept: &Path, name: &str) -> io::Result<PathBuf> {
    make_room(kept)?;
    let to = kept.join(format!("{name}-{}", since_epoch().as_millis()));
    copy(world, &to)?;
    Ok(to)
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let (path, name) = entry.map(|entry| (entry.path(), entry.file_name()))?;
        let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
        if path.is_dir() {
            copy(&path, &to.join(name))?;
        } else if ENDINGS.contains(&ending) && path.metadata()?.len() <= LOG_MAX {
            fs::copy(&path, to.join(name))?;
        }
    }
    // A folder without anything to say.
    if fs::read_dir(to)?.next().is_none() {
        fs::remove_dir(to)?;
    }
    Ok(())
}

/// Removes the oldest folders, so that with one more there are not too many.
fn make_room(kept: &Path) -> io::Result<()> {
    fs::create_dir_all(kept)?;
    let mut folders = Vec::new();
    for entry in fs::read_dir(kept)? {
        let path = entry?.path();
        if path.is_dir() {
            folders.push((path.metadata()?.modified()?, path));
        }
    }
    folders.sort_unstable();
    let too_many = (folders.len() + 1).saturating_sub(FOLDERS);
    folders.iter().take(too_many).try_for_each(|(_, folder)| fs::remove_dir_all(folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_of_the_last_few_worlds_stay_without_their_keys() {
        let (world, kept) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let daemon = world.path().join("eu-0-daemon");
        fs::create_dir_all(&daemon).unwrap();
        fs::create_dir_all(world.path().join("ca")).unwrap();
        fs::write(daemon.join("daemon.log"), "what happened").unwrap();
        fs::write(world.path().join("ca/ca.key"), "secret").unwrap();
        let mut all = Vec::new();
        for time in 0..8 {
            all.push(keep(world.path(), kept.path(), &format!("story{time}")).unwrap());
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        let stay: Vec<bool> = all.iter().map(|folder| folder.exists()).collect();
        assert_eq!(stay, [false, false, false, true, true, true, true, true]);
        assert_eq!(fs::read_to_string(all[7].join("eu-0-daemon/daemon.log")).unwrap(), "what happened");
        assert!(!all[7].join("ca").exists());
    }
}
