//! The page on budgets of tokens, from a customer's sign-up to the invoice: each of its blocks is run, in
//! three regions that share one database.

use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::support::command::TIDEGATE;
use super::support::eventually;
use super::support::postgres::Postgres;
use super::world::{Plan, Store, World};

const PAGE: &str = include_str!("../../docs/tasks/budget-the-tokens-of-a-language-model.md");

/// A customer asks for the dear model, in one region after the other, until nothing is left of anything. Then
/// the invoice says what the models used.
const CUSTOMER: &str = r#"
import sys
import time

key, regions = sys.argv[1], sys.argv[2:]
used, told = {"large": 0, "small": 0}, 0


def model(name, max_tokens):
    tokens = 20 + (used[name] * 37) % (max_tokens - 20)
    used[name] += tokens
    return "text", tokens


turn, refused = 0, 0
while refused < 9:
    TIDEGATE = regions[turn % len(regions)]
    turn += 1
    try:
        named, text = answer(key, "large", 0, 100, model)
        told += named == "small"
        assert text == "text"
        refused = 0
    except BudgetUsedUp:
        refused += 1
        time.sleep(0.05)
try:
    answer("nobody-made-it", "large", 0, 100, model)
    raise SystemExit("a key that nobody made has no budget")
except BudgetUsedUp:
    pass
wanted = {"large-tokens": used["large"], "small-tokens": used["small"]}
begun = time.monotonic()
while True:
    lines, total = invoice("acme")
    if {rule: tokens for rule, (tokens, _) in lines.items()} == wanted:
        break
    assert time.monotonic() < begun + 90, (lines, wanted)
    time.sleep(0.2)
print(json.dumps({"used": used, "told": told, "lines": lines, "total": total}))
"#;

/// The part of the page that leads from the sign-up to the invoice.
fn section() -> &'static str {
    let (_, rest) = PAGE.split_once("## From a customer's sign-up").expect("the page has such a section");
    rest.split_once("\n## ").expect("another one follows").0
}

/// The blocks of this language.
fn blocks(text: &'static str, language: &str) -> Vec<&'static str> {
    let begin = format!("```{language}\n");
    text.split(&*begin).skip(1).map(|block| block.split_once("```").expect("the block ends").0).collect()
}

#[test]
fn from_the_sign_up_to_the_invoice_over_three_regions() {
    let toml = blocks(section(), "toml");
    let [rules, config] = toml[..] else { panic!("rules and configuration: {toml:?}") };
    let postgres = Postgres::start();
    let database = postgres.migrated(TIDEGATE);
    let of_page = "url = \"postgres://tidegate@db/tidegate\"";
    assert_eq!(config.matches(of_page).count(), 1, "{config}");
    // Lookups may be slow on a busy machine.
    let config = config.replace(of_page, &format!("url = \"{}\"", postgres.url(&database)));
    let lines = format!("{config}spool = \"spool\"\n[identity]\nlookup_timeout = \"1s\"\n");
    let plan = Plan {
        regions: 3,
        rtt: Duration::from_millis(40),
        store: Store::Memory,
        limit: 3_000,
        global: "mode = \"escrow\"",
    };
    let world = World::with_peers(plan, rules, &lines);

    let sh = blocks(section(), "sh");
    let mut key = String::new();
    for line in sh[0].lines().filter(|line| !line.is_empty()) {
        let command: Vec<&str> = line.split(' ').skip(1).chain(["--json"]).collect();
        let ran = world.daemons[0].run(&command);
        assert_eq!(ran.code, 0, "{line}: {}", ran.both());
        let told: Value = serde_json::from_str(&ran.out).unwrap_or_default();
        key = told["secret"].as_str().unwrap_or_default().to_owned();
    }
    assert!(key.starts_with("tgk_"), "the last command prints the key: {key:?}");
    for daemon in &world.daemons {
        for (model, limit) in [("large", 3_000), ("small", 2_000)] {
            eventually("every region knows the customer and has agreed on the budget", || {
                let look = daemon.check_cost(&[("api_key", &key), ("model", model)], 0);
                (look["limit"] == limit && look["remaining"].as_u64()? > 100).then_some(())
            });
        }
    }

    // `ask` and `BudgetUsedUp` are those of the section before.
    let mut script = blocks(PAGE, "python").join("\n\n").replace("timeout=1)", "timeout=60)");
    script.push_str(CUSTOMER);
    let folder = tempfile::TempDir::new().unwrap();
    let path = folder.path().join("service.py");
    std::fs::write(&path, script).unwrap();
    let regions = world.daemons.iter().map(|daemon| format!("http://{}", daemon.http));
    let ran =
        Command::new("python3").arg(&path).arg(&key).args(regions).output().expect("python3 is installed");
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let told: Value = serde_json::from_slice(&ran.stdout).unwrap();
    let used = ["large", "small"].map(|model| told["used"][model].as_u64().unwrap());
    assert!((1_500..=3_000).contains(&used[0]), "most of the dear budget was used, and never more: {told}");
    assert!((1_000..=2_000).contains(&used[1]), "and then that of the cheap model: {told}");
    assert!(told["told"].as_u64() > Some(0), "{told}");
    assert_eq!(told["total"], used[0] * 30 + used[1] * 2, "{told}");

    let of_regions = world.daemons[2].get("/v1/usage?user=acme&group=region&by=month&from=0d").json();
    let sums = of_regions["rows"].as_array().unwrap();
    assert_eq!(sums.len(), 3, "each region wrote what it admitted: {of_regions}");
    assert_eq!(sums.iter().map(|row| row["cost"].as_u64().unwrap()).sum::<u64>(), used[0] + used[1]);
}
