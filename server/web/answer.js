// One answer: asked for, and put into its message as it is made.

import { call, events } from "./api.js";
import { RESPONSES, takeEvent } from "./responses.js";

// Sends `body` to `path` and fills `node` with the answer, calling `onGrown` at each piece. Throws the server's error.
// An answer that is aborted by `signal` is marked as cut; one that the token limit ended, as limited.
export async function answer(node, { path, body }, { signal, onGrown }) {
  const began = performance.now();
  let first = null;
  let usage = null;
  const take = path === RESPONSES ? takeEvent : takeChunk;
  node.cut = node.limited = false;
  try {
    const response = await call(path, { body, signal });
    for await (const event of events(response)) {
      const taken = take(node, event);
      if (taken.logprobs?.length) (node.logprobs ??= []).push(...taken.logprobs.map(likelihoods));
      if (taken.came) first ??= performance.now();
      usage = taken.usage ?? usage;
      onGrown();
    }
  } catch (error) {
    if (error.name !== "AbortError") throw error;
    node.cut = true;
  } finally {
    delete node.begun;
    delete node.places;
    node.figures = figures(began, first, usage);
  }
}

// Adds a chunk of a chat completion to its message. Returns whether the message has grown, and the usage.
function takeChunk(node, { choices: [choice], usage }) {
  if (choice?.finish_reason === "length") node.limited = true;
  return { came: Boolean(choice) && put(node, choice.delta ?? {}), logprobs: choice?.logprobs?.content, usage };
}

// Whether anything of the answer was in it.
function put(node, { content, reasoning_content, reasoning, tool_calls }) {
  const thought = reasoning_content ?? reasoning;
  if (thought) node.reasoning = (node.reasoning ?? "") + thought;
  if (content) node.content = (node.content ?? "") + content;
  for (const { index, id, function: called } of tool_calls ?? []) {
    node.tool_calls ??= [];
    node.tool_calls[index] ??= { id, type: "function", function: { name: "", arguments: "" } };
    const { function: held } = node.tool_calls[index];
    held.name += called?.name ?? "";
    held.arguments += called?.arguments ?? "";
  }
  return Boolean(thought || content || tool_calls?.length);
}

// A token, its log-probability, and the alternatives, in a compact form.
function likelihoods({ token, logprob, top_logprobs }) {
  return [token, logprob, (top_logprobs ?? []).map((each) => [each.token, each.logprob])];
}

function figures(began, first, usage) {
  if (!first) return null;
  const seconds = (performance.now() - first) / 1000;
  const made = usage?.completion_tokens;
  return {
    prompt: usage?.prompt_tokens,
    answer: made,
    first: first - began,
    rate: made > 1 && seconds > 0.02 ? (made - 1) / seconds : null,
  };
}
