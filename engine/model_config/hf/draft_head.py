"""Describes draft heads: a layer over the model's hidden state of a token and the embedding of the next one.
Torch-free.

EAGLE (arXiv:2401.15077) and EAGLE-3 (arXiv:2503.01840) heads are separate checkpoints; heads for multi-token prediction
(arXiv:2412.19437) are in the model's checkpoint, behind its last layer.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final

from ..config_fields import ConfigError, Fields
from ..spec.layer import LayerSpec, Norms
from ..spec.model import ModelSpec, with_layers, with_mixers
from .common import attention_bias, common

_LAYER: Final = "layers.0."
_EAGLE: Final = (("model.", ""),)
_EAGLE3: Final = (
    ("model.", ""),
    ("midlayer.", _LAYER),
    (f"{_LAYER}hidden_norm.", "hidden_norm."),
    (f"{_LAYER}input_layernorm.", "embedding_norm."),
)


def mtp_head_stored(model: ModelSpec) -> bool:
    """Whether the model's checkpoint has a head for multi-token prediction in a known form."""
    return model.draft_layers > 0 and model.mtp is not None


def mtp_prefix(model: ModelSpec) -> str:
    """Prefix of the names of all tensors of the model's first head for multi-token prediction."""
    return model.draft_prefix or f"{model.prefix}.{len(model.layers)}."


def mtp_layer(model: ModelSpec) -> LayerSpec:
    """The layer of that head."""
    return model.mtp_layer or next(layer for layer in reversed(model.layers) if layer.keeps is not None)


@dataclass(frozen=True, kw_only=True)
class DraftHeadSpec:
    """One head. Its inputs are tokens and the model's hidden states; its output is fed back for a further token."""

    backbone: ModelSpec
    """Spec of its layer; an assistant has several."""
    taps: tuple[int, ...] = ()
    """The model's layers, ascending, before which the stream is copied; copies are concatenated. Empty: the input of
    the model's output head."""
    hidden_size: int
    """The model's hidden size."""
    joins: bool = True
    """Whether a projection joins embedding and hidden state before the layer; otherwise attention takes both, and the
    residual is the hidden state (EAGLE-3)."""
    bias: bool = False
    """Whether that projection has a bias."""
    norms: bool = False
    """Whether embedding and hidden state are normed before."""
    hidden_first: bool = False
    """Whether the projection takes the hidden state before the embedding."""
    norm_before_residual: bool = False
    """Whether the residual of the attention is normed too."""
    final_norm: bool = True
    """Whether the layer's output is normed before the output head."""
    vocab_size: int = 0
    """Tokens that it can draft with its own output head; 0: it uses the model's."""
    embeds: bool = False
    """Whether it has its own embeddings."""
    skips_first: bool = False
    """Whether position 0 has no embedding."""
    feeds_normed: bool = False
    """Whether the normed output is fed back for a further token."""
    projects_back: bool = False
    """Whether what is fed back is first projected to the model's hidden size (assistants)."""
    clusters: int = 0
    """Clusters of equally many tokens, of which it drafts from the ``chosen_clusters`` that score best; 0: none."""
    chosen_clusters: int = 0
    renamed: tuple[tuple[str, str], ...] = ()
    """(stored prefix, replacement) pairs of tensor names, applied in order."""

    @property
    def shares_keys(self) -> bool:
        """Whether it attends to the model's keys and caches none."""
        return self.backbone.keys_of is not None

    def name_of(self, stored: str) -> str:
        for beginning, place in self.renamed:
            if stored.startswith(beginning):
                stored = place + stored.removeprefix(beginning)
        return stored

    def stored_as(self, name: str) -> str:
        """The inverse, for the name of a tensor or a part."""
        name += "."
        for beginning, place in reversed(self.renamed):
            if name.startswith(place):
                name = beginning + name.removeprefix(place)
        return name.removesuffix(".")


def eagle_head(
    config: Mapping[str, object], stored: Collection[str], model: ModelSpec, *, third: bool
) -> DraftHeadSpec:
    """The head of a checkpoint: EAGLE's, or its ``third`` version, for this ``model``.

    ``config``: the config.json. ``stored``: names of its tensors. Raises :class:`..config_fields.ConfigError`.
    """
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
    """The first head in this model's checkpoint. Raises :class:`..config_fields.ConfigError` if there is none, or it is
    of another kind."""
    form = model.mtp
    if form is None or not model.draft_layers:
        unread = model.draft_prefix or model.draft_layers
        where = "in a form that is not known here" if unread else "without heads"
        raise ConfigError(f"a {model.architecture} comes {where} for multi-token prediction; name another method")
    return DraftHeadSpec(
        backbone=replace(model, prefix="layers", layers=(mtp_layer(model),), sublayers=1, runs=()),
        hidden_size=model.hidden_size,
        norms=True,
        hidden_first=form.hidden_first,
        final_norm=bool(form.norm),
        vocab_size=model.vocab_size if form.head else 0,
        skips_first=form.skips_first,
        feeds_normed=form.feeds_normed,
        renamed=form.renamed(mtp_prefix(model), _LAYER),
    )


def _taps(config: object, layers: int) -> tuple[int, ...]:
    """The layers in ``eagle_config``; by default the second, the middle one and the third from the end."""
    chosen = config.get("eagle_aux_hidden_state_layer_ids") if isinstance(config, Mapping) else None
    found = chosen if isinstance(chosen, list) else [2, layers // 2, layers - 3]
    if not all(isinstance(layer, int) and 0 <= layer < layers for layer in found) or sorted(set(found)) != found:
        raise ConfigError(f"hidden states are taken before layers {found} of {layers}; expected ascending ones")
    return tuple(found)
