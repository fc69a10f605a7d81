// One message of a conversation: text, reasoning, tool calls, figures, and actions.

import { callsOf } from "./calls.js";
import { wordsOf } from "./conversation.js";
import { copy, make } from "./dom.js";
import { t } from "./language.js";
import { Growing } from "./markdown.js";
import { mediaOf } from "./media.js";
import { shortName } from "./models.js";
import { tokensOf } from "./tokens.js";

function nameOf({ role, model, name, approvals }) {
  if (approvals) return t("Your decision");
  if (role === "assistant") return model ? shortName(model) : t("Assistant");
  return role === "user" ? t("You") : t("Result of {}", name ?? t("a tool"));
}

export class MessageView {
  // `actions`: edit(node, text), again(node), goOn(node), turn(node, step), results(node, texts),
  // approve(node, approvals).
  constructor(node, actions) {
    this.node = node;
    this.actions = actions;
    this.said = make("div", { className: "said" });
    this.text = node.role === "assistant" ? new Growing(this.said) : null;
    this.thoughts = null;
    this.calls = make("div", { className: "calls" });
    this.foot = make("div", { className: "foot" });
    const parts = [make("b", {}, nameOf(node)), ...mediaOf(node), this.said, this.calls, this.foot];
    this.place = make("div", { className: `message ${node.role}` }, ...parts);
    this.pending = false;
  }

  // Shows more of an answer, at most once a frame.
  grow(onShown) {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => {
      this.pending = false;
      this.draw();
      onShown();
    });
  }

  draw() {
    const { node } = this;
    if (this.text) this.text.show(node.content ?? "");
    else this.said.textContent = wordsOf(node);
    for (const mark of ["live", "cut", "limited"]) this.place.classList.toggle(mark, Boolean(node[mark]));
    if (node.reasoning) this.think(node.reasoning);
    if (node.tool_calls || node.items) this.calls.replaceChildren(...callsOf(node, this.actions));
  }

  // The line below the text; `place` of how many `branches` this is, and whether actions are allowed now.
  finish({ place, branches, isLast, busy }) {
    this.draw();
    const { node, actions } = this;
    const button = (label, name, onclick) => {
      const spoken = /\p{L}/u.test(label) ? null : name; // a screen reader cannot read a symbol
      return make("button", { type: "button", title: name, "aria-label": spoken, onclick }, label);
    };
    const parts = [];
    if (branches > 1) {
      const earlier = button("‹", t("Earlier version"), () => actions.turn(node, -1));
      const later = button("›", t("Later version"), () => actions.turn(node, 1));
      earlier.disabled = busy || place === 0;
      later.disabled = busy || place === branches - 1;
      parts.push(make("span", { className: "branches" }, earlier, make("span", {}, `${place + 1}/${branches}`), later));
    }
    if (!node.live) {
      const copied = button(t("Copy"), t("Copy the text"), () => copy(wordsOf(node), copied));
      parts.push(copied);
      if (node.logprobs) parts.push(button(t("Tokens"), t("Probabilities of tokens"), () => this.drawTokens()));
      if (!busy && node.role === "user") parts.push(button(t("Edit"), t("Edit and send again"), () => this.edit()));
      if (!busy && node.role === "assistant") parts.push(button(t("Regenerate"), t("Answer anew"), () => actions.again(node)));
      if (!busy && isLast && (node.limited || node.cut) && node.content && !node.tool_calls && !node.items) {
        parts.push(button(t("Continue"), t("Go on where the answer ended"), () => actions.goOn(node)));
      }
    }
    if (node.figures) parts.push(make("span", { className: "figures-line" }, figuresOf(node.figures)));
    this.foot.replaceChildren(...parts);
    for (const asked of this.calls.querySelectorAll("form")) asked.hidden = !isLast || busy;
  }

  think(text) {
    if (!this.thoughts) {
      this.thoughts = make("span", {});
      this.said.before(make("details", { className: "thoughts" }, make("summary", {}, t("Thoughts")), this.thoughts));
    }
    if (this.thoughts.textContent !== text) this.thoughts.textContent = text;
  }

  // Shows the tokens in place of the text, or the text again; each says how probable it was.
  drawTokens() {
    const shown = this.place.querySelector(".tokens");
    this.said.hidden = !shown;
    if (shown) return shown.remove();
    this.said.after(tokensOf(this.node.logprobs));
  }

  edit() {
    const input = make("textarea", { value: wordsOf(this.node), rows: 3, "aria-label": t("Edited message") });
    const end = () => {
      form.replaceWith(this.said);
      this.foot.hidden = false;
    };
    const onsubmit = (event) => {
      event.preventDefault();
      const text = input.value.trim();
      end();
      if (text) this.actions.edit(this.node, text);
    };
    input.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        event.stopPropagation();
        end();
      }
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      form.requestSubmit();
    });
    const cancel = make("button", { type: "button", onclick: end }, t("Cancel"));
    const form = make("form", { className: "edit", onsubmit }, input, make("div", {}, make("button", { className: "main" }, t("Send")), cancel));
    this.said.replaceWith(form);
    this.foot.hidden = true;
    input.focus();
  }
}

function figuresOf({ prompt, answer, first, rate }) {
  const parts = [];
  if (answer !== undefined) parts.push(t("{} → {} tokens", prompt, answer));
  if (rate) parts.push(t("{} tokens/s", rate.toFixed(1)));
  if (first) parts.push(t("first token {} ms", Math.round(first)));
  return parts.join(" · ");
}
