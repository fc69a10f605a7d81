"""Engine events in, typed deltas out, over scripted streams."""

import asyncio
from contextlib import aclosing
from typing import Self

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stentor.engine.client.errors import EngineUnavailable
from stentor.engine.client.request import EngineRequest
from stentor.protocols.ipc.actors import EngineEvent, Finished, PromptDone, SequenceTokens
from stentor.protocols.ipc.deltas import Delta, Finish, PromptProcessed, Text
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import TokenLogprobs
from stentor.server.text.output.generation import Generation, GenerationRequest
from stentor.server.text.pool import TokenizerPool
from stentor.tests.examples import examples
from stentor.tests.fakes import EOS, byte_tokenizer

POOL_TOKENIZER = byte_tokenizer()


class Script:
    """A client whose one request brings these batches, and then nothing for ever."""

    def __init__(self, batches: list[list[EngineEvent]], *, ends: bool = False) -> None:
        self.batches = batches
        self.ends = ends
        self.aborted: list[int] = []
        self.taken = 0

    def submit(self, request: EngineRequest) -> Self:
        self.submitted = request
        return self

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[EngineEvent]:
        if self.taken < len(self.batches):
            self.taken += 1
            return self.batches[self.taken - 1]
        if self.ends:
            raise StopAsyncIteration
        await asyncio.Event().wait()
        raise AssertionError

    def routed_experts(self, index: int, drawn: int) -> bytes:
        raise ValueError("nobody has asked for experts")

    def abort(self, index: int = -1) -> None:
        self.aborted.append(index)


def says(text: str | bytes, index: int = 0, *, logprobs: bool = False) -> SequenceTokens:
    tokens = list(text.encode() if isinstance(text, str) else text)
    return SequenceTokens(1, index, tokens, [TokenLogprobs(t, -1.0, 1, []) for t in tokens] if logprobs else None)


def ends(reason: str = "length", index: int = 0, token: int | None = None) -> Finished:
    return Finished(1, index, reason, token, None)  # type: ignore[arg-type]


def request(
    *, n: int = 1, min_tokens: int = 0, stop_token_ids: tuple[int, ...] = (), **fields: object
) -> GenerationRequest:
    params = SamplingParams(max_tokens=100, min_tokens=min_tokens, eos_token_ids=(EOS,), stop_token_ids=stop_token_ids)
    return GenerationRequest(prompt=[1, 2], params=params, seeds=list(range(n)), **fields)  # type: ignore[arg-type]


def run(script: Script, wanted: GenerationRequest) -> list[list[Delta]]:
    async def main() -> list[list[Delta]]:
        pool = TokenizerPool(POOL_TOKENIZER)
        async with aclosing(Generation(script, pool, wanted)) as batches:
            return [batch async for batch in batches]

    return asyncio.run(asyncio.wait_for(main(), 60))


def text_of(batches: list[list[Delta]], index: int = 0) -> str:
    return "".join(d.text for batch in batches for d in batch if isinstance(d, Text) and d.index == index)


def test_an_engine_batch_becomes_one_batch_of_deltas() -> None:
    prompt = PromptDone(1, 5, 0.1, 0.2, None)
    script = Script([[prompt, says("He")], [says("llo"), ends()]])
    wanted = request(priority=3, salt="s")
    assert run(script, wanted) == [
        [PromptProcessed(5, None, 0.1, 0.2), Text(0, "He", list(b"He"), None)],
        [Text(0, "llo", list(b"llo"), None), Finish(0, "length", None, None)],
    ]
    assert script.submitted is wanted
    assert script.aborted == []


def test_half_a_character_waits_for_the_other_half() -> None:
    script = Script([[says("é".encode()[:1])], [says("é".encode()[1:])], [says(b"\xc3")], [ends()]])
    batches = run(script, request())
    assert [batch[0] for batch in batches] == [
        Text(0, "", [0xC3], None),
        Text(0, "é", [0xA9], None),
        Text(0, "", [0xC3], None),
        Text(0, "\ufffd", [], None),
    ]


@pytest.mark.parametrize(
    ("include", "skip", "text"), [(False, True, "Hi"), (True, False, "Hi</s>"), (False, False, "Hi")]
)
def test_the_eos_token_is_a_token_but_no_text_unless_included(include: bool, skip: bool, text: str) -> None:
    eos = SequenceTokens(1, 0, [*b"Hi", EOS], None)
    batches = run(Script([[eos, ends("stop")]]), request(include_stop=include, skip_special_tokens=skip))
    assert batches == [[Text(0, text, [*b"Hi", EOS], None), Finish(0, "stop", None, None)]]


@pytest.mark.parametrize("stop", [(), ("never",)])
def test_a_stop_token_is_reported_and_left_out_of_the_text(stop: tuple[str, ...]) -> None:
    script = Script([[says("Hi!"), ends("stop", token=33)]])
    batches = run(script, request(stop_token_ids=(33,), stop=stop))
    assert batches == [[Text(0, "Hi", list(b"Hi!"), None), Finish(0, "stop", 33, None)]]


def test_an_eos_token_before_min_tokens_is_text_like_any_other() -> None:
    script = Script([[SequenceTokens(1, 0, [EOS], None)], [says("Hi"), ends()]])
    assert text_of(run(script, request(min_tokens=2, skip_special_tokens=False))) == "</s>Hi"


def test_a_stop_string_ends_its_choice_at_the_token_that_completes_it() -> None:
    script = Script([[says("ab\nU", logprobs=True)], [says("ser: hi", logprobs=True)], [ends("abort")]])
    batches = run(script, request(stop=("\nUser:",)))
    assert [delta.text for batch in batches for delta in batch if isinstance(delta, Text)] == ["ab", ""]
    last = batches[1][0]
    assert isinstance(last, Text)
    assert bytes(last.tokens) == b"ser:"
    assert last.logprobs is not None
    assert [logprob.token for logprob in last.logprobs] == last.tokens
    assert batches[1][1:] == [Finish(0, "stop", "\nUser:", None)]
    assert script.aborted == [0]
    assert script.taken == 2


def test_an_included_stop_string_is_not_held_back() -> None:
    script = Script([[says("ab\nU")], [says("ser: hi")]])
    batches = run(script, request(stop=("\nUser:",), include_stop=True))
    assert [delta.text for batch in batches for delta in batch if isinstance(delta, Text)] == ["ab\nU", "ser:"]


def test_text_that_was_held_back_comes_with_the_end() -> None:
    batches = run(Script([[says("ab\nUs"), ends()]]), request(stop=("\nUser:",)))
    assert batches == [[Text(0, "ab\nUs", list(b"ab\nUs"), None), Finish(0, "length", None, None)]]


def test_a_stop_string_wins_over_an_end_in_the_same_batch() -> None:
    batches = run(Script([[says("a."), ends("length")]]), request(stop=(".",)))
    assert batches == [[Text(0, "a", list(b"a."), None), Finish(0, "stop", ".", None)]]


def test_a_stop_string_does_not_match_before_min_tokens() -> None:
    batches = run(Script([[says("a.b.c.")], [ends("abort")]]), request(stop=(".",), min_tokens=2))
    assert text_of(batches) == "a.b"
    assert batches[-1][-1] == Finish(0, "stop", ".", None)


def test_a_choice_that_stopped_says_nothing_more_while_others_go_on() -> None:
    script = Script(
        [
            [says("a.", 0), says("bc", 1)],
            [says("zz", 0), says("d", 1), ends("abort", 0)],
            [ends("length", 1)],
        ]
    )
    batches = run(script, request(n=2, stop=(".",)))
    assert batches == [
        [Text(0, "a", list(b"a."), None), Finish(0, "stop", ".", None), Text(1, "bc", list(b"bc"), None)],
        [Text(1, "d", list(b"d"), None)],
        [Finish(1, "length", None, None)],
    ]


def test_a_batch_of_nothing_new_is_not_passed_on() -> None:
    script = Script([[says("a.", 0)], [says("x", 0)], [ends("abort", 0)], [says("b", 1), ends("length", 1)]])
    assert len(run(script, request(n=2, stop=(".",)))) == 2


def test_an_error_of_the_engine_is_passed_on_with_the_text_so_far() -> None:
    script = Script([[says("ab\n")], [Finished(1, 0, "error", None, "out of memory")]])
    assert run(script, request(stop=("\nUser:",)))[1] == [
        Text(0, "\n", [], None),
        Finish(0, "error", None, "out of memory"),
    ]


def test_a_stream_that_ends_early_still_ends_every_choice_once() -> None:
    script = Script([[says("a", 0), ends("length", 0)]], ends=True)
    ended = [d for batch in run(script, request(n=3)) for d in batch if isinstance(d, Finish)]
    assert [(finish.index, finish.reason) for finish in ended] == [(0, "length"), (1, "error"), (2, "error")]


def test_closing_early_aborts_the_whole_request_once() -> None:
    async def main() -> None:
        script = Script([[says("a")]])
        generation = Generation(script, TokenizerPool(POOL_TOKENIZER), request())
        await generation.__anext__()
        await generation.aclose()
        await generation.aclose()
        assert script.aborted == [-1]
        with pytest.raises(StopAsyncIteration):
            await generation.__anext__()

    asyncio.run(main())


def test_closing_before_the_first_delta_aborts_too() -> None:
    async def main() -> None:
        script = Script([])
        await Generation(script, TokenizerPool(POOL_TOKENIZER), request()).aclose()
        assert script.aborted == [-1]

    asyncio.run(main())


def test_cancelling_an_iteration_aborts_the_request() -> None:
    async def main() -> None:
        script = Script([])
        generation = Generation(script, TokenizerPool(POOL_TOKENIZER), request())
        task = asyncio.ensure_future(generation.__anext__())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert script.aborted == [-1]

    asyncio.run(main())


def test_an_engine_that_takes_no_requests_says_so_at_once() -> None:
    class Unavailable(Script):
        def submit(self, request: EngineRequest) -> Self:
            raise EngineUnavailable("starting")

    async def main() -> None:
        with pytest.raises(EngineUnavailable):
            Generation(Unavailable([]), TokenizerPool(POOL_TOKENIZER), request())

    asyncio.run(main())


@settings(max_examples=examples(50, 750), deadline=None)
@given(
    st.text("ab.é😀", max_size=12),
    st.lists(st.integers(1, 5), max_size=10),
    st.lists(st.text("ab.é😀", min_size=1, max_size=3), max_size=3),
    st.integers(0, 4),
    st.booleans(),
)
def test_however_tokens_arrive_the_outcome_is_the_same(
    text: str, sizes: list[int], stops: list[str], min_tokens: int, include: bool
) -> None:
    tokens = text.encode()

    def outcome(cuts: list[int]) -> tuple[str, list[int], object]:
        rest = tokens
        batches: list[list[EngineEvent]] = []
        for size in cuts:
            batches.append([says(rest[:size])])
            rest = rest[size:]
        batches.append([says(rest), ends()])
        got = run(Script(batches), request(stop=tuple(stops), min_tokens=min_tokens, include_stop=include))
        ids = [token for batch in got for delta in batch if isinstance(delta, Text) for token in delta.tokens]
        return text_of(got), ids, got[-1][-1]

    whole = outcome([])
    assert outcome(sizes) == whole
    assert outcome([1] * len(tokens)) == whole
    if not stops:
        assert whole[:2] == (text, list(tokens))
