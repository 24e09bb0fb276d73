"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const hidden = new Set();
const dark = matchMedia("(prefers-color-scheme: dark)");
const MATRICES = 12;
const ERRORS = 1; // what Vega is to say of itself: no warnings of what the templates do on purpose
let order = data.runs.map((_, place) => place);
let sorted = null;
let view = "epochs";
let smooth = 0.05;
let plots = [];
let drawing = 0;

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

function swatch(run) {
  const made = element("span", { className: "swatch" });
  made.style.background = run.colour;
  return made;
}

function visible() {
  return order.filter((place) => !hidden.has(data.runs[place].name));
}

// The table of runs.

function compared(column, ascending) {
  return (one, other) => {
    const [a, b] = [column.order[one], column.order[other]];
    if (a === null || b === null) return (a === null) - (b === null) || one - other;
    const result = typeof a === typeof b ? (a < b ? -1 : a > b ? 1 : 0) : typeof a === "number" ? -1 : 1;
    return (ascending ? result : -result) || one - other;
  };
}

function sortBy(key) {
  const ascending = !(sorted && sorted.key === key && sorted.ascending);
  sorted = { key, ascending };
  order = data.runs.map((_, place) => place);
  order.sort(compared(data.columns.find((column) => column.key === key), ascending));
  draw();
}

function toggle(name) {
  if (!hidden.delete(name)) hidden.add(name);
  draw();
}

function drawRuns() {
  const heads = data.columns.map((column) => {
    const button = element("button", { type: "button", textContent: column.title, title: column.key });
    button.addEventListener("click", () => sortBy(column.key));
    const head = element("th", { scope: "col", className: column.numeric ? "number" : "" }, button);
    if (sorted && sorted.key === column.key) {
      head.setAttribute("aria-sort", sorted.ascending ? "ascending" : "descending");
    }
    return head;
  });
  const rows = order.map((place) => runRow(data.runs[place], place));
  document.getElementById("runs").replaceChildren(
    element("thead", {}, element("tr", {}, ...heads)),
    element("tbody", {}, ...rows),
  );
}

function runRow(run, place) {
  const box = element("input", { type: "checkbox", checked: !hidden.has(run.name), ariaLabel: `show ${run.name}` });
  box.addEventListener("change", () => toggle(run.name));
  const name = element("span", { textContent: run.name, title: run.sha || "the workspace" });
  const head = element("th", { scope: "row" }, element("label", {}, box, swatch(run), name));
  const cells = data.columns.slice(1).map((column) => {
    const classes = [column.numeric ? "number" : "", column.best.includes(place) ? "best" : ""];
    if (column.key === "cached" && column.order[place] === 0) classes.push("no");
    return element("td", { className: classes.join(" ").trim(), textContent: column.shown[place] });
  });
  return element("tr", { className: hidden.has(run.name) ? "hidden" : "" }, head, ...cells);
}

function drawNotes() {
  const notes = data.runs.flatMap((run) => run.notes.map((note) => `${run.name}: ${note}`));
  document.getElementById("notes").replaceChildren(
    ...notes.map((note) => element("li", { textContent: note })),
  );
}

// The configuration.

function drawConfig() {
  const places = visible();
  const only = document.getElementById("only-differing").checked;
  const table = document.getElementById("config");
  const differs = (values) => new Set(places.map((place) => values[place])).size > 1;
  const params = Object.entries(data.params).filter(([, values]) => !only || differs(values));
  if (!params.length || !places.length) {
    const said = places.length ? "All of these runs were told the same." : "No run is shown.";
    table.replaceChildren(element("tbody", {}, element("tr", {}, element("td", { className: "said", textContent: said }))));
    return;
  }
  const heads = [element("th"), ...places.map((place) => element("th", { scope: "col" }, swatch(data.runs[place]), data.runs[place].name))];
  const rows = params.map(([key, values]) => {
    const first = values[places[0]];
    const cells = places.map((place) => {
      const text = values[place] === null ? "–" : values[place];
      return element("td", { textContent: text, title: text, className: values[place] === first ? "" : "differs" });
    });
    return element("tr", {}, element("th", { scope: "row", textContent: key }), ...cells);
  });
  table.replaceChildren(
    element("thead", {}, element("tr", {}, ...heads)),
    element("tbody", {}, ...rows),
  );
}

// The plots: DVC's own specifications, at home on this page.

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function points(chart) {
  return chart.curves.filter((curve) => !hidden.has(data.runs[curve.run].name)).flatMap(({ run, split, x, y }) =>
    data.steps[x].flatMap((step, place) =>
      y[place] === null ? [] : [{ rev: data.runs[run].name, split, [chart.x]: step, value: y[place] }]));
}

function cells(place) {
  const { classes, numbers } = data.confusion.runs[place];
  return data.confusion.classes[classes].map(([actual, predicted], cell) =>
    ({ rev: data.runs[place].name, actual, predicted, count: numbers[cell][0], class_samples: numbers[cell][1] }));
}

function fitted(spec, values) {
  const made = structuredClone(spec);
  delete made.title;
  made.background = null;
  made.data.values = values;
  for (const param of [made, ...everyLayer(made)].flatMap((each) => each.params || [])) {
    if (param.name === "smooth") {
      delete param.bind;
      param.value = view === "iterations" ? smooth : param.value;
    }
    if (param.name === "grid") param.select = { type: "interval", zoom: "wheel![event.shiftKey]" };
  }
  const text = { labelColor: colour("--soft"), titleColor: colour("--soft"), labelFont: "system-ui", titleFont: "system-ui" };
  made.config = {
    view: { stroke: null },
    axis: { ...text, gridColor: colour("--line"), domainColor: colour("--line"), tickColor: colour("--line"), titleFontWeight: "normal" },
    header: text,
  };
  return made;
}

function* everyLayer(spec) {
  for (const layer of spec.layer || []) {
    yield layer;
    yield* everyLayer(layer);
  }
}

async function plot(card, spec, renderer) {
  const place = element("div", { className: "plot" });
  card.append(place);
  const options = { mode: "vega-lite", renderer, actions: false, logLevel: ERRORS, tooltip: { theme: dark.matches ? "dark" : "light" } };
  return vegaEmbed(place, spec, options);
}

async function drawPlots() {
  const turn = (drawing += 1);
  const made = [...curveCards(), ...matrixCards()];
  for (const each of plots.splice(0)) each.finalize();
  for (const [card, spec, renderer] of made) {
    if (turn !== drawing) return;
    if (!spec.data.values.length) continue;
    const embedded = await plot(card, spec, renderer);
    if (turn !== drawing) embedded.finalize();
    else plots.push(embedded);
  }
  if (turn === drawing) document.body.dataset.drawn = String(turn);
}

function curveCards() {
  const place = document.getElementById("curves");
  const scale = { domain: data.runs.map((run) => run.name), range: data.runs.map((run) => run.colour) };
  const cards = data.charts[view].map((chart) => {
    const own = fitted(chart.spec, points(chart));
    own.encoding.color.scale = scale;
    own.encoding.x.axis = { tickMinStep: 1, format: "~s" };
    for (const name of ["color", "strokeDash"]) if (own.encoding[name]) own.encoding[name].legend = null;
    for (const layer of everyLayer(own)) if (layer.encoding && layer.encoding.y) layer.encoding.y.title = null;
    Object.assign(own, { width: "container", height: 230, autosize: { type: "fit-x", contains: "padding" } });
    const card = element("div", { className: "card" }, element("h3", { textContent: chart.title }));
    if (!own.data.values.length) card.append(element("p", { className: "empty", textContent: "No run that is shown has it." }));
    return [card, own, view === "epochs" ? "svg" : "canvas"];
  });
  const none = element("p", { className: "empty", textContent: "No curves: the cache has no plots of these runs." });
  place.replaceChildren(...(cards.length ? cards.map(([card]) => card) : [none]));
  return cards;
}

function matrixCards() {
  const shown = data.confusion ? visible().filter((place) => data.confusion.runs[place]) : [];
  const made = shown.slice(0, MATRICES).map((place) => {
    const run = data.runs[place];
    const shownCells = cells(place);
    const spec = fitted(data.confusion.spec, shownCells);
    const part = shownCells[0].class_samples === undefined ? "" : `, the ${shownCells.length} most confused pairs`;
    spec.facet.column.header = { labels: false, title: null };
    const [squares, counts] = spec.spec.layer;
    const range = dark.matches ? ["#26364a", "#4b86e8"] : ["#dbe8f7", "#0b4f9c"];
    Object.assign(squares.encoding.color, { legend: null, scale: { domain: [0, 1], range } });
    if (dark.matches) counts.encoding.color = { value: "#f2f5f9" };
    Object.assign(spec.spec, { width: 270, height: 270 });
    const title = element("h3", {}, swatch(run), element("span", { textContent: run.name + part }));
    return [element("div", { className: "card" }, title), spec, "svg"];
  });
  const more = shown.length - made.length;
  const said = more > 0 ? `${more} more: hide runs above to see them.` : "No run that is shown has one.";
  const note = element("p", { className: "empty", textContent: said });
  document.getElementById("confusion").replaceChildren(
    ...made.map(([card]) => card),
    ...(more > 0 || !made.length ? [note] : []),
  );
  return made;
}

// Everything together.

function draw() {
  drawRuns();
  drawConfig();
  return drawPlots();
}

function choose(name) {
  view = name;
  for (const tab of document.querySelectorAll("[role=tab]")) {
    tab.setAttribute("aria-selected", String(tab.dataset.view === name));
  }
  document.getElementById("smoothing").hidden = name !== "iterations";
  document.querySelector(".legend").hidden = name === "iterations";
  drawPlots();
}

const slider = document.querySelector("#smoothing input");
slider.value = smooth;
slider.addEventListener("input", () => {
  smooth = Number(slider.value);
  for (const { view: shown } of plots) {
    if (shown.getState().signals.smooth !== undefined) shown.signal("smooth", smooth).runAsync();
  }
});
for (const tab of document.querySelectorAll("[role=tab]")) {
  tab.addEventListener("click", () => choose(tab.dataset.view));
}
document.getElementById("only-differing").addEventListener("change", drawConfig);
dark.addEventListener("change", drawPlots);
document.getElementById("summary").textContent = data.summary;
document.getElementById("runs-hint").textContent =
  `A heading sorts. A tick shows or hides a run everywhere below. Δ: how much the best value is above that of ${data.first}.`;
drawNotes();
draw();
