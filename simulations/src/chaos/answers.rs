//! The answers to a client: from a daemon with a decision, from a gateway with a status and headers.

use std::time::Duration;

use anyhow::{Context as _, bail};
use bytes::{Buf as _, BytesMut};
use serde_json::Value;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;

/// The longest answer of a gateway.
const BYTES_MAX: usize = 64 << 10;

/// The answer to a request, if there was one.
#[derive(Debug, Clone)]
pub(super) enum Answer {
    Decided(Decision),
    /// A gateway let the request pass, and no daemon had decided it.
    Unasked,
    /// No answer, or none that says anything.
    Failed(String),
    /// No daemon of the region was ready, so nobody was asked.
    NobodyReady,
}

/// A decision, as far as the answer tells it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Decision {
    pub(super) admitted: bool,
    /// Until the bucket's window ends or it is full again.
    pub(super) reset: Duration,
    /// The permits that the region believed to be used worldwide, and how many more it may be.
    pub(super) believed: Option<(u64, u64)>,
    /// Time to wait before asking again, if it was denied and waiting helps.
    pub(super) retry_after: Option<Duration>,
    /// True if a failure policy decided, since the store did not answer. A gateway does not tell.
    pub(super) degraded: bool,
}

impl Answer {
    pub(super) const fn decision(&self) -> Option<Decision> {
        match self {
            Self::Decided(decision) => Some(*decision),
            _ => None,
        }
    }

    pub(super) const fn admitted(&self) -> bool {
        matches!(self, Self::Decided(Decision { admitted: true, .. }))
    }

    pub(super) const fn denied(&self) -> bool {
        matches!(self, Self::Decided(Decision { admitted: false, .. }))
    }
}

/// Reads what a daemon decided.
pub(super) fn decided(answer: &Value) -> anyhow::Result<Answer> {
    let Some(admitted) = answer.get("allowed").and_then(Value::as_bool) else {
        bail!("an answer that decides nothing: {answer}");
    };
    let rule = answer.get("rules").and_then(|rules| rules.get(0));
    let of = |name: &str| rule?.get(name)?.as_u64();
    let worldwide = |name: &str| rule?.get("global")?.get(name)?.as_u64();
    let believed = worldwide("believed_used").zip(worldwide("error_bound"));
    let reset = Duration::from_millis(of("reset_ms").unwrap_or_default());
    let retry_after = of("retry_after_ms").filter(|_| !admitted).map(Duration::from_millis);
    let degraded = answer.get("degraded").and_then(Value::as_bool).unwrap_or(false);
    Ok(Answer::Decided(Decision { admitted, reset, believed, retry_after, degraded }))
}

/// The limit and mode of the only rule that decided; `None` where none did, or several.
pub(super) fn limit_of(answer: &Value) -> Option<(u64, String)> {
    let [rule] = answer.get("rules")?.as_array()?.as_slice() else { return None };
    let mode = rule.get("global").and_then(|global| global.get("mode")?.as_str());
    Some((rule.get("limit")?.as_u64()?, mode.unwrap_or("none").to_owned()))
}

/// Reads one whole answer of a gateway: whether it closes the connection after it, and what became of the
/// request.
pub(super) async fn of_gateway(
    socket: &mut TcpStream,
    buffer: &mut BytesMut,
) -> anyhow::Result<(bool, Answer)> {
    loop {
        if let Some(at) = buffer.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(buffer.get(..at).unwrap_or_default()).into_owned();
            let Head { length, closes, answer } = head_of(&head)?;
            let whole = at + 4 + length;
            while buffer.len() < whole {
                if socket.read_buf(buffer).await? == 0 {
                    bail!("the gateway closed the connection in the middle of an answer");
                }
            }
            buffer.advance(whole);
            return Ok((closes, answer));
        }
        if buffer.len() > BYTES_MAX {
            bail!("an answer of more than {BYTES_MAX} bytes");
        }
        if socket.read_buf(buffer).await? == 0 {
            bail!("the gateway closed the connection");
        }
    }
}

/// The head of a gateway's answer.
struct Head {
    length: usize,
    closes: bool,
    answer: Answer,
}

/// A request that passes without `x-ratelimit-limit` was not decided: every decided one carries it
/// (docs/reference/http.md, Headers).
fn head_of(head: &str) -> anyhow::Result<Head> {
    let mut lines = head.split("\r\n");
    let line = lines.next().unwrap_or_default();
    let headers: Vec<(&str, &str)> = lines.filter_map(|line| line.split_once(':')).collect();
    let header = |name: &str| {
        let found = headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.trim())
    };
    let number = |name: &str| header(name).and_then(|value| value.parse::<u64>().ok());
    let length = header("content-length").and_then(|value| value.parse::<usize>().ok());
    let length = length.filter(|length| *length <= BYTES_MAX).context("an answer without content-length")?;
    let closes = header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
    let decided = |admitted: bool| {
        // A reset beyond a day is a moment of the epoch: nginx shows what the daemon says, Envoy the seconds
        // until then.
        let reset = number("x-ratelimit-reset").filter(|seconds| *seconds <= 86_400).unwrap_or_default();
        let retry_after = number("retry-after").filter(|_| !admitted).map(Duration::from_secs);
        let reset = Duration::from_secs(reset);
        Answer::Decided(Decision { admitted, reset, believed: None, retry_after, degraded: false })
    };
    let answer = match line.split(' ').nth(1) {
        Some("200") if header("x-ratelimit-limit").is_some() => decided(true),
        Some("200") => Answer::Unasked,
        Some("429") => decided(false),
        _ => Answer::Failed(format!("answered {line:?}")),
    };
    Ok(Head { length, closes, answer })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decision_says_what_is_believed_and_when_to_come_back() {
        let text = r#"{"allowed":false,"rules":[{"rule":"w","reset_ms":250,"retry_after_ms":90,"global":{"mode":"gossip","believed_used":7,"error_bound":3}}]}"#;
        let decision = decided(&serde_json::from_str(text).unwrap()).unwrap().decision().unwrap();
        assert_eq!((decision.admitted, decision.reset), (false, Duration::from_millis(250)));
        assert_eq!(
            (decision.believed, decision.retry_after),
            (Some((7, 3)), Some(Duration::from_millis(90)))
        );
        assert!(decided(&serde_json::json!({"error": "no"})).is_err());
    }

    #[test]
    fn a_gateway_that_lets_pass_what_nobody_decided_is_seen_through() {
        let of = |head: &str| head_of(head).map(|head| head.answer);
        let passed = "HTTP/1.1 200 OK\r\nX-RateLimit-Limit: 10\r\ncontent-length: 7";
        assert!(of(passed).unwrap().admitted());
        assert!(matches!(of("HTTP/1.1 200 OK\r\ncontent-length: 7").unwrap(), Answer::Unasked));
        let refused = "HTTP/1.1 429 Too Many Requests\r\nRetry-After: 2\r\nContent-Length: 0";
        let decision = of(refused).unwrap().decision().unwrap();
        assert_eq!((decision.admitted, decision.retry_after), (false, Some(Duration::from_secs(2))));
        assert!(matches!(of("HTTP/1.1 500 Oh\r\ncontent-length: 0").unwrap(), Answer::Failed(_)));
    }
}
