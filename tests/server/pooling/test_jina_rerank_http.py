"""Texts and pictures ranked over HTTP by a model as jina-reranker-m0 is stored, beside transformers' Qwen2-VL."""

import asyncio
import base64
import json
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from stentor.server.media.processors.model_processor import ModelProcessor
from stentor.tests.server.media.pictures import picture, png
from stentor.tests.server.pooling.real_pooler import Served
from stentor.tests.support.vision_models import qwen2_vl

PICTURE = "<|vision_start|><|image_pad|><|vision_end|>"
SEEN = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(png(40, 30)).decode()}}
END, SHIFT = 100, 2.65


class Reranker(Served):
    """A head of two layers behind the last token, as its makers' code has it."""

    def __init__(self, folder: Path) -> None:
        self._theirs = qwen2_vl(folder)
        width = self._theirs.config.text_config.hidden_size
        torch.manual_seed(3)
        self._head = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, 1))
        tensors = load_file(folder / "model.safetensors")
        tensors.pop("lm_head.weight", None)
        tensors |= {f"score.{name}": each.detach() for name, each in self._head.state_dict().items()}
        save_file(tensors, folder / "model.safetensors")
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "architectures": ["JinaVLForRanking"]}))
        super().__init__(folder, max_model_len=1024)
        self._processor = ModelProcessor(folder)._processor

    @torch.inference_mode()
    def logit(self, query: str, document: str) -> float:
        """Of texts, and of :data:`PICTURE`."""
        text = f"**Document**:\n{document}\n**Query**:\n{query}"
        pictures = [picture(40, 30)] * text.count(PICTURE)
        given = dict(self._processor(text=[text], images=pictures or None, return_tensors="pt"))
        for name, value in (("input_ids", END), ("attention_mask", 1), ("mm_token_type_ids", 0)):
            if name in given:
                given[name] = torch.cat([given[name], torch.full((1, 1), value)], dim=1)
        hidden = self._theirs.model(**given).last_hidden_state[0, -1]
        return float(self._head(hidden)) - SHIFT


Run = Callable[[Callable[[Reranker], Coroutine[Any, Any, None]]], None]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    served = Reranker(tmp_path_factory.mktemp("jina"))
    with asyncio.Runner() as runner:
        yield lambda use: runner.run(use(served))
        served.close()


def sigmoid(logits: list[float]) -> list[float]:
    found: list[float] = torch.tensor(logits).sigmoid().tolist()
    return found


def test_texts_and_pictures_are_ranked_as_its_makers_score_them(run: Run) -> None:
    async def use(served: Reranker) -> None:
        documents = ["a text", {"content": [SEEN]}, "another text, which is longer"]
        answer = await served.post("/v1/rerank", {"query": "a cat", "documents": documents})
        found = {each["index"]: each["relevance_score"] for each in answer["results"]}
        texts = ("a text", PICTURE, "another text, which is longer")
        expected = sigmoid([served.logit("a cat", text) for text in texts])
        assert len(set(np.round(expected, 4))) == 3
        np.testing.assert_allclose([found[place] for place in range(3)], expected, rtol=1e-4)

    run(use)


def test_a_picture_may_ask_for_texts_and_for_pictures(run: Run) -> None:
    async def use(served: Reranker) -> None:
        body = {"queries": {"content": [SEEN]}, "documents": ["a text", {"content": [SEEN]}]}
        answer = await served.post("/v1/score", body)
        expected = sigmoid([served.logit(PICTURE, "a text"), served.logit(PICTURE, PICTURE)])
        np.testing.assert_allclose([each["score"] for each in answer["data"]], expected, rtol=1e-4)

    run(use)


def test_texts_alone_are_scored_without_a_chat_template(run: Run) -> None:
    async def use(served: Reranker) -> None:
        answer = await served.post("/score", {"text_1": "a cat", "text_2": ["a text", ""]})
        expected = sigmoid([served.logit("a cat", "a text"), served.logit("a cat", "")])
        np.testing.assert_allclose([each["score"] for each in answer["data"]], expected, rtol=1e-4)

    run(use)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"query": "a", "documents": ["b " * 600]}, "documents"),
        ({"query": "a", "documents": [{"content": [SEEN, {"type": "text", "text": "and words"}]}]}, "documents"),
        ({"query": "a", "documents": [{"content": [SEEN, SEEN]}]}, "documents"),
        ({"query": "<|image_pad|>", "documents": [{"content": [SEEN]}]}, "documents"),
        ({"query": "a", "documents": ["b"], "instruction": "Find it."}, "instruction"),
    ],
)
def test_what_it_cannot_read_is_refused_by_its_name(run: Run, body: dict[str, Any], param: str) -> None:
    async def use(served: Reranker) -> None:
        async with served.client() as client:
            response = await client.post("/v1/rerank" if "query" in body else "/v1/score", json=body)
            assert (response.status_code, response.json()["error"]["param"]) == (400, param), response.text

    run(use)
