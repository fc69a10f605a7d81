"""Weights of the vocabulary: masked-language heads of all kinds, forms of their pooling, and queries that run no model;
against transformers in float32."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file

from stentor.engine.loading.errors import CheckpointError
from stentor.engine.loading.pooling_checkpoint import pooling_config
from stentor.engine.models.pooling_model import PooledTensor
from stentor.tests.parity.test_pooling_decoders import changed
from stentor.tests.parity.test_pooling_models import BERT, MASKED, MODERN, TEXTS, asked, opened, saved

library: Any = transformers  # whose types know no labels
HEADS: dict[str, Callable[[], Any]] = {
    "gte": lambda: library.GteForMaskedLM(library.GteConfig(**BERT)),
    "jina": lambda: library.JinaEmbeddingsV3ForMaskedLM(library.JinaEmbeddingsV3Config(**BERT)),
    "mpnet": lambda: library.MPNetForMaskedLM(library.MPNetConfig(**BERT)),
    "modernbert": lambda: library.ModernBertForMaskedLM(library.ModernBertConfig(**MODERN)),
    "nomic_bert": lambda: library.NomicBertForMaskedLM(library.NomicBertConfig(**BERT)),
    "electra": lambda: library.ElectraForMaskedLM(library.ElectraConfig(**BERT, embedding_size=16)),
    "albert, by transformers": lambda: library.AlbertForMaskedLM(library.AlbertConfig(**BERT, embedding_size=16)),
    "deberta, by transformers": lambda: library.DebertaV2ForMaskedLM(library.DebertaV2Config(**BERT)),
}
FORMS = [("max", "relu"), ("sum", "relu"), ("max", "log1p_relu"), ("sum", "log1p_relu")]
ROUTER: dict[str, Any] = {
    "types": {
        "query_0_SparseStaticEmbedding": "x.sparse_encoder.models.SparseStaticEmbedding",
        "": "x.sparse_encoder.models.MLMTransformer",
        "document_1_SpladePooling": "x.sparse_encoder.models.SpladePooling",
    },
    "structure": {"query": ["query_0_SparseStaticEmbedding"], "document": ["", "document_1_SpladePooling"]},
    "parameters": {"default_route": "document", "allow_empty_key": True},
}


def write_router(folder: Path, weights: torch.Tensor, **changes: Any) -> None:
    """The files of a model whose queries are ``weights`` of their tokens."""
    listed = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Router"}]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "router_config.json").write_text(json.dumps({**ROUTER, **changes}))
    for name, config in (
        ("query_0_SparseStaticEmbedding", {"frozen": False}),
        ("document_1_SpladePooling", {"pooling_strategy": "max", "activation_function": "log1p_relu"}),
    ):
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "config.json").write_text(json.dumps(config))
    save_file({"weight": weights}, folder / "query_0_SparseStaticEmbedding/model.safetensors")


def same(found: PooledTensor, expected: torch.Tensor) -> None:
    """``expected`` are the weights of the whole vocabulary."""
    assert found.ids is not None
    assert found.ids.tolist() == expected.nonzero()[:, 0].tolist()
    torch.testing.assert_close(found.values[0], expected[found.ids], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", HEADS)
@torch.inference_mode()
def test_each_head_weighs_the_vocabulary(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "some-splade"
    theirs, ours = saved(HEADS[name], folder), opened(folder)
    assert ours.tasks[0] == "sparse"
    for text, found in zip(TEXTS, asked(ours, "sparse"), strict=True):
        same(found, theirs(input_ids=torch.tensor([text])).logits[0].relu().log1p().amax(0))


@pytest.mark.parametrize(("pooling", "activation"), FORMS)
@pytest.mark.parametrize("name", ["bert", "albert"])
@torch.inference_mode()
def test_weights_are_pooled_in_the_form_of_the_files(name: str, pooling: str, activation: str, tmp_path: Path) -> None:
    theirs = saved(MASKED[name] if name == "bert" else HEADS["albert, by transformers"], tmp_path)
    kinds = ("sentence_transformers.sparse_encoder.models.MLMTransformer", "x.SpladePooling")
    listed = [
        {"idx": number, "name": str(number), "path": "1_SpladePooling" if number else "", "type": kind}
        for number, kind in enumerate(kinds)
    ]
    (tmp_path / "modules.json").write_text(json.dumps(listed))
    (tmp_path / "1_SpladePooling").mkdir()
    config = {"pooling_strategy": pooling, "activation_function": activation}
    (tmp_path / "1_SpladePooling/config.json").write_text(json.dumps(config))
    for text, found in zip(TEXTS, asked(opened(tmp_path), "sparse"), strict=True):
        weights = theirs(input_ids=torch.tensor([text])).logits[0].relu().log1p()
        weights = weights.log1p() if activation == "log1p_relu" else weights
        same(found, weights.sum(0) if pooling == "sum" else weights.amax(0))


@torch.inference_mode()
def test_queries_may_be_weights_of_their_tokens(tmp_path: Path) -> None:
    theirs = saved(MASKED["bert"], tmp_path)
    weights = torch.rand(130)
    weights[4] = 0.0
    write_router(tmp_path, weights)
    ours = opened(tmp_path)
    for text, query, document in zip(TEXTS, asked(ours, "sparse", adapter="query"), asked(ours, "sparse"), strict=True):
        expected = torch.zeros(130)
        expected[text] = weights[text]
        same(query, expected)
        same(document, theirs(input_ids=torch.tensor([text])).logits[0].relu().log1p().log1p().amax(0))


OTHER_ROUTES: dict[str, tuple[dict[str, Any], str]] = {
    "no static weights": (
        {"structure": {"query": [""], "document": ["", "document_1_SpladePooling"]}},
        "expected query, which is one SparseStaticEmbedding, and document",
    ),
    "a third route": ({"structure": {**ROUTER["structure"], "other": [""]}}, "has the routes document, other, query"),
    "queries by default": ({"parameters": {"default_route": "query"}}, "default_route is 'query', expected 'document'"),
    "vectors of documents": (
        {"structure": {**ROUTER["structure"], "document": [""]}},
        "makes queries of stored weights, and documents without SpladePooling",
    ),
    "a model elsewhere": (
        {
            "types": {**ROUTER["types"], "d": "x.MLMTransformer"},
            "structure": {**ROUTER["structure"], "document": ["d", "document_1_SpladePooling"]},
        },
        "has the document's model in 'd', expected in the folder itself",
    ),
}


@pytest.mark.parametrize("name", OTHER_ROUTES)
def test_other_routes_are_refused(name: str, tmp_path: Path) -> None:
    saved(MASKED["bert"], tmp_path)
    changes, says = OTHER_ROUTES[name]
    write_router(tmp_path, torch.ones(130), **changes)
    with pytest.raises(CheckpointError, match=says):
        pooling_config(tmp_path)


def test_splade_without_a_masked_language_head_is_refused(tmp_path: Path) -> None:
    saved(MASKED["bert"], tmp_path)
    write_router(tmp_path, torch.ones(130))
    changed(tmp_path, architectures=["BertModel"])
    with pytest.raises(CheckpointError, match="architectures does not end with ForMaskedLM"):
        pooling_config(tmp_path)


def test_splade_by_a_decoder_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "splade"
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    saved(lambda: library.EuroBertForMaskedLM(library.EuroBertConfig(**BERT, **special)), folder)
    with pytest.raises(CheckpointError, match="weights of the vocabulary by EuroBertForMaskedLM are not known"):
        pooling_config(folder)
