//! Recipes of the manual that are programs, run as they stand.

use std::process::Command;

use tempfile::TempDir;

use super::support::daemon::Daemon;

const PAGE: &str = include_str!("../../docs/tasks/budget-the-tokens-of-a-language-model.md");

/// Twelve calls at once, each of which may use 200 tokens and uses from 20 to 199; then one after the other
/// until the budget is used up.
const CALLERS: &str = r#"

import threading

used, lock, refused = [], threading.Lock(), []


def model(max_tokens):
    with lock:
        tokens = 20 + (len(used) * 37) % (max_tokens - 20)
        used.append(tokens)
    return "answer", tokens


def caller():
    try:
        assert within_budget("research", "small", 0, 200, model) == "answer"
    except BudgetUsedUp as denied:
        refused.append(denied.retry_after)


callers = [threading.Thread(target=caller) for _ in range(12)]
[one.start() for one in callers]
[one.join() for one in callers]
assert len(used) + len(refused) == 12
before = len(refused)
while len(refused) == before:
    caller()
assert all(wait and wait > 0 for wait in refused), refused


def broken(max_tokens):
    raise RuntimeError("the provider is away")


try:
    within_budget("other", "large", 0, 300, broken)
    raise SystemExit("the failure was swallowed")
except RuntimeError:
    pass
print(sum(used))
"#;

fn block(language: &str) -> &'static str {
    let (_, rest) = PAGE.split_once(&format!("```{language}\n")).expect("the page has such a block");
    rest.split_once("```").expect("the block ends").0
}

#[test]
fn the_python_service_of_the_manual_keeps_to_its_budget() {
    let rules: String = block("toml").lines().map(|line| format!("{}\n", line.trim_start())).collect();
    assert_eq!(rules.matches("limit = 100_000").count(), 1, "{rules}");
    let daemon = Daemon::with_rules(&rules.replace("limit = 100_000", "limit = 1_000"));
    let folder = TempDir::new().unwrap();
    let script = folder.path().join("service.py");
    std::fs::write(&script, format!("{}{CALLERS}", block("python").replace("timeout=1)", "timeout=60)")))
        .unwrap();
    let ran = Command::new("python3")
        .arg(&script)
        .env("TIDEGATE", format!("http://{}", daemon.http))
        .output()
        .expect("python3 is installed");
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let spent: u64 = String::from_utf8(ran.stdout).unwrap().trim().parse().unwrap();
    let bucket = daemon.get("/v1/buckets?rule=tokens&team=research").json();
    assert_eq!(bucket["used"], spent, "what the model used is what was charged: {bucket}");
    assert!(spent <= 1_000 && spent > 800, "{spent} of 1,000 were used");
    // The call that failed costs nothing: 333 of the dear model fit, 3 permits each.
    let other = daemon.check_cost(&[("team", "other"), ("model", "large")], 333);
    assert_eq!(other["allowed"], true, "{other}");
}

const COOKBOOK: &str = include_str!("../../docs/tasks/cookbook.md");

/// The recipes of the cookbook: each has rules, and rows of who asks and how many of six requests pass.
fn recipes() -> Vec<(String, Vec<(&'static str, usize)>)> {
    let rows = |text: &'static str| {
        text.lines().filter_map(|line| line.strip_prefix("| `")).map(|row| {
            let (asked, passes) = row.split_once("` | ").expect("two columns");
            (asked, passes.trim_end_matches(" |").parse().expect("how many pass"))
        })
    };
    let blocks = COOKBOOK.split("```toml\n").skip(1);
    blocks
        .map(|block| block.split_once("```").unwrap())
        .map(|(rules, rest)| (rules.to_owned(), rows(rest).collect()))
        .collect()
}

#[test]
fn every_recipe_of_the_cookbook_holds_what_its_table_says() {
    let recipes = recipes();
    assert_eq!(recipes.len(), 7);
    // As one rules file each, in one daemon after the other: six requests take no time that refills a bucket.
    for (rules, rows) in recipes {
        assert!(!rows.is_empty(), "{rules}");
        let daemon = Daemon::with_rules(&rules);
        for (asked, passes) in rows {
            let mut attributes = serde_json::Map::new();
            let mut cost = 1;
            for (name, value) in asked.split(' ').map(|pair| pair.split_once('=').unwrap()) {
                match name {
                    "cost" => cost = value.parse().unwrap(),
                    _ => drop(attributes.insert(name.to_owned(), value.into())),
                }
            }
            // One call: what comes at once is decided at one instant.
            let check = serde_json::json!({ "attributes": attributes, "cost": cost });
            let body = serde_json::json!({ "checks": vec![check; 6] });
            let answer = daemon.post("/v1/check", &body).json();
            let passed =
                answer["decisions"].as_array().unwrap().iter().filter(|one| one["allowed"] == true).count();
            assert_eq!(passed, passes, "{asked}: {answer}");
        }
    }
}
