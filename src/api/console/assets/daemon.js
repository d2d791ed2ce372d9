// The questions of pages to the daemon, and the parts that several of them show alike.
import { html, useEffect, useRef, useState } from "/console/preact.js";

export const KEY = "tidegate-token";
const ROW = 36;

/* Asks one route. A refusal is an error with the daemon's own words and its `status`. */
export async function ask(method, path, body, more = {}) {
  const headers = { ...more }, token = sessionStorage.getItem(KEY);
  if (token) headers.Authorization = `Bearer ${token}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const answer = await fetch(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
  if (path === "/v1/stream" && answer.ok) return answer;
  const said = await answer.json().catch(() => ({}));
  if (!answer.ok) throw Object.assign(new Error(said.error?.message ?? `the daemon answered ${answer.status}`), { status: answer.status });
  return said;
}

/* Reads the stream until it ends or `signal` aborts; a heartbeat that fails to come for 5 s ends it too. */
export async function read(on, isOver) {
  const reader = (await ask("GET", "/v1/stream")).body.getReader(), decoder = new TextDecoder();
  let text = "", timer;
  try {
    for (;;) {
      const late = new Promise((_, no) => { timer = setTimeout(() => no(new Error("the daemon is silent")), 5000); });
      const { done, value } = await Promise.race([reader.read(), late]);
      clearTimeout(timer);
      if (done || isOver()) return;
      text += decoder.decode(value, { stream: true });
      for (let end; (end = text.indexOf("\n\n")) >= 0; text = text.slice(end + 2)) {
        const event = /^event: (.*)\ndata: (.*)$/.exec(text.slice(0, end));
        on(event?.[1], event && JSON.parse(event[2]));
      }
    }
  } finally {
    clearTimeout(timer);
    reader.cancel().catch(() => {});
  }
}

/* True for who may change rules, shares and users: a viewer would be refused. */
export const mayChangeRules = (me) => me?.role === "operator" || me?.role === "admin";

/* A route with a query of those parameters that are given. */
export function route(path, parameters) {
  const given = Object.entries(parameters).filter(([, value]) => value != null && value !== "");
  return given.length ? `${path}?${new URLSearchParams(given)}` : path;
}

export const ms = (value) => (value == null ? "–" : `${value} ms`);

/* A length of time in words. */
export function span(millis) {
  if (millis < 1000) return `${millis} ms`;
  for (const [unit, length] of [["d", 864e5], ["h", 36e5], ["min", 6e4]]) if (millis >= length) return `${Math.round(millis / length * 10) / 10} ${unit}`;
  return `${Math.round(millis / 100) / 10} s`;
}

/* Why a rule denies, as a person reads it. */
export const causes = {
  used_up: "the limit is used up", elsewhere: "this region's part is used, what is left of the rest lies in other regions",
  not_agreed: "the regions have not agreed yet", burnt: "the store forgot what was spent", cut_off: "a region is cut off",
  degraded: "the store did not answer or had no room", penalty: "a penalty", blocked: "blocked", too_large: "more than can ever pass",
};

/* When a denial ends. No time ends one that lasts until the regions have agreed. */
const ends = (cause, retry) => cause === "not_agreed" ? "" : `; ${retry == null ? "until somebody changes that" : retry === 0 ? "free now" : `free in ${span(retry)}`}`;

/* The cause of a denial and when it ends, as one reads them after "denied by search". */
export const because = ({ cause, retry_after_ms: retry }) => `${cause ? `: ${causes[cause] ?? cause}` : ""}${ends(cause, retry)}`;

/* Said of an answer for which the store was not heard. */
export const unheard = ({ degraded }) => degraded ? ". The store does not answer: this is what the daemon knows by itself" : "";

/* Notices of these kinds mean that limits are not held as they are meant, or that a daemon is left out. */
const GRAVE = ["cut_off", "agreement", "burning", "refused", "twice"];
const STATES = { starting: "is starting", impaired: "is impaired: gateways should ask another", draining: "is draining: it ends soon" };

/* What is wrong now, a sentence each, in two lists: `bad` is to be mended at once. */
export function troubles({ regions, ready }) {
  const bad = [], warn = [], { rules } = ready ?? {};
  if (ready && ready.state !== "serving") bad.push(`This daemon ${STATES[ready.state] ?? `is ${ready.state}`}.`);
  for (const task of ready?.tasks_missing ?? []) bad.push(`The background task ${task} ended and does not start again: restart this daemon.`);
  if (rules?.problem) bad.push(`Rules: ${rules.problem}`);
  else if (rules?.reachable === false) bad.push(`The source of the rules (${rules.source}) does not answer: those of ${rules.from || "none"} are in force.`);
  if (rules?.unsaved) bad.push(`The rules in force are not saved on this machine, to start from while their source is away: ${rules.unsaved}`);
  if (ready && ready.store !== "ok") bad.push(...(ready.store_problems.length ? ready.store_problems : [`The store is ${ready.store}.`]));
  for (const { about, text } of regions?.notices ?? []) (GRAVE.includes(about) ? bad : warn).push(text);
  const untold = (kind, names) => names.length > 0 && !regions.notices.some(({ about }) => about === kind);
  const unseen = regions?.unseen ?? [], away = (regions?.cut_off ?? []).filter((name) => !unseen.includes(name));
  if (untold("cut_off", away)) bad.push(`Cut off: ${away.join(", ")}.`);
  if (untold("unseen", unseen)) warn.push(`Not heard yet: ${unseen.join(", ")}.`);
  return { bad, warn };
}

/* A moment as an operator reads it, in UTC to the second. */
export const moment = (text) => text?.replace("T", " ").replace(/\.\d+Z$|Z$/, "");

/* Names and values in a line, as in user=u_42, but those that are left out. */
export const named = (pairs, without = []) => Object.entries(pairs).filter(([name, value]) => value != null && !without.includes(name)).map(([name, value]) => `${name}=${value}`).join(" ");

/* Does it now and some time after each time that it was done, for as long as it is shown. */
export function useEach(doIt, changes, pause = 2000) {
  useEffect(() => {
    let over = false, timer;
    const again = async () => { await doIt(); if (!over) timer = setTimeout(again, pause); };
    again();
    return () => { over = true; clearTimeout(timer); };
  }, changes);
}

/* What came of a call: `bad` is an error. */
export const Said = ({ said }) => said && html`<pre role="status" class=${said.bad ? "bad" : ""}>${said.bad ?? said.text}</pre>`;

/* A table with these headings. A row is a list of cells, one without a value is "–"; or it has a `key`, its
   `cells`, and what stands `under` it. Where the screen is narrow each row is a card, and each cell says its
   heading. */
export const Table = ({ head, rows, none }) => rows.length ? html`<table class="rows" role="table"><thead role="rowgroup"><tr role="row">${head.map((name) => html`<th scope="col" role="columnheader">${name}</th>`)}</tr></thead>
  <tbody role="rowgroup">${rows.flatMap((row, place) => {
    const { key = place, cells = row, under } = row;
    const shown = html`<tr key=${key} role="row">${cells.map((cell, at) => html`<td role="cell" data-head=${head[at]}>${cell == null || cell === "" ? "–" : cell}</td>`)}</tr>`;
    return under ? [shown, html`<tr key=${`under ${key}`} class="under" role="row"><td role="cell" colspan=${head.length}>${under}</td></tr>`] : [shown];
  })}</tbody></table>` : html`<p class="soft">${none}</p>`;

/* A list of any length, of which only what is seen is drawn. `more` tells an entry, `none` that there is none. */
export function List({ entries, chosen, choose, more, none }) {
  const box = useRef(), [top, setTop] = useState(0);
  useEffect(() => box.current.style.setProperty("--rows", `${entries.length * ROW}px`), [entries.length]);
  const first = Math.max(0, Math.floor(Math.min(top, entries.length * ROW) / ROW) - 5), shown = entries.slice(first, first + 60);
  useEffect(() => { for (const row of box.current.querySelectorAll("button")) row.style.top = `${row.dataset.place * ROW}px`; });
  return html`<div class="list" ref=${box} tabindex="0" onScroll=${(event) => setTop(event.target.scrollTop)}>${!entries.length && html`<p class="soft">${none}</p>`}<div class="space">
    ${shown.map((entry, at) => html`<button key=${entry.name} data-place=${first + at} aria-pressed=${entry.name === chosen} onClick=${() => choose(entry)}>
      <span>${entry.name}</span><span class="soft">${more(entry)}</span></button>`)}</div></div>`;
}

/* Choices of a field, by their values. */
export const Choice = ({ title, choices, value, set }) => html`<label>${title} <select onChange=${(event) => set(event.target.value)}>${Object.entries(choices).map(([name, title]) =>
  html`<option value=${name} selected=${name === value}>${title}</option>`)}</select></label>`;

const TOLD_MAX = 200;

/* Changes of rules in the lines of `tidegate rules diff`; there may be more than are told. */
export function differences(changes, all = changes.length) {
  const told = changes.slice(0, TOLD_MAX).flatMap(({ rule, region, before, after, differences }) =>
    [`${before == null ? "+" : after == null ? "-" : "~"}${rule}${region ? ` in ${region}` : ""}`, ...differences.map((line) => `    ${line}`)]);
  return [...told, ...(all > Math.min(changes.length, TOLD_MAX) ? [`and ${all - Math.min(changes.length, TOLD_MAX)} more`] : [])].join("\n");
}

/* A change in two steps: first what it would do, then why it is made, and the click that makes it. `put` asks
   the daemon, for the revision that was looked at; `about` is what would be changed, so that another thing
   begins anew. `told` says what came of it; where no reason is kept `isReasoned` is false. */
export function Change({ name, about, put, done, told = ({ revision }) => `Revision ${revision} is in force.`, isReasoned = true }) {
  const [plan, setPlan] = useState(), [reason, setReason] = useState(""), [said, setSaid] = useState(), title = useRef(), button = useRef();
  useEffect(() => setPlan(), [about]);
  useEffect(() => title.current?.focus(), [plan]);
  const look = async () => {
    try { setPlan(await put({ dry_run: true })); setSaid(); } catch (error) { setSaid({ bad: error.message }); }
  };
  const make = async (event) => {
    event.preventDefault();
    try {
      const answer = await put({ reason }, plan.revision);
      setPlan(); setReason(""); setSaid({ text: told(answer) });
      done?.(answer);
    } catch (error) { setSaid({ bad: error.message }); }
  };
  const cancel = () => { setPlan(); setSaid(); setTimeout(() => button.current?.focus()); };
  const key = (event) => { if (event.key === "Escape") { event.stopPropagation(); cancel(); } };
  return html`${!plan && html`<button type="button" ref=${button} onClick=${look}>${name} …</button>`}
    ${plan && html`<form class="plan" aria-label=${name} onSubmit=${make} onKeyDown=${key}>
      <h3 ref=${title} tabindex="-1">${plan.changes.length ? `${name}: ${plan.changes.length} to change` : `${name}: nothing would change`}</h3>
      ${plan.changes.length > 0 && html`<pre>${differences(plan.changes)}</pre>${isReasoned && html`<label>Reason, kept in the history <input value=${reason} maxlength="1000" onInput=${(event) => setReason(event.target.value)}/></label>`}<button>${name}</button>`}
      <button type="button" onClick=${cancel}>Cancel</button></form>`}
    <${Said} said=${said}/>`;
}
