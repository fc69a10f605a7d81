"""Packed experts: the reference's result, and bit for bit one's own whatever else is in the batch."""

import pytest
import torch
from torch import Tensor

from stentor.kernels import Router, Routing, native, packed_experts_mlp, route
from stentor.kernels.activation.gated import KINDS as ACTIVATION_KINDS
from stentor.kernels.activation.gated import ActivationKind
from stentor.kernels.linear_packed import PackedKind, PackedWeight, Scaling, activation_format_of
from stentor.kernels.linear_packed.reference import dequantize
from stentor.kernels.moe import ACTIVATIONS, ExpertActivation, choose_packed, choose_route, experts_mlp
from stentor.tests.kernels.helpers import assert_close, assert_same_bits, normal, thread_count
from stentor.tests.kernels.packed_weights import KINDS, SIGNED, USUAL, packed_weight

pytestmark = pytest.mark.skipif(native.library() is None, reason="no native library")

HIDDEN, INNER, EXPERTS = 64, 48, 12
MIXED: tuple[tuple[PackedKind, Scaling], ...] = (("q4m", USUAL), ("q8h", SIGNED))


def experts(
    kind: PackedKind, scaling: Scaling = USUAL, down: tuple[PackedKind, Scaling] | None = None
) -> tuple[PackedWeight, PackedWeight]:
    other, other_scaling = down or (kind, scaling)
    return (
        packed_weight(kind, EXPERTS * 2 * INNER, HIDDEN, scaling=scaling, seed=1),
        packed_weight(other, EXPERTS * HIDDEN, INNER, scaling=other_scaling, seed=2),
    )


def biases() -> tuple[Tensor, Tensor]:
    return 0.2 * normal(EXPERTS, 2 * INNER, seed=3), 0.2 * normal(EXPERTS, HIDDEN, seed=4)


def chosen(tokens: int, top_k: int, used: int = EXPERTS) -> Routing:
    """Among the first ``used`` experts."""
    logits = normal(tokens, EXPERTS, seed=5)
    logits[:, used:] = -torch.inf
    return route(logits, Router(top_k))


def assert_agrees(kind: PackedKind, actual: Tensor, expected: Tensor) -> None:
    """To float32's rounding; where what is between the products is rounded to fewer bits, a value next to a boundary
    may fall to its other side."""
    if activation_format_of(kind) == "f32":
        return assert_close(actual, expected, 4e-6)
    assert actual.shape == expected.shape
    error = (actual - expected).abs() / expected.std()
    assert float(error.mean()) < 2e-3
    assert float(error.max()) < 0.05
    return None


# ---- the reference's result


@pytest.mark.parametrize(("kind", "scaling"), KINDS)
@pytest.mark.parametrize(
    ("tokens", "top_k", "used"), [(1, 8, EXPERTS), (2, 1, EXPERTS), (7, 8, 9), (33, 2, 3), (200, 1, 1), (200, 8, 8)]
)
def test_any_number_of_tokens_gives_what_the_reference_defines(
    kind: PackedKind, scaling: Scaling, tokens: int, top_k: int, used: int
) -> None:
    x, (gate_up, down), (gate_up_bias, down_bias) = normal(tokens, HIDDEN, seed=6), experts(kind, scaling), biases()
    given = x, chosen(tokens, top_k, used), gate_up, down, "silu"
    assert choose_packed(x) == "native"
    actual = packed_experts_mlp(*given, gate_up_bias=gate_up_bias, down_bias=down_bias)  # type: ignore[arg-type]
    expected = packed_experts_mlp(
        *given,  # type: ignore[arg-type]
        gate_up_bias=gate_up_bias,
        down_bias=down_bias,
        variant="reference",
    )
    assert_agrees(kind, actual, expected)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("kind", ["f32", "bf16", "q8"])
@pytest.mark.parametrize(("bias", "into"), [(False, False), (False, True), (True, True)])
def test_activations_and_weighted_inputs_are_the_references(
    activation: ExpertActivation, kind: PackedKind, bias: bool, into: bool
) -> None:
    gate_up, down = experts(kind)
    gate_up_bias, down_bias = biases() if bias else (None, None)
    found = [
        packed_experts_mlp(
            5 * normal(21, HIDDEN, seed=6),
            chosen(21, 3),
            gate_up,
            down,
            activation,
            gate_up_bias=gate_up_bias,
            down_bias=down_bias,
            weight_input=into,
            variant=variant,
        )
        for variant in ("native", "reference")
    ]
    assert_agrees(kind, *found)


@pytest.mark.parametrize("kind", ["f32", "bf16", "q8"])
@pytest.mark.parametrize("activation", ACTIVATION_KINDS)
@pytest.mark.parametrize(("tokens", "bias"), [(1, False), (200, True)])
def test_experts_without_a_gate_are_the_references(
    kind: PackedKind, activation: ActivationKind, tokens: int, bias: bool
) -> None:
    _, down = experts(kind)
    up, up_bias = packed_weight(kind, EXPERTS * INNER, HIDDEN, seed=1), 0.2 * normal(EXPERTS, INNER, seed=3)
    found = [
        packed_experts_mlp(
            normal(tokens, HIDDEN, seed=6),
            chosen(tokens, 3),
            up,
            down,
            activation,
            gate_up_bias=up_bias if bias else None,
            variant=variant,
        )
        for variant in ("native", "reference")
    ]
    assert_agrees(kind, *found)
    with pytest.raises(ValueError, match="swiglu_oai takes a gate"):
        packed_experts_mlp(torch.ones(1, HIDDEN), chosen(1, 3), up, down, "swiglu_oai")


def test_the_reference_is_the_operation_on_plain_weights() -> None:
    x, routing, (gate_up, down), (gate_up_bias, down_bias) = (
        normal(9, HIDDEN, seed=6),
        chosen(9, 3),
        experts("f32"),
        biases(),
    )
    plain = dequantize(gate_up).view(EXPERTS, 2 * INNER, HIDDEN), dequantize(down).view(EXPERTS, HIDDEN, INNER)
    for into in (False, True):
        expected = experts_mlp(
            x, routing, *plain, "silu", gate_up_bias=gate_up_bias, down_bias=down_bias, weight_input=into
        )
        actual = packed_experts_mlp(
            x, routing, gate_up, down, "silu", gate_up_bias=gate_up_bias, down_bias=down_bias, weight_input=into
        )
        assert_close(actual, expected, 4e-6)


def test_both_products_may_be_of_different_kinds_and_inputs_of_bfloat16() -> None:
    x, (gate_up, down) = normal(13, HIDDEN, seed=6, dtype=torch.bfloat16), experts(*MIXED[0], down=MIXED[1])
    actual = packed_experts_mlp(x, chosen(13, 2), gate_up, down, "silu")
    assert actual.dtype == torch.bfloat16
    expected = packed_experts_mlp(x, chosen(13, 2), gate_up, down, "silu", variant="reference")
    assert_agrees("q4m", actual.float(), expected.float())


def test_experts_that_nobody_chose_are_not_read() -> None:
    gate_up, down = experts("f32")
    gate_up.rows(2 * INNER, (EXPERTS - 1) * 2 * INNER).codes.fill_(255)  # of float32: no number
    down.rows(HIDDEN, (EXPERTS - 1) * HIDDEN).codes.fill_(255)
    for tokens in (0, 1, 50):
        out = packed_experts_mlp(normal(tokens, HIDDEN, seed=6), chosen(tokens, 1, 1), gate_up, down, "silu")
        assert out.shape == (tokens, HIDDEN)
        assert bool(out.isfinite().all())


# ---- bit for bit one's own


@pytest.mark.parametrize(("kind", "scaling"), KINDS)
def test_a_token_is_bitwise_the_same_in_any_batch_and_thread_count(kind: PackedKind, scaling: Scaling) -> None:
    x, (gate_up, down), (numbers, factors) = normal(300, HIDDEN, seed=6), experts(kind, scaling), chosen(300, 3, 4)

    def run(first: int, end: int) -> Tensor:
        return packed_experts_mlp(x[first:end], Routing(numbers[first:end], factors[first:end]), gate_up, down, "silu")

    with thread_count(1):
        alone = torch.cat([run(token, token + 1) for token in range(20)])
        whole = run(0, 300)
        assert_same_bits(whole[:20], alone)
    for threads in (2, 5):
        with thread_count(threads):
            assert_same_bits(run(0, 300), whole)
            assert_same_bits(run(5, 12), alone[5:12])


# ---- routers


@pytest.mark.parametrize("count", [6, 24, 100])
@pytest.mark.parametrize(
    "router",
    [
        Router(2),
        Router(5, renormalize=False, scale=16.0),
        Router(1, score="sigmoid", renormalize=False),
        Router(3, score="sparsemixer", renormalize=False, nearness=0.3, scale=2.5),
        Router(3, score="sqrtsoftplus", scale=1.5),
        Router(3, renormalize=False, softcap=2.0),
        Router(2, score="sigmoid", softcap=0.5),
        Router(3, score="sigmoid", corrects_logits=True, renormalize=False),
        Router(2, score="sigmoid", groups=2, scale=2.5),
        Router(2, groups=2, top_groups=1, group_score="max", renormalize=False),
    ],
)
@pytest.mark.parametrize("biased", [False, True])
def test_native_routers_choose_as_the_reference(count: int, router: Router, biased: bool) -> None:
    logits = 3 * normal(200, count + 3, seed=7)[:, :count]
    bias = normal(count, seed=8) if biased and router.score != "sparsemixer" else None
    assert choose_route(logits, router) == "native"
    actual, expected = route(logits, router, bias), route(logits, router, bias, variant="reference")
    assert torch.equal(actual.experts, expected.experts)
    assert_close(actual.weights, expected.weights)


def test_native_routers_take_the_lower_of_equal_experts_and_survive_what_is_no_number() -> None:
    logits = torch.zeros(3, 40)
    logits[1] = -torch.inf
    logits[2, 7] = torch.nan
    experts_of = route(logits, Router(3)).experts
    assert experts_of.tolist() == [[0, 1, 2], [0, 1, 2], [7, 0, 1]]
    assert torch.equal(experts_of, route(logits, Router(3), variant="reference").experts)


@pytest.mark.parametrize("variant", ["native", "reference"])
@pytest.mark.parametrize("tokens", [1, 33])
def test_an_expert_of_another_worker_adds_nothing(variant: str, tokens: int) -> None:
    x, (gate_up, down), (gate_up_bias, down_bias) = normal(tokens, HIDDEN, seed=6), experts("q8"), biases()

    def run(routing: Routing) -> Tensor:
        given = {"gate_up_bias": gate_up_bias, "down_bias": down_bias, "variant": variant}
        return packed_experts_mlp(x, routing, gate_up, down, "silu", **given)  # type: ignore[arg-type]

    one, two = chosen(tokens, 1), chosen(tokens, 2)
    assert torch.equal(one.experts, two.experts[:, :1])
    nobody = torch.full((tokens, 1), -1, dtype=torch.int32)
    beside = Routing(torch.cat((nobody, one.experts), 1), torch.cat((two.weights[:, 1:], one.weights), 1))
    assert_same_bits(run(beside), run(one))
    assert not run(Routing(nobody, one.weights)).any()


# ---- what is refused


def test_an_expert_that_there_is_not_is_an_error() -> None:
    gate_up, down = experts("q4")
    for variant in ("native", "reference"):
        for expert in (-2, EXPERTS):
            wrong = Routing(torch.full((1, 1), expert, dtype=torch.int32), torch.ones(1, 1))
            with pytest.raises(IndexError, match="outside the 12 that there are"):
                packed_experts_mlp(torch.ones(1, HIDDEN), wrong, gate_up, down, "silu", variant=variant)


def test_what_does_not_fit_is_refused() -> None:
    x, routing, (gate_up, down) = torch.ones(3, HIDDEN), chosen(3, 2), experts("q4")
    for wrong in (
        (gate_up.rows(0, 2 * INNER), down),
        (gate_up, down.rows(0, HIDDEN)),
        (packed_weight("q4", 80, 64), packed_weight("q4", 64, 40)),
    ):
        with pytest.raises(ValueError, match="packed experts: gate_up"):
            packed_experts_mlp(x, routing, *wrong, "silu")
    with pytest.raises(ValueError, match="packed experts: bias"):
        packed_experts_mlp(x, routing, gate_up, down, "silu", down_bias=torch.ones(EXPERTS, HIDDEN).bfloat16())
    with pytest.raises(ValueError, match="does not fit weights of 64 inputs"):
        packed_experts_mlp(x[:, 1:], routing, gate_up, down, "silu")
    with pytest.raises(ValueError, match="does not fit weights of 64 inputs"):
        packed_experts_mlp(x.half(), routing, gate_up, down, "silu")
