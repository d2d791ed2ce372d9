// World: regions, the links between them, and how exact worldwide limits are.
import { html, useState } from "/console/preact.js";
import { ask, ms, named, route, Table, useEach } from "/console/daemon.js";

const BUCKETS_MAX = 10;
/* More regions are named along their own direction, and their links without words: the table has those. */
const LEVEL_MAX = 16;

/* The buckets of worldwide rules that are asked for most, by what each region has used of them. */
function Uses({ rules, regions, own }) {
  const [rows, setRows] = useState([]);
  useEach(async () => {
    const hot = await ask("GET", route("/v1/hot", { by: "requests", limit: 200 })).catch(() => ({ buckets: [] }));
    const worldwide = hot.buckets.filter((row) => !row.long && rules.includes(row.rule)).slice(0, BUCKETS_MAX);
    const shown = await Promise.all(worldwide.map((row) => ask("GET", route("/v1/buckets", { ...row.identity, rule: row.rule })).catch(() => undefined)));
    setRows(shown.filter(Boolean));
  }, [rules.join("\n")]);
  const used = (bucket, region) => region === own ? bucket.used : bucket.world?.by_region?.[region] ?? "–";
  return html`<section><h2>Used of worldwide limits</h2><${Table} head=${["bucket", "limit", ...regions, "all", "error bound"]} none="No bucket of a worldwide rule was asked for of late."
    rows=${rows.map((bucket) => [`${bucket.rule} ${named(bucket.identity)}`, bucket.limit, ...regions.map((region) => used(bucket, region)), bucket.world?.others_used == null ? "–" : bucket.used + bucket.world.others_used, bucket.world?.error_bound ?? "–"])}/></section>`;
}

export function World({ regions }) {
  if (!regions) return html`<main><section>Waiting for the first update …</section></main>`;
  const all = [...new Set([regions.region, ...regions.configured, ...regions.peers.map((peer) => peer.region)])].sort();
  const turn = (name) => (all.indexOf(name) / all.length) * 2 * Math.PI - Math.PI / 2;
  // On an ellipse; names stand outside of it, so that no link runs through them.
  const at = (name, far = 0) => [400 + (230 + 1.5 * far) * Math.cos(turn(name)), 300 + (190 + far) * Math.sin(turn(name))];
  const label = (name, far) => { const [x, y] = at(name, far); return { x: Math.min(Math.max(x, 70), 730), y }; };
  const [ox, oy] = at(regions.region), own = label(regions.region, 48);
  const others = all.filter((name) => name !== regions.region).map((name) => {
    const peers = regions.peers.filter((peer) => peer.region === name);
    const up = peers.find((peer) => peer.connected && peer.live);
    return { name, up, bad: !up || regions.cut_off.includes(name), at: at(name), text: label(name, 40) };
  });
  const isMany = all.length > LEVEL_MAX, size = isMany ? 7 : 14;
  // Read from the inside to the outside on the right, the other way round on the left.
  const along = (name) => {
    const [x, y] = at(name, 14), isLeft = Math.cos(turn(name)) < -1e-9, degrees = turn(name) * 180 / Math.PI + (isLeft ? 180 : 0);
    return html`<text class=${isLeft ? "to" : "from"} x=${x} y=${y} transform=${`rotate(${degrees} ${x} ${y})`}>${name}</text>`;
  };
  return html`<main class="world">
    <section><h2>Regions, as ${regions.region} sees them</h2>
      <svg viewBox="0 0 800 600" role="img" aria-label="Regions and the links to them">
        ${others.map(({ at: [x, y], bad }) => html`<line x1=${ox} y1=${oy} x2=${x} y2=${y} class=${bad ? "bad" : ""}/>`)}
        ${!isMany && others.map(({ at: [x, y], bad, up }) => html`<text class=${bad ? "bad" : "soft"} x=${(ox + x) / 2} y=${(oy + y) / 2}>${bad ? "cut off" : ms(up.rtt_ms)}</text>`)}
        ${others.map(({ name, at: [x, y], bad, text }) => html`<g><circle cx=${x} cy=${y} r=${size} class=${bad ? "bad" : ""}/>
          ${isMany ? along(name) : html`<text x=${text.x} y=${text.y}>${name}</text>`}</g>`)}
        <circle cx=${ox} cy=${oy} r=${size + 4} class="own"/>${isMany ? along(regions.region) : html`<text x=${own.x} y=${own.y - 9}>${regions.region}</text>
        <text class="soft" x=${own.x} y=${own.y + 10}>this daemon</text>`}
      </svg></section>
    <section><h2>Links</h2><table><tr><th>region</th><th>node</th><th>state</th><th>round trip</th><th>lag</th><th>clock</th></tr>
      ${regions.peers.map((peer) => html`<tr><td>${peer.region}</td><td>${peer.node}</td>
        <td class=${peer.connected ? "good" : "bad"}>${regions.cut_off.includes(peer.region) ? "cut off" : peer.connected ? "connected" : peer.error ?? "not connected"}</td>
        <td>${ms(peer.rtt_ms)}</td><td>${ms(peer.lag_ms)}</td><td>${ms(peer.clock_ahead_ms)}</td></tr>`)}</table></section>
    <section><h2>Worldwide rules</h2><table><tr><th>rule</th><th>error bound</th><th>because of</th></tr>
      ${regions.rules.map((rule) => html`<tr><td>${rule.rule}</td><td>${rule.error_bound}</td><td>${rule.because}</td></tr>`)}</table></section>
    <${Uses} rules=${regions.rules.map((rule) => rule.rule)} regions=${all} own=${regions.region}/></main>`;
}
