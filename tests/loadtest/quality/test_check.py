"""Our worker beside transformers, and that a model which went wrong is noticed; the demo model is in tests/parity."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stentor.engine.loading.checkpoint import open_checkpoint
from stentor.loadtest.quality.command import CACHES, Case, Work, check, make_cases
from stentor.loadtest.quality.ours import TOP, Scorer
from stentor.loadtest.quality.reference import Reference, ReferenceError
from stentor.protocols.ipc.config import WorkerConfig
from stentor.tests.parity import tiny

SMALL: dict[str, Any] = {
    "device": "cpu", "max_num_seqs": 8, "max_num_batched_tokens": 48, "block_size": 16, "kv_cache_memory": 16 << 20,
}  # fmt: skip


def _prompt(seed: int, length: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(3, tiny.VOCAB) for _ in range(length)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    tiny.make("llama", folder)
    return folder


@pytest.fixture(scope="module")
def scorer(folder: Path) -> Iterator[Scorer]:
    scorer = Scorer(WorkerConfig(str(folder), dtype="float32", **SMALL))
    yield scorer
    scorer.close()


def test_one_by_one_and_in_chunks_the_same_is_said(scorer: Scorer) -> None:
    first, second = _prompt(1, 100), _prompt(2, 100)
    prefilled = [scorer.prefill(first), scorer.prefill(second)]
    decoded = scorer.decode([first, second])
    for one, other in zip(prefilled, decoded, strict=True):
        assert one.logprobs.shape == (99,)
        assert one.top_ids.shape == one.top_logprobs.shape == (99, TOP)
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-4)
        np.testing.assert_allclose(one.top_logprobs, other.top_logprobs, atol=1e-4)
    assert np.abs(prefilled[0].logprobs - prefilled[1].logprobs).max() > 0.1


def test_windows_of_two_lengths_do_not_decode_together(scorer: Scorer) -> None:
    with pytest.raises(ValueError, match="one length"):
        scorer.decode([_prompt(1, 10), _prompt(1, 11)])


def test_a_cache_of_eight_bits_is_judged_in_float32(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)
    served = WorkerConfig(str(folder), dtype="bfloat16", **SMALL)
    with make_cases(checkpoint, Reference(checkpoint), served, ["served", *CACHES]) as cases:
        found = [(case.name, case.config.dtype, case.config.kv_cache_dtype) for case in cases]
    assert found == [
        ("served", "bfloat16", served.kv_cache_dtype),
        ("int8-cache", "float32", "int8"),
        ("fp8-cache", "float32", "fp8"),
    ]


def test_a_model_that_went_wrong_is_noticed(folder: Path, tmp_path: Path) -> None:
    """One norm weight of one layer, doubled: less than a slip in a kernel would do."""
    reference = Reference(open_checkpoint(folder))
    spoiled = Reference(open_checkpoint(folder))
    with torch.no_grad():
        spoiled._model.model.layers[1].input_layernorm.weight[7] *= 2
    spoiled.save(tmp_path)
    config = WorkerConfig(str(folder), dtype="float32", **SMALL)
    cases = [Case("right", config), Case("wrong", WorkerConfig(str(tmp_path), dtype="float32", **SMALL))]
    tokens = _prompt(4, 300)
    works = [
        Work("prefill", [tokens[:120], tokens[100:200]]),
        Work("decode", [tokens[:40], tokens[40:80], tokens[80:120]], 2),
    ]
    said: list[str] = []
    right, right_decode, wrong, wrong_decode = check(cases, works, reference, said.append)
    assert (right.case, right.work, wrong_decode.work) == ("right", "prefill", "decode")
    for verdict, positions in ((right, 218), (right_decode, 117)):
        assert verdict.agreement.positions == positions
        assert verdict.agreement.within(1e-4)
        assert verdict.agreement.same_greedy == 1.0
        assert verdict.agreement.divergence_p99 < 1e-5
    for verdict in (wrong, wrong_decode):
        assert verdict.agreement.divergence_mean > 1e-4
    assert abs(wrong.agreement.difference) > 100 * abs(right.agreement.difference)
    assert any("transformers" in line for line in said)


def test_a_model_that_transformers_cannot_read_is_one_line(folder: Path, tmp_path: Path) -> None:
    reference = Reference(open_checkpoint(folder))
    with pytest.raises(ReferenceError, match="transformers cannot load") as caught:
        reference.tokenize("there is no tokenizer beside it")
    assert "\n" not in str(caught.value)
