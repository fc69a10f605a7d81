"""Both forms of latent attention, and which tokens are computed in which."""

import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from stentor.engine.layers.attention import latent_attention
from stentor.engine.layers.attention.latent_attention import LatentAttention
from stentor.engine.model_config.spec.latent_attention import LatentAttentionSpec
from stentor.engine.worker.errors import SetupError
from stentor.engine.worker.setup.setup import set_up
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.server.options.model_facts import describe_model
from stentor.tests.engine.local import LocalEngine, model_config
from stentor.tests.kernels.helpers import assert_close, assert_same_bits
from stentor.tests.parity import tiny
from stentor.tests.parity.paged import BLOCK, PagedDecoder

LENGTH = 70


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("latent")
    tiny.make("deepseek-v3-dense", folder)
    return folder


def prompt(seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(3, tiny.VOCAB) for _ in range(LENGTH)]


def forms(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Takes down what is computed in which form, and of how many tokens."""
    found: list[tuple[str, int]] = []
    for name in ("_absorbed", "_expanded"):
        original = getattr(LatentAttention, name)

        def noted(self: object, q: torch.Tensor, *rest: object, name: str = name, run: object = original) -> object:
            found.append((name, len(q)))
            return run(self, q, *rest)  # type: ignore[operator]

        monkeypatch.setattr(LatentAttention, name, noted)
    return found


def test_both_forms_give_the_same(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    for absorbs in (True, False):
        monkeypatch.setattr(LatentAttentionSpec, "absorbs", lambda *_, given=absorbs: given)
        ours = PagedDecoder(folder)
        ours.add(0, prompt(1))
        found[absorbs] = torch.cat([*ours.run((0, 0, 40)), *ours.run((0, 40, 29)), *ours.run((0, 69, 1))])
    assert_close(found[True], found[False], 2e-5)


def test_a_row_has_the_form_that_its_own_chunk_asks_for_whatever_is_beside_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted = forms(monkeypatch)
    logits = {}
    for together in (False, True):
        ours = PagedDecoder(folder)
        for slot in (0, 1, 2):
            ours.add(slot, prompt(slot))
        ours.run((0, 0, 60), (1, 0, 65))
        steps = [(0, 60, 1), (1, 65, 2), (2, 0, 50)]
        noted.clear()
        parts = ours.run(*steps) if together else [ours.run(step)[0] for step in steps]
        logits[together] = torch.cat(parts)
        of_a_layer = noted[:: 1 if together else 3]
        assert sorted(set(of_a_layer)) == [
            *([("_absorbed", 3)] if together else [("_absorbed", 1), ("_absorbed", 2)]),
            ("_expanded", 50),
        ]
    assert_same_bits(logits[True], logits[False])


def test_what_was_drawn_one_by_one_has_the_same_bits_when_it_is_computed_again(folder: Path) -> None:
    engine = LocalEngine(model_config(folder, dtype="bfloat16"))
    asked = SamplingParams(max_tokens=40, temperature=0.0, logprobs=2)
    found: list[object] = []
    deaths = [30, 15]

    def dies() -> bool:
        return bool(found) and deaths[-1:] == [len(engine.outcomes[0, 0].tokens)] and bool(deaths.pop())

    for _ in range(2):
        engine.restart(engine.ready.num_blocks, prefix_cache=False)
        engine.submit(prompt(1)[:9], asked)
        engine.run(dies=dies)
        found.append(engine.outcomes[0, 0])
    assert engine.deaths == 2
    assert found[0] == found[1]


def test_a_batch_invariant_worker_absorbs_all(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noted = forms(monkeypatch)
    ours = PagedDecoder(folder, invariant=True)
    ours.add(0, prompt(1))
    ours.run((0, 0, LENGTH))
    assert set(noted) == {("_absorbed", LENGTH)}


def test_keys_are_made_of_some_heads_at_a_time_for_a_long_row(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logits = []
    for most in (1 << 26, 3 * LENGTH * 24 * 4, 1):
        monkeypatch.setattr(latent_attention, "_EXPANDED_BYTES", most)
        ours = PagedDecoder(folder)
        ours.add(0, prompt(1))
        logits += ours.run((0, 0, LENGTH))
    assert_same_bits(logits[1], logits[0])
    assert_same_bits(logits[2], logits[0])


def test_a_shared_prefix_is_read_as_if_computed_here_in_either_form(folder: Path) -> None:
    ours = PagedDecoder(folder)
    first = prompt(1)
    blocks = ours.add(0, first)
    (whole,) = ours.run((0, 0, LENGTH))
    for slot, count in ((1, 1), (2, LENGTH - 3 * BLOCK)):
        ours.add(slot, first, shared_blocks=blocks[:3])
        (found,) = ours.run((slot, 3 * BLOCK, count))
        assert_close(found, whole[3 * BLOCK : 3 * BLOCK + count], 2e-5)


def test_what_makes_keys_and_values_stays_plain_where_other_weights_are_quantised_at_load(folder: Path) -> None:
    plain, ours = (PagedDecoder(folder, dtype=torch.bfloat16, quantization=kind) for kind in ("none", "int8"))
    for decoder in (plain, ours):
        decoder.add(0, prompt(1))
    (expected,), (found,) = plain.run((0, 0, LENGTH)), ours.run((0, 0, LENGTH))
    assert not torch.equal(found, expected)
    assert ((found - expected).abs() / expected.std()).mean() < 0.05


@pytest.mark.parametrize("dtype", ["fp8", "int8"])
def test_a_cache_of_8_bits_is_refused(folder: Path, dtype: str) -> None:
    with pytest.raises(SetupError, match=f"--kv-cache-dtype {dtype}: the model keeps latents"):
        set_up(model_config(folder, kv_cache_dtype=dtype), lambda *_: None)


def test_start_up_says_that_the_program_is_left_for_it(folder: Path) -> None:
    notes = set_up(model_config(folder), lambda *_: None).ready.notes
    assert any("leaves its program 3 times a step, slower, for latent attention" in note for note in notes)


def test_layers_for_drafts_of_tokens_are_passed_over(tmp_path: Path) -> None:
    tiny.make("deepseek-v3-dense", tmp_path)
    ours = PagedDecoder(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    drafts = {"model.layers.3.eh_proj.weight": torch.zeros(64, 128), "model.layers.3.enorm.weight": torch.zeros(64)}
    save_file({**tensors, **drafts}, tmp_path / "model.safetensors", {"format": "pt"})
    with_drafts = PagedDecoder(tmp_path)
    for decoder in (ours, with_drafts):
        decoder.add(0, prompt(1))
    assert_same_bits(with_drafts.run((0, 0, LENGTH))[0], ours.run((0, 0, LENGTH))[0])


def test_what_a_token_keeps_is_told(folder: Path) -> None:
    description = describe_model(folder, ())
    assert "attention of 4 heads to latents of 32 and 8 rotated, sees all before; silu of 96" in description
    assert f"{3 * (32 + 8) * 2 / 1024:.1f} KiB in bfloat16 of 3 layers, latent" in description
