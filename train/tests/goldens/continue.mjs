// Continues a text in `llama.cpp`, greedily, from a GGUF file. Prints the ids of the text, those of the continuation,
// its text, and the length of pretraining, as one JSON object.
//
//     npm install --prefix FOLDER --ignore-scripts --omit=optional node-llama-cpp @node-llama-cpp/linux-x64
//     LLAMA_CPP_DIR=FOLDER/node_modules cargo test -p train --test it gguf:: -- --ignored

import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const installed = createRequire(`${process.env.LLAMA_CPP_DIR}/`);
const { getLlama } = await import(pathToFileURL(installed.resolve("node-llama-cpp")));

const [, , file, text, most] = process.argv;
const llama = await getLlama({ gpu: false, build: "never", logLevel: "error" });
const model = await llama.loadModel({ modelPath: file });
const context = await model.createContext({ contextSize: 64 });

const opening = model.tokens.shouldPrependBosToken ? [model.tokens.bos] : [];
const prompt = [...opening, ...model.tokenize(text, false)];
const made = [];
for await (const token of context.getSequence().evaluate(prompt, { temperature: 0, yieldEogToken: true })) {
  if (made.length >= Number(most) || model.isEogToken(token)) break;
  made.push(token);
}
const said = { prompt, made, text: model.detokenize(made), positions: model.trainContextSize };
// The library keeps threads that would hold the process.
process.stdout.write(`${JSON.stringify(said)}\n`, () => process.exit(0));
