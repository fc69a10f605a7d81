"""Why something that a client named is not fetched."""

from typing import Final

REFUSED: Final = "media_refused"
"""The address may not be fetched from, or is none."""
UNAVAILABLE: Final = "media_unavailable"
"""Whoever is at the address did not hand it out."""
TOO_LARGE: Final = "media_too_large"
TIMEOUT: Final = "media_timeout"


class Refusal(Exception):
    """``str(refusal)`` goes on after the field's name and may be shown: it holds no addresses, names or paths."""

    def __init__(self, message: str, code: str = REFUSED) -> None:
        super().__init__(message)
        self.code = code


def too_large(limit: int) -> Refusal:
    return Refusal(f"what it names is larger than the {limit} bytes that this server fetches", TOO_LARGE)
