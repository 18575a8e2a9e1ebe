"use strict";
const $ = (id) => document.getElementById(id);
const NUMBERS = ["temperature", "max_tokens", "top_p", "top_k", "min_p", "repetition_penalty", "seed"];
const SWITCHES = ["markdown", "colour"];
const TEXTS = ["system", "stop", "theme"];
const DEFAULTS = { system: "", temperature: 0.8, max_tokens: null, stop: "", theme: "auto", markdown: true, colour: false };
let settings = { ...DEFAULTS, ...stored("spillway.settings", {}) };
/** A conversation has a key of its own, so that tabs do not overwrite each other's. */
const KEY = "spillway.conversation.";
let conversations = allStored();
/** The conversation shown in this tab. */
let current = stored("spillway.current", stored("spillway.current", null), sessionStorage);
let model = null;
/** A phone's keyboard covers half of the page and has no Shift+Enter. */
const touch = matchMedia("(pointer: coarse)");
/** Of the next new conversation, if chosen. */
let kind = null;
/** The running answers by conversation: each has its turn, its abort controller and, if shown, its element. */
const lives = new Map();

function stored(name, otherwise, storage = localStorage) {
  try { return JSON.parse(storage.getItem(name)) ?? otherwise; } catch { return otherwise; }
}
/** Returns whether there was room. */
function store(name, value) {
  try { localStorage.setItem(name, JSON.stringify(value)); return true; } catch {
    tell("This browser has no room left for conversations; delete some.");
    return false;
  }
}
/** Newest first. */
function allStored() {
  // Once they were one list.
  for (const one of stored("spillway.conversations", [])) store(KEY + one.id, one);
  localStorage.removeItem("spillway.conversations");
  const names = Object.keys(localStorage).filter((name) => name.startsWith(KEY));
  return inOrder(names.map(storedConversation).filter(Boolean));
}
function storedConversation(name) {
  const one = stored(name, null);
  if (one) one.turns = one.turns.map(turnOf);
  return one;
}
/** Identifiers begin with the time. */
function inOrder(list) { return list.sort((one, other) => one.id < other.id ? 1 : -1); }
function keep(one) { return conversations.includes(one) && store(KEY + one.id, one); }
function choose(id) {
  current = id;
  store("spillway.current", id);
  try { sessionStorage.setItem("spillway.current", JSON.stringify(id)); } catch { /* Only a reload forgets it. */ }
}
/** Puts a conversation into the list, in the place of its earlier state. */
function put(one) { conversations = inOrder([...conversations.filter(({ id }) => id !== one.id), one]); }
function drop(id) {
  lives.get(id)?.controller.abort();
  conversations = conversations.filter((one) => one.id !== id);
  if (current === id) choose(null);
}
/** Deletes what `change` deletes from these conversations, until it is undone. */
function deleted(text, ones, change) {
  const before = JSON.stringify(ones), shown = current;
  change();
  show();
  tell(text, () => {
    for (const one of JSON.parse(before)) { put(one); keep(one); }
    choose(shown);
    show();
    tell("It is back.");
  });
}
function remove(one) {
  deleted("Conversation deleted.", [one], () => { drop(one.id); localStorage.removeItem(KEY + one.id); });
}
function removeAll() {
  deleted("All conversations deleted.", conversations, () => {
    for (const { id } of conversations) { drop(id); localStorage.removeItem(KEY + id); }
  });
}
/** A page that closes keeps what there is of its answers. */
function keepAll() { for (const { one } of lives.values()) keep(one); }
/** Another tab changed something. */
function follow({ key }) {
  if (key === "spillway.settings") settings = { ...DEFAULTS, ...stored(key, {}) };
  if (!key?.startsWith(KEY)) return;
  const id = key.slice(KEY.length), one = storedConversation(key);
  const isShown = current === id;
  if (!one) drop(id);
  // Else this tab writes it when the answer is whole.
  else if (!lives.has(id)) put(one);
  if (isShown) show(); else showList();
}
function element(name, options = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(options)) {
    if (key === "click") made.addEventListener("click", value);
    else if (key === "text") made.textContent = value;
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}
/** Only for screen readers. */
function say(text) { $("said").textContent = text; }
let telling = null;
let undo = null;
/** For everybody, perhaps with a way back. The notice goes after a while, but not from under a pointer or the focus. */
function tell(text, back = null) {
  $("told").textContent = $("notice").textContent = text;
  undo = back;
  $("undo").hidden = !back;
  $("toast").hidden = false;
  clearTimeout(telling);
  const end = () => {
    if ($("toast").matches(":hover, :focus-within")) telling = setTimeout(end, 1000);
    else $("toast").hidden = true;
  };
  telling = setTimeout(end, back ? 15000 : 6000);
}
/** Whether a text is continued here, instead of a chat: always if the model has no chat template. */
function isText() { return (conversation()?.kind ?? (current ? "chat" : kind ?? (model?.chat === false ? "text" : "chat"))) === "text"; }
function conversation() { return conversations.find((one) => one.id === current) ?? null; }

