"""Reads the config.json of heads that draft blocks (DFlash, arXiv:2602.06036, and DSpark): a few layers of Qwen3's,
whose keys and values of earlier tokens are made of the model's hidden states. Torch-free."""

from collections.abc import Collection, Mapping
from typing import Any, Final

from msgspec.structs import replace

from ..config_fields import ConfigError, Fields
from ..spec.model import ModelSpec, with_mixers
from .common import attention_bias, common, expect, sliding_layers, with_defaults
from .draft_head import DraftHeadSpec, check_one_stream

_MUSE: Final = "MuseGlimmerAssistantModel"
_ARCHITECTURES: Final = {"dflash": ("DFlashDraftModel", _MUSE), "dspark": ("Qwen3DSparkModel", "Qwen3OmniDSparkModel")}
_NAMES: Final = (
    ("model.", ""),
    ("encoder.fc.", "fc."),
    ("encoder.output_norm_enc.", "hidden_norm."),
)
_KIND: Final = "speculators_model_type"
_TABLE: Final = frozenset(
    ("mask_token_id", "target_layer_ids", "causal", "use_swa", "swa_window_size", "attention_sink_bias", "block_size")
)
"""Fields of ``dflash_config`` that are honoured."""
_FIXED: Final[Mapping[str, object]] = {
    "use_aux_hidden_state": True,
    "attention_value_scale": 1.0,
}
"""Values of others that change nothing."""


def block_head(
    config: Mapping[str, object], stored: Collection[str], model: ModelSpec, most: int, method: str = "dflash"
) -> DraftHeadSpec:
    """The head of a checkpoint for this ``model``, as z-lab, Muse Glimmer's assistants and speculators have it.

    ``config``: the config.json. ``stored``: names of its tensors. ``most``: most tokens that it is asked for.
    ``method``: ``dspark`` for what also has a bias by the token before. Raises
    :class:`..config_fields.ConfigError`.
    """
    check_one_stream(model)
    fields, table = _joined(Fields(config), model, method)
    names = {name.removeprefix("model.") for name in stored}
    spec = attention_bias(fields, common(fields, "DFlash", head_dim=128, theta=1e6))
    spec = _seeing(with_mixers(spec, qk_norm="head"), fields, table)
    embeds, heads = "embed_tokens.weight" in names, "lm_head.weight" in names
    drafted = fields.integer("draft_vocab_size", spec.vocab_size)
    if spec.vocab_size != model.vocab_size:
        raise ConfigError(f"vocab_size is {spec.vocab_size}, expected {model.vocab_size}, the model's")
    if drafted != spec.vocab_size and not heads:
        raise ConfigError(f"draft_vocab_size is {drafted}, and it has no lm_head; expected {spec.vocab_size}")
    hidden = fields.integer("target_hidden_size", spec.hidden_size if not embeds or not heads else model.hidden_size)
    if hidden != model.hidden_size:
        raise ConfigError(f"it is made for hidden states of {hidden}, expected {model.hidden_size}, the model's")
    if spec.hidden_size != hidden and not (embeds and heads):
        raise ConfigError(
            f"hidden_size is {spec.hidden_size}, expected {hidden}: it uses the model's embeddings or output head"
        )
    mask = table.token_id("mask_token_id")
    if mask is None or mask >= model.vocab_size:
        raise ConfigError(f"mask_token_id is {mask}, expected a token of the {model.vocab_size} of the vocabulary")
    anchored = method == "dspark" and fields.flag("sample_from_anchor", default=not fields.has(_KIND))
    block = table.integer("block_size", fields.integer("block_size", most + (not anchored)))
    if most > (fitting := block if anchored else block - 1):
        raise ConfigError(f"num_speculative_tokens is {most}, expected at most {fitting}: a block has {block} tokens")
    windows = [layer.attention.window for layer in spec.layers if layer.attention.window]
    if windows and block > min(windows):
        raise ConfigError(f"a block has {block} tokens, expected at most {min(windows)}, those that a token sees")
    return DraftHeadSpec(
        backbone=replace(spec, prefix="layers", max_position=model.max_position),
        taps=_taps(table, model),
        hidden_size=hidden,
        joins=False,
        bias="fc.bias" in names,
        embeds=embeds,
        vocab_size=drafted if heads else 0,
        block=block,
        mask_token=mask,
        anchored=anchored,
        markov_rank=fields.integer("markov_rank") if method == "dspark" else 0,
        renamed=_NAMES,
    )


def _joined(fields: Fields, model: ModelSpec, method: str) -> tuple[Fields, Fields]:
    """The fields of the layers, and those of drafting."""
    if (kind := fields.text(_KIND, "")) not in ("", method):
        raise ConfigError(f"speculators_model_type is {kind!r}, expected {method!r}")
    named, known = fields.texts("architectures") or (), _ARCHITECTURES[method]
    if not kind and not {*named} & {*known}:
        raise ConfigError(f"its architecture is {', '.join(named) or 'not said'}, expected {known[0]}")
    if kind:
        layers = fields.table("transformer_layer_config") or {}
        before = fields.get("aux_hidden_state_layer_ids")
        behind = [layer - 1 for layer in before if isinstance(layer, int)] if isinstance(before, list) else None
        table: dict[str, Any] = {
            "mask_token_id": fields.get("mask_token_id"),
            "target_layer_ids": behind,
        }
        if method == "dflash":
            table["causal"] = not fields.flag("sliding_window_non_causal", default=True)
        fields = Fields({**layers, **{name: value for name, value in fields.values.items() if value is not None}})
    else:
        table = dict(fields.table("dflash_config") or {})
        for name in ("mask_token_id", "target_layer_ids"):
            table.setdefault(name, fields.get(name))
    if {*named} & {_MUSE}:
        fields = with_defaults(
            fields,
            vocab_size=model.vocab_size,
            rope_theta=500_000.0,
            rms_norm_eps=1e-5,
            max_position_embeddings=131_072,
            layer_types=["sliding_attention"] * fields.integer("num_hidden_layers", 5),
        )
        # as in transformers, where a token sees as many before it as the window has
        fields = Fields({**fields.values, "sliding_window": fields.integer("sliding_window", 2048) + 1})
        table = {"causal": False, "mask_token_id": 201_818, **table}
    fixed = {**_FIXED, "sample_from_anchor": False} if method == "dflash" else _FIXED
    unknown = [name for name in table if name not in _TABLE and name not in fixed]
    if unknown:
        raise ConfigError(f"dflash_config has {unknown[0]}, which is not known here; expected {', '.join(_TABLE)}")
    found = Fields(table)
    expect(found, fixed)
    if method == "dflash":
        expect(fields, {"sample_from_anchor": False})
    else:
        expect(fields, {"markov_head_type": "vanilla", "dspark_draft_topk": None})
    expect(fields, {"is_neox_style": True, "logit_scale": 1.0, "use_aux_hidden_state": True, "hidden_act": "silu"})
    return fields, found


def _seeing(spec: ModelSpec, fields: Fields, table: Fields) -> ModelSpec:
    """The layers with their windows, sinks, and what a token sees of its block."""
    count = len(spec.layers)
    slides = sliding_layers(fields)
    sliding = slides if any(slides) or not table.flag("use_swa") else [True] * count
    sliding = sliding or [False] * count
    window = table.integer("swa_window_size", fields.integer("sliding_window", 0, least=0), least=0)
    if any(sliding) and not window:
        raise ConfigError("layers slide, and neither sliding_window nor swa_window_size says how far they see")
    said = fields.get("is_causal") if fields.has("is_causal") else table.get("causal")
    if said is not None and not isinstance(said, bool):
        raise ConfigError(f"is_causal is {said!r}, expected true or false")
    causal = [said] * count if said is not None else slides or [False] * count
    spec = with_mixers(spec, [not each for each in causal], whole_spans=True, windowed_spans=True)
    sinks = table.flag("attention_sink_bias", default=fields.flag("add_swa_attention_sink_bias"))
    spec = with_mixers(spec, sinks=sinks, sinks_name="attention_sink_bias")
    return with_mixers(spec, sliding, window=window)


def _taps(table: Fields, model: ModelSpec) -> tuple[int, ...]:
    """The layers before which the stream is taken: behind ``target_layer_ids``."""
    found = table.get("target_layer_ids")
    layers, known = len(model.layers), isinstance(found, list) and bool(found)
    ids = found if isinstance(found, list) else []
    if not known or not all(isinstance(each, int) and 0 <= each < layers - 1 for each in ids) or sorted({*ids}) != ids:
        raise ConfigError(f"target_layer_ids are {found}, expected ascending ones from 0 to {layers - 2}")
    return tuple(each + 1 for each in ids)
