/*
 * Conversations as a file. A file from elsewhere is taken apart and made anew, so that nothing else comes in with it.
 */
const FORMAT = "spillway.conversations";

function exported() { return JSON.stringify({ format: FORMAT, version: 1, conversations }, null, 1); }
function exportAll() {
  const address = URL.createObjectURL(new Blob([exported()], { type: "application/json" }));
  element("a", { href: address, download: `spillway-${new Date().toISOString().slice(0, 10)}.json` }).click();
  setTimeout(() => URL.revokeObjectURL(address), 60000);
  tell(`${counted(conversations.length)} exported.`);
}

async function importFrom(file) {
  let ones;
  try { ones = conversationsIn(await file.text()); } catch (error) {
    tell(error instanceof Unfit ? error.message : "This file holds no conversations that this page has exported.");
    return;
  }
  const here = new Set(conversations.map((one) => JSON.stringify(cleanConversation(one))));
  const isHere = (one) => here.has(JSON.stringify(one));
  const come = ones.filter((one) => !isHere(one));
  // Another conversation of the same name was changed since.
  for (const one of come) if (conversations.some(({ id }) => id === one.id)) one.id += `-${Math.random().toString(36).slice(2)}`;
  for (const one of come) {
    put(one);
    if (keep(one)) continue;
    for (const { id } of come) { drop(id); localStorage.removeItem(KEY + id); }
    show();
    tell("This browser has no room for these conversations; none was imported.");
    return;
  }
  show();
  const rest = ones.length - come.length;
  tell(`${counted(come.length)} imported${rest ? `; ${rest} already here` : ""}.`);
}
function counted(number) { return number === 1 ? "1 conversation" : `${number} conversations`; }

/** A file that reads well and means something else. */
class Unfit extends Error {}
function conversationsIn(text) {
  const { format, version, conversations: found } = JSON.parse(text);
  if (format !== FORMAT) throw new TypeError();
  if (version !== 1) throw new Unfit("A newer page has exported this file.");
  return found.map(cleanConversation);
}
function cleanConversation({ id, kind, title, turns }) {
  const made = { id: checked(id, /^\d+(-\w+)*$/), turns: turns.map(cleanTurn) };
  if (kind !== undefined) made.kind = checked(kind, /^text$/);
  if (title !== undefined) made.title = checked(title, /^/);
  return made;
}
function cleanTurn({ role, at, versions }) {
  const made = { role: checked(role, /^(user|assistant)$/), at, versions: versions.map(cleanVersion) };
  if (!made.versions[at]) throw new TypeError();
  return made;
}
function cleanVersion({ content, figures, fault, tokens, rest }) {
  const made = { content: checked(content, /^/) };
  for (const [name, value] of Object.entries({ figures, fault })) if (value !== undefined) made[name] = checked(value, /^/);
  if (tokens !== undefined) {
    made.tokens = tokens.map(([bytes, logprob, others = []]) =>
      [bytes.map(number), number(logprob), others.map(([text, logprob]) => [checked(text, /^/), number(logprob)])]);
  }
  if (rest !== undefined) made.rest = rest.map(cleanTurn);
  return made;
}
function checked(text, form) {
  if (typeof text !== "string" || !form.test(text)) throw new TypeError();
  return text;
}
function number(value) {
  if (!Number.isFinite(value)) throw new TypeError();
  return value;
}
