//! Keys of others that are attributes of ours, and so mean more than their text.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::core::uri;

/// The values that an entry is for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(in crate::database) enum Wanted {
    /// This one.
    Value(String),
    /// Values that this text fits, in which `*` stands for any run of characters.
    Glob(String),
    /// Whichever.
    Any,
}

impl Wanted {
    /// Returns the text by which a rule's condition says it.
    pub(in crate::database) fn pattern(&self) -> &str {
        match self {
            Self::Value(text) | Self::Glob(text) => text,
            Self::Any => "*",
        }
    }
}

/// Returns the attribute that a descriptor's key becomes.
pub(in crate::database) fn attribute(key: &str) -> &str {
    if key == "remote_address" { "ip" } else { key }
}

/// Says why no request here meets an entry that is for this value of an attribute of ours, though others
/// compare it as text; or why it would mean something else.
pub(in crate::database) fn never_met(key: &str, wanted: &Wanted) -> Option<String> {
    let text = match wanted {
        Wanted::Value(text) => text.clone(),
        // The rest of it has to have the form in which rules see values, whatever the star stands for.
        Wanted::Glob(text) => text.strip_suffix('*').unwrap_or(text).replace('*', "x"),
        Wanted::Any => return None,
    };
    let text = text.as_str();
    match key {
        "path" if text.contains(['?', '#']) => {
            Some("rules here see paths without their queries, so no request would meet it".to_owned())
        }
        "path" if uri::path(text) != uri::letters(text) => {
            Some(format!("rules here see paths in one form, which is {:?}", uri::path(text)))
        }
        "host" if uri::host(text) != text.to_ascii_lowercase() => {
            Some(format!("rules here see hosts without port and dot at their end, as {:?}", uri::host(text)))
        }
        "remote_address" | "ip" if matches!(wanted, Wanted::Glob(_)) => {
            Some("rules here compare addresses, not the beginnings of their texts".to_owned())
        }
        "remote_address" | "ip" if text.parse::<IpAddr>().is_err() => Some(match text.parse::<IpNet>() {
            Ok(_) => "is a network here, and a text there that no address is".to_owned(),
            Err(_) => "is no address".to_owned(),
        }),
        _ => None,
    }
}

/// The meaning that an attribute of ours has besides its text.
pub(in crate::database) fn means_more(key: &str) -> Option<&'static str> {
    match key {
        "path" => Some("is read in its normal form here: spellings of one path are counted together"),
        "host" => Some(
            "is read in lower case and without its port here: spellings of one host are counted together",
        ),
        "remote_address" | "ip" => {
            Some("is read as an address here: IPv6 counts by its first `identity.ipv6_prefix` bits")
        }
        "api_key" => {
            Some("is a credential here: one that begins with \"tgk_\" is looked up, and counts by its name")
        }
        "user" => Some("names who asks here: users may be blocked, and have tiers and limits of their own"),
        "tier" => Some("is filled in here where a request brings none and its user or key has one"),
        "authorization" => Some("is read as a JSON web token here where `identity.jwt` is configured"),
        _ => None,
    }
}
