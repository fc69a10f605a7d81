"""Text that a client stores for the server and can neither read nor change: reasoning, and summaries.

AES-SIV (RFC 5297) is deterministic, so that a response that is recomputed after a restart has the same content. The
owner is associated data: one caller's content decrypts for no other.
"""

import base64
import binascii
import hashlib
from typing import Final

import msgspec

from stentor.protocols.common.encoding import encode
from stentor.protocols.common.errors import BadRequest

from .compacted import SUMMARY, Compacted

_VERSION: Final = "s2."


class EncryptedContent:
    """Seals for one caller."""

    def __init__(self, secret: bytes, owner: str) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESSIV  # late: 30 ms

        self._cipher = AESSIV(hashlib.blake2b(secret, key=b"stentor: seal").digest())
        self._owner = owner.encode()

    def _bound(self, use: bytes) -> list[bytes]:
        return [self._owner, use] if use else [self._owner]

    def seal(self, text: str, use: bytes = b"") -> str:
        return _VERSION + base64.urlsafe_b64encode(self._cipher.encrypt(text.encode(), self._bound(use))).decode(
            "ascii"
        )

    def seal_summary(self, compacted: Compacted, summary: str) -> str:
        """The content of a compaction item."""
        return self.seal(encode(msgspec.structs.replace(compacted, summary=summary)).decode(), SUMMARY)

    def open(self, sealed: str, use: bytes = b"") -> str:
        """Raises BadRequest for content not encrypted with the same secret for the same caller and use."""
        from cryptography.exceptions import InvalidTag

        try:
            if not sealed.startswith(_VERSION):
                raise InvalidTag
            raw = base64.b64decode(sealed.removeprefix(_VERSION).encode("ascii"), b"-_", validate=True)
            return self._cipher.decrypt(raw, self._bound(use)).decode()
        except (InvalidTag, binascii.Error, UnicodeEncodeError):
            raise BadRequest(
                "`encrypted_content` was not made by this server for this key; leave the item out.",
                "input",
                "invalid_encrypted_content",
            ) from None
