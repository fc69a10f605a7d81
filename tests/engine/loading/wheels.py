"""Small wheels, made right or broken in one respect."""

import base64
import hashlib
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

WEIGHTS = bytes(range(256)) * 64


def make_wheel(
    folder: Path,
    files: Mapping[str, bytes] | None = None,
    *,
    name: str = "tiny_model",
    version: str = "1.0",
    record_of: Mapping[str, bytes] | None = None,
    record_path: str | None = None,
    link: str | None = None,
    requires: Sequence[str] = ("no-such-dependency",),
) -> Path:
    """A wheel with ``files``; ``record_of`` gives RECORD other contents to hash for some (None leaves a file out).

    Args:
        record_path: where RECORD stands, if not where it belongs.
        link: an entry of that name is written as a symbolic link.
    """
    files = {f"{name}/__init__.py": b"raise SystemExit", f"{name}/tiny.gguf": WEIGHTS} if files is None else files
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {each}\n" for each in requires)
    everything = {
        **files,
        f"{info}/METADATA": metadata.encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    recorded = {**everything, **(record_of or {})}
    lines = [f"{path},{_hash(content)},{len(content)}" for path, content in recorded.items() if content]
    where = record_path or f"{info}/RECORD"
    folder.mkdir(exist_ok=True)
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in everything.items():
            entry = zipfile.ZipInfo(path)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o120777 if path == link else 0o100644) << 16
            archive.writestr(entry, content)
        archive.writestr(where, "\n".join([*lines, f"{where},,"]) + "\n")
    return wheel


def _hash(content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"sha256={digest}"
