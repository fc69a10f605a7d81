"""Maps CTranslate2's names of a Whisper model to transformers'. Torch-free."""

import json
from collections.abc import Iterator
from pathlib import Path

from ..model_config.speech.whisper import WhisperConfig, whisper_config_from_ct2
from .ct2_file import CT2File, CT2Variable
from .errors import CheckpointError
from .safetensors_index import read_json

KIND = "WhisperSpec"
VOCABULARIES = ("vocabulary.json", "vocabulary.txt")
_END = "<|endoftext|>"
_MOST_VOCABULARY_BYTES = 64 << 20

_WHOLE: dict[str, tuple[str, ...]] = {
    "conv1": ("conv1",),
    "conv2": ("conv2",),
    "layer_norm": ("layer_norm",),
    "embeddings": ("embed_tokens",),
    "position_encodings": ("embed_positions",),
}
_OF_LAYERS: dict[str, tuple[str, ...]] = {
    "self_attention/layer_norm": ("self_attn_layer_norm",),
    "self_attention/linear_0": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attention/linear_1": ("self_attn.out_proj",),
    "attention/layer_norm": ("encoder_attn_layer_norm",),
    "attention/linear_0": ("encoder_attn.q_proj",),
    "attention/linear_1": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
    "attention/linear_2": ("encoder_attn.out_proj",),
    "ffn/layer_norm": ("final_layer_norm",),
    "ffn/linear_0": ("fc1",),
    "ffn/linear_1": ("fc2",),
}
_ENDINGS = {"weight": "weight", "bias": "bias", "gamma": "weight", "beta": "bias", "encodings": "weight"}
_SETTINGS = (
    "activation",
    "alibi",
    "alignment_heads",
    "alignment_layer",
    "multi_query_attention",
    "num_heads",
    "num_heads_kv",
    "pre_norm",
    "scale_embeddings",
    "sliding_window",
    "start_from_zero_embedding",
)
"""Variables with settings, which are known for Whisper."""


def whisper_config(file: CT2File) -> WhisperConfig:
    """The config. Raises :class:`CheckpointError` and ConfigError if the folder of ``file`` does not describe a Whisper
    model."""
    folder = file.path.parent
    if file.kind != KIND:
        raise CheckpointError(f"Cannot load {folder}: its CTranslate2 model is a {file.kind!r}, expected {KIND!r}.")
    described = folder / "config.json"
    config = read_json(described) if described.is_file() else {}
    heads = file.scalar("encoder/num_heads"), file.scalar("decoder/num_heads")
    shapes = {name: variable.shape for name, variable in file.variables.items()}
    return whisper_config_from_ct2(config, shapes, heads, end_of_text(folder))


def end_of_text(folder: Path) -> int | None:
    """The id of <|endoftext|> in the folder's vocabulary; None without a vocabulary. Raises CheckpointError."""
    path = next((folder / name for name in VOCABULARIES if (folder / name).is_file()), None)
    if path is None:
        return None
    try:
        if path.stat().st_size > _MOST_VOCABULARY_BYTES:
            raise CheckpointError(f"Cannot read {path}: it is larger than {_MOST_VOCABULARY_BYTES} bytes.")
        text = path.read_text(encoding="utf-8")
        tokens = json.loads(text) if path.suffix == ".json" else text.split("\n")
    except OSError as error:
        raise CheckpointError(f"Cannot read {path}: {error.strerror or error}.") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"Cannot read {path}: it is no vocabulary ({error}).") from error
    return tokens.index(_END) if isinstance(tokens, list) and _END in tokens else None


def hf_names(variable: str) -> tuple[str, ...] | None:
    """The transformers tensors that a variable holds, stacked along the rows; empty for a setting.

    None for a variable that Whisper does not have.
    """
    side, _, rest = variable.partition("/")
    part, _, ending = rest.rpartition("/")
    if side not in ("encoder", "decoder"):
        return None
    if ending.endswith("_scale") or rest in _SETTINGS:
        return ()  # scales are read with their weights
    prefix, names = f"model.{side}", _WHOLE.get(part)
    if names is None and part.startswith("layer_"):
        layer, _, part = part.removeprefix("layer_").partition("/")
        prefix, names = f"{prefix}.layers.{layer}", _OF_LAYERS.get(part) if layer.isdecimal() else None
    if names is None and part == "projection":
        return ()  # the head shares the embedding
    if names is None or ending not in _ENDINGS:
        return None
    return tuple(f"{prefix}.{name}.{_ENDINGS[ending]}" for name in names)


def tensors(file: CT2File) -> Iterator[tuple[CT2Variable, CT2Variable | None, tuple[str, ...]]]:
    """Each variable with weights, its scale if quantised, and the names of the tensors stacked in it.

    Raises :class:`CheckpointError` for an unknown variable, or a quantised one without a scale.
    """
    for variable in file.variables.values():
        names = hf_names(variable.name)
        if names is None:
            raise CheckpointError(f"Cannot load {file.path}: it holds {variable.name!r}, which no Whisper has.")
        if not names:
            continue
        scale = file.variables.get(f"{variable.name}_scale")
        quantized = variable.dtype.startswith("int")
        rows = variable.shape[0] if variable.shape else 0
        if quantized and (scale is None or scale.dtype != "float32" or scale.shape not in ((), (1,), (rows,))):
            raise CheckpointError(
                f"Cannot load {file.path}: {variable.name!r} is {variable.dtype}, and has no float32 scales."
            )
        if not rows or rows % len(names):
            raise CheckpointError(
                f"Cannot load {file.path}: {variable.name!r} has {rows} rows, expected a multiple of {len(names)}."
            )
        yield variable, scale if quantized else None, names
