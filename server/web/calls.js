// Tool calls in an answer: arguments, results, and questions to the user.

import { make } from "./dom.js";
import { t } from "./language.js";

// Elements of a message's calls. `actions.results(node, texts)` gets the results of functions, and
// `actions.approve(node, approvals)` the approvals of MCP calls.
export function callsOf(node, actions) {
  const { tool_calls: calls = [], items = [], begun = [], live } = node;
  const served = [...items.filter(({ type }) => type === "mcp_call"), ...begun].map(mcpCall);
  const shown = calls.map(({ function: { name, arguments: given } }) => folded(t("Calls {}", name), given));
  const requests = items.filter(({ type }) => type === "mcp_approval_request");
  const asked = requests.map((each) => folded(t("Wants to call {}", nameOf(each)), each.arguments));
  if (!live && calls.length) shown.push(resultsForm(node, actions));
  if (!live && requests.length) asked.push(approvalForm(node, requests, actions));
  return [...served, ...shown, ...asked];
}

export function nameOf({ server_label, name }) {
  return `${server_label}.${name}`;
}

function folded(title, given, ...more) {
  return make("details", { open: true }, make("summary", {}, title), make("pre", { tabIndex: 0 }, indented(given)), ...more);
}

function mcpCall(item) {
  const { output, error, arguments: given } = item;
  const message = error && (error.message ?? error.content?.map(({ text }) => text).join("\n") ?? JSON.stringify(error));
  const came = output ?? message;
  const result = came !== undefined && came !== null ? make("pre", { tabIndex: 0, className: error ? "wrong" : "" }, came) : null;
  return folded(t("Calls {}", nameOf(item)), given, result);
}

// A form in which the reader is the tool.
function resultsForm(node, actions) {
  const inputs = node.tool_calls.map(({ function: { name } }) => {
    const label = t("Result of {}", name);
    return make("textarea", { rows: 2, "aria-label": label, placeholder: label });
  });
  const onsubmit = (event) => {
    event.preventDefault();
    actions.results(node, inputs.map(({ value }) => value));
  };
  return make("form", { onsubmit }, ...inputs, make("button", {}, t("Send results")));
}

// Sent once each request has an answer.
function approvalForm(node, requests, actions) {
  const answers = new Map();
  const decide = (request, approve, button) => {
    answers.set(request.id, { id: request.id, name: nameOf(request), approve });
    for (const each of button.parentElement.querySelectorAll("button")) each.setAttribute("aria-pressed", each === button);
    if (answers.size === requests.length) actions.approve(node, [...answers.values()]);
  };
  const rows = requests.map((request) => {
    const button = (label, approve) =>
      make("button", { type: "button", onclick: ({ target }) => decide(request, approve, target) }, label);
    const name = nameOf(request);
    return make("div", { className: "row", role: "group", "aria-label": name }, button(t("Approve"), true), button(t("Deny"), false));
  });
  return make("form", {}, ...rows);
}

function indented(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
