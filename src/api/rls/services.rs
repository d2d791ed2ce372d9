//! Services of tonic, found by the path of a call.

use std::convert::Infallible;
use std::pin::Pin;

use http::{Request, Response};
use tonic::Status;
use tonic::body::Body;
use tonic::server::NamedService;
use tower_service::Service;

type Answering = Pin<Box<dyn Future<Output = Response<Body>> + Send>>;
type Served = Box<dyn Fn(Request<Body>) -> Answering + Send + Sync>;

/// A few services, each by its name.
#[derive(Default)]
pub(super) struct Services(Vec<(&'static str, Served)>);

impl Services {
    /// Adds a service, which answers every path that begins with its name.
    pub(super) fn add<S>(&mut self, service: S)
    where
        S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>
            + NamedService
            + Clone
            + Send
            + Sync
            + 'static,
        S::Future: Send,
    {
        let served = move |request| -> Answering {
            let mut service = service.clone();
            Box::pin(async move {
                let Ok(response) = service.call(request).await;
                response
            })
        };
        self.0.push((S::NAME, Box::new(served)));
    }

    /// Answers a call; `UNIMPLEMENTED` where no service has its name.
    pub(super) async fn call(&self, request: Request<Body>) -> Response<Body> {
        let name = request.uri().path().strip_prefix('/').and_then(|path| path.split_once('/'));
        let service = name.and_then(|(name, _)| self.0.iter().find(|(own, _)| *own == name));
        match service {
            Some((_, served)) => served(request).await,
            None => Status::unimplemented("").into_http(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_service_that_is_not_there_is_unimplemented() {
        for path in ["/no.such.Service/Method", "/", "/grpc.health.v1.Health"] {
            let request = Request::builder().uri(path).body(Body::empty()).unwrap();
            let answer = Services::default().call(request).await;
            assert_eq!(answer.headers().get("grpc-status").unwrap(), "12", "{path}");
            assert_eq!(answer.headers().get("content-type").unwrap(), "application/grpc", "{path}");
        }
    }
}
