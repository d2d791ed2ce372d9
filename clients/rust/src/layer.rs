//! A layer for tower: axum, tonic, hyper and whatever else serves requests of `http`.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::header::{CONTENT_TYPE, HeaderValue};
use http::request::Parts;
use http::{Request, Response, StatusCode};
use tower_layer::Layer;
use tower_service::Service;

use crate::client::Tidegate;
use crate::error::{Denied, Error};
use crate::request::Check;

type Naming = Arc<dyn Fn(&Parts) -> Option<Check> + Send + Sync>;

/// Asks before each request, and answers what may not pass in the service's place.
///
/// The [`Decision`](crate::Decision) is put into the extensions of a request that passes, and its headers
/// onto the response. A request that a rule throttles is held back for as long as the daemon says. Where the
/// call itself is refused, or no daemon answers and the client was told to fail, the answer is 500, and the
/// extensions of that response hold the [`Error`].
///
/// ```
/// use tidegate_client::{Check, LimitLayer, Tidegate};
///
/// # fn limit(client: Tidegate) -> LimitLayer {
/// LimitLayer::new(client).attributes(|request| {
///     let user = request.extensions.get::<String>()?; // put there by what authenticates
///     Some(Check::new([("user", user.as_str()), ("path", request.uri.path())]))
/// })
/// # }
/// ```
#[derive(Clone)]
pub struct LimitLayer<R = PlainText> {
    client: Tidegate,
    naming: Naming,
    refuse: R,
}

impl<R> fmt::Debug for LimitLayer<R> {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_struct("LimitLayer").field("client", &self.client).finish_non_exhaustive()
    }
}

impl LimitLayer {
    /// Asks with the method and the path of each request, and refuses in plain text.
    pub fn new(client: Tidegate) -> Self {
        Self { client, naming: Arc::new(|request| Some(by_path(request))), refuse: PlainText }
    }
}

impl<R> LimitLayer<R> {
    /// Names who asks, and what the request costs where that is not 1. Authenticate first, and name the user.
    /// `None`: the request is not asked for.
    #[must_use]
    pub fn attributes(mut self, naming: impl Fn(&Parts) -> Option<Check> + Send + Sync + 'static) -> Self {
        self.naming = Arc::new(naming);
        self
    }

    /// Says how a refusal is answered, where plain text is not what clients read.
    #[must_use]
    pub fn refuse<N>(self, refuse: N) -> LimitLayer<N> {
        LimitLayer { client: self.client, naming: self.naming, refuse }
    }
}

/// Names a request by its method and its path.
fn by_path(request: &Parts) -> Check {
    Check::new([("method", request.method.as_str()), ("path", request.uri.path())])
}

/// The answer to a request that may not pass. Every function of the error is one.
pub trait Refuse<B> {
    /// Returns the answer: to [`Error::Denied`] that of its decision, to any other one that says whose fault
    /// it is.
    fn refuse(&self, error: &Error) -> Response<B>;
}

impl<B, F: Fn(&Error) -> Response<B>> Refuse<B> for F {
    fn refuse(&self, error: &Error) -> Response<B> {
        self(error)
    }
}

/// Answers with the decision's status, headers and message, in plain text.
#[derive(Debug, Clone, Copy, Default)]
pub struct PlainText;

impl<B: From<String>> Refuse<B> for PlainText {
    fn refuse(&self, error: &Error) -> Response<B> {
        let (status, headers, text) = match error {
            Error::Denied(Denied { decision }) => (
                StatusCode::from_u16(decision.status).unwrap_or(StatusCode::TOO_MANY_REQUESTS),
                decision.headers(),
                decision.message.clone().unwrap_or_else(|| "Too many requests".to_owned()),
            ),
            // The reason is for those who run the service, not for its clients.
            _ => (
                StatusCode::INTERNAL_SERVER_ERROR,
                Default::default(),
                "The request was not decided".to_owned(),
            ),
        };
        let mut response = Response::new(B::from(text));
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        response
    }
}

impl<S, R: Clone> Layer<S> for LimitLayer<R> {
    type Service = Limit<S, R>;

    fn layer(&self, inner: S) -> Limit<S, R> {
        Limit { inner, layer: self.clone() }
    }
}

/// A service that is asked for: what [`LimitLayer`] makes of one.
#[derive(Debug, Clone)]
pub struct Limit<S, R = PlainText> {
    inner: S,
    layer: LimitLayer<R>,
}

impl<S, R, B, O> Service<Request<B>> for Limit<S, R>
where
    S: Service<Request<B>, Response = Response<O>> + Clone + Send + 'static,
    S::Future: Send,
    R: Refuse<O> + Clone + Send + 'static,
    B: Send + 'static,
{
    type Response = Response<O>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<O>, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (mut parts, body) = request.into_parts();
        // The one that is ready answers; its clone gets ready for the next request.
        let next = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, next);
        let Some(check) = (self.layer.naming)(&parts) else {
            return Box::pin(inner.call(Request::from_parts(parts, body)));
        };
        let LimitLayer { client, refuse, .. } = self.layer.clone();
        Box::pin(async move {
            let error = match client.check(check).await {
                Ok(decision) if decision.allowed => {
                    let headers = decision.headers();
                    if !decision.delay.is_zero() {
                        tokio::time::sleep(decision.delay).await;
                    }
                    parts.extensions.insert(decision);
                    let mut response = inner.call(Request::from_parts(parts, body)).await?;
                    response.headers_mut().extend(headers);
                    return Ok(response);
                }
                Ok(decision) => Error::from(Denied::by(decision)),
                Err(error) => error,
            };
            let mut response = refuse.refuse(&error);
            if !matches!(error, Error::Denied(_)) {
                tracing::warn!(%error, "a request was not decided");
                response.extensions_mut().insert(error);
            }
            Ok(response)
        })
    }
}
