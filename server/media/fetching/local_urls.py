"""URLs without a host: ``data:`` contains its content, ``file:`` names a file of this machine."""

import binascii
import mimetypes
import os
import re
import stat
from pathlib import Path
from typing import Final
from urllib.parse import unquote, unquote_to_bytes

from ..refusal import Refusal, too_large
from .urls import check_spelling

_URL: Final = re.compile(r"file://(?:localhost)?(?P<path>/[^?#]*)", re.IGNORECASE)
_BROKEN_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})|%00")
_NOT_BELOW: Final = "this is no file below the folder that this server reads from"
"""The same message for a missing file and for one elsewhere, so that it does not disclose which."""


def read_file_url(url: str, root: Path, limit: int) -> tuple[bytes, str | None]:
    """A regular file below ``root`` and the media type of its name. Blocks.

    The path is resolved before it is checked, so that neither dots nor links lead out. It may change in between, so the
    opened file's location is checked again. It is opened for reading only once it is known to be a regular file:
    opening a device or a pipe can have effects. Raises :class:`..refusal.Refusal`; ``limit`` is in bytes.
    """
    check_spelling(url)
    match = _URL.fullmatch(url)
    if match is None or _BROKEN_ESCAPE.search(match["path"]):
        raise Refusal("the `file:` URL must read `file:///PATH`")
    try:
        root = root.resolve(strict=True)
        path = Path(unquote(match["path"], errors="strict")).resolve(strict=True)
        if not path.is_relative_to(root):
            raise Refusal(_NOT_BELOW)
        # O_PATH names the file without opening it
        place = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            return _read_plain(place, root, limit), mimetypes.guess_type(path.name)[0]
        finally:
            os.close(place)
    except (OSError, RuntimeError, ValueError):
        raise Refusal(_NOT_BELOW) from None


def _read_plain(place: int, root: Path, limit: int) -> bytes:
    found = os.fstat(place)
    name = f"/proc/self/fd/{place}"
    if not stat.S_ISREG(found.st_mode) or not Path(os.readlink(name)).is_relative_to(root):
        raise Refusal(_NOT_BELOW)
    if found.st_size > limit:
        raise too_large(limit)
    with open(name, "rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise too_large(limit)
    return data


_TOKEN: Final = r"[A-Za-z0-9!#$&^_.+-]{1,127}"
_HEAD: Final = re.compile(
    rf"data:(?P<type>{_TOKEN}/{_TOKEN})?(?:;(?!base64,)[A-Za-z0-9-]+=[^;,\s]{{0,127}})*(?P<base64>;base64)?,",
    re.ASCII | re.IGNORECASE,
)
_FRAMES: Final = ("video/jpeg", "video/png")
"""vLLM's types of frames with commas between them."""
_MAX_HEAD_CHARS: Final = 1024
_MAX_PLAIN_CHARS: Final = 256 << 10
"""Characters behind the head of a ``data:`` URL without base64, which is decoded character by character."""
_PIECE: Final = 1 << 20
"""Characters; a multiple of 4."""
_ENCODED: Final = re.compile(r"(?:[!-$&-~]|%[0-9A-Fa-f]{2})*", re.ASCII)


def decode_data_url(url: str, limit: int) -> tuple[bytes, str]:
    """The content of a ``data:`` URL and its media type.

    ``limit`` is in bytes and is checked before anything is decoded. Raises :class:`..refusal.Refusal`.
    """
    head = _HEAD.match(url, 0, _MAX_HEAD_CHARS)
    if head is None:
        raise Refusal("the `data:` URL must read `data:TYPE/SUBTYPE;base64,CONTENT`")
    at = head.end()
    kind = (head["type"] or "text/plain").lower()
    if not head["base64"]:
        if len(url) - at > _MAX_PLAIN_CHARS:
            raise Refusal(f"a `data:` URL of more than {_MAX_PLAIN_CHARS} characters must be in base64")
        if len(url) - at - 2 * url.count("%", at) > limit:
            raise too_large(limit)
        if not _ENCODED.fullmatch(url, at):
            raise Refusal("the content of the `data:` URL is not encoded as in a URL")
        return unquote_to_bytes(url[at:]), kind
    if kind in _FRAMES:
        raise Refusal(f"frames of a video as `{kind}` are not read; send the video's file, or the frames as pictures")
    if (len(url) - at) // 4 * 3 - url.count("=", -2) > limit:
        raise too_large(limit)
    return _from_base64(url, at), kind


def _from_base64(text: str, at: int) -> bytes:
    """Decodes the text behind ``at`` in pieces, between which other threads get their turn."""
    data = bytearray()
    try:
        if (len(text) - at) % 4 or text.find("=", at, len(text) - 2) >= 0:
            raise ValueError
        for start in range(at, len(text), _PIECE):
            data += binascii.a2b_base64(text[start : start + _PIECE], strict_mode=True)
    except ValueError:
        raise Refusal("its content is not base64") from None
    return bytes(data)
