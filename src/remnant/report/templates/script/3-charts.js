// Charts: what a figure shows becomes marks. A chart is {title, x, y, panels: [{title, series: [{name, look, points}]}]},
// where a point is [x, y] or [x, y, deviation].

const WIDTH = 400;

function ticks(low, high, most = 5, whole = false) {
  const raw = (high - low || 1) / most, power = 10 ** Math.floor(Math.log10(raw));
  let step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((each) => each >= raw * 0.999);
  if (whole) step = Math.max(1, Math.ceil(step - 1e-9));
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(i * step);
  return found;
}

const places = (values) => Math.max(0, ...values.map((v) => (String(round(v)).split(".")[1] || "").length));
const minus = (words) => words.replace("-", "−");

function range(charted, place, { from, to } = {}) {
  const values = charted.flatMap(([x, y, sdY, sdX]) => (place ? [y - (sdY || 0), y + (sdY || 0)] : [x - (sdX || 0), x + (sdX || 0)])).filter(Number.isFinite);
  let low = from ?? Math.min(...values), high = to ?? Math.max(...values);
  if (low === high) { low -= 0.5; high += 0.5; }
  const spare = (high - low) * 0.06;
  return [from ?? low - spare, to ?? high + spare];
}

function frame(box, xs, ys, chart, marks) {
  const yTicks = ticks(...ys, box.height < 140 ? 3 : 5), xTicks = ticks(...xs, box.width < 200 ? 4 : 8, chart.wholeX !== false);
  const yPlaces = places(yTicks), xPlaces = places(xTicks);
  const across = (x) => box.x + ((x - xs[0]) / (xs[1] - xs[0])) * box.width;
  const up = (y) => box.y + box.height - ((y - ys[0]) / (ys[1] - ys[0])) * box.height;
  for (const y of yTicks) {
    marks.push({ ...line([[box.x, up(y)], [box.x + box.width, up(y)]], "soft", 0.35) });
    marks.push(text(box.x - 5, up(y) + 3.5, minus(y.toFixed(yPlaces)), { anchor: "end", size: 9.5 }));
  }
  for (const x of xTicks) marks.push(text(across(x), box.y + box.height + 13, minus(x.toFixed(xPlaces)), { anchor: "middle", size: 9.5 }));
  marks.push(line([[box.x, box.y], [box.x, box.y + box.height], [box.x + box.width, box.y + box.height]], "soft", 0.8));
  for (const y of chart.references || []) marks.push(line([[box.x, up(y)], [box.x + box.width, up(y)]], "soft", 1, 1));
  return [across, up];
}

function drawSeries(series, across, up, chart, marks) {
  const points = series.points.filter((point) => Number.isFinite(point[1])).map(([x, y, sd, sdX]) => [across(x), up(y), sd, sdX, x, y]);
  if (chart.scatter) {
    for (const [x, y, sd, sdX, valueX, valueY] of points) {
      if (sd) marks.push(line([[x, up(valueY - sd)], [x, up(valueY + sd)]], series.look.colour, 1.2));
      if (sdX) marks.push(line([[across(valueX - sdX), y], [across(valueX + sdX), y]], series.look.colour, 1.2));
      marks.push(marker(series.look, x, y, 4.6));
    }
    return;
  }
  if (points.some((point) => point[2])) {
    const [upper, lower] = [1, -1].map((sign) => points.map(([x, , sd, , , value]) => [x, up(value + sign * (sd || 0))]));
    marks.push(area([...upper, ...lower.reverse()], series.look.colour, 0.15));
  }
  marks.push(line(points.map(([x, y]) => [x, y]), series.look.colour, chart.dense ? 1.2 : 1.6, series.look.dash));
  const ahead = (series.forecast || []).map(([x, y]) => [across(x), up(y)]);
  if (ahead.length && points.length) marks.push(line([points[points.length - 1].slice(0, 2), ...ahead], series.look.colour, 1.2, 2));
  if (!chart.dense) for (const [x, y] of points) marks.push(marker(series.look, x, y));
}

function legend(series, width, top, marks, scatter) {
  let x = 4, y = top;
  for (const { name, look: own } of series) {
    const size = 40 + textWidth(name, 10, false);
    if (x > 4 && x + size > width) { x = 4; y += 16; }
    if (!scatter) marks.push(line([[x, y], [x + 24, y]], own.colour, 1.6, own.dash));
    marks.push(marker(own, x + 12, y), text(x + 29, y + 3.5, name, { size: 10 }));
    x += size + 6;
  }
  return y + 10;
}

function drawLines(chart) {
  const shown = chart.panels.filter((panel) => panel.series.some((series) => series.points.length));
  const many = shown.length > 1, columns = many ? Math.min(5, shown.length) : 1;
  const width = many ? Math.max(WIDTH, columns * 230) : WIDTH, cell = width / columns, tall = many ? 150 : 240, left = many ? 32 : 48;
  const every = shown.flatMap((panel) => panel.series).flatMap((series) => [...series.points, ...(series.forecast || [])]);
  const xs = range(every, 0, chart.rangeX), ys = range([...every, ...(chart.references || []).map((y) => [0, y])], 1, chart.rangeY);
  const marks = [];
  shown.forEach((panel, i) => {
    const box = { x: (i % columns) * cell + left, y: Math.floor(i / columns) * tall + (many ? 18 : 8), width: cell - left - 12, height: tall - (many ? 42 : 44) };
    const [across, up] = frame(box, xs, ys, chart, marks);
    if (many) marks.push(text(box.x + box.width / 2, box.y - 5, panel.title, { anchor: "middle", size: 10, bold: true }));
    panel.series.forEach((series) => drawSeries(series, across, up, chart, marks));
  });
  let bottom = Math.ceil(shown.length / columns) * tall;
  if (many) bottom += 6;
  marks.push(text(width / 2 + left / 2, bottom - 2, chart.x, { anchor: "middle" }));
  if (!many) marks.push({ ...text(11, (tall - 44) / 2 + 8, chart.y, { anchor: "middle" }), upwards: true });
  const named = [...new Map(shown.flatMap((panel) => panel.series).map((series) => [series.name, series])).values()];
  bottom = named.length > 1 || named[0].forecast ? legend(named, width, bottom + 18, marks, chart.scatter) : bottom + 6;
  return { marks, width, height: bottom };
}

function drawBars({ bars, unit }) {
  const short = (name) => { let cut = name; while (textWidth(cut, 10.5) > 130) cut = `${cut.slice(0, -2)}…`; return cut; };
  const labels = Math.max(...bars.map((bar) => textWidth(short(bar.name), 10.5))) + 32;
  const most = Math.max(...bars.map((bar) => bar.value + (bar.sd || 0))) || 1, room = WIDTH - labels - 95, marks = [];
  bars.forEach((bar, i) => {
    const y = 8 + i * 24, end = labels + (bar.value / most) * room;
    marks.push(marker(bar.look, 9, y + 8), text(20, y + 12, short(bar.name)));
    marks.push(area([[labels, y], [end, y], [end, y + 16], [labels, y + 16]], bar.look.colour, 1, true));
    if (bar.sd) marks.push(line([[end - (bar.sd / most) * room, y + 8], [end + (bar.sd / most) * room, y + 8]], "ink", 1.2));
    marks.push(text(end + 6 + ((bar.sd || 0) / most) * room, y + 12, `${spreadText(bar, bar.value < 10 ? 2 : 1)} ${unit}`, { size: 9.5 }));
  });
  return { marks, width: WIDTH, height: 16 + bars.length * 24 };
}

// The colour map "cividis", which the colour-blind see as others do.
const CIVIDIS = [[0, 34, 78], [67, 78, 108], [125, 124, 120], [188, 175, 111], [254, 232, 56]];

function shade(share) {
  const at = Math.min(3, Math.max(0, Math.floor(share * 4))), rest = Math.min(1, Math.max(0, share * 4 - at));
  const rgb = CIVIDIS[at].map((part, i) => Math.round(part + (CIVIDIS[at + 1][i] - part) * rest));
  return [`#${rgb.map((part) => part.toString(16).padStart(2, "0")).join("")}`, 0.3 * rgb[0] + 0.6 * rgb[1] + 0.1 * rgb[2] > 115 ? "#000000" : "#ffffff"];
}

function drawHeatMap({ rows }) {
  const tasks = rows[rows.length - 1].length, side = Math.min(44, (WIDTH - 60) / tasks), known = rows.flat().filter(Number.isFinite), marks = [];
  const low = Math.floor(Math.min(...known) / 10) * 10, high = Math.max(low + 1, Math.ceil(Math.max(...known) / 10) * 10);
  rows.forEach((row, t) => row.forEach((value, i) => {
    if (!Number.isFinite(value)) return;
    const [fill, ink] = shade((value - low) / (high - low)), x = 44 + i * side, y = 6 + t * side;
    marks.push(area([[x, y], [x + side, y], [x + side, y + side], [x, y + side]], fill));
    marks.push(text(x + side / 2, y + side / 2 + 3.5, value.toFixed(side < 26 ? 0 : 1), { anchor: "middle", size: side < 22 ? 7.5 : 10, colour: ink }));
  }));
  const bottom = 6 + rows.length * side;
  for (let i = 0; i < tasks; i++) marks.push(text(44 + (i + 0.5) * side, bottom + 13, i + 1, { anchor: "middle", size: 9.5 }));
  rows.forEach((_, t) => marks.push(text(38, 6 + (t + 0.5) * side + 3.5, t + 1, { anchor: "end", size: 9.5 })));
  marks.push(text(44 + (tasks * side) / 2, bottom + 28, "accuracy on task, %", { anchor: "middle" }));
  marks.push({ ...text(12, 6 + (rows.length * side) / 2, "after task", { anchor: "middle" }), upwards: true });
  return { marks, width: Math.max(200, 54 + tasks * side), height: bottom + 34 };
}
