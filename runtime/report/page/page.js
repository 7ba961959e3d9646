"use strict";
// The page itself, top to bottom, from the run's data in the element #data.

const run = JSON.parse(document.getElementById("data").textContent);
const page = document.getElementById("page");

function section(title, aside = "", ...tools) {
  const made = element("section", {}, element("header", {}, element("h2", {}, title), aside ? element("span", {class: "aside"}, aside) : null,
    tools.length > 0 ? element("div", {class: "tools"}, tools) : null));
  return made;
}

// Frames: the innermost stands for all of them until they are asked for.
function sourceLine(where) {
  if (!where) return "";
  const [first, ...rest] = where.split("\n").filter((frame) => frame.trim() !== "");
  const code = element("code", {}, first ?? "");
  if (rest.length === 0) return code;
  return element("details", {}, element("summary", {}, code, element("span", {class: "muted"}, ` + ${plural(rest.length, "frame")}`)), element("pre", {}, rest.join("\n")));
}

const mono = (text) => (text ? element("code", {}, text) : element("span", {class: "muted"}, "unknown"));
const named = (category) => element("span", {class: "nowrap"}, swatch(categoryColour(run.categories[category] ?? "other")), " ", run.categories[category] ?? "other");
const bytesColumn = (title, field) => ({title, kind: "number", value: (row) => row[field], show: (row) => formatBytes(row[field]), exact: (row) => formatExact(row[field])});
const countColumn = (title, field) => ({title, kind: "number", value: (row) => row[field], show: (row) => formatCount(row[field])});

// Steps that had ended by then are told by the number of the one that was under way, from 1, as the CSV has it.
const stepColumn = (title, field) => ({title, kind: "number", value: (row) => row[field], show: (row) => formatCount(row[field] + 1)});

// Of the devices with a budget, the one nearest to it; else the one with the most bytes.
function fullest() {
  const share = (device) => (device.budget > 0 ? device.peak / device.budget : 0);
  return [...run.devices].sort((a, b) => share(b) - share(a) || b.peak - a.peak)[0];
}

function verdict() {
  const ofBudget = (device) => (device.budget > 0 ? ` of a budget of ${formatBytes(device.budget)} (${formatShare(device.peak, device.budget)})` : "");
  const device = fullest();
  const peak = device ? ` The most on ${device.name} was ${formatBytes(device.peak)}${ofBudget(device)}.` : "";
  const cut = run.end === "cut off" ? " The process ended without an exit that koila saw; this is what its record holds." : "";
  const errors = (count) => plural(count, "out-of-memory error");
  if (run.refusals > 0)
    return ["bad", `${errors(run.refusals)} reached the program${run.rescues > 0 ? `, ${formatCount(run.rescues)} more ${run.rescues === 1 ? "was" : "were"} rescued` : ""}.${peak}${cut}`];
  if (run.rescues > 0) return [cut ? "bad" : "saved", `${errors(run.rescues)} rescued: the program went on with the full batch's numbers.${peak}${cut}`];
  if (run.steps === 0 && run.devices.length === 0) return [cut ? "bad" : "", `Nothing to tell: no step and no memory was seen.${cut}`];
  return [cut ? "bad" : "", `Nothing ran out of memory.${peak}${cut}`];
}

function tile(name, value, sub, {kind = "", meter = null} = {}) {
  const made = element("div", {class: `tile ${kind}`}, element("div", {class: "name"}, name), element("div", {class: "value"}, value));
  if (meter !== null) {
    const fill = element("i");
    fill.style.setProperty("width", `${Math.min(100, 100 * meter)}%`);
    made.append(element("div", {class: meter > 0.95 ? "meter full" : "meter", "aria-hidden": "true"}, fill));
  }
  if (sub) made.append(element("div", {class: "sub"}, sub));
  return made;
}

function glance() {
  const [kind, words] = verdict();
  const end = {exited: ["good", "ended"], running: ["", "still running"], "cut off": ["bad", "cut off"]}[run.end] ?? ["", run.end];
  page.append(element("div", {class: "brand"}, element("b", {}, "koila"), "where the memory went", element("span", {class: `pill ${end[0]}`}, end[1])));
  page.append(element("h1", {}, run.command || "a program of unknown name"));
  const started = run.started > 0 ? new Date(run.started * 1000).toLocaleString(undefined, {dateStyle: "medium", timeStyle: "short"}) : "";
  page.append(element("div", {class: "facts"}, [
    run.torch ? `PyTorch ${run.torch}` : "without PyTorch",
    `mode ${run.mode}`,
    run.forced_micro_batch > 0 ? `micro-batches of ${plural(run.forced_micro_batch, "row")} asked for` : "",
    `pid ${run.pid}${run.host ? ` on ${run.host}` : ""}`,
    started,
    run.seconds > 0 ? `ran ${formatSpan(run.seconds)}` : "",
  ].filter(Boolean).map((fact) => element("span", {}, fact))));
  page.append(element("p", {class: `verdict ${kind}`}, words));

  const cost = run.ladder.filter((rung) => rung.rung !== "refuse").reduce((sum, rung) => sum + rung.seconds, 0);
  const tiles = element("div", {class: "tiles"});
  tiles.append(tile("Steps", formatCount(run.steps), run.per_step > 0 ? `${formatSpan(run.per_step)} each` : ""));
  tiles.append(tile("Rescued", formatCount(run.rescues), run.rescues > 0 && cost > 0 ? `${formatSpan(cost)} in all` : ""));
  tiles.append(tile("Refused", formatCount(run.refusals), "", {kind: run.refusals > 0 ? "bad" : ""}));
  if (run.micro_batch > 0) tiles.append(tile("Micro-batch in use", formatCount(run.micro_batch), run.batch > 0 ? `of ${plural(run.batch, "row")}` : "rows"));
  for (const device of run.devices) {
    const has = device.budget > 0;
    tiles.append(tile(`Peak on ${device.name}`, formatBytes(device.peak), has ? `${formatShare(device.peak, device.budget)} of ${formatBytes(device.budget)}` : "no budget",
      {meter: has ? device.peak / device.budget : null}));
  }
  page.append(tiles);
}

function callouts() {
  const host = element("div", {class: "callouts"});
  if (run.leaks.length > 0) {
    host.append(element("div", {class: "callout leak"}, element("h2", {}, "Memory that grows from step to step"), element("ul", {}, run.leaks.map((leak) => element("li", {},
      element("b", {}, `${formatBytes(leak.per_step)} a step`), ` since step ${formatCount(leak.first_step)}, ${formatBytes(leak.bytes)} by now on ${leak.device}: `,
      run.categories[leak.category] ?? "other", leak.op ? [", made by ", mono(leak.op)] : null, leak.holder ? [", kept by ", element("bdi", {}, leak.holder)] : null,
      leak.where ? element("div", {}, sourceLine(leak.where)) : null)))));
  }
  if (run.advice.length > 0) {
    host.append(element("div", {class: "callout"}, element("h2", {}, "What to try next"), element("ol", {}, run.advice.map((advice) => element("li", {}, advice.text,
      advice.saves > 0 ? [" ", element("span", {class: "saves"}, `saves about ${formatBytes(advice.saves)}`)] : null)))));
  }
  if (host.children.length > 0) page.append(host);
}

// What held the memory when a device was fullest.
function peak(device) {
  const parts = STACK.map((name) => ({name, bytes: device.peak_by_category[run.categories.indexOf(name)] ?? 0})).filter((part) => part.bytes > 0);
  const sum = parts.reduce((total, part) => total + part.bytes, 0);
  if (sum === 0 && device.holders.length === 0) return null;
  const made = section("At the peak", sum > 0 ? `${formatBytes(sum)} of tensors on ${device.name} at ${formatMoment(device.peak_seconds)}, in step ${formatCount(device.peak_step + 1)}` : "");
  if (sum > 0) {
    const bar = element("div", {class: "bar", role: "img", "aria-label": parts.map((part) => `${part.name} ${formatBytes(part.bytes)}`).join(", ")}, parts.map((part) => {
      const piece = element("i", {title: `${part.name}: ${formatBytes(part.bytes)}`});
      piece.style.setProperty("flex", `${part.bytes / sum} 1 0`);
      piece.style.setProperty("background", categoryColour(part.name));
      return piece;
    }));
    made.append(bar, element("div", {class: "parts"}, parts.map((part) => element("div", {title: formatExact(part.bytes)}, swatch(categoryColour(part.name)), part.name,
      element("b", {}, formatBytes(part.bytes)), element("span", {class: "share"}, formatShare(part.bytes, sum))))));
  }
  if (device.holders.length > 0) {
    const lines = device.holders.some((holder) => holder.where);
    made.append(dataTable("The largest holders at the peak", [
      {title: "Category", value: (row) => run.categories[row.category] ?? "other", show: (row) => named(row.category)},
      {title: "Operator", value: (row) => row.op, show: (row) => mono(row.op)},
      bytesColumn("Bytes", "bytes"),
      {title: "Share", kind: "number", value: (row) => row.bytes, show: (row) => formatShare(row.bytes, sum || device.peak)},
      countColumn("Tensors", "count"),
      stepColumn("Made in step", "step"),
      ...(lines ? [{title: "Source line", kind: "words", value: (row) => row.where, show: (row) => sourceLine(row.where)}] : []),
    ], device.holders));
    if (!lines) made.append(element("p", {class: "hint"}, "With KOILA_STACKS=1 each has the source line that made it."));
  }
  return made;
}

// All that belongs to one device, made anew when another is chosen.
function deviceView(device, host) {
  for (const chart of timeline.charts) chart.destroy();
  timeline.charts.clear();
  timeline.onspan = null;
  host.replaceChildren();
  const tool = (text, label, act) => element("button", {type: "button", class: "tool", title: label, "aria-label": label, onclick: act}, text);
  const memory = section(`Memory over time on ${device.name}`, "", tool("\u2190", "earlier", () => timeline.pan(-0.3)), tool("\u2192", "later", () => timeline.pan(0.3)),
    tool("+", "nearer", () => timeline.zoom(0.5)), tool("\u2212", "farther", () => timeline.zoom(2)), tool("All", "the whole run", () => timeline.showAll()), tool("Picture", "save the chart as a picture (PNG)", () => savePicture(memory, device)));
  host.append(memory);
  if (device.timeline.seconds.length > 0) {
    const plot = element("div", {class: "chart", id: "memory-chart", role: "group", "aria-label": `Live bytes on ${device.name} over time, at most ${formatBytes(device.peak)}`});
    const key = element("div", {class: "key"});
    const little = element("div", {class: "chart overview", "aria-hidden": "true"});
    memory.append(plot, little, key, element("p", {class: "hint"},
      "Drag to zoom, or turn the wheel with Ctrl. To move, drag with Shift, or drag the window in the small chart. Double click for the whole run."));
    memoryChart(run, device, plot, key);
    const {seconds, live} = samplesOf(run, device);
    overview(little, seconds, live);
  } else {
    memory.querySelector(".tools").hidden = true;
    memory.append(element("p", {class: "empty"}, `No samples over time were kept of ${device.name}.`));
  }
  const held = peak(device);
  if (held) host.append(held);
  const steps = section("Step by step", run.regions.count > 0
    ? `${plural(run.regions.count, "step")} in ${plural(run.regions.runs, "pass", "passes")}, ${formatSpan(run.regions.seconds)} in all${run.regions.halvings > 0 ? `, ${plural(run.regions.halvings, "halving")}` : ""}` : "");
  host.append(steps);
  if (stepCharts(run, device, steps).length === 0) steps.remove();
}

// What is seen first: from the begin of step 1, as near as it is known, to the end of the last. Before are imports and data, and they are a button away.
function stepsOnly() {
  const ends = run.step_samples.seconds;
  if (ends.length < 2) return [timeline.begin, timeline.end];
  const margin = 0.03 * (ends.at(-1) - ends[0]);
  const events = run.oom_events.filter((event) => event.step === 0).map((event) => event.at);
  const begin = Math.min(ends[0] - run.per_step, ...events) - margin;
  return [Math.max(timeline.begin, begin), Math.min(timeline.end, ends.at(-1) + margin)];
}

function devices() {
  timeline.end = Math.max(run.seconds, ...run.devices.map((device) => device.timeline.seconds.at(-1) ?? 0), run.step_samples.seconds.at(-1) ?? 0, 1e-3);
  const firsts = run.devices.map((device) => device.timeline.seconds[0]).filter((seconds) => seconds !== undefined);
  timeline.begin = Math.min(firsts.length > 0 ? Math.min(...firsts) : 0, timeline.end - 1e-3);
  timeline.span = stepsOnly();
  const host = element("div", {id: "device"});
  if (run.devices.length === 0) {
    host.append(element("section", {}, element("p", {class: "empty"}, "No memory was accounted for: no device was used, and no budget was set.")));
    page.append(host);
    return;
  }
  let chosen = fullest();
  const tabs = run.devices.map((device) => element("button", {type: "button", role: "tab", "aria-selected": "false", onclick: () => choose(device)}, device.name,
    element("small", {}, formatBytes(device.peak))));
  function choose(device) {
    chosen = device;
    tabs.forEach((tab, i) => tab.setAttribute("aria-selected", String(run.devices[i] === device)));
    deviceView(device, host);
  }
  if (tabs.length > 1) page.append(element("div", {class: "tabs", role: "tablist", "aria-label": "Devices"}, tabs));
  page.append(host);
  choose(chosen);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => choose(chosen));
}

function outOfMemory() {
  const events = run.oom_events;
  if (events.length === 0) return;
  const total = run.rescues + run.refusals;
  const told = events.reduce((sum, event) => sum + event.count, 0);
  const made = section("Out of memory", [...run.ladder.map((rung) => `${rung.rung} ${formatCount(rung.count)}${rung.seconds > 0 ? ` (${formatSpan(rung.seconds)})` : ""}`),
    told < total ? `the first ${formatCount(told)} of ${formatCount(total)}` : ""].filter(Boolean).join(" · "));
  const many = new Set(events.map((event) => event.device)).size > 1;
  made.append(dataTable("Out-of-memory events", [
    {title: "At", kind: "number", value: (row) => row.at, show: (row) => formatMoment(row.at)},
    stepColumn("Step", "step"),
    {title: "Outcome", value: (row) => row.how, show: (row) => element("span", {class: `outcome ${row.rescued ? "good" : "bad"}`}, row.rescued ? "rescued" : "refused")},
    ...(many ? [{title: "Device", value: (row) => row.device}] : []),
    {title: "In", value: (row) => row.op, show: (row) => [mono(row.op), " ", element("span", {class: "muted nowrap"}, row.phase)]},
    bytesColumn("Wanted", "wanted"),
    bytesColumn("In use", "live"),
    {title: "How it went on", kind: "words", value: (row) => row.reason || row.how, show: howItWentOn},
    countColumn("Times", "count"),
    {title: "Cost", kind: "number", value: (row) => row.cost, show: (row) => (row.cost > 0 ? formatSpan(row.cost) : "")},
  ], events));
  page.append(made);
}

function howItWentOn(event) {
  if (!event.rescued) return [event.reason || "the program got the error", event.todo ? element("p", {class: "todo"}, element("b", {}, "do: "), event.todo) : null];
  const rows = event.micro_batch > 0 ? `micro-batches of ${formatCount(event.micro_batch)}${event.batch > 0 ? ` of ${formatCount(event.batch)}` : ""} rows` : "";
  const how = rows || {retry: "tried again, now that there was room", offload: "what did not fit was kept outside"}[event.how] || event.how;
  return event.reason ? `${how}: ${event.reason}` : how;
}

function tables() {
  if (run.full_batch.length > 0) {
    page.append(section("Operators at full batch", "no rule splits them: right, and as large as the whole batch"));
    page.lastChild.append(dataTable("Operators at full batch", [
      {title: "Operator", value: (row) => row.op, show: (row) => mono(row.op)},
      bytesColumn("Most in one call", "bytes"),
      countColumn("Calls", "count"),
    ], [...run.full_batch].sort((a, b) => b.bytes - a.bytes)));
  }
  if (run.sources.length > 0) {
    page.append(section("Who asked for memory that CUDA gives"));
    page.lastChild.append(dataTable("Sources of memory", [
      {title: "Library", value: (row) => row.library, show: (row) => mono(row.library)},
      {title: "Kind", value: (row) => row.kind},
      {title: "Device", value: (row) => row.device},
      bytesColumn("Peak", "peak"), bytesColumn("At the end", "live"), countColumn("Allocations", "allocations"), countColumn("Frees", "frees"),
    ], [...run.sources].sort((a, b) => b.peak - a.peak)));
  }
  if (run.devices.length > 0) {
    const any = (field) => run.devices.some((device) => device[field] > 0);
    page.append(section("Devices"));
    page.lastChild.append(dataTable("Devices", [
      {title: "Device", value: (row) => row.name},
      bytesColumn("Peak", "peak"),
      {title: "Budget", kind: "number", value: (row) => row.budget, show: (row) => (row.budget > 0 ? formatBytes(row.budget) : "none")},
      bytesColumn("At the end", "live"), countColumn("Allocations", "allocations"), countColumn("Frees", "frees"),
      ...(any("failed") ? [countColumn("Failed", "failed")] : []),
      ...(any("tensors_peak") ? [bytesColumn("Tensors, peak", "tensors_peak")] : []),
      ...(any("outside_written") ? [bytesColumn("Kept outside, peak", "outside_peak"), bytesColumn("written in all", "outside_written")] : []),
      ...(any("used") ? [bytesColumn("In use by everybody", "used"), bytesColumn("of that untracked", "untracked")] : []),
    ], run.devices));
  }
  if (run.notes.length > 0) {
    page.append(section("Notes"));
    page.lastChild.append(element("ul", {class: "notes"}, run.notes.map((note) => element("li", {}, note))));
  }
}

document.title = `koila: ${run.command ? run.command.slice(0, 80) : `pid ${run.pid}`}`;
document.getElementById("made-by").textContent = `Made by koila ${run.koila}. Bytes are binary: 1 MiB = 1,048,576 B. Numbers show their bytes when pointed at.`;
page.replaceChildren();
glance();
callouts();
devices();
outOfMemory();
tables();
page.dataset.ready = "yes";
