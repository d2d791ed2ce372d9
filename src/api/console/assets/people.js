// One user, API key or tier: how it stands, and the forms that make, change, block and remove it.
import { html, useEffect, useState } from "/console/preact.js";
import { ask, Change, mayChangeRules, moment, route, Said, span, Table } from "/console/daemon.js";
import { Fields, useSchemas } from "/console/form.js";

const own = (overrides) => Object.entries(overrides ?? {}).map(([rule, limit]) => `${rule}: ${ofOne(limit)}`).join("; ");
const ofOne = ({ limit, burst }) => `${limit ?? "no limit"}${burst != null && burst !== limit ? `, ${burst} at once` : ""}`;

/* True while a block holds: one that is over is kept until somebody changes it. */
export const isBlocked = (block) => block != null && (block.until == null || new Date(block.until) > new Date());

/* How a block stands, in words. */
const blocked = (block) => isBlocked(block) ? `until ${moment(block.until) ?? "somebody unblocks it"}${block.reason ? `: ${block.reason}` : ""}` : "no";

/* Why a key is refused; nothing where it is not. */
export const refused = (key) => key.revoked_at ? `revoked ${moment(key.revoked_at)}` : !key.active ? "not active" : key.expires_at && new Date(key.expires_at) <= new Date() ? "expired" : undefined;

const words = (value) => value == null || value === "" ? "none" : value === true ? "yes" : value === false ? "no" : String(value);
const flat = (record) => Object.fromEntries(Object.entries(record ?? {}).flatMap(([field, value]) => field === "overrides" ? Object.entries(value ?? {}).map(([rule, limit]) => [`limit of ${rule}`, ofOne(limit)]) : [[field, value]]));

/* The lines of what would be another than it is. */
function lines(before, after) {
  const [was, is] = [flat(before), flat(after)];
  return [...new Set([...Object.keys(was), ...Object.keys(is)])].filter((field) => words(was[field]) !== words(is[field])).map((field) => `${field}: ${words(was[field])} → ${words(is[field])}`);
}

/* What is asked of the daemon: of the fields that a form has, those that are not as they were. One that has a
   default of null is emptied by null. */
function changed(schema, names, before, now) {
  const same = (name) => JSON.stringify(before[name]) === JSON.stringify(now[name]);
  const empty = ({ default: usual, type }) => usual === null ? null : [type].flat().includes("object") ? {} : [type].flat().includes("string") ? "" : null;
  return Object.fromEntries(names.filter((name) => !same(name)).map((name) => [name, now[name] ?? empty(schema.properties[name])]));
}

/* A record as a form has it: without what is not there, and without a burst that is the limit, which nobody
   wrote. */
function written(record, names) {
  const limits = Object.entries(record?.overrides ?? {}).map(([rule, { limit, burst }]) => [rule, burst === limit ? { limit } : { limit, burst }]);
  const all = { ...record, overrides: limits.length ? Object.fromEntries(limits) : undefined };
  return Object.fromEntries(names.filter((name) => all[name] != null && all[name] !== "").map((name) => [name, all[name]]));
}

/* A plan of one change, as `Change` shows it. */
const plan = (what, before, after, differences) => ({ changes: before && after && !differences.length ? [] : [{ rule: what, before, after, differences }] });

/* A form that changes a record, of the schema of that name. Where there is no record it makes one. */
function Edit({ what, kind, without, record, send, done, told, isReasoned, suggest }) {
  const schemas = useSchemas(), schema = schemas?.[kind], names = Object.keys(schema?.properties ?? {}).filter((name) => !without.includes(name));
  const [now, setNow] = useState(), before = written(record, names), value = now ?? before;
  // What somebody else changed meanwhile is shown, unless it would be in place of what is typed.
  useEffect(() => setNow(), [JSON.stringify(record)]);
  if (!schema) return schemas?.problem ? html`<p class="bad">${schemas.problem}</p>` : html`<p class="soft">Waiting for the description of its fields …</p>`;
  const body = changed(schema, names, before, value), name = typeof what === "function" ? what(value) : what;
  const put = async (query) => {
    const shown = Object.fromEntries(Object.keys(body).map((field) => [field, record?.[field]]));
    return query.dry_run ? plan(name, record && shown, {}, lines(shown, body)) : send(query.reason ? { ...body, reason: query.reason } : body);
  };
  return html`<${Fields} key=${JSON.stringify(record)} at=${kind} schema=${schema} schemas=${schemas} names=${names} value=${value} set=${setNow} suggest=${suggest}/>
    <${Change} name=${record ? "Save" : "Make"} about=${JSON.stringify(body)} put=${put} told=${told} isReasoned=${isReasoned} done=${done}/>`;
}

/* What keeps being said after what it is about was loaded anew. */
const DONE = () => "Done.";

/* A change of one thing that no form is needed for. */
const Act = ({ name, plan, send, done, isReasoned }) => html`<${Change} name=${name} about=${name} put=${async ({ dry_run: isLook, reason }) => isLook ? plan() : send(reason || null)} told=${DONE} isReasoned=${isReasoned} done=${done}/>`;

const Facts = ({ facts }) => html`<table><tbody>${facts.map(([name, value, grave]) => html`<tr><th scope="row">${name}</th><td class=${grave ?? ""}>${value ?? "–"}</td></tr>`)}</tbody></table>`;

function Block({ id, user, send, done }) {
  const schemas = useSchemas(), [value, setValue] = useState({});
  if (!schemas?.BlockBody) return null;
  const put = async ({ dry_run: isLook, reason }) => {
    const until = `until ${value.until ? `${value.until}${/^\d{4}-/.test(value.until) ? "" : " from now"}` : "somebody unblocks it"}`;
    if (!isLook) return send("/block", { ...value, reason: reason || null });
    return plan(`user ${id}`, user, {}, [`blocked: ${blocked(user?.blocked)} → ${until}`]);
  };
  return html`<h3>Block</h3><${Fields} at="block" schema=${schemas.BlockBody} schemas=${schemas} names=${["until"]} value=${value} set=${setValue}/>
    <${Change} name="Block" about=${JSON.stringify(value)} put=${put} told=${DONE} done=${done}/>`;
}

/* Rules count a user also of whom nothing is kept, and where there is no database to keep it in. */
export function User({ id, me, tiers, changed, close }) {
  const [user, setUser] = useState(), [keys, setKeys] = useState(), [usage, setUsage] = useState(), [said, setSaid] = useState();
  const path = `/v1/users/${encodeURIComponent(id)}`;
  const load = async () => {
    const kept = ask("GET", path).then(({ user }) => { setUser(user); setSaid(); }, (error) => {
      setUser(null);
      setSaid(error.status === 404 ? { text: `Nothing is kept of ${id}: it has the default tier and no limits of its own.` } : { bad: error.message });
    });
    const keys = ask("GET", route("/v1/keys", { user: id, limit: 100 })).then(setKeys, () => setKeys());
    const usage = ask("GET", route("/v1/usage", { user: id })).then(setUsage, (error) => setUsage({ problem: error.message }));
    await Promise.all([kept, keys, usage]);
  };
  useEffect(() => { load(); }, [id]);
  const done = () => { load(); changed(); };
  const send = (action, body) => ask("POST", path + action, body);
  const gone = async () => plan(`user ${id}`, user, null, ["and this user's keys:", ...(keys?.keys ?? []).map((key) => key.id), ...(keys?.next ? ["and more"] : [])].slice(keys?.keys.length ? 0 : 1));
  if (user === undefined) return html`<h2>${id}</h2><p class="soft">Looking …</p>`;
  return html`<h2>${id}</h2>
    ${user && html`<${Facts} facts=${[["tier", user.tier ?? "the default"], ["limits of its own", own(user.overrides) || "none"],
      ["blocked", blocked(user.blocked), isBlocked(user.blocked) ? "bad" : "good"], ...(user.created_at ? [["made", moment(user.created_at)]] : []), ["last seen", moment(user.last_seen_at)]]}/>`}
    <${Said} said=${said}/>
    ${mayChangeRules(me) && (isBlocked(user?.blocked) ? html`<${Act} name="Unblock" send=${(reason) => send("/unblock", { reason })} done=${done} plan=${async () => plan(`user ${id}`, user, {}, [`blocked: ${blocked(user.blocked)} → no`])}/>`
      : html`<${Block} id=${id} user=${user} send=${send} done=${done}/>`)}
    <${Left} id=${id} usage=${usage}/>
    ${keys && (user || keys.keys.length > 0) && html`<h3>Keys</h3><div class="cards"><${Table} head=${["key", "tier", "may be used", "note", "expires", "last seen"]} none="The user has no keys."
      rows=${keys.keys.map((key) => [key.id, key.tier, refused(key) ?? "yes", key.note, moment(key.expires_at) ?? "never", moment(key.last_seen_at)])}/></div>`}
    ${mayChangeRules(me) && html`<h3>${user ? "Tier and limits of its own" : "Keep it, with a tier or limits of its own"}</h3>
      <${Edit} what=${`user ${id}`} kind="UserBody" without=${["id", "blocked", "reason"]} record=${user} suggest=${{ tier: tiers }} send=${(body) => ask("PATCH", path, body)} told=${DONE} done=${done}/>
      ${user && html`<${Act} name="Remove" isReasoned=${false} plan=${gone} send=${() => ask("DELETE", path)} done=${() => { changed(); close(); }}/>`}`}`;
}

function Left({ id, usage }) {
  if (!usage) return null;
  return html`<h3>Left now of ${id}</h3>
    ${usage.refused && html`<p class="bad">Every request is refused, whatever is left: ${usage.refused.replace("_", " ")}.</p>`}
    ${usage.problem && html`<p class="bad">${usage.problem}</p>`}
    ${usage.quotas && html`<div class="cards"><${Table} head=${["rule", "used here", "used worldwide", "limit", "left", "resets in"]} none="No rule counts by user alone."
      rows=${usage.quotas.map((quota) => [quota.rule, quota.used, quota.used_worldwide, quota.limit, quota.remaining, span(quota.reset_ms)])}/></div>
      ${usage.quotas_more && html`<p class="soft">More rules apply than are shown.</p>`}`}`;
}

/* A key and its user are an admin's to change; who is an operator may take a key back. */
export function Key({ id, me, tiers, changed }) {
  const [key, setKey] = useState(), [said, setSaid] = useState(), path = `/v1/keys/${encodeURIComponent(id)}`;
  const load = () => ask("GET", path).then(({ key }) => { setKey(key); setSaid(); }, (error) => setSaid({ bad: error.message }));
  useEffect(() => { load(); }, [id]);
  const done = () => { load(); changed(); };
  if (!key) return html`<h2>${id}</h2>${said ? html`<${Said} said=${said}/>` : html`<p class="soft">Looking …</p>`}`;
  return html`<h2>${id}</h2>
    <${Facts} facts=${[["user", key.user ?? "nobody"], ["tier", key.tier ?? "the user's"], ["limits of its own", own(key.overrides) || "none"], ["may be used", refused(key) ?? "yes", refused(key) ? "bad" : "good"],
      ["expires", moment(key.expires_at) ?? "never"], ["note", key.note || "–"], ["made", [moment(key.created_at), key.created_by && `by ${key.created_by}`].filter(Boolean).join(" ") || "–"],
      ...(key.revoked_at ? [["revoked", `${moment(key.revoked_at)}${key.revoked_by ? ` by ${key.revoked_by}` : ""}`]] : []), ["last seen", moment(key.last_seen_at)]]}/>
    <${Said} said=${said}/>
    ${mayChangeRules(me) && !key.revoked_at && html`<${Act} name="Revoke" send=${(reason) => ask("POST", `${path}/revoke`, { reason })} done=${done} plan=${async () => plan(`key ${id}`, key, {}, ["revoked: no → yes, for ever"])}/>
      ${me.role === "admin" && html`<h3>Change</h3><${Edit} what=${`key ${id}`} kind="KeyBody" without=${["reason"]} record=${key} suggest=${{ tier: tiers }} send=${(body) => ask("PATCH", path, body)} told=${DONE} done=${done}/>`}`}
    ${key.revoked_at && html`<p class="soft">A key that was revoked stays so.</p>`}`;
}

export function Tier({ tier, me, changed, close }) {
  const path = `/v1/tiers/${encodeURIComponent(tier.name)}`;
  return html`<h2>${tier.name}</h2><p>${tier.description || html`<span class="soft">Nobody said what it is for.</span>`}</p>
    ${mayChangeRules(me) && html`<${Edit} what=${`tier ${tier.name}`} kind="TierBody" without=${["name"]} record=${tier} isReasoned=${false} send=${(body) => ask("PUT", path, body)} told=${DONE} done=${changed}/>
      <${Act} name="Remove" isReasoned=${false} plan=${async () => plan(`tier ${tier.name}`, tier, null, [])} send=${() => ask("DELETE", path)} done=${() => { changed(); close(); }}/>`}`;
}

/* A field that names what is made. */
const needs = (name, value) => { if (!value) throw new Error(`it needs ${name}`); return encodeURIComponent(value); };

/* Makes a user, unless there is one of this name. */
async function makeUser({ id, ...body }) {
  const path = `/v1/users/${needs("an id", id)}`;
  const there = await ask("GET", path).then(() => true, (error) => { if (error.status !== 404) throw error; });
  if (there) throw new Error(`there is a user ${id}: choose it in the list`);
  return ask("PUT", path, body);
}

async function makeTier({ name, ...body }, tiers) {
  const path = `/v1/tiers/${needs("a name", name)}`;
  if (tiers.includes(name)) throw new Error(`there is a tier ${name}: choose it in the list`);
  return ask("PUT", path, body);
}

/* The form that makes a user, a key or a tier. A key is shown here, once. */
export function New({ kind, tiers, changed, made }) {
  const suggest = { tier: tiers };
  if (kind === "users") return html`<h2>A new user</h2><${Edit} what=${({ id }) => `user ${id ?? ""}`} kind="UserBody" without=${["blocked", "reason"]} suggest=${suggest} send=${makeUser} told=${DONE} done=${({ user }) => { changed(); made(user.id); }}/>`;
  if (kind === "tiers") return html`<h2>A new tier</h2><${Edit} what=${({ name }) => `tier ${name ?? ""}`} kind="TierBody" without=${[]} isReasoned=${false} send=${(body) => makeTier(body, tiers)} told=${DONE} done=${({ tier }) => { changed(); made(tier.name); }}/>`;
  return html`<h2>A new key</h2><${Edit} what=${() => "a key"} kind="KeyDraft" without=${[]} suggest=${suggest} isReasoned=${false} send=${(body) => ask("POST", "/v1/keys", body)}
    told=${({ key, secret }) => `${key.id} is made. This is the whole key; nobody can show it again:\n${secret}`} done=${changed}/>`;
}
