//! Real disks that are full or read-only: small file systems in memory, under the spool and under PostgreSQL.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::daemon::{RULES, block, config, rows, start, wait_for_rows};
use super::records::Server;
use super::support::daemon::Daemon;
use super::support::{eventually, not_judged};

/// A small file system. Unmounted when dropped.
struct Disk {
    folder: TempDir,
}

impl Disk {
    /// One of a few MiB; `None`, with a sentence, where this user may not mount.
    fn mount() -> Option<Self> {
        let folder = TempDir::new().unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=4m,mode=0777", "tmpfs"]).arg(folder.path());
        let mounted = mount.output();
        if mounted.as_ref().is_ok_and(|output| output.status.success()) {
            return Some(Self { folder });
        }
        not_judged(&format!("a small file system cannot be mounted here: {mounted:?}"));
        None
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn filler(&self) -> PathBuf {
        self.path().join("filler")
    }

    /// Leaves no byte.
    fn fill(&self) {
        let written = std::fs::write(self.filler(), vec![1; 8 << 20]);
        assert!(written.is_err_and(|error| error.kind() == std::io::ErrorKind::StorageFull));
    }

    fn make_room(&self) {
        std::fs::remove_file(self.filler()).unwrap();
    }

    fn remount(&self, how: &str) {
        let options = format!("remount,{how}");
        assert!(Command::new("mount").args(["-o", &options]).arg(self.path()).status().unwrap().success());
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.path()).status();
    }
}

/// Denies so many, none of whom may wait.
fn deny(daemon: &Daemon, name: &str, count: u64) {
    for n in 0..count {
        let begin = Instant::now();
        block(daemon, &format!("{name}_{n}"));
        assert!(begin.elapsed() < Duration::from_secs(1), "a decision waited {:?}", begin.elapsed());
    }
}

fn dropped(daemon: &Daemon) -> f64 {
    let metric = "tidegate_audit_dropped_total{reason=\"spool_failed\"}";
    daemon.metric(metric).unwrap_or(0.0)
}

fn wait_until_logged(daemon: &Daemon, words: &str) {
    eventually(&format!("the log says {words:?}"), || daemon.log().contains(words).then_some(()));
}

#[test]
fn a_spool_on_a_full_disk_loses_nothing_while_the_database_is_there() {
    let Some(disk) = Disk::mount() else { return };
    let server = Server::start();
    let daemon = start(&server, &disk.path().join("spool"), "");
    disk.fill();
    deny(&daemon, "full", 60);
    wait_for_rows(&server, 60);
    wait_until_logged(&daemon, "No space left on device");
    assert!(daemon.log().contains("records of decisions wait in memory only"), "{}", daemon.log());
    assert_eq!(dropped(&daemon), 0.0);
    disk.make_room();
    deny(&daemon, "room", 20);
    wait_for_rows(&server, 80);
    wait_until_logged(&daemon, "records of decisions are spooled again");
}

#[test]
fn what_a_full_disk_took_is_delivered_and_what_it_did_not_is_counted() {
    let Some(disk) = Disk::mount() else { return };
    let mut server = Server::start();
    let spool = disk.path().join("spool");
    let daemon = start(&server, &spool, "");
    server.postgres.kill();
    deny(&daemon, "before", 40);
    eventually("batches wait", || daemon.metric("tidegate_audit_spooled_bytes").filter(|bytes| *bytes > 0.0));
    disk.fill();
    let mut sent = 40;
    eventually("what finds no room is counted", || {
        deny(&daemon, "after", 20);
        sent += 20;
        (dropped(&daemon) > 0.0).then_some(())
    });
    let parts = std::fs::read_dir(&spool).unwrap().flatten();
    let parts = parts.filter(|entry| entry.path().extension().is_some_and(|ending| ending == "part"));
    assert_eq!(parts.count(), 0, "half-written files take room");
    disk.make_room();
    server.postgres.run();
    // All that was decided is there, or was counted as lost.
    eventually("everything is accounted for", || {
        let found = rows(&server) as f64 + dropped(&daemon);
        let sent = sent as f64;
        (found >= sent).then(|| assert_eq!(found, sent))
    });
    assert_eq!(server.number("SELECT count(*) FROM audit_log WHERE user_id LIKE 'before%'"), 40);
}

#[test]
fn a_spool_that_became_read_only_is_delivered_once() {
    let Some(disk) = Disk::mount() else { return };
    let mut server = Server::start();
    let spool = disk.path().join("spool");
    let mut daemon = start(&server, &spool, "");
    server.postgres.kill();
    deny(&daemon, "a", 30);
    eventually("they are spooled", || {
        (daemon.metric("tidegate_audit_queue") == Some(0.0)
            && daemon.metric("tidegate_audit_spooled_bytes").is_some_and(|bytes| bytes > 0.0))
        .then_some(())
    });
    // What is still on its way to the spool comes first.
    std::thread::sleep(Duration::from_secs(1));
    disk.remount("ro");
    deny(&daemon, "b", 10);
    wait_until_logged(&daemon, "Read-only file system");
    server.postgres.run();
    wait_for_rows(&server, 40);
    // Its files cannot be removed: the next process offers them again, and the database has them.
    assert!(daemon.terminate().success());
    let daemon = start(&server, &spool, "");
    let repeated = || daemon.metric("tidegate_audit_batches_total{outcome=\"repeated\"}");
    eventually("they are offered again", || repeated().filter(|batches| *batches > 0.0));
    deny(&daemon, "c", 5);
    wait_for_rows(&server, 45);
    eventually("sums have every one, once", || {
        let denied = "SELECT coalesce(sum(denied), 0) FROM usage_day WHERE user_id <> ''";
        (server.number(denied) == 45).then_some(())
    });
}

#[test]
fn a_database_whose_disk_is_full_gets_everything_once_there_is_room() {
    let Some(disk) = Disk::mount() else { return };
    let server = Server::start();
    let owner = if super::support::postgres::is_root() { "postgres" } else { "" };
    let tables = disk.path().join("tables");
    std::fs::create_dir(&tables).unwrap();
    if !owner.is_empty() {
        assert!(Command::new("chown").arg(owner).arg(&tables).status().unwrap().success());
    }
    server.sql(&format!("CREATE TABLESPACE small LOCATION '{}'", tables.display()));
    let month = server.sql("SELECT tidegate_audit_partition(now())");
    server.sql(&format!("ALTER TABLE {month} SET TABLESPACE small"));
    let spool = TempDir::new().unwrap();
    let daemon = start(&server, spool.path(), "");
    disk.fill();
    deny(&daemon, "full", 200);
    wait_until_logged(&daemon, "has no room");
    assert!(daemon.log().contains("records of decisions wait in the spool"), "{}", daemon.log());
    assert!(rows(&server) < 200);
    disk.make_room();
    wait_for_rows(&server, 200);
    assert_eq!(server.number("SELECT count(DISTINCT user_id) FROM audit_log"), 200);
    assert_eq!(dropped(&daemon), 0.0);
}

#[test]
fn a_daemon_whose_log_nobody_reads_delivers_what_it_recorded() {
    let mut server = Server::start();
    let folder = TempDir::new().unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut daemon = Daemon::with_log(RULES, &config(&server, folder.path(), ""), &[], writer.into());
    server.postgres.kill();
    deny(&daemon, "away", 20);
    eventually("batches wait", || daemon.metric("tidegate_audit_spooled_bytes").filter(|bytes| *bytes > 0.0));
    server.postgres.run();
    wait_for_rows(&server, 20);
    server.postgres.kill();
    deny(&daemon, "again", 20);
    assert_eq!(daemon.terminate().code(), Some(0));
    server.postgres.run();
    let _next = start(&server, folder.path(), "");
    wait_for_rows(&server, 40);
}

#[test]
fn a_file_that_cannot_be_read_is_set_aside_and_the_others_are_delivered() {
    let mut server = Server::start();
    let folder = TempDir::new().unwrap();
    let daemon = start(&server, folder.path(), "");
    server.postgres.kill();
    block(&daemon, "first");
    let files = || -> Vec<PathBuf> {
        let all = std::fs::read_dir(folder.path()).unwrap().flatten().map(|entry| entry.path());
        let mut all: Vec<_> = all.filter(|path| path.extension().is_some_and(|end| end == "batch")).collect();
        all.sort();
        all
    };
    let first = eventually("the first waits", || files().first().cloned());
    // A folder in its place can be read as little as a file on a broken disk.
    std::fs::remove_file(&first).unwrap();
    std::fs::create_dir(&first).unwrap();
    block(&daemon, "second");
    let second = eventually("the second waits", || files().get(1).cloned());
    std::fs::remove_file(second).unwrap();
    block(&daemon, "third");
    eventually("the third waits", || files().get(1).cloned());
    server.postgres.run();
    wait_for_rows(&server, 1);
    let lost = |reason: &str| daemon.metric(&format!("tidegate_audit_dropped_total{{reason=\"{reason}\"}}"));
    assert_eq!((lost("unreadable"), lost("removed")), (Some(1.0), Some(1.0)), "{}", daemon.log());
    assert!(first.with_extension("unreadable").exists());
}
