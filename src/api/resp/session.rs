//! One client's commands: what it is told before it asks, and which command asks what.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;

use futures_util::future::join_all;
use metrics::Counter;

use super::parse::{Arguments, number};
use super::reply::{Answers, Protocol};
use super::{RespState, arity, cells, decisions, introduction, scripts};
use crate::api::Servers;
use crate::api::delivery::Deliveries;
use crate::core::cell::{Life, Operation, Reply};
use crate::engine::port::{Answer, CellsAway};

/// Longest name of a client, in bytes.
const NAME_BYTES_MAX: usize = 1_024;
/// Most bytes of arguments that are repeated in the answer to a command that nobody knows.
const REPEATED_MAX: usize = 128;

const NO_AUTH: &str = "NOAUTH Authentication required.";
const HELLO_FIRST: &str = "NOAUTH HELLO must be called with the client already authenticated, otherwise the \
    HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol \
    version at the same time";
const WRONG_PASS: &str = "WRONGPASS invalid username-password pair or user is disabled.";
const NO_PASSWORD: &str = "ERR AUTH <password> called without any password configured for the default user. \
    Are you sure your configuration is correct?";
const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";
const NOT_HTTP: &str = "ERR this is HTTP, and here is the Redis protocol: ask at listen.http";
const BAD_NAME: &str = "ERR Client names cannot contain spaces, newlines or special characters.";
const NO_SCRIPTS: &str = "ERR Unknown Redis command called from script: scripts are not run here, but for \
    return redis.call('cl.throttle',KEYS[1],ARGV[1],ARGV[2],ARGV[3],ARGV[4])";
const NOT_A_COMMAND_OF_OURS: &str = "ERR unknown command 'THROTTLE': use CL.THROTTLE, which answers in another order and whose limit is max_burst + 1";

/// The counts of commands that were answered, by kind.
#[derive(Debug)]
pub(super) struct CommandCounters {
    throttle: Counter,
    increx: Counter,
    decision: Counter,
    other: Counter,
    error: Counter,
}

impl CommandCounters {
    pub(super) fn new(metrics: &crate::telemetry::Metrics) -> Self {
        let counter = |kind| metrics.counter("resp_commands_total", "command", kind);
        Self {
            throttle: counter("throttle"),
            increx: counter("increx"),
            decision: counter("decision"),
            other: counter("other"),
            error: counter("error"),
        }
    }
}

/// The fate of the connection after an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// It does.
    GoOn,
    /// It ends once the answer is sent.
    Close,
}

/// One connection's state.
pub(super) struct Session<'s> {
    servers: &'s Servers,
    state: &'s RespState,
    id: i64,
    name: Vec<u8>,
    authenticated: bool,
    /// The answers that gave something, until their client has them.
    pub(super) deliveries: &'s Arc<Deliveries>,
    /// Answers that wait to be sent.
    pub(super) answers: Answers,
}

/// An answer that is an error, or none, where the command has written its own.
type Done = Result<(), Cow<'static, str>>;

impl<'s> Session<'s> {
    pub(super) fn new(
        servers: &'s Servers,
        state: &'s RespState,
        id: i64,
        deliveries: &'s Arc<Deliveries>,
    ) -> Self {
        let answers = Answers { bytes: Vec::new(), protocol: Protocol::Two };
        let authenticated = state.passwords.is_empty();
        Self { servers, state, id, name: Vec::new(), authenticated, deliveries, answers }
    }

    /// Answers a call on a key whose store answers at once. False: it is another command, or has to be waited
    /// for.
    pub(super) fn answer_at_once(&mut self, command: &Arguments<'_>) -> bool {
        let Some(call) = cells::call(command).filter(|_| self.authenticated) else { return false };
        let done = match call {
            Ok((key, operation)) => match self.state.cells.apply(&key, &operation) {
                Answer::Now(applied) => {
                    applied.map_err(away).map(|reply| cells::answer(&mut self.answers, &reply, None))
                }
                // Nothing of it was begun.
                Answer::Later(_) => return false,
            },
            Err(wrong) => Err(wrong),
        };
        self.count_cell(command);
        self.finish(done);
        true
    }

    /// Returns which commands are answered together with this one, where they arrived together.
    pub(super) fn alike(&self, command: &Arguments<'_>) -> Option<fn(&Arguments<'_>) -> bool> {
        let kinds: [fn(&Arguments<'_>) -> bool; 2] =
            [decisions::is_check, |command| cells::call(command).is_some()];
        kinds.into_iter().find(|is_alike| self.authenticated && is_alike(command))
    }

    /// Answers commands that are alike and arrived together, each in its place.
    pub(super) async fn answer_together(&mut self, commands: &[Arguments<'_>]) {
        if commands.first().is_some_and(decisions::is_check) {
            self.state.counters.decision.increment(u64::try_from(commands.len()).unwrap_or(u64::MAX));
            let wrong = decisions::checks(self.servers, commands, &mut self.answers).await;
            self.state.counters.error.increment(wrong);
            return;
        }
        commands.iter().for_each(|command| self.count_cell(command));
        let calls: Vec<_> = commands.iter().filter_map(|command| cells::call(command)).collect();
        let mut rest = &calls[..];
        while !rest.is_empty() {
            // Calls of one key go one after the other.
            let mut keys = HashSet::new();
            let first_of_keys = rest.iter().take_while(|call| match call {
                Ok((key, _)) => keys.insert(&**key),
                Err(_) => true,
            });
            let (now, later) = rest.split_at(first_of_keys.count());
            let mut asked = Vec::with_capacity(now.len());
            for call in now {
                asked.push(self.apply_call(call));
            }
            for reply in join_all(asked).await {
                let done = reply.map(|reply| cells::answer(&mut self.answers, &reply, None));
                self.finish(done);
            }
            rest = later;
        }
    }

    fn count_cell(&self, command: &Arguments<'_>) {
        let counters = &self.state.counters;
        let counter = if is(command.first(), "INCREX") { &counters.increx } else { &counters.throttle };
        counter.increment(1);
    }

    /// Answers one command.
    pub(super) async fn answer(&mut self, command: &Arguments<'_>) -> Next {
        let Some((name, words)) = command.split_first() else { return Next::GoOn };
        let upper = name.to_ascii_uppercase();
        // A page may have a browser send HTTP here, with commands in its body. Redis ends these, too.
        if matches!(&upper[..], b"POST" | b"HOST:") {
            self.finish(Err(NOT_HTTP.into()));
            return Next::Close;
        }
        if !self.authenticated && !matches!(&upper[..], b"AUTH" | b"HELLO" | b"QUIT" | b"RESET") {
            self.finish(Err(NO_AUTH.into()));
            return Next::GoOn;
        }
        let counters = &self.state.counters;
        match &upper[..] {
            kind if kind.starts_with(b"TG.") => counters.decision.increment(1),
            _ => counters.other.increment(1),
        }
        let done = match &upper[..] {
            b"QUIT" => {
                self.answers.simple("OK");
                return Next::Close;
            }
            b"TG.RESERVE" => {
                decisions::reserve(self.servers, self.deliveries, words, &mut self.answers).await
            }
            b"TG.COMMIT" => decisions::commit(self.servers, words, &mut self.answers).await,
            b"TG.CANCEL" => decisions::cancel(self.servers, words, &mut self.answers).await,
            b"DEL" | b"UNLINK" => self.count_keys(words, "del", Operation::Delete).await,
            b"EXISTS" => self.count_keys(words, "exists", Operation::Look).await,
            b"GET" => self.get(words).await,
            b"TTL" => self.left(words, "ttl", 1_000_000_000).await,
            b"PTTL" => self.left(words, "pttl", 1_000_000).await,
            b"EVAL" | b"EVAL_RO" => self.eval(words).await,
            b"EVALSHA" | b"EVALSHA_RO" => self.eval_sum(words).await,
            _ => self.introduce(&upper, name, words),
        };
        self.finish(done);
        Next::GoOn
    }

    fn finish(&mut self, done: Done) {
        if let Err(error) = done {
            self.state.counters.error.increment(1);
            self.answers.error(&error);
        }
    }

    async fn apply(&self, key: &[u8], operation: &Operation) -> Result<Reply, Cow<'static, str>> {
        self.state.cells.apply(&cells::cell_name(key), operation).get().await.map_err(away)
    }

    async fn apply_call(&self, call: &cells::CellCall<'_>) -> Result<Reply, Cow<'static, str>> {
        match call {
            Ok((key, operation)) => self.apply(key, operation).await,
            Err(wrong) => Err(wrong.clone()),
        }
    }

    async fn throttle(&mut self, words: &[Cow<'_, [u8]>], only: Option<usize>) -> Done {
        let Some((key, numbers)) = words.split_first() else { return cells::throttle(&[]).map(|_| ()) };
        let operation = cells::throttle(numbers)?;
        let reply = self.apply(key, &operation).await?;
        cells::answer(&mut self.answers, &reply, only);
        Ok(())
    }

    async fn get(&mut self, words: &[Cow<'_, [u8]>]) -> Done {
        let [key] = words else { return Err(arity("get")) };
        let reply = self.apply(key, &Operation::Look).await?;
        cells::answer(&mut self.answers, &reply, None);
        Ok(())
    }

    /// Looks at keys, or frees them; answers how many there were.
    async fn count_keys(&mut self, keys: &[Cow<'_, [u8]>], name: &str, operation: Operation) -> Done {
        if keys.is_empty() {
            return Err(arity(name));
        }
        let mut found = 0;
        for key in keys {
            found += i64::from(matches!(self.apply(key, &operation).await?, Reply::Seen(Some(_))));
        }
        self.answers.integer(found);
        Ok(())
    }

    /// Returns how long a key is kept, in this unit of nanoseconds.
    async fn left(&mut self, words: &[Cow<'_, [u8]>], name: &str, unit: i64) -> Done {
        let [key] = words else { return Err(arity(name)) };
        let left = match self.apply(key, &Operation::Life).await? {
            Reply::Life(Life::Ends(left)) => left.saturating_add(unit / 2) / unit,
            Reply::Life(Life::Unending) => -1,
            _ => -2,
        };
        self.answers.integer(left);
        Ok(())
    }

    async fn eval(&mut self, words: &[Cow<'_, [u8]>]) -> Done {
        let (text, rest) = words.split_first().ok_or_else(|| arity("eval"))?;
        let script = scripts::read(text).ok_or(NO_SCRIPTS)?;
        self.state.scripts.keep(text, script);
        self.run(script, rest).await
    }

    async fn eval_sum(&mut self, words: &[Cow<'_, [u8]>]) -> Done {
        let (sum, rest) = words.split_first().ok_or_else(|| arity("evalsha"))?;
        let script = self.state.scripts.find(sum).ok_or("NOSCRIPT No matching script. Please use EVAL.")?;
        self.run(script, rest).await
    }

    /// Calls the command that a script of the known form calls.
    async fn run(&mut self, script: scripts::ThrottleScript, words: &[Cow<'_, [u8]>]) -> Done {
        let (keys, rest) = words.split_first().ok_or_else(|| arity("eval"))?;
        if number(keys) != Some(1) {
            return Err("ERR this script has one key".into());
        }
        let called = rest.get(..=script.arguments).ok_or("ERR this script has too few arguments")?;
        self.throttle(called, script.only).await
    }

    /// Commands by which clients introduce themselves, and look around.
    fn introduce(&mut self, upper: &[u8], name: &[u8], words: &[Cow<'_, [u8]>]) -> Done {
        match upper {
            b"PING" => match words {
                [] => self.answers.simple("PONG"),
                [text] => self.answers.bulk(text),
                _ => return Err(arity("ping")),
            },
            b"ECHO" => match words {
                [text] => self.answers.bulk(text),
                _ => return Err(arity("echo")),
            },
            b"HELLO" => return self.hello(words),
            b"AUTH" => {
                self.auth(words)?;
                self.answers.simple("OK");
            }
            b"RESET" => {
                self.name.clear();
                self.authenticated = self.state.passwords.is_empty();
                self.answers.protocol = Protocol::Two;
                self.answers.simple("RESET");
            }
            b"SELECT" => match words {
                [place] => match number(place) {
                    Some(0) => self.answers.simple("OK"),
                    Some(_) => return Err("ERR DB index is out of range".into()),
                    None => return Err(NOT_AN_INTEGER.into()),
                },
                _ => return Err(arity("select")),
            },
            b"CLIENT" => return self.client(words),
            b"SCRIPT" => return self.script(words),
            b"INFO" => introduction::info(&mut self.answers),
            b"COMMAND" => introduction::command(&mut self.answers, words),
            b"CONFIG" if is(words.first(), "GET") => {
                introduction::settings(&mut self.answers, words.get(1..).unwrap_or_default());
            }
            b"MODULE" if is(words.first(), "LIST") => introduction::modules(&mut self.answers),
            b"CLUSTER" | b"READONLY" | b"READWRITE" => {
                return Err("ERR This instance has cluster support disabled".into());
            }
            b"THROTTLE" => return Err(NOT_A_COMMAND_OF_OURS.into()),
            _ => return Err(unknown(name, words)),
        }
        Ok(())
    }

    fn auth(&mut self, words: &[Cow<'_, [u8]>]) -> Done {
        let password = match words {
            [_] if self.state.passwords.is_empty() => return Err(NO_PASSWORD.into()),
            [password] => password,
            [user, _] if self.state.passwords.is_empty() => {
                return if &user[..] == b"default" { Ok(()) } else { Err(WRONG_PASS.into()) };
            }
            // A client names a user because its library does: the password alone decides.
            [_, password] => password,
            _ => return Err(arity("auth")),
        };
        if !self.state.passwords.knows(password) {
            return Err(WRONG_PASS.into());
        }
        self.authenticated = true;
        Ok(())
    }

    fn hello(&mut self, words: &[Cow<'_, [u8]>]) -> Done {
        let mut protocol = self.answers.protocol;
        let mut rest = words.iter();
        if let Some(version) = rest.next() {
            protocol = match number(version) {
                Some(2) => Protocol::Two,
                Some(3) => Protocol::Three,
                Some(_) => return Err("NOPROTO unsupported protocol version".into()),
                None => return Err("ERR Protocol version is not an integer or out of range".into()),
            };
        }
        let mut name = None;
        while let Some(option) = rest.next() {
            if option.eq_ignore_ascii_case(b"AUTH") {
                let (Some(user), Some(password)) = (rest.next(), rest.next()) else {
                    return Err(hello_syntax(option));
                };
                self.auth(&[Cow::Borrowed(user.as_ref()), Cow::Borrowed(password.as_ref())])?;
            } else if option.eq_ignore_ascii_case(b"SETNAME") {
                name = Some(rest.next().ok_or_else(|| hello_syntax(option))?);
            } else {
                return Err(hello_syntax(option));
            }
        }
        if !self.authenticated {
            return Err(HELLO_FIRST.into());
        }
        if let Some(name) = name {
            self.set_name(name)?;
        }
        self.answers.protocol = protocol;
        introduction::hello(&mut self.answers, self.id);
        Ok(())
    }

    fn set_name(&mut self, name: &[u8]) -> Done {
        if name.len() > NAME_BYTES_MAX || !name.iter().all(|byte| (b'!'..=b'~').contains(byte)) {
            return Err(BAD_NAME.into());
        }
        self.name = name.to_vec();
        Ok(())
    }

    fn client(&mut self, words: &[Cow<'_, [u8]>]) -> Done {
        let (sub, rest) = words.split_first().ok_or_else(|| arity("client"))?;
        match &sub.to_ascii_uppercase()[..] {
            b"SETNAME" => match rest {
                [name] => {
                    self.set_name(name)?;
                    self.answers.simple("OK");
                }
                _ => return Err(arity("client|setname")),
            },
            b"GETNAME" if self.name.is_empty() => self.answers.null(),
            b"GETNAME" => self.answers.bulk(&self.name),
            b"ID" => self.answers.integer(self.id),
            b"SETINFO" | b"NO-EVICT" | b"NO-TOUCH" => self.answers.simple("OK"),
            b"INFO" => {
                let name = String::from_utf8_lossy(&self.name).into_owned();
                let (id, protocol) = (self.id, self.answers.protocol.number());
                self.answers.bulk(format!("id={id} name={name} db=0 resp={protocol}\n").as_bytes());
            }
            _ => return Err(unknown_sub(sub, "CLIENT")),
        }
        Ok(())
    }

    fn script(&mut self, words: &[Cow<'_, [u8]>]) -> Done {
        match words {
            [sub, text] if sub.eq_ignore_ascii_case(b"LOAD") => {
                let script = scripts::read(text).ok_or(NO_SCRIPTS)?;
                let sum = self.state.scripts.keep(text, script);
                self.answers.bulk(sum.as_bytes());
            }
            [sub, sums @ ..] if sub.eq_ignore_ascii_case(b"EXISTS") => {
                self.answers.array(sums.len());
                for sum in sums {
                    self.answers.integer(i64::from(self.state.scripts.find(sum).is_some()));
                }
            }
            [sub, ..] => return Err(unknown_sub(sub, "SCRIPT")),
            [] => return Err(arity("script")),
        }
        Ok(())
    }
}

fn is(word: Option<&Cow<'_, [u8]>>, name: &str) -> bool {
    word.is_some_and(|word| word.eq_ignore_ascii_case(name.as_bytes()))
}

fn away(away: CellsAway) -> Cow<'static, str> {
    format!("TRYAGAIN {away}").into()
}

fn hello_syntax(option: &[u8]) -> Cow<'static, str> {
    format!("ERR Syntax error in HELLO option '{}'", String::from_utf8_lossy(option)).into()
}

fn unknown_sub(sub: &[u8], command: &str) -> Cow<'static, str> {
    let sub: String = String::from_utf8_lossy(sub).chars().take(REPEATED_MAX).collect();
    format!("ERR unknown subcommand '{sub}'. Try {command} HELP.").into()
}

/// The answer to a command that nobody knows: its beginning, as Redis gives it.
fn unknown(name: &[u8], words: &[Cow<'_, [u8]>]) -> Cow<'static, str> {
    let name: String = String::from_utf8_lossy(name).chars().take(REPEATED_MAX).collect();
    let mut repeated = String::new();
    for word in words {
        let left = REPEATED_MAX.saturating_sub(repeated.len());
        if left == 0 {
            break;
        }
        let word: String = String::from_utf8_lossy(word).chars().take(left).collect();
        repeated.push_str(&format!("'{word}' "));
    }
    format!("ERR unknown command '{name}', with args beginning with: {repeated}").into()
}
