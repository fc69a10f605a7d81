"""An engine that is held while it answers, so that what it says can be steered."""

import json
from collections.abc import Sequence
from typing import Any, Final

from websockets.asyncio.client import ClientConnection

from stentor.server.app.state import ServerState
from stentor.server.parsing.output import settle_output
from stentor.server.text.pool import TokenizerPool
from stentor.tests.fakes import FakeEngine, byte_tokenizer, fake_state, says
from stentor.tests.server.harness import until
from stentor.tests.server.responses.sockets import ask, until_told
from stentor.tests.server.tools.scripted import TEMPLATE

LONG: Final = "The sea is wide and blue, and there is no end to it. "


class Held(FakeEngine):
    """Stops after a few steps of its first stream, until its gate is opened."""

    def __init__(self, *, steps: int = 4, text: str = LONG, **options: Any) -> None:
        super().__init__(answer=self._answer, **options)
        self._texts = iter([text, *["Yes."] * 9])
        self._left = steps

    def _answer(self, prompt: list[int], index: int) -> Sequence[int]:
        return says(next(self._texts))(prompt, index)

    async def pace(self) -> None:
        if self._left == 0:
            self.gate.clear()
        self._left -= 1
        await super().pace()

    @property
    def prompts(self) -> list[str]:
        return [bytes(token for token in stream.prompt if token < 256).decode() for stream in self.streams]


async def steer(socket: ClientConnection, response: str, given: Any, **fields: Any) -> None:
    message = {"type": "response.steer", "previous_response_id": response, "input": given, **fields}
    await socket.send(json.dumps(message))


async def begun(socket: ClientConnection, engine: Held, **body: Any) -> str:
    """The id of a response that is held."""
    await ask(socket, **{"input": "Write.", "max_output_tokens": 300, **body})
    created = (await until_told(socket, "response.created"))[-1]
    await until(lambda: not engine.gate.is_set())
    return str(created["response"]["id"])


def calling(engine: FakeEngine, **fields: Any) -> ServerState:
    """A server whose model can call tools."""
    pool = TokenizerPool(byte_tokenizer(TEMPLATE))
    return fake_state(engine, pool=pool, output=settle_output("none", "hermes", TEMPLATE, ""), **fields)
