import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from stentor.engine.core.cache.encoder_cache import EncoderCache, HeldSlot
from stentor.tests.examples import examples

PLACES = 3
DIGESTS = [bytes([value]) * 16 for value in range(6)]


class PlacesMachine(RuleBasedStateMachine):
    """The cache beside a model that says the same in dicts and lists."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = EncoderCache(PLACES)
        self.contents: dict[int, bytes] = {}
        self.refs = dict.fromkeys(range(PLACES), 0)
        self.order = list(range(PLACES))
        """Free places, the next to be given away first."""

    @rule(digest=st.sampled_from(DIGESTS))
    def hold(self, digest: bytes) -> None:
        found = next((place for place, held in self.contents.items() if held == digest), None)
        if found is None and not self.order:
            assert self.cache.hold(digest) is None
            return
        place = self.order[0] if found is None else found
        assert self.cache.hold(digest) == HeldSlot(place, encoded=found is not None)
        if place in self.order:
            self.order.remove(place)
        self.refs[place] += 1
        self.contents[place] = digest

    @rule(place=st.integers(0, PLACES - 1))
    def free(self, place: int) -> None:
        if not self.refs[place]:
            with pytest.raises(ValueError, match="nobody holds it"):
                self.cache.free(place)
            return
        self.cache.free(place)
        self.refs[place] -= 1
        if not self.refs[place]:
            self.order.append(place)

    @rule()
    def reset(self) -> None:
        self.cache.reset()
        self.contents, self.refs, self.order = {}, dict.fromkeys(range(PLACES), 0), list(range(PLACES))

    @invariant()
    def agrees(self) -> None:
        self.cache.check_integrity()
        assert self.cache.free_count == len(self.order)
        assert {place: self.cache.refs(place) for place in range(PLACES)} == self.refs
        for digest in DIGESTS:
            assert self.cache.find(digest) == next((p for p, held in self.contents.items() if held == digest), None)


TestPlacesInAnyOrder = PlacesMachine.TestCase
TestPlacesInAnyOrder.settings = settings(max_examples=examples(30, 300), stateful_step_count=40, deadline=None)


def test_a_cache_may_come_back_in_another_size() -> None:
    cache = EncoderCache(1)
    assert cache.hold(DIGESTS[0]) == HeldSlot(0, encoded=False)
    cache.reset(2)
    assert [cache.hold(digest) for digest in DIGESTS[:3]] == [
        HeldSlot(0, encoded=False),
        HeldSlot(1, encoded=False),
        None,
    ]
    cache.reset(0)
    assert cache.hold(DIGESTS[0]) is None


def test_what_was_found_and_what_was_encoded_is_counted() -> None:
    cache = EncoderCache(1)
    for digest in (DIGESTS[0], DIGESTS[0], DIGESTS[1]):
        cache.hold(digest)
    assert (cache.encoded, cache.found) == (1, 1)
