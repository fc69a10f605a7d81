"""Tiny configurations of the families that :mod:`stentor.engine.model_config.hf.classic` reads."""

from collections.abc import Callable, Mapping
from typing import Any

import transformers as untyped_transformers

transformers: Any = untyped_transformers
"""Its configs take more than their signatures say."""


def configs(shape: Mapping[str, Any]) -> dict[str, Callable[[], Any]]:
    """By name, each made anew of the sizes in ``shape``."""
    plain = {name: value for name, value in shape.items() if name != "num_key_value_heads"}
    inner = plain.pop("intermediate_size")
    opt = {**plain, "ffn_dim": inner}
    grouped = {**plain, "new_decoder_architecture": True, "num_kv_heads": 2}
    bloom = {name: value for name, value in plain.items() if name != "max_position_embeddings"}
    bloom["seq_length"] = plain["max_position_embeddings"]
    neo = {name: value for name, value in plain.items() if name not in ("num_hidden_layers", "num_attention_heads")}
    neo |= {"num_layers": plain["num_hidden_layers"], "num_heads": plain["num_attention_heads"]}
    mpt = {**plain, "max_seq_len": plain["max_position_embeddings"]}
    return {
        "opt": lambda: transformers.OPTConfig(**opt),
        "opt-galactica": lambda: transformers.OPTConfig(
            **opt, activation_function="gelu", enable_bias=False, layer_norm_elementwise_affine=False
        ),
        "gpt2": lambda: transformers.GPT2Config(**plain),
        "gpt2-scaled": lambda: transformers.GPT2Config(
            **plain, n_inner=inner, scale_attn_by_inverse_layer_idx=True, tie_word_embeddings=False
        ),
        "gpt-neox": lambda: transformers.GPTNeoXConfig(**plain, intermediate_size=inner),
        "gpt-neox-serial": lambda: transformers.GPTNeoXConfig(
            **plain, intermediate_size=inner, use_parallel_residual=False, attention_bias=False, rotary_pct=1.0
        ),
        "gpt-bigcode": lambda: transformers.GPTBigCodeConfig(**plain),
        "gpt-bigcode-heads": lambda: transformers.GPTBigCodeConfig(**plain, n_inner=inner, multi_query=False),
        "falcon": lambda: transformers.FalconConfig(**plain),
        "falcon-grouped": lambda: transformers.FalconConfig(**grouped, bias=True, ffn_hidden_size=inner),
        "falcon-grouped-alike": lambda: transformers.FalconConfig(**grouped, num_ln_in_parallel_attn=1),
        "falcon-serial": lambda: transformers.FalconConfig(
            **plain, multi_query=False, parallel_attn=False, bias=True, tie_word_embeddings=False
        ),
        "falcon-alibi": lambda: transformers.FalconConfig(
            **plain, multi_query=False, parallel_attn=False, bias=True, alibi=True
        ),
        "bloom": lambda: transformers.BloomConfig(**bloom),
        "bloom-six-heads": lambda: transformers.BloomConfig(**{**bloom, "hidden_size": 96, "num_attention_heads": 6}),
        "mpt": lambda: transformers.MptConfig(**mpt),
        "mpt-clipped": lambda: transformers.MptConfig(
            **{**mpt, "num_attention_heads": 3, "hidden_size": 48},
            attn_config={"clip_qkv": 0.5, "softmax_scale": 0.2},
        ),
        "gpt-neo": lambda: transformers.GPTNeoConfig(
            **neo, attention_types=[[["global", "local"], 1], [["local"], 1]], window_size=24
        ),
        "persimmon": lambda: transformers.PersimmonConfig(**plain, intermediate_size=inner),
        "biogpt": lambda: transformers.BioGptConfig(**plain, intermediate_size=inner),
        "gptj": lambda: transformers.GPTJConfig(**plain, rotary_dim=8),
        "codegen": lambda: transformers.CodeGenConfig(**plain, rotary_dim=8),
        "xglm": lambda: transformers.XGLMConfig(**plain, ffn_dim=inner),
        "openai-gpt": lambda: transformers.OpenAIGPTConfig(**plain),
        "gpt-neox-japanese": lambda: transformers.GPTNeoXJapaneseConfig(**plain, intermediate_multiple_size=2),
    }
