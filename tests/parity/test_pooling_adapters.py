"""Vectors and scores of rows with adapters are those of merged weights, whatever shares their batch."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from stentor.engine.models.encoder_names import parts_of
from stentor.engine.worker.errors import SetupError
from stentor.engine.worker.setup.setup import set_up
from stentor.protocols.ipc.adapters import AdapterRef
from stentor.protocols.ipc.pooling import Pooling
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.tests.engine.local import LocalEngine, model_config
from stentor.tests.parity.test_encoders import BERT, MODELS
from stentor.tests.parity.test_jina_tasks import Stored
from stentor.tests.parity.test_pooling_decoders import EMBEDDERS, HALF, SCORERS, TEXTS, saved
from stentor.tests.parity.tiny_adapters import ALL, merged, save_adapter

library: Any = transformers  # whose types know no labels

BACKBONES: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    "a decoder": (EMBEDDERS["Qwen3-Embedding without prefix"][1], ALL),
    "a decoder both ways": (HALF["both ways"], ALL),
    "bert": (MODELS["bert"], ("query", "value", "dense")),
    "modernbert": (MODELS["modernbert"], ("Wqkv", "Wi", "Wo")),
    "gte": (MODELS["gte"], ALL),
}
CLASSIFIERS: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    "bert": (
        lambda: library.BertForSequenceClassification(library.BertConfig(**BERT, num_labels=3)),
        ("query", "key"),
    ),
    "a decoder": (SCORERS["Qwen3"], ALL),
}


def pooled(folder: Path, pooling: Pooling, adapters: Sequence[AdapterRef | None]) -> list[torch.Tensor]:
    """Of each text with each adapter, or none, all together; for the second time, when prefixes may be cached."""
    config = model_config(folder, is_pooling=True, enable_lora=True, max_lora_rank=2, kv_cache_memory=1 << 20)
    engine = LocalEngine(config)
    asked: list[int] = []
    for _ in range(2):
        asked = [
            engine.submit(text, SamplingParams(max_tokens=0), pooling=pooling, adapter=adapter)
            for text in TEXTS
            for adapter in adapters
        ]
        engine.run(check=True)
    made = [engine.prompts[rid].pooled for rid in asked]
    return [torch.from_numpy(np.frombuffer(each.data, "<f4").reshape(each.rows, -1).copy()) for each in made if each]


@pytest.mark.parametrize("name", BACKBONES)
@torch.inference_mode()
def test_hidden_states_with_adapters_are_those_of_merged_weights(name: str, tmp_path: Path) -> None:
    make, targets = BACKBONES[name]
    model = saved(make(), tmp_path)
    models: list[Any] = [model]
    refs: list[AdapterRef | None] = [None]
    for number in (1, 2):
        folder = tmp_path / str(number)
        models.append(
            merged(model, save_adapter(model, folder, number, targets=targets[-number:], rank=number, size=0.5))
        )
        refs.append(AdapterRef(number, str(number), str(folder)))
    found = pooled(tmp_path, Pooling("token_embed"), refs)
    wanted = [each(input_ids=torch.tensor([text])).last_hidden_state[0] for text in TEXTS for each in models]
    assert (wanted[0] - wanted[1]).abs().max() > 0.01, "an adapter that changes nothing would hide a mistake"
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", CLASSIFIERS)
@torch.inference_mode()
def test_scores_with_adapters_are_those_of_merged_weights(name: str, tmp_path: Path) -> None:
    make, targets = CLASSIFIERS[name]
    model = saved(make(), tmp_path)
    other = merged(model, save_adapter(model, tmp_path / "a", targets=targets, rank=2, size=0.5))
    found = pooled(tmp_path, Pooling("classify", activate=False), [None, AdapterRef(1, "a", str(tmp_path / "a"))])
    wanted = [each(input_ids=torch.tensor([text])).logits for text in TEXTS for each in (model, other)]
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_fused_layers_of_encoders_are_their_parts_in_the_order_in_which_they_are_stored() -> None:
    assert parts_of("gte", "new.encoder.layer.1.mlp.up_gate_proj") == ("layers.1.mlp.up_proj", "layers.1.mlp.gate_proj")
    assert parts_of("bert", "bert.encoder.layer.0.output.dense") == ("layers.0.mlp.down_proj",)
    assert parts_of("bert", "layers.0.mlp.down_proj") == ("layers.0.mlp.down_proj",)


def test_a_model_with_adapters_of_its_own_is_served_with_no_others(tmp_path: Path) -> None:
    with torch.inference_mode():
        Stored(tmp_path)
    config = model_config(tmp_path, is_pooling=True, enable_lora=True)
    with pytest.raises(SetupError, match="has adapters of its own"):
        set_up(config, lambda phase, done, total: None)
