"""Whole answers: bounded before anything is computed, what choices share written once, and nobody else kept waiting."""

import asyncio
import json
from typing import Any

import httpx
import pytest
from starlette.types import Message

from stentor.protocols.common.bounds import AnswerSize, listed_bytes, ranked_bytes
from stentor.protocols.common.errors import BadRequest
from stentor.protocols.common.limits import Limits
from stentor.server.app.state import ServerState
from stentor.server.batches.lines import MAX_ANSWER_BYTES, MAX_LINE_BYTES, BatchRequest, InProcessResponse, answered
from stentor.server.common.loop_turns import SLICE_ENTRIES, LoopTurns
from stentor.server.generation import logprobs
from stentor.server.generation.logprobs import CompletionLogprobsBuilder
from stentor.server.http.whole_answer import (
    PIECE_BYTES,
    AnswerBudget,
    AnswerParts,
    JsonList,
    WholeAnswer,
    array,
    without_bound,
)
from stentor.server.overload.memory_budget import FREE_BYTES, MemoryBudget, MemoryFull
from stentor.tests.fakes import FakeEngine, fake_state, says
from stentor.tests.server.harness import CHAT, COMPLETIONS, HELLO, chunks_of, in_memory, on_loopback

pytestmark = pytest.mark.anyio

RESPONSES = "/v1/responses"
DEFAULTS = Limits()
SCORED: dict[str, Any] = {"echo": True, "logprobs": 20}
CHAT_SCORED: dict[str, Any] = {"logprobs": True, "top_logprobs": 20}
PROMPT = [65 + number % 26 for number in range(2000)]
"""Its log-probabilities are some twenty slices."""


async def post(engine: FakeEngine, path: str = COMPLETIONS, limits: Limits = DEFAULTS, **body: Any) -> httpx.Response:
    state = fake_state(engine, limits=limits)
    async with in_memory(state) as client:
        response = await client.post(path, json=body)
    assert state.admission.memory.bytes == 0
    return response


def most(size: int) -> Limits:
    return Limits(max_answer_bytes=size)


# ---- bounds


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (COMPLETIONS, {"prompt": PROMPT[:1000], "n": 128, "max_tokens": 0, **SCORED}, "n"),
        (COMPLETIONS, {"prompt": PROMPT * 4, "max_tokens": 0, **SCORED}, "logprobs"),
        (COMPLETIONS, {"prompt": PROMPT * 4, "max_tokens": 1, "prompt_logprobs": 20}, "prompt_logprobs"),
        (COMPLETIONS, {"prompt": [PROMPT] * 4, "max_tokens": 0, **SCORED}, "prompt"),
        (COMPLETIONS, {"prompt": PROMPT[:1000], "n": 128, "max_tokens": 1, "stream": True, **SCORED}, "n"),
        (COMPLETIONS, {"prompt": PROMPT, "n": 128, "max_tokens": 1, "echo": True, "return_token_ids": True}, "n"),
        (COMPLETIONS, {"prompt": "a", "logprobs": 20, "max_tokens": 4000}, "max_tokens"),
        (COMPLETIONS, {"prompt": "a", "logprobs": 20, "max_tokens": 400, "n": 20}, "n"),
        (CHAT, {"messages": HELLO, "logprobs": True, "top_logprobs": 20, "max_tokens": 1000}, "max_tokens"),
        (CHAT, {"messages": HELLO, "logprobs": True, "top_logprobs": 20, "max_tokens": 100, "n": 9}, "n"),
        (CHAT, {"messages": [{"role": "user", "content": "a" * 1000}], "prompt_logprobs": 20}, "prompt_logprobs"),
        (RESPONSES, {"input": "hello", "top_logprobs": 20, "max_output_tokens": 200}, "max_output_tokens"),
    ],
)
async def test_an_answer_that_would_be_too_large_is_refused_before_anything_is_computed(
    path: str, fields: dict[str, Any], param: str
) -> None:
    engine = FakeEngine(max_model_len=16384)
    answer = await post(engine, path, most(1 << 20), **fields)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("response_too_large", param)
    assert str(1 << 20) in error["message"]
    assert not engine.streams


@pytest.mark.parametrize(
    "size",
    [
        # an evaluation's: what a text's continuation is worth, many at a time
        AnswerSize(n=1, prompts=256, prompt_tokens=256 * 4096, prompt_bytes=256 * 4096 * listed_bytes(1)),
        AnswerSize(n=1, prompts=64, prompt_tokens=64 * 4096, prompt_bytes=64 * 4096 * listed_bytes(20)),
        AnswerSize(n=1, prompt_tokens=131072, prompt_bytes=131072 * ranked_bytes(20)),
        AnswerSize(n=16, prompt_tokens=4096, prompt_bytes=4096 * ranked_bytes(5), most_tokens=8192, token_bytes=600),
    ],
)
def test_what_is_asked_for_in_earnest_is_not_refused(size: AnswerSize) -> None:
    size.check(Limits().max_answer_bytes)


def test_an_answer_may_have_exactly_as_many_bytes_as_it_may() -> None:
    size = AnswerSize(n=3, prompt_tokens=5, prompt_bytes=7, most_tokens=11, token_bytes=13)
    assert size.bytes == 3 * 7 + 3 * 11 * 13
    size.check(size.bytes)
    with pytest.raises(BadRequest):
        size.check(size.bytes - 1)


async def test_who_names_no_number_of_tokens_gets_as_many_as_the_answer_has_room_for() -> None:
    fields: dict[str, Any] = {"messages": HELLO, "logprobs": True, "top_logprobs": 20}
    answer = await post(FakeEngine(max_model_len=4096), CHAT, most(100_000), **fields)
    assert answer.status_code == 200
    used = answer.json()["usage"]["completion_tokens"]
    assert used == 100_000 // (120 + 20 * 88)
    twice = await post(FakeEngine(max_model_len=4096), CHAT, most(100_000), n=2, **fields)
    assert twice.json()["usage"]["completion_tokens"] == used // 2 * 2
    assert (await post(FakeEngine(), CHAT, most(100), messages=HELLO)).status_code == 400, "nor is there for its text"


async def test_tokens_that_are_longer_than_most_are_found_out_while_the_answer_is_written() -> None:
    body: dict[str, Any] = {"prompt": "a" * 40, "echo": True, "logprobs": 0, "max_tokens": 1, "n": 2}
    fits = await post(FakeEngine(), **body)
    exact = len(fits.content)
    estimate = AnswerSize(n=2, prompt_tokens=40, prompt_bytes=40 * listed_bytes(0) + 40, most_tokens=1, token_bytes=84)
    assert exact < estimate.bytes
    room = AnswerBudget(100, MemoryBudget(0).share())
    with pytest.raises(BadRequest, match="more than the 100 bytes"):
        JsonList(room).extend(["a" * 100])
    parts = AnswerParts(AnswerBudget(100, MemoryBudget(0).share()))
    shared = parts.place([b'"' + b"a" * 40 + b'"'])
    parts.answer([shared, shared])
    with pytest.raises(BadRequest, match="more than the 100 bytes"):
        parts.answer([shared, shared, shared])


async def test_what_is_written_of_an_answer_counts_among_all_that_the_server_holds() -> None:
    budget = MemoryBudget(1000)
    with budget.share() as held, budget.share() as other:
        written = JsonList(AnswerBudget(1 << 30, held))
        written.extend(["a" * (FREE_BYTES + 500)])
        assert budget.bytes == 504
        other.add(FREE_BYTES + 300)
        with pytest.raises(MemoryFull):
            written.extend(["a" * 100])
    assert budget.bytes == 0


# ---- what choices share


@pytest.mark.parametrize("stream", [False, True])
async def test_an_echoed_prompt_is_written_once_for_all_choices(monkeypatch: pytest.MonkeyPatch, stream: bool) -> None:
    written = 0
    add = CompletionLogprobsBuilder.add

    def counted(self: CompletionLogprobsBuilder, tokens: Any, entries: Any) -> Any:
        nonlocal written
        written += len(tokens)
        return add(self, tokens, entries)

    monkeypatch.setattr(CompletionLogprobsBuilder, "add", counted)
    n = 8
    answer = await post(FakeEngine(), prompt="abcdef", n=n, max_tokens=2, stream=stream, **SCORED)
    assert answer.status_code == 200
    assert written == 6 + n * 2


async def test_log_probabilities_of_a_prompt_are_written_once_and_sent_for_each_choice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written = 0
    entry = logprobs._prompt_entry

    def counted(*given: Any) -> Any:
        nonlocal written
        written += 1
        return entry(*given)

    monkeypatch.setattr(logprobs, "_prompt_entry", counted)
    answer = (await post(FakeEngine(), prompt="abcdef", n=4, max_tokens=2, prompt_logprobs=3)).json()
    shown = [choice["prompt_logprobs"] for choice in answer["choices"]]
    assert written == 5
    assert shown == [shown[0]] * 4
    assert len(shown[0]) == 6


async def test_a_stream_of_a_long_echo_says_what_the_whole_answer_does() -> None:
    engine = FakeEngine(max_model_len=4096, answer=says("ok ✓"))
    body: dict[str, Any] = {"prompt": PROMPT, "n": 3, "max_tokens": 16, "return_token_ids": True, **SCORED}
    whole = (await post(engine, **body)).json()
    chunks = chunks_of((await post(engine, stream=True, **body)).text)
    for choice in whole["choices"]:
        own = [part for chunk in chunks for part in chunk["choices"] if part["index"] == choice["index"]]
        assert len(own) > len(PROMPT) * 21 // SLICE_ENTRIES, "the echo comes in pieces"
        assert "".join(part["text"] for part in own) == choice["text"]
        for field, values in choice["logprobs"].items():
            assert [one for part in own if part["logprobs"] for one in part["logprobs"][field]] == values
        assert own[0]["prompt_token_ids"] == choice["prompt_token_ids"] == PROMPT
        assert [one for part in own for one in part.get("token_ids", [])] == choice["token_ids"]


# ---- how it is written and sent


class LongestSlice:
    """How many log-probabilities were written between two looks of the loop at its sockets, at most."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.most = 0
        self.total = 0
        self._now = 0
        monkeypatch.setattr(logprobs, "finite", self._count)

    def _count(self, value: float) -> float:
        self._now += 1
        self.total += 1
        self.most = max(self.most, self._now)
        return value

    async def watch(self) -> None:
        while True:
            self._now = 0
            await asyncio.sleep(0)


@pytest.fixture
def longest(monkeypatch: pytest.MonkeyPatch) -> LongestSlice:
    return LongestSlice(monkeypatch)


@pytest.mark.parametrize(
    ("path", "fields", "scores"),
    [
        (COMPLETIONS, {"prompt": [PROMPT] * 3, "max_tokens": 0, **SCORED}, 3 * 1999 * 22),
        (COMPLETIONS, {"prompt": [PROMPT] * 3, "max_tokens": 1, "stream": True, **SCORED}, 3 * 1999 * 22),
        (COMPLETIONS, {"prompt": [PROMPT] * 3, "max_tokens": 1, "prompt_logprobs": 20}, 3 * 1999 * 21),
        (COMPLETIONS, {"prompt": "a", "max_tokens": 1000, "logprobs": 20}, 1000 * 21),
        (CHAT, {"messages": HELLO, "max_tokens": 1000, **CHAT_SCORED}, 1000 * 21),
        (
            CHAT,
            {"messages": HELLO, "max_tokens": 1000, "logprobs": True, "top_logprobs": 20, "stream": True},
            1000 * 21,
        ),
        (RESPONSES, {"input": "hello", "max_output_tokens": 1000, "top_logprobs": 20}, 1000 * 21),
    ],
)
async def test_all_requests_together_write_one_slice_between_two_turns_of_the_loop(
    longest: LongestSlice, path: str, fields: dict[str, Any], scores: int
) -> None:
    engine = FakeEngine(max_model_len=4096, answer=lambda _prompt, _index: PROMPT * 2)
    engine.burst = 4000  # all of it at once, as for a reader that has not read
    watching = asyncio.create_task(longest.watch())
    answer = await post(engine, path, **fields)
    watching.cancel()
    assert answer.status_code == 200
    assert longest.total >= scores
    # a generated token's own log-probability is written beside its alternatives
    assert longest.most <= SLICE_ENTRIES * 1.1


async def test_turns_are_handed_out_one_at_a_time_in_the_order_in_which_they_were_asked_for() -> None:
    turns = LoopTurns()
    order: list[str] = []
    looks = 0

    async def work(name: str) -> None:
        for _ in range(3):
            await turns.take()
            order.append(f"{name}{looks}")

    tasks = [asyncio.create_task(work(name)) for name in "abc"]
    gone = asyncio.create_task(turns.take())
    await asyncio.sleep(0)
    gone.cancel()
    while not all(task.done() for task in tasks):
        looks += 1
        await asyncio.sleep(0)
    assert [each[0] for each in order] == list("abcabcabc")
    assert len({each[1:] for each in order}) == 9, "no two of them in the same turn"
    await asyncio.wait_for(turns.take(), 60)


def test_parts_stand_where_they_were_placed_whatever_texts_hold() -> None:
    parts = AnswerParts(without_bound())
    column = JsonList(without_bound())
    column.extend([1, 2])
    column.extend([])
    column.extend(["\x01", "é"])
    empty = JsonList(without_bound())
    value = {"a": "\x010\x01", "b": parts.place(array(column)), "c": [parts.place(array(empty, column, column))]}
    body = b"".join(parts.answer(value).pieces())
    found = [1, 2, "\x01", "é"]
    assert json.loads(body) == {"a": "\x010\x01", "b": found, "c": [found + found]}


async def test_a_large_answer_is_sent_in_pieces_and_what_is_shared_is_not_copied() -> None:
    shared = bytes(range(256)) * 2048
    answer = WholeAnswer([b"x", shared, b"y", shared, b"z"])
    sent: list[Message] = []
    looks = 0

    async def send(message: Message) -> None:
        sent.append(message)

    async def look() -> None:
        nonlocal looks
        while True:
            looks += 1
            await asyncio.sleep(0)

    looking = asyncio.create_task(look())
    await answer({"type": "http"}, None, send)  # type: ignore[arg-type]  # it reads nothing
    looking.cancel()
    head, *bodies = sent
    assert dict(head["headers"])[b"content-length"] == b"%d" % (2 * len(shared) + 3)
    assert b"".join(each["body"] for each in bodies) == b"x" + shared + b"y" + shared + b"z"
    assert max(len(each["body"]) for each in bodies) <= 2 * PIECE_BYTES
    assert [each["more_body"] for each in bodies] == [True] * (len(bodies) - 1) + [False]
    assert looks >= len(bodies) - 1


async def test_what_fails_before_the_first_byte_has_a_status_of_its_own_and_gives_back_what_it_held() -> None:
    engine = FakeEngine(max_model_len=4096, delay=0.001)
    state: ServerState = fake_state(engine)
    async with on_loopback(state) as url, httpx.AsyncClient(base_url=url) as client:
        body = {"prompt": PROMPT, "max_tokens": 400, "n": 4, **SCORED}
        asking = asyncio.create_task(client.post(COMPLETIONS, json=body))
        async with asyncio.timeout(60):
            while not engine.streams or state.admission.memory.bytes < 400_000:
                await asyncio.sleep(0.001)
        engine.failure = "it died"
        answer = await asking
        assert answer.status_code == 500
        assert answer.json()["error"]["type"] == "server_error"
        assert state.admission.memory.bytes == 0


def test_a_piece_is_small_enough_for_a_connection() -> None:
    pieces = list(WholeAnswer([b"a" * 10, b"b" * (3 * PIECE_BYTES), bytearray(b"c" * 10)]).pieces())
    assert b"".join(pieces) == b"a" * 10 + b"b" * 3 * PIECE_BYTES + b"c" * 10
    assert max(map(len, pieces)) < 2 * PIECE_BYTES


def test_an_answer_that_no_line_of_a_batch_can_hold_is_told_as_failed() -> None:
    request = BatchRequest("mine", COMPLETIONS, {})
    fits = json.loads(answered(request, InProcessResponse(200, b'"' + b"a" * (MAX_ANSWER_BYTES - 2) + b'"', "id")))
    assert fits["error"] is None
    line = answered(request, InProcessResponse(200, b'"' + b"a" * MAX_ANSWER_BYTES + b'"', "id"))
    failed = json.loads(line)
    assert (failed["custom_id"], failed["error"]["code"]) == ("mine", "response_too_large")
    assert len(line) < MAX_LINE_BYTES
