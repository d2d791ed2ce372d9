/**
 * The daemon refused the call itself: a mistake in it, or a right that the caller lacks. Also where something else
 * than a daemon answers: `code` is "unexpected" then. It is thrown whatever `whenAway` says: no mistake lets pass.
 */
export class TidegateError extends Error {
  constructor(status, code, message, field) {
    super(field ? `${message} (at ${field})` : message);
    this.name = "TidegateError";
    Object.assign(this, { status, code, field });
  }
}

/** No daemon answered in time, and the client was told to throw, or nothing may be made up for this call. */
export class Away extends Error {
  constructor(route, cause) {
    super(`${route} was not answered: ${cause?.message ?? cause}`, { cause });
    this.name = "Away";
  }
}

/** A request may not pass, or is to use something else (`decision.use`). Nothing was charged for it. */
export class Denied extends Error {
  constructor(decision) {
    const text = decision.message ?? `${decision.rule ?? "a limit"} is used up`;
    super(decision.use === undefined ? text : `${text}; use ${decision.use} instead`);
    this.name = "Denied";
    this.decision = decision;
  }
}

/** Lets `limit` of cost pass in each `windowMs` while no daemon answers: this process's own share, in one bucket. */
export function localShare(limit, windowMs, now = () => performance.now()) {
  if (!(limit > 0) || !(windowMs > 0)) throw new RangeError("limit and windowMs must be more than 0");
  const rate = limit / windowMs;
  let left = limit;
  let seen = now();
  return (cost) => {
    const at = now();
    left = Math.min(limit, left + (at - seen) * rate);
    seen = at;
    if (cost <= left) {
      left -= cost;
      return madeHere(true, cost);
    }
    const wait = cost > limit ? null : Math.ceil((cost - left) / rate);
    return madeHere(false, cost, 429, "no rate limiter answers, and the local share is used up", wait);
  };
}

function madeHere(allowed, cost, status = 200, message = undefined, retry_after_ms = 0) {
  return { allowed, status, message, cost, retry_after_ms, delay_ms: 0, degraded: false, away: true, rules: [] };
}

const WHEN_AWAY = {
  open: (cost) => madeHere(true, cost),
  closed: (cost) => madeHere(false, cost, 503, "no rate limiter answers", 1000),
  throw: null,
};

// The longest body that a daemon reads. It may close the connection while a longer one is still being sent, which
// would look as if no daemon answered: then whoever fills a value could pass every limit.
const BODY_BYTES_MAX = 1 << 20;
// The longest time that timers keep: a longer one would be over at once.
const TIMER_MAX = 2 ** 31 - 1;

/** Returns the beginning of every URL, or refuses an address that would be away for ever. */
function readAddress(address) {
  const wrong = (reason) => new TypeError(`address ${JSON.stringify(address)} ${reason}; expected http://HOST:PORT or https://HOST:PORT`);
  let url;
  try {
    url = new URL(address);
  } catch {
    throw wrong("is no URL");
  }
  if (url.protocol === "unix:") throw wrong("is a Unix socket, which fetch does not reach: pass a `fetch` that does");
  if (url.protocol !== "http:" && url.protocol !== "https:") throw wrong("does not begin with http://");
  if (url.username || url.password) throw wrong("has a user or a password, which fetch refuses");
  if (url.port === "0") throw wrong("has port 0");
  if (url.search || url.hash) throw wrong("has a query or a fragment");
  return url.href.replace(/\/+$/, "");
}

function readToken(token) {
  if (!token) return {};
  if (!/^[!-~]([ -~]*[!-~])?$/.test(token)) {
    throw new TypeError("the token holds a character that no header can hold, such as a line's end: is it a whole file?");
  }
  return { authorization: `Bearer ${token}` };
}

// An answer of something else than a daemon has none of these.
const isDecision = (answer) =>
  typeof answer?.allowed === "boolean" && Number.isInteger(answer.status) && answer.retry_after_ms !== undefined;
const isSettled = (answer) => typeof answer?.committed === "boolean";

/** Sends nothing as null, which the daemon refuses: left out, a request would be that of nobody, and pass. */
function named(attributes) {
  if (!attributes || typeof attributes !== "object") return attributes;
  return Object.fromEntries(Object.entries(attributes).map(([name, value]) => [name, value ?? null]));
}

function stranger(url, status, text = "") {
  const said = text.trim() && `: ${text.trim().slice(0, 200)}`;
  return new TidegateError(status, "unexpected", `${url} answered ${status} with something else than a daemon's answer${said}; is it a Tidegate?`);
}

/** Asks a daemon whether requests may pass, and tells it what they cost. */
export class Tidegate {
  #address;
  #timeoutMs;
  #whenAway;
  #domain;
  #headers;
  #fetch;

  constructor({ address = "http://127.0.0.1:8080", timeoutMs = 250, whenAway = "open", domain = "default", token, fetch } = {}) {
    if (typeof whenAway !== "function" && !Object.hasOwn(WHEN_AWAY, whenAway)) {
      throw new TypeError(`whenAway is "open", "closed", "throw" or a function of a cost, not ${JSON.stringify(whenAway)}`);
    }
    if (!(timeoutMs > 0 && timeoutMs <= TIMER_MAX)) {
      throw new RangeError(`timeoutMs is a number of milliseconds above 0 and at most ${TIMER_MAX}, not ${JSON.stringify(timeoutMs)}`);
    }
    this.#address = readAddress(address);
    this.#timeoutMs = Math.ceil(timeoutMs);
    this.#whenAway = typeof whenAway === "function" ? whenAway : WHEN_AWAY[whenAway];
    this.#domain = domain;
    this.#headers = { "content-type": "application/json", ...readToken(token) };
    this.#fetch = fetch ?? globalThis.fetch;
  }

  async #ask(route, body, is, standIn) {
    const url = this.#address + route;
    const written = JSON.stringify(body);
    // A letter takes three bytes at most.
    if (written.length * 3 > BODY_BYTES_MAX && new TextEncoder().encode(written).length > BODY_BYTES_MAX) {
      throw new TidegateError(413, "body_too_large", `a body has at most ${BODY_BYTES_MAX} bytes, and this one has more`);
    }
    let reply, text;
    try {
      // The deadline of the whole call, its answer included.
      const signal = AbortSignal.timeout(this.#timeoutMs);
      const how = { method: "POST", headers: this.#headers, body: written, redirect: "manual", signal };
      reply = await this.#fetch(url, how);
      text = await reply.text();
    } catch (error) {
      return this.#without(route, error, standIn);
    }
    // A daemon that starts, drains or is crowded decides nothing: it is as good as away.
    if ([502, 503, 504].includes(reply.status)) return this.#without(route, new TidegateError(reply.status, "unavailable", text), standIn);
    let answer;
    try {
      answer = JSON.parse(text);
    } catch {}
    if (reply.status === 200) {
      if (is(answer)) return answer;
      throw stranger(url, reply.status);
    }
    const { code, message, field } = answer?.error ?? {};
    if (typeof code === "string" && typeof message === "string") throw new TidegateError(reply.status, code, message, field);
    throw stranger(url, reply.status, text);
  }

  #without(route, cause, standIn) {
    if (!standIn || !this.#whenAway) throw new Away(route, cause);
    return standIn(this.#whenAway);
  }

  /** Decides one request and charges it if it may pass. A cost of 0 only asks. */
  check(attributes, { cost = 1, domain = this.#domain } = {}) {
    return this.#ask("/v1/check", { domain, attributes: named(attributes), cost }, isDecision, (decide) => decide(cost));
  }

  /** Decides up to 1,000 requests in order, with one call. */
  async checkMany(checks) {
    const body = checks.map(({ attributes, cost = 1, domain = this.#domain }) => ({ domain, attributes: named(attributes), cost }));
    const areDecisions = (answer) => answer?.decisions?.length === body.length && answer.decisions.every?.(isDecision);
    const answer = await this.#ask("/v1/check", { checks: body }, areDecisions, (decide) => ({ decisions: body.map((one) => decide(one.cost)) }));
    return answer.decisions;
  }

  /** Charges what was used already, in full. With an `id` it is charged once, however often it is sent. */
  report(attributes, cost, { id, domain = this.#domain } = {}) {
    return this.#ask("/v1/report", { domain, attributes: named(attributes), cost, id }, isDecision);
  }

  /** Holds `amount` permits, or what such calls used lately. Look at `allowed`. */
  reserve(attributes, { amount, ttl, id, domain = this.#domain } = {}) {
    return this.#ask("/v1/reserve", { domain, attributes: named(attributes), amount, ttl, id }, isDecision, (decide) => decide(amount ?? 1));
  }

  /** Charges what was really used, and gives the rest back. */
  commit(held, actual) {
    return held.reservation ? this.#ask("/v1/commit", { reservation: held.reservation, actual }, isSettled) : Promise.resolve(nothingHeld());
  }

  /** Gives everything back. */
  cancel(held) {
    return held.reservation ? this.#ask("/v1/cancel", { reservation: held.reservation }, isSettled) : Promise.resolve(nothingHeld());
  }

  /**
   * Makes a call within a budget: reserves `amount`, and charges what `used` reads from its result, rounded up. Throws
   * `Denied` before anything is spent; where its `decision.use` names something, ask again with that. Where `used` gives no number from 0 on, or throws, all that was held is charged.
   */
  async withinBudget(attributes, call, { amount, ttl = "2m", used = totalTokens, domain, onUncharged = warn } = {}) {
    const held = await this.reserve(attributes, { amount, ttl, domain });
    // The call is not made, so permits that other rules hold are given back, or lapse.
    if (held.use !== undefined) await this.cancel(held).catch(() => {});
    if (!held.allowed || held.use !== undefined) throw new Denied(held);
    let result;
    try {
      result = await call();
    } catch (error) {
      // A reservation that cannot be given back lapses; the caller's own error matters more.
      await this.cancel(held).catch(() => {});
      throw error;
    }
    // The call is paid already: whatever reading its usage does, the result is returned and something is charged.
    try {
      await this.commit(held, await spent(held, result, used, onUncharged));
    } catch (error) {
      hear(onUncharged, "what a call used was not charged, its reservation lapses", error);
    }
    return result;
  }

  /** Takes places of `concurrency` rules. Look at `allowed`; release what was taken. */
  acquire(attributes, { cost = 1, id, domain = this.#domain } = {}) {
    return this.#ask("/v1/acquire", { domain, attributes: named(attributes), cost, id }, isDecision, (decide) => decide(cost));
  }

  /** Holds the places for another `expires_ms`. False: they are held no longer. */
  async renew(held) {
    if (!held.lease) return true;
    return (await this.#ask("/v1/renew", { lease: held.lease }, (answer) => typeof answer?.renewed === "boolean")).renewed;
  }

  /** Gives the places back. */
  async release(held) {
    if (!held.lease) return false;
    return (await this.#ask("/v1/release", { lease: held.lease }, (answer) => typeof answer?.released === "boolean")).released;
  }

  /** Holds places while `work` runs; throws `Denied` where there are none. */
  async inFlight(attributes, work, options) {
    const held = await this.acquire(attributes, options);
    if (!held.allowed) throw new Denied(held);
    try {
      return await work(held);
    } finally {
      // Places that could not be given back are free when their hold ends.
      await this.release(held).catch(() => {});
    }
  }
}

function nothingHeld() {
  return { committed: false, lapsed: false, degraded: false };
}

function warn(error) {
  console.warn(error.message);
}

function hear(onUncharged, what, cause) {
  try {
    onUncharged(new Error(`${what}: ${cause?.message ?? cause}`, { cause }));
  } catch {}
}

/** Reads what a call used, as a whole number. One that does not say is charged all: nobody spends by leaving it out. */
async function spent(held, result, used, onUncharged) {
  let reason;
  try {
    const said = await used(result);
    if (Number.isFinite(said) && said >= 0) return Math.min(Math.ceil(said), Number.MAX_SAFE_INTEGER);
    reason = `a number from 0 on was expected, not ${typeof said === "number" ? said : typeof said}`;
  } catch (error) {
    reason = error;
  }
  const charged = held.reservation ? `all ${held.cost} that were held are charged` : "no daemon held anything, so nothing is charged";
  hear(onUncharged, `what a call used cannot be read; ${charged}`, reason);
  return held.cost;
}

/** Returns the tokens that a provider counted in `usage`, or undefined where it says nothing. */
export function totalTokens(result) {
  const usage = result?.usage;
  if (usage?.total_tokens !== undefined) return usage.total_tokens;
  const parts = [usage?.input_tokens, usage?.output_tokens, usage?.prompt_tokens, usage?.completion_tokens].filter(Number.isFinite);
  return parts.length ? parts.reduce((sum, part) => sum + part) : undefined;
}

/** Returns the headers that tell an HTTP client of its limit, as the daemon's forward-auth does. */
export function headersOf(decision) {
  const out = {};
  if (decision.limit !== undefined) {
    out["X-RateLimit-Limit"] = String(decision.limit);
    out["X-RateLimit-Remaining"] = String(decision.remaining);
  }
  if (!decision.allowed && decision.retry_after_ms !== null) {
    out["Retry-After"] = String(Math.max(1, Math.ceil(decision.retry_after_ms / 1000)));
  }
  if (decision.allowed && decision.delay_ms > 0) out["X-RateLimit-Delay-Ms"] = String(decision.delay_ms);
  if (decision.use !== undefined) out["X-Tidegate-Use"] = decision.use;
  return out;
}

/** Waits for as long as a rule that throttles wants an admitted request held back. */
export function heldBack(decision) {
  if (!(decision.delay_ms > 0)) return Promise.resolve();
  return new Promise((passes) => setTimeout(passes, Math.min(decision.delay_ms, TIMER_MAX)));
}
