//! The console in a real Chromium: its pages show what the daemon knows, load nothing from elsewhere, and say
//! nothing on the browser's console.
//!
//! `tests/run` installs Chromium; without it these tests fail, they do not skip.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "tests fail by panic"
)]
#![allow(clippy::disallowed_methods, reason = "these tests measure real time")]

#[path = "../support/mod.rs"]
mod support;

mod browser;
mod overview;
mod people;
mod rules;

use std::path::{Path, PathBuf};

use browser::Browser;
use support::authority::Authority;
use support::command::TIDEGATE;
use support::daemon::{Daemon, Launch};
use support::postgres::Postgres;
use support::{command, eventually, free_udp, http, not_judged};

const RULES: &str = "[[rules]]\nname = \"search <b>\"\nper = [\"user\"]\nalgorithm = \"fixed_window\"\nlimit = 70\nwindow = \"1m\"\n";

fn daemon() -> Daemon {
    Daemon::with(RULES, "region = \"eu-west\"\n", &[])
}

/// A daemon whose rules are in a database, and which whoever sits at this machine may change.
fn kept_in(postgres: &Postgres) -> Daemon {
    kept_in_database(postgres, &postgres.migrated(TIDEGATE))
}

/// The same, in this database.
fn kept_in_database(postgres: &Postgres, database: &str) -> Daemon {
    let url = postgres.url(database);
    let config = format!(
        "region = \"eu-west\"\n[rules]\nsource = \"postgres\"\nsaved = \"saved.json\"\n[postgres]\nurl = \"{url}\"\n\
         [admin]\nlocal = true\n[audit]\nspool = \"spool\"\n"
    );
    let daemon = Daemon::with("", &config, &[]);
    let rules = format!(
        "{RULES}[[rules]]\nname = \"world\"\nalgorithm = \"fixed_window\"\nlimit = 100\nwindow = \"1m\"\n[rules.global]\n\
         mode = \"split\"\nshares = {{ eu-west = 3, us-east = 1 }}\n"
    );
    std::fs::write(daemon.folder().join("wanted.toml"), rules).unwrap();
    let applied = daemon.run(&["rules", "apply", "wanted.toml"]);
    assert_eq!(applied.code, 0, "{applied:?}");
    daemon
}

/// Where pictures of the pages are kept, to be looked at.
fn pictures() -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/console");
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

const PAGES: [(&str, &[&str]); 8] = [
    (
        "overview",
        &[
            "All is well",
            "at eu-west/",
            "Who is limited",
            "search <b> user=u_42",
            "What changed",
            ", revision ",
        ],
    ),
    ("world", &["eu-west", "this daemon", "Worldwide rules"]),
    ("rules", &["2 rules, revision", "search <b>", "70 / 1m", "What would be decided", "search <b>, world"]),
    ("quotas", &["world", "75 %", "25 %"]),
    ("hot", &["Who asks most now, at eu-west/", "search <b> user=u_42", "requests/s", "Rules"]),
    ("decisions", &["Decisions of the last day", "u_42"]),
    ("identities", &["User"]),
    ("health", &["serving", "memory: ok", "eu-west/"]),
];

#[test]
fn every_page_shows_what_the_daemon_knows_to_everybody_and_says_nothing_on_the_browsers_console() {
    every_page_shows_what_the_daemon_knows("light");
}

#[test]
fn every_page_shows_what_the_daemon_knows_to_whoever_prefers_the_dark() {
    every_page_shows_what_the_daemon_knows("dark");
}

fn every_page_shows_what_the_daemon_knows(scheme: &str) {
    let postgres = Postgres::start();
    let daemon = kept_in(&postgres);
    // More than two windows hold.
    for _ in 0..150 {
        daemon.check(&[("user", "u_42")]);
    }
    eventually("the denials are recorded", || {
        let audit = daemon.get("/v1/audit?outcome=denied").json();
        (!audit["decisions"].as_array()?.is_empty()).then_some(())
    });
    let (browser, judge) = (Browser::start(), judge());
    let mut wrong = Vec::new();
    browser.prefer(scheme);
    for (name, shown) in PAGES {
        browser.open(&format!("http://{}/#{name}", daemon.http));
        shown.iter().for_each(|text| browser.shows(text));
        browser.picture(&pictures().join(format!("{name}-{scheme}.png")));
        let barriers = judge.as_deref().map(|judge| browser.barriers(judge)).unwrap_or_default();
        wrong.extend(barriers.iter().chain(&browser.said()).map(|one| format!("{name}, {scheme}: {one}")));
        for width in [400, 1_920] {
            browser.at_width(width, || {
                browser.picture(&pictures().join(format!("{name}-{scheme}-{width}.png")));
                let found = barriers_here(&browser, judge.as_deref().filter(|_| width == 400));
                wrong.extend(found.iter().map(|one| format!("{name}, {scheme}, {width} pixels: {one}")));
            });
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What reads a page for those who do not see it, or not well; `None` where it is not installed.
fn judge() -> Option<String> {
    let judge = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/deploy-tools/axe.min.js");
    let judge = std::fs::read_to_string(judge).ok();
    if judge.is_none() {
        not_judged("axe-core is not installed, so accessibility is not looked at: tests/run installs it");
    }
    judge
}

/// What keeps somebody out of the page as it is now, at this width.
fn barriers_here(browser: &Browser, judge: Option<&str>) -> Vec<String> {
    let mut found = judge.map(|judge| browser.barriers(judge)).unwrap_or_default();
    found.extend(browser.sideways().iter().map(|part| format!("{part} has to be moved sideways")));
    if browser.is_too_wide() {
        found.push("the page is wider than the window".to_owned());
    }
    found
}

#[test]
fn no_state_of_a_page_keeps_anybody_out() {
    no_state_keeps_anybody_out("light", 1_280);
}

#[test]
fn no_state_of_a_page_keeps_anybody_out_of_a_dark_narrow_one() {
    no_state_keeps_anybody_out("dark", 400);
}

fn no_state_keeps_anybody_out(scheme: &str, width: u32) {
    let (busy, empty, browser, judge) = (daemon(), Daemon::with_rules(""), Browser::start(), judge());
    for _ in 0..150 {
        busy.check(&[("user", "u_42")]);
    }
    let open = |daemon: &Daemon, page: &str, shown: &str| {
        browser.open("about:blank");
        browser.open(&format!("http://{}/#{page}", daemon.http));
        browser.shows(shown);
    };
    let mut wrong = Vec::new();
    let mut look = |state: &str| {
        browser.at_width(width, || {
            browser.picture(&pictures().join(format!("state-{state}-{scheme}-{width}.png")));
            let found = barriers_here(&browser, judge.as_deref());
            wrong.extend(found.iter().map(|one| format!("{state}, {scheme}, {width} pixels: {one}")));
        });
    };
    browser.prefer(scheme);
    open(&empty, "rules", "No rules are in force: everything passes.");
    look("no-rules");
    open(&empty, "quotas", "No rule is worldwide");
    look("no-quotas");
    open(&busy, "hot", "search <b> user=u_42");
    browser.button("Why");
    browser.shows("used by region");
    look("why");
    open(&busy, "rules", "1 rule, revision");
    browser.click("//button[span[normalize-space()='search <b>']]");
    let text = browser.value("//textarea");
    browser.fill("//textarea", &text.replace("70", "7"));
    browser.button("Save …");
    browser.shows("limit: 70 → 7");
    look("change");
    browser.click("//summary");
    browser.shows("Find a field");
    look("rule-form");
    browser.keys("?");
    browser.shows("Shortcuts");
    look("help");
    open(&busy, "identities", "Nothing is kept of any user.");
    browser.fill("//label[contains(., 'Name')]/input", "u_42");
    browser.button("Look");
    browser.shows("Left now of u_42");
    browser.button("Block …");
    browser.shows("+user u_42");
    look("user");
    browser.click("//option[normalize-space()='API keys']");
    browser.button("New key");
    browser.fill("//label[contains(., 'Add to overrides')]/input", "search <b>");
    browser.button("Add to overrides");
    browser.shows("Permits per window");
    look("new-key");
    open(&busy, "health", "serving");
    browser.button("Show a token");
    browser.shows("Go on without a token");
    look("token");
    busy.set_rules("[[rules]]\nname = 1\n");
    open(&busy, "health", "1 alarm");
    look("trouble");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A daemon that asks everybody for a token, that of a viewer and that of an operator.
struct Guarded {
    daemon: Daemon,
    looks: String,
    may: String,
    /// Where the tokens lie, for as long as the daemon may read them.
    tokens: tempfile::TempDir,
}

fn guarded() -> Guarded {
    let folder = tempfile::TempDir::new().unwrap();
    let tokens = folder.path().join("tokens.toml").display().to_string();
    let token = |name: &str, role: &str| {
        let made =
            command::run(folder.path(), &["admin", "token", name, "--role", role, "--add-to", &tokens]);
        made.out.trim().to_owned()
    };
    let (looks, may) = (token("looks", "viewer"), token("may", "operator"));
    let launch = Launch { guarded: true, ..Launch::default() };
    let daemon = Daemon::launch(launch, RULES, &format!("[admin]\ntokens = {tokens:?}\n"), &[]);
    Guarded { daemon, looks, may, tokens: folder }
}

#[test]
fn a_viewer_is_offered_no_change_and_a_token_is_put_away_again() {
    let Guarded { daemon, looks, may, tokens: _kept } = guarded();
    let browser = Browser::start();
    let enter = |token: &str| {
        browser.shows("this route needs a token");
        browser.fill("//input[@name='token']", token);
        browser.button("Log in");
        browser.click("//button[span[normalize-space()='search <b>']]");
        assert!(browser.value("//textarea").contains("fixed_window"));
    };
    let offered = || {
        let texts = ["Save", "Remove", "New rule", "Go back"];
        let has =
            |text: &&str| browser.count(&format!("//button[starts-with(normalize-space(), '{text}')]")) > 0;
        texts.into_iter().filter(has).collect::<Vec<_>>()
    };
    browser.open(&format!("http://{}/#rules", daemon.http));
    enter(&looks);
    browser.shows("looks, viewer");
    browser.shows("To change it needs role operator");
    assert_eq!(offered(), [""; 0]);
    browser.button("Log out");
    enter(&may);
    browser.shows("may, operator");
    browser.shows("Save …");
    assert_eq!(offered(), ["Save", "Remove", "New rule"]);
}

#[test]
fn keys_lead_to_pages_fields_and_rows_unless_somebody_does_without() {
    let (daemon, browser) = (daemon(), Browser::start());
    browser.open(&format!("http://{}/#hot", daemon.http));
    browser.shows("Who asks most now");
    browser.keys("gr");
    browser.shows("1 rule, revision");
    browser.keys("/");
    browser.keys("g?");
    browser.shows("0 of 1 rule, revision");
    let search = "//input[@aria-label='Search rules']";
    assert_eq!(browser.value(search), "g?", "in a field a letter is a letter");
    browser.fill(search, "SEARCH");
    browser.shows("1 rule, revision");
    // Leaves the field, goes to the first rule, and opens it.
    browser.keys("\u{e00c}j\u{e007}");
    assert!(browser.value("//textarea").contains("fixed_window"));
    browser.keys("?");
    browser.shows("Keys of one letter are on");
    browser.click("//dialog//input[@type='checkbox']");
    browser.keys("\u{e00c}");
    eventually("the help is closed", || (browser.count("//dialog") == 0).then_some(()));
    browser.keys("gh?");
    assert_eq!(browser.count("//dialog"), 0);
    assert!(browser.text().contains("1 rule, revision"), "{}", browser.text());
}

#[test]
fn worldwide_rules_beyond_the_fiftieth_are_listed_and_found() {
    let worldwide = (0..60).map(|place| {
        format!(
            "[[rules]]\nname = \"world-{place:02}\"\nalgorithm = \"fixed_window\"\nlimit = {}\nwindow = \"1m\"\n[rules.global]\nmode = \"{}\"\n",
            100 + place,
            if place == 59 { "escrow" } else { "gossip" }
        )
    });
    let rules: String = worldwide.chain([RULES.to_owned()]).collect();
    let config = "region = \"eu-west\"\n[peers]\nregions = [\"eu-west\", \"us-east\"]\n";
    let (daemon, browser) = (Daemon::with(&rules, config, &[]), Browser::start());
    browser.open(&format!("http://{}/#quotas", daemon.http));
    browser.shows("60 worldwide rules");
    browser.fill("//input[@aria-label='Search worldwide rules']", "WORLD-58");
    browser.shows("1 of 60 worldwide rules");
    browser.click("//button[span[normalize-space()='world-58']]");
    browser.shows("gossip, 158 in all regions together");
    browser.open(&format!("http://{}/#rules", daemon.http));
    browser.shows("61 rules, revision");
    browser.click("//option[normalize-space()='escrow']");
    browser.shows("1 of 61 rules, revision");
    browser.shows("world-59");
    browser.click("//option[normalize-space()='each region alone']");
    browser.shows("search <b>");
}

#[test]
fn a_quota_that_is_edited_in_the_browser_is_in_force() {
    let postgres = Postgres::start();
    let (daemon, browser) = (kept_in(&postgres), Browser::start());
    browser.open(&format!("http://{}/#quotas", daemon.http));
    browser.fill("//input[@aria-label='Weight of us-east as a number']", "3");
    browser.shows("50 %");
    browser.button("Save …");
    browser.shows("weight: 3");
    assert_eq!(browser.count("//button[normalize-space()='Save']"), 1, "it asks before it saves");
    browser.button("Save");
    browser.shows("is in force");
    let shares = daemon.get("/v1/quotas/world").json()["shares"].clone();
    assert_eq!(shares, serde_json::json!({ "eu-west": 3, "us-east": 3 }));
}

#[test]
fn a_region_that_is_cut_off_is_shown_without_touching_the_page() {
    let rules = "[[rules]]\nname = \"search\"\nalgorithm = \"fixed_window\"\nlimit = 100\nwindow = \"1m\"\n\
                 [rules.global]\nmode = \"gossip\"\n";
    let (_authority, daemons) = two_regions(rules);
    let browser = Browser::start();
    browser.open(&format!("http://{}/#world", daemons[0].http));
    browser.shows("connected");
    let [_here, mut away] = <[Daemon; 2]>::try_from(daemons).ok().unwrap();
    away.kill();
    browser.shows("cut off");
    away.start_again();
    browser.shows("connected");
}

/// A daemon of each of two regions, and the authority whose files they read.
fn two_regions(rules: &str) -> (Authority, Vec<Daemon>) {
    let authority = Authority::new();
    let peers = [free_udp(), free_udp()];
    let config = |place: usize| {
        let region = ["ap", "eu"][place];
        let tls = authority.issue(region, &format!("{region}-1"));
        format!(
            "region = \"{region}\"\nnode = \"{region}-1\"\n[listen]\npeer = \"{}\"\n[peers]\nregions = [\"ap\", \"eu\"]\n\
             join = [\"{}\"]\n{tls}",
            peers[place],
            peers[1 - place]
        )
    };
    let daemons = (0..2).map(|place| Daemon::with(rules, &config(place), &[])).collect();
    (authority, daemons)
}

#[test]
fn who_asks_most_and_why_it_is_limited_is_shown_in_the_browser() {
    let (daemon, browser) = (daemon(), Browser::start());
    for _ in 0..150 {
        daemon.check(&[("user", "u_42")]);
    }
    browser.open(&format!("http://{}/#hot", daemon.http));
    browser.shows("search <b> user=u_42");
    browser.button("Why");
    browser.shows("Why user=u_42");
    // A window may end in between: then the client is not limited, and the page says that.
    browser.shows("imited");
    browser.shows("used by region");
    browser.button("Close");
    browser.fill("//label[contains(., 'Rule')]/input", "none");
    browser.shows("there is no rule \"none\"");
}

#[test]
fn denials_without_a_bucket_are_no_silence() {
    let rules = "[[rules]]\nname = \"closed\"\nmatch = { path = \"/closed\" }\naction = \"block\"\n";
    let (daemon, browser) = (Daemon::with_rules(rules), Browser::start());
    browser.open(&format!("http://{}/#hot", daemon.http));
    browser.shows("Nobody asked of late.");
    for _ in 0..20 {
        daemon.check(&[("path", "/closed")]);
    }
    browser.shows("denials without one, by a block");
}

#[test]
fn a_client_is_limited_in_a_bucket_that_its_name_alone_does_not_reach() {
    let rules = "[[rules]]\nname = \"search\"\nmatch = { path = \"/search\" }\nper = [\"user\"]\n\
                 algorithm = \"fixed_window\"\nlimit = 3\nwindow = \"24h\"\n\
                 [[rules]]\nname = \"watched\"\nmatch = { path = \"/watched\" }\nper = [\"team\"]\n\
                 algorithm = \"fixed_window\"\nlimit = 1\nwindow = \"24h\"\naction = \"log_only\"\n\
                 [[rules]]\nname = \"exports\"\nmatch = { path = \"/exports\" }\nper = [\"user\"]\n\
                 algorithm = \"concurrency\"\nlimit = 2\nhold = \"30s\"\n";
    let (daemon, browser) = (Daemon::with_rules(rules), Browser::start());
    for _ in 0..30 {
        daemon.check(&[("user", "u_42"), ("path", "/search")]);
        daemon.check(&[("team", "red"), ("path", "/watched")]);
    }
    browser.open(&format!("http://{}/#hot", daemon.http));
    let row = |bucket: &str| format!("//tr[td[1][contains(., '{bucket}')]]");
    browser.click(&format!("{}//button", row("search user=u_42")));
    browser
        .shows("A request with these names alone would pass, but a bucket of this client is used up (below)");
    browser.shows("the limit is used up");
    // A rule that only logs denies nobody, and is not said to.
    let only_watched = format!("{}[td[3][contains(., 'would be denied')]]", row("watched team=red log only"));
    eventually("the rule that only logs is marked", || (browser.count(&only_watched) > 0).then_some(()));
    browser.click(&format!("{}//button", row("watched team=red")));
    browser.shows("Not limited: a request would be admitted now");
    browser.shows("log only: would be denied");
    assert!(!browser.text().contains("undefined"), "{}", browser.text());

    browser.open(&format!("http://{}/#rules", daemon.http));
    browser.shows("2 at once, held 30s");
}

#[test]
fn why_opens_at_its_row_and_for_a_rule_that_counts_all() {
    let rules = "[[rules]]\nname = \"all\"\nmatch = { path = \"/search\" }\nalgorithm = \"fixed_window\"\nlimit = 3\n\
                 window = \"24h\"\n";
    let (daemon, browser) = (Daemon::with_rules(rules), Browser::start());
    for _ in 0..30 {
        daemon.check(&[("path", "/search")]);
    }
    browser.open(&format!("http://{}/#hot", daemon.http));
    let row = "//tr[td[1][normalize-space()='all everybody']]";
    browser.click(&format!("{row}//button"));
    browser.shows("Why all of everybody");
    browser.shows("This bucket is used up: requests that are counted in it are denied");
    let below = format!("{row}/following-sibling::tr[1][contains(@class, 'under')]//h3");
    assert_eq!(browser.count(&below), 1, "it stands below its row");
    browser.keys("\u{e00c}");
    eventually("it is closed", || (browser.count(&below) == 0).then_some(()));
    browser.open(&format!("http://{}/#rules", daemon.http));
    browser.click("//button[span[normalize-space()='all']]");
    browser.button("Why");
    browser.shows("Why all of everybody");
    browser.shows("the limit is used up");
}

#[test]
fn nothing_is_said_to_be_live_while_the_database_of_the_rules_is_away() {
    let mut postgres = Postgres::start();
    let daemon = kept_in(&postgres);
    let browser = Browser::start();
    browser.open(&format!("http://{}/#health", daemon.http));
    let is_live = "//header/span[@role='status'][normalize-space()='live']";
    eventually("all is well", || (browser.count(is_live) > 0).then_some(()));
    browser.shows("None.");
    postgres.kill();
    browser.shows("which does not answer");
    browser.shows("1 alarm");
    let notice = "//section[h2='Notices']/p[@class='bad'][starts-with(., 'Rules: ')]";
    eventually("Health says so, too", || (browser.count(notice) > 0).then_some(()));
    assert_eq!(browser.count(is_live), 0);
    assert!(!browser.text().contains("None."), "{}", browser.text());
    browser.open(&format!("http://{}/#overview", daemon.http));
    let alarm = "//main/section/p[@class='bad'][starts-with(., 'Rules: ')]";
    eventually("and so does the first page", || (browser.count(alarm) > 0).then_some(()));
    assert!(!browser.text().contains("All is well"), "{}", browser.text());
    browser.open(&format!("http://{}/#health", daemon.http));
    postgres.run();
    eventually("all is well again", || (browser.count(is_live) > 0).then_some(()));
    browser.shows("None.");
}

#[test]
fn each_hour_has_its_place_in_the_chart_and_one_address_has_no_chart() {
    let postgres = Postgres::start();
    let database = postgres.migrated(TIDEGATE);
    let daemon = kept_in_database(&postgres, &database);
    for hours in [20, 3] {
        let sql = format!(
            "INSERT INTO usage_total (step, bucket, region, allowed, denied, cost) VALUES \
             ('hour', date_trunc('hour', now()) - interval '{hours} hours', 'eu-west', {hours}, 1, {hours})"
        );
        postgres.sql(&database, &sql);
    }
    let browser = Browser::start();
    browser.open(&format!("http://{}/#decisions", daemon.http));
    let place = |hours: u32| {
        let bar = format!(
            "//*[local-name()='g'][*[local-name()='title'][contains(., ': {hours} allowed')]]/*[local-name()='rect'][1]"
        );
        browser.number(&bar, "x")
    };
    // Of 800, which are 25 hours: the one that began 24 hours ago and the present one are there in part.
    let apart = place(3) - place(20);
    assert!((apart - 17.0 * 32.0).abs() < 1.0, "the older hour is {apart} to the left of the newer one");
    browser.fill("//label[contains(., 'Address')]/input", "203.0.113.7");
    browser.button("Look");
    browser.shows("There is no chart of one address");
    assert_eq!(
        browser.count("//*[local-name()='svg']"),
        0,
        "the sums of everybody are not those of an address"
    );
}

#[test]
fn permits_of_a_level_that_the_regions_share_are_counted_once() {
    let rules = "[[rules]]\nname = \"level\"\nper = [\"team\"]\nalgorithm = \"token_bucket\"\nlimit = 100\nwindow = \"24h\"\n\
                 [rules.global]\nmode = \"gossip\"\n";
    let (_authority, daemons) = two_regions(rules);
    let browser = Browser::start();
    browser.open(&format!("http://{}/#world", daemons[0].http));
    browser.shows("connected");
    let admitted = daemons[1].admitted(&[("team", "red")], 30);
    assert!(admitted > 0);
    eventually("a request passes here, too", || {
        (daemons[0].admitted(&[("team", "red")], 1) == 1).then_some(())
    });
    // The bucket, its limit, this region, the other one, all.
    let row = format!(
        "//tr[td[1][normalize-space()='level team=red'] and td[3][normalize-space()='1'] and \
         td[4][normalize-space()='{admitted}'] and td[5][normalize-space()='{}']]",
        admitted + 1
    );
    eventually("each region's use and the sum stand in the table", || {
        (browser.count(&row) > 0).then_some(())
    });
}

#[test]
fn what_each_region_used_of_a_worldwide_limit_is_shown_in_the_browser() {
    let rules = "[[rules]]\nname = \"quota\"\nper = [\"team\"]\nalgorithm = \"fixed_window\"\nlimit = 100\nwindow = \"24h\"\n\
                 [rules.global]\nmode = \"gossip\"\n";
    let (_authority, daemons) = two_regions(rules);
    let browser = Browser::start();
    browser.open(&format!("http://{}/#world", daemons[0].http));
    browser.shows("connected");
    let admitted = daemons[1].admitted(&[("team", "red")], 30);
    assert!(admitted > 0);
    // A bucket that is only looked at is not asked for. At first a region that asks anew may be refused.
    eventually("a request passes here, too", || {
        (daemons[0].admitted(&[("team", "red")], 1) == 1).then_some(())
    });
    eventually("this region knows what the other used", || {
        let peek = daemons[0].check_cost(&[("team", "red")], 0);
        (peek["rules"][0]["global"]["believed_used"] == admitted as u64 + 1).then_some(())
    });
    browser.shows("quota team=red");
    browser.shows("Used of worldwide limits");
    let cell = format!(
        "//td[normalize-space()='quota team=red']/following-sibling::td[normalize-space()='{admitted}']"
    );
    eventually("the other region's use stands in the table", || (browser.count(&cell) > 0).then_some(()));
    for scheme in ["light", "dark"] {
        browser.prefer(scheme);
        browser.picture(&pictures().join(format!("worldwide-{scheme}.png")));
    }
    // The map leaves room for the tables.
    for width in [800, 1280, 1920] {
        browser.at_width(width, || {
            browser.picture(&pictures().join(format!("worldwide-{width}.png")));
            let top = browser.depth("//h2[normalize-space()='Used of worldwide limits']");
            assert!(
                top < 700.0,
                "it begins {top} pixels below the top of a window {width} wide and 800 high"
            );
            assert!(!browser.is_too_wide(), "{width}");
        });
    }
}

/// Ten thousand rules and fifty regions: the list draws what is seen, and a page is there at once.
#[test]
fn ten_thousand_rules_and_fifty_regions_are_no_stutter() {
    let many: String = (0..10_000)
        .map(|place| {
            format!("[[rules]]\nname = \"rule-{place:05}\"\nper = [\"user\"]\nlimit = 10\nwindow = \"1m\"\n")
        })
        .collect();
    let regions: Vec<String> = (0..50).map(|place| format!("\"region-{place:02}\"")).collect();
    let config = format!("region = \"region-00\"\n[peers]\nregions = [{}]\n", regions.join(", "));
    let daemon = Daemon::with(&many, &config, &[]);
    let browser = Browser::start();
    let longest = || {
        browser.open("about:blank");
        browser.open(&format!("http://{}/#rules", daemon.http));
        browser.shows("10000 rules, revision");
        browser.shows("rule-00000");
        let drawn = browser.count("//div[@class='list']//button");
        assert!((1..=100).contains(&drawn), "{drawn} rows are drawn of 10,000");
        browser.fill("//input[@aria-label='Search rules']", "rule-09999");
        browser.shows("1 of 10000 rules");
        browser.longest_task()
    };
    // A tenth of a second where nothing else runs. A machine that does something else holds up one look.
    let longest = (0..3).map(|_| longest()).fold(f64::INFINITY, f64::min);
    assert!(longest < 500.0, "the page was busy for {longest} ms without a pause");
    browser.open(&format!("http://{}/#world", daemon.http));
    browser.shows("region-49");
    browser.picture(&pictures().join("fifty-regions.png"));
    assert!(browser.said().is_empty(), "{:?}", browser.said());
}

#[test]
fn a_page_may_load_only_what_the_daemon_serves() {
    let daemon = daemon();
    let reply = http::get(daemon.http, "/", &[("accept", "text/html")]);
    let policy = reply.header("content-security-policy").unwrap().to_owned();
    assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
    // Whoever asks as a program gets the list of routes.
    assert!(!http::get(daemon.http, "/", &[]).body.contains("<!doctype html>"));
    for asset in Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src/api/console/assets")).read_dir().unwrap()
    {
        let name = asset.unwrap().file_name().into_string().unwrap();
        let served = match name.as_str() {
            "LICENSES" => continue,
            "index.html" => "/".to_owned(),
            name => format!("/console/{name}"),
        };
        let reply = http::get(daemon.http, &served, &[("accept", "text/html")]);
        assert_eq!(reply.status, 200, "{served}");
        let away = ["https://", "http://"].iter().find(|scheme| {
            reply.body.match_indices(**scheme).any(|(at, _)| !reply.body[at..].contains("www.w3.org"))
        });
        assert_eq!(away, None, "{served} names another server");
    }
}
