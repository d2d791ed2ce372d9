//! Permits and places that are held while work is done, and given back however that ends: also where its
//! future is dropped.

use tokio::runtime::Handle;

use crate::answer::{Lease, Reservation};
use crate::client::Tidegate;
use crate::error::{Denied, Error};
use crate::request::{Acquire, Reserve};

/// The time for which a budget is held for a call, unless said.
const BUDGET_TTL: std::time::Duration = std::time::Duration::from_secs(120);

/// Places in flight, which are given back when this is dropped.
#[derive(Debug)]
#[must_use = "the places are given back when this is dropped"]
pub struct InFlight {
    client: Tidegate,
    /// `None` once they were given back.
    lease: Option<Lease>,
}

impl InFlight {
    /// Holds the places for another time. False: they are held no longer.
    pub async fn renew(&self) -> Result<bool, Error> {
        match &self.lease {
            Some(lease) => self.client.renew(lease).await,
            None => Ok(false),
        }
    }

    /// Gives the places back, and waits until it is done. False: not all of them were still held.
    pub async fn release(mut self) -> Result<bool, Error> {
        let Some(lease) = &self.lease else { return Ok(false) };
        let released = self.client.release(lease).await;
        // Places that could not be given back are free when their hold ends.
        self.lease = None;
        released
    }

    /// Returns what was taken.
    pub fn lease(&self) -> Option<&Lease> {
        self.lease.as_ref()
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let held = self.lease.take().filter(|lease| lease.token.is_some());
        if let (Some(lease), Ok(runtime)) = (held, Handle::try_current()) {
            let client = self.client.clone();
            runtime.spawn(async move { client.release(&lease).await });
        }
    }
}

impl Tidegate {
    /// Holds places of `concurrency` rules until the answer is dropped; fails with [`Error::Denied`] where
    /// there are none.
    pub async fn in_flight(&self, acquire: impl Into<Acquire>) -> Result<InFlight, Error> {
        let lease = self.acquire(acquire).await?;
        if !lease.decision.allowed {
            return Err(Denied::by(lease.decision).into());
        }
        Ok(InFlight { client: self.clone(), lease: Some(lease) })
    }

    /// Makes a call if the budget has room for its reservation, and charges what `used` reads from its
    /// result.
    ///
    /// [`Error::Denied`] comes before anything is spent; where its decision names something to use instead,
    /// ask again with that. A call that fails, or is dropped, gives its reservation back. A result that does
    /// not say what it used is charged the whole amount, so that nobody spends by leaving the usage out; the
    /// log says so. The reservation is held for two minutes unless it has a [`ttl`](Reserve::ttl).
    pub async fn within_budget<T, E, F>(
        &self,
        reserve: impl Into<Reserve>,
        call: impl FnOnce() -> F,
        used: impl FnOnce(&T) -> Option<u64>,
    ) -> Result<T, E>
    where
        F: Future<Output = Result<T, E>>,
        E: From<Error>,
    {
        let mut reserve = reserve.into();
        reserve.ttl.get_or_insert(BUDGET_TTL);
        let held = self.reserve(reserve).await?;
        if !held.decision.allowed {
            return Err(Error::from(Denied::by(held.decision)).into());
        }
        if held.decision.use_instead.is_some() {
            // The call is not made, so permits that other rules hold are given back.
            settle(self, &held, 0).await;
            return Err(Error::from(Denied::by(held.decision)).into());
        }
        let amount = held.amount();
        let mut budget = Budget { client: self.clone(), held: Some(held), spent: 0 };
        let result = call().await;
        if let Ok(result) = &result {
            // The call is paid already: should reading its usage panic, all of it is charged.
            budget.spent = amount;
            match used(result) {
                Some(spent) => budget.spent = spent,
                None => {
                    tracing::warn!(amount, "a call did not say what it used, so all that was held is charged")
                }
            }
        }
        budget.settle().await;
        result
    }
}

/// A reservation that is settled however its call ends. Nothing is spent until the call has succeeded.
struct Budget {
    client: Tidegate,
    held: Option<Reservation>,
    spent: u64,
}

impl Budget {
    async fn settle(mut self) {
        if let Some(held) = &self.held {
            settle(&self.client, held, self.spent).await;
        }
        self.held = None;
    }
}

impl Drop for Budget {
    fn drop(&mut self) {
        let held = self.held.take().filter(|held| held.token.is_some());
        if let (Some(held), Ok(runtime)) = (held, Handle::try_current()) {
            let (client, spent) = (self.client.clone(), self.spent);
            runtime.spawn(async move { settle(&client, &held, spent).await });
        }
    }
}

/// Commits, or says that the reservation lapses: the result of the call matters more.
async fn settle(client: &Tidegate, held: &Reservation, spent: u64) {
    let settled = client.commit(held, spent).await;
    if let (Err(error), true) = (settled, spent > 0) {
        tracing::warn!(spent, %error, "what a call used was not charged, its reservation lapses");
    }
}

/// Returns the tokens that a provider of language models counted in `usage`: their total, or input and output
/// added. `None` where a response says nothing of it.
pub fn total_tokens(response: &serde_json::Value) -> Option<u64> {
    let usage = response.get("usage")?;
    let read = |name: &str| usage.get(name).and_then(serde_json::Value::as_u64);
    read("total_tokens").or_else(|| {
        ["input_tokens", "output_tokens", "prompt_tokens", "completion_tokens"]
            .into_iter()
            .filter_map(read)
            .reduce(u64::saturating_add)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn usage_is_read_as_providers_write_it() {
        assert_eq!(total_tokens(&json!({"usage": {"total_tokens": 9, "input_tokens": 3}})), Some(9));
        assert_eq!(total_tokens(&json!({"usage": {"input_tokens": 3, "output_tokens": 4}})), Some(7));
        assert_eq!(total_tokens(&json!({"usage": {"prompt_tokens": 1, "completion_tokens": 2}})), Some(3));
        assert_eq!((total_tokens(&json!({})), total_tokens(&json!({"usage": null}))), (None, None));
    }
}
