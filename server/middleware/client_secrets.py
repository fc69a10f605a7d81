"""Short-lived keys: a client's own server requests one, so that the client needs no real key.

A secret opens sessions of one kind, until it expires or the key of its creator is removed. Secrets are stored in memory
as digests; their number and the size of their settings are bounded. With several keys, each has at most its share
(:class:`..common.fair_queue.Shares`).
"""

import dataclasses
import os
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Literal

import msgspec

from ..common.fair_queue import Shares
from ..common.keys import Caller, KeyDigest

PREFIX: Final = "ek_"
MAX_SECRETS: Final = 4096
MAX_BYTES: Final = 64 << 20
"""Bytes of the settings of all secrets."""
_BYTES: Final = 24

SecretKind = Literal["realtime", "translation"]
"""Sessions of the Realtime API that answer or transcribe, and those that translate."""


class SecretsFull(Exception):
    """Too many, or too large, secrets have not expired: in all, or of one key."""


class ClientSecret(msgspec.Struct, frozen=True):
    caller: Caller
    """The creator, on whose behalf it is used; never an admin."""
    session: bytes
    """The configuration of the sessions that it opens, as JSON."""
    expires_at: float
    """By ``time.time()``."""
    kind: SecretKind = "realtime"


class ClientSecrets:
    """All that are good now."""

    def __init__(self, clock: Callable[[], float] = time.time, most: int = MAX_SECRETS) -> None:
        self._clock = clock
        self._secrets: OrderedDict[KeyDigest, ClientSecret] = OrderedDict()
        self._places = Shares(most)
        self._bytes = Shares(MAX_BYTES)

    def __len__(self) -> int:
        return len(self._secrets)

    def make(self, caller: Caller, session: bytes, seconds: int, kind: SecretKind = "realtime") -> tuple[str, int]:
        """The secret, and when it expires, in seconds since 1970. Raises SecretsFull."""
        self._forget_expired()
        self._check_room(caller, len(session))
        value = PREFIX + os.urandom(_BYTES).hex()
        expires_at = int(self._clock()) + seconds
        secret = ClientSecret(dataclasses.replace(caller, admin=False), session, expires_at, kind)
        self._secrets[KeyDigest(value.encode())] = secret
        self._places.take(caller.owner)
        self._bytes.take(caller.owner, len(session))
        return value, expires_at

    def _check_room(self, caller: Caller, size: int) -> None:
        places, held, owner = self._places, self._bytes, caller.owner
        if places.total >= places.most:
            raise SecretsFull(
                f"{places.most} client secrets have not expired, as many as this server keeps; try again later."
            )
        if held.total + size > held.most:
            raise SecretsFull(
                f"The sessions of client secrets that have not expired take the {MAX_BYTES >> 20} MiB that this server "
                "has for them; try again later."
            )
        alone = not caller.salt
        if not places.fits(owner, alone=alone):
            raise SecretsFull(
                f"{places.held(owner)} client secrets of this key have not expired, as many as this server leaves to "
                "one; try again later."
            )
        if not held.fits(owner, size, alone=alone):
            raise SecretsFull(
                f"The sessions of this key's client secrets that have not expired take {held.held(owner)} bytes, about "
                "as many as this server leaves to one; try again later."
            )

    def find(self, value: bytes) -> ClientSecret | None:
        """None for an unknown or expired secret."""
        if not value.startswith(PREFIX.encode()):
            return None
        secret = self._secrets.get(KeyDigest(value))
        return secret if secret is not None and self._clock() < secret.expires_at else None

    def _forget_expired(self) -> None:
        now = self._clock()
        for digest in [digest for digest, secret in self._secrets.items() if secret.expires_at <= now]:
            secret = self._secrets.pop(digest)
            self._places.give_back(secret.caller.owner)
            self._bytes.give_back(secret.caller.owner, len(secret.session))
