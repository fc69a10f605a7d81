// Named settings, stored in this browser.

import { element } from "./dom.js";
import { t } from "./language.js";

const KEY = "stentor-presets";

function kept() {
  try {
    return JSON.parse(localStorage.getItem(KEY)) ?? {};
  } catch {
    return {}; // foreign content
  }
}

function draw(chosen) {
  const list = element("preset-list");
  const names = Object.keys(kept()).sort();
  list.replaceChildren(new Option(t("none"), ""), ...names.map((name) => new Option(name, name)));
  list.value = names.includes(chosen) ? chosen : "";
  element("preset-delete").disabled = !list.value;
}

function write(presets, chosen) {
  localStorage.setItem(KEY, JSON.stringify(presets));
  draw(chosen);
}

// `values()` are the current settings, `show(values)` replaces them, `onChanged()` is called afterwards.
export function startPresets({ values, show, onChanged }) {
  draw("");
  element("preset-list").addEventListener("change", ({ target }) => {
    draw(target.value);
    if (!target.value) return;
    show(kept()[target.value]);
    onChanged();
  });
  element("preset-save").addEventListener("click", () => {
    const name = prompt(t("Name of the preset"), element("preset-list").value)?.trim();
    if (!name) return;
    const { model, ...rest } = values(); // a preset goes with any model
    write({ ...kept(), [name]: rest }, name);
  });
  element("preset-delete").addEventListener("click", () => {
    const { [element("preset-list").value]: gone, ...rest } = kept();
    write(rest, "");
  });
}
