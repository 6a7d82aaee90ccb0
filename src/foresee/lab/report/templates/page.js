// Draws the numbers in #data: learning curves and promises, for the metric and methods chosen.

const report = JSON.parse(document.getElementById("data").textContent);
const charts = [...document.querySelectorAll(".chart")];
const keys = [...document.querySelectorAll(".key")];
const metricMenu = document.getElementById("metric");
const hidden = new Set();
const ANY = [-Infinity, Infinity];
const scaleOf = (metric) => (metric.unit ? 100 : 1);
const known = (value) => value !== null;
const shown = (method) => !hidden.has(method);
const ink = (method) => `var(--ink-${report.methods[method].ink})`;
const series = (method) => svg("g", { class: "series", "data-method": method });

function drawCurves(host) {
  const key = host.dataset.metric || metricMenu.value;
  const metric = report.metrics[key];
  const all = report.experiments[host.dataset.experiment].curves[key];
  const curves = all.filter((curve) => shown(curve.method) && curve.mean.some(known));
  if (!curves.length) {
    say(host, all.length ? "nothing to show" : `${metric.label}: not recorded`);
    return;
  }
  const possible = metric.unit === "%" ? [0, 1] : key === "gain" ? ANY : [0, Infinity];
  const band = (mean, sd) => // no wider than values can be
    [mean - sd, mean + sd].map((v) => Math.min(possible[1], Math.max(possible[0], v)));
  const limits = curves.flatMap((c) =>
    c.mean.flatMap((m, i) => (known(m) ? [m, ...band(m, c.sd[i] || 0)] : []))
  );
  if (host.dataset.metric) limits.push(0); // what remains is read by its distance from nothing
  const wide = host.clientWidth > 640;
  const longest = Math.max(...curves.map((c) => report.methods[c.method].name.length));
  const plot = frame(host, {
    x: span(curves.flatMap((c) => c.x)),
    y: roomy([Math.min(...limits), Math.max(...limits)], possible),
    yText: (value, step) => axisText(value, step, scaleOf(metric)),
    title: metric.label + (metric.unit && `, ${metric.unit}`),
    xTitle: "labels",
    right: wide ? Math.max(96, Math.min(host.clientWidth / 3, 7 * longest)) : 8,
  });
  for (const curve of curves) plot.root.append(drawCurve(curve, plot, band));
  if (wide) labelEnds(curves, plot);
  follow(host, plot, curves, metric);
}

function drawCurve(curve, plot, band) {
  const points = curve.x.map((x, i) => ({ x: plot.x(x), mean: curve.mean[i], sd: curve.sd[i] }));
  const group = series(curve.method);
  for (const run of runs(points, (p) => known(p.mean) && known(p.sd))) {
    const [lower, upper] = [0, 1].map((i) => run.map((p) => [p.x, plot.y(band(p.mean, p.sd)[i])]));
    const outline = path([...upper, ...lower.reverse()]) + "Z";
    group.append(svg("path", { class: "band", d: outline, fill: ink(curve.method) }));
  }
  for (const run of runs(points, (p) => known(p.mean))) {
    const line = run.map((p) => [p.x, plot.y(p.mean)]);
    const { dash } = report.methods[curve.method];
    const pen = { stroke: ink(curve.method), "stroke-dasharray": dash };
    group.append(svg("path", { class: "line", d: path(line), ...pen }));
    if (run.length === 1) group.append(dot(...line[0], ink(curve.method)));
  }
  return group;
}

// Names at the ends of the curves that run to the last size, moved apart so that all can be read;
// none where they are too many.
function labelEnds(curves, plot) {
  const last = Math.max(...curves.flatMap((c) => c.x));
  const ends = curves
    .filter((c) => c.x.at(-1) === last && known(c.mean.at(-1)))
    .map((c) => ({ method: c.method, from: plot.y(c.mean.at(-1)) }))
    .sort((a, b) => a.from - b.from);
  const [highest, room] = [plot.top - 12, plot.bottom - plot.top + 12];
  const gap = Math.min(14, room / (ends.length - 1));
  if (gap < 11) return; // the keys above name them, too
  const places = spread(ends.map((end) => end.from), gap, highest, plot.bottom);
  ends.forEach(({ method, from }, i) => {
    const group = series(method);
    const [x, y] = [plot.right, places[i]];
    const leader = path([[x + 3, from], [x + 14, y]]);
    group.append(svg("path", { class: "leader", d: leader, stroke: ink(method) }));
    group.append(word(report.methods[method].name, x + 18, y + 4, "start"));
    plot.root.append(group);
  });
}

// A cross-hair that goes from size to size with the pointer, a finger or the arrow keys.
function follow(host, plot, curves, metric) {
  const sizes = [...new Set(curves.flatMap((c) => c.x))].sort((a, b) => a - b);
  const cross = rule("cross", 0, plot.top, 0, plot.bottom);
  cross.setAttribute("visibility", "hidden");
  const tip = element("div", { class: "tip", hidden: "" });
  plot.root.append(cross);
  host.append(tip);
  let at = -1;

  const show = (place) => {
    at = Math.max(0, Math.min(sizes.length - 1, place));
    const x = plot.x(sizes[at]);
    cross.setAttribute("x1", x);
    cross.setAttribute("x2", x);
    cross.setAttribute("visibility", "visible");
    tip.replaceChildren(...valuesAt(sizes[at], curves, metric));
    tip.hidden = false;
    const beside = x > plot.width / 2 ? x - tip.offsetWidth - 12 : x + 12;
    const narrow = plot.width < 2 * tip.offsetWidth;
    tip.style.left = narrow ? 0 : `${beside}px`;
    tip.style.top = `${narrow ? plot.bottom + 40 : plot.top}px`;
  };
  const hide = () => {
    tip.hidden = true;
    cross.setAttribute("visibility", "hidden");
  };
  host.onpointermove = host.onpointerdown = (event) => {
    const x = event.clientX - host.getBoundingClientRect().left;
    const distances = sizes.map((size) => Math.abs(plot.x(size) - x));
    show(distances.indexOf(Math.min(...distances)));
  };
  // A finger that lifts leaves too, but wants to read on.
  host.onpointerleave = (event) => event.pointerType === "mouse" && hide();
  host.onblur = hide;
  host.onkeydown = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    show(at + step);
  };
}

function valuesAt(size, curves, metric) {
  const here = curves
    .map((c) => ({ c, i: c.x.indexOf(size) }))
    .filter(({ c, i }) => i >= 0 && known(c.mean[i]))
    .sort((a, b) => (metric.up ? -1 : 1) * (a.c.mean[a.i] - b.c.mean[b.i]));
  const scale = scaleOf(metric);
  const largest = Math.max(...here.map(({ c, i }) => Math.abs(scale * c.mean[i])));
  const places = Math.max(0, Math.min(6, 3 - Math.floor(Math.log10(largest || 1))));
  const text = (value) => fixed(scale * value, places);
  const rows = here.map(({ c, i }) => {
    const swatch = keys[c.method].querySelector("svg").cloneNode(true);
    const name = element("span", { class: "method" }, swatch, report.methods[c.method].name);
    const cells = [
      element("b", {}, text(c.mean[i])),
      known(c.sd[i]) ? `± ${text(c.sd[i])}` : "",
      `n = ${c.n[i]}`,
    ];
    const values = cells.map((cell) => element("td", {}, cell));
    return element("tr", {}, element("th", {}, name), ...values);
  });
  const table = element("table", {}, element("tbody", {}, ...rows));
  return [element("div", {}, `${count(size)} labels`), table];
}

function drawPromises(host) {
  const points = report.experiments[host.dataset.experiment].promises
    .filter(([method, , promised, fell]) => shown(method) && known(promised) && known(fell));
  if (!points.length) {
    say(host, "nothing to show");
    return;
  }
  const plot = frame(host, {
    x: roomy(span([0, ...points.map((p) => p[2])]), ANY),
    y: roomy(span([0, ...points.map((p) => p[3])]), ANY),
    yText: axisText,
    xText: axisText,
    title: "Real fall of the Brier loss",
    xTitle: "expected",
    right: 12,
  });
  const reach = Math.min(plot.limits.x[1], plot.limits.y[1]);
  plot.root.append(rule("axis", plot.x(0), plot.y(0), plot.x(reach), plot.y(reach)));
  for (const [method, size, promised, fell] of points) {
    const where = `${report.methods[method].name} at ${count(size)} labels`;
    const values = `expected ${promised.toPrecision(3)}, real ${fell.toPrecision(3)}`;
    const point = dot(plot.x(promised), plot.y(fell), ink(method));
    point.append(svg("title", {}, `${where}: ${values}`));
    const group = series(method);
    group.append(point);
    plot.root.append(group);
  }
}

function say(host, text) {
  host.replaceChildren(element("div", { class: "empty" }, text));
  host.onpointermove = host.onpointerdown = host.onkeydown = null;
}

function draw(host) {
  host.classList.contains("scatter") ? drawPromises(host) : drawCurves(host);
}

function light(method) {
  for (const host of charts) {
    host.classList.toggle("focus", method !== null && shown(method));
    for (const group of host.querySelectorAll(".series")) {
      group.classList.toggle("lit", Number(group.dataset.method) === method);
    }
  }
}

function toggle(methods, hide) {
  for (const method of methods) hide ? hidden.add(method) : hidden.delete(method);
  light(null);
  keys.forEach((key, method) => key.setAttribute("aria-pressed", String(shown(method))));
  document.getElementById("show-all").hidden = hidden.size === 0;
  charts.forEach(draw);
}

// The menu shows the experiment in view. Choosing what is chosen makes no event: while the menu is
// open a hidden entry with the same text is the chosen one.
function followPage(menu) {
  document.getElementById("jump-label").hidden = menu.options.length < 2;
  const standIn = element("option", { hidden: "", value: "" });
  menu.prepend(standIn);
  let inView = menu.options[1].value;
  menu.value = inView;
  const sections = new IntersectionObserver(
    (entries) => {
      for (const entry of entries) if (entry.isIntersecting) inView = entry.target.id;
      menu.value = inView;
    },
    { rootMargin: "-25% 0px -75% 0px" }
  );
  document.querySelectorAll(".experiment").forEach((section) => sections.observe(section));
  menu.addEventListener("pointerdown", () => {
    standIn.textContent = menu.selectedOptions[0].textContent;
    menu.value = "";
  });
  menu.addEventListener("keydown", () => {
    menu.value = inView;
  });
  menu.addEventListener("change", () => {
    inView = menu.value;
    document.getElementById(inView).scrollIntoView();
  });
}

keys.forEach((key, method) => {
  key.addEventListener("click", () => toggle([method], shown(method)));
  key.addEventListener("pointerenter", (event) => event.pointerType === "mouse" && light(method));
  key.addEventListener("pointerleave", () => light(null));
});
document.getElementById("show-all").addEventListener("click", () => toggle([...hidden], false));
metricMenu.addEventListener("change", () => charts.forEach(draw));
followPage(document.getElementById("jump"));
for (const host of charts) {
  let width = 0;
  new ResizeObserver(() => {
    if (host.clientWidth !== width) {
      width = host.clientWidth;
      draw(host);
    }
  }).observe(host);
  if (!host.classList.contains("scatter")) {
    host.tabIndex = 0;
    host.setAttribute("role", "img");
    host.setAttribute("aria-label", `Curves: ${report.experiments[host.dataset.experiment].title}`);
  }
}
