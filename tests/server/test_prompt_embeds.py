"""Prompts of completions that are embeddings: what the engine gets of them, over a fake one, and what is refused."""

import base64
import io
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from openai.types import Completion
from safetensors.numpy import load

from stentor.protocols.common.limits import Limits
from stentor.tests.fakes import FakeEngine, fake_state
from stentor.tests.server.harness import COMPLETIONS, in_memory

pytestmark = pytest.mark.anyio

WIDTH = 4


def told(values: Any) -> str:
    file = io.BytesIO()
    np.save(file, values)
    return base64.b64encode(file.getvalue()).decode()


ROWS = np.arange(12, dtype=np.float32).reshape(3, WIDTH)
OTHERS = np.ones((2, WIDTH), np.float16)


async def post(engine: FakeEngine, width: int = WIDTH, **body: Any) -> Any:
    state = fake_state(engine, limits=Limits(max_prompts=3))
    async with in_memory(replace(state, chat=replace(state.chat, prompt_width=width))) as client:
        return await client.post(COMPLETIONS, json=body)


async def test_embeddings_stand_at_tokens_that_are_seldom_written_before_the_prompts_that_are_texts() -> None:
    engine = FakeEngine()
    response = await post(engine, prompt_embeds=[told(ROWS), told(OTHERS)], prompt=[7, 8], max_tokens=3, logprobs=1)
    assert response.status_code == 200, response.text
    completion = Completion.model_validate_json(response.content, strict=True)
    assert [choice.index for choice in completion.choices] == [0, 1, 2]
    assert completion.usage is not None
    assert completion.usage.prompt_tokens == 3 + 2 + 2
    asked = zip((stream.prompt for stream in engine.streams), engine.media, strict=True)
    (first, media), (second, _), (third, none) = sorted(asked, key=lambda each: (-len(each[1]), -len(each[0])))
    assert len({*first, *second}) == 1
    assert (len(first), len(second), third, none) == (3, 2, [7, 8], ())
    (brought,) = media
    assert (brought.start, brought.length, brought.causal, brought.field) == (0, 3, True, "prompt_embeds[0]")
    assert np.array_equal(load(bytes(brought.data))["image_embeds"], ROWS)


@pytest.mark.parametrize("body", [{}, {"prompt": None}, {"prompt": ""}])
async def test_they_need_no_other_prompt_and_stream_as_others_do(body: dict[str, Any]) -> None:
    engine = FakeEngine()
    response = await post(engine, prompt_embeds=told(ROWS[None]), max_tokens=3, stream=True, **body)
    assert response.status_code == 200, response.text
    assert response.text.endswith("data: [DONE]\n\n")
    assert [len(stream.prompt) for stream in engine.streams] == [3]


@pytest.mark.parametrize(
    ("body", "param", "why"),
    [
        ({"prompt_embeds": told(ROWS[:, :3])}, "prompt_embeds", "the model takes [embeddings, 4]"),
        ({"prompt_embeds": [told(ROWS), "no base64!"]}, "prompt_embeds[1]", "it is no base64"),
        ({"prompt_embeds": told(np.full((3, WIDTH), np.nan))}, "prompt_embeds", "not finite"),
        ({"prompt_embeds": []}, "prompt_embeds", "length"),
        ({"prompt_embeds": told(ROWS), "prompt": []}, "prompt", "length"),
        ({"prompt_embeds": [told(ROWS)] * 4}, "prompt_embeds", "allows at most 3"),
        ({"prompt_embeds": [told(ROWS)] * 3, "prompt": "a"}, "prompt_embeds", "has 3 items"),
        ({"prompt_embeds": told(ROWS), "truncate_prompt_tokens": 2}, "truncate_prompt_tokens", "cuts through"),
        ({"prompt_embeds": told(ROWS), "echo": True}, "echo", "excludes `prompt_embeds`"),
        ({"prompt_embeds": told(ROWS), "prompt_logprobs": 1}, "prompt_logprobs", "excludes `prompt_embeds`"),
        ({"prompt_embeds": told(ROWS), "suffix": "b", "prompt": "a"}, "suffix", "excludes `prompt_embeds`"),
        ({"prompt_embeds": told(ROWS), "use_beam_search": True, "n": 2}, "use_beam_search", "excludes"),
        ({"prompt_embeds": told(np.ones((99_999, WIDTH), np.float16))}, "prompt", "has 99999 tokens"),
    ],
)
async def test_what_cannot_be_done_names_its_field(body: dict[str, Any], param: str, why: str) -> None:
    response = await post(FakeEngine(), **body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert why in error["message"]


async def test_a_server_that_was_not_told_to_take_them_says_how() -> None:
    response = await post(FakeEngine(), 0, prompt_embeds=told(ROWS))
    assert response.status_code == 400
    assert "with --enable-prompt-embeds alone" in response.json()["error"]["message"]
