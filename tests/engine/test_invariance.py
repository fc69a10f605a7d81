"""``--batch-invariant``: a row's tokens and logits are bitwise the same whatever shares its steps."""

import random
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stentor.protocols.ipc.config import CacheDType, StateDType
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.tests.engine.local import LocalEngine, model_config
from stentor.tests.examples import examples
from stentor.tests.parity import tiny
from stentor.tests.parity.paged import BLOCK, PagedDecoder

pytestmark = pytest.mark.proof(each="served")

LENGTH = 70
POOL = 18
"""Blocks that are too few for all."""


@dataclass(frozen=True)
class Served:
    folder: Path
    states: StateDType
    """What recurrent states are kept in."""
    cache: CacheDType

    def decoder(self) -> PagedDecoder:
        cache = torch.int8 if self.cache == "int8" else None
        return PagedDecoder(self.folder, invariant=True, states=self.states, cache_dtype=cache)

    def engine(self, **changes: object) -> LocalEngine:
        kept = {"mamba_cache_dtype": self.states, "kv_cache_dtype": self.cache}
        return LocalEngine(model_config(self.folder, batch_invariant=True, **kept, **changes))


@pytest.fixture(
    scope="module",
    params=[
        *("llama", "gemma2", "olmo2", "gpt-oss", "deepseek-v3-dense"),
        *("granite4-hybrid", "qwen3-next", "mamba2", "mamba", "jamba", "kimi-linear"),
        "granite4-hybrid, states in float16",
        *("qwen3-next, states in bfloat16", "lfm2, states in bfloat16"),
        *("llama, cache in int8", "gemma2, cache in int8", "gpt-oss, cache in int8", "qwen3-next, cache in int8"),
    ],
)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Served:
    name, _, kept = request.param.partition(", ")
    what, _, dtype = kept.partition(" in ")
    folder = tmp_path_factory.mktemp(name)
    tiny.make(name, folder)
    return Served(folder, dtype if what == "states" else "auto", dtype if what == "cache" else "auto")


def _tokens(seed: int, length: int = LENGTH) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(3, tiny.VOCAB) for _ in range(length)]


@pytest.mark.parametrize("threads", [1, 2])
def test_logits_are_bitwise_the_same_over_batches_chunks_and_prefix_hits(served: Served, threads: int) -> None:
    prompt = _tokens(1)
    before = torch.get_num_threads()
    alone = served.decoder()
    alone.add(0, prompt)
    torch.set_num_threads(1)
    (expected,) = alone.run((0, 0, LENGTH))
    torch.set_num_threads(threads)
    try:
        _check_cuts(served, prompt, expected)
    finally:
        torch.set_num_threads(before)


def _check_cuts(served: Served, prompt: list[int], expected: torch.Tensor) -> None:
    @settings(max_examples=examples(8, 60), deadline=None)
    @given(st.data())
    def run(data: st.DataObject) -> None:
        ours = served.decoder()
        neighbours = data.draw(st.integers(0, 5), label="neighbours")
        for slot in range(1, neighbours + 1):
            ours.add(slot, _tokens(100 + slot))
        shared = data.draw(st.integers(0, LENGTH // BLOCK), label="shared blocks")
        if shared:
            blocks = ours.add(7, prompt)
            ours.run((7, 0, shared * BLOCK))
            left = ours.leave(7)
            ours.run((7, shared * BLOCK, LENGTH - shared * BLOCK))
            ours.add(0, prompt, shared_blocks=blocks[:shared], left=left)
        else:
            ours.add(0, prompt)
        position = shared * BLOCK
        done = [0] * (neighbours + 1)
        pieces = []
        while position < LENGTH:
            count = data.draw(st.integers(1, LENGTH - position), label="chunk")
            spans = [(0, position, count)]
            for slot in range(1, neighbours + 1):
                if done[slot] < LENGTH and data.draw(st.booleans(), label="joins"):
                    length = data.draw(st.integers(1, LENGTH - done[slot]), label="its chunk")
                    spans.insert(data.draw(st.integers(0, len(spans)), label="place"), (slot, done[slot], length))
                    done[slot] += length
            logits = ours.run(*spans)
            pieces.append(logits[[span[0] for span in spans].index(0)])
            position += count
        assert torch.equal(torch.cat(pieces), expected[shared * BLOCK :])

    run()


def test_thirty_two_streams_in_a_pool_too_small_give_each_the_tokens_it_gives_alone(served: Served) -> None:
    engine = served.engine(max_num_batched_tokens=96, kv_cache_memory=8 << 20)
    rng = random.Random(5)
    jobs = []
    for number in range(32):
        sampled = number % 2
        params = SamplingParams(
            max_tokens=rng.randrange(1, 32),
            temperature=0.8 if sampled else 0.0,
            top_p=0.9 if sampled else 1.0,
            repetition_penalty=1.2 if number % 4 == 0 else 1.0,
        )
        jobs.append((_tokens(number % 9, rng.randrange(1, 60)), params, number))
    alone = []
    for prompt, params, seed in jobs:
        engine.restart(engine.ready.num_blocks)
        alone.append(engine.generate(prompt, params, seed))
    for prefix_cache in (True, False):
        engine.restart(POOL, prefix_cache=prefix_cache, max_num_batched_tokens=40)
        rids = [engine.submit(prompt, params, [seed]) for prompt, params, seed in jobs]
        engine.run(check=True)
        stats = engine.scheduler.stats()
        assert stats.preemptions > 0, "the pool was not too small"
        assert stats.free_blocks == POOL
        assert [engine.outcomes[rid, 0].tokens for rid in rids] == alone
        assert all(engine.outcomes[rid, 0].finished for rid in rids)
        engine.scheduler.check_integrity()


def test_streams_that_lose_their_worker_again_and_again_go_on_with_the_very_same_tokens(served: Served) -> None:
    engine = served.engine(max_num_batched_tokens=96, kv_cache_memory=8 << 20)
    rng = random.Random(7)
    jobs = [
        (
            _tokens(number % 5, rng.randrange(1, 60)),
            SamplingParams(
                max_tokens=rng.randrange(10, 26),
                temperature=0.9 * (number % 2),
                top_p=0.9 if number % 3 else 1.0,
                frequency_penalty=0.4 if number % 4 == 0 else 0.0,
                logprobs=2 if number % 5 == 0 else None,
            ),
        )
        for number in range(32)
    ]
    for number, (prompt, params) in enumerate(jobs):
        engine.submit(prompt, params, [number, number + 1000][: 1 + number % 2])
    engine.run()
    undisturbed = engine.outcomes
    engine.restart(24, max_num_batched_tokens=40)
    for number, (prompt, params) in enumerate(jobs):
        engine.submit(prompt, params, [number, number + 1000][: 1 + number % 2])
    next_death = 5

    def dies() -> bool:
        nonlocal next_death
        next_death -= 1
        if not next_death:
            next_death = rng.randrange(10, 40)
            return True
        return False

    engine.run(check=True, dies=dies)
    assert engine.deaths > 5
    assert engine.scheduler.stats().free_blocks == 24
    assert engine.outcomes == undisturbed


def test_sequences_of_one_request_draw_what_each_seed_draws_alone(served: Served) -> None:
    engine = served.engine()
    params = SamplingParams(max_tokens=20, temperature=1.0)
    prompt = _tokens(3, 50)
    alone = []
    for seed in (11, 12, 13):
        engine.restart(engine.ready.num_blocks)
        alone.append(engine.generate(prompt, params, seed))
    engine.restart(engine.ready.num_blocks)
    rid = engine.submit(prompt, params, [11, 12, 13])
    engine.run(check=True)
    assert [engine.outcomes[rid, index].tokens for index in range(3)] == alone
    assert len({tuple(tokens) for tokens in alone}) == 3
