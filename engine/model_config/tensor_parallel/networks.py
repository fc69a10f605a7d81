"""Feed-forward networks split over workers: each has some of the inner units. Torch-free."""

from dataclasses import replace

from ..config_fields import ConfigError
from ..mlp_spec import FeedForwardSpec, MLPSpec
from .cuts import Cut, Cuts, Ranges, Rank


def split_network(
    spec: FeedForwardSpec, rank: Rank, prefix: str, hidden: int
) -> tuple[FeedForwardSpec, dict[str, Cut]]:
    """``prefix`` is that of the layer. Raises :class:`ConfigError` for one that cannot be split."""
    if not isinstance(spec, MLPSpec):
        raise ConfigError(f"layers of {type(spec).__name__.removesuffix('Spec')} are not split")
    return replace(spec, inner=rank.each(spec.inner, "inner units")), dict(_cut_mlp(spec, rank, prefix, hidden))


def _cut_mlp(spec: MLPSpec, rank: Rank, prefix: str, hidden: int) -> Cuts:
    first, inner = rank.own(spec.inner)
    into, out = spec.projections(hidden)
    together = spec.gated and len(into.parts) == 1
    ranges: Ranges = ((first, inner), (spec.inner + first, inner)) if together else ((first, inner),)
    yield from rank.columns(into, prefix, [ranges] * len(into.parts))
    yield from rank.rows(out, prefix, (first, inner))
