"use strict";
// What any plot is made of; knows nothing of the report.

// An empty plot with axes; its x and y map values to pixels.
function frame(host, { x, y, xText = count, yText, title, xTitle, right }) {
  const width = host.clientWidth;
  const height = Math.round(Math.max(250, Math.min(420, width * 0.44)));
  const plot = { width, left: 44, right: width - right, top: 30, bottom: height - 36 };
  plot.limits = { x, y };
  plot.x = scaled(x, plot.left, plot.right);
  plot.y = scaled(y, plot.bottom, plot.top);
  plot.root = svg("svg", { width, height, "aria-hidden": "true" });
  const [yTicks, yStep] = ticks(y, height / 60);
  for (const tick of yTicks) {
    const at = plot.y(tick);
    plot.root.append(rule("grid", plot.left, at, plot.right, at));
    plot.root.append(word(yText(tick, yStep), plot.left - 8, at + 4, "end"));
  }
  const least = xText === count ? 1 : 0; // what is counted has no halves
  const [xTicks, xStep] = ticks(x, (plot.right - plot.left) / 90, least);
  for (const tick of xTicks) {
    const at = plot.x(tick);
    plot.root.append(rule("axis", at, plot.bottom, at, plot.bottom + 4));
    plot.root.append(word(xText(tick, xStep), at, plot.bottom + 18, "middle"));
  }
  plot.root.append(rule("axis", plot.left, plot.bottom, plot.right, plot.bottom));
  plot.root.append(word(title, 0, 12, "start", "title"));
  plot.root.append(word(xTitle, plot.right, plot.bottom + 33, "end", "title"));
  host.replaceChildren(plot.root);
  return plot;
}

function scaled([low, high], from, to) {
  return (value) => from + ((value - low) / (high - low)) * (to - from);
}

// Round numbers between two limits, about as many as wanted, and their distance, the least or more.
function ticks([low, high], wanted, least = 0) {
  const rough = Math.max(least, (high - low) / Math.max(2, wanted));
  const power = 10 ** Math.floor(Math.log10(rough));
  const off = (factor) => Math.abs(Math.log((factor * power) / rough));
  const step = power * [1, 2, 5, 10].sort((a, b) => off(a) - off(b))[0];
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  return [Array.from({ length: last - first + 1 }, (_, i) => (first + i) * step), step];
}

function axisText(value, step, scale = 1) {
  const places = Math.max(0, -Math.floor(Math.log10(scale * step) + 1e-9));
  return fixed(scale * value, Math.min(places, 8));
}

function fixed(value, places) {
  const text = value.toFixed(places);
  return Number(text) < 0 ? `\u2212${text.slice(1)}` : text.replace("-", "");
}

function count(number) {
  const text = String(Math.round(number));
  return text.length > 4 ? text.replace(/\B(?=(\d{3})+$)/g, "\u202f") : text;
}

function span(values) {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const room = low < high ? 0 : Math.abs(low) / 10 || 1;
  return [low - room, high + room];
}

// Some air around the limits, but not past what the values can be.
function roomy([low, high], [least, most]) {
  const room = (high - low) * 0.05 || Math.abs(low) / 10 || 1;
  return [Math.min(low, Math.max(least, low - room)), Math.max(high, Math.min(most, high + room))];
}

// The stretches of points that are all good.
function runs(points, good) {
  const found = [[]];
  for (const point of points) good(point) ? found.at(-1).push(point) : found.push([]);
  return found.filter((run) => run.length);
}

// The places nearest to those wanted, which ascend, that lie a gap apart between two limits.
function spread(wanted, gap, low, high) {
  const mean = (block) => block.sum / block.size;
  const blocks = [];
  wanted.forEach((place, i) => {
    blocks.push({ sum: place - i * gap, size: 1 });
    while (blocks.length > 1 && mean(blocks.at(-2)) > mean(blocks.at(-1))) {
      const { sum, size } = blocks.pop();
      blocks.at(-1).sum += sum;
      blocks.at(-1).size += size;
    }
  });
  const highest = high - (wanted.length - 1) * gap;
  const starts = blocks.flatMap((block) => Array(block.size).fill(mean(block)));
  return starts.map((start, i) => Math.max(low, Math.min(highest, start)) + i * gap);
}

function path(points) {
  return "M" + points.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L");
}

function rule(kind, x1, y1, x2, y2) {
  return svg("line", { class: kind, x1, y1, x2, y2 });
}

function word(text, x, y, anchor, kind = "") {
  return svg("text", { class: kind, x, y, "text-anchor": anchor }, text);
}

function dot(x, y, fill) {
  return svg("circle", { cx: x, cy: y, r: 3.5, fill });
}

function svg(tag, attributes, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function element(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}
