// Asks a real daemon, whose address is in TIDEGATE and which counts by clients/rules.toml.
import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { createServer } from "node:http";
import { test } from "node:test";

import { Away, Denied, Tidegate, TidegateError, localShare, totalTokens } from "../index.js";
import { limit as express } from "../express.js";
import { limit as fetching } from "../fetch.js";

const address = process.env.TIDEGATE;
const client = new Tidegate({ address, timeoutMs: 10_000 });
// A port that nobody listens on.
const nobody = "http://127.0.0.1:9";
const searcher = () => ({ user: randomUUID(), path: "/search" });
const team = () => ({ team: randomUUID(), kind: "tokens" });
const left = async (who) => (await client.check(who, { cost: 0 })).remaining;

test("a limit is held and says when to come back", async () => {
  const user = searcher();
  const answers = [];
  for (let each = 0; each < 4; each++) answers.push(await client.check(user));
  assert.deepEqual(answers.map((one) => one.allowed), [true, true, true, false]);
  assert.ok(answers[3].retry_after_ms > 0);
  assert.equal(answers[3].rules[0].rule, "search");
});

test("parallel callers get the limit and no more", async () => {
  const user = searcher();
  const answers = await Promise.all(Array.from({ length: 10 }, () => client.check(user)));
  assert.equal(answers.filter((one) => one.allowed).length, 3);
});

test("many are decided in one call", async () => {
  const attributes = searcher();
  const answers = await client.checkMany([{ attributes, cost: 2 }, { attributes }, { attributes }]);
  assert.deepEqual(answers.map((one) => one.allowed), [true, true, false]);
});

test("a mistake names its place", async () => {
  await assert.rejects(client.check({ "": "a name without letters" }), (error) => {
    return error instanceof TidegateError && error.status === 400 && error.field.includes("attributes");
  });
});

test("what is reserved is held, and the rest is given back once", async () => {
  const who = team();
  const held = await client.reserve(who, { amount: 900 });
  assert.equal((await client.reserve(who, { amount: 200 })).allowed, false);
  assert.equal((await client.commit(held, 100)).committed, true);
  assert.equal((await client.commit(held, 100)).committed, false);
  assert.equal(await left(who), 900);
});

test("a call is charged what it used, nothing where it fails, all where it does not say", async () => {
  const who = team();
  await client.withinBudget(who, async () => ({ usage: { input_tokens: 50, output_tokens: 50 } }), { amount: 1000 });
  assert.equal(await left(who), 900);
  await assert.rejects(client.withinBudget(who, async () => assert.fail("not made"), { amount: 950 }), Denied);
  const fails = async () => { throw new RangeError("the provider is away"); };
  await assert.rejects(client.withinBudget(who, fails, { amount: 400 }), RangeError);
  assert.equal(await left(who), 900);
  const heard = [];
  await client.withinBudget(who, async () => ({ text: "hello" }), { amount: 400, onUncharged: (error) => heard.push(error.message) });
  assert.match(heard.join(), /all 400 that were held are charged/);
  assert.equal(await left(who), 500);
  assert.equal(totalTokens({}), undefined);
});

test("a call that was paid returns its result, whatever reads its usage", async (context) => {
  const warned = context.mock.method(console, "warn", () => {});
  const throws = () => { throw new RangeError("no usage"); };
  for (const [said, charged] of [
    [5.7, 6], [1.5, 2], [0, 0], ["12", 400], [NaN, 400], [Infinity, 400], [-1, 400], [-0.5, 400], [null, 400], [undefined, 400],
    [[1], 400], [throws, 400], [async () => throws(), 400], [async () => 7, 7], [900, 900], [1e300, 1000],
  ]) {
    const [who, before] = [team(), warned.mock.callCount()];
    const used = typeof said === "function" ? said : () => said;
    assert.equal(await client.withinBudget(who, async () => "paid", { amount: 400, used }), "paid");
    assert.equal(await left(who), 1000 - charged, String(said));
    assert.equal(warned.mock.callCount() - before, charged === 400 ? 1 : 0, String(said));
  }
  const who = team();
  await client.withinBudget(who, async () => "paid", { amount: 400, used: throws, onUncharged: throws });
  assert.equal(await left(who), 600);
});

test("a report with an id is charged once", async () => {
  const who = team();
  for (let each = 0; each < 2; each++) await client.report(who, 600, { id: "one call" });
  assert.equal(await left(who), 400);
});

test("places are given back however the work ends", async () => {
  const user = { user: randomUUID(), kind: "export" };
  await client.inFlight(user, async (first) => {
    await client.inFlight(user, () => assert.rejects(client.inFlight(user, () => assert.fail("there is no third place")), Denied));
    assert.equal(await client.renew(first), true);
  });
  const fails = async () => { throw new RangeError("work failed"); };
  await assert.rejects(client.inFlight(user, fails), RangeError);
  assert.equal((await client.acquire(user, { cost: 2 })).allowed, true);
});

test("without a daemon the client decides as it was told", async () => {
  const away = (whenAway) => new Tidegate({ address: nobody, whenAway });
  const open = await away("open").check({ user: "u" });
  assert.ok(open.allowed && open.away);
  assert.equal((await away("closed").check({ user: "u" })).status, 503);
  await assert.rejects(away("throw").check({ user: "u" }), Away);
  await assert.rejects(away("open").report({ user: "u" }, 5), Away);
  let now = 0;
  const share = away(localShare(2, 10_000, () => now));
  const answers = [];
  for (let each = 0; each < 3; each++) answers.push(await share.check({ user: "u" }));
  assert.deepEqual(answers.map((one) => one.allowed), [true, true, false]);
  now += answers[2].retry_after_ms;
  assert.ok((await share.check({ user: "u" })).allowed);
});

test("a daemon that does not answer in time is away", async (context) => {
  const silent = createServer(() => {});
  await new Promise((done) => silent.listen(0, "127.0.0.1", done));
  context.after(() => { silent.closeAllConnections(); silent.close(); });
  const waiting = new Tidegate({ address: `http://127.0.0.1:${silent.address().port}`, timeoutMs: 50, whenAway: "closed" });
  assert.equal((await waiting.check({ user: "u" })).away, true);
});

test("the middleware of Express answers in the application's place", async (context) => {
  const user = randomUUID();
  const guard = express(client, { attributes: (request) => ({ user, path: request.url }) });
  const server = createServer((request, response) => guard(request, response, () => response.end("hello")));
  await new Promise((done) => server.listen(0, "127.0.0.1", done));
  context.after(() => { server.closeAllConnections(); server.close(); });
  const replies = [];
  for (let each = 0; each < 4; each++) replies.push(await fetch(`http://127.0.0.1:${server.address().port}/search`));
  assert.deepEqual(replies.map((one) => one.status), [200, 200, 200, 429]);
  assert.equal(replies[0].headers.get("x-ratelimit-remaining"), "2");
  assert.ok(Number(replies[3].headers.get("retry-after")) >= 1);
});

test("a wrapped handler of fetch is asked for", async () => {
  const user = randomUUID();
  const guarded = fetching(client, async () => new Response("hello"), {
    attributes: (request) => ({ user, path: new URL(request.url).pathname }),
  });
  const replies = [];
  for (let each = 0; each < 4; each++) replies.push(await guarded(new Request("http://app/search")));
  assert.deepEqual(replies.map((one) => one.status), [200, 200, 200, 429]);
  assert.equal(replies[0].headers.get("x-ratelimit-remaining"), "2");
});
