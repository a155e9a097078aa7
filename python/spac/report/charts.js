"use strict";
// Draws charts as SVG from data: lines, stacks and bars.
// The functions at the beginning are for all drawings: elements, number formats, ticks, colours.

const SVG = "http://www.w3.org/2000/svg";

function make(name, attributes, parent, text) {
  const element = name.startsWith("svg:")
    ? document.createElementNS(SVG, name.slice(4))
    : document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  if (parent) parent.append(element);
  return element;
}

// Return a number with three digits, without an exponent.
function short(value) {
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  return String(+value.toFixed(Math.max(0, 2 - Math.floor(Math.log10(size)))));
}

function inUnit(value, unit) {
  if (value === null || value === undefined) return "–";
  if (unit === "%") return `${(value * 100).toFixed(1)}%`;
  if (unit === "bytes") {
    let scaled = value, i = 0;
    const units = ["B", "KB", "MB", "GB", "TB"];
    while (Math.abs(scaled) >= 1000 && i < units.length - 1) { scaled /= 1000; i += 1; }
    return `${short(scaled)} ${units[i]}`;
  }
  return unit ? `${short(value)} ${unit}` : short(value);
}

function ticks(low, high, count, whole) {
  const rough = (high - low) / Math.max(1, count) || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  let step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999);
  if (whole) step = Math.max(1, Math.round(step));
  const list = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i += 1) list.push(i * step);
  return list;
}

// Return a function that maps 0 to 1 to a colour of a ramp. CSS declares the ramp's stops, lowest first.
function rampOf(name) {
  const style = getComputedStyle(document.documentElement);
  const stops = style.getPropertyValue(`--ramp-${name}`).trim().split(/\s+/).map((hex) =>
    [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)));
  return (at) => {
    const place = Math.min(Math.max(at, 0), 1) * (stops.length - 1);
    const i = Math.min(Math.floor(place), stops.length - 2);
    return stops[i].map((low, channel) => Math.round(low + (stops[i + 1][channel] - low) * (place - i)));
  };
}

// Return the width inside an element, without its padding.
function inside(element) {
  const style = getComputedStyle(element);
  return element.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
}

const PAD = { left: 54, right: 14, top: 12, bottom: 34 };
const charts = [];

class Chart {
  constructor(host, spec) {
    Object.assign(this, { host, spec });
    const caption = make("figcaption", {}, host);
    make("h3", {}, caption, spec.title);
    this.where = make("span", { class: "where", "aria-live": "polite" }, caption);
    this.legend = make("ul", { class: "legend" }, host);
    this.values = spec.series.map((series) => this.#legendOf(series));
    for (const mark of spec.marks || []) if (mark.y !== undefined) this.#legendOfMark(mark);
    this.root = make("svg:svg", { role: "img", tabindex: 0, "aria-label": this.#summary() }, host);
    this.top = spec.kind === "stack" || spec.kind === "bars" ? this.#stacked() : null;
    this.root.addEventListener("pointermove", (event) => this.#point(event));
    this.root.addEventListener("pointerdown", (event) => this.#point(event));
    this.root.addEventListener("pointerleave", () => showAt(spec.group, null));
    this.root.addEventListener("blur", () => showAt(spec.group, null));
    this.root.addEventListener("keydown", (event) => this.#key(event));
    new ResizeObserver(() => this.draw()).observe(host);
    charts.push(this);
  }

  #legendOf(series) {
    const item = make("li", series.hint ? { title: series.hint } : {}, this.legend);
    const filled = this.spec.kind !== "lines" && series.style === "line";
    make("i", { class: `key ${filled ? "filled" : series.style} c${series.colour}` }, item);
    make("span", {}, item, series.name);
    return make("b", {}, item, series.total || "");
  }

  // A label in the plot would stand on the curves.
  #legendOfMark(mark) {
    const item = make("li", {}, this.legend);
    make("i", { class: "key mark" }, item);
    make("span", {}, item, mark.label);
  }

  #summary() {
    const totals = this.spec.series.filter((s) => s.total).map((s) => `${s.name} ${s.total}`);
    return [this.spec.title, ...totals].join(", ");
  }

  // Return the tops of the stacked series; a dashed series is not part of the stack.
  #stacked() {
    let below = this.spec.x.map(() => 0);
    return this.spec.series.map((series) => {
      if (series.style === "dash") return series.values;
      below = series.values.map((value, i) => below[i] + (value || 0));
      return below;
    });
  }

  // Return the range of the y axis. A few high peaks are cut off, so that they do not flatten the rest.
  #range() {
    if (this.spec.y_range) return this.spec.y_range;
    const rows = this.top || this.spec.series.map((s) => s.values);
    const all = rows.flat().filter((v) => v !== null).sort((a, b) => a - b);
    const high = all.length ? all[all.length - 1] : 1;
    const tops = (this.top ? this.top[this.spec.series.findLastIndex((s) => s.style !== "dash")].slice() : all)
      .sort((a, b) => a - b);
    const usual = 1.5 * (tops[Math.floor(0.97 * (tops.length - 1))] || 0);
    this.cut = this.spec.group === "steps" && usual > 0 && high > 1.4 * usual ? high : 0;
    return [0, (this.cut ? usual : high) * 1.06 || 1];
  }

  draw() {
    const { spec, root } = this;
    const width = inside(this.host), height = spec.height || 210;
    if (!width) return;
    root.replaceChildren();
    root.setAttribute("viewBox", `0 0 ${width} ${height}`);
    root.setAttribute("height", height);
    this.inner = { w: width - PAD.left - PAD.right, h: height - PAD.top - PAD.bottom };
    [this.low, this.high] = this.#range();
    this.#axes();
    const clip = `clip-${charts.indexOf(this)}`;
    const box = { x: PAD.left, y: PAD.top, width: this.inner.w, height: this.inner.h };
    make("svg:rect", box, make("svg:clipPath", { id: clip }, root));
    this.plot = make("svg:g", { "clip-path": `url(#${clip})` }, root);
    const order = spec.series.map((series, i) => i);
    if (this.top) order.reverse().sort((a, b) => (spec.series[a].style === "dash") - (spec.series[b].style === "dash"));
    for (const i of order) this.#drawSeries(spec.series[i], i);
    for (const mark of spec.marks || []) this.#mark(mark);
    if (this.cut) {
      const place = { class: "marked", x: width - PAD.right, y: PAD.top + 10, "text-anchor": "end" };
      make("svg:text", place, root, `peaks up to ${inUnit(this.cut, spec.unit)} cut off`);
    }
    this.cross = make("svg:line", { class: "cross", y1: PAD.top, y2: PAD.top + this.inner.h, visibility: "hidden" }, root);
  }

  px(x) { return PAD.left + (x - this.spec.x_range[0]) / (this.spec.x_range[1] - this.spec.x_range[0]) * this.inner.w; }
  py(y) { return PAD.top + (1 - (y - this.low) / (this.high - this.low)) * this.inner.h; }

  #axes() {
    const { spec, root, inner } = this, right = PAD.left + inner.w, bottom = PAD.top + inner.h;
    const scale = spec.unit === "%" ? 100 : 1;
    for (const y of ticks(this.low * scale, this.high * scale, inner.h / 42, spec.y_whole)) {
      const at = this.py(y / scale);
      make("svg:line", { class: "grid", x1: PAD.left, x2: right, y1: at, y2: at }, root);
      const label = spec.unit === "%" ? `${short(y)}%` : spec.unit === "bytes" ? inUnit(y, "bytes") : short(y);
      make("svg:text", { class: "tick", x: PAD.left - 7, y: at + 4, "text-anchor": "end" }, root, label);
    }
    for (const x of ticks(...spec.x_range, inner.w / 65, true)) {
      if (x < spec.x_range[0] || x > spec.x_range[1]) continue;
      make("svg:text", { class: "tick", x: this.px(x), y: bottom + 17, "text-anchor": "middle" }, root, short(x));
    }
    make("svg:line", { class: "axis", x1: PAD.left, x2: right, y1: bottom, y2: bottom }, root);
    make("svg:text", { class: "label", x: right, y: bottom + 31, "text-anchor": "end" }, root, spec.x_label);
    const unit = spec.unit === "%" || spec.unit === "bytes" ? "" : spec.unit;
    make("svg:text", { class: "label", x: 2, y: PAD.top - 2 }, root, unit);
  }

  // Return runs of points without a gap, as [x, y] in pixels.
  #runs(values) {
    const runs = [[]];
    values.forEach((value, i) => {
      if (value === null) runs.push([]);
      else runs[runs.length - 1].push([this.px(this.spec.x[i]), this.py(value)]);
    });
    return runs.filter((run) => run.length);
  }

  // Return the corners of a curve, which is straight between points or stepped.
  #corners(run, stepped) {
    if (!stepped || run.length < 2) return run;
    return run.flatMap(([x, y], i) => {
      const from = i ? (run[i - 1][0] + x) / 2 : x, to = i < run.length - 1 ? (x + run[i + 1][0]) / 2 : x;
      return [[from, y], [to, y]];
    });
  }

  #drawSeries(series, i) {
    if (this.spec.kind === "bars") return this.#bars(series, i);
    const stack = this.spec.kind === "stack" && series.style !== "dash";
    const values = stack ? this.top[i] : series.values;
    if (series.style === "dots") return this.#dots(series);
    for (const run of this.#runs(values)) {
      const points = this.#corners(run, series.style === "step");
      if (stack || series.style === "area" || series.style === "band") {
        const low = series.style === "band"
          ? series.low.map((y, at) => [this.px(this.spec.x[at]), this.py(y)]).reverse()
          : [[points[points.length - 1][0], this.py(0)], [points[0][0], this.py(0)]];
        const kind = stack ? "solid" : series.style;
        make("svg:polygon", { class: `${kind} c${series.colour}`, points: [...points, ...low].join(" ") }, this.plot);
      }
      if (stack || series.style === "band") continue;
      if (points.length === 1) make("svg:circle", { class: `dot c${series.colour}`, cx: points[0][0], cy: points[0][1], r: 3 }, this.plot);
      else make("svg:polyline", { class: `${series.style} c${series.colour}`, points: points.join(" ") }, this.plot);
    }
  }

  #dots(series) {
    series.values.forEach((value, i) => {
      if (value === null) return;
      const r = 3 + 5 * Math.sqrt(series.size ? series.size[i] : 0);
      make("svg:circle", { class: `dot c${series.colour}`, cx: this.px(this.spec.x[i]), cy: this.py(value), r }, this.plot);
    });
  }

  #bars(series, i) {
    const room = this.inner.w / this.spec.x.length, width = Math.max(1, Math.min(room * 0.72, 46));
    series.values.forEach((value, at) => {
      if (value === null) return;
      const top = this.py(this.top[i][at]);
      const box = { x: this.px(this.spec.x[at]) - width / 2, y: top, width, height: Math.max(0, this.py(0) - top) };
      make("svg:rect", { class: `solid c${series.colour}`, ...box }, this.plot);
    });
  }

  #mark(mark) {
    const { root, inner } = this;
    if (mark.y !== undefined) {
      const y = this.py(mark.y);
      make("svg:line", { class: "mark", x1: PAD.left, x2: PAD.left + inner.w, y1: y, y2: y }, root);
    } else {
      const x = this.px(mark.x), late = mark.x > this.spec.x_range[1] / 2;
      make("svg:line", { class: "mark", x1: x, x2: x, y1: PAD.top, y2: PAD.top + inner.h }, root);
      const anchor = { x: x + (late ? -6 : 6), y: PAD.top + 11, "text-anchor": late ? "end" : "start" };
      make("svg:text", { class: "marked", ...anchor }, root, mark.label);
    }
  }

  #point(event) {
    const box = this.root.getBoundingClientRect();
    const share = (event.clientX - box.left - PAD.left) / this.inner.w;
    if (share < 0 || share > 1) return showAt(this.spec.group, null);
    const [low, high] = this.spec.x_range;
    showAt(this.spec.group, low + share * (high - low));
  }

  #key(event) {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!move || !this.spec.x.length) return;
    event.preventDefault();
    const at = this.at === undefined || this.at === null ? (move > 0 ? -1 : this.spec.x.length) : this.at;
    const next = Math.min(Math.max(at + move, 0), this.spec.x.length - 1);
    showAt(this.spec.group, this.spec.x[next]);
  }

  show(x) {
    const { spec } = this;
    if (!this.cross) return;
    this.cross.setAttribute("visibility", x === null ? "hidden" : "visible");
    if (x === null) {
      this.at = null;
      this.where.textContent = "";
      this.values.forEach((place, i) => { if (place) place.textContent = spec.series[i].total || ""; });
      return;
    }
    if (spec.x.length) {
      let best = 0;
      spec.x.forEach((each, i) => { if (Math.abs(each - x) < Math.abs(spec.x[best] - x)) best = i; });
      this.at = best;
      this.values.forEach((place, i) => { if (place) place.textContent = inUnit(spec.series[i].values[best], spec.unit); });
      x = spec.x[best];
    }
    this.cross.setAttribute("x1", this.px(x));
    this.cross.setAttribute("x2", this.px(x));
    this.where.textContent = `${spec.x_label} ${short(Math.round(x))}`;
  }
}

// Show one place in all charts of a group; x is null if the reader points at no place.
function showAt(group, x) {
  for (const chart of charts) if (chart.spec.group === group) chart.show(x);
}
