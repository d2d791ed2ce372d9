// Hot: who asks most at this moment, and why a client is limited.
import { html, useEffect, useRef, useState } from "/console/preact.js";
import { ask, because, causes, moment, named, route, Said, span, Table, unheard, useEach } from "/console/daemon.js";

const ORDERS = { denied: "denials", requests: "requests", cost: "permits" };

/* How often a second, as a person reads it. */
const rate = (count, millis) => { const each = count / (millis / 1000); return each >= 10 ? Math.round(each) : Math.round(each * 100) / 100; };

/* By which regions a bucket was used. */
const by = (regions) => Object.entries(regions ?? {}).map(([name, used]) => `${name} ${used}`).join(", ");

/* What comes of a request of this client now. A bucket that does not count the names alone may limit the client, too. */
function verdict({ limited, decision }) {
  if (!decision.allowed) return `Limited now by ${decision.rule ?? "no rule"}${because(decision)}${unheard(decision)}`;
  return (limited ? "A request with these names alone would pass, but a bucket of this client is used up (below)" : "Not limited: a request would be admitted now") + unheard(decision);
}

/* What a bucket does now: one that is only watched denies nobody. */
const state = (bucket) => !bucket.denies ? bucket.degraded ? "not known" : "has room" : bucket.shadow ? html`<span class="warn">log only: would be denied</span>`
  : html`<span class="bad">${bucket.cause ? causes[bucket.cause] ?? bucket.cause : bucket.penalty ? causes.penalty : bucket.remaining ? "denies" : causes.used_up}</span>`;

/* What a bucket holds, as far as it is known: the store has it, and nobody tells what others spent of escrow's rights. */
const held = (bucket, region) => bucket.degraded ? [undefined, bucket.limit, undefined, undefined, undefined]
  : [bucket.used_by[region] ?? bucket.used, bucket.limit, bucket.remaining, span(bucket.reset_ms), bucket.mode === "escrow" ? undefined : by(bucket.used_by)];

/* Why no bucket is shown. Who is denied by a block, or before the regions have agreed, has asked none. */
function idle({ all, rules }, order, rule) {
  const sums = rule ? rules.find((row) => row.rule === rule) : all;
  if (!sums?.requests) return "Nobody asked of late.";
  if (sums.denied) return `No bucket was charged of late: about ${sums.denied} denials without one, by a block or because the regions have not agreed.`;
  return order === "cost" ? "Nothing was charged of late." : order === "denied" ? "Nobody was denied of late." : "Nobody asked of late.";
}

function Why({ asked, close }) {
  const [why, setWhy] = useState(), [said, setSaid] = useState(), title = useRef();
  useEach(() => ask("GET", route("/v1/why", asked)).then((told) => { setWhy(told); setSaid(); }, (error) => { setWhy(); setSaid({ bad: error.message }); }), []);
  // A hundred rows may lie above it.
  useEffect(() => { title.current.scrollIntoView({ block: "center" }); title.current.focus({ preventScroll: true }); }, []);
  return html`<section><h2 ref=${title} tabindex="-1">Why ${named(asked, ["domain"])}</h2><${Said} said=${said}/>
    ${why && html`<p role="status" class=${why.limited ? "bad" : "good"}>${verdict(why)}</p>
      <${Table} head=${["bucket", "now", "used here", "limit", "left", "resets in", "used by region", "denied since"]} none="No bucket of this client is in use."
        rows=${why.buckets.map((bucket) => [`${bucket.rule} ${named(bucket.identity)}`, state(bucket), ...held(bucket, why.region), moment(bucket.lately?.denied_since)])}/>`}
    <button onClick=${close}>Close</button></section>`;
}

export function Hot() {
  const [order, setOrder] = useState("denied"), [rule, setRule] = useState(""), [hot, setHot] = useState(), [asked, setAsked] = useState(), [said, setSaid] = useState();
  useEach(() => ask("GET", route("/v1/hot", { by: order, rule, limit: 100 })).then((found) => { setHot(found); setSaid(); }, (error) => { setHot(); setSaid({ bad: error.message }); }), [order, rule]);
  const cells = (row) => [rate(row.requests, hot.span_ms), row.shadow ? html`<span class="warn">${rate(row.denied, hot.span_ms)} would be denied</span>` : html`<span class=${row.denied ? "bad" : ""}>${rate(row.denied, hot.span_ms)}</span>`, rate(row.cost, hot.span_ms), `${Math.round(row.share * 1000) / 10} %`];
  const title = (row, whose = "") => html`${row.rule} ${whose}${row.shadow && html` <span class="warn">log only</span>`}`;
  const head = ["requests/s", "denied/s", "permits/s", `of all ${ORDERS[order]}`];
  return html`<main><section><h2>Who asks most now${hot ? `, at ${hot.region}/${hot.node}` : ""}</h2>
      <form class="line" onSubmit=${(event) => event.preventDefault()}>
        <label>By <select onChange=${(event) => setOrder(event.target.value)}>${Object.entries(ORDERS).map(([name, title]) => html`<option value=${name} selected=${name === order}>${title}</option>`)}</select></label>
        <label>Rule <input value=${rule} onInput=${(event) => setRule(event.target.value)}/></label></form>
      <${Said} said=${said}/>
      ${hot && html`<${Table} head=${["bucket", ...head, "denied since", "ask"]} none=${idle(hot, order, rule)}
        rows=${hot.buckets.map((row) => [title(row, row.long ? "(long values)" : named(row.identity)), ...cells(row), moment(row.denied_since),
          Object.keys(row.identity).length > 0 && html`<button onClick=${() => setAsked({ ...row.identity, domain: row.domain })}>Why</button>`])}/>
        ${[...hot.buckets, ...hot.rules].some((row) => row.shadow) && html`<p class="soft">A rule marked “log only” denies nobody: what it counts as denied did pass. Shares of all denials count it, too.</p>`}`}</section>
    ${asked && html`<${Why} key=${JSON.stringify(asked)} asked=${asked} close=${() => setAsked()}/>`}
    ${hot && html`<section><h2>Rules</h2><${Table} head=${["rule", ...head]} rows=${hot.rules.map((row) => [title(row), ...cells(row)])} none="No rule decided of late."/></section>`}</main>`;
}
