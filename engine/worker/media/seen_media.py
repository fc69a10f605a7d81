"""Which media the tokens of a row attend to, where media stand at one token each and attention reaches back to them."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from stentor.protocols.ipc.steps import RowSpan

_NEVER: Final = 1 << 62


class SeenSpan(msgspec.Struct, frozen=True):
    """The positions [start, end) of a row see these media."""

    start: int
    end: int
    media: tuple[tuple[int, int], ...]
    """The encoder slot of each, and where it stands."""


def seen_media(spans: Iterable[RowSpan]) -> list[SeenSpan]:
    """The media that each position sees: those before it without text between them, up to the next ones. Positions
    before the first see none."""
    found: list[SeenSpan] = []
    end = -1
    for span in spans:
        before: tuple[tuple[int, int], ...] = ()
        if found:
            last = found.pop()
            before = last.media if end == span.start else ()
            found.append(SeenSpan(last.start, span.start, last.media))
        found.append(SeenSpan(span.start, _NEVER, (*before, (span.encoder_slot, span.start))))
        end = span.start + span.length
    return found


def seen_within(seen: Sequence[SeenSpan], start: int, count: int) -> Iterator[SeenSpan]:
    """The parts of ``seen`` within [start, start + count)."""
    for each in seen:
        first, end = max(each.start, start), min(each.end, start + count)
        if first < end:
            yield SeenSpan(first, end, each.media)
