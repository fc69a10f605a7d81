"""Routers choose as their models do, and a token's output is the weighted sum of its experts'."""

from typing import Literal

import pytest
import torch
from torch import Tensor

from stentor.kernels import Router, Routing, experts_mlp, force_variant, route, route_to
from stentor.kernels.activation.gated import KINDS, ActivationKind
from stentor.kernels.moe import ACTIVATIONS, ExpertActivation, choose
from stentor.kernels.variants import Variant
from stentor.tests.kernels.helpers import assert_close, assert_same_bits, normal, thread_count

DTYPES = (torch.float32, torch.bfloat16)
TOKENS, HIDDEN, INNER, EXPERTS = 13, 24, 20, 6


def weights(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    gate_up = normal(EXPERTS, 2 * INNER, HIDDEN, seed=1) / HIDDEN**0.5
    return gate_up.to(dtype), (normal(EXPERTS, HIDDEN, INNER, seed=2) / INNER**0.5).to(dtype)


def biases(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    return normal(EXPERTS, 2 * INNER, seed=3, dtype=dtype), normal(EXPERTS, HIDDEN, seed=4, dtype=dtype)


def routing(tokens: int = TOKENS, top_k: int = 2) -> Routing:
    return route(normal(tokens, EXPERTS, seed=5), Router(top_k))


# ---- routers


def test_the_best_experts_are_chosen_and_their_scores_renormalized() -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0, -1.0], [3.0, 3.0, 3.0, 4.0]])
    experts, chosen = route(logits, Router(2))
    assert experts.tolist() == [[1, 2], [3, 0]]
    assert_close(chosen, logits.gather(1, experts.long()).softmax(1))
    _, scores = route(logits, Router(2, renormalize=False, scale=2.5))
    assert_close(scores, 2.5 * logits.softmax(1).gather(1, experts.long()))


def test_equal_scores_go_to_the_lower_expert() -> None:
    experts, chosen = route(torch.zeros(2, 40), Router(3, score="sigmoid", renormalize=False))
    assert experts.tolist() == [[0, 1, 2]] * 2
    assert chosen.tolist() == [[0.5] * 3] * 2
    saturated = torch.tensor([[50.0, 60.0, 40.0]])
    assert route(saturated, Router(1, score="sigmoid")).experts.tolist() == [[1]], "logits differ, scores round to 1"


def test_a_bias_decides_the_choice_and_not_the_weight() -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0, -1.0]])
    experts, chosen = route(logits, Router(2, score="sigmoid"), torch.tensor([1.0, 0.0, 0.0, 5.0]))
    assert experts.tolist() == [[3, 0]]
    expected = torch.tensor([[-1.0, 0.0]]).sigmoid()
    assert_close(chosen, expected / expected.sum())


def test_a_bias_may_be_added_to_logits_where_scores_round_to_one_number() -> None:
    logits = torch.tensor([[30.0, 40.0, 20.0, -10.0]])
    bias = torch.tensor([0.0, -15.0, 0.0, 0.0])
    by_logits = Router(2, score="sigmoid", corrects_logits=True, renormalize=False)
    assert route(logits, by_logits, bias).experts.tolist() == [[0, 1]]
    assert_close(route(logits, by_logits, bias).weights, torch.ones(1, 2))
    assert route(logits, by_logits).experts.tolist() == [[1, 0]]
    assert route(logits, Router(2, score="sigmoid"), bias).experts.tolist() == [[0, 2]]


def test_a_soft_cap_brings_scores_nearer_and_changes_no_choice() -> None:
    logits = torch.tensor([[0.0, 9.0, 40.0, -10.0]])
    experts, chosen = route(logits, Router(2, renormalize=False, softcap=5.0))
    assert experts.tolist() == [[2, 1]]
    assert_close(chosen, (5 * (logits / 5).tanh()).softmax(1)[:, [2, 1]])
    for wrong in ({"softcap": -1.0}, {"softcap": 5.0, "score": "sigmoid", "corrects_logits": True}):
        with pytest.raises(ValueError, match="a softcap is not below 0"):
            Router(2, **wrong)


def test_each_choice_is_weighed_against_those_left_that_come_near_it() -> None:
    logits = torch.tensor([[4.0, 1.0, 3.9, 3.8], [-2.0, -1.0, -4.0, -1.1]])
    experts, chosen = route(logits, Router(2, score="sparsemixer", renormalize=False, nearness=0.1))
    assert experts.tolist() == [[0, 2], [1, 3]]
    first, second = torch.tensor([4.0, 3.9, 3.8]).softmax(0)[0], torch.tensor([3.9, 3.8]).softmax(0)[0]
    assert_close(chosen[0], torch.stack((first, second)))
    assert_close(chosen[1], torch.tensor([torch.tensor([-1.0, -1.1]).softmax(0)[0], 1.0]))
    with pytest.raises(ValueError, match="sparsemixer takes no bias"):
        route(logits, Router(2, score="sparsemixer", renormalize=False), torch.zeros(4))
    with pytest.raises(ValueError, match="sparsemixer neither divides"):
        Router(2, score="sparsemixer")


def test_scores_may_be_the_roots_of_softplus() -> None:
    logits = torch.tensor([[0.0, 2.0, 90.0, -90.0]])
    experts, chosen = route(logits, Router(4, score="sqrtsoftplus", renormalize=False))
    assert experts.tolist() == [[2, 1, 0, 3]]
    assert_close(chosen, torch.nn.functional.softplus(logits).sqrt().gather(1, experts.long()))


@pytest.mark.parametrize("score", ["sigmoid", "sqrtsoftplus"])
def test_experts_that_are_given_are_weighted_by_their_scores(score: Literal["sigmoid", "sqrtsoftplus"]) -> None:
    logits, experts = normal(5, 6, seed=1), torch.tensor([[5, 0, 3]]).repeat(5, 1)
    found = route_to(logits, Router(3, score=score, scale=1.5), experts)
    scores = logits.sigmoid() if score == "sigmoid" else torch.nn.functional.softplus(logits).sqrt()
    expected = scores[:, [5, 0, 3]]
    assert torch.equal(found.experts, experts.int())
    assert_close(found.weights, 1.5 * expected / expected.sum(1, keepdim=True))
    alone = route_to(logits[3:4], Router(3, score=score, scale=1.5), experts[:1])
    assert_same_bits(alone.weights[0], found.weights[3])


def test_experts_cannot_be_given_for_scores_over_all_of_them() -> None:
    with pytest.raises(ValueError, match="score must be sigmoid or sqrtsoftplus, not 'softmax'"):
        route_to(torch.zeros(2, 4), Router(1), torch.zeros(2, 1, dtype=torch.int64))
    with pytest.raises(ValueError, match="must be int64"):
        route_to(torch.zeros(2, 4), Router(2, score="sigmoid"), torch.zeros(2, 1, dtype=torch.int64))


def test_experts_come_out_of_the_best_groups() -> None:
    logits = torch.tensor([[5.0, -9.0, 3.0, 3.5, 4.0, 1.0]])
    assert route(logits, Router(2)).experts.tolist() == [[0, 4]]
    by_best = Router(2, groups=3, top_groups=1, group_score="max")
    assert route(logits, by_best).experts.tolist() == [[0, 1]]
    by_two = Router(2, score="sigmoid", groups=3, top_groups=1, group_score="top2")
    assert route(logits, by_two).experts.tolist() == [[3, 2]]
    negative = torch.tensor([0.0, 0.0, -3.0, -3.0, -4.0, -4.0])
    first_two = Router(3, score="sigmoid", groups=3, top_groups=2)
    assert route(logits, first_two, negative).experts.tolist() == [[0, 1, 3]], "a group that is closed stays closed"


@pytest.mark.parametrize(
    ("values", "experts", "message"),
    [
        ({"top_k": 0}, 8, "0 experts"),
        ({"top_k": 1, "groups": 2, "top_groups": 3}, 8, "3 of 2 groups"),
        ({"top_k": 9}, 8, "9 experts cannot be chosen"),
        ({"top_k": 5, "groups": 2}, 8, "5 experts cannot be chosen out of 1 of 2 groups"),
        ({"top_k": 1, "groups": 3}, 8, "3 groups of 8 experts"),
        ({"top_k": 1, "groups": 2, "corrects_logits": True}, 8, "compared by scores, not by corrected logits"),
        ({"top_k": 1, "score": "tanh"}, 8, "score must be one of softmax, sigmoid"),
        ({"top_k": 1, "group_score": "mean"}, 8, "group_score must be one of max, top2"),
    ],
)
def test_a_router_that_cannot_choose_is_refused(values: dict[str, object], experts: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        route(torch.zeros(1, experts), Router(**values))  # type: ignore[arg-type]


def test_logits_and_biases_of_other_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="route: logits"):
        route(torch.zeros(8), Router(1))
    with pytest.raises(ValueError, match="route: logits"):
        route(torch.zeros(1, 8).half(), Router(1))
    with pytest.raises(ValueError, match="route: bias"):
        route(torch.zeros(1, 8), Router(1), torch.zeros(7))


# ---- experts


def token_by_token(
    x: Tensor, chosen: Routing, gate_up: Tensor, down: Tensor, activation: ExpertActivation, bias: bool, into: bool
) -> Tensor:
    """In double precision, one expert of one token after the other."""
    gate_up_bias, down_bias = (each.double() for each in biases(x.dtype))
    rows = []
    for row, experts, factors in zip(x.double(), *chosen, strict=True):
        total = torch.zeros(HIDDEN, dtype=torch.float64)
        for expert, factor in zip(experts.tolist(), factors.double(), strict=True):
            both = gate_up[expert].double() @ (row * factor if into else row) + (gate_up_bias[expert] if bias else 0)
            inner = gated_in_double(both, activation)
            total += (down[expert].double() @ inner + (down_bias[expert] if bias else 0)) * (1 if into else factor)
        rows.append(total)
    return torch.stack(rows).to(x.dtype)


def gated_in_double(both: Tensor, activation: ExpertActivation) -> Tensor:
    gate, up = both.chunk(2)
    if activation == "silu":
        return gate * gate.sigmoid() * up
    if activation == "swiglu_oai":
        gate = gate.clamp(max=7.0)
        return gate * (1.702 * gate).sigmoid() * (up.clamp(-7.0, 7.0) + 1)
    if activation == "swiglu_10":
        gate = gate.clamp(max=10.0)
        return gate * gate.sigmoid() * up.clamp(-10.0, 10.0)
    if activation == "silu_7":
        return (gate * gate.sigmoid()).clamp(max=7.0) * up.clamp(-7.0, 7.0)
    if activation == "situ":
        return 4 * (gate / 4).tanh() * gate.sigmoid() * 25 * (up / 25).tanh()
    if activation == "quick_gelu":
        return gate * (1.702 * gate).sigmoid() * up
    if activation == "relu":
        return torch.nn.functional.relu(gate) * up
    if activation == "relu2":
        return torch.nn.functional.relu(gate).square() * up
    return torch.nn.functional.gelu(gate, approximate="tanh" if activation == "gelu_tanh" else "none") * up


@pytest.mark.parametrize("variant", ["native", "reference"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(("bias", "into"), [(False, False), (True, True)])
def test_a_token_s_output_is_the_weighted_sum_of_its_experts(
    variant: str, dtype: torch.dtype, activation: ExpertActivation, bias: bool, into: bool
) -> None:
    x, (gate_up, down), chosen = 4 * normal(TOKENS, HIDDEN, seed=6).to(dtype), weights(dtype), routing()
    gate_up_bias, down_bias = biases(dtype) if bias else (None, None)
    with force_variant(variant):  # type: ignore[arg-type]
        assert choose(x, gate_up, down) == variant
        actual = experts_mlp(
            x,
            chosen,
            gate_up,
            down,
            activation,
            gate_up_bias=gate_up_bias,
            down_bias=down_bias,
            weight_input=into,
        )
    assert_close(
        actual,
        token_by_token(x, chosen, gate_up, down, activation, bias, into),
        3e-6 if dtype == torch.float32 else 2e-2,
    )


@pytest.mark.parametrize("variant", ["native", "reference"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", KINDS)
def test_experts_without_a_gate_activate_one_product(
    variant: Variant, dtype: torch.dtype, activation: ActivationKind
) -> None:
    x, (gate_up, down), chosen = 4 * normal(TOKENS, HIDDEN, seed=6).to(dtype), weights(dtype), routing()
    up, (both, down_bias) = gate_up[:, :INNER].contiguous(), biases(dtype)
    up_bias = both[:, :INNER].contiguous()
    with force_variant(variant):
        assert choose(x, up, down) == variant
        actual = experts_mlp(x, chosen, up, down, activation, gate_up_bias=up_bias, down_bias=down_bias)
    # as if with a gate of the same values, and an up that is 1
    gated = torch.cat((up, torch.zeros_like(up)), dim=1)
    ones = torch.cat((up_bias, torch.ones_like(up_bias)), dim=1)
    expected = experts_mlp(
        x, chosen, gated, down, activation, gate_up_bias=ones, down_bias=down_bias, variant="reference"
    )
    assert_close(actual, expected, 3e-6 if dtype == torch.float32 else 2e-2)


def test_an_activation_of_gate_and_up_is_refused_without_a_gate() -> None:
    gate_up, down = weights()
    with pytest.raises(ValueError, match="swiglu_oai takes a gate"):
        experts_mlp(torch.ones(TOKENS, HIDDEN), routing(), gate_up[:, :INNER].contiguous(), down, "swiglu_oai")


@pytest.mark.parametrize("tokens", [0, 1, 40])
def test_experts_that_nobody_chose_are_not_read(tokens: int) -> None:
    gate_up, down = weights()
    gate_up[2:], down[2:] = torch.nan, torch.nan
    both = Routing(torch.tensor([[0, 1]] * tokens, dtype=torch.int32).view(tokens, 2), torch.full((tokens, 2), 0.5))
    out = experts_mlp(normal(tokens, HIDDEN, seed=6), both, gate_up, down, "silu")
    assert out.shape == (tokens, HIDDEN)
    assert bool(out.isfinite().all())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("variant", ["native", "reference"])
def test_an_invariant_token_is_bitwise_the_same_in_any_batch_and_thread_count(dtype: torch.dtype, variant: str) -> None:
    x, (gate_up, down), (experts, factors) = normal(67, HIDDEN, seed=6, dtype=dtype), weights(dtype), routing(67, 3)

    def run(first: int, end: int) -> Tensor:
        some = Routing(experts[first:end], factors[first:end])
        return experts_mlp(x[first:end], some, gate_up, down, "silu", invariant=True)

    with force_variant(variant):  # type: ignore[arg-type]
        with thread_count(1):
            alone = torch.cat([run(token, token + 1) for token in range(67)])
        for threads in (1, 2) if variant == "native" else (1,):
            with thread_count(threads):
                assert_same_bits(run(0, 67), alone)
                assert_same_bits(run(5, 12), alone[5:12])


def test_an_expert_of_another_worker_adds_nothing() -> None:
    x, (gate_up, down), one = normal(TOKENS, HIDDEN, seed=6), weights(), routing(top_k=1)
    nobody = torch.full((TOKENS, 1), -1, dtype=torch.int32)
    beside = Routing(torch.cat((nobody, one.experts), 1), torch.cat((one.weights, one.weights), 1))
    assert_same_bits(experts_mlp(x, beside, gate_up, down, "silu"), experts_mlp(x, one, gate_up, down, "silu"))
    assert not experts_mlp(x, Routing(nobody, one.weights), gate_up, down, "silu").any()


def test_an_expert_that_there_is_not_is_an_error() -> None:
    gate_up, down = weights()
    for expert in (-2, EXPERTS):
        wrong = Routing(torch.full((1, 1), expert, dtype=torch.int32), torch.ones(1, 1))
        with pytest.raises(IndexError, match="outside the 6 that there are"):
            experts_mlp(torch.ones(1, HIDDEN), wrong, gate_up, down, "silu")


def test_what_does_not_fit_is_refused() -> None:
    x, (gate_up, down), chosen = torch.ones(TOKENS, HIDDEN), weights(), routing()
    for wrong in ((gate_up[:, 1:], down), (gate_up, down[:, :, 1:]), (gate_up[1:], down), (gate_up[0], down)):
        with pytest.raises(ValueError, match="experts_mlp: gate_up"):
            experts_mlp(x, chosen, *wrong, "silu")
    with pytest.raises(ValueError, match="must have the dtype of x"):
        experts_mlp(x, chosen, gate_up.half(), down.half(), "silu")
    with pytest.raises(ValueError, match="gate_up_bias"):
        experts_mlp(x, chosen, gate_up, down, "silu", gate_up_bias=torch.ones(EXPERTS, INNER))
    with pytest.raises(ValueError, match="activation must be one of"):
        experts_mlp(x, chosen, gate_up, down, "tanh")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"experts .* must be int32 \[12, top_k\]"):
        experts_mlp(x[1:], chosen, gate_up, down, "silu")
    with pytest.raises(ValueError, match=r"weights .* must be float32"):
        experts_mlp(x, chosen._replace(weights=chosen.weights.double()), gate_up, down, "silu")
