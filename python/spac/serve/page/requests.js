// Requests to the server, with its key.

import { $ } from "./elements.js";

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
export async function call(path, options = {}) {
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
export async function* eventsOf(response) {
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
