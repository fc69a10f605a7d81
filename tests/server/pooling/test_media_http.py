"""Vectors of conversations with pictures over HTTP, beside transformers."""

import asyncio
import base64
import json
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import torch
from openai.types import CreateEmbeddingResponse

from stentor.server.media.processors.model_processor import ModelProcessor
from stentor.tests.server.media.pictures import picture, png
from stentor.tests.server.pooling.pooler import NAME
from stentor.tests.server.pooling.real_pooler import Served
from stentor.tests.support.vision_models import qwen3_vl

SIZES = {"small": (40, 30), "wide": (64, 20)}
SOUND = {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}
BROKEN = {"type": "image_url", "image_url": {"url": "data:,no"}}
REPRESENT = {"role": "system", "content": [{"type": "text", "text": "Represent the user's input."}]}


class Embedder(Served):
    """With its like in transformers."""

    def __init__(self, folder: Path) -> None:
        self.theirs = qwen3_vl(folder)
        (folder / "config_sentence_transformers.json").write_text('{"prompts": {}}')
        described = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**described, "is_matryoshka": True}))
        super().__init__(folder)
        self.processor = ModelProcessor(folder)._processor
        self.template = (folder / "chat_template.jinja").read_text()

    @torch.inference_mode()
    def vector(self, *messages: tuple[str, list[str]], generation: bool = False) -> Any:
        """Of the last token, normalised; names of :data:`SIZES` are pictures."""
        conversation = [{"role": role, "content": [theirs_of(text) for text in texts]} for role, texts in messages]
        given = self.processor.apply_chat_template(
            conversation,
            chat_template=self.template,
            add_generation_prompt=generation,
            tokenize=True,
            return_dict=True,
            return_tensors="pt",
        )
        last = self.theirs.model(**given).last_hidden_state[0, -1]
        return (last / last.norm()).numpy()


def theirs_of(text: str) -> dict[str, Any]:
    return {"type": "image", "image": picture(*SIZES[text])} if text in SIZES else {"type": "text", "text": text}


def url_of(name: str) -> str:
    return "data:image/png;base64," + base64.b64encode(png(*SIZES[name])).decode()


def part(text: str) -> dict[str, Any]:
    if text in SIZES:
        return {"type": "image_url", "image_url": {"url": url_of(text)}}
    return {"type": "text", "text": text}


def user(*texts: str) -> dict[str, Any]:
    return {"role": "user", "content": [part(text) for text in texts]}


Run = Callable[[Callable[[Embedder], Coroutine[Any, Any, None]]], None]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Runs what is done with a server, whose media process stays alive from test to test."""
    served = Embedder(tmp_path_factory.mktemp("qwen3_vl"))
    with asyncio.Runner() as runner:
        yield lambda use: runner.run(use(served))
        served.close()


def near(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(np.array(found), expected, rtol=1e-4, atol=1e-4)


def test_a_conversation_with_pictures_has_the_vector_of_transformers_through_the_sdk(run: Run) -> None:
    async def use(served: Embedder) -> None:
        async with served.client() as http:
            transport: Any = http
            client = openai.AsyncOpenAI(base_url="http://server/v1", api_key="unused", http_client=transport)
            body: dict[str, Any] = {"model": NAME, "messages": [REPRESENT, user("small", "what is this?", "wide")]}
            answer = await client.post("/embeddings", cast_to=CreateEmbeddingResponse, body=body)
            asked = ("user", ["small", "what is this?", "wide"])
            near(answer.data[0].embedding, served.vector(("system", ["Represent the user's input."]), asked))
            assert answer.usage.prompt_tokens == len(served.pooler.prompts[-1])
            again = await client.post("/embeddings", cast_to=CreateEmbeddingResponse, body=body)
            assert again.data == answer.data
            body["dimensions"] = 16
            short = (await client.post("/embeddings", cast_to=CreateEmbeddingResponse, body=body)).data[0].embedding
            first = np.array(answer.data[0].embedding[:16])
            near(short, first / np.linalg.norm(first))

    run(use)


def test_an_answer_that_is_to_go_on_is_where_vllm_takes_the_vector(run: Run) -> None:
    async def use(served: Embedder) -> None:
        begun = {"role": "assistant", "content": [{"type": "text", "text": ""}]}
        body = {"messages": [user("small"), begun], "continue_final_message": True, "add_special_tokens": True}
        answer = await served.post("/v1/embeddings", body)
        near(answer["data"][0]["embedding"], served.vector(("user", ["small"]), generation=True))
        other = await served.post("/v1/embeddings", {"messages": [user("small")], "add_generation_prompt": True})
        assert other["data"] == answer["data"]

    run(use)


def test_more_conversations_than_are_read_at_a_time_have_a_vector_each(run: Run) -> None:
    async def use(served: Embedder) -> None:
        texts = [["small", f"page {number}"] if number % 2 else [f"page {number}"] for number in range(11)]
        answer = await served.post("/v1/embeddings", {"messages": [[user(*each)] for each in texts]})
        for each, found in zip(texts, answer["data"], strict=True):
            near(found["embedding"], served.vector(("user", each)))
        assert served.state.admission.memory.bytes == 0, "what was held for them is given back"
        assert served.pooler.engine.shelf.store.arena.used == 0

    run(use)


def test_token_vectors_and_documents_come_by_the_same_way(run: Run) -> None:
    async def use(served: Embedder) -> None:
        answer = await served.post("/pooling", {"task": "token_embed", "messages": [user("small")]})
        assert len(answer["data"][0]["data"]) == len(served.pooler.prompts[-1])
        text = base64.b64encode(b"a text in a file").decode()
        file = {"type": "file", "file": {"file_data": text, "filename": "a.txt"}}
        answer = await served.post("/v1/embeddings", {"messages": [{"role": "user", "content": [file]}]})
        near(answer["data"][0]["embedding"], served.vector(("user", ["a.txt\n\na text in a file"])))

    run(use)


@pytest.mark.parametrize(
    ("body", "param", "why"),
    [
        (
            {"messages": [[user("a")], [user("small", "<|image_pad|>")]]},
            "messages[1][0].content[1]",
            "stands for media",
        ),
        ({"messages": [{"role": "user", "content": [SOUND]}]}, "messages[0].content[0]", "takes no audio"),
        ({"messages": [user("small")], "truncate_prompt_tokens": 8}, "truncate_prompt_tokens", "cuts through an image"),
        ({"messages": [user("small")], "mm_processor_kwargs": {"a": 1}}, "mm_processor_kwargs.a", "is not taken"),
        ({"messages": [{"role": "user", "content": [BROKEN]}]}, "messages[0].content[0].image_url.url", "image"),
    ],
)
def test_what_cannot_be_seen_is_refused_where_it_stands(run: Run, body: dict[str, Any], param: str, why: str) -> None:
    async def use(served: Embedder) -> None:
        async with served.client() as client:
            response = await client.post("/v1/embeddings", json=body)
        assert response.status_code == 400, response.text
        error = response.json()["error"]
        assert error["param"] == param, error
        assert why in error["message"]
        assert served.state.admission.memory.bytes == 0

    run(use)
