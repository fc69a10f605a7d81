import { call, keyInUse, useKey } from "./api.js";
import { offerModels, startChat } from "./chat.js";
import { element } from "./dom.js";
import { startLanguage, t } from "./language.js";
import { showLive } from "./live.js";
import { offer } from "./models.js";
import { startPanels } from "./panels.js";
import { startTheme } from "./theme.js";
import { offerTools, startTools } from "./tools.js";
import { leaveVoice, startVoice } from "./voice.js";

const AGAIN = 2000; // milliseconds until a server that is starting is asked again
const tabs = [...document.querySelectorAll("[role=tab]")];

function show(tab) {
  for (const each of tabs) {
    const chosen = each === tab;
    each.setAttribute("aria-selected", chosen);
    each.tabIndex = chosen ? 0 : -1;
    element(each.getAttribute("aria-controls")).hidden = !chosen;
  }
  if (tab.id !== "voice-tab") leaveVoice();
  showLive(tab.id === "live-tab");
  window.history.replaceState(null, "", `${location.pathname}${location.search}#${tab.getAttribute("aria-controls")}`);
}

for (const tab of tabs) {
  tab.addEventListener("click", () => show(tab));
  tab.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: tabs.length - 1 }[event.key];
    if (!step) return;
    const next = tabs[(tabs.indexOf(tab) + step) % tabs.length];
    show(next);
    next.focus();
  });
}

async function load() {
  const status = element("status");
  status.classList.remove("wrong");
  status.textContent = t("Connecting …");
  try {
    const { data } = await (await call("v1/models")).json();
    const named = (kind) => data.filter((model) => (model.kind ?? "chat") === kind).map((model) => model.id);
    const [chat, transcription, speech] = ["chat", "transcription", "speech"].map(named);
    offerModels(data);
    offer(element("voice-model"), chat);
    offer(element("voice-transcription"), transcription, t("none is served"));
    const voices = speech.length ? (await (await call("v1/audio/voices")).json()).voices : [];
    const choice = element("voice-voice");
    choice.replaceChildren(new Option(t("the default"), ""), ...voices.map(({ id, name }) => new Option(name ?? id, id)));
    offerTools(named, voices);
    if (!speech.length) element("voice-modality").value = "text";
    element("voice-modality").options[0].disabled = !speech.length;
    element("voice-messages").dataset.empty = transcription.length
      ? t("Start the microphone and say something, or play a recording.")
      : t("Nobody can hear you here, but you can write: no transcription model is served (--transcription-model, or --demo).");
    status.textContent = data.length === 1 ? t("1 model at {}", location.host) : t("{} models at {}", data.length, location.host);
  } catch (error) {
    status.classList.add("wrong");
    status.textContent = error.status === 401 ? t("This server wants an API key") : error.message;
    if (error.status === 401) {
      element("key-form").hidden = false;
      element("key").focus();
    }
    if (error.status === 503 || error instanceof TypeError) setTimeout(load, AGAIN);
  }
}

element("key").value = keyInUse();
element("key-form").hidden = !keyInUse();
element("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  useKey(element("key").value);
  load();
  showLive(!element("live").hidden);
});

startLanguage();
startTheme();
startPanels();
startChat();
startVoice();
startTools();
show(tabs.find((tab) => `#${tab.getAttribute("aria-controls")}` === location.hash) ?? tabs[0]);
load();
