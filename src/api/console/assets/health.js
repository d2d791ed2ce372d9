// Health: this daemon, its store, and what it would have an operator know.
import { html } from "/console/preact.js";
import { ms, span, Table, troubles } from "/console/daemon.js";

/* The newest trouble of a server, which may be over. */
const trouble = ({ error, error_age_ms: age, warning }) => error ? `${error}, ${span(age)} ago` : warning ?? "none";

export function Health({ regions, ready }) {
  if (!regions || !ready) return html`<main><section>Waiting for the first update …</section></main>`;
  const { store } = regions, { rules } = ready, { bad, warn } = troubles({ regions, ready });
  return html`<main><section><h2>This daemon</h2><table>
      <tr><th>state</th><td class=${ready.ready ? "good" : "bad"}>${ready.state}</td></tr>
      <tr><th>region and node</th><td>${regions.region}/${regions.node}</td></tr><tr><th>revision of the rules</th><td>${ready.revision}${rules.refused_revision != null && html`<span class="bad">, not ${rules.refused_revision}</span>`}</td></tr>
      <tr><th>rules come from</th><td class=${rules.reachable ? "" : "bad"}>${rules.source}${rules.reachable ? "" : ", which does not answer"}${rules.from && rules.from !== rules.source ? ` (in force: ${rules.from})` : ""}</td></tr></table></section>
    <section><h2>Store</h2><p class=${store.state === "ok" ? "good" : "bad"}>${store.backend}: ${store.state}</p>
      ${store.problems.map((text) => html`<p class="bad">${text}</p>`)}
      ${store.servers.length > 0 && html`<${Table} head=${["server", "role", "breaker", "round trip", "trouble"]}
        rows=${store.servers.map((server) => [server.address, server.role, server.breaker, ms(server.rtt_ms && Math.round(server.rtt_ms * 100) / 100), trouble(server)])}/>`}</section>
    <section><h2>Notices</h2>${bad.map((text) => html`<p class="bad">${text}</p>`)}${warn.map((text) => html`<p class="warn">${text}</p>`)}
      ${ready.warnings.map((text) => html`<p class="warn">${text}</p>`)}
      ${!bad.length && !warn.length && !ready.warnings.length && html`<p class="soft">None.</p>`}</section></main>`;
}
