"""The plain torch reference: scores, the best of them, and a loop over the experts in use."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import softplus

from ..activation.gated import ActivationKind
from ..activation.reference import activation as activate
from ..activation.reference import gated_activation
from ..linear.reference import linear
from ..linear_coded import CodedMatrices
from ..linear_packed import PackedWeight
from ..linear_packed.reference import linear_packed
from .operands import Operands
from .router import Router, Routing

LIMITS = {"swiglu_oai": 7.0, "swiglu_10": 10.0, "silu_7": 7.0}
"""Limits of gates and ups, by activation."""
ALPHA = 1.702
"""The other constant of gpt-oss's activation."""
SITU_BOUNDS = (4.0, 25.0)
"""Smooth bounds of gates and ups of Kimi K3's activation."""

Product = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""Returns x [T, K] times weight [N, K] transposed, plus bias [N]."""
Activate = Callable[[Tensor, ActivationKind], Tensor]
"""Maps gate | up [T, 2I] to act(gate) · up [T, I], or up [T, I] to act(up), possibly in place."""


def route(logits: Tensor, router: Router, bias: Tensor | None) -> Routing:
    if router.score == "sparsemixer":
        return _mixed(logits, router)
    scores = _scores(logits, router)
    # Scores have the order of logits, but large ones round to the same number.
    ranks = logits if bias is None and router.top_groups == router.groups else scores
    if bias is not None:
        ranks = (logits if router.corrects_logits else scores) + bias
    if router.top_groups < router.groups:
        members = ranks.unflatten(1, (router.groups, -1))  # [tokens, groups, experts of a group]
        best = members.topk(1 if router.group_score == "max" else min(2, members.shape[2]), dim=2).values.sum(2)
        open_groups = torch.zeros_like(best, dtype=torch.bool).scatter(1, _largest(best, router.top_groups), True)
        ranks = members.masked_fill(~open_groups.unsqueeze(2), -torch.inf).flatten(1)
    experts = _largest(ranks, router.top_k)
    weights = scores.gather(1, experts)
    if router.renormalize:
        weights = weights / (weights.sum(1, keepdim=True) + 1e-20)
    return Routing(experts.int(), weights * router.scale)


def route_to(logits: Tensor, router: Router, experts: Tensor) -> Routing:
    # in float64, because torch rounds a value in float32 by its place among others
    weights = _scores(logits.gather(1, experts).double(), router)
    if router.renormalize:
        weights = weights / (weights.sum(1, keepdim=True) + 1e-20)
    return Routing(experts.int(), (weights * router.scale).float())


def _scores(logits: Tensor, router: Router) -> Tensor:
    if router.softcap:
        logits = torch.tanh(logits / router.softcap) * router.softcap
    match router.score:
        case "softmax":
            return logits.softmax(1)
        case "sqrtsoftplus":
            return softplus(logits).sqrt()
        case _:
            return logits.sigmoid()


def _mixed(logits: Tensor, router: Router) -> Routing:
    experts = _largest(logits, router.top_k)
    left, weights = logits, []
    for chosen in experts.split(1, dim=1):
        best = logits.gather(1, chosen)
        near = best - logits <= router.nearness * torch.maximum(logits.abs(), best)
        weights.append(left.masked_fill(~near, -torch.inf).softmax(1).gather(1, chosen))
        left = left.scatter(1, chosen, -torch.inf)
    return Routing(experts.int(), torch.cat(weights, dim=1) * router.scale)


def _largest(values: Tensor, count: int) -> Tensor:
    """Returns the indices [rows, count] of each row's largest values, of equal ones the first."""
    return values.sort(dim=1, descending=True, stable=True).indices[:, :count]


def activate_experts(
    gate_up: Tensor, inner: int, activation: str, gate: Activate = gated_activation, alone: Activate = activate
) -> Tensor:
    """Maps [T, 2I], gates first, or [T, I] without gates, to [T, I], where I is ``inner``; computed in float32 and
    rounded once."""
    if gate_up.shape[1] == inner:
        return alone(gate_up, activation)  # type: ignore[arg-type]  # no other takes no gate
    if activation == "situ":
        gates, up = gate_up.float().chunk(2, dim=1)
        bound, up_bound = SITU_BOUNDS
        return (_bounded(gates, bound) * torch.sigmoid(gates) * _bounded(up, up_bound)).to(gate_up.dtype)
    limit = LIMITS.get(activation)
    if limit is None:
        return gate(gate_up, activation)  # type: ignore[arg-type]  # all others are gated kinds
    gates, up = gate_up.float().chunk(2, dim=1)
    if activation == "silu_7":
        active = gate(torch.cat((gates, torch.ones_like(gates)), dim=1), "silu")
        return (active.clamp(max=limit) * up.clamp(-limit, limit)).to(gate_up.dtype)
    gates, up = gates.clamp(max=limit), up.clamp(-limit, limit)
    if activation == "swiglu_10":
        return gate(torch.cat((gates, up), dim=1), "silu").to(gate_up.dtype)
    return (gates * torch.sigmoid(ALPHA * gates) * (up + 1)).to(gate_up.dtype)


def _bounded(x: Tensor, bound: float) -> Tensor:
    """Returns bound · tanh(x / bound)."""
    return torch.tanh(x / bound) * bound


def experts_mlp(
    of: Operands, product: Product = linear, gate: Activate = gated_activation, alone: Activate = activate
) -> Tensor:
    """``product``, ``gate`` and ``alone`` compute the products and the activations with and without a gate."""
    dtype = of.x.dtype

    def run(rows: Tensor, weights: Tensor, expert: int) -> Tensor:
        if of.weight_input:
            rows = (rows.float() * weights).to(dtype)
        both = product(rows, _matrix(of.gate_up, expert, dtype), _of(of.gate_up_bias, expert))
        inner = activate_experts(both, of.down.shape[2], of.activation, gate, alone)
        made = product(inner, _matrix(of.down, expert, dtype), _of(of.down_bias, expert)).float()
        return made if of.weight_input else made * weights

    return _sum_over_experts(of.x, Routing(of.chosen, of.factors), len(of.gate_up), run)


def packed_experts_mlp(
    x: Tensor,
    routing: Routing,
    experts: int,
    gate_up: PackedWeight,
    down: PackedWeight,
    activation: str,
    gate_up_bias: Tensor | None,
    down_bias: Tensor | None,
    weight_input: bool,
) -> Tensor:
    def run(rows: Tensor, weights: Tensor, expert: int) -> Tensor:
        both = linear_packed(rows, _rows(gate_up, experts, expert), None, dtype=torch.float32)
        if weight_input:
            both = both * weights
        if gate_up_bias is not None:
            both = both + gate_up_bias[expert]
        inner = activate_experts(both, down.shape[1], activation)
        made = linear_packed(inner, _rows(down, experts, expert), _of(down_bias, expert))
        return made if weight_input else made * weights

    return _sum_over_experts(x, routing, experts, run)


def _sum_over_experts(
    x: Tensor, routing: Routing, experts: int, run: Callable[[Tensor, Tensor, int], Tensor]
) -> Tensor:
    """Returns the float32 sum over experts of ``run`` on the rows that chose the expert, with their weights [rows,
    1]. Expert -1 adds nothing."""
    out = torch.zeros(x.shape, device=x.device)
    chosen = routing.experts.flatten()
    if chosen.numel() and not -1 <= int(chosen.min()) <= int(chosen.max()) < experts:
        raise IndexError(f"experts_mlp: an expert outside the {experts} that there are")
    order = chosen.argsort(stable=True)
    first, *counts = torch.bincount(chosen + 1, minlength=experts + 1).tolist()
    for expert, count in enumerate(counts):
        if not count:
            continue
        places = order[first : first + count]
        first += count
        tokens = places // routing.experts.shape[1]
        weights = routing.weights.flatten()[places].unsqueeze(1)
        out.index_add_(0, tokens, run(x.index_select(0, tokens), weights, expert))
    return out.to(x.dtype)


def _of(bias: Tensor | None, expert: int) -> Tensor | None:
    return None if bias is None else bias[expert]


def _matrix(weight: Tensor | CodedMatrices, expert: int, dtype: torch.dtype) -> Tensor:
    return weight.values(expert, dtype) if isinstance(weight, CodedMatrices) else weight[expert]


def _rows(weight: PackedWeight, experts: int, expert: int) -> PackedWeight:
    outputs = weight.shape[0] // experts
    return weight.rows(expert * outputs, outputs)
