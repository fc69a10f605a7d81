"""``--batch-invariant`` on a GPU: what a stream draws, to the last bit of its log-probabilities, whatever shares its
steps, and computed again after it was preempted."""

import random
from pathlib import Path

import pytest

from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import TokenLogprobs
from stentor.tests.gpu.ahead import AheadEngine
from stentor.tests.parity import tiny

pytestmark = pytest.mark.gpu

POOL = 24
"""Blocks that are too few for all."""


def _prompt(seed: int, length: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(3, tiny.VOCAB) for _ in range(length)]


def _drawn(engine: AheadEngine, rid: int) -> tuple[list[int], list[TokenLogprobs]]:
    outcome = engine.outcomes[rid, 0]
    return outcome.tokens, outcome.logprobs


@pytest.mark.parametrize("graphs", [True, False], ids=["graphs", "eager"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("architecture", ["llama", "qwen3", "gemma2", "gpt-oss", "qwen3-moe"])
def test_a_stream_gets_the_bits_that_it_gets_alone(architecture: str, dtype: str, graphs: bool, tmp_path: Path) -> None:
    tiny.make(architecture, tmp_path)
    engine = AheadEngine(tmp_path, dtype=dtype, batch_invariant=True, cuda_graphs=graphs, max_num_seqs=12)
    rng = random.Random(5)
    jobs = [
        (
            _prompt(number % 7, rng.randrange(1, 60)),
            SamplingParams(max_tokens=rng.randrange(4, 32), temperature=0.8 * (number % 2), logprobs=2),
            number,
        )
        for number in range(24)
    ]
    alone = []
    for prompt, params, seed in jobs:
        engine.restart(engine.ready.num_blocks)
        rid = engine.submit(prompt, params, [seed])
        engine.run()
        alone.append(_drawn(engine, rid))
    engine.restart(POOL, max_num_batched_tokens=40)
    rids = [engine.submit(prompt, params, [seed]) for prompt, params, seed in jobs]
    engine.run(check=True)
    assert engine.scheduler.stats().preemptions > 0, "the pool was not too small"
    assert [_drawn(engine, rid) for rid in rids] == alone
