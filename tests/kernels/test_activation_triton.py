import pytest
import torch
from torch import Tensor

from stentor.kernels.activation import ActivationKind, choose, choose_quantized, gated_activation
from stentor.kernels.activation import gated_activation_quantized as quantized
from stentor.kernels.activation.tunables import tunables
from stentor.kernels.quantize import ActivationScheme
from stentor.kernels.quantize.scheme import FP8, Granularity
from stentor.kernels.tuning import Config, Tunable, overridden
from stentor.tests.kernels.gpu import DEVICE, TRITON_FLOATS
from stentor.tests.kernels.helpers import assert_close, assert_same_bits, normal
from stentor.tests.kernels.quantized_results import assert_within_a_step, scale_for

# interpreted, exp is numpy's, which speaks up where a sigmoid is 0
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning")

KINDS: tuple[ActivationKind, ...] = ("silu", "gelu_tanh", "gelu", "relu2", "quick_gelu", "relu")
TOLERANCE = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def made(rows: int, inner: int, dtype: torch.dtype) -> Tensor:
    return (normal(rows, 2 * inner, seed=1) * 3).to(dtype).to(DEVICE)


@pytest.mark.triton
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", TRITON_FLOATS)
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (2, 1500), (1, 2048), (0, 8), (2, 0)])
def test_the_triton_activation_is_the_reference(
    kind: ActivationKind, dtype: torch.dtype, shape: tuple[int, int]
) -> None:
    gate_up = made(*shape, dtype)
    assert choose(gate_up, "triton") == "triton"
    out = gated_activation(gate_up, kind, variant="triton")
    assert_close(out, gated_activation(gate_up, kind, variant="reference"), TOLERANCE[dtype])


@pytest.mark.triton
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_exact_to_a_few_units_over_the_whole_range(kind: ActivationKind) -> None:
    gate = torch.cat([torch.linspace(-30, 30, 2001), torch.tensor([-1e4, -100.0, -88.0, 88.0, 100.0, 1e4, 0.0, -0.0])])
    both = torch.cat([gate, torch.ones_like(gate)])[None].to(DEVICE)
    actual = gated_activation(both, kind, variant="triton")[0].cpu()
    if kind == "silu":
        wide = torch.nn.functional.silu(gate.double())
    elif kind == "quick_gelu":
        wide = gate.double() * torch.sigmoid(1.702 * gate.double())
    elif kind == "relu":
        wide = torch.nn.functional.relu(gate.double())
    elif kind == "relu2":
        wide = torch.nn.functional.relu(gate.double()).square()
    else:
        wide = torch.nn.functional.gelu(gate.double(), approximate="tanh" if kind == "gelu_tanh" else "none")
    assert torch.isfinite(actual).all()
    assert ((actual - wide).abs() <= 1e-6 * wide.abs().clamp(min=1.0)).all()


@pytest.mark.triton
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", TRITON_FLOATS)
@pytest.mark.parametrize("to", [FP8, torch.int8])
@pytest.mark.parametrize("granularity", ["tensor", "token", "group"])
@pytest.mark.parametrize(("shape", "group"), [((3, 100), 32), ((1, 1), 128), ((2, 1300), 128), ((0, 64), 64)])
def test_a_quantised_activation_is_the_activation_and_then_quantised(
    kind: ActivationKind,
    dtype: torch.dtype,
    to: torch.dtype,
    granularity: Granularity,
    shape: tuple[int, int],
    group: int,
) -> None:
    gate_up = made(*shape, dtype)
    scheme = ActivationScheme(to, granularity, group)
    scale = scale_for(scheme)
    assert choose_quantized(gate_up, scheme, "triton") == "triton"
    out = quantized(gate_up, kind, scheme, scale, variant="triton")
    assert_within_a_step(out, quantized(gate_up, kind, scheme, scale, variant="reference"))


@pytest.mark.triton
@pytest.mark.parametrize("block", [64, 256])
def test_groups_keep_their_scales_whatever_the_tile(block: int) -> None:
    gate_up, scheme = made(2, 700, torch.float32), ActivationScheme(torch.int8, "group", 128)
    with overridden("gated_activation_quantized", Config.of(BLOCK=block)):
        out = quantized(gate_up, "silu", scheme, variant="triton")
    assert_within_a_step(out, quantized(gate_up, "silu", scheme, variant="reference"))


@pytest.mark.triton
@pytest.mark.parametrize("dtype", TRITON_FLOATS)
def test_rows_may_be_strided(dtype: torch.dtype) -> None:
    part = made(6, 60, dtype)[1::2, 10:80]
    assert_same_bits(
        gated_activation(part, "silu", variant="triton"), gated_activation(part.contiguous(), "silu", variant="triton")
    )


@pytest.mark.triton
@pytest.mark.parametrize("kind", KINDS)
def test_nan_and_infinity_come_through(kind: ActivationKind) -> None:
    gate_up = torch.tensor([[float("nan"), 1.0], [float("inf"), 1.0]], device=DEVICE)
    out = gated_activation(gate_up, kind, variant="triton")
    assert out[0].isnan().all()
    assert out[1].item() == float("inf")


@pytest.mark.triton
def test_what_the_kernels_do_not_take_is_said() -> None:
    with pytest.raises(ValueError, match="rows of up to 32768, not 40000"):
        choose_quantized(torch.ones(1, 80000, device=DEVICE), ActivationScheme(FP8, "token"), "triton")
    with pytest.raises(ValueError, match="groups of a power of two, not 48"):
        choose_quantized(torch.ones(1, 96, device=DEVICE), ActivationScheme(FP8, "group", 48), "triton")


def test_what_no_fused_kernel_takes_is_activated_and_then_quantised() -> None:
    gate_up, scheme = made(3, 96, torch.float32), ActivationScheme(FP8, "group", 48)
    assert choose_quantized(gate_up, scheme) == "reference"
    out = quantized(gate_up, "gelu", scheme)
    assert_within_a_step(out, quantized(gate_up, "gelu", scheme, variant="reference"))


def test_what_does_not_fit_is_refused() -> None:
    by_tensor, by_token = ActivationScheme(FP8, "tensor"), ActivationScheme(FP8, "token")
    with pytest.raises(ValueError, match="scale is missing"):
        quantized(torch.ones(2, 8), "silu", by_tensor)
    with pytest.raises(ValueError, match="scale is given"):
        quantized(torch.ones(2, 8), "silu", by_token, torch.ones(1))
    with pytest.raises(ValueError, match="gated_activation_quantized: kind must be"):
        quantized(torch.ones(2, 8), "tanh", by_token)  # type: ignore[arg-type]


@pytest.mark.parametrize("tunable", tunables(), ids=lambda tunable: f"{tunable.operation} {tunable.key}")
@pytest.mark.gpu
def test_every_candidate_of_the_tuner_runs(tunable: Tunable) -> None:
    call = tunable.workload(torch.device(DEVICE))
    for config in tunable.candidates:
        with overridden(tunable.operation, config):
            call()
    torch.cuda.synchronize()
