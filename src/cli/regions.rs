//! `tidegate regions`: the region's store, the daemons of the cluster, their links and who is cut off.

use std::process::ExitCode;

use serde_json::Value;

use super::table::{span, table};
use super::{Ended, Server, say};

/// Shows what `GET /v1/regions` says.
pub(super) fn run(server: &Server) -> Ended {
    let reply = server.get("/v1/regions")?;
    if server.json {
        say(reply.text.trim_end());
        return Ok(ExitCode::SUCCESS);
    }
    let own = &reply.json;
    say(format_args!("{} in region {}", word(&own["node"]), word(&own["region"])));
    show_store(&own["store"]);
    let peers = own["peers"].as_array().map_or(&[][..], Vec::as_slice);
    if peers.is_empty() {
        say("No other daemons: limits hold in this region alone. Name some with --join.");
        return Ok(ExitCode::SUCCESS);
    }
    let mut rows = table(
        &["region", "node", "address", "state", "round trip", "lag", "sent", "received"],
        &[4, 5, 6, 7],
    );
    for peer in peers {
        let flag = |name: &str| peer[name].as_bool() == Some(true);
        let state = match (flag("connected"), flag("live"), flag("draining")) {
            (_, _, true) => "draining",
            (true, true, false) => "connected",
            (false, true, false) => "link down",
            (_, false, false) => "silent",
        };
        let millis = |name: &str| peer[name].as_u64().map_or_else(|| "-".to_owned(), span);
        let bytes = |name: &str| peer[name].as_u64().map_or_else(|| "-".to_owned(), size);
        rows.add_row([
            word(&peer["region"]),
            word(&peer["node"]),
            word(&peer["address"]),
            state.to_owned(),
            millis("rtt_ms"),
            millis("lag_ms"),
            bytes("sent_bytes"),
            bytes("received_bytes"),
        ]);
    }
    say(rows);
    let cut_off: Vec<String> = own["cut_off"].as_array().into_iter().flatten().map(word).collect();
    if !cut_off.is_empty() {
        say(format_args!(
            "Cut off: {}. Worldwide limits follow each rule's on_partition.",
            cut_off.join(", ")
        ));
    }
    show_bounds(own["rules"].as_array().map_or(&[][..], Vec::as_slice));
    show_rights(own["rights"].as_array().map_or(&[][..], Vec::as_slice));
    for changing in own["changing"].as_array().into_iter().flatten() {
        let waiting: Vec<String> =
            changing["waiting_for"].as_array().into_iter().flatten().map(word).collect();
        let rule = word(&changing["rule"]);
        if waiting.is_empty() {
            say(format_args!("New shares of {rule}: everybody holds them; a larger one begins shortly."));
        } else {
            say(format_args!(
                "New shares of {rule}: waiting for {}. The smaller ones hold.",
                waiting.join(", ")
            ));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// How far each worldwide rule may be off, and why; nothing where all is known.
fn show_bounds(rules: &[Value]) {
    for rule in rules {
        let bound = rule["error_bound"].as_u64().unwrap_or(0);
        let because = match rule["because"].as_str() {
            Some("partition") => "a region is cut off",
            Some("stale") => "a region has not been heard of it for too long",
            Some("untold") => "regions far from the limit do not tell",
            _ => "news is on its way",
        };
        if bound > 0 {
            say(format_args!(
                "{}: up to {bound} more may have been admitted: {because}.",
                word(&rule["rule"])
            ));
        }
    }
}

/// This region's rights of each `escrow` rule with buckets in use.
fn show_rights(rules: &[Value]) {
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
    say(format_args!("\nRights of this region:\n{rows}"));
    for rule in used.iter().filter(|rule| number(&rule["burning"]) > 0) {
        say(format_args!(
            "{}: {} of these buckets burn rights: the store began too late to know what was spent of them.",
            word(&rule["rule"]),
            rule["burning"]
        ));
    }
}

/// The region's store: one line, and its servers where it has some.
fn show_store(store: &Value) {
    let servers = store["servers"].as_array().map_or(&[][..], Vec::as_slice);
    if servers.is_empty() {
        return;
    }
    say(format_args!(
        "Store: {} {}, {}",
        word(&store["backend"]),
        word(&store["topology"]),
        word(&store["state"])
    ));
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
    say(format_args!("{rows}\n"));
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
