//! `tidegate.toml` changes while the daemon runs: what can take force does, the rest is named, and a mistake
//! changes nothing.

use serde_json::Value;

use super::support::daemon::Daemon;
use super::support::{eventually, http};

const RULES: &str = "[[rules]]\nname = \"each\"\nper = [\"ip\"]\nlimit = 1\nwindow = \"24h\"\n";

fn set_config(daemon: &Daemon, text: &str) {
    let fresh = daemon.folder().join("tidegate.toml.new");
    std::fs::write(&fresh, text).unwrap();
    std::fs::rename(&fresh, daemon.folder().join("tidegate.toml")).unwrap();
}

fn notices(daemon: &Daemon) -> String {
    let ready = daemon.get("/readyz").json();
    let notices = ready["notices"].as_array().cloned().unwrap_or_default();
    notices.iter().filter_map(Value::as_str).collect::<Vec<_>>().join("\n")
}

/// Asks as a gateway does, for a client behind two proxies.
fn authorize(daemon: &Daemon, client: &str) -> u16 {
    let forwarded = format!("{client}, 203.0.113.9");
    http::get(daemon.http, "/v1/authorize", &[("x-forwarded-for", &forwarded)]).status
}

#[test]
fn a_changed_configuration_takes_force_without_a_restart() {
    let daemon = Daemon::with(RULES, "[identity]\ntrusted_proxies = 1\n", &[]);
    // The last proxy alone is believed: both clients are the address that it names.
    assert_eq!([authorize(&daemon, "198.51.100.1"), authorize(&daemon, "198.51.100.2")], [200, 429]);
    set_config(&daemon, "[identity]\ntrusted_proxies = 2\n");
    eventually("each client is itself", || (authorize(&daemon, "198.51.100.3") == 200).then_some(()));
    assert_eq!([authorize(&daemon, "198.51.100.3"), authorize(&daemon, "198.51.100.4")], [429, 200]);
    eventually("the log names it", || daemon.log().contains("identity.trusted_proxies").then_some(()));
    assert_eq!(notices(&daemon), "");
}

#[test]
fn a_mistake_is_told_with_its_place_and_changes_nothing() {
    let daemon = Daemon::with(RULES, "[identity]\ntrusted_proxies = 2\n", &[]);
    assert_eq!(daemon.metric("tidegate_config_reload_failures_total"), Some(0.0));
    set_config(&daemon, "[identity]\ntrusted_proxies = \"two\"\n");
    eventually("the line is named", || notices(&daemon).contains("tidegate.toml:2:").then_some(()));
    assert_eq!(daemon.metric("tidegate_config_reload_failures_total"), Some(1.0));
    assert_eq!(daemon.metric("tidegate_notices{about=\"configuration\"}"), Some(1.0));
    assert_eq!([authorize(&daemon, "198.51.100.1"), authorize(&daemon, "198.51.100.2")], [200, 200]);
    set_config(&daemon, "[identity]\ntrusted_proxies = 2\n");
    eventually("it is over", || notices(&daemon).is_empty().then_some(()));
    assert_eq!(daemon.metric("tidegate_notices{about=\"configuration\"}"), Some(0.0));
}

#[test]
fn what_needs_a_restart_is_named_until_it_is_taken_back_or_done() {
    let mut daemon = Daemon::with(RULES, "", &[]);
    set_config(&daemon, "[store]\nmax_keys = 5000\n[listen]\nmax_connections = 77\n");
    let text = eventually("the keys are named", || Some(notices(&daemon)).filter(|text| !text.is_empty()));
    assert!(
        text.contains("only a restart brings listen.max_connections, store.max_keys into force"),
        "{text}"
    );
    set_config(&daemon, "[store]\nmax_keys = 5000\n");
    eventually("one is taken back", || {
        let text = notices(&daemon);
        (text.contains("store.max_keys") && !text.contains("max_connections")).then_some(())
    });
    assert_eq!(daemon.terminate().code(), Some(0));
    daemon.start_again();
    assert_eq!(notices(&daemon), "");
    // At once where a signal asks for it, too.
    set_config(&daemon, "[store]\nmax_keys = 6000\n");
    daemon.process.signal("HUP");
    eventually("the signal has it read", || notices(&daemon).contains("store.max_keys").then_some(()));
}
