"""Whatever is sent is answered or refused in order: never a 500, and never an engine that goes on."""

from typing import Any

import anyio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stentor.tests.examples import examples
from stentor.tests.fakes import FakeEngine, fake_state
from stentor.tests.server.harness import in_memory
from stentor.tests.server.responses.shapes import RESPONSES

WORDS = st.sampled_from(
    (
        *("message", "user", "assistant", "input_text", "output_text", "refusal", "reasoning", "summary_text"),
        *("function_call", "function_call_output", "custom_tool_call", "item_reference", "compaction", "function"),
        *("custom", "auto", "required", "allowed_tools", "json_schema", "text", "f", "", "completed", "mcp_call"),
    )
)
KEYS = st.sampled_from(
    (
        *("type", "role", "content", "text", "id", "call_id", "name", "arguments", "output", "input", "summary"),
        *("encrypted_content", "status", "refusal", "parameters", "strict", "format", "mode", "tools", "schema"),
    )
)
LEAVES = st.none() | st.booleans() | st.integers(-3, 3) | WORDS | st.text(max_size=5)
JSON = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5), max_leaves=12
)
ITEMS = st.lists(st.dictionaries(KEYS, JSON, max_size=6), max_size=3)
BODIES = st.fixed_dictionaries(
    {"input": st.text(max_size=5) | ITEMS | JSON},
    optional={
        "tools": ITEMS | JSON,
        "tool_choice": JSON,
        "text": st.fixed_dictionaries({}, optional={"format": JSON, "verbosity": WORDS}),
        "reasoning": JSON,
        "instructions": st.text(max_size=5) | st.none(),
        "include": st.lists(WORDS, max_size=2),
        "metadata": st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2) | JSON,
        "structured_outputs": JSON,
        "previous_response_id": st.text(max_size=5),
        "conversation": JSON,
        "truncation": st.sampled_from(["auto", "disabled", "x"]),
        "store": st.booleans(),
        "stream": st.booleans(),
        "background": st.booleans(),
        "chat_template_kwargs": JSON,
    },
)


@settings(max_examples=examples(60, 600), deadline=None, suppress_health_check=list(HealthCheck))
@given(body=BODIES)
def test_no_body_is_an_error_of_the_server(body: dict[str, Any]) -> None:
    async def post() -> None:
        engine = FakeEngine()
        state = fake_state(engine)
        async with in_memory(state) as client:
            answer = await client.post(RESPONSES, json={"max_output_tokens": 3, **body})
            assert answer.status_code in (200, 400, 404), answer.text
            if answer.status_code != 200:
                assert engine.streams == []
        for live in state.responses:
            await live.ended()
        assert engine.live == 0
        await state.store.close()

    anyio.run(post)
