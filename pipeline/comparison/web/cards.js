// The charts of the page. A chart is drawn when it is near the visible part of the page, and again when its data
// has changed.

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
    try {
      await drawChart(place, chart);
    } catch (error) { // one chart must not stop the others
      console.error(error);
      place.replaceChildren(element("p", { className: "empty", textContent: `This chart cannot be drawn: ${error.message}` }));
    }
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
  const cards = new Map([...place.querySelectorAll(":scope > .card")].map((card) => [card.dataset.chart, card]));
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
    return { spec: parallelSpec(found, metric, theme()), label: parallelLabel(table, found, metric) };
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

function setSamples(runs) {
  const { samples } = plotsData();
  const place = byId("samples");
  place.parentElement.hidden = !samples;
  const shown = samples ? runs.filter((run) => samples[run].length) : [];
  const cards = shown.map((run) => element("div", { className: "card wide" },
    element("h3", {}, swatch(run), element("span", { textContent: table.runs[run].name })), element("div", { className: "samples" }, ...samples[run].map(sampleFigure))));
  if (!cards.length) cards.push(element("p", { className: "empty", textContent: "No ticked run in the table has samples." }));
  place.replaceChildren(...cards);
}

function sampleFigure({ path, image, text }) {
  const content = image === undefined ? element("pre", { textContent: text }) : element("img", { src: `data:image/png;base64,${image}`, alt: path });
  return element("figure", {}, content, element("figcaption", { textContent: path }));
}
