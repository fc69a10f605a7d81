"""Errors of tool servers."""

from typing import Any

from ..common.errors import ServerError

TIMED_OUT = -32001
"""The protocol's own word for a request that was not answered in time."""
INVALID_PARAMS = -32602
NOT_MADE = -32000
"""For calls that this server did not make."""


class ToolServerFailed(ServerError):
    """The tools of a required server could not be listed."""

    status = 424
    kind = "external_connector_error"
    code = "tool_server_failed"

    @property
    def headers(self) -> dict[str, str]:
        return {"x-should-retry": "false"}


class ToolCallFailed(Exception):
    """Why a tool call failed; ``error`` is its form in an item of the Responses API."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(text_of(error))
        self.error = error


def protocol_fault(code: int, message: str) -> ToolCallFailed:
    return ToolCallFailed({"type": "mcp_protocol_error", "code": code, "message": message})


def http_fault(status: int, message: str) -> ToolCallFailed:
    return ToolCallFailed({"type": "http_error", "code": status, "message": message})


def text_of(error: dict[str, Any] | str) -> str:
    """An item's error in words."""
    if isinstance(error, str):
        return error
    if isinstance(error.get("message"), str):
        return str(error["message"])
    content = error.get("content")
    parts = content if isinstance(content, list) else []
    texts = [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]
    return "\n".join(texts) or "the tool failed"
