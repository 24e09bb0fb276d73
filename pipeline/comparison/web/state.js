// The state of the page: its data, the choices of the reader, and the elements that show a run.

const dark = matchMedia("(prefers-color-scheme: dark)");
const ERRORS = 1; // log level of Vega: warnings are about the templates
const POLL_MILLISECONDS = 2000;
const charts = new Map(); // element to {make, view, stale, near}
let table = JSON.parse(byId("data").textContent);
let plots = null; // parsed when the first chart is drawn
let state = newState(table);
let view = "epochs";
let smooth = 0.05;
let matrices = [null, null]; // names of the chosen runs; null for a run that the page chooses
let axes = null; // keys of the columns of the parallel coordinates
let drawings = Promise.resolve();
let drawn = 0;
let scheduled = false;

function byId(id) {
  return document.getElementById(id);
}

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children.filter((child) => child !== null));
  return made;
}

function icon(content, className = "") {
  const made = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  made.setAttribute("viewBox", "0 0 26 14");
  made.setAttribute("aria-hidden", "true");
  made.setAttribute("class", className);
  made.innerHTML = content; // constant markup of this file
  return made;
}

const MARKERS = {
  circle: '<circle cx="13" cy="7" r="4"/>',
  square: '<rect x="9.5" y="3.5" width="7" height="7"/>',
  "triangle-up": '<path d="M13 2.5 17.5 11h-9z"/>',
  diamond: '<path d="M13 2 17.5 7 13 12 8.5 7z"/>',
  cross: '<path d="M11.5 2.5h3v3h3v3h-3v3h-3v-3h-3v-3h3z"/>',
  "triangle-down": '<path d="M13 11.5 17.5 3h-9z"/>',
};

function swatch(run) { // the line and the marker of a ticked run
  const number = state.styles.get(table.runs[run].name);
  if (number === undefined) return icon("", "swatch");
  const { color, dash, shape } = styleOf(table.palette, number);
  const made = icon(`<path d="M0 7h26" fill="none" stroke-width="2"/>${MARKERS[shape]}`, "swatch");
  made.style.cssText = `stroke: ${color}; fill: ${color}`;
  if (dash[1]) made.firstChild.setAttribute("stroke-dasharray", dash.join(" "));
  return made;
}

function fillSelect(select, options, value, none) { // options: [value, text]
  const made = options.map(([key, text]) => element("option", { value: key, textContent: text }));
  select.replaceChildren(...(none === undefined ? [] : [element("option", { value: "", textContent: none })]), ...made);
  select.value = value ?? "";
}

// The choice of runs.

function baselineRun() {
  const found = table.runs.findIndex((run) => run.name === state.baseline);
  return found < 0 ? 0 : found;
}

function listedRuns() {
  return selectRuns(table, state);
}

function curveRuns(listed) { // those with curves: the ticked ones in the table
  const baseline = baselineRun();
  return [baseline, ...listed.filter((run) => run !== baseline)].filter((run) => state.styles.has(table.runs[run].name));
}

function toggle(name) {
  state.chosen = true;
  if (!state.styles.delete(name)) tick(state.styles, name);
  schedule();
}

function tickAll(names) { // or none, if all have a tick
  const every = names.every((name) => state.styles.has(name));
  state.chosen = true;
  state.styles.clear();
  if (!every) for (const name of names) tick(state.styles, name);
  schedule();
}

function pin(name) {
  Object.assign(state, { baseline: name, pinned: true });
  tick(state.styles, name);
  schedule();
}
