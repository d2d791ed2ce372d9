//! Old months leave for the archive: nothing lost, nothing twice, wherever it ends.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tempfile::TempDir;
use tidegate::core::time::{Span, Timestamp};
use tidegate::database::audit::archive::{self, ArchiveError};
use tidegate::database::audit::{ArchiveStep, RetentionJob, Settings, Steps};
use tidegate::telemetry::Metrics;

use super::records::{NOON, Process, Server, batch, denial, node, runtime};

const DAY: u64 = 86_400_000_000;

fn settings(folder: &Path, steps: Steps) -> Settings {
    Settings {
        node: node(),
        retain: Span(90 * DAY),
        retain_sums: Span(730 * DAY),
        archive: Some(format!("file://{}", folder.join("archive").display())),
        retain_archive: Span(2_557 * DAY),
        scratch: folder.join("spool"),
        steps,
    }
}

fn fill(server: &Server, sequence: u64, at: Timestamp, rows: usize) {
    let users: Vec<String> = (0..rows).map(|user| format!("u{sequence}_{user}")).collect();
    let batch = batch(sequence, users.iter().map(|user| denial(at, user)));
    runtime().block_on(async {
        let mut process = Process::of(server, &node(), &Steps::default());
        process.deliverer.deliver(&batch).await.unwrap();
        process.summer.write(None).await.unwrap();
    });
}

fn run(server: &Server, settings: &Settings, now: Timestamp) -> Result<Vec<archive::Archived>, ArchiveError> {
    runtime().block_on(async { archive::run(&server.open(), settings, now, false).await })
}

fn files(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder.join("archive/audit_log"))
        .into_iter()
        .flatten()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// The last moment of March's retention: 90 days after its end, and a second.
fn due() -> Timestamp {
    Timestamp(1_775_001_600_000_000 + 90 * DAY)
}

#[test]
fn a_month_leaves_when_its_time_has_come_and_not_before() {
    let server = Server::start();
    let folder = TempDir::new().unwrap();
    fill(&server, 1, NOON, 1_000);
    fill(&server, 2, NOON + Span(40 * DAY), 10);
    let settings = settings(folder.path(), Steps::default());
    assert_eq!(run(&server, &settings, Timestamp(due().0 - 1_000_000)).unwrap(), []);
    let archived = run(&server, &settings, due()).unwrap();
    assert_eq!((archived.len(), archived[0].month.as_str(), archived[0].rows), (1, "2026-03", 1_000));
    assert_eq!(files(folder.path()), ["2026-03.parquet"]);
    assert_eq!(server.number("SELECT count(*) FROM audit_log"), 10);
    assert_eq!(server.sql("SELECT to_regclass('audit_log_2026_03')"), "");
    assert_eq!(server.sql("SELECT month, part, rows, region FROM audit_archives"), "2026-03-01|1|1000|eu");
    let location = server.sql("SELECT location FROM audit_archives");
    assert!(location.ends_with("/archive/audit_log/2026-03.parquet"), "{location}");
    assert!(
        std::fs::read_dir(folder.path().join("spool")).unwrap().next().is_none(),
        "scratch files are left"
    );
    // What was asked for once is not asked again.
    assert_eq!(run(&server, &settings, due()).unwrap(), []);
}

#[test]
fn wherever_it_dies_nothing_is_lost_and_nothing_is_there_twice() {
    let server = Server::start();
    for dies in ArchiveStep::ARCHIVING {
        let folder = TempDir::new().unwrap();
        server.sql("TRUNCATE audit_log, audit_batches, audit_archives");
        fill(&server, 1, NOON, 300);
        let dying = settings(folder.path(), Steps::dying(move |step| step == dies));
        let died = run(&server, &dying, due());
        assert!(matches!(died, Err(ArchiveError::Ended(_))), "{dies:?}: {died:?}");
        let there = server.number("SELECT count(*) FROM audit_log");
        let gone = dies == ArchiveStep::ArchiveCommitted;
        assert_eq!(there, if gone { 0 } else { 300 }, "{dies:?}");
        let again = run(&server, &settings(folder.path(), Steps::default()), due()).unwrap();
        assert_eq!(again.len(), usize::from(!gone), "{dies:?}");
        assert_eq!(server.number("SELECT count(*) FROM audit_log"), 0);
        assert_eq!(server.sql("SELECT part, rows FROM audit_archives"), "1|300", "{dies:?}");
        assert_eq!(files(folder.path()), ["2026-03.parquet"], "{dies:?}");
    }
}

#[test]
fn what_comes_late_follows_as_another_part() {
    let server = Server::start();
    let folder = TempDir::new().unwrap();
    let settings = settings(folder.path(), Steps::default());
    fill(&server, 1, NOON, 100);
    run(&server, &settings, due()).unwrap();
    fill(&server, 2, NOON, 7);
    let archived = run(&server, &settings, due()).unwrap();
    assert_eq!((archived.len(), archived[0].rows), (1, 7));
    assert_eq!(files(folder.path()), ["2026-03-part2.parquet", "2026-03.parquet"]);
    assert_eq!(server.sql("SELECT part, rows FROM audit_archives ORDER BY 1"), "1|100\n2|7");
}

#[test]
fn rows_that_arrive_meanwhile_keep_their_month() {
    let server = Arc::new(Server::start());
    let folder = TempDir::new().unwrap();
    fill(&server, 1, NOON, 100);
    let (late, first) = (Arc::clone(&server), AtomicBool::new(true));
    let steps = Steps::dying(move |step| {
        if step == ArchiveStep::ArchiveVerified && first.swap(false, Ordering::Relaxed) {
            late.sql("INSERT INTO audit_log (at, region, node, domain, outcome, cost, status) VALUES ('2026-03-10', 'eu', 'n', 'd', 'denied', 1, 429)");
        }
        false
    });
    let settings = settings(folder.path(), steps);
    assert!(matches!(run(&server, &settings, due()), Err(ArchiveError::Changed { .. })));
    assert_eq!(server.number("SELECT count(*) FROM audit_log"), 101);
    assert_eq!(run(&server, &settings, due()).unwrap()[0].rows, 101);
}

#[test]
fn a_file_that_does_not_come_back_as_it_was_keeps_the_month() {
    let server = Server::start();
    let folder = TempDir::new().unwrap();
    fill(&server, 1, NOON, 100);
    let file = folder.path().join("archive/audit_log/2026-03.parquet");
    let steps = Steps::dying(move |step| {
        if step == ArchiveStep::ArchiveUploaded {
            let whole = std::fs::read(&file).unwrap();
            std::fs::write(&file, &whole[..whole.len() / 2]).unwrap();
        }
        false
    });
    let failed = run(&server, &settings(folder.path(), steps), due()).unwrap_err();
    assert!(
        matches!(
            failed,
            ArchiveError::Damaged { .. } | ArchiveError::File { .. } | ArchiveError::Different { .. }
        ),
        "{failed}"
    );
    assert_eq!(server.number("SELECT count(*) FROM audit_log"), 100);
}

#[test]
fn an_archive_that_cannot_be_written_keeps_the_month() {
    let server = Server::start();
    let folder = TempDir::new().unwrap();
    fill(&server, 1, NOON, 100);
    std::fs::write(folder.path().join("archive"), "a file, not a folder").unwrap();
    let failed = run(&server, &settings(folder.path(), Steps::default()), due()).unwrap_err();
    assert!(failed.to_string().contains("/archive/audit_log/2026-03.parquet"), "{failed}");
    assert_eq!(server.number("SELECT count(*) FROM audit_log"), 100);
}

#[test]
fn a_month_that_is_not_in_the_sums_yet_stays() {
    let server = Server::start();
    let folder = TempDir::new().unwrap();
    fill(&server, 1, NOON, 10);
    runtime().block_on(async {
        let mut process = Process::of(&server, &node(), &Steps::default());
        process.deliverer.deliver(&batch(2, [denial(NOON, "late")])).await.unwrap();
    });
    let settings = settings(folder.path(), Steps::default());
    let stays = run(&server, &settings, due()).unwrap_err();
    assert!(matches!(&stays, ArchiveError::Unsummed { month } if month == "2026-03"), "{stays}");
    assert_eq!(server.number("SELECT count(*) FROM audit_log"), 11);
    runtime().block_on(async {
        Process::of(&server, &node(), &Steps::default()).summer.write(None).await.unwrap();
    });
    assert_eq!(run(&server, &settings, due()).unwrap()[0].rows, 11);
    assert_eq!(server.sql("SELECT denied FROM usage_day WHERE user_id = 'late'"), "1");
}

#[test]
fn one_daemon_archives_at_a_time() {
    let server = Server::start();
    let folder = TempDir::new().unwrap();
    fill(&server, 1, NOON, 1_000);
    let settings = settings(folder.path(), Steps::default());
    let rows: Vec<u64> = std::thread::scope(|scope| {
        let runs: Vec<_> = (0..4)
            .map(|n| {
                let mut own = settings.clone();
                own.scratch = own.scratch.join(n.to_string());
                let server = &server;
                // Whoever comes while another one is at it is told so.
                scope.spawn(move || match run(server, &own, due()) {
                    Err(ArchiveError::Elsewhere) => Vec::new(),
                    archived => archived.unwrap(),
                })
            })
            .collect();
        runs.into_iter().flat_map(|run| run.join().unwrap()).map(|archived| archived.rows).collect()
    });
    assert_eq!(rows, [1_000]);
    assert_eq!(files(folder.path()), ["2026-03.parquet"]);
}

#[test]
fn months_are_made_ahead_and_what_is_old_is_forgotten() {
    let server = Server::start();
    let folder = TempDir::new().unwrap();
    fill(&server, 1, NOON, 10);
    server.sql("UPDATE audit_batches SET at = '2026-01-01'");
    runtime().block_on(async {
        let settings = settings(folder.path(), Steps::default());
        let keeper = RetentionJob::new(server.open(), settings, Metrics::new());
        // The evening before a month ends, and the morning after.
        for now in [Timestamp(1_790_812_799_000_000), Timestamp(1_790_812_801_000_000)] {
            keeper.once(now).await.unwrap();
        }
    });
    let months =
        "SELECT string_agg(name, ' ' ORDER BY name) FROM audit_partitions WHERE month > '2026-08-31'";
    let months = server.sql(months);
    for month in ["2026_09", "2026_10", "2026_11", "2026_12"] {
        assert!(months.contains(month), "{month} is not among {months}");
    }
    let left = server.sql("SELECT (SELECT count(*) FROM audit_batches), (SELECT count(*) FROM usage_minute), (SELECT count(*) > 0 FROM usage_hour)");
    assert_eq!(left, "0|0|t");
    assert_eq!(files(folder.path()), ["2026-03.parquet"]);
}

/// The moment at which March has been in the archive for as long as it may.
fn old() -> Timestamp {
    Timestamp(1_775_001_600_000_000 + 2_557 * DAY)
}

#[test]
fn a_file_leaves_the_archive_when_its_decisions_are_old_enough_and_not_before() {
    let server = Server::start();
    let folder = TempDir::new().unwrap();
    let settings = settings(folder.path(), Steps::default());
    fill(&server, 1, NOON, 100);
    run(&server, &settings, due()).unwrap();
    fill(&server, 2, NOON, 7);
    run(&server, &settings, due()).unwrap();
    fill(&server, 3, NOON + Span(40 * DAY), 10);
    run(&server, &settings, due() + Span(40 * DAY)).unwrap();
    std::fs::write(folder.path().join("archive/audit_log/2020-01.parquet"), "somebody's own").unwrap();
    // Where the archive was before nothing is touched, nor what it notes nothing of.
    server.sql("INSERT INTO audit_archives (month, part, location, rows, bytes, checksum, region, node) VALUES ('2026-02-01', 1, 's3://before/audit_log/2026-02.parquet', 1, 1, 'x', 'eu', 'n')");
    let remove = |settings: &Settings, now, dry_run| {
        runtime().block_on(async { archive::remove_old(&server.open(), settings, now, dry_run).await })
    };
    let there = || {
        server.sql("SELECT string_agg(to_char(month, 'MM') || '-' || part, ' ' ORDER BY month, part) FROM audit_archives WHERE removed_at IS NULL")
    };
    assert_eq!(remove(&settings, Timestamp(old().0 - 1_000_000), false).unwrap(), []);
    let would: Vec<u64> = remove(&settings, old(), true).unwrap().iter().map(|file| file.rows).collect();
    assert_eq!(would, [100, 7]);
    assert_eq!((files(folder.path()).len(), there().as_str()), (4, "02-1 03-1 03-2 04-1"));

    // Dies between the file and the note of it: the next one makes both agree.
    let mut dying = settings.clone();
    dying.steps = Steps::dying(|step| step == ArchiveStep::FileRemoved);
    assert!(matches!(remove(&dying, old(), false), Err(ArchiveError::Ended(_))));
    assert_eq!((files(folder.path()).len(), there().as_str()), (3, "02-1 03-1 03-2 04-1"));
    assert_eq!(remove(&settings, old(), false).unwrap().len(), 2);
    assert_eq!(files(folder.path()), ["2020-01.parquet", "2026-04.parquet"]);
    assert_eq!(there(), "02-1 04-1");
    assert_eq!(remove(&settings, old(), false).unwrap(), []);
    // The job that looks after the tables does it by itself.
    runtime().block_on(async {
        let keeper = RetentionJob::new(server.open(), settings.clone(), Metrics::new());
        keeper.once(old() + Span(31 * DAY)).await.unwrap();
    });
    let (files, there) = (files(folder.path()), there());
    assert!(!files.contains(&"2026-04.parquet".to_owned()) && !there.contains("04-1"), "{files:?} {there}");
    assert!(files.contains(&"2020-01.parquet".to_owned()) && there.contains("02-1"), "{files:?} {there}");
}
