"""Encoders and decoders that make vectors and scores give the same when workers split them."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from msgspec.structs import replace

from stentor.engine.loading.pooling_checkpoint import pooling_config
from stentor.engine.model_config.config_fields import ConfigError
from stentor.engine.model_config.spec.model import TaskAdapters
from stentor.engine.model_config.tensor_parallel.cuts import Rank
from stentor.engine.model_config.tensor_parallel.split import split_model
from stentor.engine.worker.errors import SetupError
from stentor.engine.worker.setup.setup import open_family
from stentor.protocols.ipc.config import WorkerConfig
from stentor.protocols.ipc.pooling import Pooling
from stentor.tests.parity.test_pooling_decoders import EMBED, GPT2, LABELS, LLM, SCORE, Rows, pooled, saved
from stentor.tests.parity.test_pooling_models import BERT, DISTIL, MODERN, SEQUENCES

library: Any = transformers  # whose types know no labels
GEMMA: dict[str, Any] = {**LLM, "head_dim": 8, "use_bidirectional_attention": True}
EMBEDDERS: dict[str, Callable[[], Any]] = {
    "bert": lambda: library.BertModel(library.BertConfig(**BERT)),
    "distilbert": lambda: library.DistilBertModel(library.DistilBertConfig(**DISTIL)),
    "mpnet": lambda: library.MPNetModel(library.MPNetConfig(**BERT)),
    "modernbert": lambda: library.ModernBertModel(library.ModernBertConfig(**MODERN)),
    "nomic_bert": lambda: library.NomicBertModel(library.NomicBertConfig(**BERT)),
    "gte": lambda: library.GteModel(library.GteConfig(**BERT)),
    "electra": lambda: library.ElectraModel(library.ElectraConfig(**BERT, embedding_size=16)),
    "eurobert": lambda: library.EuroBertModel(library.EuroBertConfig(**LLM, bos_token_id=1, eos_token_id=2)),
    "lfm2": lambda: library.Lfm2Model(library.Lfm2Config(**LLM, layer_types=["conv", "full_attention"])),
    "gemma": lambda: library.Gemma3TextModel(library.Gemma3TextConfig(**GEMMA)),
    "qwen3": lambda: library.Qwen3Model(library.Qwen3Config(**LLM)),
}
"""Each stores, attends or tells positions in a way of its own."""
SCORERS: dict[str, Callable[[], Any]] = {
    "bert": SEQUENCES["bert"],
    "qwen3": lambda: library.Qwen3ForSequenceClassification(library.Qwen3Config(**LABELS)),
}


def check(folder: Path, pooling: Pooling) -> None:
    expected = pooled(folder, pooling)
    first, second = on_two(folder, pooling)
    for ours, theirs, whole in zip(first, second, expected, strict=True):
        assert abs(whole).max() > 0.05, "values this small would hide a mistake"
        np.testing.assert_allclose(ours, whole, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(ours, theirs)


def on_two(folder: Path, pooling: Pooling) -> list[Rows]:
    """By rank."""
    meeting = os.memfd_create("ranks")
    try:
        with ThreadPoolExecutor(2) as threads:
            run = partial(pooled, folder, pooling, meeting=meeting, tensor_parallel_size=2)
            return list(threads.map(lambda rank: run(rank=rank), range(2)))
    finally:
        os.close(meeting)


@pytest.mark.proof(each="name")
@pytest.mark.parametrize("name", EMBEDDERS)
def test_vectors_of_two_workers_are_those_of_one(name: str, tmp_path: Path) -> None:
    saved(EMBEDDERS[name](), tmp_path)
    check(tmp_path, EMBED if name == "qwen3" else Pooling("embed"))


@pytest.mark.parametrize("name", SCORERS)
def test_scores_of_two_workers_are_those_of_one(name: str, tmp_path: Path) -> None:
    saved(SCORERS[name](), tmp_path)
    check(tmp_path, SCORE if name == "qwen3" else Pooling("classify"))


def test_adapters_of_tasks_are_not_split(tmp_path: Path) -> None:
    saved(EMBEDDERS["bert"](), tmp_path)
    backbone = replace(pooling_config(tmp_path).backbone, adapters=TaskAdapters(("retrieval",), 4, 1.0))
    with pytest.raises(ConfigError, match="BertModel has adapters of its own, which are not split"):
        split_model(backbone, Rank(0, 2))


def test_modules_of_transformers_are_not_split(tmp_path: Path) -> None:
    saved(library.GPT2Model(library.GPT2Config(**GPT2)), tmp_path)
    with pytest.raises(SetupError, match="GPT2Model runs on transformers' modules, which are not split"):
        open_family(WorkerConfig(str(tmp_path), is_pooling=True, tensor_parallel_size=2), "cpu")
