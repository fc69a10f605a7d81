"""Whatever is sent about tools on other servers is answered or refused in order: never a 500."""

from collections.abc import Sequence
from typing import Any

import anyio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stentor.server.config.config import McpConfig
from stentor.server.tools.gateway import McpGateway
from stentor.tests.examples import examples
from stentor.tests.fakes import says
from stentor.tests.server.harness import in_memory
from stentor.tests.server.responses.shapes import RESPONSES
from stentor.tests.server.tools.scripted import Script, state_of

LEAVES = (
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(("a", "", "always", "mcp", "direct", "mcpr_1"))
)
KEYS = st.sampled_from(("tool_names", "read_only", "always", "never", "type", "name", "input_schema", "message", "x"))
JSON = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=6
)
FIELDS = ("server_description", "headers", "authorization", "allowed_tools", "require_approval", "allowed_callers")
URL = st.just("https://mcp.example.com/") | JSON
TOOLS = st.lists(
    st.fixed_dictionaries(
        {"type": st.sampled_from(("mcp", "mcp", "web_search", "code_interpreter"))},
        optional={"server_label": st.just("a") | JSON, "server_url": URL, **dict.fromkeys(FIELDS, JSON)},
    ),
    max_size=2,
)
ITEMS = st.lists(
    st.fixed_dictionaries(
        {"type": st.sampled_from(("mcp_list_tools", "mcp_call", "mcp_approval_request", "mcp_approval_response"))},
        optional={
            **dict.fromkeys(("id", "approval_request_id"), st.just("mcpr_1") | JSON),
            **dict.fromkeys(("server_label", "name", "arguments", "status"), st.just("a") | JSON),
            **dict.fromkeys(("tools", "error", "output", "approve", "reason"), JSON),
        },
    ),
    max_size=3,
)
CHOICES = st.fixed_dictionaries(
    {"type": st.sampled_from(("mcp", "allowed_tools"))},
    optional={"server_label": st.just("a") | JSON, "name": JSON, "mode": st.just("auto"), "tools": TOOLS},
)


async def nowhere(_host: str, _port: int) -> Sequence[str]:
    raise OSError


@settings(max_examples=examples(40, 400), deadline=None, suppress_health_check=list(HealthCheck))
@given(tools=TOOLS, items=ITEMS, choice=CHOICES | JSON)
def test_no_tool_or_item_is_an_error_of_the_server(tools: Any, items: Any, choice: Any) -> None:
    async def post() -> None:
        script = Script([])
        script.engine.answer = says("Hi.")
        gateway = McpGateway(McpConfig(urls=("https://",)), resolve=nowhere)
        state = state_of(script, gateway.config, gateway=gateway)
        async with in_memory(state) as client:
            for body in ({"tools": tools}, {"tools": tools, "tool_choice": choice}, {}):
                asked = {"input": [{"role": "user", "content": "?"}, *items], "max_output_tokens": 3, **body}
                answer = await client.post(RESPONSES, json=asked)
                assert answer.status_code in (200, 400), answer.text
        await state.store.close()

    anyio.run(post)
