"""The tools of servers as functions that a model is offered."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from stentor.protocols.common.limits import MAX_TOOL_DESCRIPTION

from .servers import HOSTED_SERVERS, Annotations, Server

MAX_NAME: Final = 64
"""Characters of a function's name: templates and clients expect no more."""
_FOREIGN: Final = re.compile(r"[^A-Za-z0-9_-]")


class McpTool(msgspec.Struct, frozen=True):
    """One tool, by the name that the model knows."""

    function: str
    server: Server
    name: str
    """The server's own."""
    description: str | None
    schema: Mapping[str, Any]
    annotations: Annotations | None
    approval: bool

    @property
    def tool(self) -> dict[str, Any]:
        """The function, as the Responses API describes it."""
        return {
            "type": "function",
            "name": self.function,
            "description": self.description,
            "parameters": dict(self.schema),
            "strict": False,
        }


def function_name(label: str, name: str) -> str:
    """The same for one tool in all turns: a conversation repeats it in later prompts.

    Servers in place of gpt-oss's own tools have those names (``browser.search``).
    """
    between = "." if label in HOSTED_SERVERS.values() else "__"
    return (_FOREIGN.sub("_", label) + between + _FOREIGN.sub("_", name))[:MAX_NAME]


def offered(servers: Sequence[Server], lists: Mapping[str, Iterable[Mapping[str, Any]]]) -> dict[str, McpTool]:
    """By function; ``lists`` are the tool lists by label. Of two with one name, the first has it."""
    found: dict[str, McpTool] = {}
    for server in servers:
        for tool in lists.get(server.label, ()):
            name, annotations = tool["name"], tool.get("annotations")
            if not server.allowed.meets(name, annotations):
                continue
            function = function_name(server.label, name)
            description = _described(server, tool.get("description"))
            approval = server.approval.needed(name, annotations)
            made = McpTool(function, server, name, description, _object(tool["input_schema"]), annotations, approval)
            found.setdefault(function, made)
    return found


def _described(server: Server, description: str | None) -> str | None:
    parts = [part for part in (description, server.description) if part]
    return "\n\n".join(parts)[:MAX_TOOL_DESCRIPTION] or None


def _object(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    return schema if schema.get("type", "object") == "object" else {"type": "object"}
