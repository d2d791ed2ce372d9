//! Spans of calls, for whom the environment of Envoy Gateway's telemetry names a collector.

use super::asked::{StandIn, request, rules, told};
use super::support::receiver::Receiver;
use super::support::spans::{CALLER, TRACE, span, spans, traceparent};

#[test]
fn calls_are_spans_where_the_environment_asks_for_them() {
    let receiver = Receiver::start(200);
    let endpoint = format!("http://{}", receiver.address);
    let environment = [
        ("TRACING_ENABLED", "true"),
        ("TRACING_SERVICE_NAME", "envoy-ratelimit"),
        ("TRACING_SERVICE_NAMESPACE", "envoy-gateway-system"),
        ("TRACING_SAMPLING_RATE", "1.0"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str()),
    ];
    let limits = [("d".to_owned(), rules(&["k 1/day", "quiet 1/day shadow"]))];
    let daemon = StandIn::with(&limits, &environment);
    let ask = |text: &str, traceparent: &str| {
        told(&daemon.client().ask_within(request("d", text), traceparent).unwrap())
    };
    // A caller that records nothing is followed, whatever the part is that is sampled.
    let quiet = "1".repeat(32);
    assert_eq!(ask("[quiet=v]", &traceparent(&quiet, false)), "OK | OK 1 0");
    assert_eq!(ask("[k=v]", &traceparent(TRACE, true)), "OK | OK 1 0");
    let seen = span(&receiver, "the span below the caller's", |span| span.trace == TRACE);
    assert_eq!((seen.parent.as_str(), seen.failed), (CALLER, false));
    assert_eq!(seen.name, "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit");
    let attributes =
        ["service.name", "tidegate.domain", "tidegate.rule", "tidegate.allowed", "rpc.grpc.status_code"];
    assert_eq!(attributes.map(|name| seen.get(name)), ["envoy-ratelimit", "d", "d.k", "true", "0"]);

    assert_eq!(daemon.call("d", "[quiet=v] [k=v]"), "OVER | OK 1 0 | OVER 1 0");
    let seen = span(&receiver, "the span of a denial", |span| span.get("tidegate.allowed") == "false");
    assert_eq!((seen.parent.as_str(), seen.failed), ("", false), "it begins a trace, and is no failure");
    assert_eq!(["tidegate.rule", "tidegate.denied"].map(|name| seen.get(name)), ["d.k", "1"]);

    assert!(daemon.call("", "[k=v]").starts_with("Unknown"));
    let seen = span(&receiver, "the span of a refusal", |span| span.failed);
    assert_eq!(seen.get("rpc.grpc.status_code"), "2");
    assert!(spans(&receiver).iter().all(|span| span.trace != quiet), "{:?}", spans(&receiver));
}
