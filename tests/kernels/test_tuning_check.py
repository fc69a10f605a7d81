"""What the tuner takes for a right result."""

from collections.abc import Callable

import pytest
import torch

from stentor.kernels.tuning import Tunable, by_reference, overridden, untuned
from stentor.kernels.tuning.check import difference
from stentor.kernels.variants import wanted
from stentor.tests.kernels.gpu import DEVICE


def normal(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn])
def test_results_that_differ_by_rounding_agree(dtype: torch.dtype) -> None:
    exact = normal(300, 200) * torch.logspace(-1, 1, 300)[:, None]
    rounded = (exact * (1 + 1e-3 * normal(300, 200, seed=1))).to(dtype)
    assert difference(exact.to(dtype), rounded) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn])
def test_one_wrong_tile_among_many_is_found(dtype: torch.dtype) -> None:
    expected = normal(4096, 1024).to(dtype)
    made = expected.clone()
    made[640:656, 64:80] = normal(16, 16, seed=1).to(dtype)
    found = difference(expected, made)
    assert found is not None
    assert found.endswith("the first in row 640")


def test_a_row_of_small_numbers_is_held_to_its_own_magnitude() -> None:
    expected = normal(64, 128) * torch.logspace(0, 1, 64)[:, None]
    made = expected.clone()
    made[3, 9] += 0.6
    assert "the first in row 3" in (difference(expected, made) or "")
    made = expected.clone()
    made[60, 9] += 0.6
    assert difference(expected, made) is None


def test_results_that_are_all_a_little_off_are_found() -> None:
    expected = normal(64, 128)
    assert "root mean square" in (difference(expected, expected * 1.05) or "")
    assert "root mean square" in (difference(torch.zeros(4, 4), torch.ones(4, 4)) or "")


def test_what_is_not_finite_must_be_so_in_both() -> None:
    expected, made = normal(4, 4), normal(4, 4)
    made[2, 2] = torch.nan
    assert "infinities or NaN" in (difference(expected, made) or "")
    expected[2, 2] = torch.inf
    assert difference(expected, made) is None


def test_integers_of_a_row_are_a_set_and_others_go_by_position() -> None:
    chosen = torch.arange(2048).view(2, 1024)
    assert difference(chosen, chosen.flip(1)) is None
    assert difference(chosen, chosen + 1) is None  # one of each row
    assert difference(chosen, chosen + 100) == "9.8% of its integers differ"
    assert difference(chosen, chosen.flip(0)) == "100.0% of its integers differ"
    tokens = torch.arange(1000)
    assert difference(tokens, tokens.flip(0)) == "100.0% of its integers differ"
    assert difference(tokens.to(torch.int8), (tokens + 1).to(torch.int8).clamp(-127)) is None


def test_tensors_of_other_shapes_and_calls_without_any_are_wrong() -> None:
    assert difference(None, None) == "the call returns no tensor"
    assert difference(torch.ones(2, 3), torch.ones(3, 2)) == "it is [3, 2] torch.float32, not [2, 3] torch.float32"
    assert difference([torch.ones(1), (torch.ones(1), 3)], [torch.ones(1), (torch.zeros(1), 3)]) is not None


def test_the_definition_of_a_workload_runs_the_reference() -> None:
    def workload(device: torch.device) -> Callable[[], object]:
        return lambda: wanted("auto")

    assert by_reference(workload)(torch.device("cpu"))() == "reference"


def small(monkeypatch: pytest.MonkeyPatch, operation: str) -> list[Tunable]:
    """The tunables of an operation, at sizes that the interpreter has time for."""
    from stentor.kernels.activation import tunables as activation
    from stentor.kernels.linear_fp8 import triton_tiles, workloads
    from stentor.kernels.norm import tunables as norm

    for module in (activation, norm):
        monkeypatch.setattr(module, "TOKENS", 3)
    monkeypatch.setattr(workloads, "LLAMA_8B", ((70, 272),))
    monkeypatch.setattr(workloads, "QWEN3_32B", ())
    found = {"activation": activation, "norm": norm, "tiles": triton_tiles}[operation].tunables()
    # the interpreter multiplies bfloat16 wrongly
    return [each for each in found if DEVICE == "cuda" or "tiles" not in each.operation or "bfloat16" not in each.key][
        :6
    ]


@pytest.mark.triton
@pytest.mark.parametrize("operation", ["norm", "activation", "tiles"])
def test_defaults_and_candidates_compute_what_the_definition_does(
    operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def result(workload: Callable[[torch.device], Callable[[], object]]) -> object:
        torch.manual_seed(0)
        return workload(torch.device(DEVICE))()

    for tunable in small(monkeypatch, operation):
        assert tunable.definition is not None
        expected = result(tunable.definition)
        with untuned():
            assert difference(expected, result(tunable.workload)) is None, tunable
        with overridden(tunable.operation, tunable.candidates[-1]):
            assert difference(expected, result(tunable.workload)) is None, tunable


@pytest.mark.triton
@pytest.mark.parametrize("operation", ["gated_delta", "mamba2", "selective_scan", "causal_conv"])
def test_states_are_compared_with_those_of_the_definition(operation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib import import_module

    module = import_module(f"stentor.kernels.{operation}.tunables")
    for name, size in {"V_HEADS": 2, "K_HEADS": 1, "HEADS": 2, "GROUPS": 1, "CHANNELS": 40, "ROWS": 3}.items():
        if hasattr(module, name):
            monkeypatch.setattr(module, name, size)
    tunable = next(each for each in module.tunables() if each.operation == module.OPERATION)
    if operation == "causal_conv":
        tunable = module._tunable(3, 1)
    elif operation != "selective_scan":
        made = module._both(*{"gated_delta": (3, 1, False), "mamba2": (3, 1)}[operation])
        tunable = Tunable(tunable.operation, tunable.key, tunable.candidates, *made)
    assert tunable.definition is not None
    results = []
    for workload in (tunable.definition, tunable.workload):
        torch.manual_seed(0)
        results.append(workload(torch.device(DEVICE))())
    assert difference(*results) is None
    assert all(each.abs().max() > 0 for each in results[0])
