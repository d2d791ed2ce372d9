//! Envoy's `ShouldRateLimit`, asked over bare HTTP/2: what a gateway sends, without a gRPC library's cost.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use bytes::{Buf as _, Bytes, BytesMut};
use h2::client::SendRequest;
use prost::Message as _;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::pace::{ANSWER_WITHIN, Answer, Plan, Tally};
use super::script::{Dice, Script};

/// Bytes in flight that a connection and a stream allow: never what holds a run back.
const WINDOW_BYTES: u32 = 16 * 1_024 * 1_024;
/// Longest answer that is read.
const ANSWER_BYTES_MAX: usize = 1 << 20;
const GRPC_HEADER_BYTES: usize = 5;
const CODE_OK: i32 = 1;
const CODE_OVER_LIMIT: i32 = 2;

/// The one field that is read of a `RateLimitResponse`; the others are skipped without being kept.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
struct Overall {
    #[prost(int32, tag = "1")]
    code: i32,
}

/// Keeps `depth` requests in flight on each of `connections` until the plan ends.
pub(super) async fn ask(
    plan: Arc<Plan>,
    addr: SocketAddr,
    connections: u16,
    depth: u16,
    script: &Arc<Script>,
) -> Tally {
    let tally = Rc::new(RefCell::new(Tally::default()));
    let mut streams = JoinSet::new();
    // Dropped at the end, and the connections with it.
    let mut drivers = JoinSet::new();
    for connection in 0..connections {
        let sender = match timeout(ANSWER_WITHIN, connect(addr, &mut drivers)).await {
            Ok(Ok(sender)) => sender,
            Ok(Err(error)) => {
                tally.borrow_mut().fail(&error);
                continue;
            }
            Err(_) => {
                tally.borrow_mut().fail(&anyhow::anyhow!("connecting to {addr} took too long"));
                continue;
            }
        };
        for stream in 0..depth {
            let dice = Dice::new(u64::from(connection) << 16 | u64::from(stream));
            let (plan, script, tally) = (Arc::clone(&plan), Arc::clone(script), Rc::clone(&tally));
            streams.spawn_local(keep_asking(plan, addr, sender.clone(), dice, script, tally));
        }
    }
    while streams.join_next().await.is_some() {}
    tally.take()
}

async fn connect(addr: SocketAddr, drivers: &mut JoinSet<()>) -> anyhow::Result<SendRequest<Bytes>> {
    let socket = TcpStream::connect(addr).await.with_context(|| format!("cannot connect to {addr}"))?;
    socket.set_nodelay(true)?;
    let (sender, connection) = h2::client::Builder::new()
        .initial_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .handshake(socket)
        .await
        .with_context(|| format!("{addr} does not speak HTTP/2"))?;
    // Every request on the connection sees how it ends.
    drivers.spawn_local(async move { drop(connection.await) });
    Ok(sender)
}

/// One request after another; ends with the plan, or at the first failure, after which the connection may be
/// of no use.
async fn keep_asking(
    plan: Arc<Plan>,
    addr: SocketAddr,
    mut sender: SendRequest<Bytes>,
    mut dice: Dice,
    script: Arc<Script>,
    tally: Rc<RefCell<Tally>>,
) {
    let request = match head(addr) {
        Ok(request) => request,
        Err(error) => return tally.borrow_mut().fail(&error),
    };
    while let Some(begin) = plan.begin() {
        let body = script.draw(&mut dice);
        let answer = match timeout(ANSWER_WITHIN, once(&mut sender, request.clone(), body)).await {
            Ok(answer) => answer,
            Err(_) => Err(anyhow::anyhow!("no answer within {ANSWER_WITHIN:?}")),
        };
        let failed = answer.is_err();
        plan.end(begin, answer, &mut tally.borrow_mut());
        if failed {
            return;
        }
    }
}

fn head(addr: SocketAddr) -> anyhow::Result<http::Request<()>> {
    Ok(http::Request::post(format!(
        "http://{addr}/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
    ))
    .header("content-type", "application/grpc")
    .header("te", "trailers")
    .body(())?)
}

async fn once(
    sender: &mut SendRequest<Bytes>,
    request: http::Request<()>,
    body: Bytes,
) -> anyhow::Result<Answer> {
    std::future::poll_fn(|context| sender.poll_ready(context)).await?;
    let (response, mut stream) = sender.send_request(request, false)?;
    stream.send_data(body, true)?;
    let (head, mut body) = response.await?.into_parts();
    if head.status != http::StatusCode::OK {
        bail!("HTTP status {}", head.status);
    }
    let mut message = BytesMut::new();
    while let Some(part) = body.data().await {
        let part = part?;
        body.flow_control().release_capacity(part.len())?;
        message.extend_from_slice(&part);
        if message.len() > ANSWER_BYTES_MAX {
            bail!("an answer of more than {ANSWER_BYTES_MAX} bytes");
        }
    }
    let trailers = body.trailers().await?;
    status(trailers.as_ref().unwrap_or(&head.headers))?;
    if message.len() < GRPC_HEADER_BYTES {
        bail!("an answer without a message");
    }
    message.advance(GRPC_HEADER_BYTES);
    match Overall::decode(message)?.code {
        CODE_OK => Ok(Answer::Ok),
        CODE_OVER_LIMIT => Ok(Answer::OverLimit),
        code => bail!("an answer with code {code}"),
    }
}

fn status(trailers: &http::HeaderMap) -> anyhow::Result<()> {
    match trailers.get("grpc-status") {
        Some(status) if status == "0" => Ok(()),
        Some(status) => {
            let message = trailers.get("grpc-message").and_then(|text| text.to_str().ok()).unwrap_or("");
            bail!("gRPC status {}: {message}", status.to_str().unwrap_or("?"))
        }
        None => bail!("an answer without a gRPC status"),
    }
}
