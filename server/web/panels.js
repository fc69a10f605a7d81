// What can be shown beside the conversation: the list of conversations, on a phone, and the settings.

import { element } from "./dom.js";

function showSettings(shown) {
  element("chat-settings").hidden = !shown;
  element("settings-show").setAttribute("aria-expanded", shown);
}

export function showHistory(shown) {
  document.body.classList.toggle("drawer", shown);
  element("history-show").setAttribute("aria-expanded", shown);
  if (shown) element("history-search").focus();
}

export function startPanels() {
  showSettings(matchMedia("(min-width: 64rem)").matches && localStorage.getItem("stentor-settings") !== "hidden");
  element("settings-show").addEventListener("click", () => {
    showSettings(element("chat-settings").hidden);
    localStorage.setItem("stentor-settings", element("chat-settings").hidden ? "hidden" : "shown");
  });
  element("history-show").addEventListener("click", () => showHistory(!document.body.classList.contains("drawer")));
}
