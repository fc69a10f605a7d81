"""References within a schema, and places in it."""

import re
from collections.abc import Mapping
from typing import Any, Final

from .refusals import refusal

_PLAIN: Final = re.compile(r"[$A-Za-z_][A-Za-z0-9_]{0,63}")

Schema = dict[str, Any]


def resolve(root: Schema, reference: str, path: str) -> Any:
    """What a reference points to, through further ones no more than it says itself."""
    if not reference.startswith("#"):
        raise refusal(path, "only references within the schema (`#/…`) are followed")
    target: Any = root
    for segment in reference[1:].strip("/").split("/") if reference.strip("#/") else []:
        name = _unescape(segment)
        if isinstance(target, dict) and name in target:
            target = target[name]
        elif isinstance(target, list) and name.isascii() and name.isdigit() and int(name) < len(target):
            target = target[int(name)]
        else:
            raise refusal(path, "the schema has nothing where this reference points")
    return target


def _unescape(segment: str) -> str:
    if "%" in segment:
        from urllib.parse import unquote

        segment = unquote(segment)
    return segment.replace("~1", "/").replace("~0", "~")


def spelled(root: Schema, reference: str) -> str:
    path = ""
    target: Any = root
    for segment in reference[1:].strip("/").split("/") if reference.strip("#/") else []:
        name = _unescape(segment)
        path += step(target, name) if isinstance(target, dict) else f"[{name}]"
        target = target[name] if isinstance(target, dict) else target[int(name)]
    return path


def step(container: Mapping[str, Any], name: str) -> str:
    """A name as part of a path; one that is no plain name is told by its place, for it is a client's own words."""
    return f".{name}" if _PLAIN.fullmatch(name) else f"[{list(container).index(name)}]"
