"""Opens the two files of an adapter, such that no name leads out of the allowed folder. Torch-free."""

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Final

from .adapter_config import MAX_CONFIG_BYTES, AdapterConfig, parse_adapter_config
from .errors import CheckpointError
from .gguf.adapter import GGUFAdapterFile
from .safetensors_index import StoredTensor, tensors_in

CONFIG: Final = "adapter_config.json"
WEIGHTS: Final = "adapter_model.safetensors"
GGUF: Final = ".gguf"
_MAX_HEADER_BYTES: Final = 16 << 20
_PIECE_BYTES: Final = 256 << 10
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC  # does not block on a pipe without a writer


class AdapterMissing(CheckpointError):
    """The files do not exist."""


class AdapterFiles:
    """An adapter folder's two open files."""

    def __init__(self, config: int, weights: int) -> None:
        """``config``, ``weights``: their descriptors."""
        self._config, self._weights = config, weights

    @property
    def identity(self) -> str:
        """Identifies these files; changes if others take their place."""
        stats = (os.fstat(self._config), os.fstat(self._weights))
        return " ".join(f"{each.st_ino}:{each.st_size}:{each.st_mtime_ns}" for each in stats)

    def read_config(self) -> AdapterConfig:
        """Read the config. Raises :class:`.errors.CheckpointError`."""
        if (size := os.fstat(self._config).st_size) > MAX_CONFIG_BYTES:
            raise CheckpointError(f"{CONFIG} has {size} bytes, expected at most {MAX_CONFIG_BYTES}")
        return parse_adapter_config(os.pread(self._config, MAX_CONFIG_BYTES, 0))

    def tensors(self) -> Sequence[StoredTensor]:
        """The tensors by the header. Raises :class:`.errors.CheckpointError`."""
        with os.fdopen(os.dup(self._weights), "rb") as stream:
            stream.seek(0)
            size = os.fstat(self._weights).st_size
            return tensors_in(stream, size, Path(WEIGHTS), _MAX_HEADER_BYTES)

    def pieces(self, tensor: StoredTensor) -> Iterator[bytes]:
        """The bytes of a tensor, in pieces. Raises :class:`.errors.CheckpointError`."""
        at, end = tensor.offset, tensor.offset + tensor.nbytes
        while at < end:
            piece = os.pread(self._weights, min(_PIECE_BYTES, end - at), at)
            if not piece or (len(piece) % 4 and at + len(piece) < end):
                raise CheckpointError(f"{WEIGHTS} was cut short while {tensor.name} was read")
            yield piece
            at += len(piece)


@contextmanager
def open_adapter(root: str, path: str) -> Iterator[AdapterFiles | GGUFAdapterFile]:
    """Open the adapter in the folder ``path``, or in this file if it ends with ``.gguf``.

    With ``root``, ``path`` is a name below it, and neither it nor the files may be or contain links. Raises
    :class:`.errors.CheckpointError`.
    """
    shown = path if len(path) <= 200 else path[:200] + "…"
    opened: list[int] = []
    is_file = path.endswith(GGUF)
    names = [PurePosixPath(path).name] if is_file else [CONFIG, WEIGHTS]
    try:
        if root:
            below = PurePosixPath(path_below(root, path)).parts
            folder = _walk(root, below[:-1] if is_file else below)
        else:
            folder = os.open(os.path.dirname(path) or "." if is_file else path, _DIRECTORY)
        opened.append(folder)
        links = os.O_NOFOLLOW if root else 0
        for name in names:
            opened.append(os.open(name, _FILE | links, dir_fd=folder))
            if not stat.S_ISREG(os.fstat(opened[-1]).st_mode):
                raise CheckpointError(f"{name} of the adapter {shown!r} is no regular file")
    except (FileNotFoundError, NotADirectoryError) as error:
        _close(opened)
        raise AdapterMissing(
            f"No adapter found at {shown!r}: a folder with {CONFIG} and {WEIGHTS} is expected there, or a file whose "
            f"name ends with {GGUF}"
        ) from error
    except (OSError, ValueError) as error:
        _close(opened)
        why = (error.strerror if isinstance(error, OSError) else None) or error
        raise CheckpointError(f"Cannot open the adapter at {shown!r}: {why}") from error
    except BaseException:
        _close(opened)
        raise
    folder, *files = opened
    os.close(folder)
    try:
        yield GGUFAdapterFile(files[0]) if len(files) == 1 else AdapterFiles(*files)
    finally:
        _close(files)


def adapter_identity(root: str, path: str) -> str:
    """Identifies an adapter's files; changes if others take their place. Raises :class:`.errors.CheckpointError`."""
    with open_adapter(root, path) as files:
        return files.identity


def path_below(root: str, path: str) -> str:
    """``path`` as a name below ``root``, given as such or as an absolute path.

    Raises :class:`.errors.CheckpointError` for one outside of it.
    """
    pure = PurePosixPath(path)
    if pure.is_absolute():
        try:
            pure = pure.relative_to(root)
        except ValueError:
            raise CheckpointError(f"{path[:200]!r} does not lie in the folder of adapters") from None
    if not pure.parts or ".." in pure.parts or "\0" in path:
        raise CheckpointError(f"{path[:200]!r} does not lie in the folder of adapters")
    return str(pure)


def _walk(root: str, names: Sequence[str]) -> int:
    """Open a folder by one name after the other, none of which may be a link."""
    folder = os.open(root, _DIRECTORY)
    for name in names:
        try:
            below = os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
        finally:
            os.close(folder)
        folder = below
    return folder


def _close(opened: Sequence[int]) -> None:
    for fd in opened:
        os.close(fd)
