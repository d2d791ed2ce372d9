//! `tidegate acquire`, `renew` and `release`: requests in flight, by hand or from a script.

use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};

use super::ask::{Ask, awaited, ending, show};
use super::table::span;
use super::{DENIED, Ended, Server, say};

/// One request that is to hold places.
#[derive(Debug, Args)]
pub(super) struct Acquire {
    #[command(flatten)]
    ask: Ask,
    /// Names the request: acquiring twice by one id holds once.
    #[arg(long)]
    id: Option<String>,
}

/// What was acquired.
#[derive(Debug, Args)]
pub(super) struct Lease {
    /// The lease that `tidegate acquire` printed.
    // One in 64 begins as an option does.
    #[arg(allow_hyphen_values = true)]
    lease: String,
    #[command(flatten)]
    server: Server,
}

impl Acquire {
    /// Asks, charges, and holds.
    pub(super) fn run(&self) -> Ended {
        let mut body = self.ask.body()?;
        if let Some(id) = &self.id {
            body["id"] = Value::from(id.as_str());
        }
        let reply = self.ask.server.post("/v1/acquire", &body)?;
        if self.ask.server.json {
            say(reply.text.trim_end());
        } else {
            show(&reply.json);
            if let Some(awaited) = awaited(&self.ask.server, &reply.json) {
                say(awaited);
            }
            if let (Some(lease), Some(expires)) =
                (reply.json["lease"].as_str(), reply.json["expires_ms"].as_u64())
            {
                say(format_args!("Held for {}, unless renewed, by the lease\n{lease}", span(expires)));
            }
        }
        Ok(ending(&reply.json))
    }
}

impl Lease {
    /// Keeps it for another hold. Ends with the code of a denial where it was no longer held.
    pub(super) fn renew(&self) -> Ended {
        let reply = self.server.post("/v1/renew", &json!({ "lease": self.lease }))?;
        let renewed = reply.json["renewed"].as_bool() == Some(true);
        if self.server.json {
            say(reply.text.trim_end());
        } else if let Some(expires) = reply.json["expires_ms"].as_u64().filter(|_| renewed) {
            say(format_args!("Held for another {}.", span(expires)));
        } else {
            say("Not renewed: it has ended, was released, or more is held than the limit now allows.");
        }
        Ok(if renewed { ExitCode::SUCCESS } else { ExitCode::from(DENIED) })
    }

    /// Gives it back. Doing so twice is no error.
    pub(super) fn release(&self) -> Ended {
        let reply = self.server.post("/v1/release", &json!({ "lease": self.lease }))?;
        if self.server.json {
            say(reply.text.trim_end());
        } else if reply.json["released"].as_bool() == Some(true) {
            say("Given back.");
        } else {
            say("Not all of it was still held: it had ended or was released before.");
        }
        Ok(ExitCode::SUCCESS)
    }
}
