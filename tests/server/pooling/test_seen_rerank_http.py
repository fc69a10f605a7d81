"""Queries and documents with pictures, scored over HTTP by models that read both, beside transformers."""

import asyncio
import base64
import json
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stentor.server.media.processors.model_processor import ModelProcessor
from stentor.tests.server.media.pictures import picture, png
from stentor.tests.server.pooling.real_pooler import Served
from stentor.tests.support.vision_models import qwen3_vl

YES, NO = 121, 110
URL = "data:image/png;base64," + base64.b64encode(png(40, 30)).decode()
JUDGE = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the "
    'answer can only be "yes" or "no".'
)
PICTURE = object()


class Reranker(Served):
    """A tiny model in the files of Qwen3-VL-Reranker, and the same model in transformers."""

    def __init__(self, folder: Path) -> None:
        self._theirs = qwen3_vl(folder)
        (folder / "1_LogitScore").mkdir()
        said = {"true_token_id": YES, "false_token_id": NO}
        (folder / "1_LogitScore/config.json").write_text(json.dumps(said))
        super().__init__(folder, max_model_len=1024)
        self._processor = ModelProcessor(folder)._processor
        self._template = (folder / "chat_template.jinja").read_text()

    @torch.inference_mode()
    def score(self, query: list[Any], document: list[Any], instruction: str = "") -> float:
        """Texts, and :data:`PICTURE`."""
        asked = instruction or "Given a search query, retrieve relevant candidates that answer the query."
        said = [f"<Instruct>: {asked}", "<Query>:", *query, "\n<Document>:", *document]
        content = [
            {"type": "image", "image": picture(40, 30)} if each is PICTURE else {"type": "text", "text": each}
            for each in said
        ]
        given = self._processor.apply_chat_template(
            [{"role": "system", "content": [{"type": "text", "text": JUDGE}]}, {"role": "user", "content": content}],
            chat_template=self._template,
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
            return_tensors="pt",
        )
        logits = self._theirs(**given).logits[0, -1]
        return float((logits[YES] - logits[NO]).sigmoid())


Run = Callable[[Callable[[Reranker], Coroutine[Any, Any, None]]], None]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    served = Reranker(tmp_path_factory.mktemp("reranker"))
    with asyncio.Runner() as runner:
        yield lambda use: runner.run(use(served))
        served.close()


def test_documents_with_pictures_are_ranked_as_transformers_scores_them(run: Run) -> None:
    async def use(served: Reranker) -> None:
        seen = {"type": "image_url", "image_url": {"url": URL}}
        documents = ["a text", {"content": [seen]}, {"text": "and a text", "image": URL}]
        answer = await served.post("/v1/rerank", {"query": "a cat", "documents": documents, "top_n": 3})
        found = {each["index"]: each["relevance_score"] for each in answer["results"]}
        expected = [
            served.score(["a cat"], ["a text"]),
            served.score(["a cat"], [PICTURE]),
            served.score(["a cat"], [PICTURE, "and a text"]),
        ]
        np.testing.assert_allclose([found[place] for place in range(3)], expected, rtol=1e-4)
        scores = [each["relevance_score"] for each in answer["results"]]
        assert scores == sorted(scores, reverse=True)
        echoed = {each["index"]: each["document"] for each in answer["results"]}
        seen = {"type": "image_url", "image_url": {"url": URL}}
        assert echoed == {
            0: {"text": "a text"},
            1: {"multi_modal": [seen]},
            2: {"multi_modal": [seen, {"type": "text", "text": "and a text"}]},
        }
        assert served.state.admission.memory.bytes == 0

    run(use)


def test_a_picture_may_ask_and_an_instruction_take_the_place_of_the_usual_one(run: Run) -> None:
    async def use(served: Reranker) -> None:
        seen = {"content": [{"type": "image_url", "image_url": URL}]}
        body = {"queries": seen, "documents": ["a text", "another"], "instruction": "Find its name."}
        answer = await served.post("/v1/score", body)
        expected = [served.score([PICTURE], [text], "Find its name.") for text in ("a text", "another")]
        np.testing.assert_allclose([each["score"] for each in answer["data"]], expected, rtol=1e-4)
        plain = await served.post("/score", {"text_1": "a cat", "text_2": ""})
        np.testing.assert_allclose(plain["data"][0]["score"], served.score(["a cat"], ["NULL"]), rtol=1e-4)

    run(use)


def test_texts_beside_pictures_are_cut_to_the_tokens_that_are_asked_for(run: Run) -> None:
    async def use(served: Reranker) -> None:
        seen = {"type": "image_url", "image_url": URL}
        content = [
            {"type": "text", "text": "abcd"},
            seen,
            {"type": "text", "text": "efgh"},
            {"type": "text", "text": "i"},
        ]
        body = {"query": "a cat", "documents": [{"content": content}, "abcdefgh"], "max_tokens_per_query": 3}
        answer = await served.post("/v1/rerank", {**body, "max_tokens_per_doc": 6})
        found = {each["index"]: each["relevance_score"] for each in answer["results"]}
        expected = [served.score(["a c"], ["abcd", PICTURE, "ef"]), served.score(["a c"], ["abcdef"])]
        np.testing.assert_allclose([found[place] for place in range(2)], expected, rtol=1e-4)

    run(use)


def test_what_is_too_long_or_cannot_be_read_is_refused(run: Run) -> None:
    async def use(served: Reranker) -> None:
        async with served.client() as client:
            for body, param in (
                ({"query": "a", "documents": ["b " * 600]}, "documents"),
                ({"query": "a", "documents": ["b", {"image": "data:image/png;base64,AAAA"}]}, "documents[1].image"),
                (
                    {"query": "a", "documents": [{"content": [{"type": "audio_url"}]}]},
                    "documents[0].content[0].audio_url",
                ),
            ):
                response = await client.post("/v1/rerank", json=body)
                assert response.status_code == 400, response.text
                assert response.json()["error"]["param"] == param, response.text

    run(use)
