"""What is said of a piece of text: what is written only to be seen is left out."""

import re
import unicodedata
from typing import Final

_FENCE: Final = re.compile(r"```[\w+-]{0,20}")
_IMAGE_OR_LINK: Final = re.compile(r"!?\[([^\[\]]{0,200})\]\([^()\s]{0,300}\)")
_RULE: Final = re.compile(r"(?m)^[ \t]{0,8}(?:[-*_=~][ \t]?){3,80}$")
_LINE_START: Final = re.compile(r"(?m)^[ \t]{0,8}(?:#{1,6}[ \t]|>[ \t]?|[-*+•][ \t])")
_EMPHASIS: Final = re.compile(r"\*{1,3}(?=\S)|(?<=\S)\*{1,3}|(?<!\w)_{1,3}(?=\S)|(?<=\S)_{1,3}(?!\w)|~~|`")
_TAG: Final = re.compile(r"</?[A-Za-z][^<>]{0,100}>")
_TABLE: Final = re.compile(r"[ \t]*\|[ \t]*")
_BLANKS: Final = re.compile(r"\s+")
_UNSEEN: Final = frozenset(("So", "Sk", "Cc", "Cf", "Cs", "Co", "Cn"))
"""Kinds of characters that have no sound: pictures, controls."""


def sayable(piece: str) -> str:
    """On one line, without Markdown's marks and without pictures; empty where nothing is left to say."""
    text = _FENCE.sub(" ", piece)
    text = _IMAGE_OR_LINK.sub(r"\1", text)
    text = _RULE.sub(" ", text)
    text = _LINE_START.sub("", text)
    text = _EMPHASIS.sub("", text)
    text = _TAG.sub(" ", text)
    text = _TABLE.sub(", ", text)
    text = "".join(" " if _unseen(character) else character for character in text)
    text = _BLANKS.sub(" ", text).strip().lstrip(", ")
    return text if any(map(str.isalnum, text)) else ""


def _unseen(character: str) -> bool:
    # the two are a word of Piper's own language, in which a client need not speak to it
    return character in "[]\ufe0f" or (character not in "°©®" and unicodedata.category(character) in _UNSEEN)
