"""Vectors and scores of texts and pictures over HTTP, by models with a tower for each."""

import asyncio
import base64
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import torch
from openai.types import CreateEmbeddingResponse
from transformers import AutoImageProcessor

from stentor.tests.server.media.pictures import picture, png
from stentor.tests.server.pooling.pooler import NAME
from stentor.tests.server.pooling.real_pooler import Served
from stentor.tests.support.two_towers import ids_of, write_towers

URL = "data:image/png;base64," + base64.b64encode(png(40, 30)).decode()
OTHER = "data:image/png;base64," + base64.b64encode(png(20, 30, 1)).decode()
PARTS = [{"type": "image_url", "image_url": {"url": URL}}]
SAID = {"type": "text", "text": "a"}


class Towers(Served):
    def __init__(self, name: str, folder: Path) -> None:
        self._name = name
        self._theirs = write_towers(name, folder)
        super().__init__(folder, max_model_len=None)
        self._images: Any = AutoImageProcessor.from_pretrained(str(folder), backend="pil")

    @torch.inference_mode()
    def text(self, text: str) -> Any:
        found = self._theirs.get_text_features(input_ids=torch.tensor([ids_of(self._name, text)])).pooler_output
        return torch.nn.functional.normalize(found)[0].numpy()

    @torch.inference_mode()
    def picture(self, width: int = 40, height: int = 30, seed: int = 0) -> Any:
        given = self._images(picture(width, height, seed), return_tensors="pt")
        return torch.nn.functional.normalize(self._theirs.get_image_features(**given).pooler_output)[0].numpy()


Run = Callable[[Callable[[Towers], Coroutine[Any, Any, None]]], None]


@pytest.fixture(scope="module", params=["clip", "siglip", "siglip2"])
def run(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    served = Towers(request.param, tmp_path_factory.mktemp(request.param))
    with asyncio.Runner() as runner:
        yield lambda use: runner.run(use(served))
        served.close()


def near(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(np.array(found), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.proof(each="run")
def test_texts_and_pictures_have_the_vectors_of_transformers_in_every_form(run: Run) -> None:
    async def use(served: Towers) -> None:
        async with served.client() as http:
            transport: Any = http
            client = openai.AsyncOpenAI(base_url="http://server/v1", api_key="unused", http_client=transport)
            answer = await client.embeddings.create(model=NAME, input=["a cat", "two"], encoding_format="float")
            near([each.embedding for each in answer.data], [served.text("a cat"), served.text("two")])
            body = {"model": NAME, "messages": [{"role": "user", "content": PARTS}]}
            seen = await client.post("/embeddings", cast_to=CreateEmbeddingResponse, body=body)
            near(seen.data[0].embedding, served.picture())
            body = {"model": NAME, "messages": [{"role": "user", "content": "a cat"}]}
            said = await client.post("/embeddings", cast_to=CreateEmbeddingResponse, body=body)
            near(said.data[0].embedding, served.text("a cat"))
        jina = await served.post("/v1/embeddings", {"input": [{"image": URL}, {"text": "a cat"}]})
        near([each["embedding"] for each in jina["data"]], [served.picture(), served.text("a cat")])
        bare = await served.post("/v1/embeddings", {"input": [{"image": URL.partition(",")[2]}]})
        near(bare["data"][0]["embedding"], served.picture())
        cohere = await served.post("/v2/embed", {"images": [URL], "input_type": "image"})
        near(cohere["embeddings"]["float"][0], served.picture())
        assert cohere["meta"]["billed_units"] == {"input_tokens": 1, "images": 1}
        mixed = {"inputs": [{"content": [{"type": "text", "text": "a cat"}]}, {"content": PARTS}]}
        cohere = await served.post("/v2/embed", {**mixed, "input_type": "search_document"})
        near(cohere["embeddings"]["float"], [served.text("a cat"), served.picture()])
        assert cohere["texts"] == ["a cat"]

    run(use)


def test_pictures_are_ranked_by_a_text(run: Run) -> None:
    async def use(served: Towers) -> None:
        body = {"query": "a cat", "documents": [{"image": URL}, {"content": [{**PARTS[0], "image_url": OTHER}]}, "two"]}
        answer = await served.post("/v1/rerank", body)
        query = served.text("a cat")
        expected = [query @ served.picture(), query @ served.picture(20, 30, 1), query @ served.text("two")]
        found = sorted(answer["results"], key=lambda each: each["index"])
        near([each["relevance_score"] for each in found], expected)
        pictures = [{"multi_modal": [{"type": "image_url", "image_url": url}]} for url in ({"url": URL}, OTHER)]
        assert [each["document"] for each in found] == [*pictures, {"text": "two"}]
        score = await served.post("/v1/score", {"data_1": {"content": PARTS}, "data_2": ["a cat", "two"]})
        near([each["score"] for each in score["data"]], [expected[0], served.picture() @ served.text("two")])
        assert served.state.admission.memory.bytes == 0

    run(use)


@pytest.mark.parametrize(
    ("body", "param", "why"),
    [
        (
            {"messages": [{"role": "user", "content": [*PARTS, {"type": "text", "text": "a"}]}]},
            "messages",
            "of one text",
        ),
        ({"input": [{"image": URL, "text": "a"}]}, "input[0]", "send them apart"),
        ({"input": [{"image": "data:image/png;base64,AAAA"}]}, "input[0].image", "image"),
        ({"input": ["a", {"image": URL}]}, "input[1]", "stands beside texts"),
    ],
)
def test_what_no_tower_takes_is_refused(run: Run, body: dict[str, Any], param: str, why: str) -> None:
    async def use(served: Towers) -> None:
        async with served.client() as client:
            response = await client.post("/v1/embeddings", json=body)
        assert response.status_code == 400, response.text
        error = response.json()["error"]
        assert error["param"] == param, error
        assert why in error["message"]

    run(use)
