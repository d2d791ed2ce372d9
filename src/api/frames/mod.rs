//! The frames of HTTP/2 that a client sends, looked at before HTTP/2 is read.
//!
//! **Resets.** A client may reset a call after it was answered and before the answer came. HTTP/2 then tells
//! nobody: for the server the stream has ended. So resets are told from here to those who gave something.
//!
//! **Calls of gRPC.** A gateway that traces passes on what its client said of the trace, and a client can say
//! as much as the gateway reads of a head: 60 KiB at Envoy, 8 MiB at most. HTTP/2 refuses a head that is too
//! long with 431, and Envoy lets the request of such a call pass. So of a head that takes more than one frame
//! the long values are left out, since nothing here reads them; see `HeaderFields`.
//!
//! On a Unix socket, besides, each `%` of an `:authority` becomes `-`. gRPC's C core, and with it Python,
//! Ruby and PHP, names the server of a Unix socket by a percent-encoded path, and an HTTP/2 server has to
//! refuse the name: `%` stands in no authority (RFC 3986, 3.2). Nothing here looks at an authority. The value
//! keeps its length, so both tables of header compression agree (RFC 7541).
//!
//! **Requests of HTTP.** The library that answers them does not tell the number of a request's stream, by
//! which it is reset. So each head gets a field with it.

mod header_fields;
mod reader;

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Buf as _;
use http::HeaderMap;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use self::reader::{Frames, Heads, NUMBER_FIELD};
use super::delivery::Deliveries;

/// A socket that changes the heads of requests, and tells which of them their client has reset.
pub(super) struct WatchedFrames<S> {
    socket: S,
    frames: Frames,
    deliveries: Arc<Deliveries>,
}

impl<S> WatchedFrames<S> {
    /// Makes the heads of gRPC's calls small. `is_unix`: over a Unix socket.
    pub(super) fn small(socket: S, is_unix: bool, deliveries: &Arc<Deliveries>) -> Self {
        let frames = Frames::new(Heads::Small { mends: is_unix });
        Self { socket, frames, deliveries: Arc::clone(deliveries) }
    }

    /// Has each request say its number, which [`take_number`] takes off.
    pub(super) fn numbered(socket: S, deliveries: &Arc<Deliveries>) -> Self {
        Self { socket, frames: Frames::new(Heads::Numbered), deliveries: Arc::clone(deliveries) }
    }
}

/// Takes the number of its stream off a request.
pub(super) fn take_number(headers: &mut HeaderMap) -> u32 {
    // A field of this name that the client itself sent stands before it.
    let number = headers.get_all(NUMBER_FIELD).iter().next_back();
    let number = number.and_then(|number| number.to_str().ok()?.parse().ok()).unwrap_or_default();
    headers.remove(NUMBER_FIELD);
    number
}

impl<S: AsyncRead + Unpin> AsyncRead for WatchedFrames<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { socket, frames, deliveries } = &mut *self;
        loop {
            if !frames.made.is_empty() {
                let part = frames.made.len().min(into.remaining());
                into.put_slice(frames.made.get(..part).unwrap_or_default());
                frames.made.advance(part);
                return Poll::Ready(Ok(()));
            }
            let before = into.filled().len();
            ready!(Pin::new(&mut *socket).poll_read(cx, into))?;
            if into.filled().len() == before {
                return Poll::Ready(Ok(()));
            }
            let read = into.filled_mut().get_mut(before..).unwrap_or_default();
            let passed =
                frames.pass(read).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            into.set_filled(before + passed);
            frames.reset.drain(..).for_each(|call| deliveries.reset(call));
            if passed > 0 {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WatchedFrames<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }
}
