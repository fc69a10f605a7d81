"""Reader of Gemma 3n's config.json."""

import math
from collections.abc import Sequence
from statistics import NormalDist

from msgspec.structs import replace

from ..config_fields import ConfigError, Fields
from ..spec.layer import PerLayerSpec
from ..spec.model import SANDWICH, ModelSpec, dense_mlp, with_layers, with_mixers
from ..spec.streams import AltUpSpec, LaurelSpec
from ..spec.token_input import TokenInputSpec
from .common import alternating, attention_bias, common, gelu_tanh, local_rope, slide, sliding_layers, softcap_of
from .rope import rope_from_hf

_SPARSE_LAYERS, _SPARSITY = 10, 0.95
"""Of a file that says nothing of it: how many first layers of a deeper model are sparse, and how sparse."""


def gemma3n(fields: Fields, name: str) -> ModelSpec:
    """Several residual streams, a product of low rank beside attention, and an embedding of each token for every layer.
    The last layers see keys and values of earlier ones, and the gates of some are sparse."""
    sizes = fields.get("intermediate_size")
    widths = fields.numbers("intermediate_size") if isinstance(sizes, Sequence) else ()
    values = {"tie_word_embeddings": True, **fields.values, "hidden_act": gelu_tanh(fields)}
    spec = common(Fields(values | ({"intermediate_size": widths[0]} if widths else {})), name, head_dim=256)
    head_dim, layers = spec.layers[0].attention.head_dim, len(spec.layers)
    spec = with_mixers(attention_bias(fields, spec), scale=1.0, qk_norm="head", v_norm=True)
    spec = with_mixers(spec, rope=rope_from_hf(fields.values, head_dim, theta=1_000_000.0, layer_type="full_attention"))
    slides = sliding_layers(fields) or alternating(spec, 5)
    local = local_rope(fields, head_dim, fields.number("rope_local_base_freq", 10_000.0))
    spec = replace(spec, max_position=fields.integer("max_position_embeddings"))
    spec = slide(with_mixers(spec, slides, rope=local), fields.integer("sliding_window", 512, least=0), slides)
    spec = _shared(spec, slides, layers - fields.integer("num_kv_shared_layers", 15, least=0))
    laurel = LaurelSpec(fields.integer("laurel_rank", 64))
    spec = with_layers(spec, norms=SANDWICH, beside=laurel, sum_scale=0.5**0.5)
    return replace(
        _sparse(fields, spec, widths),
        input=TokenInputSpec(scale=math.sqrt(spec.hidden_size)),
        logits_softcap=softcap_of(fields, "final_logit_softcapping", 30.0),
        per_layer=PerLayerSpec(
            fields.integer("vocab_size_per_layer_input", 262_144), fields.integer("hidden_size_per_layer_input", 256)
        ),
        streams=AltUpSpec(
            fields.integer("altup_num_inputs", 4),
            fields.integer("altup_active_idx", 0, least=0),
            fields.flag("altup_correct_scale", True),
        ),
    )


def _shared(spec: ModelSpec, slides: Sequence[bool], first: int) -> ModelSpec:
    """Layers from ``first`` on see keys and values of the last one of their kind before it."""
    before, layers = list(slides[: max(0, first)]), list(spec.layers)
    for number in range(len(before), len(layers)):
        if slides[number] not in before:
            kind = "sliding_attention" if slides[number] else "full_attention"
            raise ConfigError(f"num_kv_shared_layers leaves no layer of {kind} whose keys the others could see")
        source = len(before) - 1 - before[::-1].index(slides[number])
        layers[number] = replace(layers[number], mixer=replace(layers[number].attention, shares=source))
    return replace(spec, layers=tuple(layers))


def _sparse(fields: Fields, spec: ModelSpec, widths: Sequence[float]) -> ModelSpec:
    """Each layer's network as wide and as sparse as the file says."""
    layers = len(spec.layers)
    sparsity: Sequence[float] = fields.numbers("activation_sparsity_pattern")
    if not fields.has("activation_sparsity_pattern"):
        sparsity = [_SPARSITY if layers > _SPARSE_LAYERS and at < _SPARSE_LAYERS else 0.0 for at in range(layers)]
    mlp = dense_mlp(spec)
    for what, listed in (
        ("intermediate_size", widths or (mlp.inner,) * layers),
        ("activation_sparsity_pattern", sparsity),
    ):
        if len(listed) != layers:
            raise ConfigError(f"{what} is of {len(listed)} layers, expected {layers}")
    if not all(0 <= each < 1 for each in sparsity):
        raise ConfigError(f"activation_sparsity_pattern is {list(sparsity)}, expected numbers from 0 to less than 1")
    normal = NormalDist()
    networks = (
        replace(
            mlp,
            inner=Fields({"intermediate_size": width}).integer("intermediate_size"),
            gate_cutoff=normal.inv_cdf(share) if share else None,
        )
        for width, share in zip(widths or (mlp.inner,) * layers, sparsity, strict=True)
    )
    return replace(spec, layers=tuple(replace(a, mlp=m) for a, m in zip(spec.layers, networks, strict=True)))
