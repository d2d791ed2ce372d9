// Identities: lists of users, API keys and tiers, and beside them the one that is chosen.
import { html, useEffect, useRef, useState } from "/console/preact.js";
import { ask, Choice, List, mayChangeRules, route, Said } from "/console/daemon.js";
import { isBlocked, Key, New, refused, Tier, User } from "/console/people.js";

const KINDS = { users: "Users", keys: "API keys", tiers: "Tiers" };
const ONE = { users: "user", keys: "key", tiers: "tier" };
const BLOCKED = { "": "all", true: "blocked", false: "not blocked" };
const REVOKED = { "": "all", true: "revoked", false: "not revoked" };
const PAGE = 100;

/* What a list says of an entry beside its name. */
const MORE = {
  users: ({ tier, blocked }) => html`${isBlocked(blocked) && html`<span class="bad">blocked</span>${" · "}`}${tier ?? "the default tier"}`,
  keys: (key) => html`${refused(key) && html`<span class="bad">${refused(key)}</span>${" · "}`}${[key.user ?? "nobody's", key.tier, key.note].filter(Boolean).join(" · ")}`,
  tiers: ({ description }) => description,
};

/* Tiers are few and come at once; of users and keys the daemon gives a page after the other. */
async function listed(kind, { search, tier, isSo }, after) {
  const state = { users: { blocked: isSo }, keys: { revoked: isSo } }[kind];
  const answer = await ask("GET", state ? route(`/v1/${kind}`, { search, tier, ...state, after, limit: PAGE }) : "/v1/tiers");
  const entries = answer[kind].map((entry) => ({ name: entry.id, ...entry }));
  const wanted = search.toLowerCase();
  return { entries: state ? entries : entries.filter(({ name, description }) => `${name} ${description}`.toLowerCase().includes(wanted)), next: answer.next };
}

export function Identities({ me }) {
  const [kind, setKind] = useState("users"), [search, setSearch] = useState(""), [tier, setTier] = useState(""), [isSo, setIsSo] = useState("");
  const [list, setList] = useState(), [tiers, setTiers] = useState([]), [chosen, setChosen] = useState(), [said, setSaid] = useState(), [life, setLife] = useState(0);
  // An answer to an earlier question may come after that to a later one.
  const turn = useRef(0), filter = { search: search.trim(), tier, isSo };
  const load = async (before) => {
    const own = ++turn.current;
    try {
      const page = await listed(kind, filter, before?.next);
      if (own !== turn.current) return;
      setList({ kind, ...page, entries: [...before?.entries ?? [], ...page.entries] });
      setSaid();
    } catch (error) { if (own === turn.current) { setList({ kind, entries: [] }); setSaid({ bad: error.message }); } }
  };
  useEffect(() => { const timer = setTimeout(load, 150); return () => clearTimeout(timer); }, [kind, search, tier, isSo, life]);
  useEffect(() => { ask("GET", "/v1/tiers").then(({ tiers }) => setTiers(tiers.map(({ name }) => name)), () => {}); }, [life]);
  const turnTo = (kind) => { setKind(kind); setChosen(); setIsSo(""); setTier(""); setSearch(""); setList(); };
  const shown = list?.kind === kind ? list : undefined, entries = shown?.entries ?? [], changed = () => setLife((life) => life + 1);
  const isFiltered = filter.search || tier || isSo, mayMake = kind === "keys" ? me?.role === "admin" : mayChangeRules(me);
  const look = (event) => { event.preventDefault(); if (kind === "users" && filter.search) setChosen(filter.search); };
  const common = { me, tiers, changed, close: () => setChosen() };
  const of = entries.find(({ name }) => name === chosen);
  return html`<main class="two"><section><h2>${KINDS[kind]}</h2><form class="line" onSubmit=${look}>
      <${Choice} title="List" choices=${KINDS} value=${kind} set=${turnTo}/>
      <label>${kind === "users" ? "Name or a part" : "Search"} <input type="search" placeholder=${kind === "keys" ? "key, user, note" : undefined} value=${search} onInput=${(event) => setSearch(event.target.value)}/></label>
      ${kind === "users" && html`<button>Look</button>`}
      ${kind !== "tiers" && html`<${Choice} title="Tier" choices=${{ "": "any", ...Object.fromEntries(tiers.map((name) => [name, name])) }} value=${tier} set=${setTier}/>
        <${Choice} title="Show" choices=${kind === "users" ? BLOCKED : REVOKED} value=${isSo} set=${setIsSo}/>`}
      ${mayMake && html`<button type="button" onClick=${() => setChosen("")}>New ${ONE[kind]}</button>`}</form>
    <p class="soft" role="status">${shown ? `${entries.length}${shown.next ? " or more" : ""} ${ONE[kind]}${entries.length === 1 ? "" : "s"}` : "Looking …"}</p>
    <${List} entries=${entries} chosen=${chosen} choose=${({ name }) => setChosen(name)} more=${MORE[kind]}
      none=${!shown || said ? "" : isFiltered ? `No ${ONE[kind]} is like that.` : `Nothing is kept of any ${ONE[kind]}.`}/>
    ${shown?.next && html`<button type="button" onClick=${() => load(shown)}>More</button>`}<${Said} said=${said}/></section>
    <section>${chosen === undefined ? html`<h2>Choose a ${ONE[kind]}</h2><p class="soft">${kind === "users" ? "Look shows the one that is typed, also where nothing is kept of it: its limits, what is left, and its keys." : kind === "keys" ? "A key is shown by its public name: the whole of it was shown once, when it was made." : "A rule may be for one tier, and a user or a key has one."}</p>`
      : chosen === "" ? html`<${New} key=${kind} kind=${kind} ...${common} made=${setChosen}/>`
      : kind === "users" ? html`<${User} key=${chosen} id=${chosen} ...${common}/>` : kind === "keys" ? html`<${Key} key=${chosen} id=${chosen} ...${common}/>`
      : of && html`<${Tier} key=${chosen} tier=${of} ...${common}/>`}</section></main>`;
}
