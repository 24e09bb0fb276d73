"use strict";

// What the page computes from its data: the choice and order of the runs, groups, differences from the
// baseline, and the importance of params. Nothing here reads or changes the document. A run is an index into
// `table.runs`; `table` is the data of the table, as page.py writes it.

const MAX_TICKED = 60; // runs with curves at a time: each has its own pair of a color and a dash or shape
const FIRST_TICKED = 10; // runs with curves at the start: each has its own color
const DIGITS = 3;

function newState(table) {
  return {
    text: "",
    ranges: [], // {key, low, high}; a limit is a number, or null for none
    best: { count: null, metric: metricsWithDirection(table)[0] || null },
    group: null, // key of a column
    closed: new Set(), // labels of the groups without rows
    baseline: table.baseline,
    pinned: false, // whether the reader has chosen the baseline; until then it is that of the newest data
    sort: null, // {key, ascending}
    styles: new Map(), // name of a ticked run to the number of its style
    chosen: false, // whether the reader has ticked a run; until then the first runs in the table are ticked
  };
}

function columnOf(table, key) {
  return table.columns.find((column) => column.key === key);
}

function metricsWithDirection(table) {
  return table.columns.filter((column) => column.role === "best" && column.better).map((column) => column.metric);
}

// Values.

function rankingValue(table, metric, run) {
  const best = columnOf(table, `${metric} best`);
  const value = best ? best.order[run] : null;
  const last = columnOf(table, metric);
  return value !== null ? value : last ? last.order[run] : null;
}

const NON_FINITE = { NaN, inf: Infinity, "-inf": -Infinity }; // JSON has no such numbers, so `order` has null for them

function metricValue(table, metric, run) { // as rankingValue, but a value that is not finite is not null
  const last = columnOf(table, metric);
  return rankingValue(table, metric, run) ?? (last && NON_FINITE[last.shown[run]]) ?? null;
}

function delta(table, metric, run, baseline) {
  const [here, there] = [metricValue(table, metric, run), metricValue(table, metric, baseline)];
  return here === null || there === null ? null : here - there;
}

function columnValue(table, column, run, baseline) { // null if it is missing or not finite
  const value = column.role === "delta" ? delta(table, column.metric, run, baseline) : column.order[run];
  return typeof value !== "number" || Number.isFinite(value) ? value : null;
}

function roundHalfEven(text, exact) { // *text* with an even last digit if *exact* is between two texts; JavaScript rounds up
  const end = exact.indexOf(".") + 1 + DIGITS;
  const [rest, exponent = ""] = exact.slice(end).split(/(?=e)/);
  return /^50*$/.test(rest) && exact[end - 1] % 2 === 0 ? exact.slice(0, end) + exponent : text;
}

function formatRounded(value) { // as format_rounded in stages/contracts/text.py
  const method = value <= 10 ** (1 - DIGITS) ? "toExponential" : "toFixed";
  const text = roundHalfEven(value[method](DIGITS), value[method](100));
  return text.replace("e+", "e").replace("Infinity", "inf");
}

function formatDifference(value) {
  if (value === null) return "-";
  if (Number.isNaN(value)) return "NaN";
  return value === 0 ? "0" : `${value > 0 ? "+" : "-"}${formatRounded(Math.abs(value))}`;
}

function shownValue(table, column, run, baseline) {
  return column.role === "delta" ? formatDifference(delta(table, column.metric, run, baseline)) : column.shown[run];
}

// The choice and order of the runs.

function searchText(table, run) {
  const params = Object.entries(table.params).map(([key, values]) => `${key}=${values[run]}`);
  return [table.runs[run].name, table.runs[run].sha || "", ...params].join("\n").toLowerCase();
}

function matchesText(table, run, text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return true;
  const searched = searchText(table, run);
  return words.every((word) => searched.includes(word));
}

function matchesRange(table, run, { key, low, high }) {
  const column = columnOf(table, key);
  if (!column || (low === null && high === null)) return true;
  const value = column.order[run];
  return typeof value === "number" && (low === null || value >= low) && (high === null || value <= high);
}

function bestRuns(table, runs, { count, metric }) {
  if (!count || !metric) return runs;
  const sign = columnOf(table, `${metric} best`).better === "lowest" ? 1 : -1;
  const valued = runs.filter((run) => rankingValue(table, metric, run) !== null);
  const order = (one, other) => sign * (rankingValue(table, metric, one) - rankingValue(table, metric, other)) || one - other;
  const chosen = new Set(valued.sort(order).slice(0, count));
  return runs.filter((run) => chosen.has(run));
}

function compareValues(a, b) { // numbers come before texts
  if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
  return a < b ? -1 : a > b ? 1 : 0;
}

function sortRuns(table, runs, { sort, baseline }) {
  const column = sort && columnOf(table, sort.key);
  if (!column) return runs;
  const reference = table.runs.findIndex((run) => run.name === baseline);
  const value = (run) => columnValue(table, column, run, reference);
  const sign = sort.ascending ? 1 : -1;
  return [...runs].sort((one, other) => {
    const [a, b] = [value(one), value(other)];
    if (a === null || b === null) return (a === null) - (b === null) || one - other; // runs without a value come last
    return sign * compareValues(a, b) || one - other;
  });
}

function selectRuns(table, state) { // the runs that pass all filters, in order
  const runs = table.runs.map((_, run) => run).filter((run) =>
    matchesText(table, run, state.text) && state.ranges.every((range) => matchesRange(table, run, range)));
  return sortRuns(table, bestRuns(table, runs, state.best), state);
}

function groupRuns(table, runs, key) { // [label, runs] of each value of the column, in the order of the values
  const column = columnOf(table, key);
  if (!column) return [[null, runs]];
  const found = new Map();
  for (const run of runs) {
    const label = column.shown[run];
    found.set(label, [...(found.get(label) || []), run]);
  }
  const order = (label) => column.order[found.get(label)[0]];
  return [...found].sort(([one], [other]) => {
    const [a, b] = [order(one), order(other)];
    return a === null || b === null ? (a === null) - (b === null) : compareValues(a, b);
  });
}

function mean(values) {
  const present = values.filter((value) => typeof value === "number");
  return present.length ? present.reduce((sum, value) => sum + value, 0) / present.length : null;
}

function groupMean(table, column, runs, baseline) { // of a column of a metric; not finite if a value is not
  return mean(runs.map((run) => {
    if (column.role === "delta") return delta(table, column.metric, run, baseline);
    if (column.role === "best") return column.better ? metricValue(table, column.metric, run) : null;
    return column.order[run] ?? NON_FINITE[column.shown[run]];
  }));
}

function bestOf(column, runs) { // the best value of a column; null if fewer than two of the runs have one
  if (column.role !== "best" || !column.better) return null;
  const values = runs.map((run) => column.order[run]).filter((value) => value !== null);
  if (values.length < 2) return null;
  return column.better === "lowest" ? Math.min(...values) : Math.max(...values);
}

// Styles: the smallest free number, so that few runs have different colors whichever they are.

function tick(styles, name) {
  if (styles.has(name) || styles.size >= MAX_TICKED) return styles.has(name);
  const used = new Set(styles.values());
  let number = 0;
  while (used.has(number)) number += 1;
  styles.set(name, number);
  return true;
}

function measuredRuns(table, runs) { // those with a metric, so that they can have curves
  const metrics = table.columns.filter((column) => column.role === "last");
  return runs.filter((run) => metrics.some((column) => column.order[run] !== null));
}

function tickFirst(table, state, listed) {
  const baseline = table.runs.findIndex((run) => run.name === state.baseline);
  const runs = [baseline, ...measuredRuns(table, listed).filter((run) => run !== baseline)].slice(0, FIRST_TICKED);
  const names = new Set(runs.map((run) => table.runs[run].name));
  for (const name of [...state.styles.keys()]) if (!names.has(name)) state.styles.delete(name);
  for (const name of names) tick(state.styles, name);
}

// The importance of params: the part of the spread of a metric's ranks that lies between the values of a param,
// as the square root of epsilon squared, the correlation ratio corrected for the number of groups; 0 to 1.

const MAX_BINS = 5; // groups of a number with more values than that
const RUNS_PER_BIN = 5;

function ranks(values) { // from 1; equal values have the mean of their ranks
  const order = values.map((_, index) => index).sort((one, other) => values[one] - values[other] || one - other);
  const result = new Array(values.length);
  for (let start = 0; start < order.length; ) {
    let end = start;
    while (end < order.length && values[order[end]] === values[order[start]]) end += 1;
    for (const index of order.slice(start, end)) result[index] = (start + end + 1) / 2;
    start = end;
  }
  return result;
}

function sumOf(values) {
  return values.reduce((total, value) => total + value, 0);
}

function rankCorrelation(xs, ys) { // Spearman's rho; null if all values of one are equal
  const [a, b] = [ranks(xs), ranks(ys)];
  const center = (xs.length + 1) / 2;
  const spread = Math.sqrt(sumOf(a.map((each) => (each - center) ** 2)) * sumOf(b.map((each) => (each - center) ** 2)));
  return spread === 0 ? null : sumOf(a.map((each, index) => (each - center) * (b[index] - center))) / spread;
}

function binOf(values) { // few numbers are groups of their own; many are divided by rank into equal parts
  const distinct = new Set(values).size;
  if (distinct <= MAX_BINS && distinct < values.length) return values;
  const bins = Math.max(2, Math.min(MAX_BINS, Math.floor(values.length / RUNS_PER_BIN)));
  return ranks(values).map((rank) => Math.min(bins - 1, Math.floor((bins * (rank - 0.5)) / values.length)));
}

function epsilon(labels, ys) { // null if there is one group, or if each value has its own
  const groups = new Map();
  labels.forEach((label, index) => groups.set(label, [...(groups.get(label) || []), ys[index]]));
  const spread = (values) => sumOf(values.map((each) => (each - mean(values)) ** 2));
  const [count, total] = [ys.length, spread(ys)];
  if (groups.size < 2 || groups.size >= count || total === 0) return null;
  const within = sumOf([...groups.values()].map(spread)) / (count - groups.size);
  return Math.sqrt(Math.max(0, 1 - within / (total / (count - 1))));
}

function importanceOf(table, column, metric, runs) { // {column, runs, correlation, value}; null if undefined
  const used = runs.filter((run) => column.order[run] !== null && rankingValue(table, metric, run) !== null);
  const ys = used.map((run) => rankingValue(table, metric, run));
  const numbers = column.scale === "number" ? used.map((run) => column.order[run]) : null;
  const labels = numbers ? binOf(numbers) : used.map((run) => column.shown[run]);
  return { column, runs: used.length, correlation: numbers && rankCorrelation(numbers, ys), value: epsilon(labels, ranks(ys)) };
}

function importances(table, metric, runs) { // of all params that differ, the largest first
  const found = table.columns.filter((column) => column.role === "param")
    .map((column) => importanceOf(table, column, metric, runs));
  return found.sort((one, other) => (other.value ?? -1) - (one.value ?? -1));
}
