"""Tiny random checkpoints of every architecture, made with transformers' own classes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers as untyped_transformers

from stentor.tests.parity import classic, families, hub, hybrids, inklings, latent, newer, recent, singular, variants
from stentor.tests.parity.tiny_moe import mixtures

transformers: Any = untyped_transformers
"""Its configs take more than their signatures say."""

VOCAB = 320
SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def _rope(kind: str, **fields: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **fields}}


def _longrope(**fields: Any) -> dict[str, Any]:
    pairs = 8
    return _rope(
        "longrope",
        short_factor=[1.0 + 0.05 * i for i in range(pairs)],
        long_factor=[1.5 + 0.3 * i for i in range(pairs)],
        **fields,
    )


Build = Callable[[], Any]

ARCHITECTURES: dict[str, Build] = {
    "llama": lambda: transformers.LlamaConfig(**SHAPE),
    "llama-biased": lambda: transformers.LlamaConfig(**SHAPE, attention_bias=True, mlp_bias=True),
    "llama-wide-heads": lambda: transformers.LlamaConfig(**SHAPE, head_dim=32, tie_word_embeddings=True),
    "llama-linear": lambda: transformers.LlamaConfig(**SHAPE, **_rope("linear", factor=4.0)),
    "llama-dynamic": lambda: transformers.LlamaConfig(**SHAPE, **_rope("dynamic", factor=2.0)),
    "llama-llama3": lambda: transformers.LlamaConfig(
        **SHAPE,
        **_rope(
            "llama3",
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=32,
        ),
    ),
    "llama-yarn": lambda: transformers.LlamaConfig(
        **SHAPE, **_rope("yarn", factor=4.0, original_max_position_embeddings=32)
    ),
    "mistral": lambda: transformers.MistralConfig(**SHAPE, sliding_window=24),
    "qwen2": lambda: transformers.Qwen2Config(**SHAPE),
    "qwen2-window": lambda: transformers.Qwen2Config(
        **SHAPE, use_sliding_window=True, sliding_window=24, max_window_layers=1
    ),
    "qwen3": lambda: transformers.Qwen3Config(**SHAPE, head_dim=32),
    "phi3": lambda: transformers.Phi3Config(**SHAPE),
    "phi3-longrope-short": lambda: transformers.Phi3Config(
        **SHAPE, **_longrope(), original_max_position_embeddings=128
    ),
    "phi3-longrope-long": lambda: transformers.Phi3Config(**SHAPE, **_longrope(), original_max_position_embeddings=32),
    "phi3-partial": lambda: transformers.Phi3Config(**SHAPE, partial_rotary_factor=0.5, sliding_window=24),
    "gemma": lambda: transformers.GemmaConfig(**SHAPE, head_dim=32),
    "gemma2": lambda: transformers.Gemma2Config(
        **SHAPE, head_dim=32, query_pre_attn_scalar=24, sliding_window=24, attn_implementation="eager"
    ),
    "gemma3": lambda: transformers.Gemma3TextConfig(
        **{**SHAPE, "num_hidden_layers": 6}, head_dim=32, query_pre_attn_scalar=24, sliding_window=24
    ),
    "olmo2": lambda: transformers.Olmo2Config(**SHAPE),
    "granite": lambda: transformers.GraniteConfig(
        **SHAPE,
        embedding_multiplier=6.0,
        residual_multiplier=0.3,
        attention_multiplier=0.1,
        logits_scaling=4.0,
    ),
    "granite4": lambda: transformers.GraniteMoeHybridConfig(
        **SHAPE,
        num_local_experts=0,
        num_experts_per_tok=0,
        shared_intermediate_size=80,
        layer_types=["full_attention"] * 3,
        position_embedding_type="rope",
        residual_multiplier=0.3,
        attention_multiplier=0.1,
    ),
    "olmo3": lambda: transformers.Olmo3Config(
        **SHAPE,
        sliding_window=24,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        rope_parameters={
            "full_attention": {
                "rope_type": "yarn",
                "rope_theta": 20000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 32,
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": 20000.0},
        },
    ),
    "smollm3": lambda: transformers.SmolLM3Config(**SHAPE, no_rope_layer_interval=2),
    "exaone4": lambda: transformers.Exaone4Config(
        **SHAPE, sliding_window=24, layer_types=["sliding_attention", "full_attention", "sliding_attention"]
    ),
    "seed-oss": lambda: transformers.SeedOssConfig(**SHAPE, head_dim=32),
    **variants.configs(SHAPE),
    **hybrids.configs(SHAPE),
    **variants.text_parts(SHAPE),
    **latent.architectures(SHAPE),
    **mixtures(SHAPE),
    **families.configs(SHAPE),
    **classic.configs(SHAPE),
    **hub.configs(SHAPE),
    **recent.configs(SHAPE),
    **singular.configs(SHAPE),
    **inklings.configs(SHAPE),
    **newer.configs(SHAPE),
}


_ALONE = {"emu3_text_model": "Emu3ForCausalLM", "mllama_text_model": "MllamaForCausalLM"}
"""Classes of text parts that no mapping of transformers names, by model type."""


def described(name: str) -> dict[str, Any]:
    """The fields of a model's config.json."""
    config = ARCHITECTURES[name]()
    return hub.described(name, config) if name in hub.PUBLISHED else config.to_dict()


def make(name: str, folder: Path, layers: int | None = None) -> Any:
    """Saves a checkpoint into ``folder`` and returns transformers' model in float32.

    ``layers`` of a Llama, two at least where blocks must not be shared across prefixes: what the first layer writes
    into them depends on a token and its position alone.
    """
    config = ARCHITECTURES[name]()
    if layers is not None:
        config.num_hidden_layers = layers
    return make_of(config, name, folder)


def make_of(config: Any, name: str, folder: Path) -> Any:
    """The same of another configuration; ``name`` decides what is random."""
    torch.manual_seed(sum(map(ord, name)))
    # transformers 5.23 has Mistral 4 among models that see
    sees = hasattr(config, "vision_config") or config.model_type == "mistral4"
    kind = transformers.AutoModelForImageTextToText if sees else transformers.AutoModelForCausalLM
    own = _ALONE.get(config.model_type)
    model = getattr(transformers, own)(config) if own else kind.from_config(config)
    model = model.float().eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            of_norm = parameter_name.endswith(("norm.weight", "norm.scale"))
            if of_norm or "layernorm" in parameter_name or ".ln_" in parameter_name:
                parameter.add_(torch.empty_like(parameter).uniform_(-0.4, 0.4))
                if parameter_name.endswith("q_norm.weight") and config.model_type.startswith(("gemma3n", "gemma4")):
                    parameter.mul_(0.25)  # nothing else scales scores: a peaked softmax would magnify rounding
                if parameter_name.endswith("q_a_layernorm.weight") and config.model_type.startswith("dots3"):
                    parameter.mul_(0.4)  # so do factors on both latents
            elif parameter_name.endswith("rotary_emb.alpha"):  # a buffer before transformers 5.24
                parameter.uniform_(-0.5, 0.5)
            else:
                # transformers' 0.02 would make every logit nearly equal and hide mistakes
                parameter.normal_(0, 2.0 if parameter_name.endswith("sinks") else 0.15)
                if config.model_type == "zamba2" and "shared_transformer" in parameter_name:
                    parameter.mul_(0.4)  # nothing scales its scores or its output
        for buffer_name, buffer in model.named_buffers():
            if buffer_name.endswith("rotary_emb.alpha"):
                buffer.uniform_(-0.5, 0.5)
            elif buffer_name.endswith("e_score_correction_bias"):
                buffer.uniform_(-0.2, 0.2)
            elif buffer_name.endswith("tid2eid"):
                scores = torch.rand(len(buffer), config.n_routed_experts)
                buffer.copy_(scores.topk(buffer.shape[1]).indices)
            elif buffer_name.endswith("balancing_biases"):
                buffer.uniform_(-0.1, 0.1)
            elif buffer_name.endswith("layer_scalar"):
                buffer.uniform_(0.6, 1.4)
    model.save_pretrained(folder)
    if config.model_type == "olmo_hybrid":
        hybrids.publish(model, folder)
    elif config.model_type == "kimi_linear":
        hybrids.publish_kimi(model, folder)
    elif name in hub.PUBLISHED:
        hub.publish(name, model, folder)
    return model
