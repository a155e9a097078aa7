// Anthropic's client for Node: Messages.
import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";
import { ADDRESS, GRAMMAR as grammar, joined, KEY, LONG, NUMBERS, numbers, refused, run, SAID, USER } from "./shared.mjs";

const client = new Anthropic({ baseURL: ADDRESS, apiKey: KEY, maxRetries: 0 });
const asked = { model: "demo", messages: USER, max_tokens: 200 };
const create = (more) => client.messages.create({ ...asked, ...more });
const add = {
  tools: [{ name: "add", description: "Adds.", input_schema: NUMBERS }],
  tool_choice: { type: "tool", name: "add", disable_parallel_tool_use: true },
};

async function* texts(stream) {
  for await (const each of stream) yield each.delta?.text;
}

await run({
  message: async () => assert.equal((await create({ grammar })).content[0].text, SAID),
  stream: async () => joined(texts(client.messages.stream({ ...asked, grammar }))),
  "tool call and its result": async () => {
    const made = await create(add);
    const [call] = made.content;
    numbers(call.input);
    const result = [{ type: "tool_result", tool_use_id: call.id, content: "3" }];
    const messages = [...USER, { role: "assistant", content: made.content }, { role: "user", content: result }];
    assert.equal((await create({ messages, grammar })).content[0].text, SAID);
  },
  "tool call in a stream": async () =>
    numbers((await client.messages.stream({ ...asked, ...add }).finalMessage()).content[0].input),
  "structured output": async () =>
    numbers((await create({ output_config: { format: { type: "json_schema", schema: NUMBERS } } })).content[0].text),
  "count of tokens": async () =>
    assert((await client.messages.countTokens({ model: "demo", messages: USER })).input_tokens > 1),
  "wrong key": () => refused(() => new Anthropic({ baseURL: ADDRESS, apiKey: "x", maxRetries: 0 }).messages.create(asked), "401"),
  "too long prompt": () => refused(() => create({ messages: [{ role: "user", content: LONG }] }), "context size"),
});
