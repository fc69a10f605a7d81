"""A client's own embeddings, as ``image_embeds`` in the form of the model's encoder output, or as ``prompt_embeds``."""

import io
import math
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from stentor.engine.client.media import Media

from .parts import Embeds
from .processed_cache import ProcessedMedia, content_digest, media_digest
from .refusal import Refusal
from .tensor_files import read_tensor

Grid = tuple[int, int, int]

GIVEN: Final = "image_embeds"
"""The tensor of a payload that no encoder need look at."""


@cache
def dot() -> bytes:
    """Any picture, for the replacement text of the model's processor."""
    from PIL import Image  # late: few servers need it here

    file = io.BytesIO()
    Image.new("RGB", (64, 64)).save(file, "PNG")
    return file.getvalue()


def made_of_embeds(given: Embeds, hidden: int, sample: ProcessedMedia, placeholder: str) -> ProcessedMedia:
    """The model's input for them. ``sample`` is the result for any picture, which has the text around the placeholders,
    and ``hidden`` the width of an embedding. Raises :class:`.refusal.Refusal`."""
    from safetensors.numpy import save  # late, as above

    values = _rows(given.data, hidden)
    before, count, behind = _around(sample.replacement, placeholder)
    if not count:
        raise Refusal("the model's pictures are of several parts, for which no embeddings are taken")
    grid = _grid(given, len(values)) if sample.grid is not None else None
    content = content_digest(f"{given.data}\0{given.grid}".encode())
    digest = media_digest("image", content, {GIVEN: True}, alone=True)
    payload = save({GIVEN: values}, {"modality": "image"})
    return ProcessedMedia("image", digest, payload, sample.written, before + placeholder * len(values) + behind, grid)


def made_of_prompt(data: str, hidden: int, field: str) -> Media:
    """A prompt that consists of embeddings, ``hidden`` numbers each; ``field`` brought it. Raises
    :class:`.refusal.Refusal`."""
    from safetensors.numpy import save  # late, as above

    values = _rows(data, hidden)
    digest = media_digest("prompt", content_digest(data.encode()), {GIVEN: True}, alone=True)
    payload = save({GIVEN: values}, {"modality": "prompt"})
    return Media(payload, digest, 0, len(values), field=field, causal=True)


def _rows(data: str, hidden: int) -> npt.NDArray[np.float32]:
    """[embeddings, hidden]"""
    values = read_tensor(data, whole=False)
    if values.ndim == 3 and len(values) == 1:
        values = values[0]
    if values.ndim != 2 or values.shape[1] != hidden or not len(values):
        raise Refusal(f"the tensor has shape {list(values.shape)}; the model takes [embeddings, {hidden}]")
    if not np.isfinite(values).all():
        raise Refusal("the tensor holds values that are not finite")
    return np.ascontiguousarray(values, np.float32)


def _around(replacement: str, placeholder: str) -> tuple[str, int, str]:
    """The text before the run of placeholders, its length, and the text behind; 0 if they are no run."""
    count = replacement.count(placeholder)
    before, found, behind = replacement.partition(placeholder * count)
    return (before, count, behind) if found else ("", 0, "")


def _grid(given: Embeds, count: int) -> Grid:
    """Frames, rows and columns of embeddings, from the grid of patches."""
    if not given.grid:
        raise Refusal("the model tells embeddings apart by where they lie; give `image_grid_thw` with them")
    frames, rows, columns = _three(read_tensor(given.grid, whole=True))
    merge = math.isqrt(frames * rows * columns // count)
    if not merge or rows % merge or columns % merge or frames * rows * columns != count * merge * merge:
        raise Refusal(f"an `image_grid_thw` of {frames} x {rows} x {columns} is not that of {count} embeddings")
    return frames, rows // merge, columns // merge


def _three(values: npt.NDArray[Any]) -> Grid:
    numbers = values.ravel().tolist()
    if len(numbers) != 3 or not all(0 < number < 1 << 16 for number in numbers):
        raise Refusal("`image_grid_thw` must be frames, rows and columns of patches")
    return numbers[0], numbers[1], numbers[2]
