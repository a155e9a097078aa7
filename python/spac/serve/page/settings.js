// The settings of the conversation that is shown, the server's defaults in their fields, and the page's theme.

import { store, stored } from "./conversations.js";
import { $, make } from "./elements.js";
import { redraw } from "./live.js";

const SETTINGS = "spac.settings", THEME = "spac.theme";
const REASONING = { // by the variable of the chat template, what can be chosen
  enable_thinking: { on: true, off: false },
  reasoning_effort: { low: "low", medium: "medium", high: "high" },
};
const WORDS = { seed: { 4294967295: "random" }, max_tokens: { "-1": "no limit" } };
const chosen = {}; // by option of the reasoning, the variables that it sets

// Return the settings that a new conversation begins with: those that were changed last.
export const lastSettings = () => stored(SETTINGS) || {};

export function showSettings(settings) {
  for (const field of $("settings").elements) field.value = settings[field.name] ?? "";
}

// Return what the fields say, without those that are empty or not valid, and remember it for new conversations.
export function readSettings() {
  const given = {};
  for (const field of $("settings").elements) {
    const value = field.value.trim();
    if (value && field.validity.valid) given[field.name] = field.type === "number" ? Number(value) : value;
  }
  store(SETTINGS, given);
  return given;
}

// Return what settings say in a request, beside the system prompt.
export function requested({ system, reasoning, ...sampling }) {
  return { ...sampling, ...(chosen[reasoning] ? { chat_template_kwargs: chosen[reasoning] } : {}) };
}

// Show the server's defaults in the empty fields, and offer the reasoning that the chat template can switch.
export function offerDefaults({ default_generation_settings: { params }, chat_template: template = "" }) {
  for (const field of $("settings").elements) {
    const value = params[field.name];
    if (value !== undefined) field.placeholder = WORDS[field.name]?.[value] ?? Number(value.toFixed(3));
  }
  for (const [variable, options] of Object.entries(REASONING)) {
    if (!template.includes(variable)) continue;
    for (const [name, value] of Object.entries(options)) {
      chosen[name] = { [variable]: value };
      make("option", {}, $("reasoning"), name);
    }
  }
  $("reasoning").parentElement.hidden = !Object.keys(chosen).length;
}

// The dark colours stand in rules for a dark system. A theme makes these rules hold always or never.

const dark = [...document.styleSheets[0].cssRules].filter((rule) => rule.conditionText?.includes("color-scheme"));

function dress(theme) {
  const medium = { light: "not all", dark: "all" }[theme] || "(prefers-color-scheme: dark)";
  for (const rule of dark) rule.media.mediaText = medium;
  document.documentElement.style.colorScheme = theme;
  redraw();
}

$("theme").value = stored(THEME) || "";
$("theme").addEventListener("change", () => { store(THEME, $("theme").value); dress($("theme").value); });
dress($("theme").value);
