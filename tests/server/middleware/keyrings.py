"""Keyrings for tests, which know the keys."""

from stentor.server.common.keys import KeyDigest, Keyring


def keyring(*api: str, admin: tuple[str, ...] = ()) -> Keyring:
    return Keyring(map(_digest, api), map(_digest, admin))


def _digest(key: str) -> KeyDigest:
    return KeyDigest(key.encode())
