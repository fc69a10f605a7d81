# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Chooses a token's experts in one program: scores, the best groups, and the best experts one after the other."""

import triton
import triton.language as tl
from torch import Tensor

from ..launching.launch import next_power_of_2
from ..launching.repeated import Start, prepare
from ..tuning import Config
from .router import Router, Routing


@triton.jit
def best_of(values):
    """Returns the largest value and its index, the first of equal ones."""
    return tl.max(values, 0), tl.argmax(values, 0)


@triton.jit
def open_groups(ranks, GROUPS: tl.constexpr, TOP_GROUPS: tl.constexpr, BY_TWO: tl.constexpr, PADDED: tl.constexpr):
    """Lowers the ranks of experts outside the best groups to -3e38, the least that an eligible expert can have."""
    SIZE: tl.constexpr = PADDED // GROUPS
    members = tl.reshape(ranks, [GROUPS, SIZE])
    best = tl.max(members, 1)
    if BY_TWO and SIZE > 1:
        first = tl.argmax(members, 1)
        others = tl.where(tl.arange(0, SIZE)[None, :] == first[:, None], -float("inf"), members)
        best += tl.max(others, 1)
    group = tl.arange(0, GROUPS)
    is_open = group < 0
    for _ in range(TOP_GROUPS):
        _, at = best_of(best)
        is_open = is_open | (group == at)
        best = tl.where(group == at, -float("inf"), best)
    return tl.reshape(tl.where(is_open[:, None], members, -3.0e38), [PADDED])


@triton.jit
def route_kernel(
    logits,
    bias,
    experts,
    weights,
    stride,
    count,
    scale,
    nearness,
    softcap,
    TOP_K: tl.constexpr,
    SCORE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BY_LOGITS: tl.constexpr,
    RENORMALIZE: tl.constexpr,
    GROUPS: tl.constexpr,
    TOP_GROUPS: tl.constexpr,
    BY_TWO: tl.constexpr,
    CAPPED: tl.constexpr,
    PADDED: tl.constexpr,
    PLACES: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    number = tl.arange(0, PADDED)
    there = number < count
    x = tl.load(logits + token * stride + number, mask=there, other=-float("inf"))
    capped = x
    if CAPPED:
        # tanh(x) = 1 - 2 / (1 + exp(2x)), and the exponent saturates as tanh does
        capped = tl.where(there, softcap * (1.0 - 2.0 / (1.0 + tl.exp(x * (2.0 / softcap)))), -float("inf"))
    if SCORE == "sigmoid":
        scores = tl.sigmoid(capped)
    elif SCORE == "sqrtsoftplus":
        scores = tl.sqrt(tl.maximum(capped, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(capped))))
    else:
        raised = tl.exp(capped - tl.max(capped, 0))
        scores = raised / tl.sum(raised, 0)
    # scores have the order of logits, but large ones round to the same number
    ranks = x
    if HAS_BIAS:
        ranks = (x if BY_LOGITS else scores) + tl.load(bias + number, mask=there, other=0.0)
    elif TOP_GROUPS < GROUPS:
        ranks = scores
    ranks = tl.where(ranks == ranks, ranks, float("inf"))
    # below all that there are: what is taken, and what is no expert
    ranks = tl.maximum(ranks, -3.0e38)
    if TOP_GROUPS < GROUPS:
        ranks = open_groups(ranks, GROUPS, TOP_GROUPS, BY_TWO, PADDED)
    ranks = tl.where(there, ranks, -float("inf"))
    place = tl.arange(0, PLACES)
    chosen = tl.zeros([PLACES], tl.int32)
    kept = tl.zeros([PLACES], tl.float32)
    for k in range(TOP_K):
        best, at = best_of(ranks)
        is_it = number == at
        if SCORE == "sparsemixer":
            near = (ranks > -float("inf")) & (best - x <= nearness * tl.maximum(tl.abs(x), best))
            scores = 1.0 / tl.sum(tl.where(near, tl.exp(x - best), 0.0), 0) + tl.zeros_like(x)
        chosen = tl.where(place == k, at.to(tl.int32), chosen)
        kept = tl.where(place == k, tl.sum(tl.where(is_it, scores, 0.0), 0), kept)
        ranks = tl.where(is_it, -float("inf"), ranks)
    if RENORMALIZE:
        kept = kept / (tl.sum(kept, 0) + 1e-20)
    to = token * TOP_K + place
    tl.store(experts + to, chosen, mask=place < TOP_K)
    tl.store(weights + to, kept * scale, mask=place < TOP_K)


def prepare_route(logits: Tensor, router: Router, bias: Tensor | None, routing: Routing) -> Start:
    """Prepares a launch with ``logits``, ``bias`` and both tensors of ``routing``, contiguous, which it fills.

    If only some groups are open, the number of experts is a power of two.
    """
    tokens, count = logits.shape
    return prepare(
        route_kernel,
        (tokens,),
        (logits, bias, *routing),
        logits.stride(0),
        count,
        router.scale,
        router.nearness,
        router.softcap,
        config=Config.of(num_warps=1),
        TOP_K=router.top_k,
        SCORE=router.score,
        HAS_BIAS=bias is not None,
        BY_LOGITS=router.corrects_logits,
        RENORMALIZE=router.renormalize,
        GROUPS=router.groups,
        TOP_GROUPS=router.top_groups,
        BY_TWO=router.group_score == "top2",
        CAPPED=router.softcap > 0,
        PADDED=next_power_of_2(count),
        PLACES=next_power_of_2(router.top_k),
    )
