function browse(on) {
  document.body.classList.toggle("browsing", on);
  $("menu").setAttribute("aria-expanded", String(on));
  if (on) $("new").focus();
}
/** Not on a phone, where a keyboard would open. */
function focusQuestion() { if (!touch.matches) $("question").focus(); }
/** Enter ends a question where a keyboard has Shift+Enter for a line. */
function ends(event) { return event.key === "Enter" && !event.shiftKey && !event.isComposing && !touch.matches; }
function grow() {
  const box = $("question");
  box.style.height = "auto";
  box.style.height = `${box.scrollHeight + 2}px`;
}
function fill(from) {
  for (const name of TEXTS) $(`set-${name}`).value = from[name];
  for (const name of SWITCHES) $(`set-${name}`).checked = from[name];
  for (const name of NUMBERS) $(`set-${name}`).value = from[name] ?? "";
  $("settings-fault").textContent = "";
}
/** After the browser has found all values valid. */
function gather() {
  for (const name of TEXTS) settings[name] = $(`set-${name}`).value;
  for (const name of SWITCHES) settings[name] = $(`set-${name}`).checked;
  for (const name of NUMBERS) {
    const box = $(`set-${name}`);
    settings[name] = box.value === "" ? null : box.valueAsNumber;
  }
  store("spillway.settings", settings); show();
}

$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = isText() ? $("question").value : $("question").value.trim();
  if (lives.has(current) || !text && !(isText() && conversation())) return;
  $("question").value = "";
  grow();
  ask(text);
});
$("question").addEventListener("keydown", (event) => {
  if (ends(event)) { event.preventDefault(); $("ask").requestSubmit(); }
});
$("question").addEventListener("input", grow);
$("stop").addEventListener("click", () => { lives.get(current)?.controller.abort(); focusQuestion(); });
$("new").addEventListener("click", () => open(null));
$("write").addEventListener("click", () => { open(null); kind = "text"; show(); });
$("rename").addEventListener("click", () => {
  const one = conversation(), title = prompt("Title of this conversation; none takes its first question", titleOf(one));
  if (title === null) return;
  if (title.trim()) one.title = title.trim().slice(0, 200); else delete one.title;
  keep(one); show();
});
$("clear").addEventListener("click", () => { remove(conversation()); browse(false); focusQuestion(); });
$("forget").addEventListener("click", () => { if (confirm("Delete all conversations in this browser?")) removeAll(); });
$("search").addEventListener("input", showList);
$("search").addEventListener("keydown", (event) => {
  if (event.key === "ArrowDown") $("list").querySelector("button")?.focus();
  if (event.key !== "Escape" || !$("search").value) return;
  event.stopPropagation();
  $("search").value = "";
  showList();
});
$("export").addEventListener("click", exportAll);
$("import").addEventListener("click", () => $("file").click());
$("file").addEventListener("change", async ({ target }) => {
  if (target.files[0]) await importFrom(target.files[0]);
  target.value = "";
});
$("undo").addEventListener("click", () => { undo(); $("dismiss").focus(); });
$("dismiss").addEventListener("click", () => { $("toast").hidden = true; focusQuestion(); });
$("menu").addEventListener("click", () => browse(!document.body.classList.contains("browsing")));
$("veil").addEventListener("click", () => { browse(false); $("menu").focus(); });
$("adjust").addEventListener("click", () => { fill(settings); $("settings").showModal(); });
$("settings").addEventListener("submit", gather);
$("done").addEventListener("click", () => { $("settings-fault").textContent = ""; });
$("settings").addEventListener("input", () => { $("settings-fault").textContent = ""; });
// In the place of the browser's bubble, which goes by itself. Such an event does not bubble.
$("settings").addEventListener("invalid", (event) => {
  event.preventDefault();
  if ($("settings-fault").textContent) return;
  $("settings-fault").textContent = `${event.target.labels[0].firstChild.textContent.trim()}: ${event.target.validationMessage}`;
  event.target.focus();
}, true);
$("defaults").addEventListener("click", () => fill(DEFAULTS));
$("cancel").addEventListener("click", () => $("settings").close());
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || document.querySelector("dialog[open]")) return;
  if (document.body.classList.contains("browsing")) { browse(false); $("menu").focus(); }
  else lives.get(current)?.controller.abort();
});
document.addEventListener("visibilitychange", () => { if (!document.hidden) watch(); });
addEventListener("storage", follow);
addEventListener("pagehide", keepAll);
if (!conversation()) choose(null);
show(); scrollToEnd();
focusQuestion();
watch();
