/*
 * A conversation is a list of turns, each with versions of which one is shown. The turns after a version lie in its
 * `rest` while another is shown, so that answering again and editing lose nothing.
 */
function newTurn(role, content) { return { role, at: 0, versions: [{ content }] }; }
/** Turns of an earlier page had one version. */
function turnOf({ role, versions, at, ...only }) { return versions ? { role, at, versions } : { role, at: 0, versions: [only] }; }
function face(turn) { return turn.versions[turn.at]; }

function turnTo(one, turn, at) {
  face(turn).rest = one.turns.splice(one.turns.indexOf(turn) + 1);
  turn.at = at;
  one.turns.push(...(face(turn).rest ?? []));
  delete face(turn).rest;
}
function addVersion(one, turn, content) { turnTo(one, turn, turn.versions.push({ content }) - 1); }
/** Takes away the version shown and all after it. The turn goes with its last version. */
function cut(one, turn) {
  const gone = turn.at;
  if (turn.versions.length === 1) { one.turns.length = one.turns.indexOf(turn); return; }
  turnTo(one, turn, gone ? gone - 1 : 1);
  turn.versions.splice(gone, 1);
  if (gone === 0) turn.at = 0;
}

/** Of all versions. */
function textsOf(turns) {
  return turns.flatMap(({ versions }) => versions.flatMap(({ content, rest = [] }) => [content, ...textsOf(rest)]));
}
/** Its own title, or the beginning of its first question. */
function titleOf(one) {
  if (one?.title) return one.title;
  const first = one?.turns.find((turn) => turn.role === "user");
  return first ? face(first).content.replace(/\s+/g, " ").trim().slice(0, 60) : isText() ? "New text" : "New conversation";
}
