"""Prepared weights of a model that makes vectors and scores: what a later worker finds of all its parts."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
import transformers
from safetensors.torch import save_file

from stentor.engine.sharing.weight_cache import create_weight_file, read_header, write_header
from stentor.engine.worker.setup import decoder as setup_family
from stentor.engine.worker.setup.setup import set_up
from stentor.protocols.ipc.actors import WorkerReady
from stentor.protocols.ipc.config import WorkerConfig
from stentor.protocols.ipc.pooling import Pooling, PoolingTask
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import NewRow, RowPooled, RowStep, StepPlan
from stentor.tests.engine.worker.test_cached_weights import needs_large_pages

library: Any = transformers  # whose types know no labels

SIZES: dict[str, Any] = {"vocab_size": 130, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
BERT: dict[str, Any] = {**SIZES, "intermediate_size": 48, "max_position_embeddings": 64}
QWEN: dict[str, Any] = {**BERT, "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0}
PROMPT = [5, 9, 60, 7, 11]


@pytest.fixture
def file() -> Iterator[int]:
    fd = create_weight_file()
    yield fd
    os.close(fd)


def saved(make: Callable[[], Any], folder: Path) -> None:
    torch.manual_seed(11)
    model = make().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.2)
    model.save_pretrained(folder)


def bert(folder: Path) -> None:
    saved(lambda: library.BertModel(library.BertConfig(**BERT), add_pooling_layer=False), folder)


def dense(folder: Path) -> None:
    """Behind the pooling there is a module without a bias, in a folder of its own."""
    bert(folder)
    module = {"in_features": 32, "out_features": 8, "bias": False, "activation_function": "torch.nn.Tanh"}
    (folder / "2_Dense").mkdir()
    (folder / "2_Dense/config.json").write_text(json.dumps(module))
    save_file({"linear.weight": torch.randn(8, 32)}, folder / "2_Dense/model.safetensors")
    parts = (("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Dense", "Dense"))
    listed = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in parts]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text(json.dumps({"pooling_mode": "cls"}))


def bge_m3(folder: Path) -> None:
    config = library.XLMRobertaConfig(**BERT, type_vocab_size=1, pad_token_id=1)
    saved(lambda: library.XLMRobertaModel(config, add_pooling_layer=False), folder)
    torch.save(torch.nn.Linear(32, 1).state_dict(), folder / "sparse_linear.pt")
    torch.save(torch.nn.Linear(32, 32).state_dict(), folder / "colbert_linear.pt")


def yes_or_no(folder: Path) -> None:
    saved(lambda: library.Qwen3ForCausalLM(library.Qwen3Config(**QWEN, tie_word_embeddings=False)), folder)
    (folder / "1_LogitScore").mkdir()
    (folder / "1_LogitScore/config.json").write_text('{"true_token_id": 17, "false_token_id": 4}')


def scored(make: Callable[[], Any]) -> Callable[[Path], None]:
    return lambda folder: saved(make, folder)


def splade(folder: Path) -> None:
    saved(lambda: library.BertForMaskedLM(library.BertConfig(**BERT)), folder)


MODERN = {"local_attention": 16, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1}
MODELS: dict[str, tuple[Callable[[Path], None], tuple[PoolingTask, ...]]] = {
    "bert": (bert, ("embed", "token_embed")),
    "dense": (dense, ("embed",)),
    "modernbert, whose layers have no biases": (
        scored(lambda: library.ModernBertForSequenceClassification(library.ModernBertConfig(**BERT, **MODERN))),
        ("classify", "embed"),
    ),
    "splade": (splade, ("sparse",)),
    "bge-m3": (bge_m3, ("embed", "sparse", "token_embed")),
    "yes or no": (yes_or_no, ("classify", "embed")),
}


class _Started:
    """A worker's set-up, and what it reported meanwhile."""

    def __init__(self, folder: Path, fd: int | None, **options: Any) -> None:
        self.phases: list[str] = []
        given: dict[str, Any] = {"device": "cpu", "dtype": "float32", "threads": 1, "is_pooling": True, **options}
        config = WorkerConfig(str(folder), **given)
        setup = set_up(config, lambda phase, _done, _total: self.phases.append(phase), fd)
        self._runner = setup.runner
        self.ready: WorkerReady = setup.ready

    @property
    def loaded(self) -> bool:
        return "loading weights" in self.phases

    def made(self, tasks: tuple[PoolingTask, ...]) -> list[RowPooled]:
        found = []
        for number, task in enumerate(tasks):
            row = NewRow(0, PROMPT, len(PROMPT), SamplingParams(max_tokens=0), 0, [0], pooling=Pooling(task))
            plan = StepPlan(0, number, [], [row], [RowStep(0, 0, len(PROMPT), [], False)])
            found += self._runner.step(plan).pooled
            self._runner.release([0])
        assert len(found) == len(tasks)
        return found


def _settled(ready: WorkerReady) -> WorkerReady:
    """Without what each worker measures for itself."""
    return msgspec.structs.replace(ready, memory=[], notes=[])


@pytest.mark.proof(each="name")
@needs_large_pages
@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, "float32") for name in MODELS), ("bert", "bfloat16"), ("splade", "bfloat16")]
)
def test_a_later_worker_finds_the_weights_and_computes_bitwise_the_same(
    name: str, dtype: str, file: int, tmp_path: Path
) -> None:
    write, tasks = MODELS[name]
    folder = tmp_path / "a-splade-or-another"
    write(folder)
    alone = _Started(folder, None, dtype=dtype)
    first = _Started(folder, file, dtype=dtype)
    assert alone.loaded
    assert first.loaded
    expected = alone.made(tasks)
    assert first.made(tasks) == expected
    for _ in range(2):
        later = _Started(folder, file, dtype=dtype)
        assert not later.loaded
        assert later.made(tasks) == expected
        assert later.ready.memory[0] == first.ready.memory[0]
        assert _settled(later.ready) == _settled(first.ready)


@needs_large_pages
def test_what_was_made_for_something_else_is_not_taken(file: int, tmp_path: Path) -> None:
    dense(tmp_path)
    expected = _Started(tmp_path, file).made(("embed",))
    assert not _Started(tmp_path, file).loaded
    save_file({"linear.weight": torch.randn(8, 32)}, tmp_path / "2_Dense/model.safetensors")
    other = _Started(tmp_path, file)
    assert other.loaded, "the file of a module counts, too"
    assert other.made(("embed",)) != expected
    assert not _Started(tmp_path, file).loaded
    assert _Started(tmp_path, file, dtype="bfloat16").loaded
    assert _Started(tmp_path, file, pooler="mean").loaded


@needs_large_pages
def test_weights_that_lie_otherwise_than_the_model_expects_are_loaded_again(file: int, tmp_path: Path) -> None:
    bert(tmp_path)
    expected = _Started(tmp_path, file).made(("embed",))
    header = read_header(file)
    assert header is not None
    write_header(file, msgspec.structs.replace(header, layout="of another version"))
    for loaded in (True, False):
        started = _Started(tmp_path, file)
        assert started.loaded is loaded
        assert started.made(("embed",)) == expected


@needs_large_pages
def test_a_later_worker_has_the_cache_that_the_first_one_settled(
    file: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    yes_or_no(tmp_path)
    monkeypatch.setattr(setup_family, "default_kv_bytes", lambda _weights, _share: 1 << 17)
    first = _Started(tmp_path, file)
    monkeypatch.setattr(setup_family, "default_kv_bytes", lambda _weights, _share: 1 << 16)
    assert _Started(tmp_path, file).ready.num_blocks == first.ready.num_blocks
    assert _Started(tmp_path, None).ready.num_blocks == first.ready.num_blocks // 2
