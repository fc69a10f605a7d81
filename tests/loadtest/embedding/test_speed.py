"""What is made of sides that are timed: here they only say how long they took."""

import base64
from collections.abc import Sequence

import numpy as np
import pytest

from stentor.loadtest.embedding import speed
from stentor.loadtest.peers.libraries import Done, Side, run_rounds


def encoded(vector: Sequence[float]) -> str:
    return base64.b64encode(np.array(vector, np.float32).tobytes()).decode()


class Scripted:
    """Takes a while that depends on the batch alone, without taking it."""

    def __init__(self, name: str, seconds: dict[int, float], vector: Sequence[float]) -> None:
        self.name = name
        self._seconds = seconds
        self._vector = encoded(vector)
        self.asked: list[int] = []

    def run(self, load: Sequence[str], size: int) -> Done:
        self.asked.append(len(load))
        return Done(self._seconds[size], 2 * self._seconds[size], [self._vector] * len(load))


def as_sides(scripted: Sequence[Scripted]) -> list[Side]:
    return [Side(each.name, each.run) for each in scripted]


@pytest.fixture
def sides() -> list[Scripted]:
    ours = Scripted("stentor", {32: 2.0, 128: 1.0}, [0.6, 0.8])
    theirs = Scripted("sentence-transformers", {8: 4.0, 16: 3.0, 32: 5.0, 64: 6.0}, [1.2, 1.6])
    return [ours, theirs]


def test_each_side_takes_its_best_batch_and_the_ratio_is_how_many_times_as_fast_ours_is(
    sides: list[Scripted],
) -> None:
    loads = {"16": ["a", "b"], "mixed": ["c", "d", "e", "f"]}
    batches = speed.best_batches(as_sides(sides), loads)
    assert set(batches.values()) == {128, 16}
    assert sides[1].asked == [1] * 8 + [2] * 8, "half of each load, every size twice"
    found = run_rounds(as_sides(sides), [loads] * 3, lambda *at: batches[at])
    ours, theirs = (one for one in speed.summary(found, batches, "float32", {"16": 9, "mixed": 20}) if one.texts == 4)
    assert (ours.load, ours.size, ours.tokens, ours.ratio, ours.texts_per_s) == ("mixed", 128, 20, 1.0, 4.0)
    assert (theirs.size, theirs.ratio, theirs.cpu_ratio, theirs.seconds) == (16, 3.0, 3.0, [3.0] * 3)
    assert theirs.texts_per_s == pytest.approx(4 / 3, abs=0.01)
    assert theirs.least_cosine == pytest.approx(1)


def test_vectors_that_differ_are_told_by_their_cosine() -> None:
    one, other = encoded([3, 4]), encoded([4, 3])
    assert speed.least_cosine([one, one], [one, other]) == pytest.approx(0.96)
