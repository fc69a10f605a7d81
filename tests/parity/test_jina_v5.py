"""Jina's fifth embedders, whose tasks have adapters in PEFT's form, against transformers with these merged in."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import save_file

from stentor.engine.loading.errors import CheckpointError
from stentor.engine.loading.pooling_checkpoint import pooling_config
from stentor.engine.worker.setup.setup import set_up_on
from stentor.protocols.ipc.config import WorkerConfig
from stentor.protocols.ipc.pooling import Pooling
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import NewRow, RowStep, StepPlan
from stentor.server.pooling.purposes import adapter_of
from stentor.tests.parity.test_pooling_decoders import BLOCK, LLM, TEXTS, changed, close, saved

library: Any = transformers  # whose types know no further fields
TASKS = ("classification", "retrieval", "text-matching")
ASKED = ("text-matching", "classification", "", "retrieval")
RANK, ALPHA = 4, 6
ADAPTED = ("q_proj", "k_proj", "o_proj", "up_proj", "down_proj")
BACKBONES: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "small": (lambda: library.Qwen3Model(library.Qwen3Config(**LLM, head_dim=8)), {}),
    "nano": (
        lambda: library.EuroBertModel(library.EuroBertConfig(**LLM, bos_token_id=1, eos_token_id=2)),
        {"is_decoder": False},
    ),
}


def written(name: str, folder: Path) -> dict[str, Any]:
    """By task, the model with its adapter; in ``folder`` the model and the adapters apart."""
    make, said = BACKBONES[name]
    plain = saved(make(), folder)
    changed(folder, architectures=["JinaEmbeddingsV5Model"], model_type="jina_embeddings_v5", **said)
    models = {}
    for task in TASKS:
        place = folder / "adapters" / task
        place.mkdir(parents=True)
        config = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA}
        (place / "adapter_config.json").write_text(json.dumps(config))
        models[task], tensors = copy.deepcopy(plain), {}
        for module, linear in models[task].named_modules():
            if not module.endswith(ADAPTED):
                continue
            down, up = torch.randn(RANK, linear.in_features) * 0.2, torch.randn(linear.out_features, RANK) * 0.2
            tensors[f"base_model.model.{module}.lora_A.weight"] = down
            tensors[f"base_model.model.{module}.lora_B.weight"] = up
            linear.weight.data += ALPHA / RANK * up @ down
        save_file(tensors, place / "adapter_model.safetensors")
    return models


@pytest.mark.parametrize("name", BACKBONES)
@torch.inference_mode()
def test_texts_of_one_batch_have_the_adapters_of_their_tasks(name: str, tmp_path: Path) -> None:
    models = written(name, tmp_path)
    config = WorkerConfig(str(tmp_path), dtype="float32", threads=1, is_pooling=True, block_size=BLOCK)
    runner = set_up_on(config, lambda phase, done, total: None).runner
    texts = [TEXTS[0], TEXTS[2], TEXTS[2], TEXTS[1]]
    new, steps = [], []
    for slot, (text, task) in enumerate(zip(texts, ASKED, strict=True)):
        pooling = Pooling("token_embed", adapter=task)
        new.append(NewRow(slot, text, len(text), SamplingParams(max_tokens=0), 0, [slot], pooling=pooling))
        steps.append(RowStep(slot, 0, len(text), [], False))
    found = {row.slot: row.pooled for row in runner.step(StepPlan(0, 0, [], new, steps)).pooled}
    for slot, (text, task) in enumerate(zip(texts, ASKED, strict=True)):
        hidden = models[task or "retrieval"](input_ids=torch.tensor([text])).last_hidden_state[0]
        rows = np.frombuffer(found[slot].data, "<f4").reshape(len(text), -1)
        close(rows, hidden, 1e-3)


def test_purposes_choose_a_task_or_retrieval(tmp_path: Path) -> None:
    written("small", tmp_path)
    config = pooling_config(tmp_path)
    assert config.adapters == TASKS
    assert [adapter_of(config, each) for each in ("classification", "STS", "query", None)] == [
        "classification",
        "text-matching",
        "",
        "",
    ]


@torch.inference_mode()
def test_a_model_whose_adapter_was_merged_has_none(tmp_path: Path) -> None:
    saved(BACKBONES["small"][0](), tmp_path)
    changed(tmp_path, architectures=["JinaEmbeddingsV5Model"], model_type="jina_embeddings_v5")
    assert pooling_config(tmp_path).adapters == ()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"r": 8}, "differ in r or lora_alpha"),
        ({"rank_pattern": {"q_proj": 8}}, "rank_pattern, alpha_pattern or target_parameters of an adapter is set"),
        ({"use_dora": True}, "use_dora is set: DoRA is not served"),
    ],
)
def test_other_adapters_are_refused(changes: dict[str, Any], says: str, tmp_path: Path) -> None:
    written("small", tmp_path)
    file = tmp_path / "adapters/retrieval/adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    with pytest.raises(CheckpointError, match=says):
        pooling_config(tmp_path)


def test_adapters_without_retrieval_are_refused(tmp_path: Path) -> None:
    written("small", tmp_path)
    (tmp_path / "adapters/retrieval").rename(tmp_path / "adapters/other")
    with pytest.raises(CheckpointError, match="expected retrieval among at most 16"):
        pooling_config(tmp_path)
