"""A worker of a model that writes about a picture, from a checkpoint to outputs, beside transformers and beside itself
alone."""

import random
from hashlib import blake2b
from pathlib import Path

import pytest
import torch

from stentor.protocols.ipc.cache_groups import FULL, CacheGroup
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.tests.engine.local import LocalEngine, model_config
from stentor.tests.engine.media import Audio
from stentor.tests.parity.pictured import KINDS, READING, SIDE, VOCAB, logits_of, picture, window

LONGEST = 64
STATES = {"trocr": 17, "donut": 8, "florence": 700, "parse": 25, "captions": 17, "patches": 49}
"""Most of a picture; of Florence-2 with a text behind it."""


class Served:
    """A tiny model, its like in transformers, and our engine over it."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self.model, self.folder = kind, KINDS[kind](), folder
        self.model.save_pretrained(folder)
        self.engine = LocalEngine(model_config(folder, max_num_seqs=6, max_num_batched_tokens=0, max_model_len=LONGEST))

    def seen(self, seed: int, text: list[int] | None = None) -> Audio:
        """What a request is about."""
        data = window(self.kind, picture(self.kind, seed), (text or [seed + 5]) if self.kind in READING else ())
        return Audio(data, blake2b(data, digest_size=16).digest())

    def logits(self, seed: int, tokens: list[int], text: list[int] | None = None) -> torch.Tensor:
        return logits_of(self.model, self.kind, picture(self.kind, seed), text or [seed + 5], tokens)

    def random_request(self, seed: int) -> tuple[list[int], SamplingParams, list[int], Audio]:
        """With one to three sequences; several requests have one picture."""
        rng = random.Random(seed)
        prompt = [2, *(rng.randrange(4, VOCAB) for _ in range(rng.choice([0, 1, 30])))]
        params = SamplingParams(
            max_tokens=rng.choice([4, 12, 30]), temperature=rng.choice([0.0, 0.7]), logprobs=rng.choice([None, 2])
        )
        return prompt, params, [seed + each for each in range(rng.choice([1, 1, 3]))], self.seen(seed % 4)

    def results(self, rid: int, sequences: int) -> list[object]:
        outcomes = [self.engine.outcomes[rid, index] for index in range(sequences)]
        assert all(each.finished is not None and each.finished.reason in ("length", "stop") for each in outcomes)
        return [each.tokens for each in outcomes]


@pytest.fixture(scope="module", params=STATES)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Served:
    return Served(request.param, tmp_path_factory.mktemp("pictured"))


def test_greedy_tokens_are_those_of_transformers(served: Served) -> None:
    served.engine.restart(served.engine.ready.num_blocks)
    found = served.engine.generate([2, 9], SamplingParams(max_tokens=20, temperature=0.0), audio=served.seen(1))
    assert len(found) == 20
    assert served.logits(1, [2, 9, *found])[1:-1].argmax(1).tolist() == found


@pytest.mark.proof(each="served")
def test_many_pictures_at_once_give_what_each_gives_alone(served: Served) -> None:
    engine = served.engine
    requests = [served.random_request(seed) for seed in range(8)]
    alone = []
    for prompt, params, seeds, seen in requests:
        engine.restart(engine.ready.num_blocks)
        rid = engine.submit(prompt, params, seeds, audio=seen)
        engine.run()
        alone.append(served.results(rid, len(seeds)))
    engine.restart(engine.ready.num_blocks)
    rids = [engine.submit(*each[:3], audio=each[3]) for each in requests]
    engine.run(check=True)
    assert [served.results(rid, len(each[2])) for rid, each in zip(rids, requests, strict=True)] == alone


@pytest.mark.proof(each="served")
def test_neither_deaths_nor_preemptions_nor_small_steps_change_an_output(served: Served) -> None:
    engine = served.engine
    requests = [served.random_request(100 + seed) for seed in range(5)]

    def outputs(blocks: int, deaths: list[int], tokens: int = 0) -> list[object]:
        engine.restart(blocks, max_num_batched_tokens=tokens)
        before = engine.steps
        rids = [engine.submit(*each[:3], audio=each[3]) for each in requests]
        engine.run(check=True, dies=lambda: engine.steps - before in deaths and bool(deaths.pop(0)))
        return [served.results(rid, len(each[2])) for rid, each in zip(rids, requests, strict=True)]

    expected = outputs(engine.ready.num_blocks, [])
    assert outputs(engine.ready.num_blocks, [3, 9]) == expected
    assert outputs(engine.ready.num_blocks, [], tokens=16) == expected
    long = SamplingParams(max_tokens=50, temperature=0.7)
    requests = [([2, 7], long, [seed], served.seen(seed % 3)) for seed in range(8)]
    expected = outputs(engine.ready.num_blocks, [])
    assert outputs(9, []) == expected
    assert engine.scheduler.stats().preemptions > 0, "the pool was not too small"


def test_a_prefix_is_found_for_the_same_picture_alone(served: Served) -> None:
    engine = served.engine
    engine.restart(engine.ready.num_blocks)
    prompt, params = [2, *range(10, 50)], SamplingParams(max_tokens=2, temperature=0.0)
    cached = []
    for seed in (0, 0, 3):
        rid = engine.submit(prompt, params, audio=served.seen(seed))
        engine.run()
        cached.append(engine.prompts[rid].cached_tokens)
    assert cached == [0, 40, 0]


def test_a_picture_of_another_shape_ends_its_request_alone(served: Served) -> None:
    engine = served.engine
    engine.restart(engine.ready.num_blocks)
    data = window(served.kind, torch.zeros(1, 1, 4 * SIDE, 8 * SIDE))
    params = SamplingParams(max_tokens=4, temperature=0.0)
    wrong = engine.submit([2], params, audio=Audio(data, bytes(16)))
    right = engine.submit([2], params, audio=served.seen(1))
    engine.run()
    end = engine.outcomes[wrong, 0].finished
    assert end is not None
    assert end.reason == "error"
    assert "the model cannot take the picture: its pixels are [1, 1, 128" in (end.message or "")
    assert len(served.results(right, 1)) == 1


def test_a_request_without_a_picture_is_refused(served: Served) -> None:
    engine = served.engine
    engine.restart(engine.ready.num_blocks)
    finished = engine.outcomes[engine.submit([2], SamplingParams(max_tokens=2)), 0].finished
    assert finished is not None
    assert finished.message == "a model that writes about a picture is served: the request needs one"


def test_memory_and_limits_are_told(served: Served) -> None:
    ready, rows = served.engine.ready, 6
    positions = STATES[served.kind]
    assert ready.max_model_len == LONGEST
    assert ready.groups == (FULL, CacheGroup("cross", positions, rows * positions, inputs="picture"))
    assert next(line for line in ready.memory if line.what == "encoded pictures").bytes > 0
