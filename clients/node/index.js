/** The daemon refused the call itself: a mistake in it, or a right that the caller lacks. */
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

/** A request may not pass. Nothing was charged for it. */
export class Denied extends Error {
  constructor(decision) {
    super(decision.message ?? `${decision.rule ?? "a limit"} is used up`);
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

/** Asks a daemon whether requests may pass, and tells it what they cost. */
export class Tidegate {
  #address;
  #timeoutMs;
  #whenAway;
  #domain;
  #headers;
  #fetch;

  constructor({ address = "http://127.0.0.1:8080", timeoutMs = 250, whenAway = "open", domain = "default", token, fetch } = {}) {
    if (typeof whenAway !== "function" && !(whenAway in WHEN_AWAY)) {
      throw new TypeError(`whenAway is "open", "closed", "throw" or a function of a cost, not ${JSON.stringify(whenAway)}`);
    }
    this.#address = address.replace(/\/+$/, "");
    this.#timeoutMs = timeoutMs;
    this.#whenAway = typeof whenAway === "function" ? whenAway : WHEN_AWAY[whenAway];
    this.#domain = domain;
    this.#headers = { "content-type": "application/json", ...(token && { authorization: `Bearer ${token}` }) };
    this.#fetch = fetch ?? globalThis.fetch;
  }

  async #ask(route, body, standIn) {
    let reply, text;
    try {
      // The deadline of the whole call, its answer included.
      const signal = AbortSignal.timeout(this.#timeoutMs);
      reply = await this.#fetch(this.#address + route, { method: "POST", headers: this.#headers, body: JSON.stringify(body), signal });
      text = await reply.text();
    } catch (error) {
      return this.#without(route, error, standIn);
    }
    if (reply.status === 200) return JSON.parse(text);
    // A daemon that starts, drains or is crowded decides nothing: it is as good as away.
    if ([502, 503, 504].includes(reply.status)) return this.#without(route, new TidegateError(reply.status, "unavailable", text), standIn);
    let error = { code: "unexpected", message: text || `status ${reply.status}` };
    try {
      error = JSON.parse(text).error ?? error;
    } catch {}
    throw new TidegateError(reply.status, error.code, error.message, error.field);
  }

  #without(route, cause, standIn) {
    if (!standIn || !this.#whenAway) throw new Away(route, cause);
    return standIn(this.#whenAway);
  }

  /** Decides one request and charges it if it may pass. A cost of 0 only asks. */
  check(attributes, { cost = 1, domain = this.#domain } = {}) {
    return this.#ask("/v1/check", { domain, attributes, cost }, (decide) => decide(cost));
  }

  /** Decides up to 1,000 requests in order, with one call. */
  async checkMany(checks) {
    const body = checks.map(({ attributes, cost = 1, domain = this.#domain }) => ({ domain, attributes, cost }));
    const answer = await this.#ask("/v1/check", { checks: body }, (decide) => ({ decisions: body.map((one) => decide(one.cost)) }));
    return answer.decisions;
  }

  /** Charges what was used already, in full. With an `id` it is charged once, however often it is sent. */
  report(attributes, cost, { id, domain = this.#domain } = {}) {
    return this.#ask("/v1/report", { domain, attributes, cost, id });
  }

  /** Holds `amount` permits, or what such calls used lately. Look at `allowed`. */
  reserve(attributes, { amount, ttl, id, domain = this.#domain } = {}) {
    return this.#ask("/v1/reserve", { domain, attributes, amount, ttl, id }, (decide) => decide(amount ?? 1));
  }

  /** Charges what was really used, and gives the rest back. */
  commit(held, actual) {
    return held.reservation ? this.#ask("/v1/commit", { reservation: held.reservation, actual }) : Promise.resolve(nothingHeld());
  }

  /** Gives everything back. */
  cancel(held) {
    return held.reservation ? this.#ask("/v1/cancel", { reservation: held.reservation }) : Promise.resolve(nothingHeld());
  }

  /** Makes a call within a budget: reserves `amount`, and charges what `used` reads from its result. Throws `Denied` before anything is spent. */
  async withinBudget(attributes, call, { amount, ttl = "2m", used = totalTokens, domain, onUncharged = () => {} } = {}) {
    const held = await this.reserve(attributes, { amount, ttl, domain });
    if (!held.allowed) throw new Denied(held);
    let result;
    try {
      result = await call();
    } catch (error) {
      // A reservation that cannot be given back lapses; the caller's own error matters more.
      await this.cancel(held).catch(() => {});
      throw error;
    }
    // A result that does not say what it used is charged all: nobody spends by leaving it out.
    await this.commit(held, used(result) ?? held.cost).catch(onUncharged);
    return result;
  }

  /** Takes places of `concurrency` rules. Look at `allowed`; release what was taken. */
  acquire(attributes, { cost = 1, id, domain = this.#domain } = {}) {
    return this.#ask("/v1/acquire", { domain, attributes, cost, id }, (decide) => decide(cost));
  }

  /** Holds the places for another `expires_ms`. False: they are held no longer. */
  async renew(held) {
    return held.lease ? (await this.#ask("/v1/renew", { lease: held.lease })).renewed : true;
  }

  /** Gives the places back. */
  async release(held) {
    return held.lease ? (await this.#ask("/v1/release", { lease: held.lease })).released : false;
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
  return out;
}
