//! Whole sets of rules between daemons, for one whose own source of rules is behind.
//!
//! Each daemon gossips which set it decides by ([`RulesStatement`]) and keeps its bytes ready. A daemon that
//! wants them opens a stream on the connection that it dialled, names the digest, and reads. The set that
//! comes is checked against the digest here, and like every other set by whoever asked: nothing a peer sends
//! is used unread.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use quinn::{Connection, ReadToEndError, RecvStream, SendStream};
use tokio::time::timeout;

use super::counters::Refusal;
use crate::core::wire::WireVersion;

/// Longest set, in bytes.
pub const RULES_BYTES_MAX: usize = 64 << 20;
/// Sets that a peer may be reading on one connection at once. More wait on its side.
pub(super) const READERS_MAX: u32 = 2;
/// Largest generation and revision that are believed: databases count them in 63 bits, and need room to go
/// on.
pub(super) const NUMBER_MAX: u64 = 1 << 62;
/// Longest time for a question to arrive, and for a set to be written.
const ASK_DEADLINE: Duration = Duration::from_secs(5);
const ANSWER_DEADLINE: Duration = Duration::from_secs(60);
const KIND_RULES: u8 = 3;
const DIGEST_BYTES: usize = 32;

/// The set of rules that a daemon decides by, as it gossips it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RulesStatement {
    /// A later generation is newer whatever its revision.
    pub generation: u64,
    /// Revision of the set within its generation.
    pub revision: u64,
    /// Number of bytes that it has: no more are read.
    pub length: usize,
    /// SHA-256 of the bytes of the set.
    pub digest: [u8; DIGEST_BYTES],
}

impl RulesStatement {
    /// Returns the text that is gossiped.
    pub(super) fn text(&self) -> String {
        let digest = self.digest.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        format!("{} {} {} {digest}", self.generation, self.revision, self.length)
    }

    /// Reads what a member said.
    pub(super) fn read(text: &str) -> Option<Self> {
        let mut parts = text.split(' ');
        let (generation, revision): (u64, u64) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        // No database could ever hold a newer one.
        if generation > NUMBER_MAX || revision > NUMBER_MAX {
            return None;
        }
        let length = parts.next()?.parse().ok()?;
        let hex = parts.next().filter(|hex| hex.len() == 2 * DIGEST_BYTES && hex.is_ascii())?;
        let mut digest = [0; DIGEST_BYTES];
        for (at, byte) in digest.iter_mut().enumerate() {
            *byte = u8::from_str_radix(hex.get(2 * at..2 * at + 2)?, 16).ok()?;
        }
        parts.next().is_none().then_some(Self { generation, revision, length, digest })
    }
}

/// The set that others may read.
#[derive(Debug, Default)]
pub(super) struct SavedRules(Mutex<Option<(RulesStatement, Bytes)>>);

impl SavedRules {
    /// Replaces it.
    pub(super) fn put(&self, word: RulesStatement, bytes: Bytes) {
        *self.lock() = Some((word, bytes));
    }

    /// Returns what is gossiped of it.
    pub(super) fn word(&self) -> Option<RulesStatement> {
        self.lock().as_ref().map(|(word, _)| *word)
    }

    fn get(&self, digest: &[u8]) -> Option<Bytes> {
        self.lock().as_ref().filter(|(word, _)| word.digest == digest).map(|(_, bytes)| bytes.clone())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<(RulesStatement, Bytes)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Answers one question for a set. A set that is not here any more is answered with nothing.
pub(super) async fn answer(
    version: WireVersion,
    shelf: Arc<SavedRules>,
    mut send: SendStream,
    mut receive: RecvStream,
) -> Result<(), Refusal> {
    let asked = timeout(ASK_DEADLINE, receive.read_to_end(2 + DIGEST_BYTES)).await;
    let asked = asked.map_err(|_| Refusal::Malformed)?.map_err(|_| Refusal::Malformed)?;
    match asked.split_at_checked(2) {
        Some(([number, _], _)) if *number != version.number() => Err(Refusal::Version),
        Some(([_, KIND_RULES], digest)) => {
            let written = timeout(ANSWER_DEADLINE, async {
                if let Some(bytes) = shelf.get(digest) {
                    send.write_chunk(bytes).await.map_err(|_| Refusal::Unsent)?;
                }
                send.finish().map_err(|_| Refusal::Unsent)
            });
            written.await.unwrap_or(Err(Refusal::Unsent))
        }
        Some(_) => Err(Refusal::Kind),
        None => Err(Refusal::Malformed),
    }
}

/// Reasons why a set did not come.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FetchError {
    /// There is no connection to that node.
    #[error("there is no connection to it")]
    NotConnected,
    /// It took too long.
    #[error("it did not come within {0:?}")]
    Slow(Duration),
    /// The connection broke, or the other side refused.
    #[error("it broke off: {0}")]
    Broken(String),
    /// The other side has another set by now.
    #[error("the peer has it no longer")]
    Gone,
    /// It is longer than a set may be, or than was promised.
    #[error("it is longer than {} MiB, the most that a set may have, or than the peer said", RULES_BYTES_MAX >> 20)]
    TooLong,
    /// The bytes are not those that were promised.
    #[error("its bytes are not those that were promised")]
    Digest,
}

/// Reads a set from a peer.
pub(super) async fn fetch(
    connection: Connection,
    version: WireVersion,
    word: RulesStatement,
    deadline: Duration,
) -> Result<Vec<u8>, FetchError> {
    if word.length > RULES_BYTES_MAX {
        return Err(FetchError::TooLong);
    }
    let read = timeout(deadline, async {
        let broken = |error: &dyn std::fmt::Display| FetchError::Broken(error.to_string());
        let (mut send, mut receive) = connection.open_bi().await.map_err(|error| broken(&error))?;
        let question = [&[version.number(), KIND_RULES], &word.digest[..]].concat();
        send.write_all(&question).await.map_err(|error| broken(&error))?;
        send.finish().map_err(|error| broken(&error))?;
        receive.read_to_end(word.length).await.map_err(|error| match error {
            ReadToEndError::TooLong => FetchError::TooLong,
            ReadToEndError::Read(error) => broken(&error),
        })
    });
    let bytes = read.await.unwrap_or(Err(FetchError::Slow(deadline)))?;
    if bytes.is_empty() {
        return Err(FetchError::Gone);
    }
    let matches = ring::digest::digest(&ring::digest::SHA256, &bytes).as_ref() == word.digest;
    if matches { Ok(bytes) } else { Err(FetchError::Digest) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_read_as_it_was_said_and_nothing_else_is() {
        let word = RulesStatement { generation: 2, revision: 17, length: 9, digest: [0xa5; 32] };
        assert_eq!(RulesStatement::read(&word.text()), Some(word));
        let text = word.text();
        for cut in 0..text.len() {
            assert_eq!(RulesStatement::read(&text[..cut]), None, "{cut}");
        }
        assert_eq!(RulesStatement::read(&format!("{text} ")), None);
        assert_eq!(RulesStatement::read(&text.replace('5', "ä")), None);
    }

    #[test]
    fn a_shelf_gives_only_what_is_asked_for_by_its_digest() {
        let shelf = SavedRules::default();
        assert_eq!((shelf.word(), shelf.get(&[1; 32])), (None, None));
        let word = RulesStatement { generation: 1, revision: 1, length: 3, digest: [1; 32] };
        shelf.put(word, Bytes::from_static(b"set"));
        assert_eq!((shelf.word(), shelf.get(&[1; 32])), (Some(word), Some(Bytes::from_static(b"set"))));
        assert_eq!(shelf.get(&[2; 32]), None);
    }
}
