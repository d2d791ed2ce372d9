// Requests, denials, degraded answers and cost a second, by time: the oldest on the left, and a gap where nothing is known.
import { html, useState } from "/console/preact.js";
import { ask, moment, route, Said, useEach } from "/console/daemon.js";

const SPANS = { hour: "The last hour", day: "The last day" };
const KINDS = { requests: "Requests", denied: "Denials", degraded: "Degraded answers", cost: "Permits charged" };

/* The rate of each step; undefined where the daemon did not see it. */
const rates = (told, kind) => told[kind].map((sum, at) => sum == null ? undefined : sum / (told.seen_ms[at] / 1000));

const shown = (rate) => rate == null ? "–" : `${(rate >= 10 ? Math.round(rate) : Math.round(rate * 100) / 100).toLocaleString("en")}/s`;

/* Runs of steps that are alike: where they begin and end, and if they are known. */
function runs(values) {
  const found = [];
  values.forEach((value, at) => {
    const isKnown = value != null, last = found.at(-1);
    if (last?.isKnown === isKnown) last.end = at + 1;
    else found.push({ isKnown, begin: at, end: at + 1 });
  });
  return found;
}

/* The steps of a run, each as high as its part of the most. */
const area = (values, { begin, end }, most) =>
  `M${begin} 100${values.slice(begin, end).map((value, at) => `V${Math.round(1e4 - 1e4 * value / most) / 100}H${begin + at + 1}`).join("")}V100Z`;

function Chart({ kind, told, at, look }) {
  const values = rates(told, kind), all = runs(values), most = Math.max(0, ...values.filter((value) => value != null));
  const count = values.length, newest = values[count - 1] ?? values[count - 2];
  const time = (step) => moment(new Date(Date.parse(told.from) + step * told.step_ms).toISOString()).slice(11, 16);
  const point = (event) => {
    const { left, width } = event.currentTarget.getBoundingClientRect();
    look(Math.min(count - 1, Math.max(0, Math.floor((event.clientX - left) / width * count))));
  };
  return html`<figure class=${`rate ${kind}`}><figcaption>${KINDS[kind]} <b>${shown(at == null ? newest : values[at])}</b></figcaption>
    <svg class="rate" viewBox=${`0 0 ${count} 100`} preserveAspectRatio="none" role="img" aria-label=${`${KINDS[kind]}: now ${shown(newest)}, at most ${shown(most)}`} onPointerMove=${point} onPointerLeave=${() => look()}>
      ${all.map((run) => run.isKnown ? html`<path d=${area(values, run, most || 1)} vector-effect="non-scaling-stroke"/>`
        : html`<rect x=${run.begin} y="0" width=${run.end - run.begin} height="100"/>`)}
      ${at != null && html`<line x1=${at + 0.5} x2=${at + 0.5} y1="0" y2="100" vector-effect="non-scaling-stroke"/>`}</svg>
    <p class="soft ends"><span>${time(0)}</span><span>at most ${shown(most)}</span><span>${time(count - 1)}</span></p></figure>`;
}

/* How long a step is, in words. */
const step = ({ step_ms: millis }) => millis === 60000 ? "a minute" : `${millis / 1000} s`;

export function Rates() {
  const [span, setSpan] = useState("hour"), [told, setTold] = useState(), [at, look] = useState(), [said, setSaid] = useState();
  useEach(() => ask("GET", route("/v1/rates", { span })).then((found) => { setTold(found); setSaid(); }, (error) => { setTold(); setSaid({ bad: error.message }); }), [span], span === "day" ? 10000 : 2000);
  const last = told && told.seen_ms.length - 1;
  const when = told && (at == null ? "now" : `${moment(new Date(Date.parse(told.from) + at * told.step_ms).toISOString())} UTC`);
  return html`<section class="wide"><h2>Decided a second${told ? `, at ${told.region}/${told.node}` : ""}</h2>
    <form class="line" onSubmit=${(event) => event.preventDefault()}>
      <label>Time <select onChange=${(event) => { look(); setSpan(event.target.value); }}>${Object.entries(SPANS).map(([name, title]) => html`<option value=${name} selected=${name === span}>${title}</option>`)}</select></label>
      ${told && html`<label>Moment: ${when} <input type="range" min="0" max=${last} value=${at ?? last} aria-valuetext=${when} onInput=${(event) => look(+event.target.value === last ? undefined : +event.target.value)}/></label>`}</form>
    <${Said} said=${said}/>
    ${told && html`<div class="rates">${Object.keys(KINDS).map((kind) => html`<${Chart} key=${kind} kind=${kind} told=${told} at=${at} look=${look}/>`)}</div>
      <p class="soft">A step is ${step(told)}; times are UTC.${told.seen_ms.includes(0) ? " Grey: not known, since this daemon did not run, or its clock was set." : ""}</p>`}</section>`;
}
