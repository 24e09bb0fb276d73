// The tables of the page, its filters, and the keys that move in the table of runs.

// The table of runs.

function drawRuns(listed) {
  const focus = focusedControl();
  const columns = table.columns.filter((column) => column.listed);
  const baseline = baselineRun();
  const best = new Map(columns.map((column) => [column.key, bestOf(column, listed)]));
  const row = (run, className = "") => runRow(run, columns, best, className);
  const rows = (runs) => runs.filter((run) => run !== baseline).map((run) => row(run));
  const bodies = groupRuns(table, listed, state.group).map(([label, runs]) => {
    if (label === null) return element("tbody", {}, ...rows(runs));
    return element("tbody", {}, groupRow(label, runs, columns), ...(state.closed.has(label) ? [] : rows(runs)));
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
    const value = groupMean(table, column, runs, baselineRun());
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
  field.dataset.key = key;
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
