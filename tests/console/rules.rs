//! Rules in the browser: explained, made, changed by text or by a form, taken back and removed.

use serde_json::{Value, json};

use crate::browser::Browser;
use crate::support::eventually;
use crate::support::postgres::Postgres;
use crate::{RULES, daemon, kept_in};

#[test]
fn a_rule_is_explained_changed_and_taken_back_in_the_browser() {
    let postgres = Postgres::start();
    let (daemon, browser) = (kept_in(&postgres), Browser::start());
    let limit = || daemon.get("/v1/rules/search%20%3Cb%3E").json()["rule"]["limit"].as_u64();
    browser.open(&format!("http://{}/#rules", daemon.http));
    browser.fill("//label[contains(., 'Attributes')]/input", "user=u_1");
    browser.button("Explain");
    browser.shows("allowed by search <b>: 69 of 70 would be left");

    browser.click("//button[span[normalize-space()='search <b>']]");
    let field = "//textarea";
    let text = browser.value(field);
    assert!(!text.contains("priority"), "it is shown as it was written: {text}");
    browser.fill(field, &text.replace("70", "\"many\""));
    browser.button("Save …");
    browser.shows("limit must be");
    assert_eq!(limit(), Some(70), "a mistake changes nothing");
    browser.fill(field, &text.replace("70", "7"));
    browser.button("Save …");
    browser.shows("limit: 70 → 7");
    assert_eq!(limit(), Some(70), "a look changes nothing");
    let reason = "//label[contains(., 'Reason')]/input";
    browser.fill(reason, "they asked");
    browser.button("Save");
    browser.shows("is in force");
    assert_eq!(limit(), Some(7));
    let written = daemon.get("/v1/rules/search%20%3Cb%3E?written=true").json()["rule"].clone();
    let mut keys: Vec<&String> = written.as_object().unwrap().keys().collect();
    keys.sort();
    assert_eq!(keys, ["algorithm", "limit", "name", "per", "window"], "nobody wrote more: {written}");
    let newest = daemon.get("/v1/rules/history").json()["history"][0].clone();
    assert_eq!(newest["reason"], "they asked", "{newest}");
    browser.shows("they asked");

    let back = "//button[starts-with(normalize-space(), 'Go back to')]";
    browser.click("(//button[normalize-space()='Look'])[2]");
    browser.click(back);
    browser.shows("limit: 7 → 70");
    assert_eq!(limit(), Some(7), "nothing is taken back before somebody says so");
    browser.fill(&format!("//tr{reason}"), "they did not");
    browser.click(&format!("//form{back}"));
    eventually("the rule is as it was", || (limit() == Some(70)).then_some(()));
    let newest = daemon.get("/v1/rules/history").json()["history"][0].clone();
    assert!(newest["reason"].as_str().is_some_and(|why| why.starts_with("they did not")), "{newest}");
    assert_eq!(newest["action"], "rollback", "{newest}");
}

#[test]
fn a_rule_is_made_found_by_its_condition_and_removed_in_the_browser() {
    let (daemon, browser) = (daemon(), Browser::start());
    browser.open(&format!("http://{}/#rules", daemon.http));
    browser.shows("1 rule, revision");
    browser.button("New rule");
    let rule = r#"{ "name": "exports", "match": { "path": "/Exports" }, "limit": 3, "window": "1s" }"#;
    browser.fill("//textarea", rule);
    browser.button("Save …");
    browser.shows("+exports");
    browser.button("Save");
    browser.shows("2 rules, revision");
    let text = std::fs::read_to_string(daemon.folder().join("rules.toml")).unwrap();
    let made = text.strip_prefix(RULES).unwrap_or_else(|| panic!("the others are as they were: {text}"));
    assert!(made.contains("name = \"exports\"") && !made.contains("priority"), "{made}");

    browser.fill("//input[@aria-label='Search rules']", "path=/EXP");
    browser.shows("1 of 2 rules, revision");
    browser.click("//button[span[normalize-space()='exports']]");
    browser.button("Remove …");
    browser.shows("-exports");
    assert_eq!(daemon.get("/v1/rules/exports").status, 200);
    browser.button("Remove");
    browser.shows("Choose a rule");
    eventually("it is gone", || (daemon.get("/v1/rules/exports").status == 404).then_some(()));
}

/// A field of the rule's form that is typed into.
fn field(name: &str) -> String {
    format!("//details//label[normalize-space()='{name}']/input")
}

#[test]
fn a_form_knows_every_field_of_a_rule_and_writes_only_what_is_filled_in() {
    let (daemon, browser) = (daemon(), Browser::start());
    browser.open(&format!("http://{}/#rules", daemon.http));
    browser.click("//button[span[normalize-space()='search <b>']]");
    browser.click("//summary");
    browser.shows("Find a field");
    // The daemon describes its fields once; the form has all of them.
    let described = daemon.get("/openapi.json").json()["components"]["schemas"]["Rule"]["properties"].clone();
    for name in described.as_object().unwrap().keys() {
        let shown = format!(
            "//details//label[starts-with(normalize-space(), '{name}')] | //details//legend[normalize-space()='{name}']"
        );
        assert!(browser.count(&shown) > 0, "the form has no {name}");
    }
    browser.shows("The fate of permits whose reservation lapses");
    browser.shows("not written (reject)");

    browser.fill(&field("limit"), "7");
    browser.click("//details//label[starts-with(normalize-space(), 'action')]/select/option[.='log_only']");
    browser.fill(&field("Add to match, by name"), "path");
    browser.button("Add to match");
    let path = "//fieldset[legend='match']//label[starts-with(normalize-space(), 'path')]/textarea";
    browser.fill(path, "/a\n/b");
    browser.button("Write penalty");
    browser.fill(&field("threshold"), "5");
    browser.fill("//fieldset[legend='penalty']//label[normalize-space()='window']/input", "10m");
    let text: Value = serde_json::from_str(&browser.value("//textarea")).unwrap();
    let wanted = json!({
        "name": "search <b>", "per": ["user"], "algorithm": "fixed_window", "limit": 7, "window": "1m",
        "action": "log_only", "match": { "path": ["/a", "/b"] }, "penalty": { "threshold": 5, "window": "10m" },
    });
    assert_eq!(text, wanted, "the text has what was written, and no default");
    browser.button("Take penalty away");
    browser.button("Take path away");
    // The text is shown in the form, too.
    let text = browser.value("//textarea");
    browser.fill("//textarea", &text.replace("\"limit\": 7", "\"limit\": 8"));
    eventually("the form follows the text", || (browser.value(&field("limit")) == "8").then_some(()));
    browser.fill("//textarea", "{");
    browser.shows("The text is no rule in JSON");
    browser.fill("//textarea", &text);
    browser.fill("//label[contains(., 'Find a field')]/input", "lapse");
    eventually("a field is found", || (browser.count("//details//div[@class='field']") == 1).then_some(()));

    browser.button("Save …");
    browser.shows("limit: 70 → 7");
    browser.button("Save");
    browser.shows("is in force");
    let written = daemon.get("/v1/rules/search%20%3Cb%3E?written=true").json()["rule"].clone();
    let mut keys: Vec<&String> = written.as_object().unwrap().keys().collect();
    keys.sort();
    assert_eq!(keys, ["action", "algorithm", "limit", "name", "per", "window"], "{written}");
    assert!(browser.said().is_empty(), "{:?}", browser.said());
}
