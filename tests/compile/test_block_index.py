import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from stentor.kernels import AttentionBatch
from stentor.kernels.launching.dry_run import dry_run
from stentor.kernels.sparse_index.blocks import VisibleTokens
from stentor.kernels.sparse_index.triton_blocks import score_blocks

pytestmark = pytest.mark.compiles

HEADS, DIM, CHOSEN, KEYS = 4, 128, 128, 16384
"""MiniMax-M3's index."""


@pytest.mark.parametrize(("rows", "size"), [(64, 64), (1, 16)])
def test_an_index_of_blocks_spills_nothing(rows: int, size: int) -> None:
    def empty(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="cuda")

    with FakeTensorMode(), dry_run() as kernels:
        tables, slots = empty(rows, KEYS // size), empty(rows, dtype=torch.int64)
        batch = AttentionBatch(empty(rows + 1), empty(rows), tables, slots, 1, KEYS, rows)
        q = empty(rows, HEADS, DIM, dtype=torch.bfloat16)
        cache = empty(rows * KEYS // size, size, DIM, dtype=torch.bfloat16)
        score_blocks(q, cache, batch, VisibleTokens(slots, slots), CHOSEN, KEYS // CHOSEN, slice(0, rows))
    (kernel,) = kernels
    assert kernel.name == "score_blocks_kernel"
    assert kernel.stack_bytes == 0
    assert kernel.shared_bytes <= 227 * 1024
    assert kernel.uses_tensor_cores
