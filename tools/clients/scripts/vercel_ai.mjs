// Vercel's AI SDK with its provider for servers like OpenAI's.
import assert from "node:assert/strict";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import { GRAMMAR as grammar, joined, KEY, LONG, numbers, refused, run, SAID, URL } from "./shared.mjs";

const Numbers = z.object({ a: z.int(), b: z.int() });
const model = (apiKey = KEY, body = {}) =>
  createOpenAICompatible({
    name: "spac", baseURL: URL, apiKey, supportsStructuredOutputs: true,
    transformRequestBody: (asked) => ({ ...asked, ...body }),
  })("demo");
const asked = { model: model(), prompt: "hello", maxRetries: 0, maxOutputTokens: 200 };
const saying = { ...asked, model: model(KEY, { grammar }) };
let called = 0;
const add = tool({ description: "Adds.", inputSchema: Numbers, execute: async () => (called += 1) });

await run({
  chat: async () => assert.equal((await generateText(saying)).text, SAID),
  stream: () => joined(streamText(saying).textStream),
  "tool call and its output": async () => {
    const calling = { ...asked, model: model(KEY, { parallel_tool_calls: false }), tools: { add }, toolChoice: "required" };
    const made = await generateText({ ...calling, stopWhen: stepCountIs(2) });
    numbers(made.steps[0].toolCalls[0].input);
    assert.equal(called, 2);
  },
  "tool call in a stream": async () => {
    const calling = { ...asked, tools: { add }, toolChoice: { type: "tool", toolName: "add" } };
    numbers((await streamText(calling).toolCalls)[0].input);
  },
  "structured output": async () =>
    numbers((await generateText({ ...asked, output: Output.object({ schema: Numbers }) })).output),
  "wrong key": () => refused(() => generateText({ ...asked, model: model("x") }), "401"),
  "too long prompt": () => refused(() => generateText({ ...asked, prompt: LONG }), "context size"),
});
