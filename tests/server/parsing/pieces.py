"""What parsers hand out, joined; and every way to cut a text."""

from collections.abc import Callable, Sequence
from itertools import combinations

from hypothesis import strategies as st

from stentor.server.parsing.interface import CallArguments, Content, Parser, Piece, Thought


def joined(pieces: Sequence[Piece]) -> list[Piece]:
    """Neighbours of one kind as one piece."""
    whole: list[Piece] = []
    for piece in pieces:
        last = whole[-1] if whole else None
        if isinstance(piece, Content | Thought | CallArguments):
            assert piece.text, f"an empty {piece!r} tells nobody anything"
            if last.__class__ is piece.__class__:
                assert isinstance(last, Content | Thought | CallArguments)
                whole[-1] = type(piece)(last.text + piece.text)
                continue
        whole.append(piece)
    return whole


def parse(parser: Parser, pushes: Sequence[str]) -> list[Piece]:
    return joined([piece for text in pushes for piece in parser.push(text)] + parser.finish())


def of_kind(pieces: Sequence[Piece], kind: type[Content] | type[Thought]) -> str:
    return "".join(piece.text for piece in pieces if isinstance(piece, kind))


def cut(text: str, places: Sequence[int]) -> list[str]:
    ends = sorted({min(place, len(text)) for place in places} | {len(text)})
    return [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def check_every_split(make: Callable[[], Parser], text: str) -> list[Piece]:
    """Parses the text whole, character by character and with one or two cuts; returns what it said each time."""
    whole = parse(make(), [text])
    assert parse(make(), list(text)) == whole, text
    for place in range(1, len(text)):
        assert parse(make(), cut(text, [place])) == whole, cut(text, [place])
    if len(text) <= 60:
        for places in combinations(range(1, len(text)), 2):
            assert parse(make(), cut(text, places)) == whole, cut(text, places)
    return whole


def texts(*fragments: str) -> st.SearchStrategy[str]:
    """Of fragments, their beginnings and ends, and what is in no format."""
    parts = [*fragments, *(piece for text in fragments for piece in (text[:-1], text[1:], text[: len(text) // 2]))]
    plain = st.text("ab <>/\n é😀", min_size=1, max_size=4)
    return st.lists(st.one_of(st.sampled_from(parts), plain), max_size=10).map("".join)


cuts = st.lists(st.integers(0, 120), max_size=8)
