"""Real engine and worker processes over a tiny model: what its streams draw fits their grammars, whoever dies."""

import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import jsonschema
import pytest

from stentor.engine.client.client import EngineClient
from stentor.engine.client.request import EngineRequest
from stentor.engine.client.stream import RequestStream
from stentor.engine.core.grammar.vocabulary import pieces_of
from stentor.protocols.ipc.actors import Finished, Thinking
from stentor.protocols.ipc.config import EngineConfig
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.tests.engine.engines import delivered, read_all
from stentor.tests.engine.forked import client_of, served, worker_of
from stentor.tests.engine.grammar.byte_vocabulary import EOS, TOKENS, UNTHINK, VOCABULARY, text_of
from stentor.tests.engine.grammar.test_matcher import JSON, SCHEMA
from stentor.tests.engine.local import model_config
from stentor.tests.parity import tiny

pytestmark = pytest.mark.anyio

PROMPT = [5, 6, 7]
LONG = (
    'start: %json {"type": "array", "minItems": 8, "maxItems": 8, "items": {"type": "string", "maxLength": 3}, '
    '"x-guidance": {"whitespace_flexible": false}}'
)
FREE = SamplingParams(max_tokens=70, temperature=1.0)


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    tiny.make("llama", folder)
    return folder


@asynccontextmanager
async def _running(folder: Path) -> AsyncIterator[EngineClient]:
    config = model_config(folder, max_num_seqs=8, batch_invariant=True, kv_cache_memory=8 << 20, threads=1)
    client = client_of(EngineConfig(config))
    special = frozenset(VOCABULARY.special)
    client.set_vocabulary(lambda: pieces_of(TOKENS, special, frozenset([EOS])))
    async with served(client, seconds=240):
        yield client


def _params(tokens: int = 110) -> SamplingParams:
    return SamplingParams(max_tokens=tokens, temperature=1.5, eos_token_ids=(EOS,))


async def test_streams_keep_to_their_grammars_and_those_beside_them_are_as_without(folder: Path) -> None:
    async with _running(folder) as client:
        alone, _ = await read_all(client.submit(EngineRequest(PROMPT, FREE, [9])))
        beside = client.submit(EngineRequest(PROMPT, FREE, [9]))
        json_streams = [
            client.submit(EngineRequest(PROMPT, _params(), [seed, seed + 50], grammar=JSON)) for seed in range(4)
        ]
        thinking = client.submit(
            EngineRequest(
                PROMPT,
                _params(),
                [3],
                grammar=f"start: /(.|\\n)*/ <[{UNTHINK}]> /[0-9]{{3}}/",
                thinking=Thinking(6, [], [UNTHINK], True),
            )
        )
        forced = client.submit(EngineRequest(PROMPT, _params(12), [4], thinking=Thinking(3, [], [UNTHINK, 40], True)))
        both = SamplingParams(max_tokens=4, banned_token_ids=(97,), logit_bias=((99, 50.0),), logprobs=2)
        biased = client.submit(EngineRequest(PROMPT, both, [5], grammar="start: /[abc]{4}/"))
        refused = client.submit(EngineRequest(PROMPT, _params(), [6, 7], grammar="start: /a"))
        empty = client.submit(
            EngineRequest(PROMPT, SamplingParams(max_tokens=4, allowed_token_ids=(98,)), [8], grammar="start: /ab/")
        )
        aborted = client.submit(EngineRequest(PROMPT, _params(), [9], grammar=JSON + "\n// another"))
        aborted.abort()

        for stream in json_streams:
            tokens, ends = await read_all(stream)
            for index in (0, 1):
                assert ends[index].reason == "stop"
                jsonschema.validate(json.loads(text_of(tokens[index])), SCHEMA)
        tokens, ends = await read_all(thinking)
        assert ends[0].reason == "stop"
        thought, answer = tokens[0][: tokens[0].index(UNTHINK)], tokens[0][tokens[0].index(UNTHINK) + 1 :]
        assert len(thought) <= 6 + 3, "a character is completed, and no more"
        assert text_of(answer).isdigit()
        tokens, _ = await read_all(forced)
        assert tokens[0][3:5] == [UNTHINK, 40] or UNTHINK in tokens[0][:3]
        tokens, ends = await read_all(biased)
        assert (tokens[0], ends[0].reason) == ([99] * 4, "stop")
        _, ends = await read_all(refused)
        assert {end.reason for end in ends.values()} == {"error"}
        assert "the grammar cannot be used" in (ends[1].message or "")
        tokens, ends = await read_all(empty)
        assert tokens == {}
        assert (ends[0].reason, "no token is left" in (ends[0].message or "")) == ("error", True)
        _, ends = await read_all(aborted)
        assert ends[0].reason == "abort"
        assert (await read_all(beside))[0] == alone


async def test_streams_with_grammars_outlive_the_processes_under_them_token_by_token(folder: Path) -> None:
    thinking = Thinking(20, [], [UNTHINK], True)

    def submit_all(client: EngineClient) -> list[RequestStream]:
        params = SamplingParams(max_tokens=200, temperature=1.0, eos_token_ids=(EOS,))
        thought = f"start: /(.|\\n)*/ <[{UNTHINK}]> list\nlist: {LONG.removeprefix('start: ')}"
        return [
            *(client.submit(EngineRequest(PROMPT, params, [seed, seed + 50], grammar=LONG)) for seed in range(2)),
            client.submit(EngineRequest(PROMPT, params, [7], grammar=thought, thinking=thinking)),
            client.submit(EngineRequest(PROMPT, FREE, [8])),
        ]

    Found = list[tuple[dict[int, list[int]], dict[int, Finished]]]

    async with _running(folder) as client:
        expected: Found = [await read_all(stream) for stream in submit_all(client)]
        for victim in ("worker", "engine"):
            streams = submit_all(client)
            found: Found = []

            async def read(streams: list[RequestStream], found: Found) -> None:
                found.extend([await read_all(stream) for stream in streams])

            with anyio.fail_after(60):
                async with anyio.create_task_group() as readers:
                    readers.start_soon(read, streams, found)
                    while delivered(streams) < 60 and not found:
                        await anyio.sleep(0.001)
                    pid = client.pid if victim == "engine" else worker_of(client)
                    assert pid is not None
                    os.kill(pid, signal.SIGKILL)
            assert [tokens for tokens, _ in found] == [tokens for tokens, _ in expected]
            for (_, ends), (_, wanted) in zip(found, expected, strict=True):
                assert [ends[index].reason for index in ends] == [wanted[index].reason for index in ends]
        assert client.engine_restarts == 1
        for tokens, _ in expected[:2]:
            for each in tokens.values():
                assert len(json.loads(text_of(each))) == 8
