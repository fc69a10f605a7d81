"""The splitter of event streams: any cut of the bytes gives the same events."""

import json

from hypothesis import given
from hypothesis import strategies as st

from stentor.loadtest.serving.stream import EventSplitter

DATA = st.one_of(
    st.dictionaries(st.text(max_size=4), st.text(max_size=12), max_size=2).map(lambda one: json.dumps(one).encode()),
    st.binary(max_size=12).map(lambda data: data.replace(b"\r", b"").replace(b"\n", b"")),
)
OTHER = st.sampled_from([b": keep-alive", b"event: message", b"id: 7", b"retry: 10", b"nonsense"])


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, list[bytes]]:
    """Bytes of a stream, and the data of its events."""
    newline = draw(st.sampled_from([b"\n", b"\r\n", b"\r"]))
    body, expected = b"", []
    for data in draw(st.lists(DATA, max_size=6)):
        lines = draw(st.lists(OTHER, max_size=2))
        parts = [data, *draw(st.lists(DATA, max_size=1))]
        blank = draw(st.sampled_from([b" ", b""]))
        lines += [b"data:" + (b" " if part.startswith(b" ") else blank) + part for part in parts]
        body += newline.join(lines) + newline * draw(st.sampled_from([2, 3]))
        expected.append(b"\n".join(parts))
    return body, expected


@given(streams(), st.lists(st.integers(1, 9), min_size=1))
def test_any_cut_gives_the_same_events(stream: tuple[bytes, list[bytes]], sizes: list[int]) -> None:
    body, expected = stream
    splitter, found, at, turn = EventSplitter(), [], 0, 0
    while at < len(body):
        size = sizes[turn % len(sizes)]
        found += splitter.feed(body[at : at + size])
        at, turn = at + size, turn + 1
    if body.endswith(b"\r"):  # it may be the first half of a line's end until more comes
        found += splitter.feed(b"\n")
    assert found == expected


def test_what_is_not_ended_is_no_event() -> None:
    splitter = EventSplitter()
    assert splitter.feed(b"data: 1\n\ndata: 2\n") == [b"1"]
    assert splitter.feed(b"") == []
    assert splitter.feed(b"\n") == [b"2"]
