// A series is a name, a look and runs. These functions turn series into charts; a chart without anything to show is null.

const known = (values) => values.filter((value) => Number.isFinite(value));
const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
const deviation = (values) => (values.length < 2 ? null : Math.sqrt(values.reduce((sum, v) => sum + (v - mean(values)) ** 2, 0) / (values.length - 1)));
const spread = (values) => ({ value: mean(values), sd: deviation(values) });
const spreadText = ({ value, sd }, digits) => (Number.isFinite(value) ? minus(value.toFixed(digits)) + (sd === null ? "" : ` ± ${sd.toFixed(digits)}`) : "–");

function measured(runs, key) {
  const [, scale] = data.measures[key];
  return spread(known(runs.map((run) => run.values && run.values[key])).map((value) => value * scale));
}

// The mean and deviation at each x over the runs' points.
function gather(runs, pointsOf) {
  const found = new Map();
  for (const [x, y] of runs.flatMap(pointsOf)) if (Number.isFinite(y)) found.set(x, [...(found.get(x) || []), y]);
  return [...found].sort((a, b) => a[0] - b[0]).map(([x, ys]) => [x, mean(ys), deviation(ys)]);
}

const lines = (all, pointsOf) => all.map((series) => ({ ...series, points: gather(series.runs, pointsOf) })).filter((series) => series.points.length);
const column = (run, task) => run.R.map((row, t) => [t + 1, row[task]]).filter(([t, y]) => t > task && Number.isFinite(y));
const tasksOf = (all) => Math.max(0, ...all.flatMap((series) => series.runs).map((run) => (run.R.length ? run.R[run.R.length - 1].length : 0)));

function accuracySoFar(all) {
  const series = lines(all, (run) => run.R.map((row, t) => [t + 1, mean(known(row))]));
  return { title: "Mean accuracy on the tasks so far", x: "tasks learnt", y: "ACC so far, %", panels: [{ series }] };
}

function everyTask(all) {
  const panels = Array.from({ length: tasksOf(all) }, (_, task) => ({ title: `task ${task + 1}`, series: lines(all, (run) => column(run, task)) }));
  return { title: "Accuracy on every task over time, %", x: "tasks learnt", y: "accuracy, %", panels, rangeY: { from: 0, to: 104 }, wide: panels.length > 1 };
}

function everyTaskOfOne(run) {
  const series = Array.from({ length: tasksOf([{ runs: [run] }]) }, (_, task) => ({ name: `task ${task + 1}`, look: look(task), points: column(run, task) }));
  return { title: "Accuracy on every task over time", x: "tasks learnt", y: "accuracy, %", panels: [{ series: series.filter((each) => each.points.length) }] };
}

function forgetting(all) {
  const lost = (run) => {
    const last = run.R[run.R.length - 1] || [];
    return last.slice(0, -1).map((end, task) => [task + 1, Math.max(...column(run, task).slice(0, -1).map((point) => point[1])) - end]);
  };
  return { title: "Forgetting of each task", x: "task", y: "best accuracy − last, points", panels: [{ series: lines(all, lost) }], references: [0] };
}

function tradeOff(all) {
  const points = (runs) => {
    const x = measured(runs, "learning_accuracy"), y = measured(runs, "bwt");
    return Number.isFinite(x.value) && Number.isFinite(y.value) ? [[x.value, 100 * y.value, 100 * y.sd, x.sd]] : [];
  };
  const series = all.map((each) => ({ ...each, points: points(each.runs) })).filter((each) => each.points.length);
  const axes = { x: "learning accuracy, % (right: learns better)", y: "BWT, points (up: forgets less)" };
  return { title: "Plasticity against stability", ...axes, panels: [{ series }], scatter: true, wholeX: false, references: [0] };
}

function curve(all, key, title, scale = 1) {
  const series = lines(all, (run) => run.epochs.map((epoch, i) => [epoch, run[key][i] === null ? NaN : scale * run[key][i]]));
  return { title: `${title}, by epoch`, x: "epochs, over all tasks", y: title, panels: [{ series }], dense: true };
}

// As `GPM.report()` predicts it: the next tasks add as many directions as the last three did.
const RECENT = 3, MOST_LAYERS = 8;

function layersOf(run) {
  return Object.entries(run.ranks).filter(([layer]) => run.variant.capacities[layer]).map(([layer, added]) => {
    const capacity = run.variant.capacities[layer], points = [];
    let rank = 0;
    for (const [t, k] of added.entries()) points.push([t + 1, (100 * (rank += k)) / capacity]);
    const pace = mean(added.slice(-RECENT)), left = pace ? Math.floor((capacity - rank) / pace) : capacity > rank ? Infinity : 0;
    const ahead = Math.min(left, added.length), share = points[points.length - 1][1];
    return { layer, capacity, points, left, share, forecast: ahead ? [[added.length + ahead, share + (100 * ahead * pace) / capacity]] : [] };
  });
}

const tightest = (layers) => layers.reduce((a, b) => (b.left < a.left || (b.left === a.left && b.share > a.share) ? b : a));

function capacityForecast(all) {
  const layered = all.map((series) => ({ series, layers: layersOf(series.runs.find((run) => Object.keys(run.ranks).length) || { ranks: {} }) })).filter(({ layers }) => layers.length);
  const chart = { title: "Capacity: how full the memory gets", x: "tasks learnt (dotted: forecast)", y: "rank, % of capacity", references: [100], rangeY: { from: 0, to: 104 } };
  if (!layered.length) return { ...chart, panels: [] };
  const words = ({ layer, left }) => (left === Infinity ? `${layer} does not fill up` : `about ${left} until ${layer} is full`);
  if (layered.length === 1) {
    const layers = [...layered[0].layers].sort((a, b) => a.left - b.left || b.share - a.share).slice(0, MOST_LAYERS);
    const series = layers.map((each, i) => ({ ...each, name: `${each.layer} (n = ${each.capacity})`, look: look(i) }));
    return { ...chart, panels: [{ series }], title: `Capacity: how full the memory of ${layered[0].series.name} gets`, remark: `More tasks like the last ones: ${words(tightest(layers))}.` };
  }
  const series = layered.map(({ series: own, layers }) => ({ ...own, ...tightest(layers) }));
  return { ...chart, title: "Capacity: how full the tightest layer gets", panels: [{ series }], remark: `More tasks like the last ones: ${series.map((each) => `${each.name}: ${words(each)}`).join("; ")}.` };
}

function bars(all, key, title, unit) {
  const found = all.map((series) => ({ ...series, ...measured(series.runs, key) })).filter((bar) => Number.isFinite(bar.value));
  return { title, unit, bars: found };
}

function heatMap(run) {
  return { title: "Accuracy matrix: on task i after task t, %", rows: run.R };
}

function chartsOf(all) {
  return [
    accuracySoFar(all), forgetting(all), tradeOff(all),
    curve(all, "loss", "Training loss"), curve(all, "valid", "Validation accuracy, %", 100), capacityForecast(all),
    bars(all, "seconds", "Time of a run", "s"), bars(all, "memory_bytes", "Memory kept between tasks", "kB"), everyTask(all),
  ].filter(worthDrawing);
}

function worthDrawing(chart) {
  if (chart.bars) return chart.bars.some((bar) => bar.value > 0);
  if (chart.rows) return chart.rows.flat().some(Number.isFinite);
  const points = chart.panels.flatMap((panel) => panel.series).map((series) => series.points.length);
  return chart.scatter ? points.length > 0 : points.some((count) => count > 1);
}
