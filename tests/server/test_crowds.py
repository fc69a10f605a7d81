"""Requests at random that come together, to a server with much turned on: each gets the answer that it gets alone."""

import random
import re
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stentor.protocols.ipc.config import SpeculativeConfig
from stentor.server.app.state import ServerState
from stentor.tests.examples import examples
from stentor.tests.parity import tiny
from stentor.tests.server.harness import CHAT, COMPLETIONS, in_memory
from stentor.tests.server.local_chat import LocalChat
from stentor.tests.server.test_speculation import CHATS, FORMS, PROPERTY, TEXT, TOOLS, bodies, normal, streamed

Asked = tuple[str, dict[str, Any]]
"""A path and a body."""
MODELS = ("llama", "gemma2", "qwen3.5")
DRAFTS = SpeculativeConfig("suffix", 4)
HOST = 256 << 10
PROMPTS = st.sampled_from(("a b c a b c", "hello", "the cat and the cat"))


class Servers:
    """A plain server and one with much turned on, over the same model."""

    def __init__(self, folder: Path) -> None:
        more = {"speculative": DRAFTS, "kv_offloading_size": HOST, "max_num_seqs": 4}
        self.plain, self.full = LocalChat(folder), LocalChat(folder, **more)
        self.states: dict[int, ServerState] = {id(chat): chat.state() for chat in (self.plain, self.full)}

    async def alone(self, asked: Asked) -> str:
        self.plain.engine.restart(self.plain.engine.ready.num_blocks, prefix_cache=False)
        (answer,) = await self._answers(self.plain, [asked])
        return answer

    async def together(self, crowd: list[Asked], spare: int, budget: int, deaths: list[int], burst: int) -> list[str]:
        """With blocks for one sequence and ``spare`` more, and a worker that dies after so many steps."""
        engine, before = self.full.engine, list(deaths)
        groups = sum(group.is_paged for group in engine.ready.groups)
        least = groups * -(-engine.ready.max_model_len // engine.ready.limits.block_size)
        engine.restart(min(engine.ready.num_blocks, least + spare), max_num_batched_tokens=budget)

        def dies() -> bool:
            if before:
                before[0] -= 1
            return bool(before) and not before[0] and bool(before.pop(0) == 0)

        self.full.burst, self.full.dies = burst, dies
        return await self._answers(self.full, crowd)

    async def _answers(self, chat: LocalChat, crowd: list[Asked]) -> list[str]:
        found = [""] * len(crowd)
        async with in_memory(self.states[id(chat)]) as client, anyio.create_task_group() as tasks:

            async def ask(number: int, path: str, body: dict[str, Any]) -> None:
                answer = await client.post(path, json=body)
                assert answer.status_code in (200, 400), answer.text
                found[number] = re.sub(r'"cached_tokens": ?\d+', '"cached_tokens":0', normal(answer.text))

            for number, asked in enumerate(crowd):
                tasks.start_soon(ask, number, *asked)
        return found

    async def compare(self, crowd: list[Asked], **how: Any) -> None:
        expected = [await self.alone(asked) for asked in crowd]
        for found, alone, asked in zip(await self.together(crowd, **how), expected, crowd, strict=True):
            assert found == alone, asked


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Servers]:
    """Made when they are first asked for."""
    found: dict[str, Servers] = {}

    class Made(dict[str, Servers]):
        def __missing__(self, name: str) -> Servers:
            folder = tmp_path_factory.mktemp("model")
            tiny.make(name, folder)
            self[name] = Servers(folder)
            return self[name]

    return Made(found)


def _chat(body: dict[str, Any], form: dict[str, Any], prompt: str, *, stream: bool) -> Asked:
    body = {**body, **form, "messages": [{"role": "user", "content": prompt}]}
    if form and "allowed_token_ids" in body:
        body["allowed_token_ids"] = TEXT
    return CHAT, streamed(body) if stream else body


CHATTED = st.builds(
    _chat,
    CHATS | bodies(tools=st.just(TOOLS), tool_choice=st.sampled_from(("auto", "required")), logprobs=st.just(True)),
    st.sampled_from(({}, {}, {}, {}, {}, *FORMS)),
    PROMPTS,
    stream=st.booleans(),
)
COMPLETED = bodies(
    prompt=PROMPTS | st.lists(PROMPTS, min_size=2, max_size=3),
    logprobs=st.integers(0, 5),
    echo=st.booleans(),
    cache_salt=st.sampled_from(("one", "two")),
    priority=st.integers(-2, 2),
).map(lambda body: (COMPLETIONS, {"prompt": "a b c", **body}))
BEAMS = st.builds(
    lambda prompt, width, tokens: (
        COMPLETIONS,
        {"prompt": prompt, "use_beam_search": True, "n": width, "max_tokens": tokens, "temperature": 0.0},
    ),
    PROMPTS,
    st.integers(1, 3),
    st.integers(1, 9),
)
CROWDS = st.lists(CHATTED | CHATTED | COMPLETED | BEAMS, min_size=2, max_size=6)


@settings(max_examples=examples(6, 400), **PROPERTY)
@given(
    model=st.sampled_from(MODELS),
    crowd=CROWDS,
    spare=st.integers(0, 6),
    budget=st.sampled_from((5, 24, 256)),
    deaths=st.lists(st.integers(1, 30), max_size=2),
    burst=st.integers(1, 3),
)
def test_a_crowd_of_requests_gets_what_each_gets_alone(
    servers: dict[str, Servers], model: str, crowd: list[Asked], **how: Any
) -> None:
    anyio.run(lambda: servers[model].compare(crowd, **how))


def test_a_crowd_that_is_drawn_from_a_seed_gets_what_each_gets_alone(servers: dict[str, Servers]) -> None:
    """With all that is turned on, whatever the examples of the property are."""
    rng = random.Random(1)
    crowd: list[Asked] = []
    for number in range(6):
        body = {"seed": number, "max_tokens": rng.randint(5, 30), "temperature": 0.9, "n": rng.choice([1, 2])}
        crowd.append((COMPLETIONS, {**body, "prompt": "a b c a b c", "logprobs": 2, "priority": -number}))
    crowd.append((COMPLETIONS, {"prompt": "hello", "use_beam_search": True, "n": 3, "max_tokens": 6}))
    how = {"spare": 2, "budget": 24, "deaths": [7, 9], "burst": 1}
    deaths = servers["llama"].full.engine.deaths
    anyio.run(lambda: servers["llama"].compare(crowd, **how))
    assert servers["llama"].full.engine.deaths == deaths + 2
