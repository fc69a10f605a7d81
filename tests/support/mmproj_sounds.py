"""What projector files of tiny models that hear say, and hold, as llama.cpp's converters write them."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file

Named = Iterator[tuple[str, torch.Tensor]]
HEARING: Final = frozenset(
    {"ultravox", "voxtral", "qwen2a", "qwen3a", "granite_speech", "qwen2.5o", "qwen3vl_merger+qwen3a"}
    | {"gemma4v+gemma4a"}
)
"""Types of projectors."""
_BY_ENCODER: Final = {"qwen3a": "qwen3a", "qwen3vl_merger+qwen3a": "qwen3a", "gemma4v+gemma4a": "gemma4a"}
"""Whose type stands where that of several encoders would."""
_STACKED: Final = {"voxtral": 4}
_TOWERS: Final = ("audio_tower.", "multi_modal_projector.", "embed_audio.", "encoder.", "projector.")
_PASSED_OVER: Final = ("audio_bos_eos_token.weight", "num_batches_tracked", "attention_dists")


def said_of_sounds(folder: Path, projector: str) -> dict[str, Any]:
    """Of the checkpoint in ``folder``."""
    whole = json.loads((folder / "config.json").read_text())
    config = whole.get("thinker_config", whole)
    audio = config.get("audio_config") or config["encoder_config"]

    def size(*names: str) -> Any:
        return next((audio[name] for name in names if name in audio), None)

    width = size("d_model", "hidden_size", "hidden_dim")
    inner = size("encoder_ffn_dim", "intermediate_size") or width * audio.get("feedforward_mult", 4)
    said: dict[str, Any] = {
        "clip.has_audio_encoder": True,
        "clip.audio.projection_dim": config["text_config"]["hidden_size"],
        "clip.audio.embedding_length": width,
        "clip.audio.feed_forward_length": inner,
        "clip.audio.block_count": size("encoder_layers", "num_hidden_layers", "num_layers"),
        "clip.audio.attention.head_count": size("encoder_attention_heads", "num_attention_heads", "num_heads"),
        "clip.audio.attention.layer_norm_epsilon": 1e-6 if projector == "gemma4v+gemma4a" else 1e-5,
        "clip.audio.num_mel_bins": size("num_mel_bins", "input_dim") or 128,
        "clip.audio.projector.stack_factor": config.get("stack_factor", _STACKED.get(projector)),
    }
    if projector == "granite_speech":
        said |= {
            "clip.audio.chunk_size": audio["context_size"],
            "clip.audio.conv_kernel_size": audio["conv_kernel_size"],
            "clip.audio.max_pos_emb": audio["max_pos_emb"],
            "clip.audio.projector.window_size": config["window_size"],
            "clip.audio.projector.downsample_rate": config["downsample_rate"],
            "clip.audio.projector.head_count": config["projector_config"]["num_attention_heads"],
        }
    own = _BY_ENCODER.get(projector)
    return {**said, "clip.projector_type": None if own else projector, "clip.audio.projector_type": own}


def converted_sounds(folder: Path, projector: str) -> Named:
    """By the names that converters know: those of published files."""
    tensors = load_file(folder / "model.safetensors")
    for stored, tensor in tensors.items():
        name = stored.removeprefix("thinker.").removeprefix("model.")
        if name.startswith(_TOWERS) and not name.endswith(_PASSED_OVER):
            yield from _changed(name, tensor, projector)
    if projector == "granite_speech":
        yield from _folded({name.removeprefix("model."): tensor for name, tensor in tensors.items()})
    if "qwen3a" in projector or projector == "qwen2.5o":
        half = len(next(tensor for name, tensor in tensors.items() if name.endswith("audio_tower.ln_post.weight"))) // 2
        steps = 10_000.0 ** (-torch.arange(half) / (half - 1))
        angles = torch.arange(1500)[:, None] * steps
        yield "audio_tower.embed_positions.weight", torch.cat((angles.sin(), angles.cos()), dim=1)


def _changed(name: str, tensor: torch.Tensor, projector: str) -> Named:
    if projector == "gemma4v+gemma4a":
        name = name.replace("audio_tower.", "conformer.").replace(".linear.", ".")
        name = f"model.{name}" if name.startswith("embed_audio") else name
        if name.endswith("per_dim_scale"):
            name, tensor = f"{name}.weight", torch.nn.functional.softplus(tensor)
        yield name, tensor.squeeze(1) if "depthwise_conv1d" in name else tensor.view(1) if not tensor.dim() else tensor
    elif projector == "granite_speech":
        if "to_kv" in name:
            for part, each in zip("kv", tensor.chunk(2), strict=True):
                yield name.replace("to_kv", f"to_{part}"), each
        elif "batch_norm" not in name:
            yield name, tensor.squeeze(1 if "depth_conv" in name else -1) if name.endswith("conv.weight") else tensor
    else:
        if "qwen3a" in projector:
            name = re.sub(r"\Amulti_modal_projector\.linear_", "audio_tower.proj", name)
        if name.startswith("multi_modal_projector."):
            name = f"audio.{name}"
        if (bias := re.search(r"conv(2d)?\d\.bias", name)) is not None:
            tensor = tensor.view(-1, *[1] * (2 if bias[1] else 1))
        yield name, tensor


def _folded(tensors: dict[str, torch.Tensor]) -> Named:
    """Norms over a batch, whose mean and variance are multiplied into their weights."""
    for name in tensors:
        if name.endswith("batch_norm.weight"):
            front = name.removesuffix("weight")
            scale = tensors[name] / (tensors[f"{front}running_var"] + 1e-5).sqrt()
            yield name, scale
            yield f"{front}bias", tensors[f"{front}bias"] - tensors[f"{front}running_mean"] * scale
