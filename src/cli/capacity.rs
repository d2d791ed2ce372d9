//! `tidegate capacity`: what a load needs, by the figures that this project measured of itself.

use std::process::ExitCode;

use clap::{Args, ValueEnum};
use serde_json::json;

use super::table::table;
use super::{Ended, Failure, say};

/// Processor time of a daemon for one gRPC check with the memory store, in microseconds.
const DAEMON_MEMORY_MICROS: f64 = 5.4;
/// The same where it counts in Redis.
const DAEMON_REDIS_MICROS: f64 = 39.0;
/// Processor time of the daemon for each further rule that matches, in microseconds.
const DAEMON_RULE_MICROS: f64 = 0.5;
/// Processor time of Redis for one bucket, in microseconds: the costliest algorithm with windows.
const REDIS_MICROS: f64 = 21.0;
/// So much of a core is planned to be used.
const PLANNED_USE: f64 = 0.5;
/// Memory of a daemon without buckets, in bytes.
const DAEMON_BYTES: f64 = 24e6;
/// A bucket in memory, beyond its key's own bytes.
const MEMORY_BUCKET_BYTES: f64 = 56.0;
/// A bucket in Redis, beyond its key's own bytes.
const REDIS_BUCKET_BYTES: f64 = 84.0;
/// A rule, compiled.
const RULE_BYTES: f64 = 2_000.0;
/// Bytes a second on each directed link between regions for one bucket near its limit whose demand moves:
/// under `gossip` as measured over packets, and under `escrow`, whose rights move too.
const LINK_BUCKET_BYTES: f64 = 78.0;
const LINK_ESCROW_BYTES: f64 = 880.0;
/// A remembered decision in PostgreSQL, indexes included, in bytes.
const AUDIT_ROW_BYTES: f64 = 220.0;
const DAY_SECONDS: f64 = 86_400.0;

/// Says what a load needs, by figures that were measured (docs/reference/benchmarks.md). Asks no daemon.
#[derive(Debug, Args)]
pub(super) struct Capacity {
    /// Requests a second, of one region.
    #[arg(long, value_parser = positive)]
    rps: f64,
    /// Keys that are asked about within a window.
    #[arg(long, value_parser = positive, default_value = "1e6")]
    keys: f64,
    /// Regions.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    regions: u32,
    /// Rules in force.
    #[arg(long, value_parser = positive, default_value = "100")]
    rules: f64,
    /// Rules that match one request.
    #[arg(long, value_parser = positive, default_value = "1")]
    matching: f64,
    /// The store in which a region counts.
    #[arg(long, value_enum, default_value_t = CapacityStore::Redis)]
    store: CapacityStore,
    /// Bytes of a key's name.
    #[arg(long, value_parser = positive, default_value = "40")]
    key_bytes: f64,
    /// Worldwide buckets that are near their limits at the same time.
    #[arg(long, value_parser = non_negative, default_value = "1000")]
    hot_keys: f64,
    /// Those of them that are counted under `escrow`.
    #[arg(long, value_parser = non_negative, default_value = "0")]
    escrow_keys: f64,
    /// Requests that are remembered in the audit log, in percent: all denials, and the sample of the rest.
    #[arg(long, value_parser = non_negative, default_value = "2")]
    audited_percent: f64,
    /// Prints the figures as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum CapacityStore {
    Memory,
    Redis,
}

/// The needs of one region.
#[derive(Debug, PartialEq)]
struct Need {
    daemon_cores: u64,
    daemon_bytes: f64,
    redis_primaries: u64,
    redis_bytes: f64,
    link_bytes: f64,
    audit_bytes: f64,
}

impl Capacity {
    /// Prints what is needed.
    pub(super) fn run(&self) -> Ended {
        let need = self.need();
        if need.redis_bytes.max(need.audit_bytes) > 1e18 {
            return Err(Failure::Usage("no machines are that large: --rps and --keys".to_owned()));
        }
        if self.json {
            say(json!({
                "daemon_cores": need.daemon_cores,
                "daemon_bytes": need.daemon_bytes,
                "redis_primaries": need.redis_primaries,
                "redis_bytes": need.redis_bytes,
                "link_bytes_per_second": need.link_bytes,
                "postgres_bytes_per_day": need.audit_bytes,
            }));
            return Ok(ExitCode::SUCCESS);
        }
        let mut rows = table(&["each region needs", "", "because"], &[1]);
        let shared = if self.store == CapacityStore::Memory && need.daemon_cores > 1 {
            "one daemon: each counts for itself"
        } else {
            "half of each in use"
        };
        rows.add_row(["cores for daemons", &need.daemon_cores.to_string(), shared]);
        rows.add_row(["memory of each daemon", &size(need.daemon_bytes), "rules and buckets"]);
        if self.store == CapacityStore::Redis {
            let because = "half of a core in use; replicas beside";
            rows.add_row(["Redis primaries", &need.redis_primaries.to_string(), because]);
            rows.add_row(["memory of all primaries", &size(need.redis_bytes), "a bucket a key"]);
        }
        if self.regions > 1 {
            let link = format!("{}/s", size(need.link_bytes));
            rows.add_row(["to each other region", &link, "hot keys"]);
        }
        rows.add_row([
            "PostgreSQL",
            &format!("{}/day", size(need.audit_bytes)),
            "decisions that are remembered",
        ]);
        say(rows);
        say("\nFrom figures of shared x86-64 cores: docs/reference/benchmarks.md");
        Ok(ExitCode::SUCCESS)
    }

    fn link_bytes(&self) -> f64 {
        let escrowed = self.escrow_keys.min(self.hot_keys);
        (self.hot_keys - escrowed) * LINK_BUCKET_BYTES + escrowed * LINK_ESCROW_BYTES
    }

    fn need(&self) -> Need {
        let redis = self.store == CapacityStore::Redis;
        let further = (self.matching - 1.0).max(0.0) * DAEMON_RULE_MICROS;
        let daemon = if redis { DAEMON_REDIS_MICROS } else { DAEMON_MEMORY_MICROS } + further;
        let buckets = self.keys * self.matching;
        let held = if redis { 0.0 } else { buckets * (MEMORY_BUCKET_BYTES + self.key_bytes) };
        let on_redis = |amount: f64| if redis { amount } else { 0.0 };
        Need {
            daemon_cores: cores(self.rps * daemon),
            daemon_bytes: DAEMON_BYTES + self.rules * RULE_BYTES + held,
            redis_primaries: if redis { cores(self.rps * self.matching * REDIS_MICROS) } else { 0 },
            redis_bytes: on_redis(buckets * (REDIS_BUCKET_BYTES + self.key_bytes)),
            link_bytes: if self.regions > 1 { self.link_bytes() } else { 0.0 },
            audit_bytes: self.rps * DAY_SECONDS * self.audited_percent / 100.0 * AUDIT_ROW_BYTES,
        }
    }
}

/// Cores for so many microseconds of work a second.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "at least 1; large ones saturate"
)]
fn cores(micros: f64) -> u64 {
    (micros / 1e6 / PLANNED_USE).ceil().max(1.0) as u64
}

/// Bytes as people say them.
fn size(bytes: f64) -> String {
    let units = ["B", "kB", "MB", "GB", "TB"];
    let mut amount = bytes;
    let mut unit = 0;
    while amount >= 1_000.0 && unit + 1 < units.len() {
        amount /= 1_000.0;
        unit += 1;
    }
    let digits = usize::from(amount < 10.0 && unit > 0);
    format!("{amount:.digits$} {}", units.get(unit).copied().unwrap_or_default())
}

fn non_negative(text: &str) -> Result<f64, String> {
    let number: f64 =
        text.replace('_', "").parse().map_err(|_| "a number, such as 100000 or 1e7".to_owned())?;
    if number.is_finite() && number >= 0.0 { Ok(number) } else { Err("0 or more".to_owned()) }
}

fn positive(text: &str) -> Result<f64, String> {
    non_negative(text)
        .and_then(|number| if number > 0.0 { Ok(number) } else { Err("more than 0".to_owned()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked() -> Capacity {
        Capacity {
            rps: 100_000.0,
            keys: 1e7,
            regions: 5,
            rules: 200.0,
            matching: 1.0,
            store: CapacityStore::Redis,
            key_bytes: 40.0,
            hot_keys: 10_000.0,
            escrow_keys: 0.0,
            audited_percent: 1.0,
            json: false,
        }
    }

    #[test]
    fn a_load_needs_what_the_measured_figures_say() {
        let need = asked().need();
        assert_eq!((need.daemon_cores, need.redis_primaries), (8, 5));
        assert_eq!(size(need.redis_bytes), "1.2 GB");
        assert_eq!(size(need.link_bytes), "780 kB");
        let moving = Capacity { escrow_keys: 100.0, hot_keys: 100.0, ..asked() }.need();
        assert_eq!(size(moving.link_bytes), "88 kB");
        assert_eq!(size(need.audit_bytes), "19 GB");
        let memory = Capacity { store: CapacityStore::Memory, regions: 1, ..asked() }.need();
        assert_eq!((memory.daemon_cores, memory.redis_primaries), (2, 0));
        assert_eq!((size(memory.daemon_bytes), memory.link_bytes), ("984 MB".to_owned(), 0.0));
    }

    #[test]
    fn numbers_are_read_as_people_write_them() {
        assert_eq!(positive("1e7"), Ok(1e7));
        assert_eq!(positive("100_000"), Ok(1e5));
        for wrong in ["0", "-1", "many", "nan", "inf"] {
            assert!(positive(wrong).is_err(), "{wrong}");
        }
    }
}
