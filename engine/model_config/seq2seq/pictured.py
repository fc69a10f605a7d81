"""Reads encoder-decoders from a picture to text: those of an encoder and a decoder of other families (TrOCR,
arXiv:2109.10282; Donut, arXiv:2111.15664; Nougat, arXiv:2308.13418), PP-FormulaNet (arXiv:2503.18382), Nemotron Parse
(arXiv:2511.20478), BLIP (arXiv:2201.12086), and Florence-2 (arXiv:2311.06242), whose encoder takes a text behind the
picture."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from msgspec.structs import replace

from ..config_fields import ConfigError, Fields
from ..hf.classic import gpt2
from ..hf.radio import radio_sizes, radio_tokens
from ..spec.model import HeadTransformSpec
from ..spec.picture_source import PictureSource, Strided
from ..spec.seq2seq import EMBEDDING
from .bart import ACTIVATIONS, FAMILIES, Family, layers_of, positions_of, stack_of
from .text import UNUSED_PART, Rename, Stack, TextToTextConfig, decoder_start_of, eos_of, never_of

PICTURES: Final = "pictures."
"""Beginning, here, of the names of an encoder's tensors."""
PROJECTION: Final = "enc_to_dec_proj"
"""Stored name of the product from an encoder's states to a decoder's size."""

PAIRED: Final = "VisionEncoderDecoderModel"
PAIRED_TYPE: Final = "vision-encoder-decoder"
FLORENCE: Final = "Florence2ForConditionalGeneration"
FLORENCE_TYPE: Final = "florence2"
FORMULAS: Final = "PPFormulaNetForConditionalGeneration"
FORMULAS_TYPE: Final = "pp_formulanet"
CAPTION: Final = "BlipForConditionalGeneration"
CAPTION_TYPE: Final = "blip"
PARSE: Final = "NemotronParseForConditionalGeneration"
PARSE_TYPE: Final = "nemotron_parse"

_TROCR: Final = Family("trocr", False, True, "learned", 2, max_position=512, start=2)
_DECODERS: Final[Mapping[str, Family]] = {
    **{FAMILIES[name].model_type: FAMILIES[name] for name in FAMILIES if name.startswith(("Bart", "MBart"))},
    "trocr": _TROCR,
}
"""By model type."""
_UNPLACED: Final = FAMILIES["MBartForConditionalGeneration"]._replace(positions="", scaled=True, start=2)
"""Nemotron Parse's, whose tokens have no positions."""
_CAPTION: Final = Family("blip_text_model", False, True, "learned", layers=(12, 12), heads=8, inner=3072, hidden=768)
_CAPTION_FIELDS: Final[Mapping[str, str]] = {
    **{"hidden_size": "d_model", "num_hidden_layers": "decoder_layers", "hidden_act": "activation_function"},
    **{"num_attention_heads": "decoder_attention_heads", "intermediate_size": "decoder_ffn_dim"},
}
"""Names of BART's fields by those of BERT."""
_CAPTION_DEFAULTS: Final[Mapping[str, object]] = {
    **{"vocab_size": 30_524, "max_position_embeddings": 512, "bos_token_id": 30_522, "sep_token_id": 102},
}
_SQUARES: Final[Mapping[str, tuple[str, int]]] = {
    "vit": ("ViTModel", 1),
    "deit": ("DeiTModel", 2),
    "beit": ("BeitModel", 1),
}
"""By model type, encoders with a state for each patch: transformers' class, and states besides."""
_MERGING: Final[Mapping[str, str]] = {"swin": "SwinModel", "donut-swin": "DonutSwinModel"}
"""By model type, encoders whose states become fewer: transformers' class."""
_DEPTHS: Final = (2, 2, 6, 2)
"""Layers of each stage of these by default."""
_MOST_MERGES: Final = 15
_MOST_STATES: Final = 1 << 20
_PAIRED_NAMES: Final = (
    Rename(r"encoder\.(?!pooler)", PICTURES),
    Rename(r"decoder\.model\.decoder\.embed_tokens(?=\.)", EMBEDDING),
    Rename(r"decoder\.model(?=\.)", "model"),
    Rename(r"decoder\.transformer\.wte(?=\.)", EMBEDDING),
    Rename(r"decoder\.transformer(?=\.)", "transformer"),
    Rename(r"decoder\.(lm_head|output_projection)(?=\.)", "lm_head"),
)
_FORMULA_NAMES: Final = (
    Rename(r"model\.encoder\.", PICTURES),
    Rename(r"model\.decoder\.embed_tokens(?=\.)", EMBEDDING),
)
_FLORENCE_NAMES: Final = (
    Rename(r"model\.(?=vision_tower\.|multi_modal_projector\.)", PICTURES),
    Rename(r"model\.language_model\.(shared|(en|de)coder\.embed_tokens)(?=\.)", EMBEDDING),
    Rename(r"model\.language_model(?=\.)", "model"),
)
_PARSE_NAMES: Final = (
    Rename(r"encoder\.", PICTURES),
    Rename(r"decoder\.embed_tokens(?=\.)", EMBEDDING),
    Rename(r"decoder\.extra_(heads|proj)\..+", UNUSED_PART),
    Rename(r"decoder(?=\.)", "model.decoder"),
)
_CAPTION_NAMES: Final = (
    Rename(r"vision_model\.", PICTURES),
    Rename(r"text_decoder\.bert\.embeddings\.word_embeddings(?=\.)", EMBEDDING),
    Rename(r"text_decoder\.bert\.embeddings\.position_embeddings(?=\.)", "model.decoder.embed_positions"),
    Rename(r"text_decoder\.bert\.embeddings\.LayerNorm(?=\.)", "model.decoder.layernorm_embedding"),
    *(
        Rename(rf"text_decoder\.bert\.encoder\.layer\.(\d+)\.{stored}(?=\.)", rf"model.decoder.layers.\1.{name}")
        for stored, name in (
            *(
                (rf"{part}\.self\.{each}", f"{own}.{each[0]}_proj")
                for part, own in (("attention", "self_attn"), ("crossattention", "encoder_attn"))
                for each in ("query", "key", "value")
            ),
            *(
                (rf"{part}\.output\.{each}", f"{own}{name}")
                for part, own in (("attention", "self_attn"), ("crossattention", "encoder_attn"))
                for each, name in (("dense", ".out_proj"), ("LayerNorm", "_layer_norm"))
            ),
            *((r"intermediate\.dense", "fc1"), (r"output\.dense", "fc2"), (r"output\.LayerNorm", "final_layer_norm")),
        )
    ),
    Rename(r"text_decoder\.cls\.predictions\.transform\.", "head."),
    Rename(r"text_decoder\.cls\.predictions\.(decoder\.)?bias$", "logits.bias"),
    Rename(r"text_decoder\.cls\.predictions\.decoder(?=\.)", "lm_head"),
)
_PARSE_SIDES: Final = (2048, 1648)
_PARSE_MERGED: Final = 4
"""Patches of a row that become one state."""
_PARSE_LONGEST: Final = 9000
_UNUSED: Final = (
    *(f"encoder.pooler.{part}.{which}" for part in ("dense", "layernorm") for which in ("weight", "bias")),
    "embeddings.position_ids",
    *("embed_positions.weights", "embed_positions._float_tensor", "relative_position_index", "pos_idx_to_embed"),
    *(".attn.bias", ".crossattention.bias", ".masked_bias"),
)
"""Ends of the names of what pools states, and of buffers."""
_FORMULA_DEFAULTS: Final[Mapping[str, object]] = {
    **{"vocab_size": 50_000, "max_position_embeddings": 2560, "d_model": 512, "scale_embedding": True},
    **{"decoder_layers": 8, "decoder_ffn_dim": 2048, "decoder_start_token_id": 2, "pad_token_id": 1},
}
"""Of the class of PP-FormulaNet's decoder."""
_FLORENCE_TEXT: Final[Mapping[str, object]] = {"vocab_size": 51_289}
_FLORENCE_SIDE: Final = 768
"""Pixels of a side of the largest picture, which files do not tell."""
_CONVOLVED: Final[Mapping[str, tuple[int, ...]]] = {
    **{"patch_size": (7, 3, 3, 3), "patch_stride": (4, 2, 2, 2), "patch_padding": (3, 1, 1, 1)},
}
"""Defaults of the convolutions of Florence-2's encoder."""


def paired_config_from_hf(config: Mapping[str, object], generation: Mapping[str, object]) -> TextToTextConfig:
    """Read a config.json with an ``encoder`` and a ``decoder``, and a generation_config.json, which may be empty.

    Raises :class:`ConfigError` for missing or wrong fields, and for parts of families that are not known here.
    """
    seen, told = (_part(config, name) for name in ("encoder", "decoder"))
    fields, pictures = Fields(told), _source(Fields(seen))
    own = fields.integer("cross_attention_hidden_size", least=0) if fields.has("cross_attention_hidden_size") else 0
    if own not in (0, pictures.size):
        raise ConfigError(f"cross_attention_hidden_size is {own}, expected the encoder's size, {pictures.size}")
    of_gpt2 = fields.get("model_type") == "gpt2"
    written = _gpt2(fields) if of_gpt2 else _of_family(PAIRED, _family(fields), fields, own)
    pictures = replace(pictures, projected=not own and pictures.size != written.hidden)
    both = {**told, **{name: value for name, value in config.items() if value is not None}}, generation
    return _config(PAIRED, written, pictures, _PAIRED_NAMES, both)


def formulas_config_from_hf(config: Mapping[str, object], generation: Mapping[str, object]) -> TextToTextConfig:
    """As :func:`paired_config_from_hf`, of PP-FormulaNet."""
    seen = Fields(_part(config, "vision_config"))
    told = {**_FORMULA_DEFAULTS, **_part(config, "text_config")}
    fields = Fields(told)
    side, patch = seen.integer("image_size", 512, most=1 << 15), seen.integer("patch_size", 16)
    size = seen.integer("decoder_hidden_size", 512)
    if (hidden := fields.integer("d_model")) != size:
        raise ConfigError(f"decoder_hidden_size is {size}, expected d_model, {hidden}")
    pictures = PictureSource(
        made_by="PPFormulaNetVisionModel",
        described={"model_type": "pp_formulanet_vision", **seen.values},
        channels=seen.integer("num_channels", 3),
        sides=(side, side),
        steps=(Strided(patch, patch), *(Strided(3, 2, 1),) * 2),
        size=size,
    )
    family = FAMILIES["MBartForConditionalGeneration"]._replace(scaled=True)
    both = {**told, **{name: value for name, value in config.items() if value is not None}}, generation
    written = _of_family(FORMULAS, family, fields)
    return replace(_config(FORMULAS, written, pictures, _FORMULA_NAMES, both), head="lm_head")


def florence_config_from_hf(config: Mapping[str, object], generation: Mapping[str, object]) -> TextToTextConfig:
    """As :func:`paired_config_from_hf`, of Florence-2."""
    seen, told = Fields(_part(config, "vision_config")), {**_FLORENCE_TEXT, **_part(config, "text_config")}
    for what, table, expected in (("text", told, "bart"), ("vision", seen.values, "florence_vision")):
        if (kind := Fields(table).text("model_type", expected)) != expected:
            raise ConfigError(
                f"{what}_config.model_type is {kind!r}, expected {expected!r}: files as first published run with code "
                "of their own; those in transformers' form are read here"
            )
    sizes = [_whole_numbers(seen, name) or default for name, default in _CONVOLVED.items()]
    if len({len(each) for each in sizes}) > 1 or min(min(each) for each in sizes[:2]) < 1:
        raise ConfigError(f"{', '.join(_CONVOLVED)} are {sizes}, expected a number of each for each stage")
    pictures = PictureSource(
        made_by="Florence2Model",
        described={"model_type": FLORENCE_TYPE, **config},
        channels=seen.integer("in_channels", 3),
        sides=(_FLORENCE_SIDE, _FLORENCE_SIDE),
        steps=tuple(Strided(*each) for each in zip(*sizes, strict=True)),
        besides=1,
        free=True,
        size=seen.integer("projection_dim", 1024),
    )
    fields, family = Fields(told), FAMILIES["BartForConditionalGeneration"]
    if (hidden := fields.integer("d_model", family.hidden)) != pictures.size:
        raise ConfigError(f"projection_dim is {pictures.size}, expected d_model, {hidden}")
    both = {**told, **{name: value for name, value in config.items() if value is not None}}, generation
    written = _of_family(FLORENCE, family, fields, reads=True)
    return _config(FLORENCE, written, pictures, _FLORENCE_NAMES, both)


def parse_config_from_hf(config: Mapping[str, object], generation: Mapping[str, object]) -> TextToTextConfig:
    """As :func:`paired_config_from_hf`, of Nemotron Parse."""
    whole, seen, told = Fields(config), Fields(_part(config, "encoder")), _part(config, "decoder")
    args = Fields(seen.table("args") or {})
    sizes, tokens = radio_sizes(seen, args, "encoder"), radio_tokens(args)
    patch = seen.integer("patch_size", 16)
    longest = args.integer("cpe_max_size", seen.integer("max_resolution", 2048), most=1 << 15)
    sides = _sides(whole, "image_size", 0) if whole.has("image_size") else _PARSE_SIDES
    if not tokens.summaries or max(tokens.summaries) >= tokens.classes or longest < patch:
        raise ConfigError(
            f"the encoder has {len(tokens.summaries)} summaries of {tokens.classes} and positions of {longest} pixels, "
            f"expected some, and at least a patch of {patch}"
        )
    fields = Fields({"max_position_embeddings": whole.get("max_sequence_length") or _PARSE_LONGEST, **told})
    written = _of_family(PARSE, _UNPLACED, fields)
    pictures = PictureSource(
        made_by="RadioWithNeck",
        described={
            **{"model_type": "radio", "hidden_size": sizes.width, "num_hidden_layers": sizes.layers},
            **{"num_attention_heads": sizes.heads, "patch_size": patch, "max_img_size": longest},
            **{"num_cls_tokens": tokens.classes, "num_registers": tokens.registers},
            **{"summary_idxs": list(tokens.summaries), "norm_mean": [0.0] * 3, "norm_std": [1.0] * 3},
            **{"neck_size": written.hidden, "neck_merge": _PARSE_MERGED},
        },
        channels=3,
        sides=sides,
        steps=(Strided(patch, patch), Strided(_PARSE_MERGED, _PARSE_MERGED, down=False)),
        besides=1,
        size=written.hidden,
    )
    both = {**told, **{name: value for name, value in config.items() if value is not None}}, generation
    found = replace(_config(PARSE, written, pictures, _PARSE_NAMES, both), bounded=False)
    tied = whole.flag("tie_word_embeddings") or fields.flag("tie_word_embeddings")
    return found if tied else replace(found, head="lm_head")


def caption_config_from_hf(config: Mapping[str, object], generation: Mapping[str, object]) -> TextToTextConfig:
    """As :func:`paired_config_from_hf`, of BLIP's captions (arXiv:2201.12086)."""
    seen = Fields(_part(config, "vision_config"))
    told = {**_CAPTION_DEFAULTS, **_part(config, "text_config")}
    named = Fields({_CAPTION_FIELDS.get(name, name): value for name, value in told.items()})
    height, width = _sides(seen, "image_size", 384)
    patch = seen.integer("patch_size", 16)
    pictures = PictureSource(
        made_by="BlipVisionModel",
        described={"model_type": "blip_vision_model", **seen.values},
        channels=3,
        sides=(height, width),
        steps=(Strided(patch, patch),),
        besides=1,
        size=seen.integer("hidden_size", 768),
    )
    if (size := Fields(told).integer("encoder_hidden_size", pictures.size)) != pictures.size:
        raise ConfigError(f"encoder_hidden_size is {size}, expected the encoder's size, {pictures.size}")
    family = _CAPTION._replace(start=Fields(told).token_id("bos_token_id"))
    written = _of_family(CAPTION, family, named, pictures.size if pictures.size != named.integer("d_model", 768) else 0)
    layers = replace(written.stack.layers, norm_eps=Fields(told).positive("layer_norm_eps", 1e-12))
    written = written._replace(stack=replace(written.stack, layers=layers))
    activation = named.one_of("activation_function", ACTIVATIONS, "gelu")
    ends = {"eos_token_id": Fields(told).token_id("sep_token_id")}  # as the class's own generation has it
    never = {name: value for name, value in generation.items() if name == "bad_words_ids"}
    return replace(
        _config(CAPTION, written, pictures, _CAPTION_NAMES, (ends, never)),
        head_transform=HeadTransformSpec(activation, True, "head.dense", "head.LayerNorm"),
        logits_bias="logits.bias",
    )


class _Written(NamedTuple):
    """What writes about a picture."""

    hidden: int
    vocab: int
    stack: Stack
    start: int | None
    """The token with which an output begins by default."""
    eos: int
    encoder: Stack | None = None
    """Of texts behind the picture."""


def _family(fields: Fields) -> Family:
    family = fields.one_of("model_type", _DECODERS)
    if family is not _TROCR:
        return family
    learned, normed = (fields.flag(name, True) for name in ("use_learned_position_embeddings", "layernorm_embedding"))
    return family._replace(positions="learned" if learned else "closed", embedding_norm=normed)


def _of_family(name: str, family: Family, fields: Fields, encoded: int = 0, *, reads: bool = False) -> _Written:
    """``encoded``: size of states of which TrOCR makes keys, if not the decoder's. ``reads``: whether an encoder of
    texts takes the states."""
    hidden, vocab = fields.integer("d_model", family.hidden), fields.integer("vocab_size", family.vocab)
    longest, counts = positions_of(fields, family), layers_of(fields, family)
    sides = {
        side: stack_of(name, family, side, fields, counts[side], hidden, vocab, longest[side])
        for side in (("encoder", "decoder") if reads else ("decoder",))
    }
    stack = sides["decoder"]
    if encoded and family.model_type in (_TROCR.model_type, _CAPTION.model_type):
        layers = []
        for layer in stack.layers.layers:
            assert layer.cross is not None
            layers.append(replace(layer, cross=replace(layer.cross, encoded=encoded)))
        stack = replace(stack, layers=replace(stack.layers, layers=tuple(layers)))
    return _Written(hidden, vocab, stack, family.start, family.eos, sides.get("encoder"))


def _gpt2(fields: Fields) -> _Written:
    """GPT-2, with attention to a picture between attention and network."""
    spec = gpt2(Fields({**fields.values, "add_cross_attention": False}), "GPT2LMHeadModel")
    layers = []
    for layer in spec.layers:
        cross = replace(layer.attention, name="crossattention", fused=False, paired=("q_attn", "c_attn"))
        layers.append(replace(layer, cross=cross, norms=replace(layer.norms, cross_in="ln_cross_attn")))
    stack = Stack(replace(spec, layers=tuple(layers)), spec.input, spec.final_norm)
    return _Written(spec.hidden_size, spec.vocab_size, stack, None, 50_256)


def _config(
    name: str,
    written: _Written,
    pictures: PictureSource,
    renames: tuple[Rename, ...],
    told: tuple[Mapping[str, object], Mapping[str, object]],
) -> TextToTextConfig:
    """``told``: what says which tokens begin and end an output."""
    if not 0 < pictures.states <= _MOST_STATES:
        raise ConfigError(f"a picture has {pictures.states} states, expected 1 to {_MOST_STATES}")
    model, encoder = written.stack.layers, written.encoder
    start = decoder_start_of({"decoder_start_token_id": written.start, **told[0]}, told[1])
    return TextToTextConfig(
        architecture=name,
        vocab_size=written.vocab,
        hidden_size=written.hidden,
        source_positions=pictures.states if encoder is None else encoder.layers.max_position,
        num_layers=len(model.layers),
        num_heads=model.layers[0].attention.heads,
        max_position=model.max_position,
        eos_token_ids=eos_of(*told) or (written.eos,),
        encoder_stack=encoder,
        decoder_stack=written.stack,
        pictures=pictures,
        decoder_start=start or (0,),
        renames=renames,
        never=never_of(*told),
        unused=_UNUSED,
    ).check()


def _part(config: Mapping[str, object], name: str) -> Mapping[str, object]:
    found = Fields(config).table(name)
    if found is None:
        raise ConfigError(f"{name} is missing, expected a table")
    return found


def _source(fields: Fields) -> PictureSource:
    """Raises :class:`ConfigError` for an encoder that is not known here."""
    kind = fields.text("model_type", "vit")
    height, width = _sides(fields, "image_size", 224)
    channels = fields.integer("num_channels", 3)
    described = {"model_type": kind, **fields.values}
    if kind in _MERGING:
        merges = len(fields.numbers("depths") or _DEPTHS) - 1  # each stage but the last ends with one
        if merges > _MOST_MERGES:
            raise ConfigError(f"depths has {merges + 1} stages, expected at most {_MOST_MERGES + 1}")
        patch = fields.integer("patch_size", 4)
        return PictureSource(
            made_by=_MERGING[kind],
            described=described,
            channels=channels,
            sides=(height, width),
            steps=(Strided(1, patch), *(Strided(1, 2),) * merges),
            free=True,
            size=fields.integer("embed_dim", 96) << merges,
        )
    if kind not in _SQUARES:
        known = ", ".join((*_SQUARES, *_MERGING))
        raise ConfigError(f"the model type of its encoder is {kind!r}, expected one of {known}")
    name, besides = _SQUARES[kind]
    patch = fields.integer("patch_size", 16)
    return PictureSource(
        made_by=name,
        described=described,
        channels=channels,
        sides=(height, width),
        steps=(Strided(patch, patch),),
        besides=besides,
        size=fields.integer("hidden_size", 768),
    )


def _sides(fields: Fields, name: str, default: int) -> tuple[int, int]:
    """A number, or a height and a width."""
    told = _whole_numbers(fields, name) if isinstance(fields.get(name), list | tuple) else ()
    if len(told) == 2 and min(told) > 0:
        return told[0], told[1]
    side = fields.integer(name, default)
    return side, side


def _whole_numbers(fields: Fields, name: str) -> tuple[int, ...]:
    return tuple(int(each) for each in fields.numbers(name))
