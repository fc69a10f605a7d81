"""A chunk of a chat stream is written from parts: each frame is one JSON object with the texts that went in."""

import json
from typing import Any, get_args

import msgspec
import pytest
from msgspec.structs import replace

from stentor.protocols.ipc.deltas import (
    Delta,
    Finish,
    PromptLogprobs,
    PromptProcessed,
    Reasoning,
    Text,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from stentor.protocols.openai.tools import OfferedTool, ToolUse
from stentor.server.api.chat.shape import ChatShape
from stentor.server.api.chat.stream import ChatStream
from stentor.server.generation.logprobs import TokenNames
from stentor.tests.fakes import byte_tokenizer, logprobs_of

HOSTILE = '"]}, "choices":[{\\"}],\n\0data: é\u2028'
"""Text that breaks a chunk wherever it is not encoded."""
USAGE = {"prompt_tokens", "completion_tokens", "total_tokens"}
TOOLS = ToolUse(
    tools=(
        OfferedTool("f", None, None, False, False, "tools[0]"),
        OfferedTool("c", None, None, False, True, "tools[1]"),
    ),
    mode="auto",
)
NAMES = TokenNames(byte_tokenizer(), False)
PLAIN = ChatShape(f"chatcmpl-{HOSTILE}", 1, HOSTILE, 1, NAMES, prompt=[1, 2], tools=TOOLS)
SHAPES = {
    "plain": PLAIN,
    "usage": replace(PLAIN, include_usage=True),
    "usage so far": replace(PLAIN, include_usage=True, continuous_usage=True),
    "log-probabilities": replace(PLAIN, top_logprobs=1),
    "token ids": replace(PLAIN, token_ids=True),
    "prompt": replace(PLAIN, token_ids=True, prompt_text=HOSTILE),
    "echo": replace(PLAIN, echo=HOSTILE, include_usage=True),
    "functions": replace(PLAIN, tools=msgspec.structs.replace(TOOLS, legacy=True)),
}
DELTAS: list[Delta] = [
    PromptProcessed(1, None),
    PromptLogprobs([]),
    Reasoning(0, HOSTILE, [5], [logprobs_of(5, 1)]),
    Text(0, HOSTILE, [6], [logprobs_of(6, 1)]),
    Text(0, "", [7], [logprobs_of(7, 1)]),
    ToolCallStart(0, 0, "f", HOSTILE),
    ToolCallArguments(0, 0, HOSTILE),
    ToolCallEnd(0, 0),
    ToolCallStart(0, 1, "c", None),
    ToolCallArguments(0, 1, HOSTILE),
    ToolCallEnd(0, 1),
    Finish(0, "stop", HOSTILE, None),
]


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    assert len(found) == len(pairs), f"a field is there twice: {[name for name, _ in pairs]}"
    return found


def decoded(frames: bytes) -> list[dict[str, Any]]:
    """The chunks of whole frames."""
    *whole, rest = frames.split(b"\n\n")
    assert rest == b""
    assert all(frame.startswith(b"data: ") for frame in whole)
    return [json.loads(frame.removeprefix(b"data: "), object_pairs_hook=_once) for frame in whole]


def test_every_kind_of_delta_is_tried() -> None:
    assert {type(delta) for delta in DELTAS} == set(get_args(Delta))


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_every_delta_becomes_whole_chunks_that_have_its_text(shape: ChatShape) -> None:
    stream = ChatStream(shape)
    made = [(delta, decoded(stream.encode([delta]))) for delta in DELTAS]
    head = {"id": shape.response_id, "object": "chat.completion.chunk", "created": 1, "model": HOSTILE}
    for delta, chunks in made:
        for chunk in chunks:
            (choice,) = chunk.pop("choices")
            usage = chunk.pop("usage", "absent")
            if shape.continuous_usage:
                assert usage.keys() >= USAGE
            else:
                assert usage == (None if shape.include_usage else "absent")
            assert {name: chunk.pop(name) for name in head} == head
            prompt: dict[str, Any] = {} if shape.prompt_text is None else {"prompt_text": shape.prompt_text}
            prompt |= {"prompt_token_ids": [1, 2]} if shape.token_ids else {}
            assert chunk == (prompt if choice["delta"].get("role") else {})
            assert choice.pop("index") == 0
            texts = _texts(choice.pop("delta"))
            reason, stop, tokens = None, "absent", None
            if isinstance(delta, Finish):
                reason, stop = shape.finish_reason(delta, True, True), HOSTILE
            if isinstance(delta, Text | Reasoning):
                tokens = delta.tokens
            assert choice.pop("finish_reason") == reason
            assert choice.pop("stop_reason", "absent") == stop
            assert (choice.pop("logprobs") is not None) == (bool(tokens) and shape.top_logprobs is not None)
            assert choice == ({"token_ids": tokens} if shape.token_ids and tokens else {})
            assert all(text in ("assistant", "function", "custom", "f", "c", "", HOSTILE) for text in texts)
            if getattr(delta, "text", ""):
                assert HOSTILE in texts
    first = made[0][1]
    assert len(first) == (2 if shape.echo else 1)


def _texts(delta: Any) -> list[str]:
    """All texts in a delta other than ids, which may be new."""
    if isinstance(delta, dict):
        return [text for name, each in delta.items() if name != "id" for text in _texts(each)]
    if isinstance(delta, list):
        return [text for each in delta for text in _texts(each)]
    return [delta] if isinstance(delta, str) else []
