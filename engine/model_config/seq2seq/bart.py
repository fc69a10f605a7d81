"""Reads BART (arXiv:1910.13461) and its descendants: PLBART, mBART, MVP, Marian, Pegasus, M2M100 with NLLB, both
Blenderbots, FSMT (arXiv:1907.06616), and LED, whose encoder has windows (arXiv:2004.05150)."""

import math
from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

from msgspec.structs import replace

from ..config_fields import MOST_LAYERS, ConfigError, Fields
from ..spec.attention import AttentionSpec
from ..spec.layer import LayerSpec, Norms
from ..spec.mlp import Activation, MLPSpec
from ..spec.model import Backbone
from ..spec.seq2seq import EMBEDDING
from ..spec.token_input import TokenInputSpec
from .text import Rename, Stack, TextToTextConfig, decoder_start_of, eos_of, never_of

_MOST_POSITIONS: Final = 1 << 20
_EPS: Final = 1e-5
ACTIVATIONS: Final[Mapping[str, Activation]] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}


class Family(NamedTuple):
    """How a family differs from the others, with the defaults of its class."""

    model_type: str
    before: bool
    """Whether norms stand before each part, and one behind the last layer; otherwise behind each sum."""
    embedding_norm: bool
    positions: Literal["learned", "open", "closed", ""]
    """Whether they are stored, or their sinusoids as in :attr:`..spec.token_input.TokenInputSpec.sinusoids`; "": there
    are none."""
    first: int = 0
    """The row of the first position, or what it counts as."""
    vocab: int = 50265
    layers: tuple[int, int] = (12, 12)
    """Of the encoder and the decoder."""
    heads: int = 16
    inner: int = 4096
    hidden: int = 1024
    max_position: int = 1024
    activation: str = "gelu"
    scaled: bool = False
    start: int | None = None
    eos: int = 2
    norm_first: bool = False
    """Whether the decoder's norm of embeddings stands before positions are added."""
    window: int = 0
    """Tokens around each that it sees in the encoder, itself apart; 0: all. Such files have other names."""
    sources: int = 0
    """Positions of the encoder, if it has others than the decoder; 0: it has the same."""
    apart: bool = False
    """Whether encoder, decoder and head may each have an embedding of their own."""


FAMILIES: Final[Mapping[str, Family]] = {
    "BartForConditionalGeneration": Family("bart", False, True, "learned", 2, start=2),
    "PLBartForConditionalGeneration": Family(
        "plbart", False, True, "learned", 2, vocab=50005, layers=(6, 6), heads=12, inner=3072, hidden=768, scaled=True
    ),
    "MBartForConditionalGeneration": Family("mbart", True, True, "learned", 2),
    "MvpForConditionalGeneration": Family("mvp", False, True, "learned", 2, vocab=50267, start=2),
    "MarianMTModel": Family("marian", False, False, "open", vocab=58101, start=58100, eos=0),
    "PegasusForConditionalGeneration": Family("pegasus", True, False, "open", start=0, eos=1),
    "M2M100ForConditionalGeneration": Family(
        "m2m_100", True, False, "closed", vocab=128112, activation="relu", scaled=True, start=2
    ),
    "BlenderbotForConditionalGeneration": Family(
        "blenderbot", True, False, "learned", 0, 8008, (2, 24), 32, 10240, 2560, 128, start=1
    ),
    "BlenderbotSmallForConditionalGeneration": Family(
        "blenderbot-small", False, True, "learned", 0, 50265, (8, 8), 16, 2048, 512, 512, start=1, norm_first=True
    ),
    "FSMTForConditionalGeneration": Family(
        "fsmt", False, False, "closed", vocab=42024, activation="relu", scaled=True, start=2, apart=True
    ),
    "LEDForConditionalGeneration": Family("led", False, True, "learned", 0, start=2, window=512, sources=16_384),
}
"""By architecture."""
_RENAMES: Final = (
    Rename(r"model\.(shared|encoder\.embed_tokens)(?=\.)", EMBEDDING),
    Rename(r"model\.decoder\.output_projection(?=\.)", "lm_head"),
    Rename(r"final_logits_bias$", "logits.bias"),
)
_APART: Final = _RENAMES[1:]
_APART_WORDS: Final = "model.encoder.embed_tokens"
"""Of FSMT."""
_WINDOWED: Final = (
    Rename(r"led\.(shared|encoder\.embed_tokens)(?=\.)", EMBEDDING),
    *(
        Rename(rf"led\.encoder\.layers\.(\d+)\.self_attn\.{part}(?=\.)", rf"model.encoder.layers.\1.self_attn.{name}")
        for part, name in (
            *((rf"longformer_self_attn\.{each}", f"{each[0]}_proj") for each in ("query", "key", "value")),
            ("output", "out_proj"),
        )
    ),
    Rename(r"led(?=\.)", "model"),
    _RENAMES[-1],
)
"""Of LED."""
_GLOBAL: Final = tuple(f"{part}_global.{which}" for part in ("query", "key", "value") for which in ("weight", "bias"))
"""Ends of the names of what tokens that see all would need, of which there are none here."""
_UNUSED: Final = ("encoder.version", "decoder.version")
"""Ends of the names of buffers in old files."""
_SINUSOIDS: Final = ("embed_positions.weight", "embed_positions.weights")


def bart_config_from_hf(name: str, config: Mapping[str, object], generation: Mapping[str, object]) -> TextToTextConfig:
    """Read the config.json of the architecture ``name`` and a generation_config.json, which may be empty.

    Raises :class:`ConfigError` for a missing or wrong field.
    """
    fields, family = Fields(config), FAMILIES[name]
    if family.apart:
        fields = _with_one_size(fields, family)
    hidden, vocab = fields.integer("d_model", family.hidden), fields.integer("vocab_size", family.vocab)
    if not fields.flag("share_encoder_decoder_embeddings", True):
        raise ConfigError("share_encoder_decoder_embeddings is off, expected one vocabulary for encoder and decoder")
    if fields.flag("use_prompt"):
        raise ConfigError("use_prompt is on, and keys of stored prompts are not read: expected an MVP without them")
    if (decoding := fields.integer("decoder_vocab_size", vocab)) != vocab:
        raise ConfigError(f"decoder_vocab_size is {decoding}, expected that of the encoder, {vocab}")
    longest = positions_of(fields, family)
    counts = layers_of(fields, family)
    stacks = {
        side: stack_of(name, family, side, fields, each, hidden, vocab, longest[side]) for side, each in counts.items()
    }
    if family.window:
        stacks["encoder"] = _with_windows(fields, family, stacks["encoder"])
    apart = family.apart and not fields.flag("tie_word_embeddings")  # tied ones are one tensor, with the usual names
    if apart:
        stacks["encoder"] = replace(stacks["encoder"], words=_APART_WORDS)
    start = decoder_start_of({"decoder_start_token_id": family.start, **config}, generation)
    return TextToTextConfig(
        architecture=name,
        vocab_size=vocab,
        hidden_size=hidden,
        source_positions=longest["encoder"],
        num_layers=counts["decoder"],
        num_heads=stacks["decoder"].layers.layers[0].attention.heads,
        max_position=longest["decoder"],
        eos_token_ids=eos_or(family, config, generation),
        encoder_stack=stacks["encoder"],
        decoder_stack=stacks["decoder"],
        decoder_start=start or (fields.integer("bos_token_id", 0, least=0),),
        logits_bias="logits.bias",
        renames=_WINDOWED if family.window else _APART if apart else _RENAMES,
        head="lm_head" if apart else "",
        never=never_of(config, generation),
        unused=(
            *_UNUSED,
            *_GLOBAL,
            *(() if family.positions == "learned" else _SINUSOIDS),
        ),
    ).check()


def _with_one_size(fields: Fields, family: Family) -> Fields:
    """The fields with the size of both vocabularies, which is one. Raises :class:`ConfigError` if they differ."""
    sizes = [fields.integer(f"{side}_vocab_size", family.vocab) for side in ("src", "tgt")]
    if sizes[0] != sizes[1]:
        raise ConfigError(f"src_vocab_size is {sizes[0]}, expected that of the decoder, {sizes[1]}")
    return Fields({**fields.values, "vocab_size": sizes[1]})


def layers_of(fields: Fields, family: Family) -> dict[str, int]:
    """Layers of the encoder and of the decoder."""
    sides = zip(("encoder", "decoder"), family.layers, strict=True)
    return {side: fields.integer(f"{side}_layers", count, most=MOST_LAYERS) for side, count in sides}


def positions_of(fields: Fields, family: Family) -> dict[str, int]:
    """Positions of the encoder and of the decoder."""
    if family.sources:
        defaults = (("encoder", family.sources), ("decoder", family.max_position))
        return {
            side: fields.integer(f"max_{side}_position_embeddings", count, most=_MOST_POSITIONS)
            for side, count in defaults
        }
    longest = fields.integer("max_position_embeddings", family.max_position, most=_MOST_POSITIONS)
    return {"encoder": longest, "decoder": longest}


def _with_windows(fields: Fields, family: Family, stack: Stack) -> Stack:
    """The stack with a window in each layer, of half on either side of a token. No token sees all, as in transformers
    where nothing says which do."""
    count = len(stack.layers.layers)
    told = fields.get("attention_window")
    field = "attention_window"
    windows = fields.numbers(field) if isinstance(told, list) else [fields.integer(field, family.window)] * count
    if len(windows) != count or any(window < 2 or window % 2 for window in windows):
        raise ConfigError(
            f"attention_window is {str(told)[:40]}, expected an even number, or one for each of {count} layers"
        )
    layers = (
        replace(layer, mixer=replace(layer.attention, window=int(window) // 2 + 1))
        for layer, window in zip(stack.layers.layers, windows, strict=True)
    )
    return replace(stack, layers=replace(stack.layers, layers=tuple(layers)))


def eos_or(family: Family, config: Mapping[str, object], generation: Mapping[str, object]) -> tuple[int, ...]:
    """The tokens that end an output, by default the family's."""
    return eos_of(config, generation) or (family.eos,)


def stack_of(
    name: str, family: Family, side: str, fields: Fields, count: int, hidden: int, vocab: int, longest: int
) -> Stack:
    """``count`` layers of one side of the architecture ``name``. Raises :class:`ConfigError`."""
    decodes, prefix = side == "decoder", f"model.{side}"
    heads = fields.integer(f"{side}_attention_heads", family.heads)
    if hidden % heads:
        raise ConfigError(f"{hidden} dimensions do not divide among {heads} heads of the {side}")
    head_dim = hidden // heads
    attention = AttentionSpec(heads, heads, head_dim, head_dim**-0.5, None, out="out_proj")
    attention = replace(attention, qkv_bias=True, output_bias=True)
    first, cross, last = "self_attn_layer_norm", "encoder_attn_layer_norm" if decodes else "", "final_layer_norm"
    if family.before:
        norms = Norms(mixer_in=first, cross_in=cross, mlp_in=last, kind="layer", bias=True)
    else:
        norms = Norms(mixer_sum=first, cross_sum=cross, mlp_sum=last, kind="layer", bias=True)
    activation = fields.one_of("activation_function", ACTIVATIONS, family.activation)
    inner = fields.integer(f"{side}_ffn_dim", family.inner)
    layer = LayerSpec(
        attention,
        MLPSpec(inner, activation, True, ("fc1",), "fc2", gated=False),
        norms,
        cross=replace(attention, name="encoder_attn") if decodes else None,
    )
    backbone = Backbone(
        architecture=name,
        vocab_size=vocab,
        hidden_size=hidden,
        layers=(layer,) * count,
        max_position=longest,
        norm_eps=_EPS,
        prefix=f"{prefix}.layers",
    )
    learned = family.positions == "learned"
    # the positions of M2M100 begin behind its padding's
    begin = fields.integer("pad_token_id", 1, least=0) + 1 if family.positions == "closed" else family.first
    return Stack(
        backbone,
        TokenInputSpec(
            scale=math.sqrt(hidden) if fields.flag("scale_embedding", family.scaled) else 1.0,
            positions=f"{prefix}.embed_positions" if learned else "",
            rows=longest + begin,
            first=begin,
            sinusoids="" if family.positions == "learned" else family.positions,
            norm=f"{prefix}.layernorm_embedding" if family.embedding_norm else None,
            norm_first=decodes and family.norm_first,
        ),
        f"{prefix}.layer_norm" if family.before else "",
    )
