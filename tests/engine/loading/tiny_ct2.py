"""Writes CTranslate2's model.bin, and a tiny random Whisper in it."""

import json
import struct
from collections.abc import Mapping
from pathlib import Path

import torch

TYPES = {
    torch.float32: 0,
    torch.int8: 1,
    torch.int16: 2,
    torch.int32: 3,
    torch.float16: 4,
    torch.bfloat16: 5,
}
LAYER = {
    "self_attn_layer_norm": "self_attention/layer_norm",
    "self_attn.out_proj": "self_attention/linear_1",
    "encoder_attn_layer_norm": "attention/layer_norm",
    "encoder_attn.q_proj": "attention/linear_0",
    "encoder_attn.out_proj": "attention/linear_2",
    "final_layer_norm": "ffn/layer_norm",
    "fc1": "ffn/linear_0",
    "fc2": "ffn/linear_1",
}
WHOLE = {
    "conv1": "conv1",
    "conv2": "conv2",
    "layer_norm": "layer_norm",
    "embed_tokens": "embeddings",
    "embed_positions": "position_encodings",
}


def text(value: str) -> bytes:
    raw = value.encode() + b"\0"
    return struct.pack("<H", len(raw)) + raw


def variable(name: str, tensor: torch.Tensor, *, version: int = 6) -> bytes:
    data = tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    head = text(name) + struct.pack(f"<B{tensor.dim()}I", tensor.dim(), *tensor.shape)
    if version >= 4:
        return head + struct.pack("<BI", TYPES[tensor.dtype], len(data)) + data
    return head + struct.pack("<BI", tensor.itemsize, tensor.numel()) + data


def model_bin(
    variables: Mapping[str, torch.Tensor],
    aliases: Mapping[str, str] | None = None,
    *,
    version: int = 6,
    kind: str = "WhisperSpec",
) -> bytes:
    head = struct.pack("<I", version)
    if version >= 2:
        head += text(kind) + struct.pack("<I", 3)
    body = b"".join(variable(name, tensor, version=version) for name, tensor in variables.items())
    content = head + struct.pack("<I", len(variables)) + body
    if version >= 3:
        pairs = (aliases or {}).items()
        content += struct.pack("<I", len(pairs)) + b"".join(text(alias) + text(name) for alias, name in pairs)
    return content


def whisper_variables(
    state: Mapping[str, torch.Tensor], heads: tuple[int, int], dtype: torch.dtype = torch.float32
) -> dict[str, torch.Tensor]:
    """transformers' tensors of a Whisper under CTranslate2's names, fused as it does; int8 and int16 with scales."""
    found: dict[str, torch.Tensor] = {}
    for name, tensor in state.items():
        if name.startswith("model."):
            _, side, rest = name.split(".", 2)
            part, ending = rest.rsplit(".", 1)
            if part.startswith("layers."):
                _, layer, part = part.split(".", 2)
                prefix = f"{side}/layer_{layer}"
            else:
                prefix = side
            target = LAYER.get(part) if prefix != side else WHOLE.get(part)
            if target is not None:
                norm = target.endswith("layer_norm")
                ending = {"weight": "gamma", "bias": "beta"}[ending] if norm else ending
                ending = "encodings" if part == "embed_positions" else ending
                _put(found, f"{prefix}/{target}/{ending}", tensor, dtype)
            elif part.endswith(("self_attn.q_proj", "encoder_attn.k_proj")) and ending == "weight":
                own = part.startswith("self")
                which = ("q", "k", "v") if own else ("k", "v")
                stem = name.rsplit(".", 2)[0]
                biases = [state.get(f"{stem}.{one}_proj.bias", torch.zeros(len(tensor))) for one in which]
                target = f"{prefix}/self_attention/linear_0" if own else f"{prefix}/attention/linear_1"
                stacked = torch.cat([state[f"{stem}.{one}_proj.weight"] for one in which])
                _put(found, f"{target}/weight", stacked, dtype)
                _put(found, f"{target}/bias", torch.cat(biases), dtype)
    for side, count in zip(("encoder", "decoder"), heads, strict=True):
        found[f"{side}/num_heads"] = torch.tensor(count, dtype=torch.int16)
    found["decoder/pre_norm"] = torch.tensor(1, dtype=torch.int8)
    return found


def _put(found: dict[str, torch.Tensor], name: str, tensor: torch.Tensor, dtype: torch.dtype) -> None:
    tensor = tensor.detach().float()
    if dtype.is_floating_point or not name.endswith("/weight"):
        found[name] = tensor.to(dtype) if dtype.is_floating_point else tensor
        return
    if dtype == torch.int8:
        scale = 127.0 / tensor.flatten(1).abs().amax(1).clamp(min=1e-9)
        found[name] = (tensor * scale.view(-1, *(1 for _ in tensor.shape[1:]))).round().to(dtype)
    else:
        scale = torch.tensor(1024.0)
        found[name] = (tensor * scale).round().to(dtype)
    found[f"{name}_scale"] = scale


def write_whisper(
    folder: Path,
    state: Mapping[str, torch.Tensor],
    heads: tuple[int, int],
    dtype: torch.dtype = torch.float32,
    config: Mapping[str, object] | None = None,
    vocabulary: list[str] | None = None,
) -> Path:
    """A folder as CTranslate2's converter leaves it."""
    folder.mkdir(parents=True, exist_ok=True)
    aliases = {"decoder/projection/weight": "decoder/embeddings/weight"}
    (folder / "model.bin").write_bytes(model_bin(whisper_variables(state, heads, dtype), aliases))
    (folder / "config.json").write_text(json.dumps(config or {}))
    if vocabulary is not None:
        (folder / "vocabulary.json").write_text(json.dumps(vocabulary))
    return folder
