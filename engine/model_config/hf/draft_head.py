"""Describes draft heads: a layer over the model's hidden state of a token and the embedding of the next one.
Torch-free.

EAGLE (arXiv:2401.15077) and EAGLE-3 (arXiv:2503.01840) heads are separate checkpoints; heads for multi-token prediction
(arXiv:2412.19437) are in the model's checkpoint, behind its last layer.
"""

from collections.abc import Collection, Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from ..config_fields import ConfigError, Fields
from ..spec.layer import LayerSpec, Norms
from ..spec.model import ModelSpec, with_mixers
from ..spec.mtp_form import StagesForm
from .common import attention_bias, common, expect, sliding_layers

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
    """Prefix of the names of the tensors of the model's first head for multi-token prediction, but for embeddings."""
    form = model.mtp
    return form.prefix + form.first if form and form.prefix else f"{model.prefix}.{len(model.layers)}."


def mtp_prefixes(model: ModelSpec) -> tuple[str, ...]:
    """Prefixes of the names of all its tensors."""
    embedding = model.mtp.embedding if model.mtp is not None else ""
    return (mtp_prefix(model), embedding) if embedding else (mtp_prefix(model),)


def mtp_layer(model: ModelSpec) -> LayerSpec:
    """The layer of that head."""
    return model.mtp_layer or next(layer for layer in reversed(model.layers) if layer.keeps is not None)


class DraftHeadSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One head. Its inputs are tokens and the model's hidden states; its output is fed back for a further token."""

    backbone: ModelSpec
    """Spec of its layer; an assistant has several."""
    taps: tuple[int, ...] = ()
    """The model's layers, ascending, before which the stream is copied; copies are concatenated. Behind its last one:
    its streams. Empty: the input of the model's output head."""
    hidden_size: int
    """The model's hidden size."""
    joins: bool = True
    """Whether a projection joins embedding and hidden state before the layer; otherwise attention takes both, and the
    residual is the hidden state (EAGLE-3)."""
    apart: bool = False
    """Whether embedding and hidden state are projected apart and added, the embedding to each of several streams."""
    norms_whole: bool = False
    """Whether the norm of hidden states is over all of the model's streams as one."""
    bias: bool = False
    """Whether that projection has a bias."""
    norms_taps: bool = False
    """Whether all copies are normed as one before they are projected."""
    norms_each: bool = False
    """Whether each copy is normed by itself."""
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
    takes_stream: bool = False
    """Whether it takes hidden states before the model's last norm, not behind it."""
    skips_first: bool = False
    """Whether position 0 has no embedding."""
    feeds_normed: bool = False
    """Whether the normed output is fed back for a further token."""
    projects_back: bool = False
    """Whether what is fed back is first projected to the model's hidden size (assistants)."""
    block: int = 0
    """Tokens of a block, which is drafted in one pass: the row's last token and masks, that see the keys of all tokens
    before (DFlash). Those keys are made of the model's hidden states alone. 0: one token is drafted a pass."""
    mask_token: int = 0
    anchored: bool = False
    """Whether a block's tokens predict those behind them, its first one the first draft (DSpark); otherwise masks
    predict the token in their place."""
    markov_rank: int = 0
    """Rank of what the token before adds to a block's logits (DSpark); 0: nothing."""
    mean_of: int = 0
    """Streams of the model whose mean stands for each copy (DeepSeek V4.1); 0: it has one."""
    masks_hidden: bool = False
    """Whether all tokens are drafted in one pass, as behind masks that have a stored hidden state (P-EAGLE)."""
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


def check_one_stream(model: ModelSpec) -> None:
    """Raises :class:`..config_fields.ConfigError` for several residual streams, of which a head would copy all."""
    if model.streams is not None:
        raise ConfigError(f"{model.architecture} has {model.streams.streams} residual streams, expected one to copy")


def eagle_head(
    config: Mapping[str, object], stored: Collection[str], model: ModelSpec, *, third: bool
) -> DraftHeadSpec:
    """The head of a checkpoint: EAGLE's, or its ``third`` version, for this ``model``.

    ``config``: the config.json. ``stored``: names of its tensors. Raises :class:`..config_fields.ConfigError`.
    """
    given = Fields(config)
    fields = _told(given) if third else given
    names = {name.removeprefix("model.") for name in stored}
    if third:
        check_one_stream(model)
    own = attention_bias(fields, common(fields, "EAGLE-3" if third else "EAGLE"))
    if len(own.layers) != 1 and not third:
        raise ConfigError(f"num_hidden_layers is {len(own.layers)}, expected 1: a head has one layer")
    if own.vocab_size != model.vocab_size:
        raise ConfigError(f"vocab_size is {own.vocab_size}, expected {model.vocab_size}, the model's")
    hidden = fields.integer("target_hidden_size", own.hidden_size)
    if hidden != model.hidden_size:
        raise ConfigError(f"it is made for hidden states of {hidden}, expected {model.hidden_size}, the model's")
    first = replace(own.layers[0], norms=Norms(mlp_in="post_attention_layernorm"))
    own = replace(own, layers=(first, *own.layers[1:]))
    head = DraftHeadSpec(
        backbone=replace(own, prefix="layers", max_position=model.max_position),
        hidden_size=hidden,
        bias="fc.bias" in names,
        final_norm=False,
        embeds="embed_tokens.weight" in names,
        renamed=_EAGLE,
    )
    if not third:
        return replace(head, vocab_size=own.vocab_size if "lm_head.weight" in stored else 0)
    parallel = next((name for name in fields.texts("architectures") or () if name.lower().startswith("peagle")), "")
    parallel = parallel or ("peagle" if fields.text("speculators_model_type", "") == "peagle" else "")
    if parallel and "mask_hidden" not in names:
        raise ConfigError(f"{parallel} drafts in parallel, and it has no mask_hidden; expected the masks' hidden state")
    layers = len(own.layers)
    backbone = with_mixers(head.backbone, [True] + [False] * (layers - 1), inputs=2)
    if any(name.endswith("self_attn.q_norm.weight") for name in names):
        backbone = with_mixers(backbone, qk_norm="head")
    return replace(
        head,
        backbone=backbone,
        taps=_taps(fields, len(model.layers)),
        joins=False,
        norms=True,
        norms_taps=fields.flag("norm_before_fc"),
        norms_each=fields.flag("fc_norm"),
        norm_before_residual=fields.flag("norm_before_residual"),
        feeds_normed=fields.flag("norm_output"),
        final_norm=True,
        vocab_size=fields.integer("draft_vocab_size", own.vocab_size),
        mask_token=_mask_token(fields, model) if "mask_hidden" in names else 0,
        masks_hidden="mask_hidden" in names,
        renamed=_EAGLE3,
    )


def _told(given: Fields) -> Fields:
    """The fields of an EAGLE-3 head, also of speculators' form. Raises :class:`ConfigError` for what is not known."""
    kind = given.text("speculators_model_type", "")
    if kind not in ("", "eagle3", "peagle"):
        raise ConfigError(f"speculators_model_type is {kind!r}, expected 'eagle3' or 'peagle'")
    own = {name: value for name, value in given.values.items() if value is not None}
    if kind:
        own = {"norm_before_residual": kind == "eagle3", **(given.table("transformer_layer_config") or {}), **own}
    table = Fields(given.table("eagle_config") or {})
    expect(table, {"use_aux_hidden_state": True})
    chosen = "eagle_aux_hidden_state_layer_ids"
    fields = Fields({**{name: table.get(name) for name in (chosen, "norm_before_fc") if table.has(name)}, **own})
    expect(fields, {"logit_scale": 1.0, "use_aux_hidden_state": True})
    if any(sliding_layers(fields)):
        raise ConfigError("layer_types has a 'sliding_attention', expected heads that see all tokens")
    return fields


def _mask_token(fields: Fields, model: ModelSpec) -> int:
    """The token of masks, which every head that drafts in parallel has."""
    names = ("mask_token_id", "pard_token", "ptd_token_id")
    found = next((fields.token_id(name) for name in names if fields.has(name)), None)
    if found is None or found >= model.vocab_size:
        raise ConfigError(f"mask_token_id is {found}, expected a token of the {model.vocab_size} of the vocabulary")
    return found


def stages_head(model: ModelSpec, stages: StagesForm, most: int) -> DraftHeadSpec:
    """The stages in this model's checkpoint; ``most``: most tokens that they are asked for. Raises
    :class:`..config_fields.ConfigError`."""
    if most > stages.block:
        raise ConfigError(
            f"num_speculative_tokens is {most}, expected at most {stages.block}, the tokens of a block of its stages"
        )
    assert model.streams is not None
    layers = (mtp_layer(model),) * stages.count
    return DraftHeadSpec(
        backbone=replace(model, prefix="layers", layers=layers, runs=(), normed_before=()),
        taps=stages.taps,
        hidden_size=model.hidden_size,
        joins=False,
        block=stages.block,
        mask_token=stages.mask_token,
        anchored=True,
        markov_rank=stages.markov_rank,
        mean_of=model.streams.streams,
        renamed=stages.renamed,
    )


def mtp_head(model: ModelSpec) -> DraftHeadSpec:
    """The first head in this model's checkpoint. Raises :class:`..config_fields.ConfigError` if there is none, or it is
    of another kind."""
    form = model.mtp
    if form is None or not model.draft_layers:
        unread = model.draft_prefix or model.draft_layers
        where = "in a form that is not known here" if unread else "without heads"
        raise ConfigError(f"a {model.architecture} comes {where} for multi-token prediction; name another method")
    streams = model.streams if form.narrows else None
    one = replace(model, prefix="layers", layers=(mtp_layer(model),), sublayers=1, runs=(), normed_before=())
    return DraftHeadSpec(
        backbone=replace(one, streams=streams),
        taps=(len(model.layers),) if streams else (),
        hidden_size=model.hidden_size,
        apart=bool(form.embedding_fc),
        norms_whole=form.norms_whole,
        norms=True,
        hidden_first=form.hidden_first,
        takes_stream=form.takes_stream,
        final_norm=bool(form.norm),
        vocab_size=model.vocab_size if form.head else 0,
        embeds=bool(form.embedding),
        skips_first=form.skips_first,
        feeds_normed=form.feeds_normed,
        renamed=form.renamed(mtp_prefix(model), _LAYER),
    )


def _taps(fields: Fields, layers: int) -> tuple[int, ...]:
    """The layers that are named; by default the second, the middle one and the third from the end."""
    chosen = fields.get("eagle_aux_hidden_state_layer_ids")
    found = chosen if isinstance(chosen, list) else [2, layers // 2, layers - 3]
    if not all(isinstance(layer, int) and 0 <= layer < layers for layer in found) or sorted(set(found)) != found:
        raise ConfigError(f"hidden states are taken before layers {found} of {layers}; expected ascending ones")
    return tuple(found)
