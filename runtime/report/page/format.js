"use strict";
// Numbers as people read them, and elements made of text only: nothing of the run is ever taken for markup.

const KI = 1024;

// "199.0 MiB", as the text report has it.
function formatBytes(bytes) {
  const sign = bytes < 0 ? "-" : "";
  let size = Math.abs(bytes);
  if (size < KI) return `${sign}${Math.round(size)} B`;
  for (const unit of ["KiB", "MiB", "GiB", "TiB"]) {
    size /= KI;
    if (size < KI || unit === "TiB") return `${sign}${size.toFixed(1)} ${unit}`;
  }
}

const formatExact = (bytes) => `${formatCount(bytes)} B`;
const formatCount = (count) => Number(count).toLocaleString("en-US");

function formatShare(part, whole) {
  if (!(whole > 0)) return "";
  const share = (100 * part) / whole;
  return share > 0 && share < 1 ? "< 1%" : `${Math.round(share)}%`;
}

// A span of time: "0.42 s", "12.3 s", "4 min 10 s", "1 h 02 min".
function formatSpan(seconds) {
  if (!(seconds > 0)) return "0 s";
  if (seconds < 1e-3) return `${(seconds * 1e6).toFixed(0)} µs`;
  if (seconds < 0.1) return `${(seconds * 1e3).toFixed(1)} ms`;
  if (seconds < 10) return `${seconds.toFixed(2)} s`;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${String(whole % 60).padStart(2, "0")} s`;
  return `${Math.floor(whole / 3600)} h ${String(Math.floor((whole % 3600) / 60)).padStart(2, "0")} min`;
}

// A moment of the run, to `step` seconds: "12.34 s", "4:10", "1:02:03".
function formatMoment(seconds, step = 0.01) {
  const digits = step >= 1 ? 0 : Math.min(6, Math.ceil(-Math.log10(step) - 1e-9));
  if (seconds < 60) return `${seconds.toFixed(digits)} s`;
  const rest = (seconds % 60).toFixed(digits);
  if (Number(rest) >= 60) return formatMoment(Math.round(seconds), 1);
  const tail = digits > 0 ? rest.padStart(digits + 3, "0") : rest.padStart(2, "0");
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes}:${tail}`;
  return `${Math.floor(minutes / 60)}:${String(minutes % 60).padStart(2, "0")}:${tail}`;
}

const plural = (count, one, many = `${one}s`) => `${formatCount(count)} ${count === 1 ? one : many}`;

// element("td", {class: "number", title: "..."}, "text", node, ...). What is null is left out.
function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const categoryColour = (category) => colour(category.replaceAll(" ", "-"));

function swatch(paint, kind = "") {
  const made = element("i", {class: `swatch ${kind}`, "aria-hidden": "true"});
  made.style.setProperty(kind.includes("line") ? "border-top-color" : "background", paint);
  return made;
}

// Columns: {title, value(row) to sort by, show(row) a text or a node, kind: "number" | "words" | "mono"}. Headers sort.
function dataTable(label, columns, rows) {
  const body = element("tbody");
  const heads = columns.map((column, index) => {
    const head = element("th", {scope: "col", class: column.kind === "number" ? "number" : null});
    head.append(element("button", {type: "button", onclick: () => sortBy(index)}, column.title));
    return head;
  });
  const lines = rows.map((row) => ({
    row,
    line: element("tr", {}, columns.map((column) => element("td", {class: column.kind ?? null, title: column.exact ? column.exact(row) : null},
      (column.show ?? column.value)(row) ?? ""))),
  }));
  let sorted = {index: -1, down: false};
  function sortBy(index) {
    // Numbers first show their largest.
    const down = sorted.index === index ? !sorted.down : columns[index].kind === "number";
    sorted = {index, down};
    heads.forEach((head, i) => (i === index ? head.setAttribute("aria-sort", down ? "descending" : "ascending") : head.removeAttribute("aria-sort")));
    const {value} = columns[index];
    const order = (a, b) => (typeof a === "number" ? a - b : String(a).localeCompare(String(b)));
    body.append(...[...lines].sort((a, b) => (down ? -1 : 1) * order(value(a.row), value(b.row))).map((entry) => entry.line));
  }
  body.append(...lines.map((entry) => entry.line));
  return element("div", {class: "scroll", tabindex: "0", role: "region", "aria-label": label},
    element("table", {class: "data"}, element("thead", {}, element("tr", {}, heads)), body));
}
