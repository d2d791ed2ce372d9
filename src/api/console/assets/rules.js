// Rules: what is in force, why a request is decided as it is, changes, and the way back.
import { html, useEffect, useMemo, useRef, useState } from "/console/preact.js";
import { ask, because, Change, Choice, differences, List, mayChangeRules, moment, route, Said, span, Table, unheard, useEach } from "/console/daemon.js";
import { Fields, fields, useSchemas } from "/console/form.js";
import { OfRule, rate } from "/console/hot.js";

function limit(rule) {
  if (rule.limit == null) return rule.action;
  if (rule.hold != null) return `${rule.limit} at once, held ${rule.hold}`;
  return `${rule.limit}${rule.unit ? ` ${rule.unit}` : ""} / ${rule.calendar ?? rule.window ?? "no window"}`;
}

/* What would come of a request. */
function verdict(decision) {
  if (!decision.allowed) return `denied by ${decision.rule ?? "no rule"}${because(decision)}${unheard(decision)}`;
  if (decision.use) return `allowed, but to use ${decision.use}: ${decision.rule} has nothing left for it${unheard(decision)}`;
  return decision.rule ? `allowed by ${decision.rule}: ${decision.remaining} of ${decision.limit} would be left, all again in ${span(decision.reset_ms)}${unheard(decision)}` : "allowed: no rule limits it";
}

/* Attributes as one writes them in a line: user=u_42 path=/search */
function attributes(text) {
  const pairs = text.trim().split(/\s+/).filter(Boolean).map((pair) => [pair.slice(0, pair.indexOf("=")), pair.slice(pair.indexOf("=") + 1)]);
  const wrong = pairs.findIndex(([name]) => !name);
  if (wrong >= 0) throw new Error("write attributes as name=value, with spaces between them");
  return Object.fromEntries(pairs);
}

function Explain() {
  const [text, setText] = useState(""), [domain, setDomain] = useState("default"), [told, setTold] = useState(), [said, setSaid] = useState();
  const explain = async (event) => {
    event.preventDefault();
    try {
      setTold(await ask("POST", "/v1/explain", { domain, attributes: attributes(text) }));
      setSaid();
    } catch (error) { setTold(); setSaid({ bad: error.message }); }
  };
  const decision = told?.decision;
  return html`<section><h2>What would be decided</h2><form class="line" onSubmit=${explain}>
      <label>Attributes <input value=${text} placeholder="user=u_42 path=/search" onInput=${(event) => setText(event.target.value)}/></label>
      <label>Domain <input value=${domain} onInput=${(event) => setDomain(event.target.value)}/></label><button>Explain</button></form>
    ${decision && html`<p role="status" class=${decision.allowed ? "good" : "bad"}>${verdict(decision)}</p>
      <${Table} head=${["rule", "outcome", "why"]} rows=${told.considered.map((rule) => [rule.rule, rule.outcome, rule.why])} none="The domain has no rules."/>`}
    <${Said} said=${said}/></section>`;
}

function History({ revision, mayChange }) {
  const [history, setHistory] = useState(), [said, setSaid] = useState(), [open, setOpen] = useState();
  useEffect(() => { ask("GET", route("/v1/rules/history", { limit: 20 })).then(setHistory, (error) => setSaid({ bad: error.message })); }, [revision]);
  const back = (to) => (query, seen) => ask("POST", route("/v1/rules/rollback", query), { revision: to }, seen === undefined ? {} : { "If-Match": `"${seen}"` });
  const short = ({ changes, changes_total: all }) => changes.slice(0, 3).map(({ rule, region }) => `${rule}${region ? ` in ${region}` : ""}`).join(", ") + (all > 3 ? ` and ${all - 3} more` : "");
  const row = (one) => ({
    key: one.revision,
    cells: [one.revision, moment(one.at), one.actor, one.action, short(one), one.reason,
      html`<button type="button" aria-expanded=${open === one.revision} onClick=${() => setOpen(open === one.revision ? undefined : one.revision)}>Look</button>`],
    under: open === one.revision && html`<pre>${differences(one.changes, one.changes_total)}</pre>
      ${mayChange && one.revision !== history.revision && html`<${Change} name=${`Go back to ${one.revision}`} about=${revision} put=${back(one.revision)}/>`}`,
  });
  return html`<section><h2>History</h2>
    ${history && html`<${Table} head=${["revision", "at", "by", "action", "changed", "reason", "look"]} none="Nothing was changed yet." rows=${history.history.map(row)}/>`}
    <${Said} said=${said}/></section>`;
}

const MODES = { "": "any", none: "each region alone", gossip: "gossip", split: "split", escrow: "escrow" };
const SHOWN = { "": "all", denied: "denied of late", log_only: "log only", off: "not enabled" };

/* What a rule is searched by: its names, its conditions, and what it counts by. */
const words = (rule) => [rule.name, rule.domain, rule.group, rule.unit, rule.action, rule.algorithm, ...Object.entries(rule.match).flatMap(([name, values]) => [values].flat().map((value) => `${name}=${value}`)), ...rule.per].join(" ").toLowerCase();

const NEW = { name: "", per: ["user"], limit: 100, window: "1m" };

/* The rule as a form with every field: it writes into the text, and shows what stands there. */
function Form({ text, setText, usual }) {
  const schemas = useSchemas(), [search, setSearch] = useState("");
  let rule;
  try { rule = JSON.parse(text); } catch { /* said below */ }
  if (!schemas) return html`<p class="soft">Waiting for the description of a rule …</p>`;
  if (schemas.problem) return html`<p class="bad">${schemas.problem}</p>`;
  if (rule === null || typeof rule !== "object" || Array.isArray(rule)) return html`<p class="bad">The text is no rule in JSON: mend it there, and the form is back.</p>`;
  const wanted = search.toLowerCase().trim(), { properties } = schemas.Rule;
  const names = fields(schemas.Rule, schemas).filter((name) => `${name} ${properties[name].description ?? ""}`.toLowerCase().includes(wanted));
  return html`<label class="find">Find a field <input type="search" value=${search} onInput=${(event) => setSearch(event.target.value)}/></label>
    ${!names.length && html`<p class="soft">No field is like that.</p>`}
    <${Fields} at="rule" schema=${schemas.Rule} schemas=${schemas} names=${names} value=${rule} usual=${usual} set=${(rule) => setText(JSON.stringify(rule, null, 2))}/>`;
}

/* One rule as it was written: what one changes is that, and nothing is saved that nobody wrote. */
function Rule({ name, revision, mayChange, usual, close }) {
  const path = `/v1/rules/${encodeURIComponent(name)}`;
  // As it is, as it was when its text was taken, and that text, which somebody may have changed.
  const [now, setNow] = useState(), [base, setBase] = useState(), [text, setText] = useState(), [said, setSaid] = useState(), [isForm, setForm] = useState(false);
  // Somebody may type while an answer is under way.
  const typed = useRef({});
  typed.current = { base, text };
  const written = (rule) => JSON.stringify(rule, null, 2);
  const load = async (isFresh) => {
    try {
      const { rule, revision } = await ask("GET", route(path, { written: true }));
      const found = { text: written(rule), revision };
      setNow(found);
      const { base, text } = typed.current;
      if (isFresh || !base || text === base.text) { setBase(found); setText(found.text); }
      setSaid();
    } catch (error) {
      if (error.status === 404) return setNow({});
      setSaid({ bad: error.message });
      // It decides all the same: so it is shown, with every default, and cannot be changed.
      if (!typed.current.base) ask("GET", path).then(({ rule }) => setNow({ shown: written(rule) }), () => {});
    }
  };
  useEffect(() => { if (name) load(); else if (text === undefined) { setBase({ text: "" }); setNow({ text: "" }); setText(written(NEW)); } }, [revision]);
  const isStale = name && base && now && base.text !== now.text, isGone = now && now.text === undefined && !now.shown;
  const put = (query, seen) => {
    const rule = JSON.parse(text), own = rule.name ?? name;
    if (!own) throw new Error("the rule needs a name");
    return ask("PUT", route(`/v1/rules/${encodeURIComponent(own)}`, query), { rule, revision: seen ?? (isStale ? base.revision : undefined) }, name ? {} : { "If-None-Match": "*" });
  };
  const remove = (query, seen) => ask("DELETE", route(path, query), undefined, seen === undefined ? {} : { "If-Match": `"${seen}"` });
  return html`<h2>${name || "A new rule"}</h2>
    ${isStale && html`<p role="status" class="bad">This rule was changed or removed meanwhile; what is written here is of revision ${base.revision}. <button type="button" onClick=${() => load(true)}>Show it as it is</button></p>`}
    ${text !== undefined && html`<textarea aria-label="The rule as JSON" spellcheck="false" readonly=${!mayChange} value=${text} onInput=${(event) => setText(event.target.value)}></textarea>
      ${mayChange && html`<details open=${isForm} onToggle=${(event) => setForm(event.currentTarget.open)}><summary>Every field, as a form</summary>${isForm && html`<div class="all"><${Form} text=${text} setText=${setText} usual=${usual}/></div>`}</details>`}
      ${mayChange ? html`<${Change} name="Save" about=${text} put=${async (...asked) => put(...asked)} done=${() => name ? load(true) : close(JSON.parse(text).name)}/>
        ${name && !isGone && html`<${Change} name="Remove" about=${name} put=${remove} done=${() => close()}/>`}` : html`<p class="soft">To change it needs role operator.</p>`}`}
    ${text === undefined && now?.shown && html`<pre tabindex="0">${now.shown}</pre>`}
    <${Said} said=${said}/>
    ${name && !isGone && html`<h3>Denied most of late</h3><${OfRule} rule=${name}/>`}`;
}

export function Rules({ revision, me }) {
  const [set, setSet] = useState({ rules: [] }), [search, setSearch] = useState(""), [mode, setMode] = useState(""), [show, setShow] = useState(""), [chosen, setChosen] = useState(), [said, setSaid] = useState();
  const [denied, setDenied] = useState({});
  const mayChange = mayChangeRules(me);
  useEffect(() => { ask("GET", "/v1/rules").then((set) => { setSet(set); setSaid(); }, (error) => setSaid({ bad: error.message })); }, [revision]);
  // Counts of late halve every half minute: more often says nothing more.
  useEach(() => ask("GET", route("/v1/hot", { by: "denied", limit: 1000 })).then(({ rules, span_ms: span }) =>
    setDenied(Object.fromEntries(rules.filter((row) => row.denied).map((row) => [row.rule, rate(row.denied, span)]))), () => setDenied({})), [], 10_000);
  const searched = useMemo(() => set.rules.map(words), [set]);
  const wanted = search.toLowerCase().split(/\s+/).filter(Boolean);
  const shows = { denied: (rule) => denied[rule.name], log_only: (rule) => rule.action === "log_only", off: (rule) => !rule.enabled };
  let rules = set.rules.filter((rule, place) => (!mode || (rule.global?.mode ?? "none") === mode) && (!show || shows[show](rule)) && wanted.every((word) => searched[place].includes(word)));
  if (show === "denied") rules = rules.sort((a, b) => denied[b.name] - denied[a.name]);
  const many = rules.length === set.rules.length ? `${rules.length}` : `${rules.length} of ${set.rules.length}`;
  return html`<main class="two"><section><h2>${many} ${set.rules.length === 1 ? "rule" : "rules"}, revision ${set.revision}</h2>
    <form class="line" onSubmit=${(event) => event.preventDefault()}>
      <label>Search <input type="search" aria-label="Search rules" placeholder="name, path=/search, user …" value=${search} onInput=${(event) => setSearch(event.target.value)}/></label>
      <${Choice} title="Worldwide" choices=${MODES} value=${mode} set=${setMode}/><${Choice} title="Show" choices=${SHOWN} value=${show} set=${setShow}/>
      ${mayChange && html`<button type="button" onClick=${() => setChosen("")}>New rule</button>`}</form>
    <${List} entries=${rules} chosen=${chosen} choose=${(rule) => setChosen(rule.name)} none=${set.rules.length ? "No rule is like that." : "No rules are in force: everything passes."}
      more=${(rule) => html`${denied[rule.name] && html`<span class=${rule.action === "log_only" ? "warn" : "bad"}>${denied[rule.name]} denied/s</span>${" · "}`}${rule.enabled ? limit(rule) : "not enabled"}`}/><${Said} said=${said}/></section>
    <section>${chosen === undefined ? html`<h2>Choose a rule</h2><p class="soft">It is shown as it was written, with who is denied by it and why.</p>`
      : html`<${Rule} key=${chosen} name=${chosen} revision=${revision} mayChange=${mayChange} close=${setChosen} usual=${set.rules.find((rule) => rule.name === chosen)}/>`}</section>
    <${Explain}/><${History} revision=${revision} mayChange=${mayChange}/></main>`;
}
