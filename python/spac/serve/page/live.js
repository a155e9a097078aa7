// What the engine does now. The feed is watched only while somebody can see it.

import { $, make, pause, say } from "./elements.js";
import { call, eventsOf } from "./requests.js";

let watching = null;

export async function watch() {
  const wanted = !document.hidden && !$("live").hidden;
  if (wanted === Boolean(watching)) return;
  if (!wanted) { watching.abort(); watching = null; return; }
  const abort = watching = new AbortController();
  while (watching === abort) {
    try {
      const response = await call("page/events", { signal: abort.signal });
      for await (const [name, data] of eventsOf(response)) {
        if (name === "about") live.begin(JSON.parse(data)); else live.show(JSON.parse(data));
      }
    } catch { /* the server is away, or nobody watches any more */ }
    if (watching !== abort) return;
    $("phase").textContent = "Not connected.";
    await pause(2000);
  }
}

const RESIDENT = 1, USED = 2, MOVED = 4;
const PHASES = { idle: "Idle.", prompt: "Reading the prompt.", decoding: "Generating." };
const MEAN_OVER = 10; // snapshots, about two seconds
const LEAST = 1.5; // the least width of an expert in the map, in pixels; layers with many experts have several rows

class Live {
  at = null;
  flags = null;
  last = []; // the last snapshots

  constructor() {
    const map = $("map");
    map.addEventListener("pointermove", (event) => this.#point(event));
    map.addEventListener("pointerdown", (event) => this.#point(event));
    map.addEventListener("pointerleave", () => this.mark(null));
    map.addEventListener("blur", () => this.mark(null));
    map.addEventListener("keydown", (event) => this.#key(event));
    new ResizeObserver(() => this.draw()).observe($("live"));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  begin(about) {
    this.counts = about.experts;
    this.n = Math.max(0, ...about.experts);
    this.slots = about.slots;
    this.devices = about.devices;
    $("experts").hidden = !this.n;
    for (const name of ["drafted", "acceptance"]) $(name).closest("div").hidden = !about.drafts;
    $("hits").closest("div").hidden = !this.n;
    for (const name of ["running", "per-step"]) $(name).closest("div").hidden = !about.several;
  }

  show(now) {
    if (now.phase === "prompt") this.last = [];
    if (now.steps) this.last = [...this.last, now].slice(-MEAN_OVER);
    const end = now.phase === "idle" && this.last.length ? " The figures are of the last answer's end." : "";
    $("phase").textContent = PHASES[now.phase] + end;
    const sum = (name) => this.last.reduce((all, one) => all + one[name], 0);
    const share = (part, whole, text) => (sum(whole) ? text(sum(part) / sum(whole)) : "–");
    const percent = (value) => `${(100 * value).toFixed(0)}%`;
    $("speed").textContent = share("tokens", "seconds", (value) => value.toFixed(1));
    $("drafted").textContent = share("drafted", "steps", (value) => value.toFixed(1));
    $("acceptance").textContent = share("accepted", "drafted", percent);
    $("hits").textContent = share("hits", "activations", percent);
    this.several(now, share);
    if (!now.experts) return;
    this.flags = Uint8Array.from(atob(now.experts), (c) => c.charCodeAt(0));
    const all = this.counts.reduce((a, b) => a + b, 0);
    $("resident").textContent = `${this.counts.length} layers of up to ${this.n} experts; ${now.resident} of ${all} are in ${this.devices.length ? "the devices'" : "the device's"} ${this.slots} slots.`;
    this.draw();
    this.mark(this.at);
  }

  several(now, share) {
    $("sequences").hidden = !now.sequences?.length;
    if (!now.sequences) return;
    $("running").textContent = `${now.running}, ${now.waiting}`;
    $("per-step").textContent = share("tokens", "steps", (value) => value.toFixed(1));
    const body = $("sequences").tBodies[0];
    body.replaceChildren();
    for (const one of now.sequences) {
      const row = make("tr", {}, body);
      make("td", {}, row, one.pending ? `${one.prompt - one.pending}/${one.prompt}` : one.prompt);
      make("td", {}, row, one.tokens);
      make("td", {}, row, one.seconds ? (one.tokens / one.seconds).toFixed(1) : "–");
      make("td", {}, row, one.drafted ? `${(100 * one.accepted / one.drafted).toFixed(0)}%` : "–");
    }
  }

  draw() {
    const map = $("map"), width = map.clientWidth, L = this.counts?.length;
    if (!width || !this.flags) return;
    const left = 34, top = 18, rows = Math.ceil((LEAST * this.n) / (width - left)), n = Math.ceil(this.n / rows);
    const w = (width - left) / n, h = Math.min(Math.max(w, 180 / L / rows, 3), 16), tall = rows * h + (rows > 1 ? 2 : 0);
    this.box = { left, top, n, w, h, tall };
    const ratio = devicePixelRatio || 1, context = map.getContext("2d");
    map.style.height = `${top + tall * L}px`;
    map.width = Math.round(width * ratio);
    map.height = Math.round((top + tall * L) * ratio);
    context.scale(ratio, ratio);
    const style = getComputedStyle(document.documentElement), colour = (name) => style.getPropertyValue(`--${name}`);
    const [away, here, miss, hit] = ["away", "here", "miss", "hit"].map(colour);
    context.font = "11px system-ui, sans-serif";
    context.fillStyle = colour("quiet");
    context.fillText("layer", 0, 11);
    context.fillText("expert 0", left, 11);
    context.textAlign = "right";
    context.fillText(n - 1, width, 11);
    for (let layer = 0; layer < L; layer += Math.ceil(14 / tall)) context.fillText(layer, left - 6, top + layer * tall + h / 2 + 4);
    const gap = w >= 5 ? 1 : 0;
    for (let layer = 0; layer < L; layer += 1) {
      for (let expert = 0; expert < this.counts[layer]; expert += 1) {
        const flags = this.flags[layer * this.n + expert], [x, y] = this.#place(layer, expert);
        context.fillStyle = flags & USED ? (flags & RESIDENT ? hit : miss) : flags & RESIDENT ? here : away;
        context.fillRect(x, y, w - gap, h - Math.min(1, h / 4));
        if (!(flags & MOVED)) continue;
        context.strokeStyle = colour("moved");
        context.lineWidth = Math.min(2, w / 3);
        context.strokeRect(x + 0.5, y + 0.5, Math.max(1, w - gap - 1), Math.max(1, h - 2));
      }
    }
    if (!this.at) return;
    context.strokeStyle = colour("text");
    context.lineWidth = 2;
    context.strokeRect(...this.#place(this.at.layer, this.at.expert), w, h);
  }

  #place(layer, expert) {
    const { left, top, n, w, h, tall } = this.box;
    return [left + (expert % n) * w, top + layer * tall + Math.floor(expert / n) * h];
  }

  // With several devices, each layer's experts have slots on one of them.
  where(layer) {
    return `on ${this.devices.length ? this.devices[layer] : "the device"}`;
  }

  mark(at) {
    const moved = at?.layer !== this.at?.layer || at?.expert !== this.at?.expert;
    this.at = at;
    if (moved) this.draw();
    const flags = at && this.flags[at.layer * this.n + at.expert];
    const text = !at ? "Point at an expert, or use the arrow keys."
      : `Layer ${at.layer}, expert ${at.expert}: ${flags & RESIDENT ? this.where(at.layer) : "in host memory"}` +
        `${flags & USED ? ", used in the last step" : ""}${flags & MOVED ? ", just moved" : ""}.`;
    if ($("expert").textContent !== text) $("expert").textContent = text;
  }

  #point(event) {
    const place = $("map").getBoundingClientRect(), { left, top, n, w, h, tall } = this.box;
    const column = Math.floor((event.clientX - place.left - left) / w), down = event.clientY - place.top - top;
    const layer = Math.floor(down / tall), expert = Math.floor((down - layer * tall) / h) * n + column;
    this.mark(column >= 0 && column < n && expert < this.counts[layer] ? { layer, expert } : null);
  }

  #key(event) {
    const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!move || !this.flags) return;
    event.preventDefault();
    const from = this.at || { layer: -move[0], expert: -move[1] };
    const layer = Math.min(Math.max(from.layer + move[0], 0), this.counts.length - 1);
    this.mark({ layer, expert: Math.min(Math.max(from.expert + move[1], 0), this.counts[layer] - 1) });
    say($("expert").textContent);
  }
}

const live = new Live();
export const redraw = () => live.draw();
document.addEventListener("visibilitychange", watch);
