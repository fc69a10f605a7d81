"""The bytes of single tokens, from a tokenizer's decoder.

Two families cover nearly every decoder-only model. In both a token adds a fixed string of bytes to
the text, whatever its neighbours:

- *byte-level* (GPT-2): each character of a token spells one byte; a token with other characters
  (an added one) is its own text; the text is all bytes decoded, ill-formed ones replaced.
- *SentencePiece*: ``▁`` is a space, ``<0x0A>`` is a byte; a run of byte tokens that is not valid
  UTF-8 as a whole becomes one U+FFFD a token; one leading space of the text may be dropped.

Everything else (WordPiece, Metaspace, CTC, no decoder) needs the tokens around it.
"""

import json
import re
from typing import Any, Final, Literal, NamedTuple

from tokenizers import Tokenizer as Backend

DecoderKind = Literal["byte_level", "sentencepiece", "other"]

_BYTE_TOKEN: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def byte_alphabet() -> dict[int, str]:
    """Byte → the character that spells it in a byte-level vocabulary (GPT-2's choice)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    rest = (byte for byte in range(256) if byte not in printable)
    spelled = {byte: chr(0x100 + place) for place, byte in enumerate(rest)}
    return {byte: spelled.get(byte, chr(byte)) for byte in range(256)}


_SPELLED: Final = {char: byte for byte, char in byte_alphabet().items()}


def byte_level_bytes(token: str) -> bytes:
    """The bytes that a token of a byte-level vocabulary spells."""
    try:
        return bytes([_SPELLED[char] for char in token])
    except KeyError:
        return token.encode()


def byte_token_value(token: str) -> int | None:
    """The byte of ``<0xNN>``; None for any other token."""
    found = _BYTE_TOKEN.fullmatch(token)
    return int(found[1], 16) if found else None


class DecoderShape(NamedTuple):
    """The family of a tokenizer's decoder."""

    kind: DecoderKind
    strips_first_space: bool = False
    """The text loses one leading space (SentencePiece only)."""
    byte_fallback: bool = False
    """Whether ``<0xNN>`` tokens are bytes."""
    spells_spaces: bool = False
    """Whether ``▁`` is a space in every token but the first of a text (Metaspace)."""


def decoder_shape(backend: Backend) -> DecoderShape:
    """Reads the family off the decoder's own description."""
    if backend.decoder is None:
        return DecoderShape("other")
    steps = _flatten(json.loads(backend.decoder.__getstate__()))
    names = [step["type"] for step in steps]
    if names == ["ByteLevel"]:
        return DecoderShape("byte_level")
    strips = names[3:] == ["Strip"] and (steps[3]["content"], steps[3]["start"], steps[3]["stop"]) == (" ", 1, 0)
    spells_spaces = (
        names[:3] == ["Replace", "ByteFallback", "Fuse"]
        and steps[0]["pattern"] == {"String": "▁"}
        and steps[0]["content"] == " "
    )
    if spells_spaces and (strips or len(names) == 3):
        return DecoderShape("sentencepiece", strips_first_space=strips, byte_fallback=True)
    if names == ["Metaspace"]:
        return DecoderShape("other", spells_spaces=steps[0]["replacement"] == "▁")
    return DecoderShape("other", byte_fallback="ByteFallback" in names)


def _flatten(decoder: dict[str, Any]) -> list[dict[str, Any]]:
    if decoder["type"] != "Sequence":
        return [decoder]
    return [step for inner in decoder["decoders"] for step in _flatten(inner)]
