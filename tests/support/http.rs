//! HTTP/1.1 by hand, one connection a request: tests must be able to send what a good client would not.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use super::SOON;

/// An answer.
#[derive(Debug, Clone)]
pub(crate) struct Reply {
    /// The status code.
    pub(crate) status: u16,
    /// Names in lower case.
    headers: Vec<(String, String)>,
    /// The body as text.
    pub(crate) body: String,
}

impl Reply {
    /// The first header of this name.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(own, _)| own.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// Every header of this name, as one.
    pub(crate) fn joined(&self, name: &str) -> Option<String> {
        let own = self.headers.iter().filter(|(own, _)| own.eq_ignore_ascii_case(name));
        let values: Vec<&str> = own.map(|(_, value)| value.as_str()).collect();
        (!values.is_empty()).then(|| values.join(", "))
    }

    /// The body as JSON.
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("not JSON: {error}: {self:?}"))
    }
}

/// `GET`, with headers.
pub(crate) fn get(addr: SocketAddr, path: &str, headers: &[(&str, &str)]) -> Reply {
    request(addr, "GET", path, headers, b"")
}

/// `POST` of JSON.
pub(crate) fn post(addr: SocketAddr, path: &str, body: impl AsRef<[u8]>) -> Reply {
    request(addr, "POST", path, &[("content-type", "application/json")], body.as_ref())
}

/// Any request, well formed.
pub(crate) fn request(
    addr: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Reply {
    let mut text = format!("{method} {path} HTTP/1.1\r\nhost: {addr}\r\nconnection: close\r\n");
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    if !body.is_empty() {
        text.push_str(&format!("content-length: {}\r\n", body.len()));
    }
    let bytes = [text.as_bytes(), b"\r\n", body].concat();
    raw(addr, &bytes).unwrap_or_else(|| panic!("no answer to {method} {path} at {addr}"))
}

/// Sends these bytes and reads to the end; `None` when nothing that is HTTP came back.
pub(crate) fn raw(addr: SocketAddr, bytes: &[u8]) -> Option<Reply> {
    let mut socket = TcpStream::connect_timeout(&addr, SOON).ok()?;
    socket.set_read_timeout(Some(SOON)).unwrap();
    socket.set_write_timeout(Some(SOON)).unwrap();
    // A server may answer and close before it has read everything: what it said still counts.
    let _ = socket.write_all(bytes);
    let mut answer = Vec::new();
    let _ = socket.read_to_end(&mut answer);
    parse(&answer)
}

/// Reads an answer; `None` of what is no HTTP.
pub(crate) fn parse(answer: &[u8]) -> Option<Reply> {
    let at = answer.windows(4).position(|four| four == b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&answer[..at]).into_owned();
    let mut lines = head.split("\r\n");
    let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let headers: Vec<_> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let chunked = headers.iter().any(|(name, value)| name == "transfer-encoding" && value == "chunked");
    let body = &answer[at + 4..];
    let body = if chunked { dechunk(body) } else { body.to_vec() };
    Some(Reply { status, headers, body: String::from_utf8_lossy(&body).into_owned() })
}

fn dechunk(mut body: &[u8]) -> Vec<u8> {
    let mut whole = Vec::new();
    while let Some(line) = body.windows(2).position(|two| two == b"\r\n") {
        let size =
            std::str::from_utf8(&body[..line]).ok().and_then(|text| usize::from_str_radix(text, 16).ok());
        let Some(size) = size.filter(|size| *size > 0 && line + 2 + size <= body.len()) else { break };
        whole.extend_from_slice(&body[line + 2..line + 2 + size]);
        body = body.get(line + 4 + size..).unwrap_or_default();
    }
    whole
}
