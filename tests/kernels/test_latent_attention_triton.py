import pytest
import torch

from stentor.kernels.latent_attention import choose
from stentor.kernels.latent_attention.triton import OPERATION
from stentor.kernels.latent_attention.tunables import tunables
from stentor.kernels.tuning import Config, overridden
from stentor.tests.kernels.gpu import DEVICE, TRITON_FLOATS
from stentor.tests.kernels.helpers import assert_close
from stentor.tests.kernels.latents import make_latents

pytestmark = pytest.mark.triton

TOLERANCE = {torch.float32: 5e-6, torch.float16: 3e-3, torch.bfloat16: 1.6e-2}
WHOLE = Config.of(TILE=16, BLOCK_M=16, MIN_KEYS=1 << 20, PROGRAMS_PER_SM=1)
PARTS = Config.of(TILE=16, BLOCK_M=16, MIN_KEYS=32, PROGRAMS_PER_SM=8)
"""Short sequences split into many parts."""


@pytest.mark.parametrize("dtype", TRITON_FLOATS)
@pytest.mark.parametrize("config", [WHOLE, PARTS], ids=["whole", "parts"])
@pytest.mark.parametrize(("heads", "rank", "rotated", "size"), [(4, 32, 8, 16), (20, 40, 6, 32), (4, 32, 0, 16)])
def test_decode_chunks_and_padding_are_the_reference(
    heads: int, rank: int, rotated: int, size: int, config: Config, dtype: torch.dtype
) -> None:
    world = make_latents([1, 130, 70], heads=heads, rank=rank, rotated=rotated, size=size, dtype=dtype)
    parts = [(0, 0, 1), (1, 129, 130), (2, 66, 70)]
    assert choose(world.queries[0].to(DEVICE), "triton") == "triton"
    with overridden(OPERATION, config):
        padded, *found, behind = world.run(parts, "triton", padding=1)
    assert not torch.cat((padded, behind)).any(), "padding sees nothing"
    for triton, reference in zip(found, world.run(parts, "reference"), strict=True):
        assert_close(triton.cpu(), reference.cpu(), TOLERANCE[dtype])


@pytest.mark.parametrize("config", [WHOLE, PARTS], ids=["whole", "parts"])
def test_sinks_are_added_once_however_a_row_is_split(config: Config) -> None:
    world = make_latents([1, 130], heads=20, rank=40, rotated=6, size=32)
    parts, sinks = [(0, 0, 1), (1, 127, 130)], torch.linspace(-3, 3, 20)
    with overridden(OPERATION, config):
        padded, *found, behind = world.run(parts, "triton", padding=1, sinks=sinks)
    assert not torch.cat((padded, behind)).any(), "padding sees nothing"
    for triton, reference in zip(found, world.run(parts, "reference", sinks=sinks), strict=True):
        assert_close(triton.cpu(), reference.cpu(), TOLERANCE[torch.float32])


def test_a_default_is_among_what_the_tuner_may_try() -> None:
    from stentor.kernels.latent_attention.triton import default_config

    for each, heads in zip(tunables()[::2], (16, 128), strict=True):
        assert default_config(heads, torch.bfloat16) in each.candidates
