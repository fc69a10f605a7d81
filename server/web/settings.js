// The settings of a conversation, sent with each request.

import { asRequested } from "./conversation.js";
import { element } from "./dom.js";
import { t } from "./language.js";
import { offer } from "./models.js";
import { startPresets } from "./presets.js";
import { asResponse, mcpServers, RESPONSES } from "./responses.js";
import { startSchema } from "./schema.js";

// Settings that are numbers, by name, and the fields of a request that they become.
const NUMBERS = {
  temperature: "temperature",
  topp: "top_p",
  tokens: "max_completion_tokens",
  topk: "top_k",
  minp: "min_p",
  presence: "presence_penalty",
  frequency: "frequency_penalty",
  repetition: "repetition_penalty",
  seed: "seed",
};
const NAMES = [...Object.keys(NUMBERS), "system", "schema", "tools", "mcp", "approval", "stops", "logprobs", "effort"];

const field = (name) => document.getElementById(`chat-${name}`);

export class Settings {
  // `onChanged()` is called when the user changes one.
  constructor(onChanged) {
    for (const name of ["model", ...NAMES]) field(name).addEventListener("change", onChanged);
    startSchema(field("schema"));
    startPresets({ values: () => this.values(), show: (values) => this.show(values), onChanged });
  }

  get model() {
    return element("chat-model").value;
  }

  offer(models) {
    offer(element("chat-model"), models.map(({ id }) => id));
  }

  values() {
    const given = [...NAMES.map((name) => [name, field(name).value]), ["model", this.model]];
    return Object.fromEntries(given.filter(([, value]) => value !== ""));
  }

  show(values) {
    for (const name of NAMES) field(name).value = values[name] ?? "";
    const { options } = element("chat-model");
    if ([...options].some(({ value }) => value === values.model)) element("chat-model").value = values.model;
  }

  // The path and the body of a request for an answer to the messages `nodes`, or for more of the last of them
  // (`isContinued`). Throws where a schema or tools are no JSON.
  request(nodes, { isContinued = false } = {}) {
    const system = field("system").value.trim();
    const body = {
      model: this.model,
      messages: [...(system ? [{ role: "system", content: system }] : []), ...asRequested(nodes)],
      stream: true,
      stream_options: { include_usage: true },
    };
    for (const [name, key] of Object.entries(NUMBERS)) if (field(name).value !== "") body[key] = Number(field(name).value);
    const stops = field("stops").value.split("\n").filter(Boolean);
    if (stops.length) body.stop = stops;
    const likeliest = Number(field("logprobs").value);
    if (likeliest) Object.assign(body, { logprobs: true, top_logprobs: likeliest });
    if (field("effort").value) body.reasoning_effort = field("effort").value;
    const schema = parsed("schema", t("The JSON schema"));
    if (schema) body.response_format = { type: "json_schema", json_schema: { name: "answer", schema } };
    const tools = parsed("tools", t("The list of tools"));
    if (tools) body.tools = tools.map((tool) => (tool.type ? tool : { type: "function", function: tool }));
    if (isContinued) Object.assign(body, { continue_final_message: true, add_generation_prompt: false });
    const servers = isContinued ? [] : mcpServers(field("mcp").value, field("approval").value || "always");
    if (!servers.length) return { path: "v1/chat/completions", body };
    return { path: RESPONSES, body: asResponse(body, nodes, servers) };
  }
}

function parsed(name, what) {
  const text = field(name).value.trim();
  if (!text) return null;
  let value = null;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new Error(t("{} is not JSON: {}", what, error.message));
  }
  if (name === "tools" && !Array.isArray(value)) throw new Error(t("{} must be an array.", what));
  return value;
}
