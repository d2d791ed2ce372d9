//! Files as people write them, and the rules that come of them.

use super::*;
use crate::core::request::{Attributes, Cost, Request};
use crate::core::ruleset::RuleSet;
use crate::database::imported::tests::set;

const FILE: &str = r#"
user www-data;
http {
    include       mime.types;
    log_format    main '$remote_addr "$request" {$status}'; # quotes; braces { in a comment
    limit_req_zone $binary_remote_addr zone=perip:10m rate=10r/s;
    limit_req_zone $binary_remote_addr zone=login:10m rate=6r/m;
    limit_req_zone "${http_x_tenant}$request_method" zone=tenant:1m rate=100r/s sync;
    limit_conn_zone $server_name zone=perserver:10m;
    limit_req_status 429;

    server {                       # redirects
        listen 80;
        server_name shop.example www.shop.example;
        return 301 https://$host$request_uri;
    }
    server {
        listen 443 ssl default_server;
        server_name shop.example www.shop.example;
        limit_req zone=perip burst=20 nodelay;
        limit_conn perserver 1000;

        location / { proxy_pass http://app; }
        location = /login {
            limit_req zone=login burst=4;
            limit_req_status 503;
            proxy_pass http://app;
        }
        location ^~ /api/ {
            limit_req zone=perip burst=20 nodelay;
            limit_req zone=tenant burst=50 delay=30;
            location /api/batch/ { limit_req_dry_run on; }
            content_by_lua_block { local text = "}" .. '{' if a then b() end }
        }
    }
    server {
        server_name .static.example;
        location / { root /srv; }
    }
}
"#;

fn imported(text: &str) -> Imported {
    import(&[("nginx.conf".to_owned(), text.to_owned())]).unwrap()
}

/// The names of the rules that count a request.
fn holds(set: &RuleSet, host: &str, path: &str) -> Vec<String> {
    let named = [("host", host), ("path", path), ("ip", "192.0.2.1"), ("x-tenant", "t"), ("method", "GET")];
    let attributes: Attributes<'_> = named.into_iter().collect();
    let request = Request::new("default", attributes, Cost::Take(1));
    let matches = set.matches(&request);
    let counting = matches.iter().filter(|found| found.key.is_some());
    let mut names: Vec<_> = counting.map(|found| found.rule.rule.name.clone()).collect();
    names.sort_unstable();
    names
}

fn rule<'a>(imported: &'a Imported, name: &str) -> &'a ImportedRule {
    imported
        .rules
        .iter()
        .find(|rule| rule.name == name)
        .unwrap_or_else(|| panic!("{name}: {:?}", imported.rules))
}

#[test]
fn a_request_is_held_to_the_limits_of_its_server_and_location() {
    let imported = imported(FILE);
    let names: Vec<_> = imported.rules.iter().map(|rule| rule.name.as_str()).collect();
    let set = set(imported.rules.clone());
    let holds = |host: &str, path: &str| holds(&set, host, path).join(" ");
    // Limits of connections hold what asks for a place, and no check.
    assert_eq!(holds("shop.example", "/"), "perip-2", "{names:?}");
    assert_eq!(holds("shop.example", "/login"), "login");
    assert_eq!(holds("shop.example", "/login/x"), "perip-2", "only that path is the login");
    assert_eq!(holds("shop.example", "/api/x"), "perip-2 tenant-2");
    assert_eq!(holds("shop.example", "/api/batch/x"), "perip tenant", "the dry run");
    assert_eq!(holds("elsewhere.example", "/api/x"), "perip-2 tenant-2", "by the default server");
    assert_eq!(holds("static.example", "/x"), "");
    assert_eq!(holds("cdn.static.example", "/api/"), "");
}

#[test]
fn rates_bursts_and_delays_become_buckets_of_the_same_size() {
    let imported = imported(FILE);
    let perip = rule(&imported, "perip-2");
    assert_eq!(
        (perip.limit, perip.window.as_deref(), perip.burst, perip.status),
        (Some(10), Some("1s"), Some(21), Some(429))
    );
    assert_eq!((perip.action, perip.per.as_slice()), (None, &["ip".to_owned()][..]));
    // Six a minute, and four that wait ten seconds each.
    let login = rule(&imported, "login");
    assert_eq!(
        (login.limit, login.window.as_deref(), login.burst, login.status),
        (Some(6), Some("1m"), Some(1), Some(503))
    );
    assert_eq!(
        (login.action, login.max_delay.as_deref(), login.delay),
        (Some("throttle"), Some("40000ms"), Some("hold"))
    );
    let tenant = rule(&imported, "tenant-2");
    assert_eq!((tenant.burst, tenant.max_delay.as_deref()), (Some(31), Some("200ms")));
    assert_eq!(tenant.per, ["x-tenant", "method"]);
    let dry = imported.rules.iter().find(|rule| rule.action == Some("log_only")).unwrap();
    assert_eq!((dry.status, dry.max_delay.as_deref()), (None, None));
    let places = rule(&imported, "perserver");
    assert_eq!((places.algorithm, places.limit, places.hold), (Some("concurrency"), Some(1000), Some("1m")));
}

#[test]
fn what_is_left_out_is_said_with_its_place() {
    let text = "
limit_req_zone $binary_remote_addr zone=a:1m rate=10r/h;
limit_req_zone $request_uri zone=b:1m rate=1r/s;
limit_conn_zone $limit_key zone=c:1m;
stream { limit_conn c 1; }
server {
    server_name a.example ~^www\\d;
    include conf.d/*.conf;
    limit_req zone=a;
    limit_req zone=b burst=600;
    location ~ \\.php$ { limit_req zone=b burst=many; }
    location /x/ { limit_req zone=b burst=5 nodelay fast; limit_conn b 3; }
}
server { server_name a.example; limit_req zone=b burst=1; }
";
    let imported = imported(text);
    let said = imported.inexact.join("\n");
    for sentence in [
        "nginx.conf:2: rate=10r/h is no rate such as 10r/s or 30r/m",
        "nginx.conf:3: $request_uri counts by path and query",
        "nginx.conf:5: limits of `stream` are left out",
        "nginx.conf:6: server_name ~^www\\d: rules match hosts by texts",
        "nginx.conf:8: include conf.d/*.conf is not followed",
        "nginx.conf:9: no limit_req_zone of these files is called a",
        "nginx.conf:10: the daemon holds no answer back for more than a minute",
        "nginx.conf:11: burst=many has no whole number",
        "nginx.conf:11: rules match paths by texts and `*`, not by regular expressions",
        "nginx.conf:12: fast is unknown and dropped",
        "nginx.conf:12: no limit_conn_zone of these files is called b",
        "zone=b is used with different parameters: 3 rules count it",
    ] {
        assert!(said.contains(sentence), "{sentence}: {said}");
    }
    assert!(
        imported.notes.iter().any(|note| note.contains("$limit_key as `X-Tidegate-limit-key`")),
        "{:?}",
        imported.notes
    );
    set(imported.rules);
}

#[test]
fn a_zone_of_several_places_with_the_same_parameters_is_one_rule() {
    let text = "
limit_req_zone $binary_remote_addr zone=one:1m rate=1r/s;
server { server_name a.example; location /a/ { limit_req zone=one; } location /b/ { limit_req zone=one; }
         location /a/free/ { } }
";
    let imported = imported(text);
    assert_eq!(imported.inexact, [""; 0]);
    let one = rule(&imported, "one");
    assert_eq!(one.conditions["path"], ["/a/*", "/b/*"]);
    let set = set(imported.rules.clone());
    assert_eq!(holds(&set, "a.example", "/b/x"), ["one"]);
    assert!(holds(&set, "a.example", "/a/free/x").is_empty() && holds(&set, "a.example", "/c").is_empty());
}

#[test]
fn a_text_that_is_no_file_of_nginx_says_where() {
    for (text, why) in [
        ("http {\n server { }", "f:2: the file ends within a block"),
        ("a b;\n}", "f:2: a block ends that never began"),
        ("a 'b", "f:1: the file ends within quotes"),
        ("server { listen 80 }", "f:1: a directive does not end"),
        ("x_by_lua_block { {", "f:1: the file ends within a block of Lua"),
    ] {
        let problems = import(&[("f".to_owned(), text.to_owned())]).unwrap_err();
        assert!(problems[0].to_string().starts_with(why), "{text}: {problems:?}");
    }
    let deep = "a {".repeat(40);
    assert!(import(&[("f".to_owned(), deep)]).unwrap_err()[0].why.contains("deeper"));
}
