//! A receiver of webhooks: takes what is posted, or refuses it while it is told to.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::Value;

use super::SOON;

/// One request that was taken.
#[derive(Debug, Clone)]
pub(crate) struct Posted {
    /// The lines of its head, names in small letters.
    pub(crate) head: Vec<(String, String)>,
    /// Its body, as text and as it came.
    pub(crate) body: String,
    pub(crate) bytes: Vec<u8>,
}

impl Posted {
    /// The value of a header.
    pub(crate) fn header(&self, name: &str) -> &str {
        self.head.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value)
    }
}

/// The receiver; its thread ends with the test's process.
#[derive(Debug)]
pub(crate) struct Receiver {
    pub(crate) address: SocketAddr,
    status: Arc<AtomicU16>,
    taken: Arc<Mutex<Vec<Posted>>>,
    refused: Arc<Mutex<Vec<Posted>>>,
}

impl Receiver {
    /// Starts one that answers with this status.
    pub(crate) fn start(status: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (taken, refused, status) = (Arc::default(), Arc::default(), Arc::new(AtomicU16::new(status)));
        let receiver = Self { address, status, taken, refused };
        let (taken, refused) = (Arc::clone(&receiver.taken), Arc::clone(&receiver.refused));
        let status = Arc::clone(&receiver.status);
        std::thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let (status, taken) = (Arc::clone(&status), [Arc::clone(&taken), Arc::clone(&refused)]);
                std::thread::spawn(move || answer(socket, &status, &taken));
            }
        });
        receiver
    }

    /// Answers with this status from now on.
    pub(crate) fn answer_with(&self, status: u16) {
        self.status.store(status, Ordering::SeqCst);
    }

    /// The requests that were answered with 200, in order.
    pub(crate) fn taken(&self) -> Vec<Posted> {
        self.taken.lock().unwrap().clone()
    }

    /// The number of those that were not.
    pub(crate) fn refused(&self) -> usize {
        self.refused.lock().unwrap().len()
    }

    /// The events of all that was taken, in order.
    pub(crate) fn events(&self) -> Vec<Value> {
        let batch = |posted: Posted| serde_json::from_str::<Value>(&posted.body).unwrap();
        let events = |batch: Value| batch["events"].as_array().cloned().unwrap_or_default();
        self.taken().into_iter().map(batch).flat_map(events).collect()
    }
}

fn answer(
    mut socket: TcpStream,
    status: &AtomicU16,
    [taken, refused]: &[Arc<Mutex<Vec<Posted>>>; 2],
) -> std::io::Result<()> {
    socket.set_read_timeout(Some(SOON))?;
    let (mut bytes, mut buffer) = (Vec::new(), [0; 4_096]);
    let end = loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break end;
        }
        match socket.read(&mut buffer)? {
            0 => return Ok(()),
            len => bytes.extend_from_slice(&buffer[..len]),
        }
    };
    let text = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let pairs = text.lines().skip(1).filter_map(|line| line.split_once(':'));
    let head: Vec<(String, String)> =
        pairs.map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned())).collect();
    let mut posted = Posted { head, body: String::new(), bytes: Vec::new() };
    let len = posted.header("content-length").parse::<usize>().unwrap_or(0);
    let mut body = bytes.split_off(end + 4);
    while body.len() < len {
        match socket.read(&mut buffer)? {
            0 => return Ok(()),
            len => body.extend_from_slice(&buffer[..len]),
        }
    }
    posted.body = String::from_utf8_lossy(&body).into_owned();
    posted.bytes = body;
    let status = status.load(Ordering::SeqCst);
    let list = if status == 200 { taken } else { refused };
    list.lock().unwrap().push(posted);
    write!(socket, "HTTP/1.1 {status} Answer\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
}
