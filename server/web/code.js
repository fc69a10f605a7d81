// A request as a program: curl, Python and JavaScript.

import { address } from "./api.js";
import { element } from "./dom.js";
import { Growing } from "./markdown.js";

const MOST = 200; // characters of a picture or a sound that are written out

// Without what carries attachments, which nobody wants to read.
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

const KNOWN = ["model", "messages", "stream", "temperature", "top_p", "max_completion_tokens", "presence_penalty", "frequency_penalty", "seed", "stop", "logprobs", "top_logprobs", "reasoning_effort", "response_format", "tools"];

const WRITERS = {
  sh(body) {
    const text = JSON.stringify({ ...body, stream: true }, null, 2).replaceAll("'", "'\\''");
    return `curl -N ${address("v1/chat/completions")} \\\n  -H 'content-type: application/json' \\\n  -H "authorization: Bearer $STENTOR_API_KEY" \\\n  -d '${text}'`;
  },
  python(body) {
    const given = Object.entries(body).filter(([name]) => KNOWN.includes(name));
    const more = Object.fromEntries(Object.entries(body).filter(([name]) => !KNOWN.includes(name)));
    if (Object.keys(more).length) given.push(["extra_body", more]);
    const lines = given.map(([name, value]) => `    ${name}=${python(value, "    ")},\n`).join("");
    return `import os

from openai import OpenAI

client = OpenAI(base_url=${JSON.stringify(address("v1"))}, api_key=os.environ.get("STENTOR_API_KEY", "none"))
stream = client.chat.completions.create(
${lines})
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)`;
  },
  js(body) {
    const text = JSON.stringify(body, null, 2).replaceAll("\n", "\n  ");
    return `import OpenAI from "openai";

const client = new OpenAI({ baseURL: ${JSON.stringify(address("v1"))}, apiKey: process.env.STENTOR_API_KEY ?? "none" });
const stream = await client.chat.completions.create(
  ${text},
);
for await (const chunk of stream) process.stdout.write(chunk.choices[0]?.delta?.content ?? "");`;
  },
};

let shown = null;

function draw() {
  const language = element("code-language").value;
  const text = WRITERS[language](shown);
  const marks = "`".repeat(Math.max(3, ...[...text.matchAll(/`+/g)].map(([run]) => run.length + 1)));
  element("code-text").replaceChildren();
  new Growing(element("code-text")).show(`${marks}${language}\n${text}\n${marks}`);
}

// Shows the program that sends `body`.
export function showCode(body) {
  shown = shortened(body);
  draw();
  element("code-language").onchange = draw;
  element("code").showModal();
}
