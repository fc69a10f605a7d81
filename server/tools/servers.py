"""Tool servers of one request: addresses, allowed tools, and approval."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass  # noqa: TID251  # headers are not printed
from typing import Any, Final

import msgspec

from stentor.protocols.openai.responses.mcp import HOSTED, MCP, WEB_SEARCH
from stentor.protocols.openai.responses.objects import CallKind

from .url_allowlist import ServerAddress

Annotations = Mapping[str, Any]
HOSTED_SERVERS: Final = {**dict.fromkeys(WEB_SEARCH, "browser"), "code_interpreter": "python"}
assert set(HOSTED_SERVERS) == set(HOSTED)
_HOSTED_CALLS: Final[dict[str, CallKind]] = {"browser": "web_search_call", "python": "code_interpreter_call"}


class Filter(msgspec.Struct, frozen=True):
    """Which tools are meant; a condition that is None is met by all."""

    names: frozenset[str] | None = None
    read_only: bool | None = None

    def meets(self, name: str, annotations: Annotations | None) -> bool:
        if self.names is not None and name not in self.names:
            return False
        return self.read_only is None or is_read_only(annotations) == self.read_only


class Approval(msgspec.Struct, frozen=True):
    """Which calls wait until the client has approved them."""

    always: Filter | None = None
    never: Filter | None = None
    otherwise: bool = True

    def needed(self, name: str, annotations: Annotations | None) -> bool:
        if self.always is not None and self.always.meets(name, annotations):
            return True
        if self.never is not None and self.never.meets(name, annotations):
            return False
        return self.otherwise


@dataclass(frozen=True)
class Server:
    """One of them."""

    label: str
    place: ServerAddress
    field: str
    """The request's field."""
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)
    """With its secrets."""
    description: str | None = None
    allowed: Filter = dataclasses.field(default_factory=Filter)
    approval: Approval = dataclasses.field(default_factory=Approval)
    locked: bool = False
    """The request's secrets are no longer known, so it cannot be called."""
    calls: CallKind = "mcp_call"
    """The type of the items that its calls are."""


def is_read_only(annotations: Annotations | None) -> bool:
    """The server's hint; false without one."""
    return bool(annotations) and annotations.get("readOnlyHint") is True  # type: ignore[union-attr]  # it is not None


def may_repeat(annotations: Annotations | None) -> bool:
    """Whether the same call once more changes nothing that the first did not."""
    return is_read_only(annotations) or (bool(annotations) and annotations.get("idempotentHint") is True)  # type: ignore[union-attr]  # as above


def read_server(
    tool: Mapping[str, Any], place: ServerAddress, where: str, *, own: bool, locked: bool = False
) -> Server:
    """From a checked tool; ``own``: it is the operator's, which may get any data of the client."""
    if tool["type"] != MCP:
        label = HOSTED_SERVERS[tool["type"]]
        return Server(label, place, where, approval=Approval(otherwise=False), calls=_HOSTED_CALLS[label])
    headers = dict(tool.get("headers") or {})
    if tool.get("authorization"):
        headers["authorization"] = f"Bearer {tool['authorization']}"
    return Server(
        label=tool["server_label"],
        place=place,
        field=where,
        headers=headers,
        description=tool.get("server_description"),
        allowed=_filter(tool.get("allowed_tools")) or Filter(),
        approval=_approval(tool.get("require_approval"), own),
        locked=locked,
    )


def _approval(given: str | Mapping[str, Any] | None, own: bool) -> Approval:
    if given is None:
        return Approval(otherwise=not own)
    if isinstance(given, str):
        return Approval(otherwise=given == "always")
    always, never = _filter(given.get("always")), _filter(given.get("never"))
    # a list of tools that need approval means that others do not
    return Approval(always, never, otherwise=never is not None or always is None)


def _filter(given: Sequence[str] | Mapping[str, Any] | None) -> Filter | None:
    if given is None:
        return None
    if isinstance(given, Mapping):
        names = given.get("tool_names")
        return Filter(None if names is None else frozenset(names), given.get("read_only"))
    return Filter(frozenset(given))
