// The console: one stream of updates, and one page for each thing that an operator looks at.
import { html, render, useState, useEffect } from "/console/preact.js";
import { KEY, read } from "/console/daemon.js";
import { Decisions } from "/console/decisions.js";
import { Health } from "/console/health.js";
import { Hot } from "/console/hot.js";
import { Identities } from "/console/identities.js";
import { Quotas } from "/console/quotas.js";
import { Rules } from "/console/rules.js";
import { World } from "/console/world.js";

function Login({ why, done }) {
  const submit = (event) => {
    event.preventDefault();
    sessionStorage.setItem(KEY, event.target.elements.token.value.trim());
    done();
  };
  return html`<main><section><form class="login" onSubmit=${submit}><h1>Tidegate</h1><p>${why}</p>
    <label>Token <input name="token" type="password" autocomplete="off" autofocus required/></label><button>Log in</button></form></section></main>`;
}

const PAGES = {
  world: ["World", World],
  rules: ["Rules", Rules],
  quotas: ["Quotas", Quotas],
  hot: ["Hot", Hot],
  decisions: ["Decisions", Decisions],
  identities: ["Identities", Identities],
  health: ["Health", Health],
};

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
  return html`<header><h1>Tidegate</h1><nav aria-label="Pages">${Object.entries(PAGES).map(([name, [title]]) =>
    html`<a href=${`#${name}`} aria-current=${name === page ? "page" : undefined}>${title}</a>`)}</nav>
    <span class=${isLive ? "good" : "bad"} role="status">${isLive ? "live" : "not connected"}</span></header>
    <${Shown} ...${state} revision=${state.ready?.revision}/>`;
}

render(html`<${App}/>`, document.getElementById("app"));
