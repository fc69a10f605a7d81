"""Contradictory fields of an :class:`.attention.AttentionSpec`, and combinations that no layer computes."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from ..config_fields import ConfigError
from .positions import check_rope

if TYPE_CHECKING:
    from .attention import AttentionSpec


def check_attention(spec: "AttentionSpec") -> None:
    """Raise :class:`ConfigError` for the first contradiction."""
    for is_found, message in _CONTRADICTIONS:
        if is_found(spec):
            raise ConfigError(message.format(spec=spec, halves=spec.kv_heads // 2, slopes=len(spec.slopes)))
    for part in (spec.key_convs, spec.distance_bias):
        if part is not None:
            part.check()
    if spec.block_sums is not None:
        spec.block_sums.check(bool(spec.window and spec.distance_bias))
    if spec.rope is not None:
        check_rope(spec.rope, spec.head_dim)
    if spec.index is not None:
        spec.index.check(0 if spec.rope is None else spec.rope.rotary_dim or spec.head_dim)


def _shares(spec: "AttentionSpec") -> bool:
    """Whether it uses the keys and values of another layer."""
    return spec.shares >= 0


def _gates_among_queries(spec: "AttentionSpec") -> bool:
    return spec.gated and not spec.gate


def _more_than_heads(spec: "AttentionSpec") -> bool:
    """Whether it has more than rotated, normed and gated heads over keys and values of its own."""
    parts = spec.fused, spec.v_dim, spec.index, spec.loop, spec.convolved, spec.chunked
    return any(parts) or _gates_among_queries(spec) or _shares(spec) or spec.qk_norm == "full"


def _not_alone(spec: "AttentionSpec") -> bool:
    """Whether chosen heads, differences of heads, or queries of a latent come with another part than rotation."""
    between = tuple(part for part in (spec.chosen, spec.difference, spec.query_latent) if part is not None)
    if not between:
        return False
    own = {"chosen": None, "difference": None, "query_latent": None, "qkv_bias": False, "output_bias": False}
    rest = msgspec.structs.replace(spec, **own, rope=None, out="", name="")
    plain = type(spec)(spec.heads, spec.kv_heads, spec.head_dim, spec.scale, rope=None, out="", name="")
    return rest != plain or len(between) > 1 or (spec.difference is None and spec.qkv_bias)


class _Contradiction(NamedTuple):
    is_found: Callable[["AttentionSpec"], object]
    message: str
    """Names fields of ``spec``, ``halves`` of its key-value heads, and how many ``slopes`` it has."""


_HEADS: Final = (
    _Contradiction(
        lambda spec: spec.heads % spec.kv_heads,
        "{spec.heads} query heads do not divide among {spec.kv_heads} key-value heads",
    ),
    _Contradiction(lambda spec: spec.chunked and not spec.window, "attention in chunks has a chunk of no tokens"),
    _Contradiction(
        lambda spec: spec.norms_each_head and (spec.rotated_first or spec.qk_norm_names is None),
        "layer norms of heads that are rotated before, or have no weights, are not known",
    ),
)
_STORED: Final = (
    _Contradiction(
        lambda spec: spec.chunk is not None and not spec.fused,
        "chunks of queries, keys and values that are stored apart are not known",
    ),
    _Contradiction(
        lambda spec: spec.by_group and (spec.gated or not spec.fused),
        "heads that are stored one after another, with gates or apart, are not known",
    ),
)
_CONVOLVED: Final = (
    _Contradiction(
        lambda spec: (
            spec.convolved
            and (spec.gated or spec.fused or spec.v_dim or spec.qkv_bias or spec.qk_norm != "none" or _shares(spec))
        ),
        "convolutions in attention with more than plain heads are not known",
    ),
    _Contradiction(
        lambda spec: (
            spec.convolved and (min(spec.convolved.by_channel, spec.convolved.by_head) < 1 or not spec.convolved.before)
        ),
        "convolutions see {spec.convolved.before} tokens before each, expected at least 1",
    ),
    _Contradiction(lambda spec: spec.convolved and spec.kv_size % 2, "values of {spec.kv_size} columns have no halves"),
    _Contradiction(
        lambda spec: _more_than_heads(spec) and (spec.key_convs or spec.distances),
        "attention with numbers by distance, or convolved keys, and more than heads is not known",
    ),
)
_PARTS_OF_HEADS: Final = (
    _Contradiction(
        lambda spec: (
            spec.apart
            and (
                any((spec.fused, spec.paired, spec.convolved, spec.value_experts, spec.index, spec.qkv_bias))
                or _shares(spec)
                or spec.inputs > 1
            )
        ),
        "queries, keys and values of inputs of their own, with more than heads, are not known",
    ),
    _Contradiction(
        _not_alone,
        "chosen heads, differences of heads, or queries of a latent, in attention with more than rotation are not "
        "known",
    ),
    _Contradiction(
        lambda spec: spec.chosen and spec.heads != spec.chosen.top_k * spec.kv_heads,
        "{spec.chosen.top_k} chosen experts do not have {spec.heads} query heads",
    ),
    _Contradiction(
        lambda spec: spec.difference and (spec.kv_heads % 4 or spec.heads % 4),
        "{halves} key-value heads have no halves to subtract",
    ),
    _Contradiction(
        lambda spec: (
            spec.value_experts
            and (
                any((spec.chosen, spec.difference, spec.query_latent, spec.convolved, spec.key_convs, spec.index))
                or any((spec.fused, spec.paired, spec.v_dim, spec.tied_values))
                or _shares(spec)
            )
        ),
        "values that experts make, in attention with more than gated heads, are not known",
    ),
    _Contradiction(
        lambda spec: spec.value_experts and not 0 < spec.value_experts.top_k <= spec.value_experts.experts,
        "a token chooses {spec.value_experts.top_k} of the {spec.value_experts.experts} experts of values",
    ),
)
_MATRICES: Final = (
    _Contradiction(
        lambda spec: spec.shards and (spec.by_group or spec.gated or not spec.fused or spec.kv_heads != spec.heads),
        "a matrix in parts with gates, apart, or with fewer key-value heads is not known",
    ),
    _Contradiction(
        lambda spec: spec.shards and spec.heads % spec.shards,
        "{spec.heads} heads do not divide among the {spec.shards} parts of a matrix",
    ),
    _Contradiction(
        lambda spec: spec.paired and (spec.fused or spec.gated or spec.v_dim or spec.tied_values or spec.index),
        "keys and values that are stored together, in attention with more than plain heads, are not known",
    ),
    _Contradiction(
        lambda spec: spec.loop and (spec.qk_norm != "none" or spec.gated or spec.sinks or spec.softcap or spec.slopes),
        "attention to an earlier loop with more than plain heads is not known",
    ),
)
_GATES: Final = (
    _Contradiction(
        lambda spec: spec.head_out_norm and not spec.gated,
        "heads whose output is normed and has no gate are not known",
    ),
    _Contradiction(
        lambda spec: spec.gate_by_head and not spec.gate,
        "a gate of each head that is stored among queries is not known",
    ),
    _Contradiction(
        lambda spec: spec.v_dim > spec.head_dim or (spec.v_dim and (spec.gated or spec.by_group or spec.tied_values)),
        "values of {spec.v_dim} dimensions, of keys of {spec.head_dim}, are not known here",
    ),
    _Contradiction(
        lambda spec: spec.gated and spec.qk_norm == "full",
        "gated attention whose queries are normed as a whole is not known",
    ),
    _Contradiction(
        lambda spec: spec.gate_bias and not spec.gate, "a bias of gates that are stored among queries is not known"
    ),
    _Contradiction(
        lambda spec: spec.gate and spec.fused != spec.gate_first,
        "a fused matrix that has gates behind queries is not known",
    ),
    _Contradiction(
        lambda spec: spec.gate_scales and (not spec.gate or spec.gate_by_head),
        "learned factors on gates that are not stored apart, one a number, are not known",
    ),
    _Contradiction(
        lambda spec: spec.query_scales and not (spec.gated and spec.rotated_first),
        "learned factors on queries without gates, or that rotate behind norms, are not known",
    ),
)
_POSITIONS: Final = (
    _Contradiction(
        lambda spec: spec.temperature_beta and spec.temperature_power,
        "queries that are scaled by a logarithm and a power of the position are not known",
    ),
    _Contradiction(
        lambda spec: (spec.temperature_beta or spec.temperature_power) and spec.temperature_floor < 1,
        "queries are scaled every {spec.temperature_floor} positions, expected at least 1",
    ),
    _Contradiction(
        lambda spec: spec.slopes and len(spec.slopes) != spec.heads,
        "{slopes} slopes of ALiBi do not fit {spec.heads} query heads",
    ),
    _Contradiction(
        lambda spec: (
            spec.answer_window
            and (
                any((spec.window, spec.index, spec.loop, spec.slopes, spec.distances, spec.distance_bias))
                or _shares(spec)
                or spec.whole_spans
            )
        ),
        "a window of an answer in attention with more than plain heads is not known",
    ),
    _Contradiction(
        lambda spec: (
            spec.distance_bias and (spec.slopes or spec.index or spec.loop or _shares(spec) or spec.whole_spans)
        ),
        "a bias by distance in attention with more than plain heads is not known",
    ),
    _Contradiction(
        lambda spec: (
            spec.merged
            and (
                _more_than_heads(spec)
                or any((spec.sinks, spec.slopes, spec.distance_bias, spec.whole_spans, spec.gated))
            )
        ),
        "attention that also sees what an encoder made, with more than plain heads, is not known",
    ),
    _Contradiction(
        lambda spec: (
            spec.index
            and (
                any((spec.window, spec.softcap, spec.sinks, spec.fused, spec.v_dim))
                or _gates_among_queries(spec)
                or _shares(spec)
            )
        ),
        "an index of blocks in attention with more than plain heads is not known",
    ),
)
_CONTRADICTIONS: Final = (*_HEADS, *_STORED, *_CONVOLVED, *_PARTS_OF_HEADS, *_MATRICES, *_GATES, *_POSITIONS)
