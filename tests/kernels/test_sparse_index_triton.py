import pytest
import torch

from stentor.kernels.latent_attention.triton import OPERATION as ATTENTION
from stentor.kernels.sparse_index import choose
from stentor.kernels.sparse_index import triton as launcher
from stentor.kernels.sparse_index.tunables import tunables
from stentor.kernels.tuning import Config, overridden
from stentor.tests.kernels.gpu import DEVICE, TRITON_FLOATS
from stentor.tests.kernels.helpers import assert_close
from stentor.tests.kernels.latents import make_entries, make_latents
from stentor.tests.kernels.test_latent_attention_triton import PARTS, TOLERANCE, WHOLE
from stentor.tests.kernels.test_sparse_index import index, pooled

pytestmark = pytest.mark.triton


@pytest.mark.parametrize("dtype", TRITON_FLOATS)
@pytest.mark.parametrize(("heads", "dim", "size", "top_k"), [(8, 20, 16, 24), (20, 32, 32, 1), (3, 16, 48, 129)])
@pytest.mark.parametrize("scores_bytes", [1 << 20, 2 * 4 * 130])
def test_decode_chunks_and_padding_are_the_reference(
    heads: int, dim: int, size: int, top_k: int, scores_bytes: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, weights = index([1, 130, 70], heads=heads, dim=dim, size=size, dtype=dtype)
    parts = [(0, 0, 1), (1, 129, 130), (2, 66, 70)]
    assert choose(world.queries[0].to(DEVICE), "triton") == "triton"
    monkeypatch.setattr(launcher, "SCORES_BYTES", scores_bytes)
    with overridden(launcher.OPERATION, Config.of(TILE=16)):
        padded, *found, behind = world.choose(parts, weights, top_k, "triton", padding=1)
    assert (torch.cat((padded, behind)) == -1).all(), "padding chooses nothing"
    for triton, reference in zip(found, world.choose(parts, weights, top_k, "reference"), strict=True):
        assert triton.tolist() == reference.tolist()


@pytest.mark.parametrize("dtype", TRITON_FLOATS)
@pytest.mark.parametrize(("block", "ratio", "top_k"), [(32, 4, 9), (16, 5, 9), (16, 24, 2)])
def test_entries_of_several_tokens_are_the_reference(block: int, ratio: int, top_k: int, dtype: torch.dtype) -> None:
    """Entries of 5 tokens do not fill blocks evenly, and those of 24 lie in the block of their last token."""
    world = make_entries(block, ratio, dtype)
    with overridden(launcher.OPERATION, Config.of(TILE=16)):
        found, expected = (world.choose(top_k, variant) for variant in ("triton", "reference"))
    assert found.tolist() == expected.tolist()
    assert [sum(entry >= 0 for entry in row) for row in found.tolist()] == [min(top_k, each) for each in world.complete]


def test_several_tiles_are_searched_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "_SELECT", Config.of(TILE=16))
    world, weights = index([200])
    part = [(0, 197, 200)]
    (found,), (expected,) = (world.choose(part, weights, 90, variant) for variant in ("triton", "reference"))
    assert found.tolist() == expected.tolist()


@pytest.mark.parametrize("dtype", TRITON_FLOATS)
@pytest.mark.parametrize("config", [WHOLE, PARTS], ids=["whole", "parts"])
def test_attention_to_what_is_chosen_is_the_reference(config: Config, dtype: torch.dtype) -> None:
    lengths = [1, 130, 70]
    keys, weights = index(lengths)
    world = make_latents(lengths, heads=20, rank=40, rotated=6, size=32, dtype=dtype)
    parts = [(0, 0, 1), (1, 129, 130), (2, 66, 70)]
    for top_k in (24, 100):
        chosen = [part.to("cpu") for part in keys.choose(parts, weights, top_k, "reference")]
        with overridden(ATTENTION, config):
            padded, *found, behind = world.run(parts, "triton", padding=1, chosen=chosen)
        assert not torch.cat((padded, behind)).any(), "padding sees nothing"
        for triton, reference in zip(found, world.run(parts, "reference", chosen=chosen), strict=True):
            assert_close(triton.cpu(), reference.cpu(), TOLERANCE[dtype])


@pytest.mark.parametrize("config", [WHOLE, PARTS], ids=["whole", "parts"])
def test_attention_to_chosen_pools_and_the_incomplete_one_is_the_reference(config: Config) -> None:
    world = make_latents([1, 130, 70], heads=20, rank=32, rotated=0, size=32)
    parts = [(0, 0, 1), (1, 111, 130), (2, 20, 40)]
    chosen = pooled(parts, top_k=3, pool=8)
    with overridden(ATTENTION, config):
        padded, *found, behind = world.run(parts, "triton", padding=1, chosen=chosen, pool=8)
    assert not torch.cat((padded, behind)).any(), "padding sees nothing"
    for triton, reference in zip(found, world.run(parts, "reference", chosen=chosen, pool=8), strict=True):
        assert_close(triton.cpu(), reference.cpu(), TOLERANCE[torch.float32])


def test_a_default_is_among_what_the_tuner_may_try() -> None:
    for each in tunables():
        assert launcher.default_config(torch.bfloat16) in each.candidates
