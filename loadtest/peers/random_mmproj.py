"""A projector file (llama.cpp's ``mmproj``) of an Idefics3 with random weights, beside a text model of its size."""

import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from .random_models import Tensor
from .random_weights import plain_values

EPSILON: Final = 1e-6


def write_random_mmproj(config: Mapping[str, Any], longest_edge: int, target: Path) -> None:
    """``config``: a published config.json; ``longest_edge``: pixels that pictures are stretched to before they are cut
    into tiles. Matrices are in float16. The same bits whenever it is written again."""
    import gguf  # late: a development dependency

    vision = config["vision_config"]
    writer = gguf.GGUFWriter(target, "clip")
    writer.add_type(gguf.GGUFType.MMPROJ)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_clip_has_vision_encoder(True)
    writer.add_clip_projector_type("idefics3")
    writer.add_vision_projection_dim(config["text_config"]["hidden_size"])
    writer.add_vision_image_size(vision["image_size"])
    writer.add_vision_patch_size(vision["patch_size"])
    writer.add_vision_embedding_length(vision["hidden_size"])
    writer.add_vision_feed_forward_length(vision["intermediate_size"])
    writer.add_vision_block_count(vision["num_hidden_layers"])
    writer.add_vision_head_count(vision["num_attention_heads"])
    writer.add_vision_attention_layernorm_eps(EPSILON)
    writer.add_vision_image_mean([0.5] * 3)
    writer.add_vision_image_std([0.5] * 3)
    writer.add_vision_projector_scale_factor(config["scale_factor"])
    writer.add_vision_use_gelu(True)
    writer.add_uint32("clip.vision.preproc_image_size", longest_edge)
    for tensor in _tensors(config):
        values = plain_values(tensor, np.random.default_rng(zlib.crc32(tensor.name.encode())))
        writer.add_tensor(tensor.name, values.astype(np.float16) if tensor.quantized else values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _tensors(config: Mapping[str, Any]) -> Iterator[Tensor]:
    """Those that the converter keeps in float32 are not ``quantized``."""
    vision = config["vision_config"]
    hidden, inner, patch = vision["hidden_size"], vision["intermediate_size"], vision["patch_size"]
    places = (vision["image_size"] // patch) ** 2
    yield Tensor("v.patch_embd.weight", (hidden, 3, patch, patch), False)
    yield Tensor("v.patch_embd.bias", (hidden,), False)
    yield Tensor("v.position_embd.weight", (places, hidden), False)
    matrices = {f"attn_{part}": (hidden, hidden) for part in ("q", "k", "v", "out")}
    matrices |= {"ffn_up": (inner, hidden), "ffn_down": (hidden, inner)}
    for layer in range(vision["num_hidden_layers"]):
        for name, shape in matrices.items():
            yield Tensor(f"v.blk.{layer}.{name}.weight", shape, True)
            yield Tensor(f"v.blk.{layer}.{name}.bias", shape[:1], False)
        for norm in ("ln1", "ln2"):
            yield from (Tensor(f"v.blk.{layer}.{norm}.{ending}", (hidden,), False) for ending in ("weight", "bias"))
    yield from (Tensor(f"v.post_ln.{ending}", (hidden,), False) for ending in ("weight", "bias"))
    width = hidden * config["scale_factor"] ** 2
    yield Tensor("mm.model.fc.weight", (config["text_config"]["hidden_size"], width), True)
