"""Reads a weight file piece by piece."""

from collections.abc import Callable
from io import FileIO
from pathlib import Path

import torch

from .errors import CheckpointError

Progress = Callable[[int, int], None]
"""Called with the bytes done and the total, as stored."""


def read_piece(
    file: FileIO, path: Path, name: str, offset: int, count: int, room: bytearray | None = None
) -> torch.Tensor:
    """Bytes [offset, offset + count) of a file, uint8 [count]; ``name``: for errors.

    ``room``: where they are put, of as many bytes or more. To read into pages again takes half of the time of new ones.
    """
    buffer = bytearray(count) if room is None else room
    view = memoryview(buffer)[:count]
    try:
        file.seek(offset)
        filled = 0
        while filled < count:
            got = file.readinto(view[filled:])
            if not got:
                raise CheckpointError(f"Cannot load {path}: it ends within {name!r}; fetch it again.")
            filled += got
    except OSError as error:
        raise CheckpointError(f"Cannot load {path}: {error.strerror or error}.") from error
    return torch.frombuffer(view, dtype=torch.uint8)
