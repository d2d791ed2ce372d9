//! The reasons why PostgreSQL did not do what was asked: the kinds that somebody branches on, each with a
//! sentence for people.

use std::time::Duration;

use crate::core::time::Span;
use crate::core::written::format_span;

/// Reasons why PostgreSQL did not do what was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The URL cannot be read.
    #[error(
        "postgres.url must be postgres://user:password@host:port/database, with options such as ?sslmode=verify-full"
    )]
    Url,
    /// Nobody answers, or the connection broke.
    #[error("PostgreSQL at {name} does not answer: {why}")]
    Away {
        /// Host, port and database, without the password.
        name: String,
        /// Reason that the operating system or the connection gives.
        why: String,
    },
    /// It took too long.
    #[error("PostgreSQL at {name} did not answer within {}", shown(*after))]
    Slow {
        /// Host, port and database, without the password.
        name: String,
        /// Time that the call was given at most.
        after: Duration,
    },
    /// It does not take connections yet, or no longer.
    #[error("PostgreSQL at {name} takes no connections now: {why}")]
    NotServing {
        /// Host, port and database, without the password.
        name: String,
        /// Its own words: it starts, recovers, shuts down, or is full.
        why: String,
    },
    /// It is a standby, or set to be read only.
    #[error(
        "PostgreSQL at {name} is read only (a standby, or default_transaction_read_only): name the primary in postgres.url"
    )]
    ReadOnly {
        /// Host, port and database, without the password.
        name: String,
    },
    /// No room: disk, memory, connections.
    #[error("PostgreSQL at {name} has no room: {why}")]
    Full {
        /// Host, port and database, without the password.
        name: String,
        /// Message of the server, in its own words.
        why: String,
    },
    /// Wrong password, or a role without the right.
    #[error("PostgreSQL at {name} does not let this role in or do that: {why}")]
    Forbidden {
        /// Host, port and database, without the password.
        name: String,
        /// Message of the server, in its own words.
        why: String,
    },
    /// An old server.
    #[error("PostgreSQL at {name} is version {major}: tidegate needs 15 or later")]
    ServerTooOld {
        /// Host, port and database, without the password.
        name: String,
        /// Major version of the server, below 15.
        major: i32,
    },
    /// No schema yet, or an older one.
    #[error("PostgreSQL at {name} lacks tables that this version needs: run `tidegate migrate`")]
    SchemaTooOld {
        /// Host, port and database, without the password.
        name: String,
    },
    /// A schema that this build cannot use.
    #[error(
        "PostgreSQL at {name} has schema version {version}, made by a newer tidegate that this one cannot work with: upgrade this daemon"
    )]
    SchemaTooNew {
        /// Host, port and database, without the password.
        name: String,
        /// Number of the migration that forbids this build.
        version: i64,
    },
    /// A pooler between here and there gives each transaction another session.
    #[error(
        "PostgreSQL at {name} is behind a pooler that gives each transaction another session, which loses what a session holds ({why}): set pool_mode = session there, or name the server itself in postgres.url"
    )]
    Pooled {
        /// Host, port and database, without the password.
        name: String,
        /// Message of the server from which that is concluded.
        why: String,
    },
    /// A constraint refused it.
    #[error("PostgreSQL refused the change: {why}")]
    Refused {
        /// The constraint's name, where it has one.
        constraint: Option<String>,
        /// Message of the server, in its own words.
        why: String,
    },
    /// Somebody else changed the same at the same time.
    #[error("somebody else changed the same at the same time: try again")]
    Conflict,
    /// Somebody holds a lock for long.
    #[error(
        "PostgreSQL at {name}: somebody holds a lock on what is asked for, and has not let go of it in time: try again later"
    )]
    Locked {
        /// Host, port and database, without the password.
        name: String,
    },
    /// Anything else.
    #[error("PostgreSQL at {name}: {why}")]
    Other {
        /// Host, port and database, without the password.
        name: String,
        /// Message of the server or the driver, in its own words.
        why: String,
    },
}

fn shown(after: Duration) -> String {
    format_span(Span(u64::try_from(after.as_micros()).unwrap_or(u64::MAX)))
}

impl Failure {
    /// Reads an error of the driver.
    pub(in crate::database) fn of(error: &sqlx::Error, name: &str, timeout: Duration) -> Self {
        let name = name.to_owned();
        match error {
            sqlx::Error::Database(error) => {
                Self::of_code(error.code().unwrap_or_default().as_ref(), error.as_ref(), name, timeout)
            }
            sqlx::Error::Io(error) => Self::Away { name, why: error.to_string() },
            // The driver keeps trying a port that refuses until its time is up, and then forgets why.
            sqlx::Error::PoolTimedOut => {
                Self::Away { name, why: format!("no connection within {}", shown(timeout)) }
            }
            sqlx::Error::PoolClosed | sqlx::Error::WorkerCrashed => {
                Self::Away { name, why: "the connections are closed".to_owned() }
            }
            sqlx::Error::Tls(error) => Self::Away { name, why: format!("TLS: {error}") },
            other => Self::Other { name, why: other.to_string() },
        }
    }

    fn of_code(
        code: &str,
        error: &(dyn sqlx::error::DatabaseError + 'static),
        name: String,
        timeout: Duration,
    ) -> Self {
        let why = error.message().to_owned();
        match code {
            // statement_timeout.
            "57014" => Self::Slow { name, after: timeout },
            "55P03" => Self::Locked { name },
            "40001" | "40P01" => Self::Conflict,
            "25006" => Self::ReadOnly { name },
            "57P01" | "57P02" | "57P03" | "53300" => Self::NotServing { name, why },
            "42P01" | "3F000" | "42883" | "42703" => Self::SchemaTooOld { name },
            // A statement that was prepared in another session, or was not.
            "42P05" | "26000" => Self::Pooled { name, why },
            "08P01" if why.contains("bind message") => Self::Pooled { name, why },
            "42501" | "3D000" => Self::Forbidden { name, why },
            _ if code.starts_with("28") => Self::Forbidden { name, why },
            // A text that no column can hold, such as one with NUL.
            _ if code.starts_with("22") => Self::Refused { constraint: None, why },
            _ if code.starts_with("23") => {
                Self::Refused { constraint: error.constraint().map(str::to_owned), why }
            }
            _ if code.starts_with("53") || code == "58030" => Self::Full { name, why },
            _ if code.starts_with("08") => Self::Away { name, why },
            _ => Self::Other { name, why: format!("{why} ({code})") },
        }
    }

    /// The same for whoever may ask how the daemon is: host and port, and neither the database nor words of
    /// the server, which name roles and databases.
    #[must_use]
    pub fn for_anybody(&self) -> String {
        let server = |name: &str| name.split('/').next().unwrap_or_default().to_owned();
        let (name, does) = match self {
            Self::Away { name, .. } => (name, "does not answer"),
            Self::NotServing { name, .. } => (name, "takes no connections now"),
            Self::Full { name, .. } => (name, "has no room"),
            Self::Forbidden { name, .. } => (name, "does not let this role in or do that"),
            Self::Pooled { name, .. } => (name, "is behind a pooler that gives each transaction a session"),
            Self::Other { name, .. } => (name, "did not do what was asked"),
            Self::Slow { name, .. }
            | Self::ReadOnly { name }
            | Self::ServerTooOld { name, .. }
            | Self::SchemaTooOld { name }
            | Self::SchemaTooNew { name, .. }
            | Self::Locked { name } => return self.to_string().replacen(name.as_str(), &server(name), 1),
            Self::Refused { .. } => {
                return "PostgreSQL refused the change: the daemon's log says why".to_owned();
            }
            Self::Url | Self::Conflict => return self.to_string(),
        };
        format!("PostgreSQL at {} {does}: the daemon's log says more", server(name))
    }

    /// True if trying again later may help: nothing is wrong with what was asked.
    #[must_use]
    pub const fn passes(&self) -> bool {
        !matches!(self, Self::Url | Self::Refused { .. } | Self::Other { .. })
    }

    /// True if it is a matter of the server, not of the schema or the question: it is away for all that
    /// counts.
    #[must_use]
    pub const fn is_away(&self) -> bool {
        matches!(
            self,
            Self::Away { .. }
                | Self::Slow { .. }
                | Self::NotServing { .. }
                | Self::Full { .. }
                | Self::ReadOnly { .. }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_says_which_server_and_what_to_do() {
        let name = || "db:5432/tidegate".to_owned();
        let slow = Failure::Slow { name: name(), after: Duration::from_secs(5) };
        assert_eq!(slow.to_string(), "PostgreSQL at db:5432/tidegate did not answer within 5s");
        let old = Failure::SchemaTooOld { name: name() };
        assert!(old.to_string().ends_with("run `tidegate migrate`"));
        assert!(slow.is_away() && slow.passes() && !old.is_away());
        assert!(!Failure::Refused { constraint: None, why: String::new() }.passes());
    }

    #[test]
    fn what_anybody_may_read_names_neither_database_nor_role() {
        let (name, why) = ("db:5432/secret".to_owned(), "role \"hidden\" may not".to_owned());
        for failure in [
            Failure::Away { name: name.clone(), why: why.clone() },
            Failure::Forbidden { name: name.clone(), why: why.clone() },
            Failure::Other { name, why: why.clone() },
            Failure::Refused { constraint: None, why },
        ] {
            let told = failure.for_anybody();
            assert!(!told.contains("secret") && !told.contains("hidden"), "{told}");
        }
        let slow = Failure::Slow { name: "db:5432/secret".to_owned(), after: Duration::from_secs(5) };
        assert_eq!(slow.for_anybody(), "PostgreSQL at db:5432 did not answer within 5s");
    }

    #[test]
    fn what_the_driver_says_becomes_a_kind() {
        let of = |error| Failure::of(&error, "db", Duration::from_secs(1));
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        assert!(of(sqlx::Error::Io(refused)).is_away());
        assert!(of(sqlx::Error::PoolTimedOut).is_away());
        assert!(matches!(of(sqlx::Error::RowNotFound), Failure::Other { .. }));
    }
}
