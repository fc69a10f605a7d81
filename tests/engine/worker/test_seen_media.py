"""Which media the positions of a row attend to."""

from stentor.engine.worker.media.seen_media import SeenSpan, seen_media, seen_within
from stentor.protocols.ipc.steps import RowSpan

SPANS = [RowSpan(5, 3, 1), RowSpan(6, 9, 1), RowSpan(7, 10, 1)]


def test_positions_see_the_media_before_them_up_to_the_next() -> None:
    first, second, both = seen_media(SPANS)
    assert first == SeenSpan(3, 9, ((5, 3),))
    assert second == SeenSpan(9, 10, ((6, 9),))
    assert (both.start, both.media) == (10, ((6, 9), (7, 10)))
    assert both.end > 1 << 40, "all that follows sees them"


def test_a_chunk_has_the_parts_that_lie_in_it() -> None:
    found = list(seen_within(seen_media(SPANS), 8, 4))
    assert found == [SeenSpan(8, 9, ((5, 3),)), SeenSpan(9, 10, ((6, 9),)), SeenSpan(10, 12, ((6, 9), (7, 10)))]
    assert not list(seen_within(seen_media(SPANS), 0, 3))
