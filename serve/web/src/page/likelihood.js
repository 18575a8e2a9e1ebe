/*
 * Tokens by their probability. A token is its bytes, its log-probability and the likeliest others with theirs.
 */
const OTHERS = 3;

/** Of a chat's answer, or in the older form of a text's. */
function tokensOf(logprobs) {
  const made = (token, bytes, logprob, top) => {
    const others = top.filter(([other]) => other !== token).slice(0, OTHERS);
    return [bytes, short(logprob), others.map(([other, logprob]) => [other, short(logprob)])];
  };
  if (logprobs?.content) {
    return logprobs.content.map(({ token, bytes, logprob, top_logprobs: top }) =>
      made(token, bytes, logprob, top.map((other) => [other.token, other.logprob])));
  }
  return (logprobs?.tokens ?? []).map((token, at) => {
    const top = Object.entries(logprobs.top_logprobs[at]).sort(([, one], [, other]) => other - one);
    return made(token, [...new TextEncoder().encode(token)], logprobs.token_logprobs[at], top);
  });
}
/** The browser has little room. */
function short(logprob) { return Math.round(logprob * 1e4) / 1e4; }

/** The less likely, the stronger the colour: one hue, for eyes that do not tell two apart. */
function writeTokens(words, content, tokens) {
  const decoder = new TextDecoder();
  const marks = tokens.map(([bytes, logprob]) => {
    const mark = element("mark", { text: decoder.decode(new Uint8Array(bytes), { stream: true }) });
    mark.style.background = `hsl(28 95% 50% / ${(0.6 * (1 - Math.exp(logprob))).toFixed(2)})`;
    return mark;
  });
  const shown = marks.map((mark) => mark.textContent).join("");
  // The older form has no bytes, and a token may be a part of a character.
  if (!content.startsWith(shown)) { words.textContent = content; return; }
  words.replaceChildren(...marks, content.slice(shown.length));
  words.classList.add("tokens");
  words.tabIndex = 0;
  words.setAttribute("role", "group");
  words.setAttribute("aria-label", "Tokens of the answer; arrow keys go from one to the next");
}

function named(text, logprob) { return `“${text.replaceAll("\n", "⏎")}” ${(Math.exp(logprob) * 100).toFixed(1)} %`; }
function pick(mark) {
  const article = mark?.closest(".turn");
  const line = article?.querySelector(".detail");
  if (!line) return;
  article.querySelector(".picked")?.classList.remove("picked");
  mark.classList.add("picked");
  mark.scrollIntoView({ block: "nearest" });
  const turn = conversation().turns[[...$("turns").children].indexOf(article)];
  const [, logprob, others = []] = face(turn).tokens[[...mark.parentElement.children].indexOf(mark)];
  const rest = others.map(([text, logprob]) => named(text, logprob)).join(", ");
  line.textContent = `${named(mark.textContent, logprob)}${rest ? `; others: ${rest}` : ""}`;
}

$("turns").addEventListener("click", ({ target }) => { if (target.matches("mark")) pick(target); });
$("turns").addEventListener("keydown", (event) => {
  if (!event.target.matches(".tokens")) return;
  const marks = [...event.target.querySelectorAll("mark")];
  const at = marks.findIndex((mark) => mark.matches(".picked"));
  const to = { ArrowRight: at + 1, ArrowLeft: Math.max(at, 1) - 1, Home: 0, End: marks.length - 1 }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  pick(marks[Math.min(to, marks.length - 1)]);
});
