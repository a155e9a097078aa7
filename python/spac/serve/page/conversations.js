// Conversations, each in its own entry of the browser's storage, so that two tabs do not overwrite each other.
//
// A conversation is { id, changed, messages, settings } and may have a `title`. Its messages are those that are shown and sent. A
// message with other versions has `versions`: { at, others }. Each of the others is a list of messages: a version, and
// what followed it. `at` is the place of the shown version among all.

import { fault, make } from "./elements.js";

const CHAT = "spac.chat.";

export function stored(name) {
  try { return JSON.parse(localStorage.getItem(name)); } catch { return null; }
}

// Return true if the browser keeps the value.
export function store(name, value) {
  try {
    localStorage.setItem(name, JSON.stringify(value));
    return true;
  } catch {
    fault("The browser's storage is full: delete conversations.");
    return false;
  }
}

export function chats() {
  const names = Object.keys(localStorage).filter((name) => name.startsWith(CHAT));
  return names.map(stored).filter(Boolean).sort((a, b) => b.changed - a.changed);
}

export const fresh = () => ({ id: crypto.getRandomValues(new Uint32Array(2)).join("-"), changed: 0, messages: [] });
export const find = (id) => stored(CHAT + id);
export const keep = (one) => store(CHAT + one.id, one);
export const forget = (one) => localStorage.removeItem(CHAT + one.id);

export function titleOf({ title, messages }) {
  const [first] = messages;
  return title || first?.content.slice(0, 80) || first?.files?.[0].name || (first ? "Image" : "Empty");
}

// Versions

// Replace the messages from place i on by a new version, and keep the former ones beside it.
export function branch(one, i, message) {
  const former = one.messages.splice(i), { at = 0, others = [] } = former[0].versions || {};
  delete former[0].versions;
  others.splice(at, 0, former);
  message.versions = { at: others.length, others };
  one.messages.push(message);
  delete one.forgotten;
}

// Show another version of the message at place i, with what followed it.
export function showVersion(one, i, to) {
  const former = one.messages.splice(i), { at, others } = former[0].versions;
  delete former[0].versions;
  others.splice(at, 0, former);
  const [shown] = others.splice(to, 1);
  shown[0].versions = { at: to, others };
  one.messages.push(...shown);
  delete one.forgotten;
}

// Return what `remove` removes, in words.
export function removed({ messages }, i) {
  if (messages[i].versions) return "version";
  if (i < messages.length - 1) return "exchange";
  return messages[i].role === "assistant" ? "answer" : "message";
}

// Remove the message at place i. Where it has other versions, what followed it goes too, and another one is shown. In the
// middle, a question and its answer go together, because many templates want turns.
export function remove(one, i) {
  const what = removed(one, i);
  if (what === "version") {
    const [{ versions: { at, others } }] = one.messages.splice(i);
    const to = Math.max(0, at - 1), [shown] = others.splice(to, 1);
    if (others.length) shown[0].versions = { at: to, others };
    one.messages.push(...shown);
  } else if (what !== "exchange") {
    one.messages.pop();
  } else {
    const first = one.messages[i].role === "user" ? i : Math.max(0, i - 1);
    one.messages.splice(first, one.messages[first + 1]?.role === "assistant" ? 2 : 1);
  }
  delete one.forgotten;
}

// Search, export and import

const textsOf = (messages) => messages.flatMap(({ content, files = [], versions }) => [
  content, ...files.flatMap(({ name, text }) => [name, text]), ...(versions?.others.flatMap(textsOf) || []),
]);

// Return true if the title or a text of a conversation, in any version, has these words.
export function has(one, words) {
  return [titleOf(one), ...textsOf(one.messages)].some((text) => text.toLowerCase().includes(words.toLowerCase()));
}

export function exportAll() {
  const file = new Blob([JSON.stringify(chats(), null, 2)], { type: "application/json" });
  const link = make("a", { href: URL.createObjectURL(file), download: "spac-conversations.json" }, document.body);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

const areTexts = (...all) => all.every((one) => typeof one === "string");
const isImage = ({ name, url }) => areTexts(name, url) && url.startsWith("data:image/");
const isFile = ({ name, text }) => areTexts(name, text);
const isVersions = ({ at, others }) => others.every(isPath) && Number.isInteger(at) && at >= 0 && at <= others.length;
const isMessage = ({ role, content, reasoning = "", images = [], files = [], versions }) => ["user", "assistant"].includes(role)
  && areTexts(content, reasoning) && images.every(isImage) && files.every(isFile) && (!versions || isVersions(versions));
const isPath = (messages) => messages.length > 0 && messages.every(isMessage);
const areSettings = (settings) => Object.values(settings).every((one) => ["string", "number"].includes(typeof one));
const isChat = ({ id, changed, title = "", messages, settings = {} }) =>
  areTexts(id, title) && Number.isFinite(changed) && isPath(messages) && areSettings(settings);

// Keep the conversations of an exported file, but none that is older than the one of its id here. Return how many came.
export async function importFrom(file) {
  let all;
  try {
    all = JSON.parse(await file.text());
    if (!all.every(isChat)) throw new TypeError();
  } catch {
    fault(`${file.name} is no file that "Export all" wrote.`);
    return 0;
  }
  const newer = all.filter((one) => one.changed > (find(one.id)?.changed ?? -1));
  return newer.filter(keep).length;
}
