"""Cuts the stored tensors of a quantised matrix for a worker that has some of its outputs, or of its inputs.

Formats pack values and share scales: an element of a stored tensor stands for several outputs or inputs. Torch-free.
"""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from math import lcm
from typing import Final, NamedTuple

from msgspec.structs import replace

from ..model_config.config_fields import ConfigError
from ..model_config.tensor_parallel.cuts import Cut
from ..quantization.formats import (
    Format,
    FP4Format,
    FP8Format,
    GGUFFormat,
    GroupedInt8Format,
    GroupedIntFormat,
    Int4Format,
    Int8Format,
    OnlineFormat,
    QuantizedCheckpoint,
)
from .gguf.types import GGMLType


class _Axis(NamedTuple):
    """How outputs or inputs lie along a dimension of a stored tensor."""

    dim: int
    values: int = 1
    """So many of them are stored together."""
    elements: int = 1
    """In so many elements."""


class _Layout(NamedTuple):
    """The axes of one stored tensor by which a matrix is cut; None: all outputs, or inputs, share its values."""

    outputs: _Axis | None
    inputs: _Axis | None
    scale: bool = False
    """Whether one value may be that of all, and a size of 1 left out (:attr:`Cut.scale`)."""


_PLAIN: Final = _Layout(_Axis(0), _Axis(1))


def stored_cuts(part: str, cut: Cut, format: Format) -> Iterator[tuple[str, Cut]]:
    """The cuts of the tensors that store ``part`` in ``format``, by name, from the ``cut`` of its plain matrix.

    Tensors that are not listed are read whole. Raises :class:`ConfigError` if the cut would divide a block of the
    format.
    """
    try:
        for ending, own in _cuts(cut, format):
            yield f"{part}{ending}", own
    except ConfigError as error:
        raise ConfigError(f"{part} is stored in {error}") from error


def stored_format(quantized: QuantizedCheckpoint | None, name: str) -> Format | None:
    """The format of a stored matrix, by the name of its plain weight; None if it is plain, or no matrix."""
    format = None if quantized is None else quantized.format_of(name.removesuffix(".weight"))
    if isinstance(format, FP8Format) and name.endswith("_proj"):
        return replace(format, stacked=True)
    matrix = name.endswith(".weight") or (isinstance(format, FP4Format) and format.packing == "gpt-oss")
    return format if matrix else None


def stored_block(quantized: QuantizedCheckpoint | None, name: str, inputs: bool) -> int:
    """How many inputs, or else outputs, the stored matrix ``name`` has in one block of its format; 1 if it is plain."""
    format = stored_format(quantized, name)
    if format is None:
        return 1
    axes = (layout.inputs if inputs else layout.outputs for layout in _layouts(format).values())
    return lcm(*(axis.values for axis in axes if axis is not None))


@lru_cache(maxsize=1024)
def _cuts(cut: Cut, format: Format) -> tuple[tuple[str, Cut], ...]:
    """By the endings of names."""
    if isinstance(format, Int8Format) and format.ternary and not cut.stacked:
        # bytes hold distant outputs, and the mean magnitude is that of all
        raise ConfigError(f"{format.name} form, which is not split over workers")
    found = []
    for ending, layout in _layouts(format).items():
        if cut.stacked:
            found.append((ending, cut))
            continue
        axis = layout.inputs if cut.inputs else layout.outputs
        if axis is not None:
            found.append((ending, _cut_along(axis, cut, layout.scale, format)))
    return tuple(found)


def _cut_along(axis: _Axis, cut: Cut, scale: bool, format: Format) -> Cut:
    for first, count in cut.ranges:
        if first % axis.values or (count % axis.values and first + count < cut.size):
            which = "inputs" if cut.inputs else "outputs"
            raise ConfigError(
                f"blocks of {axis.values} {which} ({format.name}), which do not divide the {count} from {first} "
                "on that a worker takes"
            )
    sizes = (cut.size, *(each for taken in cut.ranges for each in taken))
    size, *edges = (-(-each // axis.values) * axis.elements for each in sizes)
    return Cut(axis.dim, size, tuple(zip(edges[::2], edges[1::2], strict=True)), inputs=cut.inputs, scale=scale)


def _layouts(format: Format) -> Mapping[str, _Layout]:
    """By the endings of names."""
    match format:
        case FP8Format(stacked=True, scale_ending=scale):
            ending = format.stacked_ending(scale)
            if format.granularity == "tensor":
                return {"": _Layout(_Axis(1), _Axis(2)), ending: _Layout(None, None, scale=True)}
            (rows, columns) = format.block if format.granularity == "block" else (1, 1)
            by_column = _Axis(2, columns) if format.granularity == "block" else None
            return {"": _Layout(_Axis(1), _Axis(2)), ending: _Layout(_Axis(1, rows), by_column, scale=True)}
        case FP8Format(granularity="block", block=(rows, columns), scale_ending=ending):
            return {".weight": _PLAIN, f".{ending}": _Layout(_Axis(0, rows), _Axis(1, columns), scale=True)}
        case FP8Format(scale_ending=ending):
            return {".weight": _PLAIN, f".{ending}": _Layout(_Axis(0), None, scale=True)}
        case Int8Format():
            return {".weight": _PLAIN, ".weight_scale": _Layout(_Axis(0), None, scale=True)}
        case Int4Format():
            return _grouped(format, 8)
        case GroupedInt8Format():
            return _grouped(format, 4)
        case FP4Format(packing="gpt-oss", group=group):
            both = _Layout(_Axis(1), _Axis(2, group))
            return {"_blocks": both, "_scales": both}
        case FP4Format(packing=packing, group=group, scale_ending=own):
            name = ".weight_packed" if packing == "compressed-tensors" else ".weight"
            scale = f".{own}" if packing == "deepseek" else ".weight_scale"
            return {name: _Layout(_Axis(0), _Axis(1, 2)), scale: _Layout(_Axis(0), _Axis(1, group))}
        case GGUFFormat(kind=kind):
            stored = GGMLType[kind]
            return {".weight": _Layout(_Axis(-2), _Axis(-1, stored.elements, stored.block_bytes))}
        case OnlineFormat():
            return {".weight": _PLAIN}


def _grouped(format: GroupedIntFormat, word: int) -> Mapping[str, _Layout]:
    """Layouts of a format with scales by group, whose codes are packed ``word`` a word.

    If a stored index assigns inputs to groups, each rank reads the scales of all groups.
    """
    outputs_first = format.packing == "compressed-tensors"
    outputs, inputs = (0, 1) if outputs_first else (1, 0)
    groups = _Axis(inputs, format.group) if format.group and not format.act_order else None
    index = _Layout(None, _Axis(0))
    if outputs_first:
        return {
            ".weight_packed": _Layout(_Axis(0), _Axis(1, word)),
            ".weight_scale": _Layout(_Axis(0), groups),
            ".weight_zero_point": _Layout(_Axis(0, word), groups),
            ".weight_g_idx": index,
        }
    packed = _Layout(_Axis(1, word), _Axis(0)) if format.packing == "awq" else _Layout(_Axis(1), _Axis(0, word))
    return {
        ".qweight": packed,
        ".qzeros": _Layout(_Axis(outputs, word), groups),
        ".scales": _Layout(_Axis(outputs), groups),
        ".g_idx": index,
    }
