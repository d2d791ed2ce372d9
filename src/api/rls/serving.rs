//! One connection of a gRPC client: takes the calls that arrive, and ends when it should.

use std::future::Future as _;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use h2::RecvStream;
use http::Request;

use super::watch::Watch;
use super::{Line, Respond, Way, accept, others};
use crate::api::Servers;
use crate::api::connection::{END_WITHIN, GIVEN_UP_MAX, LOOK_EVERY};
use crate::api::delivering_socket::DeliveringSocket;
use crate::api::delivery::Deliveries;
use crate::api::frames::WatchedFrames;
use crate::api::listener::{Accepted, Socket};
use crate::api::unsent_bytes::{CountedWriter, UnreadLooks, Unsent};

/// Calls that one connection may have open. More are refused by HTTP/2 itself.
const STREAMS_MAX: u32 = 1_024;
/// Longest list of headers of one call, in bytes, without the long values that [`WatchedFrames`] leaves out.
const HEADERS_BYTES_MAX: u32 = 64 * 1_024;
/// Bytes of all messages of one connection that may wait unread.
const WINDOW_BYTES: u32 = 256 * 1_024;
/// How long a connection may take to begin.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);
/// How long the first call of a connection may take when the listener has stopped.
const FIRST_CALL_WITHIN: Duration = Duration::from_millis(500);
/// Calls that are taken up before any of them is answered.
const TURN_LEN_MAX: usize = 256;

type Stream = (Request<RecvStream>, Respond);
type Connection = h2::server::Connection<WatchedFrames<DeliveringSocket>, CountedWriter>;

/// Serves one connection until its client closes it, it falls silent, or the server drains and what is in
/// flight is answered.
pub(in crate::api) async fn connection(servers: Arc<Servers>, accepted: Accepted) {
    let Accepted { socket, shutdown, place, .. } = accepted;
    let deliveries = Deliveries::new(&servers.engine);
    let is_unix = matches!(socket, Socket::Unix(_));
    let socket = DeliveringSocket::by_number(socket, &deliveries);
    let socket = WatchedFrames::small(socket, is_unix, &deliveries);
    let handshake = builder().handshake::<_, CountedWriter>(socket);
    // Who speaks no HTTP/2, or not in time, is let go.
    let handshake = tokio::time::timeout(HANDSHAKE_WITHIN, handshake);
    let mut stopped = pin!(async {
        shutdown.stop.cancelled().await;
        tokio::time::sleep(FIRST_CALL_WITHIN).await;
    });
    let shaken = tokio::select! {
        biased;
        shaken = handshake => shaken,
        () = place.end.cancelled() => return,
        () = &mut stopped => return,
    };
    let Ok(Ok(mut connection)) = shaken else { return };
    let way = Way { unsent: servers.rls.unsent.connection(), deliveries, waiting: Arc::default() };
    let closing = shutdown.closing.clone();
    let (others, receipts) = (others::Share::default(), Arc::default());
    let line = Line { servers, closing, way, others, receipts };
    let mut watch = Watch::new(connection.ping_pong());
    let mut look = tokio::time::interval(LOOK_EVERY);
    let mut unread = UnreadLooks::default();
    let mut closing = pin!(shutdown.closing.cancelled());
    let mut ending = pin!(place.end.cancelled());
    let mut closes = false;
    let mut turn: Vec<Stream> = Vec::new();
    loop {
        let event = std::future::poll_fn(|cx| {
            if let Some(event) = poll_calls(&mut connection, &mut turn, &line.way.unsent, cx) {
                return Poll::Ready(event);
            }
            // Some clients lose a call that they begin while they are told to go before they began any.
            if !closes && watch.has_begun && closing.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Event::Close);
            }
            if !watch.has_begun && stopped.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Event::Closed);
            }
            if ending.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Event::MakeRoom);
            }
            if watch.poll_receipt(&line, cx).is_ready() {
                return Poll::Ready(Event::Pinged);
            }
            look.poll_tick(cx).map(|_| Event::Look)
        });
        match event.await {
            Event::Calls => {
                watch.calls = watch.calls.saturating_add(turn.len());
                watch.has_begun = true;
                place.touch(true);
                for (request, respond) in turn.drain(..) {
                    accept(&line, request, respond);
                }
            }
            Event::Close => {
                closes = true;
                connection.graceful_shutdown();
            }
            Event::MakeRoom => return make_room(&mut connection).await,
            Event::Look if line.way.unsent.is_unread(&mut unread) => {
                line.way.deliveries.lost();
                return place.count_unread();
            }
            Event::Look if watch.is_silent() => return,
            Event::Look | Event::Pinged => {}
            Event::Closed => return,
            // Resets that were still to be read are lost with it.
            Event::Broken => return line.way.deliveries.lost(),
        }
    }
}

fn builder() -> h2::server::Builder {
    let mut builder = h2::server::Builder::new();
    builder
        .max_concurrent_streams(STREAMS_MAX)
        .max_pending_accept_reset_streams(GIVEN_UP_MAX)
        .max_concurrent_reset_streams(GIVEN_UP_MAX)
        .max_header_list_size(HEADERS_BYTES_MAX)
        .initial_connection_window_size(WINDOW_BYTES)
        .initial_window_size(WINDOW_BYTES);
    builder
}

/// Ends a connection for others to have its place.
async fn make_room(connection: &mut Connection) {
    connection.abrupt_shutdown(h2::Reason::NO_ERROR);
    let ended = std::future::poll_fn(|cx| connection.poll_closed(cx));
    let _ = tokio::time::timeout(END_WITHIN, ended).await;
}

enum Event {
    Calls,
    Closed,
    Broken,
    Close,
    Look,
    MakeRoom,
    /// A PING is to be written.
    Pinged,
}

/// Moves the connection on, and takes every call that has arrived. `None`: nothing happened.
///
/// From a client that does not read its answers no further calls are taken.
fn poll_calls(
    connection: &mut Connection,
    turn: &mut Vec<Stream>,
    unsent: &Unsent,
    cx: &mut Context<'_>,
) -> Option<Event> {
    if !unsent.has_room() {
        if connection.poll_closed(cx).is_ready() {
            return Some(Event::Closed);
        }
        if !unsent.has_room() {
            return None;
        }
    }
    while turn.len() < TURN_LEN_MAX {
        match connection.poll_accept(cx) {
            Poll::Ready(Some(Ok(call))) => turn.push(call),
            // How a connection ends is its client's affair.
            Poll::Ready(None) => return Some(Event::Closed),
            Poll::Ready(Some(Err(_))) => return Some(Event::Broken),
            Poll::Pending => break,
        }
    }
    (!turn.is_empty()).then_some(Event::Calls)
}
