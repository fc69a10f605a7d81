"""A model that says what a test has written, turn by turn, and a server that lets it call tools."""

import json
from collections.abc import Sequence
from typing import Any, Final

from stentor.server.app.state import ServerState
from stentor.server.config.config import McpConfig
from stentor.server.parsing.output import settle_output
from stentor.server.text.pool import TokenizerPool
from stentor.server.tools.gateway import McpGateway
from stentor.tests.fakes import FakeEngine, byte_tokenizer, fake_state, says

TEMPLATE: Final = (
    "{% if tools %}<tools>{% for tool in tools %}{{ tool.function.name }} {% endfor %}{{ '\n' }}{% endif %}"
    "{% for m in messages %}<{{ m.role }}>{% if m.content %}{{ m.content }}{% endif %}"
    "{% for call in m.tool_calls or [] %}<call>{{ call.function.name }}{{ call.function.arguments | tojson }}"
    "{% endfor %}{{ '\n' }}{% endfor %}<assistant>"
)


def call(name: str, **arguments: Any) -> str:
    """The text by which the model calls a tool."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


class Script:
    """The engine of a model that says ``turns`` one after the other."""

    def __init__(self, turns: Sequence[str]) -> None:
        self._turns = iter(turns)
        self.engine = FakeEngine(max_model_len=1 << 16, answer=self._answer)
        self.engine.burst = 8

    def _answer(self, prompt: list[int], index: int) -> Sequence[int]:
        return says(next(self._turns))(prompt, index)

    @property
    def prompts(self) -> list[str]:
        return [bytes(token for token in stream.prompt if token < 256).decode() for stream in self.engine.streams]


def state_of(script: Script, config: McpConfig, **fields: Any) -> ServerState:
    pool = TokenizerPool(byte_tokenizer(TEMPLATE))
    fields.setdefault("gateway", McpGateway(config))
    fields.setdefault("output", settle_output("none", "hermes", TEMPLATE, ""))
    return fake_state(script.engine, pool=pool, **fields)
