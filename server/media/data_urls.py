"""``data:`` URLs (RFC 2397), decoded strictly."""

import base64
import binascii
import re
from typing import Final
from urllib.parse import unquote_to_bytes

from .refusal import Refusal, too_large

_TOKEN: Final = r"[A-Za-z0-9!#$&^_.+-]{1,127}"
_HEAD: Final = re.compile(
    rf"data:(?P<type>{_TOKEN}/{_TOKEN})?(?:;(?!base64,)[A-Za-z0-9-]+=[^;,\s]{{0,127}})*(?P<base64>;base64)?,",
    re.ASCII | re.IGNORECASE,
)
_MAX_HEAD_CHARS: Final = 1024
_ENCODED: Final = re.compile(r"(?:[!-$&-~]|%[0-9A-Fa-f]{2})*", re.ASCII)


def decode(url: str, limit: int) -> tuple[bytes, str]:
    """What a ``data:`` URL holds and its media type.

    ``limit`` is in bytes and is checked before anything is decoded. Raises :class:`.refusal.Refusal`.
    """
    head = _HEAD.match(url, 0, _MAX_HEAD_CHARS)
    if head is None:
        raise Refusal("the `data:` URL must read `data:TYPE/SUBTYPE;base64,CONTENT`")
    at = head.end()
    kind = (head["type"] or "text/plain").lower()
    if not head["base64"]:
        if len(url) - at - 2 * url.count("%", at) > limit:
            raise too_large(limit)
        if not _ENCODED.fullmatch(url, at):
            raise Refusal("the content of the `data:` URL is not encoded as in a URL")
        return unquote_to_bytes(url[at:]), kind
    if (len(url) - at) // 4 * 3 - url.count("=", -2) > limit:
        raise too_large(limit)
    try:
        return base64.b64decode(url[at:], validate=True), kind
    except (binascii.Error, ValueError):
        raise Refusal("the content of the `data:` URL is not base64") from None
