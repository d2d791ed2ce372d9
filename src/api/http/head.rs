//! Heads that are no request: answered, so that a proxy in between does not take silence for a server that is
//! away and let the client's request pass; then the connection is closed.

use std::time::Duration;

use http::header::{HOST, TRANSFER_ENCODING};
use http::{Request, Version};
use hyper::body::{Bytes, Incoming};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::api::connection::IdleDetection;
use crate::api::delivering_socket::DeliveringSocket;
use crate::api::error::{Code, Refusal};

/// Longest time for the answer and for what the client still sends. Closing a socket with unread bytes would
/// throw the answer away.
const CLOSE_WITHIN: Duration = Duration::from_secs(2);
/// Most bytes that are read and thrown away meanwhile.
const DISCARD_BYTES_MAX: usize = 1 << 20;

/// Refuses a request that does not say for which host it is, or says it twice (RFC 9112, 3.2).
pub(super) fn check_host(request: &Request<Incoming>) -> Result<(), Refusal> {
    let mut hosts = request.headers().get_all(HOST).iter();
    let said = (hosts.next().is_some(), hosts.next().is_some());
    match said {
        (true, false) => Ok(()),
        (false, _) if request.version() < Version::HTTP_11 => Ok(()),
        (false, _) => Err(refuse("the request has no Host header")),
        (true, true) => Err(refuse("the request has more than one Host header")),
    }
}

/// Refuses a request whose body has two lengths, a number and chunks (RFC 9112, 6.3): a proxy may go by the
/// other one.
pub(super) fn check_length(request: &Request<Incoming>, idle: &IdleDetection) -> Result<(), Refusal> {
    if request.headers().contains_key(TRANSFER_ENCODING) && idle.says_length() {
        return Err(refuse("the request has both Content-Length and Transfer-Encoding"));
    }
    Ok(())
}

fn refuse(message: &'static str) -> Refusal {
    Refusal::new(Code::Head, message)
}

/// Returns why there is no request in what was read, if bytes came that are none.
pub(super) fn refusal(error: &hyper::Error, read: &Bytes) -> Option<Refusal> {
    if error.is_parse_too_large() {
        let line_ended = read.contains(&b'\n');
        return Some(if line_ended {
            Refusal::new(Code::HeadTooLarge, "the request's headers are too long or too many")
        } else {
            Refusal::new(Code::TargetTooLong, "the request's target is too long")
        });
    }
    error.is_parse().then(|| refuse("this is no HTTP request: its head holds what none may hold"))
}

/// Sends the refusal, if it is still to be sent, and closes the connection.
pub(super) async fn close_with(mut socket: DeliveringSocket, refusal: Option<&Refusal>) {
    let answer = refusal.map(answer).unwrap_or_default();
    let closing = async {
        socket.write_all(&answer).await?;
        socket.shutdown().await?;
        let (mut buffer, mut discarded) = ([0; 4_096], 0);
        while discarded < DISCARD_BYTES_MAX {
            match socket.read(&mut buffer).await? {
                0 => break,
                len => discarded += len,
            }
        }
        std::io::Result::Ok(())
    };
    // A client that is gone by now is no news.
    let _ = tokio::time::timeout(CLOSE_WITHIN, closing).await;
}

fn answer(refusal: &Refusal) -> Vec<u8> {
    let (status, body) = (refusal.http_status(), refusal.json());
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), &body].concat()
}
