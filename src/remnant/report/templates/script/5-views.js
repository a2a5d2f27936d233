// The page of a run, and runs or methods overlaid. Everything is made of text nodes: no name is ever read as HTML.

function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== false && value !== null) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return node;
}

// The address of a view: {run: id}, {overlay: [id, id]}, or the filter of the home.
function hashOf(state) {
  const pairs = state instanceof URLSearchParams ? [...state] : Object.entries(state).flatMap(([key, value]) => [value].flat().map((each) => [key, each]));
  return `#${String(new URLSearchParams(pairs)).replaceAll("%2F", "/")}`;
}

const link = (state, ...children) => el("a", { href: hashOf(state) }, ...children);
const swatch = (own) => toSvg({ marks: [marker(own, 8, 8, 5)], width: 16, height: 16 }); // beside a name

function table(caption, head, rows, numeric = false) {
  const cells = (row) => row.map((cell, i) => (i ? el("td", { class: numeric && "number" }, cell) : el("th", { scope: "row" }, cell)));
  return el("div", { class: "scroll", role: "region", "aria-label": caption, tabindex: 0 }, el("table", {},
    el("caption", { class: "spoken" }, caption),
    el("thead", {}, el("tr", {}, head.map((word, i) => el("th", { scope: "col", class: numeric && i > 0 && "number" }, word)))),
    el("tbody", {}, rows.map((row) => el("tr", { class: row.changed && "changed" }, cells(row))))));
}

function numbersOf(chart) {
  const print = (value) => (Number.isFinite(value) ? minus(value.toFixed(2)) : "");
  if (chart.bars) return [["series", chart.unit], chart.bars.map((bar) => [bar.name, spreadText(bar, 2)])];
  if (chart.rows) return [["after task", ...chart.rows[chart.rows.length - 1].map((_, i) => `task ${i + 1}`)], chart.rows.map((row, t) => [t + 1, ...row.map(print)])];
  const series = chart.panels.flatMap((panel) => panel.series.map((each) => ({ ...each, name: panel.title ? `${each.name}, ${panel.title}` : each.name })));
  if (chart.scatter) return [["series", chart.x, chart.y], series.map((each) => [each.name, ...each.points[0].slice(0, 2).map(print)])];
  const xs = [...new Set(series.flatMap((each) => each.points.map((point) => point[0])))].sort((a, b) => a - b);
  const at = series.map((each) => new Map(each.points.map(([x, y]) => [x, y])));
  return [[chart.x, ...series.map((each) => each.name)], xs.map((x) => [x, ...at.map((points) => print(points.get(x)))])];
}

function inWords(chart) {
  if (chart.bars) return `${chart.title}: ${chart.bars.map((bar) => `${bar.name} ${spreadText(bar, 1)} ${chart.unit}`).join(", ")}.`;
  if (chart.rows) return `${chart.title}. The numbers are in the figure and in the table below it.`;
  const ends = chart.panels[chart.panels.length - 1].series.map((each) => `${each.name} ${minus(each.points[each.points.length - 1][1].toFixed(2))}`);
  return `${chart.title}. ${chart.y}, at the end: ${ends.slice(0, 12).join(", ")}.`;
}

function figure(chart, where) {
  const drawing = chart.bars ? drawBars(chart) : chart.rows ? drawHeatMap(chart) : drawLines(chart);
  const words = inWords(chart), file = `${where} ${chart.title}`.toLowerCase().replace(/[^a-z0-9]+/g, "-").slice(0, 80);
  const save = (ending, content, type) => el("button", { type: "button", onclick: () => download(content(), type, `${file}.${ending}`) }, ending.toUpperCase(), el("span", { class: "spoken" }, ` of ${chart.title}`));
  const numbers = el("details", { ontoggle: () => { if (numbers.open && numbers.children.length === 1) numbers.append(table(chart.title, ...numbersOf(chart), true)); } },
    el("summary", {}, "Numbers", el("span", { class: "spoken" }, ` of ${chart.title}`)));
  return el("figure", { class: chart.wide ? "drawing wide" : "drawing" }, el("figcaption", {}, chart.title), toSvg(drawing, words),
    chart.remark ? el("p", { class: "small" }, chart.remark) : null,
    el("div", { class: "files" }, save("svg", () => svgFile(drawing, words), "image/svg+xml"), save("pdf", () => toPdf(drawing), "application/pdf"), numbers));
}

const figures = (charts, where) => el("div", { class: "figures" }, charts.map((chart) => figure(chart, where)));

const AS_IN_RECIPE = "as in the recipe";

// One series of each method, the recipe's if it is there, has the method's look. Others have looks that none of them uses.
function seriesOf(ids) {
  const found = ids.map((id) => variants.get(id) || runs.get(id)).filter(Boolean);
  const benchmarks = new Set(found.map((each) => (each.variant || each).benchmark));
  const owners = new Map();
  for (const each of found) {
    const variant = each.variant || each, owner = owners.get(variant.look);
    if (!owner || (variant.label === AS_IN_RECIPE && (owner.variant || owner).label !== AS_IN_RECIPE)) owners.set(variant.look, each);
  }
  let next = -1;
  return found.map((each) => {
    const variant = each.variant || each;
    let number = variant.look;
    if (owners.get(number) !== each) {
      do next += 1; while (owners.has(next));
      number = next;
    }
    const words = [variant.name, variant.label === AS_IN_RECIPE ? "" : `: ${variant.label}`, each.variant ? `, seed ${each.seed}` : "", benchmarks.size > 1 ? ` (${variant.title})` : ""];
    const name = words.join("");
    return { id: each.id, variant, name: name.length > 60 ? `${name.slice(0, 59)}…` : name, look: look(number), runs: each.variant ? [each] : each.runs };
  });
}

const state = (run) => el("span", { class: `chip ${run.state.replace(" ", "-")}` }, run.state === "finished" ? "finished" : `${run.state}: ${run.progress}`);

function command(words, what) {
  const button = el("button", { type: "button", onclick: () => navigator.clipboard.writeText(words).then(() => { button.textContent = "Copied"; }) }, "Copy");
  return [el("h3", {}, what), el("div", { class: "command" }, el("pre", { tabindex: 0 }, words), navigator.clipboard ? button : null)];
}

function results(run) {
  const tiles = Object.entries(data.measures).map(([key, [heading, , digits]]) => [heading, spreadText(measured([run], key), digits)]);
  const parts = Object.entries(run.seconds).map(([part, seconds]) => [`${part} s`, seconds.toFixed(1)]);
  return el("dl", { class: "tiles" }, [...tiles, ...parts].map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
}

function runView(run) {
  const { variant } = run, only = [{ name: variant.name, look: look(variant.look), runs: [run] }], others = variant.runs;
  const charts = [heatMap(run), everyTaskOfOne(run), forgetting(only), curve(only, "loss", "Training loss"), curve(only, "valid", "Validation accuracy, %", 100), capacityForecast(only)];
  const settings = variant.settings.map(([name, value, source]) => Object.assign([name, value, source], { changed: source === "changed" }));
  return [
    el("h2", { tabindex: -1 }, swatch(only[0].look), ` ${variant.name} on ${variant.title}, seed ${run.seed} `, state(run)),
    el("p", {}, `${variant.label} · `, el("code", {}, run.path)),
    others.length > 1 ? el("p", {}, "Seeds: ", others.map((each) => [each === run ? el("b", {}, each.seed) : link({ run: each.id }, each.seed), " "]), "· ", link({ overlay: others.map((each) => each.id) }, "overlay these seeds")) : null,
    run.warnings.map((warning) => el("p", { class: "notice" }, warning)),
    run.values ? results(run) : null,
    run.command ? command(run.command, "Make it again") : el("p", {}, "No recipe leads to these settings, so no command makes the run again."),
    run.state === "unfinished" ? command(run.resume, "Continue it") : null,
    figures(charts.filter(worthDrawing), run.id),
    Object.keys(run.ranks).length ? [el("h3", {}, "Directions added to each layer"), ranks(run)] : null,
    el("div", { class: "beside" },
      el("div", {}, el("h3", {}, "Settings"), table("Settings", ["setting", "value", "from"], settings)),
      el("div", {}, el("h3", {}, "Environment"), table("Environment", ["environment", "value"], data.environments[run.environment]))),
  ];
}

function ranks(run) {
  const tasks = Math.max(...Object.values(run.ranks).map((added) => added.length));
  const rows = Object.entries(run.ranks).map(([layer, added]) => [layer, ...Array.from({ length: tasks }, (_, t) => added[t] ?? ""), added.reduce((a, b) => a + b, 0), run.variant.capacities[layer] || ""]);
  return table("Directions added to each layer", ["layer", ...Array.from({ length: tasks }, (_, t) => `task ${t + 1}`), "total", "capacity"], rows, true);
}

function overlayView(ids) {
  const all = seriesOf(ids), headings = Object.values(data.measures).map(([heading]) => heading);
  const without = (id) => { const left = ids.filter((each) => each !== id); return left.length ? { overlay: left } : {}; };
  const rows = all.map((series) => [el("span", { class: "named" }, swatch(series.look), series.runs.length === 1 ? link({ run: series.runs[0].id }, series.name) : series.name), `${series.runs.filter((run) => run.values).length}`,
    ...Object.entries(data.measures).map(([key, [, , digits]]) => spreadText(measured(series.runs, key), digits)), link(without(series.id), "remove", el("span", { class: "spoken" }, ` ${series.name}`))]);
  const settings = all.map((series) => new Map(series.variant.settings));
  const names = [...new Set(settings.flatMap((each) => [...each.keys()]))];
  const differing = names.filter((name) => new Set(settings.map((each) => each.get(name))).size > 1);
  return [
    el("h2", { tabindex: -1 }, `${all.length} overlaid`),
    table("Results", ["series", "seeds", ...headings, "remove"], rows, true),
    figures(chartsOf(all), "overlay"),
    differing.length ? [el("h3", {}, "Settings that differ"), table("Settings that differ", ["setting", ...all.map((series) => series.name)], differing.map((name) => [name, ...settings.map((each) => each.get(name) ?? "–")]))] : null,
  ];
}
