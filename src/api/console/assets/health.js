// Health: this daemon, its store, and what it would have an operator know.
import { html } from "/console/preact.js";

export function Health({ regions, ready }) {
  if (!regions || !ready) return html`<main><section>Waiting for the first update …</section></main>`;
  const { store } = regions;
  return html`<main><section><h2>This daemon</h2><table>
      <tr><th>state</th><td class=${ready.ready ? "good" : "bad"}>${ready.state}</td></tr>
      <tr><th>region and node</th><td>${regions.region}/${regions.node}</td></tr><tr><th>revision of the rules</th><td>${ready.revision}</td></tr></table></section>
    <section><h2>Store</h2><p class=${store.state === "ok" ? "good" : "bad"}>${store.backend}: ${store.state}</p>
      ${store.problems.map((text) => html`<p class="bad">${text}</p>`)}
      <table>${store.servers.map((server) => html`<tr><td>${server.address}</td><td>${server.role}</td><td>${server.breaker}</td><td>${server.error ?? server.warning}</td></tr>`)}</table></section>
    <section><h2>Notices</h2>${regions.notices.map((notice) => html`<p class="warn">${notice.about}: ${notice.text}</p>`)}
      ${ready.warnings.map((text) => html`<p class="warn">${text}</p>`)}
      ${!regions.notices.length && !ready.warnings.length && html`<p class="soft">None.</p>`}</section></main>`;
}
