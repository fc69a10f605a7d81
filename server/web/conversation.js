// A conversation: a tree of messages, of which one path is shown. Editing a question and answering anew make branches.

import { t } from "./language.js";

let counted = 0;

export function newId() {
  const random = crypto.getRandomValues(new Uint32Array(2));
  return `${Date.now().toString(36)}-${(counted++).toString(36)}-${random.join("")}`;
}

// As it is stored: `nodes` by id, each with its `parent` and `role`; `leaf` ends the path that is shown.
export function newConversation(settings = {}) {
  const now = Date.now();
  return { id: newId(), title: "", created: now, changed: now, settings, nodes: {}, leaf: null };
}

// The messages that are shown, from the first on.
export function path(conversation) {
  const found = [];
  for (let id = conversation.leaf; id !== null; id = found[0].parent) found.unshift(conversation.nodes[id]);
  return found;
}

// Adds a message after `parent` (an id, or null for a first one), and shows it.
export function add(conversation, parent, message) {
  const node = { id: newId(), parent, ...message };
  conversation.nodes[node.id] = node;
  conversation.leaf = node.id;
  conversation.changed = Date.now();
  return node;
}

// Messages at the same place, in the order of their creation.
export function siblings(conversation, node) {
  return Object.values(conversation.nodes).filter(({ parent, role }) => parent === node.parent && role === node.role);
}

// Shows the branch through `node`, down to its latest message.
export function choose(conversation, node) {
  let last = node;
  for (let next = node; next; next = Object.values(conversation.nodes).findLast(({ parent }) => parent === last.id)) {
    last = next;
  }
  conversation.leaf = last.id;
}

// Takes a message away that nothing follows, and shows `leaf`.
export function withdraw(conversation, node, leaf) {
  delete conversation.nodes[node.id];
  conversation.leaf = leaf;
}

// The words of a message whose content may have parts.
export function wordsOf({ content }) {
  if (typeof content === "string") return content;
  return (content ?? []).map(({ text }) => text ?? "").join("");
}

// The messages as a chat completion takes them: it knows nothing of calls that wait for the reader's word.
export function asRequested(nodes) {
  return nodes.filter(({ approvals }) => !approvals).map(({ role, content, tool_calls, tool_call_id }) => ({
    role,
    content,
    ...(tool_calls?.length ? { tool_calls } : {}),
    ...(tool_call_id ? { tool_call_id } : {}),
  }));
}

// The form of an exported file; throws an error that names the fault.
export function checked(data) {
  if (data?.format !== "stentor-conversations" || !Array.isArray(data.conversations)) {
    throw new Error(t("This is not a file of exported conversations."));
  }
  for (const each of data.conversations) {
    const nodes = each?.nodes;
    const whole = typeof each?.id === "string" && typeof each.title === "string" && nodes && typeof nodes === "object";
    const linked =
      whole &&
      (each.leaf === null || each.leaf in nodes) &&
      Object.entries(nodes).every(
        ([id, { id: own, parent, role }]) =>
          id === own && ["user", "assistant", "tool"].includes(role) && (parent === null || parent in nodes),
      );
    if (!linked || hasCycle(nodes)) throw new Error(t("The file of exported conversations is damaged."));
  }
  return data.conversations.map((each) => ({ ...newConversation(), settings: {}, ...each }));
}

function hasCycle(nodes) {
  const fine = new Set();
  for (const start of Object.keys(nodes)) {
    const walked = new Set();
    for (let id = start; id !== null && !fine.has(id); id = nodes[id].parent) {
      if (walked.has(id)) return true;
      walked.add(id);
    }
    for (const id of walked) fine.add(id);
  }
  return false;
}
