// Hot: who asks most at this moment, and why a client is limited.
import { html, useEffect, useState } from "/console/preact.js";
import { ask, causes, moment, named, route, Said, span, Table, useEach } from "/console/daemon.js";

const ORDERS = { denied: "denials", requests: "requests", cost: "permits" };

/* How often a second, as a person reads it. */
const rate = (count, millis) => { const each = count / (millis / 1000); return each >= 10 ? Math.round(each) : Math.round(each * 100) / 100; };

/* By which regions a bucket was used. */
const by = (regions) => Object.entries(regions ?? {}).map(([name, used]) => `${name} ${used}`).join(", ");

function Why({ asked, close }) {
  const [why, setWhy] = useState(), [said, setSaid] = useState();
  useEach(() => ask("GET", route("/v1/why", asked)).then(setWhy, (error) => setSaid({ bad: error.message })), [JSON.stringify(asked)]);
  const decision = why?.decision;
  return html`<section><h2>Why ${named(asked, ["domain"])}</h2><${Said} said=${said}/>
    ${why && html`<p role="status" class=${why.limited ? "bad" : "good"}>${why.limited
      ? `Limited now by ${decision.rule}${decision.cause ? `: ${causes[decision.cause] ?? decision.cause}` : ""}; free ${decision.retry_after_ms ? `in ${span(decision.retry_after_ms)}` : "when the rule changes"}`
      : "Not limited: a request would be admitted now"}</p>
      <${Table} head=${["rule", "cause", "used here", "limit", "left", "used by region", "denied since"]} none="No bucket of this client is in use."
        rows=${why.buckets.map((bucket) => [bucket.rule, bucket.cause ?? "", bucket.used, bucket.limit, bucket.remaining, bucket.mode === "escrow" ? "not known" : by(bucket.used_by), moment(bucket.lately?.denied_since) ?? ""])}/>`}
    <button onClick=${close}>Close</button></section>`;
}

export function Hot() {
  const [order, setOrder] = useState("denied"), [rule, setRule] = useState(""), [hot, setHot] = useState(), [asked, setAsked] = useState(), [said, setSaid] = useState();
  useEach(() => ask("GET", route("/v1/hot", { by: order, rule, limit: 100 })).then((found) => { setHot(found); setSaid(); }, (error) => { setHot(); setSaid({ bad: error.message }); }), [order, rule]);
  const cells = (row) => [rate(row.requests, hot.span_ms), html`<span class=${row.denied ? "bad" : ""}>${rate(row.denied, hot.span_ms)}</span>`, rate(row.cost, hot.span_ms), `${Math.round(row.share * 1000) / 10} %`];
  const head = ["requests/s", "denied/s", "permits/s", `of all ${ORDERS[order]}`];
  return html`<main><section><h2>Who asks most now${hot ? `, at ${hot.region}/${hot.node}` : ""}</h2>
      <form class="line" onSubmit=${(event) => event.preventDefault()}>
        <label>By <select onChange=${(event) => setOrder(event.target.value)}>${Object.entries(ORDERS).map(([name, title]) => html`<option value=${name} selected=${name === order}>${title}</option>`)}</select></label>
        <label>Rule <input value=${rule} onInput=${(event) => setRule(event.target.value)}/></label></form>
      <${Said} said=${said}/>
      ${hot && html`<${Table} head=${["bucket", ...head, "denied since", "ask"]} none="Nobody asked of late."
        rows=${hot.buckets.map((row) => [`${row.rule} ${row.long ? "(long values)" : named(row.identity)}`, ...cells(row), moment(row.denied_since) ?? "",
          Object.keys(row.identity).length > 0 && html`<button onClick=${() => setAsked({ ...row.identity, domain: row.domain })}>Why</button>`])}/>`}</section>
    ${asked && html`<${Why} asked=${asked} close=${() => setAsked()}/>`}
    ${hot && html`<section><h2>Rules</h2><${Table} head=${["rule", ...head]} rows=${hot.rules.map((row) => [row.rule, ...cells(row)])} none="No rule decided of late."/></section>`}</main>`;
}
