// Hot: who asks most at this moment, and why a client is limited.
import { html, useEffect, useRef, useState } from "/console/preact.js";
import { ask, because, causes, Choice, moment, named, route, Said, span, Table, unheard, useEach } from "/console/daemon.js";

const ORDERS = { denied: "denials", requests: "requests", cost: "permits" };

/* How often a second, as a person reads it. */
export const rate = (count, millis) => { const each = count / (millis / 1000); return each >= 10 ? Math.round(each) : Math.round(each * 100) / 100; };

/* By which regions a bucket was used. */
const by = (regions) => Object.entries(regions ?? {}).map(([name, used]) => `${name} ${used}`).join(", ");

/* The names of a bucket; a rule may count everybody together. */
const whose = (identity) => named(identity) || "everybody";

/* What comes of a request of this client now. A bucket that does not count the names alone may limit the client, too. */
function verdict({ limited, decision, buckets }, isAll) {
  if (!decision.allowed) return `Limited now by ${decision.rule ?? "no rule"}${because(decision)}${unheard(decision)}`;
  if (decision.use) return `Over the limit of ${decision.rule}: a request passes, and is told to use ${decision.use}${unheard(decision)}`;
  const used = isAll ? "This bucket is used up: requests that are counted in it are denied" : "A request with these names alone would pass, but a bucket of this client is used up (below)";
  const free = isAll ? buckets.length ? "This bucket has room: a request that is counted in it would pass" : "This rule has no bucket" : "Not limited: a request would be admitted now";
  return (limited ? used : free) + unheard(decision);
}

/* What a bucket does now: one that is only watched denies nobody. */
const state = (bucket) => !bucket.denies ? bucket.degraded ? "not known" : "has room" : bucket.shadow ? html`<span class="warn">log only: would be denied</span>`
  : bucket.use ? html`<span class="warn">nothing left: told to use ${bucket.use}</span>`
  : html`<span class="bad">${bucket.cause ? causes[bucket.cause] ?? bucket.cause : bucket.penalty ? causes.penalty : bucket.remaining ? "denies" : causes.used_up}</span>`;

/* What a bucket holds, as far as it is known: the store has it, and nobody tells what others spent of escrow's rights. */
const held = (bucket, region) => bucket.degraded ? [undefined, bucket.limit, undefined, undefined, undefined]
  : [bucket.used_by[region] ?? bucket.used, bucket.limit, bucket.remaining, span(bucket.reset_ms), bucket.mode === "escrow" ? undefined : by(bucket.used_by)];

/* Why no bucket is shown. Who is denied by a block, or before the regions have agreed, has asked none. */
function idle({ all, rules }, order, rule) {
  const sums = rule ? rules.find((row) => row.rule === rule) : all;
  if (!sums?.requests) return "Nobody asked of late.";
  if (sums.denied) return `No bucket was ${order === "denied" ? "denied" : "charged"} of late: about ${sums.denied} denials without one, by a block or because the regions have not agreed.`;
  return order === "cost" ? "Nothing was charged of late." : order === "denied" ? "Nobody was denied of late." : "Nobody asked of late.";
}

/* Why a client is limited. It stands where it was asked for, and Escape closes it. */
export function Why({ asked, close }) {
  const [why, setWhy] = useState(), [said, setSaid] = useState(), title = useRef(), names = named(asked, ["domain", "rule"]);
  // The rule of an old decision may be gone by now; the client is there all the same.
  const isGone = useRef(false), find = () => ask("GET", route("/v1/why", isGone.current ? { ...asked, rule: undefined } : asked)).catch((error) => {
    if (error.status !== 404 || !names || isGone.current) throw error;
    isGone.current = true;
    return find();
  });
  useEach(() => find().then((told) => { setWhy(told); setSaid(); }, (error) => { setWhy(); setSaid({ bad: error.message }); }), [JSON.stringify(asked)]);
  useEffect(() => {
    const from = document.activeElement;
    title.current.scrollIntoView({ block: "nearest" });
    title.current.focus({ preventScroll: true });
    return () => { if (from?.isConnected && from !== document.body) from.focus({ preventScroll: true }); };
  }, []);
  return html`<div class="why" onKeyDown=${(event) => { if (event.key === "Escape") close(); }}><h3 ref=${title} tabindex="-1">Why ${names || `${asked.rule} of everybody`}</h3><${Said} said=${said}/>
    ${why && html`<p role="status" class=${why.decision.use ? "warn" : why.limited ? "bad" : "good"}>${verdict(why, !names)}</p>
      <${Table} head=${["bucket", "now", "used here", "limit", "left", "resets in", "used by region", "denied since"]} none="No bucket of this client is in use."
        rows=${why.buckets.map((bucket) => [`${bucket.rule} ${whose(bucket.identity)}`, state(bucket), ...held(bucket, why.region), moment(bucket.lately?.denied_since)])}/>`}
    <button type="button" onClick=${close}>Close</button></div>`;
}

/* The button that asks why, in a row of this key, and the answer, which stands under the row. */
export function useWhy() {
  const [open, setOpen] = useState();
  return {
    button: (key, asked) => html`<button type="button" aria-expanded=${open?.key === key} onClick=${() => setOpen(open?.key === key ? undefined : { key, asked })}>Why</button>`,
    under: (key) => open?.key === key && html`<${Why} asked=${open.asked} close=${() => setOpen()}/>`,
    // A row may leave the list while it is looked at.
    apart: (keys) => open && !keys.includes(open.key) && html`<${Why} asked=${open.asked} close=${() => setOpen()}/>`,
  };
}

/* Buckets of an answer of /v1/hot. */
function Buckets({ hot, head, title, cells, none }) {
  const why = useWhy(), key = (row) => JSON.stringify([row.rule, row.identity, row.long]);
  return html`${why.apart(hot.buckets.map(key))}<${Table} head=${["bucket", ...head, "denied since", "ask"]} none=${none}
    rows=${hot.buckets.map((row) => ({ key: key(row), under: why.under(key(row)), cells: [title(row, row.long ? "(long values)" : whose(row.identity)), ...cells(row, hot), moment(row.denied_since),
      !row.long && why.button(key(row), { ...row.identity, domain: row.domain, rule: row.rule })] }))}/>`;
}

const cells = (row, hot) => [rate(row.requests, hot.span_ms), row.shadow ? html`<span class="warn">${rate(row.denied, hot.span_ms)} would be denied</span>` : html`<span class=${row.denied ? "bad" : ""}>${rate(row.denied, hot.span_ms)}</span>`, rate(row.cost, hot.span_ms), `${Math.round(row.share * 1000) / 10} %`];
const title = (row, whose = "") => html`${row.rule} ${whose}${row.shadow && html` <span class="warn">log only</span>`}`;
const heads = (order) => ["requests/s", "denied/s", "permits/s", `of all ${ORDERS[order]}`];

/* Of one rule it matters how much of it is denied, not how much of all that is. */
const cellsOfRule = (row, hot) => cells(row, hot).slice(0, 2);

/* The buckets of one rule that are denied most. */
export function OfRule({ rule }) {
  const [hot, setHot] = useState(), [said, setSaid] = useState();
  useEffect(() => setHot(), [rule]);
  useEach(() => ask("GET", route("/v1/hot", { rule, limit: 10 })).then((found) => { setHot(found); setSaid(); }, (error) => { setHot(); setSaid({ bad: error.message }); }), [rule]);
  return html`<${Said} said=${said}/>${hot && html`<div class="cards"><${Buckets} hot=${hot} head=${heads("denied").slice(0, 2)} title=${(_, whose) => whose} cells=${cellsOfRule} none="No bucket of this rule was denied of late."/></div>`}`;
}

export function Hot() {
  const [order, setOrder] = useState("denied"), [rule, setRule] = useState(""), [hot, setHot] = useState(), [said, setSaid] = useState();
  useEach(() => ask("GET", route("/v1/hot", { by: order, rule, limit: 100 })).then((found) => { setHot(found); setSaid(); }, (error) => { setHot(); setSaid({ bad: error.message }); }), [order, rule]);
  return html`<main><section><h2>Who asks most now${hot ? `, at ${hot.region}/${hot.node}` : ""}</h2>
      <form class="line" onSubmit=${(event) => event.preventDefault()}>
        <${Choice} title="By" choices=${ORDERS} value=${order} set=${setOrder}/>
        <label>Rule <input value=${rule} onInput=${(event) => setRule(event.target.value)}/></label></form>
      <${Said} said=${said}/>
      ${hot && html`<${Buckets} hot=${hot} head=${heads(order)} title=${title} cells=${cells} none=${idle(hot, order, rule)}/>
        ${[...hot.buckets, ...hot.rules].some((row) => row.shadow) && html`<p class="soft">A rule marked “log only” denies nobody: what it counts as denied did pass. Shares of all denials count it, too.</p>`}`}</section>
    ${hot && html`<section><h2>Rules</h2><${Table} head=${["rule", ...heads(order)]} rows=${hot.rules.map((row) => ({ key: row.rule, cells: [title(row), ...cells(row, hot)] }))} none="No rule decided of late."/></section>`}</main>`;
}
