// Tables: sorting by a click on a heading, filtering by words and choices, and ticking rows for an overlay.

// What a cell sorts by: its number, or its words. A dash and an empty cell come last.
function sortKey(cell) {
  const words = (cell ? cell.textContent : "").trim();
  const number = /^[−+-]?[\d.]/.test(words) ? parseFloat(words.replace("−", "-").replace("+", "")) : NaN;
  return words === "–" || !words ? null : Number.isNaN(number) ? words.toLowerCase() : number;
}

function sortRows(body, place, direction) {
  const rows = [...body.rows].map((row) => [sortKey(row.cells[place]), row]);
  rows.sort(([a], [b]) => {
    if (a === null || b === null) return (a === null) - (b === null);
    return direction * (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));
  });
  body.append(...rows.map(([, row]) => row));
}

function sortTable(shown, place, direction) {
  const head = shown.tHead.rows[shown.tHead.rows.length - 1];
  [...head.cells].forEach((cell, i) => (i === place ? cell.setAttribute("aria-sort", direction > 0 ? "ascending" : "descending") : cell.removeAttribute("aria-sort")));
  sortRows(shown.tBodies[0], place, direction);
}

function makeSortable(shown) {
  const head = shown.tHead.rows[shown.tHead.rows.length - 1];
  [...head.cells].forEach((cell, place) => {
    if (cell.classList.contains("tick") || !cell.textContent) return;
    const button = el("button", { type: "button", onclick: () => {
      const numeric = cell.classList.contains("number"), now = cell.getAttribute("aria-sort");
      const direction = now ? (now === "ascending" ? -1 : 1) : numeric ? -1 : 1;
      change({ sort: `${shown.id}:${place}:${direction}` });
    } }, ...cell.childNodes);
    cell.replaceChildren(button);
  });
}

const haystacks = new WeakMap();

function haystack(row) {
  if (!haystacks.has(row)) {
    const of = variants.get(row.dataset.id) || runs.get(row.dataset.id), variant = of && (of.variant || of);
    const settings = variant ? variant.settings.map(([name, value]) => `${name}=${value}`) : [];
    const made = of ? (of.runs || [of]).flatMap((run) => [run.path, ...data.environments[run.environment].flat()]) : [];
    haystacks.set(row, [row.textContent, row.dataset.method, row.dataset.benchmark, ...settings, ...made].join(" ").toLowerCase());
  }
  return haystacks.get(row);
}

function filter(chosen) {
  const words = (chosen.get("q") || "").toLowerCase().split(/\s+/).filter(Boolean);
  const matches = (row) => words.every((word) => haystack(row).includes(word)) && (!row.dataset.id || CHOICES.slice(1).every((key) => !chosen.get(key) || (key === "state" ? row.dataset.state.split(",") : [row.dataset[key]]).includes(chosen.get(key))));
  let found = 0;
  for (const section of document.querySelectorAll("[data-filtered]")) {
    let any = false;
    for (const row of section.querySelectorAll("tbody tr")) {
      const shown = matches(row);
      row.hidden = !shown;
      any = any || shown;
      if (shown && section.id === "all-runs") found += 1;
    }
    section.classList.toggle("empty", !any);
  }
  const all = runs.size, open = [...runs.values()].filter((run) => run.state !== "finished").length;
  const some = CHOICES.some((key) => chosen.get(key));
  document.getElementById("found").textContent = some ? `${found} of ${all} runs` : `${all} run${all === 1 ? "" : "s"}${open ? `, ${open} unfinished` : ""}`;
}

function showTray(ids) {
  const tray = document.getElementById("tray");
  tray.hidden = !ids.length;
  document.getElementById("chosen").textContent = `${ids.length} chosen`;
  document.getElementById("overlay").href = hashOf({ overlay: ids });
  for (const box of document.querySelectorAll(".tick input")) box.checked = ids.includes(box.value);
}
