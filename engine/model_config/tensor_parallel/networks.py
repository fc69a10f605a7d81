"""Feed-forward networks split over workers: each has some of the inner units, of every expert too, or some of the
experts. Torch-free.

Routers, what leads to latents and back, and gates of shared experts are whole in each.
"""

from math import lcm

from msgspec.structs import replace

from ..config_fields import ConfigError
from ..spec.mlp import ExpertNames, FeedForwardSpec, MLPSpec, MoESpec
from .cuts import BlockOf, Cut, Cuts, Ranges, Rank


def split_network(
    spec: FeedForwardSpec, rank: Rank, prefix: str, hidden: int, block_of: BlockOf
) -> tuple[FeedForwardSpec, dict[str, Cut]]:
    """The rank's part of a network, and the cuts of its stored tensors by name.

    ``prefix``: the layer's, of tensor names. Raises :class:`ConfigError` for a network that cannot be split.
    """
    match spec:
        case MLPSpec():
            if spec.scales:
                raise ConfigError("a network with learned factors on gates and ups is not split")
            own = _own_units(spec, rank, prefix, hidden, block_of, "inner units")
            if spec.norm and own[1] * rank.size != spec.inner:
                raise ConfigError(f"{spec.inner} inner units with a norm do not divide among {rank.size} workers")
            return replace(spec, inner=own[1]), dict(_cut_mlp(spec, rank, prefix, hidden, own))
        case MoESpec(shared=shared):
            if spec.norms is not None:
                raise ConfigError("experts whose outputs are normed one by one are not split")
            if rank.whole_experts:
                part, cuts = _give_experts(spec, rank, prefix, hidden)
            else:
                own = _own_expert_units(spec, rank, prefix, hidden, block_of)
                part, cuts = replace(spec, inner=own[1]), dict(_cut_experts(spec, rank, prefix, hidden, own))
            if shared is not None:
                of_shared = _own_units(shared, rank, prefix, hidden, block_of, "inner units of the shared experts")
                cuts.update(_cut_mlp(shared, rank, prefix, hidden, of_shared))
                shared = replace(shared, inner=of_shared[1])
            media = spec.media
            if media is not None:
                of_media, more = split_network(media, rank, prefix, hidden, block_of)
                assert isinstance(of_media, MoESpec)
                media, cuts = of_media, cuts | more
            return replace(part, shared=shared, media=media), cuts
    raise ConfigError(f"layers of {type(spec).__name__.removesuffix('Spec')} are not split")


def _own_units(spec: MLPSpec, rank: Rank, prefix: str, hidden: int, block_of: BlockOf, what: str) -> tuple[int, int]:
    """The rank's inner units, as (first, count): whole blocks of all of the network's matrices."""
    into, out = spec.projections(hidden)
    named = [*((name, False) for name, _ in into.parts), *((name, True) for name, _ in out.parts)]
    blocks = [block_of(f"{prefix}.{name}.weight", inputs) for name, inputs in named]
    return rank.blocks(spec.inner, lcm(*blocks), what)


def _own_expert_units(spec: MoESpec, rank: Rank, prefix: str, hidden: int, block_of: BlockOf) -> tuple[int, int]:
    """The rank's inner units of an expert, as (first, count).

    Only the first expert's formats are looked at here; those of the others are checked when they are cut.
    """
    blocks = [
        block_of(f"{prefix}.{tensor.name}", tensor.out)
        for names in spec.names
        for tensor in names.tensors(range(1), spec.inner, hidden, gated=spec.gated)
    ]
    return rank.blocks(spec.inner, lcm(*blocks), "inner units of an expert")


def _give_experts(spec: MoESpec, rank: Rank, prefix: str, hidden: int) -> tuple[MoESpec, dict[str, Cut]]:
    """Expert parallelism: the rank's whole experts, with cuts under every name that a checkpoint may use."""
    if spec.experts < rank.size:
        raise ConfigError(f"{spec.experts} experts are fewer than {rank.size} workers")
    part = replace(spec, own=rank.spread(spec.experts))
    cuts = {}
    for names in spec.names:
        for tensor in (*spec.expert_tensors(hidden, names), *spec.expert_biases(hidden, names)):
            if tensor.expert is None and tensor.rows:
                first, count = (each * tensor.rows for each in rank.spread(spec.experts))
                cuts[f"{prefix}.{tensor.name}"] = Cut(0, tensor.shape[0], ((first, count),))
            elif tensor.expert is None:
                cuts[f"{prefix}.{tensor.name}"] = Cut(0, spec.experts, (rank.spread(spec.experts),), stacked=True)
            elif tensor.expert not in part.own_experts:
                cuts[f"{prefix}.{tensor.name}"] = Cut(0, tensor.shape[0], ())
    return part, cuts


def _cut_mlp(spec: MLPSpec, rank: Rank, prefix: str, hidden: int, own: tuple[int, int]) -> Cuts:
    into, out = spec.projections(hidden)
    ranges = _ranges(spec, own, together=spec.gated and len(into.parts) == 1)
    for name, cut in (*rank.columns(into, prefix, [ranges] * len(into.parts)), *rank.rows(out, prefix, own)):
        yield name, cut
        if spec.also:
            yield f"{prefix}{name.removeprefix(prefix).replace(*spec.also, 1)}", cut

    if spec.norm:
        yield f"{prefix}.{spec.norm}.weight", Cut(0, spec.inner, (own,))


def _cut_experts(spec: MoESpec, rank: Rank, prefix: str, hidden: int, own: tuple[int, int]) -> Cuts:
    """Tensor parallelism: a part of each expert, with cuts under every name that a checkpoint may use."""
    if spec.sum_bias and rank.number:
        yield f"{prefix}.{spec.sum_bias}", Cut(0, hidden, ((0, hidden),), zero=True)
    for names in spec.names:
        ranges = _expert_ranges(spec, names, own)
        for tensor in spec.expert_tensors(hidden, names):
            stacked = tensor.expert is None and not tensor.rows
            transposed = tensor.expert is None and names.turned(out=tensor.out)
            dim = int(tensor.out != transposed) + stacked
            taken = (own,) if tensor.out else ranges
            if tensor.rows and dim == 0:
                starts = range(0, tensor.shape[0], tensor.rows)
                taken = tuple((start + first, count) for start in starts for first, count in taken)
            yield (
                f"{prefix}.{tensor.name}",
                Cut(dim, tensor.shape[dim], taken, inputs=tensor.out, transposed=transposed),
            )
        for bias in spec.expert_biases(hidden, names):
            dim = len(bias.shape) - 1
            if not bias.out:
                yield f"{prefix}.{bias.name}", Cut(dim, bias.shape[dim], ranges)
            elif rank.number:
                yield f"{prefix}.{bias.name}", Cut(dim, hidden, ((0, hidden),), zero=True)


def _expert_ranges(spec: MoESpec, names: ExpertNames, own: tuple[int, int]) -> Ranges:
    """The ranges of outputs that a rank with inner units ``own`` reads from a matrix of gates, ups or both."""
    together = spec.gated and len(names.into) == 1
    if together and names.interleaved:
        return ((2 * own[0], 2 * own[1]),)
    return _ranges(spec, own, together=together)


def _ranges(spec: MLPSpec | MoESpec, own: tuple[int, int], *, together: bool) -> Ranges:
    """As :func:`_expert_ranges`; ``together``: one matrix has the gates, then the ups."""
    first, inner = own
    return (own, (spec.inner + first, inner)) if together else (own,)
