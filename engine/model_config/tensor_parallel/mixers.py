"""Mixers of tokens split over workers: each has some of the heads, or of the channels. Torch-free.

Where there are fewer key-value heads than workers, several workers have the same one.
"""

from itertools import repeat

from msgspec.structs import replace

from ..config_fields import ConfigError
from ..spec.attention import AttentionSpec
from ..spec.compressed_attention import CompressedAttentionSpec
from ..spec.latent_attention import LatentAttentionSpec
from ..spec.layer import MixerSpec
from ..spec.projection import Projection
from .cuts import Cut, Cuts, Ranges, Rank
from .recurrent import split_recurrent

_APART = "k_b_proj", "v_b_proj"
"""The projections from the latent to keys and to values, in files that store them separately."""


def split_mixer(spec: MixerSpec, rank: Rank, prefix: str, hidden: int) -> tuple[MixerSpec, dict[str, Cut]]:
    """``prefix`` is that of the layer. Raises :class:`ConfigError` for one that cannot be split."""
    match spec:
        case AttentionSpec():
            return _part_of_attention(spec, rank), dict(_cut_attention(spec, rank, prefix, hidden))
        case CompressedAttentionSpec():
            return _part_of_compressed(spec, rank), dict(_cut_compressed(spec, rank, prefix, hidden))
        case LatentAttentionSpec():
            heads = rank.each(spec.heads, "query heads")
            return replace(spec, heads=heads), dict(_cut_latent(spec, rank, prefix, hidden))
        case recurrent:
            return split_recurrent(recurrent, rank, prefix, hidden)


def _part_of_attention(spec: AttentionSpec, rank: Rank) -> AttentionSpec:
    if spec.qk_norm == "layer_own" and "{}" in (spec.qk_norm_names or ("",))[0]:
        raise ConfigError("attention whose heads have norms that are stored one by one is not split")
    if spec.loop is not None:
        raise ConfigError("attention to an earlier loop is not split")
    if spec.gate_first:
        raise ConfigError("a fused matrix with gates is not split")
    if spec.gate_scales or spec.query_scales:
        raise ConfigError("attention with learned factors on queries and gates is not split")
    if spec.chosen is not None or spec.difference is not None:
        raise ConfigError("attention whose heads are chosen, or subtracted from others, is not split")
    if spec.convolved is not None or spec.key_convs is not None:
        raise ConfigError("attention whose queries and keys pass convolutions is not split")
    heads, (_, kv_heads) = rank.each(spec.heads, "query heads"), rank.shared(spec.kv_heads, "key-value heads")
    first = rank.number * heads
    shards = rank.each(spec.shards, "parts of a matrix of queries, values and keys")
    return replace(spec, heads=heads, kv_heads=kv_heads, shards=shards, slopes=spec.slopes[first : first + heads])


def _cut_attention(spec: AttentionSpec, rank: Rank, prefix: str, hidden: int) -> Cuts:
    first, heads = of_heads = rank.own(spec.heads)
    first_kv, kv_heads = of_kv_heads = rank.shared(spec.kv_heads, "key-value heads")
    width = spec.head_dim * (2 if spec.gated and not spec.gate else 1)
    queries = first * width, heads * width
    found = first * spec.value_dim, heads * spec.value_dim
    keys, values = ((first_kv * dim, kv_heads * dim) for dim in (spec.head_dim, spec.value_dim))
    into, out, *of_latent = spec.projections(hidden)
    ranges: list[Ranges]
    if spec.by_group:
        ranges = [_by_group(spec, rank)]
    elif spec.shards:
        ranges = [(rank.own(3 * spec.q_size),)]
    elif spec.paired is not None:
        ranges = [(queries,), ((2 * keys[0], 2 * keys[1]),)]
    elif spec.fused:
        asked = spec.heads * width
        behind = asked + spec.kv_size
        ranges = [(queries, (asked + keys[0], keys[1]), (behind + values[0], values[1]))]
    elif spec.query_latent is not None:  # each worker has the whole latent
        ranges = [((0, spec.query_latent.size),), (keys,), (values,)]
        yield from rank.columns(of_latent[0], prefix, [(queries,)])
    elif spec.shares >= 0:
        ranges = [*repeat((queries,), len(into.parts))]
    else:
        gates = of_heads if spec.gate_by_head else queries
        index = spec.index.parts(spec.name, spec.kv_heads) if spec.index else ()
        made: list[Ranges] = [(values,)]
        if (experts := spec.value_experts) is not None:
            made = [*repeat((values,), experts.experts), ((0, experts.experts),)]
        others = 2 + len(made) + len(index)
        ranges = [(queries,), *repeat((gates,), len(into.parts) - others), (keys,), *made]
        for part in index:  # its keys are whole in each worker
            each = part.size // spec.kv_heads
            ranges.append(((first_kv * each, kv_heads * each) if part.by_head else (0, part.size),))
    yield from rank.columns(into, prefix, ranges)
    yield from rank.rows(out, prefix, found)
    name = f"{prefix}.{spec.name}"
    if spec.out_norm:
        yield f"{name}.{spec.out_norm}.weight", Cut(0, spec.heads * spec.value_dim, (found,))
    if spec.sinks:
        yield f"{name}.{spec.sinks_name}", Cut(0, spec.heads, (of_heads,))
    if spec.gate_bias:
        yield f"{name}.{spec.gate_bias}", Cut(0, spec.heads, (of_heads,))
    q_norm, k_norm = (f"{name}.{which}.weight" for which in spec.qk_norm_names or ("", ""))
    if spec.qk_norm in ("full", "head_own"):
        yield q_norm, Cut(0, spec.q_size, (found,))
        yield k_norm, Cut(0, spec.kv_size, (keys,))
    elif spec.qk_norm.startswith("layer_own"):
        endings = ("weight", "bias") if spec.qk_norm == "layer_own_biased" else ("weight",)
        for ending in endings:
            yield f"{q_norm.removesuffix('weight')}{ending}", Cut(0, spec.heads, (of_heads,))
            yield f"{k_norm.removesuffix('weight')}{ending}", Cut(0, spec.kv_heads, (of_kv_heads,))


def _by_group(spec: AttentionSpec, rank: Rank) -> Ranges:
    """The rank's ranges of a matrix that stores, for each kv head in turn, its queries, its key and its value."""
    (first, heads), (first_kv, kv_heads) = rank.own(spec.heads), rank.shared(spec.kv_heads, "key-value heads")
    each, dim = spec.heads // spec.kv_heads, spec.head_dim
    start = first_kv * (each + 2) * dim
    if heads == kv_heads * each:
        return ((start, kv_heads * (each + 2) * dim),)
    return (start + (first - first_kv * each) * dim, heads * dim), (start + each * dim, 2 * dim)


def _part_of_compressed(spec: CompressedAttentionSpec, rank: Rank) -> CompressedAttentionSpec:
    """Whole groups of heads."""
    groups = rank.each(spec.out_groups, "groups of query heads")
    return replace(spec, heads=spec.heads // spec.out_groups * groups, out_groups=groups)


def _cut_compressed(spec: CompressedAttentionSpec, rank: Rank, prefix: str, hidden: int) -> Cuts:
    """Cuts by head. Each rank has the whole projections to vectors and entries, and the whole index."""
    first, groups = rank.own(spec.out_groups)
    heads = spec.heads // spec.out_groups
    own = first * heads, groups * heads
    outputs = first * spec.out_rank, groups * spec.out_rank
    yield from rank.columns(spec.queries(), prefix, [((own[0] * spec.head_dim, own[1] * spec.head_dim),)])
    yield from rank.columns(spec.grouped(), prefix, [(outputs,)])
    yield from rank.rows(spec.out(hidden), prefix, outputs)
    yield f"{prefix}.{spec.name}.attn_sink", Cut(0, spec.heads, (own,))


def _cut_latent(spec: LatentAttentionSpec, rank: Rank, prefix: str, hidden: int) -> Cuts:
    """Cuts by head. Each rank has the whole projections to latents, and the whole index."""
    first, heads = own = rank.own(spec.heads)

    def of_heads(width: int) -> Ranges:
        return ((first * width, heads * width),)

    *_, queries, made, out = spec.attending(hidden)
    queries = replace(queries, parts=queries.parts[:1])  # without those of the latent beside them
    of_each = spec.nope_dim + spec.rope_dim + (spec.v_dim if spec.gated_queries else 0)
    yield from rank.columns(queries, prefix, [of_heads(of_each)])
    if spec.gate:
        of_gates = [of_heads(spec.gate_count // spec.heads)]
        yield from rank.columns(Projection(spec.gates, hidden, bias=False), prefix, of_gates)
    if spec.sinks:
        yield f"{prefix}.{spec.name}.{spec.sinks}", Cut(0, spec.heads, (own,))
    if spec.growth:
        grown = f"{prefix}.{spec.name}.{spec.growth}"
        yield from ((f"{grown}.{which}", Cut(0, spec.heads, (own,))) for which in ("scale", "bias"))
    if spec.made_apart:
        yield from ((f"{prefix}.{spec.name}.{which}.weight", Cut(0, spec.heads, (own,))) for which in _APART)
    else:
        yield from rank.columns(made, prefix, [of_heads(spec.nope_dim + spec.v_dim)])
    yield from rank.rows(out, prefix, *of_heads(spec.v_dim))
