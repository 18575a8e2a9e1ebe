/*
 * Markdown as elements: no text becomes markup, no attribute comes from a text but the address of a link. Work is linear
 * in the text, but for short stretches that are tried again; deeper levels than `LEVELS` stay text.
 */
const LEVELS = 5;
const FENCE = /^ {0,3}(?=(`{3,}|~{3,}))\1([^`]*)$/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])( {1,4}|\t|$)/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*)$/;
const RULE = /^ {0,3}([-*_])( *\1){2,} *$/;
const COLUMNS = /^\|?:?-+:?(\|:?-+:?)*\|?$/;
const INLINE = new RegExp([
  /\\([!-/:-@[-`{-~])/, // 1: escaped
  /(`{1,3})(?!`)([^`][^]{0,999}?)(?<!`)\2(?!`)/, // 2, 3: code
  /\[([^\][]{1,300})\]\(<?([^\s()<>]{1,999})>?\)/, // 4, 5: link
  /(https?:\/\/[^\s<>"`]{1,999})/, // 6: bare link
  /\*\*\*(?=\S)([^]{0,499}?\S)\*\*\*/, // 7: both
  /(\*\*|__)(?=\S)([^]{0,999}?\S)\8/, // 8, 9: bold
  /(?<![\w*])(\*|_)(?=[^\s*_])([^]{0,499}?[^\s*_])\10(?![\w*])/, // 10, 11: italic
  /~~(?=\S)([^]{0,499}?\S)~~/, // 12: struck out
].map(({ source }) => source).join("|"), "g");

/** Fills `parent`. Blocks whose source is unchanged keep their elements, so that a growing answer redraws its end. */
function writeMarkdown(parent, text) {
  const blocks = blocksOf(text.split("\n"));
  while (parent.childNodes.length > blocks.length) parent.lastChild.remove();
  blocks.forEach((block, at) => {
    const source = JSON.stringify(block), old = parent.childNodes[at];
    if (old?.source === source) return;
    const made = blockElement(block, 0);
    made.source = source;
    if (old) old.replaceWith(made); else parent.append(made);
  });
}

function blocksOf(lines) {
  const blocks = [];
  for (let at = 0; at < lines.length;) {
    const line = lines[at], from = at;
    const fence = FENCE.exec(line), item = ITEM.exec(line), heading = HEADING.exec(line);
    if (!line.trim()) at += 1;
    else if (fence) {
      const closes = (other) => other.trim().startsWith(fence[1]) && !other.trim().replaceAll(fence[1][0], "");
      for (at += 1; at < lines.length && !closes(lines[at]);) at += 1;
      blocks.push({ kind: "code", language: fence[2].trim().split(/\s/)[0], lines: lines.slice(from + 1, at) });
      at += 1;
    } else if (heading) { blocks.push({ kind: "heading", level: heading[1].length, text: heading[2].trimEnd().replace(/(^| )#+$/, "") }); at += 1; }
    else if (RULE.test(line)) { blocks.push({ kind: "rule" }); at += 1; }
    else if (/^ {0,3}>/.test(line)) {
      while (at < lines.length && /^ {0,3}>/.test(lines[at])) at += 1;
      blocks.push({ kind: "quote", lines: lines.slice(from, at).map((one) => one.replace(/^ {0,3}> ?/, "")) });
    } else if (item) {
      const list = { kind: "list", start: Number.parseInt(item[2], 10), items: [] };
      const isNext = (other) => Number.isNaN(list.start) === Number.isNaN(Number.parseInt(other[2], 10));
      for (let own; at < lines.length && (own = ITEM.exec(lines[at])) && isNext(own) && !RULE.test(lines[at]);) {
        const indent = own[0].length, held = [lines[at].slice(indent)];
        const isWithin = (line) => line.trim() ? /^ */.exec(line)[0].length >= Math.min(indent, 2) + own[1].length : false;
        for (at += 1; at < lines.length; at += 1) {
          if (isWithin(lines[at])) held.push(lines[at].slice(Math.min(/^ */.exec(lines[at])[0].length, indent)));
          else if (!lines[at].trim() && at + 1 < lines.length && isWithin(lines[at + 1])) held.push("");
          else break;
        }
        list.items.push(held);
        // An empty line between two items of a list.
        if (at + 1 < lines.length && !lines[at].trim() && ITEM.test(lines[at + 1])) at += 1;
      }
      blocks.push(list);
    } else if (line.includes("|") && COLUMNS.test((lines[at + 1] ?? "").replaceAll(" ", ""))) {
      for (at += 2; at < lines.length && lines[at].includes("|");) at += 1;
      blocks.push({ kind: "table", head: cellsOf(line), rows: lines.slice(from + 2, at).map(cellsOf) });
    } else {
      for (at += 1; at < lines.length && lines[at].trim() && !isStart(lines[at]);) at += 1;
      blocks.push({ kind: "text", text: lines.slice(from, at).join("\n") });
    }
  }
  return blocks;
}
/** Begins a block that ends the paragraph before. */
function isStart(line) {
  return FENCE.test(line) || HEADING.test(line) || RULE.test(line) || ITEM.test(line) || /^ {0,3}>/.test(line);
}
function cellsOf(line) {
  return line.trim().replace(/^\|/, "").replace(/\|$/, "").split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
}

function blockElement(block, level) {
  const within = (lines) => level < LEVELS ? blocksOf(lines).map((one) => blockElement(one, level + 1)) : [lines.join("\n")];
  switch (block.kind) {
    case "code": return codeElement(block);
    // The page itself has the levels above.
    case "heading": return element(`h${Math.min(block.level + 3, 6)}`, {}, ...inline(block.text));
    case "rule": return element("hr");
    case "quote": return element("blockquote", {}, ...within(block.lines));
    case "table": return tableElement(block);
    case "list": {
      const items = block.items.map((lines) => element("li", {}, ...itemParts(lines, within)));
      return Number.isNaN(block.start) ? element("ul", {}, ...items) : element("ol", { start: block.start }, ...items);
    }
    default: return element("p", {}, ...inline(block.text));
  }
}
/** A short item is no paragraph. */
function itemParts(lines, within) {
  const parts = within(lines);
  return parts[0]?.tagName === "P" ? [...parts[0].childNodes, ...parts.slice(1)] : parts;
}
function codeElement({ language, lines }) {
  const text = lines.join("\n");
  return element("figure", { class: "code" },
    element("figcaption", {}, element("span", { text: language }),
      element("button", { type: "button", class: "quiet", text: "Copy", "aria-label": "Copy this code", click: () => copy(text) })),
    element("pre", { tabindex: "0", role: "region", "aria-label": language ? `Code in ${language}` : "Code" }, element("code", { text })));
}
function tableElement({ head, rows }) {
  const row = (name, cells) => element("tr", {}, ...head.map((_, at) => element(name, {}, ...inline(cells[at] ?? ""))));
  return element("div", { class: "table", tabindex: "0", role: "region", "aria-label": "Table" }, element("table", {},
    element("thead", {}, row("th", head)), element("tbody", {}, ...rows.map((cells) => row("td", cells)))));
}

/** Emphasis, code and links. */
function inline(text, level = 0) {
  const parts = [];
  let from = 0;
  const within = (inner) => level < LEVELS ? inline(inner, level + 1) : [inner];
  for (const match of text.matchAll(INLINE)) {
    const [all, escaped, , code, label, address, bare, both, , bold, , italic, struck] = match;
    const made = escaped ?? (code !== undefined ? element("code", { text: code.replace(/^ (.+) $/s, "$1") })
      : label !== undefined ? link(address, all, within(label))
      : bare !== undefined ? bareLink(bare)
      : both !== undefined ? element("strong", {}, element("em", {}, ...within(both)))
      : bold !== undefined ? element("strong", {}, ...within(bold))
      : italic !== undefined ? element("em", {}, ...within(italic)) : element("s", {}, ...within(struck)));
    parts.push(text.slice(from, match.index), made);
    from = match.index + all.length;
  }
  return [...parts, text.slice(from)].filter((part) => part !== "");
}
/** Other schemes than the web's could run code; such a link stays text. */
function link(address, text, children) {
  if (!/^https?:\/\/[^/]/i.test(address)) return text;
  return element("a", { href: address, target: "_blank", rel: "noopener noreferrer", title: address }, ...children);
}
function bareLink(text) {
  const end = /[.,;:!?'")\]*_]*$/.exec(text).index;
  const made = link(text.slice(0, end), text, [text.slice(0, end)]);
  return made === text ? text : element("span", {}, made, text.slice(end));
}
