//! Envoy's rate limit service, asked as Envoy would, from tests that wait for each answer.

use std::net::SocketAddr;

use bytes::{Buf as _, Bytes};
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry, RateLimitOverride,
};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use envoy_types::pb::google::protobuf::UInt64Value;
use prost::Message;
use tokio::runtime::Runtime;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

use super::SOON;

/// A connection and the runtime that drives it.
pub(crate) struct Client {
    runtime: Runtime,
    channel: Channel,
}

impl Client {
    /// Connects, or fails the test.
    pub(crate) fn connect(addr: SocketAddr) -> Self {
        Self::try_connect(addr).unwrap_or_else(|| panic!("nobody listens at {addr}"))
    }

    /// Connects, unless nobody listens.
    pub(crate) fn try_connect(addr: SocketAddr) -> Option<Self> {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let endpoint = Endpoint::from_shared(format!("http://{addr}")).unwrap().timeout(SOON);
        let channel = runtime.block_on(endpoint.connect()).ok()?;
        Some(Self { runtime, channel })
    }

    /// Connects over TLS, to whoever has a certificate for this name.
    pub(crate) fn connect_secured(addr: SocketAddr, name: &'static str, tls: rustls::ClientConfig) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let connector = tokio_rustls::TlsConnector::from(std::sync::Arc::new(tls));
        let connect = tower::service_fn(move |_: tonic::transport::Uri| {
            let connector = connector.clone();
            async move {
                let socket = tokio::net::TcpStream::connect(addr).await?;
                let secured = connector.connect(name.try_into().unwrap(), socket).await?;
                Ok::<_, std::io::Error>(hyper_util::rt::TokioIo::new(secured))
            }
        });
        let endpoint = Endpoint::from_shared(format!("http://{name}")).unwrap().timeout(SOON);
        let channel = runtime.block_on(endpoint.connect_with_connector(connect)).unwrap();
        Self { runtime, channel }
    }

    /// `ShouldRateLimit`.
    pub(crate) fn ask(&self, request: RateLimitRequest) -> Result<RateLimitResponse, Status> {
        let mut client = RateLimitServiceClient::new(self.channel.clone());
        self.runtime.block_on(client.should_rate_limit(request)).map(tonic::Response::into_inner)
    }

    /// The same as a part of a trace.
    pub(crate) fn ask_within(
        &self,
        request: RateLimitRequest,
        traceparent: &str,
    ) -> Result<RateLimitResponse, Status> {
        self.ask_with(request, "traceparent", traceparent)
    }

    /// The same with a header.
    pub(crate) fn ask_with(
        &self,
        request: RateLimitRequest,
        name: &'static str,
        value: &str,
    ) -> Result<RateLimitResponse, Status> {
        let mut client = RateLimitServiceClient::new(self.channel.clone());
        let mut request = tonic::Request::new(request);
        request.metadata_mut().insert(name, value.parse().unwrap());
        self.runtime.block_on(client.should_rate_limit(request)).map(tonic::Response::into_inner)
    }

    /// The code with which a request is refused; `Code::Ok` if it is not.
    pub(crate) fn refusal(&self, request: RateLimitRequest) -> Code {
        self.ask(request).map_or_else(|status| status.code(), |_| Code::Ok)
    }

    /// `ShouldRateLimit` with any bytes in the place of the message.
    pub(crate) fn ask_bytes(&self, bytes: Vec<u8>) -> Result<Bytes, Status> {
        self.call_bytes("/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit", bytes, None)
    }

    /// A call of Kuadrant's service.
    pub(crate) fn kuadrant<A: Message + Default>(
        &self,
        call: &str,
        request: &impl Message,
    ) -> Result<A, Status> {
        self.kuadrant_within(call, request, None)
    }

    /// The same, as a part of a trace if there is one.
    pub(crate) fn kuadrant_within<A: Message + Default>(
        &self,
        call: &str,
        request: &impl Message,
        traceparent: Option<&str>,
    ) -> Result<A, Status> {
        let path = format!("/kuadrant.service.ratelimit.v1.RateLimitService/{call}");
        let answer = self.call_bytes(&path, request.encode_to_vec(), traceparent)?;
        A::decode(answer).map_err(|error| Status::internal(error.to_string()))
    }

    fn call_bytes(&self, path: &str, bytes: Vec<u8>, traceparent: Option<&str>) -> Result<Bytes, Status> {
        let mut client = tonic::client::Grpc::new(self.channel.clone());
        self.runtime.block_on(async {
            client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
            let mut request = tonic::Request::new(Bytes::from(bytes));
            if let Some(traceparent) = traceparent {
                request.metadata_mut().insert("traceparent", traceparent.parse().unwrap());
            }
            let answer = client.unary(request, path.parse().unwrap(), Plain).await?;
            Ok(answer.into_inner())
        })
    }

    /// The state that gRPC health reports for a service; empty for the whole server.
    pub(crate) fn health(&self, service: &str) -> Result<i32, Status> {
        use tonic_health::pb::HealthCheckRequest;
        use tonic_health::pb::health_client::HealthClient;
        let mut client = HealthClient::new(self.channel.clone());
        let request = HealthCheckRequest { service: service.to_owned() };
        self.runtime.block_on(client.check(request)).map(|answer| answer.into_inner().status)
    }

    /// Opens so many watches of health, as far as there is room, which stay open with this client.
    pub(crate) fn watch_health(&self, watches: usize) {
        use tonic_health::pb::HealthCheckRequest;
        use tonic_health::pb::health_client::HealthClient;
        for _ in 0..watches {
            let mut client = HealthClient::new(self.channel.clone());
            self.runtime.spawn(async move {
                let opened = client.watch(HealthCheckRequest { service: String::new() }).await;
                if let Ok(mut told) = opened {
                    while let Ok(Some(_)) = told.get_mut().message().await {}
                }
            });
        }
    }

    /// Asks and leaves after so long, whether or not the answer has come.
    pub(crate) fn ask_and_leave(&self, request: RateLimitRequest, after: std::time::Duration) {
        let mut client = RateLimitServiceClient::new(self.channel.clone());
        // An answer that came in time is the client's: it is told nobody.
        let _ = self
            .runtime
            .block_on(async move { tokio::time::timeout(after, client.should_rate_limit(request)).await });
    }

    /// The services that gRPC reflection lists.
    pub(crate) fn reflected(&self) -> Result<Vec<String>, Status> {
        match self.reflect(MessageRequest::ListServices(String::new()))? {
            MessageResponse::ListServicesResponse(list) => {
                Ok(list.service.into_iter().map(|service| service.name).collect())
            }
            other => Err(Status::internal(format!("{other:?}"))),
        }
    }

    /// How many files describe what has this name, as reflection tells it.
    pub(crate) fn described(&self, name: &str) -> Result<usize, Status> {
        match self.reflect(MessageRequest::FileContainingSymbol(name.to_owned()))? {
            MessageResponse::FileDescriptorResponse(files) => Ok(files.file_descriptor_proto.len()),
            other => Err(Status::internal(format!("{other:?}"))),
        }
    }

    fn reflect(&self, ask: MessageRequest) -> Result<MessageResponse, Status> {
        let mut client = ServerReflectionClient::new(self.channel.clone());
        let request = ServerReflectionRequest { host: String::new(), message_request: Some(ask) };
        self.runtime.block_on(async {
            let mut answers = client.server_reflection_info(Once(Some(request))).await?.into_inner();
            let answer = answers.message().await?.and_then(|answer| answer.message_response);
            answer.ok_or_else(|| Status::internal("no answer"))
        })
    }
}

/// A request in the domain `default` with these descriptors.
pub(crate) fn request(descriptors: Vec<RateLimitDescriptor>) -> RateLimitRequest {
    RateLimitRequest { domain: "default".to_owned(), descriptors, hits_addend: 0 }
}

/// A descriptor of these entries.
pub(crate) fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
    let entry = |(key, value): &(&str, &str)| Entry { key: (*key).to_owned(), value: (*value).to_owned() };
    RateLimitDescriptor { entries: entries.iter().map(entry).collect(), ..Default::default() }
}

/// The same descriptor with hits of its own.
pub(crate) fn with_hits(descriptor: RateLimitDescriptor, hits: u64) -> RateLimitDescriptor {
    RateLimitDescriptor { hits_addend: Some(UInt64Value { value: hits }), ..descriptor }
}

/// The same descriptor with a limit of its own; `unit` as in Envoy's `RateLimitUnit`.
pub(crate) fn with_limit(descriptor: RateLimitDescriptor, permits: u32, unit: i32) -> RateLimitDescriptor {
    RateLimitDescriptor { limit: Some(RateLimitOverride { requests_per_unit: permits, unit }), ..descriptor }
}

/// A stream of one item.
struct Once<T>(Option<T>);

impl<T: Unpin> futures_core::Stream for Once<T> {
    type Item = T;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<T>> {
        std::task::Poll::Ready(self.0.take())
    }
}

/// Bytes as they are, in both directions.
#[derive(Debug, Clone, Copy, Default)]
struct Plain;

impl Codec for Plain {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Plain {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        bytes::BufMut::put(into, item);
        Ok(())
    }
}

impl Decoder for Plain {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}
