import { call, keyInUse, useKey } from "./api.js";
import { offerAttachments, startChat } from "./chat.js";
import { leaveVoice, startVoice } from "./voice.js";

const element = (id) => document.getElementById(id);
const tabs = [...document.querySelectorAll("[role=tab]")];

function show(tab) {
  for (const each of tabs) {
    const chosen = each === tab;
    each.setAttribute("aria-selected", chosen);
    each.tabIndex = chosen ? 0 : -1;
    element(each.getAttribute("aria-controls")).hidden = !chosen;
  }
  if (tab.id !== "voice-tab") leaveVoice();
  history.replaceState(null, "", `${location.pathname}${location.search}#${tab.getAttribute("aria-controls")}`);
}

for (const tab of tabs) {
  tab.addEventListener("click", () => show(tab));
  tab.addEventListener("keydown", (event) => {
    if (event.key !== "ArrowRight" && event.key !== "ArrowLeft") return;
    const next = tabs[(tabs.indexOf(tab) + 1) % tabs.length];
    show(next);
    next.focus();
  });
}

function offer(select, names, none) {
  const before = select.value;
  select.replaceChildren(...names.map((name) => new Option(name, name)));
  if (!names.length && none) select.append(new Option(none, ""));
  if (names.includes(before)) select.value = before;
}

async function load() {
  const status = element("status");
  status.classList.remove("wrong");
  status.textContent = "Connecting …";
  try {
    const { data } = await (await call("v1/models")).json();
    const named = (kind) => data.filter((model) => (model.kind ?? "chat") === kind).map((model) => model.id);
    const [chat, transcription, speech] = ["chat", "transcription", "speech"].map(named);
    offer(element("chat-model"), chat);
    offerAttachments(data);
    offer(element("voice-model"), chat);
    offer(element("voice-transcription"), transcription, "none is served");
    const voices = speech.length ? (await (await call("v1/audio/voices")).json()).voices : [];
    const choice = element("voice-voice");
    choice.replaceChildren(new Option("the default", ""), ...voices.map(({ id, name }) => new Option(name ?? id, id)));
    if (!speech.length) element("voice-modality").value = "text";
    element("voice-modality").options[0].disabled = !speech.length;
    element("voice-messages").dataset.empty = transcription.length
      ? "Start the microphone and say something, or play a recording."
      : "Nobody can hear you here, but you can write: no transcription model is served (--transcription-model, or --demo).";
    status.textContent = `${data.length} model${data.length === 1 ? "" : "s"} at ${location.host}`;
  } catch (error) {
    status.classList.add("wrong");
    status.textContent = error.status === 401 ? "This server wants an API key" : error.message;
    if (error.status === 401) element("key").focus();
    if (error.status === 503 || error instanceof TypeError) setTimeout(load, 2000);
  }
}

element("key").value = keyInUse();
element("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  useKey(element("key").value);
  load();
});

startChat();
startVoice();
show(location.hash === "#voice" ? tabs[1] : tabs[0]);
load();
