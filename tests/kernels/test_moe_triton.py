"""Experts on a GPU: the order is made on the device, and both forms give what the reference does."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from stentor.kernels import CodedMatrices, CodeKind, Router, Routing, experts_mlp, route
from stentor.kernels.activation.gated import KINDS, ActivationKind
from stentor.kernels.linear_coded.blocks import BLOCK_KINDS, BlockKind
from stentor.kernels.moe import (
    ACTIVATIONS,
    FEW_TOKENS,
    ExpertActivation,
    choose,
    choose_route,
)
from stentor.kernels.moe.operands import Operands
from stentor.kernels.moe.tunables import tunables
from stentor.kernels.tuning import Config, overridden
from stentor.tests.kernels.coded import CODES, coded, coded_of_blocks
from stentor.tests.kernels.gpu import DEVICE, TRITON_FLOATS
from stentor.tests.kernels.helpers import assert_close, assert_same_bits, normal

# interpreted, exp is numpy's, which speaks up where a sigmoid is 0
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning")

HIDDEN, INNER, EXPERTS = 40, 24, 5
TOLERANCE = {torch.float32: 4e-6, torch.float16: 4e-3, torch.bfloat16: 3e-2}
FORMS = ("rows", "tiles")


def form(name: str) -> Callable[[Operands], Tensor]:
    from stentor.kernels.moe import triton_rows, triton_tiles  # late: they import Triton

    prepare = triton_rows.prepare_rows if name == "rows" else triton_tiles.prepare_tiles
    return lambda of: prepare(of)(of)


def small_tiles() -> Config:
    return Config.of(num_warps=4, num_stages=2, BLOCK_T=16, BLOCK_N=16, BLOCK_K=32)


def weights(dtype: torch.dtype) -> dict[str, Tensor]:
    made = {
        "gate_up": normal(EXPERTS, 2 * INNER, HIDDEN, seed=1) / HIDDEN**0.5,
        "down": normal(EXPERTS, HIDDEN, INNER, seed=2) / INNER**0.5,
        "gate_up_bias": 0.2 * normal(EXPERTS, 2 * INNER, seed=3),
        "down_bias": 0.2 * normal(EXPERTS, HIDDEN, seed=4),
    }
    return {name: each.to(dtype).to(DEVICE) for name, each in made.items()}


def routed(tokens: int, top_k: int = 2, used: int = EXPERTS) -> Routing:
    logits = normal(tokens, EXPERTS, seed=5)
    logits[:, used:] = -torch.inf
    experts, factors = route(logits, Router(top_k), variant="reference")
    return Routing(experts.to(DEVICE), factors.to(DEVICE))


def operands(tokens: int, top_k: int, used: int, dtype: torch.dtype, activation: ExpertActivation = "silu") -> Operands:
    x = (2 * normal(tokens, HIDDEN + 3, seed=6)).to(dtype).to(DEVICE)[:, 3:]
    return Operands(x, *routed(tokens, top_k, used), **weights(dtype), activation=activation)  # type: ignore[arg-type]


def reference(of: Operands) -> Tensor:
    return experts_mlp(
        of.x,
        Routing(of.chosen, of.factors),
        of.gate_up,
        of.down,
        of.activation,
        gate_up_bias=of.gate_up_bias,
        down_bias=of.down_bias,
        weight_input=of.weight_input,
        variant="reference",
    )


@pytest.mark.triton
@pytest.mark.parametrize("block", [1, 4, 16])
@pytest.mark.parametrize(("tokens", "top_k", "used"), [(1, 2, 5), (40, 2, 5), (37, 1, 1), (21, 3, 4)])
def test_pairs_are_ordered_by_expert_in_blocks_of_one_expert(block: int, tokens: int, top_k: int, used: int) -> None:
    from stentor.kernels.moe.triton_order import most_blocks, prepare_order  # late: it imports Triton

    chosen, _ = routed(tokens, top_k, used)
    order = prepare_order(chosen, EXPERTS, block)(chosen)
    assert order.blocks.shape == (3, most_blocks(tokens * top_k, EXPERTS, block))
    flat, expected = chosen.flatten().cpu(), chosen.flatten().cpu().sort(stable=True).indices
    assert order.pairs.cpu().tolist() == expected.tolist()
    spans = [(expert, begin, end) for expert, begin, end in order.blocks.T.cpu().tolist() if expert >= 0]
    wanted = []
    for expert in range(EXPERTS):
        first, end = int((flat < expert).sum()), int((flat <= expert).sum())
        wanted += [(expert, begin, min(begin + block, end)) for begin in range(first, end, block)]
    assert spans == wanted
    assert order.blocks[0, len(spans) :].tolist() == [-1] * (order.blocks.shape[1] - len(spans))


@pytest.mark.triton
@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("dtype", TRITON_FLOATS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(("tokens", "top_k", "used"), [(1, 3, 5), (21, 2, 3)])
def test_both_forms_are_the_reference(
    name: str, dtype: torch.dtype, activation: ExpertActivation, tokens: int, top_k: int, used: int
) -> None:
    of = operands(tokens, top_k, used, dtype, activation)
    with overridden("moe_tiles", small_tiles()):
        assert_close(form(name)(of), reference(of), TOLERANCE[dtype])


@pytest.mark.triton
@pytest.mark.parametrize("name", FORMS)
def test_weighted_inputs_without_biases_are_the_reference(name: str) -> None:
    of = replace(operands(7, 2, 5, torch.float32), gate_up_bias=None, down_bias=None, weight_input=True)
    assert_close(form(name)(of), reference(of), TOLERANCE[torch.float32])


@pytest.mark.proof(each="activation")
@pytest.mark.triton
@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("activation", KINDS)
@pytest.mark.parametrize("tokens", [1, 21])
def test_experts_without_a_gate_are_the_reference(name: str, activation: ActivationKind, tokens: int) -> None:
    of = operands(tokens, 3, 5, torch.float32, activation)
    assert of.gate_up_bias is not None
    assert isinstance(of.gate_up, Tensor)
    up, bias = of.gate_up[:, :INNER].contiguous(), of.gate_up_bias[:, :INNER].contiguous()
    of = replace(of, gate_up=up, gate_up_bias=bias)
    with overridden("moe_tiles", small_tiles()):
        assert_close(form(name)(of), reference(of), TOLERANCE[torch.float32])


@pytest.mark.proof(each="kind")
@pytest.mark.triton
@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("dtype", TRITON_FLOATS)
@pytest.mark.parametrize(("kind", "group", "rows", "zeros"), CODES)
@pytest.mark.parametrize(("hidden", "inner"), [(96, 32), (64, 48)])
def test_codes_are_expanded_to_the_weights_that_they_stand_for(
    name: str, dtype: torch.dtype, kind: CodeKind, group: int, rows: int, zeros: bool, hidden: int, inner: int
) -> None:
    gate_up = coded(kind, EXPERTS, 2 * inner, hidden, group, rows, zeros, 1)
    down = coded(kind, EXPERTS, hidden, inner, group, rows, zeros, 2)
    assert_expands(name, dtype, gate_up, down)


@pytest.mark.proof(each="stored")
@pytest.mark.triton
@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("stored", BLOCK_KINDS)
def test_blocks_of_gguf_are_expanded_to_the_weights_that_they_stand_for(name: str, stored: BlockKind) -> None:
    """Of another type for what goes out."""
    gate_up, down = coded_of_blocks(stored, EXPERTS, 64, 256, 1), coded_of_blocks("Q8_0", EXPERTS, 256, 32, 2)
    assert_expands(name, torch.float32, gate_up, down)


def assert_expands(name: str, dtype: torch.dtype, gate_up: CodedMatrices, down: CodedMatrices) -> None:
    x = normal(4, gate_up.shape[2], seed=6).to(dtype).to(DEVICE)
    of = Operands(x, *routed(4, 2, 3), gate_up=gate_up, down=down, activation="silu")
    plain = [torch.stack([each.values(expert, dtype) for expert in range(EXPERTS)]) for each in (gate_up, down)]
    whole = replace(of, gate_up=plain[0].to(DEVICE), down=plain[1].to(DEVICE))
    with overridden("moe_tiles", small_tiles()):
        found, expected = form(name)(of), form(name)(whole)
        if DEVICE == "cpu" and name == "rows":
            assert_same_bits(found, expected)
        else:
            # a GPU's compiler fuses the product that expands a code with the sum it goes into, and the interpreter's
            # library sums products of tiles in an order of its own where these lie otherwise in memory
            assert_close(found, expected, 1e-6 if dtype == torch.float32 else TOLERANCE[dtype])
        assert_close(found, reference(of), TOLERANCE[dtype])


@pytest.mark.triton
@pytest.mark.parametrize("name", FORMS)
def test_an_expert_that_there_is_not_adds_nothing(name: str) -> None:
    of = operands(3, 2, 5, torch.float32)
    first = replace(of, chosen=of.chosen[:, :1].contiguous(), factors=of.factors[:, :1].contiguous())
    without = form(name)(first)
    for expert in (-1, EXPERTS):
        of.chosen[:, 1] = expert
        assert_same_bits(form(name)(of), without)


@pytest.mark.triton
def test_the_form_goes_by_the_number_of_tokens_and_an_invariant_token_is_always_the_same() -> None:
    assert FEW_TOKENS < 20
    of, given = operands(20, 2, 5, torch.float32), weights(torch.float32)

    def run(tokens: int, invariant: bool) -> Tensor:
        some = Routing(of.chosen[:tokens], of.factors[:tokens])
        return experts_mlp(of.x[:tokens], some, **given, activation="silu", invariant=invariant, variant="triton")  # type: ignore[arg-type]

    assert choose(of.x, of.gate_up, of.down, "triton") == "triton"
    whole = run(20, invariant=True)
    for tokens in (1, 7):
        assert_same_bits(run(tokens, invariant=True), whole[:tokens])
    assert_same_bits(run(3, invariant=False), form("rows")(of)[:3])
    assert_close(whole, reference(of), TOLERANCE[torch.float32])


@pytest.mark.triton
def test_no_tokens_are_no_work() -> None:
    x, given = torch.empty(0, HIDDEN, device=DEVICE), weights(torch.float32)
    out = experts_mlp(x, routed(0), **given, activation="silu", variant="triton")  # type: ignore[arg-type]
    assert out.shape == (0, HIDDEN)


def test_every_candidate_has_the_sizes_of_its_operation() -> None:
    for tunable in tunables():
        assert tunable.candidates, tunable.key
        assert len({frozenset(config.sizes) for config in tunable.candidates}) == 1
    assert len({(tunable.operation, tunable.key) for tunable in tunables()}) == len(tunables())


# ---- routers


@pytest.mark.triton
@pytest.mark.parametrize("count", [16, 24])
@pytest.mark.parametrize(
    "router",
    [
        Router(5, renormalize=False, scale=16.0),
        Router(1, score="sigmoid", renormalize=False),
        Router(2, score="sparsemixer", renormalize=False, nearness=0.3),
        Router(3, score="sqrtsoftplus", scale=1.5),
        Router(3, renormalize=False, softcap=2.0),
        Router(2, score="sigmoid", softcap=0.5),
        Router(3, score="sigmoid", corrects_logits=True, renormalize=False),
        Router(3, score="sigmoid", groups=4, top_groups=2, scale=2.5),
        Router(2, groups=2, group_score="max"),
    ],
)
@pytest.mark.parametrize("biased", [False, True])
def test_routers_on_the_device_choose_as_the_reference(count: int, router: Router, biased: bool) -> None:
    logits = 3 * normal(9, count + 3, seed=7).to(DEVICE)[:, :count]
    bias = normal(count, seed=8).to(DEVICE) if biased and router.score != "sparsemixer" else None
    if router.groups > 1 and count == 24:
        with pytest.raises(ValueError, match="a power of two of experts, not of 24"):
            choose_route(logits, router, "triton")
        return
    assert choose_route(logits, router, "triton") == "triton"
    actual, expected = (route(logits, router, bias, variant=each) for each in ("triton", "reference"))
    assert torch.equal(actual.experts, expected.experts)
    assert_close(actual.weights, expected.weights)


@pytest.mark.triton
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
def test_routers_on_the_device_take_the_lower_of_equal_experts_and_survive_what_is_no_number() -> None:
    logits = torch.zeros(3, 20, device=DEVICE)
    logits[1] = -torch.inf
    logits[2, 7] = torch.nan
    experts, _ = route(logits, Router(3), variant="triton")
    assert experts.tolist() == [[0, 1, 2], [0, 1, 2], [7, 0, 1]]
