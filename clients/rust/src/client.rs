//! The client: each method is one call.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::client::legacy::connect::Connect;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::answer::{Decision, Decisions, Held, Lease, Released, Renewed, Reservation, Settled};
use crate::away::{Policy, WhenAway};
use crate::batch::Queue;
use crate::error::{BuildError, Error, Refused};
use crate::request::{Acquire, Check, Report, Reserve};
use crate::transport::{Connections, Failure, Route, Transport, connections};

/// Asks a daemon whether requests may pass, and tells it what they cost.
///
/// A clone asks over the same connections, and shares the local share. A client belongs to one runtime of
/// tokio.
#[derive(Clone)]
pub struct Tidegate {
    inner: Arc<Inner>,
}

struct Inner {
    transport: Arc<Transport>,
    policy: Policy,
    domain: Option<String>,
    queue: Option<Arc<Queue>>,
}

impl fmt::Debug for Tidegate {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_struct("Tidegate").field("policy", &self.inner.policy).finish_non_exhaustive()
    }
}

/// The way in which a daemon is asked. [`Tidegate::builder`] begins one.
#[must_use]
pub struct Builder {
    address: String,
    timeout: Duration,
    when_away: WhenAway,
    domain: Option<String>,
    token: Option<String>,
    batch_calls: usize,
    connector: Option<Box<dyn Connections>>,
}

impl fmt::Debug for Builder {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, timeout, when_away, domain, batch_calls, .. } = self;
        to.debug_struct("Builder")
            .field("address", address)
            .field("timeout", timeout)
            .field("when_away", when_away)
            .field("domain", domain)
            .field("batch_calls", batch_calls)
            .finish_non_exhaustive()
    }
}

impl Builder {
    /// Sets the deadline of a whole call, its connection and its answer included: 250 ms unless said.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Says what is decided while no daemon answers within the deadline: every request passes unless said.
    pub fn when_away(mut self, when_away: WhenAway) -> Self {
        self.when_away = when_away;
        self
    }

    /// Names the rules that are asked where a call does not: those of `default` unless said.
    pub fn domain(mut self, domain: impl Into<String>) -> Self {
        self.domain = Some(domain.into());
        self
    }

    /// Sets the token that is sent as `Authorization: Bearer`.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// Has at most so many calls of [`check`](Tidegate::check) under way at once: checks that come meanwhile
    /// go together in the next one. 0, which it is unless said, sends each by itself.
    pub fn batch_calls(mut self, calls: usize) -> Self {
        self.batch_calls = calls;
        self
    }

    /// Connects by a connector of hyper's instead: for TLS, a proxy, or a network of one's own.
    pub fn connector(mut self, connector: impl Connect + Clone + Send + Sync + 'static) -> Self {
        self.connector = Some(connections(connector));
        self
    }

    /// Makes the client. It connects with the first call.
    pub fn build(self) -> Result<Tidegate, BuildError> {
        if self.timeout.is_zero() {
            return Err(BuildError::Timeout);
        }
        let transport = Transport::new(self.address, self.token.as_deref(), self.timeout, self.connector)?;
        let inner = Inner {
            transport: Arc::new(transport),
            policy: Policy::new(self.when_away)?,
            domain: self.domain,
            queue: (self.batch_calls > 0).then(|| Arc::new(Queue::new(self.batch_calls))),
        };
        Ok(Tidegate { inner: Arc::new(inner) })
    }
}

impl Tidegate {
    /// Asks the daemon at an address, `http://HOST:PORT` or `unix:/PATH`, as [`Builder`] does unless told.
    pub fn new(address: impl Into<String>) -> Result<Self, BuildError> {
        Self::builder(address).build()
    }

    /// Begins to say how the daemon at an address is asked: `http://HOST:PORT` or `unix:/PATH`.
    pub fn builder(address: impl Into<String>) -> Builder {
        Builder {
            address: address.into(),
            timeout: Duration::from_millis(250),
            when_away: WhenAway::Open,
            domain: None,
            token: None,
            batch_calls: 0,
            connector: None,
        }
    }

    /// Decides one request, and charges it if it may pass.
    pub async fn check(&self, check: impl Into<Check>) -> Result<Decision, Error> {
        let mut check = check.into();
        self.inner.fill(&mut check.domain);
        let answer = match &self.inner.queue {
            None => self.inner.ask(Route::Check, &check).await,
            Some(queue) => match encode(&check) {
                Ok(body) => queue.check(&self.inner.transport, body).await,
                Err(failure) => Err(failure),
            },
        };
        self.inner.or_here(answer, check.cost)
    }

    /// Decides up to 1,000 requests in order, with one call.
    pub async fn check_many<C: Into<Check>>(
        &self,
        checks: impl IntoIterator<Item = C>,
    ) -> Result<Vec<Decision>, Error> {
        #[derive(Serialize)]
        struct Checks {
            checks: Vec<Check>,
        }
        let mut checks: Vec<Check> = checks.into_iter().map(Into::into).collect();
        checks.iter_mut().for_each(|check| self.inner.fill(&mut check.domain));
        let body = Checks { checks };
        match self.inner.ask(Route::Check, &body).await {
            Ok(Decisions { decisions }) => Ok(decisions),
            Err(Failure::Refused(refused)) => Err(refused.into()),
            Err(Failure::Away(away)) => {
                let here = body.checks.iter().map(|check| self.inner.policy.decide(check.cost, &away));
                Ok(here.collect::<Result<_, _>>()?)
            }
        }
    }

    /// Charges permits that were used already, in full, whatever is left.
    pub async fn report(&self, mut report: Report) -> Result<Decision, Error> {
        self.inner.fill(&mut report.domain);
        self.inner.tell(Route::Report, &report).await
    }

    /// Holds permits until they are committed or cancelled. Look at `decision.allowed`.
    pub async fn reserve(&self, reserve: impl Into<Reserve>) -> Result<Reservation, Error> {
        let mut reserve = reserve.into();
        self.inner.fill(&mut reserve.domain);
        let answer = self.inner.ask::<Held>(Route::Reserve, &reserve).await;
        self.inner.or_here(answer, signed(reserve.amount.unwrap_or(1))).map(Into::into)
    }

    /// Charges what was really used, and gives the rest back.
    pub async fn commit(&self, held: &Reservation, actual: u64) -> Result<Settled, Error> {
        #[derive(Serialize)]
        struct Commit<'a> {
            reservation: &'a str,
            actual: u64,
        }
        match &held.token {
            Some(reservation) => self.inner.tell(Route::Commit, &Commit { reservation, actual }).await,
            None => Ok(Settled::default()),
        }
    }

    /// Gives everything back.
    pub async fn cancel(&self, held: &Reservation) -> Result<Settled, Error> {
        #[derive(Serialize)]
        struct Cancel<'a> {
            reservation: &'a str,
        }
        match &held.token {
            Some(reservation) => self.inner.tell(Route::Cancel, &Cancel { reservation }).await,
            None => Ok(Settled::default()),
        }
    }

    /// Takes places of `concurrency` rules. Look at `decision.allowed`, and release what was taken:
    /// [`in_flight`](Tidegate::in_flight) does both.
    pub async fn acquire(&self, acquire: impl Into<Acquire>) -> Result<Lease, Error> {
        let mut acquire = acquire.into();
        self.inner.fill(&mut acquire.domain);
        let answer = self.inner.ask::<Held>(Route::Acquire, &acquire).await;
        self.inner.or_here(answer, signed(acquire.cost)).map(Into::into)
    }

    /// Holds the places for another `expires`. False: they are held no longer.
    pub async fn renew(&self, held: &Lease) -> Result<bool, Error> {
        match &held.token {
            Some(lease) => Ok(self.inner.tell::<Renewed>(Route::Renew, &Holder { lease }).await?.renewed),
            None => Ok(true),
        }
    }

    /// Gives the places back. False: not all of them were still held.
    pub async fn release(&self, held: &Lease) -> Result<bool, Error> {
        match &held.token {
            Some(lease) => Ok(self.inner.tell::<Released>(Route::Release, &Holder { lease }).await?.released),
            None => Ok(false),
        }
    }
}

#[derive(Serialize)]
struct Holder<'a> {
    lease: &'a str,
}

impl Inner {
    fn fill(&self, domain: &mut Option<String>) {
        if domain.is_none() {
            domain.clone_from(&self.domain);
        }
    }

    async fn ask<T: DeserializeOwned>(&self, route: Route, body: &impl Serialize) -> Result<T, Failure> {
        let answer = self.transport.call(route, encode(body)?).await?;
        self.transport.read(route, &answer)
    }

    /// Asks what nobody but a daemon can answer.
    async fn tell<T: DeserializeOwned>(&self, route: Route, body: &impl Serialize) -> Result<T, Error> {
        self.ask(route, body).await.map_err(|failure| match failure {
            Failure::Away(away) => away.into(),
            Failure::Refused(refused) => refused.into(),
        })
    }

    /// Decides in the daemon's place where it is away.
    fn or_here<T: From<Decision>>(&self, answer: Result<T, Failure>, cost: i64) -> Result<T, Error> {
        match answer {
            Ok(answer) => Ok(answer),
            Err(Failure::Refused(refused)) => Err(refused.into()),
            Err(Failure::Away(away)) => Ok(self.policy.decide(cost, &away)?.into()),
        }
    }
}

fn encode(body: &impl Serialize) -> Result<Vec<u8>, Failure> {
    serde_json::to_vec(body).map_err(|error| {
        Failure::Refused(Refused::unexpected(0, format!("the call cannot be written: {error}")))
    })
}

fn signed(cost: u64) -> i64 {
    i64::try_from(cost).unwrap_or(i64::MAX)
}
