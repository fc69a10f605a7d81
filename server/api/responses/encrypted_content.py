"""Text that a client carries for us and can neither read nor change: its own reasoning, and summaries.

Encrypt, then authenticate, with what the standard library has: the keystream is SHAKE-256 of key and nonce, as long as
the text; the tag is HMAC-SHA-256 over owner, nonce and cipher text, under a key of its own. The nonce is an HMAC of
owner and text under a third key (as in SIV, RFC 5297), so that no two texts share a keystream, and that a response
which is made again after a restart carries the same seal. What is sealed for one caller opens for no other.
"""

import base64
import binascii
import hashlib
import hmac
from typing import Final

from stentor.protocols.common.errors import BadRequest

_NONCE: Final = 24
_TAG: Final = 32
_VERSION: Final = "s1."


class EncryptedContent:
    """Seals for one caller."""

    def __init__(self, secret: bytes, owner: str) -> None:
        self._stream_key = hashlib.blake2b(secret, key=b"stentor: seal, keystream").digest()
        self._tag_key = hashlib.blake2b(secret, key=b"stentor: seal, tag").digest()
        self._nonce_key = hashlib.blake2b(secret, key=b"stentor: seal, nonce").digest()
        self._owner = owner.encode()

    def seal(self, text: str) -> str:
        data = text.encode()
        nonce = hmac.digest(self._nonce_key, self._framed(data), "sha256")[:_NONCE]
        cipher = self._crypt(nonce, data)
        return _VERSION + base64.urlsafe_b64encode(nonce + self._tag(nonce, cipher) + cipher).decode("ascii")

    def open(self, sealed: str) -> str:
        """Raises BadRequest for what was not sealed with the same secret for the same caller."""
        try:
            raw = base64.b64decode(sealed.removeprefix(_VERSION).encode("ascii"), b"-_", validate=True)
        except (binascii.Error, UnicodeEncodeError):
            raise _refused() from None
        nonce, tag, cipher = raw[:_NONCE], raw[_NONCE : _NONCE + _TAG], raw[_NONCE + _TAG :]
        if not sealed.startswith(_VERSION) or not hmac.compare_digest(tag, self._tag(nonce, cipher)):
            raise _refused()
        return self._crypt(nonce, cipher).decode()

    def _crypt(self, nonce: bytes, data: bytes) -> bytes:
        stream = hashlib.shake_256(self._stream_key + nonce).digest(len(data))
        mixed = int.from_bytes(data, "little") ^ int.from_bytes(stream, "little")
        return mixed.to_bytes(len(data), "little")

    def _tag(self, nonce: bytes, cipher: bytes) -> bytes:
        return hmac.digest(self._tag_key, self._framed(nonce + cipher), "sha256")

    def _framed(self, data: bytes) -> bytes:
        return len(self._owner).to_bytes(4, "little") + self._owner + data


def _refused() -> BadRequest:
    return BadRequest(
        "`encrypted_content` was not made by this server for this key; leave the item out.",
        "input",
        "invalid_encrypted_content",
    )
