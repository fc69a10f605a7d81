"""Queries without inference over HTTP: their weights are stored ones of their tokens, documents run the model."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from stentor.tests.parity.test_pooling_decoders import saved
from stentor.tests.parity.test_pooling_models import BERT
from stentor.tests.parity.test_splade import write_router
from stentor.tests.server.pooling.real_pooler import Served
from stentor.tests.server.pooling.test_listwise_http import Run, running, write_tokenizer

library: Any = transformers  # whose types know no further fields
QUERY, DOCUMENTS = "a cat", ["a cat sleeps", "rain"]


class Sparse(Served):
    def __init__(self, folder: Path) -> None:
        self.tokenizer = write_tokenizer(folder, ["[CLS]"], "[CLS]")
        vocabulary = self.tokenizer.get_vocab_size()
        config = library.BertConfig(**{**BERT, "vocab_size": vocabulary})
        self.theirs = saved(library.BertForMaskedLM(config), folder)
        self.stored = torch.rand(vocabulary)
        write_router(folder, self.stored)
        super().__init__(folder, max_model_len=64)

    def query(self, text: str) -> torch.Tensor:
        """The weights of the whole vocabulary."""
        weights = torch.zeros_like(self.stored)
        ids = self.tokenizer.encode(text, add_special_tokens=False).ids
        weights[ids] = self.stored[ids]
        return weights

    @torch.inference_mode()
    def document(self, text: str) -> torch.Tensor:
        ids = torch.tensor([self.tokenizer.encode(text).ids])
        weights: torch.Tensor = self.theirs(input_ids=ids).logits[0].relu().log1p().log1p().amax(0)
        return weights


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    yield from running(Sparse(tmp_path_factory.mktemp("sparse")))


def test_a_query_is_scored_by_its_stored_weights(run: Run) -> None:
    async def use(served: Sparse) -> None:
        answer = await served.post("/score", {"queries": QUERY, "documents": DOCUMENTS})
        expected = [float(served.query(QUERY) @ served.document(text)) for text in DOCUMENTS]
        np.testing.assert_allclose([each["score"] for each in answer["data"]], expected, rtol=1e-4)

    run(use)


@pytest.mark.parametrize("prompt", [None, "query", "document"])
def test_a_prompt_name_says_which_a_text_is(prompt: str | None, run: Run) -> None:
    async def use(served: Sparse) -> None:
        named = {} if prompt is None else {"prompt_name": prompt}
        expected = served.query(QUERY) if prompt == "query" else served.document(QUERY)
        answer = await served.post("/pooling", {"task": "sparse", "input": QUERY, **named})
        found = torch.zeros_like(expected)
        for token, weight in answer["data"][0]["data"].items():
            found[int(token)] = weight
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        ((*weights,),) = await served.post("/embed_sparse", {"inputs": QUERY, **named})
        assert {each["index"] for each in weights} == {*expected.nonzero()[:, 0].tolist()}

    run(use)
