"""Adapters of a layer's experts."""

from collections.abc import Callable, Iterator

import torch
from msgspec.structs import replace

from stentor import kernels
from stentor.kernels.low_rank import AdapterRows
from stentor.kernels.moe.reference import activate_experts

from ...model_config.spec.mlp import APART, ExpertNames, ExpertTensor, MoESpec
from ...model_config.tensor_parallel.cuts import Cut
from ..linear.adapters import AdaptedLinear, AdapterPlace, AdapterPlaces
from .experts import Experts

_MIXTRAL = ExpertNames(
    "block_sparse_moe.gate",
    ("block_sparse_moe.experts.{}.w1.weight", "block_sparse_moe.experts.{}.w3.weight"),
    "block_sparse_moe.experts.{}.w2.weight",
)
_APART = (APART, _MIXTRAL)
"""Names of routers and of separate experts in adapters, independent of the checkpoint's names."""


class AdaptedExperts:
    """Experts with adapters on gates, ups and downs. Rows without adapters are computed as usual."""

    def __init__(
        self, places: AdapterPlaces, prefix: str, spec: MoESpec, hidden: int, *, packed: bool, invariant: bool
    ) -> None:
        """``prefix``: of the layer, whose router is registered already. ``hidden``: inputs of the experts."""
        self._spec, self._invariant = spec, invariant
        self._into, self._out = (
            tuple(
                AdaptedLinear(*sizes, packed=packed, invariant=invariant, elsewhere=expert not in spec.own_experts)
                for expert in range(spec.experts)
            )
            for sizes in ((hidden, spec.into), (spec.inner, hidden))
        )
        down = next(tensor for tensor in spec.expert_tensors(hidden) if tensor.out)
        self._down_cut = None if spec.own else places.cuts.get(f"{prefix}.{down.name}")
        if self._down_cut is not None and down.rows:
            size = self._down_cut.size // spec.experts
            self._down_cut = replace(self._down_cut, size=size, ranges=self._down_cut.ranges[:1])
        router = places.by_name[f"{prefix}.{spec.names[0].router}"]
        for names in (*spec.names, *_APART):
            places.by_name.setdefault(f"{prefix}.{names.router}", router)
            if spec.gated == (len(names.into) == 2 or "{}" not in names.into[0]):
                for name, place in self._places(prefix, names, hidden):
                    places.by_name.setdefault(name, place)

    def _places(self, prefix: str, names: ExpertNames, hidden: int) -> Iterator[tuple[str, AdapterPlace]]:
        """The places by the name of a module, or of the parameter of all experts."""
        for tensor in names.tensors(range(self._spec.experts), self._spec.inner, hidden, gated=self._spec.gated):
            linears = self._out if tensor.out else self._into
            own = linears if tensor.expert is None else linears[tensor.expert : tensor.expert + 1]
            if tensor.rows:
                continue  # no form of adapters for matrices of several experts is known
            interleaved = names.interleaved and not tensor.out
            name = f"{prefix}.{tensor.name.removesuffix('.weight')}"
            cut = self._cut(tensor, together=self._spec.gated and len(names.into) == 1)
            yield name, AdapterPlace(own, tensor.first, tensor.outputs, names.transposed, interleaved, cut=cut)

    def _cut(self, tensor: ExpertTensor, *, together: bool) -> Cut | None:
        """This worker's part of an expert's matrix [outputs, inputs], which has gates before ups if it has both; None:
        all of it."""
        down = self._down_cut
        if down is None:
            return None
        if tensor.out:
            return Cut(1, down.size, down.ranges, inputs=True)
        ((first, inner),) = down.ranges
        ranges = ((first, inner), (down.size + first, inner)) if together else down.ranges
        return Cut(0, len(ranges) * down.size, ranges)

    def __call__(
        self, experts: Experts, x: torch.Tensor, routing: kernels.Routing, rows: AdapterRows | None
    ) -> torch.Tensor:
        """x [tokens, hidden] → the same; ``experts`` compute the unchanged part. Experts are numbered among this
        worker's own, those of other workers -1."""
        slots = () if rows is None else self._slots_of(rows)
        if rows is None or not slots:
            return experts(x, routing)
        slot_of = x.new_full((len(x),), -1, dtype=torch.int64)
        for slot, own in rows:
            if slot in slots:
                slot_of[own] = slot
        out = torch.empty_like(x)
        plain, changed = ((slot_of >= 0) == with_ for with_ in (False, True))
        if bool(plain.any()):
            out[plain] = experts(x[plain], kernels.Routing(*(each[plain] for each in routing)))
        ours = kernels.Routing(*(each[changed] for each in routing))
        out[changed] = self._changed(experts, x[changed], ours, slot_of[changed]).to(out.dtype)
        return out

    def _slots_of(self, rows: AdapterRows) -> tuple[int, ...]:
        """The adapter slots of these rows that change an expert."""
        both = (*self._into, *self._out)
        return tuple(slot for slot in rows.adapters if any(linear.get(slot) is not None for linear in both))

    def _changed(
        self, experts: Experts, x: torch.Tensor, routing: kernels.Routing, slots: torch.Tensor
    ) -> torch.Tensor:
        """Outputs of rows in these slots, float32 [tokens, hidden].

        Pairs of a token and an expert are sorted by expert, then by slot, so that each product needs one addition.
        """
        chosen, spec = routing.experts.flatten().long(), self._spec
        top_k, most = routing.experts.shape[1], int(slots.max()) + 1
        keys = chosen * most + slots.repeat_interleave(top_k)
        order = keys.argsort(stable=True)[int((chosen < 0).sum()) :]
        if not len(order):
            return torch.zeros(x.shape, device=x.device)
        tokens, weights = order // top_k, routing.weights.flatten()[order].unsqueeze(1)
        groups, counts = (each.tolist() for each in keys[order].unique_consecutive(return_counts=True))
        pairs = [(key // most, key % most) for key in groups]
        rows = AdapterRows.of(range(len(pairs)), counts, x.device)
        assert rows is not None
        taken = x[tokens].float()
        if spec.weight_input:
            taken = taken * weights
        lengths = torch.bincount(chosen[chosen >= 0]).tolist()
        first = spec.own_experts.start

        def product(inputs: torch.Tensor, linears: tuple[AdaptedLinear, ...], *, out: bool) -> torch.Tensor:
            """float32 [pairs, inputs] → float32 [pairs, outputs]"""
            parts = inputs.split(lengths)
            multiply: Callable[[torch.Tensor, int], torch.Tensor] = experts.down if out else experts.gate_up
            made = torch.cat([multiply(part, each).float() for each, part in enumerate(parts) if len(part)])
            added = AdaptedLinear(inputs.shape[1], made.shape[1], invariant=self._invariant)
            for number in reversed(range(len(pairs))):  # the last first, which allocates space for all
                expert, slot = pairs[number]
                added.put(number, linears[first + expert].get(slot))
            return added.add_(made, inputs, rows)

        inner = activate_experts(product(taken, self._into, out=False), spec.inner, spec.activation)
        made = product(inner, self._out, out=True)
        return torch.zeros(x.shape, device=x.device).index_add_(
            0, tokens, made if spec.weight_input else made * weights
        )
