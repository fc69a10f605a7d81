// An empty conversation: the server's models, and example questions.

import { make } from "./dom.js";
import { number, t } from "./language.js";
import { shortName } from "./models.js";

const KINDS = { chat: t("chat"), embedding: t("embeddings"), transcription: t("transcription"), speech: t("speech") };
const QUESTIONS = [
  t("Explain in three sentences how a transformer predicts the next word."),
  t("Write a Python function that checks whether a number is prime."),
  t("Compare bread and rice in a table: energy, protein, price."),
  t("Write a short poem about a lighthouse."),
];

// `onAsk(text)` gets the chosen question.
export function welcome(models, onAsk) {
  const served = models.map(({ id, kind, max_model_len }) =>
    make(
      "li",
      {},
      make("b", { title: id }, shortName(id)),
      ` ${KINDS[kind ?? "chat"] ?? kind}${max_model_len ? t(", {} tokens of context", number(max_model_len)) : ""}`,
    ),
  );
  const questions = QUESTIONS.map((text) => make("button", { type: "button", onclick: () => onAsk(text) }, text));
  const talks = models.some(({ kind }) => (kind ?? "chat") === "chat");
  return make(
    "div",
    { className: "welcome" },
    make("h2", {}, t("Ask the model something")),
    make("ul", {}, ...served),
    make("div", { className: "samples" }, ...(talks ? questions : [])),
  );
}
