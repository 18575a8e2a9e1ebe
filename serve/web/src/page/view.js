function show() {
  const one = conversation();
  $("title").textContent = titleOf(one);
  document.title = one ? `${titleOf(one)} – Spillway` : "Spillway";
  $("clear").disabled = !one;
  $("welcome").hidden = Boolean(one?.turns.length);
  $("turns").replaceChildren(...(one?.turns ?? []).map((turn, at) => turnElement(one, turn, at)));
  $("list").replaceChildren(...conversations.map((other) => element("li", {},
    element("button", { type: "button", class: "open", text: titleOf(other), "aria-current": String(other.id === current), click: () => open(other.id) }),
    element("button", { type: "button", class: "quiet", text: "Delete", "aria-label": `Delete conversation ${titleOf(other)}`, click: () => remove(other.id) }))));
  $("forget").hidden = conversations.length === 0;
  $("stop").hidden = !live;
  $("send").hidden = Boolean(live);
  $("log").scrollTop = $("log").scrollHeight;
}

function turnElement(one, turn, at) {
  const mine = turn.role === "user";
  const words = element("div", { class: "words" });
  write(words, turn);
  const foot = element("div", { class: "foot" });
  const button = (text, label, click) => element("button", { type: "button", class: "quiet", text, "aria-label": label, click });
  if (!live) {
    if (mine) foot.append(button("Edit", "Edit this question and ask again", () => edit(one, at)));
    else foot.append(button("Retry", "Answer again", () => { one.turns.length = at; answer(one); }));
    foot.append(button("Copy", "Copy this text", () => copy(turn.content)));
    foot.append(button("Delete", mine ? "Delete this question and all after it" : "Delete this answer and all after it", () => {
      one.turns.length = at;
      if (one.turns.length === 0) remove(one.id); else { keep(one); show(); }
    }));
  }
  if (turn.figures) foot.append(element("span", { class: "figures", text: turn.figures }));
  const made = element("article", { class: `turn ${mine ? "user" : "model"}` },
    element("h3", { text: mine ? "You" : "Model" }), words);
  if (turn.fault) made.append(element("div", { class: "fault", role: "alert", text: turn.fault }));
  made.append(foot);
  if (live?.turn === turn) { made.classList.add("live"); live.words = words; live.foot = foot; }
  return made;
}

/** Shows text plainly, or each token coloured by its probability. */
function write(words, turn) {
  if (!settings.colour || !turn.tokens?.length) { words.textContent = turn.content; return; }
  const decoder = new TextDecoder();
  const marks = turn.tokens.map(([bytes, logprob]) => {
    const mark = element("mark", { text: decoder.decode(new Uint8Array(bytes), { stream: true }) });
    const probability = Math.exp(logprob);
    mark.style.background = `hsl(${Math.round(probability * 120)} 70% 50% / .35)`;
    mark.title = `${(probability * 100).toFixed(1)} %`;
    return mark;
  });
  const shown = marks.map((mark) => mark.textContent).join("");
  words.replaceChildren(...marks);
  if (turn.content.startsWith(shown)) words.append(turn.content.slice(shown.length));
}

function open(id) {
  if (live) live.controller.abort();
  choose(id);
  browse(false);
  show();
  $("question").focus();
}
function remove(id) {
  drop(id);
  localStorage.removeItem(KEY + id);
  show();
  tell("Conversation deleted.");
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
  const box = element("textarea", { rows: "3", "aria-label": "Your question" });
  box.value = turn.content;
  const done = () => {
    if (!box.value.trim()) return;
    one.turns.length = at;
    one.turns.push({ role: "user", content: box.value.trim() });
    answer(one);
  };
  box.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); done(); }
    if (event.key === "Escape") { event.stopPropagation(); show(); }
  });
  place.replaceChildren(element("h3", { text: "You" }), box, element("div", { class: "foot" },
    element("button", { type: "button", class: "quiet", text: "Ask again", click: done }),
    element("button", { type: "button", class: "quiet", text: "Cancel", click: show })));
  box.focus();
}
