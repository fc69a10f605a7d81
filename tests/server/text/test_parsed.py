"""Choices whose text is taken apart: what each token counts as, and what becomes of stop strings and markers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken

from stentor.protocols.ipc.actors import EngineEvent, SequenceTokens
from stentor.protocols.ipc.deltas import Delta, Finish, Reasoning, Text, ToolCallArguments, ToolCallEnd, ToolCallStart
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import TokenLogprobs
from stentor.server.api.common.collect import CollectedGeneration, collect
from stentor.server.parsing.harmony import HarmonyParser
from stentor.server.parsing.interface import Tool
from stentor.server.parsing.output import TOOL_FORMATS, OutputFormat
from stentor.server.parsing.reasoning.formats import REASONING_FORMATS
from stentor.server.text.output.generation import Generation, GenerationRequest
from stentor.server.text.pool import TokenizerPool
from stentor.server.text.tokenizers.detokenizer import Detokenizers
from stentor.server.text.tokenizers.tokenizer import Tokenizer
from stentor.tests.examples import examples
from stentor.tests.fakes import EOS, byte_tokenizer
from stentor.tests.server.text.test_generation import Script, ends

MARKERS = ("<think>", "</think>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|start|>")
OTHER = "<|other|>"


def tokenizer() -> Tokenizer:
    """Bytes, and the markers of two families as special tokens."""
    backend = byte_tokenizer().backend
    backend.add_special_tokens([AddedToken(text, special=True) for text in (*MARKERS, OTHER)])
    return Tokenizer(backend, {"eos_token": "</s>"}, None)


TOKENIZER = tokenizer()
POOL = TokenizerPool(TOKENIZER)
QWEN = OutputFormat(REASONING_FORMATS["qwen3"])
HARMONY = REASONING_FORMATS["gpt_oss"]
WEATHER = Tool("weather", None, {"type": "object"})


def ids(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False)


def says(text: str, index: int = 0, *, logprobs: bool = False) -> SequenceTokens:
    tokens = ids(text)
    return SequenceTokens(1, index, tokens, [TokenLogprobs(t, -1.0, 1, []) for t in tokens] if logprobs else None)


def request(*, n: int = 1, min_tokens: int = 0, **fields: Any) -> GenerationRequest:
    params = SamplingParams(
        max_tokens=100,
        min_tokens=min_tokens,
        eos_token_ids=(EOS,),
        stop_token_ids=fields.pop("stop_token_ids", ()),
    )
    settled: dict[str, Any] = {"parser": lambda: QWEN.parser((), opened=False), "visible": QWEN.visible} | fields
    return GenerationRequest(prompt=[1, 2], params=params, seeds=list(range(n)), **settled)


def run(batches: list[list[EngineEvent]], wanted: GenerationRequest) -> list[Delta]:
    async def main() -> list[Delta]:
        async with aclosing(Generation(Script(batches), POOL, wanted)) as deltas:
            return [delta async for batch in deltas for delta in batch]

    return asyncio.run(asyncio.wait_for(main(), 60))


def gathered(deltas: list[Delta], n: int = 1) -> CollectedGeneration:
    async def batches() -> AsyncIterator[list[Delta]]:
        yield deltas

    return asyncio.run(collect(batches(), n))


def test_each_token_counts_as_what_the_parser_was_in_when_it_came() -> None:
    deltas = run([[says("<think>Hm</think>Hi"), ends("stop")]], request())
    assert deltas == [
        Text(0, "", ids("<think>"), None),
        Reasoning(0, "Hm", ids("Hm</think>"), None),
        Text(0, "Hi", ids("Hi"), None),
        Finish(0, "stop", None, None),
    ]


def test_a_batch_of_one_token_is_one_delta() -> None:
    batches: list[list[EngineEvent]] = [[says(text)] for text in ("<think>", "H", "<", "m", "</think>", "\n", "i")]
    deltas = run([*batches, [ends("stop")]], request())
    assert deltas[:-1] == [
        Text(0, "", ids("<think>"), None),
        Reasoning(0, "H", ids("H"), None),
        Reasoning(0, "", ids("<"), None),
        Reasoning(0, "<m", ids("m"), None),
        Reasoning(0, "", ids("</think>"), None),
        Text(0, "", ids("\n"), None),
        Text(0, "i", ids("i"), None),
    ]


def test_markers_reach_the_parser_and_other_special_tokens_do_not_become_text() -> None:
    text = f"<think>H{OTHER}m</think>H{OTHER}i"
    whole = gathered(run([[says(text), ends("stop")]], request())).choices[0]
    assert (whole.thoughts, whole.text) == ("Hm", "Hi")
    assert whole.tokens == ids(text)
    hidden = gathered(run([[says(text), ends("stop")]], request(visible=frozenset()))).choices[0]
    assert (hidden.thoughts, hidden.text) == ("", "HmHi")
    shown = gathered(run([[says(text), ends("stop")]], request(skip_special_tokens=False))).choices[0]
    assert (shown.thoughts, shown.text) == (f"H{OTHER}m", f"H{OTHER}i")


def test_tables_are_made_once_for_each_set_of_visible_tokens() -> None:
    maker = Detokenizers(TOKENIZER)
    shown = frozenset({"<think>", "no such token"})
    first, second = (maker.new(visible=shown) for _ in range(2))
    assert first._pieces is second._pieces  # type: ignore[attr-defined]
    assert first._pieces is not maker.new()._pieces  # type: ignore[attr-defined]
    assert first.push(ids("<think>a</think>")) == "<think>a"
    assert maker.new().push(ids("<think>a</think>")) == "a"
    assert maker.ids(shown) == frozenset(ids("<think>"))


def test_log_probabilities_stay_with_their_tokens() -> None:
    deltas = run([[says("<think>Hm</think>Hi", logprobs=True), ends("stop")]], request())
    carriers = [delta for delta in deltas if isinstance(delta, Text | Reasoning)]
    assert len(carriers) == 3
    for carrier in carriers:
        assert carrier.logprobs is not None
        assert [logprob.token for logprob in carrier.logprobs] == carrier.tokens


def test_a_stop_string_ends_a_thought_and_flushes_what_the_parser_held() -> None:
    for texts in (["<think>Hm </thSTOP no"], ["<think>", *"Hm </thSTOP no"]):
        batches: list[list[EngineEvent]] = [[says(text)] for text in texts]
        deltas = run([*batches, [ends("stop")]], request(stop=("STOP",)))
        whole = gathered(deltas).choices[0]
        assert (whole.thoughts, whole.text) == ("Hm </th", "")
        assert whole.finish == Finish(0, "stop", "STOP", None)
        assert whole.tokens == ids("<think>Hm </thSTOP")


def test_text_that_a_stop_string_held_back_is_parsed_at_the_end() -> None:
    whole = gathered(run([[says("<think>Hm</think>Hi ST"), ends("length")]], request(stop=("STOP",)))).choices[0]
    assert (whole.thoughts, whole.text) == ("Hm", "Hi ST")


def test_an_included_stop_string_is_part_of_what_it_ends() -> None:
    whole = gathered(run([[says("<think>Hm STOP no"), ends("stop")]], request(stop=("STOP",), include_stop=True)))
    assert whole.choices[0].thoughts == "Hm STOP"


def test_the_end_of_a_stream_flushes_the_parser_once() -> None:
    deltas = run([[says("<think>Hm </thi")], [ends("length")]], request())
    assert [(type(delta), delta.text) for delta in deltas if isinstance(delta, Text | Reasoning)] == [
        (Text, ""),
        (Reasoning, "Hm "),
        (Reasoning, "</thi"),
    ]


def test_every_choice_has_a_parser_of_its_own() -> None:
    deltas = run(
        [
            [says("<think>a", 0), says("b", 1)],
            [says("</think>c", 0), says("</think>d", 1), ends("stop", 0), ends("stop", 1)],
        ],
        request(n=2),
    )
    choices = gathered(deltas, 2).choices
    assert [(choice.thoughts, choice.text) for choice in choices] == [("a", "c"), ("", "b</think>d")]
    assert [choice.reasoning_tokens for choice in choices] == [2, 0]


def test_an_eos_token_is_no_text_but_after_min_tokens() -> None:
    eos = SequenceTokens(1, 0, [EOS, *ids("Hi"), EOS], None)
    whole = gathered(run([[eos, ends("stop")]], request(min_tokens=2, skip_special_tokens=False)))
    assert whole.choices[0].text == "</s>Hi"


CALLS = "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant"
CALLS += '<|channel|>commentary to=functions.weather json<|message|>{"city": "Ü"}<|call|>'


def harmony() -> dict[str, Any]:
    return {"parser": lambda: HarmonyParser([WEATHER], opened=False), "visible": HARMONY.markers}


def test_a_call_is_deltas_of_its_own_and_its_tokens_ride_in_empty_text() -> None:
    deltas = run([[says(CALLS), ends("stop")]], request(**harmony()))
    reported = [delta for delta in deltas if not isinstance(delta, Text | Finish)]
    assert reported[0] == Reasoning(0, "Hm", ids("Hm<|end|>"), None)
    assert reported[1] == ToolCallStart(0, 0, "weather", None)
    assert reported[-1] == ToolCallEnd(0, 0)
    arguments = [delta for delta in reported if isinstance(delta, ToolCallArguments)]
    assert "".join(delta.text for delta in arguments) == '{"city": "Ü"}'
    assert len(reported) == 3 + len(arguments)
    assert not any(delta.text for delta in deltas if isinstance(delta, Text))
    whole = gathered(deltas).choices[0]
    assert whole.tokens == ids(CALLS)
    assert [(call.name, call.arguments, call.ended) for call in whole.calls] == [("weather", '{"city": "Ü"}', True)]


def test_tokens_that_write_a_call_are_apart_from_those_of_the_text_around_it() -> None:
    hermes = TOOL_FORMATS["hermes"]
    said = 'Hi <tool_call>{"name": "weather", "arguments": {}}</tool_call>Bye'
    for batches in ([says(said)], [says(piece) for piece in said]):
        deltas = run([[*batches, ends("stop")]], request(parser=lambda: hermes.parser([WEATHER])))
        texts = [delta for delta in deltas if isinstance(delta, Text) and delta.text]
        assert bytes(token for delta in texts for token in delta.tokens) == b"HiBye"


@pytest.mark.parametrize("include", [False, True])
def test_a_token_that_ends_a_call_and_the_choice_too_is_seen_by_the_parser(include: bool) -> None:
    call = ids("<|call|>")[0]
    deltas = run(
        [[says(CALLS), ends("stop", token=call)]],
        request(stop_token_ids=(call,), include_stop=include, **harmony()),
    )
    assert deltas[-2:] == [ToolCallEnd(0, 0), Finish(0, "stop", call, None)]


@settings(max_examples=examples(40, 400), deadline=None)
@given(
    st.lists(st.sampled_from([*MARKERS, *"aé😀\n<", "STOP", " to=functions.weather", "analysis"]), max_size=14),
    st.lists(st.integers(1, 6), max_size=12),
    st.sampled_from([(), ("STOP",), ("</", "e\n")]),
    st.booleans(),
    st.integers(0, 3),
)
def test_however_tokens_arrive_the_outcome_is_the_same(
    parts: list[str], sizes: list[int], stops: tuple[str, ...], channels: bool, min_tokens: int
) -> None:
    tokens = ids("".join(parts))
    fields = harmony() if channels else {}

    def outcome(cuts: list[int]) -> tuple[object, ...]:
        rest = tokens
        batches: list[list[EngineEvent]] = []
        for size in cuts:
            batches.append([SequenceTokens(1, 0, rest[:size], None)])
            rest = rest[size:]
        batches.append([SequenceTokens(1, 0, rest, None), ends()])
        deltas = run(batches, request(stop=stops, min_tokens=min_tokens, **fields))
        whole = gathered(deltas).choices[0]
        thought = [token for delta in deltas if isinstance(delta, Reasoning) for token in delta.tokens]
        assert len(thought) == whole.reasoning_tokens
        calls = [(call.name, call.arguments, call.ended) for call in whole.calls]
        return whole.text, whole.thoughts, whole.tokens, thought, calls, whole.finish

    whole = outcome([])
    assert outcome(sizes) == whole
    assert outcome([1] * len(tokens)) == whole
    if not stops:
        assert whole[2] == tokens
