"""Reads the config.json of Gemma 4's assistants: draft heads of several layers that attend to the keys of the model
that they draft for, at one position for all of a row's drafts. Torch-free."""

from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from ..config_fields import ConfigError, Fields
from ..spec.attention import AttentionSpec
from ..spec.layer import LayerSpec
from ..spec.model import ModelSpec
from .draft_head import DraftHeadSpec
from .gemma4 import gemma4
from .text_defaults import text_defaults

_ARCHITECTURES: Final = ("Gemma4AssistantForCausalLM", "Gemma4UnifiedAssistantForCausalLM")
_NAMES: Final = (
    ("model.layers.", "layers."),
    ("model.norm.", "norm."),
    ("model.embed_tokens.", "lm_head."),
    ("pre_projection.", "fc."),
    ("post_projection.", "back."),
    ("masked_embedding.centroids.", "centroids."),
    ("masked_embedding.token_ordering", "token_ordering"),
)


def assistant(config: Mapping[str, object], model: ModelSpec) -> DraftHeadSpec:
    """The assistant for this ``model``. Raises :class:`..config_fields.ConfigError` if it is none, or does not fit."""
    fields = Fields(config)
    names = fields.texts("architectures") or ()
    if not {*names} & {*_ARCHITECTURES}:
        raise ConfigError(f"its architecture is {', '.join(names) or 'not said'}, expected {_ARCHITECTURES[0]}")
    text = {**text_defaults("gemma4", "gemma4_text"), **(fields.table("text_config") or {})}
    own = {"num_kv_shared_layers": 0, "hidden_size_per_layer_input": None}
    spec = gemma4(Fields({**text, **own}), names[0])
    if spec.vocab_size != model.vocab_size:
        raise ConfigError(f"vocab_size is {spec.vocab_size}, expected {model.vocab_size}, the model's")
    hidden = fields.integer("backbone_hidden_size", 1536)
    if hidden != model.hidden_size:
        raise ConfigError(f"it is made for hidden states of {hidden}, expected {model.hidden_size}, the model's")
    clusters = fields.integer("num_centroids", 2048) if fields.flag("use_ordered_embeddings") else 0
    if clusters and spec.vocab_size % clusters:
        raise ConfigError(f"num_centroids is {clusters}, expected a divisor of vocab_size, {spec.vocab_size}")
    layers = tuple(_sharing(layer, model) for layer in spec.layers)
    return DraftHeadSpec(
        backbone=replace(spec, prefix="layers", layers=layers, keys_of=model),
        hidden_size=hidden,
        vocab_size=spec.vocab_size,
        projects_back=True,
        feeds_normed=True,
        clusters=clusters,
        chosen_clusters=min(clusters, fields.integer("centroid_intermediate_top_k", 32)),
        renamed=_NAMES,
    )


def _sharing(layer: LayerSpec, model: ModelSpec) -> LayerSpec:
    """The layer with the keys of the model's last layer that caches any and sees as far."""
    mixer = layer.attention
    for number in reversed(range(len(model.layers))):
        source = model.layers[number].mixer
        if isinstance(source, AttentionSpec) and source.keeps and bool(source.window) == bool(mixer.window):
            break
    else:
        kind = "with a window" if mixer.window else "without a window"
        raise ConfigError(f"a {model.architecture} has no layer {kind} whose keys it could see")
    if (source.kv_heads, source.head_dim) != (mixer.kv_heads, mixer.head_dim):
        raise ConfigError(
            f"it sees {mixer.kv_heads} key-value heads of {mixer.head_dim}, expected {source.kv_heads} of "
            f"{source.head_dim}, those of layer {number} of the model"
        )
    # its queries stand behind the last key, and the cache keeps what such a query of the model sees
    return replace(layer, mixer=replace(mixer, shares=number, window=max(0, source.window - 1)))
