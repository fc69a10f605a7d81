"""The judge itself: what it must find wrong with a stream."""

import json

import pytest

from stentor.tests.chaos.exactness import difference, faults_of
from stentor.tests.chaos.killing import Asked
from stentor.tests.chaos.streams import TokenStream

BODY = {"max_tokens": 3, "ignore_eos": True}


def event(*tokens: int, reason: str | None = None, index: int = 0) -> bytes:
    choice = {"index": index, "text": "x" * len(tokens), "token_ids": tokens, "finish_reason": reason}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


def stream(*events: bytes) -> TokenStream:
    made = TokenStream()
    made.head(200, "text/event-stream", "", "")
    for each in events:
        made.feed(each, 0.0)
    made.end(0.0)
    return made


def asked(*events: bytes) -> Asked:
    return Asked(0, stream(*events))


WHOLE = asked(event(5), event(6), event(7, reason="length"), DONE)


def test_a_whole_stream_has_no_fault() -> None:
    assert faults_of(WHOLE, [BODY]) == []
    assert difference(WHOLE, asked(event(5, 6), event(7, reason="length"), DONE)) is None


@pytest.mark.parametrize(
    ("events", "found"),
    [
        ((event(5), event(7, reason="length"), DONE), "has 2 tokens"),
        ((event(5), event(6), event(6), event(7, reason="length"), DONE), "has 4 tokens"),
        ((event(5), event(6), event(7, reason="stop"), DONE), "ended by stop"),
        ((event(5), event(6)), "ended before [DONE]"),
        ((event(5), event(6), event(7), DONE), "before every choice had its finish_reason"),
        ((event(5), event(6), event(7, reason="length"), event(8), DONE), "went on after its end"),
        ((event(5), event(6), event(7, reason="length"), DONE, event(8)), "after the end came"),
        ((b'data: {"error": {"message": "lost"}}\n\n', DONE), "an error event"),
    ],
)
def test_what_is_lost_or_comes_twice_is_found(events: tuple[bytes, ...], found: str) -> None:
    (fault,) = faults_of(asked(*events), [BODY])
    assert found in fault


def test_another_continuation_is_told_from_where_it_differs() -> None:
    other = asked(event(5), event(9), event(7, reason="length"), DONE)
    assert faults_of(other, [BODY]) == []
    assert "differs from token 1 on" in str(difference(other, WHOLE))


def test_a_refusal_is_a_fault() -> None:
    made = TokenStream()
    made.head(503, "application/json", "", "")
    made.feed(b"no", 0.0)
    made.end(0.0)
    assert made.error == "status 503: no"
