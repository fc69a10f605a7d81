"""A projector file (llama.cpp's ``mmproj``) of an Idefics3 with random weights, beside a text model of its size."""

import math
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import numpy as np

TowerForm = Literal["f32", "f16", "q8_0"]
EPSILON: Final = 1e-6


class _Weight(NamedTuple):
    name: str
    shape: tuple[int, ...]
    kept: bool = False
    """In float32, as the converter keeps it."""


def write_random_mmproj(config: Mapping[str, Any], form: TowerForm, longest_edge: int, target: Path) -> None:
    """``config``: a published config.json; ``longest_edge``: pixels that pictures are stretched to before they are cut
    into tiles. The same bits whenever it is written again."""
    import gguf  # late: a development dependency

    vision = config["vision_config"]
    writer = gguf.GGUFWriter(target, "clip")
    writer.add_type(gguf.GGUFType.MMPROJ)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32 if form == "f32" else gguf.LlamaFileType[f"MOSTLY_{form.upper()}"])
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
    kind = gguf.GGMLQuantizationType[form.upper()]
    for weight in _weights(config):
        rng = np.random.default_rng(zlib.crc32(weight.name.encode()))
        values = _values(weight, rng)
        if weight.kept or values.ndim < 2 or form == "f32":
            writer.add_tensor(weight.name, values)
        else:
            writer.add_tensor(weight.name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _weights(config: Mapping[str, Any]) -> Iterator[_Weight]:
    vision = config["vision_config"]
    hidden, inner, patch = vision["hidden_size"], vision["intermediate_size"], vision["patch_size"]
    places = (vision["image_size"] // patch) ** 2
    yield _Weight("v.patch_embd.weight", (hidden, 3, patch, patch), kept=True)
    yield _Weight("v.patch_embd.bias", (hidden,))
    yield _Weight("v.position_embd.weight", (places, hidden), kept=True)
    matrices = {f"attn_{part}": (hidden, hidden) for part in ("q", "k", "v", "out")}
    matrices |= {"ffn_up": (inner, hidden), "ffn_down": (hidden, inner)}
    for layer in range(vision["num_hidden_layers"]):
        for name, shape in matrices.items():
            yield _Weight(f"v.blk.{layer}.{name}.weight", shape)
            yield _Weight(f"v.blk.{layer}.{name}.bias", shape[:1])
        for norm in ("ln1", "ln2"):
            yield from (_Weight(f"v.blk.{layer}.{norm}.{ending}", (hidden,)) for ending in ("weight", "bias"))
    yield from (_Weight(f"v.post_ln.{ending}", (hidden,)) for ending in ("weight", "bias"))
    yield _Weight("mm.model.fc.weight", (config["text_config"]["hidden_size"], hidden * config["scale_factor"] ** 2))


def _values(weight: _Weight, rng: np.random.Generator) -> Any:
    """Ones in norms, zeros in biases, else numbers with which a product keeps the size of its input."""
    if len(weight.shape) == 1:
        return np.full(weight.shape, float(weight.name.endswith("weight")), np.float32)
    inputs = math.prod(weight.shape[1:])
    return rng.standard_normal(weight.shape, np.float32) / np.float32(math.sqrt(inputs))
