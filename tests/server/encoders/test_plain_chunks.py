"""A chunk is written around its text from constant parts: the bytes are those of the whole chunk encoded at once."""

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET, UnsetType

from stentor.protocols.ipc.deltas import Finish, Text
from stentor.server.api.chat.shape import ChatShape
from stentor.server.api.chat.stream import ChatStream
from stentor.server.api.completions.stream import CompletionShape, CompletionStream, TokenCounts
from stentor.server.generation.completion import Prompt
from stentor.server.generation.logprobs import TokenNames
from stentor.tests.fakes import byte_tokenizer

NAMES = TokenNames(byte_tokenizer(), False)
N = 3
TEXTS = st.lists(st.tuples(st.integers(0, N - 1), st.text(min_size=1)), min_size=1, max_size=6)


class ChatDelta(msgspec.Struct):
    content: str


class ChatChoice(msgspec.Struct):
    index: int
    delta: ChatDelta
    logprobs: None = None
    finish_reason: None = None


class CompletionChoice(msgspec.Struct):
    index: int
    text: str
    logprobs: None = None
    finish_reason: None = None


class Chunk(msgspec.Struct):
    id: str
    object: str
    created: int
    model: str
    choices: list[Any]
    usage: UnsetType | None = UNSET


def frame(chunk: Chunk) -> bytes:
    return b"data: " + msgspec.json.encode(chunk) + b"\n\n"


@settings(deadline=None)
@given(st.text(), st.text(), st.integers(0, 2**40), st.booleans(), TEXTS)
def test_a_plain_chat_chunk_equals_the_encoded_struct(
    name: str, model: str, created: int, usage: bool, texts: list[tuple[int, str]]
) -> None:
    shape = ChatShape(name, created, model, N, NAMES, include_usage=usage, prompt=[1, 2])
    stream = ChatStream(shape)
    stream.encode([Text(0, "opens", [1], None)])
    encoded = stream.encode([Text(index, text, [1], None) for index, text in texts])
    assert encoded == b"".join(
        frame(
            Chunk(
                name,
                "chat.completion.chunk",
                created,
                model,
                [ChatChoice(index, ChatDelta(text))],
                None if usage else UNSET,
            )
        )
        for index, text in texts
    )


@settings(deadline=None)
@given(st.text(), st.text(), st.integers(0, 2**40), st.booleans(), st.integers(0, 3), TEXTS)
def test_a_plain_completion_chunk_equals_the_encoded_struct(
    name: str, model: str, created: int, usage: bool, prompt: int, texts: list[tuple[int, str]]
) -> None:
    shape = CompletionShape(name, created, model, N, NAMES, include_usage=usage)
    stream = CompletionStream(shape, shape.frame("text_completion"), Prompt(prompt, [1, 2], None), TokenCounts(2))
    encoded = stream.encode([Text(index, text, [1], None) for index, text in texts])
    assert encoded == b"".join(
        frame(
            Chunk(
                name,
                "text_completion",
                created,
                model,
                [CompletionChoice(prompt * N + index, text)],
                None if usage else UNSET,
            )
        )
        for index, text in texts
    )


def test_a_completion_that_ends_before_its_prompt_is_computed_begins_with_it_all_the_same() -> None:
    shape = CompletionShape("cmpl", 0, "model", 2, NAMES, token_ids=True)
    stream = CompletionStream.alone(shape, Prompt(0, [104, 105], "hi"))
    frames = stream.encode([Finish(0, "stop", None, None), Finish(1, "stop", None, None)])
    assert not isinstance(frames, bytes)
    choices = [msgspec.json.decode(each.removeprefix(b"data: "))["choices"][0] for each in frames]
    assert [(each["index"], each["text"], each["finish_reason"]) for each in choices] == [
        (0, "hi", None),
        (1, "hi", None),
        (0, "", "stop"),
        (1, "", "stop"),
    ]
    assert [each.get("prompt_token_ids") for each in choices] == [[104, 105], [104, 105], None, None]
