//! PostgreSQL: connections with deadlines, and what can go wrong with them in words.
//!
//! A daemon never needs it to decide. Opening does not connect; whoever asks gets an answer or a [`Failure`]
//! within the deadline, and goes on with what it had.

mod failure;
pub mod listen;
pub mod migrate;
pub mod people;
mod presence;
pub mod rules;

use std::future::Future;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use sqlx::{ConnectOptions as _, Connection as _, PgConnection, PgPool};

use self::presence::Presence;
use crate::engine::names;

pub use self::failure::Failure;
pub use self::migrate::Migrated;

/// The oldest server that will do, as `server_version_num` says it.
pub const SERVER_VERSION_MIN: i32 = 150_000;
/// Time for which a connection may be used before it is replaced, so that a changed address or certificate is
/// noticed.
const CONNECTION_LIFE: Duration = Duration::from_secs(30 * 60);

/// All questions here are short: compiling one, which its estimate may suggest, takes longer than answering.
const SESSION: &str = "SET jit = off";

/// Sets what a session needs.
async fn set(connection: &mut PgConnection, settings: String) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(sqlx::AssertSqlSafe(settings)).execute(connection).await.map(drop)
}

/// The settings of connections to PostgreSQL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PostgresSettings {
    /// URL with password and options: `postgres://user:password@host:port/database?sslmode=…`
    pub url: String,
    /// Longest time for one call, connecting included.
    pub timeout: Duration,
    /// Most connections at once, besides the one that listens.
    pub connections: u32,
    /// Name that PostgreSQL's own views have for this daemon.
    pub application: String,
}

/// A database that may or may not be there.
#[derive(Debug, Clone)]
pub struct Database {
    pool: PgPool,
    options: PgConnectOptions,
    timeout: Duration,
    name: Arc<str>,
    presence: Arc<Presence>,
}

impl Database {
    /// Gets ready to connect, and does not. Must be called within a runtime.
    ///
    /// # Errors
    /// A URL that cannot be read. Its text is not repeated: it may hold a password.
    pub fn open(settings: &PostgresSettings) -> Result<Self, Failure> {
        let options = PgConnectOptions::from_str(&settings.url)
            .map_err(|_| Failure::Url)?
            .application_name(&settings.application)
            // A pooler refuses parameters of the start that it does not know. So all that a session needs is
            // set once it is there.
            .extra_float_digits(None::<i8>)
            .disable_statement_logging();
        let millis = settings.timeout.as_millis();
        // The server gives up where the caller does, so that no abandoned call goes on burning it.
        let bounded: Arc<str> = format!(
            "{SESSION}; SET statement_timeout = {millis}; SET lock_timeout = {millis}; \
             SET idle_in_transaction_session_timeout = {millis}"
        )
        .into();
        let pool = PgPoolOptions::new()
            .max_connections(settings.connections)
            .min_connections(0)
            .acquire_timeout(settings.timeout)
            .max_lifetime(CONNECTION_LIFE)
            .after_connect(move |connection, _| {
                let bounded = Arc::clone(&bounded);
                Box::pin(async move { set(connection, bounded.to_string()).await })
            })
            .connect_lazy_with(options.clone());
        let name = format!(
            "{}:{}/{}",
            options.get_host(),
            options.get_port(),
            options.get_database().unwrap_or(options.get_username())
        );
        let presence = Arc::new(Presence::default());
        Ok(Self { pool, options, timeout: settings.timeout, name: name.into(), presence })
    }

    /// The pool. Calls on it belong into [`Self::within`].
    #[must_use]
    pub const fn pool(&self) -> &PgPool {
        &self.pool
    }

    /// Host, port and database, without the password.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Waits for a call, at most as long as one may take.
    ///
    /// # Errors
    /// What went wrong, in words for people and a kind to branch on.
    pub async fn within<T>(
        &self,
        call: impl Future<Output = Result<T, sqlx::Error>> + Send,
    ) -> Result<T, Failure> {
        self.at_most(self.timeout, call).await
    }

    /// The same with a deadline of its own, for what is known to take longer.
    ///
    /// # Errors
    /// As [`Self::within`].
    pub async fn at_most<T>(
        &self,
        longest: Duration,
        call: impl Future<Output = Result<T, sqlx::Error>> + Send,
    ) -> Result<T, Failure> {
        // In a box: what waits for the database is large, and each that waits for it would carry it along.
        let call = Box::pin(async {
            self.still_fits().await?;
            call.await.map_err(|error| self.failure(&error, longest))
        });
        self.in_time(longest, call).await
    }

    async fn in_time<T>(
        &self,
        longest: Duration,
        call: impl Future<Output = Result<T, Failure>> + Send,
    ) -> Result<T, Failure> {
        // The driver looks names up itself, and could not be called off where the name service does not
        // answer.
        if self.pool.size() == 0 {
            self.can_look_up(longest).await?;
        }
        let slow = |_| Err(Failure::Slow { name: self.name.to_string(), after: longest });
        tokio::time::timeout(longest, call).await.unwrap_or_else(slow)
    }

    /// The same as [`Self::within`] for what an operator asked for, who is refused within about a second
    /// where the database is away.
    ///
    /// # Errors
    /// As [`Self::within`].
    pub async fn asked<T>(
        &self,
        call: impl Future<Output = Result<T, sqlx::Error>> + Send,
    ) -> Result<T, Failure> {
        let call = Box::pin(call);
        self.is_there().await?;
        self.within(call).await
    }

    async fn can_look_up(&self, longest: Duration) -> Result<(), Failure> {
        if self.options.get_socket().is_some() {
            return Ok(());
        }
        let known = names::shared().can_look_up(self.options.get_host(), longest).await;
        known.map_err(|error| Failure::Away { name: self.name.to_string(), why: error.to_string() })
    }

    /// Returns what an error of the driver means, where a call could take this long.
    pub(in crate::database) fn failure(&self, error: &sqlx::Error, longest: Duration) -> Failure {
        // The pool has a deadline of its own, whatever the call's is.
        let longest = if matches!(error, sqlx::Error::PoolTimedOut) { self.timeout } else { longest };
        Failure::of(error, &self.name, longest)
    }

    /// Checks whether this server and its schema will do.
    ///
    /// # Errors
    /// It is away, too old, has no schema, or one that is too new for this build.
    pub async fn check(&self) -> Result<(), Failure> {
        // A connection of its own says at once, and exactly, why there is none: the pool tries until its time
        // is up.
        let mut probe = self.connect().await?;
        let version = sqlx::query_scalar("SELECT current_setting('server_version_num')::int");
        let version: i32 = self.within(version.fetch_one(&mut probe)).await?;
        let _ = tokio::time::timeout(Duration::from_secs(1), probe.close()).await;
        if version < SERVER_VERSION_MIN {
            return Err(Failure::ServerTooOld { name: self.name.to_string(), major: version / 10_000 });
        }
        let oldest = Box::pin(async {
            let oldest: Result<i64, _> = sqlx::query_scalar(presence::OLDEST).fetch_one(&self.pool).await;
            oldest.map_err(|error| self.failure(&error, self.timeout))
        });
        self.fits(self.in_time(self.timeout, oldest).await?)?;
        let missing: Option<i64> = self
            .within(sqlx::query_scalar("SELECT max(version) FROM _sqlx_migrations").fetch_one(&self.pool))
            .await?;
        if missing.is_none_or(|version| version < migrate::newest()) {
            return Err(Failure::SchemaTooOld { name: self.name.to_string() });
        }
        Ok(())
    }

    /// A connection of its own, outside of the pool and without the deadline of statements: to migrate, to
    /// listen.
    ///
    /// # Errors
    /// It cannot be made in time.
    pub async fn connect(&self) -> Result<PgConnection, Failure> {
        self.can_look_up(self.timeout).await?;
        let connect = async {
            let mut connection = PgConnection::connect_with(&self.options).await?;
            set(&mut connection, SESSION.to_owned()).await?;
            Ok(connection)
        };
        // A migration asks before any schema fits.
        let connect = async { connect.await.map_err(|error| self.failure(&error, self.timeout)) };
        self.in_time(self.timeout, Box::pin(connect)).await
    }

    /// A pool of one connection without the deadline of statements, for [`Self::listener`].
    pub(super) fn listening_pool(&self) -> PgPool {
        PgPoolOptions::new()
            .max_connections(1)
            .acquire_timeout(self.timeout)
            .connect_lazy_with(self.options.clone())
    }

    /// Listens on a channel. The caller gives the listener up when its connection is lost, and asks for
    /// another: the driver would connect anew by itself, and look the name up where nobody can call it off.
    pub(super) async fn listener(&self, pool: &PgPool, channel: &str) -> Result<PgListener, Failure> {
        self.can_look_up(self.timeout).await?;
        let mut listener = self.within(PgListener::connect_with(pool)).await?;
        listener.eager_reconnect(false);
        self.within(listener.listen(channel)).await?;
        Ok(listener)
    }

    /// Closes what is open.
    pub async fn close(&self) {
        let _ = tokio::time::timeout(Duration::from_secs(1), self.pool.close()).await;
    }
}
