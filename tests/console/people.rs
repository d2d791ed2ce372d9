//! Users, API keys and tiers in the browser: found, made, changed, blocked, taken back and removed.

use serde_json::json;

use crate::browser::Browser;
use crate::support::daemon::Daemon;
use crate::support::eventually;
use crate::support::postgres::Postgres;
use crate::{Guarded, RULES, daemon, guarded, kept_in};

/// A field of a form that is typed into.
fn field(name: &str) -> String {
    format!("//div[@class='field']/label[normalize-space()='{name}']/*[self::input or self::textarea]")
}

#[test]
fn a_user_is_blocked_and_let_in_again_in_the_browser() {
    let postgres = Postgres::start();
    let (daemon, browser) = (kept_in(&postgres), Browser::start());
    assert_eq!(daemon.run(&["users", "set", "u_42"]).code, 0);
    browser.open(&format!("http://{}/#identities", daemon.http));
    // Rules count a user of whom nothing is kept, too.
    browser.fill("//label[contains(., 'Name')]/input", "u_7");
    browser.button("Look");
    browser.shows("Nothing is kept of u_7");
    browser.shows("Left now of u_7");
    browser.shows("search <b>");
    browser.fill("//label[contains(., 'Name')]/input", "u_42");
    browser.button("Look");
    browser.button("Block …");
    browser.shows("blocked: no → until somebody unblocks it");
    assert_eq!(daemon.check(&[("user", "u_42")])["allowed"], true, "a look changes nothing");
    browser.fill("//label[contains(., 'Reason')]/input", "abuse");
    browser.button("Block");
    browser.shows("until somebody unblocks it: abuse");
    eventually("the user is denied", || {
        (daemon.check(&[("user", "u_42")])["allowed"] == false).then_some(())
    });
    browser.button("Unblock …");
    browser.shows("→ no");
    browser.button("Unblock");
    eventually("the user is admitted", || {
        (daemon.check(&[("user", "u_42")])["allowed"] == true).then_some(())
    });
    let seen = daemon.get("/v1/users/u_42").json()["user"]["last_seen_at"].as_str().unwrap().to_owned();
    // Another one, and this one anew.
    browser.fill("//label[contains(., 'Name')]/input", "u_7");
    browser.button("Look");
    browser.shows("Left now of u_7");
    browser.fill("//label[contains(., 'Name')]/input", "u_42");
    browser.button("Look");
    browser.shows("last seen");
    browser.shows(&seen[..16].replace('T', " "));
    eventually("the block is recorded", || {
        let audit = daemon.get("/v1/audit?outcome=blocked").json();
        (!audit["decisions"].as_array()?.is_empty()).then_some(())
    });
    browser.open(&format!("http://{}/#decisions", daemon.http));
    browser.shows("user_blocked");
    browser.button("Why");
    browser.shows("Why user=u_42");
    browser.shows("Not limited: a request would be admitted now");
}

#[test]
fn users_are_listed_page_by_page_and_found_by_a_part_of_their_name_by_tier_and_by_block() {
    let many: String = (0..130).map(|place| format!("[[users]]\nid = \"u_{place:03}\"\n")).collect();
    let rules = format!(
        "{RULES}{many}[[tiers]]\nname = \"pro\"\n[[users]]\nid = \"Mallory\"\nblocked = true\n\
         [[users]]\nid = \"payer\"\ntier = \"pro\"\n"
    );
    let (daemon, browser) = (Daemon::with_rules(&rules), Browser::start());
    browser.open(&format!("http://{}/#identities", daemon.http));
    browser.shows("100 or more users");
    browser.button("More");
    browser.shows("132 users");
    browser.fill("//input[@type='search']", "mALL");
    browser.shows("1 user");
    browser.shows("blocked · the default tier");
    browser.fill("//input[@type='search']", "nobody");
    browser.shows("No user is like that.");
    browser.fill("//input[@type='search']", " ");
    browser.click("//option[normalize-space()='blocked']");
    browser.shows("1 user");
    browser.click("//option[normalize-space()='all']");
    browser.click("//option[normalize-space()='pro']");
    browser.shows("1 user");
    browser.click("//button[span[normalize-space()='payer']]");
    browser.shows("Left now of payer");
    assert!(browser.said().is_empty(), "{:?}", browser.said());
}

#[test]
fn a_user_with_limits_of_its_own_is_made_changed_and_removed_in_the_browser() {
    let (daemon, browser) = (daemon(), Browser::start());
    browser.open(&format!("http://{}/#identities", daemon.http));
    browser.button("New user");
    browser.fill(&field("id"), "carol");
    browser.fill("//label[contains(., 'Add to overrides')]/input", "search <b>");
    browser.button("Add to overrides");
    browser.fill(&field("limit"), "50");
    browser.button("Make …");
    browser.shows("+user carol");
    browser.shows("limit of search <b>: none → 50");
    assert_eq!(daemon.get("/v1/users/carol").status, 404, "a look makes nobody");
    browser.fill("//label[contains(., 'Reason')]/input", "they asked");
    browser.button("Make");
    browser.shows("limits of its own\tsearch <b>: 50");
    assert_eq!(daemon.check_cost(&[("user", "carol")], 0)["limit"], 50);
    let changes = daemon.get("/v1/changes").json();
    assert_eq!(changes["changes"][0]["reason"], "they asked", "{changes}");

    browser.fill(&field("limit"), "60");
    browser.button("Save …");
    browser.shows("limit of search <b>: 50 → 60");
    browser.button("Save");
    browser.shows("Done.");
    let user = daemon.get("/v1/users/carol").json()["user"].clone();
    assert_eq!(user["overrides"], json!({ "search <b>": { "limit": 60, "burst": 60 } }), "{user}");
    // A limit that cannot be is refused in the daemon's words, and nothing is changed.
    browser.fill(&field("limit"), "many");
    browser.button("Save …");
    browser.button("Save");
    browser.shows("the body is not what this route reads");
    browser.button("Cancel");
    browser.button("Remove …");
    browser.shows("-user carol");
    browser.button("Remove");
    browser.shows("Choose a user");
    assert_eq!(daemon.get("/v1/users/carol").status, 404);
}

#[test]
fn a_key_is_made_shown_once_changed_and_revoked_and_a_tier_is_kept_while_it_is_held() {
    let (daemon, browser) = (daemon(), Browser::start());
    assert_eq!(daemon.run(&["users", "set", "bob"]).code, 0);
    browser.open(&format!("http://{}/#identities", daemon.http));
    browser.click("//option[normalize-space()='Tiers']");
    browser.button("New tier");
    browser.fill(&field("name"), "gold");
    browser.fill(&field("description"), "dearest");
    browser.button("Make …");
    browser.shows("+tier gold");
    browser.button("Make");
    browser.shows("1 tier");

    browser.click("//option[normalize-space()='API keys']");
    browser.shows("Nothing is kept of any key.");
    browser.button("New key");
    browser.fill(&field("user"), "bob");
    browser.fill(&field("tier"), "gold");
    browser.fill(&field("expires_at"), "90d");
    browser.button("Make …");
    browser.shows("expires_at: none → 90d");
    browser.button("Make");
    browser.shows("This is the whole key; nobody can show it again");
    let key = daemon.get("/v1/keys").json()["keys"][0].clone();
    let id = key["id"].as_str().unwrap();
    assert_eq!((&key["user"], &key["tier"]), (&json!("bob"), &json!("gold")), "{key}");
    let text = browser.text();
    let secret = text.split_whitespace().find(|word| word.starts_with(&format!("{id}_"))).unwrap();
    assert_eq!(daemon.check_cost(&[("api_key", secret)], 0)["allowed"], true);

    browser.click(&format!("//button[span[normalize-space()='{id}']]"));
    browser.shows("may be used\tyes");
    assert!(!browser.text().contains(secret), "it is shown once");
    browser.fill(&field("note"), "batch");
    browser.button("Save …");
    browser.shows("note: none → batch");
    browser.button("Save");
    browser.shows("note\tbatch");
    let changed = daemon.get(&format!("/v1/keys/{id}")).json()["key"].clone();
    assert_eq!(
        (&changed["note"], &changed["expires_at"]),
        (&json!("batch"), &key["expires_at"]),
        "{changed}"
    );
    browser.button("Revoke …");
    browser.shows("revoked: no → yes, for ever");
    browser.button("Revoke");
    browser.shows("A key that was revoked stays so.");
    assert_eq!(daemon.check_cost(&[("api_key", secret)], 0)["rule"], "key_revoked");
    browser.click("//option[normalize-space()='not revoked']");
    browser.shows("No key is like that.");
    browser.click("//option[normalize-space()='revoked']");
    browser.shows("1 key");

    browser.click("//option[normalize-space()='Tiers']");
    browser.click("//button[span[normalize-space()='gold']]");
    browser.button("Remove …");
    browser.button("Remove");
    browser.shows("\"gold\" is still the tier of key");
    assert_eq!(daemon.get("/v1/tiers/gold").status, 200);
}

#[test]
fn a_viewer_looks_at_users_and_is_offered_no_change() {
    let Guarded { daemon, looks, may, tokens: _kept } = guarded();
    let browser = Browser::start();
    let offered = || {
        ["New", "Block", "Save", "Make", "Remove", "Revoke"]
            .into_iter()
            .filter(|text| browser.count(&format!("//button[starts-with(normalize-space(), '{text}')]")) > 0)
            .collect::<Vec<_>>()
    };
    let enter = |token: &str, name: &str| {
        browser.fill("//input[@name='token']", token);
        browser.button("Log in");
        browser.shows(name);
        browser.fill("//label[contains(., 'Name')]/input", "u_42");
        browser.button("Look");
        browser.shows("Left now of u_42");
    };
    browser.open(&format!("http://{}/#identities", daemon.http));
    enter(&looks, "looks, viewer");
    assert_eq!(offered(), [""; 0]);
    browser.button("Log out");
    enter(&may, "may, operator");
    browser.shows("Keep it, with a tier or limits of its own");
    browser.shows("Add to overrides");
    assert_eq!(offered(), ["New", "Block", "Make"]);
    // Keys are made by an admin.
    browser.click("//option[normalize-space()='API keys']");
    browser.shows("Choose a key");
    assert_eq!(offered(), [""; 0]);
}
