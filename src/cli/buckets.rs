//! `tidegate buckets`: what one bucket holds, and having it count from zero.

use std::process::ExitCode;

use clap::Subcommand;
use serde_json::Value;

use super::client::query;
use super::table::{span, table};
use super::{Ended, Failure, Server, say};

/// Shows what one bucket holds; has it count from zero.
#[derive(Debug, Subcommand)]
pub(super) enum Buckets {
    /// Shows what the bucket of a rule holds, here and by what is known of the other regions.
    Show(BucketName),
    /// Has the bucket count from zero in this region. Operators see that it was done in `tidegate changes`.
    Reset(BucketName),
}

/// One bucket.
#[derive(Debug, clap::Args)]
pub(super) struct BucketName {
    /// The rule's name.
    rule: String,
    /// The values that name the bucket, as name=value: user=u_42
    #[arg(value_name = "NAME=VALUE")]
    attributes: Vec<String>,
    #[command(flatten)]
    server: Server,
}

impl Buckets {
    /// Runs it.
    pub(super) fn run(&self) -> Ended {
        match self {
            Self::Show(name) => name.show(),
            Self::Reset(name) => name.reset(),
        }
    }
}

impl BucketName {
    fn route(&self) -> Result<String, Failure> {
        let mut parameters = vec![("rule", Some(self.rule.clone()))];
        for pair in &self.attributes {
            let Some((name, value)) = pair.split_once('=') else {
                return Err(Failure::Usage(format!(
                    "`{pair}` names no bucket: write name=value, as in user=u_42"
                )));
            };
            parameters.push((name, Some(value.to_owned())));
        }
        Ok(query("/v1/buckets", &parameters))
    }

    fn show(&self) -> Ended {
        let reply = self.server.get(&self.route()?)?;
        say(if self.server.json { reply.text.trim_end().to_owned() } else { told(&reply.json) });
        Ok(ExitCode::SUCCESS)
    }

    fn reset(&self) -> Ended {
        let reply = self.server.delete(&self.route()?)?;
        if self.server.json {
            say(reply.text.trim_end());
            return Ok(ExitCode::SUCCESS);
        }
        let name = named(&reply.json);
        say(if reply.json["existed"].as_bool() == Some(true) {
            format!("{name} counts from zero.")
        } else {
            format!("{name} held nothing.")
        });
        Ok(ExitCode::SUCCESS)
    }
}

/// A bucket in words: its rule, and whose it is.
fn named(bucket: &Value) -> String {
    let identity = bucket["identity"].as_object().into_iter().flatten();
    let pairs = identity.map(|(name, value)| format!(" {name}={}", value.as_str().unwrap_or_default()));
    bucket["rule"].as_str().unwrap_or_default().to_owned() + &pairs.collect::<String>()
}

/// A bucket for people.
fn told(bucket: &Value) -> String {
    let number = |name: &str| bucket[name].as_u64().unwrap_or(0);
    let mut rows = table(&["bucket", "used", "limit", "left", "resets in"], &[1, 2, 3, 4]);
    rows.add_row([
        named(bucket),
        number("used").to_string(),
        number("limit").to_string(),
        number("remaining").to_string(),
        span(number("reset_ms")),
    ]);
    let mut lines = vec![rows.to_string()];
    if let Some(ends) = bucket["penalty"]["ends_ms"].as_u64() {
        let multiplier = &bucket["penalty"]["multiplier"];
        lines.push(format!("A penalty (x{multiplier}) shuts this client out for {} more.", span(ends)));
    }
    if bucket["degraded"].as_bool() == Some(true) {
        lines.push("The store did not answer: this is only what the daemon knows by itself.".to_owned());
    }
    if let Some(world) = bucket["world"].as_object() {
        let number = |name: &str| world.get(name).and_then(Value::as_u64).unwrap_or(0);
        let in_used = world.get("in_used").and_then(Value::as_bool) == Some(true);
        lines.push(match world.get("others_used").and_then(Value::as_u64) {
            Some(used) => format!(
                "Other regions used {used}{}; the worldwide count may be off by {}.",
                if in_used { " of what is in use" } else { "" },
                number("error_bound")
            ),
            None if in_used => format!(
                "What is in use is in all regions, as far as they told; it may be off by {}.",
                number("error_bound")
            ),
            None => format!(
                "What other regions used is not known here; they may hold {} of the limit.",
                number("error_bound")
            ),
        });
        for (region, used) in world.get("by_region").and_then(Value::as_object).into_iter().flatten() {
            lines.push(format!("  {region}: {used}"));
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::told;

    #[test]
    fn a_bucket_is_told_with_what_the_other_regions_used() {
        let text = told(&json!({
            "rule": "search", "identity": {"user": "u_42"}, "limit": 100, "window_ms": 60_000,
            "used": 40, "remaining": 10, "reset_ms": 1_500, "degraded": false,
            "world": {"budget": 50, "others_used": 50, "error_bound": 3, "by_region": {"us-east": 50}}
        }));
        assert!(text.contains("search user=u_42"), "{text}");
        assert!(text.contains("Other regions used 50; the worldwide count may be off by 3."), "{text}");
        assert!(text.contains("us-east: 50"), "{text}");
        let text = told(&json!({
            "rule": "orders", "identity": {}, "limit": 300, "window_ms": 60_000, "used": 0, "remaining": 100,
            "reset_ms": 1, "degraded": false, "world": {"budget": 100, "others_used": null, "error_bound": 200}
        }));
        assert!(text.contains("is not known here; they may hold 200 of the limit."), "{text}");
        let level = |others: Option<u64>| {
            told(&json!({
                "rule": "api", "identity": {}, "limit": 100, "window_ms": 60_000, "used": 50, "remaining": 29,
                "reset_ms": 1, "degraded": false,
                "world": {"budget": 60, "others_used": others, "in_used": true, "error_bound": 3}
            }))
        };
        let text = level(Some(28));
        assert!(text.contains("Other regions used 28 of what is in use; the worldwide"), "{text}");
        let text = level(None);
        assert!(text.contains("in all regions, as far as they told; it may be off by 3."), "{text}");
    }
}
