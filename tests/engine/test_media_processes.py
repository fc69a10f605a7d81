"""Real engine and worker processes of a model with images, killed in the middle of an answer."""

from contextlib import AbstractAsyncContextManager
from pathlib import Path

import anyio
import pytest
import torch

from stentor.engine.client.client import EngineClient
from stentor.engine.client.media import Media
from stentor.engine.client.request import EngineRequest
from stentor.protocols.ipc.actors import Finished, SequenceTokens
from stentor.protocols.ipc.config import EngineConfig
from stentor.protocols.ipc.inputs import ArenaRef
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.tests.engine.forked import Victim, client_of, kill, served, told_of_losses
from stentor.tests.engine.local import model_config
from stentor.tests.parity.pictures import PICTURES, Prompt, prompt_of
from stentor.tests.support.vision_models import FAMILIES

pytestmark = pytest.mark.anyio

ANSWER = 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("qwen3_vl")
    FAMILIES["qwen3_vl"](made)
    return made


def seeing_client(folder: Path, **changes: object) -> AbstractAsyncContextManager[EngineClient]:
    config = model_config(folder, max_model_len=256, kv_cache_memory=8 << 20, **changes)
    return served(client_of(EngineConfig(config)))


def prompts() -> list[Prompt]:
    kind = PICTURES["qwen3_vl"]
    pictures = [kind.draw(torch.Generator().manual_seed(number), number % 3) for number in range(4)]
    return [prompt_of(kind, [40 + number], pictures[number], [50, 51], pictures[0], [60]) for number in range(4)]


async def answers(client: EngineClient, victim: Victim | None = None) -> list[list[int]]:
    """All prompts at once; the worker or the engine is killed once tokens have come."""
    found: list[list[int]] = [[] for _ in prompts()]
    begun = anyio.Event()

    async def read(number: int, prompt: Prompt) -> None:
        params = SamplingParams(max_tokens=ANSWER, temperature=0.8)
        async for events in client.submit(EngineRequest(prompt.tokens, params, [number], media=prompt.media)):
            for event in events:
                if isinstance(event, SequenceTokens):
                    found[number] += event.tokens
                    if len(found[number]) > 3:
                        begun.set()
                elif isinstance(event, Finished):
                    assert event.reason == "length", event.message

    async with anyio.create_task_group() as tasks:
        for number, prompt in enumerate(prompts()):
            tasks.start_soon(read, number, prompt)
        if victim is not None:
            await begun.wait()
            kill(client, victim)
    return found


def written_media(client: EngineClient) -> list[bytes]:
    """Digests of what is written for the engine from now on, which asks for all that it has to encode."""
    found: list[bytes] = []
    store = client._media
    write = store._write

    async def counted(ref: ArenaRef, one: Media) -> None:
        found.append(one.digest)
        await write(ref, one)

    store._inline_bytes = 0
    store._write = counted  # type: ignore[method-assign]
    return found


async def test_answers_about_pictures_go_on_after_their_worker_or_engine_was_killed(folder: Path) -> None:
    async with seeing_client(folder) as client:
        written = written_media(client)
        expected = await answers(client)
        assert {len(each) for each in expected} == {ANSWER}
        assert sorted(written) == sorted({one.digest for prompt in prompts() for one in prompt.media})
        written.clear()
        first = prompts()[0]
        stream = client.submit(EngineRequest([*first.tokens, 61], SamplingParams(max_tokens=1), [0], media=first.media))
        assert [event.reason async for events in stream for event in events if isinstance(event, Finished)] == [
            "length"
        ]
        assert not written, "a second question about pictures whose blocks are known"
        assert await answers(client, "worker") == expected
        await told_of_losses(client, workers=1)
        assert await answers(client, "engine") == expected
        await told_of_losses(client, engines=1)


async def test_a_model_that_is_to_read_text_alone_refuses_pictures(folder: Path) -> None:
    async with seeing_client(folder, language_model_only=True) as client:
        prompt = prompts()[0]
        stream = client.submit(EngineRequest(prompt.tokens, SamplingParams(max_tokens=1), [0], media=prompt.media))
        ends = [event async for events in stream for event in events if isinstance(event, Finished)]
        assert [end.message for end in ends] == ["the model reads tokens alone: it takes no audio or other media"]
