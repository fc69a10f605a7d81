"""Reads T5Gemma 2 (arXiv:2512.14856): two Gemma 3, of which the decoder's attention also sees the encoder's output.
Its text alone is served: the tower of pictures is not read."""

from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from ..config_fields import ConfigError, Fields
from ..hf.dense import gemma3
from ..spec.model import ModelSpec, with_layers, with_mixers
from ..spec.seq2seq import EMBEDDING
from .t5gemma import HEAD, NORMS, bos_and_eos, join_stacks
from .text import Rename, TextToTextConfig

ARCHITECTURE: Final = "T5Gemma2ForConditionalGeneration"
MODEL_TYPE: Final = "t5gemma2"
_SIDE: Final[Mapping[str, object]] = {
    **{"vocab_size": 262_208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26},
    **{"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 131_072},
    **{"sliding_window": 4096, "bos_token_id": 2, "eos_token_id": 1},
}
"""Defaults of an encoder's and a decoder's fields."""
_PICTURE_END: Final = 256_000
"""Default of the token behind a picture, whose embedding is stored apart."""
_APART: Final = "model.picture_end"
"""Its name here."""
_SEEING: Final = "model.picture_tower"
"""The name here of all tensors of the tower of pictures."""
_RENAMES: Final = (
    Rename(r"model\.(encoder(\.text_model)?|decoder)\.embed_tokens\.eoi_embedding$", _APART),
    Rename(r"model\.(encoder(\.text_model)?|decoder)\.embed_tokens(?=\.weight$)", EMBEDDING),
    Rename(r"model\.encoder\.(vision_tower|multi_modal_projector)\..*$", _SEEING),
    Rename(r"model\.encoder\.text_model(?=\.)", "model.encoder"),
    HEAD,
)


def t5gemma2_config_from_hf(config: Mapping[str, object], generation: Mapping[str, object]) -> TextToTextConfig:
    """Read a config.json and a generation_config.json, which may be empty.

    Raises :class:`ConfigError` for a missing or wrong field.
    """
    fields = Fields(config)
    of_encoder = Fields(fields.table("encoder") or {})
    told = {
        "encoder": {**_SIDE, **(of_encoder.table("text_config") or {})},
        "decoder": {**_SIDE, **(fields.table("decoder") or {})},
    }
    end = of_encoder.integer("eoi_token_index", _PICTURE_END, least=0)
    encoder, decoder = (_gemma(Fields(told[side]), side, end) for side in ("encoder", "decoder"))
    for field in ("vocab_size", "hidden_size"):
        ours, theirs = getattr(encoder, field), getattr(decoder, field)
        if ours != theirs:
            raise ConfigError(f"encoder.text_config.{field} is {ours}, expected that of the decoder, {theirs}")
    # of an even window, the encoder's tokens see one more behind themselves than before
    slides = [bool(layer.attention.window) for layer in encoder.layers]
    window = max(layer.attention.window for layer in encoder.layers)
    if window:
        encoder = with_mixers(encoder, slides, window=(window + 1) // 2, ahead=window // 2)
    decoder = with_mixers(decoder, merged=True)
    made = join_stacks(ARCHITECTURE, encoder, decoder, {**bos_and_eos(told["decoder"]), **config}, generation)
    return replace(made, renames=_RENAMES, unused=(_SEEING,)).check()


def _gemma(fields: Fields, side: str, picture_end: int) -> ModelSpec:
    """One side. Scores have no soft cap, whatever a file says, as in transformers. Raises :class:`ConfigError`."""
    spec = gemma3(Fields({**fields.values, "attn_logit_softcapping": None}), ARCHITECTURE)
    spec = with_layers(spec, norms=NORMS)
    given = replace(spec.input, apart=(picture_end, _APART))
    return replace(spec, prefix=f"model.{side}.layers", embedding=EMBEDDING, input=given)
