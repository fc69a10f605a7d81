"""Jina v3 as its makers store it, with what each task adds to every layer, against transformers with that added in."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file

from stentor.engine.layers.forward_batch import ForwardBatch
from stentor.engine.layers.linear.layer_context import LayerContext
from stentor.engine.layers.varlen_batch import VarlenBatch
from stentor.engine.loading.pooling_checkpoint import pooling_config
from stentor.engine.models.pooling_model import PoolingModel
from stentor.protocols.ipc.pooling import Pooling

TASKS = ("retrieval.query", "retrieval.passage", "text-matching")
RANK, ALPHA = 4, 2.0
TEXTS = [[5, 9, 60, 7], [8], [101, 4, 4, 33, 90, 17, 6], [12, 13, 14]]
SIZES: dict[str, Any] = {
    "vocab_size": 130,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 96,
    "type_vocab_size": 1,
    "pad_token_id": 1,
}
FUSED = {"self_attn.q_proj": 0, "self_attn.k_proj": 1, "self_attn.v_proj": 2}
OLDER = {
    "embeddings.LayerNorm": "emb_ln",
    "self_attn.o_proj": "mixer.out_proj",
    "post_attention_layernorm": "norm1",
    "post_mlp_layernorm": "norm2",
}


class Stored:
    """A folder, and the same model for each task."""

    def __init__(self, folder: Path) -> None:
        torch.manual_seed(3)
        plain: Any = transformers.JinaEmbeddingsV3Model(
            transformers.JinaEmbeddingsV3Config(**SIZES), add_pooling_layer=False
        ).eval()
        for parameter in plain.parameters():
            parameter.normal_(0.0, 0.2)
        self.models = {"": plain, **{task: copy.deepcopy(plain) for task in TASKS}}
        self.tensors: dict[str, torch.Tensor] = {}
        state = plain.state_dict()
        for name, tensor in state.items():
            module = name.rpartition(".")[0]
            if not any(part in name for part in FUSED):
                self._store(module, name.rpartition(".")[2], tensor)
        for layer in range(SIZES["num_hidden_layers"]):
            for ending in ("weight", "bias"):
                parts = [state[f"layers.{layer}.{part}.{ending}"] for part in FUSED]
                self._store(f"layers.{layer}.mixer.Wqkv", ending, torch.cat(parts))
        save_file(self.tensors, folder / "model.safetensors")
        described = {
            **SIZES,
            "model_type": "xlm-roberta",
            "architectures": ["XLMRobertaModel"],
            "position_embedding_type": "rotary",
            "rotary_emb_base": 20000.0,
            "lora_adaptations": [*TASKS],
            "lora_rank": RANK,
            "lora_alpha": ALPHA,
            "hidden_act": "gelu",
        }
        (folder / "config.json").write_text(json.dumps(described))

    def _store(self, module: str, ending: str, tensor: torch.Tensor) -> None:
        older = module
        for newer, name in OLDER.items():
            older = older.replace(newer, name)
        older = "roberta." + older.replace("layers.", "encoder.layers.")
        if ending != "weight" or tensor.dim() == 1:
            self.tensors[f"{older}.{ending}"] = tensor
            return
        outputs, inputs = tensor.shape
        table = "embeddings" in module
        down = torch.randn(len(TASKS), *((outputs, RANK) if table else (RANK, inputs))) * 0.2
        up = torch.randn(len(TASKS), *((RANK, inputs) if table else (outputs, RANK))) * 0.2
        self.tensors[f"{older}.parametrizations.weight.original"] = tensor
        self.tensors[f"{older}.parametrizations.weight.0.lora_A"] = down
        self.tensors[f"{older}.parametrizations.weight.0.lora_B"] = up
        for number, task in enumerate(TASKS):
            added = (down[number] @ up[number] if table else up[number] @ down[number]) * (ALPHA / RANK)
            self._add(self.models[task], module, added)

    def _add(self, model: Any, module: str, added: torch.Tensor) -> None:
        state = model.state_dict()
        if "Wqkv" not in module:
            state[f"{module}.weight"] += added
            return
        for part, piece in zip(FUSED, added.chunk(3), strict=True):
            state[module.replace("mixer.Wqkv", part) + ".weight"] += piece


@pytest.mark.parametrize("tasks", [("text-matching",) * 4, ("", "retrieval.passage", "", "retrieval.query"), ("",) * 4])
@torch.inference_mode()
def test_texts_of_different_tasks_share_a_batch(tasks: tuple[str, ...], tmp_path: Path) -> None:
    stored = Stored(tmp_path)
    config = pooling_config(tmp_path)
    assert config.adapters == TASKS
    ours = PoolingModel(config, LayerContext(torch.device("cpu"), torch.float32, False), max_model_len=90)
    ours.load(stored.tensors.items(), lambda name: ())
    tokens = torch.tensor([token for text in TEXTS for token in text])
    starts = torch.tensor([0, *map(len, TEXTS)]).cumsum(0)
    hidden = ours.forward(
        ForwardBatch.whole(tokens, VarlenBatch(starts.int(), max(map(len, TEXTS))), tasks=ours.adapter_numbers(tasks))
    )
    made = ours.pool(hidden, tokens, starts, [Pooling("token_embed", adapter=task) for task in tasks])
    for text, task, found in zip(TEXTS, tasks, made, strict=True):
        expected = stored.models[task](input_ids=torch.tensor([text])).last_hidden_state[0]
        torch.testing.assert_close(found.values, expected, rtol=1e-4, atol=1e-4)
