"""Heads that draft: a layer over what a model's layers leave of a token, and over the token that follows. Torch-free.

EAGLE (arXiv:2401.15077) and EAGLE-3 (arXiv:2503.01840) are published as checkpoints of their own; heads for multi-token
prediction (arXiv:2412.19437) lie behind the last layer of a model's own.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from .config_fields import ConfigError, Fields
from .hf_common import attention_bias, common
from .model_spec import LayerSpec, ModelSpec, Norms, with_layers, with_mixers

_LAYER: Final = "layers.0."
_EAGLE: Final = (("model.", ""),)
_EAGLE3: Final = (
    ("model.", ""),
    ("midlayer.", _LAYER),
    (f"{_LAYER}hidden_norm.", "hidden_norm."),
    (f"{_LAYER}input_layernorm.", "embedding_norm."),
)


class MTPNames(NamedTuple):
    """How a checkpoint begins the names of a head for multi-token prediction, the first of its heads."""

    whole: str
    layer: str
    embedding_norm: str
    hidden_norm: str
    fc: str
    norm: str


def mtp_names(model: ModelSpec) -> MTPNames:
    """DeepSeek's lies behind the model's layers as if it were one of them, Qwen's stands apart."""
    if model.draft_prefix:
        parts = ("", "layers.0.", "pre_fc_norm_embedding.", "pre_fc_norm_hidden.", "fc.", "norm.")
        return MTPNames(*(model.draft_prefix + part for part in parts))
    behind = f"{model.prefix}.{len(model.layers)}."
    return MTPNames(*(behind + part for part in ("", "", "enorm.", "hnorm.", "eh_proj.", "shared_head.norm.")))


def mtp_layer(model: ModelSpec) -> LayerSpec:
    """What the head's layer is like: the model's last that attends."""
    return next(layer for layer in reversed(model.layers) if layer.keeps is not None)


@dataclass(frozen=True, kw_only=True)
class DraftHeadSpec:
    """One head. Tokens and hidden states of its model go in; what it leaves goes in again for a further token."""

    backbone: ModelSpec
    """Of its one layer."""
    taps: tuple[int, ...] = ()
    """Layers of the model, ascending: the stream before each is taken, all side by side. Empty: what the model's head
    would get."""
    hidden_size: int
    """Of the model."""
    joins: bool = True
    """A product takes the token's embedding and the hidden state beside it, and its result goes through the layer; else
    attention takes both, and the hidden state goes past it (EAGLE-3)."""
    bias: bool = False
    """Of that product."""
    norms: bool = False
    """Embedding and hidden state are normed before."""
    norm_before_residual: bool = False
    """What goes past the layer's attention is normed, too."""
    final_norm: bool = True
    """What the layers leave is normed for the head."""
    vocab_size: int = 0
    """Tokens that it can draft, where it has a head of its own; 0: the model's head."""
    embeds: bool = False
    """It has embeddings of its own."""
    skips_first: bool = False
    """At position 0 it sees no embedding."""
    feeds_normed: bool = False
    """For a further token it gets what its layer left as it is normed for the head, not as it is."""
    renamed: tuple[tuple[str, str], ...] = ()
    """Beginnings of the names that tensors are stored under, one after the other, and what stands in their place."""

    def name_of(self, stored: str) -> str:
        for beginning, place in self.renamed:
            if stored.startswith(beginning):
                stored = place + stored.removeprefix(beginning)
        return stored

    def stored_as(self, name: str) -> str:
        """The inverse, of a tensor's name or a part's."""
        name += "."
        for beginning, place in reversed(self.renamed):
            if name.startswith(place):
                name = beginning + name.removeprefix(place)
        return name.removesuffix(".")


def eagle_head(
    config: Mapping[str, object], stored: Collection[str], model: ModelSpec, *, third: bool
) -> DraftHeadSpec:
    """Of a checkpoint's config.json, and the names that it stores tensors under: EAGLE's, or its ``third`` version, for
    this ``model``. Raises :class:`.config_fields.ConfigError`."""
    fields = Fields(config)
    own = attention_bias(fields, common(fields, "EAGLE-3" if third else "EAGLE"))
    if len(own.layers) != 1:
        raise ConfigError(f"num_hidden_layers is {len(own.layers)}, expected 1: a head has one layer")
    if own.vocab_size != model.vocab_size:
        raise ConfigError(f"vocab_size is {own.vocab_size}, expected {model.vocab_size}, the model's")
    hidden = fields.integer("target_hidden_size", own.hidden_size)
    if hidden != model.hidden_size:
        raise ConfigError(f"it is made for hidden states of {hidden}, expected {model.hidden_size}, the model's")
    own = with_layers(own, norms=Norms(mlp_in="post_attention_layernorm"))
    head = DraftHeadSpec(
        backbone=replace(own, prefix="layers", max_position=model.max_position),
        hidden_size=hidden,
        bias="fc.bias" in {name.removeprefix("model.") for name in stored},
        final_norm=False,
        embeds=any(name.endswith("embed_tokens.weight") for name in stored),
        renamed=_EAGLE,
    )
    if not third:
        return replace(head, vocab_size=own.vocab_size if "lm_head.weight" in stored else 0)
    return replace(
        head,
        backbone=with_mixers(head.backbone, inputs=2),
        taps=_taps(config.get("eagle_config"), len(model.layers)),
        joins=False,
        norms=True,
        norm_before_residual=fields.flag("norm_before_residual"),
        final_norm=True,
        vocab_size=fields.integer("draft_vocab_size", own.vocab_size),
        renamed=_EAGLE3,
    )


def mtp_head(model: ModelSpec) -> DraftHeadSpec:
    """The first of those that lie behind the layers of this model's checkpoint. Raises
    :class:`.config_fields.ConfigError` where there are none, or of another kind."""
    if not model.draft_layers:
        where = "in another form than DeepSeek's or Qwen's" if model.draft_prefix else "without heads"
        raise ConfigError(f"a {model.architecture} comes {where} for multi-token prediction; name another method")
    names, apart = mtp_names(model), bool(model.draft_prefix)
    return DraftHeadSpec(
        backbone=replace(model, prefix="layers", layers=(mtp_layer(model),)),
        hidden_size=model.hidden_size,
        norms=True,
        skips_first=not apart,
        feeds_normed=apart,
        renamed=(
            (names.embedding_norm, "embedding_norm."),
            (names.hidden_norm, "hidden_norm."),
            (names.fc, "fc."),
            (names.norm, "norm."),
            (names.layer, _LAYER),
        ),
    )


def _taps(config: object, layers: int) -> tuple[int, ...]:
    """As ``eagle_config`` says, or by default the second, the middle one and the third from the end."""
    chosen = config.get("eagle_aux_hidden_state_layer_ids") if isinstance(config, Mapping) else None
    found = chosen if isinstance(chosen, list) else [2, layers // 2, layers - 3]
    if not all(isinstance(layer, int) and 0 <= layer < layers for layer in found) or sorted(set(found)) != found:
        raise ConfigError(f"hidden states are taken before layers {found} of {layers}; expected ascending ones")
    return tuple(found)
