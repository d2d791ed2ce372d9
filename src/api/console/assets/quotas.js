// Quotas: what each region may spend of a worldwide limit.
import { html, useEffect, useRef, useState } from "/console/preact.js";
import { ask, Change, Choice, List, mayChangeRules, route, Said } from "/console/daemon.js";

function Shares({ name, revision, changing, mayChange }) {
  const [quota, setQuota] = useState(), [shares, setShares] = useState({}), [said, setSaid] = useState(), path = `/v1/quotas/${encodeURIComponent(name)}`;
  // What somebody moves stays as it is, unless somebody else changed the shares meanwhile.
  const known = useRef();
  const load = () => ask("GET", path).then((quota) => {
    const found = JSON.stringify(quota.shares);
    if (found !== known.current) setShares(quota.shares);
    known.current = found;
    setQuota(quota); setSaid();
  }, (error) => setSaid({ bad: error.message }));
  useEffect(() => { load(); }, [revision]);
  if (!quota) return html`<h2>${name}</h2>${said ? html`<${Said} said=${said}/>` : html`<p class="soft">Waiting for its shares …</p>`}`;
  const most = Math.max(10, 2 * Math.max(...Object.values(quota.shares)));
  const sum = Object.values(shares).reduce((sum, weight) => sum + weight, 0);
  const put = (query, seen) => ask("PUT", route(path, query), { shares, minimums: quota.minimums, revision: seen ?? quota.revision });
  const heads = ["region", "weight", "share", "now"];
  return html`<h2>${name}</h2><p class="soft">${quota.mode}, ${quota.limit} in all regions together</p>
    <table class="rows" role="table"><thead role="rowgroup"><tr role="row">${heads.map((head) => html`<th scope="col" role="columnheader">${head}</th>`)}</tr></thead><tbody role="rowgroup">
    ${Object.keys(shares).sort().map((region) => html`<tr key=${region} role="row"><th scope="row" role="rowheader">${region}</th>
      <td role="cell" data-head="weight"><div class="weight"><input type="range" min="0" max=${most} aria-label=${`Weight of ${region}`} value=${shares[region]} disabled=${!mayChange}
        onInput=${(event) => setShares({ ...shares, [region]: Number(event.target.value) })}/>
        <input type="number" min="0" aria-label=${`Weight of ${region} as a number`} value=${shares[region]} disabled=${!mayChange}
        onInput=${(event) => setShares({ ...shares, [region]: Math.max(0, Math.trunc(Number(event.target.value)) || 0) })}/></div></td>
      <td role="cell" data-head="share">${sum ? `${Math.round(shares[region] / sum * 1000) / 10} %` : "–"}</td><td role="cell" data-head="now">${quota.permits[region] ?? "–"}</td></tr>`)}</tbody></table>
    ${mayChange ? html`<${Change} name="Save" about=${JSON.stringify(shares)} put=${put} done=${load}/>` : html`<p class="soft">To change them needs role operator.</p>`}
    ${changing && html`<p class="warn" role="status">${changing.waiting_for.length ? `New shares: waiting for ${changing.waiting_for.join(", ")}. The smaller ones hold.` : "New shares: everybody holds them; a larger one begins shortly."}</p>`}
    <${Said} said=${said}/>`;
}

const MODES = { "": "any", gossip: "gossip", split: "split", escrow: "escrow" };

export function Quotas({ revision, regions, me }) {
  const [rules, setRules] = useState(), [search, setSearch] = useState(""), [mode, setMode] = useState(""), [asked, setAsked] = useState(), [said, setSaid] = useState();
  useEffect(() => { ask("GET", "/v1/rules").then(({ rules }) => { setRules(rules.filter((rule) => rule.global)); setSaid(); }, (error) => setSaid({ bad: error.message })); }, [revision]);
  if (!rules) return html`<main><section>${said ? html`<${Said} said=${said}/>` : "Waiting for the rules …"}</section></main>`;
  if (!rules.length) return html`<main><section><h2>No rule is worldwide</h2><p class="soft">Each region enforces every limit on its own.</p></section></main>`;
  const shown = rules.filter((rule) => (!mode || rule.global.mode === mode) && rule.name.toLowerCase().includes(search.toLowerCase().trim()));
  const chosen = rules.some((rule) => rule.name === asked) ? asked : rules[0].name;
  return html`<main class="two"><section><h2>${shown.length === rules.length ? rules.length : `${shown.length} of ${rules.length}`} worldwide ${rules.length === 1 ? "rule" : "rules"}</h2>
      <form class="line" onSubmit=${(event) => event.preventDefault()}>
        <label>Search <input type="search" aria-label="Search worldwide rules" placeholder="Name" value=${search} onInput=${(event) => setSearch(event.target.value)}/></label>
        <${Choice} title="Mode" choices=${MODES} value=${mode} set=${setMode}/></form>
      <${List} entries=${shown} chosen=${chosen} choose=${(rule) => setAsked(rule.name)} more=${(rule) => `${rule.limit}, ${rule.global.mode}`} none="No worldwide rule is like that."/><${Said} said=${said}/></section>
    <section><${Shares} key=${chosen} name=${chosen} revision=${revision} mayChange=${mayChangeRules(me)} changing=${regions?.changing.find((changing) => changing.rule === chosen)}/></section></main>`;
}
