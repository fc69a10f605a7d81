"""Experts by torch's grouped product: what the reference gives, refused where it cannot run."""

from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor

from stentor.kernels import Router, Routing, choose_experts, empty_coded, experts_mlp, route
from stentor.kernels.activation.gated import KINDS, ActivationKind
from stentor.kernels.moe.grouped import PROVIDERS, TORCH, grouped, unsupported_reason
from stentor.kernels.moe.operands import Operands
from stentor.kernels.providers import Case, choose_provider
from stentor.tests.kernels.gpu import DEVICE
from stentor.tests.kernels.helpers import assert_close, assert_same_bits, normal

HIDDEN, INNER, EXPERTS = 48, 24, 5
TOLERANCE = 3e-2
"""Of bfloat16."""
CPU, CUDA, BF16 = torch.device("cpu"), torch.device("cuda"), torch.bfloat16


def operands(
    tokens: int, top_k: int, activation: ActivationKind = "silu", *, gated: bool = True, used: int = EXPERTS
) -> Operands:
    logits = normal(tokens, EXPERTS, seed=5)
    logits[:, used:] = -torch.inf
    routing = route(logits, Router(top_k), variant="reference")
    into = 2 * INNER if gated else INNER

    def drawn(*shape: int, seed: int) -> Tensor:
        scaled: Tensor = normal(*shape, seed=seed) / shape[-1] ** 0.5
        return scaled.to(BF16).to(DEVICE)

    return Operands(
        x=(4 * drawn(tokens, HIDDEN, seed=6)),
        chosen=routing.experts.to(DEVICE),
        factors=routing.weights.to(DEVICE),
        gate_up=drawn(EXPERTS, into, HIDDEN, seed=1),
        down=drawn(EXPERTS, HIDDEN, INNER, seed=2),
        activation=activation,
    )


def run(of: Operands, **options: Any) -> Tensor:
    return experts_mlp(of.x, Routing(of.chosen, of.factors), of.gate_up, of.down, of.activation, **options)


@pytest.mark.parametrize("activation", KINDS)
@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize(("tokens", "top_k", "used"), [(1, 2, 5), (40, 2, 5), (37, 1, 1), (21, 3, 4), (0, 2, 5)])
def test_the_grouped_product_is_the_reference(
    activation: ActivationKind, gated: bool, tokens: int, top_k: int, used: int
) -> None:
    of = operands(tokens, top_k, activation, gated=gated, used=used)
    expected = run(of, variant="reference")
    assert_close(run(of, provider="torch"), expected, TOLERANCE)
    assert_same_bits(run(of, provider="torch"), grouped(of))


def test_an_expert_that_there_is_not_adds_nothing() -> None:
    of = operands(9, 2)
    without = grouped(replace(of, chosen=of.chosen[:, :1].contiguous(), factors=of.factors[:, :1].contiguous()))
    for expert in (-1, EXPERTS):
        of.chosen[:, 1] = expert
        assert_close(grouped(of), without, TOLERANCE)
    of.chosen[:] = -1
    assert not grouped(of).any()


def test_no_number_of_the_device_is_waited_for() -> None:
    """On ``meta`` there is none to be had."""
    of = operands(9, 2)
    shapes: dict[str, Any] = {
        name: getattr(of, name).to("meta") for name in ("x", "chosen", "factors", "gate_up", "down")
    }
    assert grouped(replace(of, **shapes)).shape == (9, HIDDEN)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"x": torch.ones(3, HIDDEN)}, "it takes bfloat16, not float32"),
        ({"invariant": True}, "it does not take batch invariance"),
        ({"weight_input": True}, "it does not take weighted inputs"),
        ({"down_bias": torch.ones(EXPERTS, HIDDEN, dtype=BF16)}, "it does not take biases"),
        ({"activation": "swiglu_oai"}, "it does not take gpt-oss's gate"),
        ({"gate_up": empty_coded("mxfp4", EXPERTS, 2 * INNER, HIDDEN, group=32)}, "it does not take weights in codes"),
        ({"down": torch.ones(EXPERTS, HIDDEN, 20, dtype=BF16)}, "it takes sizes that are multiples of 8, not 20"),
    ],
)
def test_what_it_cannot_do_is_refused_with_a_reason(fields: dict[str, Any], reason: str) -> None:
    assert unsupported_reason(operands(3, 2)) is None
    assert unsupported_reason(replace(operands(3, 2), **fields)) == reason


def test_asked_for_where_it_cannot_run_it_is_an_error() -> None:
    with pytest.raises(ValueError, match="torch's grouped product cannot run: it does not take batch invariance"):
        run(operands(3, 2), provider="torch", invariant=True)


# ---- who runs


def on_a_gpu(monkeypatch: pytest.MonkeyPatch, capability: int) -> None:
    monkeypatch.setattr(import_module("stentor.kernels.quantize.fp8"), "capability", lambda: capability)


@pytest.mark.parametrize(("capability", "runs"), [(90, True), (100, True), (80, False), (89, False), (120, False)])
def test_gpus_that_it_was_not_made_for_are_refused(
    capability: int, runs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_a_gpu(monkeypatch, capability)
    chosen = choose_experts(CUDA, BF16, (2048, 768), wanted="torch")
    assert (chosen.provider is TORCH) == runs
    if not runs:
        ((_, reason),) = chosen.refusals
        assert reason == f"it takes compute capability 9.0 and 10.0, not {capability // 10}.{capability % 10}"


def test_ours_run_until_another_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_gpu(monkeypatch, 90)
    auto = choose_experts(CUDA, BF16, (2048, 768))
    assert auto.provider is None
    assert auto.describe("products of experts") == (
        "products of experts run on this server's kernels (Triton); torch's grouped product does not run: no GPU has "
        "measured it; --moe-backend torch asks for it"
    )
    ours = choose_experts(CUDA, BF16, (2048, 768), wanted="triton")
    assert ours.describe("x").endswith("does not run: triton was asked for")
    assert choose_experts(CUDA, BF16, (2048, 768), wanted="torch").describe("x") == "x run on torch's grouped product"


def test_the_first_that_can_is_preferred(monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_gpu(monkeypatch, 90)
    preferred, waits = replace(TORCH, held_back=None), replace(TORCH, graph_safe=False)
    case = Case(CUDA, BF16, (64,))
    assert choose_provider(case, (waits, preferred, *PROVIDERS)).provider is preferred
    assert choose_provider(case, (waits,), "torch").refusals == ((waits, "CUDA graphs cannot hold it"),)
