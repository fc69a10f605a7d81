// Light or dark: as the system has it, or as the reader wants it.

import { element } from "./dom.js";
import { t } from "./language.js";

const THEMES = {
  "": ["◐", t("Colours: as the system")],
  light: ["☀", t("Colours: light")],
  dark: ["☾", t("Colours: dark")],
};

function apply(theme) {
  const [sign, name] = THEMES[theme];
  document.documentElement.dataset.theme = theme;
  element("theme").textContent = sign;
  element("theme").title = name;
  element("theme").setAttribute("aria-label", name);
  localStorage.setItem("stentor-theme", theme);
}

export function startTheme() {
  const kept = localStorage.getItem("stentor-theme");
  apply(kept in THEMES ? kept : "");
  element("theme").addEventListener("click", () => {
    const names = Object.keys(THEMES);
    apply(names[(names.indexOf(document.documentElement.dataset.theme) + 1) % names.length]);
  });
}
