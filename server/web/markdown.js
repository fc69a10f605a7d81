// Markdown as elements. It comes from a model and is hostile: text only goes into text nodes, links only lead to the web
// and to mail, pictures are links, and each rule looks at a character a bounded number of times.

import { copy, make } from "./dom.js";
import { highlight } from "./highlight.js";
import { t } from "./language.js";
import { formula } from "./math.js";

const DEPTH = 6; // nesting of quotes, lists and emphasis; deeper text is plain
const FENCE = /^ {0,3}(`{3,}|~{3,})[ \t]*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+(.*))?$/;
const RULE = /^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])([ \t]+|$)/;
const DELIMITERS = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;
const DISPLAY = /^ {0,3}(?:\$\$|\\\[)/;
const MOST_LINES = 100; // of a formula

// Shows a text that grows: only the blocks that have changed are made anew.
export class Growing {
  constructor(place) {
    this.place = place;
    this.shown = []; // [source, element]
  }

  show(text) {
    const parts = blocks(text.split("\n"));
    let same = 0;
    while (same < parts.length && same < this.shown.length && parts[same].source === this.shown[same][0]) same++;
    for (const [, old] of this.shown.splice(same)) old.remove();
    for (const { source, make: build } of parts.slice(same)) {
      const made = build(0);
      this.place.append(made);
      this.shown.push([source, made]);
    }
  }
}

function inside(lines, depth) {
  if (depth > DEPTH) return [make("p", {}, lines.join("\n"))];
  return blocks(lines).map((block) => block.make(depth));
}

// The blocks of some lines: the source of each, and how it is made.
function blocks(lines) {
  const found = [];
  let at = 0;
  let level = 0; // of the last heading: none is more than one below the one before it
  const take = (until, build) => {
    found.push({ source: lines.slice(at, until).join("\n"), make: build });
    at = until;
  };
  while (at < lines.length) {
    const line = lines[at];
    const start = at;
    let match;
    if (!line.trim()) at++;
    else if ((match = FENCE.exec(line))) fence(lines, at, match, take);
    else if ((match = HEADING.exec(line))) {
      const [, marks, text = ""] = match;
      level = Math.min(marks.length, level + 1, 5);
      const tag = `h${level + 1}`; // the page itself is h1
      take(at + 1, () => make(tag, {}, ...inline(text.replace(/[ \t]#+[ \t]*$/, ""))));
    } else if (RULE.test(line)) take(at + 1, () => make("hr"));
    else if (DISPLAY.test(line)) display(lines, at, take);
    else if (QUOTE.test(line)) {
      let end = at;
      while (end < lines.length && QUOTE.test(lines[end])) end++;
      const quoted = lines.slice(at, end).map((each) => each.replace(QUOTE, ""));
      take(end, (depth) => make("blockquote", {}, ...inside(quoted, depth + 1)));
    } else if (ITEM.test(line)) list(lines, at, take);
    else if (line.includes("|") && lines[at + 1]?.includes("-") && DELIMITERS.test(lines[at + 1])) table(lines, at, take);
    if (at !== start) continue;
    let end = at + 1;
    while (end < lines.length && !interrupts(lines[end])) end++;
    const text = lines.slice(at, end).join("\n").trim();
    take(end, () => make("p", {}, ...inline(text)));
  }
  return found;
}

function interrupts(line) {
  const begins = [FENCE, HEADING, RULE, QUOTE, DISPLAY].some((pattern) => pattern.test(line));
  return !line.trim() || begins || (ITEM.test(line) && /\S/.test(line.replace(ITEM, "")));
}

function fence(lines, at, [, marks, info], take) {
  let end = at + 1;
  const closes = (line) => line.trim().startsWith(marks) && !line.trim().replaceAll(marks[0], "");
  while (end < lines.length && !closes(lines[end])) end++;
  const text = lines.slice(at + 1, end).join("\n");
  take(Math.min(end + 1, lines.length), () => code(text, info.trim().split(/\s/)[0]));
}

function code(text, language) {
  const button = make("button", { type: "button", onclick: () => copy(text, button) }, t("Copy"));
  const shown = make("code", {}, ...highlight(text, language));
  const bar = make("div", {}, make("span", {}, language || "text"), button);
  return make("div", { className: "code" }, bar, make("pre", { tabIndex: 0 }, shown));
}

// A formula on lines of its own. One whose end is missing, or that words follow, is part of a paragraph.
function display(lines, at, take) {
  const open = lines[at].trim().slice(0, 2);
  const close = open === "$$" ? "$$" : "\\]";
  for (let end = at; end < Math.min(at + MOST_LINES, lines.length); end++) {
    const stop = lines[end].indexOf(close, end === at ? lines[at].indexOf(open) + 2 : 0);
    if (stop < 0) continue;
    if (lines[end].slice(stop + 2).trim()) return;
    const text = [...lines.slice(at, end), lines[end].slice(0, stop)].join("\n");
    take(end + 1, () => make("p", {}, formula(text.trim().slice(2), true)));
    return;
  }
}

function list(lines, at, take) {
  const [, , first] = ITEM.exec(lines[at]);
  const kind = (mark) => (/\d/.test(mark) ? mark.at(-1) : mark);
  const items = [];
  let loose = false;
  let end = at;
  while (end < lines.length) {
    const match = ITEM.exec(lines[end]);
    if (!match || kind(match[2]) !== kind(first) || RULE.test(lines[end])) break;
    const indent = match[1].length + match[2].length + Math.min(Math.max(match[3].length, 1), 4);
    const held = [lines[end].slice(match[0].length)];
    end++;
    while (end < lines.length) {
      const line = lines[end];
      const inner = line.search(/\S/);
      if (inner < 0) {
        const next = lines.slice(end, end + 3).find((each) => each.trim());
        if (next === undefined || next.search(/\S/) < Math.min(indent, 2)) break;
        held.push("");
      } else if (inner >= Math.min(indent, 2)) held.push(line.slice(Math.min(inner, indent)));
      else if (!held.at(-1) || interrupts(line)) break;
      else held.push(line);
      end++;
    }
    items.push(held);
    let blank = end;
    while (blank < lines.length && !lines[blank].trim()) blank++;
    if (blank > end && blank < lines.length && ITEM.test(lines[blank])) {
      loose = true;
      end = blank;
    }
  }
  const ordered = /\d/.test(first);
  take(end, (depth) => {
    const made = make(ordered ? "ol" : "ul", !ordered || parseInt(first, 10) === 1 ? {} : { start: parseInt(first, 10) });
    if (loose) made.classList.add("loose");
    made.append(...items.map((held) => item(held, depth + 1)));
    return made;
  });
}

function item(lines, depth) {
  const task = /^\[([ xX])\][ \t]+/.exec(lines[0]);
  if (!task) return make("li", {}, ...inside(lines, depth));
  const box = make("input", { type: "checkbox", disabled: true, checked: task[1] !== " ", "aria-label": t("Done") });
  const rest = [lines[0].slice(task[0].length), ...lines.slice(1)];
  return make("li", { className: "task" }, box, ...inside(rest, depth));
}

function table(lines, at, take) {
  let end = at + 2;
  while (end < lines.length && lines[end].trim() && lines[end].includes("|")) end++;
  const sides = cells(lines[at + 1]).map((mark) => (mark.endsWith(":") ? (mark.startsWith(":") ? "middle" : "right") : ""));
  const row = (line, tag) =>
    make("tr", {}, ...cells(line).slice(0, sides.length).map((text, column) => make(tag, { className: sides[column] }, ...inline(text))));
  const rows = lines.slice(at + 2, end);
  take(end, () => {
    const head = make("thead", {}, row(lines[at], "th"));
    const made = make("table", {}, head, make("tbody", {}, ...rows.map((line) => row(line, "td"))));
    return make("div", { className: "table", tabIndex: 0, role: "region", "aria-label": t("Table") }, made);
  });
}

// The cells of a row; a bar after a backslash or in code belongs to its cell.
function cells(line) {
  const found = [""];
  const text = line.trim().replace(/^\|/, "");
  let coded = false;
  for (let at = 0; at < text.length; at++) {
    if (text[at] === "\\" && text[at + 1] === "|") found[found.length - 1] += text[++at];
    else if (text[at] === "|" && !coded) found.push("");
    else {
      if (text[at] === "`") coded = !coded;
      found[found.length - 1] += text[at];
    }
  }
  if (text.endsWith("|")) found.pop();
  return found.map((cell) => cell.trim());
}

const LINK = /!?\[((?:[^[\]\\]|\\.|\[[^[\]]{0,200}\]){0,1000})\]\([ \t]*<?([^\s<>()]{0,2000}(?:\([^\s<>()]{0,200}\)[^\s<>()]{0,2000})?)>?(?:[ \t]+"[^"]{0,500}")?[ \t]*\)/y;
const ADDRESS = /<?(https?:\/\/[^\s<>`"]{1,2000})>?/y;
const PLAIN = /[^\\`*_~[!<h$\n]+/y;
const WORD = /[\p{L}\p{N}]/u;
const MATH = /[\\^_{}=+<>()|/-]|^(?:[\d.,]+|\d*\p{L}(?:, ?\p{L})*)$/u; // text between two $ that are no prices

// What a line of text holds.
function inline(text, depth = 0) {
  const made = [];
  const never = new Set(); // marks that are not closed in the rest of the text: it is searched once for each
  let plain = "";
  let at = 0;
  const put = (node, until) => {
    if (plain) made.push(plain);
    plain = "";
    made.push(node);
    at = until;
  };
  const closing = (mark, from, fits) => {
    if (never.has(mark)) return -1;
    let end = text.indexOf(mark, from);
    for (let tries = 0; end >= 0 && !fits(end) && tries < 50; tries++) end = text.indexOf(mark, end + 1);
    if (end < 0) never.add(mark);
    return end >= 0 && fits(end) ? end : -1;
  };
  while (at < text.length) {
    const sign = text[at];
    const before = at;
    if (sign === "\n") put(make("br"), at + 1);
    else if (sign === "\\") {
      const close = { "(": "\\)", "[": "\\]" }[text[at + 1]];
      const end = close ? closing(close, at + 2, () => true) : -1;
      if (end >= 0) put(formula(text.slice(at + 2, end), close === "\\]"), end + 2);
      else if (/[!-/:-@[-`{-~]/.test(text[at + 1] ?? "")) [plain, at] = [plain + text[at + 1], at + 2];
    } else if (sign === "`") {
      const [marks] = /^`+/.exec(text.slice(at, at + 50));
      const alone = (end) => text[end - 1] !== "`" && text[end + marks.length] !== "`";
      const end = closing(marks, at + marks.length, alone);
      if (end >= 0) put(make("code", {}, text.slice(at + marks.length, end).replace(/^ (.+) $/, "$1")), end + marks.length);
      else [plain, at] = [plain + marks, at + marks.length];
    } else if (text.startsWith("$$", at)) {
      const end = closing("$$", at + 2, () => true);
      if (end > at + 2) put(formula(text.slice(at + 2, end), true), end + 2);
      else [plain, at] = [plain + "$$", at + 2];
    } else if (sign === "$") {
      const tight = (end) => !/\s/.test(text[end - 1]) && !/[\dA-Z$]/.test(text[end + 1] ?? "");
      const isFree = !WORD.test(text[at - 1] ?? "") && /[^\s).,;]/.test(text[at + 1] ?? " "); // neither US$ nor ($)
      const end = isFree ? closing("$", at + 1, tight) : -1;
      if (end >= 0 && MATH.test(text.slice(at + 1, end))) put(formula(text.slice(at + 1, end), false), end + 1);
    } else if (sign === "[" || sign === "!") {
      LINK.lastIndex = at;
      const match = LINK.exec(text);
      if (match) put(link(match[2], match[1], depth), LINK.lastIndex);
    } else if (sign === "<" || sign === "h") {
      ADDRESS.lastIndex = at;
      const match = sign === "h" && WORD.test(text[at - 1] ?? "") ? null : ADDRESS.exec(text);
      if (match) {
        const address = sign === "<" ? match[1] : match[1].replace(/[.,;:!?'*_~)\]}]+$/, "");
        put(link(address, null, depth), sign === "<" ? ADDRESS.lastIndex : at + address.length);
      }
    } else if ("*_~".includes(sign) && depth < DEPTH) {
      const found = emphasis(text, at, closing);
      if (found) put(make(found.tag, {}, ...inline(text.slice(at + found.size, found.end), depth + 1)), found.end + found.size);
    }
    if (at !== before) continue;
    PLAIN.lastIndex = at;
    const [run] = PLAIN.exec(text) ?? [sign];
    plain += run;
    at += run.length;
  }
  if (plain) made.push(plain);
  return made;
}

function emphasis(text, at, closing) {
  const sign = text[at];
  const size = text[at + 1] === sign ? 2 : 1;
  const inWord = (place) => sign === "_" && WORD.test(text[place] ?? "");
  if ((sign === "~" && size === 1) || /\s/.test(text[at + size] ?? " ") || inWord(at - 1)) return null;
  const fits = (end) =>
    end > at + size - 1 && !/\s/.test(text[end - 1]) && !inWord(end + size) &&
    (size === 2 ? text[end + 2] !== sign : text[end + 1] !== sign && text[end - 1] !== sign);
  const end = closing(sign.repeat(size), at + size, fits);
  return end < 0 ? null : { tag: sign === "~" ? "s" : size === 2 ? "strong" : "em", size, end };
}

function link(address, label, depth) {
  const shown = label === null ? [address] : depth < DEPTH ? inline(label, DEPTH) : [label];
  if (!/^(?:https?|mailto):/i.test(address)) return make("span", { title: address }, ...shown);
  return make("a", { href: address, target: "_blank", rel: "noopener noreferrer", title: address }, ...(label === "" ? [address] : shown));
}
