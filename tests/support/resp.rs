//! A client of the Redis protocol that shows answers as text.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// One connection, which sends lines and reads answers as texts.
pub(crate) struct Connection(BufReader<TcpStream>);

impl Connection {
    /// Connects.
    pub(crate) fn open(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Self(BufReader::new(stream))
    }

    /// Sends bytes as they are.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).unwrap();
    }

    /// The next answer on one line: an array as its elements in brackets, an error with its minus.
    pub(crate) fn answer(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        let line = line.trim_end_matches("\r\n");
        let rest = line.get(1..).unwrap_or_default();
        match line.as_bytes().first() {
            Some(b'*') => self.elements(rest.parse().unwrap()),
            Some(b'%') => self.elements(rest.parse::<usize>().unwrap() * 2),
            Some(b'$') if rest == "-1" => "nil".to_owned(),
            Some(b'_') => "null".to_owned(),
            Some(b'$') => {
                let mut bytes = vec![0; rest.parse::<usize>().unwrap() + 2];
                self.0.read_exact(&mut bytes).unwrap();
                bytes.truncate(bytes.len() - 2);
                String::from_utf8_lossy(&bytes).into_owned()
            }
            Some(b':' | b'+' | b',') => rest.to_owned(),
            _ => line.to_owned(),
        }
    }

    fn elements(&mut self, count: usize) -> String {
        let elements: Vec<String> = (0..count).map(|_| self.answer()).collect();
        format!("[{}]", elements.join(" "))
    }

    /// Sends a line as a person types it.
    pub(crate) fn ask(&mut self, line: &str) -> String {
        self.send(format!("{line}\r\n").as_bytes());
        self.answer()
    }

    /// Whether the daemon has closed it.
    pub(crate) fn is_closed(&mut self) -> bool {
        matches!(self.0.read(&mut [0; 1]), Ok(0))
    }
}
