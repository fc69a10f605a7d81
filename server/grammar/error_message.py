"""llguidance's complaints in one line that a client can use."""

import re
from typing import Final

from .process import TOO_COMPLEX

MAX_LENGTH: Final = 200

_LIMITS: Final = re.compile(
    r"too complex|fuel|exceeded|too deep|too large|too big|too many|limit|Unable to determine if regex is empty", re.I
)
_PLACE: Final = re.compile(r"^(?:the grammar cannot be used: )?(?:(?:at )?(\d+)\(\d+\): )?")
_EXCERPT: Final = re.compile(r" +\d+ \| .*$")
_INNER: Final = re.compile(r"(?:: | while processing )?(?:json-schema:///)?#/\$defs/\S+")
"""The names of definitions are not the client's."""
_REGEX_ERROR: Final = re.compile(r"regex parse error:.*?\berror: (.*)$")


def client_message(error: str) -> str:
    """What is wrong, without the source and without marks; :data:`.process.TOO_COMPLEX` for what costs too much."""
    text = " ".join(error.split())
    text = _PLACE.sub("", text, count=1)
    text = _EXCERPT.sub("", text)
    if (regex := _REGEX_ERROR.search(text)) is not None:
        return f"the pattern is not valid or not supported: {_short(regex[1])}"
    if _LIMITS.search(text):
        return TOO_COMPLEX
    text = _INNER.sub("", text)
    text = text.replace("failed to compile JSON schema: ", "").replace(
        "Unsatisfiable schema: ", "no value satisfies it: "
    )
    return _short(text) or "the grammar cannot be used"


def _short(text: str) -> str:
    text = "".join(character for character in text if character.isprintable()).strip().rstrip(".")
    return text if len(text) <= MAX_LENGTH else text[:MAX_LENGTH] + "…"
