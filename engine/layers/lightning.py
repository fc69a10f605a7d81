"""Lightning attention: linear attention whose heads forget at fixed rates."""

import torch
from torch.nn.functional import silu

from stentor import kernels

from ..model_config.spec.lightning import LightningSpec
from ..model_config.spec.model import Backbone
from .elementwise import elementwise
from .forward_batch import ForwardBatch
from .linear.layer_context import LayerContext
from .linear.weights import WeightMap
from .rank_norm import rms_over_ranks
from .recurrent import Recurrent, states_of
from .rotary import RotaryTables


class Lightning(Recurrent):
    """Mamba-2's recurrence in steps of 1, between what prepares queries and keys and a gated norm."""

    what = "lightning attention"

    def __init__(
        self,
        weights: WeightMap,
        layer: int,
        model: Backbone,
        spec: LightningSpec,
        rotary: RotaryTables,
        context: LayerContext,
    ) -> None:
        super().__init__(weights, layer, model, spec, context)
        self._spec, self._ranks, self._dtype = spec, context.ranks, context.dtype
        self._norm = context.empty(spec.inner, dtype=torch.float32)
        prefix = f"{model.layer_prefix(layer)}.{spec.name}"
        weights.add(f"{prefix}.{spec.norm}.weight", self._norm)
        self._head_norms = [context.empty(spec.head_dim, dtype=torch.float32) for _ in spec.head_norms or ()]
        for name, norm in zip(spec.head_norms or (), self._head_norms, strict=True):
            weights.add(f"{prefix}.{name}.weight", norm)
        derived = ("slope_rate", "query_decay", "key_decay", "diagonal_decay")
        weights.pass_over(*(f"{prefix}.{each}" for each in derived))  # transformers stores what follows from the rates
        self._rates = torch.tensor(spec.rates, device=context.place).neg()
        self._skipped = torch.zeros(spec.heads, device=context.place)
        self._ones = torch.ones(spec.inner // spec.norm_groups, device=context.place)
        self._rotation = None if spec.rope is None else rotary.of(spec.rope, spec.head_dim)

    def _mix(self, parts: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """[tokens, all projected parts] → [tokens, inner]"""
        if self._head_norms or self._rotation is not None:
            parts = self._prepared(parts, batch.positions)
        return self._run(parts, batch)

    def _prepared(self, parts: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """The parts with queries and keys normed and rotated; [tokens, all projected parts] → the same."""
        spec = self._spec
        q, k, rest = parts.split_with_sizes((spec.inner, spec.inner, 2 * spec.inner), dim=1)
        heads = [each.reshape(-1, spec.head_dim) for each in (q, k)]
        if self._head_norms:
            heads = [
                kernels.rms_norm(each.float(), norm, spec.head_eps).to(parts.dtype)
                for each, norm in zip(heads, self._head_norms, strict=True)
            ]
        q, k = (each.view(-1, spec.heads, spec.head_dim) for each in heads)
        if self._rotation is not None:
            assert spec.rope is not None
            kernels.rotary_(q, k, *self._rotation, positions, interleaved=spec.rope.interleaved)
        return torch.cat((q.flatten(1), k.flatten(1), rest), dim=1)

    def _run(self, parts: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """As :meth:`_mix`, of prepared parts."""
        spec, states = self._spec, states_of(batch)
        states.note(self._run, parts)
        (recurrent,) = states.of_layer[self._layer]
        qkv, gate = parts.split_with_sizes((3 * spec.inner, spec.inner), dim=1)
        qkv = (elementwise(silu, qkv) if spec.activated else qkv).to(self._dtype)
        order = (spec.heads, 3) if spec.by_head else (3, spec.heads)
        parted = qkv.view(-1, *order, spec.head_dim)
        q, k, v = (parted.transpose(1, 2) if spec.by_head else parted).contiguous().unbind(1)
        steps = torch.ones(len(parts), spec.heads, device=parts.device)
        found = kernels.mamba2(v, steps, self._rates, k, q, self._skipped, recurrent, states.rows).flatten(1).float()
        if spec.scale != 1.0:
            found = found * spec.scale
        if spec.norm_workers > 1:
            assert self._ranks is not None
            (normed,) = rms_over_ranks([found], spec.norm_eps, self._ranks, spec.norm_workers)
            normed = normed * self._norm
        elif spec.norm_groups > 1:
            of_groups = found.view(-1, spec.inner // spec.norm_groups)
            normed = kernels.rms_norm(of_groups, self._ones, spec.norm_eps).view(found.shape) * self._norm
        else:
            normed = kernels.rms_norm(found, self._norm, spec.norm_eps)
        return (elementwise(torch.sigmoid, gate.float()) * normed).to(parts.dtype)
