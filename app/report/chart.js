"use strict";
// A chart of a report, with its cursor and zoom. report.js gives the data.

// One chart. `spec`: {key, title, unit, format, precise, parts: [[key, label]...] where there is a choice, dots:
// each value is marked, exact: it is not smoothed}. `page` has what all charts share: runs, hidden, marks,
// smoothing, cursor, points(run, key) -> {x, y}, domain(), marksOf(run), xTicks(domain, count), formatX(x), and is
// told by zoomTo(range) and moveCursor(x, chart, spoken).
class Chart {
  constructor(spec, page) {
    this.spec = spec;
    this.page = page;
    this.key = spec.key;
    this.logarithmic = false;
    this.margin = {left: 52, right: 12, top: 10, bottom: 36};
    this.build();
  }

  build() {
    const {spec} = this;
    this.heading = element("h3", {}, spec.title + " ", element("span", {}, spec.unit ? `(${spec.unit})` : ""));
    const head = element("div", {class: "head"}, this.heading);
    if (spec.parts) {
      const select = element("select", {"aria-label": `${spec.title}: which part`});
      for (const [key, label] of spec.parts) select.append(element("option", {value: key}, label));
      select.addEventListener("change", () => { this.key = select.value; this.draw(); });
      head.append(select);
    }
    const log = element("button", {type: "button", "aria-pressed": "false",
                                   "aria-label": `${spec.title}: logarithmic scale`}, "log");
    log.addEventListener("click", () => {
      this.logarithmic = !this.logarithmic;
      log.setAttribute("aria-pressed", String(this.logarithmic));
      this.draw();
    });
    head.append(log);
    this.svg = shape("svg", {tabindex: "0", role: "img"});
    this.tip = element("div", {class: "tip", hidden: ""});
    this.equal = element("p", {class: "quiet equal"});
    this.table = element("div", {class: "scroll"});
    this.details = element("details", {}, element("summary", {}, "as a table"), this.table);
    this.details.addEventListener("toggle", () => this.fillTable());
    this.node = element("div", {class: "chart"}, head, this.svg, this.tip, this.equal, this.details);
    this.listen();
  }

  listen() {
    const at = event => this.xAt(event.clientX - this.svg.getBoundingClientRect().left);
    this.svg.addEventListener("pointermove", event => {
      this.page.moveCursor(at(event), this);
      if (this.dragFrom !== undefined) this.drawSelection(this.dragFrom, at(event));
    });
    this.svg.addEventListener("pointerleave", () => { if (this.dragFrom === undefined) this.page.moveCursor(null, this); });
    this.svg.addEventListener("pointerdown", event => {
      if (event.button !== 0 || event.pointerType === "touch") return;
      this.dragFrom = at(event);
      this.svg.setPointerCapture(event.pointerId);
    });
    const drop = event => {
      if (this.dragFrom === undefined) return;
      const range = [this.dragFrom, at(event)].sort((a, b) => a - b);
      this.dragFrom = undefined;
      this.selection?.remove();
      const least = (this.domain[1] - this.domain[0]) * 0.01;
      if (event.type === "pointerup" && range[1] - range[0] > least) this.page.zoomTo(range);
    };
    this.svg.addEventListener("pointerup", drop);
    this.svg.addEventListener("pointercancel", drop);
    this.svg.addEventListener("dblclick", () => this.page.zoomTo(null));
    this.svg.addEventListener("keydown", event => this.keyPressed(event));
    this.svg.addEventListener("blur", () => this.page.moveCursor(null, this));
  }

  keyPressed(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || !this.domain) return;
    const [low, high] = this.domain, span = high - low;
    const cursor = this.page.cursor ?? (low + high) / 2;
    const clamp = x => Math.min(high, Math.max(low, x));
    const move = {ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10}[event.key];
    if (move) this.page.moveCursor(clamp(cursor + move * span / 100), this, true);
    else if (event.key === "Home") this.page.moveCursor(low, this, true);
    else if (event.key === "End") this.page.moveCursor(high, this, true);
    else if (event.key === "+" || event.key === "=") this.page.zoomTo([cursor - span / 4, cursor + span / 4]);
    else if (event.key === "-") this.page.zoomTo([cursor - span, cursor + span]);
    else if (event.key === "Escape" || event.key === "0") this.page.zoomTo(null);
    else return;
    event.preventDefault();
  }

  xAt(pixel) {
    const {left, right} = this.margin;
    const share = (pixel - left) / Math.max(1, this.width - left - right);
    return this.domain[0] + Math.min(1, Math.max(0, share)) * (this.domain[1] - this.domain[0]);
  }

  // The curves of the runs that are shown, smoothed where the page wants it.
  shown() {
    return this.page.runs.filter(run => !this.page.hidden.has(run.index)).map(run => {
      const points = this.page.points(run, this.key);
      return points && {run, ...points, line: smooth(points.y, this.spec.exact ? 0 : this.page.smoothing)};
    }).filter(curve => curve && curve.x.length > 0);
  }

  // Of each curve the first one before it that it lies on: where both have a point, it has the same value.
  findEqual() {
    for (const [i, curve] of this.curves.entries()) {
      curve.equalTo = this.curves.slice(0, i).find(other => other.equalTo === undefined && liesOn(curve, other));
    }
  }

  draw() {
    this.svg.replaceChildren();
    this.width = this.svg.clientWidth || 430;
    this.height = this.svg.clientHeight || 230;
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
    this.curves = this.shown();
    this.findEqual();
    this.domain = this.page.domain();
    this.range = this.valueRange();
    const equal = this.curves.filter(curve => curve.equalTo).map(curve => `${curve.run.name} is equal to ${curve.equalTo.run.name}`);
    this.equal.textContent = equal.length ? `Dashed: ${equal.join("; ")}.` : "";
    const title = `${this.spec.title}, ${this.curves.length} curve${this.curves.length === 1 ? "" : "s"}; the values are in the table below`;
    this.svg.setAttribute("aria-label", title);
    const {left, right, top, bottom} = this.margin;
    this.x = makeScale(...this.domain, left, this.width - right, false);
    if (this.range) this.y = makeScale(...this.range, this.height - bottom, top, this.isLog());
    this.drawAxes();
    if (this.range) {
      this.drawMarks();
      for (const curve of this.curves) this.drawCurve(curve);
    } else {
      this.svg.append(shape("text", {x: this.width / 2, y: this.height / 2, "text-anchor": "middle"}, "no run is shown, or none has values here"));
    }
    this.drawCursor();
    this.fillTable();
  }

  isLog() { return this.logarithmic && this.range[0] > 0; }

  // What the lines span within the domain, with some room. A logarithmic scale leaves out what is not positive.
  valueRange() {
    let low = Infinity, high = -Infinity;
    for (const {x, line} of this.curves) {
      for (let i = 0; i < x.length; i++) {
        if (x[i] < this.domain[0] || x[i] > this.domain[1] || (this.logarithmic && line[i] <= 0)) continue;
        low = Math.min(low, line[i]);
        high = Math.max(high, line[i]);
      }
    }
    if (!(low <= high)) return null;
    if (this.logarithmic && low > 0) return low === high ? [low / 2, high * 2] : [low / (high / low) ** 0.04, high * (high / low) ** 0.04];
    if (low === high) return low === 0 ? [0, 1] : [low - Math.abs(low) * 0.1, high + Math.abs(high) * 0.1];
    const room = (high - low) * 0.05;
    return [low >= 0 && low - room < 0 ? 0 : low - room, high + room];
  }

  drawAxes() {
    const {left, right, top, bottom} = this.margin;
    const floor = this.height - bottom;
    if (this.range) {
      const ticks = this.isLog() ? logTicks(...this.range) : niceTicks(...this.range, 5);
      for (const tick of ticks) {
        const y = this.y(tick);
        this.svg.append(shape("line", {class: "grid", x1: left, x2: this.width - right, y1: y, y2: y}));
        this.svg.append(shape("text", {x: left - 6, y: y + 4, "text-anchor": "end"}, this.spec.format(tick, ticks)));
      }
    }
    this.svg.append(shape("line", {class: "axis", x1: left, x2: this.width - right, y1: floor, y2: floor}));
    const {ticks, label, text} = this.page.xTicks(this.domain, Math.max(2, Math.floor((this.width - left) / 80)));
    for (const tick of ticks) {
      const x = this.x(tick);
      this.svg.append(shape("line", {class: "axis", x1: x, x2: x, y1: floor, y2: floor + 4}));
      const anchor = x > this.width - right - 16 ? "end" : "middle";
      this.svg.append(shape("text", {x: anchor === "end" ? this.width - 2 : x, y: floor + 16, "text-anchor": anchor}, text(tick)));
    }
    this.svg.append(shape("text", {x: (left + this.width - right) / 2, y: this.height - 4, "text-anchor": "middle"}, label));
  }

  drawCurve({run, x, y, line, equalTo}) {
    const late = equalTo ? " equal" : run.index >= 8 ? " late" : "";
    const group = shape("g", {class: `run-${run.index % 8}`, "clip-path": this.clip()});
    if (line !== y) group.append(shape("path", {class: "curve raw", d: this.path(x, y)}));
    group.append(shape("path", {class: `curve${late}`, d: this.path(x, line)}));
    if (this.spec.dots || x.length === 1) {
      for (let i = 0; i < x.length; i++) {
        const height = this.y(line[i]);
        if (this.inside(x[i]) && Number.isFinite(height)) group.append(shape("circle", {class: "dot", cx: this.x(x[i]), cy: height, r: x.length > 100 ? 1.5 : 2.6}));
      }
    }
    this.svg.append(group);
  }

  inside(x) { return x >= this.domain[0] && x <= this.domain[1]; }

  path(x, y) {
    let text = "", down = false;
    for (let i = 0; i < x.length; i++) {
      const height = this.y(y[i]);
      if (!Number.isFinite(height)) { down = false; continue; }
      text += `${down ? "L" : "M"}${this.x(x[i]).toFixed(1)} ${height.toFixed(1)}`;
      down = true;
    }
    return text;
  }

  clip() {
    const id = `clip-${this.spec.key}`;
    if (!this.svg.querySelector("clipPath")) {
      const {left, right, top, bottom} = this.margin;
      const rectangle = shape("rect", {x: left, y: top - 4, width: Math.max(0, this.width - left - right), height: this.height - top - bottom + 8});
      const clip = shape("clipPath", {id});
      clip.append(rectangle);
      this.svg.append(clip);
    }
    return `url(#${id})`;
  }

  drawMarks() {
    const {top, bottom} = this.margin, floor = this.height - bottom;
    for (const run of this.page.runs) {
      if (this.page.hidden.has(run.index)) continue;
      const group = shape("g", {class: `run-${run.index % 8}`});
      const marks = this.page.marks ? this.page.marksOf(run) : {restarts: [], checkpoints: [], skips: []};
      for (const x of marks.restarts.filter(x => this.inside(x))) group.append(shape("line", {class: "restart", x1: this.x(x), x2: this.x(x), y1: top, y2: floor}));
      for (const x of marks.checkpoints.filter(x => this.inside(x))) {
        const at = this.x(x);
        group.append(shape("path", {class: "checkpoint", d: `M${at} ${floor - 6}l3.5 6h-7z`}));
      }
      if (this.spec.key === "loss") {
        for (const x of marks.skips.filter(x => this.inside(x))) {
          const at = this.x(x);
          group.append(shape("path", {class: "skip", d: `M${at - 3} ${top}l6 6m0 -6l-6 6`}));
        }
      }
      this.svg.append(group);
    }
  }

  drawSelection(from, to) {
    const {top, bottom} = this.margin;
    const a = this.x(Math.min(from, to)), b = this.x(Math.max(from, to));
    this.selection?.remove();
    this.selection = shape("rect", {class: "selection", x: a, y: top, width: Math.max(0, b - a), height: this.height - top - bottom});
    this.svg.append(this.selection);
  }

  // The cursor that all charts share; `told`: with its values in words.
  drawCursor(told = false) {
    this.cursorNode?.remove();
    this.tip.hidden = true;
    const x = this.page.cursor;
    if (x === null || !this.range || !this.inside(x)) return;
    const {top, bottom} = this.margin;
    const group = shape("g", {});
    group.append(shape("line", {class: "cursor", x1: this.x(x), x2: this.x(x), y1: top, y2: this.height - bottom}));
    const rows = [];
    for (const {run, x: xs, y, line} of this.curves) {
      const at = nearest(xs, x);
      const height = this.y(line[at]);
      if (!this.inside(xs[at]) || !Number.isFinite(height)) continue;
      group.append(shape("circle", {class: `dot run-${run.index % 8}`, cx: this.x(xs[at]), cy: height, r: 3.5}));
      rows.push({run, x: xs[at], value: y[at], smoothed: line !== y ? line[at] : null});
    }
    this.cursorNode = group;
    this.svg.append(group);
    if (told) this.tell(x, rows);
  }

  tell(x, rows) {
    const precise = value => this.spec.precise(value);
    const lines = rows.map(row => {
      const smoothed = row.smoothed === null ? "" : ` (smoothed ${precise(row.smoothed)})`;
      return element("div", {class: "row"}, element("span", {class: `swatch run-${row.run.index % 8}`}),
                     element("span", {class: "name"}, row.run.name), element("span", {class: "value"}, precise(row.value) + smoothed));
    });
    const where = this.page.formatX(rows.length === 1 ? rows[0].x : x);
    this.tip.replaceChildren(element("div", {class: "quiet"}, where), ...lines);
    this.tip.hidden = false;
    const at = this.x(x) + 10;
    const right = at + this.tip.offsetWidth + 16 > this.width;
    this.tip.style.left = `${Math.max(4, right ? this.x(x) - this.tip.offsetWidth - 4 : at + 14)}px`;
    const below = this.svg.getBoundingClientRect().bottom - this.node.getBoundingClientRect().top;
    this.tip.style.top = `${below - 4}px`;  // where it hides no curve
    this.spokenText = `${where}: ${rows.map(row => `${row.run.name} ${precise(row.value)}`).join(", ")}`;
  }

  // The chart in words, for those who do not see it.
  fillTable() {
    if (!this.details.open) return;
    const table = element("table");
    table.append(element("thead", {}, element("tr", {}, ...["run", "first", "lowest", "highest", "last"].map(text => element("th", {scope: "col"}, text)))));
    const body = element("tbody");
    for (const {run, x, y} of this.curves) {
      const places = x.map((_, i) => i).filter(i => this.inside(x[i]));
      if (places.length === 0) continue;
      const low = places.reduce((a, b) => y[b] < y[a] ? b : a), high = places.reduce((a, b) => y[b] > y[a] ? b : a);
      const cell = i => element("td", {class: "number"}, `${this.spec.precise(y[i])} at ${this.page.formatX(x[i])}`);
      body.append(element("tr", {}, element("th", {scope: "row"}, run.name), cell(places[0]), cell(low), cell(high), cell(places[places.length - 1])));
    }
    table.append(body);
    this.table.replaceChildren(table);
  }
}
