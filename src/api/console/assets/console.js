// The console: one stream of updates, and one page for each thing that an operator looks at.
import { html, render, useState, useEffect, useRef } from "/console/preact.js";

const KEY = "tidegate-token";
const ROW = 36;

async function ask(method, path, body) {
  const headers = {}, token = sessionStorage.getItem(KEY);
  if (token) headers.Authorization = `Bearer ${token}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const answer = await fetch(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
  if (path === "/v1/stream" && answer.ok) return answer;
  const said = await answer.json().catch(() => ({}));
  if (!answer.ok) throw Object.assign(new Error(said.error?.message ?? `the daemon answered ${answer.status}`), { status: answer.status });
  return said;
}

/* Reads the stream until it ends or `signal` aborts; a heartbeat that fails to come for 5 s ends it too. */
async function read(on, isOver) {
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

const ms = (value) => (value == null ? "–" : `${value} ms`);

function World({ regions }) {
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
  return html`<main class="world">
    <section><h2>Regions, as ${regions.region} sees them</h2>
      <svg viewBox="0 0 800 600" role="img" aria-label="Regions and the links to them">
        ${others.map(({ at: [x, y], bad }) => html`<line x1=${ox} y1=${oy} x2=${x} y2=${y} class=${bad ? "bad" : ""}/>`)}
        ${others.map(({ at: [x, y], bad, up }) => html`<text class=${bad ? "bad" : "soft"} x=${(ox + x) / 2} y=${(oy + y) / 2}>${bad ? "cut off" : ms(up.rtt_ms)}</text>`)}
        ${others.map(({ name, at: [x, y], bad, text }) => html`<g><circle cx=${x} cy=${y} r="14" class=${bad ? "bad" : ""}/>
          <text x=${text.x} y=${text.y}>${name}</text></g>`)}
        <circle cx=${ox} cy=${oy} r="18" class="own"/><text x=${own.x} y=${own.y - 9}>${regions.region}</text>
        <text class="soft" x=${own.x} y=${own.y + 10}>this daemon</text>
      </svg></section>
    <section><h2>Links</h2><table><tr><th>region</th><th>node</th><th>state</th><th>round trip</th><th>lag</th><th>clock</th></tr>
      ${regions.peers.map((peer) => html`<tr><td>${peer.region}</td><td>${peer.node}</td>
        <td class=${peer.connected ? "good" : "bad"}>${regions.cut_off.includes(peer.region) ? "cut off" : peer.connected ? "connected" : peer.error ?? "not connected"}</td>
        <td>${ms(peer.rtt_ms)}</td><td>${ms(peer.lag_ms)}</td><td>${ms(peer.clock_ahead_ms)}</td></tr>`)}</table></section>
    <section><h2>Worldwide rules</h2><table><tr><th>rule</th><th>error bound</th><th>because of</th></tr>
      ${regions.rules.map((rule) => html`<tr><td>${rule.rule}</td><td>${rule.error_bound}</td><td>${rule.because}</td></tr>`)}</table></section></main>`;
}

function List({ rules, chosen, choose }) {
  const box = useRef(), [top, setTop] = useState(0);
  useEffect(() => box.current.querySelector(".space").style.setProperty("--rows", `${rules.length * ROW}px`), [rules.length]);
  const first = Math.max(0, Math.floor(top / ROW) - 5), shown = rules.slice(first, first + 60);
  useEffect(() => { for (const row of box.current.querySelectorAll("button")) row.style.top = `${row.dataset.place * ROW}px`; });
  return html`<div class="list" ref=${box} tabindex="0" onScroll=${(event) => setTop(event.target.scrollTop)}><div class="space">
    ${shown.map((rule, at) => html`<button key=${rule.name} data-place=${first + at} aria-pressed=${rule.name === chosen} onClick=${() => choose(rule)}>
      <span>${rule.name}</span><span class="soft">${rule.limit} / ${rule.window ?? "no window"}</span></button>`)}</div></div>`;
}

function Rules({ revision }) {
  const [set, setSet] = useState({ rules: [] }), [search, setSearch] = useState(""), [text, setText] = useState(""), [chosen, setChosen] = useState(), [said, setSaid] = useState();
  const load = () => ask("GET", "/v1/rules").then(setSet, (error) => setSaid({ bad: error.message }));
  useEffect(() => { load(); }, [revision]);
  const choose = (rule) => { setChosen(rule.name); setText(JSON.stringify(rule, null, 2)); setSaid(); };
  const put = async (isTrial) => {
    let rule;
    try { rule = JSON.parse(text); } catch (error) { return setSaid({ bad: error.message }); }
    try {
      const done = await ask("PUT", `/v1/rules/${encodeURIComponent(rule.name ?? "")}?dry_run=${isTrial}`, { rule, revision: set.revision });
      setSaid({ text: `${isTrial ? "This would change" : `Revision ${done.revision} changed`}:\n${JSON.stringify(done.changes, null, 2)}` });
    } catch (error) { setSaid({ bad: error.message }); }
  };
  const rules = set.rules.filter((rule) => rule.name.includes(search));
  return html`<main class="two"><section><h2>${rules.length} ${rules.length === 1 ? "rule" : "rules"}, revision ${set.revision}</h2>
    <input type="search" aria-label="Search rules" placeholder="Search by name" value=${search} onInput=${(event) => setSearch(event.target.value)}/>
    <${List} rules=${rules} chosen=${chosen} choose=${choose}/></section>
    <section><h2>${chosen ?? "Choose a rule"}</h2>
    ${text && html`<textarea aria-label="The rule as JSON" spellcheck="false" value=${text} onInput=${(event) => setText(event.target.value)}></textarea>
      <button onClick=${() => put(true)}>Show what would change</button><button onClick=${() => put(false)}>Save</button>`}
    ${said && html`<pre role="status" class=${said.bad ? "bad" : ""}>${said.bad ?? said.text}</pre>`}</section></main>`;
}

function Health({ regions, ready }) {
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

function Login({ why, done }) {
  const submit = (event) => {
    event.preventDefault();
    sessionStorage.setItem(KEY, event.target.elements.token.value.trim());
    done();
  };
  return html`<main><section><form class="login" onSubmit=${submit}><h2>Tidegate</h2><p>${why}</p>
    <label>Token <input name="token" type="password" autocomplete="off" autofocus required/></label><button>Log in</button></form></section></main>`;
}

const PAGES = { world: ["World", World], rules: ["Rules", Rules], health: ["Health", Health] };

function App() {
  const [state, setState] = useState({}), [isLive, setLive] = useState(false), [refused, setRefused] = useState(), [life, setLife] = useState(0);
  const [page, setPage] = useState(location.hash.slice(1) || "world");
  useEffect(() => { const turn = () => setPage(location.hash.slice(1) || "world"); addEventListener("hashchange", turn); return () => removeEventListener("hashchange", turn); }, []);
  useEffect(() => {
    let over = false, timer;
    const run = async () => {
      try {
        await read((name, data) => { setLive(true); if (name) setState((before) => ({ ...before, [name]: data })); }, () => over);
      } catch (error) {
        if (error.status === 401 || error.status === 403) return setRefused(error.message);
        setLive(false);
      }
      if (!over) timer = setTimeout(run, 1000);
    };
    run();
    return () => { over = true; clearTimeout(timer); };
  }, [life]);
  if (refused) return html`<${Login} why=${refused} done=${() => { setRefused(); setLife(life + 1); }}/>`;
  const [, Shown] = PAGES[page] ?? PAGES.world;
  return html`<header><strong>Tidegate</strong><nav aria-label="Pages">${Object.entries(PAGES).map(([name, [title]]) =>
    html`<a href=${`#${name}`} aria-current=${name === page ? "page" : undefined}>${title}</a>`)}</nav>
    <span class=${isLive ? "good" : "bad"} role="status">${isLive ? "live" : "not connected"}</span></header>
    <${Shown} ...${state} revision=${state.ready?.revision}/>`;
}

render(html`<${App}/>`, document.getElementById("app"));
