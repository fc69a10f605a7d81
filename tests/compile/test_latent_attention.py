import re
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from stentor.kernels import AttentionBatch
from stentor.kernels.latent_attention.triton import OPERATION, latent_attention
from stentor.kernels.latent_attention.tunables import candidates
from stentor.kernels.tuning import Config, overridden
from stentor.tests.kernels.dry_run import CompiledKernel, dry_run

pytestmark = pytest.mark.compiles

RANK, DIM = 512, 576
V2_LITE, GLM_FLASH, V3 = 16, 20, 128
"""Heads."""


def compiled(
    heads: int, rows: int, size: int, dtype: torch.dtype = torch.bfloat16, *, config: Config | None = None
) -> list[CompiledKernel]:
    keys = 4096

    def empty(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="cuda")

    with (
        FakeTensorMode(),
        dry_run() as kernels,
        nullcontext() if config is None else overridden(OPERATION, config),
    ):
        batch = AttentionBatch(
            empty(rows + 1),
            empty(rows),
            empty(rows, keys // size),
            empty(rows, dtype=torch.int64),
            1,
            keys,
            rows,
        )
        latent_attention(
            empty(rows, heads, DIM, dtype=dtype), empty(rows * keys // size, size, DIM, dtype=dtype), batch, RANK, 0.1
        )
    return kernels


@pytest.mark.parametrize(("heads", "rows", "size"), [(V2_LITE, 1, 16), (GLM_FLASH, 64, 64), (V3, 256, 64)])
def test_models_shapes_stream_their_latents_and_spill_nothing(heads: int, rows: int, size: int) -> None:
    kernels = compiled(heads, rows, size)
    names = [kernel.name for kernel in kernels]
    assert names == ["latent_kernel", "join_kernel"][: len(names)]
    assert len(names) == (1 if rows == 256 else 2), "few rows are split among programs"
    decode = kernels[0]
    assert all(kernel.stack_bytes == 0 for kernel in kernels)
    assert decode.shared_bytes <= 227 * 1024
    assert decode.uses_tensor_cores
    copies = re.findall(r"cp\.async\.c[ag]\.shared\.global.*?(0x[0-9a-f]+)", decode.ptx)
    assert set(copies) == {"0x10"}, "latents come in pieces of 16 bytes, ahead of their turn"


def test_the_largest_candidate_of_the_tuner_fits() -> None:
    largest = max(candidates(V3), key=lambda config: (config["TILE"] * config.num_stages, config["BLOCK_M"]))
    assert compiled(V3, 64, 64, config=largest)[0].shared_bytes <= 227 * 1024
