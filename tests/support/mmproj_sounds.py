"""Projector files of tiny models that hear, written as llama.cpp's converters write them."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import gguf
import torch
from safetensors.torch import load_file

SOUNDS: Final = frozenset({"ultravox", "voxtral", "qwen2a", "qwen3a"})
"""Types of projectors."""
_KINDS: Final[Mapping[str, str]] = {
    "ultravox": "ultravox",
    "voxtral": "voxtral",
    "qwen2_audio": "qwen2a",
    "qwen3_asr": "qwen3a",
}
_STACKED: Final = {"voxtral": 4}


def write_sounds(
    path: Path,
    model: Any,
    family: str,
    folder: Path,
    *,
    halves: bool = False,
) -> None:
    """Of the checkpoint of ``model`` in ``folder``; ``halves``: matrices and convolutions are in float16."""
    writer, projector = gguf.GGUFWriter(path, "clip"), _KINDS[family]
    writer.add_type(gguf.GGUFType.MMPROJ)
    config = json.loads((folder / "config.json").read_text())
    audio = config["audio_config"]
    text = config.get("text_config", {})

    def size(*names: str) -> int:
        return int(next(audio[name] for name in names if name in audio))

    said: dict[str, Any] = {
        "clip.has_audio_encoder": True,
        "clip.audio.projector_type" if projector == "qwen3a" else "clip.projector_type": projector,
        "clip.audio.projection_dim": text["hidden_size"],
        "clip.audio.embedding_length": size("d_model", "hidden_size"),
        "clip.audio.feed_forward_length": size("encoder_ffn_dim", "intermediate_size"),
        "clip.audio.block_count": size("encoder_layers", "num_hidden_layers"),
        "clip.audio.attention.head_count": size("encoder_attention_heads", "num_attention_heads"),
        "clip.audio.attention.layer_norm_epsilon": 1e-5,
        "clip.audio.num_mel_bins": size("num_mel_bins"),
        "clip.audio.projector.stack_factor": config.get("stack_factor", _STACKED.get(projector)),
    }
    for key, value in said.items():
        match value:
            case bool():
                writer.add_bool(key, value)
            case int():
                writer.add_uint32(key, value)
            case float():
                writer.add_float32(key, value)
            case str():
                writer.add_string(key, value)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, 8)
    for name, tensor in _converted(folder, projector, size("d_model", "hidden_size")):
        stored = names.get_name(name, (".weight", ".bias"))
        assert stored is not None, name
        values = tensor.float().contiguous().numpy()
        matrix = values.ndim > 1 and stored.endswith(".weight")
        writer.add_tensor(stored, values.astype("float16") if matrix and halves else values)
    finish(writer)


def _converted(folder: Path, projector: str, hidden: int) -> Iterator[tuple[str, torch.Tensor]]:
    """By the names that converters know: those of published files."""
    for stored, tensor in load_file(folder / "model.safetensors").items():
        name = stored.removeprefix("model.")
        if name.startswith(("language_model.", "lm_head.")):
            continue
        if projector == "qwen3a":
            name = re.sub(r"\Amulti_modal_projector\.linear_", "audio_tower.proj", name)
        if name.startswith("multi_modal_projector."):
            name = f"audio.{name}"
        if re.search(r"conv2?d?\d\.bias", name):
            tensor = tensor.view(-1, *[1] * (2 if projector == "qwen3a" else 1))
        yield name, tensor
    if projector == "qwen3a":
        half = hidden // 2
        steps = 10_000.0 ** (-torch.arange(half) / (half - 1))
        angles = torch.arange(1500)[:, None] * steps
        yield "audio_tower.embed_positions.weight", torch.cat((angles.sin(), angles.cos()), dim=1)


def finish(writer: Any) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
