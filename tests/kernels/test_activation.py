import pytest
import torch

from stentor.kernels import ActivationKind, activate_, gated_activation
from stentor.kernels.activation import choose, choose_plain
from stentor.tests.kernels.helpers import assert_close, assert_same_bits, normal, thread_count

KINDS: tuple[ActivationKind, ...] = ("silu", "gelu_tanh", "gelu", "relu2", "quick_gelu", "relu")
DTYPES = (torch.float32, torch.bfloat16)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1), (1, 1536), (3, 5), (7, 100), (60, 513)])
def test_the_native_activation_is_the_reference(
    kind: ActivationKind, dtype: torch.dtype, shape: tuple[int, int]
) -> None:
    gate_up = normal(shape[0], 2 * shape[1], seed=1, dtype=dtype) * 3
    assert choose(gate_up) == "native"
    assert_close(gated_activation(gate_up, kind), gated_activation(gate_up, kind, variant="reference"))


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_exact_to_a_few_units_over_the_whole_range(kind: ActivationKind) -> None:
    gate = torch.cat([torch.linspace(-30, 30, 20001), torch.tensor([-1e4, -100.0, -88.0, 88.0, 100.0, 1e4, 0.0, -0.0])])
    both = torch.stack([gate, torch.ones_like(gate)]).T.contiguous().view(-1, 2)
    actual = gated_activation(both, kind)[:, 0]
    wide = gated_activation_in_double(gate, kind)
    assert torch.isfinite(actual).all()
    # in its tail gelu is x times what the error function leaves of one half; torch's own is right to 1.1e-6
    units = 8e-7 if kind == "gelu" else 4e-7
    assert ((actual - wide).abs() <= units * wide.abs().clamp(min=1.0)).all()


def gated_activation_in_double(gate: torch.Tensor, kind: ActivationKind) -> torch.Tensor:
    if kind == "silu":
        return torch.nn.functional.silu(gate.double())
    if kind == "quick_gelu":
        return gate.double() * torch.sigmoid(1.702 * gate.double())
    if kind == "relu":
        return torch.nn.functional.relu(gate.double())
    if kind == "relu2":
        return torch.nn.functional.relu(gate.double()).square()
    return torch.nn.functional.gelu(gate.double(), approximate="tanh" if kind == "gelu_tanh" else "none")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_is_bitwise_the_same_in_any_batch_and_thread_count(kind: ActivationKind, dtype: torch.dtype) -> None:
    gate_up = normal(64, 1210, seed=1, dtype=dtype)
    alone = torch.cat([gated_activation(gate_up[i : i + 1], kind) for i in range(64)])
    for threads in (1, 2):
        with thread_count(threads):
            assert_same_bits(gated_activation(gate_up, kind), alone)
            assert_same_bits(gated_activation(gate_up[5:12], kind), alone[5:12])


@pytest.mark.parametrize("kind", KINDS)
def test_nan_and_infinity_come_through(kind: ActivationKind) -> None:
    gate_up = torch.tensor([[float("nan"), 1.0], [float("inf"), 1.0]])
    out = gated_activation(gate_up, kind)
    assert out[0].isnan().all()
    assert out[1].item() == float("inf")


def test_rows_may_be_strided() -> None:
    wide = normal(6, 100, seed=1)
    assert_same_bits(gated_activation(wide[:, 10:80], "silu"), gated_activation(wide[:, 10:80].clone(), "silu"))


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="one of silu, gelu_tanh, gelu, relu2, quick_gelu, relu, not 'tanh'"):
        gated_activation(torch.ones(2, 8), "tanh")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"must be \[T, 2I\]"):
        gated_activation(torch.ones(2, 7), "silu")
    with pytest.raises(ValueError, match=r"must be \[T, 2I\]"):
        gated_activation(torch.ones(2, 8, dtype=torch.int64), "silu")
    with pytest.raises(ValueError, match="must be contiguous"):
        gated_activation(torch.ones(8, 2).T, "silu")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1,), (3, 5), (2, 7, 100), (60, 1513), (0, 4)])
def test_a_plain_activation_is_the_reference_and_in_place(
    kind: ActivationKind, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    x = normal(*shape, seed=2, dtype=dtype) * 3
    expected = activate_(x.clone(), kind, variant="reference")
    assert choose_plain(x) == "native"
    assert activate_(x, kind) is x
    assert_close(x, expected)


def test_a_plain_activation_refuses_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match="kind must be one of"):
        activate_(torch.ones(3), "tanh")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="must be contiguous"):
        activate_(torch.ones(3, 4).T, "gelu")
    with pytest.raises(ValueError, match="float dtype"):
        activate_(torch.ones(3, dtype=torch.int64), "gelu")
