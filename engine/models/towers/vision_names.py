"""Maps the tensor names of vision towers in checkpoints to those of :class:`.vision_tower.VisionTower`."""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import torch

from ...model_config.towers.vision_spec import VisionSpec
from .vision_projector import stored_as_multiplied

_TOWER: Final = re.compile(
    r"\A(?:model\.)?(?:vision_tower|vision_model|visual|vision_encoder|visual_tokenizer\.vit|vpm)\.(?:vision_model\.)?"
)
_PROJECTOR: Final = re.compile(
    r"\A(?:model\.)?(?:connector|(?:multi_modal_|mm_|vision_)?projector|vision_projection|mlp_AR|aligner)\."
)
_IN_PROJ: Final = re.compile(r"(.+)\.in_proj_(weight|bias)")
"""Queries, keys and values in torch's own attention."""
_BARE: Final = ("weight", "bias")
"""Endings that are not a parameter's own name."""
_RENAMED: Final[Mapping[str, tuple[tuple[str, str], ...]]] = {
    "siglip": (
        (r"\Amodel\.image_newline\Z", "image_newline"),
        (r"\Amodel\.mlp1\.", "mlp1."),
    ),
    "cosmos3_edge": (
        (r"\.mlp\.up_proj\.", ".mlp.fc1."),
        (r"\.mlp\.down_proj\.", ".mlp.fc2."),
        (r"\.self_attn\.to_([qkv])\.", r".self_attn.\1_proj."),
    ),
    "gemma4": (
        (r"\.linear\.", "."),
        (r"\A(?:model\.)?embed_vision\.", "projector."),
    ),
    "chatglm": (
        (r"\Atransformer\.vision\.(?:linear_proj\.|(?=conv\.))", "projector."),
        (r"\Atransformer\.vision\.", ""),
    ),
    "deepseek_vl2": (
        (r"\Avision\.", ""),
        (r"\.attn\.qkv\.", ".attn.qkv_proj."),
    ),
    "deepseek_v41": (
        (r"\Avision\.", ""),
        (r"\.attn\.wqkv\.", ".attn.qkv_proj."),
    ),
    "molmo": (
        (r"\A(?:model\.)?vision_backbone\.(?:image_vit\.)?", ""),
        (r"\Aimage_pooling_2d\.wo\.", "projector.pooling.out_proj."),
        (r"\Aimage_pooling_2d\.w([qkv])\.", r"projector.pooling.\1_proj."),
        (r"\Aimage_projector\.", "projector."),
        (r"\.attention\.w([qkvo])\.", r".self_attn.\1_proj."),
        (r"\.feed_forward\.w([12])\.", r".mlp.fc\1."),
    ),
    "phi3": (
        (r"\Amodel\.vision_embed_tokens\.(?:img_processor\.vision_model\.)?", ""),
        (r"\Aimg_projection\.", "projector."),
    ),
    "phi4_siglip": ((r"\Avision_tower\.(?:vision_model\.)?", ""),),
    "ernie": (
        (r"\.attn\.qkv\.", ".attn.qkv_proj."),
        (r"\A(?:model\.)?resampler_model\.", "projector."),
        *((rf"_linear\.{part}\.", rf"_linear.{number}.") for part, number in (("fc1", 0), ("fc2", 2), ("ln", 3))),
    ),
    "internvl": ((r"\.attn\.qkv\.", ".attn.qkv_proj."),),
    "isaac": (
        (r"\A(?:model\.)?vision_embedding\.(?:0|vision_tower)\.", ""),
        (r"\A(?:model\.)?vision_embedding\.(?:1|multimodal_projector\.linear_1)\.", "projector.linear_1."),
        (r"\A(?:model\.)?vision_embedding\.(?:3|multimodal_projector\.linear_2)\.", "projector.linear_2."),
    ),
    "llama4": (),
    "mistral": (
        (r"\Apre_mm_projector_norm\.", "projector.norm."),
        (r"\Apatch_merger\.", "projector.patch_merger."),
        (r"\Avision_language_adapter\.w_in\.", "projector.linear_1."),
        (r"\Avision_language_adapter\.w_out\.", "projector.linear_2."),
        (r"\.attention\.w([vo])\.", r".attention.\1_proj."),
        *((rf"\.w{number}\.", f".{part}_proj.") for number, part in ((1, "gate"), (2, "down"), (3, "up"))),
    ),
    "moonvit": (
        (r"\.wqkv\.", ".attn.qkv_proj."),
        (r"\.wo\.", ".attn.proj."),
        (r"\Aprojector\.proj\.0\.", "projector.linear_1."),
        (r"\Aprojector\.proj\.2\.", "projector.linear_2."),
    ),
    "glm": (
        (r"\.attn\.qkv\.", ".attn.qkv_proj."),
        (r"\A(merger|downsample)\.", r"projector.\1."),
    ),
    "kanana": (
        (r"\.attn\.qkv\.", ".attn.qkv_proj."),
        (r"\Aabstractor\.readout\.", "projector.readout."),
    ),
    "pangu": (
        (r"\.attn\.qkv\.", ".attn.qkv_proj."),
        (r"\Amerger\.0\.", "projector."),
        *((rf"\Amerger\.{number}\.", f"deepstack.{number - 1}.projector.") for number in range(1, 8)),
    ),
    "ovis": (
        (r"\Avisual_tokenizer\.backbone\.(?:preprocessor\.(?:patchifier\.)?|trunk\.)?", ""),
        (r"\Avisual_tokenizer\.head\.", "projector.head."),
        (r"\.attn\.qkv\.", ".attn.qkv_proj."),
        (r"\Avte\.", "projector.vte."),
    ),
    "ovis2": (
        (r"\Atransformer\.", ""),
        (r"\Ahead_(linear|norm)\.", r"projector.head_\1."),
        (r"\A(?:model\.)?visual_embeddings_table\.", "projector.table."),
    ),
    "ovis2_5": (
        (r"\Avisual_tokenizer\.head\.", "projector.head."),
        (r"\Avte\.", "projector.vte."),
    ),
    "perception": (
        (r"\Atimm_model\.", ""),
        (r"\.attn\.qkv\.", ".attn.qkv_proj."),
        (r"\.gamma_([12])\Z", r".ls\1"),
    ),
    "radio": (
        (r"\Aradio_model\.(?:model\.)?", ""),
        (r"\.attn\.qkv\.", ".attn.qkv_proj."),
    ),
    "qwen": (
        (r"\.(?:self_)?attn\.", ".attn."),
        (r"\.attn\.qkv\.", ".attn.qkv_proj."),
        (r"\Amerger\.", "projector."),
        (r"\Amodel\.linear_proj\.", "projector."),
        (r"\Adeepstack_merger_list\.(\d+)\.", r"deepstack.\1.projector."),
    ),
}
"""(pattern, replacement) by :attr:`...model_config.towers.vision_spec.VisionSpec.names`."""


_PAIRED: Final = re.compile(r"\.attention\.w([qk])\.weight\Z")
"""Queries and keys in Mistral's own files."""
_TURNED: Final = re.compile(r"\.(?:q|k)_(?:proj|norm)\.weight\Z")
"""Weights of rotated heads."""
_SCALES: Final[Mapping[str, str]] = {
    **{"lambda_1": "attention.projection_layer", "lambda_2": "mlp.fc2"},
    **{"ls1": "attn.proj", "ls2": "mlp.fc2"},
}
"""The product whose outputs each layer scale multiplies (arXiv:2103.17239, InternVL)."""
_WITH_SCALES: Final = ("internvl", "perception")
_SCALED: Final = tuple(f".{product}" for product in _SCALES.values())

Named = Iterable[tuple[str, torch.Tensor]]


def tower_tensors(spec: VisionSpec, tensors: Named) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a tower and its projector, matrices with two dimensions; without unused ones."""
    shapes = spec.shapes()
    renamed = _renamed(spec, _turned(spec, tensors) if spec.names == "mistral" else tensors)
    for stored, tensor in _scaled(renamed) if spec.names in _WITH_SCALES else renamed:
        name = stored if stored.rpartition(".")[2] in _BARE else f"{stored}.weight"
        if spec.names == "radio" and name == f"{spec.position_name}.weight":
            tensor = _resized(tensor, spec.side)
        if spec.names == "molmo" and name == f"{spec.patch_name}.weight":
            tensor = tensor.unflatten(1, (-1, spec.channels)).transpose(1, 2).flatten(1)  # channels are stored last
        if spec.names == "llama4" and name == f"{spec.position_name}.weight":
            tensor = tensor.roll(1, 0)  # the class token's position is stored behind those of patches
        shape = shapes.get(name)
        if shape is not None and tensor.dim() > len(shape) and tensor.numel() == math.prod(shape):
            tensor = tensor.reshape(shape)  # a convolution with stride equal to its size, or a single row
        if spec.names in ("ovis", "ovis2_5") and name == "projector.vte.weight":
            yield f"{spec.marks}.weight", tensor[-spec.mark_rows :]
            tensor = tensor[: -spec.mark_rows]
        if spec.words and not spec.word_names and name == "projector.table.weight":
            yield "words.weight", tensor[-len(spec.words) :]
            tensor = tensor[: -len(spec.words)]
        if spec.names == "gemma4" and _TURNED.search(name):
            tensor = _quarters(tensor, spec.layers[0].attention.head_dim)
        yield name, stored_as_multiplied(spec.projector, spec.taken_size, spec.joined_side, name, tensor)


def _renamed(spec: VisionSpec, tensors: Named) -> Iterator[tuple[str, torch.Tensor]]:
    renamed = [(re.compile(pattern), put) for pattern, put in _RENAMED[spec.names]]
    layer = re.compile(re.escape(spec.prefix) + r"\.(\d+)\.")
    parts = {name.rpartition(".")[0] for name in spec.shapes()}
    for stored, tensor in tensors:
        name = _PROJECTOR.sub("projector.", _TOWER.sub("", stored))
        for pattern, put in renamed:
            name = pattern.sub(put, name)
        found = layer.match(name)
        if name.startswith(spec.unused) or (found is not None and int(found[1]) >= len(spec.layers)):
            continue
        front, _, last = name.rpartition(".")
        if (joint := _IN_PROJ.fullmatch(name)) is not None and (spec.pool == "probe" or spec.resampler):
            for part, piece in zip("qkv", tensor.chunk(3), strict=True):
                yield f"{joint[1]}.{part}_proj.{joint[2]}", piece
            continue
        known = name in parts or front in parts or last in _SCALES
        yield name if known else stored, tensor  # errors should give the stored name of an unknown tensor


def _resized(table: torch.Tensor, side: int) -> torch.Tensor:
    """A learned square of positions [1, positions, hidden], resized to ``side`` patches a side. Raises ValueError."""
    known = math.isqrt(table.shape[-2])
    if known * known != table.shape[-2]:
        raise ValueError(f"{table.shape[-2]} learned positions are no square")
    square = table.view(1, known, known, -1).permute(0, 3, 1, 2).float()
    made: torch.Tensor = torch.nn.functional.interpolate(square, (side, side), mode="bilinear", align_corners=False)
    return made.flatten(2).transpose(1, 2).to(table.dtype)


def _quarters(tensor: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Reorder heads from rotating by quarters within each half to rotating half with half."""
    quarters: torch.Tensor = tensor.unflatten(0, (-1, 4, head_dim // 4))[:, [0, 2, 1, 3]]
    return quarters.flatten(0, 2)


def _turned(spec: VisionSpec, tensors: Named) -> Iterator[tuple[str, torch.Tensor]]:
    """Reorder heads of queries and keys from rotating pair by pair to rotating half with half (Mistral's own files)."""
    head_dim = spec.layers[0].attention.head_dim
    for name, tensor in tensors:
        if (found := _PAIRED.search(name)) is None:
            yield name, tensor
            continue
        reordered = tensor.unflatten(0, (-1, head_dim // 2, 2)).transpose(1, 2).flatten(0, 2)
        yield f"{name[: found.start()]}.attention.{found[1]}_proj.weight", reordered


def _scaled(tensors: Named) -> Iterator[tuple[str, torch.Tensor]]:
    """Multiply the scales into their products, in any order of the two."""
    scales: dict[str, torch.Tensor] = {}
    waiting: defaultdict[str, list[tuple[str, torch.Tensor]]] = defaultdict(list)
    for name, tensor in tensors:
        front, _, last = name.rpartition(".")
        if last in _SCALES:
            product = f"{front}.{_SCALES[last]}"
            scales[product] = tensor.float()
            yield from ((each, _by(scales[product], part)) for each, part in waiting.pop(product, ()))
        elif front in scales:
            yield name, _by(scales[front], tensor)
        elif front.endswith(_SCALED):
            waiting[front].append((name, tensor))
        else:
            yield name, tensor


def _by(scale: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """Scale each output of a product, in float32."""
    return tensor.float() * scale.view(-1, *[1] * (tensor.dim() - 1))
