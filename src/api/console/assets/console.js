// The console: one stream of updates, and one page for each thing that an operator looks at.
import { html, render, useState, useEffect } from "/console/preact.js";
import { KEY, moment, read, troubles } from "/console/daemon.js";
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

/* Troubles that the header tells; Health has all of them. */
const TOLD_MAX = 3;

const PAGES = {
  world: ["World", World],
  rules: ["Rules", Rules],
  quotas: ["Quotas", Quotas],
  hot: ["Hot", Hot],
  decisions: ["Decisions", Decisions],
  identities: ["Identities", Identities],
  health: ["Health", Health],
};

/* The pages, and how things stand: nothing is said to be live while something is wrong. */
function Header({ page, title, state, link }) {
  const { bad, warn } = troubles(state);
  // While no update comes, the page says of when its figures are.
  if (link.problem) bad.unshift(`No updates come from this daemon: ${link.problem}. ${link.at ? `The page shows what it said at ${moment(link.at.toISOString())}.` : ""}`);
  const all = [...bad.map((text) => ["bad", text]), ...warn.map((text) => ["warn", text])];
  const count = (list, word) => `${list.length} ${word}${list.length === 1 ? "" : "s"}`;
  const [grave, word] = link.problem ? ["bad", "not connected"] : !link.isLive ? ["soft", "connecting"]
    : bad.length ? ["bad", count(bad, "alarm")] : warn.length ? ["warn", count(warn, "notice")] : ["good", "live"];
  useEffect(() => { document.title = `${all.length ? `(${all.length}) ` : ""}${title} – Tidegate`; });
  const skip = (event) => { event.preventDefault(); document.getElementById("page").focus(); };
  return html`<header><a class="skip" href="#page" onClick=${skip}>Skip to the page</a><h1>Tidegate</h1><nav aria-label="Pages">${Object.entries(PAGES).map(([name, [title]]) =>
    html`<a href=${`#${name}`} aria-current=${name === page ? "page" : undefined}>${title}</a>`)}</nav>
    <span class=${grave} role="status">${word}</span>
    ${all.length > 0 && html`<ul class="troubles" aria-label="Alarms and notices">${all.slice(0, TOLD_MAX).map(([grave, text]) => html`<li class=${grave}>${text}</li>`)}
      ${all.length > TOLD_MAX && html`<li><a href="#health">${all.length - TOLD_MAX} more</a></li>`}</ul>`}</header>`;
}

function App() {
  const [state, setState] = useState({}), [link, setLink] = useState({}), [refused, setRefused] = useState(), [life, setLife] = useState(0);
  const [page, setPage] = useState(location.hash.slice(1) || "world");
  useEffect(() => { const turn = () => setPage(location.hash.slice(1) || "world"); addEventListener("hashchange", turn); return () => removeEventListener("hashchange", turn); }, []);
  useEffect(() => {
    let over = false, timer;
    const run = async () => {
      try {
        await read((name, data) => { setLink({ isLive: true, at: new Date() }); if (name) setState((before) => ({ ...before, [name]: data })); }, () => over);
      } catch (error) {
        if (error.status === 401 || error.status === 403) return setRefused(error.message);
        if (!over) setLink(({ at }) => ({ at, problem: error.message }));
      }
      if (!over) timer = setTimeout(run, 1000);
    };
    run();
    return () => { over = true; clearTimeout(timer); };
  }, [life]);
  // A table that is wider than the screen is scrolled by keys, too.
  useEffect(() => { for (const one of document.querySelectorAll("section")) if (one.scrollWidth > one.clientWidth) one.tabIndex = 0; else one.removeAttribute("tabindex"); });
  if (refused) return html`<${Login} why=${refused} done=${() => { setRefused(); setLife(life + 1); }}/>`;
  const [title, Shown] = PAGES[page] ?? PAGES.world;
  return html`<${Header} page=${page} title=${title} state=${state} link=${link}/>
    <div id="page" tabindex="-1"><${Shown} ...${state} revision=${state.ready?.revision}/></div>`;
}

render(html`<${App}/>`, document.getElementById("app"));
