// The tab "Chat": the shown conversation, and sending.

import { answer } from "./answer.js";
import { acceptFiles, Attachments } from "./attachments.js";
import { add, choose, newConversation, path, siblings, withdraw, wordsOf } from "./conversation.js";
import { showCode } from "./code.js";
import { arrange, bubble, element, follow } from "./dom.js";
import { History } from "./history.js";
import { number, t } from "./language.js";
import { MessageView } from "./message.js";
import { showHistory } from "./panels.js";
import { Settings } from "./settings.js";
import { welcome } from "./welcome.js";

const SAVED_EVERY = 1000; // milliseconds, while an answer is made
const TITLE = 60; // characters

const messages = element("chat-messages");
const input = element("chat-input");
const attachments = new Attachments(element("chat-attached"), wrong);
const settings = new Settings(() => {
  conversation.settings = settings.values();
  if (conversation.leaf) history.keep(conversation);
});
const history = new History({ onOpen: open, onDeleted: begin, onError: wrong });

let conversation = newConversation();
let views = new Map(); // by the id of a message
let notes = []; // below the messages: errors, and questions that were not answered
let answering = null; // aborts the running answer
let models = [];

function wrong(text) {
  const note = bubble("wrong", t("Error"));
  note.lastChild.textContent = text;
  notes.push(note);
  draw();
}

// Draws the conversation; messages that are there already stay as they are.
function draw() {
  const nodes = path(conversation);
  for (const node of nodes) if (!views.has(node.id)) views.set(node.id, new MessageView(node, ACTIONS));
  nodes.forEach((node, at) => {
    const alike = siblings(conversation, node);
    const isLast = at === nodes.length - 1;
    views.get(node.id).finish({ place: alike.indexOf(node), branches: alike.length, isLast, busy: Boolean(answering) });
  });
  const shown = [...nodes.map(({ id }) => views.get(id).place), ...notes];
  arrange(messages, shown.length ? shown : [welcome(models, (text) => ask(text))]);
  messages.setAttribute("aria-busy", Boolean(answering));
  drawGauge(nodes);
  element("chat-send").hidden = Boolean(answering);
  element("chat-stop").hidden = !answering;
  follow(messages);
}

// Use of the model's context by the conversation, from the last answer's usage.
function drawGauge(nodes) {
  const most = models.find(({ id }) => id === settings.model)?.max_model_len;
  const last = nodes.findLast(({ figures }) => figures?.answer !== undefined)?.figures;
  const taken = last ? last.prompt + last.answer : 0;
  element("chat-gauge").hidden = !most || !last;
  element("chat-gauge").max = most ?? 1;
  element("chat-gauge").high = 0.9 * (most ?? 1);
  element("chat-gauge").value = taken;
  element("chat-context").textContent = most && last ? t("{} / {} tokens", number(taken), number(most)) : "";
}

// Answers the message that is shown last, in a message of its own; false where nothing came of it.
async function reply({ onto } = {}) {
  const mine = conversation;
  const model = settings.model;
  const before = mine.leaf;
  let request = null;
  try {
    request = settings.request(path(mine), { isContinued: Boolean(onto) });
  } catch (error) {
    wrong(error.message);
    return false;
  }
  const node = onto ?? add(mine, before, { role: "assistant", content: "", model });
  const whole = node.content;
  node.live = true;
  answering?.abort();
  const own = (answering = new AbortController());
  draw();
  messages.scrollTop = messages.scrollHeight; // after a question the user wants to see its answer
  const view = views.get(node.id);
  let saved = Date.now();
  let failure = null;
  const onGrown = () => {
    if (mine === conversation) view.grow(() => follow(messages));
    if (Date.now() - saved < SAVED_EVERY) return;
    saved = Date.now();
    history.keep(mine);
  };
  try {
    await answer(node, request, { signal: own.signal, onGrown });
  } catch (error) {
    failure = error.message;
  }
  delete node.live;
  const made = node.tool_calls ?? node.items?.find(({ type }) => type !== "mcp_list_tools");
  const empty = !node.content && !node.reasoning && !made;
  const came = onto ? node.content !== whole : !empty || (!failure && !node.cut);
  if (empty && !came) withdraw(mine, node, before);
  if (answering === own) answering = null;
  if (came) await history.keep(mine);
  if (mine !== conversation) return came;
  if (failure) wrong(failure);
  else draw();
  if (!messages.contains(document.activeElement)) focusInput();
  return came;
}

// Puts a question after `parent` and has it answered. One that is not answered leaves the conversation as it was.
async function ask(text, { parent = conversation.leaf, content = null } = {}) {
  const mine = conversation;
  const before = mine.leaf;
  const media = content ? null : attachments.take();
  notes = [];
  let question = null;
  try {
    const parts = content ?? (await media.parts());
    if (mine !== conversation) return attachments.giveBack(media.taken);
    const words = text ? [{ type: "text", text }] : [];
    question = add(mine, parent, { role: "user", content: parts.length ? [...parts, ...words] : text });
  } catch (error) {
    attachments.giveBack(media.taken);
    wrong(error.message);
    return;
  }
  mine.title ||= (text || t("Attachment")).slice(0, TITLE);
  history.select(mine);
  if (await reply()) return;
  const view = views.get(question.id);
  withdraw(mine, question, before);
  views.delete(question.id);
  if (mine !== conversation) return;
  view.finish({ place: 0, branches: 1, isLast: false, busy: true });
  view.place.classList.add("unanswered");
  notes.unshift(view.place);
  if (!input.value && attachments.empty) {
    input.value = text; // to be sent again
    if (media) attachments.giveBack(media.taken);
  }
  draw();
}

const ACTIONS = {
  edit(node, text) {
    const content = Array.isArray(node.content) ? node.content.filter(({ type }) => type !== "text") : [];
    ask(text, { parent: node.parent, content });
  },
  async again(node) {
    const before = conversation.leaf;
    const mine = conversation;
    notes = [];
    conversation.leaf = node.parent;
    if (await reply()) return;
    mine.leaf = before;
    if (mine === conversation) draw();
  },
  goOn(node) {
    notes = [];
    reply({ onto: node });
  },
  turn(node, step) {
    const alike = siblings(conversation, node);
    choose(conversation, alike[alike.indexOf(node) + step]);
    notes = [];
    draw();
    history.keep(conversation);
  },
  results(node, texts) {
    const results = node.tool_calls.map(({ id, function: { name } }, at) => ({ content: texts[at], tool_call_id: id, name }));
    goOnWith(node, results);
  },
  approve(node, approvals) {
    const content = approvals.map(({ name, approve }) => `${approve ? t("Approved") : t("Denied")}: ${name}`).join("\n");
    goOnWith(node, [{ content, approvals: approvals.map(({ id, approve }) => ({ id, approve })) }]);
  },
};

// Continues the model after the results of the calls in `node`; undone if no answer comes.
async function goOnWith(node, results) {
  const mine = conversation;
  notes = [];
  const told = results.map((result) => add(mine, mine.leaf, { role: "tool", ...result }));
  if (await reply()) return;
  for (const result of told) withdraw(mine, result, node.id);
  if (mine === conversation) draw();
}

// Leaves the shown conversation; a running answer is cut off and stored.
function show(next) {
  answering?.abort();
  answering = null;
  conversation = next;
  views = new Map();
  notes = [];
  history.select(conversation);
  settings.show(conversation.settings);
  messages.replaceChildren();
  draw();
  messages.scrollTop = messages.scrollHeight;
  showHistory(false);
  focusInput();
}

function open(chosen) {
  if (chosen !== conversation) show(chosen);
  else showHistory(false);
}

function begin() {
  show(newConversation(settings.values()));
}

// Only media of the chosen model may be attached; `cards` are the server's models.
export function offerModels(cards) {
  models = cards;
  settings.offer(cards.filter(({ kind }) => (kind ?? "chat") === "chat"));
  offerAttachments();
  draw();
  if (document.activeElement === document.body) focusInput();
}

// Focuses the input, but does not open a phone's keyboard over the text.
function focusInput() {
  if (matchMedia("(pointer: fine)").matches) input.focus();
}

function offerAttachments() {
  const taken = models.find(({ id }) => id === settings.model)?.input_modalities;
  if (!taken) return;
  element("chat-file").accept = attachments.limit(taken);
  element("chat-attach").hidden = !element("chat-file").accept;
}

export async function startChat() {
  element("chat-model").addEventListener("change", () => {
    offerAttachments();
    draw();
  });
  element("chat-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const text = input.value.trim();
    if ((!text && attachments.empty) || answering) return;
    input.value = "";
    ask(text);
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
  element("chat-stop").addEventListener("click", () => answering?.abort());
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || element("chat").hidden || element("code").open) return;
    if (document.body.classList.contains("drawer")) showHistory(false);
    else answering?.abort();
  });
  element("chat-clear").addEventListener("click", begin);
  element("code-show").addEventListener("click", () => {
    const said = path(conversation);
    const text = input.value.trim();
    try {
      showCode(settings.request(text || !said.length ? [...said, { role: "user", content: text || "Hello" }] : said));
    } catch (error) {
      wrong(error.message);
    }
  });
  draw();
  await history.load();
  const [last] = history.conversations;
  if (last && !conversation.leaf && !answering && last.id === sessionStorage.getItem("stentor-shown")) open(last);
}
