// The `openai` package for JavaScript as a client. Arguments: a folder with the package, and the base URLs of a fast echo,
// one that asks for a key, and one that fails every answer. Fails by assertion.

import assert from "node:assert/strict";
import { createRequire } from "node:module";

const [folder, fast, locked, failing] = process.argv.slice(2);
const { default: OpenAI } = await import(createRequire(`${folder}/`).resolve("openai"));
const key = "0123456789abcdef0123456789abcdef";
const client = (url, apiKey = "none") => new OpenAI({ baseURL: `${url}/v1`, apiKey, maxRetries: 0 });
const messages = [{ role: "system", content: "Repeat." }, { role: "user", content: "hello 🌊" }];

const answer = await client(fast).chat.completions.create({ model: "echo", messages, n: 2, logprobs: true, top_logprobs: 2 });
assert.deepEqual(answer.choices.map((choice) => choice.message.content), ["hello 🌊", "hello 🌊"]);
assert.equal(answer.choices[0].logprobs.content.length, answer.usage.completion_tokens / 2);
assert.match(answer._request_id, /./);

const options = { include_usage: true };
let text = "", usage = null;
for await (const chunk of await client(fast).chat.completions.create({ model: "echo", messages, stream: true, stream_options: options })) {
  text += chunk.choices[0]?.delta.content ?? "";
  usage ??= chunk.usage;
}
assert.equal(text, "hello 🌊");
assert.equal(usage.completion_tokens, 10);

const stopped = await client(fast).chat.completions.create({ model: "echo", messages, stream: true });
for await (const _ of stopped) break;

const texts = await client(fast).completions.create({ model: "echo", prompt: "abcdef", max_tokens: 3 });
assert.deepEqual([texts.choices[0].text, texts.choices[0].finish_reason], ["abc", "length"]);
const response = await client(fast).responses.create({ model: "echo", input: "to and fro" });
assert.equal(response.output_text, "to and fro");

await assert.rejects(client(fast).chat.completions.create({ model: "echo", messages, colour: "red" }), OpenAI.BadRequestError);
await assert.rejects(client(fast).models.retrieve("gone"), OpenAI.NotFoundError);
await assert.rejects(client(locked).models.list(), OpenAI.AuthenticationError);
assert.equal((await client(locked, key).models.list()).data[0].id, "echo");
await assert.rejects(client(failing).chat.completions.create({ model: "echo", messages }), OpenAI.InternalServerError);
console.log("done");
