// What the address says after # is what the page shows: a run, an overlay, or the home with its filter, order and ticks.

const CHOICES = ["q", "benchmark", "method", "state"];
const MOST_SERIES = 12;
let data, variants, runs, opener = null, lastHome = "#";

function readData() {
  data = JSON.parse(document.getElementById("data").textContent);
  variants = new Map(data.variants.map((variant) => [variant.id, variant]));
  runs = new Map();
  for (const variant of data.variants) for (const run of variant.runs) runs.set((run.id = `${variant.id}/${run.seed}`), Object.assign(run, { variant }));
}

const section = () => (location.hash.includes("=") ? null : document.getElementById(location.hash.slice(1)));
const address = () => new URLSearchParams(location.hash.includes("=") ? location.hash.slice(1) : "");

// Changes a part of the address without a new entry in the history.
function change(parts) {
  const now = address();
  for (const [key, value] of Object.entries(parts)) {
    now.delete(key);
    for (const each of [value].flat()) if (each) now.append(key, each);
  }
  history.replaceState(null, "", hashOf(now));
  showHome(now);
}

function showHome(now) {
  for (const key of CHOICES) {
    const field = document.getElementById(key);
    if (field.value !== (now.get(key) || "")) field.value = now.get(key) || "";
  }
  const [id, place, direction] = (now.get("sort") || "").split(":");
  const sorted = id && document.getElementById(id);
  if (sorted && sorted.tHead) sortTable(sorted, Number(place), Number(direction));
  filter(now);
  showTray(now.getAll("chosen"));
  lastHome = hashOf(now);
}

function show(refreshed = false) {
  const now = address(), run = runs.get(now.get("run")), overlaid = now.getAll("overlay").filter((id) => variants.has(id) || runs.has(id));
  const view = document.getElementById("view"), home = document.getElementById("home"), away = Boolean(now.get("run") || now.get("overlay"));
  const content = run ? runView(run) : overlaid.length ? overlayView(overlaid) : [el("h2", { tabindex: -1 }, "This report does not have that run"), el("p", {}, "It may be in another folder, or have been removed.")];
  home.hidden = away;
  view.hidden = !away;
  document.getElementById("back").hidden = !away;
  document.getElementById("back").href = lastHome;
  view.replaceChildren(...(away ? content.flat(2).filter(Boolean) : []));
  document.title = away ? `${view.querySelector("h2").textContent.trim()} · Remnant` : "Remnant: results";
  if (away) {
    document.getElementById("tray").hidden = true;
    if (refreshed) return;
    window.scrollTo(0, 0);
    view.querySelector("h2").focus({ preventScroll: true });
    return;
  }
  showHome(now);
  if (section() && !refreshed) section().scrollIntoView();
  else if (opener && opener.isConnected && !refreshed) opener.focus();
  opener = null;
}

function drawFigures(place) {
  const ids = [...document.querySelectorAll(`#${place.dataset.figures} tbody tr`)].map((row) => row.dataset.id), shown = ids.slice(0, MOST_SERIES);
  const note = ids.length > shown.length ? el("p", { class: "small" }, `The ${shown.length} best of ${ids.length}. Tick rows to overlay others.`) : "";
  place.replaceChildren(note, figures(chartsOf(seriesOf(shown)), place.dataset.figures));
}

function drawHome() {
  for (const place of document.querySelectorAll("[data-look]")) place.replaceChildren(swatch(look(Number(place.dataset.look))));
  for (const section of document.querySelectorAll(".benchmark")) { // a table is the legend of its figures
    const rows = [...section.querySelectorAll("tbody tr")];
    seriesOf(rows.map((row) => row.dataset.id)).forEach((series, i) => rows[i].querySelector("[data-look]").replaceChildren(swatch(series.look)));
  }
  document.querySelectorAll("#home table").forEach(makeSortable);
}

// After the first screen is there: one table's figures at a time, so that the page stays responsive.
function drawLater([place, ...others]) {
  if (place) {
    drawFigures(place);
    setTimeout(drawLater, 0, others);
  } else if (section()) section().scrollIntoView();
}

// Replaces what the page shows, and keeps the reader's place: scroll, focus, opened parts.
function refresh(fresh) {
  const top = window.scrollY, focus = document.activeElement.outerHTML, open = [...document.querySelectorAll("#home details[open][id]")].map((part) => part.id);
  const all = document.getElementById("show-missing");
  for (const id of ["data", "home"]) document.getElementById(id).replaceWith(fresh.getElementById(id));
  readData();
  drawHome();
  document.querySelectorAll("[data-figures]").forEach(drawFigures);
  for (const id of open) if (document.getElementById(id)) document.getElementById(id).open = true;
  if (all && all.checked) document.getElementById("show-missing").checked = true;
  show(true);
  window.scrollTo(0, top);
  const same = [...document.querySelectorAll("a, button, input, select, summary")].find((node) => node.outerHTML === focus);
  if (same) same.focus({ preventScroll: true });
}

// With `remnant report --watch`, the page asks its own server for changes.
function watch() {
  let version = null;
  setInterval(async () => {
    const status = document.getElementById("watching");
    try {
      const now = await (await fetch("version")).text();
      if (version !== null && version !== now) refresh(new DOMParser().parseFromString(await (await fetch("index.html")).text(), "text/html"));
      version = now;
      status.textContent = "Watching: the page follows the runs.";
    } catch {
      status.textContent = "The server has stopped. Start remnant report --watch again.";
    }
  }, 1000);
}

for (const key of CHOICES) document.getElementById(key).addEventListener("input", (event) => {
  if (document.getElementById("home").hidden) location.hash = hashOf({ [key]: event.target.value }); else change({ [key]: event.target.value });
});
document.querySelector("form").addEventListener("submit", (event) => event.preventDefault());
document.getElementById("clear").addEventListener("click", () => change({ chosen: [] }));
document.addEventListener("change", (event) => {
  if (!event.target.matches(".tick input")) return;
  const chosen = address().getAll("chosen").filter((id) => id !== event.target.value);
  change({ chosen: event.target.checked ? [...chosen, event.target.value] : chosen });
});
document.addEventListener("click", (event) => { if (event.target.closest("#home a, #overlay")) opener = event.target.closest("a"); });
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !document.getElementById("view").hidden) location.hash = lastHome;
  if (event.key === "/" && !event.target.matches("input, select")) { event.preventDefault(); document.getElementById("q").focus(); }
});
addEventListener("hashchange", () => show());
readData();
drawHome();
show();
setTimeout(drawLater, 50, document.querySelectorAll("[data-figures]"));
if (document.body.dataset.watch) watch();
