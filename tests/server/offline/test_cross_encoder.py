"""A reranker with random weights, from texts to scores: beside transformers' own."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import torch

import stentor
from stentor.engine.loading.download.hub import DEMO_EMBEDDING_MODEL, resolve_model
from stentor.server.offline.fields import RequestRefused
from stentor.server.offline.llm import LLM

QUERY: Final = "what is a cat?"
DOCUMENTS: Final = ("a cat is a small animal", "stocks fell sharply on Tuesday", "", "the sea " * 20)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(7)
    config = BertConfig(
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=64,
        initializer_range=0.5,
    )
    config.num_labels = 1
    path = tmp_path_factory.mktemp("reranker")
    BertForSequenceClassification(config).save_pretrained(path)
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt"):
        shutil.copy(resolve_model(DEMO_EMBEDDING_MODEL) / name, path)
    return path


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with stentor.LLM(str(folder), dtype="float32") as loaded:
        yield loaded


def theirs(folder: Path, *texts: list[str]) -> Any:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    given = tokenizer(*texts, return_tensors="pt", padding=True)
    with torch.inference_mode():
        return model(**given).logits[:, 0].sigmoid().numpy()


def test_pairs_are_scored_as_transformers_scores_them(llm: LLM, folder: Path) -> None:
    found = [each.outputs.score for each in llm.score(QUERY, list(DOCUMENTS))]
    assert np.abs(np.array(found) - theirs(folder, [QUERY] * len(DOCUMENTS), list(DOCUMENTS))).max() < 1e-4
    assert max(found) - min(found) > 0.01, "or it would show nothing"
    swapped = [each.outputs.score for each in llm.score(list(DOCUMENTS), [QUERY] * len(DOCUMENTS))]
    assert np.abs(np.array(swapped) - theirs(folder, list(DOCUMENTS), [QUERY] * len(DOCUMENTS))).max() < 1e-4
    assert abs(swapped[0] - found[0]) > 1e-3, "which of two texts comes first must matter"


def test_one_text_alone_is_classified(llm: LLM, folder: Path) -> None:
    found = [each.outputs.probs[0] for each in llm.classify([QUERY, DOCUMENTS[0]])]
    assert np.abs(np.array(found) - theirs(folder, [QUERY, DOCUMENTS[0]])).max() < 1e-4


def test_what_does_not_fit_the_model_is_refused_or_cut(llm: LLM) -> None:
    with pytest.raises(RequestRefused, match="takes at most 64"):
        llm.score(QUERY, "the sea " * 60)
    (cut,) = llm.score(QUERY, "the sea " * 60, truncate_prompt_tokens=-1)
    assert 0 <= cut.outputs.score <= 1
