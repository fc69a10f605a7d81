"""Keys as digests: not stored in the clear, and compared in constant time."""

import hashlib
import hmac
import logging
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field  # noqa: TID251  # not all fields of a caller are compared
from pathlib import Path
from typing import Final

import anyio.to_thread

from .files import FileRefused, read_text

logger = logging.getLogger(__name__)

_BEARER: Final = b"bearer"
SUBPROTOCOL_KEY: Final = b"openai-insecure-api-key."
"""A key follows, where a WebSocket offers this among its subprotocols."""
_SALT_BYTES: Final = 16
_OWNERS: Final = b"stentor: owners of what is stored"


class KeyDigest:
    """The SHA-256 of a key, which no log, error or repr shows: a short key could be guessed from it."""

    __slots__ = ("_digest",)

    def __init__(self, key: bytes) -> None:
        self._digest = hashlib.sha256(key).digest()

    def matches(self, other: "KeyDigest") -> bool:
        """In a time that does not depend on either."""
        return hmac.compare_digest(self._digest, other._digest)

    def salt(self, secret: bytes) -> str:
        """Names this key in hexadecimal digits that say nothing about it to those without ``secret``."""
        return hashlib.blake2b(self._digest, digest_size=_SALT_BYTES, key=secret).hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KeyDigest) and self.matches(other)

    def __hash__(self) -> int:
        return hash(self._digest)

    def __repr__(self) -> str:
        return "KeyDigest(***)"


@dataclass(frozen=True, slots=True)
class Caller:
    """The identity behind a request."""

    admin: bool = False
    salt: str = ""
    """Salt of the caller's part of the prefix cache; empty if there are no other callers."""
    name: str = field(default="", compare=False)
    """For logs: the kind of the key and its place among those of its kind, the options' first and then the file's."""
    owner: str = field(default="", compare=False)
    """Name of the key in the store, the same after a restart; empty without a key."""

    def cache_salt(self, wished: str | None) -> str:
        """The salt of a request: the caller's, and within it the one that the request names."""
        return self.salt + (wished or "")


ANYONE: Final = Caller()


def read_key_file(path: Path) -> tuple[KeyDigest, ...]:
    """One key a line; empty lines and those that begin with ``#`` are ignored.

    Raises FileRefused, also for a file without keys: an empty file must not open the server to everyone.
    """
    lines = [line.strip() for line in read_text(path).splitlines()]
    keys = tuple(KeyDigest(line.encode()) for line in lines if line and not line.startswith("#"))
    if not keys:
        raise FileRefused(f"{path}: expected one key a line, found none")
    return keys


class Keyring:
    """The keys that are good now; :meth:`reload` reads their files again.

    An admin key is good for everything an API key is good for. Raises FileRefused.
    """

    name: Final = "keys"

    def __init__(
        self,
        api: Iterable[KeyDigest] = (),
        admin: Iterable[KeyDigest] = (),
        *,
        api_file: Path | None = None,
        admin_file: Path | None = None,
    ) -> None:
        self._api = tuple(api)
        self._admin = tuple(admin)
        self._api_file = api_file
        self._admin_file = admin_file
        self._secret = os.urandom(_SALT_BYTES)
        self._callers = self._read()

    @property
    def required(self) -> bool:
        """Whether a key is needed. An admin key alone only protects the admin routes."""
        return any(not caller.admin for _, caller in self._callers)

    @property
    def has_admin(self) -> bool:
        return any(caller.admin for _, caller in self._callers)

    def owner(self, name: str) -> Caller | None:
        """The caller with this name in the store; None if its key was removed."""
        if not name:
            return None if self.required else ANYONE
        return next((caller for _, caller in self._callers if caller.owner == name), None)

    def caller(self, headers: Iterable[tuple[bytes, bytes]]) -> Caller | None:
        """The caller of the key in ``Authorization: Bearer``, ``x-api-key`` or a browser's subprotocol; None without a
        valid one.

        A repeated header is ignored: a proxy may have read the other one.
        """
        found: Caller | None = None
        for token in tokens_of(headers):
            digest = KeyDigest(token)
            for known, caller in self._callers:
                if known.matches(digest) and found is None:
                    found = caller
        return found

    async def reload(self) -> str:
        """Reads the files again and describes the result. Raises FileRefused, and then nothing has changed."""
        self._callers = await anyio.to_thread.run_sync(self._read)
        admin = sum(caller.admin for _, caller in self._callers)
        return f"{len(self._callers) - admin} API keys, {admin} admin keys"

    def _read(self) -> tuple[tuple[KeyDigest, Caller], ...]:
        api = dict.fromkeys((*self._api, *_from_file(self._api_file)))
        admin = dict.fromkeys((*self._admin, *_from_file(self._admin_file)))
        if api.keys() & admin.keys():
            raise FileRefused("one key is both an API key and an admin key; give the admin one of its own")
        several = len(api) + len(admin) > 1
        names = [f"api-{place}" for place in range(1, len(api) + 1)]
        names += [f"admin-{place}" for place in range(1, len(admin) + 1)]
        return tuple(
            (key, Caller(key in admin, key.salt(self._secret) if several else "", name, key.salt(_OWNERS)))
            for key, name in zip((*api, *admin), names, strict=True)
        )


def _from_file(path: Path | None) -> tuple[KeyDigest, ...]:
    if path is None:
        return ()
    keys = read_key_file(path)
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:  # it has just been replaced
        raise FileRefused(f"{path}: cannot be read: {error.strerror}") from error
    if mode & stat.S_IROTH:
        logger.warning("%s: everyone on this machine can read these keys (mode %04o); chmod 600 it", path, mode)
    return keys


def tokens_of(headers: Iterable[tuple[bytes, bytes]]) -> list[bytes]:
    """Every key in a request, valid or not."""
    bearers = []
    plain = []
    offered = []
    for name, value in headers:
        if name == b"authorization":
            bearers.append(value)
        elif name == b"x-api-key":
            plain.append(value.strip())
        elif name == b"sec-websocket-protocol":
            offered += [protocol.strip() for protocol in value.split(b",")]
    tokens = []
    if len(bearers) == 1:
        scheme, _, token = bearers[0].partition(b" ")
        if scheme.lower() == _BEARER:
            tokens.append(token.strip())
    if len(plain) == 1:
        tokens.append(plain[0])
    in_protocols = [protocol for protocol in offered if protocol.startswith(SUBPROTOCOL_KEY)]
    if len(in_protocols) == 1:  # browsers can name no other header of a WebSocket
        tokens.append(in_protocols[0].removeprefix(SUBPROTOCOL_KEY))
    return tokens
