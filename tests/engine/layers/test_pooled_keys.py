"""An index whose keys several tokens have together: what is chosen, and that no cut of the work changes it."""

import itertools
from pathlib import Path

import pytest
import torch

from stentor import kernels
from stentor.engine.layers.attention.entries import first_of, gated_sums
from stentor.kernels.variants import force_variant
from stentor.server.options.model_facts import describe_model
from stentor.tests.kernels.helpers import assert_close, assert_same_bits, normal
from stentor.tests.parity import tiny
from stentor.tests.parity.cuts import LENGTH, prompt_of
from stentor.tests.parity.paged import BLOCK, PagedDecoder

POOL, TOP = 4, 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers that attend, of which the second uses the first's index."""
    folder = tmp_path_factory.mktemp("glm5")
    tiny.make("glm5-next-seeing", folder)
    return folder


def test_tokens_are_summed_by_a_softmax_of_their_gates() -> None:
    vectors, gates = normal(3, 5, 7, seed=1), normal(3, 5, 7, seed=2)
    assert_close(gated_sums(vectors, gates), (vectors * gates.softmax(1)).sum(1), 1e-6)


@pytest.mark.parametrize("flags", [[0, 1, 0, 0, 1, 1, 0], [0, 0, 0], [1], [1, 1, 1, 0]])
def test_set_flags_are_found_without_a_number_from_the_device(flags: list[int]) -> None:
    given = torch.tensor(flags, dtype=torch.bool)
    for most in range(int(given.sum()), len(flags) + 1):
        found, real = first_of(given, most)
        assert len(found) == most
        assert found[real].tolist() == given.nonzero()[:, 0].tolist()


def test_nothing_is_scored_up_to_the_last_token_that_sees_all(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which also sees the tokens of a pool that is not complete."""
    scored: list[torch.Tensor] = []

    def noted(*args: object, **named: object) -> torch.Tensor:
        scored.append(kernels.sparse_index.top_tokens(*args, **named))  # type: ignore[arg-type]
        return scored[-1]

    monkeypatch.setattr(kernels, "top_tokens", noted)
    ours = PagedDecoder(folder)
    ours.add(0, prompt_of(1))
    ours.run((0, 0, TOP + POOL - 1))
    assert scored == []
    ours.run((0, TOP + POOL - 1, 1))
    assert [found.shape for found in scored] == [(1, TOP // POOL)], "the second layer uses the choice of the first"
    assert scored[0].tolist()[0] == sorted({*scored[0].tolist()[0]})


@pytest.mark.parametrize("cuts", [(0, 1, 2, 3, 17, 31, 46, LENGTH), (0, 37, 74, LENGTH)])
def test_the_bits_are_the_same_however_a_prompt_is_cut(folder: Path, cuts: tuple[int, ...]) -> None:
    """Also within a pool, of which no cut is a multiple but the first."""
    prompt, other = prompt_of(3), prompt_of(4, 30)
    ours = PagedDecoder(folder, packed=False, invariant=True)
    ours.add(0, prompt)
    (whole,) = ours.run((0, 0, LENGTH))
    ours.add(1, prompt)
    ours.add(2, other)
    parts = [ours.run((1, cuts[0], cuts[1] - cuts[0]), (2, 0, 30))[0]]
    parts += [ours.run((1, first, end - first))[0] for first, end in itertools.pairwise(cuts[1:])]
    assert_same_bits(torch.cat(parts), whole)


def test_a_row_behind_shared_blocks_and_a_left_state_is_that_row_alone(folder: Path) -> None:
    prompt, ours = prompt_of(5), PagedDecoder(folder)
    blocks = ours.add(0, prompt)
    ours.run((0, 0, 2 * BLOCK))
    left = ours.leave(0)
    (expected,) = ours.run((0, 2 * BLOCK, LENGTH - 2 * BLOCK))
    ours.add(1, prompt, shared_blocks=blocks[:2], left=left)
    (found,) = ours.run((1, 2 * BLOCK, LENGTH - 2 * BLOCK))
    assert_close(found, expected, 2e-5)


def test_without_a_compiler_the_logits_are_the_same(folder: Path) -> None:
    logits = []
    for variant in ("auto", "reference"):
        with force_variant(variant):
            ours = PagedDecoder(folder, packed=False)
            ours.add(0, prompt_of(6))
            logits.append(torch.cat([*ours.run((0, 0, 61)), *ours.run((0, 61, 1))]))
    assert_close(logits[1], logits[0], 2e-5)


def test_a_block_has_a_place_for_the_key_of_each_pool(folder: Path) -> None:
    ours = PagedDecoder(folder)
    shapes = [[tuple(tensor.shape[1:]) for tensor in cache.tensors] for cache in ours.caches]
    assert shapes == [[(BLOCK, 32), (BLOCK // POOL, 16)], [(BLOCK, 32)]]


def test_what_a_token_sees_is_told(folder: Path) -> None:
    described = describe_model(folder, ())
    assert "sees the 24 best of all before by an index of 16 heads of 16 and a key of every 4 tokens" in described
