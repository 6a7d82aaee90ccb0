// The page holds nothing that matters: an answer counts when the server says that it is kept, and
// only then the next item is shown. A request is repeated under its own key until it is answered.

const $ = (id) => document.getElementById(id);
const SINGLE = 6, MANY = 24;
const DOUBLE = 300, GLANCE = 100, PATIENCE = 500, AGAIN = 1000; // milliseconds
// A reload finds it again; a copy of the tab does not, or both would show the same items.
const tab = sessionStorage.tab ?? key();
delete sessionStorage.tab;

const state = {
  live: null,
  queue: [], // items in this tab's hands, the first is shown; those that came back stay
  past: [], // what this person answered: {item, ..., label, together}
  back: 0, // how far one looks back
  grid: false,
  chosen: new Set(), // numbers selected in the grid
  seen: 0, // since when what is shown can be seen
  busy: false,
  done: false, // whether nothing is left to ask
  asking: false, // whether items are on their way
  names: [], // labels in the order of their keys, which stay what they are, whoever adds others
  click: {}, // the last one on a button that answers: which button, and when
};

function key() {
  // Over plain http from another machine a browser has no crypto.randomUUID.
  return crypto.getRandomValues(new Uint32Array(4)).join("-");
}

function make(tag, fields = {}, ...children) {
  const found = document.createElement(tag);
  for (const [name, value] of Object.entries(fields)) {
    if (name.startsWith("aria-") || name === "role" || name === "for") found.setAttribute(name, value);
    else found[name] = value;
  }
  found.append(...children);
  return found;
}

// Talking to the server

async function post(path, body) {
  for (let wait = 300; ; wait = Math.min(3000, wait * 1.5)) {
    let answer = null, found = null;
    try {
      answer = await fetch(path, {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify(body),
      });
      found = answer.ok ? await answer.json() : await answer.json().catch(() => ({}));
    } catch {
      say("Not stored yet: the server does not answer. Trying again …", true);
    }
    if (found && answer.status !== 429) {
      if (answer.ok) return found;
      throw new Error(found.error ?? `the server answered ${answer.status}`);
    }
    await new Promise((done) => setTimeout(done, wait));
  }
}

async function act(work) {
  if (state.busy) return;
  state.busy = true;
  try {
    await work();
  } catch (error) {
    say(`That did not work: ${error.message}.`, true);
  } finally {
    state.busy = false;
  }
}

const size = () => (state.grid ? MANY : SINGLE);

async function more() {
  const found = await post("/next", { tab, size: size() });
  if (others(found.live)) return;
  state.live = found.live;
  if (!state.past.length) state.past = found.recent;
  receive(found);
}

// Of other files no number may stay that was of these.
function others(live) {
  const changed = state.live && live.edition !== state.live.edition;
  if (changed) location.reload();
  return changed;
}

// What is shown stays where it is: the server may know a better order for what comes after it.
function receive({ items, done }) {
  state.done = done;
  const known = new Map(items.map((item) => [item.item, item]));
  const kept = state.queue
    .filter((item) => item.back || known.has(item.item))
    .map((item) => known.get(item.item) ?? item);
  const there = new Set(kept.map((item) => item.item));
  state.queue = [...kept, ...items.filter((item) => !there.has(item.item))];
  for (const item of state.queue.slice(0, size())) {
    if (item.kind === "image") new Image().src = source(item, state.grid ? "small" : "full");
  }
  draw();
}

function shown() {
  return state.back ? state.past[state.past.length - state.back] : state.queue[0];
}

function answered() {
  if (state.grid) {
    const some = state.queue.filter((item) => state.chosen.has(item.item));
    if (some.length) return some;
    const focus = state.queue.find((item) => item.item === Number(document.activeElement?.dataset?.item));
    return focus ? [focus] : [];
  }
  return shown() ? [shown()] : [];
}

// Nobody answers what cannot be seen; what says that it takes long may be skipped.
function loads(items, label) {
  if (state.grid) {
    return items.some(({ item }) => $("grid").querySelector(`[data-item="${item}"] img`)?.naturalWidth === 0);
  }
  const wait = $("shown").querySelector(".loading");
  return wait && (label !== undefined || wait.hidden);
}

// The rest of a double click: the same button too soon after the last click on it, or, where the
// server took its time, sooner than anybody sees what is shown now. The browser's own count of
// clicks would go on while somebody quickly gives many items the same label.
function again(button, click) {
  if (!click) return false;
  const { button: last, at } = state.click;
  state.click = { button, at: click.timeStamp };
  return button === last && (click.timeStamp - at < DOUBLE || click.timeStamp - state.seen < GLANCE);
}

function answer(fields, click) {
  const twice = again(fields.label ?? fields.answer, click), items = answered();
  if (!items.length) {
    if (state.grid) say("Select some first: click them, or use the arrows and space.");
    return undefined;
  }
  if (twice) return say("That does not count: it came too soon after the last click.");
  if (loads(items, fields.label)) {
    return say("That does not count: it came before the item could be seen.");
  }
  return act(async () => {
    const numbers = items.map((item) => item.item), together = key();
    const found = await post("/label", {
      tab, key: together, edition: state.live.edition, items: numbers, size: size(), ...fields,
    });
    const gone = new Set(numbers);
    const label = fields.label ?? fields.answer;
    state.past = state.past.filter((item) => !gone.has(item.item));
    state.past.push(...items.map((item) => ({ ...item, label, together })));
    state.past = state.past.slice(-200);
    state.queue = state.queue.filter((item) => !gone.has(item.item));
    for (const number of numbers) state.chosen.delete(number);
    state.back = 0;
    state.live = found.live;
    say(items.length > 1 ? `${items.length} items: ${label}.` : `${items[0].name}: ${label}.`);
    receive(found);
  });
}

function undo(click) {
  if (again(undo, click)) return say("That does not count: it came too soon after the last click.");
  const last = state.back ? shown() : state.past.at(-1);
  if (!last) return say("There is nothing to undo.");
  // What was answered at once in the grid is undone at once.
  const some = state.back || !last.together ? [last]
    : state.past.filter((item) => item.together === last.together);
  return act(async () => {
    const numbers = some.map((item) => item.item);
    const found = await post("/undo", {
      tab, key: key(), edition: state.live.edition, items: numbers,
    });
    state.past = state.past.filter((item) => !numbers.includes(item.item));
    state.back = 0;
    state.live = found.live;
    const back = new Set(found.items.map((item) => item.item));
    const again = found.items.map((item) => ({ ...item, back: true }));
    state.queue = [...again, ...state.queue.filter((item) => !back.has(item.item))];
    say(some.length > 1 ? `Undone: ${some.length} items.` : `Undone: ${last.name}.`);
    draw();
  });
}

function look(step) {
  if (state.grid || state.busy) return;
  if (step < 0) state.back = Math.min(state.past.length, state.back + 1);
  else if (state.back) state.back -= 1;
  else if (state.queue.length > 1) state.queue.push(state.queue.shift());
  draw();
}

// Drawing

function source(item, side) {
  return `${item.src}?side=${side}`;
}

function picture(item, side) {
  if (item.kind === "text") return make("p", { className: "text", textContent: item.text, tabIndex: side === "full" ? 0 : -1 });
  if (item.kind === "row") {
    const fields = side === "full" ? item.fields : item.fields.slice(0, 4);
    return make("dl", { className: "row", tabIndex: side === "full" ? 0 : -1 },
      ...fields.flatMap(([name, value]) => [make("dt", { textContent: name }), make("dd", { textContent: value })]));
  }
  const image = make("img", { alt: item.name, src: source(item, side), draggable: false, decoding: "sync" });
  image.addEventListener("load", () => image.classList.toggle("tiny", image.naturalWidth < 128));
  image.addEventListener("error", async () => {
    // It may be the server that is away, or has too much to do.
    const found = await fetch(image.src).catch(() => null);
    if (!image.isConnected) return undefined;
    if (found?.status !== 404) return setTimeout(() => { image.src = source(item, side); }, AGAIN);
    image.replaceWith(make("p", { className: "broken", textContent: "This file is broken, or no image: skip it." }));
    return image.dispatchEvent(new Event("broken"));
  });
  return image;
}

function draw() {
  if (!state.live) return;
  drawLive();
  drawClasses();
  const none = !state.queue.length && !state.back;
  $("item").hidden = state.grid || none;
  $("grid").hidden = !state.grid || none;
  $("because").hidden = state.grid;
  $("mode").setAttribute("aria-pressed", String(state.grid));
  for (const id of ["back", "later"]) $(id).hidden = state.grid;
  if (state.grid) drawGrid();
  else drawItem();
  $("note").hidden = !none;
  if (none) {
    const { skip = 0, unsure = 0 } = state.live.aside;
    $("note").textContent = !state.done ? "Choosing what to ask next …"
      : `Everything is labelled, or in somebody else's hands${skip + unsure ? `, but for ${skip} skipped and ${unsure} not sure` : ""}.`;
  }
}

let drawn = "";
function drawItem() {
  const item = shown();
  const now = item ? `${item.item} ${state.back} ${item.label ?? ""}` : "";
  if (now !== drawn) {
    drawn = now;
    $("shown").replaceChildren();
    $("caption").replaceChildren();
    if (item) drawLoading(item);
  }
  drawWhy(item);
}

function drawLoading(item) {
  const content = picture(item, "full");
  const wait = make("p", { className: "loading", role: "status", textContent: "Loading …", hidden: true });
  const see = () => {
    if (!wait.isConnected) return;
    wait.remove();
    content.hidden = false;
    state.seen = performance.now();
    $("caption").append(make("span", { textContent: item.name }));
    if (state.back) {
      $("caption").append(make("strong", { textContent: ` you said ${item.label}: press another key to change it` }));
    }
  };
  $("shown").append(wait, content);
  if (content.complete ?? true) return see();
  content.hidden = true;
  content.addEventListener("load", see);
  content.addEventListener("broken", see);
  setTimeout(() => { wait.hidden = false; }, PATIENCE);
}

function drawWhy(item) {
  $("because").hidden = !item || state.grid;
  if (!item) return;
  const about = item.why ?? [];
  $("reason").textContent = item.unsure && !state.back
    ? "Somebody was not sure of it, and nothing else is left: it is asked once more."
    : item.held
    ? "Drawn by chance, to measure the accuracy. The model does not learn from it."
    : about.length
      ? "Its label would tell most about these of the target:"
      : state.live.trained
        ? "It was chosen earlier, or by chance while the model was learning."
        : "There is no model yet: the first items are spread over all there is.";
  if (same("why", about)) return;
  $("why").replaceChildren(...about.map((each) => make("figure", {},
    picture(each, "small"), make("figcaption", { textContent: `−${each.gain.toPrecision(2)}`, title: "expected fall of its Brier loss" }))));
}

function drawGrid() {
  const focus = document.activeElement?.dataset?.item;
  // Those that the model takes for the same lie side by side.
  const order = [...state.queue].sort((a, b) => String(a.guess ?? "").localeCompare(String(b.guess ?? "")));
  const found = order.map((item) => {
    const chosen = state.chosen.has(item.item);
    const tile = make("button", { type: "button", className: "tile", "aria-pressed": String(chosen), title: item.name },
      picture(item, "small"));
    if (item.guess) tile.append(make("span", { className: "guess", textContent: `${item.guess}?` }));
    tile.dataset.item = item.item;
    tile.addEventListener("click", () => {
      if (!state.chosen.delete(item.item)) state.chosen.add(item.item);
      tile.setAttribute("aria-pressed", String(state.chosen.has(item.item)));
    });
    return tile;
  });
  const now = found.map((tile) => `${tile.dataset.item}${tile.textContent}`).join();
  if ($("grid").dataset.now === now && [...$("grid").children].every((tile) =>
    tile.getAttribute("aria-pressed") === String(state.chosen.has(Number(tile.dataset.item))))) return;
  $("grid").dataset.now = now;
  $("grid").replaceChildren(...found);
  state.seen = performance.now();
  // Whoever is writing a new label goes on: its letters would be keys elsewhere.
  if (!document.activeElement?.matches("input")) {
    (found.find((tile) => tile.dataset.item === focus) ?? found[0])?.focus();
  }
}

// Whether an element shows this already; it is drawn anew only where it does not.
function same(id, content) {
  const now = JSON.stringify(content), before = $(id).dataset.now;
  $(id).dataset.now = now;
  return now === before;
}

function labels() {
  return (state.names = [...new Set([...state.names, ...state.live.classes])]);
}

// Those that are there stay: one of them may have the focus.
function drawClasses() {
  const names = labels(), there = $("classes").children.length;
  if (names.length <= there) return;
  const words = names.flatMap((name) => name.split(/\s+/)).map((word) => word.length);
  $("classes").style.setProperty("--word", Math.min(16, Math.max(1, ...words)));
  $("classes").append(...names.slice(there).map((name, i) => {
    const key = there + i + 1;
    const button = make("button", { type: "button", className: "class" },
      ...(key < 10 ? [make("kbd", { textContent: String(key) })] : []), make("span", { textContent: name }));
    button.addEventListener("click", (click) => answer({ label: name }, click));
    return button;
  }));
}

function drawLive() {
  const live = state.live;
  $("count").textContent = `${live.labels.toLocaleString()} of ${live.total.toLocaleString()} labelled`;
  $("fitting").hidden = !live.fitting;
  $("person").textContent = live.who ?? "";
  $("person").setAttribute("aria-label", `${live.who ?? ""}: change your name`);
  const most = Math.max(1, ...Object.values(live.counts));
  $("counts").replaceChildren(...(live.classes.length ? [make("table", {}, make("tbody", {}, ...live.classes.map((name) => {
    const bar = make("span", { className: "bar-fill" });
    bar.style.width = `${(100 * live.counts[name]) / most}%`;
    return make("tr", {}, make("th", { scope: "row", textContent: name }),
      make("td", { className: "track" }, bar), make("td", { textContent: live.counts[name] }));
  })))] : [make("p", { textContent: "No label yet: add the first below the item." })]));
  drawAccuracy(live);
  $("promise").textContent = promised(live);
  $("apart").hidden = !live.disagreements.length;
  if (same("disagreements", live.disagreements)) return; // one of them may have the focus
  $("disagreements").replaceChildren(...live.disagreements.map((each) => {
    const said = Object.entries(each.said).map(([who, label]) => `${who}: ${label}`).join(", ");
    const open = make("button", { type: "button", className: "plain", textContent: each.name });
    open.addEventListener("click", () => {
      state.grid = false;
      state.back = 0;
      state.queue = [{ ...each, why: [], back: true }, ...state.queue.filter((item) => item.item !== each.item)];
      draw();
    });
    return make("li", {}, open, make("span", { textContent: said }));
  }));
}

const percent = (share) => `${Math.round(100 * share)} %`;

function drawAccuracy(live) {
  if (!live.card) {
    $("accuracy").replaceChildren(make("p", { textContent: live.error
      ? `There is no model: ${live.error}`
      : "Not known yet: some items are drawn by chance to measure it." }));
    return;
  }
  const [accuracy, low, high, n] = live.card;
  const range = make("span", { className: "range" }), dot = make("span", { className: "at" });
  range.style.left = `${100 * low}%`;
  range.style.width = `${100 * (high - low)}%`;
  dot.style.left = `${100 * accuracy}%`;
  $("accuracy").replaceChildren(
    make("p", { className: "big", textContent: percent(accuracy) }),
    make("div", { className: "scale", "aria-hidden": "true" }, range, dot),
    make("p", { textContent: `${percent(low)} to ${percent(high)} (95 % interval), from ${n} label${n > 1 ? "s" : ""} `
      + "drawn by chance that the model did not learn from." }),
    ...(live.error ? [make("p", { className: "failed", textContent: `The last labels are not learned: ${live.error}` })] : []));
}

function promised(live) {
  if (live.promise === null || !live.batch) {
    const known = Object.values(live.counts).filter((count) => count).length;
    return known > 1 ? "Not known yet: the model has to learn from the first labels."
      : "Not known yet: labels of two classes are needed.";
  }
  const [n, gain] = live.batch;
  const all = live.promise;
  const least = (value) => (value < 0.0005 ? "less than 0.001" : value.toFixed(3));
  const stop = all < 0.005 ? " It may be time to stop." : "";
  return `The next ${n} labels should cut the Brier loss by ${least(gain)}; `
    + `all that remain by ${least(Math.max(all, gain))}.${stop}`;
}

function say(words, bad = false) {
  $("status").textContent = words;
  $("status").classList.toggle("bad", bad);
}

// Keys and buttons

function select() {
  const focus = state.queue.find((item) => item.item === Number(document.activeElement?.dataset?.item));
  if (!focus?.guess) return say("The model has not guessed yet what this one is: select it by itself.");
  for (const item of state.queue) if (item.guess === focus.guess) state.chosen.add(item.item);
  return drawGrid();
}

function moveInGrid(step) {
  const tiles = [...$("grid").children];
  const columns = getComputedStyle($("grid")).gridTemplateColumns.split(" ").length;
  const at = tiles.indexOf(document.activeElement);
  const to = at + { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[step];
  tiles[at < 0 ? 0 : Math.max(0, Math.min(tiles.length - 1, to))]?.focus();
}

const KEYS = {
  z: undo,
  s: (click) => answer({ answer: "skip" }, click),
  u: (click) => answer({ answer: "unsure" }, click),
  g: toggle,
  n: () => $("new").focus(),
  a: () => state.grid && select(),
  "?": () => $("help").showModal(),
  ArrowLeft: () => look(-1),
  ArrowRight: () => look(1),
};

// Keys are known by what is printed on them, or by their place where that is another script, or where
// digits need Shift.
function pressed({ key, code, shiftKey }) {
  if (key.length > 1 || /[1-9]/.test(key)) return key;
  const [, digit, letter] = (!shiftKey && /^(?:Digit([1-9])|Key(.))$/.exec(code)) || [];
  return digit ?? (key > "~" && letter ? letter : key).toLowerCase();
}

document.addEventListener("keydown", (event) => {
  // A button that is held down by Enter would answer what nobody has seen.
  if (event.repeat && event.target.matches("button")) event.preventDefault();
  const typing = event.target.matches("input, textarea") || document.querySelector("dialog[open]");
  if (typing || event.ctrlKey || event.metaKey || event.altKey || event.repeat || !state.live) return;
  if (state.grid && event.key.startsWith("Arrow")) {
    event.preventDefault();
    return moveInGrid(event.key);
  }
  const key = pressed(event), name = labels()[key - 1];
  const work = name === undefined ? KEYS[key] : () => answer({ label: name });
  if (!work) return;
  event.preventDefault();
  work();
});

// It is drawn once, when all items are there: where others move, a click would meet another one.
async function toggle() {
  if (state.busy) return;
  state.grid = !state.grid;
  state.back = 0;
  state.chosen.clear();
  drawn = "";
  $("grid").dataset.now = "";
  await act(more);
  draw();
}

$("back").addEventListener("click", () => look(-1));
$("later").addEventListener("click", () => look(1));
$("undo").addEventListener("click", KEYS.z);
$("skip").addEventListener("click", KEYS.s);
$("unsure").addEventListener("click", KEYS.u);
$("mode").addEventListener("click", toggle);
$("keys").addEventListener("click", () => $("help").showModal());
$("close").addEventListener("click", () => $("help").close());
$("person").addEventListener("click", () => $("asking").showModal());

$("other").addEventListener("submit", (event) => {
  event.preventDefault();
  const name = $("new").value.trim().replace(/\s+/g, " ").normalize();
  if (!name) return;
  const known = labels().includes(name) ? "There is the label" : "New label";
  if (!labels().includes(name)) state.names.push(name);
  $("new").value = "";
  $("new").blur();
  drawClasses();
  const at = labels().indexOf(name) + 1;
  if (at > 9) $("classes").children[at - 1].focus();
  say(`${known} ${name}: key ${at < 10 ? at : "Enter, as long as it has the focus"}.`);
});

$("naming").addEventListener("submit", async (event) => {
  event.preventDefault();
  try {
    const { who } = await post("/name", { name: $("name").value });
    if (state.live) state.live.who = who;
    $("naming-error").textContent = "";
    $("asking").close();
    draw();
  } catch (error) {
    $("naming-error").textContent = error.message;
  }
});
$("asking").addEventListener("close", () => state.live?.who ?? $("asking").showModal());

// Nobody who presses a key meanwhile is kept waiting; what comes too late is asked for again.
async function refill() {
  if (state.asking) return;
  state.asking = true;
  try {
    const found = await post("/next", { tab, size: size() });
    if (!state.busy && !others(found.live)) {
      state.live = found.live;
      receive(found);
    }
  } catch (error) {
    say(`That did not work: ${error.message}.`, true);
  } finally {
    state.asking = false;
  }
}

// Others label too, and the model learns meanwhile.
async function refresh() {
  if (document.hidden || state.busy || !state.live) return;
  if (!state.queue.length) return refill();
  try {
    const answer = await fetch("/live");
    if (!answer.ok || state.busy) return;
    const live = await answer.json();
    if (others(live)) return;
    state.live = live;
    draw();
  } catch {
    // The next answer will tell that the server is away.
  }
}
setInterval(() => !state.queue.length && refresh(), 400);
setInterval(refresh, 2500);
addEventListener("pagehide", () => {
  sessionStorage.tab = tab;
  navigator.sendBeacon("/leave", new Blob([JSON.stringify({ tab })], { type: "application/json" }));
});
addEventListener("pageshow", (event) => {
  delete sessionStorage.tab;
  if (event.persisted) act(more);
});

await act(more);
if (state.live && !state.live.who) $("asking").showModal();
