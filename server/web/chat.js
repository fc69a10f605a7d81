// The tab "Chat": one conversation, answers as they are made.

import { call, drafts, events } from "./api.js";
import { acceptFiles, Attachments } from "./attachments.js";

const element = (id) => document.getElementById(id);
const messages = element("chat-messages");
const input = element("chat-input");
const attachments = new Attachments(element("chat-attached"), wrong);
let conversation = begun();

// What Clear puts in place of the one before: an answer that is still being made belongs to its own.
function begun() {
  return { said: [], answering: null };
}

// A bubble; text goes into its `said`.
export function bubble(list, role, name) {
  const message = document.createElement("div");
  message.className = `message ${role}`;
  const who = document.createElement("b");
  who.textContent = name;
  const said = document.createElement("span");
  said.className = "said";
  message.append(who, said);
  list.append(message);
  follow(list);
  return message;
}

// Keeps the end in sight, unless its reader has scrolled up.
export function follow(list) {
  if (list.scrollHeight - list.scrollTop - list.clientHeight < 160) list.scrollTop = list.scrollHeight;
}

function wrong(text) {
  bubble(messages, "wrong", "Error").querySelector(".said").textContent = text;
}

function thoughtsOf(message) {
  let thoughts = message.querySelector("details");
  if (!thoughts) {
    thoughts = document.createElement("details");
    const summary = document.createElement("summary");
    summary.textContent = "Thoughts";
    thoughts.append(summary, document.createElement("span"));
    message.insertBefore(thoughts, message.querySelector(".said"));
  }
  return thoughts.lastChild;
}

function request() {
  const system = element("chat-system").value.trim();
  const temperature = element("chat-temperature").value;
  const tokens = element("chat-tokens").value;
  return {
    model: element("chat-model").value,
    messages: [...(system ? [{ role: "system", content: system }] : []), ...conversation.said],
    stream: true,
    stream_options: { include_usage: true },
    ...(temperature === "" ? {} : { temperature: Number(temperature) }),
    ...(tokens === "" ? {} : { max_completion_tokens: Number(tokens) }),
  };
}

function figures(began, first, usage) {
  const now = performance.now();
  element("chat-first").textContent = first ? `${Math.round(first - began)} ms` : "–";
  const count = usage?.completion_tokens;
  element("chat-rate").textContent = count > 1 && first ? ((count - 1) / ((now - first) / 1000)).toFixed(1) : "–";
  element("chat-usage").textContent = usage ? `${usage.prompt_tokens} / ${count}` : "–";
}

// Others' answers of the same time count, too: the server tells no one's apart.
async function tokensAStep(before) {
  const [from, to] = [await before, await drafts()];
  const verified = from && to ? to.verified - from.verified : 0;
  element("chat-drafted").hidden = verified <= 0;
  if (verified > 0) element("chat-steps").textContent = (1 + (to.right - from.right) / verified).toFixed(2);
}

async function send(text) {
  const mine = conversation;
  const media = attachments.take();
  const question = bubble(messages, "user", "You");
  question.querySelector(".said").textContent = text;
  question.querySelector(".said").before(...media.shown);
  const answer = bubble(messages, "assistant live", element("chat-model").value);
  const said = answer.querySelector(".said");
  mine.answering = new AbortController();
  busy(true);
  const before = drafts();
  const began = performance.now();
  let first = null;
  let usage = null;
  let content = "";
  let failure = null;
  try {
    const parts = await media.parts();
    const words = text ? [{ type: "text", text }] : [];
    mine.said.push({ role: "user", content: parts.length ? [...parts, ...words] : text });
    const response = await call("v1/chat/completions", { body: request(), signal: mine.answering.signal });
    for await (const chunk of events(response)) {
      usage = chunk.usage ?? usage;
      const choice = chunk.choices[0];
      const delta = choice?.delta ?? {};
      const thought = delta.reasoning_content ?? delta.reasoning;
      if (thought) thoughtsOf(answer).append(thought);
      if (delta.content) said.append(delta.content);
      if (thought || delta.content) first ??= performance.now();
      if (choice?.finish_reason === "length") answer.classList.add("limited");
      content += delta.content ?? "";
      follow(messages);
    }
  } catch (error) {
    if (error.name === "AbortError") answer.classList.add("cut");
    else failure = error;
  }
  mine.answering = null;
  if (mine !== conversation) return; // it has been cleared away
  answer.classList.remove("live");
  if (failure) wrong(failure.message);
  if (content) {
    mine.said.push({ role: "assistant", content });
  } else {
    // a question without an answer would be asked again with the next
    if (mine.said.at(-1)?.role === "user") mine.said.pop();
    if (!answer.querySelector("details")) answer.remove();
    question.classList.add("unanswered");
    if (!input.value && attachments.empty) {
      input.value = text; // to be sent again
      attachments.giveBack(media.taken);
    }
  }
  figures(began, first, usage);
  tokensAStep(before);
  busy(false);
}

function busy(is) {
  element("chat-send").disabled = is;
  element("chat-stop").disabled = !is;
  messages.setAttribute("aria-busy", is);
}

// Only what the chosen model takes may be attached; `models` are the server's cards.
export function offerAttachments(models) {
  const chosen = element("chat-model");
  const offer = () => {
    const taken = models.find((model) => model.id === chosen.value)?.input_modalities;
    if (!taken) return;
    element("chat-file").accept = attachments.limit(taken);
    element("chat-attach").hidden = !element("chat-file").accept;
  };
  chosen.onchange = offer;
  offer();
}

export function startChat() {
  messages.dataset.empty = "Ask the model something.";
  element("chat-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const text = input.value.trim();
    if ((!text && attachments.empty) || conversation.answering) return;
    input.value = "";
    send(text);
  });
  input.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    element("chat-form").requestSubmit();
  });
  acceptFiles(element("chat-talk"), attachments);
  element("chat-attach").addEventListener("click", () => element("chat-file").click());
  element("chat-file").addEventListener("change", (event) => {
    attachments.add(event.target.files);
    event.target.value = ""; // the same file may be chosen again
  });
  element("chat-stop").addEventListener("click", () => conversation.answering?.abort());
  element("chat-clear").addEventListener("click", () => {
    conversation.answering?.abort();
    conversation = begun();
    messages.replaceChildren();
    busy(false);
  });
}
