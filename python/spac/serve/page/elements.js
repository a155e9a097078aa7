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

export function button(text, parent, label, act) {
  const made = make("button", { type: "button", ...(label ? { "aria-label": label } : {}) }, parent, text);
  made.addEventListener("click", act);
  return made;
}

// Tell people who do not see the page what has happened. Single tokens are not announced.
export function say(text) { $("status").textContent = text; }
