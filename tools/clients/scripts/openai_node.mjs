// OpenAI's client for Node: completions, chats, Responses, embeddings.
import assert from "node:assert/strict";
import OpenAI from "openai";
import { GRAMMAR as grammar, joined, KEY, LONG, NUMBERS, numbers, refused, run, SAID, URL, USER } from "./shared.mjs";

const client = new OpenAI({ baseURL: URL, apiKey: KEY, maxRetries: 0 });
const tools = [{ type: "function", function: { name: "add", description: "Adds.", parameters: NUMBERS } }];
const calls = { tool_choice: "required", parallel_tool_calls: false };
const chat = (more) => client.chat.completions.create({ model: "demo", messages: USER, max_tokens: 200, ...more });
const respond = (more) => client.responses.create({ model: "demo", input: "hello", ...more });

async function* texts(stream, pick) {
  for await (const each of stream) yield pick(each);
}

await run({
  completion: async () =>
    assert.equal((await client.completions.create({ model: "demo", prompt: "x", grammar })).choices[0].text, SAID),
  chat: async () => assert.equal((await chat({ grammar })).choices[0].message.content, SAID),
  stream: async () => joined(texts(await chat({ grammar, stream: true }), (each) => each.choices[0]?.delta.content)),
  "tool call": async () =>
    numbers((await chat({ tools, ...calls })).choices[0].message.tool_calls[0].function.arguments),
  "tool call in a stream": async () => {
    const stream = client.chat.completions.stream({ model: "demo", messages: USER, tools, ...calls });
    numbers((await stream.finalChatCompletion()).choices[0].message.tool_calls[0].function.arguments);
  },
  "structured output": async () => {
    const form = { type: "json_schema", json_schema: { name: "numbers", schema: NUMBERS } };
    numbers((await chat({ response_format: form })).choices[0].message.content);
  },
  response: async () => assert.equal((await respond({ grammar })).output_text, SAID),
  "stream of a response": async () =>
    joined(texts(await respond({ grammar, stream: true }), (each) =>
      each.type === "response.output_text.delta" ? each.delta : null)),
  "tool call of a response and its output": async () => {
    const made = await respond({ tools: [{ type: "function", ...tools[0].function }], ...calls });
    const [call] = made.output;
    numbers(call.arguments);
    const output = { type: "function_call_output", call_id: call.call_id, output: "3" };
    assert.equal((await respond({ input: [...USER, call, output], grammar })).output_text, SAID);
  },
  embeddings: async () => {
    const made = await client.embeddings.create({ model: "demo", input: ["a", "b c"] });
    assert.equal(new Set(made.data.map((each) => each.embedding.length)).size, 1);
  },
  "wrong key": () => refused(() => client.withOptions({ apiKey: "x" }).models.list(), "401"),
  "too long prompt": () => refused(() => chat({ messages: [{ role: "user", content: LONG }] }), "context size"),
});
