// The tokens of an answer, in place of its text. One is chosen by pointer, by touch or by arrow keys; its probability
// and the alternatives are shown below it.

import { make } from "./dom.js";
import { t } from "./language.js";

const STEPS = { ArrowLeft: -1, ArrowRight: 1 };
let lists = 0;

// `logprobs` are of each token its text, its log-probability and those of the likeliest.
export function tokensOf(logprobs) {
  const prefix = `tokens-${lists++}`;
  const likely = make("div", { className: "likely", "aria-hidden": "true", hidden: true });
  const tokens = logprobs.map((each, at) => token(each, `${prefix}-${at}`));
  const list = make("div", { role: "listbox", tabIndex: 0, "aria-label": t("Probabilities of tokens") }, ...tokens);
  let chosen = null;
  const choose = (next) => {
    chosen?.setAttribute("aria-selected", "false");
    chosen = next;
    likely.hidden = !chosen;
    if (!chosen) return list.removeAttribute("aria-activedescendant");
    chosen.setAttribute("aria-selected", "true");
    list.setAttribute("aria-activedescendant", chosen.id);
    likely.textContent = chosen.getAttribute("aria-label");
    likely.style.top = `${chosen.offsetTop + chosen.offsetHeight}px`;
    likely.style.left = `${Math.max(0, Math.min(chosen.offsetLeft, list.clientWidth - likely.offsetWidth))}px`;
  };
  const pointed = ({ target }) => tokens.includes(target) && choose(target);
  list.addEventListener("pointerover", pointed);
  list.addEventListener("click", pointed);
  list.addEventListener("pointerleave", () => document.activeElement === list || choose(null));
  list.addEventListener("focus", () => chosen ?? choose(tokens[0]));
  list.addEventListener("blur", () => choose(null));
  list.addEventListener("keydown", (event) => {
    const last = tokens.length - 1;
    const at = { Home: 0, End: last }[event.key] ?? tokens.indexOf(chosen) + (STEPS[event.key] ?? NaN);
    if (Number.isNaN(at)) return;
    event.preventDefault();
    choose(tokens[Math.max(0, Math.min(at, last))]);
    chosen.scrollIntoView({ block: "nearest" });
  });
  return make("div", { className: "tokens" }, list, likely);
}

function token([text, logprob, others], id) {
  const written = ([each, its]) => `${JSON.stringify(each)} ${(100 * Math.exp(its)).toFixed(2)} %`;
  const list = others.length ? others : [[text, logprob]];
  const likely = Math.exp(logprob);
  const className = likely < 0.1 ? "unlikely" : likely < 0.5 ? "doubtful" : "";
  const label = list.map(written).join("\n");
  return make("span", { id, className, role: "option", "aria-selected": "false", "aria-label": label }, text);
}
