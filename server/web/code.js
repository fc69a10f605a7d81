// A request as a program: curl, Python and JavaScript.

import { address } from "./api.js";
import { element } from "./dom.js";
import { Growing } from "./markdown.js";
import { RESPONSES } from "./responses.js";

const MOST = 200; // characters of a picture or a sound that are written out

// Without the content of attachments, which is unreadable.
function shortened(body) {
  const { stream_options, ...rest } = body;
  const short = (_, value) =>
    typeof value === "string" && value.startsWith("data:") && value.length > MOST ? `${value.slice(0, 40)}…` : value;
  return JSON.parse(JSON.stringify(rest, short));
}

// As Python writes a value.
function python(value, indent = "") {
  if (value === null || value === undefined) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const deeper = `${indent}    `;
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  const items = Array.isArray(value)
    ? value.map((each) => python(each, deeper))
    : Object.entries(value).map(([name, each]) => `${JSON.stringify(name)}: ${python(each, deeper)}`);
  return items.length ? `${open}\n${items.map((item) => `${deeper}${item},\n`).join("")}${indent}${close}` : open + close;
}

const BOTH = ["model", "stream", "temperature", "top_p", "top_logprobs", "tools"];

// By path: the SDK's method, the Python SDK's named fields, and the code that prints the response.
const CALLS = {
  "v1/chat/completions": {
    name: "chat.completions",
    fields: [...BOTH, "messages", "max_completion_tokens", "presence_penalty", "frequency_penalty", "seed", "stop", "logprobs", "reasoning_effort", "response_format"],
    python: `for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)`,
    js: `for await (const chunk of stream) process.stdout.write(chunk.choices[0]?.delta?.content ?? "");`,
  },
  [RESPONSES]: {
    name: "responses",
    fields: [...BOTH, "input", "instructions", "store", "max_output_tokens", "text", "reasoning", "include"],
    python: `for event in stream:
    if event.type == "response.output_text.delta":
        print(event.delta, end="", flush=True)`,
    js: `for await (const event of stream) if (event.type === "response.output_text.delta") process.stdout.write(event.delta);`,
  },
};

const WRITERS = {
  sh(path, body) {
    const text = JSON.stringify({ ...body, stream: true }, null, 2).replaceAll("'", "'\\''");
    return `curl -N ${address(path)} \\\n  -H 'content-type: application/json' \\\n  -H "authorization: Bearer $STENTOR_API_KEY" \\\n  -d '${text}'`;
  },
  python(path, body) {
    const { name, fields, python: printing } = CALLS[path];
    const given = Object.entries(body).filter(([field]) => fields.includes(field));
    const more = Object.fromEntries(Object.entries(body).filter(([field]) => !fields.includes(field)));
    if (Object.keys(more).length) given.push(["extra_body", more]);
    const lines = given.map(([field, value]) => `    ${field}=${python(value, "    ")},\n`).join("");
    return `import os

from openai import OpenAI

client = OpenAI(base_url=${JSON.stringify(address("v1"))}, api_key=os.environ.get("STENTOR_API_KEY", "none"))
stream = client.${name}.create(
${lines})
${printing}`;
  },
  js(path, body) {
    const text = JSON.stringify(body, null, 2).replaceAll("\n", "\n  ");
    return `import OpenAI from "openai";

const client = new OpenAI({ baseURL: ${JSON.stringify(address("v1"))}, apiKey: process.env.STENTOR_API_KEY ?? "none" });
const stream = await client.${CALLS[path].name}.create(
  ${text},
);
${CALLS[path].js}`;
  },
};

let shown = null;

function draw() {
  const language = element("code-language").value;
  const text = WRITERS[language](shown.path, shown.body);
  const marks = "`".repeat(Math.max(3, ...[...text.matchAll(/`+/g)].map(([run]) => run.length + 1)));
  element("code-text").replaceChildren();
  new Growing(element("code-text")).show(`${marks}${language}\n${text}\n${marks}`);
}

// Shows the program that sends `body` to `path`.
export function showCode({ path, body }) {
  shown = { path, body: shortened(body) };
  draw();
  element("code-language").onchange = draw;
  element("code").showModal();
}
