"""What items of tools that are OpenAI's own elsewhere show of a call's arguments."""

from typing import Any

import msgspec


def action_of(name: str, arguments: str) -> dict[str, Any]:
    """Of a call of gpt-oss's ``browser``: ``search``, ``open`` or ``find``; any other tool is taken for a search."""
    given = _object(arguments)
    match name:
        case "open":
            url = given.get("id", given.get("url"))
            return {"type": "open_page", "url": url if isinstance(url, str) else None}
        case "find":
            return {"type": "find_in_page", "pattern": _text(given, "pattern"), "url": _text(given, "url")}
    query = _text(given, "query")
    return {"type": "search", "query": query, "queries": [query]}


def code_of(arguments: str) -> str:
    """Of a call of a ``python`` tool: what it is given under the name ``code``, or else all that it is given."""
    code = _object(arguments).get("code")
    return code if isinstance(code, str) else arguments


def _text(given: dict[str, Any], name: str) -> str:
    value = given.get(name)
    return value if isinstance(value, str) else ""


def _object(arguments: str) -> dict[str, Any]:
    try:
        given = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return {}
    return given if isinstance(given, dict) else {}
