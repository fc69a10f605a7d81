"""Tools of type ``mcp``, which a Model Context Protocol server runs, named by its URL or its label.

Secrets (``headers``, ``authorization``, the query of the URL) are removed before a tool is stored or returned.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ...common.bounds import chars_at_most, items_at_most
from ...common.errors import BadRequest, missing, wrong
from ...common.limits import MAX_TOOL_DESCRIPTION
from ..sampling import not_served

MCP: Final = "mcp"
WEB_SEARCH: Final = ("web_search", "web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11")
HOSTED: Final = (*WEB_SEARCH, "code_interpreter")
"""Types of tools that are the operator's servers ``browser`` and ``python``."""
MAX_SERVERS: Final = 16
MAX_TOOL_NAMES: Final = 1024
MAX_HEADERS: Final = 32
MAX_HEADER_CHARS: Final = 8192
MAX_URL_CHARS: Final = 8192

_LABEL: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}")
_HEADER_VALUE: Final = re.compile(r"[\x20-\x7e\t]*")
_OWN_HEADERS: Final = frozenset(
    (
        "accept",
        "accept-encoding",
        "connection",
        "content-encoding",
        "content-length",
        "content-type",
        "expect",
        "host",
        "keep-alive",
        "last-event-id",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    )
)
"""Headers that frame or address a message."""
_REFUSED: Final = ("connector_id", "tunnel_id", "defer_loading")


def check_mcp(tool: Mapping[str, Any], where: str) -> None:
    """Raises BadRequest naming the field."""
    for field in _REFUSED:
        if tool.get(field):
            raise not_served(f"{where}.{field}")
    if tool.get("allowed_callers") not in (None, ["direct"]):
        raise not_served(f"{where}.allowed_callers", f"`{where}.allowed_callers` beside `direct`")
    _check_text(tool, "server_label", where, 64, required=True)
    if not _LABEL.fullmatch(tool["server_label"]):
        raise _wrong(f"{where}.server_label", "may hold 64 letters, digits, `_` and `-`")
    _check_text(tool, "server_url", where, MAX_URL_CHARS)
    _check_text(tool, "server_description", where, MAX_TOOL_DESCRIPTION)
    _check_text(tool, "authorization", where, MAX_HEADER_CHARS)
    _check_headers(tool, where)
    _check_allowed(tool.get("allowed_tools"), f"{where}.allowed_tools")
    _check_approval(tool.get("require_approval"), f"{where}.require_approval")


def _check_headers(tool: Mapping[str, Any], where: str) -> None:
    headers, field = tool.get("headers"), f"{where}.headers"
    if not isinstance(headers, dict | None):
        raise _wrong(field, "must be an object")
    items_at_most(list(headers or ()), MAX_HEADERS, field)
    for name, value in (headers or {}).items():
        if not _HEADER_NAME.fullmatch(name) or name.lower() in _OWN_HEADERS or name.lower().startswith("mcp-"):
            raise _wrong(field, f"must not hold `{name[:40]}`, which no client may set")
        if not isinstance(value, str) or len(value) > MAX_HEADER_CHARS or not _HEADER_VALUE.fullmatch(value):
            raise _wrong(field, f"must have up to {MAX_HEADER_CHARS} printable ASCII characters in each value")
    token = tool.get("authorization")
    if token is None:
        return
    if any(name.lower() == "authorization" for name in headers or ()):
        raise _wrong(f"{where}.authorization", "excludes a header of this name in `headers`; send one of them")
    if not _HEADER_VALUE.fullmatch(token):
        raise _wrong(f"{where}.authorization", "must be printable ASCII")


def _check_allowed(allowed: Any, field: str) -> None:
    if isinstance(allowed, list):
        _check_names(allowed, field)
    elif allowed is not None:
        _check_filter(allowed, field)


def _check_filter(given: Any, field: str) -> None:
    if not isinstance(given, dict) or given.keys() - {"tool_names", "read_only"}:
        raise _wrong(field, "must be an object with `tool_names` and `read_only`")
    if given.get("tool_names") is not None:
        _check_names(given["tool_names"], f"{field}.tool_names")
    if not isinstance(given.get("read_only"), bool | None):
        raise _wrong(f"{field}.read_only", "must be true or false")


def _check_names(names: Any, field: str) -> None:
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise _wrong(field, "must be a list of names")
    items_at_most(names, MAX_TOOL_NAMES, field)


def _check_approval(approval: Any, field: str) -> None:
    if approval is None or approval in ("always", "never"):
        return
    if not isinstance(approval, dict) or approval.keys() - {"always", "never"}:
        raise _wrong(field, "must be `always`, `never`, or an object with filters of these names")
    for name, given in approval.items():
        if given is not None:
            _check_filter(given, f"{field}.{name}")


def _check_text(tool: Mapping[str, Any], name: str, where: str, most: int, *, required: bool = False) -> None:
    value, field = tool.get(name), f"{where}.{name}"
    if value is None and required:
        raise missing(field)
    if not isinstance(value, str | None):
        raise _wrong(field, "must be a string")
    chars_at_most(value, most, field)


def _wrong(field: str, what: str) -> BadRequest:
    return wrong(field, what, "invalid_value")


def runs_here(tool: Mapping[str, Any]) -> bool:
    """Whether a tool is one that the server runs, rather than the client."""
    if tool["type"] in WEB_SEARCH and tool.get("external_web_access") is False:
        return False  # the operator's server would contact other sites; it has nothing else to search
    return tool["type"] == MCP or tool["type"] in HOSTED


def without_secrets(tool: dict[str, Any]) -> dict[str, Any]:
    """The tool as it may be stored."""
    kept = {name: value for name, value in tool.items() if name not in ("headers", "authorization")}
    if isinstance(kept.get("server_url"), str):
        kept["server_url"] = kept["server_url"].partition("#")[0].partition("?")[0]
    return kept


def has_secrets(tool: Mapping[str, Any]) -> bool:
    return bool(tool.get("headers") or tool.get("authorization") or "?" in (tool.get("server_url") or ""))


def shown(tool: dict[str, Any]) -> dict[str, Any]:
    """The tool as a response repeats it."""
    if tool["type"] == "code_interpreter":
        return {"type": "code_interpreter", "container": {"type": "auto"}}
    if tool["type"] != MCP:
        # the type of a preview has no such field
        extra = {} if "preview" in tool["type"] else {"external_web_access": tool.get("external_web_access")}
        return {"type": tool["type"], **{name: value for name, value in extra.items() if value is not None}}
    names = ("server_label", "server_url", "server_description", "allowed_tools", "require_approval")
    kept = {name: value for name, value in without_secrets(tool).items() if name in names and value is not None}
    return {"type": MCP, **kept}


def labels(tools: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    return frozenset(tool["server_label"] for tool in tools if tool["type"] == MCP)
