//! One stream of quotas: reports come, assignments go.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use h2::{RecvStream, SendStream};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Response};
use percent_encoding::utf8_percent_encode;
use tokio::time::{sleep, timeout};

use super::super::answer::PREFIX_BYTES;
use super::super::{GRPC, GRPC_MESSAGE, GRPC_STATUS, OwnCall, Respond, Way};
use super::receipts::{Receipt, Receipts};
use super::wire::{BucketAction, PAIRS_MAX, Row, Strategy, decode, encode};
use super::{StreamPlace, charge, name_of, question_of};
use crate::api::Servers;
use crate::api::client_identity::ClientIdentity;
use crate::api::connection::Held;
use crate::api::error::{Code, Refusal};
use crate::api::unsent_bytes::CountedWriter;
use crate::core::quota_assignments::{Assignment, QuotaTerms, RECEIPT_WITHIN, RightsLeft, TTL};
use crate::core::time::{Span, Timestamp};
use crate::engine::assignable::Assignable;

/// Buckets of one stream.
const BUCKETS_MAX: usize = 10_000;
/// Most bytes of a bucket's id, which is kept as it came.
const ID_BYTES_MAX: usize = 1_024;
/// A bucket that nobody asked for so long is forgotten at both ends.
const IDLE: Span = Span::from_secs(180);
/// Longest time of a stream between two looks at what is due.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Least time between two such looks.
const LOOK_LEAST: Duration = Duration::from_millis(100);
/// Actions of one message.
const ACTIONS_MAX: usize = 1_000;
/// How long rules that do not limit a bucket are believed.
const UNLIMITED_S: u32 = 60;

/// A bucket as one stream knows it.
struct OwnBucket {
    /// The id as the gateway writes it.
    id: Bytes,
    /// When it was last asked for.
    asked: Timestamp,
    /// True while the gateway has a blanket rule of it, which nothing is taken for.
    is_blanket: bool,
}

/// Why a stream ends.
enum StreamEnd {
    /// The gateway or its connection ended it.
    Ended,
    /// A receipt was not known in time.
    NoReceipt,
    /// The gateway sent what is no report.
    Refused(Refusal),
}

struct QuotaStream {
    servers: Arc<Servers>,
    way: Way,
    receipts: Arc<Receipts>,
    id: u64,
    domain: Option<Box<str>>,
    buckets: HashMap<Arc<[u8]>, OwnBucket>,
    /// The newest proof of what was read.
    receipt: Option<Receipt>,
    looked: Timestamp,
}

/// Messages of gRPC, as they arrive.
struct IncomingReports {
    body: RecvStream,
    gathered: BytesMut,
    held: Held,
}

impl IncomingReports {
    /// The next message without its prefix; `None` at the end.
    async fn next(&mut self, bytes_max: usize) -> Option<Result<Bytes, Refusal>> {
        loop {
            if let Some(&[flag, a, b, c, d]) = self.gathered.get(..PREFIX_BYTES) {
                let len = usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap_or(usize::MAX);
                if flag != 0 {
                    let sentence = "compressed messages are not read";
                    return Some(Err(Refusal::new(Code::Unimplemented, sentence)));
                }
                if len > bytes_max {
                    let sentence = format!("a report has at most {bytes_max} bytes, this one {len}");
                    return Some(Err(Refusal::new(Code::TooLarge, sentence)));
                }
                if self.gathered.len() - PREFIX_BYTES >= len {
                    self.gathered.advance(PREFIX_BYTES);
                    let message = self.gathered.split_to(len).freeze();
                    if self.gathered.is_empty() {
                        // The room of the longest message would stay for as long as the stream does.
                        self.gathered = BytesMut::new();
                    }
                    return Some(Ok(message));
                }
            }
            let part = poll_fn(|cx| self.body.poll_data(cx)).await?.ok()?;
            // Fails only where the stream is gone, which the next poll tells.
            let _ = self.body.flow_control().release_capacity(part.len());
            if !self.held.grow(part.len()) {
                return Some(Err(Refusal::new(Code::Overloaded, "too many bytes of reports wait")));
            }
            self.gathered.extend_from_slice(&part);
        }
    }
}

/// Serves one stream until its gateway ends it, it cannot be told any more what is assigned, or the daemon
/// drains.
pub(in crate::api::rls) async fn serve(
    call: OwnCall,
    receipts: Arc<Receipts>,
    body: RecvStream,
    mut respond: Respond,
    place: StreamPlace,
) {
    let OwnCall { servers, closing, way, .. } = call;
    let mut head = Response::new(());
    head.headers_mut().insert(CONTENT_TYPE, GRPC);
    let Ok(mut answers) = respond.send_response(head, false) else { return };
    let mut newest = receipts.follow();
    let looked = servers.engine.now();
    let held = servers.rls.budget.hold();
    let mut incoming = IncomingReports { body, gathered: BytesMut::new(), held };
    let mut stream = QuotaStream {
        servers,
        way,
        receipts,
        id: place.id,
        domain: None,
        buckets: HashMap::new(),
        receipt: None,
        looked,
    };
    let end = loop {
        let bytes_max = stream.servers.settings().body_bytes_max;
        let pause = stream.pause();
        let actions = tokio::select! {
            biased;
            _ = poll_fn(|cx| answers.poll_reset(cx)) => break StreamEnd::Ended,
            () = closing.cancelled() => break StreamEnd::Ended,
            changed = newest.changed() => {
                if changed.is_err() {
                    break StreamEnd::Ended;
                }
                let receipt = *newest.borrow_and_update();
                stream.received(receipt);
                continue;
            }
            message = incoming.next(bytes_max) => match message {
                None => break StreamEnd::Ended,
                Some(Err(refusal)) => break StreamEnd::Refused(refusal),
                Some(Ok(message)) => {
                    incoming.held = stream.servers.rls.budget.hold();
                    match stream.reported(&message).await {
                        Ok(actions) => actions,
                        Err(refusal) => break StreamEnd::Refused(refusal),
                    }
                }
            },
            () = sleep(pause) => match stream.look().await {
                Some(actions) => actions,
                None => break StreamEnd::NoReceipt,
            },
        };
        if let Err(end) = stream.send(&mut answers, actions).await {
            break end;
        }
    };
    stream.end();
    let [ended, receipt, refused] = &stream.servers.quotas.metrics.lost;
    match end {
        StreamEnd::Ended => {
            ended.increment(1);
            answers.send_reset(h2::Reason::CANCEL);
        }
        StreamEnd::NoReceipt => {
            receipt.increment(1);
            answers.send_reset(h2::Reason::CANCEL);
        }
        StreamEnd::Refused(refusal) => {
            refused.increment(1);
            stream.servers.rls.rejected.increment(1);
            let _ = answers.send_trailers(trailers(&refusal));
        }
    }
}

fn trailers(refusal: &Refusal) -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(2);
    trailers.insert(&GRPC_STATUS, HeaderValue::from(u16::from(refusal.grpc_status())));
    let text = utf8_percent_encode(&refusal.message, GRPC_MESSAGE).to_string();
    if let Ok(text) = HeaderValue::try_from(text) {
        trailers.insert("grpc-message", text);
    }
    trailers
}

impl QuotaStream {
    /// How long until something is due.
    fn pause(&self) -> Duration {
        if self.buckets.is_empty() {
            return LOOK_EVERY;
        }
        let now = self.servers.engine.now();
        let mut table = self.servers.quotas.table();
        let due = |name: &Arc<[u8]>| table.get(name)?.due(self.id, self.looked);
        let due = self.buckets.keys().filter_map(due).min();
        let until = due.map_or(LOOK_EVERY, |due| due.since(now).to_std());
        until.clamp(LOOK_LEAST, LOOK_EVERY)
    }

    /// Notes a proof that the connection was read.
    fn received(&mut self, receipt: Option<Receipt>) {
        self.receipt = receipt;
        let Some(receipt) = receipt else { return };
        let mut table = self.servers.quotas.table();
        for name in self.buckets.keys() {
            if let Some(bucket) = table.get(name) {
                bucket.received(self.id, receipt.pinged, receipt.known);
            }
        }
    }

    /// Reads a report. Returns what the gateway is told.
    async fn reported(&mut self, message: &[u8]) -> Result<Vec<ToldAction>, Refusal> {
        let reports = decode(message)?;
        match &self.domain {
            None if reports.domain.is_empty() => {
                return Err(Refusal::of_field("domain".to_owned(), "a report names a domain"));
            }
            None => self.domain = Some(reports.domain.into()),
            Some(domain) if reports.domain.is_empty() || **domain == *reports.domain => {}
            Some(_) => {
                let sentence = "a stream keeps to the domain of its first report";
                return Err(Refusal::of_field("domain".to_owned(), sentence));
            }
        }
        let domain = self.domain.clone().unwrap_or_default();
        let mut actions = Vec::new();
        for row in &reports.rows {
            actions.extend(self.row(&domain, row).await);
        }
        Ok(actions)
    }

    async fn row(&mut self, domain: &str, row: &Row<'_>) -> Option<ToldAction> {
        let now = self.servers.engine.now();
        let name = name_of(domain, &row.pairs);
        let is_asked = row.usage.allowed > 0 || row.usage.denied > 0;
        if !self.buckets.contains_key(&name) {
            let too_long = row.id.len() > ID_BYTES_MAX || row.pairs.len() > PAIRS_MAX;
            let has_room = self.buckets.len() < BUCKETS_MAX && !too_long;
            if !has_room || self.servers.quotas.table().join(self.id, &name, now).is_err() {
                let [_, full, _] = &self.servers.quotas.metrics.refused;
                full.increment(1);
                let strategy = if is_asked { Strategy::Deny } else { Strategy::Abandon };
                return Some(ToldAction::blanket(
                    Bytes::copy_from_slice(row.id),
                    strategy,
                    whole_seconds(TTL),
                ));
            }
            let own = OwnBucket { id: Bytes::copy_from_slice(row.id), asked: now, is_blanket: false };
            self.buckets.insert(Arc::clone(&name), own);
        }
        let own = self.buckets.get_mut(&name)?;
        if is_asked {
            own.asked = now;
        } else if now.since(own.asked) >= IDLE {
            let id = own.id.clone();
            self.forget(&name, now);
            return Some(ToldAction::blanket(id, Strategy::Abandon, 0));
        }
        // After the answer to a PING everything is written later than the PING was sent.
        let anchor = self.receipt.map(|receipt| receipt.pinged);
        if let Some(bucket) = self.servers.quotas.table().get(&name) {
            bucket.report(self.id, row.usage, anchor, now);
        }
        self.assign(&name).await
    }

    fn forget(&mut self, name: &Arc<[u8]>, now: Timestamp) {
        if let Some(own) = self.buckets.remove(name) {
            let mut table = self.servers.quotas.table();
            if !own.is_blanket {
                table.leave(self.id, name, now);
            }
            self.servers.quotas.count_buckets(&table);
        }
    }

    /// Does what is due by itself; `None` where a receipt is overdue.
    async fn look(&mut self) -> Option<Vec<ToldAction>> {
        let now = self.servers.engine.now();
        let before = std::mem::replace(&mut self.looked, now);
        let mut due = Vec::new();
        let mut awaits = false;
        {
            let mut table = self.servers.quotas.table();
            for name in self.buckets.keys() {
                let Some(bucket) = table.get(name) else { continue };
                if bucket.is_overdue(self.id, now) {
                    return None;
                }
                // Also what is in force: reports are worth more the later they were surely written.
                awaits |= bucket.awaits_receipt(self.id) || bucket.ends().is_some();
                if bucket.due(self.id, before).is_some_and(|due| due <= now) {
                    due.push(Arc::clone(name));
                }
            }
        }
        if awaits {
            self.receipts.want();
        }
        let mut actions = Vec::new();
        for name in due {
            actions.extend(self.assign(&name).await);
        }
        Some(actions)
    }

    /// Works out what the gateway is told of one bucket, and takes its permits.
    async fn assign(&mut self, name: &Arc<[u8]>) -> Option<ToldAction> {
        let servers = Arc::clone(&self.servers);
        let questions = question_of(name);
        let identity = ClientIdentity::read(&servers, &questions);
        let questions = identity.put(questions);
        let question = questions.first()?;
        let metrics = &servers.quotas.metrics;
        let [of_rule, _, of_store] = &metrics.refused;
        match servers.engine.rights_left(question).await {
            Assignable::Left(left) => {
                self.end_blanket(name)?;
                self.assign_rights(&servers, question, name, left).await
            }
            Assignable::Unlimited => self.blanket(name, Strategy::Allow, UNLIMITED_S),
            Assignable::Denied => self.blanket(name, Strategy::Deny, whole_seconds(TTL)),
            Assignable::Unassignable { rule, why } => {
                if !self.buckets.get(name)?.is_blanket {
                    tracing::warn!(
                        rule = &*rule,
                        why,
                        "a gateway is denied everything: this rule's permits cannot be assigned"
                    );
                }
                of_rule.increment(1);
                self.blanket(name, Strategy::Deny, whole_seconds(TTL))
            }
            Assignable::Unknown => {
                of_store.increment(1);
                None
            }
        }
    }

    /// A blanket rule takes the place of an assignment, which stays spent.
    fn blanket(&mut self, name: &Arc<[u8]>, strategy: Strategy, ttl_s: u32) -> Option<ToldAction> {
        let own = self.buckets.get_mut(name)?;
        if !std::mem::replace(&mut own.is_blanket, true) {
            let now = self.servers.engine.now();
            self.servers.quotas.table().leave(self.id, name, now);
        }
        Some(ToldAction::blanket(own.id.clone(), strategy, ttl_s))
    }

    fn end_blanket(&mut self, name: &Arc<[u8]>) -> Option<()> {
        let own = self.buckets.get_mut(name)?;
        if own.is_blanket {
            self.servers.quotas.table().join(self.id, name, self.servers.engine.now()).ok()?;
            own.is_blanket = false;
        }
        Some(())
    }

    async fn assign_rights(
        &self,
        servers: &Servers,
        question: &crate::core::request::Request<'_>,
        name: &Arc<[u8]>,
        left: RightsLeft,
    ) -> Option<ToldAction> {
        let now = servers.engine.now();
        let forced = servers.quotas.table().enter(name, left.ends, now);
        charge(servers, name, forced).await;
        let mut plan = servers.quotas.table().get(name)?.plan(self.id, left, now)?;
        let wish = match plan.wish {
            // Refused where there is still not as much: by that the other regions hear of the need.
            Some(wish) => servers.engine.take_rights(question, wish).await.then_some(wish),
            None => None,
        };
        plan.take = wish.unwrap_or(plan.take);
        let taken = wish.is_some() || plan.take == 0 || servers.engine.take_rights(question, plan.take).await;
        if taken {
            servers.quotas.metrics.taken.increment(plan.take);
        }
        let now = servers.engine.now();
        let assignment = {
            let mut table = servers.quotas.table();
            servers.quotas.count_buckets(&table);
            table.get(name)?.assign(self.id, plan, taken, now)?
        };
        let Assignment { terms, ttl_s, is_fresh } = assignment;
        let strategy = match terms {
            QuotaTerms::DENY => Strategy::Deny,
            _ if is_fresh => Strategy::Fresh(terms),
            _ => Strategy::Bucket(terms),
        };
        let id = self.buckets.get(name)?.id.clone();
        Some(ToldAction { name: Some(Arc::clone(name)), action: BucketAction { id, strategy, ttl_s } })
    }

    /// Sends what the gateway is told, and asks for its receipt.
    async fn send(
        &self,
        answers: &mut SendStream<CountedWriter>,
        told: Vec<ToldAction>,
    ) -> Result<(), StreamEnd> {
        let [tokens, deny, allow, abandon] = &self.servers.quotas.metrics.actions;
        let mut told = told.into_iter().peekable();
        while told.peek().is_some() {
            let (mut names, mut actions) = (Vec::new(), Vec::new());
            for ToldAction { name, action } in told.by_ref().take(ACTIONS_MAX) {
                let counter = match action.strategy {
                    Strategy::Bucket(_) | Strategy::Fresh(_) => tokens,
                    Strategy::Deny => deny,
                    Strategy::Allow => allow,
                    Strategy::Abandon => abandon,
                };
                counter.increment(1);
                names.extend(name);
                actions.push(action);
            }
            let written = self.write(answers, encode(&actions));
            match timeout(RECEIPT_WITHIN.to_std(), written).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return Err(StreamEnd::Ended),
                Err(_) => return Err(StreamEnd::NoReceipt),
            }
            if names.is_empty() {
                continue;
            }
            {
                let (now, mut table) = (self.servers.engine.now(), self.servers.quotas.table());
                for name in &names {
                    if let Some(bucket) = table.get(name) {
                        bucket.written(self.id, now);
                    }
                }
            }
            self.receipts.want();
        }
        Ok(())
    }

    /// Gives bytes to the connection as the client makes room for them.
    async fn write(
        &self,
        answers: &mut SendStream<CountedWriter>,
        mut bytes: Bytes,
    ) -> Result<(), h2::Error> {
        while !bytes.is_empty() {
            answers.reserve_capacity(bytes.len());
            let room = poll_fn(|cx| answers.poll_capacity(cx)).await;
            let room = room.ok_or(h2::Error::from(h2::Reason::CANCEL))??;
            let part = bytes.split_to(room.min(bytes.len()));
            answers.send_data(CountedWriter::new(part, &self.way.unsent), false)?;
        }
        Ok(())
    }

    /// Leaves all buckets. What was assigned of them stays spent.
    fn end(&self) {
        let now = self.servers.engine.now();
        let mut table = self.servers.quotas.table();
        for (name, own) in &self.buckets {
            if !own.is_blanket {
                table.leave(self.id, name, now);
            }
        }
        self.servers.quotas.count_buckets(&table);
    }
}

/// What a gateway is told of one bucket; `name` where that is an assignment whose receipt counts.
struct ToldAction {
    name: Option<Arc<[u8]>>,
    action: BucketAction,
}

impl ToldAction {
    const fn blanket(id: Bytes, strategy: Strategy, ttl_s: u32) -> Self {
        Self { name: None, action: BucketAction { id, strategy, ttl_s } }
    }
}

fn whole_seconds(span: Span) -> u32 {
    u32::try_from(span.secs_up()).unwrap_or(u32::MAX)
}
