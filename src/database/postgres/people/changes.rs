//! Hears of changes. A notification says that there is something to read; the table `identity_changes` says
//! what. It is read twice a second all the same, so that a lost notification costs half a second.
//!
//! Reading begins at the oldest transaction that was open at the last look: whatever was committed before is
//! known, and what commits later, in whatever order, is read then. A server that crashed may number
//! transactions from a little before that on, since what was committed without waiting for the disk is gone;
//! so whatever has a higher `seq` than all before is read as well, and a server that was started since is one
//! of which anything may have changed.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::PgRow;
use sqlx::{FromRow, Row as _};
use tokio_util::sync::CancellationToken;

use crate::database::postgres::{Database, Failure};
use crate::engine::clock::Stopwatch;
use crate::engine::identity::lookups::Lookups;
use crate::engine::identity::{IdentityName, Kind};

const CHANNEL: &str = "tidegate_identities";
/// Time between two looks without being told.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// Time to wait before listening again.
const LISTEN_AGAIN: Duration = Duration::from_secs(1);
/// More changes than this are one: of anybody.
const CHANGES_MAX: i64 = 5_000;
/// Rows are kept that long, and somewhat longer.
const KEPT_MINUTES: i32 = 60;
/// After so long without a look, rows may be missing.
const LOST_AFTER: Duration = Duration::from_secs(30 * 60);
/// Time between two deletions of old rows.
const FORGET_INTERVAL: Duration = Duration::from_secs(600);

/// The place at which reading goes on.
#[derive(Debug, Default)]
struct ReadFrom {
    /// The oldest transaction that was open; `None` before the first look.
    transaction: Option<String>,
    /// The highest `seq` there was; `None` before the first look.
    last: Option<i64>,
    /// Start of the server, as it says it; `None` before the first look.
    server: Option<String>,
    /// Ids of it and of later ones that were read.
    seen: HashSet<i64>,
}

/// One row, or none: the first three columns are there always.
#[derive(Debug)]
struct PeopleChangeRow {
    low: String,
    server: String,
    last: i64,
    seq: Option<i64>,
    kind: Option<String>,
    name: Option<String>,
}

impl FromRow<'_, PgRow> for PeopleChangeRow {
    fn from_row(row: &PgRow) -> sqlx::Result<Self> {
        Ok(Self {
            low: row.try_get("low")?,
            server: row.try_get("server")?,
            last: row.try_get("last")?,
            seq: row.try_get("seq")?,
            kind: row.try_get("kind")?,
            name: row.try_get("name")?,
        })
    }
}

/// Tells `lookups` of every change, until `stop`.
pub async fn watch(database: Database, lookups: Arc<Lookups>, stop: CancellationToken) {
    let (told, mut tell) = tokio::sync::mpsc::channel::<()>(1);
    let listening = listen(database.clone(), told);
    let reading = async {
        let mut place = ReadFrom::default();
        let (mut looked, mut forgot) = (Stopwatch::start(), Stopwatch::start());
        let (mut away, mut began) = (false, false);
        loop {
            match place.look(&database).await {
                Ok(changes) => {
                    // Identities that were looked up before the first look may have changed before it, too.
                    let first = !std::mem::replace(&mut began, true) && lookups.held().entries > 0;
                    let lost = first || looked.elapsed() > LOST_AFTER;
                    (looked, away) = (Stopwatch::start(), false);
                    apply(&lookups, changes, lost);
                }
                Err(failure) if !away => {
                    away = true;
                    tracing::warn!("changes of users and keys are not heard of for now: {failure}");
                }
                Err(_) => {}
            }
            if !away && forgot.elapsed() > FORGET_INTERVAL {
                forgot = Stopwatch::start();
                let _ = forget(&database).await;
            }
            let _ = tokio::time::timeout(LOOK_INTERVAL, tell.recv()).await;
        }
    };
    tokio::select! {
        biased;
        () = stop.cancelled() => {}
        () = listening => {}
        () = reading => {}
    }
}

/// The identities that changed: these, or (`None`) anybody.
type Changes = Option<Vec<IdentityName>>;

fn apply(lookups: &Lookups, changes: Changes, lost: bool) {
    match changes {
        Some(names) if !lost => names.into_iter().for_each(|name| lookups.changed(name)),
        _ => lookups.all_changed(),
    }
}

impl ReadFrom {
    async fn look(&mut self, database: &Database) -> Result<Changes, Failure> {
        let rows = sqlx::query_as::<_, PeopleChangeRow>(
            "SELECT head.low, head.server, head.last, change.seq, change.kind, change.name
             FROM (
                 SELECT pg_snapshot_xmin(pg_current_snapshot())::text AS low,
                        pg_postmaster_start_time()::text AS server,
                        coalesce((SELECT max(seq) FROM identity_changes), 0) AS last
             ) AS head
             LEFT JOIN LATERAL (
                 (SELECT seq, kind, name FROM identity_changes
                  WHERE transaction >= $1::text::xid8 ORDER BY seq DESC LIMIT $3)
                 UNION
                 (SELECT seq, kind, name FROM identity_changes WHERE seq > $2 ORDER BY seq DESC LIMIT $3)
             ) AS change ON true",
        );
        let rows = rows.bind(&self.transaction).bind(self.last).bind(CHANGES_MAX + 1);
        let rows = rows.fetch_all(database.pool());
        Ok(self.read(database.within(rows).await?))
    }

    fn read(&mut self, rows: Vec<PeopleChangeRow>) -> Changes {
        let Some(head) = rows.first() else { return Some(Vec::new()) };
        self.transaction = Some(head.low.clone());
        self.last = self.last.max(Some(head.last));
        let server = self.server.replace(head.server.clone());
        let another = server.is_some_and(|server| server != head.server);
        let mut seen = HashSet::with_capacity(rows.len());
        let mut names = HashSet::new();
        let (mut anybody, mut fresh) = (another, 0_i64);
        for PeopleChangeRow { seq, kind, name, .. } in rows {
            let (Some(seq), Some(kind)) = (seq, kind) else { continue };
            seen.insert(seq);
            if self.seen.contains(&seq) {
                continue;
            }
            fresh += 1;
            let kind = if kind == "key" { Kind::Key } else { Kind::User };
            match name {
                Some(id) => drop(names.insert(IdentityName { kind, id: id.into() })),
                None => anybody = true,
            }
        }
        self.seen = seen;
        (!anybody && fresh <= CHANGES_MAX).then(|| names.into_iter().collect())
    }
}

async fn forget(database: &Database) -> Result<(), Failure> {
    let old = sqlx::query("DELETE FROM identity_changes WHERE at < now() - make_interval(mins => $1)");
    database.within(old.bind(KEPT_MINUTES).execute(database.pool())).await?;
    Ok(())
}

/// Wakes whoever reads at every notification. The reader looks by itself all the same, whatever happens to
/// the connection.
async fn listen(database: Database, told: tokio::sync::mpsc::Sender<()>) {
    let pool = database.listening_pool();
    loop {
        if let Ok(mut listener) = database.listener(&pool, CHANNEL).await {
            // A notification may have come while nobody listened.
            let _ = told.try_send(());
            // `None`: the connection was lost.
            while let Ok(Some(_)) = listener.try_recv().await {
                // Full: whoever reads has not begun yet.
                let _ = told.try_send(());
            }
        }
        tokio::time::sleep(LISTEN_AGAIN).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(low: &str, seq: i64, name: Option<&str>) -> PeopleChangeRow {
        let name = name.map(str::to_owned);
        PeopleChangeRow { seq: Some(seq), kind: Some("user".to_owned()), name, last: seq, ..nothing(low) }
    }

    fn nothing(low: &str) -> PeopleChangeRow {
        let (low, server) = (low.to_owned(), "noon".to_owned());
        PeopleChangeRow { low, server, last: 0, seq: None, kind: None, name: None }
    }

    fn names(changes: Changes) -> Vec<String> {
        let mut names: Vec<_> = changes.unwrap().into_iter().map(|name| name.id.to_string()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_change_that_is_read_again_is_told_once() {
        let mut place = ReadFrom::default();
        assert_eq!(names(place.read(vec![nothing("7")])), Vec::<String>::new());
        assert_eq!(place.transaction.as_deref(), Some("7"));
        assert_eq!(names(place.read(vec![row("7", 2, Some("b"))])), ["b"]);
        // A transaction that began earlier commits now: its number is lower, and it is not missed.
        assert_eq!(names(place.read(vec![row("9", 1, Some("a")), row("9", 2, Some("b"))])), ["a"]);
        assert_eq!(names(place.read(vec![nothing("9")])), Vec::<String>::new());
    }

    #[test]
    fn of_a_server_that_was_started_since_anybody_may_have_changed() {
        let mut place = ReadFrom::default();
        assert_eq!(names(place.read(vec![nothing("7")])), Vec::<String>::new());
        let started = || PeopleChangeRow { server: "one".to_owned(), ..nothing("6") };
        assert_eq!(place.read(vec![started()]), None);
        assert_eq!(names(place.read(vec![started()])), Vec::<String>::new());
        assert_eq!((place.transaction.as_deref(), place.last), (Some("6"), Some(0)));
    }

    #[test]
    fn too_many_to_name_are_anybody() {
        let mut place = ReadFrom::default();
        assert_eq!(place.read(vec![row("7", 1, None), row("7", 2, Some("b"))]), None);
        let many = (0..=CHANGES_MAX).map(|seq| row("8", 10 + seq, Some("a"))).collect();
        assert_eq!(place.read(many), None);
    }
}
