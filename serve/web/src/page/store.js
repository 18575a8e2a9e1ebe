"use strict";
const $ = (id) => document.getElementById(id);
const NUMBERS = ["temperature", "max_tokens", "top_p", "top_k", "min_p", "repetition_penalty", "seed"];
const DEFAULTS = { system: "", temperature: 0.8, max_tokens: null, colour: false };
let settings = { ...DEFAULTS, ...stored("spillway.settings", {}) };
let conversations = stored("spillway.conversations", []);
let current = stored("spillway.current", null);
let model = null;
/** The running answer, if any: its turn, its elements and its abort controller. */
let live = null;

function stored(name, otherwise) {
  try { return JSON.parse(localStorage.getItem(name)) ?? otherwise; } catch { return otherwise; }
}
function keep() {
  try {
    localStorage.setItem("spillway.settings", JSON.stringify(settings));
    localStorage.setItem("spillway.conversations", JSON.stringify(conversations));
    localStorage.setItem("spillway.current", JSON.stringify(current));
  } catch { tell("This browser has no room left for conversations; delete some."); }
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
/** For everybody. The notice goes after a while, but not from under a pointer or the focus. */
function tell(text) {
  $("told").textContent = $("notice").textContent = text;
  $("toast").hidden = false;
  clearTimeout(telling);
  const end = () => {
    if ($("toast").matches(":hover, :focus-within")) telling = setTimeout(end, 1000);
    else $("toast").hidden = true;
  };
  telling = setTimeout(end, 6000);
}
function conversation() { return conversations.find((one) => one.id === current) ?? null; }
function titleOf(one) {
  const first = one?.turns.find((turn) => turn.role === "user");
  return first ? first.content.replace(/\s+/g, " ").slice(0, 60) : "New conversation";
}
