// Overview: whether all is well, who is limited and why, and what changed.
import { html, useState } from "/console/preact.js";
import { ask, moment, named, route, Said, Table, troubles, useEach } from "/console/daemon.js";
import { rate, useWhy } from "/console/hot.js";
import { Rates } from "/console/rates.js";

/* Rows of a list; the pages behind it have more. */
const ROWS_MAX = 8;
const NAMES_MAX = 3;

const list = (names) => names.slice(0, NAMES_MAX).join(", ") + (names.length > NAMES_MAX ? ` and ${names.length - NAMES_MAX} more` : "");

const count = (list, word) => `${list.length} ${word}${list.length === 1 ? "" : "s"}`;

/* How things stand, and each trouble with its sentence. */
function State({ regions, ready, link }) {
  const { bad, warn } = troubles({ regions, ready });
  if (link?.problem) bad.unshift("No updates come from this daemon: what stands here is old.");
  warn.push(...ready.warnings);
  const away = [...new Set([...regions.configured, ...regions.peers.map((peer) => peer.region)])].filter((region) => region !== regions.region);
  const isHeard = (region) => regions.peers.some((peer) => peer.region === region && peer.connected && peer.live);
  const heard = away.filter(isHeard), unheard = away.filter((region) => !isHeard(region));
  return html`<section class="wide"><h2>${bad.length ? html`<span class="bad">${count(bad, "alarm")}</span>` : warn.length ? html`<span class="warn">No alarm, ${count(warn, "notice")}</span>` : html`<span class="good">All is well</span>`}</h2>
    ${bad.map((text) => html`<p class="bad">${text}</p>`)}${warn.map((text) => html`<p class="warn">${text}</p>`)}
    <p class="soft">${regions.region}/${regions.node} is ${ready.state}, with revision ${ready.revision} of the rules; the store (${regions.store.backend}) is ${regions.store.state}.${
      heard.length > 0 && ` Connected: ${list(heard)}.`}${unheard.length > 0 && ` Not connected: ${list(unheard)}.`} <a href="#health">Health</a></p></section>`;
}

/* Rules that deny, of which no bucket stands in the list: they have none, or too many. */
function beside({ rules, buckets, span_ms }) {
  const others = rules.filter((rule) => rule.denied && !rule.shadow && !buckets.some((bucket) => bucket.rule === rule.rule));
  return others.length > 0 && html`<p>Denied, too: ${list(others.map((rule) => `${rule.rule} ${rate(rule.denied, span_ms)}/s`))}.</p>`;
}

/* The heaviest buckets by one of the counts, each with the reason for which it is limited. */
function Heaviest({ by, title, none, hint }) {
  const [hot, setHot] = useState(), [said, setSaid] = useState(), why = useWhy();
  useEach(() => ask("GET", route("/v1/hot", { by, limit: ROWS_MAX })).then((found) => { setHot(found); setSaid(); }, (error) => { setHot(); setSaid({ bad: error.message }); }), [by], 4000);
  const key = (row) => JSON.stringify([row.rule, row.identity, row.long]);
  const whose = (row) => html`${row.rule} ${row.long ? "(long values)" : named(row.identity) || "everybody"}${row.shadow && html` <span class="warn">log only</span>`}`;
  return html`<section><h2>${title}</h2><${Said} said=${said}/>${hot && html`${why.apart(hot.buckets.map(key))}<${Table} head=${["bucket", "denied/s", "requests/s", "ask"]} none=${none}
    rows=${hot.buckets.map((row) => ({ key: key(row), under: why.under(key(row)), cells: [whose(row), html`<span class=${row.shadow ? "warn" : row.denied ? "bad" : ""}>${rate(row.denied, hot.span_ms)}</span>`,
      rate(row.requests, hot.span_ms), !row.long && why.button(key(row), { ...row.identity, domain: row.domain, rule: row.rule })] }))}/>${hint?.(hot)}`}</section>`;
}

/* One line for each change of rules and shares, and of everything else. */
const ofRules = ({ at, actor, action, reason, revision, changes, changes_total: total }) => {
  const names = [...new Set(changes.map(({ rule, region }) => region ? `${rule} in ${region}` : rule))];
  const more = total > changes.length ? `, ${total} in all` : "";
  return { at, actor, reason, what: `${list(names) || "nothing"}${more} (${action}, revision ${revision})` };
};
const ofOthers = ({ at, actor, action, target, reason }) => ({ at, actor, reason, what: `${target} (${action})` });

function Changes({ revision }) {
  const [told, setTold] = useState();
  useEach(async () => {
    const asked = [["/v1/rules/history", "history", ofRules], ["/v1/changes", "changes", ofOthers]];
    const answers = await Promise.allSettled(asked.map(([path]) => ask("GET", route(path, { limit: ROWS_MAX }))));
    const rows = answers.flatMap(({ value }, place) => value?.[asked[place][1]].map(asked[place][2]) ?? []);
    rows.sort((one, other) => Date.parse(other.at) - Date.parse(one.at));
    setTold({ rows: rows.slice(0, ROWS_MAX), problems: [...new Set(answers.flatMap(({ reason }) => reason?.message ?? []))] });
  }, [revision], 10000);
  return html`<section class="changes"><h2>What changed</h2>${told?.problems.map((text) => html`<${Said} said=${{ bad: text }}/>`)}
    ${told && (told.rows.length > 0 || !told.problems.length) && html`<${Table} head=${["at", "what", "by", "reason"]} none="Nothing was changed yet."
      rows=${told.rows.map(({ at, what, actor, reason }) => [moment(at), what, actor, reason])}/>`}</section>`;
}

export function Overview({ regions, ready, link, revision }) {
  if (!regions || !ready) return html`<main><section>Waiting for the first update …</section></main>`;
  return html`<main class="overview"><${State} regions=${regions} ready=${ready} link=${link}/><${Rates}/>
    <${Heaviest} by="denied" title="Who is limited" none="No bucket was denied of late." hint=${beside}/>
    <${Heaviest} by="requests" title="Who asks most" none="No bucket was charged of late."/>
    <${Changes} revision=${revision}/></main>`;
}
