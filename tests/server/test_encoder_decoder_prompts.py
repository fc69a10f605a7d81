"""What the engine gets of a completion where an encoder reads the prompt, over a fake engine."""

from array import array
from typing import Any

import pytest
from msgspec.structs import replace

from stentor.tests.fakes import FakeEngine, fake_state
from stentor.tests.server.harness import COMPLETIONS, in_memory

pytestmark = pytest.mark.anyio


async def post(engine: FakeEngine, start: tuple[int, ...], **body: Any) -> Any:
    state = fake_state(engine)
    async with in_memory(replace(state, chat=replace(state.chat, decoder_start=start))) as client:
        return await client.post(COMPLETIONS, json=body)


async def test_the_encoder_gets_the_prompt_and_the_decoder_begins_as_the_model_says() -> None:
    engine = FakeEngine()
    response = await post(engine, (7, 8), prompt=[11, 12, 13], decoder_prompt=[9], max_tokens=3)
    assert response.status_code == 200, response.text
    assert [stream.prompt for stream in engine.streams] == [[7, 8, 9]]
    ((text,),) = engine.media
    assert array("i", bytes(text.data)).tolist() == [11, 12, 13]
    assert (text.start, text.length, len(text.digest)) == (-1, 0, 16)
    assert response.json()["usage"]["prompt_tokens"] == 3


async def test_a_decoder_prompt_needs_an_encoder_and_a_scored_prompt_a_decoder() -> None:
    refused = await post(FakeEngine(), (), prompt="a", decoder_prompt="b")
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "decoder_prompt"
    refused = await post(FakeEngine(), (7,), prompt="a", prompt_logprobs=1)
    assert refused.status_code == 400
    assert "the model's encoder reads the prompt" in refused.json()["error"]["message"]
