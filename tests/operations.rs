//! What `deploy` gives to those who watch: Prometheus' own program checks and plays the alerts, and reads
//! every expression of the dashboards. Grafana's own types judge the dashboards; Grafana itself is not at
//! hand, being under the AGPL.
//!
//! `tests/run` installs Prometheus; without it these tests fail, they do not skip.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panic")]
#![allow(clippy::print_stderr, reason = "a test says that it could not judge")]

#[path = "support/unjudged.rs"]
mod unjudged;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tidegate::telemetry::{METRICS, MetricKind};

const RULES: &str = include_str!("../deploy/prometheus/tidegate.rules.yml");
const SCENARIOS: &str = include_str!("../deploy/prometheus/tidegate.test.yml");
const RUNBOOK: &str = include_str!("../docs/tasks/when-an-alert-fires.md");
/// Grafana's grid.
const GRID_WIDTH: u64 = 24;
const DASHBOARDS: [&str; 4] = ["gateway", "region", "worldwide", "audit"];

fn deploy(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy").join(path)
}

/// Runs Prometheus' program on a file, and returns what it says.
fn promtool(of: &str, file: &Path) -> String {
    let output = Command::new("promtool").args([of, "rules"]).arg(file).output();
    let output = output.expect("promtool is installed: apt-get install prometheus");
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    assert!(output.status.success(), "promtool {of} rules {}:\n{said}", file.display());
    said
}

/// Names of metrics of ours that a text uses, as Prometheus has them.
fn metrics_of(text: &str) -> BTreeSet<&str> {
    let after = text.split(|sign: char| !(sign.is_ascii_alphanumeric() || sign == '_'));
    after.filter_map(|word| word.strip_prefix("tidegate_")).collect()
}

/// Whether a daemon has a series of this name.
fn exists(name: &str) -> bool {
    METRICS.iter().any(|(known, kind, ..)| match kind {
        MetricKind::Histogram => {
            name.strip_prefix(known).is_some_and(|part| ["_bucket", "_sum", "_count"].contains(&part))
        }
        MetricKind::Counter | MetricKind::Gauge => name == *known,
    })
}

fn values<'t>(text: &'t str, key: &str) -> Vec<&'t str> {
    text.lines().filter_map(|line| line.trim_start().strip_prefix(key)).map(str::trim).collect()
}

#[test]
fn prometheus_reads_every_alert_and_each_fires_in_its_scenario_alone() {
    let said = promtool("check", &deploy("prometheus/tidegate.rules.yml"));
    let alerts = values(RULES, "- alert:");
    assert!(said.contains(&format!("{} rules found", alerts.len())), "{said}");
    promtool("test", &deploy("prometheus/tidegate.test.yml"));
    // One scenario expects it, and the one of health does not.
    for alert in &alerts {
        assert!(SCENARIOS.contains(&format!("- name: {alert}\n")), "{alert} has no scenario");
        let played = format!("alertname: {alert}\n        exp_alerts:");
        assert!(
            SCENARIOS.contains(&format!("{played}\n          - exp_labels")),
            "{alert} is not seen to fire"
        );
        assert!(SCENARIOS.contains(&format!("{played} []")), "{alert} is not seen to be still in health");
    }
}

#[test]
fn every_alert_has_a_paragraph_that_says_what_to_do() {
    let alerts = values(RULES, "- alert:");
    let pages = values(RULES, "runbook:");
    assert_eq!(alerts.len(), pages.len());
    for (alert, page) in alerts.iter().zip(pages) {
        assert_eq!(page, format!("docs/tasks/when-an-alert-fires.md#{}", alert.to_lowercase()));
        let (_, paragraph) = RUNBOOK.split_once(&format!("\n## {alert}\n")).expect(alert);
        let paragraph = paragraph.split("\n## ").next().unwrap();
        assert!(paragraph.len() > 100, "{alert}: {paragraph}");
    }
    let headings = RUNBOOK.lines().filter_map(|line| line.strip_prefix("## "));
    assert_eq!(headings.collect::<Vec<_>>(), alerts, "the page has the alerts, in their order, and no other");
}

#[test]
fn alerts_ask_for_metrics_that_a_daemon_has() {
    let asked: Vec<&str> = RULES.lines().filter(|line| line.trim_start().starts_with("expr:")).collect();
    let used: BTreeSet<&str> = asked.iter().flat_map(|line| metrics_of(line)).collect();
    assert!(used.len() > 20, "{used:?}");
    let unknown: Vec<_> = used.iter().filter(|name| !exists(name)).collect();
    assert!(unknown.is_empty(), "no daemon has {unknown:?}");
    // A mistake is seen.
    assert!(!exists("decisions") && !exists("decision_seconds") && exists("decision_seconds_bucket"));
}

fn panels(name: &str) -> (Value, Vec<Value>) {
    let text = std::fs::read_to_string(deploy(&format!("grafana/{name}.json"))).unwrap();
    let board: Value = serde_json::from_str(&text).unwrap();
    let panels = board["panels"].as_array().unwrap().clone();
    (board, panels)
}

fn expressions(panels: &[Value]) -> Vec<String> {
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().unwrap());
    targets.map(|target| target["expr"].as_str().unwrap().to_owned()).collect()
}

/// Whether Grafana's types find no fault with a file, and what they say.
fn judge_dashboard(file: &Path) -> (bool, String) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut judge = Command::new(root.join("target/deploy-tools/bin/python"));
    let judged = judge.arg(root.join("tests/operations/judge-dashboard.py")).arg(file).output().unwrap();
    let said = [judged.stdout, judged.stderr].concat();
    (judged.status.success(), String::from_utf8_lossy(&said).into_owned())
}

#[test]
fn dashboards_are_what_grafana_reads() {
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/deploy-tools/bin/python");
    let installed = Command::new(python).args(["-c", "import grafana_foundation_sdk"]).output();
    if !installed.is_ok_and(|output| output.status.success()) {
        return unjudged::not_judged("grafana-foundation-sdk is not installed: tests/run does so");
    }
    for name in DASHBOARDS {
        let (right, said) = judge_dashboard(&deploy(&format!("grafana/{name}.json")));
        assert!(right && said.contains("1 dashboards judged, 0 faults"), "{name}: {said}");
    }
    // A mistake is seen, and where it is: in the dashboard, its variables, a panel, its type's own part, a
    // query.
    let text = std::fs::read_to_string(deploy("grafana/gateway.json")).unwrap();
    let folder = tempfile::TempDir::new().unwrap();
    let file = folder.path().join("broken.json");
    for (right, wrong, told) in [
        ("\"schemaVersion\": 38", "\"schemaVersion\": \"38\"", "dashboard.schemaVersion: a whole number"),
        ("\"refresh\": 2,", "\"refresh\": 7,", "dashboard.templating.list[1].refresh: 7 is none of 0, 1, 2"),
        (
            "\"unit\":",
            "\"units\":",
            "panels[0].fieldConfig.defaults.units: Grafana's FieldConfig has no such",
        ),
        ("\"mode\": \"multi\"", "\"mode\": \"many\"", "panels[0].options.tooltip.mode: 'many' is none of"),
        ("\"showLegend\": true,", "", "panels[0].options.legend: showLegend is missing"),
        ("\"legendFormat\":", "\"legend\":", "panels[0].targets[0].legend: Grafana's Dataquery has no such"),
        ("\"type\": \"timeseries\"", "\"type\": \"timeserie\"", "no panel of type 'timeserie' is known"),
    ] {
        let broken = text.replace(right, wrong);
        assert_ne!(broken, text, "{right} is not in the dashboard");
        std::fs::write(&file, broken).unwrap();
        let (passed, said) = judge_dashboard(&file);
        assert!(!passed && said.contains(told), "{wrong}: {said}");
    }
}

/// What no type says: panels have places and names of their own.
#[test]
fn dashboards_have_their_panels_in_places_of_their_own() {
    let mut uids = BTreeSet::new();
    for name in DASHBOARDS {
        let (board, panels) = panels(name);
        assert!(uids.insert(board["uid"].as_str().unwrap().to_owned()), "{name}: its uid is taken");
        assert!(board["title"].is_string() && board["schemaVersion"].as_u64() >= Some(36), "{name}");
        let variables = board["templating"]["list"].as_array().unwrap();
        let variables: Vec<_> = variables.iter().map(|variable| variable["name"].as_str().unwrap()).collect();
        assert_eq!(variables, ["datasource", "instance"], "{name}");
        let (mut ids, mut cells) = (BTreeSet::new(), BTreeSet::new());
        for panel in &panels {
            let title = panel["title"].as_str().unwrap();
            assert!(ids.insert(panel["id"].as_u64().unwrap()), "{name}: the id of {title} is taken");
            assert!(panel["type"].is_string() && panel["fieldConfig"]["defaults"]["unit"].is_string());
            let place = ["x", "y", "w", "h"].map(|side| panel["gridPos"][side].as_u64().unwrap());
            assert!(place[0] + place[2] <= GRID_WIDTH, "{name}: {title} leaves the grid");
            for x in place[0]..place[0] + place[2] {
                for y in place[1]..place[1] + place[3] {
                    assert!(cells.insert((x, y)), "{name}: {title} covers another panel");
                }
            }
            let targets = panel["targets"].as_array().unwrap();
            assert!(!targets.is_empty(), "{name}: {title} asks for nothing");
            for target in targets {
                assert_eq!(target["datasource"]["uid"], "${datasource}", "{name}: {title}");
            }
        }
    }
}

#[test]
fn prometheus_reads_every_expression_of_the_dashboards() {
    let expressions: Vec<String> = DASHBOARDS.iter().flat_map(|name| expressions(&panels(name).1)).collect();
    let mut rules = String::from("groups:\n  - name: dashboards\n    rules:\n");
    for (place, expression) in expressions.iter().enumerate() {
        // What Grafana puts there.
        let expression = expression.replace("$__rate_interval", "1m").replace("$instance", ".*");
        assert!(!expression.contains('$'), "{expression}: a variable that no dashboard has");
        let quoted = serde_json::to_string(&expression).unwrap();
        rules.push_str(&format!("      - record: panel:{place}\n        expr: {quoted}\n"));
        let used = metrics_of(&expression);
        assert!(!used.is_empty(), "{expression} asks for nothing of ours");
        for name in used {
            assert!(exists(name), "{expression}: no daemon has {name}");
        }
    }
    let folder = tempfile::TempDir::new().unwrap();
    let file = folder.path().join("dashboards.yml");
    std::fs::write(&file, &rules).unwrap();
    let said = promtool("check", &file);
    assert!(said.contains(&format!("{} rules found", expressions.len())), "{said}");
}
