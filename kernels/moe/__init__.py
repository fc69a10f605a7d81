"""Mixture-of-experts feed-forward: each token goes through the few experts that a router chooses for it."""

import ctypes
from functools import partial

import torch
from torch import Tensor

from ..activation import activate_, gated_activation
from ..guards import describe, native_unsupported_reason, triton_unsupported_reason
from ..launching.repeated import LaunchCache, Start
from ..linear import NATIVE as _PRODUCTS
from ..linear import linear
from ..linear_coded import CodedMatrices
from ..native import NativeFunction, threads
from ..providers import Wanted
from ..variants import Choice, Variant, select_variant
from . import reference
from .checks import ACTIVATIONS, ExpertActivation, check_experts, check_gate
from .grouped import choose_experts, grouped, unsupported_reason
from .operands import Operands, Run
from .packed import choose_packed, packed_experts, packed_experts_mlp
from .router import GroupScore, Router, RouterStruct, Routing, Score, router_struct

__all__ = [
    "ACTIVATIONS",
    "ExpertActivation",
    "GroupScore",
    "Router",
    "RouterStruct",
    "Routing",
    "Score",
    "check_gate",
    "choose",
    "choose_experts",
    "choose_packed",
    "choose_route",
    "experts_mlp",
    "packed_experts",
    "packed_experts_mlp",
    "route",
    "route_to",
    "router_struct",
]

FEW_TOKENS = 8
"""Up to this many tokens on CUDA, weights are read for each pair of a token and an expert."""

_P, _I = ctypes.c_void_p, ctypes.c_int64
_ROUTE = NativeFunction("stentor_route", _P, _P, _I, _I, _P, _P, _I)
_ROUTES: LaunchCache[Start] = LaunchCache()
_RUNS: LaunchCache[Run] = LaunchCache()


def choose_route(logits: Tensor, router: Router, variant: Choice = "auto") -> Variant:
    """Returns the variant that :func:`route` runs. Raises ValueError if one is asked for that cannot run."""
    experts = logits.shape[1]
    triton, native = triton_unsupported_reason(logits, variant), native_unsupported_reason(_ROUTE, logits)
    if logits.stride(1) != 1:
        triton = native = "it takes contiguous rows"
    if router.top_groups < router.groups and experts & (experts - 1):
        triton = triton or f"it chooses groups of a power of two of experts, not of {experts}"
    return select_variant(variant, triton=triton, native=native)


def route(logits: Tensor, router: Router, bias: Tensor | None = None, *, variant: Choice = "auto") -> Routing:
    """Chooses each token's experts; of equal ones the lower index.

    Args:
        logits: float32 [tokens, experts].
        router: how experts are chosen and weighted.
        bias: float32 [experts] or None: added to scores for the choice, not to the weights (DeepSeek-V3,
            arXiv:2412.19437).
        variant: forces an implementation.

    Raises:
        ValueError: shapes or dtypes that do not fit, or too few experts.
    """
    bias = None if bias is None else bias.contiguous()
    given = (logits,) if bias is None else (logits, bias)
    key, start = _ROUTES.find(given, router, variant)
    if start is not None:
        routing = _empty_routing(logits, router)
        start(logits, bias, *routing)
        return routing
    if logits.dim() != 2 or logits.dtype != torch.float32:
        raise ValueError(f"route: logits {describe(logits)} must be float32 [tokens, experts]")
    if bias is not None and (bias.shape != logits.shape[1:] or bias.dtype != torch.float32):
        raise ValueError(f"route: bias {describe(bias)} must be float32 [{logits.shape[1]}]")
    router.check(logits.shape[1], bias)
    chosen = choose_route(logits, router, variant)
    if chosen == "reference":
        return reference.route(logits, router, bias)
    tokens, count = logits.shape
    routing = _empty_routing(logits, router)
    if chosen == "triton":
        from .triton_route import prepare_route  # late: heavy

        start = prepare_route(logits, router, bias, routing)
        _ROUTES.keep(key, start)(logits, bias, *routing)
        return routing
    _ROUTE(
        ctypes.byref(router_struct(router, count, bias)),
        logits.data_ptr(),
        logits.stride(0),
        tokens,
        *(each.data_ptr() for each in routing),
        threads(),
    )
    return routing


def route_to(logits: Tensor, router: Router, experts: Tensor) -> Routing:
    """Weights each token's experts, which are given (DeepSeek-V4).

    Args:
        logits: float32 [tokens, experts].
        router: how experts are weighted: by ``sigmoid`` or ``sqrtsoftplus`` of their logits.
        experts: int64 [tokens, top_k], each one of the experts.

    Returns:
        The experts as given and their weights, which do not depend on other tokens.

    Raises:
        ValueError: shapes, dtypes or a score that does not fit.
    """
    if logits.dim() != 2 or logits.dtype != torch.float32:
        raise ValueError(f"route_to: logits {describe(logits)} must be float32 [tokens, experts]")
    if experts.shape != (len(logits), router.top_k) or experts.dtype != torch.int64:
        raise ValueError(f"route_to: experts {describe(experts)} must be int64 [{len(logits)}, {router.top_k}]")
    if router.score not in ("sigmoid", "sqrtsoftplus"):
        raise ValueError(f"route_to: score must be sigmoid or sqrtsoftplus, not {router.score!r}")
    return reference.route_to(logits, router, experts)


def _empty_routing(logits: Tensor, router: Router) -> Routing:
    shape = (logits.shape[0], router.top_k)
    return Routing(logits.new_empty(shape, dtype=torch.int32), logits.new_empty(shape))


def choose(
    x: Tensor, gate_up: Tensor | CodedMatrices, down: Tensor | CodedMatrices, variant: Choice = "auto"
) -> Variant:
    """Returns the variant that :func:`experts_mlp` runs. The native one runs our native product for each expert.

    Raises:
        ValueError: one is asked for that cannot run.
    """
    triton = triton_unsupported_reason(x, variant)
    plain = [each for each in (gate_up, down) if isinstance(each, Tensor)]
    if triton is None and not (all(each.is_contiguous() for each in plain) and x.stride(1) == 1):
        triton = "it takes contiguous weights, and rows of x"
    return select_variant(variant, triton=triton, native=native_unsupported_reason(_PRODUCTS.get(x.dtype), x))


def experts_mlp(
    x: Tensor,
    routing: Routing,
    gate_up: Tensor | CodedMatrices,
    down: Tensor | CodedMatrices,
    activation: ExpertActivation,
    *,
    gate_up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
    weight_input: bool = False,
    invariant: bool = False,
    provider: Wanted = "triton",
    variant: Choice = "auto",
) -> Tensor:
    """Returns Σ over the chosen experts of weight · down(act(gate(x)) · up(x)), summed in float32; without a gate of
    weight · down(act(up(x))).

    Products, and the values between them, are rounded to the dtype of ``x``.

    Args:
        x: [tokens, hidden], any float dtype.
        routing: of these tokens; an expert -1 adds nothing.
        gate_up: [experts, 2 · inner, hidden], gates first, or [experts, inner, hidden] without a gate; the dtype of
            ``x`` or codes.
        down: [experts, hidden, inner], the dtype of ``x`` or codes.
        activation: see :data:`ExpertActivation`.
        gate_up_bias: [experts, outputs of gate_up] or None, the dtype of ``x``.
        down_bias: [experts, hidden] or None, the dtype of ``x``; it is weighted too.
        weight_input: the weight multiplies the expert's input in place of its output (Llama 4).
        invariant: a token has the same bits whatever the others, as for :func:`stentor.kernels.linear`; on CUDA by
            block sizes that do not depend on the number of tokens.
        provider: whose implementation runs, as :func:`choose_experts` says; ``variant`` chooses among those of
            ``triton``, ours.
        variant: forces an implementation.

    Returns:
        [tokens, hidden], a new contiguous tensor.

    Raises:
        ValueError: an unknown activation, shapes or dtypes that do not fit, or a provider that cannot run.
        IndexError: on the CPU, an expert out of range. On CUDA this is not checked, which would need a wait, and such
            an expert adds nothing.
    """
    operands = Operands(
        x,
        routing.experts.contiguous(),
        routing.weights.contiguous(),
        gate_up,
        down,
        activation,
        None if gate_up_bias is None else gate_up_bias.contiguous(),
        None if down_bias is None else down_bias.contiguous(),
        weight_input,
        invariant,
    )
    tensors, numbers = operands.tensors, (operands.forms, provider, variant)
    key, run = _RUNS.find(tensors, *numbers)
    if run is not None:
        return run(operands)
    _check(operands, routing)
    if provider == "torch":
        if (reason := unsupported_reason(operands)) is not None:
            raise ValueError(f"experts_mlp: torch's grouped product cannot run: {reason}")
        return grouped(operands)
    chosen = choose(x, gate_up, down, variant)
    if chosen == "triton":
        return _RUNS.keep(key, _prepare_triton(operands))(operands)
    own: Choice = "auto" if chosen == "native" else "reference"
    return reference.experts_mlp(
        operands,
        partial(linear, invariant=invariant, variant=own),
        partial(gated_activation, variant=own),
        partial(activate_, variant=own),
    )


def _check(operands: Operands, routing: Routing) -> None:
    x, gate_up, down, activation = operands.x, operands.gate_up, operands.down, operands.activation
    check_experts("experts_mlp", x, routing, activation)
    experts, into, hidden = gate_up.shape if len(gate_up.shape) == 3 else (0, 0, 0)
    inner = down.shape[2] if len(down.shape) == 3 else 0
    if not experts or hidden != x.shape[1] or into not in (inner, 2 * inner) or down.shape[:2] != (experts, hidden):
        raise ValueError(
            f"experts_mlp: gate_up {tuple(gate_up.shape)} and down {tuple(down.shape)} do not fit x {describe(x)}; "
            "want [experts, 2 * inner, hidden], or inner, and [experts, hidden, inner]"
        )
    check_gate("experts_mlp", activation, gated=into != inner)
    for name, bias, outputs in (
        ("gate_up_bias", operands.gate_up_bias, into),
        ("down_bias", operands.down_bias, hidden),
    ):
        if bias is not None and bias.shape != (experts, outputs):
            raise ValueError(f"experts_mlp: {name} {describe(bias)} must be [{experts}, {outputs}]")
    for given in (gate_up, down, operands.gate_up_bias, operands.down_bias):
        if isinstance(given, CodedMatrices):
            given.check()
        elif given is not None and given.dtype != x.dtype:
            raise ValueError(f"experts_mlp: {describe(given)} must have the dtype of x {describe(x)}")


def _prepare_triton(operands: Operands) -> Run:
    if len(operands.chosen) <= FEW_TOKENS and not operands.invariant:
        from .triton_rows import prepare_rows  # late: heavy

        return prepare_rows(operands)
    from .triton_tiles import prepare_tiles  # late: heavy

    return prepare_tiles(operands)
