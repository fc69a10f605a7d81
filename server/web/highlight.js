// Syntax colours of code: comments, strings, numbers and keywords.

import { make } from "./dom.js";

const WORDS = {
  python: "and as assert async await break case class continue def del elif else except False finally for from global if import in is lambda match None nonlocal not or pass raise return True try while with yield self",
  script: "abstract as async await bool break case catch class const continue def default delete do else enum export extends false final finally float fn for from func function go if impl implements import in instanceof int interface let long match mod mut new nil null package private protected pub public return self static string struct super switch this throw throws trait true try type typeof undefined union unsafe use var void where while yield",
  c: "auto bool break case catch char class const constexpr continue default delete do double else enum explicit extern false float for friend goto if inline int long namespace new noexcept nullptr operator private protected public register return short signed sizeof static struct switch template this throw true try typedef typename union unsigned using virtual void volatile while",
  shell: "case do done elif else esac export fi for function if in local return then until while cd echo exit set source sudo",
  sql: "ADD ALL ALTER AND AS ASC BETWEEN BY CASE COLUMN CREATE DELETE DESC DISTINCT DROP ELSE END EXISTS FALSE FROM FULL GROUP HAVING IN INDEX INNER INSERT INTO IS JOIN KEY LEFT LIKE LIMIT NOT NULL ON OR ORDER OUTER PRIMARY REFERENCES RIGHT SELECT SET TABLE THEN TRUE UNION UNIQUE UPDATE VALUES VIEW WHEN WHERE WITH",
  data: "true false null True False None",
};
const HASH = String.raw`#[^\n]*`;
const SLASHES = String.raw`\/\/[^\n]*|\/\*[^]*?(?:\*\/|$)`;
const STRINGS = String.raw`"(?:[^"\\\n]|\\.)*"?|'(?:[^'\\\n]|\\.)*'?`;
const FAMILIES = [
  ["python", ["python", "py"], HASH, String.raw`"""[^]*?(?:"""|$)|'''[^]*?(?:'''|$)|` + STRINGS],
  ["script", ["javascript", "js", "jsx", "typescript", "ts", "tsx", "java", "kotlin", "go", "rust", "rs", "swift", "php", "scala", "dart"], SLASHES, "`(?:[^`\\\\]|\\\\.)*`?|" + STRINGS],
  ["c", ["c", "cpp", "c++", "h", "hpp", "cs", "csharp", "cuda"], SLASHES, STRINGS],
  ["shell", ["sh", "bash", "shell", "zsh", "console", "dockerfile", "make"], HASH, STRINGS],
  ["sql", ["sql"], String.raw`--[^\n]*`, STRINGS],
  ["data", ["json", "yaml", "yml", "toml", "ini", "css"], `${HASH}|${SLASHES}`, STRINGS],
];
const MOST = 100_000; // characters; longer code stays plain

const lexers = new Map(); // by language
for (const [family, languages, comment, string] of FAMILIES) {
  const words = new Set(WORDS[family].split(" "));
  const pattern = new RegExp(`(${comment})|(${string})|(\\b\\d[\\w.]*)|([A-Za-z_$][\\w$]*)`, "g");
  const isWord = family === "sql" ? (word) => words.has(word.toUpperCase()) : (word) => words.has(word);
  for (const language of languages) lexers.set(language, { pattern, isWord });
}

// Text and elements that show `text`; only text where the language is not known.
export function highlight(text, language) {
  const lexer = lexers.get(language.toLowerCase());
  if (!lexer || text.length > MOST) return [text];
  const made = [];
  let end = 0;
  for (const match of text.matchAll(lexer.pattern)) {
    const [found, comment, string, number, word] = match;
    if (word && !lexer.isWord(word)) continue;
    const kind = comment ? "comment" : string ? "string" : number ? "number" : "word";
    made.push(text.slice(end, match.index), make("span", { className: `code-${kind}` }, found));
    end = match.index + found.length;
  }
  made.push(text.slice(end));
  return made;
}
