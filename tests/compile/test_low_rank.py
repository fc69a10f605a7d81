"""Adapters' products compiled for Hopper: on tensor cores, without spills, inputs read sixteen bytes at once."""

import pytest
import torch

from stentor.engine.worker.device.dry import dry_device
from stentor.kernels.launching.dry_run import dry_run
from stentor.kernels.low_rank.rows import RowGroups, grouped_size
from stentor.kernels.low_rank.slots import SlotTable, add_in_slots_, choose_in_slots

pytestmark = pytest.mark.compiles

CUDA = torch.device("cuda")
SLOTS = 8
PRODUCTS = {"qkv": (4096, (4096, 1024, 1024)), "down": (14336, (4096,))}


@pytest.mark.parametrize("rows", [4, 2048], ids=["few", "many"])
@pytest.mark.parametrize("rank", [8, 64])
@pytest.mark.parametrize("product", PRODUCTS)
def test_both_products_run_on_tensor_cores_without_spills(product: str, rank: int, rows: int) -> None:
    inputs, parts = PRODUCTS[product]
    with dry_device(), dry_run() as compiled:
        table = SlotTable(inputs, parts, SLOTS, rank, torch.bfloat16, CUDA)
        groups = RowGroups.of(torch.empty(grouped_size(rows, SLOTS), dtype=torch.int32, device=CUDA), rows)
        x = torch.empty(rows, inputs, dtype=torch.bfloat16, device=CUDA)
        y = torch.empty(rows, sum(parts), dtype=torch.bfloat16, device=CUDA)
        assert choose_in_slots(y) == "triton"
        add_in_slots_(y, x, groups, table)
    assert [kernel.name for kernel in compiled] == ["low_rank_down_kernel", "low_rank_up_kernel"]
    for kernel in compiled:
        assert kernel.uses_tensor_cores
        assert kernel.stack_bytes == 0
        assert kernel.shared_bytes <= 227 * 1024
        assert not kernel.warnings
    assert "cp.async.cg.shared.global" in compiled[0].ptx or "ld.global.v4" in compiled[0].ptx
