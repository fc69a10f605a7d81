"""A streamed answer comes to the whole one, in every protocol, whatever the request asks for and the model says.

The engine hands out tokens in steps of one size for the whole answer, and of another for the stream.
"""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

import httpx
import pytest
from anthropic._models import construct_type_unchecked
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import RawMessageStreamEvent
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletionChunk

from stentor.server.parsing.output import TOOL_FORMATS, OutputFormat
from stentor.server.parsing.reasoning.formats import REASONING_FORMATS
from stentor.tests.examples import examples
from stentor.tests.fakes import BOS, EOS, FakeEngine, fake_state
from stentor.tests.server.harness import CHAT, COMPLETIONS, HELLO, chunks_of, events_of, in_memory
from stentor.tests.server.responses.shapes import EXTENSIONS, RESPONSES
from stentor.tests.wire import chat, messages, responses
from stentor.tests.wire.validate import assert_same_answer, frames_of

Json = dict[str, Any]

EVENT: Any = RawMessageStreamEvent

PARAMETERS = {"type": "object", "properties": {"at": {"type": "string"}, "n": {"type": "integer"}}}
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}}
FUNCTIONS = [{"type": "function", "function": {"name": name, "parameters": PARAMETERS}} for name in ("look", "wait")]
TEXTS = ["Hello", " wörld", "😀", "\n\n", " ", "STOP", "STO", '{"n": 1}', "\\"]
HERMES = [
    "<think>",
    "</think>",
    '<tool_call>\n{"name": "look", "arguments": {"at": "hé\\"re", "n": 2}}\n</tool_call>',
    '<tool_call>{"name": "wait", "arguments": {}}</tool_call>',
    '<tool_call>{"name": "look", "arguments": {"at": x',
    "<tool_",
]
MISTRAL = ["[THINK]", "[/THINK]", '[TOOL_CALLS]look[ARGS]{"at": "hére"}', "[TOOL_CALLS]", "wait[ARGS]{}"]
HARMONY = [
    "<|channel|>analysis<|message|>Hm.<|end|>",
    "<|start|>assistant<|channel|>final<|message|>",
    '<|start|>assistant<|channel|>commentary to=functions.look <|constrain|>json<|message|>{"at": "hére"}<|call|>',
]
FORMATS = [
    (OutputFormat(), TEXTS),
    (OutputFormat(REASONING_FORMATS["qwen3"], TOOL_FORMATS["hermes"]), HERMES + TEXTS),
    (OutputFormat(REASONING_FORMATS["mistral"], TOOL_FORMATS["mistral"]), MISTRAL + TEXTS),
    (OutputFormat(REASONING_FORMATS["gpt_oss"], TOOL_FORMATS["gpt_oss"]), HARMONY + TEXTS),
]
STOPS: Json = {"stop": ["STOP", ["STOP", "\n\n"], ["é", "}"]]}
SAMPLING: Json = {
    **STOPS,
    "n": [2, 3],
    "max_tokens": [1, 2, 5, 40],
    "temperature": [0, 1],
    "seed": [3],
    "min_tokens": [1],
    "ignore_eos": [True],
    "include_stop_str_in_output": [True],
    "stop_token_ids": [[ord("o")], [0xA9]],
    "skip_special_tokens": [False],
    "return_tokens_as_token_ids": [True],
    "response_format": [
        {"type": "json_object"},
        {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}},
    ],
}


class Target:
    """One server for each format, on a loop of its own."""

    def __init__(self, runner: asyncio.Runner) -> None:
        self._runner = runner
        self._servers: list[tuple[FakeEngine, httpx.AsyncClient]] = []
        for output, _ in FORMATS:
            engine = FakeEngine(max_model_len=2048)
            self._servers.append((engine, in_memory(fake_state(engine, output=output))))
        self.says(Said(0, [[EOS]], (1, 1)))

    def says(self, said: "Said") -> None:
        """To all requests from now on."""
        self._engine, self.client = self._servers[said.format]
        self._engine.streams.clear()
        self._engine.answer = lambda _prompt, index: said.tokens[index % len(said.tokens)]
        self._bursts = said.bursts

    def whole(self, path: str, body: Json) -> Json:
        self._engine.burst = self._bursts[0]
        answer: Json = self._post(path, body).json()
        return answer

    def streamed(self, path: str, body: Json) -> str:
        self._engine.burst = self._bursts[1]
        return self._post(path, body).text

    def _post(self, path: str, body: Json) -> httpx.Response:
        response = self._runner.run(self.client.post(path, json=body))
        assert response.status_code == 200, response.text
        return response

    def close(self) -> None:
        for _, client in self._servers:
            self._runner.run(client.aclose())


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    with asyncio.Runner() as runner:
        made = Target(runner)
        yield made
        made.close()


@dataclass
class Said:
    """What the model says, of which format, and in steps of how many tokens: to the whole answer, and the stream."""

    format: int
    tokens: list[list[int]]
    bursts: tuple[int, int]


@st.composite
def outputs(draw: st.DrawFn, fragments: list[str]) -> list[int]:
    """Tokens of one choice: some text, cut anywhere, maybe with half a character and a special token."""
    data = "".join(draw(st.lists(st.sampled_from(fragments), max_size=6))).encode()
    data = data[: draw(st.just(len(data)) | st.integers(0, len(data)))]
    tokens = [*data, *draw(st.sampled_from([b"", b"", "😀".encode()[:2], b"\xff"]))]
    if draw(st.integers(0, 9)) == 0:
        tokens.insert(draw(st.integers(0, len(tokens))), BOS)
    return [*tokens, EOS]


@st.composite
def sayings(draw: st.DrawFn) -> Said:
    place = draw(st.integers(0, len(FORMATS) - 1))
    steps = st.sampled_from([1, 1, 2, 5, 1000])
    tokens = draw(st.lists(outputs(FORMATS[place][1]), min_size=1, max_size=3))
    return Said(place, tokens, (draw(steps), draw(steps)))


def fields(**optional: list[Any]) -> st.SearchStrategy[Json]:
    """Some of them."""
    return st.fixed_dictionaries({}, optional={name: st.sampled_from(values) for name, values in optional.items()})


AT_RANDOM = settings(max_examples=examples(20, 2000), deadline=None, suppress_health_check=list(HealthCheck))


@AT_RANDOM
@given(
    said=sayings(),
    body=fields(
        **SAMPLING,
        top_logprobs=[0, 2],
        return_token_ids=[True],
        tools=[FUNCTIONS, FUNCTIONS[:1]],
        tool_choice=["auto", "required", "none", {"type": "function", "function": {"name": "look"}}],
        parallel_tool_calls=[False],
        reasoning_effort=["none", "low"],
        include_reasoning=[False],
        store=[True],
    ),
)
def test_a_chat_stream_joins_to_the_whole_answer(target: Target, said: Said, body: Json) -> None:
    if said.format == 0 or "tools" not in body:
        body = {name: value for name, value in body.items() if name not in ("tools", "tool_choice")}
    body |= {"messages": HELLO, "logprobs": "top_logprobs" in body}
    target.says(said)
    whole = target.whole(CHAT, body)
    text = target.streamed(CHAT, {**body, "stream": True, "stream_options": {"include_usage": True}})
    for choice in whole["choices"]:  # of a choice of which no token is shown a stream has neither
        if choice["logprobs"] == {"content": [], "refusal": None}:
            choice["logprobs"] = None
        choice["token_ids"] = choice.get("token_ids") or None
    found = chat.check_stream(text)
    assert_same_answer(whole, found, ("id", "created", "metadata", "prompt_token_ids"))
    state = ChatCompletionStreamState()
    for chunk in chunks_of(text):
        state.handle_chunk(ChatCompletionChunk.model_validate(chunk))
    for choice, made in zip(whole["choices"], state.current_completion_snapshot.to_dict()["choices"], strict=True):  # type: ignore[call-overload]
        assert_same_answer(choice["message"], made["message"], ("id", "index", "parsed_arguments", "parsed"))
        assert choice["finish_reason"] == made["finish_reason"]


@AT_RANDOM
@given(
    said=sayings(),
    body=fields(
        **SAMPLING,
        prompt=["é😀", ["a", "b"], [1, 2, 3], [[1], [0xC3, 0xA9]]],
        logprobs=[0, 2],
        echo=[True],
        return_token_ids=[True],
    ),
)
def test_a_completion_stream_joins_to_the_whole_answer(target: Target, said: Said, body: Json) -> None:
    body = {"prompt": "hi", **body}
    target.says(said)
    whole = target.whole(COMPLETIONS, body)
    text = target.streamed(COMPLETIONS, {**body, "stream": True, "stream_options": {"include_usage": True}})
    *chunks, last = chunks_of(text)
    choices: dict[int, Json] = {}
    for (part,) in (chunk["choices"] for chunk in chunks):
        choice = choices.setdefault(part["index"], {"text": "", "logprobs": None})
        choice["text"] += part.pop("text")
        for name in ("token_ids", "prompt_token_ids"):
            if name in part:
                choice[name] = choice.get(name, []) + part.pop(name)
        if (logprobs := part.pop("logprobs")) is not None:
            sofar = choice["logprobs"] or {name: [] for name in logprobs}
            choice["logprobs"] = {name: sofar[name] + added for name, added in logprobs.items()}
        choice |= part
    found = {**whole, "choices": [choices[index] for index in sorted(choices)], "usage": last["usage"]}
    assert_same_answer(whole, found)


@AT_RANDOM
@given(
    said=sayings(),
    body=fields(
        top_logprobs=[0, 2],
        max_output_tokens=[16, 40],
        temperature=[0, 1],
        tools=[[{"type": "function", "name": "look", "parameters": PARAMETERS}, {"type": "custom", "name": "wait"}]],
        parallel_tool_calls=[False],
        text=[{"format": {"type": "json_object"}}],
        reasoning=[{"effort": "none"}, {"effort": "low"}],
        store=[True, False],
    ),
)
def test_the_events_of_a_response_join_to_the_whole_response(target: Target, said: Said, body: Json) -> None:
    body |= {"model": "fake", "input": "hi", "include": ["message.output_text.logprobs", "reasoning.encrypted_content"]}
    if said.format == 0:
        body.pop("tools", None)
    target.says(said)
    whole = target.whole(RESPONSES, body)
    found = responses.check_stream(target.streamed(RESPONSES, {**body, "stream": True}), EXTENSIONS)
    own = ("id", "call_id", "created_at", "completed_at", "encrypted_content")
    assert_same_answer(whole, found, own)
    for item in whole["output"]:
        if item["type"] == "message" and body.get("tools") and "top_logprobs" in body:
            spoken = bytes(byte for entry in item["content"][0]["logprobs"] for byte in entry["bytes"])
            assert b"tool_call" not in spoken, "a call's tokens are no part of a message"


@AT_RANDOM
@given(
    said=sayings(),
    body=fields(
        max_tokens=[0, 1, 5, 40],
        stop_sequences=[["STOP"], ["é", "}"], ["\n\n"]],
        temperature=[0, 1],
        thinking=[{"type": "disabled"}, {"type": "adaptive"}, {"type": "adaptive", "display": "omitted"}],
        tools=[[{"name": name, "input_schema": PARAMETERS} for name in ("look", "wait")]],
        output_format=[{"type": "json_schema", "schema": SCHEMA}],
    ),
)
def test_the_events_of_a_message_join_to_the_whole_message(target: Target, said: Said, body: Json) -> None:
    body = {"model": "fake", "max_tokens": 300, "messages": HELLO, **body}
    target.says(said)
    whole = target.whole("/v1/messages", body)
    text = target.streamed("/v1/messages", {**body, "stream": True})
    messages.check_stream(text)
    snapshot = None
    inputs: dict[int, bytes] = {}
    for frame in frames_of(text):
        event: Any = construct_type_unchecked(type_=EVENT, value=json.loads(frame.data))
        if event.type != "ping":
            snapshot = accumulate_event(event=event, current_snapshot=snapshot, json_bufs=inputs)
    assert snapshot is not None
    assert_same_answer(whole, snapshot.to_dict(), ("id", "signature"))


@AT_RANDOM
@given(
    said=sayings(),
    body=fields(
        options=[{"stop": ["STOP", "é"]}, {"num_predict": 1}, {"num_predict": 40, "temperature": 1, "seed": 3}],
        think=[True, False],
        top_logprobs=[0, 2],
        format=["json", SCHEMA],
        tools=[FUNCTIONS],
    ),
)
@pytest.mark.parametrize("kind", ["chat", "generate"])
def test_a_stream_of_ollama_joins_to_the_whole_answer(target: Target, kind: str, said: Said, body: Json) -> None:
    body |= {"model": "fake", "logprobs": "top_logprobs" in body}
    body |= {"messages": HELLO} if kind == "chat" else {"prompt": "hi"}
    if said.format == 0:
        body.pop("think", None)
    if kind == "generate":
        body.pop("tools", None)
    target.says(said)
    whole = target.whole(f"/api/{kind}", {**body, "stream": False})
    found: Json = {}
    for line in target.streamed(f"/api/{kind}", body).split("\n")[:-1]:
        found = _joined(found, json.loads(line))
    if body["logprobs"]:
        whole["logprobs"] = whole["logprobs"] or None
    took = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")
    assert_same_answer(whole, found, ("id", "created_at", *took))


def _joined(first: Json, more: Json) -> Json:
    """A chunk's texts and lists behind those before it."""
    joined = dict(first)
    for name, value in more.items():
        if isinstance(value, dict):
            joined[name] = _joined(first.get(name, {}), value)
        elif name in ("content", "response", "thinking", "tool_calls", "logprobs"):
            joined[name] = first[name] + value if name in first else value
        else:
            joined[name] = value
    return joined


@AT_RANDOM
@given(
    said=sayings(), body=fields(**STOPS, n_predict=[1, 2, 5, 40], n_probs=[2], json_schema=[SCHEMA], ignore_eos=[True])
)
def test_a_stream_of_llama_cpp_joins_to_the_whole_answer(target: Target, said: Said, body: Json) -> None:
    body |= {"prompt": "hi", "return_tokens": True}
    if isinstance(body.get("stop"), str):
        body["stop"] = [body["stop"]]
    target.says(said)
    whole = target.whole("/completion", body)
    events = [json.loads(event) for event in events_of(target.streamed("/completion", {**body, "stream": True}))]
    found = dict(events[-1])
    for name in ("content", "tokens", "completion_probabilities"):
        parts = [event[name] for event in events if name in event]
        if parts:
            found[name] = reduce(add, parts)
    assert_same_answer(whole, found, ("id", "timings"))


@AT_RANDOM
@given(
    said=sayings(),
    body=fields(max_new_tokens=[1, 2, 5, 40], stop=[["STOP"], ["é", "}"]], return_full_text=[True], seed=[3]),
)
def test_a_stream_of_text_generation_inference_joins_to_the_whole_answer(
    target: Target, said: Said, body: Json
) -> None:
    body = {"inputs": "hi", "parameters": {**body, "details": True}}
    target.says(said)
    whole = target.whole("/generate", body)
    events = [json.loads(event) for event in events_of(target.streamed("/generate_stream", body))]
    shown = "".join(event["token"]["text"] for event in events if not event["token"]["special"])
    before = "hi" if body["parameters"].get("return_full_text") else ""
    assert whole["generated_text"] == events[-1]["generated_text"] == before + shown
    told = whole["details"]
    assert [event["index"] for event in events] == list(range(1, told["generated_tokens"] + 1))
    assert [event["token"]["id"] for event in events] == [token["id"] for token in told["tokens"]]
    ending = events[-1]["details"]
    assert all(ending[name] == told[name] for name in ("finish_reason", "generated_tokens", "seed"))
