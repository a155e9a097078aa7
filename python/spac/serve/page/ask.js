// The requests with which the page asks the server for an answer.

import { partsOf } from "./attachments.js";
import { call } from "./requests.js";
import { requested } from "./settings.js";

// Return the request for an answer to messages of a conversation.
function request({ settings }, asked) {
  const first = settings.system ? [{ role: "system", content: settings.system }] : [];
  const messages = [...first, ...asked.map((message) => ({ role: message.role, content: partsOf(message) }))];
  return JSON.stringify({ ...requested(settings), messages, stream: true, stream_options: { include_usage: true } });
}

// Ask for an answer to the messages of a conversation, without the oldest ones if the context does not hold all.
export async function ask(one, asked, signal) {
  const headers = { "content-type": "application/json" };
  for (;;) {
    const seen = asked.slice(one.forgotten || 0);
    try {
      return await call("v1/chat/completions", { method: "POST", headers, body: request(one, seen), signal });
    } catch (error) {
      if (error.kind !== "exceed_context_size_error" || seen.length < 3) throw error;
      one.forgotten = (one.forgotten || 0) + 2 * Math.ceil((seen.length - 1) / 4); // half of the exchanges
    }
  }
}
