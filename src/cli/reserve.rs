//! `tidegate reserve`, `commit` and `cancel`: costs that are known afterwards, by hand or from a script.

use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};

use super::ask::{Subject, ending};
use super::table::span;
use super::{Ended, Server, say, whole};

/// One request whose cost is not known yet.
#[derive(Debug, Args)]
pub(super) struct Reserve {
    #[command(flatten)]
    subject: Subject,
    /// Permits to reserve, all or none; unless written, as many as the rules estimate.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    amount: Option<u64>,
    /// How long they are reserved, such as 30s: 60s unless written, at most the shortest window and 10m.
    #[arg(long)]
    ttl: Option<String>,
    /// Names the request: reserving twice by one id reserves once.
    #[arg(long)]
    id: Option<String>,
    #[command(flatten)]
    server: Server,
}

/// What is reserved.
#[derive(Debug, Args)]
pub(super) struct Reserved {
    /// The reservation that `tidegate reserve` printed.
    // One in 64 begins as an option does.
    #[arg(allow_hyphen_values = true)]
    reservation: String,
    #[command(flatten)]
    server: Server,
}

/// A reservation, and the permits that were used.
#[derive(Debug, Args)]
pub(super) struct CommitArgs {
    #[command(flatten)]
    reserved: Reserved,
    /// Permits that were used: charged in full; the rest is released.
    #[arg(long, value_parser = whole::<u64>)]
    actual: u64,
}

impl Reserve {
    /// Asks, and reserves.
    pub(super) fn run(&self) -> Ended {
        let mut body = self.subject.body()?;
        if let Some(amount) = self.amount {
            body["amount"] = amount.into();
        }
        for (name, text) in [("ttl", &self.ttl), ("id", &self.id)] {
            if let Some(text) = text {
                body[name] = Value::from(text.as_str());
            }
        }
        let reply = self.server.post("/v1/reserve", &body)?;
        if !reply.json["allowed"].is_boolean() {
            return Err(self.server.is_no_daemon());
        }
        self.subject.tell(&self.server, &reply.text, &reply.json);
        let (reservation, expires) = (reply.json["reservation"].as_str(), reply.json["expires_ms"].as_u64());
        if let (false, Some(reservation), Some(expires)) = (self.server.json, reservation, expires) {
            let amount = reply.json["cost"].as_u64().unwrap_or_default();
            say(format_args!("Reserved {amount} for {}, by the reservation\n{reservation}", span(expires)));
        }
        Ok(ending(&reply.json))
    }
}

impl CommitArgs {
    /// Charges what was used, and releases the rest.
    pub(super) fn run(&self) -> Ended {
        let body = json!({ "reservation": self.reserved.reservation, "actual": self.actual });
        let used = format!("Charged {}", self.actual);
        settle(
            &self.reserved.server,
            "/v1/commit",
            &body,
            [
                &format!("{used}; what was reserved beyond is released."),
                &format!("{used} in full: the reservation had lapsed."),
            ],
        )
    }
}

impl Reserved {
    /// Releases all of it.
    pub(super) fn cancel(&self) -> Ended {
        let body = json!({ "reservation": self.reservation });
        let told = ["Released; nothing was charged.", "Nothing was charged: the reservation had lapsed."];
        settle(&self.server, "/v1/cancel", &body, told)
    }
}

/// Settles a reservation. Doing so twice is no error.
fn settle(server: &Server, path: &str, body: &Value, [done, lapsed]: [&str; 2]) -> Ended {
    let reply = server.post(path, body)?;
    let is = |name: &str| reply.json[name].as_bool() == Some(true);
    if server.json {
        say(reply.text.trim_end());
        return Ok(ExitCode::SUCCESS);
    }
    say(match (is("committed"), is("lapsed")) {
        (true, false) => done,
        (true, true) => lapsed,
        (false, _) => "Nothing was charged: it was settled before, or no rule counts it any more.",
    });
    if is("degraded") {
        say(
            "  degraded: the store did not answer, so this is what on_failure of the rules decides; see `tidegate regions`",
        );
    }
    Ok(ExitCode::SUCCESS)
}
