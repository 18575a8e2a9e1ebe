function ask(text) {
  let one = conversation();
  if (!one) {
    one = { id: `${Date.now()}-${Math.random().toString(36).slice(2)}`, turns: [] };
    put(one);
    choose(one.id);
  }
  // A question without an answer gives its place to this one.
  if (one.turns.at(-1)?.role === "assistant" && !face(one.turns.at(-1)).content) one.turns.pop();
  const last = one.turns.at(-1);
  if (last?.role === "user") face(last).content = text;
  else one.turns.push(newTurn("user", text));
  answer(one);
}

/** Drops the oldest `left` exchanges, which do not fit the model's context. */
function request(one, left) {
  const said = one.turns.filter((turn) => face(turn).content);
  const messages = said.map((turn) => ({ role: turn.role, content: face(turn).content })).slice(2 * left);
  if (settings.system.trim()) messages.unshift({ role: "system", content: settings.system.trim() });
  const body = { messages, stream: true, stream_options: { include_usage: true } };
  for (const name of NUMBERS) if (Number.isFinite(settings[name])) body[name] = settings[name];
  // Requested explicitly, so that a long conversation leaves room for the answer.
  if (model) body.max_tokens ??= Math.max(Math.floor(model.max_model_len / 4), 1);
  if (settings.colour) body.logprobs = true;
  return body;
}

/** Answers the last question, or `again` in the place of an earlier answer. */
async function answer(one, again = null) {
  if (lives.has(one.id)) return;
  const before = again?.at;
  const turn = again ?? newTurn("assistant", "");
  if (again) addVersion(one, turn, "");
  else one.turns.push(turn);
  const shown = face(turn);
  const live = { one, turn, controller: new AbortController() };
  lives.set(one.id, live);
  // Undoing would undo this answer, too.
  $("toast").hidden = true;
  keep(one); show(); scrollToEnd();
  let left = 0;
  const questions = one.turns.filter((turn) => turn.role === "user").length;
  let body = request(one, left);
  const began = performance.now();
  let first = null, tokens = 0, pieces = 0, finish = null;
  try {
    let response;
    for (;;) {
      response = await fetch("/v1/chat/completions", {
        method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal: live.controller.signal,
      });
      if (response.ok) break;
      const { code, message } = await refusal(response);
      if (code !== "context_length_exceeded" || left + 1 >= questions) throw new Error(message);
      body = request(one, ++left);
    }
    for await (const data of events(response.body)) {
      if (data === "[DONE]") { finish ??= "stop"; break; }
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Error(chunk.error.message);
      if (chunk.usage) tokens = chunk.usage.completion_tokens;
      const choice = chunk.choices[0];
      if (!choice) continue;
      finish = choice.finish_reason ?? finish;
      const text = choice.delta.content ?? "";
      if (text) { first ??= performance.now(); pieces += 1; shown.content += text; }
      for (const { bytes, logprob } of choice.logprobs?.content ?? []) (shown.tokens ??= []).push([bytes, logprob]);
      refresh(live);
    }
    if (!finish) throw new Error("The server broke off in the middle of the answer.");
  } catch (error) {
    if (error.name === "AbortError") finish = "stopped";
    else { shown.fault = plain(error); watch(); }
  }
  const seconds = (performance.now() - (first ?? began)) / 1000;
  // The time of the first token is the wait for it, so it is excluded.
  const made = Math.max((tokens || pieces) - 1, 0);
  const parts = [`${tokens || pieces} tokens`];
  if (made > 0 && seconds > 0) parts.push(`${(made / seconds).toFixed(1)} tokens/s`);
  if (first) parts.push(`first after ${((first - began) / 1000).toFixed(2)} s`);
  if (left) parts.push(left === 1 ? "the oldest question left out" : `the oldest ${left} questions left out`);
  if (finish === "length") parts.push("cut at the longest length");
  if (finish === "stopped") parts.push("stopped");
  shown.figures = parts.join(" · ");
  lives.delete(one.id);
  if (!shown.content && (again || finish === "stopped")) {
    cut(one, turn);
    if (again) turnTo(one, turn, before);
    if (again && shown.fault) tell(`${shown.fault} The earlier answer stays.`);
  }
  keep(one);
  // An edit in another conversation is left alone.
  if (current === one.id) atEnd(show); else showList();
  if (!conversations.includes(one)) return;
  if (current !== one.id) tell(`“${titleOf(one)}” ${shown.fault ? "got no whole answer" : "is answered"}.`);
  else say(shown.fault ?? (finish === "stopped" ? "Stopped." : `The model says: ${shown.content}`));
}

/** Redraws at most once per frame, however fast tokens arrive. */
function refresh(live) {
  if (live.drawing) return;
  live.drawing = true;
  requestAnimationFrame(() => {
    live.drawing = false;
    if (lives.get(current) !== live) return;
    atEnd(() => write(live.words, face(live.turn)));
  });
}

async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    held += value;
    for (let at; (at = held.indexOf("\n\n")) >= 0; held = held.slice(at + 2)) {
      const data = held.slice(0, at).split("\n").filter((line) => line.startsWith("data:"));
      if (data.length) yield data.map((line) => line.slice(5).trimStart()).join("\n");
    }
  }
}

async function refusal(response) {
  try { return (await response.json()).error; } catch { return { message: `The server answered ${response.status}.` }; }
}
function plain(error) {
  return error instanceof TypeError ? "The server could not be reached." : error.message;
}

let watching = null;
/** Polls the server's health: often while it fails, rarely otherwise. */
async function watch() {
  clearTimeout(watching);
  let trouble = null;
  try {
    const response = await fetch("/health");
    if (!response.ok) {
      const { status, detail } = await response.json();
      trouble = status === "loading" ? `The model is not ready yet: ${detail}.` : "The server is shutting down.";
    } else if (!model) {
      const listed = await fetch("/v1/models");
      if (listed.ok) model = (await listed.json()).data[0];
    }
  } catch {
    trouble = "The server is away. Start it again; this page will notice.";
    model = null;
  }
  const banner = $("banner");
  if (trouble !== null && banner.textContent !== trouble) banner.textContent = trouble;
  banner.hidden = trouble === null;
  if (trouble === null) banner.textContent = "";
  $("model").textContent = model ? `${model.id}, reads ${model.max_model_len} tokens` : "";
  watching = setTimeout(watch, trouble === null ? 10000 : 1000);
}
