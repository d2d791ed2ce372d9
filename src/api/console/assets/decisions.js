// Decisions: what was decided, newest first, and how many by the hour.
import { html, useEffect, useState } from "/console/preact.js";
import { ask, moment, route, Said, Table } from "/console/daemon.js";

const FILTERS = { user: "User", rule: "Rule", region: "Region", address: "Address" };

function Chart({ rows }) {
  const most = Math.max(1, ...rows.map((row) => row.allowed + row.denied)), width = 800 / Math.max(rows.length, 24);
  const height = (count) => Math.round(count / most * 150);
  return html`<svg class="chart" viewBox="0 0 800 160" preserveAspectRatio="none" role="img" aria-label=${`Decisions by the hour, at most ${most}`}>
    ${rows.map((row, at) => html`<g><title>${row.at}: ${row.allowed} allowed, ${row.denied} denied</title>
      <rect class="good" x=${at * width} width=${width - 2} y=${160 - height(row.allowed + row.denied)} height=${height(row.allowed)}/>
      <rect class="bad" x=${at * width} width=${width - 2} y=${160 - height(row.denied)} height=${height(row.denied)}/></g>`)}</svg>
    <p class="soft ends"><span>${moment(rows[0].at)}</span><span>at most ${most} an hour; <span class="bad">denied</span>, <span class="good">allowed</span></span><span>${moment(rows.at(-1).at)}</span></p>`;
}

export function Decisions() {
  const [filters, setFilters] = useState({ outcome: "denied" }), [found, setFound] = useState(), [usage, setUsage] = useState(), [said, setSaid] = useState();
  const look = async (after) => {
    try {
      const { user, rule, region } = filters;
      const page = await ask("GET", route("/v1/audit", { ...filters, limit: 100, after }));
      setFound((before) => after ? { ...page, decisions: [...before.decisions, ...page.decisions].slice(0, 5000) } : page);
      if (!after) setUsage(await ask("GET", route("/v1/usage", { by: "hour", group: "time", from: "24h", user, rule, region })));
      setSaid();
    } catch (error) { setFound(); setUsage(); setSaid({ bad: error.message }); }
  };
  useEffect(() => { look(); }, []);
  const set = (name) => (event) => setFilters({ ...filters, [name]: event.target.value });
  return html`<main><section><h2>Decisions of the last day</h2>
    <form class="line" onSubmit=${(event) => { event.preventDefault(); look(); }}>
      ${Object.entries(FILTERS).map(([name, title]) => html`<label>${title} <input value=${filters[name] ?? ""} onInput=${set(name)}/></label>`)}
      <label>Outcome <select onChange=${set("outcome")}>${["denied", "shadow_denied", "allowed", "committed", ""].map((outcome) =>
        html`<option value=${outcome} selected=${filters.outcome === outcome}>${outcome ? outcome.replace("_", " ") : "any"}</option>`)}</select></label>
      <button>Look</button></form>
    <${Said} said=${said}/>
    ${usage?.rows.length > 0 && html`<${Chart} rows=${usage.rows}/>`}</section>
    ${found && html`<section><${Table} head=${["at", "outcome", "cause", "rule", "user", "address", "path", "region", "used"]} none="No decisions were recorded for this question."
      rows=${found.decisions.map((one) => [moment(one.at), html`<span class=${one.outcome === "allowed" ? "good" : "bad"}>${one.outcome}</span>`, one.cause ?? "", one.rule,
        one.user ?? one.api_key, one.ip, one.path, one.region, one.count == null ? "" : `${one.count} / ${one.limit}`])}/>
      ${found.next && html`<button onClick=${() => look(found.next)}>More</button>`}</section>`}</main>`;
}
