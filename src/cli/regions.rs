//! `tidegate regions`: the region's store, the daemons of the cluster, their links and who is cut off; and
//! which regions share limits.

mod change;

use std::process::ExitCode;

use clap::Args;
use serde_json::Value;

use super::table::{span, table};
use super::{Ended, Server, say};

/// The regions, shown or changed.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(super) struct Regions {
    #[command(subcommand)]
    change: Option<change::Change>,
    #[command(flatten)]
    server: Server,
}

impl Regions {
    /// Runs it.
    pub(super) fn run(self) -> Ended {
        match self.change {
            Some(change) => change.run(),
            None => run(&self.server),
        }
    }
}

/// Shows what `GET /v1/regions` says.
fn run(server: &Server) -> Ended {
    let reply = server.get("/v1/regions")?;
    say(if server.json { reply.text.trim_end().to_owned() } else { told(&reply.json) });
    Ok(ExitCode::SUCCESS)
}

/// The same for people.
fn told(own: &Value) -> String {
    let mut lines = vec![format!("{} in region {}", word(&own["node"]), word(&own["region"]))];
    show_store(&mut lines, &own["store"]);
    let peers = list(&own["peers"]);
    if !peers.is_empty() {
        lines.push(peers_table(peers, list(&own["cut_off"]), list(&own["unseen"])));
    }
    for (what, regions) in [("Drained, so without a share", &own["drained"]), ("Removed", &own["removed"])] {
        let regions = words(list(regions).iter());
        if !regions.is_empty() {
            lines.push(format!("{what}: {regions}."));
        }
    }
    let seen = |region: &&Value| peers.iter().any(|peer| peer["region"] == **region);
    let configured = list(&own["configured"]).iter().filter(|region| **region != own["region"]);
    let absent = words(configured.filter(|region| !seen(region)));
    if !absent.is_empty() {
        lines.push(format!("Configured, but no daemon of it is seen: {absent}."));
    } else if peers.is_empty() {
        let shared = own["store"]["daemons"].as_u64().unwrap_or(1) > 1;
        let others = if shared { "No daemons of other regions" } else { "No other daemons" };
        lines.push(format!("{others}: limits hold in this region alone. Name some with --join."));
    }
    let unseen = list(&own["unseen"]);
    let cut_off = words(list(&own["cut_off"]).iter().filter(|region| !unseen.contains(region)));
    for (state, regions) in [("Cut off", cut_off), ("Not heard yet", words(unseen.iter()))] {
        if !regions.is_empty() {
            lines.push(format!("{state}: {regions}. Rules of mode gossip follow their on_partition."));
        }
    }
    // Regions that are cut off or missing are said above, those that are waited for below.
    let said = |notice: &&Value| {
        !["cut_off", "unseen", "agreement", "burning"].iter().any(|about| notice["about"] == **about)
    };
    lines.extend(
        list(&own["notices"])
            .iter()
            .filter(said)
            .map(|notice| format!("Attention: {}.", word(&notice["text"]))),
    );
    show_bounds(&mut lines, list(&own["rules"]));
    show_rights(&mut lines, list(&own["rights"]));
    for changing in list(&own["changing"]) {
        let waiting = words(list(&changing["waiting_for"]).iter());
        let rule = word(&changing["rule"]);
        if changing["first"].as_bool() == Some(true) {
            let waiting = if waiting.is_empty() { "what was spent before".to_owned() } else { waiting };
            lines.push(format!(
                "{rule} admits nothing before all regions have agreed: waiting for {waiting}."
            ));
            continue;
        }
        lines.push(if waiting.is_empty() {
            format!("New shares of {rule}: everybody holds them; a larger one begins shortly.")
        } else {
            format!("New shares of {rule}: waiting for {waiting}. The smaller ones hold.")
        });
    }
    lines.join("\n")
}

fn peers_table(peers: &[Value], cut_off: &[Value], unseen: &[Value]) -> String {
    let mut rows = table(
        &["region", "node", "address", "state", "wire", "round trip", "lag", "clock", "sent", "received"],
        &[4, 5, 6, 7, 8, 9],
    );
    for peer in peers {
        let flag = |name: &str| peer[name].as_bool() == Some(true);
        let state = match (flag("connected"), flag("live"), flag("draining")) {
            (_, _, true) => "draining",
            _ if unseen.contains(&peer["region"]) => "not heard yet",
            _ if cut_off.contains(&peer["region"]) => "cut off",
            (true, true, false) => "connected",
            (false, true, false) => "link down",
            (_, false, false) => "silent",
        };
        let millis = |name: &str| peer[name].as_u64().map_or_else(|| "-".to_owned(), span);
        let bytes = |name: &str| peer[name].as_u64().map_or_else(|| "-".to_owned(), size);
        let clock = peer["clock_ahead_ms"].as_i64();
        rows.add_row([
            word(&peer["region"]),
            word(&peer["node"]),
            word(&peer["address"]),
            state.to_owned(),
            peer["wire_version"].as_u64().map_or_else(|| "-".to_owned(), |version| version.to_string()),
            millis("rtt_ms"),
            millis("lag_ms"),
            clock.map_or_else(|| "-".to_owned(), |ahead| format!("{ahead:+} ms")),
            bytes("sent_bytes"),
            bytes("received_bytes"),
        ]);
    }
    rows.to_string()
}

/// Shows how far each worldwide rule may be off, and why; nothing where all is known.
pub(super) fn show_bounds(lines: &mut Vec<String>, rules: &[Value]) {
    for rule in rules {
        let bound = rule["error_bound"].as_u64().unwrap_or(0);
        let because = match rule["because"].as_str() {
            Some("partition") => "a region is cut off",
            Some("stale") => "a region has not been heard of it for too long",
            Some("start") => {
                "this daemon has just begun and keeps to its share until the others have said what it had admitted before"
            }
            Some("room") => "more buckets are in use than peers.max_keys, so this region keeps to its share",
            Some("crowded") => {
                "another region has more buckets in use than its peers.max_keys, so its share is left to it"
            }
            Some("untold") => "other regions may not have heard of it yet",
            Some("late") => "news was lost or late within the last ten seconds",
            Some("shares") => {
                if bound > 0 {
                    let rule = word(&rule["rule"]);
                    lines.push(format!(
                        "{rule}: never above its limit; other regions may use up to {bound} of it."
                    ));
                }
                continue;
            }
            _ => "news is on its way",
        };
        if bound > 0 {
            lines.push(format!(
                "{}: up to {bound} more may have been admitted: {because}.",
                word(&rule["rule"])
            ));
        }
    }
}

/// This region's rights of each `escrow` rule with buckets in use.
fn show_rights(lines: &mut Vec<String>, rules: &[Value]) {
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let used: Vec<&Value> = rules.iter().filter(|rule| number(&rule["buckets"]) > 0).collect();
    if used.is_empty() {
        return;
    }
    let by_region = |sums: &Value| {
        let each = sums.as_object().into_iter().flatten().map(|(region, sum)| format!("{region} {sum}"));
        let text = each.collect::<Vec<_>>().join(", ");
        if text.is_empty() { "-".to_owned() } else { text }
    };
    let mut rows =
        table(&["rule", "buckets", "minted", "free", "under way", "given", "taken"], &[1, 2, 3, 4]);
    for rule in &used {
        rows.add_row([
            word(&rule["rule"]),
            rule["buckets"].to_string(),
            rule["minted"].to_string(),
            rule["free"].to_string(),
            rule["under_way"].to_string(),
            by_region(&rule["given"]),
            by_region(&rule["taken"]),
        ]);
    }
    lines.push(format!("\nRights of this region:\n{rows}"));
    for rule in used.iter().filter(|rule| number(&rule["burning"]) > 0) {
        lines.push(format!(
            "{}: {} of these buckets burn rights: the store began too late to know what was spent of them.",
            word(&rule["rule"]),
            rule["burning"]
        ));
    }
}

/// The region's store: one line, and its servers where it has some.
fn show_store(lines: &mut Vec<String>, store: &Value) {
    let servers = list(&store["servers"]);
    if servers.is_empty() {
        return;
    }
    lines.push(format!(
        "Store: {} {}, {}",
        word(&store["backend"]),
        word(&store["topology"]),
        word(&store["state"])
    ));
    for problem in list(&store["problems"]) {
        lines.push(format!("  {}", word(problem)));
    }
    if let Some(daemons) = store["daemons"].as_u64().filter(|daemons| *daemons > 1) {
        lines.push(format!("{daemons} daemons share it."));
    }
    let mut rows = table(&["server", "role", "breaker", "round trip", "trouble"], &[3]);
    for server in servers {
        let trip = server["rtt_ms"].as_f64().map_or_else(|| "-".to_owned(), |trip| format!("{trip:.2} ms"));
        let ago =
            server["error_age_ms"].as_u64().map_or_else(String::new, |age| format!(" ({} ago)", span(age)));
        let trouble = [
            server["error"].as_str().map(|error| format!("{error}{ago}")),
            server["warning"].as_str().map(str::to_owned),
        ];
        let trouble: Vec<String> = trouble.into_iter().flatten().collect();
        rows.add_row([
            word(&server["address"]),
            word(&server["role"]),
            word(&server["breaker"]),
            trip,
            if trouble.is_empty() { "-".to_owned() } else { trouble.join("; ") },
        ]);
    }
    lines.push(format!("{rows}\n"));
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[][..], Vec::as_slice)
}

fn words<'a>(values: impl Iterator<Item = &'a Value>) -> String {
    values.map(word).collect::<Vec<_>>().join(", ")
}

fn word(value: &Value) -> String {
    value.as_str().map_or_else(|| "-".to_owned(), str::to_owned)
}

fn size(bytes: u64) -> String {
    match bytes {
        0..10_000 => format!("{bytes} B"),
        10_000..10_000_000 => format!("{} kB", bytes / 1_000),
        _ => format!("{} MB", bytes / 1_000_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Returns what is told of a daemon of `eu` with this beside its name.
    fn told_of(more: &Value) -> String {
        let mut own = json!({ "region": "eu", "node": "eu-1", "store": { "servers": [] } });
        for (name, value) in more.as_object().into_iter().flatten() {
            own[name] = value.clone();
        }
        told(&own)
    }

    #[test]
    fn a_daemon_that_sees_no_other_says_who_is_missing_and_how_its_rules_stand() {
        let alone = told_of(&json!({ "configured": ["eu"], "peers": [] }));
        assert!(alone.contains("No other daemons"), "{alone}");
        let told = told_of(&json!({
            "configured": ["ap", "eu", "us"],
            "peers": [],
            "cut_off": ["ap", "us"],
            "unseen": ["ap"],
            "rules": [{ "rule": "shared", "error_bound": 39, "because": "shares" },
                      { "rule": "quiet", "error_bound": 0, "because": "none" }],
            "rights": [{ "rule": "seats", "buckets": 1, "minted": 5, "free": 4, "under_way": 0, "given": { "us": 3 } }],
            "changing": [{ "rule": "shared", "waiting_for": ["us"] }],
        }));
        assert!(!told.contains("No other daemons") && !told.contains("quiet"), "{told}");
        for line in [
            "Configured, but no daemon of it is seen: ap, us.",
            "Cut off: us.",
            "Not heard yet: ap.",
            "shared: never above its limit; other regions may use up to 39 of it.",
            "us 3",
            "New shares of shared: waiting for us.",
        ] {
            assert!(told.contains(line), "{line} is not in {told}");
        }
    }

    #[test]
    fn a_link_that_is_up_and_silent_is_cut_off_and_what_is_wrong_is_told() {
        let peer = json!({ "region": "us", "node": "us-1", "live": true, "connected": true });
        let told = told_of(&json!({
            "configured": ["eu", "us"],
            "peers": [peer],
            "cut_off": ["us"],
            "changing": [{ "rule": "seats", "first": true, "waiting_for": ["sa"] }],
            "notices": [{ "about": "cut_off", "text": "region us is cut off" },
                        { "about": "rules", "text": "rule seats is not the same in us/us-1" }],
        }));
        assert!(told.contains("cut off") && !told.contains("connected"), "{told}");
        assert!(told.contains("Attention: rule seats is not the same in us/us-1."), "{told}");
        assert!(!told.contains("Attention: region us"), "{told}");
        assert!(
            told.contains("seats admits nothing before all regions have agreed: waiting for sa."),
            "{told}"
        );
    }

    #[test]
    fn of_several_regions_the_missing_one_is_named_and_clocks_are_told() {
        let peer = json!({ "region": "us", "node": "us-1", "address": "a", "live": true, "connected": true,
                           "rtt_ms": 80, "clock_ahead_ms": -31, "sent_bytes": 0, "received_bytes": 0 });
        let told = told_of(&json!({ "configured": ["ap", "eu", "us"], "peers": [peer] }));
        assert!(told.contains("no daemon of it is seen: ap.") && told.contains("-31 ms"), "{told}");
    }
}
