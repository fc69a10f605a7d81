"""The model's prompt and tools, if the server runs some of the tools."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec

from stentor.protocols.common.errors import BadRequest, refused
from stentor.protocols.openai.responses.items import LOADING, Item
from stentor.protocols.openai.responses.mcp import MCP, runs_here
from stentor.protocols.openai.responses.request import ContextFields, Reasoning, TextConfig, TextFormat
from stentor.protocols.openai.responses.tools import client_functions, functions_meant, loaded_tools

from ...tools.servers import Server
from ...tools.tools import McpTool, offered

Request = TypeVar("Request", bound=ContextFields)
Lists = Mapping[str, list[dict[str, Any]]]


def with_loaded_tools(request: Request, items: Iterable[Item]) -> Request:
    """With the tools that items of the conversation bring, which the model may call from then on."""
    found = [tool for item in items if item["type"] in LOADING for tool in item["tools"]]
    if not found:
        return request
    return msgspec.structs.replace(request, tools=loaded_tools(request.tools or [], found))


def with_updates(request: Request, items: Iterable[Item]) -> Request:
    """With the settings that items of the conversation have changed: each is in force until the next of its kind."""
    for item in items:
        if item["type"] == "configuration_update":
            if "reasoning" in item:
                reasoning = msgspec.structs.replace(request.reasoning or Reasoning(), **item["reasoning"])
                request = msgspec.structs.replace(request, reasoning=reasoning)
            if "text" in item:
                form = msgspec.convert(item["text"]["format"], TextFormat)
                text = msgspec.structs.replace(request.text or TextConfig(), format=form)
                request = msgspec.structs.replace(request, text=text)
    return request


def known_lists(items: Iterable[Item]) -> dict[str, list[dict[str, Any]]]:
    """Tool lists that a conversation already has, by the server's label."""
    return {
        item["server_label"]: item["tools"]
        for item in items
        if item["type"] == "mcp_list_tools" and not item.get("error")
    }


def server_tools(request: ContextFields, servers: Sequence[Server], lists: Lists) -> dict[str, McpTool]:
    """Tools by function name; the client's own functions take precedence."""
    functions = client_functions(request.tools or ())
    return {name: tool for name, tool in offered(servers, lists).items() if name not in functions}


def offer_functions(request: Request, served: Mapping[str, McpTool], *, first: bool = True) -> Request:
    """With functions in place of servers. ``first``: no required call has been made yet."""
    tools = [tool for tool in request.tools or () if not runs_here(tool)] + [tool.tool for tool in served.values()]
    choice = request.tool_choice if first else _freed(request.tool_choice)
    if not tools:
        return msgspec.structs.replace(request, tools=None, tool_choice=None)
    return msgspec.structs.replace(request, tools=tools, tool_choice=_choice(choice, served, tools))


@contextmanager
def blame_server(request: ContextFields, served: Mapping[str, McpTool]) -> Iterator[None]:
    """Lets a BadRequest about a tool that a server has listed name the server, for the client did not write it."""
    try:
        yield
    except BadRequest as error:
        place = re.match(r"tools\[(\d+)\]", error.param or "")
        own = [index for index, tool in enumerate(request.tools or ()) if not runs_here(tool)]
        if place is None:
            raise
        if int(place[1]) < len(own):
            here, there = place[0], f"tools[{own[int(place[1])]}]"
            param = (error.param or "").replace(here, there, 1)
            raise BadRequest(
                error.message.replace(f"`{here}", f"`{there}"),
                param,
                error.code,
                error.status,
                error.kind,
                lengths=error.lengths,
            ) from None
        tool = list(served.values())[int(place[1]) - len(own)]
        said = f"The tool `{tool.name[:80]}` of the server `{tool.server.label}` cannot be offered: {error.message}"
        raise BadRequest(said, tool.server.field, error.code, error.status) from None


def _freed(choice: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
    """Once it has been called, it may be."""
    if isinstance(choice, str):
        return "auto" if choice == "required" else choice
    if choice is not None and choice["type"] == "allowed_tools":
        return {**choice, "mode": "auto"}
    return None


def _choice(
    choice: str | dict[str, Any] | None, served: Mapping[str, McpTool], tools: Sequence[dict[str, Any]]
) -> str | dict[str, Any] | None:
    if not isinstance(choice, dict) or (choice["type"] != "allowed_tools" and choice["type"] != MCP):
        return choice
    allowed = [choice] if choice["type"] == MCP else choice["tools"]
    meant = [function for one in allowed for function in _meant(one, served, tools)]
    if choice["type"] == MCP and choice.get("name") is not None:
        if not meant:
            raise refused("tool_choice.name", "the server has no such tool to offer")
        return meant[0]
    return {"type": "allowed_tools", "mode": choice.get("mode", "required"), "tools": meant} if meant else "none"


def _meant(
    one: Mapping[str, Any], served: Mapping[str, McpTool], tools: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    if one["type"] != MCP:
        return [dict(one)] if functions_meant(one, client_functions(tools)) else []
    return [
        {"type": "function", "name": name}
        for name, tool in served.items()
        if tool.server.label == one["server_label"] and one.get("name") in (None, tool.name)
    ]
