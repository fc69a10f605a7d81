"""Maps the tensors of a projector file to our own vision tower's.

A part has the same name in all files; the tower's spec has the name in
:class:`...models.towers.vision_tower.VisionTower`.
"""

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from ...model_config.spec.layer import LayerSpec
from ...model_config.spec.mlp import MLPSpec
from ...model_config.towers.vision_spec import ProjectorSpec, VisionSpec

_BLOCK: Final = re.compile(r"v\.blk\.(\d+)\.(\w+)\.(weight|bias)")
_TAP: Final = re.compile(r"v\.deepstack\.(\d+)\.(norm|fc1|fc2)\.(weight|bias)")
_PROJECTORS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "idefics3": ("", ("mm.model.fc",)),
    "gemma3": ("mm.soft_emb_norm", ("mm.input_projection",)),
    "llava": ("", ("mm.0", "mm.2")),
    "pixtral": ("", ("mm.1", "mm.2")),
    **dict.fromkeys(("mistral3", "lighton_ocr"), ("mm.input_norm", ("mm.patch_merger", "mm.1", "mm.2"))),
    "llama4": ("", ("mm.model.mlp.1", "mm.model.mlp.2", "mm.model.fc")),
    "internvl": ("mm.model.mlp.0", ("mm.model.mlp.1", "mm.model.mlp.3")),
    "lfm2_vl": ("mm.input_norm", ("mm.1", "mm.2")),
    **dict.fromkeys(("kimi_vl", "kimi_k25"), ("mm.input_norm", ("mm.1", "mm.2"))),
    **dict.fromkeys(("glm4v", "glm4v_moe"), ("", ("mm.patch_merger", "mm.model.fc", "mm.up", "mm.down"))),
    "gemma4": ("", ("mm.input_projection",)),
}
"""Names of a projector's norm and products in files, by model type."""
_QWEN: Final = ("v.post_ln", ("mm.0", "mm.2"))
IGNORED: Final = frozenset({"v.token_embd.img_break"})
"""A row of the text model's embedding."""
FIRST_FRAME: Final = "v.patch_embd.weight"
SECOND_FRAME: Final = "v.patch_embd.weight.1"
"""The second half, if a patch spans two frames."""


class TowerPart(msgspec.Struct, frozen=True):
    """The contents of a stored tensor."""

    name: str
    """The tower's name for it; an unknown one keeps its name."""
    heads: int = 0
    """Number of heads whose rows are stored as interleaved rotary pairs."""
    apart: int = 0
    """Number of heads of fused queries, keys and values whose queries and keys store rows rotated by column before
    those rotated by row, pair by pair."""


class TowerParts:
    """The names of one file."""

    def __init__(self, spec: VisionSpec, *, swapped: bool) -> None:
        """``swapped``: see :attr:`...model_config.gguf.mmproj_config.ProjectorFile.swapped`."""
        self._spec = spec
        interleaved = spec.source == "sized"  # Pixtral
        self._layers = [dict(_of_layer(layer, swapped=swapped)) for layer in spec.layers]
        self._heads = [layer.attention.heads if interleaved else 0 for layer in spec.layers]
        self._apart = spec.architecture == "kimi_k25"
        self._outer = {
            "v.patch_embd": spec.patch_name,
            "v.position_embd": spec.position_name,
            **dict.fromkeys(("v.pre_ln", "v.norm_embd"), spec.first_norm),
            "v.post_ln": spec.final_norm,
            **dict(zip(("v.std_bias", "v.std_scale"), spec.projector.standard or (), strict=False)),
            **_of_projector(spec),
        }

    def of(self, stored: str) -> TowerPart:
        if stored in ("v.class_embd", "v.class_embd.weight"):
            return TowerPart(f"{self._spec.class_name}.weight")
        if (tap := _TAP.fullmatch(stored)) is not None:
            return TowerPart(self._tap(int(tap[1]), tap[2], tap[3]) or stored)
        if stored in self._outer:  # without an ending
            return TowerPart(f"{self._outer[stored]}.weight")
        block = _BLOCK.fullmatch(stored)
        if block is None:
            stem, _, ending = stored.rpartition(".")
            own = self._outer.get(stem)
            return TowerPart(f"{own}.{ending}" if own else stored)
        layer, part, ending = int(block[1]), block[2], block[3]
        if layer >= len(self._layers) or part not in self._layers[layer]:
            return TowerPart(stored)
        own = f"{self._spec.prefix}.{layer}.{self._layers[layer][part]}"
        if part in ("ls1", "ls2"):
            return TowerPart(own)
        if part == "attn_qkv" and self._apart:
            return TowerPart(f"{own}.{ending}", apart=self._spec.layers[layer].attention.heads)
        return TowerPart(f"{own}.{ending}", self._heads[layer] if part in ("attn_q", "attn_k") else 0)

    def _tap(self, layer: int, part: str, ending: str) -> str | None:
        projector = self._spec.deepstack_projector
        if projector is None or layer not in self._spec.deepstack:
            return None
        names = {"norm": _norm(projector), "fc1": projector.products[0].name, "fc2": projector.products[-1].name}
        return f"deepstack.{self._spec.deepstack.index(layer)}.{names[part]}.{ending}"


def is_changed(spec: VisionSpec, name: str) -> bool:
    """Whether a weight is changed before it is multiplied: its columns are reordered, or a scale of its outputs is
    applied."""
    scaled = spec.names == "internvl" and name.endswith((".attention.projection_layer.weight", ".mlp.fc2.weight"))
    moved = (product.name for product in spec.projector.products if product.transposed or product.channels_first)
    return scaled or name in (f"{each}.weight" for each in moved)


def _of_projector(spec: VisionSpec) -> Mapping[str, str]:
    kind = "pixtral" if spec.source == "sized" and spec.merge == 1 else spec.architecture
    norm, products = _PROJECTORS.get(kind, _QWEN)
    found = {stored: product.name for stored, product in zip(products, spec.projector.products, strict=True)}
    for product in spec.projector.products:
        found |= {"mm.gate": product.gate} if product.gate else {}
        found |= {"mm.post_norm": product.norm.name} if product.norm is not None else {}
    return {**found, norm: _norm(spec.projector)} if norm else found


def _norm(projector: ProjectorSpec) -> str:
    return "" if projector.norm is None else projector.norm.name


def _of_layer(layer: LayerSpec, *, swapped: bool) -> Mapping[str, str]:
    """The names of a layer's parts, without endings."""
    mixer, mlp = layer.attention, layer.mlp
    assert isinstance(mlp, MLPSpec)
    up, down = ("ffn_down", "ffn_up") if swapped else ("ffn_up", "ffn_down")
    norms = zip(("attn_q_norm", "attn_k_norm"), mixer.qk_norm_names or (), strict=False)
    return {
        "ln1": layer.norms.mixer_in,
        "ln2": layer.norms.mlp_in,
        "attn_post_norm": layer.norms.mixer_out,
        "ffn_post_norm": layer.norms.mlp_out,
        **{f"attn_{part}": f"{mixer.name}.{part}_proj" for part in ("q", "k", "v", "qkv")},
        "attn_out": f"{mixer.name}.{mixer.out}",
        **{stored: f"{mixer.name}.{name}" for stored, name in norms},
        "ffn_gate": mlp.into[0],
        up: mlp.into[-1],
        down: mlp.out,
        "ls1": "lambda_1",
        "ls2": "lambda_2",
    }
