"""Clients' Lark grammars: unsupported features are refused, and their JSON is bounded."""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from stentor.protocols.common.errors import refused

from .schema import encoded, prepare
from .whitespace import INDENTED

_PIECE: Final = re.compile(
    r"""(?P<skipped>(?:\#|//)[^\n]*|"(?:\\.|[^"\\\n])*"|/(?:\\.|[^/\\\n])+/)|(?P<json>%json\s*)"""
    r"|(?P<attribute>\b(?:stop|max_tokens|temperature)\s*=)|(?P<other>%(?:import\s|lark\b))",
    re.VERBOSE,
)
_DECODER: Final = json.JSONDecoder()


def checked_lark(source: str, field: str, whitespace: Mapping[str, Any] = INDENTED) -> str:
    """The grammar as it can be held: schemas in it have the white space of ``whitespace``. Raises BadRequest."""
    written: list[str] = []
    done = 0
    while (found := _PIECE.search(source, done)) is not None:
        written.append(source[done : found.end()])
        done = found.end()
        if found["attribute"]:
            name = found[0].rstrip("= \t\n")
            raise refused(field, f"the attribute `{name}` is not supported", "invalid_value")
        if found["json"]:
            try:
                schema, done = _DECODER.raw_decode(source, done)
            except (ValueError, RecursionError):
                raise refused(field, "what follows a %json is no JSON", "invalid_value") from None
            if not isinstance(schema, dict):
                raise refused(field, "what follows a %json is no object", "invalid_value")
            written.append(encoded(prepare(schema, field, whitespace)))
    return "".join([*written, source[done:]])
