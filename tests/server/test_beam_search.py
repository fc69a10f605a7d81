"""Beam search over HTTP, on a tiny model in this process, against transformers in float32."""

import json
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
import torch
from openai.types import Completion
from openai.types.chat import ChatCompletion

from stentor.engine.client.errors import EngineUnavailable
from stentor.engine.client.request import EngineRequest
from stentor.protocols.ipc.actors import EngineEvent, Finished, PromptDone, SequenceTokens
from stentor.protocols.ipc.deltas import Finish
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import TokenLogprobs
from stentor.protocols.openai.beams import Beams
from stentor.server.text.output.beam_search import BeamSubmitter
from stentor.server.text.output.generation import Generation, GenerationRequest
from stentor.tests.fakes import EOS
from stentor.tests.parity import tiny
from stentor.tests.server.harness import CHAT, COMPLETIONS, HELLO, chunks_of, in_memory, until
from stentor.tests.server.local_chat import LocalChat

pytestmark = pytest.mark.anyio

PROMPT = [*b"beams"]
LENGTH = 7
BEAMS: dict[str, Any] = {"use_beam_search": True, "return_token_ids": True}

Found = tuple[list[int], float]
"""Tokens and their score."""


class Served:
    def __init__(self, folder: Path) -> None:
        self.reference = tiny.make("llama", folder, layers=2)
        self.chat = LocalChat(folder)
        self.state = self.chat.state()

    async def ask(self, path: str, status: int = 200, **body: Any) -> Any:
        async with in_memory(self.state) as client:
            answer = await client.post(path, json=body)
        assert answer.status_code == status, answer.text
        return answer if body.get("stream") else json.loads(answer.text)

    def logprobs(self, tokens: list[int]) -> list[float]:
        """Of each next token."""
        with torch.inference_mode():
            logits = self.reference(torch.tensor([tokens])).logits[0, -1].double()
        return [float(each) for each in torch.log_softmax(logits, 0)]

    def plainly(
        self, width: int, length_penalty: float, most: int, ends: frozenset[int]
    ) -> list[tuple[list[int], float]]:
        """Tokens and scores by vLLM's definition, every step made and every result kept."""
        running: list[tuple[list[int], float]] = [([], 0.0)]
        ended: list[tuple[list[int], float]] = []
        for _ in range(most):
            going: list[Found] = []
            for tokens, total in running:
                found = self.logprobs(PROMPT + tokens)
                for token in sorted(range(len(found)), key=lambda token: -found[token])[: 2 * width]:
                    (ended if token in ends else going).append(([*tokens, token], total + found[token]))
            running = sorted(going, key=lambda each: -each[1])[:width]
        scored = [
            (tokens, total / (len(PROMPT) + len(tokens) - (tokens[-1] in ends)) ** length_penalty)
            for tokens, total in [*ended, *running]
        ]
        return sorted(scored, key=lambda each: -each[1])[:width]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    return Served(tmp_path_factory.mktemp("llama"))


@pytest.mark.parametrize("width", [1, 3, 10])
async def test_beams_are_those_of_transformers_where_nothing_ends_them(served: Served, width: int) -> None:
    answer = await served.ask(
        COMPLETIONS, prompt=PROMPT, n=width, max_tokens=LENGTH, ignore_eos=True, logprobs=1, **BEAMS
    )
    found = served.reference.generate(
        torch.tensor([PROMPT]),
        num_beams=width,
        num_return_sequences=width,
        max_new_tokens=LENGTH,
        do_sample=False,
        eos_token_id=None,
        length_penalty=0.0,
        return_dict_in_generate=True,
        output_scores=True,
    )
    expected = [tokens[len(PROMPT) :] for tokens in found.sequences.tolist()]
    assert [choice["token_ids"] for choice in answer["choices"]] == expected
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["length"] * width
    if width > 1:
        sums = [sum(choice["logprobs"]["token_logprobs"]) for choice in answer["choices"]]
        assert sums == pytest.approx(found.sequences_scores.tolist(), abs=1e-4)


@pytest.mark.parametrize("length_penalty", [-1.0, 0.0, 1.0, 2.0])
async def test_sequences_that_end_are_found_and_scored_as_vllm_defines(served: Served, length_penalty: float) -> None:
    width, likely = 3, served.plainly(1, 0.0, 2, frozenset())[0][0][-1]
    answer = await served.ask(
        COMPLETIONS,
        prompt=PROMPT,
        n=width,
        max_tokens=LENGTH,
        length_penalty=length_penalty,
        stop_token_ids=[likely],
        logprobs=0,
        **BEAMS,
    )
    ends = frozenset((EOS, likely))
    expected = served.plainly(width, length_penalty, LENGTH, ends)
    assert [choice["token_ids"] for choice in answer["choices"]] == [tokens for tokens, _ in expected]
    for choice, (tokens, score) in zip(answer["choices"], expected, strict=True):
        ended = tokens[-1] in ends
        assert choice["finish_reason"] == ("stop" if ended else "length")
        assert choice["stop_reason"] == (tokens[-1] if ended else None)
        length = len(PROMPT) + len(tokens) - ended
        assert sum(choice["logprobs"]["token_logprobs"]) / length**length_penalty == pytest.approx(score, abs=1e-4)
    if length_penalty <= 0:
        assert any(choice["finish_reason"] == "stop" for choice in answer["choices"])


async def test_best_of_is_the_number_of_beams_and_n_that_of_results(served: Served) -> None:
    body = {"prompt": PROMPT, "max_tokens": 4, **BEAMS}
    wide = await served.ask(COMPLETIONS, n=4, **body)
    some = await served.ask(COMPLETIONS, n=2, best_of=4, **body)
    assert [each["token_ids"] for each in some["choices"]] == [each["token_ids"] for each in wide["choices"][:2]]
    assert some["usage"]["completion_tokens"] == 8


async def test_the_temperature_and_what_else_shapes_sampling_change_nothing(served: Served) -> None:
    body = {"prompt": PROMPT, "max_tokens": 4, "n": 2, **BEAMS}
    shapes: list[dict[str, Any]] = [{}, {"temperature": 1.7, "seed": 5}, {"top_p": 0.1, "top_k": 1}]
    texts = [[each["text"] for each in (await served.ask(COMPLETIONS, **body, **more))["choices"]] for more in shapes]
    assert texts[0] == texts[1] == texts[2]


async def test_answers_are_valid_to_the_sdk_strictly_and_streams_say_the_same(served: Served) -> None:
    body = {"max_tokens": 5, "n": 3, "use_beam_search": True}
    completion = await served.ask(COMPLETIONS, prompt=["ab", "cd"], logprobs=2, **body)
    Completion.model_validate_json(json.dumps(completion), strict=True)
    assert [choice["index"] for choice in completion["choices"]] == [*range(6)]
    chat = await served.ask(CHAT, messages=HELLO, logprobs=True, top_logprobs=2, **body)
    ChatCompletion.model_validate_json(json.dumps(chat), strict=True)
    chunks = chunks_of((await served.ask(CHAT, messages=HELLO, stream=True, **body)).text)
    for choice in chat["choices"]:
        mine = [part for chunk in chunks for part in chunk["choices"] if part["index"] == choice["index"]]
        content = "".join(part["delta"].get("content") or "" for part in mine)
        reasoning = "".join(part["delta"].get("reasoning") or "" for part in mine)
        assert content == (choice["message"]["content"] or "")
        assert reasoning == (choice["message"].get("reasoning") or "")
        assert [part["finish_reason"] for part in mine if part["finish_reason"]] == [choice["finish_reason"]]


async def test_an_echoed_prompt_has_its_logprobs_before_those_of_the_beams(served: Served) -> None:
    answer = await served.ask(COMPLETIONS, prompt=PROMPT, echo=True, logprobs=1, max_tokens=2, n=2, **BEAMS)
    for choice in answer["choices"]:
        assert choice["text"].startswith("beams")
        values = choice["logprobs"]["token_logprobs"]
        assert values[0] is None
        expected = [served.logprobs(PROMPT[:place])[PROMPT[place]] for place in range(1, len(PROMPT))]
        assert values[1 : len(PROMPT)] == pytest.approx(expected, abs=1e-4)


async def test_a_step_computes_one_position_of_each_beam(served: Served) -> None:
    runner, computed = served.chat.engine.runner, list[int]()
    forward = runner.forward

    def counted(plan: Any) -> Any:
        computed.append(sum(row.count for row in plan.rows))
        return forward(plan)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "forward", counted)
        await served.ask(COMPLETIONS, prompt=[*b"never seen before"], n=3, max_tokens=4, **BEAMS)
    assert sum(computed) == 17 + 3 * 3, computed


async def test_a_search_is_aborted_when_its_client_leaves(served: Served) -> None:
    submitted: list[EngineRequest] = []

    class Watched:
        def submit(self, request: EngineRequest) -> Any:
            submitted.append(request)
            return served.chat.submit(request)

    request = GenerationRequest(prompt=PROMPT, params=SamplingParams(max_tokens=100), seeds=[1, 2])
    client = BeamSubmitter(Watched(), Beams(2, 1.0))
    async with aclosing(Generation(client, served.state.chat.pool, request)) as batches:
        await anext(batches)
    assert len(submitted) == 3, "the prompt, and a step of two beams"
    await until(lambda: not served.chat.engine.scheduler.has_work)


class Failing:
    """An engine that gives each request this end; its first ``good`` requests get a token before."""

    def __init__(self, end: Finished, good: int) -> None:
        self.end, self.good = end, good
        self.streams: list[Failing.Stream] = []

    class Stream:
        def __init__(self, events: list[EngineEvent]) -> None:
            self.events, self.aborted = events, False

        def __aiter__(self) -> "Failing.Stream":
            return self

        async def __anext__(self) -> list[EngineEvent]:
            if not self.events:
                raise StopAsyncIteration
            events, self.events = self.events, []
            return events

        def abort(self, index: int = -1) -> None:
            self.aborted = True

        def routed_experts(self, index: int, drawn: int) -> bytes:
            raise ValueError

    def submit(self, request: EngineRequest) -> "Failing.Stream":
        top = [(65 + place, -1.0 - place) for place in range(4)]
        tokens = SequenceTokens(0, 0, [65], [TokenLogprobs(65, -1.0, 1, top)])
        fine: list[EngineEvent] = [PromptDone(0, 0, 0.0, 0.0, None), tokens, Finished(0, 0, "length", None, None)]
        self.streams.append(Failing.Stream(fine if len(self.streams) < self.good else [self.end]))
        return self.streams[-1]


@pytest.mark.parametrize(
    ("end", "good"),
    [
        (Finished(0, 0, "error", None, "lost", "shutdown"), 0),
        (Finished(0, 0, "error", None, "lost", "media", "messages[0]"), 1),
        (Finished(0, 0, "abort", None, None), 2),
    ],
)
async def test_the_end_of_a_beams_request_is_that_of_the_search(served: Served, end: Finished, good: int) -> None:
    client = Failing(end, good)
    request = GenerationRequest(prompt=PROMPT, params=SamplingParams(max_tokens=9), seeds=[1, 2])
    async with aclosing(Generation(BeamSubmitter(client, Beams(2, 1.0)), served.state.chat.pool, request)) as batches:
        deltas = [delta async for batch in batches for delta in batch]
    ends = [delta for delta in deltas if isinstance(delta, Finish)]
    assert [(each.index, each.reason, each.fault, each.field) for each in ends] == [
        (index, end.reason, end.fault, end.field) for index in range(2)
    ]
    assert all(stream.aborted for stream in client.streams[good:])


async def test_an_engine_that_is_given_up_between_two_steps_ends_the_search(served: Served) -> None:
    client = Failing(Finished(0, 0, "length", None, None), 1)
    client.good, allowed = 9, client.submit

    def submit(request: EngineRequest) -> Any:
        if len(client.streams) == 2:
            raise EngineUnavailable("the engine is gone")
        return allowed(request)

    client.submit = submit  # type: ignore[method-assign]
    request = GenerationRequest(prompt=PROMPT, params=SamplingParams(max_tokens=9), seeds=[1, 2])
    async with aclosing(Generation(BeamSubmitter(client, Beams(2, 1.0)), served.state.chat.pool, request)) as batches:
        ends = [delta async for batch in batches for delta in batch if isinstance(delta, Finish)]
    assert [(each.reason, each.fault) for each in ends] == [("error", "engine")] * 2
    assert client.streams[1].aborted


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"n": 11}, "n"),
    ({"length_penalty": 11}, "length_penalty"),
    ({"length_penalty": "long"}, "length_penalty"),
    ({"stop": "x"}, "stop"),
    ({"stop_regex": "x"}, "stop_regex"),
    ({"min_tokens": 1, "max_tokens": 2}, "min_tokens"),
    ({"logit_bias": {"5": 1}}, "logit_bias"),
    ({"allowed_token_ids": [5]}, "allowed_token_ids"),
    ({"bad_words": ["x"]}, "bad_words"),
    ({"vllm_xargs": {"ngram_size": 2}}, "vllm_xargs.ngram_size"),
    ({"presence_penalty": 1}, "presence_penalty"),
    ({"frequency_penalty": 1}, "frequency_penalty"),
    ({"repetition_penalty": 1.1}, "repetition_penalty"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"structured_outputs": {"regex": "a"}}, "structured_outputs.regex"),
    ({"return_routed_experts": True}, "return_routed_experts"),
    ({"repetition_detection": {"max_pattern_size": 2, "min_count": 2}}, "repetition_detection"),
]


@pytest.mark.parametrize(("body", "param"), REFUSED)
async def test_what_beams_would_not_obey_is_refused_by_name(served: Served, body: dict[str, Any], param: str) -> None:
    for path, prompt in ((COMPLETIONS, {"prompt": "a"}), (CHAT, {"messages": HELLO})):
        answer = await served.ask(path, 400, use_beam_search=True, **prompt, **body)
        assert answer["error"]["param"] == param


async def test_fewer_beams_than_results_forced_tools_and_thinking_budgets_are_refused(served: Served) -> None:
    answer = await served.ask(COMPLETIONS, 400, prompt="a", use_beam_search=True, n=3, best_of=2)
    assert answer["error"]["param"] == "best_of"
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    body = {"messages": HELLO, "use_beam_search": True, "max_tokens": 4}
    answer = await served.ask(CHAT, 400, **body, tools=[tool], tool_choice="required")
    assert answer["error"]["param"] == "use_beam_search"
    answer = await served.ask(CHAT, 400, **body, thinking_token_budget=3)
    assert answer["error"]["param"] == "thinking_token_budget"
