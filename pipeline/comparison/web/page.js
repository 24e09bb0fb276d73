// The document: it shows the state, and changes the state when the reader acts. Charts are drawn when they
// are near the visible part of the page.

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
  state.baseline = name;
  tick(state.styles, name);
  schedule();
}

// The table of runs.

function drawRuns(listed) {
  const focus = focusedControl();
  const columns = table.columns.filter((column) => column.listed);
  const baseline = baselineRun();
  const best = new Map(columns.map((column) => [column.key, bestOf(column, listed)]));
  const row = (run, className = "") => runRow(run, columns, best, className);
  const rest = listed.filter((run) => run !== baseline);
  const bodies = groupRuns(table, rest, state.group).map(([label, runs]) => {
    if (label === null) return element("tbody", {}, ...runs.map((run) => row(run)));
    const closed = state.closed.has(label);
    return element("tbody", {}, groupRow(label, runs, columns), ...(closed ? [] : runs.map((run) => row(run))));
  });
  const own = row(baseline, listed.includes(baseline) ? "" : "filtered");
  byId("runs").replaceChildren(
    element("caption", { className: "unseen", textContent: "Runs with their params and metrics; the baseline is first." }),
    element("thead", {}, element("tr", {}, ...columns.map((column) => headCell(column, listed)))),
    element("tbody", { className: "baseline" }, own),
    ...bodies,
  );
  byId("runs").style.setProperty("--head", `${byId("runs").tHead.offsetHeight}px`);
  restoreFocus(focus);
}

function headCell(column, listed) {
  const button = element("button", { type: "button", textContent: column.title, title: column.key, ariaLabel: `Sort by ${column.key}` });
  button.addEventListener("click", () => {
    const ascending = !(state.sort && state.sort.key === column.key && state.sort.ascending);
    state.sort = { key: column.key, ascending };
    schedule();
  });
  const head = element("th", { scope: "col", className: column.numeric ? "number" : "" }, column.role === "run" ? allBox(listed) : null, button);
  head.dataset.key = column.key;
  if (state.sort && state.sort.key === column.key) head.setAttribute("aria-sort", state.sort.ascending ? "ascending" : "descending");
  return head;
}

function allBox(listed) {
  const names = measuredRuns(table, listed).slice(0, MAX_TICKED).map((run) => table.runs[run].name);
  const count = names.filter((name) => state.styles.has(name)).length;
  const all = count > 0 && count === names.length;
  const box = element("input", { type: "checkbox", id: "tick-all", checked: all, indeterminate: count > 0 && !all,
    ariaLabel: "Curves for all runs in the table", title: `Curves for all runs in the table, at most ${MAX_TICKED}` });
  box.addEventListener("change", () => tickAll(names));
  return box;
}

function runRow(run, columns, best, className) {
  const { name, sha } = table.runs[run];
  const box = element("input", { type: "checkbox", checked: state.styles.has(name), ariaLabel: `Curves for ${name}`, tabIndex: -1 });
  box.addEventListener("change", () => toggle(name));
  const button = element("button", { type: "button", className: "pin", tabIndex: -1, ariaLabel: `Use ${name} as the baseline`,
    title: "Use as the baseline", ariaPressed: String(run === baselineRun()) }, icon('<path d="M9 1h8v1l-1 1v3l3 3v1H7V9l3-3V3L9 2z M12.5 10h1v4h-1z"/>'));
  button.addEventListener("click", () => pin(name));
  const text = element("span", { className: "name", textContent: name, title: sha ? `${name}, ${sha}` : name });
  const head = element("th", { scope: "row" }, element("div", {}, element("label", {}, box, swatch(run), text), button));
  const cells = columns.slice(1).map((column) => {
    const value = best.get(column.key);
    const classes = [column.numeric ? "number" : "", value !== null && column.order[run] === value ? "best" : ""];
    if (column.key === "cached" && column.order[run] === 0) classes.push("no");
    const shown = shownValue(table, column, run, baselineRun());
    return element("td", { className: classes.join(" ").trim(), textContent: shown });
  });
  const made = element("tr", { className }, head, ...cells);
  made.dataset.run = name;
  return made;
}

function groupRow(label, runs, columns) { // a group with the means of its metrics
  const closed = state.closed.has(label);
  const title = `${columnOf(table, state.group).title} = ${label}`;
  const button = element("button", { type: "button", ariaExpanded: String(!closed), textContent: `${title} (${runs.length})` });
  button.addEventListener("click", () => {
    if (!state.closed.delete(label)) state.closed.add(label);
    schedule();
  });
  const cells = columns.slice(1).map((column) => {
    if (!["last", "best", "delta"].includes(column.role)) return element("td");
    const value = mean(runs.map((run) => columnValue(table, column, run, baselineRun())));
    const text = value === null ? "-" : column.role === "delta" ? formatDifference(value) : formatRounded(value);
    return element("td", { className: "number", textContent: text, title: "mean of the group" });
  });
  return element("tr", { className: "group" }, element("th", { scope: "rowgroup" }, button), ...cells);
}

// Keys in the table: one control is in the tab order, and arrow keys move between the rows and in a row.

function controls() {
  return [...byId("runs").querySelectorAll("tr[data-run]")].map((row) => [...row.querySelectorAll("input, .pin")]);
}

function focusedControl() {
  const row = document.activeElement && document.activeElement.closest("#runs tr[data-run]");
  return row && { name: row.dataset.run, index: document.activeElement.classList.contains("pin") ? 1 : 0 };
}

function restoreFocus(focus) {
  const rows = controls();
  const row = focus && byId("runs").querySelector(`tr[data-run="${CSS.escape(focus.name)}"]`);
  if (rows.length) rows[0][0].tabIndex = 0;
  if (row) moveTo([...row.querySelectorAll("input, .pin")][focus.index]);
}

function moveTo(control) {
  for (const each of controls().flat()) each.tabIndex = -1;
  control.tabIndex = 0;
  control.focus({ preventScroll: false });
}

function onTableKey(event) {
  const row = event.target.closest("tr[data-run]");
  if (!row || !event.target.matches("input, .pin")) return;
  if (event.key === "Enter" && event.target.matches("input")) return void (event.preventDefault(), event.target.click());
  const rows = controls();
  const here = rows.findIndex((each) => each.includes(event.target));
  const index = rows[here].indexOf(event.target);
  const place = { ArrowDown: [here + 1, index], ArrowUp: [here - 1, index], ArrowRight: [here, 1], ArrowLeft: [here, 0],
    Home: [0, index], End: [rows.length - 1, index] }[event.key];
  const target = place && rows[place[0]] && rows[place[0]][place[1]];
  if (!place) return;
  event.preventDefault();
  if (target) moveTo(target);
}

// Hints at tables that are larger than their frames.

function showOverflow(frame) {
  const scroll = frame.firstElementChild;
  const right = scroll.scrollWidth - scroll.clientWidth - scroll.scrollLeft > 1;
  frame.classList.toggle("more-right", right);
  frame.classList.toggle("more-below", scroll.scrollHeight - scroll.clientHeight - scroll.scrollTop > 1);
  if (scroll.id !== "runs-scroll") return;
  const edge = scroll.getBoundingClientRect().right;
  const outside = [...scroll.querySelectorAll("thead th")].filter((head) => head.getBoundingClientRect().right > edge + 1).length;
  byId("runs-more").textContent = outside ? `Scroll the table for ${outside} more column${outside === 1 ? "" : "s"} →` : "";
}

// The filters.

function drawFilterChoices() {
  const numbers = table.columns.filter((column) => column.scale === "number" && column.order.some((value) => value !== null));
  fillSelect(byId("best-metric"), metricsWithDirection(table).map((name) => [name, name]), state.best.metric);
  fillSelect(byId("range-column"), numbers.map((column) => [column.key, axisLabel(column)]), "", "choose a column");
  const groups = table.columns.filter((column) => column.role === "param" || column.key === "cached");
  fillSelect(byId("group"), groups.map((column) => [column.key, column.title]), state.group, "nothing");
}

function addRange(key) {
  const column = columnOf(table, key);
  const range = { key, low: null, high: null };
  const values = column.order.filter((value) => typeof value === "number");
  const limit = (end, word, extreme) => {
    const input = element("input", { type: "number", step: "any", placeholder: String(extreme), ariaLabel: `${axisLabel(column)}, ${word}` });
    input.addEventListener("input", () => {
      range[end] = input.value === "" ? null : Number(input.value);
      schedule();
    });
    return input;
  };
  const remove = element("button", { type: "button", textContent: "Remove", ariaLabel: `Remove the range of ${axisLabel(column)}` });
  const low = limit("low", "lowest", Math.min(...values));
  const field = element("fieldset", { className: "range" }, element("legend", { className: "unseen", textContent: `Range of ${axisLabel(column)}` }),
    element("span", { textContent: axisLabel(column) }), low, element("span", { textContent: "to" }), limit("high", "highest", Math.max(...values)), remove);
  remove.addEventListener("click", () => {
    state.ranges = state.ranges.filter((each) => each !== range);
    field.remove();
    schedule();
    byId("range-column").focus();
  });
  state.ranges.push(range);
  byId("ranges").append(field);
  low.focus();
}

function resetFilters() {
  Object.assign(state, { text: "", ranges: [], group: null, sort: null, best: newState(table).best });
  state.closed.clear();
  byId("ranges").replaceChildren();
  drawFilterChoices();
  schedule();
}

// The configuration.

function drawConfig(runs) {
  const only = byId("only-differing").checked;
  const differs = (values) => new Set(runs.map((run) => values[run])).size > 1;
  const params = Object.entries(table.params).filter(([, values]) => !only || differs(values));
  const caption = element("caption", { className: "unseen", textContent: "Params of the runs with curves." });
  if (!params.length || !runs.length) {
    const text = runs.length ? "These runs have the same params." : "No run in the table is ticked.";
    byId("config").replaceChildren(caption, element("tbody", {}, element("tr", {}, element("td", { className: "empty", textContent: text }))));
    return;
  }
  const heads = runs.map((run) => element("th", { scope: "col" }, swatch(run), table.runs[run].name));
  const rows = params.map(([key, values]) => {
    const cells = runs.map((run) => {
      const text = values[run] === null ? "-" : values[run];
      return element("td", { textContent: text, title: text, className: values[run] === values[runs[0]] ? "" : "differs" });
    });
    return element("tr", {}, element("th", { scope: "row", textContent: key }), ...cells);
  });
  byId("config").replaceChildren(
    caption,
    element("thead", {}, element("tr", {}, element("th", { scope: "col", textContent: "param" }), ...heads)),
    element("tbody", {}, ...rows),
  );
}

// Charts: `make` returns {spec, label, renderer} or {text}.

const observer = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) if (charts.has(target)) charts.get(target).near = isIntersecting;
  drawCharts();
}, { rootMargin: "300px" });

function setChart(place, make) {
  const chart = charts.get(place) || { view: null, near: false };
  charts.set(place, Object.assign(chart, { make, stale: true }));
  observer.observe(place);
}

function removeChart(place) {
  observer.unobserve(place);
  charts.get(place)?.view?.finalize();
  charts.delete(place);
}

function drawCharts() {
  drawings = drawings.then(drawNearCharts);
}

async function drawNearCharts() {
  if (!window.vegaEmbed) return; // its script is the last one of the page
  for (const [place, chart] of [...charts]) {
    if (!chart.stale || !chart.near) continue;
    chart.stale = false;
    await drawChart(place, chart);
  }
  drawn += 1;
  document.body.dataset.drawn = String(drawn);
}

async function drawChart(place, chart) {
  const { spec, label, text, renderer = "svg" } = chart.make();
  chart.view?.finalize();
  chart.view = null;
  if (!spec) return void place.replaceChildren(element("p", { className: "empty", textContent: text }));
  const box = element("div", { className: "plot" });
  place.style.minHeight = `${place.offsetHeight}px`;
  place.replaceChildren(box);
  const options = { mode: "vega-lite", renderer, actions: false, logLevel: ERRORS, tooltip: { theme: dark.matches ? "dark" : "light" } };
  chart.view = await vegaEmbed(box, { description: label, ...spec }, options);
  chart.view.view.addEventListener("click", (_, item) => item && item.datum && item.datum.name !== undefined && toggle(item.datum.name));
  place.style.minHeight = "";
  if (!charts.has(place)) chart.view.finalize();
}

function theme() {
  const style = getComputedStyle(document.documentElement);
  const color = (name) => style.getPropertyValue(name).trim();
  return { dark: dark.matches, ink: color("--ink"), soft: color("--soft"), line: color("--line"), card: color("--card") };
}

function plotsData() {
  plots ??= JSON.parse(byId("plots").textContent);
  return plots;
}

function setCurves(runs) {
  const place = byId("curves");
  const wanted = plotsData().charts[view];
  const cards = new Map([...place.children].map((card) => [card.dataset.chart, card]));
  const made = wanted.map((chart) => {
    const name = `${view} ${chart.title}`;
    const card = cards.get(name) || element("div", { className: "card" }, element("h3", { textContent: chart.title }), element("div", { className: "tall" }));
    card.dataset.chart = name;
    setChart(card.lastChild, () => {
      const points = curvePoints(table, plotsData(), chart, runs);
      if (!points.length) return { text: "No ticked run in the table has it." };
      const spec = curvesSpec(chart, points, styleScales(table.palette, state.styles), theme(), smooth);
      const label = `${chart.title} by ${chart.x} of ${runs.length} run${runs.length === 1 ? "" : "s"}`;
      return { spec, label, renderer: view === "epochs" ? "svg" : "canvas" };
    });
    return card;
  });
  for (const card of cards.values()) if (!made.includes(card)) removeChart(card.lastChild);
  if (!made.length) made.push(element("p", { className: "empty", textContent: "No curves: the cache has no plots of these runs." }));
  if (made.length !== place.children.length || made.some((card, index) => card !== place.children[index])) place.replaceChildren(...made);
}

function setRelations(listed) {
  const [x, y] = ["scatter-x", "scatter-y"].map((id) => columnOf(table, byId(id).value));
  setChart(byId("scatter"), () => {
    const points = x && y ? scatterPoints(table, listed, state.styles, x, y) : [];
    if (!points.length) return { text: "No run in the table has both values." };
    const label = `${axisLabel(y)} against ${axisLabel(x)} of ${points.length} runs`;
    return { spec: scatterSpec(points, x, y, styleScales(table.palette, state.styles), theme()), label };
  });
  setChart(byId("parallel"), () => {
    const columns = axes.map((key) => columnOf(table, key)).filter(Boolean);
    const metric = byId("shade").value;
    const found = metric ? parallelData(table, listed, state.styles, columns, metric) : { runs: 0 };
    if (!found.runs || columns.length < 2) return { text: "No run in the table has all values. Choose at least two axes." };
    return { spec: parallelSpec(found, metric, theme()), label: `${columns.length} columns of ${found.runs} runs, strong lines have the best ${metric}` };
  });
  byId("parallel").style.minWidth = `${110 * axes.length}px`;
  drawImportance(listed);
}

function drawImportance(listed) {
  const metric = byId("target").value;
  const rows = (metric ? importances(table, metric, listed) : []).map(({ column, runs, correlation, value }) => {
    const bar = element("div", { className: "bar-value" });
    bar.style.width = `${100 * (value ?? 0)}%`;
    const trend = correlation === null ? "-" : `${correlation < 0 ? "" : "+"}${correlation.toFixed(2)}`;
    return element("tr", {}, element("th", { scope: "row", textContent: column.title, title: column.key }),
      element("td", { className: "number", textContent: value === null ? "-" : value.toFixed(2) }), element("td", { className: "track" }, bar),
      element("td", { className: "number", textContent: trend }), element("td", { className: "number", textContent: runs }));
  });
  const heads = [["param", ""], ["importance", "number"], ["", ""], ["rank correlation", "number"], ["runs", "number"]]
    .map(([text, className]) => element("th", { scope: "col", className, textContent: text }));
  const none = element("tr", {}, element("td", { colSpan: 5, className: "empty", textContent: "No param differs, or no run has a metric." }));
  byId("importance").replaceChildren(element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...(rows.length ? rows : [none])));
}

function drawChoicesOfColumns() {
  const columns = table.columns.filter((column) => ["param", "last", "best", "fact"].includes(column.role) && column.key !== "cached"
    && column.order.some((value) => value !== null));
  const options = columns.map((column) => [column.key, axisLabel(column)]);
  const metrics = table.columns.filter((column) => column.role === "last").map((column) => [column.key, column.key]);
  const params = columns.filter((column) => column.role === "param");
  const target = metricsWithDirection(table)[0] || metrics[0]?.[0] || "";
  const ranking = columnOf(table, `${target} best`)?.better ? `${target} best` : target;
  const [first] = [...importances(table, target, table.runs.map((_, run) => run)).map((each) => each.column), columnOf(table, "epochs")];
  const keep = (id, choices, value) => fillSelect(byId(id), choices, choices.some(([key]) => key === byId(id).value) ? byId(id).value : value);
  keep("scatter-x", options, first.key);
  keep("scatter-y", options, ranking);
  keep("shade", metrics, target);
  keep("target", metrics, target);
  axes ??= [...params.slice(0, 6).map((column) => column.key), ranking].filter((key) => columnOf(table, key));
  byId("axes").replaceChildren(...columns.map((column) => {
    const box = element("input", { type: "checkbox", checked: axes.includes(column.key) });
    box.addEventListener("change", () => {
      const chosen = new Set(axes);
      if (!chosen.delete(column.key)) chosen.add(column.key);
      axes = columns.map((each) => each.key).filter((key) => chosen.has(key));
      schedule();
    });
    return element("label", {}, box, axisLabel(column));
  }));
}

function setMatrices(listed) {
  const { confusion } = plotsData();
  const runs = confusion ? [...new Set([baselineRun(), ...curveRuns(listed), ...listed])].filter((run) => confusion.runs[run]) : [];
  const named = (name) => runs.find((run) => table.runs[run].name === name);
  const first = named(matrices[0]) ?? runs.find((run) => run !== named(matrices[1]));
  const second = named(matrices[1]) ?? runs.find((run) => run !== first);
  const options = runs.map((run) => [table.runs[run].name, table.runs[run].name]);
  fillSelect(byId("matrix-first"), options, first === undefined ? "" : table.runs[first].name);
  fillSelect(byId("matrix-second"), options, second === undefined ? "" : table.runs[second].name);
  const cards = [...byId("confusion").children];
  if (!cards.length) cards.push(...[0, 1, 2].map(() => element("div", { className: "card" }, element("h3"), element("div", { className: "tall" }))));
  if (!byId("confusion").children.length) byId("confusion").append(...cards);
  [first, second].forEach((run, index) => setMatrix(cards[index], run));
  setDifference(cards[2], first, second);
}

function setMatrix(card, run) {
  card.hidden = run === undefined && card !== card.parentElement.firstElementChild;
  const cells = run === undefined ? [] : matrixCells(table, plotsData(), run);
  const part = cells.length && cells[0].class_samples !== undefined ? `, the ${cells.length} most confused pairs` : "";
  card.firstChild.replaceChildren(...(run === undefined ? [] : [swatch(run), element("span", { textContent: table.runs[run].name + part })]));
  setChart(card.lastChild, () => (cells.length
    ? { spec: matrixSpec(plotsData().confusion.spec, cells, theme()), label: `Confusion matrix of ${table.runs[run].name}` }
    : { text: "No run in the table has a confusion matrix." }));
}

function setDifference(card, first, second) {
  card.hidden = first === undefined || second === undefined;
  if (card.hidden) return;
  const cells = differingCells(matrixCells(table, plotsData(), first), matrixCells(table, plotsData(), second));
  card.firstChild.textContent = "Second minus first";
  setChart(card.lastChild, () => (cells.length
    ? { spec: differenceSpec(cells, theme()), label: "Difference of the confusion matrices, second minus first" }
    : { text: "These matrices have no pair of classes in common." }));
}

// Everything together.

function schedule() { // draw once, however many changes a frame has
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(draw);
}

function drawTable() {
  const listed = listedRuns();
  if (!state.chosen) tickFirst(table, state, listed);
  const curves = curveRuns(listed);
  drawRuns(listed);
  drawConfig(curves);
  byId("baseline").textContent = table.runs[baselineRun()].name;
  const limit = state.styles.size >= MAX_TICKED ? `, at most ${MAX_TICKED}` : "";
  byId("status").textContent = `${listed.length} of ${table.runs.length} runs in the table, ${curves.length} ticked${limit}`;
  for (const frame of document.querySelectorAll(".frame")) showOverflow(frame);
  return [listed, curves];
}

function draw() {
  scheduled = false;
  const [listed, curves] = drawTable();
  if (!byId("plots")) return; // not yet read
  setCurves(curves);
  setRelations(listed);
  setMatrices(listed);
  drawCharts();
}

function chooseView(tab) {
  view = tab.dataset.view;
  for (const each of document.querySelectorAll("[role=tab]")) {
    each.setAttribute("aria-selected", String(each === tab));
    each.tabIndex = each === tab ? 0 : -1;
  }
  byId("curves").setAttribute("aria-labelledby", tab.id);
  byId("smoothing").hidden = view !== "iterations";
  document.querySelector(".legend").hidden = view === "iterations";
  schedule();
}

function changeSmoothing(value) {
  smooth = value;
  for (const chart of charts.values()) {
    const signals = chart.view?.view.getState().signals || {};
    if (signals.smooth !== undefined) chart.view.view.signal("smooth", smooth).runAsync();
  }
}

function setTable() { // texts and choices that depend on the data, but not on the state
  byId("summary").textContent = table.summary;
  const notes = table.runs.flatMap((run) => run.notes.map((note) => `${run.name}: ${note}`));
  byId("notes").replaceChildren(...notes.map((note) => element("li", { textContent: note })));
  drawFilterChoices();
  drawChoicesOfColumns();
}

function listen() {
  const on = (id, event, handle) => byId(id).addEventListener(event, handle);
  on("filters", "submit", (event) => event.preventDefault());
  on("filters", "reset", resetFilters);
  on("search", "input", (event) => { state.text = event.target.value; schedule(); });
  on("best-count", "input", (event) => { state.best.count = Math.max(0, Math.floor(Number(event.target.value))) || null; schedule(); });
  on("best-metric", "change", (event) => { state.best.metric = event.target.value; schedule(); });
  on("group", "change", (event) => { state.group = event.target.value || null; state.closed.clear(); schedule(); });
  on("range-column", "change", (event) => { if (event.target.value) addRange(event.target.value); event.target.value = ""; });
  on("runs", "keydown", onTableKey);
  on("only-differing", "change", schedule);
  for (const id of ["scatter-x", "scatter-y", "shade", "target"]) on(id, "change", schedule);
  on("matrix-first", "change", (event) => { matrices[0] = event.target.value; schedule(); });
  on("matrix-second", "change", (event) => { matrices[1] = event.target.value; schedule(); });
  byId("smoothing").lastElementChild.value = smooth;
  byId("smoothing").addEventListener("input", (event) => changeSmoothing(Number(event.target.value)));
  const tabs = [...document.querySelectorAll("[role=tab]")];
  for (const [index, tab] of tabs.entries()) {
    tab.addEventListener("click", () => chooseView(tab));
    tab.addEventListener("keydown", ({ key }) => {
      if (key !== "ArrowLeft" && key !== "ArrowRight") return;
      const next = tabs[(index + 1) % tabs.length];
      next.focus();
      chooseView(next);
    });
  }
  for (const frame of document.querySelectorAll(".frame")) frame.firstElementChild.addEventListener("scroll", () => showOverflow(frame), { passive: true });
  addEventListener("resize", () => document.querySelectorAll(".frame").forEach(showOverflow));
  dark.addEventListener("change", schedule);
}

// A page that `learner compare --watch` serves asks for newer data, and keeps the choices of the reader.

function update(found) {
  ({ table, plots } = found);
  const exists = (key) => columnOf(table, key) !== undefined;
  state.ranges = state.ranges.filter((range) => exists(range.key));
  if (!table.runs.some((run) => run.name === state.baseline)) state.baseline = table.baseline;
  if (!metricsWithDirection(table).includes(state.best.metric)) state.best.metric = newState(table).best.metric;
  if (!exists(state.group)) state.group = null;
  setTable();
  schedule();
}

async function poll(tag) {
  let problem = "";
  try {
    const answer = await fetch("data.json", { headers: { "If-None-Match": tag }, cache: "no-store" });
    if (answer.status === 200) {
      update(await answer.json());
      tag = answer.headers.get("ETag");
    } else if (answer.status !== 304) problem = `Not up to date: ${await answer.text()}`;
  } catch {
    problem = "Not up to date: the server has stopped. Run `learner compare --watch` again and open its page.";
  }
  if (byId("watch").textContent !== problem) byId("watch").textContent = problem;
  byId("watch").hidden = !problem;
  setTimeout(poll, POLL_MILLISECONDS, tag);
}

setTable();
listen();
drawTable();
addEventListener("DOMContentLoaded", draw);
if (document.documentElement.dataset.tag) addEventListener("load", () => poll(document.documentElement.dataset.tag));
