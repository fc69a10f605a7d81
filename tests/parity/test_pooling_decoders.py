"""Decoders that make vectors and scores, from folders as their makers store them, against transformers in float32."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from stentor.engine.worker.setup.setup import set_up_on
from stentor.protocols.ipc.config import DType, WorkerConfig
from stentor.protocols.ipc.pooling import Pooling
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import NewRow, RowStep, StepPlan

LLM: dict[str, Any] = {
    "vocab_size": 130,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
ONE_LABEL: dict[str, Any] = {**LLM, "num_labels": 1}
LABELS: dict[str, Any] = {**LLM, "num_labels": 3}
GPT2: dict[str, Any] = {"vocab_size": 130, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "num_labels": 3}
NEO: dict[str, Any] = {name: LABELS[name] for name in ("vocab_size", "hidden_size", "max_position_embeddings")}
NEO["num_labels"] = 3
BIO: dict[str, Any] = {
    name: LABELS[name] for name in LABELS if name not in ("num_key_value_heads", "tie_word_embeddings")
}
BLOCK = 16
TEXTS = [[5, 9, 60, 7], [8], [101, 4, 4, 33, 90, 17, 6] * 4]
EMBED = Pooling("embed", last=True)
SCORE = Pooling("classify", last=True)

EMBEDDERS: dict[str, tuple[str, Callable[[], Any]]] = {
    "Qwen3-Embedding": ("", lambda: transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**LLM, head_dim=8))),
    "Qwen3-Embedding without prefix": ("model.", lambda: transformers.Qwen3Model(transformers.Qwen3Config(**LLM))),
    "E5-Mistral": ("", lambda: transformers.MistralModel(transformers.MistralConfig(**LLM))),
    "E5-Mistral, sliding": ("", lambda: transformers.MistralModel(transformers.MistralConfig(**LLM, sliding_window=5))),
    "gte-Qwen2": ("", lambda: transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**LLM))),
    "BGE-Gemma2": ("", lambda: transformers.Gemma2Model(transformers.Gemma2Config(**LLM, head_dim=8))),
}
SCORERS: dict[str, Callable[[], Any]] = {
    "Qwen3": lambda: transformers.Qwen3ForSequenceClassification(transformers.Qwen3Config(**ONE_LABEL)),
    "Skywork's Llama": lambda: transformers.LlamaForSequenceClassification(transformers.LlamaConfig(**ONE_LABEL)),
    "Gemma": lambda: transformers.GemmaForSequenceClassification(transformers.GemmaConfig(**ONE_LABEL, head_dim=8)),
    "GPT-J": lambda: transformers.GPTJForSequenceClassification(transformers.GPTJConfig(**GPT2, rotary_dim=4)),
}


def saved(model: Any, folder: Path) -> Any:
    torch.manual_seed(11)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.2)
    model.eval().save_pretrained(folder)
    return model


def changed(folder: Path, change: Callable[[str], str] = str, **config: Any) -> None:
    """Renames the tensors of a folder, and sets fields of its description."""
    stored = load_file(folder / "model.safetensors")
    save_file({change(name): tensor for name, tensor in stored.items()}, folder / "model.safetensors")
    described = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**described, **config}))


def added(folder: Path, **tensors: torch.Tensor) -> None:
    """Adds tensors to those of a folder; ``__`` stands for a point."""
    stored = load_file(folder / "model.safetensors")
    named = {name.replace("__", "."): tensor for name, tensor in tensors.items()}
    save_file({**stored, **named}, folder / "model.safetensors")


Rows = list[np.ndarray[Any, np.dtype[np.float32]]]


def pooled(
    folder: Path, pooling: Pooling, dtype: DType = "float32", *, meeting: int | None = None, **of_rank: Any
) -> Rows:
    """What a worker makes of :data:`TEXTS`, the last of which comes in two chunks where it can be cut; ``of_rank`` says
    which it is of those that meet at ``meeting``."""
    config = WorkerConfig(
        str(folder), dtype=dtype, threads=1, is_pooling=True, block_size=BLOCK, kv_cache_memory=1 << 20, **of_rank
    )
    setup = set_up_on(config, lambda phase, done, total: None, meeting_fd=meeting)
    runner = setup.runner
    new, first, second = [], [], []
    block = 0
    for slot, text in enumerate(TEXTS):
        blocks = [*range(block, block := block + -(-len(text) // BLOCK))]
        new.append(NewRow(slot, text, len(text), SamplingParams(max_tokens=0), 0, blocks, pooling=pooling))
        whole = len(text) if not setup.ready.groups else min(len(text), 20)
        first.append(RowStep(slot, 0, whole, [], False))
        if whole < len(text):
            second.append(RowStep(slot, whole, len(text) - whole, [], False))
    found = runner.step(StepPlan(0, 0, [], new, first)).pooled
    if second:
        found += runner.step(StepPlan(0, 1, [], [], second)).pooled
    by_slot = {row.slot: row.pooled for row in found}
    made = [by_slot[slot] for slot in range(len(TEXTS))]
    return [np.frombuffer(each.data, "<f4").reshape(each.rows, each.columns) for each in made]


def close(found: np.ndarray[Any, np.dtype[np.float32]], expected: torch.Tensor, within: float = 1e-4) -> None:
    np.testing.assert_allclose(found, expected.float().numpy(), rtol=within, atol=within)


@pytest.mark.parametrize("name", EMBEDDERS)
@torch.inference_mode()
def test_vectors_are_those_of_the_last_token(name: str, tmp_path: Path) -> None:
    prefix, make = EMBEDDERS[name]
    theirs = saved(make(), tmp_path)
    changed(tmp_path, lambda stored: stored.removeprefix(prefix))
    backbone = getattr(theirs, "model", theirs)
    for text, found in zip(TEXTS, pooled(tmp_path, EMBED), strict=True):
        last = backbone(input_ids=torch.tensor([text])).last_hidden_state[:, -1]
        close(found, last / last.norm())


HALF: dict[str, Callable[[], Any]] = {
    "causal": EMBEDDERS["Qwen3-Embedding"][1],
    "both ways": lambda: transformers.Gemma3TextModel(
        transformers.Gemma3TextConfig(
            **LLM, head_dim=8, query_pre_attn_scalar=8, sliding_window=6, use_bidirectional_attention=True
        )
    ),
    "encoder": lambda: transformers.ModernBertModel(
        transformers.ModernBertConfig(**{name: LLM[name] for name in LLM if name != "num_key_value_heads"})
    ),
}


@pytest.mark.parametrize("name", HALF)
@torch.inference_mode()
def test_half_precision_is_close_to_single(name: str, tmp_path: Path) -> None:
    saved(HALF[name](), tmp_path)
    for coarse, fine in zip(pooled(tmp_path, EMBED, "bfloat16"), pooled(tmp_path, EMBED), strict=True):
        assert float((coarse * fine).sum()) > 0.999


@torch.inference_mode()
def test_an_embedder_of_qwen2_may_look_both_ways(tmp_path: Path) -> None:
    theirs = saved(transformers.Qwen2Model(transformers.Qwen2Config(**LLM)), tmp_path)
    changed(tmp_path, is_causal=False)
    for text, found in zip(TEXTS, pooled(tmp_path, Pooling("token_embed")), strict=True):
        everything = torch.zeros(1, 1, len(text), len(text))
        mask = {"full_attention": everything}
        close(found, theirs(input_ids=torch.tensor([text]), attention_mask=mask).last_hidden_state[0])


@pytest.mark.parametrize("name", SCORERS)
@torch.inference_mode()
def test_texts_are_scored_by_the_last_token(name: str, tmp_path: Path) -> None:
    theirs = saved(SCORERS[name](), tmp_path)
    for text, found in zip(TEXTS, pooled(tmp_path, Pooling("classify", last=True, activate=False)), strict=True):
        close(found, theirs(input_ids=torch.tensor([text])).logits)


OF_EACH_TOKEN: dict[str, Callable[[], Any]] = {
    "Qwen3": lambda: transformers.Qwen3ForTokenClassification(transformers.Qwen3Config(**LABELS)),
    "GPT-2": lambda: transformers.GPT2ForTokenClassification(transformers.GPT2Config(**GPT2)),
    "GPT-NeoX": lambda: transformers.GPTNeoXForTokenClassification(transformers.GPTNeoXConfig(**LABELS)),
    "Falcon": lambda: transformers.FalconForTokenClassification(transformers.FalconConfig(**LABELS)),
    "GPT-Neo": lambda: transformers.GPTNeoForTokenClassification(
        transformers.GPTNeoConfig(**NEO, num_layers=2, num_heads=4, attention_types=[[["global"], 2]])
    ),
    "BioGPT": lambda: transformers.BioGptForTokenClassification(transformers.BioGptConfig(**BIO)),
    "Phi": lambda: transformers.PhiForTokenClassification(transformers.PhiConfig(**LABELS)),
}


@pytest.mark.parametrize("name", OF_EACH_TOKEN)
@torch.inference_mode()
def test_each_token_is_scored_by_a_head_of_either_name(name: str, tmp_path: Path) -> None:
    theirs = saved(OF_EACH_TOKEN[name](), tmp_path)
    for text, found in zip(TEXTS, pooled(tmp_path, Pooling("token_classify", activate=False)), strict=True):
        close(found, theirs(input_ids=torch.tensor([text])).logits[0])


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("false_token", [None, 4])
@torch.inference_mode()
def test_a_model_that_says_yes_is_a_reranker(tied: bool, false_token: int | None, tmp_path: Path) -> None:
    config = transformers.Qwen2Config(**{**LLM, "tie_word_embeddings": tied})
    theirs = saved(transformers.Qwen2ForCausalLM(config), tmp_path)
    (tmp_path / "1_LogitScore").mkdir()
    module = {"true_token_id": 17, "false_token_id": false_token, "module_input_name": "causal_logits"}
    (tmp_path / "1_LogitScore/config.json").write_text(json.dumps(module))
    listed = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"},
        {
            "idx": 1,
            "name": "1",
            "path": "1_LogitScore",
            "type": "sentence_transformers.cross_encoder.modules.logit_score.LogitScore",
        },
    ]
    (tmp_path / "modules.json").write_text(json.dumps(listed))
    for text, found in zip(TEXTS, pooled(tmp_path, Pooling("classify", last=True, activate=False)), strict=True):
        logits = theirs(input_ids=torch.tensor([text])).logits[:, -1]
        close(found, logits[:, 17:18] - (0 if false_token is None else logits[:, 4:5]))


@pytest.mark.parametrize("each", [False, True])
@torch.inference_mode()
def test_a_reward_model_has_two_layers_behind(each: bool, tmp_path: Path) -> None:
    theirs = saved(transformers.Qwen2Model(transformers.Qwen2Config(**LLM)), tmp_path)
    labels = 2 if each else 1
    score = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, labels))
    stored = {f"model.{name}": tensor for name, tensor in load_file(tmp_path / "model.safetensors").items()}
    head = {f"score.{name}": tensor for name, tensor in score.state_dict().items()}
    save_file({**stored, **head}, tmp_path / "model.safetensors")
    changed(tmp_path, architectures=["Qwen2ForProcessRewardModel" if each else "Qwen2ForRewardModel"])
    pooling = Pooling("token_classify") if each else SCORE
    for text, found in zip(TEXTS, pooled(tmp_path, pooling), strict=True):
        hidden = theirs(input_ids=torch.tensor([text])).last_hidden_state[0]
        close(found, score(hidden).softmax(-1) if each else score(hidden[-1:]))
