"""Tensors that files divide otherwise than this decoder: queries, keys and values in chunks of float8 (MiMo-V2.5),
embeddings of the first and of the last tokens apart (Molmo 2), rows of gates and ups in turn (Inkling); and layers that
files number otherwise (Dory)."""

import re
from collections.abc import Iterable, Iterator

import torch

from ..model_config.spec.attention import AttentionSpec
from ..model_config.spec.mlp import MLPSpec
from ..model_config.spec.model import Backbone, ModelSpec
from ..quantization.formats import FP8_BLOCK
from .expanded_experts import expanded_experts
from .linear.weights import WeightError

_WEIGHT, _SCALE = ".weight", ".weight_scale_inv"
_BLOCK = re.compile(r"\.(\d+)\.(mixer|attn_alpha|mlp_alpha)(?=\.|\Z)")
_RATES = {"attn_alpha": "lambda_1", "mlp_alpha": "lambda_2"}
_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def as_divided(model: ModelSpec, tensors: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors as the decoder divides them. Raises :class:`WeightError` for parts that do not fit."""
    if model.blocks_apart:
        tensors = ((_BLOCK.sub(_in_pairs, name), tensor) for name, tensor in tensors)
    return expanded_experts(model, _whole_heads(model, _whole_embeddings(model, _gates_apart(model, tensors))))


def _in_pairs(block: re.Match[str]) -> str:
    """The name of a block's part within the layer that it is one of two of."""
    number, part = int(block[1]), block[2]
    return f".{number // 2}.{_RATES.get(part) or ('self_attn', 'mlp')[number % 2]}"


def _gates_apart(model: ModelSpec, tensors: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors with a gate and an up in place of a matrix that has their rows in turn."""
    parts = {
        f".{network.alternating}.weight": tuple(f".{name}.weight" for name in network.into)
        for layer in model.layers
        if isinstance(network := layer.mlp, MLPSpec) and network.alternating
    }
    for name, tensor in tensors:
        ending = next((each for each in parts if name.endswith(each)), None)
        if ending is None:
            yield name, tensor
            continue
        for first, own in enumerate(parts[ending]):
            yield name.removesuffix(ending) + own, tensor[first::2]


def _whole_embeddings(
    model: ModelSpec, tensors: Iterable[tuple[str, torch.Tensor]]
) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors with one table [vocabulary, hidden] in place of its two parts."""
    parts = [f"{model.embedding}.{ending}" for ending in model.embedding_parts or ()]
    waiting: dict[str, torch.Tensor] = {}
    for name, tensor in tensors:
        if name not in parts:
            yield name, tensor
            continue
        waiting[name] = tensor.clone()  # the file's pages are released before its partner comes
        if len(waiting) == len(parts):
            yield f"{model.embedding}{_WEIGHT}", torch.cat([waiting.pop(part) for part in parts])
    if waiting:
        raise WeightError(f"the checkpoint has only a part of its embeddings, {next(iter(waiting))}, expected both")


def _whole_heads(model: Backbone, tensors: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors with all queries, keys and values in turn, as floats, in place of float8 chunks and their scales.

    Raises :class:`WeightError` for other shapes than chunks have.
    """
    specs = {
        f"{model.layer_prefix(number)}.{spec.name}.{spec.into}": spec
        for number, layer in enumerate(model.layers)
        if isinstance(spec := layer.mixer, AttentionSpec) and spec.chunk
    }
    waiting: dict[str, torch.Tensor] = {}
    for name, tensor in tensors:
        ending = _SCALE if name.endswith(_SCALE) else _WEIGHT
        part = name.removesuffix(ending)
        if part not in specs or (ending == _WEIGHT and tensor.dtype not in _FLOAT8):
            yield name, tensor
        elif (other := waiting.pop(part, None)) is None:
            waiting[part] = tensor.clone()  # the file's pages are released before its partner comes
        else:
            weight, scale = (tensor, other) if ending == _WEIGHT else (other, tensor)
            yield f"{part}{_WEIGHT}", _expanded(part, specs[part], weight, scale)
    if waiting:
        raise WeightError(f"the checkpoint lacks the weight or the scales of {next(iter(waiting))}")


def _expanded(part: str, spec: AttentionSpec, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """float8 [rows, inputs] and scales by blocks, whose rows begin anew in each chunk → float32 [rows, inputs]"""
    assert spec.chunk is not None
    rows, inputs = sum(spec.chunk), weight.shape[1]
    count = len(weight) // rows
    blocks = count * -(-rows // FP8_BLOCK), -(-inputs // FP8_BLOCK)
    if len(weight) != count * rows or tuple(scale.shape) != blocks:
        raise WeightError(
            f"{part} has {len(weight)} rows and scales of shape {tuple(scale.shape)}, expected chunks of {rows} rows "
            f"and {blocks}"
        )
    by_row = scale.float().view(count, -1, blocks[1]).repeat_interleave(FP8_BLOCK, 1)[:, :rows]
    chunks = weight.float().view(count, rows, inputs)
    chunks = chunks * by_row.repeat_interleave(FP8_BLOCK, 2)[..., :inputs]
    return torch.cat([kind.flatten(0, 1) for kind in chunks.split(list(spec.chunk), dim=1)])
