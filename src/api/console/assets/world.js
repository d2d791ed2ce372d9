// World: regions, the links between them, and how exact worldwide limits are.
import { html, useRef, useState } from "/console/preact.js";
import { ask, ms, named, route, Said, Table, useEach } from "/console/daemon.js";

const BUCKETS_MAX = 10;
/* More regions are named along their own direction, and their links without words: the table has those. */
const LEVEL_MAX = 16;
/* A table with a column for each of more regions stands below the map, not beside it. */
const BESIDE_MAX = 6;

const LEVELS = ["token_bucket", "leaky_bucket", "gcra"];

/* What this region and all together used of a bucket. A region's store is charged for what the others used of a level under gossip. */
function uses({ used, world, degraded }, rule) {
  if (degraded) return {};
  const isCharged = LEVELS.includes(rule.algorithm) && rule.global?.mode === "gossip";
  if (!isCharged || !world) return { own: used, all: world?.others_used == null ? undefined : used + world.others_used };
  const others = world.by_region && Object.values(world.by_region).reduce((sum, used) => sum + used, 0);
  return { own: others == null ? undefined : Math.max(0, used - others), all: used };
}

/* The buckets of worldwide rules that are asked for most, by what each region has used of them. */
function Uses({ rules, regions, own, revision }) {
  const [rows, setRows] = useState(), [said, setSaid] = useState(), known = useRef({});
  if (known.current.revision !== revision) known.current = { revision, rules: new Map() };
  useEach(async () => {
    const { rules: seen } = known.current;
    const one = async (row) => {
      if (!seen.has(row.rule)) seen.set(row.rule, (await ask("GET", `/v1/rules/${encodeURIComponent(row.rule)}`)).rule);
      const bucket = await ask("GET", route("/v1/buckets", { ...row.identity, rule: row.rule }));
      return { ...bucket, ...uses(bucket, seen.get(row.rule)) };
    };
    try {
      const hot = await ask("GET", route("/v1/hot", { by: "requests", limit: 200 }));
      const worldwide = hot.buckets.filter((row) => !row.long && rules.includes(row.rule)).slice(0, BUCKETS_MAX);
      setRows((await Promise.all(worldwide.map((row) => one(row).catch(() => undefined)))).filter(Boolean));
      setSaid();
    } catch (error) { setRows(); setSaid({ bad: error.message }); }
  }, [rules.join("\n"), revision]);
  return html`<section><h2>Used of worldwide limits</h2><${Said} said=${said}/>${rows && html`<${Table} head=${["bucket", "limit", ...regions, "all", "error bound"]} none="No bucket of a worldwide rule was asked for of late."
    rows=${rows.map((bucket) => [`${bucket.rule} ${named(bucket.identity)}`, bucket.limit, ...regions.map((region) => region === own ? bucket.own : bucket.world?.by_region?.[region]), bucket.all, bucket.world?.error_bound])}/>`}</section>`;
}

/* How a link to a daemon is, and how grave that is. */
function link(peer, { cut_off: away, unseen }) {
  if (unseen.includes(peer.region)) return ["bad", "not heard yet"];
  if (away.includes(peer.region)) return ["bad", "cut off"];
  if (!peer.connected) return ["bad", peer.error ?? "not connected"];
  return peer.draining ? ["warn", "draining"] : peer.live ? ["good", "connected"] : ["bad", "silent"];
}

export function World({ regions, revision }) {
  if (!regions) return html`<main><section>Waiting for the first update …</section></main>`;
  const all = [...new Set([regions.region, ...regions.configured, ...regions.peers.map((peer) => peer.region)])].sort();
  const turn = (name) => (all.indexOf(name) / all.length) * 2 * Math.PI - Math.PI / 2;
  // On an ellipse; names stand outside of it, so that no link runs through them.
  const at = (name, far = 0) => [400 + (230 + 1.5 * far) * Math.cos(turn(name)), 300 + (190 + far) * Math.sin(turn(name))];
  const label = (name, far) => { const [x, y] = at(name, far); return { x: Math.min(Math.max(x, 70), 730), y }; };
  const [ox, oy] = at(regions.region), own = label(regions.region, 60);
  const others = all.filter((name) => name !== regions.region).map((name) => {
    const peers = regions.peers.filter((peer) => peer.region === name);
    const up = peers.find((peer) => peer.connected && peer.live);
    const trouble = regions.unseen.includes(name) ? "not heard yet" : regions.cut_off.includes(name) ? "cut off" : up ? undefined : peers.length ? "not connected" : "not seen";
    return { name, up, trouble, bad: !up || regions.cut_off.includes(name), at: at(name), text: label(name, 52) };
  });
  const isMany = all.length > LEVEL_MAX, size = isMany ? 7 : 14;
  // Read from the inside to the outside on the right, the other way round on the left.
  const along = (name) => {
    const [x, y] = at(name, 14), isLeft = Math.cos(turn(name)) < -1e-9, degrees = turn(name) * 180 / Math.PI + (isLeft ? 180 : 0);
    return html`<text class=${isLeft ? "to" : "from"} x=${x} y=${y} transform=${`rotate(${degrees} ${x} ${y})`}>${name}</text>`;
  };
  return html`<main class=${all.length > BESIDE_MAX ? "world" : "world beside"}>
    <section><h2>Regions, as ${regions.region} sees them</h2>
      <svg class=${isMany ? "world" : "world few"} viewBox="0 0 800 600" role="img" aria-label="Regions and the links to them">
        ${others.map(({ at: [x, y], bad }) => html`<line x1=${ox} y1=${oy} x2=${x} y2=${y} class=${bad ? "bad" : ""}/>`)}
        ${!isMany && others.map(({ at: [x, y], bad, up, trouble }) => html`<text class=${bad ? "bad" : "soft"} x=${(ox + x) / 2} y=${(oy + y) / 2}>${trouble ?? ms(up.rtt_ms)}</text>`)}
        ${others.map(({ name, at: [x, y], bad, text }) => html`<g><circle cx=${x} cy=${y} r=${size} class=${bad ? "bad" : ""}/>
          ${isMany ? along(name) : html`<text x=${text.x} y=${text.y}>${name}</text>`}</g>`)}
        <circle cx=${ox} cy=${oy} r=${size + 4} class="own"/>${isMany ? along(regions.region) : html`<text x=${own.x} y=${own.y} dy="-.6em">${regions.region}</text>
        <text class="soft" x=${own.x} y=${own.y} dy=".7em">this daemon</text>`}
      </svg></section>
    <${Uses} rules=${regions.rules.map((rule) => rule.rule)} regions=${all} own=${regions.region} revision=${revision}/>
    <section><h2>Links</h2><${Table} head=${["region", "node", "state", "round trip", "lag", "clock"]} none="No other daemon is known."
      rows=${regions.peers.map((peer) => {
        const [grave, state] = link(peer, regions);
        return [peer.region, peer.node, html`<span class=${grave}>${state}</span>`, ms(peer.rtt_ms), ms(peer.lag_ms), ms(peer.clock_ahead_ms)];
      })}/></section>
    <section><h2>Worldwide rules</h2><${Table} head=${["rule", "error bound", "because of"]} none="No rule is worldwide."
      rows=${regions.rules.map((rule) => [rule.rule, rule.error_bound, rule.because])}/></section></main>`;
}
