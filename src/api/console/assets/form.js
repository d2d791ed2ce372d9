// Forms whose fields are those that the daemon describes in /openapi.json: no page has them a second time.
import { html, useEffect, useState } from "/console/preact.js";
import { ask } from "/console/daemon.js";

let asked;

/* What the daemon says of what it reads, by name: nothing until it is there, and a `problem` where it does not
   come. */
export function useSchemas() {
  const [schemas, setSchemas] = useState();
  useEffect(() => {
    asked ??= ask("GET", "/openapi.json").then(({ components }) => components.schemas);
    asked.then(setSchemas, (error) => { asked = undefined; setSchemas({ problem: error.message }); });
  }, []);
  return schemas;
}

/* A description with what it points to, and without null among its types. */
function plain(schema, schemas) {
  const { $ref, ...own } = schema, found = $ref ? { ...plain(schemas[$ref.split("/").pop()], schemas), ...own } : { ...own };
  const [one, ...more] = (found.anyOf ?? []).filter(({ type }) => type !== "null");
  if (one && !more.length) { delete found.anyOf; return { ...plain(one, schemas), ...found }; }
  if (Array.isArray(found.type)) found.type = found.type.find((type) => type !== "null");
  return found;
}

/* The fields of an object, in the order in which they are shown: what is needed, what is written, and the
   rest; of both those last that have fields of their own. */
export function fields(schema, schemas, value = {}) {
  const { properties, required = [] } = plain(schema, schemas);
  const isWide = (name) => { const one = plain(properties[name], schemas); return one.properties || one.additionalProperties; };
  const rank = (name) => required.includes(name) ? 0 : (name in value ? 1 : 3) + (isWide(name) ? 1 : 0);
  return Object.keys(properties).sort((a, b) => rank(a) - rank(b));
}

const isLong = ({ type, maxLength }) => type === "string" && maxLength > 1024;
const isNumber = (schema) => schema.type === "integer" || schema.type === "number";

/* A value as one types it, and what was typed as a value. What is no number stays a text: the daemon says
   so. */
const typed = (value) => Array.isArray(value) ? value.join("\n") : value == null ? "" : typeof value === "object" ? JSON.stringify(value) : String(value);
const number = (text, schema) => isNumber(schema) && /^-?\d+(\.\d+)?$/.test(text) ? Number(text) : text;
function meant(text, schema) {
  if (!text.trim()) return undefined;
  const kinds = schema.anyOf ?? [schema], list = kinds.find(({ type }) => type === "array"), lines = text.split("\n").map((line) => line.trim()).filter(Boolean);
  if (list && (lines.length > 1 || kinds.length === 1)) return lines.map((line) => number(line, list.items));
  return isLong(schema) ? text : number(text.trim(), kinds.find(isNumber) ?? {});
}

/* What may be written, in words. */
function about(schema) {
  const { minimum, maximum, examples, pattern, default: usual } = schema;
  const range = isNumber(schema) && maximum != null && maximum < 2 ** 31 - 1 ? `${minimum ?? 0} to ${maximum}` : "";
  const example = examples ? `such as ${examples.join(" or ")}` : pattern?.includes("ms|s") ? "such as 30s" : "";
  return [schema.description?.replace(/\s+/g, " "), range, example, usual != null && usual !== "" && `${JSON.stringify(usual)} unless said`].filter(Boolean).map((text) => text.replace(/\.$/, "")).join("; ").replace(/`/g, "");
}

/* A field with its description below. */
const Labelled = ({ at, name, schema, more, children }) => html`<div class="field"><label>${name}${more} ${children}</label><small id=${`${at}-about`} class="soft">${about(schema)}</small></div>`;

function Typed({ at, name, schema, value, set, isRequired, usual, suggest }) {
  const [text, setText] = useState(typed(value)), same = (a, b) => JSON.stringify(a) === JSON.stringify(b);
  // An empty line is nothing yet, but whoever types the next one needs it.
  useEffect(() => { if (!same(meant(text, schema), value)) setText(typed(value)); }, [JSON.stringify(value)]);
  const input = ({ target }) => { setText(target.value); set(meant(target.value, schema)); };
  const kinds = schema.anyOf ?? [schema], isList = kinds.some(({ type }) => type === "array");
  const shared = { value: text, onInput: input, spellcheck: false, required: isRequired, "aria-describedby": `${at}-about`, placeholder: usual == null || typeof usual === "object" ? undefined : String(usual) };
  const choices = suggest ?? kinds.flatMap((kind) => kind.enum ?? []);
  return html`<${Labelled} at=${at} name=${name} schema=${schema} more=${isList && ", one a line"}>${isList || isLong(schema) ? html`<textarea ...${shared} rows="1" maxlength=${schema.maxLength}></textarea>`
    : html`<input ...${shared} autocomplete="off" inputmode=${isNumber(schema) ? "numeric" : undefined} maxlength=${schema.maxLength} list=${choices.length ? `${at}-list` : undefined}/>`}<//>
    ${choices.length > 0 && !isList && html`<datalist id=${`${at}-list`}>${choices.map((one) => html`<option value=${one}/>`)}</datalist>`}`;
}

/* One of a few: the empty one is not written. */
function Chosen({ at, name, schema, value, set, usual }) {
  const choices = schema.enum ?? [true, false], known = value === undefined || choices.includes(value);
  const change = ({ target }) => set(target.value === "" ? undefined : choices[target.selectedIndex - 1] ?? value);
  return html`<${Labelled} at=${at} name=${name} schema=${schema}><select aria-describedby=${`${at}-about`} onChange=${change}>
    <option value="" selected=${value === undefined}>${usual == null ? "not written" : `not written (${usual})`}</option>
    ${choices.map((one) => html`<option value=${String(one)} selected=${one === value}>${String(one)}</option>`)}
    ${!known && html`<option value="?" selected>${typed(value)}</option>`}</select><//>`;
}

/* Values by names that are free. */
function Named({ at, name, schema, schemas, value, set }) {
  const [adding, setAdding] = useState(""), inner = plain(schema.additionalProperties, schemas);
  const put = (key, one) => set({ ...value, [key]: one });
  const take = (key) => { const { [key]: gone, ...rest } = value; set(Object.keys(rest).length ? rest : undefined); };
  const add = () => { const key = adding.trim(); if (key && !(key in (value ?? {}))) put(key, inner.properties ? {} : ""); setAdding(""); };
  const enter = (event) => { if (event.key === "Enter") { event.preventDefault(); add(); } };
  return html`<fieldset><legend>${name}</legend><small class="soft">${about(schema)}</small>
    ${Object.keys(value ?? {}).map((key) => html`<div key=${key} class="entry"><${Field} at=${`${at}-${key.replace(/\s/g, "_")}`} name=${key} schema=${inner} schemas=${schemas} value=${value[key]} set=${(one) => put(key, one ?? (inner.properties ? {} : ""))} isEntry=${true}/>
      <button type="button" onClick=${() => take(key)}>${`Take ${key} away`}</button></div>`)}
    <div class="entry"><label>${`Add to ${name}, by name`} <input value=${adding} spellcheck=${false} autocomplete="off" onInput=${(event) => setAdding(event.target.value)} onKeyDown=${enter}/></label><button type="button" onClick=${add}>${`Add to ${name}`}</button></div></fieldset>`;
}

/* Fields within a field, which are there or not. */
function Within({ at, name, schema, schemas, value, set, isEntry }) {
  return html`<fieldset><legend>${name}</legend><small class="soft">${about(schema)}</small>
    ${value === undefined ? html`<button type="button" onClick=${() => set({})}>${`Write ${name}`}</button>`
      : html`<${Fields} at=${at} schema=${schema} schemas=${schemas} value=${value} set=${set}/>${!isEntry && html`<button type="button" onClick=${() => set(undefined)}>${`Take ${name} away`}</button>`}`}</fieldset>`;
}

function Field({ schema: written, schemas, ...more }) {
  const schema = plain(written, schemas);
  const Kind = schema.enum || schema.type === "boolean" ? Chosen : schema.properties ? Within : schema.additionalProperties ? Named : Typed;
  return html`<${Kind} ...${more} schema=${{ ...schema, anyOf: schema.anyOf?.map((one) => plain(one, schemas)) }} schemas=${schemas}/>`;
}

/* Fields of what a schema describes, all or those of these `names`. `value` has what is written and no more,
   `set` takes what is then written; `usual` has what holds where nothing is, `suggest` what one may mean. */
export function Fields({ at, schema, schemas, names, value, set, usual = {}, suggest = {} }) {
  const { properties, required = [] } = plain(schema, schemas);
  // They stay in their places while somebody types.
  const [order] = useState(() => fields(schema, schemas, value));
  const put = (name, one) => {
    const { [name]: before, ...rest } = value;
    set(one === undefined ? rest : before === undefined ? { ...rest, [name]: one } : { ...value, [name]: one });
  };
  return html`<div class="fields">${order.filter((name) => !names || names.includes(name)).map((name) => html`<${Field} key=${name} at=${`${at}-${name}`} name=${name} schema=${properties[name]} schemas=${schemas}
    value=${value[name]} set=${(one) => put(name, one)} isRequired=${required.includes(name)} usual=${usual[name]} suggest=${suggest[name]}/>`)}</div>`;
}
