//! One instance of `rate-limiting` or `rate-limiting-advanced`: its windows, and by whom it counts.

use std::borrow::Cow;

use serde_json::{Map, Value};

use super::{CONSUMER, CONSUMER_GROUP, CREDENTIAL, ROUTE, SERVICE};
use crate::database::imported::meaning::{self, Wanted};
use crate::database::imported::{self, Remarks};

/// The plug-ins whose limits are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PluginFamily {
    Usual,
    Advanced,
}

impl PluginFamily {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Usual => "rate-limiting",
            Self::Advanced => "rate-limiting-advanced",
        }
    }
}

/// An instance without its scope. One without windows could not be read: its requests are counted by no less
/// specific instance all the same.
#[derive(Debug)]
pub(super) struct Plugin {
    pub(super) family: PluginFamily,
    pub(super) windows: Vec<PluginWindow>,
    /// The first that a request has is what it is counted by.
    pub(super) counted_by: Vec<CountedBy>,
    pub(super) algorithm: &'static str,
    /// True if a request that one window denies is counted in the others.
    pub(super) charges_denied: bool,
    pub(super) status: Option<u16>,
    pub(super) message: Option<String>,
    pub(super) on_failure: Option<&'static str>,
    /// Instances of one name share their counters.
    pub(super) namespace: Option<String>,
}

/// A limit of an instance.
#[derive(Debug)]
pub(super) struct PluginWindow {
    pub(super) limit: u32,
    /// `None`: that of the calendar.
    pub(super) length: Option<Cow<'static, str>>,
    pub(super) calendar: Option<&'static str>,
    /// The window as a rule's name says it.
    pub(super) word: Cow<'static, str>,
}

/// Attributes that name one counter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CountedBy {
    pub(super) attributes: Vec<String>,
    /// Requests of this path alone have one counter.
    pub(super) path: Option<String>,
}

impl CountedBy {
    fn one(attribute: &str) -> Self {
        Self { attributes: vec![attribute.to_owned()], path: None }
    }

    pub(super) fn is_of_a_consumer(&self) -> bool {
        self.attributes.iter().any(|name| matches!(name.as_str(), CONSUMER | CREDENTIAL))
    }
}

/// The counter of a request that has nothing else to be counted by.
const IP: &str = "ip";

/// Returns the family of a plug-in that runs and limits; says of the others that limit why they are left out.
pub(super) fn family(
    place: &str,
    written: &Map<String, Value>,
    remarks: &mut Remarks,
) -> Option<PluginFamily> {
    if written.get("enabled").and_then(imported::truth) == Some(false) {
        return None;
    }
    let name = written.get("name").and_then(Value::as_str)?;
    let why = match name {
        "rate-limiting" => return Some(PluginFamily::Usual),
        "rate-limiting-advanced" => return Some(PluginFamily::Advanced),
        "response-ratelimiting" => "counts by headers of responses, which are known after the request only",
        "ai-rate-limiting-advanced" => {
            "counts tokens of language models, which are known after the request only"
        }
        "graphql-rate-limiting-advanced" => "counts the cost of queries, which rules do not see",
        "service-protection" => "counts all requests of a service, whose rule has to be written by hand",
        other if other.contains("rate-limit") || other.contains("ratelimit") => {
            "is none whose limits are read"
        }
        _ => return None,
    };
    remarks.left_out(place, format_args!("{name} {why}: left out"));
    None
}

/// Reads an instance. What cannot be said is left out of it, or leaves it without windows.
pub(super) fn read(
    place: &str,
    family: PluginFamily,
    written: &Map<String, Value>,
    config: Map<String, Value>,
    remarks: &mut Remarks,
) -> Plugin {
    let mut reader = PluginReader { place, config, remarks };
    let runs = reader.runs_always(written);
    let mut plugin = match family {
        PluginFamily::Usual => reader.usual(),
        PluginFamily::Advanced => reader.advanced(),
    };
    if !runs || plugin.counted_by.is_empty() {
        plugin.windows.clear();
    }
    plugin
}

struct PluginReader<'p> {
    place: &'p str,
    config: Map<String, Value>,
    remarks: &'p mut Remarks,
}

/// Fields of a plug-in that make no difference to its limits, or are read elsewhere.
const PLUGIN_FIELDS: [&str; 15] = [
    "name",
    "config",
    "_config",
    "enabled",
    "service",
    "route",
    "consumer",
    "consumer_group",
    "id",
    "instance_name",
    "tags",
    "ordering",
    "created_at",
    "updated_at",
    "partials",
];
/// Fields of a configuration that choose where Kong counts and which headers it shows.
const CONFIG_FIELDS: [&str; 8] = [
    "hide_client_headers",
    "redis",
    "dictionary_name",
    "lock_dictionary_name",
    "retry_after_jitter_max",
    "counter_key",
    "consumer_groups",
    "sync_rate",
];
/// The windows of `rate-limiting`. Its days and shorter ones begin with the epoch's, as ours do.
const PERIODS: [(&str, Option<&str>, Option<&str>); 6] = [
    ("second", Some("1s"), None),
    ("minute", Some("1m"), None),
    ("hour", Some("1h"), None),
    ("day", Some("1d"), None),
    ("month", None, Some("month")),
    ("year", None, Some("year")),
];

impl PluginReader<'_> {
    /// Says false of an instance that runs for a part of its scope only, which rules do not see.
    fn runs_always(&mut self, written: &Map<String, Value>) -> bool {
        let mut always = true;
        for (field, value) in written.iter().filter(|(_, value)| is_said(value)) {
            match field.as_str() {
                "condition" | "expressions" => {
                    always = false;
                    self.left_out(field, "rules evaluate no such expression: the plug-in is left out");
                }
                "protocols" => {
                    let all = ["http", "https"].map(Value::from);
                    let listed = value.as_array().map_or(&[][..], Vec::as_slice);
                    if !all.iter().all(|protocol| listed.contains(protocol)) {
                        self.left_out(field, "rules see no protocol: the limit holds for all of them");
                    }
                }
                known if PLUGIN_FIELDS.contains(&known) => {}
                _ => self.left_out(field, "is unknown and dropped"),
            }
        }
        always
    }

    fn usual(&mut self) -> Plugin {
        let mut windows = Vec::new();
        for (period, length, calendar) in PERIODS {
            let Some(value) = self.take(period) else { continue };
            if let Some(limit) = self.limit(&format!("config.{period}"), &value) {
                windows.push(PluginWindow {
                    limit,
                    length: length.map(Cow::from),
                    calendar,
                    word: period.into(),
                });
            }
        }
        if windows.is_empty() {
            self.left_out("config", "has no limit of second, minute, hour, day, month or year: left out");
        }
        let limit_by = self.text("limit_by").unwrap_or_else(|| CONSUMER_WORD.to_owned());
        let policy = self.text("policy").unwrap_or_else(|| "local".to_owned());
        let at_once =
            self.config.get("sync_rate").is_none_or(|rate| rate.is_null() || rate.as_f64() == Some(-1.0));
        let fault_tolerant = self.flag("fault_tolerant");
        self.note_local(&policy);
        let counted_by = self.counted_by("limit_by", &[limit_by]);
        let (status, message) = self.answer();
        // These were the fields of `redis` once.
        self.config.retain(|field, _| !field.starts_with("redis_"));
        self.tell_unknown();
        Plugin {
            family: PluginFamily::Usual,
            counted_by,
            algorithm: "fixed_window",
            charges_denied: policy == "redis" && at_once && windows.len() > 1,
            windows,
            status,
            message,
            on_failure: fault_tolerant
                .filter(|_| policy != "local")
                .map(|tolerant| if tolerant { "open" } else { "closed" }),
            namespace: None,
        }
    }

    fn advanced(&mut self) -> Plugin {
        let windows = self.pairs();
        let sliding = self.text("window_type").is_none_or(|kind| kind != "fixed");
        let penalty = !self.flag("disable_penalty").unwrap_or(false);
        self.note_inexpressible(sliding && penalty);
        let identifier = self.text("identifier").unwrap_or_else(|| CONSUMER_WORD.to_owned());
        let compound = match self.take("compound_identifier") {
            Some(Value::Array(words)) if !words.is_empty() => {
                Some(words.iter().map(|word| word.as_str().unwrap_or_default().to_owned()).collect())
            }
            _ => None,
        };
        let counted_by = match compound {
            Some(words) => {
                let words: Vec<String> = words;
                self.counted_by("compound_identifier", &words)
            }
            None => self.counted_by("identifier", &[identifier]),
        };
        let (status, message) = self.answer();
        let namespace = self.text("namespace");
        self.tell_unknown();
        Plugin {
            family: PluginFamily::Advanced,
            counted_by,
            algorithm: if sliding { "sliding_window" } else { "fixed_window" },
            charges_denied: !sliding && penalty && windows.len() > 1,
            windows,
            status,
            message,
            on_failure: None,
            namespace,
        }
    }

    /// Notes what rules do not do. `counts_denied`: the plug-in counts denied requests in sliding windows.
    fn note_inexpressible(&mut self, counts_denied: bool) {
        if counts_denied {
            self.left_out(
                "config.disable_penalty",
                "Kong counts denied requests too, so that who goes on asking waits longer: rules with sliding windows \
                 count admitted ones alone (a rule may have a penalty instead)",
            );
        }
        let strategy = self.text("strategy").unwrap_or_else(|| "local".to_owned());
        self.note_local(&strategy);
        let throttling = self.take("throttling");
        if throttling.is_some_and(|value| value.get("enabled").and_then(imported::truth) == Some(true)) {
            self.left_out("config.throttling", "requests beyond the limit are denied here, and do not wait");
        }
        if self.flag("enforce_consumer_groups") == Some(true) {
            self.left_out(
                "config.enforce_consumer_groups",
                "overrides of consumer groups are left out: this limit holds for them too, unless their group has a \
                 plug-in of its own",
            );
        }
    }

    /// Reads `limit` and `window_size`, which belong together pair by pair.
    fn pairs(&mut self) -> Vec<PluginWindow> {
        let mut numbers = |field: &str| match self.take(field) {
            Some(Value::Array(list)) => list,
            Some(one) => vec![one],
            None => Vec::new(),
        };
        let (limits, sizes) = (numbers("limit"), numbers("window_size"));
        if limits.len() != sizes.len() || limits.is_empty() {
            self.left_out("config.limit", "needs as many numbers as window_size, one at least: left out");
            return Vec::new();
        }
        let mut windows = Vec::new();
        for (at, (limit, size)) in limits.iter().zip(&sizes).enumerate() {
            let limit = self.limit(&format!("config.limit[{at}]"), limit);
            let length = imported::whole(size).and_then(imported::window);
            if length.is_none() {
                self.left_out(
                    &format!("config.window_size[{at}]"),
                    "must be whole seconds, from 1 to 31622400 (366 days): this window is left out",
                );
            }
            if let (Some(limit), Some(length)) = (limit, length) {
                windows.push(PluginWindow {
                    limit,
                    word: length.clone(),
                    length: Some(length),
                    calendar: None,
                });
            }
        }
        windows
    }

    /// Returns what requests are counted by. Where a request has none of it, Kong counts by address.
    fn counted_by(&mut self, field: &str, words: &[String]) -> Vec<CountedBy> {
        let header = self.text("header_name");
        let path = self.text("path");
        let mut counted = CountedBy { attributes: Vec::new(), path: None };
        for word in words {
            let attribute = match (word.as_str(), &header, &path) {
                (CONSUMER_WORD, ..) => CONSUMER.to_owned(),
                (CREDENTIAL | CONSUMER_GROUP | ROUTE | SERVICE | IP, ..) => word.clone(),
                ("header", Some(header), _) => header_attribute(header),
                ("path", _, Some(path)) if words.len() == 1 => {
                    let why = imported::not_plain(path).map(str::to_owned);
                    let wanted = Wanted::Value(path.clone());
                    if let Some(why) = why.or_else(|| meaning::never_met("path", &wanted)) {
                        self.left_out("config.path", &format!("{path:?} {why}: the plug-in is left out"));
                        return Vec::new();
                    }
                    counted.path = Some(path.clone());
                    continue;
                }
                _ => {
                    self.left_out(
                        &format!("config.{field}"),
                        &format!("rules cannot count by {word:?} as it stands here: the plug-in is left out"),
                    );
                    return Vec::new();
                }
            };
            if !counted.attributes.contains(&attribute) {
                counted.attributes.push(attribute);
            }
        }
        if words.len() > 1 {
            self.left_out(
                &format!("config.{field}"),
                "requests that lack one of these are counted by address here, whatever Kong does",
            );
        }
        let address = CountedBy::one(IP);
        if counted == address { vec![address] } else { vec![counted, address] }
    }

    fn answer(&mut self) -> (Option<u16>, Option<String>) {
        let message = self.text("error_message");
        let Some(code) = self.take("error_code") else { return (None, message) };
        let status = imported::whole(&code).and_then(|code| u16::try_from(code).ok());
        let status = status.filter(|status| (400..=599).contains(status));
        if status.is_none() {
            self.left_out("config.error_code", "rules deny with a status from 400 to 599: 429 is taken");
        }
        (status.filter(|status| *status != 429), message)
    }

    fn limit(&mut self, place: &str, value: &Value) -> Option<u32> {
        let limit = imported::whole(value).and_then(|limit| u32::try_from(limit).ok());
        let limit = limit.filter(|limit| *limit > 0);
        if limit.is_none() {
            self.left_out(place, "must be a whole number from 1 to 4294967295: this window is left out");
        }
        limit
    }

    fn note_local(&mut self, policy: &str) {
        if policy == "local" {
            self.remarks.note(
                self.place,
                "each node of Kong counts by itself there; here all nodes that ask one daemon, or daemons of one Redis, share the limit",
            );
        }
    }

    fn tell_unknown(&mut self) {
        let config = std::mem::take(&mut self.config);
        for (field, _) in config.iter().filter(|(_, value)| is_said(value)) {
            if !CONFIG_FIELDS.contains(&field.as_str()) {
                self.left_out(&format!("config.{field}"), "is unknown and dropped");
            }
        }
    }

    fn text(&mut self, field: &str) -> Option<String> {
        match self.take(field)? {
            Value::String(text) if !text.is_empty() => Some(text),
            _ => None,
        }
    }

    fn flag(&mut self, field: &str) -> Option<bool> {
        self.take(field).as_ref().and_then(imported::truth)
    }

    fn take(&mut self, field: &str) -> Option<Value> {
        self.config.remove(field).filter(|value| !value.is_null())
    }

    fn left_out(&mut self, field: &str, why: &str) {
        self.remarks.left_out(&format!("{}.{field}", self.place), why);
    }
}

/// Kong's word for the consumer.
const CONSUMER_WORD: &str = "consumer";

fn is_said(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Object(table) => !table.is_empty(),
        Value::Array(list) => !list.is_empty(),
        _ => true,
    }
}

/// Returns the attribute that a header is sent as: never one that means more, or names Kong's own entities.
fn header_attribute(header: &str) -> String {
    let name = header.to_ascii_lowercase();
    match name.as_str() {
        "x-api-key" | "authorization" => "api_key".to_owned(),
        "host" => name,
        CONSUMER_GROUP | CREDENTIAL | ROUTE | SERVICE | "method" => format!("kong-header-{name}"),
        other if meaning::means_more(other).is_some() => format!("kong-header-{name}"),
        _ => name,
    }
}
