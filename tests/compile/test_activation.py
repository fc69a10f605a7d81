import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from stentor.kernels.activation import (
    ActivationKind,
    choose,
    choose_quantized,
    gated_activation,
    gated_activation_quantized,
)
from stentor.kernels.launching.dry_run import dry_run
from stentor.kernels.quantize import ActivationScheme
from stentor.kernels.quantize.scheme import FP8, Granularity

pytestmark = pytest.mark.compiles

WIDTHS = (4096, 5120, 14336, 25600)


def empty(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.bfloat16, device="cuda")


@pytest.mark.parametrize("kind", ["silu", "gelu_tanh", "gelu"])
def test_tiles_move_sixteen_bytes_at_once(kind: ActivationKind) -> None:
    with FakeTensorMode(), dry_run() as compiled:
        for width in WIDTHS:
            assert choose(empty(64, 2 * width)) == "triton"
            gated_activation(empty(64, 2 * width), kind)
    assert len(compiled) == len(WIDTHS)
    for kernel in compiled:
        assert kernel.stack_bytes == 0
        assert kernel.ptx.count("ld.global.v4.b32") == 2
        assert "st.global.v4.b32" in kernel.ptx


@pytest.mark.parametrize("dtype", [FP8, torch.int8])
@pytest.mark.parametrize("granularity", ["tensor", "token", "group"])
def test_quantised_rows_stay_in_registers_and_move_in_wide_pieces(granularity: Granularity, dtype: torch.dtype) -> None:
    scheme = ActivationScheme(dtype, granularity)
    with FakeTensorMode(), dry_run() as compiled:
        for width in WIDTHS:
            scale = torch.empty(1, device="cuda") if granularity == "tensor" else None
            assert choose_quantized(empty(64, 2 * width), scheme) == "triton"
            gated_activation_quantized(empty(64, 2 * width), "silu", scheme, scale)
    assert len(compiled) == len(WIDTHS)
    for kernel in compiled:
        assert kernel.stack_bytes == 0
        # a reduction in the wrong layout makes each thread read the whole row back from shared memory
        assert kernel.shared_bytes <= 1024
        assert "ld.global.v4.b32" in kernel.ptx
        assert "st.global.v2.b32" in kernel.ptx or "st.global.v4.b32" in kernel.ptx
        assert ("e4m3x2.f32" in kernel.ptx) == (dtype == FP8)


def test_fp8_is_made_of_integers_where_there_is_none() -> None:
    with FakeTensorMode(), dry_run(80) as compiled:
        gated_activation_quantized(empty(64, 2 * 14336), "silu", ActivationScheme(FP8, "token"))
    (kernel,) = compiled
    assert kernel.stack_bytes == 0
    assert "e4m3x2" not in kernel.ptx
