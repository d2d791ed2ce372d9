//! The client for Rust, against a daemon that counts by the rules of all clients.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{join, join_all};
use http::{Request, Response, StatusCode};
use tidegate_client::{
    Acquire, Attributes, BuildError, Builder, Cause, Check, Decision, Denied, Error, LimitLayer, Report,
    Reserve, Tidegate, WhenAway, total_tokens,
};
use tower::{ServiceBuilder, ServiceExt as _, service_fn};

use crate::clients::RULES;
use crate::support::daemon::Daemon;
use crate::support::eventually;

/// A port that nobody listens on.
const NOBODY: &str = "http://127.0.0.1:9";

/// Asks one daemon within one runtime. Every name is somebody nobody has asked for.
fn with_client<F: Future<Output = ()>>(
    how: impl FnOnce(Builder) -> Builder,
    test: impl FnOnce(Tidegate) -> F,
) {
    let daemon = Daemon::with_rules(RULES);
    let address = format!("http://{}", daemon.http);
    in_runtime(async move {
        let builder = Tidegate::builder(address).timeout(Duration::from_secs(10)).when_away(WhenAway::Fail);
        let client = how(builder).build().unwrap();
        test(client).await;
    });
}

fn in_runtime(test: impl Future<Output = ()>) {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(2).enable_all().build().unwrap().block_on(test);
}

fn away(when_away: WhenAway) -> Tidegate {
    Tidegate::builder(NOBODY).when_away(when_away).build().unwrap()
}

fn searcher(user: &str) -> Attributes {
    Attributes::from([("user", user), ("path", "/search")])
}

fn team(name: &str) -> Attributes {
    Attributes::from([("team", name), ("kind", "tokens")])
}

fn exporter(user: &str) -> Attributes {
    Attributes::from([("user", user), ("kind", "export")])
}

async fn left(client: &Tidegate, who: Attributes) -> u64 {
    client.check(Check::new(who).cost(0)).await.unwrap().remaining.unwrap()
}

fn allowed(decisions: &[Decision]) -> Vec<bool> {
    decisions.iter().map(|decision| decision.allowed).collect()
}

#[test]
fn a_limit_is_held_and_says_when_to_come_back() {
    with_client(
        |builder| builder,
        |client| async move {
            let mut answers = Vec::new();
            for _ in 0..4 {
                answers.push(client.check(searcher("ann")).await.unwrap());
            }
            assert_eq!(allowed(&answers), [true, true, true, false]);
            let left: Vec<_> = answers.iter().map(|answer| answer.remaining).collect();
            assert_eq!(left, [Some(2), Some(1), Some(0), Some(0)]);
            let last = &answers[3];
            assert!(last.retry_after.unwrap() > Duration::ZERO && !last.away && !last.degraded, "{last:?}");
            assert_eq!((last.status, last.cause), (429, Some(Cause::UsedUp)));
            assert_eq!((last.rules[0].rule.as_str(), last.rules[0].limit), ("search", 3));
            assert_eq!(last.headers()["x-ratelimit-limit"], "3");
            assert!(last.headers().contains_key("retry-after"));
            let many = client
                .check_many([
                    Check::new(searcher("bob")).cost(2),
                    searcher("bob").into(),
                    searcher("bob").into(),
                ])
                .await
                .unwrap();
            assert_eq!(allowed(&many), [true, true, false]);
            // Another domain has no rules here.
            let elsewhere = client.check(Check::new(searcher("ann")).domain("web")).await.unwrap();
            assert!(elsewhere.allowed && elsewhere.rule.is_none(), "{elsewhere:?}");
        },
    );
}

#[test]
fn a_mistake_names_its_place() {
    with_client(
        |builder| builder,
        |client| async move {
            let Err(Error::Refused(refused)) = client.check([("", "a name without letters")]).await else {
                panic!("a mistake was not refused")
            };
            assert_eq!((refused.status, refused.code.as_str()), (400, "invalid_request"));
            assert_eq!(refused.field.as_deref(), Some("attributes"));
            assert!(refused.to_string().contains("(at attributes)"), "{refused}");
        },
    );
}

#[test]
fn parallel_callers_get_the_limit_and_no_more_also_in_batches() {
    for batch_calls in [0, 1] {
        with_client(
            |builder| builder.batch_calls(batch_calls),
            |client| async move {
                let asked = join_all((0..300).map(|_| client.check(searcher("ann"))));
                let (answers, mistake) = join(asked, client.check([("", "a name without letters")])).await;
                let answers: Vec<_> = answers.into_iter().map(Result::unwrap).collect();
                assert_eq!(answers.iter().filter(|answer| answer.allowed).count(), 3);
                // Who is beside a mistake is none the worse for it, and the mistake is told as if it were
                // alone.
                let Err(Error::Refused(refused)) = mistake else { panic!("{mistake:?}") };
                assert_eq!(refused.field.as_deref(), Some("attributes"));
            },
        );
    }
}

#[test]
fn checks_of_many_tasks_go_in_one_call() {
    let none = "{\"decisions\":[]}";
    let reply =
        format!("HTTP/1.1 200 x\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{none}", none.len());
    let (address, heard) = answering(Some(reply.leak()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let builder = Tidegate::builder(format!("http://{address}")).timeout(Duration::from_secs(10));
        let client = builder.batch_calls(1).build().unwrap();
        for answer in join_all((0..20).map(|_| client.check([("user", "ann")]))).await {
            let said = answer.unwrap_err().to_string();
            assert_eq!(said, "20 checks were answered with 0 decisions");
        }
    });
    assert_eq!(heard.try_iter().count(), 1);
}

#[test]
fn a_caller_that_leaves_its_batch_keeps_nobody_else_waiting() {
    with_client(
        |builder| builder.batch_calls(1),
        |client| async move {
            for _ in 0..50 {
                let gone = tokio::spawn({
                    let client = client.clone();
                    async move { client.check(searcher("gone")).await }
                });
                gone.abort();
                assert!(client.check(Check::new(searcher("ann")).cost(0)).await.unwrap().allowed);
            }
        },
    );
}

#[test]
fn a_report_with_an_id_is_charged_once() {
    with_client(
        |builder| builder,
        |client| async move {
            for _ in 0..2 {
                client.report(Report::new(team("red"), 600).id("one call")).await.unwrap();
            }
            assert_eq!(left(&client, team("red")).await, 400);
            let owed = client.report(Report::new(team("red"), 600)).await.unwrap();
            assert!(!owed.allowed, "it did not fit, and is charged all the same: {owed:?}");
            assert_eq!(left(&client, team("red")).await, 0);
        },
    );
}

#[test]
fn what_is_reserved_is_held_and_the_rest_is_given_back_once() {
    with_client(
        |builder| builder,
        |client| async move {
            let reserve = |amount| Reserve::new(team("red")).amount(amount).ttl(Duration::from_secs(90));
            let held = client.reserve(reserve(900)).await.unwrap();
            assert_eq!((held.decision.allowed, held.amount()), (true, 900));
            assert_eq!(held.expires, Some(Duration::from_secs(90)));
            let none = client.reserve(reserve(200)).await.unwrap();
            assert!(!none.decision.allowed && none.token.is_none(), "{none:?}");
            assert!(client.commit(&held, 100).await.unwrap().committed);
            assert!(!client.commit(&held, 100).await.unwrap().committed);
            assert!(!client.commit(&none, 100).await.unwrap().committed);
            let twice = client.reserve(reserve(500).id("x")).await.unwrap();
            client.reserve(reserve(500).id("x")).await.unwrap();
            assert_eq!(left(&client, team("red")).await, 400);
            assert!(client.cancel(&twice).await.unwrap().committed);
            assert_eq!(left(&client, team("red")).await, 900);
        },
    );
}

#[test]
fn a_call_is_charged_what_it_used_nothing_where_it_fails_and_all_where_it_does_not_say() {
    /// What a service fails with.
    #[derive(Debug)]
    enum Failed {
        Provider,
        Budget(Error),
    }
    impl From<Error> for Failed {
        fn from(error: Error) -> Self {
            Self::Budget(error)
        }
    }
    with_client(
        |builder| builder,
        |client| async move {
            let budget = |amount| Reserve::new(team("red")).amount(amount);
            let answers = async || {
                let usage = serde_json::json!({"input_tokens": 50, "output_tokens": 50});
                Ok::<_, Failed>(serde_json::json!({ "usage": usage }))
            };
            client.within_budget(budget(1000), answers, total_tokens).await.unwrap();
            assert_eq!(left(&client, team("red")).await, 900);
            let denied = client.within_budget(budget(950), answers, |_| panic!("it may not be made")).await;
            let Err(Failed::Budget(Error::Denied(Denied { decision, .. }))) = denied else {
                panic!("{denied:?}")
            };
            assert_eq!(decision.rule.as_deref(), Some("tokens"));
            let fails = async || Err::<serde_json::Value, _>(Failed::Provider);
            let failed = client.within_budget(budget(400), fails, total_tokens).await;
            assert!(matches!(failed, Err(Failed::Provider)), "{failed:?}");
            assert_eq!(left(&client, team("red")).await, 900);
            let silent = async || Ok::<_, Failed>(serde_json::json!({"text": "hello"}));
            client.within_budget(budget(400), silent, total_tokens).await.unwrap();
            assert_eq!(left(&client, team("red")).await, 500);
            // What was paid is charged also where nobody can say how much it was.
            let unread = client.within_budget(budget(300), silent, |_| panic!("no usage"));
            assert!(AssertUnwindSafe(unread).catch_unwind().await.is_err());
            let charged = || left(&client, team("red"));
            for _ in 0..200 {
                if charged().await == 200 {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            panic!("{} are left of 500", charged().await);
        },
    );
}

#[test]
fn what_is_held_is_given_back_when_its_future_is_dropped() {
    with_client(
        |builder| builder,
        |client| async move {
            let stuck = client.within_budget(
                Reserve::new(team("red")).amount(1000),
                std::future::pending::<Result<(), Error>>,
                |()| None,
            );
            tokio::time::timeout(Duration::from_secs(1), stuck).await.unwrap_err();
            let first = client.in_flight(exporter("ann")).await.unwrap();
            let second = client.in_flight(exporter("ann")).await.unwrap();
            let third = client.in_flight(exporter("ann")).await;
            assert!(matches!(third, Err(Error::Denied(_))), "{third:?}");
            assert!(first.renew().await.unwrap());
            assert!(first.release().await.unwrap());
            drop(second);
            let free = async || {
                let both = client.acquire(Acquire::new(exporter("ann")).cost(2)).await.unwrap();
                both.decision.allowed && left(&client, team("red")).await == 1000
            };
            for _ in 0..200 {
                if free().await {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            panic!("what was held was not given back");
        },
    );
}

#[test]
fn places_are_renewed_and_released_by_their_lease() {
    with_client(
        |builder| builder,
        |client| async move {
            let held = client.acquire(Acquire::new(exporter("ann")).cost(2).id("one")).await.unwrap();
            assert_eq!((held.decision.allowed, held.expires), (true, Some(Duration::from_secs(30))));
            assert!(!client.acquire(exporter("ann")).await.unwrap().decision.allowed);
            assert!(client.renew(&held).await.unwrap());
            assert!(client.release(&held).await.unwrap());
            assert!(!client.release(&held).await.unwrap() && !client.renew(&held).await.unwrap());
        },
    );
}

#[test]
fn without_a_daemon_the_client_decides_as_it_was_told() {
    in_runtime(async {
        for batch_calls in [0, 1] {
            let built = |when_away| {
                Tidegate::builder(NOBODY).when_away(when_away).batch_calls(batch_calls).build().unwrap()
            };
            let open = built(WhenAway::Open).check(searcher("ann")).await.unwrap();
            assert!(open.allowed && open.away && open.status == 200, "{open:?}");
            let closed = built(WhenAway::Closed).check(searcher("ann")).await.unwrap();
            assert!(!closed.allowed && closed.away && closed.status == 503, "{closed:?}");
            let failed = built(WhenAway::Fail).check(searcher("ann")).await.unwrap_err();
            let said = failed.to_string();
            assert!(
                said.starts_with("http://127.0.0.1:9/v1/check was not answered: ")
                    && said.contains("refused")
            );
            let limit = WhenAway::LocalShare { limit: 2, window: Duration::from_secs(86_400) };
            let (share, mut shared) = (built(limit), Vec::new());
            for _ in 0..3 {
                shared.push(share.clone().check(searcher("ann")).await.unwrap());
            }
            assert_eq!(allowed(&shared), [true, true, false]);
            assert_eq!((shared[2].status, shared[2].away), (429, true));
        }
    });
}

#[test]
fn what_only_a_daemon_knows_is_never_made_up() {
    in_runtime(async {
        let client = away(WhenAway::Open);
        let many = client.check_many([searcher("ann"), searcher("bob")]).await.unwrap();
        assert!(many.len() == 2 && many.iter().all(|one| one.allowed && one.away), "{many:?}");
        let reported = client.report(Report::new(team("red"), 5)).await;
        assert!(matches!(reported, Err(Error::Away(_))), "{reported:?}");
        // Permits that nobody holds need no daemon to be given back.
        let held = client.reserve(Reserve::new(team("red")).amount(5)).await.unwrap();
        assert!(held.decision.away && held.token.is_none() && held.amount() == 5, "{held:?}");
        assert!(!client.commit(&held, 3).await.unwrap().committed);
        let place = client.in_flight(exporter("ann")).await.unwrap();
        assert!(place.renew().await.unwrap());
        let refused = away(WhenAway::Closed).in_flight(exporter("ann")).await;
        assert!(matches!(refused, Err(Error::Denied(_))), "{refused:?}");
    });
}

/// Answers every call with these bytes, or never; and passes on what was asked.
fn answering(reply: Option<&'static str>) -> (SocketAddr, mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (asked, heard) = mpsc::channel();
    std::thread::spawn(move || {
        let mut silent = Vec::new();
        for stream in listener.incoming() {
            let (mut stream, mut bytes) = (stream.unwrap(), [0; 4096]);
            let read = stream.read(&mut bytes).unwrap_or(0);
            if asked.send(String::from_utf8_lossy(&bytes[..read]).into_owned()).is_err() {
                return;
            }
            match reply {
                Some(reply) => stream.write_all(reply.as_bytes()).unwrap_or(()),
                None => silent.push(stream),
            }
        }
    });
    (address, heard)
}

#[test]
fn a_daemon_that_does_not_answer_in_time_or_cannot_decide_is_away_and_one_that_is_none_is_a_mistake() {
    let ask = |reply, token: &'static str| {
        let (address, heard) = answering(reply);
        let mut answer = None;
        in_runtime(async {
            let client = Tidegate::builder(format!("http://{address}/limits/")).token(token);
            let client = client.timeout(Duration::from_millis(if reply.is_some() { 10_000 } else { 50 }));
            let client = client.when_away(WhenAway::Closed).build().unwrap();
            assert!(!format!("{client:?}").contains(token));
            answer = Some(client.check(searcher("ann")).await);
        });
        (answer.unwrap(), heard.recv().unwrap())
    };
    let (silent, head) = ask(None, "s3cret");
    assert!(silent.unwrap().away);
    let head = head.to_ascii_lowercase();
    assert!(head.starts_with("post /limits/v1/check http/1.1\r\n"), "{head}");
    assert!(head.contains("authorization: bearer s3cret\r\n"), "{head}");
    let (drains, _) =
        ask(Some("HTTP/1.1 503 x\r\ncontent-length: 8\r\nconnection: close\r\n\r\ndraining"), "s3cret");
    assert!(drains.unwrap().away);
    let (stranger, _) =
        ask(Some("HTTP/1.1 200 x\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}"), "s3cret");
    let said = stranger.unwrap_err().to_string();
    assert!(said.contains("is it a Tidegate?"), "{said}");
    let (page, _) =
        ask(Some("HTTP/1.1 404 x\r\ncontent-length: 4\r\nconnection: close\r\n\r\nnone"), "s3cret");
    let said = page.unwrap_err().to_string();
    assert!(said.contains("answered 404 ") && said.ends_with(": none; is it a Tidegate?"), "{said}");
}

#[test]
fn a_unix_socket_is_an_address() {
    let daemon = Daemon::with_rules(RULES);
    let socket = daemon.folder().join("tidegate").join(format!("127.0.0.1-{}.sock", daemon.http.port()));
    in_runtime(async {
        let client = Tidegate::builder(format!("unix:{}", socket.display())).timeout(Duration::from_secs(10));
        let client = client.when_away(WhenAway::Fail).build().unwrap();
        let answer = client.check(searcher("ann")).await.unwrap();
        assert_eq!((answer.remaining, answer.away), (Some(2), false));
    });
}

#[test]
fn a_daemon_that_comes_back_is_asked_again() {
    let mut daemon = Daemon::with_rules(RULES);
    let address = format!("http://{}", daemon.http);
    in_runtime(async {
        let client = Tidegate::builder(address).timeout(Duration::from_secs(10)).build().unwrap();
        assert!(!client.check(searcher("ann")).await.unwrap().away);
        daemon.kill();
        assert!(client.check(searcher("ann")).await.unwrap().away);
        daemon.start_again();
        let answered = tokio::task::block_in_place(|| {
            eventually("the daemon answers again", || {
                let answer =
                    tokio::runtime::Handle::current().block_on(client.check(searcher("ann"))).unwrap();
                (!answer.away).then_some(answer)
            })
        });
        assert!(answered.allowed);
    });
}

#[test]
fn nothing_that_a_client_wrote_looks_as_if_no_daemon_answered() {
    in_runtime(async {
        for batch_calls in [0, 1] {
            let client = Tidegate::builder(NOBODY).batch_calls(batch_calls).build().unwrap();
            let refused = client.check([("user", "&".repeat(1_100_000))]).await;
            let Err(Error::Refused(refused)) = refused else { panic!("{refused:?}") };
            assert_eq!((refused.status, refused.code.as_str()), (413, "body_too_large"));
        }
        let layer = LimitLayer::new(away(WhenAway::Open))
            .attributes(|_| Some(Check::new([("user", "&".repeat(1_100_000))])));
        let service = ServiceBuilder::new().layer(layer).service(service_fn(hello));
        assert_eq!(service.oneshot(request("http://app/")).await.unwrap().status(), 500);
        let never = Tidegate::builder(NOBODY).timeout(Duration::ZERO).build();
        assert_eq!(never.err(), Some(BuildError::Timeout));
    });
}

#[test]
fn the_layer_holds_back_what_a_rule_throttles() {
    let body = concat!(
        r#"{"allowed":true,"status":200,"cost":1,"retry_after_ms":0,"delay_ms":120,"degraded":false,"#,
        r#""region":"eu","rules":[]}"#
    );
    let reply =
        format!("HTTP/1.1 200 x\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len());
    let (address, _heard) = answering(Some(reply.leak()));
    in_runtime(async {
        let client = Tidegate::builder(format!("http://{address}")).timeout(Duration::from_secs(10));
        let layer = LimitLayer::new(client.when_away(WhenAway::Fail).build().unwrap());
        let service = ServiceBuilder::new().layer(layer).service(service_fn(hello));
        let begun = tokio::time::Instant::now();
        let reply = service.oneshot(request("http://app/")).await.unwrap();
        assert!(begun.elapsed() >= Duration::from_millis(120));
        assert_eq!(
            (reply.status().as_u16(), &reply.headers()["x-ratelimit-delay-ms"]),
            (200, &"120".parse().unwrap())
        );
    });
}

async fn hello(request: Request<String>) -> Result<Response<String>, std::convert::Infallible> {
    let decision = request.extensions().get::<Decision>().map(|decision| decision.remaining);
    Ok(Response::new(format!("hello, {decision:?}")))
}

fn request(path: &str) -> Request<String> {
    Request::get(path).body(String::new()).unwrap()
}

#[test]
fn the_layer_answers_in_the_services_place() {
    with_client(
        |builder| builder,
        |client| async move {
            let asked = AtomicUsize::new(0);
            let asked: &'static AtomicUsize = Box::leak(Box::new(asked));
            let layer = LimitLayer::new(client.clone()).attributes(move |parts| {
                asked.fetch_add(1, Ordering::Relaxed);
                let path = parts.uri.path();
                (path != "/healthz").then(|| Check::new([("user", "ann"), ("path", path)]))
            });
            let service = ServiceBuilder::new().layer(layer.clone()).service(service_fn(hello));
            let mut replies = Vec::new();
            for _ in 0..4 {
                replies.push(service.clone().oneshot(request("http://app/search?q=1")).await.unwrap());
            }
            let statuses: Vec<_> = replies.iter().map(|reply| reply.status().as_u16()).collect();
            assert_eq!(statuses, [200, 200, 200, 429]);
            assert_eq!(replies[0].headers()["x-ratelimit-remaining"], "2");
            assert_eq!(replies[0].body(), "hello, Some(Some(2))");
            let last = &replies[3];
            assert!(last.headers()["retry-after"].to_str().unwrap().parse::<u64>().unwrap() >= 1);
            assert_eq!(last.headers()["content-type"], "text/plain; charset=utf-8");
            assert!(!last.body().starts_with("hello"), "{last:?}");
            let health = service.oneshot(request("http://app/healthz")).await.unwrap();
            assert_eq!((health.body().as_str(), asked.load(Ordering::Relaxed)), ("hello, None", 5));
            let own = layer.refuse(|error: &Error| {
                let mut response = Response::new(format!("{{\"error\":\"{error}\"}}"));
                *response.status_mut() = StatusCode::IM_A_TEAPOT;
                response
            });
            let own = ServiceBuilder::new().layer(own).service(service_fn(hello));
            assert_eq!(own.oneshot(request("http://app/search")).await.unwrap().status(), 418);
            // Unless told who asks, it says for what: nobody has asked for this path.
            let named = ServiceBuilder::new().layer(LimitLayer::new(client)).service(service_fn(hello));
            assert_eq!(named.oneshot(request("http://app/")).await.unwrap().status(), 200);
        },
    );
}

#[test]
fn the_layer_says_what_could_not_be_decided_to_the_service_and_not_to_its_clients() {
    in_runtime(async {
        let asked_of =
            |client| ServiceBuilder::new().layer(LimitLayer::new(client)).service(service_fn(hello));
        let closed = asked_of(away(WhenAway::Closed)).oneshot(request("http://app/")).await.unwrap();
        assert_eq!(
            (closed.status().as_u16(), &closed.headers()["retry-after"]),
            (503, &"1".parse().unwrap())
        );
        let failed = asked_of(away(WhenAway::Fail)).oneshot(request("http://app/")).await.unwrap();
        assert_eq!(failed.status(), 500);
        assert!(matches!(failed.extensions().get(), Some(Error::Away(_))), "{failed:?}");
        assert!(!failed.body().contains("127.0.0.1"), "{failed:?}");
    });
}
