"""Mixers of tokens split over workers: each has some of the heads. Torch-free.

Where there are fewer key-value heads than workers, several workers have the same one.
"""

from dataclasses import replace

from ..attention_spec import AttentionSpec
from ..config_fields import ConfigError
from ..model_spec import MixerSpec
from .cuts import Cut, Cuts, Ranges, Rank


def split_mixer(spec: MixerSpec, rank: Rank, prefix: str, hidden: int) -> tuple[MixerSpec, dict[str, Cut]]:
    """``prefix`` is that of the layer. Raises :class:`ConfigError` for one that cannot be split."""
    if not isinstance(spec, AttentionSpec):
        raise ConfigError(f"layers of {type(spec).__name__.removesuffix('Spec')} are not split")
    if spec.by_group or spec.transposed:
        raise ConfigError("attention whose heads are stored one after another, or transposed, is not split")
    if spec.shares >= 0 or spec.qk_norm in ("full", "layer_own"):
        raise ConfigError("attention that norms heads together, or shares keys of layers, is not split")
    (_, kv_heads), heads = _kv_heads(spec, rank), rank.each(spec.heads, "query heads")
    return replace(spec, heads=heads, kv_heads=kv_heads), dict(_cut_attention(spec, rank, prefix, hidden))


def _kv_heads(spec: AttentionSpec, rank: Rank) -> tuple[int, int]:
    """The first of its key-value heads, which may be fewer than ranks, and how many."""
    if spec.kv_heads % rank.size and rank.size % spec.kv_heads:
        raise ConfigError(f"{spec.kv_heads} key-value heads do not divide among {rank.size} workers")
    if spec.kv_heads >= rank.size:
        return rank.own(spec.kv_heads)
    return rank.number * spec.kv_heads // rank.size, 1


def _cut_attention(spec: AttentionSpec, rank: Rank, prefix: str, hidden: int) -> Cuts:
    first, heads = rank.own(spec.heads)
    first_kv, kv_heads = _kv_heads(spec, rank)
    width = spec.head_dim * (2 if spec.gated and not spec.gate else 1)
    queries = first * width, heads * width
    keys = first_kv * spec.head_dim, kv_heads * spec.head_dim
    into, out = spec.projections(hidden)
    if spec.fused:
        asked = spec.heads * width
        values = asked + spec.kv_size
        ranges: list[Ranges] = [(queries, (asked + keys[0], keys[1]), (values + keys[0], keys[1]))]
    else:
        ranges = [*[(queries,)] * (len(into.parts) - 2), (keys,), (keys,)]
    yield from rank.columns(into, prefix, ranges)
    yield from rank.rows(out, prefix, (first * spec.head_dim, heads * spec.head_dim))
    if spec.sinks:
        yield f"{prefix}.{spec.name}.sinks", Cut(0, spec.heads, ((first, heads),))
