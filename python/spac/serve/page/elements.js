// Functions for elements that every part of the page uses.

export const $ = (id) => document.getElementById(id);
export const pause = (ms) => new Promise((done) => setTimeout(done, ms));

export function make(name, attributes, parent, text) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  parent.append(element);
  return element;
}

// Make a button. The label is for people who do not see its text or sign, and the browser shows it at the pointer.
export function button(text, parent, label, act) {
  const names = label ? { "aria-label": label, title: label } : {};
  const made = make("button", { type: "button", ...names }, parent, text);
  made.addEventListener("click", act);
  return made;
}

// Tell people who do not see the page what has happened. Single tokens are not announced.
export function say(text) { $("status").textContent = text; }

const atEnd = () => $("messages").scrollHeight - $("messages").scrollTop - $("messages").clientHeight < 60;

// Do something that lengthens the messages, and stay at their end.
export function following(act) {
  const follows = atEnd();
  act();
  if (follows) $("messages").scrollTop = $("messages").scrollHeight;
}

export function fault(text) {
  following(() => make("p", { class: "fault", role: "alert" }, $("messages"), text));
}

// Copy a text. Browsers offer their clipboard only to pages of this machine and to pages by https.
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const field = make("textarea", { class: "unseen" }, document.body), before = document.activeElement;
    field.value = text;
    field.select();
    document.execCommand("copy");
    field.remove();
    before.focus();
  }
  say("Copied.");
}

export function sendOnEnter(field, act) {
  field.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    act();
  });
}

export function onEscape(field, act) {
  field.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    event.stopPropagation(); // an answer elsewhere goes on
    act();
  });
}
