"""Decoders under architectures of embedders, rerankers and token classifiers, against transformers in float32."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file

from stentor.engine.loading.errors import CheckpointError
from stentor.engine.loading.kind import kind_of
from stentor.engine.loading.pooling_checkpoint import pooling_config
from stentor.protocols.ipc.pooling import Pooling
from stentor.server.options.model_facts import describe_model
from stentor.tests.parity import hub
from stentor.tests.parity.test_pooling_decoders import LLM, TEXTS, added, changed, close, pooled, saved

library: Any = transformers  # whose types know no labels
SPECIAL: dict[str, Any] = {**LLM, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "rms_norm_eps": 1e-3}
NVIDIA = "LlamaBidirectionalForSequenceClassification"
RAW = Pooling("classify", activate=False)


def both_ways(model: Any, text: list[int]) -> torch.Tensor:
    """Hidden states [tokens, size] of a causal model of transformers, if its tokens see the whole text."""
    everything = torch.zeros(1, 1, len(text), len(text))
    mask = {"full_attention": everything} if hasattr(model, "has_sliding_layers") else everything
    hidden: torch.Tensor = model(input_ids=torch.tensor([text]), attention_mask=mask).last_hidden_state[0]
    return hidden


@pytest.mark.parametrize(("named", "rows"), [("avg", slice(None)), ("cls", slice(1)), ("last", slice(-1, None))])
@torch.inference_mode()
def test_nvidias_llama_looks_both_ways_and_pools_as_its_config_says(named: str, rows: slice, tmp_path: Path) -> None:
    theirs = saved(transformers.LlamaModel(transformers.LlamaConfig(**LLM)), tmp_path)
    changed(tmp_path, architectures=["LlamaBidirectionalModel"], model_type="llama_bidirec", pooling=named)
    assert kind_of(tmp_path) == "embedding"
    for text, found in zip(TEXTS, pooled(tmp_path, Pooling("embed")), strict=True):
        vector = both_ways(theirs, text)[rows].mean(0, keepdim=True)
        close(found, vector / vector.norm())


@pytest.mark.parametrize("temperature", [1.0, 0.2])
@torch.inference_mode()
def test_nvidias_reranker_divides_its_score_by_a_temperature(temperature: float, tmp_path: Path) -> None:
    theirs = saved(library.LlamaForSequenceClassification(library.LlamaConfig(**LLM, num_labels=1)), tmp_path)
    named: dict[str, Any] = {"architectures": [NVIDIA], "model_type": "llama_bidirec"}
    changed(tmp_path, **named, pooling="avg", temperature=temperature)
    for text, found in zip(TEXTS, pooled(tmp_path, RAW), strict=True):
        close(found, theirs.score(both_ways(theirs.model, text).mean(0, keepdim=True)) / temperature, 1e-3)


@pytest.mark.parametrize("pooling", [None, "weighted_avg"])
def test_a_pooling_that_is_missing_or_not_known_is_refused(pooling: str | None, tmp_path: Path) -> None:
    described = {**LLM, "architectures": ["LlamaBidirectionalModel"], "model_type": "llama_bidirec"}
    (tmp_path / "config.json").write_text(json.dumps({**described, "pooling": pooling}))
    with pytest.raises(CheckpointError, match="pooling is "):
        pooling_config(tmp_path)


@torch.inference_mode()
def test_voyages_embedder_projects_all_tokens(tmp_path: Path) -> None:
    theirs = saved(transformers.Qwen3Model(transformers.Qwen3Config(**LLM, head_dim=8)), tmp_path)
    changed(tmp_path, "model.{}".format, architectures=["VoyageQwen3BidirectionalEmbedModel"], num_labels=48)
    layer = torch.randn(48, 32)
    added(tmp_path, linear__weight=layer)
    assert pooling_config(tmp_path).dimensions == 48
    vectors, tokens = (pooled(tmp_path, Pooling(task)) for task in ("embed", "token_embed"))
    for text, vector, each in zip(TEXTS, vectors, tokens, strict=True):
        hidden = both_ways(theirs, text) @ layer.T
        close(each, hidden, 1e-3)
        mean = hidden.mean(0, keepdim=True)
        close(vector, mean / mean.norm())


GIGA: dict[str, Any] = {
    **{"vocab_size": LLM["vocab_size"], "hidden_size": 32, "intermediate_size": 48, "moe_intermediate_size": 24},
    **{"num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 4, "first_k_dense_replace": 1},
    **{"n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1, "n_group": 2, "topk_group": 1},
    **{"q_lora_rank": 16, "kv_lora_rank": 20, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 12},
    "max_position_embeddings": 64,
}
LOW: list[dict[str, Any]] = [{}, {"q_lora_rank": None}]


@pytest.mark.parametrize("change", LOW, ids=["low-rank queries", "whole queries"])
@torch.inference_mode()
def test_a_deepseek_that_looks_both_ways_gives_means_of_states(change: dict[str, Any], tmp_path: Path) -> None:
    config = transformers.DeepseekV3Config(**{**GIGA, **change})
    theirs = saved(transformers.DeepseekV3Model(config), tmp_path)
    changed(tmp_path, architectures=["DeepseekV3BidirectionalModel"], model_type="deepseek_v3_bidirec", is_causal=False)
    assert kind_of(tmp_path) == "embedding"
    vectors, tokens = (pooled(tmp_path, Pooling(task)) for task in ("embed", "token_embed"))
    for text, vector, each in zip(TEXTS, vectors, tokens, strict=True):
        hidden = both_ways(theirs, text)
        close(each, hidden, 1e-3)
        mean = hidden.mean(0, keepdim=True)
        close(vector, mean / mean.norm())


def test_a_deepseek_whose_index_looks_back_is_not_read_both_ways(tmp_path: Path) -> None:
    described = {**GIGA, "architectures": ["DeepseekV32Model"], "model_type": "deepseek_v32", "is_causal": False}
    index = {"index_n_heads": 2, "index_head_dim": 8, "index_topk": 4}
    (tmp_path / "config.json").write_text(json.dumps({**described, **index}))
    with pytest.raises(CheckpointError, match="the index of latent attention looks back alone"):
        pooling_config(tmp_path)


@torch.inference_mode()
def test_a_qwen3_that_looks_both_ways_gives_means_of_states(tmp_path: Path) -> None:
    theirs = saved(transformers.Qwen3Model(transformers.Qwen3Config(**LLM, head_dim=8)), tmp_path)
    changed(tmp_path, architectures=["Qwen3BidirectionalModel"], model_type="qwen3_bidirec", is_causal=False)
    assert kind_of(tmp_path) == "embedding"
    for text, found in zip(TEXTS, pooled(tmp_path, Pooling("embed")), strict=True):
        mean = both_ways(theirs, text).mean(0, keepdim=True)
        close(found, mean / mean.norm())


EUROBERTS: dict[str, Callable[[], Any]] = {
    "late": lambda: library.EuroBertForSequenceClassification(library.EuroBertConfig(**SPECIAL, num_labels=3)),
    "mean": lambda: library.EuroBertForSequenceClassification(
        library.EuroBertConfig(**SPECIAL, num_labels=3, classifier_pooling="mean", attention_bias=True)
    ),
    "bos": lambda: library.EuroBertForSequenceClassification(
        library.EuroBertConfig(**SPECIAL, num_labels=1, classifier_pooling="bos", mlp_bias=True)
    ),
}


@pytest.mark.parametrize("name", EUROBERTS)
@torch.inference_mode()
def test_a_eurobert_scores_texts(name: str, tmp_path: Path) -> None:
    theirs = saved(EUROBERTS[name](), tmp_path)
    assert pooling_config(tmp_path, model_impl="native").score is not None
    for text, found in zip(TEXTS, pooled(tmp_path, RAW), strict=True):
        close(found, theirs(input_ids=torch.tensor([text])).logits)


@pytest.mark.parametrize("masked", [False, True])
@torch.inference_mode()
def test_a_eurobert_gives_hidden_states(masked: bool, tmp_path: Path) -> None:
    config = library.EuroBertConfig(**SPECIAL)
    theirs = saved(library.EuroBertForMaskedLM(config) if masked else library.EuroBertModel(config), tmp_path)
    assert kind_of(tmp_path) == "embedding"
    for text, found in zip(TEXTS, pooled(tmp_path, Pooling("token_embed")), strict=True):
        close(found, theirs.base_model(input_ids=torch.tensor([text])).last_hidden_state[0])


def test_an_unknown_pooling_of_eurobert_is_refused(tmp_path: Path) -> None:
    described = {**SPECIAL, "architectures": ["EuroBertForSequenceClassification"], "model_type": "eurobert"}
    (tmp_path / "config.json").write_text(json.dumps({**described, "clf_pooling": "max"}))
    with pytest.raises(CheckpointError, match="classifier_pooling is 'max', expected one of late, mean, bos"):
        pooling_config(tmp_path)


PRIVACY: dict[str, Any] = {
    **SPECIAL,
    "head_dim": 8,
    "num_local_experts": 6,
    "num_experts_per_tok": 2,
    "sliding_window": 5,
}
TOKENS: dict[str, Callable[[], Any]] = {
    "EuroBERT": lambda: library.EuroBertForTokenClassification(library.EuroBertConfig(**SPECIAL, num_labels=5)),
    "OpenAI's privacy filter": lambda: library.OpenAIPrivacyFilterForTokenClassification(
        library.OpenAIPrivacyFilterConfig(**PRIVACY, num_labels=5)
    ),
    "OpenAI's privacy filter, unbiased": lambda: library.OpenAIPrivacyFilterForTokenClassification(
        library.OpenAIPrivacyFilterConfig(**PRIVACY, num_labels=5, attention_bias=False)
    ),
}


@pytest.mark.parametrize("name", TOKENS)
@torch.inference_mode()
def test_tokens_are_scored(name: str, tmp_path: Path) -> None:
    theirs = saved(TOKENS[name](), tmp_path)
    assert kind_of(tmp_path) == "embedding"
    assert pooling_config(tmp_path, model_impl="native").score is not None
    for text, found in zip(TEXTS, pooled(tmp_path, Pooling("token_classify", activate=False)), strict=True):
        close(found, theirs(input_ids=torch.tensor([text])).logits[0], 1e-3)


GEMMA2: dict[str, Any] = {
    **SPECIAL,
    "num_hidden_layers": 3,
    "head_dim": 8,
    "sliding_window": 4,
    "hidden_size_per_layer_input": 12,
    "embedding_dim": 20,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    "global_head_dim": 16,
    "num_global_key_value_heads": 1,
}


@pytest.mark.parametrize("sees", [False, True])
@torch.inference_mode()
def test_embeddinggemma_2_embeds_texts(sees: bool, tmp_path: Path) -> None:
    text = library.EmbeddingGemma2TextConfig(**GEMMA2)
    if sees:
        vision = library.Gemma4VisionConfig(
            hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2, head_dim=8
        )
        whole = library.EmbeddingGemma2Config(text_config=text, vision_config=vision)
        theirs = saved(library.EmbeddingGemma2Model(whole), tmp_path).language_model
    else:
        theirs = saved(library.EmbeddingGemma2TextModel(text), tmp_path)
    assert kind_of(tmp_path) == "embedding"
    assert pooling_config(tmp_path).dimensions == 20
    vectors, tokens = (pooled(tmp_path, Pooling(task)) for task in ("embed", "token_embed"))
    for ids, vector, each in zip(TEXTS, vectors, tokens, strict=True):
        hidden = theirs(input_ids=torch.tensor([ids])).last_hidden_state[0]
        close(each, hidden, 1e-3)
        mean = hidden.mean(0, keepdim=True)
        close(vector, mean / mean.norm(), 1e-3)


@pytest.mark.parametrize(
    ("named", "kind", "says"),
    [
        (
            "Qwen2BidirectionalModel",
            "qwen2",
            "names 'Qwen2BidirectionalModel', a class that",
        ),
        ("Qwen2ForMaskedLM", "qwen2", "a class that transformers does not have"),
        ("D3ForSequenceClassification", "qwen3_5", "a class that transformers does not have"),
    ],
)
def test_code_that_comes_with_files_is_refused(named: str, kind: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**LLM, "architectures": [named], "model_type": kind}))
    with pytest.raises(CheckpointError, match=says):
        pooling_config(tmp_path)


@torch.inference_mode()
def test_internlms_reward_model_scores_the_last_token(tmp_path: Path) -> None:
    config = transformers.LlamaConfig(**LLM)
    theirs = saved(transformers.LlamaForCausalLM(config), tmp_path)
    tensors = hub.stored("internlm2", dict(theirs.state_dict()), config)
    head = torch.randn(1, 32)
    kept = {name: tensor.contiguous() for name, tensor in tensors.items() if not name.startswith("output")}
    save_file({**kept, "v_head.weight": head}, tmp_path / "model.safetensors")
    described = {**hub.described("internlm2", config), "architectures": ["InternLM2ForRewardModel"]}
    (tmp_path / "config.json").write_text(json.dumps(described))
    for text, found in zip(TEXTS, pooled(tmp_path, RAW), strict=True):
        close(found, theirs.model(input_ids=torch.tensor([text])).last_hidden_state[:, -1] @ head.T, 1e-3)


def test_what_layers_see_on_both_sides_is_told(tmp_path: Path) -> None:
    saved(TOKENS["OpenAI's privacy filter"](), tmp_path / "window")
    saved(TOKENS["EuroBERT"](), tmp_path / "all")
    assert "sees a window of 6 on either side, sinks" in describe_model(tmp_path / "window", ())
    told = describe_model(tmp_path / "all", ())
    assert "sees all;" in told
    assert "KV" not in told
