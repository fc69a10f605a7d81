"""Vectors and scores from real engine and worker processes, over tiny random models, against transformers."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import numpy.typing as npt
import pytest
import torch
import transformers

from stentor.engine.client.client import EngineClient
from stentor.engine.client.request import EngineRequest
from stentor.engine.sharing.weight_cache import create_weight_file
from stentor.protocols.ipc.actors import Finished, PromptDone
from stentor.protocols.ipc.config import EngineConfig, WorkerConfig
from stentor.protocols.ipc.pooling import Pooled, Pooling
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.tests.engine.forked import client_of, told_of_losses, worker_of
from stentor.tests.engine.worker.test_cached_weights import needs_large_pages

pytestmark = pytest.mark.anyio

Matrix = npt.NDArray[np.float32]

library: Any = transformers  # whose types know no labels

SIZES: dict[str, Any] = {"vocab_size": 200, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
QWEN: dict[str, Any] = {
    **SIZES,
    "intermediate_size": 48,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "tie_word_embeddings": True,
    "pad_token_id": 0,
}
BERT: dict[str, Any] = {**SIZES, "intermediate_size": 48, "max_position_embeddings": 128}
LAST = Pooling("embed", last=True)


def saved(make: Callable[[], Any], folder: Path) -> Any:
    torch.manual_seed(5)
    model = make().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.3)
    model.save_pretrained(folder)
    return model


def qwen3(folder: Path) -> Any:
    return saved(lambda: library.Qwen3ForCausalLM(library.Qwen3Config(**QWEN)), folder)


@asynccontextmanager
async def serving(folder: Path, **options: Any) -> AsyncIterator[EngineClient]:
    config: dict[str, Any] = {"dtype": "float32", "threads": 1, "is_pooling": True, **options}
    client = client_of(EngineConfig(WorkerConfig(str(folder), **config)))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(client.run)
        await client.wait_started()
        yield client
        tasks.cancel_scope.cancel()


async def answer(client: EngineClient, prompt: list[int], pooling: Pooling) -> tuple[PromptDone | None, Finished]:
    done: PromptDone | None = None
    async for events in client.submit(EngineRequest(prompt, SamplingParams(max_tokens=0), [0], pooling=pooling)):
        for event in events:
            if isinstance(event, PromptDone):
                done = event
            elif isinstance(event, Finished):
                return done, event
    raise AssertionError("a stream ended without a terminal message")


def matrix(pooled: Pooled | None) -> Matrix:
    assert pooled is not None
    return np.frombuffer(pooled.data, "<f4").reshape(pooled.rows, pooled.columns)


async def made(client: EngineClient, prompt: list[int], pooling: Pooling) -> Matrix:
    done, end = await answer(client, prompt, pooling)
    assert end.reason != "error", end.message
    assert done is not None
    return matrix(done.pooled)


def prompts(*lengths: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(9)
    return [torch.randint(1, 200, (length,), generator=generator).tolist() for length in lengths]


def unit(vector: torch.Tensor) -> Matrix:
    found: Matrix = (vector / vector.norm()).numpy()
    return found


async def test_a_decoder_embeds_by_its_last_token_in_chunks_and_from_the_prefix_cache(tmp_path: Path) -> None:
    theirs = qwen3(tmp_path)
    texts = prompts(150, 3, 40, 97)

    def hidden(text: list[int]) -> torch.Tensor:
        with torch.inference_mode():
            found: torch.Tensor = theirs.model(input_ids=torch.tensor([text])).last_hidden_state[0]
        return found

    async with serving(tmp_path, max_num_batched_tokens=64, max_prefill_chunk=32, block_size=16) as client:
        found = await asyncio.gather(*[made(client, text, LAST) for text in texts])
        for text, vector in zip(texts, found, strict=True):
            np.testing.assert_allclose(vector[0], unit(hidden(text)[-1]), atol=2e-5)
        again, _ = await answer(client, [*texts[0][:-1], 7], LAST)
        assert again is not None
        assert again.cached_tokens == 149, "what is known of a prompt need not be computed again"
        np.testing.assert_allclose(matrix(again.pooled)[0], unit(hidden([*texts[0][:-1], 7])[-1]), atol=2e-5)
        each, _ = await answer(client, texts[0], Pooling("token_embed"))
        assert each is not None
        assert each.cached_tokens == 0, "hidden states that are wanted must be computed"
        np.testing.assert_allclose(matrix(each.pooled), hidden(texts[0]).numpy(), atol=1e-4, rtol=1e-4)


async def test_a_reranker_scores_by_yes_and_no(tmp_path: Path) -> None:
    folder = tmp_path / "reranker"
    theirs = qwen3(folder)
    module = folder / "1_LogitScore"
    module.mkdir()
    (module / "config.json").write_text('{"true_token_id": 17, "false_token_id": 4}')
    texts = prompts(12, 60)
    async with serving(folder) as client:
        for text in texts:
            score = await made(client, text, Pooling("classify", last=True))
            with torch.inference_mode():
                logits = theirs(input_ids=torch.tensor([text])).logits[0, -1]
            expected = logits[[17, 4]].softmax(0)[0]
            np.testing.assert_allclose(score, [[float(expected)]], atol=1e-5)


async def test_a_decoder_classifies(tmp_path: Path) -> None:
    theirs = saved(lambda: library.Qwen3ForSequenceClassification(library.Qwen3Config(**QWEN, num_labels=3)), tmp_path)
    texts = prompts(12, 60)
    async with serving(tmp_path) as client:
        for text in texts:
            logits = await made(client, text, Pooling("classify", last=True, activate=False))
            with torch.inference_mode():
                expected = theirs(input_ids=torch.tensor([text])).logits
            np.testing.assert_allclose(logits, expected.numpy(), atol=1e-4, rtol=1e-4)


@needs_large_pages
async def test_a_worker_that_follows_one_that_was_killed_does_not_read_the_files_again(tmp_path: Path) -> None:
    saved(lambda: library.BertModel(library.BertConfig(**BERT), add_pooling_layer=False), tmp_path)
    (text,) = prompts(30)
    weights = create_weight_file()
    config = EngineConfig(WorkerConfig(str(tmp_path), dtype="float32", threads=1, is_pooling=True))
    client = client_of(config, [weights])
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.run)
            await client.wait_started()
            before = await made(client, text, Pooling("embed"))
            _forget_values(tmp_path / "model.safetensors")
            victim = worker_of(client)
            assert victim is not None
            os.kill(victim, signal.SIGKILL)
            np.testing.assert_array_equal(await made(client, text, Pooling("embed")), before)
            assert worker_of(client) not in (victim, None)
            tasks.cancel_scope.cancel()
    finally:
        os.close(weights)


def _forget_values(file: Path) -> None:
    """All weights become 0, and the file looks as it did."""
    was = file.stat()
    with file.open("r+b") as stored:
        start = 8 + int.from_bytes(stored.read(8), "little")
        stored.seek(start)
        stored.write(bytes(was.st_size - start))
    os.utime(file, ns=(was.st_atime_ns, was.st_mtime_ns))


@pytest.mark.parametrize(
    ("make", "notes"),
    [
        (lambda: library.BertModel(library.BertConfig(**BERT), add_pooling_layer=False), 0),
        # imports transformers twice
        pytest.param(lambda: library.DebertaModel(library.DebertaConfig(**BERT)), 1, marks=pytest.mark.proof),
    ],
    ids=["native", "by transformers"],
)
async def test_an_encoder_goes_on_after_its_worker_was_killed_and_says_what_it_cannot_do(
    make: Callable[[], Any], notes: int, tmp_path: Path
) -> None:
    theirs = saved(make, tmp_path)
    texts = prompts(*(1 + 7 * number % 128 for number in range(60 if notes else 300)))
    async with serving(tmp_path) as client:
        asked = [asyncio.create_task(made(client, text, Pooling("embed"))) for text in texts]
        await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        victim = worker_of(client)
        assert victim is not None
        os.kill(victim, signal.SIGKILL)
        found = await asyncio.gather(*asked)
        await told_of_losses(client, workers=1)
        for text, vector in zip(texts[::5], found[::5], strict=True):
            with torch.inference_mode():
                expected = theirs(input_ids=torch.tensor([text])).last_hidden_state[0].mean(0)
            np.testing.assert_allclose(vector[0], unit(expected), atol=1e-5)
        done, end = await answer(client, [5] * 200, Pooling("embed"))
        assert done is None
        assert end.message is not None
        assert "the model's context is 128" in end.message
        stream = client.submit(EngineRequest([5], SamplingParams(max_tokens=3), [0]))
        ends = [event async for events in stream for event in events]
        assert isinstance(ends[0], Finished)
        assert ends[0].message == "the model makes vectors and scores: it draws no tokens"
        assert client.ready is not None
        assert sum("runs on transformers' modelling code" in note for note in client.ready.notes) == notes


async def test_a_decoder_that_looks_both_ways_takes_nothing_from_the_prefix_cache(tmp_path: Path) -> None:
    config = transformers.Gemma3TextConfig(
        **{**QWEN, "query_pre_attn_scalar": 8, "num_hidden_layers": 3},
        sliding_window=16,
        use_bidirectional_attention=True,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    )
    theirs = saved(lambda: transformers.Gemma3TextModel(config), tmp_path)
    (first,) = prompts(100)
    texts = [first, [*first[:-1], 7], first[:90], first]
    async with serving(tmp_path, max_num_batched_tokens=64, block_size=16, pooler="lasttoken") as client:
        for text in texts:
            done, _ = await answer(client, text, LAST)
            assert done is not None
            assert done.cached_tokens == 0
            with torch.inference_mode():
                last = theirs(input_ids=torch.tensor([text])).last_hidden_state[0, -1]
            np.testing.assert_allclose(matrix(done.pooled)[0], unit(last), atol=2e-5)
