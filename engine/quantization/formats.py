"""Storage formats of a layer's weights, independent of their description. Torch-free.

A *part* is one projection of the checkpoint, ``model.layers.0.self_attn.q_proj``; its tensors have the part's name with
an ending: ``.weight``, ``.weight_scale``, ``.qweight``.
"""

import re
from collections.abc import Callable
from typing import ClassVar, Literal

import msgspec

ScaleType = Literal["float16", "bfloat16", "float32"]

FP8_BLOCK = 128
"""Side of the square blocks that share a scale."""
MX_BLOCK = 32
"""Inputs of a row that share a scale, a power of two, in MXFP8 (OCP Microscaling Formats specification 1.0)."""


class FP8Format(msgspec.Struct, frozen=True):
    """float8_e4m3 weights; ``value = stored * scale``."""

    granularity: Literal["tensor", "channel", "block"]
    activations: Literal["none", "token", "tensor", "group"] = "none"
    """How inputs are quantised: not, with a scale a token or a group of 128, or with one stored scale."""
    scale_ending: str = "weight_scale"
    block: tuple[int, int] = (FP8_BLOCK, FP8_BLOCK)
    input_ending: str = "input_scale"
    stacked: bool = False
    """Whether matrices of all experts are one tensor, whose name ends without ``weight`` (transformers 5)."""

    @property
    def name(self) -> str:
        return f"fp8 by {self.granularity}"

    def stacked_ending(self, ending: str) -> str:
        """The ending of a scale's name in that case."""
        return f"_{ending.removeprefix('weight_')}"


class Int8Format(msgspec.Struct, frozen=True):
    """Symmetric int8 weights, or weights of -1, 0 and 1; ``value = stored * scale``."""

    granularity: Literal["tensor", "channel"]
    activations: Literal["none", "token", "tensor"] = "none"
    ternary: Literal["", "multiplied", "divided", "rounded"] = ""
    """Weights of -1, 0 and 1 (BitNet b1.58, arXiv:2402.17764): four rows to a byte with a scale that multiplies or
    divides them, or floats that are rounded at load, whose mean magnitude is the scale. "": int8."""

    @property
    def name(self) -> str:
        return f"{'ternary' if self.ternary else 'int8'} by {self.granularity}"


class GroupedIntFormat(msgspec.Struct, frozen=True):
    """Integer weights with a scale, and a zero point if not symmetric, for each group of inputs.

    Activations are not quantised.
    """

    bits: ClassVar[int]
    packing: Literal["gptq", "awq", "compressed-tensors"]
    """AWQ has 4 bits alone."""
    group: int
    """Inputs that share a scale; 0: all."""
    symmetric: bool
    act_order: bool = False
    """Whether inputs are assigned to groups by a stored index, not by position."""
    whole_groups: bool = True
    """Whether all inputs of a group are here. With an index, a worker of several may have only some of them."""
    zero_offset: int = 0
    """Added to stored zero points: 1 in GPTQ's first format."""
    scales: ScaleType = "float32"
    """The narrowest type that holds every stored scale exactly."""

    @property
    def name(self) -> str:
        return f"int{self.bits} ({self.packing}, {f'groups of {self.group}' if self.group else 'by channel'})"


class Int4Format(GroupedIntFormat, frozen=True):
    """4-bit weights."""

    bits = 4


class GroupedInt8Format(GroupedIntFormat, frozen=True):
    """8-bit weights with scales by group; :class:`Int8Format` has them by channel or tensor."""

    bits = 8


class FP4Format(msgspec.Struct, frozen=True):
    """4-bit floats (E2M1) with scales for groups along the inputs; inputs are not quantised.

    ``mxfp4``: a power of two for 32 (OCP Microscaling Formats specification 1.0). ``nvfp4``: a float8_e4m3 for 16, and
    a float32 for the whole part.
    """

    kind: Literal["mxfp4", "nvfp4"]
    packing: Literal["compressed-tensors", "modelopt", "gpt-oss", "deepseek"]
    """``gpt-oss``: experts' ``_blocks`` [experts, outputs, blocks, 16] and ``_scales`` [experts, outputs, blocks].
    ``deepseek``: ``weight`` and scales of each expert (DeepSeek-V4)."""
    scale_ending: str = "scale"
    """Of the last: ``weight_scale`` in MiMo-V2.6, ``weight_scale_inv`` in Ling 3.0."""

    @property
    def name(self) -> str:
        return self.kind.upper()

    @property
    def group(self) -> int:
        return 32 if self.kind == "mxfp4" else 16


class GGUFFormat(msgspec.Struct, frozen=True):
    """Blocks of one GGUF type."""

    kind: str
    """Such as ``Q4_K``."""

    @property
    def name(self) -> str:
        return self.kind


class OnlineFormat(msgspec.Struct, frozen=True):
    """Plain weights that are quantised at load: a scale a channel, inputs by token."""

    dtype: Literal["fp8", "int8"]

    @property
    def name(self) -> str:
        return f"{self.dtype} by channel, quantised at load"


Format = FP8Format | Int8Format | GroupedInt8Format | Int4Format | FP4Format | GGUFFormat | OnlineFormat


class QuantizationRule(msgspec.Struct, frozen=True):
    """The format of some parts: of a class of modules (``Linear``), a name, its last component, or ``re:`` and a
    regular expression, as in compressed-tensors."""

    targets: tuple[str, ...]
    format: Format


class QuantizedCheckpoint(msgspec.Struct, frozen=True):
    """A checkpoint's quantisation. ``ignore`` is tried first, then the rules in order."""

    method: str
    """The checkpoint's name for it."""
    rules: tuple[QuantizationRule, ...] = ()
    ignore: tuple[str, ...] = ()
    parts: dict[str, Format] = msgspec.field(default_factory=dict)
    """Formats of single parts, if the file lists them (GGUF)."""
    kv_cache_fp8: bool = False
    """Whether scales for an fp8 KV cache are stored."""
    plain: frozenset[str] = frozenset()
    """Parts stored as floats, whatever the rules say."""
    stored_as: Callable[[str], str] | None = None
    """Maps a caller's name of a part to the checkpoint's."""

    def format_of(self, part: str) -> Format | None:
        """The format of a part's weight; None if it is plain."""
        if self.stored_as is not None:
            part = self.stored_as(part)
        if part in self.parts:
            return self.parts[part]
        if part in self.plain or any(matches(pattern, part) for pattern in self.ignore):
            return None
        for rule in self.rules:
            if any(target == "Linear" or matches(target, part) for target in rule.targets):
                return rule.format
        return None


def matches(pattern: str, part: str) -> bool:
    """Whether a pattern matches a part: the whole name, whole components at either end, ``*``, or ``re:``."""
    if pattern.startswith("re:"):
        return re.match(pattern[3:], part) is not None
    if "*" in pattern:
        return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), part) is not None
    return part == pattern or part.startswith(f"{pattern}.") or part.endswith(f".{pattern}")
