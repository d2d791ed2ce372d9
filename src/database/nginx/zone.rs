//! Zones: what nginx counts by, and how fast, and the limits that name them.

use super::syntax::Directive;
use crate::database::imported::Remarks;

/// A zone of `limit_req_zone` or `limit_conn_zone`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Zone {
    pub(super) name: String,
    pub(super) per: Vec<String>,
    /// Requests in each window; `None`: connections at once.
    pub(super) rate: Option<(u32, &'static str)>,
}

/// One `limit_req` or `limit_conn`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Limit {
    pub(super) zone: String,
    pub(super) kind: LimitKind,
}

/// The requests that a limit lets pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LimitKind {
    /// So many beyond the rate, of which those beyond `undelayed` wait for their turn.
    Requests { burst: u32, undelayed: u32 },
    /// So many at once.
    Connections(u32),
}

/// Reads `limit_req_zone KEY zone=NAME:SIZE rate=RATE` and `limit_conn_zone KEY zone=NAME:SIZE`.
pub(super) fn zone(directive: &Directive, remarks: &mut Remarks) -> Option<Zone> {
    let place = &directive.place;
    let requests = directive.name == "limit_req_zone";
    let (key, options) = directive.words.split_first()?;
    let mut name = None;
    // nginx takes this where no rate is written.
    let mut rate = requests.then_some((1, "1s"));
    for option in options {
        match option.split_once('=') {
            Some(("zone", zone)) => name = zone.split(':').next().map(str::to_owned),
            Some(("rate", text)) if requests => match read_rate(text) {
                Some(read) => rate = Some(read),
                None => {
                    remarks.left_out(
                        place,
                        format_args!("rate={text} is no rate such as 10r/s or 30r/m: the zone is left out"),
                    );
                    return None;
                }
            },
            _ if option == "sync" => {
                remarks.note(place, "\"sync\" is dropped: daemons that count in one Redis share every limit");
            }
            _ => remarks.left_out(place, format_args!("{option} is unknown and dropped")),
        }
    }
    let Some(name) = name else {
        remarks.left_out(place, "a zone without zone=NAME:SIZE is left out");
        return None;
    };
    Some(Zone { name, per: attributes(key, place, remarks), rate })
}

fn read_rate(text: &str) -> Option<(u32, &'static str)> {
    let (number, window) = match (text.strip_suffix("r/s"), text.strip_suffix("r/m")) {
        (Some(number), _) => (number, "1s"),
        (None, Some(number)) => (number, "1m"),
        (None, None) => return None,
    };
    Some((number.parse().ok().filter(|rate| *rate > 0)?, window))
}

/// Reads `limit_req zone=NAME [burst=N] [nodelay | delay=N]`.
pub(super) fn limit_req(directive: &Directive, remarks: &mut Remarks) -> Option<Limit> {
    let place = &directive.place;
    let (mut zone, mut burst, mut undelayed) = (None, 0, 0);
    for word in &directive.words {
        match (word.as_str(), word.split_once('=')) {
            ("nodelay", _) => undelayed = u32::MAX,
            (_, Some(("zone", name))) => zone = Some(name.to_owned()),
            (_, Some(("burst", number))) => burst = read_number(number, word, place, remarks)?,
            (_, Some(("delay", number))) => undelayed = read_number(number, word, place, remarks)?,
            _ => remarks.left_out(place, format_args!("{word} is unknown and dropped")),
        }
    }
    let Some(zone) = zone else {
        remarks.left_out(place, "a limit_req without zone=NAME is left out");
        return None;
    };
    Some(Limit { zone, kind: LimitKind::Requests { burst, undelayed: undelayed.min(burst) } })
}

/// Reads `limit_conn NAME N`.
pub(super) fn limit_conn(directive: &Directive, remarks: &mut Remarks) -> Option<Limit> {
    let place = &directive.place;
    let [zone, number] = directive.words.as_slice() else {
        remarks.left_out(place, "a limit_conn without a zone and a number is left out");
        return None;
    };
    let most = read_number(number, number, place, remarks)?;
    Some(Limit { zone: zone.clone(), kind: LimitKind::Connections(most) })
}

fn read_number(number: &str, word: &str, place: &str, remarks: &mut Remarks) -> Option<u32> {
    let read = number.parse().ok().filter(|number| *number < u32::MAX);
    if read.is_none() {
        remarks.left_out(place, format_args!("{word} has no whole number: the limit is left out"));
    }
    read
}

/// Returns the attributes that a key is made of.
fn attributes(key: &str, place: &str, remarks: &mut Remarks) -> Vec<String> {
    let mut per: Vec<String> = Vec::new();
    for variable in variables(key) {
        let attribute = attribute(variable, place, remarks);
        if !per.contains(&attribute) {
            per.push(attribute);
        }
    }
    if variables(key).next().is_none() {
        remarks.note(place, format_args!("the key {key:?} has no variable: one bucket counts everybody"));
    }
    per
}

/// Returns the attribute that a variable stands for.
fn attribute(variable: &str, place: &str, remarks: &mut Remarks) -> String {
    match variable {
        "binary_remote_addr" | "remote_addr" | "realip_remote_addr" => {
            remarks.note(
                place,
                "\"ip\" is read as an address here: IPv6 counts by its first `identity.ipv6_prefix` bits",
            );
            "ip".to_owned()
        }
        "server_name" | "host" | "http_host" => {
            remarks
                .note(place, "\"host\" is the host that was asked for, in lower case and without its port");
            "host".to_owned()
        }
        "uri" | "document_uri" | "request_uri" => {
            if variable == "request_uri" {
                remarks.left_out(
                    place,
                    "$request_uri counts by path and query: rules here see paths without their queries",
                );
            }
            "path".to_owned()
        }
        "request_method" => "method".to_owned(),
        "remote_user" => {
            remarks.note(place, "\"user\" names who asks here: send it as `X-Tidegate-User`");
            "user".to_owned()
        }
        "http_x_api_key" | "http_authorization" => {
            remarks.note(place, "\"api_key\" is a credential here: it counts by its name or a fingerprint");
            "api_key".to_owned()
        }
        other => {
            let name = other.strip_prefix("http_").unwrap_or(other).replace('_', "-").to_ascii_lowercase();
            remarks.note(
                place,
                format_args!("\"{name}\" is no attribute that the daemon finds by itself: send ${other} as `X-Tidegate-{name}`, and nothing where it is empty"),
            );
            name
        }
    }
}

/// Returns the names of the variables in a text: `$name` and `${name}`.
fn variables(text: &str) -> impl Iterator<Item = &str> {
    text.split('$').skip(1).filter_map(|rest| {
        let (rest, braced) = rest.strip_prefix('{').map_or((rest, false), |rest| (rest, true));
        let end = |letter: char| {
            if braced { letter == '}' } else { !(letter.is_ascii_alphanumeric() || letter == '_') }
        };
        rest.split(end).next().filter(|name| !name.is_empty())
    })
}
