"""Feed-forward networks split over workers: each has some of the inner units, of every expert too. Torch-free.

Routers, what leads to latents and back, and gates of shared experts are whole in each.
"""

from dataclasses import replace
from typing import TypeVar

from ..config_fields import ConfigError
from ..mlp_spec import ExpertNames, FeedForwardSpec, MLPSpec, MoESpec
from .cuts import Cut, Cuts, Ranges, Rank

N = TypeVar("N", MLPSpec, MoESpec)


def split_network(
    spec: FeedForwardSpec, rank: Rank, prefix: str, hidden: int
) -> tuple[FeedForwardSpec, dict[str, Cut]]:
    """``prefix`` is that of the layer. Raises :class:`ConfigError` for one that cannot be split."""
    match spec:
        case MLPSpec():
            return _part(spec, rank, "inner units"), dict(_cut_mlp(spec, rank, prefix, hidden))
        case MoESpec():
            part = _part(spec, rank, "inner units of an expert")
            if spec.shared is not None:
                part = replace(part, shared=_part(spec.shared, rank, "inner units of the shared experts"))
            return part, dict(_cut_experts(spec, rank, prefix, hidden))
    raise ConfigError(f"layers of {type(spec).__name__.removesuffix('Spec')} are not split")


def _part(spec: N, rank: Rank, what: str) -> N:
    return replace(spec, inner=rank.each(spec.inner, what))


def _cut_mlp(spec: MLPSpec, rank: Rank, prefix: str, hidden: int) -> Cuts:
    into, out = spec.projections(hidden)
    ranges = _ranges(spec, rank, together=spec.gated and len(into.parts) == 1)
    cuts = [*rank.columns(into, prefix, [ranges] * len(into.parts)), *rank.rows(out, prefix, rank.own(spec.inner))]
    for name, cut in cuts:
        yield name, cut
        if spec.also:
            yield name.replace(f"{prefix}.mlp", f"{prefix}.{spec.also}", 1), cut


def _cut_experts(spec: MoESpec, rank: Rank, prefix: str, hidden: int) -> Cuts:
    """Under all names that they may have."""
    for names in spec.names:
        ranges = _expert_ranges(spec, rank, names)
        for tensor in spec.expert_tensors(hidden, names):
            stacked = tensor.expert is None
            dim = int(tensor.out != (stacked and names.transposed)) + stacked
            own = (rank.own(spec.inner),) if tensor.out else ranges
            turned = stacked and names.transposed
            yield f"{prefix}.{tensor.name}", Cut(dim, tensor.shape[dim], own, inputs=tensor.out, turned=turned)
        for bias in spec.expert_biases(hidden, names):
            dim = len(bias.shape) - 1
            if not bias.out:
                yield f"{prefix}.{bias.name}", Cut(dim, bias.shape[dim], ranges)
            elif rank.number:
                yield f"{prefix}.{bias.name}", Cut(dim, hidden, ((0, hidden),), zero=True)
    if spec.shared is not None:
        yield from _cut_mlp(spec.shared, rank, prefix, hidden)


def _expert_ranges(spec: MoESpec, rank: Rank, names: ExpertNames) -> Ranges:
    """Of the outputs of a stored matrix of gates, ups or both."""
    together = spec.gated and len(names.into) == 1
    if together and names.interleaved:
        first, inner = rank.own(spec.inner)
        return ((2 * first, 2 * inner),)
    return _ranges(spec, rank, together=together)


def _ranges(spec: MLPSpec | MoESpec, rank: Rank, *, together: bool) -> Ranges:
    """The same; ``together``: ups stand behind gates."""
    first, inner = rank.own(spec.inner)
    return ((first, inner), (spec.inner + first, inner)) if together else ((first, inner),)
