from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from stentor.kernels import StateRows, causal_conv, gated_delta, mamba2, selective_scan
from stentor.kernels.causal_conv import choose as choose_conv
from stentor.kernels.causal_conv import triton as conv_triton
from stentor.kernels.causal_conv.tunables import tunables as conv_tunables
from stentor.kernels.gated_delta import choose as choose_delta
from stentor.kernels.gated_delta import triton as delta_triton
from stentor.kernels.gated_delta import triton_chunks as delta_chunks
from stentor.kernels.gated_delta.tunables import tunables as delta_tunables
from stentor.kernels.launching.dry_run import CompiledKernel, dry_run
from stentor.kernels.mamba2 import choose as choose_mamba
from stentor.kernels.mamba2 import triton as mamba_triton
from stentor.kernels.mamba2.tunables import tunables as mamba_tunables
from stentor.kernels.selective_scan import choose as choose_scan
from stentor.kernels.selective_scan import triton as scan_triton
from stentor.kernels.selective_scan.tunables import tunables as scan_tunables
from stentor.kernels.tuning import Tunable
from stentor.tests.compile.tuned import check_looked_up

pytestmark = pytest.mark.compiles

ROWS = 8


def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="cuda")


def rows_of(longest: int) -> StateRows:
    slots = empty(ROWS, dtype=torch.int64)
    return StateRows(empty(ROWS + 1, dtype=torch.int32), slots, slots, longest)


def conv(tokens: int, longest: int) -> None:
    x = empty(tokens, 8192)
    assert choose_conv(x, 4) == "triton"
    causal_conv(x, empty(8192, 4), empty(8192), empty(99, 8192, 3), rows_of(longest), activation="silu")


def delta(tokens: int, longest: int) -> None:
    q, v, factor = empty(tokens, 16, 128), empty(tokens, 32, 128), empty(tokens, 32, dtype=torch.float32)
    assert choose_delta(q) == "triton"
    gated_delta(
        q, q, v, factor, factor, empty(99, 32, 128, 128, dtype=torch.float32), rows_of(longest), scale=128**-0.5
    )


def delta_by_channel(tokens: int, longest: int) -> None:
    q, beta = empty(tokens, 32, 128), empty(tokens, 32, dtype=torch.float32)
    decay, state = empty(tokens, 32, 128, dtype=torch.float32), empty(99, 32, 128, 128, dtype=torch.float32)
    assert choose_delta(q) == "triton"
    gated_delta(q, q, q, decay, beta, state, rows_of(longest), scale=128**-0.5)


def mamba(tokens: int, longest: int) -> None:
    x, dt, B = empty(tokens, 128, 64), empty(tokens, 128, dtype=torch.float32), empty(tokens, 8, 128)
    assert choose_mamba(x, 128) == "triton"
    factor, state = empty(128, dtype=torch.float32), empty(99, 128, 64, 128, dtype=torch.float32)
    mamba2(x, dt, factor, B, B, factor, state, rows_of(longest))


def scan(tokens: int, longest: int) -> None:
    x, B = empty(tokens, 8192), empty(tokens, 16)
    assert choose_scan(x, 16) == "triton"
    factor, A = empty(8192, dtype=torch.float32), empty(16, 8192, dtype=torch.float32)
    selective_scan(x, x, x, factor, A, B, B, factor, empty(99, 16, 8192, dtype=torch.float32), rows_of(longest))


def compiled(operation: Callable[[int, int], None], tokens: int, longest: int) -> list[CompiledKernel]:
    with FakeTensorMode(), dry_run(90) as kernels:
        operation(tokens, longest)
    return kernels


@pytest.mark.parametrize("operation", [conv, delta, delta_by_channel, mamba, scan])
def test_a_token_of_each_row_takes_one_kernel_that_spills_nothing(operation: Callable[[int, int], None]) -> None:
    (kernel,) = compiled(operation, ROWS, 1)
    assert kernel.stack_bytes == 0
    if operation is not conv:  # states are moved four floats at a time
        assert "ld.global.v4" in kernel.ptx
        assert "st.global.v4" in kernel.ptx


@pytest.mark.parametrize("operation", [conv, scan])
def test_prompts_too_take_one_kernel_that_spills_nothing(operation: Callable[[int, int], None]) -> None:
    (kernel,) = compiled(operation, 4096, 4000)
    assert kernel.stack_bytes == 0


@pytest.mark.parametrize("operation", [delta, delta_by_channel, mamba])
def test_prompts_are_multiplied_in_tensor_cores_and_fit_an_h100(operation: Callable[[int, int], None]) -> None:
    kernels = compiled(operation, 4096, 4000)
    assert [kernel.name for kernel in kernels] == ["_inverse_kernel"] * (operation is not mamba) + ["chunks_kernel"]
    for kernel in kernels:
        assert kernel.uses_tensor_cores or (operation is delta_by_channel and kernel.name == "_inverse_kernel")
        assert kernel.stack_bytes == 0
        assert kernel.shared_bytes <= 227 * 1024


@pytest.mark.parametrize(
    ("module", "tunables"),
    [
        (conv_triton, conv_tunables),
        (delta_triton, delta_tunables),
        (mamba_triton, mamba_tunables),
        (scan_triton, scan_tunables),
    ],
)
def test_the_tuner_times_what_launches_look_up(
    module: object, tunables: Callable[[], list[Tunable]], monkeypatch: pytest.MonkeyPatch
) -> None:
    check_looked_up(module, (module, delta_chunks), tunables(), monkeypatch)
