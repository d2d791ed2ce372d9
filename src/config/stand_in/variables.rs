//! Variables by their names, and what is said of those that are not used.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::config::sources::is_kubernetes;

/// Variables that the reference service knows and that make no difference here, and why.
const IGNORED: [(&str, &str); 27] = [
    ("GRPC_MAX_CONNECTION_AGE", "connections stay open until the daemon stops"),
    ("GRPC_MAX_CONNECTION_AGE_GRACE", "connections stay open until the daemon stops"),
    ("RUNTIME_WATCH_ROOT", "what the folder holds is compared, however it came there"),
    ("REDIS_POOL_SIZE", "one connection carries all that waits"),
    ("REDIS_PIPELINE_WINDOW", "what waits goes together at once"),
    ("REDIS_PIPELINE_LIMIT", "what waits goes together at once"),
    ("REDIS_POOL_ON_EMPTY_BEHAVIOR", "there is no pool"),
    ("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "while Redis is away this daemon enforces its share itself"),
    ("REDIS_STARTUP_INITIAL_INTERVAL", "the start does not wait for Redis"),
    ("REDIS_STARTUP_MAX_INTERVAL", "the start does not wait for Redis"),
    ("REDIS_STARTUP_MAX_ELAPSED_TIME", "the start does not wait for Redis"),
    ("LOCAL_CACHE_SIZE_IN_BYTES", "no local cache hides what Redis counts"),
    ("EXPIRATION_JITTER_MAX_SECONDS", "keys end with their windows"),
    ("USE_STATSD", "statistics are at /metrics and /stats"),
    ("STATSD_HOST", "statistics are at /metrics and /stats"),
    ("STATSD_PORT", "statistics are at /metrics and /stats"),
    ("USE_DOG_STATSD", "statistics are at /metrics and /stats"),
    ("USE_DOG_STATSD_MOGRIFIERS", "statistics are at /metrics and /stats"),
    ("PROMETHEUS_MAPPER_YAML", "metrics have the names of the usual mapper"),
    ("PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS", "response times are in seconds"),
    ("DISABLE_STATS", "statistics cost next to nothing"),
    ("STATS_FLUSH_INTERVAL", "statistics are counted at once"),
    ("EXTRA_TAGS", "metrics have the labels of the usual mapper"),
    ("TRACING_SERVICE_NAMESPACE", "spans name the region and the node"),
    ("TRACING_SERVICE_INSTANCE_ID", "spans name the region and the node"),
    ("REDIS_PERSECOND_URL", "REDIS_PERSECOND says whether it is used"),
    ("REDIS_PERSECOND_SOCKET_TYPE", "REDIS_PERSECOND says whether it is used"),
];

/// Variables that ask for what there is not here and would change what is enforced, the values with which
/// they ask for nothing, and what to do.
const REFUSED: [(&str, &[&str], &str); 4] = [
    (
        "BACKEND_TYPE",
        &["redis"],
        "names a store that there is not here: counts are kept in Redis, or in memory without REDIS_URL",
    ),
    (
        "REDIS_PERSECOND",
        FALSE,
        "asks for a second Redis, and there is one here: take it away, and one Redis counts every unit",
    ),
    (
        "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT",
        FALSE,
        "asks that a denied call charges some descriptors and not others, which is not done here",
    ),
    (
        "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION",
        FALSE,
        "asks that certificates are not verified, and they always are: name their authority in REDIS_TLS_CACERT",
    ),
];

const FALSE: &[&str] = &["false", "0", "f", "F", "FALSE", "False"];
const TRUE: &[&str] = &["true", "1", "t", "T", "TRUE", "True"];

/// The prefixes of the service's variables.
const FAMILY: [&str; 16] = [
    "BACKEND_",
    "CACHE_KEY_",
    "CONFIG_",
    "DEBUG_",
    "GRPC_",
    "LIMIT_",
    "LOCAL_CACHE_",
    "MEMCACHE_",
    "OTEL_",
    "PROMETHEUS_",
    "REDIS_",
    "RUNTIME_",
    "STATS",
    "TRACING_",
    "USE_",
    "XDS_CLIENT_",
];

/// Variables, of which each is taken once.
pub(super) struct Variables {
    left: BTreeMap<String, String>,
    unused: Vec<String>,
    problems: Vec<String>,
}

impl Variables {
    pub(super) fn new(all: BTreeMap<String, String>) -> Self {
        let (mut left, mut unused) = (BTreeMap::new(), Vec::new());
        for (name, value) in all {
            if is_kubernetes(&name, &value) {
                // A service whose name is that of a variable.
                if in_family(&name) {
                    unused.push(format!("{name} is of a service in this namespace, and not used"));
                }
            } else {
                left.insert(name, value);
            }
        }
        Self { left, unused, problems: Vec::new() }
    }

    pub(super) fn problem(&mut self, name: &str, why: &str) {
        self.problems.push(format!("{name} {why}"));
    }

    /// Reports what is asked for and not there.
    pub(super) fn refuse_unsupported(&mut self) {
        for (name, nothing, why) in REFUSED {
            if let Some(value) = self.text(name)
                && !nothing.contains(&value.as_str())
            {
                self.problem(name, why);
            }
        }
    }

    /// Says of one that it makes no difference.
    pub(super) fn ignore(&mut self, name: &str, why: &str) {
        self.unused.push(format!("{name} makes no difference here: {why}"));
    }

    /// The value, if there is any.
    pub(super) fn text(&mut self, name: &str) -> Option<String> {
        self.left.remove(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
    }

    /// Says nothing of these.
    pub(super) fn pass_over(&mut self, names: &[&str]) {
        for name in names {
            self.left.remove(*name);
        }
    }

    pub(super) fn flag(&mut self, name: &str, usual: bool) -> bool {
        let Some(value) = self.text(name) else { return usual };
        if !TRUE.contains(&value.as_str()) && !FALSE.contains(&value.as_str()) {
            self.problem(name, &format!("must be true or false, not {value:?}"));
        }
        TRUE.contains(&value.as_str())
    }

    pub(super) fn number(&mut self, name: &str) -> Option<u64> {
        let value = self.text(name)?;
        let number = value.parse().ok();
        if number.is_none() {
            self.problem(name, &format!("must be a whole number, not {value:?}"));
        }
        number
    }

    /// A number from 0 to 1.
    pub(super) fn fraction(&mut self, name: &str) -> Option<f64> {
        let value = self.text(name)?;
        let number = value.parse::<f64>().ok().filter(|number| (0.0..=1.0).contains(number));
        if number.is_none() {
            self.problem(name, &format!("must be a number from 0 to 1, not {value:?}"));
        }
        number
    }

    /// A duration as Go writes it.
    pub(super) fn duration(&mut self, name: &str) -> Option<Duration> {
        let value = self.text(name)?;
        let duration = go_duration(&value);
        if duration.is_none() {
            self.problem(name, &format!("must be a duration such as 500ms, 10s or 1h, not {value:?}"));
        }
        duration
    }

    /// The name of a header.
    pub(super) fn header_name(&mut self, name: &str, usual: &str) -> String {
        let Some(value) = self.text(name) else { return usual.to_owned() };
        let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        if !value.bytes().all(is_token) {
            self.problem(name, &format!("must be the name of a header, not {value:?}"));
        }
        value
    }

    /// The path of a URL.
    pub(super) fn path(&mut self, name: &str) -> Option<String> {
        let value = self.text(name)?;
        if !value.starts_with('/') || value.contains(['?', '#', ' ']) {
            self.problem(name, &format!("must be a path such as /metrics, not {value:?}"));
        }
        Some(value)
    }

    /// `a=b,c=d`; entries without `=` fall away.
    pub(super) fn pairs(&mut self, name: &str) -> Vec<(String, String)> {
        let text = self.text(name).unwrap_or_default();
        let pairs = text.split(',').filter_map(|pair| pair.split_once('='));
        pairs.map(|(key, value)| (key.trim().to_owned(), value.trim().to_owned())).collect()
    }

    /// Returns the variables that are not used, and the problems of the others.
    pub(super) fn finish(mut self) -> (Vec<String>, Vec<String>) {
        for (name, why) in IGNORED {
            if self.left.remove(name).is_some() {
                self.ignore(name, why);
            }
        }
        for name in self.left.keys().filter(|name| in_family(name)) {
            self.unused.push(format!("{name} is no variable of the service, and not used"));
        }
        (self.unused, self.problems)
    }
}

fn in_family(name: &str) -> bool {
    FAMILY.iter().any(|prefix| name.starts_with(prefix))
}

fn go_duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let (mut whole, mut rest) = (Duration::ZERO, text);
    while !rest.is_empty() {
        let digits = rest.find(|sign: char| !sign.is_ascii_digit() && sign != '.')?;
        let (number, after) = rest.split_at_checked(digits)?;
        let end = after.find(|sign: char| sign.is_ascii_digit()).unwrap_or(after.len());
        let (unit, after) = after.split_at_checked(end)?;
        let unit = match unit {
            "ns" => 1e-9,
            "us" | "µs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3_600.0,
            _ => return None,
        };
        let seconds = number.parse::<f64>().ok()? * unit;
        whole = whole.checked_add(Duration::try_from_secs_f64(seconds).ok()?)?;
        rest = after;
    }
    Some(whole)
}

#[cfg(test)]
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    IGNORED.iter().map(|(name, _)| *name).chain(REFUSED.iter().map(|(name, ..)| *name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_go_writes_them() {
        for (text, millis) in
            [("10s", 10_000), ("1h30m", 5_400_000), ("1.5s", 1_500), ("250ms", 250), ("0", 0)]
        {
            assert_eq!(go_duration(text), Some(Duration::from_millis(millis)), "{text}");
        }
        for text in ["10", "s", "1 s", "-1s", "1d", ""] {
            assert!(go_duration(text).is_none() || text.is_empty(), "{text}");
        }
    }
}
