/** Asks, or adds to a text; nothing is added by an empty `text`. */
function ask(text) {
  let one = conversation();
  if (!one && !text) return;
  if (!one) {
    one = { id: `${Date.now()}-${Math.random().toString(36).slice(2)}`, ...(isText() && { kind: "text" }), turns: [] };
    put(one);
    choose(one.id);
  }
  if (one.turns.at(-1)?.role === "assistant" && !face(one.turns.at(-1)).content) one.turns.pop();
  const last = one.turns.at(-1);
  // A question without an answer gives its place to this one.
  if (last?.role === "user") face(last).content = isText() ? face(last).content + text : text;
  else if (text) one.turns.push(newTurn("user", text));
  answer(one);
}

/** For a text, `said` is all of it as tokens or as a text; for a chat, its messages. */
function request(one, said) {
  const body = { stream: true, stream_options: { include_usage: true } };
  for (const name of NUMBERS) if (Number.isFinite(settings[name])) body[name] = settings[name];
  const stop = settings.stop.split("\n").filter(Boolean);
  if (stop.length) body.stop = stop;
  // Requested explicitly, so that a long conversation leaves room for the answer.
  if (model) body.max_tokens ??= Math.max(Math.min(Math.floor(model.max_model_len / 4), model.max_completion_tokens), 1);
  if (one.kind === "text") return { ...body, prompt: said, ...(settings.colour && { logprobs: OTHERS + 1 }) };
  const system = settings.system.trim();
  const messages = system ? [{ role: "system", content: system }, ...said] : said;
  return { ...body, messages, ...(settings.colour && { logprobs: true, top_logprobs: OTHERS + 1 }) };
}
function saidIn(one) {
  return one.turns.filter((turn) => face(turn).content).map((turn) => ({ role: turn.role, content: face(turn).content }));
}

/** The server reads no more messages than this. */
const MESSAGES = 500;
/** Leaves out the oldest exchanges that do not fit the model's context. */
async function begin(one, signal) {
  const said = saidIn(one), questions = said.filter(({ role }) => role === "user").length;
  let left = Math.max(Math.ceil((said.length - MESSAGES) / 2), 0);
  for (let first = true; ; first = false) {
    const body = request(one, said.slice(2 * left));
    const response = await post("v1/chat/completions", body, signal);
    if (response.ok) return { response, left: left ? `the oldest ${left === 1 ? "question" : `${left} questions`} left out` : null };
    const { code, message } = await refusal(response);
    if (code !== "context_length_exceeded" || left + 1 >= questions) throw new Error(message);
    if (first && model) left = await guessed(said, left, roomFor(body), signal);
    else left += 1;
  }
}
/** Leaves out the beginning of a text that does not fit. */
async function beginText(one, signal) {
  const text = saidIn(one).map(({ content }) => content).join("");
  const body = request(one, text);
  let response = await post("v1/completions", body, signal);
  if (response.ok) return { response, left: null };
  const { code, message } = await refusal(response);
  if (code !== "context_length_exceeded" || !model || roomFor(body) < 1) throw new Error(message);
  const counted = await post("tokenize", { content: text }, signal);
  if (!counted.ok) throw new Error(message);
  const { tokens } = await counted.json();
  response = await post("v1/completions", request(one, tokens.slice(-roomFor(body))), signal);
  if (response.ok) return { response, left: "the beginning left out" };
  throw new Error((await refusal(response)).message);
}
/** In tokens of a prompt. */
function roomFor({ max_tokens }) { return model.max_model_len + 1 - max_tokens; }
/** Guesses by the length of the text how many exchanges to leave out: too few at first, as a template adds to it. */
async function guessed(said, left, room, signal) {
  const texts = said.map(({ content }) => content).slice(2 * left);
  const response = await post("tokenize", { content: texts.join("") }, signal);
  const tokens = response.ok ? (await response.json()).count : 0;
  let letters = texts.join("").length;
  const most = letters * room / Math.max(tokens, 1) - settings.system.length;
  do letters -= texts.splice(0, 2).join("").length, left += 1; while (letters > most && texts.length > 2);
  return left;
}
function post(path, body, signal) {
  // Strict: an answer without room is refused, so that old turns make room for it.
  const headers = { "Content-Type": "application/json", "Prefer": "handling=strict" };
  return fetch(path, { method: "POST", headers, body: JSON.stringify(body), signal });
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
  const began = performance.now();
  let first = null, tokens = 0, pieces = 0, finish = null, left = null;
  try {
    const begun = await (one.kind === "text" ? beginText : begin)(one, live.controller.signal);
    left = begun.left;
    const { response } = begun;
    watch();
    for await (const data of events(response.body)) {
      if (data === "[DONE]") { finish ??= "stop"; break; }
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Error(chunk.error.message);
      if (model && chunk.model !== model.id) { model = null; watch(); }
      if (chunk.usage) tokens = chunk.usage.completion_tokens;
      const choice = chunk.choices[0];
      if (!choice) continue;
      finish = choice.finish_reason ?? finish;
      const text = choice.text ?? choice.delta.content ?? "";
      if (text) { first ??= performance.now(); pieces += 1; shown.content += text; }
      for (const token of tokensOf(choice.logprobs)) (shown.tokens ??= []).push(token);
      refresh(live);
    }
    if (!finish) throw new Error("The server broke off in the middle of the answer.");
  } catch (error) {
    if (error.name === "AbortError") finish = "stopped";
    else shown.fault = plain(error);
  }
  const seconds = (performance.now() - (first ?? began)) / 1000;
  // The time of the first token is the wait for it, so it is excluded.
  const made = Math.max((tokens || pieces) - 1, 0);
  const parts = [`${tokens || pieces} tokens`];
  if (made > 0 && seconds > 0) parts.push(`${(made / seconds).toFixed(1)} tokens/s`);
  if (first) parts.push(`first after ${((first - began) / 1000).toFixed(2)} s`);
  if (left) parts.push(left);
  if (finish === "length") parts.push("cut at the longest length");
  if (finish === "stopped") parts.push("stopped");
  if (shown.content || finish) shown.figures = parts.join(" · ");
  lives.delete(one.id);
  watch();
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
    atEnd(() => write(live.words, live.turn, face(live.turn)));
  });
}
