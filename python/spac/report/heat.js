"use strict";
// The two maps of all experts, with a cell for every (layer, expert). They mark the same cell together.

class Experts {
  constructor(data) {
    Object.assign(this, data);
    for (const name of ["demand", "resident", "arrivals"]) this[name] = Experts.#decoded(data[name]);
    this.order = null;
    this.maps = [];
    this.at = null;
    this.ranks = this.#ranked();
  }

  static #decoded(text) {
    const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    return new Int32Array(bytes.buffer);
  }

  // Return each layer's experts, the most activated first.
  #ranked() {
    return this.counts.map((count, layer) => {
      const experts = Array.from({ length: count }, (_, i) => i), first = layer * this.n_expert;
      return experts.sort((a, b) => this.demand[first + b] - this.demand[first + a] || a - b);
    });
  }

  sortBy(order) {
    this.order = order === "demand" ? this.ranks : null;
    this.point(null);
    for (const map of this.maps) map.draw();
  }

  // Return the expert that is shown in a column, or -1.
  expertAt(layer, column) {
    if (column >= this.counts[layer]) return -1;
    return this.order ? this.order[layer][column] : column;
  }

  point(at) {
    this.at = at;
    for (const map of this.maps) map.mark(at);
    this.readout.textContent = at ? this.described(at.layer, this.expertAt(at.layer, at.column)) : this.hint;
  }

  described(layer, expert) {
    const i = layer * this.n_expert + expert, wanted = this.demand[i];
    const rank = this.ranks[layer].indexOf(expert) + 1;
    const share = this.looks ? this.resident[i] / this.looks : 0;
    const times = (n, thing) => `${n.toLocaleString("en")} ${thing}${n === 1 ? "" : "s"}`;
    const on = this.devices.length ? ` on ${this.devices[layer]}` : "";
    return `Layer ${layer}${on}, expert ${expert}: in a slot in ${inUnit(share, "%")} of the steps, wanted ` +
      `${times(wanted, "time")} (rank ${rank} of ${this.counts[layer]}), came ${times(this.arrivals[i], "time")}`;
  }
}

class HeatMap {
  // value: a function that maps an expert's index to 0 to 1.
  constructor(host, experts, title, ramp, value, ends) {
    Object.assign(this, { host, experts, ramp, value });
    const caption = make("figcaption", {}, host);
    make("h3", {}, caption, title);
    const scale = make("span", { class: "scale" }, caption);
    make("span", {}, scale, ends[0]);
    make("i", { class: `gradient ${ramp}` }, scale);
    make("span", {}, scale, ends[1]);
    this.frame = make("div", { class: "frame" }, host);
    this.canvas = make("canvas", { role: "img", tabindex: 0, "aria-label": `${title}: ${experts.summary}` }, this.frame);
    this.cursor = make("div", { class: "cursor", hidden: "" }, this.frame);
    this.canvas.addEventListener("pointermove", (event) => this.#point(event));
    this.canvas.addEventListener("pointerdown", (event) => this.#point(event));
    this.canvas.addEventListener("pointerleave", () => experts.point(null));
    this.canvas.addEventListener("keydown", (event) => this.#key(event));
    new ResizeObserver(() => this.draw()).observe(host);
    experts.maps.push(this);
  }

  draw() {
    const { experts, canvas } = this, L = experts.n_layer, N = experts.n_expert;
    const width = inside(this.host);
    if (width <= 0) return;
    const left = L > 10 ? 24 : 16, above = 20, below = 34;
    const w = Math.min((width - left) / N, 26), h = Math.min(Math.max(w, 250 / L), 30);
    this.box = { left, above, w, h };
    const dpr = window.devicePixelRatio || 1;
    canvas.style.width = `${left + w * N}px`;
    canvas.style.height = `${above + h * L + below}px`;
    canvas.width = Math.round((left + w * N) * dpr);
    canvas.height = Math.round((above + h * L + below) * dpr);
    const context = canvas.getContext("2d");
    this.#labels(context, dpr);
    this.#names(context, dpr);
    this.#borders(context, dpr);
    const ramp = rampOf(this.ramp), gap = w >= 6 ? Math.max(1, Math.round(dpr)) : 0;
    const edge = (i, size, start) => Math.round((start + i * size) * dpr);
    for (let layer = 0; layer < L; layer += 1) {
      const y = edge(layer, h, above), tall = edge(layer + 1, h, above) - y - gap;
      for (let column = 0; column < N; column += 1) {
        const expert = experts.expertAt(layer, column);
        if (expert < 0) continue;
        const x = edge(column, w, left);
        context.fillStyle = `rgb(${ramp(this.value(layer * N + expert)).join(",")})`;
        context.fillRect(x, y, edge(column + 1, w, left) - x - gap, tall);
      }
    }
  }

  // A short line beside the layers' numbers stands where the next device begins.
  #borders(context, dpr) {
    const { experts } = this, { left, above, h } = this.box;
    for (let layer = 1; layer < experts.devices.length; layer += 1) {
      if (experts.devices[layer] === experts.devices[layer - 1]) continue;
      context.fillRect(0, Math.round((above + layer * h) * dpr) - dpr, (left - 2) * dpr, dpr);
    }
  }

  // The axes have their names at the top left and at the bottom right.
  #names(context, dpr) {
    const { experts } = this, { left, above, w, h } = this.box;
    context.textAlign = "left";
    context.fillText("MoE layer", 0, 8 * dpr);
    context.textAlign = "right";
    const name = experts.order ? "rank in the layer, by demand" : "expert";
    context.fillText(name, (left + w * experts.n_expert) * dpr, (above + h * experts.n_layer + 26) * dpr);
  }

  #labels(context, dpr) {
    const { experts } = this, { left, above, w, h } = this.box, L = experts.n_layer, N = experts.n_expert;
    context.font = `${11 * dpr}px system-ui, sans-serif`;
    context.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--quiet");
    context.textBaseline = "middle";
    context.textAlign = "right";
    for (const layer of ticks(0, L - 1, (h * L) / 34, true)) {
      context.fillText(layer, (left - 5) * dpr, (above + (layer + 0.5) * h) * dpr);
    }
    context.textAlign = "center";
    for (const column of ticks(0, N - 1, (w * N) / 60, true)) {
      const text = experts.order ? `${column + 1}.` : column;
      context.fillText(text, Math.max(left + (column + 0.5) * w, left + 4) * dpr, (above + h * L + 10) * dpr);
    }
  }

  mark(at) {
    this.cursor.hidden = !at;
    if (!at || !this.box) return;
    const { left, above, w, h } = this.box, style = this.cursor.style;
    style.left = `${left + at.column * w}px`;
    style.top = `${above + at.layer * h}px`;
    style.width = `${w}px`;
    style.height = `${h}px`;
  }

  #point(event) {
    const box = this.canvas.getBoundingClientRect(), { left, above, w, h } = this.box;
    const column = Math.floor((event.clientX - box.left - left) / w);
    const layer = Math.floor((event.clientY - box.top - above) / h);
    const inside = layer >= 0 && layer < this.experts.n_layer && column >= 0 && this.experts.expertAt(layer, column) >= 0;
    this.experts.point(inside ? { layer, column } : null);
  }

  #key(event) {
    const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!move) return;
    event.preventDefault();
    const { experts } = this, at = experts.at || { layer: 0, column: 0 };
    const layer = Math.min(Math.max(at.layer + (experts.at ? move[0] : 0), 0), experts.n_layer - 1);
    const column = Math.min(Math.max(at.column + (experts.at ? move[1] : 0), 0), experts.counts[layer] - 1);
    experts.point({ layer, column });
  }
}

// Draw the page's data into its places.

const data = JSON.parse(document.getElementById("data").textContent);

for (const [name, spec] of Object.entries(data.charts)) {
  const host = document.getElementById(`chart-${name}`);
  if (host) new Chart(host, spec);
}

if (data.experts) {
  const experts = new Experts(data.experts);
  experts.readout = document.getElementById("expert");
  experts.hint = experts.readout.textContent;
  let most = 1;
  for (const count of experts.demand) most = Math.max(most, count);
  const looks = Math.max(1, experts.looks);
  // Demand is skewed. Its square root keeps rare demand distinguishable from none.
  new HeatMap(document.getElementById("heat-resident"), experts, "In slots", "resident",
    (i) => experts.resident[i] / looks, ["never", "in every step"]);
  new HeatMap(document.getElementById("heat-demand"), experts, "Demand", "demand",
    (i) => Math.sqrt(experts.demand[i] / most), ["none", `${most.toLocaleString("en")} activations`]);
  for (const input of document.querySelectorAll("input[name=order]")) {
    input.addEventListener("change", () => experts.sortBy(input.value));
  }
  data.experts.view = experts;
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const chart of charts) chart.draw();
  for (const map of data.experts ? data.experts.view.maps : []) map.draw();
});
document.documentElement.dataset.ready = "yes";
