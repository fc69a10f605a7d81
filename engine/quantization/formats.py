"""How the weights of a layer are stored, whatever file said so. Torch-free.

A *part* is one projection of the checkpoint, ``model.layers.0.self_attn.q_proj``; its tensors are the part's
name with an ending: ``.weight``, ``.weight_scale``, ``.qweight``.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

ScaleType = Literal["float16", "bfloat16", "float32"]

FP8_BLOCK = 128
"""Side of the square blocks that share a scale."""


@dataclass(frozen=True)
class FP8Format:
    """float8_e4m3 weights; ``value = stored * scale``."""

    granularity: Literal["tensor", "channel", "block"]
    activations: Literal["none", "token", "tensor", "group"] = "none"
    """How inputs are quantised: not at all, by a scale a token or a group of 128, or by one stored scale."""
    scale_ending: str = "weight_scale"
    block: tuple[int, int] = (FP8_BLOCK, FP8_BLOCK)
    input_ending: str = "input_scale"

    @property
    def name(self) -> str:
        return f"fp8 by {self.granularity}"


@dataclass(frozen=True)
class Int8Format:
    """Symmetric int8 weights; ``value = stored * scale``."""

    granularity: Literal["tensor", "channel"]
    activations: Literal["none", "token", "tensor"] = "none"

    @property
    def name(self) -> str:
        return f"int8 by {self.granularity}"


@dataclass(frozen=True)
class Int4Format:
    """Four-bit weights that share a scale, and a zero point where not symmetric, in groups along the inputs."""

    packing: Literal["gptq", "awq", "compressed-tensors"]
    group: int
    """Inputs that share a scale; 0 means all."""
    symmetric: bool
    act_order: bool = False
    """Inputs belong to groups by a stored index, not by their place."""
    whole_groups: bool = True
    """All inputs of a group are there: a worker of several may have some of a group's, where an index says which."""
    zero_offset: int = 0
    """Added to stored zero points: 1 in GPTQ's first format."""
    scales: ScaleType = "float32"
    """What holds every scale as it is stored."""

    @property
    def name(self) -> str:
        return f"int4 ({self.packing}, {f'groups of {self.group}' if self.group else 'by channel'})"


@dataclass(frozen=True)
class GroupedInt8Format:
    """Eight-bit weights that share a scale, and a zero point where not symmetric, in groups along the inputs.

    Inputs are not quantised.
    """

    packing: Literal["gptq", "compressed-tensors"]
    group: int
    """Inputs that share a scale; 0 means all."""
    symmetric: bool
    act_order: bool = False
    """Inputs belong to groups by a stored index, not by their place."""
    whole_groups: bool = True
    """All inputs of a group are there: a worker of several may have some of a group's, where an index says which."""
    zero_offset: int = 0
    """Added to stored zero points: 1 in GPTQ's first format."""
    scales: ScaleType = "float32"
    """What holds every scale as it is stored."""

    @property
    def name(self) -> str:
        return f"int8 ({self.packing}, {f'groups of {self.group}' if self.group else 'by channel'})"


@dataclass(frozen=True)
class FP4Format:
    """Four-bit floats (E2M1) that share a scale in groups along the inputs; inputs are not quantised.

    ``mxfp4``: 32 share a power of two (OCP Microscaling Formats specification 1.0). ``nvfp4``: 16 share a float8_e4m3,
    and all of a part a float32.
    """

    kind: Literal["mxfp4", "nvfp4"]
    packing: Literal["compressed-tensors", "modelopt", "gpt-oss"]
    """``gpt-oss``: ``_blocks`` [experts, outputs, blocks, 16] and ``_scales`` [experts, outputs, blocks] of experts."""

    @property
    def name(self) -> str:
        return self.kind.upper()

    @property
    def group(self) -> int:
        return 32 if self.kind == "mxfp4" else 16


@dataclass(frozen=True)
class GGUFFormat:
    """Raw blocks of one of GGUF's types."""

    kind: str
    """``Q4_K``."""

    @property
    def name(self) -> str:
        return self.kind


@dataclass(frozen=True)
class OnlineFormat:
    """Plain weights, quantised by us while they load: a scale a channel, inputs by token."""

    dtype: Literal["fp8", "int8"]

    @property
    def name(self) -> str:
        return f"{self.dtype} by channel, quantised at load"


Format = FP8Format | Int8Format | GroupedInt8Format | Int4Format | FP4Format | GGUFFormat | OnlineFormat


@dataclass(frozen=True)
class QuantizationRule:
    """Which parts have a format: a class of modules (``Linear``), a name, its last component, or ``re:`` and a
    regular expression, as compressed-tensors writes them."""

    targets: tuple[str, ...]
    format: Format


@dataclass(frozen=True)
class QuantizedCheckpoint:
    """What a checkpoint's quantisation amounts to. Rules are tried in order; ``ignore`` goes before them."""

    method: str
    """The name the checkpoint gives it."""
    rules: tuple[QuantizationRule, ...] = ()
    ignore: tuple[str, ...] = ()
    parts: dict[str, Format] = field(default_factory=dict)
    """Formats of single parts, where the file lists them (GGUF)."""
    kv_cache_fp8: bool = False
    """Scales for an fp8 KV cache are stored."""
    plain: frozenset[str] = frozenset()
    """Parts whose weights the file holds as floats, whatever the rules say."""
    stored_as: Callable[[str], str] | None = None
    """What the checkpoint calls a part, where who asks calls it otherwise."""

    def format_of(self, part: str) -> Format | None:
        """The format of a part's weight; None where it is stored plain."""
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
    """Whether a pattern names a part: as a whole, by whole components at either end, by ``*``, or as ``re:``."""
    if pattern.startswith("re:"):
        return re.match(pattern[3:], part) is not None
    if "*" in pattern:
        return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), part) is not None
    return part == pattern or part.startswith(f"{pattern}.") or part.endswith(f".{pattern}")
