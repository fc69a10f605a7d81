"""Whatever a request asks for, its answer with drafts is the answer without."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stentor.engine.worker.speculation import SuffixProposer
from stentor.protocols.ipc.config import SpeculativeConfig
from stentor.server.app.state import ServerState
from stentor.tests.engine.worker.test_speculation import Oracle
from stentor.tests.examples import examples
from stentor.tests.fakes import EOS
from stentor.tests.parity import tiny
from stentor.tests.server.harness import CHAT, events_of, in_memory
from stentor.tests.server.local_chat import MARKERS, WORD, LocalChat
from stentor.tests.wire.chat import check_stream

MOST = 5
THINK, UNTHINK, CALL, UNCALL = (EOS + 1 + place for place in range(len(MARKERS)))
TEXT = [*range(0x20, 0x7F), 10, *WORD.values(), *range(EOS, EOS + 1 + len(MARKERS))]
"""Tokens of readable text, markers, and its end."""
FEW = [*map(ord, "abc. "), WORD["a b"], WORD["b c"], WORD["ca"], UNTHINK, EOS]


@dataclass
class Compared:
    """An answer that both servers gave."""

    text: str
    steps: int
    """Without drafts."""
    steps_with: int
    accepted: int

    @property
    def ends(self) -> list[str]:
        """How its choices end."""
        whole = check_stream(self.text) if self.text.startswith("data: ") else json.loads(self.text)
        return [choice["finish_reason"] for choice in whole["choices"]]


class Both:
    """A plain server and one with drafts, over the same model."""

    def __init__(self, folder: Path) -> None:
        drafts = SpeculativeConfig("ngram", MOST)
        self.plain = LocalChat(folder)
        self.drafting = LocalChat(folder, speculative=drafts)
        self.states: dict[int, ServerState] = {id(chat): chat.state() for chat in (self.plain, self.drafting)}
        compute: Any = self.drafting.engine.runner.compute
        self._drafting = compute._drafting
        slots = self.drafting.engine.ready.limits.max_num_seqs
        suffix = SuffixProposer(slots, SpeculativeConfig("suffix", MOST), ring_bits=12)
        self._proposers = {"ngram": self._drafting._proposer, "suffix": suffix}

    async def ask(self, chat: LocalChat, path: str, body: dict[str, Any], burst: int) -> str:
        chat.engine.restart(chat.engine.ready.num_blocks)
        chat.burst = burst
        async with in_memory(self.states[id(chat)]) as client:
            answer = await client.post(path, json=body)
        assert answer.status_code in (200, 400), answer.text
        return answer.text

    async def compare(self, path: str, body: dict[str, Any], wrong: float | str, burst: int = 1) -> Compared:
        """``wrong``: how much of what is proposed, or the method that proposes."""
        steps = self.plain.engine.steps
        expected = await self.ask(self.plain, path, body, 1)
        steps = self.plain.engine.steps - steps
        if isinstance(wrong, str):
            self._drafting._proposer = self._proposers[wrong]
        else:
            # what the model would have said behind the end is proposed, too
            await self.ask(self.plain, path, {**body, "stop": [], "stop_token_ids": []}, 1)
            oracle = self._drafting._proposer = Oracle(self.plain.texts, wrong)
            oracle.most = MOST
        before = self.drafting.engine.steps
        found = await self.ask(self.drafting, path, body, burst)
        assert normal(found) == normal(expected)
        with_drafts = self.drafting.engine.steps - before
        accepted = self.drafting.engine.scheduler.stats().num_accepted_tokens
        return Compared(expected, steps, with_drafts, accepted)


def normal(answer: str) -> str:
    """Without what no two answers share."""
    if answer.startswith("data: "):
        *_, last = events_of(answer)
        # a form that parameters do not let the model follow is an error, which comes where the text does not go on
        answer = json.dumps(check_stream(answer)) if last == "[DONE]" else last
    answer = re.sub(r'"created": ?\d+', '"created":0', answer)
    return re.sub(r'"(chatcmpl|cmpl|call)[-_][0-9a-zA-Z]+"', '"id"', answer)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Both:
    folder = tmp_path_factory.mktemp("llama")
    tiny.make("llama", folder, layers=2)
    return Both(folder)


TOOL = {"type": "object", "properties": {"x": {"enum": ["a", "bc", "an", 12]}}, "required": ["x"]}
TOOLS = [
    {"type": "function", "function": {"name": "one", "parameters": TOOL}},
    {"type": "function", "function": {"name": "two", "parameters": TOOL, "strict": True}},
]
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "on": {"type": "array", "items": {"enum": [1, 2, None]}},
    },
    "required": ["name", "on"],
    "additionalProperties": False,
}
NAMED = {"type": "function", "function": {"name": "one"}}
JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}

THINKS = {"chat_template_kwargs": {"enable_thinking": True}}
FORMS = (
    {"response_format": JSON_SCHEMA},
    {"response_format": {"type": "json_object"}},
    {"structured_outputs": {"regex": "(a b|[a-c ]{2,9}[.])+"}},
    {"structured_outputs": {"choice": ["a b c", "a b c.", "the cat", "no"]}},
    {"structured_outputs": {"json": SCHEMA}},
)

SAMPLING: dict[str, Any] = {
    "temperature": st.sampled_from((0.0, 0.6, 1.0, 1.7)),
    "top_p": st.sampled_from((0.7, 1.0)),
    "top_k": st.sampled_from((-1, 3, 30)),
    "min_p": st.sampled_from((0.0, 0.05, 0.4)),
    "presence_penalty": st.sampled_from((-1.0, 0.7)),
    "frequency_penalty": st.sampled_from((-0.5, 0.9)),
    "repetition_penalty": st.sampled_from((0.8, 1.3)),
    "logit_bias": st.sampled_from(({str(EOS): 4.0}, {"97": 5.0, "98": 5.0}, {str(THINK): 6.0, str(CALL): 5.0})),
    "allowed_token_ids": st.sampled_from((FEW, TEXT)),
    "bad_words": st.sampled_from((["a", "b c"], ["the "])),
    "vllm_xargs": st.sampled_from(
        ({"ngram_size": 2}, {"ngram_size": 3, "window_size": 9, "whitelist_token_ids": [97]})
    ),
}
LENGTHS: dict[str, Any] = {
    "stop": st.sampled_from((["a b"], ["b", "ca."], ["the ", "é"], ["ab", "cb", "  "], ["."])),
    "stop_token_ids": st.sampled_from(([97], [WORD["a b"], 99], list(range(40, 90)))),
    "stop_regex": st.sampled_from(("[ab] c", [r"\s\s", "c+\\."])),
    "include_stop_str_in_output": st.booleans(),
    "min_tokens": st.integers(0, 20),
    "ignore_eos": st.booleans(),
    "n": st.integers(1, 3),
    "skip_special_tokens": st.booleans(),
    "return_token_ids": st.booleans(),
    "prompt_logprobs": st.sampled_from((0, 2)),
}


def bodies(**fields: Any) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {"seed": st.integers(0, 99), "max_tokens": st.integers(1, 48)}, optional={**SAMPLING, **LENGTHS, **fields}
    ).map(_possible)


def _possible(body: dict[str, Any]) -> dict[str, Any]:
    body["min_tokens"] = min(body.get("min_tokens", 0), body["max_tokens"])
    return body


MESSAGES = st.sampled_from(("a b c a b c", "hello", "the cat and the cat")).map(
    lambda text: [{"role": "user", "content": text}]
)
CHATS = bodies(
    messages=MESSAGES,
    logprobs=st.just(True),
    thinking_token_budget=st.integers(0, 12),
    chat_template_kwargs=st.just({"enable_thinking": True}),
    speculative=st.integers(0, 3).map(lambda most: {"num_tokens": most}),
)
HOW = {"wrong": st.sampled_from(("ngram", "suffix", 0.0, 0.2, 0.5)), "burst": st.integers(1, 3)}
PROPERTY: dict[str, Any] = {"deadline": None, "suppress_health_check": list(HealthCheck)}


WORDY = {"temperature": 1.0, "allowed_token_ids": FEW, "max_tokens": 48}
ENDLESS = {**WORDY, "ignore_eos": True}
CALLS = {"max_tokens": 80, "tools": TOOLS}
CASES: dict[str, tuple[dict[str, Any], str]] = {
    "a stop string": ({**WORDY, "stop": ["bca"]}, "stop"),
    "a stop string that is shown": ({**WORDY, "stop": ["bca"], "include_stop_str_in_output": True}, "stop"),
    "a stop string behind min_tokens": ({**WORDY, "stop": ["b"], "min_tokens": 20}, "stop"),
    "a stop string in each of three": ({**WORDY, "stop": ["ca."], "n": 3}, "stop"),
    "a stop token": ({**WORDY, "stop_token_ids": [WORD["ca"]], "min_tokens": 9}, "stop"),
    "an end behind min_tokens": ({**WORDY, "logit_bias": {str(EOS): 2.0}, "min_tokens": 9}, "stop"),
    "no end": ({**ENDLESS, "logit_bias": {str(EOS): 2.0}}, "length"),
    "logprobs": ({**ENDLESS, "logprobs": True, "top_logprobs": 4}, "length"),
    "penalties": ({"temperature": 0.0, "max_tokens": 30, "presence_penalty": 1.0, "repetition_penalty": 1.2}, "length"),
    "min_p": ({"max_tokens": 30, "min_p": 0.3, "logit_bias": {"97": 4.0, "98": 4.0}}, "length"),
    "a thinking budget": ({**ENDLESS, "thinking_token_budget": 7, **THINKS}, "length"),
    "a budget, then a form": ({"max_tokens": 60, "thinking_token_budget": 7, **THINKS, **FORMS[3]}, "stop"),
    "a schema": ({"max_tokens": 90, "allowed_token_ids": TEXT, **FORMS[0]}, "stop"),
    "a regex": ({"max_tokens": 48, "seed": 4, **FORMS[2]}, "stop"),
    "a call that is forced": ({**CALLS, "tool_choice": "required"}, "tool_calls"),
    "a call of one tool": ({**CALLS, "tool_choice": NAMED}, "stop"),
    "a call": ({**CALLS, "temperature": 0.5, "logit_bias": {str(EOS): 5.0, str(CALL): 6.0}}, "tool_calls"),
}
"""What is asked for, and how each choice ends."""


def chat_of(body: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "a b c a b c"}], **body, **more}


def streamed(body: dict[str, Any]) -> dict[str, Any]:
    body = {**body, "stream": True, "stream_options": {"include_usage": True}}
    return {name: value for name, value in body.items() if name != "prompt_logprobs"}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("case", [*CASES])
def test_an_answer_whose_drafts_are_mostly_right_is_the_same_in_fewer_steps(
    both: Both, case: str, stream: bool
) -> None:
    fields, end = CASES[case]
    body = chat_of({"seed": 1, **fields})
    compared = anyio.run(both.compare, CHAT, streamed(body) if stream else body, 0.1, 1)
    assert {*compared.ends} == {end}, compared.text
    assert compared.accepted > 5
    assert compared.steps_with < compared.steps


@settings(max_examples=examples(60), **PROPERTY)
@given(body=CHATS, stream=st.booleans(), **HOW)
def test_an_answer_is_the_same_with_drafts(
    both: Both, body: dict[str, Any], stream: bool, wrong: float | str, burst: int
) -> None:
    body = chat_of(body)
    anyio.run(both.compare, CHAT, streamed(body) if stream else body, wrong, burst)


@settings(max_examples=examples(40), **PROPERTY)
@given(
    body=bodies(
        allowed_token_ids=st.just(TEXT),
        tool_choice=st.sampled_from(("auto", "required", NAMED)),
        parallel_tool_calls=st.booleans(),
        logprobs=st.just(True),
        thinking_token_budget=st.integers(0, 12),
    ),
    stream=st.booleans(),
    **HOW,
)
def test_calls_are_the_same_with_drafts(
    both: Both, body: dict[str, Any], stream: bool, wrong: float | str, burst: int
) -> None:
    body = chat_of(body, tools=TOOLS)
    anyio.run(both.compare, CHAT, streamed(body) if stream else body, wrong, burst)


@settings(max_examples=examples(60), **PROPERTY)
@given(body=CHATS, form=st.sampled_from(FORMS), stream=st.booleans(), **HOW)
def test_an_answer_in_a_form_is_the_same_with_drafts(
    both: Both, body: dict[str, Any], form: dict[str, Any], stream: bool, wrong: float | str, burst: int
) -> None:
    if "allowed_token_ids" in body:
        body["allowed_token_ids"] = TEXT
    body = chat_of(body, **form)
    anyio.run(both.compare, CHAT, streamed(body) if stream else body, wrong, burst)
