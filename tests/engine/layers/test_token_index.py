"""Sparse latent attention: which tokens are chosen, and that no cut of the work changes them."""

import copy
import itertools
import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from stentor import kernels
from stentor.engine.worker.setup.setup import set_up
from stentor.kernels.variants import force_variant
from stentor.server.options.model_facts import describe_model
from stentor.tests.engine.local import model_config
from stentor.tests.kernels.helpers import assert_close, assert_same_bits
from stentor.tests.parity import tiny
from stentor.tests.parity.paged import BLOCK, PagedDecoder

LENGTH, TOP_K = 90, 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five layers, of which the third and the fifth share an index."""
    folder = tmp_path_factory.mktemp("sparse")
    tiny.make("glm-moe-dsa", folder)
    return folder


def prompt(seed: int, length: int = LENGTH) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(3, tiny.VOCAB) for _ in range(length)]


def choices(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """Takes down what is chosen, in the order of layers."""
    found: list[torch.Tensor] = []

    def noted(*args: object, **named: object) -> torch.Tensor:
        found.append(kernels.sparse_index.top_tokens(*args, **named))  # type: ignore[arg-type]
        return found[-1]

    monkeypatch.setattr(kernels, "top_tokens", noted)
    return found


def test_a_row_that_sees_no_more_than_may_be_chosen_is_scored_by_nobody(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted = choices(monkeypatch)
    ours = PagedDecoder(folder)
    ours.add(0, prompt(1))
    ours.run((0, 0, TOP_K))
    assert noted == []
    ours.run((0, TOP_K, 1))
    assert [found.shape for found in noted] == [(1, TOP_K)] * 3, "of the three layers with an index of their own"


@pytest.mark.parametrize("packed", [True, False])
def test_a_choice_and_logits_are_the_same_bits_however_a_prompt_is_cut_and_whoever_is_beside_it(
    folder: Path, packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted = choices(monkeypatch)
    ours = PagedDecoder(folder, packed=packed)
    for slot in (0, 1):
        ours.add(slot, prompt(1))
    ours.add(2, prompt(2))
    ours.run((0, 0, 30))
    (whole,) = ours.run((0, 30, 60))
    at_once = [found[-1].tolist() for found in noted[-3:]]
    ours.run((1, 0, 20), (2, 0, 80))
    ours.run((1, 20, 35))
    ours.run((2, 80, 1), (1, 55, 34))
    noted.clear()
    (_, last) = ours.run((2, 81, 9), (1, 89, 1))
    assert [found[-1].tolist() for found in noted] == at_once
    assert_close(last[0], whole[-1], 2e-5)


def test_a_batch_of_rows_that_choose_and_rows_that_do_not_is_each_of_them(folder: Path) -> None:
    logits = {}
    for together in (False, True):
        ours = PagedDecoder(folder)
        for slot in (0, 1, 2):
            ours.add(slot, prompt(slot))
        ours.run((0, 0, 60))
        ours.run((1, 0, 5))
        steps = [(0, 60, 3), (1, 5, 1), (2, 0, 20)]
        parts = ours.run(*steps) if together else [ours.run(step)[0] for step in steps]
        logits[together] = torch.cat(parts)
    assert_same_bits(logits[True], logits[False])


def test_an_invariant_worker_gives_the_same_bits_for_every_chunking(folder: Path) -> None:
    logits = []
    for cuts in ([0, 90], [0, 24, 25, 60, 90], [0, 10, 50, 89, 90]):
        ours = PagedDecoder(folder, invariant=True, packed=False)
        ours.add(0, prompt(3))
        logits.append(torch.cat([ours.run((0, begin, end - begin))[0] for begin, end in itertools.pairwise(cuts)]))
    assert_same_bits(logits[1], logits[0])
    assert_same_bits(logits[2], logits[0])


def test_a_shared_prefix_brings_its_index_keys(folder: Path) -> None:
    ours = PagedDecoder(folder)
    first = prompt(1)
    blocks = ours.add(0, first)
    (whole,) = ours.run((0, 0, LENGTH))
    ours.add(1, first, shared_blocks=blocks[:3])
    (found,) = ours.run((1, 3 * BLOCK, LENGTH - 3 * BLOCK))
    assert_close(found, whole[3 * BLOCK :], 2e-5)


def test_without_a_compiler_the_logits_are_the_same(folder: Path) -> None:
    logits = []
    for variant in ("auto", "reference"):
        with force_variant(variant):
            ours = PagedDecoder(folder, packed=False)
            ours.add(0, prompt(4))
            logits.append(torch.cat([*ours.run((0, 0, 70)), *ours.run((0, 70, 1))]))
    assert_close(logits[1], logits[0], 2e-5)


def test_layers_without_an_index_of_their_own_keep_no_keys(folder: Path) -> None:
    ours = PagedDecoder(folder)
    shapes = [[tuple(tensor.shape[1:]) for tensor in cache.tensors] for cache in ours.caches]
    both, latents = [(BLOCK, 40), (BLOCK, 16)], [(BLOCK, 40)]
    assert shapes == [both, both, latents, both, latents]
    assert sum(group.token_bytes(4) for group in ours.config.cache_groups) == 4 * (5 * 40 + 3 * 16)


def test_a_layer_that_shares_attends_to_what_the_layer_before_chose(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the shared layers are given is what the last layer with an index has chosen."""
    noted, given = choices(monkeypatch), []
    original = kernels.latent_attention

    def attend(q: torch.Tensor, *rest: object, chosen: torch.Tensor | None, **named: object) -> torch.Tensor:
        given.append(chosen)
        return original(q, *rest, chosen=chosen, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(kernels, "latent_attention", attend)
    ours = PagedDecoder(folder)
    ours.add(0, prompt(1))
    ours.run((0, 0, LENGTH))
    assert [next(n for n, found in enumerate(noted) if found is chosen) for chosen in given] == [0, 1, 1, 2, 2]


@torch.inference_mode()
def test_bfloat16_is_no_farther_off_than_transformers_own(tmp_path: Path) -> None:
    """Rounding makes some tokens choose others, here and there."""
    model = tiny.make("deepseek-v3.2", tmp_path)
    tokens = prompt(5)
    expected, rounded = (
        each(torch.tensor([tokens])).logits[0].float() for each in (model, copy.deepcopy(model).to(torch.bfloat16))
    )
    ours = PagedDecoder(tmp_path, dtype=torch.bfloat16)
    ours.add(0, tokens)
    logits = torch.cat([*ours.run((0, 0, 60)), *(ours.run((0, at, 1))[0] for at in range(60, LENGTH))])
    error, theirs = ((found - expected).abs().mean() / expected.std() for found in (logits, rounded))
    assert theirs > 0.01, "nothing is chosen otherwise"
    assert error < 1.25 * theirs


def test_weights_of_heads_stay_float32_where_others_are_quantised_at_load(folder: Path) -> None:
    ours = PagedDecoder(folder, dtype=torch.bfloat16, quantization="int8")
    ours.add(0, prompt(5))
    (logits,) = ours.run((0, 0, LENGTH))
    assert logits.isfinite().all()
    plain = PagedDecoder(folder, dtype=torch.bfloat16)
    plain.add(0, prompt(5))
    (expected,) = plain.run((0, 0, LENGTH))
    assert ((logits - expected).abs() / expected.std()).mean() < 0.2


def test_start_up_says_that_the_program_is_left_for_it(folder: Path) -> None:
    notes = set_up(model_config(folder), lambda *_: None).ready.notes
    assert any("sparse latent attention" in note for note in notes)


def test_layers_for_drafts_of_tokens_are_passed_over(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    tensors = load_file(folder / "model.safetensors")
    drafts = {"model.layers.5.self_attn.indexer.wk.weight": torch.zeros(16, 64)}
    save_file({**tensors, **drafts}, tmp_path / "model.safetensors", {"format": "pt"})
    for path in (folder, tmp_path):
        PagedDecoder(path)


def test_what_a_token_keeps_and_sees_is_told(folder: Path) -> None:
    description = describe_model(folder, ())
    assert "sees the 24 best of all before by an index of 16 heads of 16" in description
    assert "sees the 24 best of all before, as the layer before chose them" in description
    assert f"{3 * (40 + 16) * 2 / 1024:.1f} KiB in bfloat16 of 3 layers, latent" in description
