"""Tiny quantised checkpoints, each with the logits that whoever defined its format computes from it.

compressed-tensors' come from its own library, which also computes with quantised inputs. The others are
packed here element by element, as their formats are described, beside a plain model of the same values.
"""

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers as untyped_transformers
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

transformers: Any = untyped_transformers

HIDDEN, INNER, VOCAB = 128, 256, 320
TOKENS = [int(token) for token in np.random.default_rng(0).integers(3, VOCAB, 40)]

Tensors = dict[str, torch.Tensor]
Pack = Callable[[torch.Tensor], tuple[Tensors, torch.Tensor]]
"""A weight to what is stored by ending, and the plain weight that this stands for."""


@dataclass(frozen=True)
class Made:
    """``logits``: float32 [tokens, vocabulary] of :data:`TOKENS`."""

    folder: Path
    logits: torch.Tensor


def tiny_llama(**fields: Any) -> Any:
    torch.manual_seed(0)
    shape = {
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    config = transformers.LlamaConfig(**(shape | fields))
    model = transformers.LlamaForCausalLM(config).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.normal_(0, 0.08)
    return model


@torch.inference_mode()
def logits_of(model: Any) -> torch.Tensor:
    found: torch.Tensor = model(torch.tensor([TOKENS])).logits[0].float()
    return found


def packed(
    folder: Path, description: dict[str, Any], pack: Pack, *, file: str = "config.json", head: bool = False
) -> Made:
    """A checkpoint whose projections are stored as ``pack`` says, described in ``file``; with ``head`` lm_head too."""
    model = tiny_llama()
    model.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    plain = copy.deepcopy(model)
    for name, module in plain.named_modules():
        if not isinstance(module, torch.nn.Linear) or (name == "lm_head" and not head):
            continue
        stored, value = pack(tensors.pop(f"{name}.weight").float())
        tensors |= {f"{name}.{ending}": tensor.contiguous() for ending, tensor in stored.items()}
        module.weight.data = value
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    if file == "config.json":
        config["quantization_config"] = description
        (folder / file).write_text(json.dumps(config))
    else:
        (folder / file).write_text(json.dumps(description))
    return Made(folder, logits_of(plain))


def compressed(folder: Path, form: str, weights: dict[str, Any], inputs: dict[str, Any] | None = None) -> Made:
    """What compressed-tensors' library stores and computes."""
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import (
        QuantizationArgs,
        QuantizationConfig,
        QuantizationScheme,
        apply_quantization_config,
    )
    from compressed_tensors.quantization.utils import calculate_qparams

    model = tiny_llama()
    scheme = QuantizationScheme(
        targets=["Linear"],
        weights=QuantizationArgs(**weights),
        input_activations=None if inputs is None else QuantizationArgs(**inputs),
    )
    apply_quantization_config(
        model,
        QuantizationConfig(
            config_groups={"group_0": scheme}, ignore=["lm_head"], format=form, quantization_status="frozen"
        ),
    )
    for module in model.modules():
        if not hasattr(module, "weight_scale"):
            continue
        arguments = module.quantization_scheme.weights
        weight = module.weight.data
        whole = arguments.strategy == "tensor"
        rows, group = (1, weight.numel()) if whole else (len(weight), arguments.group_size or weight.shape[1])
        pieces = weight.reshape(rows, -1, group)
        scale, zero = calculate_qparams(pieces.amin(-1), pieces.amax(-1), arguments)
        module.weight_scale.data.copy_(scale.view(module.weight_scale.shape))
        if hasattr(module, "weight_zero_point"):
            module.weight_zero_point.data.copy_(zero.view(module.weight_zero_point.shape))
        if hasattr(module, "input_scale"):
            module.input_scale.data.fill_(0.05)
    compressor = ModelCompressor.from_pretrained_model(model, quantization_format=form)
    logits = logits_of(model)
    compressor.compress_model(model)
    model.save_pretrained(folder)
    compressor.update_config(folder)
    return Made(folder, logits)


def with_int8_inputs(folder: Path) -> torch.Tensor:
    """Logits of an int8 checkpoint whose inputs are rounded to 127 steps of their token's greatest magnitude.

    The library takes 127.5 steps and clamps, which is another grid; this one is what servers use.
    """
    tensors = load_file(folder / "model.safetensors")
    model = tiny_llama()
    for name, module in model.named_modules():
        if f"{name}.weight_scale" not in tensors:
            continue
        module.weight.data = tensors[f"{name}.weight"].float() * tensors[f"{name}.weight_scale"].float()
        module.register_forward_pre_hook(_round_inputs)
    return logits_of(model)


def int8_model_logits() -> torch.Tensor:
    """Of the tiny model with weights and inputs rounded to 127 steps of their channel's and token's magnitude."""
    model = tiny_llama()
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and name != "lm_head":
            module.weight.data = _round_inputs(module, (module.weight.data,))
            module.register_forward_pre_hook(_round_inputs)
    return logits_of(model)


def _round_inputs(module: Any, inputs: tuple[torch.Tensor]) -> torch.Tensor:
    step = inputs[0].abs().amax(-1, keepdim=True) / 127
    return torch.round(inputs[0] / step) * step


# ---- FP8


def fp8_by_tensor(static: float | None = None) -> Pack:
    def pack(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        scale = weight.abs().max() / 448
        stored = (weight / scale).to(torch.float8_e4m3fn)
        tensors = {"weight": stored, "weight_scale": scale.reshape(())}
        if static is not None:
            tensors["input_scale"] = torch.tensor(static)
        return tensors, stored.float() * scale

    return pack


def fp8_by_channel(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    scale = weight.abs().amax(1) / 448
    stored = (weight / scale[:, None]).to(torch.float8_e4m3fn)
    return {"weight": stored, "weight_scale": scale}, stored.float() * scale[:, None]


def fp8_by_block(side: int) -> Pack:
    def pack(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        rows, columns = weight.shape
        scales = torch.empty(-(-rows // side), -(-columns // side))
        stored = torch.empty(weight.shape, dtype=torch.float8_e4m3fn)
        value = torch.empty_like(weight)
        for i in range(scales.shape[0]):
            for j in range(scales.shape[1]):
                block = slice(i * side, (i + 1) * side), slice(j * side, (j + 1) * side)
                scales[i, j] = weight[block].abs().max() / 448
                stored[block] = (weight[block] / scales[i, j]).to(torch.float8_e4m3fn)
                value[block] = stored[block].float() * scales[i, j]
        return {"weight": stored, "weight_scale_inv": scales}, value

    return pack


# ---- ternary


def bitnet(folder: Path, linear: str, mode: str = "offline") -> Made:
    """BitNet's weights of -1, 0 and 1 times the mean magnitude, and the logits with inputs of 8 bits. ``bitlinear``
    stores the inverse of the scale, and ``online`` the weights that are rounded."""
    model = tiny_llama()
    model.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    for name, module in model.named_modules():
        if not isinstance(module, torch.nn.Linear) or name == "lm_head":
            continue
        mean = module.weight.data.abs().mean()
        codes = (module.weight.data / mean).round().clamp(-1, 1)
        module.weight.data = codes * mean
        module.register_forward_pre_hook(_round_inputs)
        if mode == "offline":
            quarters = (codes + 1).to(torch.uint8).chunk(4)
            tensors[f"{name}.weight"] = quarters[0] | quarters[1] << 2 | quarters[2] << 4 | quarters[3] << 6
            tensors[f"{name}.weight_scale"] = (1 / mean if linear == "bitlinear" else mean).reshape(1)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "bitnet", "linear_class": linear, "quantization_mode": mode}
    (folder / "config.json").write_text(json.dumps(config))
    return Made(folder, logits_of(model))


# ---- four bits


def _codes(
    weight: torch.Tensor, group: int, order: Any, most: int = 15, *, symmetric: bool = False
) -> tuple[Any, Any, Any, torch.Tensor]:
    """Codes [N, K], zeros and scales [N, groups], and the values they stand for. ``order``: the group of each input."""
    w = weight.numpy().astype(np.float64)
    groups = int(order.max()) + 1
    codes = np.zeros(w.shape, dtype=np.int64)
    zeros = np.zeros((len(w), groups), dtype=np.int64)
    scales = np.zeros((len(w), groups), dtype=np.float16)
    values = np.zeros(w.shape)
    for g in range(groups):
        mine = order == g
        low, high = np.minimum(w[:, mine].min(1), 0), np.maximum(w[:, mine].max(1), 0)
        if symmetric:
            low, high = np.minimum(low, -high), np.maximum(high, -low)
        scales[:, g] = (high - low) / most
        step = scales[:, g].astype(np.float64)[:, None]
        zeros[:, g] = (most + 1) // 2 if symmetric else np.clip(np.round(-low / step[:, 0]), 1, most)
        codes[:, mine] = np.clip(np.round(w[:, mine] / step) + zeros[:, g][:, None], 0, most)
        values[:, mine] = (codes[:, mine] - zeros[:, g][:, None]) * step
    return codes, zeros, scales, torch.from_numpy(values).float()


def _words(codes: Any, bits: int = 4) -> torch.Tensor:
    """[rows, 32 / bits * n] → int32 [rows, n], the first of each word in the lowest bits."""
    each = 32 // bits
    out = np.zeros((codes.shape[0], codes.shape[1] // each), dtype=np.uint32)
    for place in range(each):
        out |= codes[:, place::each].astype(np.uint32) << np.uint32(bits * place)
    return torch.from_numpy(out.view(np.int32).copy())


def gptq(group: int, *, version: int = 1, act_order: bool = False, bits: int = 4, symmetric: bool = False) -> Pack:
    def pack(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        inputs = weight.shape[1]
        order = np.arange(inputs) // (group if group > 0 else inputs)
        if act_order:
            order = np.random.default_rng(inputs).permutation(order)
        most = (1 << bits) - 1
        codes, zeros, scales, values = _codes(weight, group, order, most, symmetric=symmetric)
        less = 1 if version == 1 else 0
        stored = {
            "qweight": _words(codes, bits).T,
            "qzeros": _words((zeros.T - less) & most, bits),
            "scales": torch.from_numpy(scales.T.copy()),
            "g_idx": torch.from_numpy(order.astype(np.int32)),
        }
        return stored, values

    return pack


def fp4(kind: str, packing: str = "compressed-tensors") -> Pack:
    """NVFP4 or MXFP4, as compressed-tensors' library rounds, packs and reads it; ModelOpt's has other names, as has one
    whose ``packing`` is what its scales' names end with."""
    from compressed_tensors.compressors.mx_utils import compress_mx_scale
    from compressed_tensors.compressors.nvfp4.helpers import pack_fp4_to_uint8, unpack_fp4_from_uint8
    from compressed_tensors.quantization.lifecycle.forward import dequantize, quantize
    from compressed_tensors.quantization.quant_scheme import MXFP4A16, NVFP4A16

    nvidia = kind == "nvfp4"
    arguments = (NVFP4A16 if nvidia else MXFP4A16)["weights"]

    def pack(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        rows, columns = weight.shape
        largest = weight.view(rows, -1, arguments.group_size).abs().amax(2)
        whole = 448 * 6 / largest.max() if nvidia else None
        scale = largest / 6
        if whole is not None:
            stored_scale = (scale * whole).to(torch.float8_e4m3fn)
            scale = stored_scale.float()
        else:
            scale = torch.exp2(torch.ceil(torch.log2(scale)))
            stored_scale = compress_mx_scale(scale, torch.uint8)
        rounded = quantize(x=weight, scale=scale, zero_point=None, global_scale=whole, args=arguments)
        stored: Tensors = {"weight_packed": pack_fp4_to_uint8(rounded), "weight_scale": stored_scale}
        codes = unpack_fp4_from_uint8(stored["weight_packed"], rows, columns, dtype=torch.float32)
        value = dequantize(x_q=codes, scale=scale, args=arguments, global_scale=whole, dtype=torch.float32)
        if whole is not None and packing == "compressed-tensors":
            stored |= {"weight_global_scale": whole.reshape(1), "input_global_scale": torch.ones(1)}
        elif packing.startswith("weight_scale"):
            stored = {"weight": stored["weight_packed"], packing: stored["weight_scale"]}
        elif whole is not None:
            stored |= {"weight_scale_2": 1 / whole, "input_scale": torch.tensor(0.5)}
            stored["weight"] = stored.pop("weight_packed")
        return stored, value

    return pack


def awq(group: int) -> Pack:
    interleaved = np.array([0, 2, 4, 6, 1, 3, 5, 7])

    def ordered(rows: Any) -> Any:
        return rows.reshape(len(rows), -1, 8)[:, :, interleaved].reshape(len(rows), -1)

    def pack(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        order = np.arange(weight.shape[1]) // group
        codes, zeros, scales, values = _codes(weight, group, order)
        stored = {
            "qweight": _words(ordered(np.ascontiguousarray(codes.T))),
            "qzeros": _words(ordered(np.ascontiguousarray(zeros.T))),
            "scales": torch.from_numpy(scales.T.copy()),
        }
        return stored, values

    return pack


def mxfp4_experts(model: Any, folder: Path) -> None:
    """Gives the experts of a saved gpt-oss random values in MXFP4, the model what these stand for."""
    stored = load_file(folder / "model.safetensors")
    for name in [name for name in stored if name.endswith("_proj") and ".experts." in name]:
        experts, inputs, outputs = stored.pop(name).shape
        blocks = torch.randint(0, 256, (experts, outputs, inputs // 32, 16), dtype=torch.uint8)
        scales = torch.randint(121, 125, (experts, outputs, inputs // 32), dtype=torch.uint8)
        stored |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        model.get_parameter(name).data = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    spared = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    described = json.loads((folder / "config.json").read_text())
    described["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": spared}
    (folder / "config.json").write_text(json.dumps(described))
