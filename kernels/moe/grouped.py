"""Experts by torch's grouped product: tokens are sorted by expert, and the end of each expert's tokens is computed on
the device."""

from typing import Final

import torch
from torch import Tensor

from ..activation import activate_, gated_activation
from ..activation.gated import KINDS
from ..linear_coded import CodedMatrices
from ..providers import Case, Chosen, Provider, Wanted, choose_provider
from .operands import Operands

TORCH: Final = Provider(
    name="torch",
    title="torch's grouped product",
    # on others torch multiplies expert by expert, and the host waits to learn the number of tokens of each
    capabilities=(90, 100),
    dtypes=(torch.bfloat16,),
    multiple=8,  # rows must begin at multiples of 16 bytes
    features=frozenset(),
    graph_safe=True,
    held_back="no GPU has measured it; --moe-backend torch asks for it",
)
PROVIDERS: Final = (TORCH,)
"""The providers of experts' products, in order of preference."""


def choose_experts(
    device: torch.device,
    dtype: torch.dtype,
    sizes: tuple[int, ...],
    *,
    coded: bool = False,
    biased: bool = False,
    weight_input: bool = False,
    invariant: bool = False,
    own_gate: bool = False,
    wanted: Wanted = "auto",
) -> Chosen:
    """Returns the provider that multiplies by the experts of a layer.

    Args:
        device: where they are.
        dtype: of activations.
        sizes: of hidden and inner vectors.
        coded: some weights stay in their codes.
        biased: products have biases.
        weight_input: the weight multiplies the input.
        invariant: as for :func:`stentor.kernels.experts_mlp`.
        own_gate: the activation exists for experts only.
        wanted: the provider that the operator asks for.
    """
    asked = {
        "weights in codes": coded,
        "biases": biased,
        "weighted inputs": weight_input,
        "batch invariance": invariant,
        "gpt-oss's gate": own_gate,
    }
    features = frozenset(name for name, wants in asked.items() if wants)
    return choose_provider(Case(device, dtype, sizes, features), PROVIDERS, wanted)


def unsupported_reason(of: Operands) -> str | None:
    """Returns why torch's grouped product cannot take these experts; None if it can."""
    chosen = choose_experts(
        of.x.device,
        of.x.dtype,
        tuple(of.down.shape[1:]),
        coded=isinstance(of.gate_up, CodedMatrices) or isinstance(of.down, CodedMatrices),
        biased=of.gate_up_bias is not None or of.down_bias is not None,
        weight_input=of.weight_input,
        invariant=of.invariant,
        own_gate=of.activation not in KINDS,
        wanted="torch",
    )
    return chosen.refusals[0][1] if chosen.refusals else None


def grouped(of: Operands) -> Tensor:
    """Runs :func:`stentor.kernels.experts_mlp`; an expert out of range adds nothing."""
    assert isinstance(of.gate_up, Tensor)
    assert isinstance(of.down, Tensor)
    tokens, top_k = of.chosen.shape
    experts, hidden, _ = of.down.shape
    there = (of.chosen >= 0) & (of.chosen < experts)
    pair_experts, order = torch.where(there, of.chosen, experts).flatten().sort(stable=True)
    numbers = torch.arange(experts, dtype=pair_experts.dtype, device=of.x.device)
    ends = torch.searchsorted(pair_experts, numbers, right=True, out_int32=True)
    both = torch._grouped_mm(of.x.index_select(0, order // top_k), of.gate_up.transpose(1, 2), offs=ends)
    activation = next(kind for kind in KINDS if kind == of.activation)
    inner = gated_activation(both, activation) if of.gated else activate_(both, activation)
    made = torch._grouped_mm(inner, of.down.transpose(1, 2), offs=ends)
    outputs = torch.empty_like(made).index_copy_(0, order, made).view(tokens, top_k, hidden)
    # rows after the last end are uninitialised
    weighted = torch.where(there.unsqueeze(2), outputs.float() * of.factors.unsqueeze(2), 0.0)
    return weighted.sum(1).to(of.x.dtype)
