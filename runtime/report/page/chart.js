"use strict";
// Charts over the time of the run, by uPlot. All on the page show the same span: zooming one zooms all, and the cursor goes along.

const timeline = {
  charts: new Set(),  // those that follow the span
  begin: 0,           // seconds: when the first tensor came, for what is before that is imports
  end: 1,             // and the end of the run
  span: [0, 1],
  onspan: null,

  show(from, to) {
    const whole = this.end - this.begin;
    const width = Math.min(Math.max(to - from, whole * 1e-6, 1e-6), whole);
    const start = Math.min(Math.max(from, this.begin), this.end - width);
    this.span = width < whole ? [start, start + width] : [this.begin, this.end];
    const [min, max] = this.span;
    for (const chart of this.charts) chart.setScale("x", {min, max});
    this.onspan?.();
  },
  showAll() { this.show(this.begin, this.end); },
  // factor < 1 goes nearer, around a moment.
  zoom(factor, around = (this.span[0] + this.span[1]) / 2) {
    this.show(around - (around - this.span[0]) * factor, around + (this.span[1] - around) * factor);
  },
  // By a part of what is seen.
  pan(part) {
    const by = (this.span[1] - this.span[0]) * part;
    this.show(this.span[0] + by, this.span[1] + by);
  },
};

const TIME_STEPS = [
  ...[1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1].flatMap((unit) => [1, 2, 5].map((n) => n * unit)),
  ...[10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800],
];
const BYTE_STEPS = Array.from({length: 46}, (_, power) => 2 ** power);
const FONT = '12px system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "Liberation Sans", Arial, sans-serif';
const LEFT = 66;  // of every chart, so that one moment is at one place in all of them

function axis(more) {
  return {stroke: () => colour("muted"), grid: {stroke: () => colour("grid"), width: 1}, ticks: {show: false}, font: FONT, ...more};
}

const timeAxis = (more) => axis({incrs: TIME_STEPS, space: 80, size: 30,
  values: (chart, ticks, _axis, _space, step) => ticks.map((tick) => formatMoment(tick, step)), ...more});
const byteAxis = () => axis({incrs: BYTE_STEPS, size: LEFT, space: 34,
  values: (chart, ticks) => ticks.map((tick) => formatBytes(tick).replace(".0 ", " "))});
const countAxis = () => axis({incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 1e6, 1e7], size: LEFT, space: 30,
  values: (chart, ticks) => ticks.map(formatCount)});

const stepped = uPlot.paths.stepped({align: 1});

// A chart in `host`. `tip(index, chart)` answers with the nodes to show for the sample at the cursor, or null.
function timeChart(host, {height, series, data, axes, range, draw = [], padding, tip, follow = true}) {
  let hovered = false;
  const box = element("div", {class: "tip", hidden: true, role: "status"});
  const chart = new uPlot({
    width: Math.max(host.clientWidth, 280),
    height,
    padding: padding ?? [8, 22, 0, 0],
    legend: {show: false},
    scales: {x: {time: false, auto: false}, y: {auto: true, range}},
    axes,
    series: [{}, ...series],
    cursor: {
      y: false,
      points: {show: false},
      drag: {x: follow, y: false, setScale: false, dist: 4},
      sync: {key: "koila", setSeries: false, scales: ["x", null]},
      bind: {
        mousedown: (_chart, _target, handler) => (event) => (event.shiftKey ? null : handler(event)),
        dblclick: () => () => timeline.showAll(),
      },
    },
    hooks: {
      draw,
      setSelect: [(self) => {
        const {left, width} = self.select;
        if (width > 3) timeline.show(self.posToVal(left, "x"), self.posToVal(left + width, "x"));
        self.setSelect({left: 0, width: 0, top: 0, height: 0}, false);
      }],
      setCursor: [(self) => {
        const nodes = hovered && self.cursor.idx !== null && self.cursor.idx !== undefined && self.cursor.left >= 0 ? tip?.(self.cursor.idx, self) : null;
        box.hidden = !nodes;
        if (!nodes) return;
        box.replaceChildren(...nodes);
        const right = self.cursor.left > self.over.clientWidth / 2;
        box.style.setProperty("left", right ? "auto" : `${self.cursor.left + 18}px`);
        box.style.setProperty("right", right ? `${self.over.clientWidth - self.cursor.left + 18}px` : "auto");
      }],
    },
  }, data, host);
  chart.over.append(box);
  chart.over.addEventListener("mouseenter", () => { hovered = true; });
  chart.over.addEventListener("mouseleave", () => { hovered = false; box.hidden = true; });
  if (follow) {
    timeline.charts.add(chart);
    chart.setScale("x", {min: timeline.span[0], max: timeline.span[1]});
    followPointer(chart);
  } else {
    chart.setScale("x", {min: timeline.begin, max: timeline.end});
  }
  new ResizeObserver(() => { if (host.clientWidth > 0) chart.setSize({width: host.clientWidth, height}); }).observe(host);
  return chart;
}

// Wheel, Shift and drag, and keys. A plain wheel goes on scrolling the page.
function followPointer(chart) {
  const {over} = chart;
  over.addEventListener("wheel", (event) => {
    if (event.ctrlKey || event.metaKey) timeline.zoom(Math.exp(Math.sign(event.deltaY) * 0.25), chart.posToVal(event.offsetX, "x"));
    else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) timeline.pan((event.deltaX || event.deltaY) / over.clientWidth);
    else return;
    event.preventDefault();
  }, {passive: false});
  over.addEventListener("pointerdown", (event) => {
    if (!event.shiftKey || event.button !== 0) return;
    event.preventDefault();
    grab(over, event, (moved) => timeline.pan(-moved / over.clientWidth));
  });
  over.tabIndex = 0;
  over.addEventListener("keydown", (event) => {
    const act = {
      "+": () => timeline.zoom(0.6), "=": () => timeline.zoom(0.6), "-": () => timeline.zoom(1 / 0.6), "0": () => timeline.showAll(),
      ArrowLeft: () => timeline.pan(-0.2), ArrowRight: () => timeline.pan(0.2), Escape: () => timeline.showAll(),
    }[event.key];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    act();
  });
}

// Calls `move` with the pixels since it was last called, until the pointer is let go.
function grab(target, event, move) {
  let last = event.clientX;
  const moved = (e) => { move(e.clientX - last); last = e.clientX; };
  const done = () => { target.classList.remove("panning"); removeEventListener("pointermove", moved); removeEventListener("pointerup", done); };
  target.classList.add("panning");
  addEventListener("pointermove", moved);
  addEventListener("pointerup", done);
}

// The whole run in little, and a window over what is seen of it, to be dragged.
function overview(host, seconds, live) {
  const chart = timeChart(host, {
    height: 46, padding: [2, 22, 0, 0], follow: false, data: [seconds, live],
    axes: [timeAxis({show: false}), byteAxis()].map((a, i) => (i === 1 ? {...a, values: () => [], grid: {show: false}} : a)),
    range: (_self, _min, max) => [0, Math.max(max, 1)],
    series: [{stroke: () => colour("muted"), fill: () => colour("grid"), width: 1, points: {show: false}, paths: stepped}],
    draw: [(self) => {
      const {ctx, bbox} = self;
      const [from, to] = timeline.span.map((at) => self.valToPos(at, "x", true));
      ctx.save();
      ctx.globalAlpha = 0.16;
      ctx.fillStyle = colour("accent");
      ctx.fillRect(from, bbox.top, Math.max(to - from, 2), bbox.height);
      ctx.globalAlpha = 1;
      ctx.fillRect(from - 1, bbox.top, 2, bbox.height);
      ctx.fillRect(Math.max(to, from + 2) - 1, bbox.top, 2, bbox.height);
      ctx.restore();
    }],
  });
  chart.over.addEventListener("pointerdown", (event) => {
    const at = chart.posToVal(event.offsetX, "x");
    const [from, to] = timeline.span;
    if (event.shiftKey || at < from || at > to) timeline.show(at - (to - from) / 2, at + (to - from) / 2);
    grab(chart.over, event, (moved) => {
      const by = (moved / chart.over.clientWidth) * timeline.end;
      timeline.show(timeline.span[0] + by, timeline.span[1] + by);
    });
  });
  timeline.onspan = () => chart.redraw(false);
  return chart;
}
