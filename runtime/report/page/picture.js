"use strict";
// The memory chart as a picture to share: what the page shows of it now, in its scheme, with the run's name and the key.

const PICTURE = {margin: 24, title: 18, line: 20, font: 13};

// [{paint, text}] of the key below a chart.
function keyOf(section) {
  return [...section.querySelectorAll(".key > *")].filter((entry) => entry.getAttribute("aria-pressed") !== "false").map((entry) => {
    const sign = entry.querySelector(".swatch");
    const style = getComputedStyle(sign);
    const line = sign.classList.contains("line");
    return {paint: line ? style.borderTopColor : sign.classList.contains("sign") ? style.color : style.backgroundColor, text: entry.textContent.replace(sign.textContent, "").trim()};
  });
}

// A canvas with title, chart and key.
function pictureOf(section, device) {
  const chart = section.querySelector("#memory-chart canvas");
  const px = devicePixelRatio;
  const {margin, title, line, font} = PICTURE;
  const top = margin + title + line + 8;
  const made = document.createElement("canvas");
  const ink = made.getContext("2d");
  const width = chart.width + 2 * margin * px;
  // The key in rows, as wide as the chart.
  ink.font = `${font * px}px ${FONT.replace(/^\S+ /, "")}`;
  const rows = [[]];
  let used = 0;
  for (const entry of keyOf(section)) {
    const wide = ink.measureText(entry.text).width + 40 * px;
    if (used + wide > chart.width && rows.at(-1).length > 0) { rows.push([]); used = 0; }
    rows.at(-1).push({...entry, at: used});
    used += wide;
  }
  made.width = width;
  made.height = (top + margin + rows.length * line) * px + chart.height;
  ink.fillStyle = colour("back");
  ink.fillRect(0, 0, made.width, made.height);
  const write = (text, x, y, size, paint, weight = 400) => {
    ink.font = `${weight} ${size * px}px ${FONT.replace(/^\S+ /, "")}`;
    ink.fillStyle = paint;
    ink.fillText(text, x, y, width - x);
  };
  write(run.command || `pid ${run.pid}`, margin * px, (margin + title) * px - 4 * px, title, colour("ink"), 600);
  const budget = device.budget > 0 ? ` of ${formatBytes(device.budget)}` : "";
  write(`koila: ${plural(run.steps, "step")}, ${plural(run.rescues, "rescue")}, ${plural(run.refusals, "refusal")}; peak on ${device.name} ${formatBytes(device.peak)}${budget}`,
    margin * px, (margin + title + line) * px, font, colour("muted"));
  ink.drawImage(chart, margin * px, top * px);
  rows.forEach((row, index) => {
    const y = top * px + chart.height + (index + 0.9) * line * px;
    for (const {paint, text, at} of row) {
      ink.fillStyle = paint;
      ink.fillRect(margin * px + at, y - 9 * px, 11 * px, 11 * px);
      write(text, margin * px + at + 18 * px, y, font, colour("ink"));
    }
  });
  return made;
}

function savePicture(section, device) {
  const link = element("a", {href: pictureOf(section, device).toDataURL("image/png"), download: `koila-${device.name.replace(":", "")}.png`});
  link.click();
}
