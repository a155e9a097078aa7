// The server's page: a chat over the server's own interface, and what its engine does now.

import { ask } from "./ask.js";
import { Attachments, showAttached } from "./attachments.js";
import {
  branch, chats, exportAll, find, forget, fresh, has, importFrom, keep, remove, removed, showVersion, titleOf,
} from "./conversations.js";
import { $, button, copy, fault, following, make, onEscape, pause, say, sendOnEnter } from "./elements.js";
import { watch } from "./live.js";
import { call, eventsOf } from "./requests.js";
import { lastSettings, offerDefaults, readSettings, showSettings } from "./settings.js";

let chat, context = 0;
const answers = new Map(); // by conversation, those that come now: { chat, abort, shown }

// Keep a conversation as one that has just changed.
function touch(one) {
  one.changed = Date.now();
  keep(one);
  list();
}

// List the conversations that have the words of the search.
function list() {
  document.title = chat.messages.length ? `${titleOf(chat)} – spac` : "spac";
  if ($("list").querySelector("input")) return; // one is being renamed
  $("list").replaceChildren();
  const all = chats(), found = all.filter((one) => has(one, $("search").value.trim()));
  for (const one of found) {
    const item = make("li", {}, $("list")), title = titleOf(one);
    const open = button(title, item, "", () => { show(one); if (innerWidth < 700) panel("chats", false); });
    open.className = "open";
    open.title = title;
    open.setAttribute("aria-current", one.id === chat.id);
    button("✎", item, `Rename ${title}`, () => rename(one, item));
    button("×", item, `Delete ${title}`, () => discard(one));
  }
  if (all.length && !found.length) make("li", { class: "quiet" }, $("list"), "No conversation has these words.");
}

function rename(one, item) {
  const field = make("input", { "aria-label": "Title", value: titleOf(one), maxlength: 200 }, item);
  const close = (isKept) => {
    if (!field.isConnected) return;
    const mine = answers.get(one.id)?.chat || (one.id === chat.id ? chat : one);
    const text = field.value.trim();
    field.remove(); // its blur closes once more
    if (isKept && text && text !== titleOf(mine)) {
      mine.title = text;
      keep(mine);
    }
    list();
    $("list").querySelector("[aria-current=true]")?.focus();
  };
  item.replaceChildren(field);
  field.select();
  field.addEventListener("blur", () => close(true));
  sendOnEnter(field, () => close(true));
  onEscape(field, () => close(false));
}

function discard(one) {
  answers.get(one.id)?.abort.abort();
  forget(one);
  if (one.id === chat.id) show(fresh()); else list();
  offerUndo("The conversation is deleted.", one);
}

// Say what is deleted, and offer the conversation as it was before.
function offerUndo(text, before) {
  say(text);
  $("undo").hidden = false;
  $("undo").textContent = `${text} `;
  button("Undo", $("undo"), "", () => {
    $("undo").hidden = true;
    keep(before);
    show(before);
    say("It is back.");
    $("prompt").focus();
  }).focus();
}

// Show a conversation. The answer of another one goes on.
function show(one) {
  const coming = answers.get(one.id);
  chat = coming?.chat || one;
  showSettings(chat.settings ??= lastSettings());
  $("messages").replaceChildren();
  let last;
  for (const message of chat.messages) last = new Message(message);
  if (coming) coming.shown = last;
  if (coming && !last.message.content && !last.message.reasoning) last.tail.classList.add("waiting");
  if (!chat.messages.length) make("p", { class: "hello" }, $("messages"), "Ask something.");
  offer();
  list();
}

async function importFile() {
  const [file] = $("import-file").files;
  const n = await importFrom(file);
  $("import-file").value = "";
  if (!n) return;
  show(find(chat.id) || chat);
  say(n === 1 ? "1 conversation is imported." : `${n} conversations are imported.`);
}

// Messages

const rendered = new Map(); // HTML by Markdown, of whole answers

class Message {
  constructor(message) {
    this.message = message;
    const isUser = message.role === "user", name = isUser ? "You" : "Answer";
    $("messages").querySelector(".hello")?.remove();
    this.root = make("article", { class: message.role, "aria-label": name }, $("messages"));
    make("h2", {}, this.root, name);
    if (isUser) {
      showAttached(message, this.root);
      this.said = make("div", { class: "said" }, this.root, message.content);
    } else {
      this.reasoning = make("details", { class: "reasoning", hidden: "" }, this.root);
      make("summary", {}, this.reasoning, "Reasoning");
      this.thought = make("p", {}, this.reasoning);
      this.text = make("div", { class: "text" }, this.root);
      this.tail = make("span", { class: "tail" }, this.text);
    }
    this.below = make("div", { class: "below" }, this.root);
    this.#offer(isUser);
    if (!isUser) this.update();
  }

  get place() { return chat.messages.indexOf(this.message); }

  // Offer what can be done with the message. None of it is shown while an answer comes.
  #offer(isUser) {
    const { message, below } = this, { at, others } = message.versions || {};
    if (others) {
      const group = make("div", { class: "versions", role: "group", "aria-label": "Versions" }, below);
      button("‹", group, "Version before", () => this.#switch(at - 1, 0)).disabled = at === 0;
      group.append(` ${at + 1}/${others.length + 1} `);
      button("›", group, "Version after", () => this.#switch(at + 1, 1)).disabled = at === others.length;
    }
    button("Copy", below, "Copy this message", () => copy(message.content));
    if (isUser) button("Edit", below, "Edit this message and send it again", () => this.edit()).classList.add("change", "edit");
    button("Delete", below, "", () => this.#delete()).classList.add("change");
    const again = isUser ? "Answer" : "Regenerate"; // a question's is shown if no answer follows
    button(again, below, "", () => answer(this.place + Number(isUser))).classList.add("change", "again");
  }

  #switch(to, side) {
    const { place } = this, { scrollTop } = $("messages");
    showVersion(chat, place, to);
    touch(chat);
    show(chat);
    $("messages").scrollTop = scrollTop;
    const steps = [...$("messages").querySelectorAll("article")[place].querySelectorAll(".versions button")];
    (steps[side].disabled ? steps[1 - side] : steps[side]).focus();
    say(`Version ${to + 1}.`);
  }

  #delete() {
    const before = structuredClone(chat), what = removed(chat, this.place);
    remove(chat, this.place);
    touch(chat);
    show(chat);
    offerUndo(`The ${what} is deleted.`, before);
  }

  edit() {
    const { content, versions, ...rest } = this.message;
    const form = make("form", {}, this.root), field = make("textarea", { "aria-label": "Edited message" }, form);
    const close = () => { form.remove(); this.said.hidden = this.below.hidden = false; };
    const send = () => {
      const text = field.value.trim();
      if (!(text || rest.images || rest.files) || answers.has(chat.id)) return;
      branch(chat, this.place, { ...rest, content: text });
      touch(chat);
      show(chat);
      answer();
    };
    this.said.hidden = this.below.hidden = true;
    field.value = content;
    make("button", { class: "main" }, form, "Send");
    button("Cancel", form, "Cancel (Escape)", close);
    form.addEventListener("submit", (event) => { event.preventDefault(); send(); });
    sendOnEnter(field, send);
    onEscape(field, () => { close(); $("prompt").focus(); });
    field.focus();
  }

  // Show the message as it is now: its Markdown as far as the server has rendered it, and the rest as it is.
  update() {
    const { message } = this;
    if (!this.root.isConnected) return; // another conversation is shown
    following(() => {
      this.reasoning.hidden = !message.reasoning;
      this.thought.textContent = message.reasoning || "";
      if (!this.done && rendered.has(message.content)) this.#show(rendered.get(message.content), message.content.length);
      this.tail.textContent = message.content.slice(this.done);
    });
    if (!this.busy) this.#render();
  }

  done = 0; // the length of the text that is shown as HTML

  #show(html, length) {
    this.text.innerHTML = html;
    for (const part of this.text.querySelectorAll("[data-style]")) part.style.cssText = part.dataset.style; // of formulas
    const last = this.text.lastElementChild;
    (last?.tagName === "P" ? last : this.text).append(this.tail);
    this.done = length;
  }

  async #render() {
    this.busy = true;
    while (this.done < this.message.content.length) {
      const text = this.message.content, began = performance.now();
      try {
        const { html } = await (await call("page/markdown", { method: "POST", body: text })).json();
        following(() => {
          this.#show(html, text.length);
          this.tail.textContent = this.message.content.slice(this.done);
        });
        if (!answers.has(chat.id)) rendered.set(text, html);
      } catch { break; } // the text stays plain
      await pause(Math.max(300, 20 * (performance.now() - began))); // rendering takes 5 % of the time at most
    }
    this.busy = false;
  }
}

function offer() {
  const comes = answers.has(chat.id);
  $("send").hidden = comes;
  $("stop").hidden = !comes;
  $("messages").classList.toggle("coming", comes);
}

// Get an answer as the message at a place. An answer that is there already stays as another version.
async function answer(place = chat.messages.length) {
  if (answers.has(chat.id)) return;
  const mine = chat, abort = new AbortController(), message = { role: "assistant", content: "", reasoning: "" };
  const asked = mine.messages.slice(0, place), coming = { chat: mine, abort };
  answers.set(mine.id, coming);
  $("undo").hidden = true;
  if (place < mine.messages.length) {
    branch(mine, place, message);
    show(mine);
  } else {
    mine.messages.push(message);
    coming.shown = new Message(message);
    coming.shown.tail.classList.add("waiting");
    offer();
  }
  const forgotten = mine.forgotten || 0;
  $("messages").scrollTop = $("messages").scrollHeight;
  say("The answer is being generated.");
  let usage = null, reason = "", began = 0, failed = "";
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
    else failed = error.message;
  }
  const { shown } = coming;
  answers.delete(mine.id);
  shown.tail.classList.remove("waiting");
  shown.reasoning.open = false;
  if (!message.content && !message.reasoning) {
    remove(mine, mine.messages.length - 1);
    shown.root.remove();
    if (mine === chat && message.versions) show(mine);
  }
  if (failed && mine === chat) fault(`No answer: ${failed}`);
  else if (failed) say(`No answer in "${titleOf(mine)}": ${failed}`);
  const took = (performance.now() - began) / 1000, n = usage?.completion_tokens;
  const notes = [
    n ? `${n} tokens, ${(n / took).toFixed(1)} tokens/s` : "", reason === "stopped" ? "stopped" : "",
    reason === "length" ? "ended at its greatest length" : "",
    usage && context ? `${usage.total_tokens} of ${context} tokens of the context` : "",
    (mine.forgotten || 0) > forgotten ? `the model no longer sees the first ${mine.forgotten} messages` : "",
  ];
  make("span", {}, shown.below, notes.filter(Boolean).join(" · "));
  if (find(mine.id)) touch(mine);
  if (mine === chat) offer();
}

async function send() {
  await attachments.reading;
  const text = $("prompt").value.trim();
  if (!(text || attachments.any) || answers.has(chat.id)) return;
  $("prompt").value = "";
  const message = { role: "user", content: text, ...attachments.take() };
  const last = chat.messages.length - 1;
  if (chat.messages[last]?.role === "user") { // it got no answer, and many templates want turns
    branch(chat, last, message);
    show(chat);
  } else {
    chat.messages.push(message);
    new Message(message);
  }
  touch(chat);
  answer();
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

// The beginning

const attachments = new Attachments();
$("settings").addEventListener("input", () => {
  chat.settings = readSettings();
  if (find(chat.id)) keep(chat);
});
$("settings").addEventListener("change", (event) => event.target.reportValidity()); // what is not valid is not sent
$("settings").addEventListener("submit", (event) => event.preventDefault());
$("composer").addEventListener("submit", (event) => { event.preventDefault(); send(); });
sendOnEnter($("prompt"), send);
$("messages").addEventListener("click", ({ target }) => {
  if (target.matches(".copy")) copy(target.nextElementSibling.querySelector("pre").textContent);
});
const stop = () => answers.get(chat.id)?.abort.abort();
$("stop").addEventListener("click", () => { stop(); $("prompt").focus(); });
const begin = () => { show(fresh()); if (innerWidth < 700) panel("chats", false); $("prompt").focus(); };
const search = () => { panel("chats", true); $("search").select(); };
const last = () => [...$("messages").querySelectorAll(".edit")].at(-1)?.click();
document.addEventListener("keydown", (event) => {
  if ($("ask").open) return;
  const pressed = [event.ctrlKey || event.metaKey ? "ctrl" : "", event.shiftKey ? "shift" : "", event.key.toLowerCase()];
  const act = { "escape": stop, "ctrl+k": search, "ctrl+shift+o": begin }[pressed.filter(Boolean).join("+")];
  if (!act) return;
  if (act !== stop) event.preventDefault();
  act();
});
$("prompt").addEventListener("keydown", (event) => {
  if (event.key !== "ArrowUp" || $("prompt").value || answers.has(chat.id)) return;
  event.preventDefault();
  last();
});
$("new").addEventListener("click", begin);
$("search").addEventListener("input", list);
$("import").addEventListener("click", () => $("import-file").click());
$("import-file").addEventListener("change", importFile);
$("export").addEventListener("click", exportAll);
for (const name of ["chats", "live"]) $(`show-${name}`).addEventListener("click", () => panel(name, $(name).hidden));
addEventListener("storage", list);
for (const width of [700, 1100]) matchMedia(`(min-width: ${width}px)`).addEventListener("change", arrange);

show(chats()[0] || fresh());
arrange();
if (innerWidth >= 700) $("prompt").focus(); // on a phone, the keyboard would cover the page
call("v1/models").then((response) => response.json()).then(({ data }) => {
  $("model").textContent = data[0].id;
  if (data[0].id === "demo") document.querySelector(".hello")?.append(" The demo pair tells short stories alone.");
}, (error) => fault(error.message));
call("props").then((response) => response.json()).then((props) => {
  attachments.allow(props.modalities.vision);
  context = props.default_generation_settings.n_ctx;
  offerDefaults(props);
  showSettings(chat.settings);
}, () => {});
document.documentElement.dataset.ready = "yes";
