// Parts of the scripts of npm's clients.
import assert from "node:assert/strict";

const given = JSON.parse(process.argv[2]);
export const URL = given.url;
export const KEY = given.key;
export const ADDRESS = URL.replace(/\/v1$/, "");
export const SAID = "hi there";
export const GRAMMAR = `root ::= "${SAID}"`;
export const USER = [{ role: "user", content: "hello" }];
export const LONG = "word ".repeat(20000);
export const NUMBERS = {
  type: "object",
  properties: { a: { type: "integer" }, b: { type: "integer" } },
  required: ["a", "b"],
  additionalProperties: false,
};

/** Make checks. Print a line of JSON for each: its name, and its fault or null. Print a last line. */
export async function run(checks) {
  for (const [check, make] of Object.entries(checks)) {
    let fault = null;
    try {
      await make();
    } catch (error) {
      fault = `${error.name}: ${error.message}`;
    }
    console.log("\n" + JSON.stringify({ check, fault }));
  }
  console.log("all checks were made");
}

/** Expect the parts of a stream to be what the grammar says. */
export async function joined(parts) {
  const texts = [];
  for await (const part of parts) if (part) texts.push(part);
  assert(texts.length > 1, `one part: ${texts}`);
  assert.equal(texts.join(""), SAID);
}

/** Expect the arguments of the tool, as JSON or as an object. */
export function numbers(found) {
  const values = typeof found === "string" ? JSON.parse(found) : found;
  assert.deepEqual(Object.keys(values).sort(), ["a", "b"]);
  assert(Object.values(values).every(Number.isInteger));
}

/** Expect an error whose text has one of the words. */
export async function refused(call, ...words) {
  await assert.rejects(call, (error) => {
    const text = `${error.name} ${error.status ?? error.statusCode} ${error.message}`;
    assert(words.some((word) => text.includes(word)), text);
    return true;
  });
}
