// Identities: a user's tier, limits of its own, what is left, and blocks.
import { html, useState } from "/console/preact.js";
import { ask, mayChangeRules, moment, route, Said, span, Table } from "/console/daemon.js";

const own = (overrides) => Object.entries(overrides ?? {}).map(([rule, { limit, burst }]) => `${rule}: ${limit}${burst && burst !== limit ? `, ${burst} at once` : ""}`).join("; ");

export function Identities({ me }) {
  // `user` is what is kept of the one that was looked for: `id` stands in the field, and may be another one by now.
  const [id, setId] = useState(""), [user, setUser] = useState(), [more, setMore] = useState({}), [reason, setReason] = useState(""), [until, setUntil] = useState(""), [said, setSaid] = useState();
  const path = (name) => `/v1/users/${encodeURIComponent(name)}`;
  const look = async (event) => {
    event?.preventDefault();
    setSaid();
    setMore({});
    // Rules count a user also of whom nothing is kept, and where there is no database to keep it in.
    const kept = ask("GET", path(id)).then(({ user }) => setUser(user), (error) => {
      setUser();
      setSaid(error.status === 404 ? { text: `Nothing is kept of ${id}: it has the default tier and no limits of its own.` } : { bad: error.message });
    });
    const keys = ask("GET", route("/v1/keys", { user: id, limit: 100 })).catch(() => undefined);
    const usage = await ask("GET", route("/v1/usage", { user: id })).catch((error) => ({ problem: error.message }));
    await kept;
    setMore({ id, keys: (await keys)?.keys, quotas: usage.quotas, isMore: usage.quotas_more, refused: usage.refused, problem: usage.problem });
  };
  const change = (route, body) => async () => {
    try {
      setUser((await ask("POST", path(user.id) + route, body)).user);
      setSaid({ text: "Done." });
    } catch (error) { setSaid({ bad: error.message }); }
  };
  return html`<main><section><h2>User</h2><form class="line" onSubmit=${look}>
      <label>Name <input required value=${id} onInput=${(event) => setId(event.target.value)}/></label><button>Look</button></form>
    ${user && html`<table><tbody><tr><th scope="row">tier</th><td>${user.tier ?? "the default"}</td></tr>
        <tr><th scope="row">limits of its own</th><td>${own(user.overrides) || "none"}</td></tr>
        <tr><th scope="row">blocked</th><td class=${user.blocked ? "bad" : "good"}>${user.blocked ? `until ${moment(user.blocked.until) ?? "somebody unblocks it"}${user.blocked.reason ? `: ${user.blocked.reason}` : ""}` : "no"}</td></tr>
        <tr><th scope="row">last seen</th><td>${moment(user.last_seen_at) ?? "–"}</td></tr></tbody></table>
      ${mayChangeRules(me) && html`<form class="line" onSubmit=${(event) => event.preventDefault()}>
        <label>Reason <input value=${reason} onInput=${(event) => setReason(event.target.value)}/></label>
        <label>For how long <input placeholder="1h; empty: until unblocked" value=${until} onInput=${(event) => setUntil(event.target.value)}/></label>
        <button onClick=${change("/block", { reason: reason || null, until: until || null })}>Block</button>
        <button onClick=${change("/unblock", { reason: reason || null })}>Unblock</button></form>`}`}
    <${Said} said=${said}/></section>
    ${more.id && html`<section><h2>Left now of ${more.id}</h2>
      ${more.refused && html`<p class="bad">Every request is refused, whatever is left: ${more.refused.replace("_", " ")}.</p>`}
      ${more.problem && html`<p class="bad">${more.problem}</p>`}
      ${more.quotas && html`<${Table} head=${["rule", "used here", "used worldwide", "limit", "left", "resets in"]} none="No rule counts by user alone."
        rows=${more.quotas.map((quota) => [quota.rule, quota.used, quota.used_worldwide, quota.limit, quota.remaining, span(quota.reset_ms)])}/>
        ${more.isMore && html`<p class="soft">More rules apply than are shown.</p>`}`}</section>`}
    ${more.keys && (user || more.keys.length > 0) && html`<section><h2>Keys</h2><${Table} head=${["key", "tier", "active", "note", "expires", "last seen"]} none="The user has no keys."
      rows=${more.keys.map((key) => [key.id, key.tier, key.active ? "yes" : "no", key.note, moment(key.expires_at) ?? "never", moment(key.last_seen_at)])}/></section>`}</main>`;
}
