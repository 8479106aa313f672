"use strict";
// The page of a report: its data, the view that all charts share, the tables.
const data = JSON.parse(document.getElementById("data").textContent);
const byId = id => document.getElementById(id);
const missing = "–";

const plain = value => compact(value, 3);
// As many decimals as the distance of the ticks needs.
function axisNumber(value, ticks) {
  const step = ticks && ticks.length > 1 ? Math.abs(ticks[1] - ticks[0]) : 0;
  const size = Math.max(...(ticks ?? [value]).map(Math.abs));
  if (!step || size < 1e-3 || size >= 1e4) return plain(value);
  return value.toFixed(Math.min(6, Math.max(0, -Math.floor(Math.log10(step) + 1e-9))));
}
const percentTick = (value, ticks) => axisNumber(value * 100, ticks?.map(t => t * 100)) + " %";
const digits = value => compact(value, 5);
const percent = value => `${(value * 100).toFixed(1)} %`;
const number = {format: axisNumber, precise: digits};
const share = {format: percentTick, precise: percent};

const specs = [
  {key: "loss", title: "Loss", unit: "nats per token", ...number},
  {key: "eval_loss", title: "Validation loss", unit: "nats per token", ...number, dots: true, exact: true},
  {key: "bits_per_byte", title: "Validation loss", unit: "bits per byte", ...number, dots: true, exact: true},
  {key: "grad_norm", title: "Gradient norm", unit: "before clipping", ...number},
  {key: "lr", title: "Learning rate", unit: "", ...number, exact: true},
  {key: "tokens_per_s", title: "Speed", unit: "tokens/s", format: plain, precise: digits},
  {key: "mfu", title: "MFU", unit: "of the peak rate", ...share},
  {key: "bubble", title: "Bubble", unit: "of the step", ...share,
   parts: [["bubble", "all"], ["bubble_fill", "fill"], ["bubble_steady", "steady"], ["bubble_drain", "drain"],
           ["bubble_barrier", "barrier"], ["bubble_wait", "waiting for transfers"]]},
  {key: "memory_gb", title: "Peak memory", unit: "GB", ...number, exact: true},
  {key: "step_time_s", title: "Step time", unit: "s", ...number,
   parts: [["step_time_s", "whole step"], ["data_wait_s", "waiting for data"], ["save_time_s", "standing still to save"]]},
  {key: "expert_imbalance", title: "Expert imbalance", unit: "fullest by mean", ...number},
];

// --- the data

const runs = data.runs.map((run, index) => ({...run, index}));
function points(run, key, axis) {
  if (key === "eval_loss") return {x: run.evaluations[axis], y: run.evaluations.value};
  if (key === "bits_per_byte") {  // beside the loss only where tokens of the runs are not the same
    const {bits_per_byte} = run.evaluations, known = data.other_tokens ? bits_per_byte.map((_, i) => i).filter(i => bits_per_byte[i] !== null) : [];
    return {x: known.map(i => run.evaluations[axis][i]), y: known.map(i => bits_per_byte[i])};
  }
  const series = run.curves.series[key];
  if (!series) return null;
  const xs = run.curves[axis];
  return {x: series.at ? series.at.map(row => xs[row]) : xs, y: series.value};
}
// Where a step lies on another axis: between the rows around it.
function place(run, step, axis) {
  if (axis === "step") return step;
  const steps = run.curves.step, xs = run.curves[axis];
  if (steps.length === 0) return 0;
  if (step < steps[0]) return 0;
  let i = nearest(steps, step);
  if (steps[i] > step) i--;
  if (i + 1 >= steps.length) return xs[xs.length - 1];
  return xs[i] + (step - steps[i]) / (steps[i + 1] - steps[i]) * (xs[i + 1] - xs[i]);
}

// --- the view

const page = {
  runs, axis: "step", smoothing: 0, zoom: null, cursor: null, hidden: new Set(), marks: true,
  cache: new Map(),
  points(run, key) {
    const name = `${run.index} ${key} ${this.axis}`;
    if (!this.cache.has(name)) this.cache.set(name, points(run, key, this.axis));
    return this.cache.get(name);
  },
  whole() {
    let low = Infinity, high = -Infinity;
    for (const run of runs.filter(run => !this.hidden.has(run.index))) {
      for (const xs of [run.curves[this.axis], run.evaluations[this.axis]]) {
        if (xs.length === 0) continue;
        low = Math.min(low, xs[0]);
        high = Math.max(high, xs[xs.length - 1]);
      }
    }
    if (!(low <= high)) return [0, 1];
    if (low > 0 && low < high * 0.1) low = 0;
    return low === high ? [low - 0.5, high + 0.5] : [low, high];
  },
  domain() { return this.zoom ?? this.whole(); },
  zoomTo(range) {
    const [low, high] = this.whole();
    if (range) range = [Math.max(low, range[0]), Math.min(high, range[1])];
    const whole = !range || range[1] - range[0] >= (high - low) * 0.999;
    if (!whole && range[1] - range[0] < (high - low) * 1e-6) return;
    this.zoom = whole ? null : range;
    byId("reset").disabled = whole;
    drawAll();
  },
  moveCursor(x, chart, spoken = false) {
    this.cursor = x;
    for (const other of charts) other.drawCursor(other === chart);
    if (spoken) byId("spoken").textContent = chart.spokenText ?? "";
  },
  marksOf(run) {
    const at = step => place(run, step, this.axis);
    return {
      restarts: run.starts.filter((start, i) => i > 0 || start.step > 0).map(start => at(start.step)),
      checkpoints: run.checkpoints.map(at),
      skips: run.skipped.map(at),
    };
  },
  xTicks(domain, count) {
    if (this.axis === "time") {
      const [unit, name] = timeUnit(domain[1]);
      const ticks = niceTicks(domain[0] / unit, domain[1] / unit, count).map(t => t * unit);
      return {ticks, label: `time since the run began (${name})`, text: t => axisNumber(t / unit, ticks.map(t => t / unit))};
    }
    const ticks = niceTicks(...domain, count);
    const whole = this.axis === "step" ? ticks.filter(Number.isInteger) : ticks;
    const close = domain[1] - domain[0] < Math.abs(domain[1]) * 0.02;
    return {ticks: whole, label: this.axis === "step" ? "step" : "tokens", text: t => close || Math.abs(t) < 1e4 ? grouped(t) : compact(t, 4)};
  },
  formatX(x) {
    if (this.axis === "time") return duration(x);
    return this.axis === "step" ? `step ${grouped(x)}` : `${compact(x, 4)} tokens`;
  },
};

const charts = specs.filter(spec => runs.some(run => (points(run, spec.key, "step")?.x.length ?? 0) > 0))
                    .map(spec => new Chart(spec, page));
function drawAll() { for (const chart of charts) chart.draw(); }

// --- controls

function showControls() {
  for (const radio of document.querySelectorAll("input[name=axis]")) {
    radio.addEventListener("change", () => { page.axis = radio.value; page.cursor = null; page.zoomTo(null); });
  }
  const slider = byId("smoothing");
  slider.addEventListener("input", () => {
    page.smoothing = slider.value / 100;
    byId("smoothing-value").textContent = page.smoothing ? page.smoothing.toFixed(2) : "off";
    drawAll();
  });
  byId("marks").addEventListener("change", event => { page.marks = event.target.checked; drawAll(); });
  byId("reset").addEventListener("click", () => page.zoomTo(null));
  for (const run of runs) {
    const box = element("input", {type: "checkbox"});
    box.checked = true;
    box.addEventListener("change", () => {
      if (box.checked) page.hidden.delete(run.index); else page.hidden.add(run.index);
      page.zoomTo(page.zoom);
    });
    byId("legend").append(element("li", {}, element("label", {title: run.name}, box,
      element("span", {class: `swatch run-${run.index % 8}`}), element("span", {class: "name"}, run.name))));
  }
}

// --- tables

function table(head, rows, numbers = new Set()) {
  const classes = i => numbers.has(i) ? {class: "number"} : {};
  const line = row => element("tr", {}, ...row.map((text, i) => i === 0 ? element("th", {scope: "row"}, text) : element("td", classes(i), text)));
  return [element("thead", {}, element("tr", {}, ...head.map((text, i) => element("th", {scope: "col", ...classes(i)}, text)))),
          element("tbody", {}, ...rows.map(line))];
}
const known = (value, format) => typeof value === "number" ? format(value) : missing;
const clock = text => typeof text === "string" ? text.replace("T", " ").replace(/\.\d+Z$/, " UTC") : missing;

// A long name may break behind a slash, a short one nowhere.
function breakable(name) {
  if (name.length <= 36) return [name];
  return name.split("/").flatMap((part, i, all) => i + 1 < all.length ? [part + "/", element("wbr")] : [part]);
}

function showRuns() {
  const head = ["run", "step", "tokens", "loss", "validation loss", "gradient norm", "tokens/s", "MFU", "bubble", "memory", "duration", "begun", "host", "ranks", "restarts", "skipped steps"];
  const decimals = (value, count) => known(value, value => value.toFixed(count));
  const rows = runs.map(run => {
    const {last, medians, evaluations, curves} = run, first = run.starts[0] ?? {}, newest = run.starts[run.starts.length - 1] ?? {};
    const layout = newest.layout ?? {};
    const ranks = newest.world_size === undefined ? missing : `${newest.world_size}` + (layout.pp ? ` (pp ${layout.pp}, ${layout.pp_schedule ?? "?"})` : "");
    const name = element("span", {class: "run-name"}, element("span", {class: `swatch run-${run.index % 8}`}), element("span", {}, ...breakable(run.name)));
    return [name, known(last.step, grouped), known(last.total_tokens, value => compact(value, 4)), decimals(last.loss, 4),
            decimals(evaluations.value[evaluations.value.length - 1], 4), known(last.grad_norm, digits), known(medians.tokens_per_s, plain),
            known(medians.mfu, percent), known(medians.bubble, percent), known(last.memory_gb, value => `${compact(value)} GB`),
            curves.time.length ? duration(curves.time[curves.time.length - 1]) : missing, clock(first.time),
            String(newest.host ?? missing), ranks, String(Math.max(0, run.starts.length - 1)), grouped(run.skipped_count)];
  });
  byId("runs").append(element("caption", {}, "Tokens/s, MFU and bubble: the median of all steps. The other figures are the last step's."), ...table(head, rows, new Set([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 14, 15])));
}

function showNotices() {
  for (const run of runs) {
    const notes = [];
    if (run.damaged > 0) notes.push(`${grouped(run.damaged)} damaged line${run.damaged === 1 ? "" : "s"} left out, the first is line ${grouped(run.first_damaged)}`);
    if (run.steps === 0) notes.push("no step is recorded");
    if (notes.length) byId("notices").append(element("p", {class: "notice"}, `${run.name}: ${notes.join("; ")}.`));
  }
  if (runs.length === 1) byId("title").textContent = runs[0].name;
  const thinned = runs.filter(run => run.steps > data.most_points);
  if (thinned.length) byId("thinned").textContent = `Of runs of more than ${grouped(data.most_points)} steps each group of steps is drawn by its smallest and its largest value, so that spikes stay.`;
}

// Each run is a line over its steps. A fork leaves the line of the run that it comes from at the step of its checkpoint.
function showDescent() {
  const nodes = data.descent.map((node, index) => ({...node, index, begin: node.step ?? 0, children: []}));
  if (nodes.length === 0) return;
  for (const node of nodes) if (node.parent !== undefined) nodes[node.parent].children.push(node);
  const rows = new Set();
  const visit = node => {
    if (rows.has(node)) return;
    rows.add(node);
    node.end = Math.max(node.begin, runs[node.index]?.last.step ?? 0, ...node.children.map(child => child.begin));
    node.children.sort((a, b) => b.begin - a.begin).forEach(visit);
  };
  nodes.filter(node => node.parent === undefined).forEach(visit);
  nodes.forEach(visit);  // files that tell of a circle
  const width = 900, height = 36, x = makeScale(0, Math.max(1, ...nodes.map(node => node.end)), 20, width - 240, false);
  const row = new Map([...rows].map((node, i) => [node, (i + 0.7) * height]));
  const svg = shape("svg", {class: "descent", role: "img", width, viewBox: `0 0 ${width} ${rows.size * height + 10}`});
  for (const node of rows) {
    const y = row.get(node), known = node.index < runs.length;
    const from = node.parent === undefined ? y : row.get(nodes[node.parent]);
    const group = shape("g", {class: known ? `run-${node.index % 8}` : "quiet"});
    group.append(shape("path", {d: `M${x(node.begin)} ${from}V${y}H${x(node.end)}`}));
    const origin = node.parent === undefined ? "" : `, from step ${grouped(node.step)} of ${nodes[node.parent].name}`;
    group.append(shape("text", {x: x(node.begin) + 6, y: y - 6}, node.name + origin));
    svg.append(group);
  }
  byId("descent").append(element("div", {class: "scroll"}, svg));
  byId("descent").hidden = false;
}

function showDifferences() {
  const host = byId("differences");
  const problems = data.job_problems.map((problem, i) => problem && `${runs[i].name}: ${problem}.`).filter(Boolean);
  for (const problem of problems) host.append(element("p", {class: "quiet"}, problem));
  if (data.jobs.length < 2) {
    host.append(element("p", {class: "quiet"}, "One run: nothing to compare. pptrain report RUN RUN... puts several over each other."));
  } else if (data.differences.length) {
    const rows = data.differences.map(row => row.map((text, i) => i === 0 ? text : text || missing));
    host.append(element("table", {}, ...table(["key", ...data.jobs], rows)));
    if (data.other_tokens)
      host.append(element("p", {id: "vocabularies"}, "The vocabularies differ, so a token of one run is not a token of another: nats per token cannot be " +
        "compared. Compare bits per byte: the curve of the validation loss, and what pptrain eval prints for each run."));
  } else if (problems.length < data.jobs.length - 1) {
    host.append(element("p", {class: "quiet"}, "Every key is the same."));
  }
}

function showEvents() {
  for (const run of runs) {
    const starts = element("table", {}, element("caption", {}, "Starts"),
      ...table(["start", "from step", "time", "host", "device", "ranks", "version", "command"], run.starts.map(start =>
        [String(start.start ?? missing), known(start.step, grouped), clock(start.time), String(start.host ?? missing), String(start.device ?? missing),
         String(start.world_size ?? missing), String(start.version ?? missing), String(start.command ?? missing)]), new Set([1])));
    const {evaluations} = run;
    const shown = evaluations.step.map((_, i) => i).slice(-200);
    const evals = element("table", {}, element("caption", {}, shown.length < evaluations.step.length ? `Evaluations, the last ${shown.length} of ${evaluations.step.length}` : "Evaluations"),
      ...table(["step", "loss", "perplexity", "time"], shown.map(i =>
        [grouped(evaluations.step[i]), evaluations.value[i].toFixed(4), digits(Math.exp(evaluations.value[i])), duration(evaluations.time[i])]), new Set([1, 2, 3])));
    const gone = run.checkpoints.filter(step => !run.kept_checkpoints.includes(step));
    const list = steps => steps.length ? steps.slice(-60).map(grouped).join(", ") : "none";
    const details = element("details", {}, element("summary", {}, run.name), element("div", {class: "scroll"}, starts),
      element("p", {}, `Checkpoints that are there: ${list(run.kept_checkpoints)}.` + (gone.length ? ` Removed since: ${list(gone)}.` : "")),
      ...run.pace.map(line => element("p", {}, `Pace: ${line}.`)),
      ...(shown.length ? [element("div", {class: "scroll"}, evals)] : []));
    details.open = runs.length === 1;
    byId("events").append(details);
  }
}

showNotices();
showRuns();
showControls();
showDescent();
showDifferences();
showEvents();
for (const chart of charts) byId("charts").append(chart.node);
new ResizeObserver(drawAll).observe(byId("charts"));
window.addEventListener("beforeprint", drawAll);
drawAll();
