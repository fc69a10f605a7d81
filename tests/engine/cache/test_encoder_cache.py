from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from stentor.engine.core.cache.encoder_cache import EncoderCache
from stentor.protocols.ipc.inputs import ArenaRef, InputSpan
from stentor.tests.examples import examples

CAPACITY = 12
SPANS = [InputSpan(-1, length, bytes([length]) * 16, ArenaRef(0, 1)) for length in (1, 2, 3, 5, 7, 12)]


class SpansMachine(RuleBasedStateMachine):
    """The cache beside a model that says the same in lists."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = EncoderCache(CAPACITY)
        self.held: Counter[bytes] = Counter()
        self.known: list[InputSpan] = []
        """Encoded, the least recently let go of first; those that somebody holds stand anywhere."""

    def _room_of(self, digests: set[bytes]) -> int:
        return sum(span.length for span in SPANS if span.digest in digests)

    @rule(span=st.sampled_from(SPANS))
    def hold(self, span: InputSpan) -> None:
        held = {digest for digest, count in self.held.items() if count}
        fits = self._room_of(held | {span.digest}) <= CAPACITY
        assert self.cache.has_room([span]) == fits
        if not fits:
            return
        known = self.cache.is_encoded(span.digest)
        assert known == (span in self.known)
        slot = self.cache.hold(span)
        assert slot == self.cache.slots[span.digest]
        self.held[span.digest] += 1
        if not known:
            # of those that nobody holds, the ones that were let go of last are still there, as many as fit
            room = CAPACITY - self._room_of(held | {span.digest})
            stays: list[InputSpan] = []
            for each in reversed([each for each in self.known if not self.held[each.digest]]):
                room -= each.length
                if room < 0:
                    break
                stays.append(each)
            self.known = [each for each in self.known if self.held[each.digest] or each in stays]

    @rule(span=st.sampled_from(SPANS))
    def encode(self, span: InputSpan) -> None:
        to_do = self.held[span.digest] > 0 and span not in self.known
        assert self.cache.encode(span) == to_do
        if to_do:
            self.known.append(span)

    @rule(span=st.sampled_from(SPANS))
    def free(self, span: InputSpan) -> None:
        if not self.held[span.digest]:
            with pytest.raises(ValueError, match="nobody holds them"):
                self.cache.free(span)
            return
        self.cache.free(span)
        self.held[span.digest] -= 1
        if not self.held[span.digest] and span in self.known:
            self.known.remove(span)
            self.known.append(span)

    @rule()
    def reset(self) -> None:
        self.cache.reset()
        self.held.clear()
        self.known.clear()

    @invariant()
    def agrees(self) -> None:
        self.cache.check_integrity()
        assert self.cache.num_holders == self.held.total()
        for span in SPANS:
            assert self.cache.holders(span.digest) == self.held[span.digest]
            assert self.cache.is_encoded(span.digest) == (span in self.known)


TestSpansInAnyOrder = SpansMachine.TestCase
TestSpansInAnyOrder.settings = settings(max_examples=examples(40, 400), stateful_step_count=40, deadline=None)


def test_media_of_one_size_have_slots_below_what_fits() -> None:
    cache = EncoderCache(9)
    spans = [InputSpan(-1, 3, bytes([number]) * 16, ArenaRef(0, 1)) for number in range(6)]
    for span in spans:
        assert 0 <= cache.hold(span) < 3
        cache.encode(span)
        cache.free(span)


def test_several_that_fit_alone_may_not_fit_together() -> None:
    cache = EncoderCache(CAPACITY)
    assert cache.has_room([SPANS[4], SPANS[3]])
    assert not cache.has_room([SPANS[4], SPANS[3], SPANS[0]])
    assert cache.has_room([SPANS[4], SPANS[3], SPANS[4]]), "the same media take their room once"


def test_a_cache_may_come_back_in_another_size() -> None:
    cache = EncoderCache(1)
    cache.hold(SPANS[0])
    cache.reset(0)
    assert not cache.has_room(SPANS[:1])
