//! Writes answers, in the version of the protocol that the client chose.

/// The version of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    /// The one that connections begin with.
    Two,
    /// The one with maps, doubles and a null of its own.
    Three,
}

impl Protocol {
    /// Its number.
    pub(super) const fn number(self) -> i64 {
        match self {
            Self::Two => 2,
            Self::Three => 3,
        }
    }
}

/// Answers that wait to be sent.
#[derive(Debug)]
pub(super) struct Answers {
    pub(super) bytes: Vec<u8>,
    /// RESP2 until the client asks for RESP3 with `HELLO 3`.
    pub(super) protocol: Protocol,
}

impl Answers {
    fn line(&mut self, kind: u8, text: &[u8]) {
        self.bytes.push(kind);
        self.bytes.extend_from_slice(text);
        self.bytes.extend_from_slice(b"\r\n");
    }

    fn length(&mut self, kind: u8, length: usize) {
        self.line(kind, itoa::Buffer::new().format(length).as_bytes());
    }

    /// A short text of this server's own.
    pub(super) fn simple(&mut self, text: &str) {
        self.line(b'+', text.as_bytes());
    }

    /// An error. A line break in what a client sent would end it early.
    pub(super) fn error(&mut self, text: &str) {
        self.line(b'-', text.replace(['\r', '\n'], " ").as_bytes());
    }

    /// A whole number.
    pub(super) fn integer(&mut self, number: i64) {
        self.line(b':', itoa::Buffer::new().format(number).as_bytes());
    }

    /// Bytes.
    pub(super) fn bulk(&mut self, bytes: &[u8]) {
        self.length(b'$', bytes.len());
        self.bytes.extend_from_slice(bytes);
        self.bytes.extend_from_slice(b"\r\n");
    }

    /// A number with a fraction.
    pub(super) fn double(&mut self, number: f64) {
        let text = number.to_string();
        match self.protocol {
            Protocol::Two => self.bulk(text.as_bytes()),
            Protocol::Three => self.line(b',', text.as_bytes()),
        }
    }

    /// Nothing.
    pub(super) fn null(&mut self) {
        self.bytes.extend_from_slice(match self.protocol {
            Protocol::Two => b"$-1\r\n",
            Protocol::Three => b"_\r\n",
        });
    }

    /// Begins an array of so many answers.
    pub(super) fn array(&mut self, length: usize) {
        self.length(b'*', length);
    }

    /// Begins a map of so many pairs of answers.
    pub(super) fn map(&mut self, pairs: usize) {
        match self.protocol {
            Protocol::Two => self.array(pairs * 2),
            Protocol::Three => self.length(b'%', pairs),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_are_written_as_their_clients_read_them() {
        for (protocol, expected) in [
            (Protocol::Two, "*4\r\n:-1\r\n$1\r\nx\r\n$-1\r\n$3\r\n0.5\r\n-ERR a  b\r\n"),
            (Protocol::Three, "%2\r\n:-1\r\n$1\r\nx\r\n_\r\n,0.5\r\n-ERR a  b\r\n"),
        ] {
            let mut answers = Answers { bytes: Vec::new(), protocol };
            answers.map(2);
            answers.integer(-1);
            answers.bulk(b"x");
            answers.null();
            answers.double(0.5);
            answers.error("ERR a\r\nb");
            assert_eq!(String::from_utf8(answers.bytes).unwrap(), expected);
        }
    }
}
