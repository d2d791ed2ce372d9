//! `POST /v1/check` over HTTP/1.1 with keep-alive, written by hand: as much as measuring needs, and no more.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use bytes::{Buf as _, BytesMut};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::pace::{ANSWER_WITHIN, Answer, Plan, Tally};
use super::script::{Dice, Script};

/// Longest answer that is read, head included.
const ANSWER_BYTES_MAX: usize = 4 << 20;

/// Keeps one request in flight on each of `connections` until the plan ends.
pub(super) async fn ask(plan: Arc<Plan>, addr: SocketAddr, connections: u16, script: &Arc<Script>) -> Tally {
    let tally = Rc::new(RefCell::new(Tally::default()));
    let mut tasks = JoinSet::new();
    for connection in 0..connections {
        let (plan, script, tally) = (Arc::clone(&plan), Arc::clone(script), Rc::clone(&tally));
        tasks.spawn_local(async move {
            let dice = Dice::new(u64::from(connection));
            if let Err(error) = keep_asking(&plan, addr, dice, &script, &tally).await {
                tally.borrow_mut().fail(&error);
            }
        });
    }
    while tasks.join_next().await.is_some() {}
    tally.take()
}

/// One request after another; ends with the plan, or at the first failure, after which the connection is of
/// no use.
async fn keep_asking(
    plan: &Plan,
    addr: SocketAddr,
    mut dice: Dice,
    script: &Script,
    tally: &RefCell<Tally>,
) -> anyhow::Result<()> {
    let connecting = timeout(ANSWER_WITHIN, TcpStream::connect(addr));
    let mut socket = connecting.await?.with_context(|| format!("cannot connect to {addr}"))?;
    socket.set_nodelay(true)?;
    let mut buffer = BytesMut::with_capacity(64 * 1_024);
    while let Some(begin) = plan.begin() {
        socket.write_all(&script.draw(&mut dice)).await?;
        let answer = timeout(ANSWER_WITHIN, answer(&mut socket, &mut buffer)).await;
        let answer = answer.with_context(|| format!("no answer within {ANSWER_WITHIN:?}"))??;
        plan.end(begin, Ok(answer), &mut tally.borrow_mut());
    }
    Ok(())
}

/// Reads one whole answer and takes it out of the buffer.
async fn answer(socket: &mut TcpStream, buffer: &mut BytesMut) -> anyhow::Result<Answer> {
    verdict(&body(socket, buffer).await?.1)
}

/// Reads one whole answer of status 200 and takes it out of the buffer: whether the server closes the
/// connection after it, and its body.
pub(crate) async fn body(socket: &mut TcpStream, buffer: &mut BytesMut) -> anyhow::Result<(bool, BytesMut)> {
    let mut whole = None;
    loop {
        if whole.is_none() {
            whole = head(buffer)?;
        }
        if let Some(Head { body_at, body_len, closes }) = whole
            && buffer.len() >= body_at.saturating_add(body_len)
        {
            buffer.advance(body_at);
            return Ok((closes, buffer.split_to(body_len)));
        }
        if buffer.len() > ANSWER_BYTES_MAX {
            bail!("an answer of more than {ANSWER_BYTES_MAX} bytes");
        }
        if socket.read_buf(buffer).await? == 0 {
            bail!("the server closed the connection");
        }
    }
}

/// The facts in the head of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Head {
    body_at: usize,
    body_len: usize,
    closes: bool,
}

/// Reads the head, once it is here as a whole.
fn head(buffer: &[u8]) -> anyhow::Result<Option<Head>> {
    let Some(at) = buffer.windows(4).position(|four| four == b"\r\n\r\n") else { return Ok(None) };
    let head = std::str::from_utf8(buffer.get(..at).unwrap_or_default()).context("a head that is no text")?;
    let mut lines = head.split("\r\n");
    let status = lines.next().unwrap_or_default();
    if !status.starts_with("HTTP/1.1 200") {
        bail!("answered `{status}`");
    }
    let (mut body_len, mut closes) = (None, false);
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        let value = value.trim();
        if name.eq_ignore_ascii_case("content-length") {
            body_len = value.parse::<usize>().ok();
        } else if name.eq_ignore_ascii_case("connection") {
            closes = value.eq_ignore_ascii_case("close");
        }
    }
    let body_len = body_len.context("an answer without content-length")?;
    Ok(Some(Head { body_at: at + 4, body_len, closes }))
}

/// Reads `allowed` of the first decision; it is the first field that has this name.
fn verdict(body: &[u8]) -> anyhow::Result<Answer> {
    const FIELD: &[u8] = b"\"allowed\":";
    let at =
        body.windows(FIELD.len()).position(|part| part == FIELD).context("an answer without `allowed`")?;
    match body.get(at + FIELD.len()) {
        Some(b't') => Ok(Answer::Ok),
        Some(b'f') => Ok(Answer::OverLimit),
        _ => bail!("an answer whose `allowed` is neither true nor false"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_understood_only_when_whole() {
        let text = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
        assert_eq!(head(&text[..20]).unwrap(), None);
        assert_eq!(head(text).unwrap(), Some(Head { body_at: 38, body_len: 5, closes: false }));
        assert!(head(b"HTTP/1.1 200 OK\r\n\r\n").is_err());
        assert!(head(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n").is_err());
    }

    #[test]
    fn the_first_decision_counts() {
        let decision = |text: &str| verdict(text.as_bytes()).ok();
        assert_eq!(decision(r#"{"decisions":[{"allowed":true},{"allowed":false}]}"#), Some(Answer::Ok));
        assert_eq!(decision(r#"{"allowed":false,"rules":[{"allowed":true}]}"#), Some(Answer::OverLimit));
        assert_eq!(decision(r#"{"error":{}}"#), None);
    }
}
