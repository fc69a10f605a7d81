"""The recommended sampling of a model, and the tokens that end its turns."""

from collections.abc import Mapping

import msgspec

from ..model_config.config_fields import Fields
from ..model_config.hf.ends import implied_ends
from ..model_config.seq2seq.text import TextToTextConfig
from ..model_config.spec.model import ModelSpec

_END_OF_TURN_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")

_END_OF_TURN_TEXTS = (
    *("<|im_end|>", "<|eot_id|>", "<|eot|>", "<|end|>"),
    *("<end_of_turn>", "<|end_of_turn|>", "<turn|>", "[e~["),
)
"""End-of-turn tokens of supported models, used if a GGUF file names none, as llama.cpp does."""
_HARMONY_ENDS = ("<|return|>", "<|call|>")
"""End-of-turn tokens of gpt-oss, where ``<|end|>`` ends a message, of which a turn has several."""

_CONTROL = 3
"""GGUF's token type of special tokens."""

_UNUSED: Mapping[str, object] = {
    **dict.fromkeys(("suppress_tokens", "begin_suppress_tokens", "bad_words_ids", "sequence_bias", "stop_strings")),
    **dict.fromkeys(("forced_bos_token_id", "forced_eos_token_id", "exponential_decay_length_penalty")),
    **dict.fromkeys(("no_repeat_ngram_size", "epsilon_cutoff", "eta_cutoff", "min_length", "min_new_tokens"), 0),
    **dict.fromkeys(("typical_p", "guidance_scale", "num_beams"), 1),
    "penalty_alpha": 0,
}
"""Fields that change transformers' answers and not ours, with the values that change none."""


class GenerationConfig(msgspec.Struct, frozen=True):
    """Values that the checkpoint does not specify are None."""

    eos_token_ids: tuple[int, ...] = ()
    implied_eos_token_ids: tuple[int, ...] = ()
    """Where no file names any: those of a text part, or else of transformers' class."""
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_new_tokens: int | None = None
    unused: tuple[str, ...] = ()
    """Fields that the checkpoint sets and that have no effect."""


def generation_config_from_hf(
    config: Mapping[str, object], generation: Mapping[str, object], spec: object = None
) -> GenerationConfig:
    """From config.json and generation_config.json ({} if missing). ``spec``: what config.json describes; of a decoder
    or of an encoder-decoder it has the tokens that a part names.

    A generation config without sampling means greedy decoding, but authors rarely intend that. As in other servers,
    only the values that it names are used. Raises :class:`..model_config.config_fields.ConfigError`.
    """
    fields = Fields(generation)
    eos = {*Fields(config).token_ids("eos_token_id"), *fields.token_ids("eos_token_id")}
    of_text = spec.eos_token_ids if isinstance(spec, ModelSpec | TextToTextConfig) else ()
    return GenerationConfig(
        eos_token_ids=tuple(sorted(eos)),
        implied_eos_token_ids=() if eos or spec is None else of_text or implied_ends(config),
        temperature=fields.optional_number("temperature"),
        top_k=fields.integer("top_k", least=0) if fields.has("top_k") else None,
        top_p=fields.optional_number("top_p"),
        min_p=fields.optional_number("min_p"),
        repetition_penalty=fields.optional_number("repetition_penalty"),
        max_new_tokens=fields.integer("max_new_tokens") if fields.has("max_new_tokens") else None,
        unused=tuple(name for name, usual in _UNUSED.items() if generation.get(name) not in (None, [], {}, usual)),
    )


def generation_config_from_gguf(metadata: Mapping[str, object]) -> GenerationConfig:
    """Raises :class:`..model_config.config_fields.ConfigError`."""
    tokenizer = Fields(metadata, "tokenizer.ggml.")
    eos = {token for key in _END_OF_TURN_KEYS for token in tokenizer.token_ids(key)}
    if not tokenizer.has("eot_token_id"):
        eos.update(_end_of_turn_tokens(metadata))
    sampling = Fields(metadata, "general.sampling.")
    return GenerationConfig(
        eos_token_ids=tuple(sorted(eos)),
        temperature=sampling.optional_number("temp"),
        top_k=sampling.integer("top_k", least=0) if sampling.has("top_k") else None,
        top_p=sampling.optional_number("top_p"),
        min_p=sampling.optional_number("min_p"),
        repetition_penalty=sampling.optional_number("penalty_repeat"),
    )


def _end_of_turn_tokens(metadata: Mapping[str, object]) -> list[int]:
    texts = metadata.get("tokenizer.ggml.tokens")
    types = metadata.get("tokenizer.ggml.token_type")
    if not isinstance(texts, list) or not isinstance(types, list):
        return []
    ends = _HARMONY_ENDS if all(end in texts for end in _HARMONY_ENDS) else _END_OF_TURN_TEXTS
    pairs = enumerate(zip(texts, types, strict=False))
    return [token for token, (text, kind) in pairs if kind == _CONTROL and text in ends]
