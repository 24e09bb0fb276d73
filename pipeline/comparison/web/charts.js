// The specifications of the charts, as Vega-Lite: curves and confusion matrices from the templates of DVC,
// the scatter chart and the parallel coordinates from here. Field names are fixed, and texts of the user are
// only values, so no text of the user is part of an expression.

const DASHES = [[1, 0], [6, 3], [2, 2], [9, 3, 2, 3], [14, 4], [1, 4]];
const SHAPES = ["circle", "square", "triangle-up", "diamond", "cross", "triangle-down"];
const MAX_CATEGORIES = 12; // labels on an axis of the parallel coordinates
const MAX_NUMBERS = 6; // labels of numbers there; of more, the lowest and the highest have one

function styleOf(palette, number) { // MAX_TICKED numbers have different pairs of a color and a dash or shape
  const variant = Math.floor(number / palette.length) % DASHES.length;
  return { color: palette[number % palette.length], dash: DASHES[variant], shape: SHAPES[variant] };
}

function styleScales(palette, styles) { // a scale from run to color, dash and shape each
  const domain = [...styles.keys()];
  const found = domain.map((name) => styleOf(palette, styles.get(name)));
  const scale = (key) => ({ domain, range: found.map((style) => style[key]) });
  return { color: scale("color"), dash: scale("dash"), shape: scale("shape") };
}

function everyLayer(spec) {
  return (spec.layer || []).flatMap((layer) => [layer, ...everyLayer(layer)]);
}

function fitted(spec, values, theme) { // *spec* with data and with the colors of the page
  const made = structuredClone(spec);
  delete made.title;
  made.background = null;
  made.data = { values };
  const text = { labelColor: theme.soft, titleColor: theme.soft, labelFont: "system-ui", titleFont: "system-ui" };
  made.config = {
    view: { stroke: null },
    text: { font: "system-ui" },
    axis: { ...text, gridColor: theme.line, domainColor: theme.line, tickColor: theme.line, titleFontWeight: "normal", labelLimit: 140 },
    header: text,
  };
  return made;
}

function sized(spec, height) {
  return Object.assign(spec, { width: "container", height, autosize: { type: "fit-x", contains: "padding" } });
}

// Curves.

function unpack(text) { // float32 in base64, rounded to the digits that they have; null for a value that cannot be drawn
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  return Array.from(new Float32Array(bytes.buffer), (value) => (Number.isFinite(value) ? Number(value.toPrecision(6)) : null));
}

function curvePoints(table, plots, chart, runs) {
  const shown = new Set(runs);
  return chart.curves.filter((curve) => shown.has(curve.run)).flatMap(({ run, split, x, y }) =>
    unpack(y).flatMap((value, index) =>
      value === null ? [] : [{ rev: table.runs[run].name, split, [chart.x]: plots.steps[x][index], value }]));
}

function curvesSpec(chart, points, scales, theme, smooth) {
  const made = fitted(chart.spec, points, theme);
  for (const param of [made, ...everyLayer(made)].flatMap((each) => each.params || [])) {
    if (param.name === "smooth") {
      delete param.bind;
      param.value = chart.x === "step" ? smooth : param.value;
    }
    if (param.name === "grid") param.select = { type: "interval", zoom: "wheel![event.shiftKey]" };
  }
  const split = (range) => ({ field: "split", type: "ordinal", legend: null, scale: { domain: ["valid", "train"], range } });
  const rev = (scale) => ({ field: "rev", type: "nominal", legend: null, scale });
  Object.assign(made.encoding, { color: rev(scales.color), strokeDash: rev(scales.dash) });
  made.encoding.x.axis = { tickMinStep: 1, tickCount: 10, labelExpr: "datum.value % 1 ? '' : format(datum.value, datum.value < 1e4 ? ',d' : '~s')" };
  for (const layer of everyLayer(made)) {
    if (layer.encoding && layer.encoding.y) Object.assign(layer.encoding.y, { title: null, axis: { format: ".5~g" } });
    if (layer.mark && layer.mark.type === "line") layer.encoding = { ...layer.encoding, detail: { field: "split" } };
    if (layer.mark === "line") layer.encoding = { ...layer.encoding, opacity: split([1, 0.5]), strokeWidth: split([2, 1.2]) };
    if (layer.mark && layer.mark.type === "circle") {
      layer.mark = { type: "point", filled: true, size: 35 };
      layer.encoding = { ...layer.encoding, shape: rev(scales.shape), opacity: split([1, 0.5]) };
      layer.encoding.detail = { field: "split" };
    }
  }
  return sized(made, 230);
}

// Confusion matrices.

function matrixCells(table, plots, run) {
  const { classes, numbers } = plots.confusion.runs[run];
  return plots.confusion.classes[classes].map(([actual, predicted], cell) =>
    ({ rev: table.runs[run].name, actual, predicted, count: numbers[cell][0], class_samples: numbers[cell][1] }));
}

function shares(cells) { // by pair of classes, the count and the share of the actual class
  const totals = new Map();
  for (const each of cells) totals.set(each.actual, (totals.get(each.actual) || 0) + each.count);
  const share = (each) => each.count / (each.class_samples ?? totals.get(each.actual));
  return new Map(cells.map((each) => [JSON.stringify([each.actual, each.predicted]), { ...each, share: share(each) || 0 }]));
}

function differingCells(one, other) { // a pair that a complete matrix lacks has the count 0; a part may lack any pair
  const [before, after] = [shares(one), shares(other)];
  const [noneBefore, noneAfter] = [one, other].map((cells) =>
    (cells.some((each) => each.class_samples !== undefined) ? null : { count: 0, share: 0 }));
  return [...new Map([...before, ...after])].flatMap(([pair, { actual, predicted }]) => {
    const [first, second] = [before.get(pair) ?? noneBefore, after.get(pair) ?? noneAfter];
    if (!first || !second) return [];
    const [difference, points] = [second.count - first.count, 100 * (second.share - first.share)];
    return { actual, predicted, base: first.count, count: second.count, difference, points };
  });
}

function matrixSpec(spec, cells, theme) {
  const made = fitted(spec, cells, theme);
  made.facet.column.header = { labels: false, title: null };
  const [squares, counts] = made.spec.layer;
  const range = theme.dark ? ["#26364a", "#4b86e8"] : ["#dbe8f7", "#0b4f9c"];
  Object.assign(squares.encoding.color, { legend: null, scale: { domain: [0, 1], range } });
  if (theme.dark) counts.encoding.color = { value: "#f2f5f9" };
  Object.assign(made.spec, { width: 270, height: 270 });
  return made;
}

function differenceSpec(cells, theme) {
  const limit = Math.max(...cells.map((each) => Math.abs(each.points)), 1e-9);
  const range = theme.dark ? ["#c2620e", "#232a33", "#3c7be0"] : ["#e8801f", "#f2f4f7", "#2f6fd0"];
  const axis = (field, others = {}) =>
    ({ field, type: "ordinal", sort: { op: "min", field: `${field}_order` }, ...others });
  const number = (field, title, format) => ({ field, title, type: "quantitative", format });
  return Object.assign(fitted({
    transform: ["actual", "predicted"].map((field) => ({ calculate: `toNumber(datum.${field})`, as: `${field}_order` })),
    encoding: {
      x: axis("predicted", { axis: { labelAngle: 0 } }),
      y: axis("actual"),
      tooltip: [
        { field: "actual" }, { field: "predicted" }, number("base", "first matrix", ","), number("count", "second matrix", ","),
        number("difference", "difference", "+,"), number("points", "share of the class, in points", "+.1f"),
      ],
    },
    layer: [
      { mark: "rect", encoding: { color: { field: "points", type: "quantitative", legend: null, scale: { domain: [-limit, 0, limit], range, interpolate: "rgb" } } } },
      { transform: [{ filter: "datum.difference != 0" }], mark: { type: "text", fontSize: 9 },
        encoding: { text: number("difference", "", "+d"), color: { value: theme.ink } } },
    ],
  }, cells, theme), { width: 270, height: 270 });
}

// The scatter chart.

function axisLabel(column) {
  return column.role === "last" ? `${column.key}, last` : column.role === "best" ? `${column.metric}, best` : column.title;
}

function isLogarithmic(values) {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  return low > 0 && high / low >= 100;
}

function scatterPoints(table, runs, styles, x, y) {
  const value = (column, run) => (column.scale === "number" ? column.order[run] : column.shown[run]);
  return runs.filter((run) => x.order[run] !== null && y.order[run] !== null).map((run) => ({
    name: table.runs[run].name, x: value(x, run), y: value(y, run),
    shown_x: x.shown[run], shown_y: y.shown[run], ticked: styles.has(table.runs[run].name),
  }));
}

function scatterSpec(points, x, y, scales, theme) {
  const axis = (column, field) => {
    const title = axisLabel(column);
    if (column.scale !== "number") {
      const sort = [...new Set(points.map((each) => each[field]))].sort(compareValues);
      return { field, type: "nominal", title, sort, axis: { labelAngle: 0 } };
    }
    const type = isLogarithmic(points.map((each) => each[field])) ? "log" : "linear";
    return { field, type: "quantitative", title, scale: type === "log" ? { type, nice: false } : { type, zero: false }, axis: { tickCount: 5 } };
  };
  const rev = (scale) => ({ field: "name", type: "nominal", legend: null, scale });
  const tooltip = [{ field: "name", title: "run" }, { field: "shown_x", title: axisLabel(x) }, { field: "shown_y", title: axisLabel(y) }];
  const layer = [
    { transform: [{ filter: "!datum.ticked" }], mark: { type: "point", size: 45, opacity: 0.6, color: theme.soft } },
    { transform: [{ filter: "datum.ticked" }], mark: { type: "point", filled: true, size: 90, opacity: 1 },
      encoding: { color: rev(scales.color), shape: rev(scales.shape) } },
  ];
  return sized(fitted({ encoding: { x: axis(x, "x"), y: axis(y, "y"), tooltip }, layer }, points, theme), 300);
}

// Parallel coordinates: each run is a line across one axis for each column.

function axisPositions(column, runs) { // {of: run to 0..1, marks: [position, text]}
  const present = runs.filter((run) => column.order[run] !== null);
  if (column.scale === "number") {
    const values = present.map((run) => column.order[run]);
    const place = isLogarithmic(values) ? Math.log : (value) => value;
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const span = place(high) - place(low);
    const of = (run) => (span ? (place(column.order[run]) - place(low)) / span : 0.5);
    const text = (value) => column.shown[present.find((run) => column.order[run] === value)];
    const distinct = [...new Set(values)];
    const labeled = distinct.length <= MAX_NUMBERS ? distinct : [low, high];
    const marks = labeled.map((value) => [span ? (place(value) - place(low)) / span : 0.5, text(value)]);
    return { of, marks };
  }
  const labels = [...new Set(present.map((run) => column.shown[run]))].sort(compareValues);
  const place = (label) => (labels.length > 1 ? labels.indexOf(label) / (labels.length - 1) : 0.5);
  const every = Math.ceil(labels.length / MAX_CATEGORIES);
  return { of: (run) => place(column.shown[run]), marks: labels.filter((_, index) => index % every === 0).map((label) => [place(label), label]) };
}

function parallelData(table, runs, styles, columns, metric) {
  const complete = runs.filter((run) => columns.every((column) => column.order[run] !== null));
  const sign = columnOf(table, `${metric} best`)?.better === "lowest" ? -1 : 1;
  const merits = complete.map((run) => sign * (rankingValue(table, metric, run) ?? -Infinity));
  const merit = ranks(merits);
  const points = [];
  const marks = [];
  columns.forEach((column, axis) => {
    const { of, marks: texts } = axisPositions(column, complete);
    complete.forEach((run, index) => points.push({
      name: table.runs[run].name, axis, position: of(run), value: rankingValue(table, metric, run),
      merit: complete.length > 1 ? (merit[index] - 1) / (complete.length - 1) : 1, ticked: styles.has(table.runs[run].name),
    }));
    if (complete.length) for (const [position, text] of texts) marks.push({ axis, position, text });
  });
  return { points, marks, titles: columns.map((column, axis) => ({ axis, title: axisLabel(column) })), runs: complete.length };
}

function parallelLabel(table, { titles, runs }, metric) {
  const better = columnOf(table, `${metric} best`)?.better;
  return `${titles.length} columns of ${runs} runs, strong lines have the ${better ? "best" : "highest last"} ${metric}`;
}

function parallelSpec({ points, marks, titles }, metric, theme) {
  const range = theme.dark ? ["#3a4656", "#9cc9ff"] : ["#ccd5e0", "#0b4f9c"];
  const place = { x: { field: "axis", type: "quantitative", axis: null, scale: { domain: [-0.15, titles.length - 0.25], nice: false } },
    y: { field: "position", type: "quantitative", axis: null, scale: { domain: [-0.04, 1.12] } } };
  const halo = { stroke: theme.card, strokeWidth: 6, strokeJoin: "round" };
  const labels = (extra) => [{ ...extra, mark: { ...extra.mark, ...halo } }, extra];
  const line = (ticked) => ({
    transform: [{ filter: ticked ? "datum.ticked" : "!datum.ticked" }],
    mark: { type: "line", strokeWidth: ticked ? 2.6 : 1, opacity: ticked ? 1 : 0.55 },
    encoding: { ...place, detail: { field: "name" }, order: { field: "axis" },
      color: { field: "merit", type: "quantitative", legend: null, scale: { domain: [0, 1], range } },
      tooltip: [{ field: "name", title: "run" }, { field: "value", title: metric, type: "quantitative", format: ".4~g" }] },
  });
  const made = fitted({
    layer: [
      { data: { values: titles }, mark: { type: "rule", color: theme.soft, opacity: 0.6 },
        encoding: { x: place.x, y: { datum: 0, type: "quantitative", scale: place.y.scale, axis: null }, y2: { datum: 1 } } },
      line(false), line(true),
      ...labels({ data: { values: marks }, mark: { type: "text", align: "left", dx: 8, color: theme.ink, fontSize: 11 },
        encoding: { ...place, text: { field: "text" } } }),
      { data: { values: titles }, mark: { type: "text", align: "left", fontWeight: "bold", color: theme.ink, fontSize: 12, limit: 150 },
        encoding: { x: place.x, y: { datum: 1.1, type: "quantitative", scale: place.y.scale, axis: null }, text: { field: "title" } } },
    ],
  }, points, theme);
  return sized(made, 320);
}
