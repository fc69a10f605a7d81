// The list of conversations: searched, renamed, deleted, exported and imported.

import { checked, newId, wordsOf } from "./conversation.js";
import { download, element, make } from "./dom.js";
import { t } from "./language.js";
import { forget, keep, stored } from "./store.js";

export class History {
  // `onOpen(conversation)` shows one, `onDeleted()` is called if the shown one was deleted, `onError(message)` on errors.
  constructor({ onOpen, onDeleted, onError }) {
    Object.assign(this, { onOpen, onDeleted, onError });
    this.conversations = [];
    this.shown = null; // the id of the one that is shown
    this.renaming = null;
    element("history-search").addEventListener("input", () => this.draw());
    element("history-export").addEventListener("click", () => this.export());
    element("history-import").addEventListener("click", () => element("history-file").click());
    element("history-file").addEventListener("change", async ({ target }) => {
      const [file] = target.files;
      target.value = ""; // the same file may be chosen again
      if (file) await this.import(file);
    });
  }

  async load() {
    this.conversations = await stored();
    for (const node of this.conversations.flatMap(({ nodes }) => Object.values(nodes))) {
      if (!node.live) continue;
      delete node.live; // the page was left while it was being made
      node.cut = true;
    }
    this.draw();
  }

  // Stores a changed conversation, and moves it to the head of the list.
  async keep(conversation) {
    this.conversations = [conversation, ...this.conversations.filter(({ id }) => id !== conversation.id)];
    this.draw();
    await keep(conversation);
  }

  select(conversation) {
    this.shown = conversation.id;
    sessionStorage.setItem("stentor-shown", this.shown); // shown again after a reload of this tab
    this.draw();
  }

  async delete(conversation) {
    if (!confirm(t("Delete “{}”?", conversation.title))) return;
    this.conversations = this.conversations.filter(({ id }) => id !== conversation.id);
    if (conversation.id === this.shown) this.onDeleted();
    this.draw();
    await forget(conversation.id);
  }

  export() {
    const data = { format: "stentor-conversations", version: 1, conversations: this.conversations };
    download("conversations.json", "application/json", JSON.stringify(data, null, 1));
  }

  async import(file) {
    try {
      const known = new Set(this.conversations.map(({ id }) => id));
      for (const conversation of checked(JSON.parse(await file.text())).reverse()) {
        if (known.has(conversation.id)) conversation.id = newId(); // existing ones stay
        await this.keep(conversation);
      }
    } catch (error) {
      this.onError(error instanceof SyntaxError ? `${file.name} is not JSON.` : error.message);
    }
  }

  draw() {
    const sought = element("history-search").value.trim().toLowerCase();
    const found = this.conversations.filter((each) => !sought || matches(each, sought));
    element("history-list").replaceChildren(...found.map((each) => this.line(each)));
    element("history-none").hidden = found.length > 0;
    element("history-none").textContent = sought ? t("None has these words.") : t("Conversations are kept in this browser.");
    element("history-export").disabled = !this.conversations.length;
  }

  line(conversation) {
    if (conversation.id === this.renaming) return make("li", {}, this.renamed(conversation));
    const isShown = conversation.id === this.shown;
    const title = conversation.title || t("Untitled");
    const open = make("button", { className: "title", title, onclick: () => this.onOpen(conversation) }, title);
    if (isShown) open.setAttribute("aria-current", "true");
    const rename = make("button", {
      "aria-label": t("Rename {}", title),
      title: t("Rename"),
      onclick: () => {
        this.renaming = conversation.id;
        this.draw();
        element("history-list").querySelector("input").select();
      },
    }, "✎");
    const remove = { "aria-label": t("Delete {}", title), title: t("Delete"), onclick: () => this.delete(conversation) };
    return make("li", {}, open, rename, make("button", remove, "×"));
  }

  renamed(conversation) {
    let done = false;
    const end = (title) => {
      if (done) return;
      done = true;
      this.renaming = null;
      if (title) conversation.title = title;
      this.draw();
      if (title) keep(conversation);
    };
    return make("input", {
      value: conversation.title,
      "aria-label": t("Title"),
      onblur: ({ target }) => end(target.value.trim()),
      onkeydown: (event) => {
        if (event.key === "Enter") end(event.target.value.trim());
        if (event.key !== "Escape") return;
        event.stopPropagation();
        end("");
      },
    });
  }
}

function matches({ title, nodes }, sought) {
  return (
    title.toLowerCase().includes(sought) ||
    Object.values(nodes).some((node) => wordsOf(node).toLowerCase().includes(sought))
  );
}
