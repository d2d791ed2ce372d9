// Quotas: what each region may spend of a worldwide limit.
import { html, useEffect, useState } from "/console/preact.js";
import { ask, route, Said } from "/console/daemon.js";

function Shares({ quota, changing, reload }) {
  const [shares, setShares] = useState(quota.shares), [said, setSaid] = useState();
  useEffect(() => setShares(quota.shares), [quota]);
  const most = Math.max(10, 2 * Math.max(...Object.values(quota.shares)));
  const sum = Object.values(shares).reduce((sum, weight) => sum + weight, 0);
  const put = async (isTrial) => {
    try {
      const done = await ask("PUT", route(`/v1/quotas/${encodeURIComponent(quota.rule)}`, { dry_run: isTrial }), { shares, minimums: quota.minimums, revision: quota.revision });
      setSaid({ text: isTrial ? `This would change ${done.changes.length === 1 ? "the rule" : "nothing"}.` : `Revision ${done.revision} has the new shares.` });
      if (!isTrial) reload();
    } catch (error) { setSaid({ bad: error.message }); }
  };
  return html`<section><h2>${quota.rule}</h2><p class="soft">${quota.mode}, ${quota.limit} in all regions together</p>
    <table><thead><tr><th scope="col">region</th><th scope="col">weight</th><th scope="col">share</th><th scope="col">now</th></tr></thead><tbody>
    ${Object.keys(shares).sort().map((region) => html`<tr><th scope="row">${region}</th>
      <td><div class="weight"><input type="range" min="0" max=${most} aria-label=${`Weight of ${region}`} value=${shares[region]}
        onInput=${(event) => setShares({ ...shares, [region]: Number(event.target.value) })}/>
        <input type="number" min="0" aria-label=${`Weight of ${region} as a number`} value=${shares[region]}
        onInput=${(event) => setShares({ ...shares, [region]: Math.max(0, Math.trunc(Number(event.target.value)) || 0) })}/></div></td>
      <td>${sum ? `${Math.round(shares[region] / sum * 1000) / 10} %` : "–"}</td><td>${quota.permits[region] ?? "–"}</td></tr>`)}</tbody></table>
    <button onClick=${() => put(true)}>Check</button><button onClick=${() => put(false)}>Save</button>
    ${changing && html`<p class="warn" role="status">${changing.waiting_for.length ? `New shares: waiting for ${changing.waiting_for.join(", ")}. The smaller ones hold.` : "New shares: everybody holds them; a larger one begins shortly."}</p>`}
    <${Said} said=${said}/></section>`;
}

export function Quotas({ revision, regions }) {
  const [quotas, setQuotas] = useState(), [said, setSaid] = useState();
  const load = async () => {
    try {
      const { rules } = await ask("GET", "/v1/rules");
      const worldwide = rules.filter((rule) => rule.global).slice(0, 50);
      setQuotas(await Promise.all(worldwide.map((rule) => ask("GET", `/v1/quotas/${encodeURIComponent(rule.name)}`))));
      setSaid();
    } catch (error) { setSaid({ bad: error.message }); }
  };
  useEffect(() => { load(); }, [revision]);
  return html`<main>${quotas?.map((quota) => html`<${Shares} key=${quota.rule} quota=${quota} reload=${load}
      changing=${regions?.changing.find((changing) => changing.rule === quota.rule)}/>`)}
    ${!quotas && !said && html`<section>Waiting for the rules …</section>`}
    ${quotas?.length === 0 && html`<section><p class="soft">No rule is worldwide.</p></section>`}
    ${said && html`<section><${Said} said=${said}/></section>`}</main>`;
}
