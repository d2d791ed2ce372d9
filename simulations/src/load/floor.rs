//! Servers that answer every request with the same "OK": what the transport alone costs, to read other
//! figures against.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;
use bytes::{Buf as _, Bytes, BytesMut};
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitResponse;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::script::framed;

/// Requests in flight that one HTTP/2 connection may have.
const STREAMS_MAX: u32 = 1_024;
/// Longest request that is read, head included.
const REQUEST_BYTES_MAX: usize = 4 << 20;
/// The time that accepting rests when it fails, for want of file descriptors mostly.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);
const DECISION: &str =
    r#"{"allowed":true,"domain":"default","cost":1,"region":"floor","degraded":false,"rules":[]}"#;

/// Serves at these addresses until the process is stopped.
///
/// # Errors
/// When an address cannot be listened on.
pub(super) fn serve(grpc: Option<SocketAddr>, http: Option<SocketAddr>) -> anyhow::Result<()> {
    tokio::runtime::Runtime::new()?.block_on(async {
        if let Some(addr) = grpc {
            tokio::spawn(accept(listen(addr).await?, one_http2));
        }
        if let Some(addr) = http {
            tokio::spawn(accept(listen(addr).await?, one_http1));
        }
        tokio::signal::ctrl_c().await.context("cannot wait for Ctrl-C")
    })
}

async fn listen(addr: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(addr).await.with_context(|| format!("cannot listen on {addr}"))
}

async fn accept<F>(listener: TcpListener, serve: fn(TcpStream) -> F)
where
    F: Future<Output = anyhow::Result<()>> + Send + 'static,
{
    loop {
        match listener.accept().await {
            // A client that goes away is no news here.
            Ok((socket, _)) => drop(tokio::spawn(serve(socket))),
            Err(_) => tokio::time::sleep(ACCEPT_RETRY).await,
        }
    }
}

async fn one_http2(socket: TcpStream) -> anyhow::Result<()> {
    socket.set_nodelay(true)?;
    let answer = framed(&RateLimitResponse { overall_code: Code::Ok.into(), ..Default::default() });
    let mut builder = h2::server::Builder::new();
    builder.max_concurrent_streams(STREAMS_MAX);
    let mut connection = builder.handshake(socket).await?;
    while let Some(request) = connection.accept().await {
        let (request, respond) = request?;
        // A task for each request, as any gRPC server has: the body may come later than its head.
        tokio::spawn(answer_http2(request.into_body(), respond, answer.clone()));
    }
    Ok(())
}

async fn answer_http2(
    mut body: h2::RecvStream,
    mut respond: h2::server::SendResponse<Bytes>,
    answer: Bytes,
) -> anyhow::Result<()> {
    while let Some(part) = body.data().await {
        body.flow_control().release_capacity(part?.len())?;
    }
    let head = http::Response::builder().header("content-type", "application/grpc").body(())?;
    let mut stream = respond.send_response(head, false)?;
    stream.send_data(answer, false)?;
    let mut trailers = http::HeaderMap::new();
    trailers.insert("grpc-status", http::HeaderValue::from_static("0"));
    stream.send_trailers(trailers)?;
    Ok(())
}

async fn one_http1(mut socket: TcpStream) -> anyhow::Result<()> {
    socket.set_nodelay(true)?;
    let answer = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{DECISION}",
        DECISION.len()
    );
    let mut buffer = BytesMut::with_capacity(16 * 1_024);
    loop {
        while let Some(length) = whole(&buffer) {
            if length > buffer.len() {
                break;
            }
            buffer.advance(length);
            socket.write_all(answer.as_bytes()).await?;
        }
        if buffer.len() > REQUEST_BYTES_MAX || socket.read_buf(&mut buffer).await? == 0 {
            return Ok(());
        }
    }
}

/// Returns how long the request at the front is, head and body, once its head is here.
fn whole(buffer: &[u8]) -> Option<usize> {
    let head = buffer.windows(4).position(|four| four == b"\r\n\r\n")?;
    let text = std::str::from_utf8(buffer.get(..head)?).ok()?;
    let length = text.split("\r\n").find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok()).flatten()
    });
    Some((head + 4).saturating_add(length.unwrap_or(0)))
}
