import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from stentor.kernels.launching.dry_run import dry_run
from stentor.kernels.norm import (
    add_layer_norm,
    add_rms_norm,
    add_rms_norm_quantized,
    choose,
    choose_quantized,
    rms_norm,
)
from stentor.kernels.quantize import ActivationScheme
from stentor.kernels.quantize.scheme import FP8, Granularity

pytestmark = pytest.mark.compiles

WIDTHS = (4096, 5120, 14336, 25600)


def empty(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.bfloat16, device="cuda")


@pytest.mark.parametrize("width", WIDTHS)
def test_long_rows_stay_in_registers_and_move_sixteen_bytes_at_once(width: int) -> None:
    with FakeTensorMode(), dry_run() as compiled:
        x, weight = empty(64, width), empty(width)
        assert choose(x) == "triton"
        add_rms_norm(x, empty(64, width), weight, 1e-5)
        add_layer_norm(x, empty(64, width), weight, weight, 1e-5)
    assert [kernel.name for kernel in compiled] == ["rms_norm_kernel", "layer_norm_kernel"]
    for kernel in compiled:
        assert kernel.stack_bytes == 0
        assert "ld.global.v4.b32" in kernel.ptx
        assert "st.global.v4.b32" in kernel.ptx
        assert "ld.global.b16" not in kernel.ptx
        assert "st.global.b16" not in kernel.ptx


@pytest.mark.parametrize("granularity", ["tensor", "token", "group"])
def test_fp8_rows_stay_in_registers_and_move_sixteen_bytes_at_once(granularity: Granularity) -> None:
    scheme = ActivationScheme(FP8, granularity)
    with FakeTensorMode(), dry_run() as compiled:
        for width in WIDTHS:
            x, weight = empty(64, width), empty(width)
            scale = torch.empty(1, device="cuda") if granularity == "tensor" else None
            assert choose_quantized(x, scheme) == "triton"
            out = add_rms_norm_quantized(x, empty(64, width), weight, 1e-5, scheme, scale)
            assert (out.values.shape, out.values.dtype) == ((64, width), FP8)
    assert [kernel.name for kernel in compiled] == ["rms_norm_kernel"] * len(WIDTHS)
    for kernel in compiled:
        assert kernel.stack_bytes == 0
        assert "ld.global.v4.b32" in kernel.ptx
        assert "st.global.v4.b32" in kernel.ptx
        assert "st.global.b8" not in kernel.ptx
        assert "e4m3x2.f32" in kernel.ptx


def test_fp8_is_made_of_integers_where_there_is_none() -> None:
    with FakeTensorMode(), dry_run(80) as compiled:
        add_rms_norm_quantized(empty(64, 5120), empty(64, 5120), empty(5120), 1e-5, ActivationScheme(FP8, "token"))
    (kernel,) = compiled
    assert kernel.stack_bytes == 0
    assert "e4m3x2" not in kernel.ptx


def test_heads_of_a_fused_projection_are_read_sixteen_bytes_at_once() -> None:
    with FakeTensorMode(), dry_run() as compiled:
        q = torch.empty_strided((64, 32, 128), (6144, 128, 1), dtype=torch.bfloat16, device="cuda")
        rms_norm(q, empty(128), 1e-6)
        rms_norm(q, empty(128), 1e-6, plus_one=True)
    for kernel in compiled:
        assert kernel.stack_bytes == 0
        assert "ld.global.v4.b32" in kernel.ptx
        assert "st.global.v4.b32" in kernel.ptx


def test_a_batch_of_another_size_compiles_nothing_new() -> None:
    with FakeTensorMode(), dry_run() as compiled:
        for rows in (1, 7, 64):
            rms_norm(empty(rows, 4096), empty(4096), 1e-6)
    assert len({kernel.ptx for kernel in compiled}) == 1
