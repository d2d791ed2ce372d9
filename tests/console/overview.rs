//! The page that opens first: whether all is well, who is limited and why, and what changed.

use crate::browser::Browser;
use crate::support::daemon::Daemon;
use crate::support::eventually;
use crate::{RULES, daemon, pictures};

#[test]
fn the_first_page_says_who_is_limited_and_why_and_what_changed() {
    let rules = format!(
        "{RULES}[[rules]]\nname = \"no-robots\"\nmatch = {{ user = \"robot\" }}\naction = \"block\"\n"
    );
    let (daemon, browser) = (Daemon::with(&rules, "region = \"eu-west\"\n", &[]), Browser::start());
    let blocked = daemon.run(&["users", "block", "mallory", "--reason", "scraping"]);
    assert_eq!(blocked.code, 0, "{blocked:?}");
    let ask = || {
        for _ in 0..150 {
            daemon.check(&[("user", "u_42")]);
        }
        for _ in 0..20 {
            daemon.check(&[("user", "robot")]);
        }
    };
    ask();
    browser.open(&format!("http://{}/", daemon.http));
    browser.shows("All is well");
    browser.shows("the store (memory) is ok");
    browser.shows("search <b> user=u_42");
    browser.shows("Denied, too: no-robots");
    browser.shows("mallory (user.block)");
    browser.shows("scraping");
    // Counts fade while the browser starts and looks.
    ask();
    browser.click("//section[h2='Who is limited']//tr[td[1][contains(., 'user=u_42')]]//button");
    browser.shows("Why user=u_42");
    // A window may end in between: then the client is not limited, and the page says that.
    browser.shows("imited");
    browser.shows("used by region");
    browser.button("Close");
    assert!(!browser.text().contains("undefined"), "{}", browser.text());
    assert!(browser.said().is_empty(), "{:?}", browser.said());
}

#[test]
fn charts_run_from_left_to_right_with_a_gap_where_nothing_is_known() {
    let (daemon, browser) = (daemon(), Browser::start());
    for _ in 0..20 {
        daemon.check(&[("user", "u_42")]);
    }
    browser.open(&format!("http://{}/#overview", daemon.http));
    let chart = |steps: u32, kind: &str| {
        format!(
            "//*[local-name()='svg'][@viewBox='0 0 {steps} 100'][starts-with(@aria-label, '{kind}: ')]\
             [not(contains(@aria-label, 'at most 0/s'))]"
        )
    };
    for kind in ["Requests", "Permits charged"] {
        let drawn = chart(360, kind);
        eventually(&format!("{kind} are drawn"), || (browser.count(&drawn) == 1).then_some(()));
    }
    assert_eq!(browser.count(&chart(360, "Denials")), 0, "nobody was denied");
    // The daemon has just begun: what was before is not known, and is to the left.
    let gap = format!("{}/*[local-name()='rect']", chart(360, "Requests"));
    assert_eq!(browser.count(&gap), 1);
    assert!(browser.number(&gap, "x").abs() < 0.5);
    assert!((300.0..360.0).contains(&browser.number(&gap, "width")));
    // Home: the first moment, of which nothing is known.
    browser.click("//input[@type='range']");
    browser.keys("\u{e011}");
    let unknown = "//figcaption[starts-with(., 'Requests')]/b[normalize-space()='–']";
    eventually("what is not known is a dash", || (browser.count(unknown) == 1).then_some(()));
    browser.click("//option[normalize-space()='The last day']");
    eventually("the day is drawn", || (browser.count(&chart(1_440, "Requests")) == 1).then_some(()));
    browser.shows("A step is a minute");
    for width in [400, 1920] {
        browser.at_width(width, || {
            browser.picture(&pictures().join(format!("overview-day-{width}.png")));
            assert!(!browser.is_too_wide(), "{width}");
        });
    }
    assert!(browser.said().is_empty(), "{:?}", browser.said());
}
