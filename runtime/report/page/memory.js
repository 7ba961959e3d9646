"use strict";
// The memory of one device over time, stacked by category, with its budget, the steps and the out-of-memories.

// From the ground up: what stays, then what comes and goes.
const STACK = ["parameters", "optimizer state", "gradients", "inputs", "activations", "workspace", "other"];

// The samples of a device by category, as far as there are any; the last one holds until the end of the run.
function samplesOf(run, device) {
  const {seconds, live, by_category} = device.timeline;
  const parts = STACK.map((name) => ({name, bytes: by_category[run.categories.indexOf(name)] ?? []})).filter((part) => part.bytes.length > 0);
  const last = seconds.length - 1;
  const held = (values) => (seconds[last] < timeline.end ? [...values, values[last]] : values);
  return {
    seconds: seconds[last] < timeline.end ? [...seconds, timeline.end] : seconds,
    live: held(live),
    parts: parts.map((part) => ({...part, bytes: held(part.bytes)})),
  };
}

function stepsOf(run, device) {
  const all = run.step_samples;
  const kept = all.seconds.map((_, i) => i).filter((i) => all.device[i] === device.id);
  return kept.map((i) => ({seconds: all.seconds[i], step: all.step[i], peak: all.peak[i], live: all.live[i], batch: all.batch[i],
    micro: all.micro_batch[i], rescues: all.rescues[i]}));
}

// Index of the first entry at or after a moment.
function firstFrom(entries, seconds) {
  let low = 0;
  for (let high = entries.length; low < high;) {
    const middle = (low + high) >> 1;
    if (entries[middle].seconds < seconds) low = middle + 1; else high = middle;
  }
  return low;
}

// The budget is drawn where it does not press the rest flat.
const budgetFits = (device) => device.budget > 0 && device.budget <= 3 * device.peak;

function drawBudget(budget) {
  return ({ctx, bbox, valToPos}) => {
    const y = valToPos(budget, "y", true);
    ctx.save();
    ctx.strokeStyle = ctx.fillStyle = colour("bad");
    ctx.lineWidth = 1.5 * devicePixelRatio;
    ctx.setLineDash([7 * devicePixelRatio, 4 * devicePixelRatio]);
    ctx.beginPath();
    ctx.moveTo(bbox.left, y);
    ctx.lineTo(bbox.left + bbox.width, y);
    ctx.stroke();
    ctx.restore();
  };
}

// Below the plot a tick at each step's end, as long as they stand apart; where there were rescues it is longer, and always there.
function drawSteps(steps) {
  return ({ctx, bbox, valToPos, scales}) => {
    const px = devicePixelRatio;
    const from = firstFrom(steps, scales.x.min);
    const to = firstFrom(steps, scales.x.max);
    const foot = bbox.top + bbox.height;
    const apart = (bbox.width / px) / Math.max(to - from, 1) >= 4;
    ctx.save();
    for (let i = from; i < to; ++i) {
      const rescued = steps[i].rescues > 0;
      if (!rescued && !apart) continue;
      ctx.fillStyle = colour(rescued ? "accent" : "muted");
      ctx.fillRect(valToPos(steps[i].seconds, "x", true) - px, foot + px, (rescued ? 2 : 1) * px, (rescued ? 8 : 5) * px);
    }
    ctx.restore();
  };
}

// Signs above the plot: a triangle where koila rescued, a cross where the program got the error.
function drawEvents(events) {
  return ({ctx, bbox, valToPos, scales}) => {
    const px = devicePixelRatio;
    const seen = events.filter((event) => event.at >= scales.x.min && event.at <= scales.x.max);
    const y = bbox.top - 9 * px;
    ctx.save();
    for (const event of seen) {
      const x = valToPos(event.at, "x", true);
      const r = 4.5 * px;
      ctx.strokeStyle = ctx.fillStyle = colour(event.rescued ? "accent" : "bad");
      ctx.lineWidth = 2.2 * px;
      ctx.beginPath();
      if (event.rescued) {
        ctx.moveTo(x - r, y - r * 0.8);
        ctx.lineTo(x + r, y - r * 0.8);
        ctx.lineTo(x, y + r);
        ctx.fill();
      } else {
        ctx.moveTo(x - r, y - r); ctx.lineTo(x + r, y + r);
        ctx.moveTo(x + r, y - r); ctx.lineTo(x - r, y + r);
        ctx.stroke();
      }
      if (seen.length > 60) continue;  // lines would hide what they mark
      ctx.globalAlpha = 0.55;
      ctx.lineWidth = px;
      ctx.beginPath();
      ctx.moveTo(x, y + r * 1.4);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      ctx.globalAlpha = 1;
    }
    ctx.restore();
  };
}

function eventLine(event) {
  const what = event.rescued ? "Rescued" : "Refused";
  const where = [event.op, `(${event.phase})`].filter(Boolean).join(" ");
  const wanted = event.wanted > 0 ? `, wanted ${formatBytes(event.wanted)}` : "";
  return `${what}: out of memory in ${where}${wanted}${event.count > 1 ? `, ${formatCount(event.count)} times` : ""}`;
}

function stepAt(steps, seconds) {
  const found = steps[firstFrom(steps, seconds)];
  return found ? ` · step ${formatCount(found.step)}` : "";
}

// The chart with its key. Categories can be taken out of the stack by a click on the key.
function memoryChart(run, device, host, key) {
  const {seconds, live, parts} = samplesOf(run, device);
  const steps = stepsOf(run, device);
  const events = run.oom_events.filter((event) => event.device_id === device.id);
  const hidden = new Set();
  const columns = () => {
    let ground = new Array(seconds.length).fill(0);
    const tops = parts.map((part) => (ground = hidden.has(part.name) ? ground : ground.map((sum, i) => sum + part.bytes[i])));
    return [seconds, ...tops.reverse(), live];  // the highest first: each lower one is painted over it
  };
  // What an allocator caches beside its tensors shows as a line above the stack; without it the line would only hide the stack.
  const beside = parts.length === 0 || live.some((bytes, i) => Math.abs(bytes - parts.reduce((sum, part) => sum + part.bytes[i], 0)) > 0.005 * device.peak);
  const area = (name) => ({stroke: () => categoryColour(name), fill: () => categoryColour(name), width: 1, points: {show: false}, paths: stepped});
  const series = [...parts.map((part) => area(part.name)).reverse(),
    {stroke: () => (beside ? colour("ink") : "transparent"), fill: parts.length > 0 ? undefined : () => `${categoryColour("parameters")}55`, width: 1,
      points: {show: false}, paths: stepped}];

  const rowOf = (name, paint, bytes, kind = "") => element("tr", {class: kind}, element("td", {}, paint, name), element("td", {}, formatBytes(bytes)),
    element("td", {class: "exact"}, formatExact(bytes)));
  const tip = (nearest, chart) => {
    // A sample holds until the next.
    const index = nearest > 0 && seconds[nearest] > chart.posToVal(chart.cursor.left, "x") ? nearest - 1 : nearest;
    const at = seconds[index];
    const near = events.filter((event) => Math.abs(chart.valToPos(event.at, "x") - chart.cursor.left) < 7).slice(0, 3);
    const shown = parts.filter((part) => !hidden.has(part.name)).reverse();
    return [
      element("h3", {}, formatMoment(at, Math.min(0.01, (timeline.span[1] - timeline.span[0]) / 1000)) + stepAt(steps, at)),
      element("table", {},
        rowOf("live", swatch(colour("ink"), "line"), live[index], "sum"),
        shown.map((part) => rowOf(part.name, swatch(categoryColour(part.name)), part.bytes[index])),
        device.budget > 0 ? rowOf("budget", swatch(colour("bad"), "line dashed"), device.budget) : null),
      ...near.map((event) => element("p", {}, eventLine(event))),
    ];
  };

  const chart = timeChart(host, {
    height: 300, padding: [22, 22, 0, 0], series, data: columns(), axes: [timeAxis({size: 34, gap: 10}), byteAxis()], tip,
    // Between two samples there is no highest one.
    range: (_self, _min, max) => [0, Math.max((max ?? device.peak) * 1.05, budgetFits(device) ? device.budget * 1.05 : 0, 1024)],
    draw: [drawSteps(steps), drawEvents(events), ...(budgetFits(device) ? [drawBudget(device.budget)] : [])],
  });

  for (const part of [...parts].reverse()) {
    const button = element("button", {type: "button", "aria-pressed": "true", title: "click to leave out, or to put back", onclick: () => {
      if (!hidden.delete(part.name)) hidden.add(part.name);
      button.setAttribute("aria-pressed", String(!hidden.has(part.name)));
      chart.setData(columns(), false);
      chart.setScale("x", {min: timeline.span[0], max: timeline.span[1]});
    }}, swatch(categoryColour(part.name)), part.name);
    key.append(button);
  }
  const sign = (text, paint) => {
    const made = element("i", {class: "swatch sign", "aria-hidden": "true"}, text);
    made.style.setProperty("color", colour(paint));
    return made;
  };
  if (beside) key.append(element("span", {}, swatch(colour("ink"), "line"), parts.length > 0 ? "live, with what an allocator caches" : "live"));
  if (device.budget > 0) key.append(element("span", {}, swatch(colour("bad"), "line dashed"),
    `budget ${formatBytes(device.budget)}${budgetFits(device) ? "" : " (above the chart)"}`));
  if (events.some((event) => event.rescued)) key.append(element("span", {}, sign("\u25bc", "accent"), "rescued"));
  if (events.some((event) => !event.rescued)) key.append(element("span", {}, sign("\u2715", "bad"), "refused"));
  if (steps.length > 0) key.append(element("span", {}, sign("\u2759", "muted"), "end of a step"));
  return chart;
}

// Rows in a micro-batch, and the most bytes within each step.
function stepCharts(run, device, section) {
  const steps = stepsOf(run, device);
  if (steps.length === 0) return [];
  const seconds = steps.map((step) => step.seconds);
  const highest = (field) => steps.reduce((most, step) => Math.max(most, step[field]), 0);
  const title = (index) => {
    const before = index > 0 ? steps[index - 1].step : 0;
    const {step} = steps[index];
    return element("h3", {}, step - before > 1 ? `steps ${formatCount(before + 1)} to ${formatCount(step)}` : `step ${formatCount(step)}`);
  };
  const row = (paint, name, text, exact = "") => element("tr", {}, element("td", {}, paint, name), element("td", {}, text), element("td", {class: "exact"}, exact));
  const rescues = (index) => (steps[index].rescues > 0 ? element("p", {}, plural(steps[index].rescues, "rescue")) : null);
  const points = (paint) => ({show: steps.length < 150, size: 5, fill: () => colour(paint), stroke: () => colour(paint)});
  const charts = [];

  const heading = (text) => section.append(element("p", {class: "chart-title"}, text));
  // Each line of a chart has its name.
  const names = (...lines) => section.append(element("div", {class: "key"}, lines.filter(Boolean).map(([paint, text, kind]) => element("span", {}, swatch(colour(paint), kind), text))));
  const add = (label, options) => {
    const host = element("div", {class: "chart", role: "group", "aria-label": label});
    section.append(host);
    charts.push(timeChart(host, {height: 150, ...options}));
  };

  heading("Most bytes within each step");
  add("The most bytes within each step", {
    data: [seconds, steps.map((step) => step.peak), steps.map((step) => step.live)],
    axes: [timeAxis(), byteAxis()],
    range: () => [0, Math.max(highest("peak") * 1.08, budgetFits(device) ? device.budget * 1.05 : 0, 1024)],
    series: [
      {stroke: () => colour("accent"), width: 1.5, points: points("accent")},
      {stroke: () => colour("muted"), width: 1, points: {show: false}},
    ],
    draw: budgetFits(device) ? [drawBudget(device.budget)] : [],
    tip: (index) => [title(index), element("table", {},
      row(swatch(colour("accent"), "line"), "peak", formatBytes(steps[index].peak), formatExact(steps[index].peak)),
      row(swatch(colour("muted"), "line"), "live after its backward", formatBytes(steps[index].live), formatExact(steps[index].live))), rescues(index)].filter(Boolean),
  });
  names(["accent", "peak", "line"], ["muted", "live after its backward pass", "line"], budgetFits(device) ? ["bad", `budget ${formatBytes(device.budget)}`, "line dashed"] : null);

  if (!steps.some((step) => step.micro > 0)) return charts;
  heading("Rows in a micro-batch, of the whole batch");
  // A step's rows hold from the end of the one before it to its own.
  const before = Math.max(0, seconds[0] - (seconds.length > 1 ? seconds[1] - seconds[0] : seconds[0]));
  const drawn = [{...steps[0], seconds: before}, ...steps];
  add("Rows in a micro-batch over time", {
    data: [drawn.map((step) => step.seconds), drawn.map((step) => step.micro || null), drawn.map((step) => step.batch || null)],
    axes: [timeAxis(), countAxis()],
    range: () => [0, Math.max(highest("micro"), highest("batch"), 1) * 1.12],
    series: [
      {stroke: () => colour("good"), width: 2, points: {show: false}, paths: uPlot.paths.stepped({align: -1})},
      {stroke: () => colour("muted"), width: 1, dash: [5, 4], points: {show: false}, paths: uPlot.paths.stepped({align: -1})},
    ],
    tip: (at) => {
      const index = Math.max(0, at - 1);
      return [title(index), element("table", {},
        row(swatch(colour("good"), "line"), "micro-batch", steps[index].micro > 0 ? plural(steps[index].micro, "row") : "not split"),
        row(swatch(colour("muted"), "line dashed"), "batch", steps[index].batch > 0 ? plural(steps[index].batch, "row") : "")), rescues(index)].filter(Boolean);
    },
  });
  names(["good", "rows in a micro-batch", "line"], ["muted", "rows in the batch", "line dashed"]);
  return charts;
}
