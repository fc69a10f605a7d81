// What is said in a voice session, while it is said: a bubble for each item of the conversation.

import { bubble, follow } from "./dom.js";
import { t } from "./language.js";

export class Captions {
  constructor(list) {
    this.list = list;
    this.clear();
  }

  clear() {
    this.bubbles = new Map(); // by item
    this.list.replaceChildren();
  }

  add(role, name) {
    const message = bubble(role, name);
    this.list.append(message);
    follow(this.list);
    return message;
  }

  // The bubble of an item, made when it is first heard of.
  of(item, role) {
    if (!this.bubbles.has(item)) this.bubbles.set(item, this.add(`${role} live`, role === "user" ? t("You") : "Stentor"));
    return this.bubbles.get(item);
  }

  // `whole`: the text replaces the current one; `done`: no more follows.
  write(item, role, text, { whole = false, done = false } = {}) {
    const message = this.of(item, role);
    const place = message.querySelector(".said");
    if (whole) place.textContent = text;
    else place.append(text);
    if (done) message.classList.remove("live");
    follow(this.list);
  }

  complain(text) {
    this.add("wrong", t("Error")).querySelector(".said").textContent = text;
  }

  // Nothing more comes of these; by default of all.
  settle(items = this.bubbles.keys()) {
    for (const item of items) this.bubbles.get(item)?.classList.remove("live");
  }

  // Marks an answer as `cut` or `limited`, where there is one.
  mark(item, how) {
    this.bubbles.get(item)?.classList.add(how);
  }

  // What has been said so far, as items of a conversation.
  items() {
    return [...this.bubbles].flatMap(([id, message]) => {
      const text = message.querySelector(".said").textContent;
      if (!text.trim()) return [];
      const isUser = message.classList.contains("user");
      const content = [{ type: isUser ? "input_text" : "output_text", text }];
      return [{ id, type: "message", role: isUser ? "user" : "assistant", content }];
    });
  }
}
