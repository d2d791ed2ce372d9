// Decisions: what was decided, newest first, and how many by the hour.
import { html, useEffect, useState } from "/console/preact.js";
import { ask, moment, route, Said, Table } from "/console/daemon.js";
import { useWhy } from "/console/hot.js";

const OUTCOMES = { "denied,blocked": "refused", denied: "denied by a limit", blocked: "blocked", throttled: "delayed", shadow_denied: "shadow denied", diverted: "told to use something else", allowed: "allowed", committed: "committed", "": "any" };
const FILTERS = { user: "User", rule: "Rule", region: "Region", address: "Address" };

const HOUR = 36e5;
const SHADES = { allowed: "good", committed: "good", throttled: "good", denied: "bad", blocked: "bad", shadow_denied: "warn", diverted: "warn" };

/* Each hour has its place, the oldest on the left, also where nothing was decided in it. */
function Chart({ usage: { rows, from, to } }) {
  const first = Math.floor(Date.parse(from) / HOUR), hours = Math.max(1, Math.floor(Date.parse(to) / HOUR) - first), width = 800 / hours;
  const left = (row) => (Math.floor(Date.parse(row.at) / HOUR) - first) * width, begin = (hour) => moment(new Date(hour * HOUR).toISOString());
  const most = Math.max(1, ...rows.map((row) => row.allowed + row.denied));
  const height = (count) => Math.round(count / most * 150);
  return html`<svg class="chart" viewBox="0 0 800 160" preserveAspectRatio="none" role="img" aria-label=${`Decisions by the hour, at most ${most}`}>
    ${rows.map((row) => html`<g><title>${row.at}: ${row.allowed} allowed${row.throttled ? ` (${row.throttled} delayed)` : ""}, ${row.denied} denied${row.blocked ? ` (${row.blocked} blocked)` : ""}</title>
      <rect class="good" x=${left(row)} width=${width - 2} y=${160 - height(row.allowed + row.denied)} height=${height(row.allowed)}/>
      <rect class="bad" x=${left(row)} width=${width - 2} y=${160 - height(row.denied)} height=${height(row.denied)}/></g>`)}</svg>
    <p class="soft ends"><span>${begin(first)}</span><span>at most ${most} an hour; <span class="bad">denied</span>, <span class="good">allowed</span></span><span>${begin(first + hours - 1)}</span></p>`;
}

export function Decisions() {
  const [filters, setFilters] = useState({ outcome: "denied,blocked" }), [found, setFound] = useState(), [usage, setUsage] = useState(), [said, setSaid] = useState();
  const look = async (after) => {
    try {
      const { user, rule, region } = filters;
      const page = await ask("GET", route("/v1/audit", { ...filters, limit: 100, after }));
      setFound((before) => after ? { ...page, decisions: [...before.decisions, ...page.decisions].slice(0, 5000) } : page);
      // No sums are kept by address: those of everybody would not be those of the address.
      if (!after) setUsage(filters.address ? { none: "There is no chart of one address: sums by the hour are kept by user, rule and region." }
        : await ask("GET", route("/v1/usage", { by: "hour", group: "time", from: "24h", user, rule, region })));
      setSaid();
    } catch (error) { setFound(); setUsage(); setSaid({ bad: error.message }); }
  };
  useEffect(() => { look(); }, []);
  const why = useWhy();
  // What stands in a record says whose it was; the rule has the bucket, also where that counts everybody. What blocks has none.
  const asked = ({ domain, rule, outcome, user, api_key, path }) => ({ domain, rule: outcome === "blocked" ? undefined : rule, user, api_key: user ? undefined : api_key, path });
  const canAsk = (one) => { const { domain, ...names } = asked(one); return Object.values(names).some(Boolean); };
  const key = (one, place) => `${one.at} ${place}`;
  const set = (name) => (event) => setFilters({ ...filters, [name]: event.target.value });
  return html`<main><section><h2>Decisions of the last day</h2>
    <form class="line" onSubmit=${(event) => { event.preventDefault(); look(); }}>
      ${Object.entries(FILTERS).map(([name, title]) => html`<label>${title} <input value=${filters[name] ?? ""} onInput=${set(name)}/></label>`)}
      <label>Outcome <select onChange=${set("outcome")}>${Object.entries(OUTCOMES).map(([outcome, title]) =>
        html`<option value=${outcome} selected=${filters.outcome === outcome}>${title}</option>`)}</select></label>
      <button>Look</button></form>
    <${Said} said=${said}/>
    ${usage && (usage.rows?.length ? html`<${Chart} usage=${usage}/>` : html`<p class="soft">${usage.none ?? "Nothing was decided in the last day."}</p>`)}</section>
    ${found && html`<section><${Table} head=${["at", "outcome", "cause", "rule", "user", "address", "path", "region", "used", "now"]} none="No decisions were recorded for this question."
      rows=${found.decisions.map((one, place) => ({ key: key(one, place), under: why.under(key(one, place)), cells: [moment(one.at), html`<span class=${SHADES[one.outcome] ?? ""}>${OUTCOMES[one.outcome] ?? one.outcome}</span>`, one.cause, one.rule,
        one.user ?? one.api_key, one.ip, one.path, one.region, one.count == null ? undefined : `${one.count} / ${one.limit}`,
        canAsk(one) && why.button(key(one, place), asked(one))] }))}/>
      ${found.next && html`<button onClick=${() => look(found.next)}>More</button>`}</section>`}</main>`;
}
