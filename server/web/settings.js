// The settings of a conversation: what is asked for with each answer.

import { element } from "./dom.js";
import { offer } from "./models.js";

// Settings by name; `request` is the field of a request that a number becomes.
const NUMBERS = { temperature: "temperature", topp: "top_p", tokens: "max_completion_tokens" };
const TEXTS = ["system", "schema", "tools"];
const NAMES = [...Object.keys(NUMBERS), ...TEXTS];

const field = (name) => document.getElementById(`chat-${name}`);

export class Settings {
  // `onChanged()` is told when the reader changes one.
  constructor(onChanged) {
    for (const name of ["model", ...NAMES]) field(name).addEventListener("change", onChanged);
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

  // The body of a request for an answer to `messages`; throws where a schema or tools are no JSON.
  request(messages) {
    const system = field("system").value.trim();
    const body = {
      model: this.model,
      messages: [...(system ? [{ role: "system", content: system }] : []), ...messages],
      stream: true,
      stream_options: { include_usage: true },
    };
    for (const [name, key] of Object.entries(NUMBERS)) if (field(name).value !== "") body[key] = Number(field(name).value);
    const schema = parsed("schema", "The JSON schema");
    if (schema) body.response_format = { type: "json_schema", json_schema: { name: "answer", schema } };
    const tools = parsed("tools", "The list of tools");
    if (tools) body.tools = tools.map((tool) => (tool.type ? tool : { type: "function", function: tool }));
    return body;
  }
}

function parsed(name, what) {
  const text = field(name).value.trim();
  if (!text) return null;
  let value = null;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new Error(`${what} is not JSON: ${error.message}`);
  }
  if (name === "tools" && !Array.isArray(value)) throw new Error(`${what} must be an array.`);
  return value;
}
