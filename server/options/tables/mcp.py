"""Tools that the server runs for its clients, on servers of the Model Context Protocol."""

from typing import Final

from .. import kinds
from ..option import Option

OPTIONS: Final = (
    Option(
        "mcp-server",
        "mcp.servers",
        kinds.tool_servers(),
        "a server of tools that requests may name by NAME alone; browser and python are also what web search and the "
        "code interpreter are; may be repeated",
        "tools",
        aliases=("tool-server",),
    ),
    Option(
        "mcp-url",
        "mcp.urls",
        kinds.server_urls(),
        "what the URL of a server of tools must begin with for requests to name it; https:// alone is any public "
        "host; may be repeated; none opens none",
        "tools",
    ),
    Option(
        "mcp-allow-private",
        "mcp.allow_private",
        kinds.switch(),
        "hosts named by mcp-url may resolve to loopback and private addresses too; cloud metadata stays closed",
        "tools",
    ),
    Option(
        "mcp-connect-timeout",
        "mcp.connect_timeout",
        kinds.some_seconds(),
        "how long it may take to reach a server of tools and list them",
        "tools",
    ),
    Option(
        "mcp-call-timeout", "mcp.call_timeout", kinds.some_seconds(), "how long one call of a tool may take", "tools"
    ),
    Option("mcp-max-tools", "mcp.max_tools", kinds.integer(1, 1024), "tools that one server may offer", "tools"),
    Option(
        "mcp-max-result-chars",
        "mcp.max_result_chars",
        kinds.integer(1, 1 << 24),
        "how much of a tool's result is kept; the rest is cut off, and a mark says so",
        "tools",
    ),
    Option(
        "mcp-max-rounds",
        "mcp.max_rounds",
        kinds.integer(1, 1024),
        "times that the model may call tools and go on, in one response",
        "tools",
    ),
    Option(
        "mcp-max-calls",
        "mcp.max_calls",
        kinds.integer(1, 1 << 16),
        "calls of tools at the same time, of all clients",
        "tools",
    ),
)
