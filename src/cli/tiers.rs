//! `tidegate tiers`: the tiers that users and keys may have.

use clap::Subcommand;
use serde_json::{Map, json};

use super::people;
use super::table::table;
use super::{Ended, Server, say};

/// The tiers that users and keys may have; rules match them.
#[derive(Debug, Subcommand)]
pub(super) enum Tiers {
    /// Lists them.
    List(Server),
    /// Shows one.
    Show {
        /// Its name.
        name: String,
        #[command(flatten)]
        server: Server,
    },
    /// Makes a tier, or changes what it is for.
    Set {
        /// Its name.
        name: String,
        /// Its purpose.
        #[arg(long, default_value = "")]
        description: String,
        #[command(flatten)]
        server: Server,
    },
    /// Removes a tier that nobody has.
    Remove {
        /// Its name.
        name: String,
        #[command(flatten)]
        server: Server,
    },
}

impl Tiers {
    /// Runs it.
    pub(super) fn run(self) -> Ended {
        match self {
            Self::List(server) => list(&server),
            Self::Show { name, server } => people::one(&server, "GET", &route(&name), None, show),
            Self::Set { name, description, server } => {
                let body = json!({ "description": description });
                people::one(&server, "PUT", &route(&name), Some(body), show)
            }
            Self::Remove { name, server } => people::removed(&server, &route(&name)),
        }
    }
}

fn route(name: &str) -> String {
    format!("/v1/tiers/{}", people::escape(name))
}

fn list(server: &Server) -> Ended {
    let reply = server.ask("GET", "/v1/tiers", None)?;
    people::print(server, &reply, |json| {
        let tiers = json["tiers"].as_array().map_or(&[][..], Vec::as_slice);
        if tiers.is_empty() {
            say("No tiers. Make one with `tidegate tiers set NAME`.");
            return;
        }
        let mut rows = table(&["tier", "description"], &[]);
        for tier in tiers {
            rows.add_row([people::plain(&tier["name"]), people::plain(&tier["description"])]);
        }
        say(rows);
    })
}

/// Shows the tier of an answer as a table.
fn show(answer: &serde_json::Value) {
    people::show_fields(&answer["tier"].as_object().cloned().unwrap_or_else(Map::new));
}
