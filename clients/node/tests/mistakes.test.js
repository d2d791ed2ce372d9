// What is no answer, and what is no question: neither may look as if no daemon answered, since that lets pass.
import assert from "node:assert/strict";
import { createServer } from "node:http";
import { test } from "node:test";

import { Denied, headersOf, Tidegate, TidegateError } from "../index.js";
import { limit as express } from "../express.js";
import { limit as fetching } from "../fetch.js";

const address = process.env.TIDEGATE;
const open = new Tidegate({ address, timeoutMs: 10_000, whenAway: "open" });
// A body of these is longer than a daemon reads.
const long = "&".repeat(1_100_000);
// What a daemon answers to a check, as far as clients read it.
const decision = (more) => JSON.stringify({ allowed: true, status: 200, cost: 1, retry_after_ms: 0, delay_ms: 0, degraded: false, rules: [], ...more });

async function serving(context, answer) {
  const server = createServer(answer);
  await new Promise((done) => server.listen(0, "127.0.0.1", done));
  context.after(() => { server.closeAllConnections(); server.close(); });
  return `http://127.0.0.1:${server.address().port}`;
}

/** A client of a web server that gives one answer to everything, in a daemon's place. */
async function answering(context, body, status = 200, headers = {}) {
  const at = await serving(context, (request, response) => request.resume().on("end", () => response.writeHead(status, headers).end(body)));
  return new Tidegate({ address: at, timeoutMs: 10_000, whenAway: "open" });
}

test("an address that can never be asked is refused", () => {
  for (const wrong of [
    "127.0.0.1:8080", "localhost:8080", "nonsense", "", "http://", "redis://h", "unix:/run/x", "http://h?x=1", "http://u:p@h", "http://h:99999", null,
  ]) {
    assert.throws(() => new Tidegate({ address: wrong }), (error) => {
      return error instanceof TypeError && error.message.includes(JSON.stringify(wrong)) && error.message.includes("expected http://HOST:PORT");
    }, String(wrong));
  }
  new Tidegate({ address: "https://limits.internal/tidegate/" });
});

test("a word that says nothing is refused before the daemon is away", () => {
  for (const how of [{ whenAway: "opne" }, { whenAway: "toString" }, { timeoutMs: 0 }, { timeoutMs: NaN }, { timeoutMs: 2 ** 31 }, { token: "secret\n" }]) {
    assert.throws(() => new Tidegate({ address, ...how }), Error, JSON.stringify(how));
  }
});

test("another web server is a mistake, whatever is decided while none answers", async (context) => {
  for (const body of ["<html>hello</html>", "{}", "[]", "null", '{"decisions":[{}]}', '{"allowed":true}']) {
    const other = await answering(context, body);
    for (const ask of [
      () => other.check({ user: "u" }),
      () => other.checkMany([{ attributes: { user: "u" } }]),
      () => other.reserve({ user: "u" }, { amount: 5 }),
      () => other.acquire({ user: "u" }),
      () => other.report({ user: "u" }, 5),
      () => other.commit({ reservation: "r" }, 5),
      () => other.renew({ lease: "l" }),
      () => other.release({ lease: "l" }),
    ]) {
      await assert.rejects(ask, (error) => error instanceof TidegateError && error.message.includes("is it a Tidegate?"), body);
    }
  }
  await assert.rejects((await answering(context, '{"decisions":[]}')).checkMany([{ attributes: { user: "u" } }]), /is it a Tidegate/);
});

test("a refusal is told as it is, one of something else by its status, and one that cannot decide is away", async (context) => {
  for (const [status, body, said] of [
    [404, "no such page\n", "answered 404 with something else than a daemon's answer: no such page; is it a Tidegate?"],
    [405, '{"error":"Not Allowed"}', 'answered 405 with something else than a daemon\'s answer: {"error":"Not Allowed"}; is it a Tidegate?'],
    [401, "", "answered 401 with something else than a daemon's answer; is it a Tidegate?"],
    [429, '{"error":{"code":"c","message":"m","field":"f"}}', "m (at f)"],
  ]) {
    await assert.rejects((await answering(context, body, status)).check({ user: "u" }), (error) => {
      return error instanceof TidegateError && error.message.endsWith(said) && error.status === status;
    }, body);
  }
  const moved = await answering(context, "", 301, { location: "http://127.0.0.1:9/" });
  await assert.rejects(moved.check({ user: "u" }), TidegateError);
  assert.equal((await (await answering(context, "draining", 503)).check({ user: "u" })).away, true);
});

test("nothing that a client wrote makes its request pass", async () => {
  for (const [user, status] of [[long, 413], ["\udcff", 400], [null, 400], [undefined, 400], [42, 400], [["a", "b"], 400]]) {
    await assert.rejects(open.check({ user, path: "/search" }), (error) => error instanceof TidegateError && error.status === status, String(user).slice(0, 9));
  }
  await assert.rejects(open.check({ user: 1n }), TypeError);
});

test("middleware lets nothing pass that the daemon refused", async (context) => {
  const attributes = () => ({ user: long });
  await assert.rejects(fetching(open, () => assert.fail("it passed"), { attributes })(new Request("http://app/")), TidegateError);
  const errors = [];
  const guard = express(open, { attributes });
  await guard({}, {}, (error) => errors.push(error));
  assert.equal(errors.length, 1);
  // Express answers an error without a status with 500.
  assert.ok(errors[0] instanceof Error && errors[0].cause instanceof TidegateError && errors[0].status === undefined);
});

test("a call that is to use something else is not made", async (context) => {
  const told = await answering(context, decision({ use: "small", rule: "large", limit: 20, remaining: 0, reservation: "held", expires_ms: 1000 }));
  assert.equal(headersOf(await told.check({ user: "u" }))["X-Tidegate-Use"], "small");
  await assert.rejects(told.withinBudget({ user: "u" }, () => assert.fail("it was called"), { amount: 5 }), (error) => {
    assert.ok(error instanceof Denied && error.message === "large is used up; use small instead", error);
    return error.decision.use === "small";
  });
});

test("a request that is throttled is held back", async (context) => {
  const slow = await answering(context, decision({ delay_ms: 120, rule: "paced", limit: 20, remaining: 0 }));
  const guard = express(slow);
  const at = await serving(context, (request, response) => guard(request, response, () => response.end("hello")));
  const guarded = fetching(slow, async () => new Response("hello"));
  for (const ask of [() => fetch(`${at}/paced`), () => guarded(new Request("http://app/paced"))]) {
    const begun = performance.now();
    const reply = await ask();
    assert.ok(performance.now() - begun >= 118);
    assert.equal(reply.headers.get("x-ratelimit-delay-ms"), "120");
    assert.equal(await reply.text(), "hello");
  }
});
