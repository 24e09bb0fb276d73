// What happens when the page is read, when the reader acts, and when the server has newer data.

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
  setSamples(curves);
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
  for (const field of document.querySelectorAll("#ranges .range")) if (!exists(field.dataset.key)) field.remove();
  state.pinned &&= table.runs.some((run) => run.name === state.baseline);
  if (!state.pinned) state.baseline = table.baseline;
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
