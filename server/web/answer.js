// One answer: asked for, and put into its message as it is made.

import { call, events } from "./api.js";

// Fills `node` with what the server answers to `body`, calling `onGrown` at each piece. Throws what the server refuses.
// An answer that is aborted by `signal` is marked as cut; one that the token limit ended, as limited.
export async function answer(node, body, { signal, onGrown }) {
  const began = performance.now();
  let first = null;
  let usage = null;
  node.cut = node.limited = false;
  try {
    const response = await call("v1/chat/completions", { body, signal });
    for await (const chunk of events(response)) {
      usage = chunk.usage ?? usage;
      const choice = chunk.choices[0];
      if (choice?.logprobs?.content) (node.logprobs ??= []).push(...choice.logprobs.content.map(likelihoods));
      if (choice && put(node, choice.delta ?? {})) first ??= performance.now();
      if (choice?.finish_reason === "length") node.limited = true;
      onGrown();
    }
  } catch (error) {
    if (error.name !== "AbortError") throw error;
    node.cut = true;
  } finally {
    node.figures = figures(began, first, usage);
  }
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

// A token, its log-probability, and those that would have been likelier or less likely, as short as they can be kept.
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
