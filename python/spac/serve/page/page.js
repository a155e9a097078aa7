// The server's page: a chat over the server's own interface, and what its engine does now.

import { $, button, make, pause, say } from "./elements.js";
import { Attachments, partsOf, thumbnails } from "./images.js";

// Requests

const KEY = "spac.key";
let asking = null;

function askKey() {
  asking ??= new Promise((done) => {
    const dialog = $("ask");
    dialog.showModal();
    dialog.addEventListener("close", () => {
      if ($("key").value) sessionStorage.setItem(KEY, $("key").value);
      $("key").value = "";
      asking = null;
      done();
    }, { once: true });
  });
  return asking;
}

// Send a request with the key, and ask for a key as long as the server wants another one.
async function call(path, options = {}) {
  for (;;) {
    const key = sessionStorage.getItem(KEY);
    const headers = key ? { ...options.headers, authorization: `Bearer ${key}` } : options.headers;
    const response = await fetch(path, { ...options, headers });
    if (response.ok) return response;
    if (response.status === 401) {
      if (sessionStorage.getItem(KEY) === key) await askKey();
      if (sessionStorage.getItem(KEY) !== key) continue;
    }
    const told = await response.json().catch(() => ({}));
    const message = told.error?.message || `the server answers ${response.status}`;
    throw Object.assign(new Error(message), { kind: told.error?.type });
  }
}

// Yield the events of a response as [name, data].
async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split(/\r?\n\r?\n/);
    rest = blocks.pop();
    for (const block of blocks) {
      const field = (name) => block.match(new RegExp(`^${name}: ?(.*)$`, "m"))?.[1];
      if (field("data") !== undefined) yield [field("event"), field("data")];
    }
  }
}

// Conversations, each in its own entry of the browser's storage, so that two tabs do not overwrite each other

const CHAT = "spac.chat.", SETTINGS = "spac.settings";

function stored(name) {
  try { return JSON.parse(localStorage.getItem(name)); } catch { return null; }
}

function store(name, value) {
  try { localStorage.setItem(name, JSON.stringify(value)); } catch { fault("The browser's storage is full: delete conversations."); }
}

function chats() {
  const names = Object.keys(localStorage).filter((name) => name.startsWith(CHAT));
  return names.map(stored).filter(Boolean).sort((a, b) => b.changed - a.changed);
}

let chat, context = 0;
const answers = new Map(); // by conversation, those that come now: { chat, abort, shown }

function fresh() { return { id: crypto.getRandomValues(new Uint32Array(2)).join("-"), changed: 0, messages: [] }; }

function keep(one) {
  one.changed = Date.now();
  store(CHAT + one.id, one);
  list();
}

function titleOf(one) { return one.messages[0]?.content.slice(0, 80) || (one.messages.length ? "Image" : "Empty"); }

function list() {
  $("list").replaceChildren();
  for (const one of chats()) {
    const item = make("li", {}, $("list"));
    const open = button(titleOf(one), item, "", () => { show(one); if (innerWidth < 700) panel("chats", false); });
    open.className = "open";
    open.setAttribute("aria-current", one.id === chat.id);
    button("×", item, `Delete ${titleOf(one)}`, () => {
      answers.get(one.id)?.abort.abort();
      localStorage.removeItem(CHAT + one.id);
      if (one.id === chat.id) show(fresh()); else list();
      say("Deleted.");
      $("new").focus();
    });
  }
}

// Show a conversation. The answer of another one goes on.
function show(one) {
  const coming = answers.get(one.id);
  chat = coming?.chat || one;
  $("messages").replaceChildren();
  let last;
  for (const message of chat.messages) last = new Message(message);
  if (coming) coming.shown = last;
  if (coming && !last.message.content && !last.message.reasoning) last.tail.classList.add("waiting");
  if (!chat.messages.length) make("p", { class: "hello" }, $("messages"), "Ask something.");
  offer();
  list();
}

function exportAll() {
  const data = new Blob([JSON.stringify(chats(), null, 2)], { type: "application/json" });
  const link = make("a", { href: URL.createObjectURL(data), download: "spac-conversations.json" }, document.body);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// Messages

const atEnd = () => $("messages").scrollHeight - $("messages").scrollTop - $("messages").clientHeight < 60;

// Do something that lengthens the messages, and stay at their end.
function following(act) {
  const follows = atEnd();
  act();
  if (follows) $("messages").scrollTop = $("messages").scrollHeight;
}

function fault(text) {
  following(() => make("p", { class: "fault", role: "alert" }, $("messages"), text));
}

class Message {
  constructor(message) {
    this.message = message;
    const isUser = message.role === "user", name = isUser ? "You" : "Answer";
    $("messages").querySelector(".hello")?.remove();
    this.root = make("article", { class: message.role, "aria-label": name }, $("messages"));
    make("h2", {}, this.root, name);
    if (isUser) {
      thumbnails(message, this.root);
      make("div", {}, this.root, message.content);
      return;
    }
    this.reasoning = make("details", { class: "reasoning", hidden: "" }, this.root);
    make("summary", {}, this.reasoning, "Reasoning");
    this.thought = make("p", {}, this.reasoning);
    this.text = make("div", { class: "text" }, this.root);
    this.tail = make("span", { class: "tail" }, this.text);
    this.below = make("div", { class: "below" }, this.root);
    this.done = 0;
    this.update();
  }

  // Show the message as it is now: its Markdown as far as the server has rendered it, and the rest as it is.
  update() {
    const { message } = this;
    if (!this.root.isConnected) return; // another conversation is shown
    following(() => {
      this.reasoning.hidden = !message.reasoning;
      this.thought.textContent = message.reasoning || "";
      this.tail.textContent = message.content.slice(this.done);
    });
    if (!this.busy) this.#render();
  }

  async #render() {
    this.busy = true;
    while (this.done < this.message.content.length) {
      const text = this.message.content, began = performance.now();
      try {
        const { html } = await (await call("page/markdown", { method: "POST", body: text })).json();
        following(() => {
          this.text.innerHTML = html;
          const last = this.text.lastElementChild;
          (last?.tagName === "P" ? last : this.text).append(this.tail);
          this.done = text.length;
          this.tail.textContent = this.message.content.slice(this.done);
        });
      } catch { break; } // the text stays plain
      await pause(Math.max(300, 20 * (performance.now() - began))); // rendering takes 5 % of the time at most
    }
    this.busy = false;
  }
}

// Offer to ask again for the last answer, or to answer the last question.
function offer() {
  for (const old of document.querySelectorAll(".again")) old.remove();
  const last = $("messages").querySelector("article:last-of-type"), role = chat.messages.at(-1)?.role;
  const comes = answers.has(chat.id);
  $("send").hidden = comes;
  $("stop").hidden = !comes;
  if (comes || !last) return;
  const host = role === "user" ? make("div", { class: "below again" }, last) : last.querySelector(".below");
  button(role === "user" ? "Answer" : "Regenerate", host, "", regenerate).classList.add("again");
}

function regenerate() {
  if (chat.messages.at(-1)?.role === "assistant") chat.messages.pop();
  show(chat);
  answer();
}

// Return the request for an answer to messages.
function request(asked) {
  const { system, ...sampling } = settings();
  const first = system ? [{ role: "system", content: system }] : [];
  const messages = [...first, ...asked.map((message) => ({ role: message.role, content: partsOf(message) }))];
  return JSON.stringify({ ...sampling, messages, stream: true, stream_options: { include_usage: true } });
}

// Ask for an answer to the messages of a conversation, without the oldest ones if the context does not hold all.
async function ask(one, asked, signal) {
  const headers = { "content-type": "application/json" };
  for (;;) {
    const seen = asked.slice(one.forgotten || 0);
    try {
      return await call("v1/chat/completions", { method: "POST", headers, body: request(seen), signal });
    } catch (error) {
      if (error.kind !== "exceed_context_size_error" || seen.length < 3) throw error;
      one.forgotten = (one.forgotten || 0) + 2 * Math.ceil((seen.length - 1) / 4); // half of the exchanges
    }
  }
}

async function answer() {
  const mine = chat, abort = new AbortController(), message = { role: "assistant", content: "", reasoning: "" };
  const asked = [...mine.messages], forgotten = mine.forgotten || 0;
  mine.messages.push(message);
  const coming = { chat: mine, abort, shown: new Message(message) };
  answers.set(mine.id, coming);
  coming.shown.tail.classList.add("waiting");
  offer();
  $("messages").scrollTop = $("messages").scrollHeight;
  say("The answer is being generated.");
  let usage = null, reason = "", began = 0;
  try {
    const response = await ask(mine, asked, abort.signal);
    for await (const [, data] of eventsOf(response)) {
      if (data === "[DONE]") break;
      const part = JSON.parse(data);
      if (part.error) throw new Error(part.error.message);
      usage = part.usage || usage;
      const choice = part.choices[0], delta = choice?.delta || {};
      reason = choice?.finish_reason || reason;
      if (delta.reasoning_content) {
        if (!message.reasoning) coming.shown.reasoning.open = true;
        message.reasoning += delta.reasoning_content;
      }
      if (delta.content) {
        if (!message.content) coming.shown.reasoning.open = false;
        message.content += delta.content;
      }
      if (!delta.content && !delta.reasoning_content) continue;
      began ||= performance.now();
      coming.shown.tail.classList.remove("waiting");
      coming.shown.update();
    }
    say(`The answer is complete. ${message.content.slice(0, 2000)}`);
  } catch (error) {
    if (abort.signal.aborted) { reason = "stopped"; say("Stopped."); }
    else if (mine === chat) fault(`No answer: ${error.message}`);
    else say(`No answer in "${titleOf(mine)}": ${error.message}`);
  }
  const { shown } = coming;
  answers.delete(mine.id);
  shown.tail.classList.remove("waiting");
  shown.reasoning.open = false;
  if (!message.content && !message.reasoning) {
    mine.messages.splice(mine.messages.indexOf(message), 1);
    shown.root.remove();
  }
  const took = (performance.now() - began) / 1000, n = usage?.completion_tokens;
  const notes = [
    n ? `${n} tokens, ${(n / took).toFixed(1)} tokens/s` : "", reason === "stopped" ? "stopped" : "",
    reason === "length" ? "ended at its greatest length" : "",
    usage && context ? `${usage.total_tokens} of ${context} tokens of the context` : "",
    (mine.forgotten || 0) > forgotten ? `the model no longer sees the first ${mine.forgotten} messages` : "",
  ];
  make("span", {}, shown.below, notes.filter(Boolean).join(" · "));
  if (stored(CHAT + mine.id)) keep(mine);
  if (mine === chat) offer();
}

async function send() {
  await attachments.reading;
  const text = $("prompt").value.trim();
  if (!(text || attachments.any) || answers.has(chat.id)) return;
  $("prompt").value = "";
  const images = attachments.take();
  const message = { role: "user", content: text, ...(images.length ? { images } : {}) };
  chat.messages.push(message);
  new Message(message);
  keep(chat);
  answer();
}

// Settings

function settings() {
  const given = {};
  for (const field of $("settings").elements) {
    const value = field.value.trim();
    if (value && field.validity.valid) given[field.name] = field.type === "number" ? Number(value) : value;
  }
  return given;
}

// Panels: all at 1100 pixels and more, one beside the chat at 700, below that one in place of the chat

function panel(name, shown) {
  const other = name === "live" ? "chats" : "live";
  if (shown && innerWidth < 1100 && !$(other).hidden) panel(other, false);
  $(name).hidden = !shown;
  $(`show-${name}`).setAttribute("aria-expanded", shown);
  watch();
}

function arrange() {
  panel("live", innerWidth >= 700);
  panel("chats", innerWidth >= 1100);
}

// The live feed is watched only while somebody can see it.

let watching = null;

async function watch() {
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
    const left = 34, top = 18, w = (width - left) / this.n, h = Math.min(Math.max(w, 180 / L, 3), 16);
    this.box = { left, top, w, h };
    const ratio = devicePixelRatio || 1, context = map.getContext("2d");
    map.style.height = `${top + h * L}px`;
    map.width = Math.round(width * ratio);
    map.height = Math.round((top + h * L) * ratio);
    context.scale(ratio, ratio);
    const style = getComputedStyle(document.documentElement), colour = (name) => style.getPropertyValue(`--${name}`);
    context.font = "11px system-ui, sans-serif";
    context.fillStyle = colour("quiet");
    context.fillText("layer", 0, 11);
    context.fillText("expert 0", left, 11);
    context.textAlign = "right";
    context.fillText(this.n - 1, width, 11);
    for (let layer = 0; layer < L; layer += Math.ceil(14 / h)) context.fillText(layer, left - 6, top + layer * h + h / 2 + 4);
    const gap = w >= 5 ? 1 : 0;
    for (let layer = 0; layer < L; layer += 1) {
      for (let expert = 0; expert < this.counts[layer]; expert += 1) {
        const flags = this.flags[layer * this.n + expert], x = left + expert * w, y = top + layer * h;
        const name = flags & USED ? (flags & RESIDENT ? "hit" : "miss") : flags & RESIDENT ? "here" : "away";
        context.fillStyle = colour(name);
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
    context.strokeRect(left + this.at.expert * w, top + this.at.layer * h, w, h);
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
    const place = $("map").getBoundingClientRect(), { left, top, w, h } = this.box;
    const expert = Math.floor((event.clientX - place.left - left) / w), layer = Math.floor((event.clientY - place.top - top) / h);
    this.mark(expert >= 0 && expert < this.counts[layer] ? { layer, expert } : null);
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

// The beginning

const live = new Live(), attachments = new Attachments(fault);
for (const [name, value] of Object.entries(stored(SETTINGS) || {})) {
  const field = $("settings").elements.namedItem(name);
  if (field) field.value = value;
}
$("settings").addEventListener("input", () => store(SETTINGS, settings()));
$("settings").addEventListener("change", (event) => event.target.reportValidity()); // what is not valid is not sent
$("settings").addEventListener("submit", (event) => event.preventDefault());
$("composer").addEventListener("submit", (event) => { event.preventDefault(); send(); });
$("prompt").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
});
const stop = () => answers.get(chat.id)?.abort.abort();
$("stop").addEventListener("click", () => { stop(); $("prompt").focus(); });
document.addEventListener("keydown", (event) => { if (event.key === "Escape" && !$("ask").open) stop(); });
$("new").addEventListener("click", () => { show(fresh()); if (innerWidth < 700) panel("chats", false); $("prompt").focus(); });
$("export").addEventListener("click", exportAll);
for (const name of ["chats", "live"]) $(`show-${name}`).addEventListener("click", () => panel(name, $(name).hidden));
document.addEventListener("visibilitychange", watch);
addEventListener("storage", list);
for (const width of [700, 1100]) matchMedia(`(min-width: ${width}px)`).addEventListener("change", arrange);

show(chats()[0] || fresh());
arrange();
if (innerWidth >= 700) $("prompt").focus(); // on a phone, the keyboard would cover the page
call("v1/models").then((response) => response.json()).then(({ data }) => { $("model").textContent = data[0].id; }, (error) => fault(error.message));
call("props").then((response) => response.json()).then((props) => {
  attachments.allow(props.modalities.vision);
  context = props.default_generation_settings.n_ctx;
}, () => {});
document.documentElement.dataset.ready = "yes";
