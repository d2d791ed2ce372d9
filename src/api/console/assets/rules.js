// Rules: what is in force, why a request is decided as it is, changes, and the way back.
import { html, useEffect, useState } from "/console/preact.js";
import { ask, because, List, moment, route, Said, span, Table, unheard } from "/console/daemon.js";

function limit(rule) {
  if (rule.limit == null) return rule.action;
  if (rule.hold != null) return `${rule.limit} at once, held ${rule.hold}`;
  return `${rule.limit}${rule.unit ? ` ${rule.unit}` : ""} / ${rule.calendar ?? rule.window ?? "no window"}`;
}

/* What would come of a request. */
function verdict(decision) {
  if (!decision.allowed) return `denied by ${decision.rule ?? "no rule"}${because(decision)}${unheard(decision)}`;
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

function History({ revision }) {
  const [history, setHistory] = useState(), [said, setSaid] = useState();
  useEffect(() => { ask("GET", route("/v1/rules/history", { limit: 20 })).then(setHistory, (error) => setSaid({ bad: error.message })); }, [revision]);
  const back = async (to, isTrial) => {
    try {
      const done = await ask("POST", route("/v1/rules/rollback", { dry_run: isTrial }), { revision: to });
      setSaid({ text: `${isTrial ? `Going back to ${to} would change` : `Revision ${done.revision} changed`}:\n${JSON.stringify(done.changes, null, 2)}` });
    } catch (error) { setSaid({ bad: error.message }); }
  };
  return html`<section><h2>History</h2>
    ${history && html`<${Table} head=${["revision", "at", "by", "action", "changed", "reason", "go back"]} none="Nothing was changed yet."
      rows=${history.history.map((one) => [one.revision, moment(one.at), one.actor, one.action, one.changes.map((change) => `${change.kind} ${change.rule}`).join(", "), one.reason,
        html`<button onClick=${() => back(one.revision, true)}>Compare</button><button onClick=${() => back(one.revision, false)}>Go back here</button>`])}/>`}
    <${Said} said=${said}/></section>`;
}

export function Rules({ revision }) {
  const [set, setSet] = useState({ rules: [] }), [search, setSearch] = useState(""), [text, setText] = useState(""), [chosen, setChosen] = useState(), [said, setSaid] = useState();
  // The rule as it was when it was chosen or saved: what is written here is a change of that. Without a text it is not seen yet.
  const [base, setBase] = useState({});
  const load = () => ask("GET", "/v1/rules").then(setSet, (error) => setSaid({ bad: error.message }));
  useEffect(() => { load(); }, [revision]);
  const written = (rule) => JSON.stringify(rule, null, 2);
  const choose = (rule) => { setChosen(rule.name); setText(written(rule)); setBase({ text: written(rule), revision: set.revision }); setSaid(); };
  const now = set.rules.find((rule) => rule.name === chosen);
  const isStale = base.text !== undefined && base.text !== (now && written(now));
  useEffect(() => { if (base.text === undefined && now && set.revision >= base.revision) setBase({ text: written(now), revision: set.revision }); }, [set, base]);
  const put = async (isTrial) => {
    let rule;
    try { rule = JSON.parse(text); } catch (error) { return setSaid({ bad: error.message }); }
    try {
      const done = await ask("PUT", route(`/v1/rules/${encodeURIComponent(rule.name ?? "")}`, { dry_run: isTrial }), { rule, revision: isStale ? base.revision : set.revision });
      if (!isTrial) setBase({ revision: done.revision });
      setSaid({ text: `${isTrial ? "This would change" : `Revision ${done.revision} changed`}:\n${JSON.stringify(done.changes, null, 2)}` });
    } catch (error) { setSaid({ bad: error.message }); }
  };
  const rules = set.rules.filter((rule) => rule.name.includes(search));
  return html`<main class="two"><section><h2>${rules.length} ${rules.length === 1 ? "rule" : "rules"}, revision ${set.revision}</h2>
    <input type="search" aria-label="Search rules" placeholder="Search by name" value=${search} onInput=${(event) => setSearch(event.target.value)}/>
    <${List} entries=${rules} chosen=${chosen} choose=${choose} more=${limit}/></section>
    <section><h2>${chosen ?? "Choose a rule"}</h2>
    ${isStale && html`<p role="status" class="bad">This rule was changed or removed meanwhile. Choose it again to see it as it is; what is written here is of revision ${base.revision}.</p>`}
    ${text && html`<textarea aria-label="The rule as JSON" spellcheck="false" value=${text} onInput=${(event) => setText(event.target.value)}></textarea>
      <button onClick=${() => put(true)}>Show what would change</button><button onClick=${() => put(false)}>Save</button>`}
    <${Said} said=${said}/></section><${Explain}/><${History} revision=${revision}/></main>`;
}
