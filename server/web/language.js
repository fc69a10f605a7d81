// The page's language: English, or another for which there is a table of its texts.

import { element } from "./dom.js";
import { GERMAN } from "./german.js";

const TABLES = { en: {}, de: GERMAN };
const KEY = "stentor-language";

function chosen() {
  const wanted = localStorage.getItem(KEY) ?? navigator.language.slice(0, 2);
  return wanted in TABLES ? wanted : "en";
}

export const language = chosen();
const table = TABLES[language];

// An English text in the page's language; each {} is replaced by one of `values`.
export function t(text, ...values) {
  let at = 0;
  return (table[text] ?? text).replaceAll("{}", () => values[at++]);
}

export function number(value) {
  return value.toLocaleString(language);
}

// Translates the page's initial texts, and offers the other languages.
export function startLanguage() {
  document.documentElement.lang = language;
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const found = table[texts.currentNode.data.trim().replace(/\s+/g, " ")];
    if (found) texts.currentNode.data = texts.currentNode.data.replace(/\S[^]*\S|\S/, () => found);
  }
  for (const name of ["placeholder", "title", "aria-label"]) {
    for (const each of document.querySelectorAll(`[${name}]`)) each.setAttribute(name, t(each.getAttribute(name)));
  }
  element("language").value = language;
  element("language").addEventListener("change", ({ target }) => {
    localStorage.setItem(KEY, target.value);
    location.reload();
  });
}
