// The Responses API in place of chat completions, for conversations with MCP servers: this server calls their tools, and
// asks the user first. A message stores its items, which are sent back with the next question.

import { ApiError } from "./api.js";
import { t } from "./language.js";

export const RESPONSES = "v1/responses";

// The tools of lines `NAME` or `NAME URL`; throws for other lines. `approval`: "always" or "never".
export function mcpServers(text, approval) {
  const lines = text.split("\n").map((line) => line.trim()).filter(Boolean);
  return lines.map((line) => {
    const [, server_label, server_url] = /^([\w-]{1,64})(?:\s+(https?:\S+))?$/.exec(line) ?? [];
    if (!server_label) throw new Error(t("“{}” is no MCP server: write its name, and its address where the server does not know it.", line));
    return { type: "mcp", server_label, server_url, require_approval: approval };
  });
}

// The Responses body for a chat completion's `body`, with the messages `nodes` and the tools of `servers`.
export function asResponse(body, nodes, servers) {
  const { messages, stream_options, max_completion_tokens, response_format, reasoning_effort, logprobs, tools, ...same } = body;
  return {
    ...same,
    instructions: messages.find(({ role }) => role === "system")?.content,
    input: nodes.flatMap(itemsOf),
    store: false,
    max_output_tokens: max_completion_tokens,
    text: response_format && { format: { type: "json_schema", ...response_format.json_schema } },
    reasoning: reasoning_effort && { effort: reasoning_effort },
    include: logprobs && ["message.output_text.logprobs"],
    tools: [...(tools ?? []).map(({ function: offered }) => ({ type: "function", ...offered })), ...servers],
  };
}

function itemsOf({ role, content, items, approvals, tool_calls, tool_call_id }) {
  if (items) return items;
  if (approvals) return approvals.map(({ id, approve }) => ({ type: "mcp_approval_response", approval_request_id: id, approve }));
  if (role === "tool") return [{ type: "function_call_output", call_id: tool_call_id, output: content }];
  const calls = (tool_calls ?? []).map(({ id, function: called }) => ({ type: "function_call", call_id: id, ...called }));
  return [...(content ? [{ role, content: typeof content === "string" ? content : content.map(part) }] : []), ...calls];
}

function part({ type, text, image_url, file }) {
  if (type === "text") return { type: "input_text", text };
  if (type === "image_url") return { type: "input_image", image_url: image_url.url };
  if (type === "file") return { type: "input_file", ...file };
  throw new Error(t("Sounds and videos do not go with MCP servers."));
}

// Adds an event to its message. Returns whether the message has grown, and the usage.
export function takeEvent(node, event) {
  const { type, delta, item, response } = event;
  if (type === "error") throw new ApiError(0, event.message);
  if (type === "response.failed") throw new ApiError(0, response.error.message);
  if (type === "response.output_text.delta") {
    const { content } = node.items.at(-1);
    content[0].text += delta;
    node.content = (node.content ?? "") + delta;
  } else if (type === "response.reasoning_text.delta") node.reasoning = (node.reasoning ?? "") + delta;
  else if (type === "response.output_item.added") begin(node, item, event.output_index);
  else if (type === "response.mcp_call_arguments.done") node.begun.find(({ id }) => id === event.item_id).arguments = event.arguments;
  else if (type === "response.output_item.done") end(node, item, event.output_index);
  if (response?.incomplete_details?.reason === "max_output_tokens") node.limited = true;
  const usage = response?.usage;
  return {
    came: type.endsWith(".delta"),
    logprobs: event.logprobs,
    usage: usage && { prompt_tokens: usage.input_tokens, completion_tokens: usage.output_tokens },
  };
}

// Text is kept as it comes; other items once they are complete, and running calls with their arguments.
function begin(node, item, place) {
  node.items ??= [];
  if (item.type === "message") {
    keep(node, { type: "message", role: "assistant", content: [{ type: "output_text", text: "" }] }, place);
    if (node.content) node.content += "\n\n";
  } else if (item.type === "mcp_call") node.begun = [...(node.begun ?? []), item];
}

// Calls run side by side: one that ends first may have begun last.
function keep(node, item, place) {
  const places = (node.places ??= []);
  const behind = places.findIndex((other) => other > place);
  const at = behind < 0 ? places.length : behind;
  places.splice(at, 0, place);
  node.items.splice(at, 0, item);
}

function end(node, item, place) {
  if (item.type === "message") return;
  node.begun = node.begun?.filter(({ id }) => id !== item.id);
  keep(node, item, place);
  if (item.type !== "function_call") return;
  const { call_id: id, name, arguments: given } = item;
  node.tool_calls = [...(node.tool_calls ?? []), { id, type: "function", function: { name, arguments: given } }];
}
