// The console: one stream of updates, and one page for each thing that an operator looks at.
import { html, render, useEffect, useRef, useState } from "/console/preact.js";
import { ask, KEY, moment, read, troubles } from "/console/daemon.js";
import { Decisions } from "/console/decisions.js";
import { Health } from "/console/health.js";
import { Hot } from "/console/hot.js";
import { Identities } from "/console/identities.js";
import { Overview } from "/console/overview.js";
import { Quotas } from "/console/quotas.js";
import { Rules } from "/console/rules.js";
import { World } from "/console/world.js";

function Login({ why, done, without }) {
  const submit = (event) => {
    event.preventDefault();
    sessionStorage.setItem(KEY, event.target.elements.token.value.trim());
    done();
  };
  return html`<main><section><form class="login" onSubmit=${submit}><h1>Tidegate</h1><p>${why}</p>
    <label>Token <input name="token" type="password" autocomplete="off" autofocus required/></label><button>Log in</button>${without && html`<button type="button" onClick=${without}>Go on without a token</button>`}</form></section></main>`;
}

/* Who looks, in which role, and the way to be somebody else. */
const Me = ({ me, logIn, logOut }) => me && html`<span class="me soft">${me.name}, ${me.role} ${sessionStorage.getItem(KEY)
  ? html`<button type="button" onClick=${logOut}>Log out</button>` : html`<button type="button" onClick=${logIn}>Show a token</button>`}</span>`;

/* Letters that follow g, by page. */
const LETTERS = { o: "overview", w: "world", r: "rules", q: "quotas", h: "hot", d: "decisions", i: "identities", e: "health" };
/* Where it is kept that somebody does without keys of one letter, which may be in the way of speech input. */
const WITHOUT = "tidegate-without-shortcuts";

/* What keys can do. */
function Help({ close }) {
  const box = useRef(), [isOff, setOff] = useState(localStorage.getItem(WITHOUT) !== null);
  useEffect(() => box.current.showModal(), []);
  const turn = ({ target: { checked } }) => {
    if (checked) localStorage.removeItem(WITHOUT); else localStorage.setItem(WITHOUT, "yes");
    setOff(!checked);
  };
  const keys = [["?", "this help"], ["/", "search, or the first field of the page"], ["j k", "the next row, the one before"], ["Enter", "opens it"], ["Esc", "leaves a field, closes what is open"],
    ...Object.entries(LETTERS).map(([letter, page]) => [`g ${letter}`, PAGES[page][0]])];
  return html`<dialog ref=${box} aria-labelledby="shortcuts" onClose=${close}><h2 id="shortcuts">Shortcuts</h2>
    <dl>${keys.map(([key, what]) => html`<div><dt>${key.split(" ").map((one) => html`<kbd>${one}</kbd> `)}</dt><dd>${what}</dd></div>`)}</dl>
    <label class="check"><input type="checkbox" checked=${!isOff} onChange=${turn}/> Keys of one letter are on</label>
    <button type="button" onClick=${() => box.current.close()}>Close</button></dialog>`;
}

/* Goes to the next row that can be opened, or to the one before. */
function step(by) {
  const rows = [...document.querySelectorAll("#page .list button, #page td button, #page td a")], at = rows.indexOf(document.activeElement);
  rows[at < 0 ? 0 : Math.min(Math.max(at + by, 0), rows.length - 1)]?.focus();
}

/* Listens for shortcuts wherever nobody types. */
function useShortcuts(help) {
  useEffect(() => {
    let since = -Infinity;
    const press = (event) => {
      const { key, target, ctrlKey, metaKey, altKey } = event, isTyping = target.closest?.("input, textarea, select, dialog");
      if (key === "Escape" && target.matches?.("input, textarea, select")) target.blur();
      if (isTyping || ctrlKey || metaKey || altKey || localStorage.getItem(WITHOUT) !== null) return;
      const follows = event.timeStamp - since < 1500, page = follows && LETTERS[key];
      since = key === "g" ? event.timeStamp : -Infinity;
      if (page) location.hash = page;
      else if (key === "?") help();
      else if (key === "/") document.querySelector("#page input[type=search], #page input")?.focus();
      else if (key === "j" || key === "k") step(key === "j" ? 1 : -1);
      else return;
      event.preventDefault();
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, []);
}

/* Troubles that the header tells; Health has all of them. */
const TOLD_MAX = 3;

const PAGES = {
  overview: ["Overview", Overview],
  world: ["World", World],
  rules: ["Rules", Rules],
  quotas: ["Quotas", Quotas],
  hot: ["Hot", Hot],
  decisions: ["Decisions", Decisions],
  identities: ["Identities", Identities],
  health: ["Health", Health],
};

/* The pages, and how things stand: nothing is said to be live while something is wrong. */
function Header({ page, title, state, link, children }) {
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
    <span class=${grave} role="status">${word}</span>${children}
    ${all.length > 0 && html`<ul class="troubles" aria-label="Alarms and notices">${all.slice(0, TOLD_MAX).map(([grave, text]) => html`<li class=${grave}>${text}</li>`)}
      ${all.length > TOLD_MAX && html`<li><a href="#health">${all.length - TOLD_MAX} more</a></li>`}</ul>`}</header>`;
}

function App() {
  const [state, setState] = useState({}), [link, setLink] = useState({}), [refused, setRefused] = useState(), [life, setLife] = useState(0);
  const [page, setPage] = useState(location.hash.slice(1) || "overview");
  useEffect(() => { const turn = () => setPage(location.hash.slice(1) || "overview"); addEventListener("hashchange", turn); return () => removeEventListener("hashchange", turn); }, []);
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
  const [me, setMe] = useState(), [isAsked, setAsked] = useState(false), [isHelped, setHelped] = useState(false);
  useEffect(() => { ask("GET", "/v1/me").then(setMe, () => {}); }, [life, link.isLive]);
  useShortcuts(() => setHelped(true));
  const anew = () => { setRefused(); setAsked(false); setMe(); setLife(life + 1); };
  const logOut = () => { sessionStorage.removeItem(KEY); setState({}); anew(); };
  if (refused || isAsked) return html`<${Login} why=${refused ?? "A token shows who you are and what you may do."} done=${anew} without=${(isAsked || sessionStorage.getItem(KEY)) && logOut}/>`;
  const [title, Shown] = PAGES[page] ?? PAGES.overview;
  return html`<${Header} page=${page} title=${title} state=${state} link=${link}><${Me} me=${me} logIn=${() => setAsked(true)} logOut=${logOut}/>
      <button type="button" class="keys" aria-label="Shortcuts" onClick=${() => setHelped(true)}>?</button><//>
    <div id="page" tabindex="-1"><${Shown} ...${state} link=${link} revision=${state.ready?.revision} me=${me}/></div>${isHelped && html`<${Help} close=${() => setHelped(false)}/>`}`;
}

render(html`<${App}/>`, document.getElementById("app"));
