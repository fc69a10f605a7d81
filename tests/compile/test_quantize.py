import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from stentor.kernels.launching.dry_run import dry_run
from stentor.kernels.quantize import ActivationScheme, quantize
from stentor.kernels.quantize.scheme import FP8, Granularity

pytestmark = pytest.mark.compiles

WIDTHS = (4096, 14336, 25600)


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("dtype", [FP8, torch.int8])
@pytest.mark.parametrize("granularity", ["tensor", "token", "group"])
def test_rows_stay_in_registers_and_are_read_sixteen_bytes_at_once(
    granularity: Granularity, dtype: torch.dtype, capability: int
) -> None:
    with FakeTensorMode(), dry_run(capability) as compiled:
        for width in WIDTHS:
            x = torch.empty(64, width, dtype=torch.bfloat16, device="cuda")
            scale = torch.empty(1, device="cuda") if granularity == "tensor" else None
            assert quantize(x, ActivationScheme(dtype, granularity), scale).values.shape == (64, width)
    assert len(compiled) == len(WIDTHS)
    for kernel in compiled:
        assert kernel.stack_bytes == 0
        assert "ld.global.v4.b32" in kernel.ptx
        assert ("e4m3x2.f32" in kernel.ptx) == (dtype == FP8 and capability >= 89)
