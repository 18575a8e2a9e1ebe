/** Draws children anew; the focus stays on the control of the same name in the same place. */
function redraw(parent, children) {
  const focused = document.activeElement;
  const place = [...parent.children].findIndex((child) => child.contains(focused));
  parent.replaceChildren(...children);
  if (place < 0) return;
  const named = `[aria-label="${CSS.escape(focused.ariaLabel ?? "")}"]`;
  (parent.children[place]?.querySelector(named) ?? parent.closest("[tabindex]") ?? $("new")).focus();
}

function show() {
  document.documentElement.dataset.theme = settings.theme;
  const one = conversation(), live = lives.get(current);
  $("title").textContent = titleOf(one);
  document.title = one ? `${titleOf(one)} – Spillway` : "Spillway";
  $("clear").disabled = $("rename").disabled = !one;
  $("welcome").hidden = Boolean(one?.turns.length);
  redraw($("turns"), (one?.turns ?? []).map((turn, at) => turnElement(one, turn, at, live)));
  $("stop").hidden = !live;
  $("send").hidden = Boolean(live);
  showKind();
  showList();
}
/** A chat or a text, and what a new one begins with. */
function showKind() {
  const texts = isText();
  $("turns").classList.toggle("text", texts);
  $("asked").textContent = texts ? "Your text" : "Your question";
  $("question").placeholder = texts ? "Write on" : "Ask something";
  $("send").textContent = texts ? "Continue" : "Send";
  $("invitation").textContent = texts ? "Write a beginning; the model continues it." : "Ask the model something.";
  // A text alone is what a model without a template has learnt.
  $("new").hidden = model?.chat === false;
  $("write").classList.toggle("main", $("new").hidden);
  $("examples").replaceChildren(...(texts ? [] : model?.examples ?? []).slice(0, 3).map((text) =>
    element("button", { type: "button", text, click: () => ask(text) })));
}
function showList() {
  const wanted = $("search").value.trim().toLowerCase();
  const found = conversations.map((one) => [one, extract(one, wanted)]).filter(([, text]) => text !== null);
  redraw($("list"), found.map(([one, text]) => listElement(one, text)));
  $("found").textContent = wanted ? `${counted(found.length)} found` : "";
  $("forget").hidden = $("export").hidden = conversations.length === 0;
}
function listElement(one, text) {
  const parts = [titleOf(one)];
  if (lives.has(one.id)) parts.push(element("span", { class: "busy", role: "img", "aria-label": "is being answered" }));
  if (text) parts.push(element("span", { class: "extract", text }));
  return element("li", {},
    element("button", { type: "button", class: "open", "aria-current": String(one.id === current), click: () => open(one.id) }, ...parts),
    element("button", { type: "button", class: "quiet", text: "×", title: "Delete", "aria-label": `Delete conversation ${titleOf(one)}`, click: () => remove(one) }));
}
/** Text around what is sought, if any; `null` if the conversation lacks it. */
function extract(one, wanted) {
  if (!wanted) return "";
  for (const text of [titleOf(one), ...textsOf(one.turns)]) {
    const at = text.toLowerCase().indexOf(wanted);
    if (at >= 0) return `${at > 6 ? "…" : ""}${text.slice(Math.max(at - 6, 0), at + 80)}`;
  }
  return null;
}
function scrollToEnd() { $("log").scrollTop = $("log").scrollHeight; }
/** A reader at the end stays there, and one who has scrolled up is not moved. */
function atEnd(draw) {
  const log = $("log");
  const follows = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
  draw();
  if (follows) scrollToEnd();
}

function turnElement(one, turn, at, live) {
  const mine = turn.role === "user", shown = face(turn);
  const words = element("div", { class: "words" });
  write(words, turn, shown);
  const foot = element("div", { class: "foot" });
  const button = (text, label, click) => element("button", { type: "button", class: "quiet", text, "aria-label": label, click });
  if (!live) {
    if (turn.versions.length > 1) {
      const other = (text, label, to) => {
        const made = button(text, label, () => { turnTo(one, turn, to); keep(one); show(); });
        made.disabled = !turn.versions[to];
        return made;
      };
      foot.append(other("‹", "Earlier version", turn.at - 1),
        element("span", { class: "figures", text: `${turn.at + 1}/${turn.versions.length}`, role: "img", "aria-label": `Version ${turn.at + 1} of ${turn.versions.length}` }),
        other("›", "Later version", turn.at + 1));
    }
    const texts = one.kind === "text", part = texts ? "part" : mine ? "question" : "answer";
    if (mine) foot.append(button("Edit", texts ? "Edit this part and continue" : "Edit this question and ask again", () => edit(one, at)));
    else foot.append(button("Retry", texts ? "Continue otherwise" : "Answer again", () => answer(one, turn)));
    // Of a text, all up to here.
    const whole = () => one.turns.slice(0, at + 1).map((turn) => face(turn).content).join("");
    foot.append(button("Copy", texts ? "Copy the text up to here" : "Copy this text", () => copy(texts ? whole() : shown.content)));
    foot.append(button("Delete", `Delete this ${part} and all after it`, () => {
      if (one.turns[0] === turn && turn.versions.length === 1) remove(one);
      else deleted(`${part[0].toUpperCase()}${part.slice(1)} deleted.`, [one], () => { cut(one, turn); keep(one); });
    }));
  }
  if (shown.figures) foot.append(element("span", { class: "figures", text: shown.figures }));
  const made = element("article", { class: `turn ${mine ? "user" : "model"}` },
    element("h3", { text: mine ? "You" : "Model" }), words);
  if (shown.fault) made.append(element("div", { class: "fault", role: "alert", text: shown.fault }));
  if (words.classList.contains("tokens")) made.append(element("p", { class: "detail", role: "status" }));
  made.append(foot);
  if (live?.turn === turn) { made.classList.add("live"); live.words = words; }
  return made;
}

/** A question stands as it was typed. An answer is Markdown, or tokens coloured by their probability. */
function write(words, { role }, { content, tokens }) {
  const coloured = settings.colour && tokens?.length;
  words.classList.toggle("rich", role === "assistant" && settings.markdown && !coloured && !isText());
  if (coloured) writeTokens(words, content, tokens);
  else if (words.classList.contains("rich")) writeMarkdown(words, content);
  else words.textContent = content;
}

function open(id) {
  choose(id);
  kind = null;
  browse(false);
  show(); scrollToEnd();
  const wanted = $("search").value.trim().toLowerCase();
  const place = wanted ? conversation()?.turns.findIndex((turn) => face(turn).content.toLowerCase().includes(wanted)) : -1;
  $("turns").children[place]?.scrollIntoView();
  focusQuestion();
}
/** Over plain http, as on a phone in the same network, only the older command copies, if any does. */
async function copy(text) {
  try { await navigator.clipboard.writeText(text); } catch {
    const box = $("copied");
    box.value = text;
    $("copying").showModal();
    box.select();
    if (!document.execCommand("copy")) return;
    $("copying").close();
  }
  tell("Copied.");
}

function edit(one, at) {
  const turn = one.turns[at];
  const place = $("turns").children[at];
  const box = element("textarea", { rows: "3", "aria-label": isText() ? "Your text" : "Your question" });
  box.value = face(turn).content;
  const done = () => {
    if (!box.value.trim()) return;
    addVersion(one, turn, isText() ? box.value : box.value.trim());
    answer(one);
  };
  box.addEventListener("keydown", (event) => {
    if (ends(event)) { event.preventDefault(); done(); }
    if (event.key === "Escape") { event.stopPropagation(); show(); }
  });
  place.replaceChildren(element("h3", { text: "You" }), box, element("div", { class: "foot" },
    element("button", { type: "button", class: "main", text: isText() ? "Continue" : "Ask again", click: done }),
    element("button", { type: "button", class: "quiet", text: "Cancel", click: show })));
  box.focus();
}
