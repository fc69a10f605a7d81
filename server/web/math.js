// Formulas in TeX as MathML, by Temml, which is fetched with the first of them. They come from a model and are hostile:
// none may define macros, name files or addresses, or be larger than a screen. What Temml refuses stays as it was written.

import { make } from "./dom.js";

const LONGEST = 2000; // characters
const DEFINITIONS = /\\(?:[egx]?def|let|futurelet|(?:re|provide)?newcommand|DeclareMathOperator)\b/;
const OPTIONS = { throwOnError: true, wrap: "tex", trust: false, maxExpand: 1000, maxSize: [20, 20] };
const SLICE = 8; // milliseconds of a frame
const KEPT = 1000; // formulas: a text that grows shows them again and again

const typeset = new Map(); // elements by source, null for text that is no formula
const waiting = []; // [place, source, isDisplay]
let temml = null;

// What shows a formula: at first as it was written. `isDisplay`: on a line of its own.
export function formula(written, isDisplay) {
  const text = written.trim();
  const source = `${isDisplay} ${text}`;
  const known = typeset.get(source);
  const place = make("span", { className: isDisplay ? "math display" : "math", tabIndex: isDisplay ? 0 : null }, text);
  if (known) fill(place, known);
  else if (known !== null && text.length <= LONGEST && !DEFINITIONS.test(text)) {
    waiting.push([place, text, isDisplay, source]);
    if (waiting.length === 1) begin();
  }
  return place;
}

function fill(place, made) {
  place.replaceChildren(made.cloneNode(true));
  place.classList.add("typeset");
}

async function begin() {
  try {
    temml ??= (await import("./temml.js")).default;
    requestAnimationFrame(work);
  } catch {
    waiting.length = 0; // the server is gone
  }
}

// Typesets for a part of a frame, so that thousands of formulas do not block the page.
function work() {
  const end = performance.now() + SLICE;
  while (waiting.length && performance.now() < end) {
    const [place, text, displayMode, source] = waiting.shift();
    if (!place.isConnected) continue;
    if (!typeset.has(source)) typeset.set(source, made(text, displayMode));
    if (typeset.get(source)) fill(place, typeset.get(source));
    if (typeset.size > KEPT) typeset.delete(typeset.keys().next().value);
  }
  if (waiting.length) requestAnimationFrame(work);
}

function made(text, displayMode) {
  const place = document.createElement("span");
  try {
    temml.render(text, place, { ...OPTIONS, displayMode });
    return place.firstChild;
  } catch {
    return null; // no TeX, or more than it may have
  }
}
