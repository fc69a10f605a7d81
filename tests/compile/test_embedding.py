import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from stentor.kernels.embedding import choose, embedding
from stentor.kernels.launching.dry_run import dry_run

pytestmark = pytest.mark.compiles


@pytest.mark.parametrize("scale", [1.0, 64.0])
def test_rows_move_sixteen_bytes_at_once(scale: float) -> None:
    with FakeTensorMode(), dry_run() as compiled:
        tokens = torch.empty(64, dtype=torch.int64, device="cuda")
        for width in (4096, 5120):
            table = torch.empty(128256, width, dtype=torch.bfloat16, device="cuda")
            assert choose(table) == "triton"
            embedding(tokens, table, scale)
    assert len(compiled) == 2
    for kernel in compiled:
        assert kernel.stack_bytes == 0
        assert "ld.global.v4.b32" in kernel.ptx
        assert "st.global.v4.b32" in kernel.ptx
