"""Fields of transformers' configuration classes that files of multimodal models omit.

transformers saves the fields of a text-only model, but of a text part only those whose values are not its class's.
"""

from collections.abc import Mapping
from typing import Final


def _sizes(
    vocab: int, hidden: int, inner: int, layers: int, heads: int, kv_heads: int | None, longest: int, **more: object
) -> Mapping[str, object]:
    """``kv_heads``: None where the class takes as many as there are heads."""
    return {
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": longest,
        **more,
    }


_LLAMA: Final = _sizes(32_000, 4096, 11_008, 32, 32, None, 2048)
_QWEN2: Final = _sizes(151_936, 4096, 22_016, 32, 32, 32, 32_768)
_QWEN2_VL: Final = _sizes(152_064, 8192, 29_568, 80, 64, 8, 32_768, rope_theta=1e6, rms_norm_eps=1e-5)
_QWEN2_5_OMNI: Final = _sizes(152_064, 3584, 18_944, 28, 28, 4, 32_768, rope_theta=1e6)
_NO_DENSE_MLP: Final = 1
"""Stands for the width of dense MLPs in a model that has none: all of its layers are mixtures of experts."""
_ERNIE: Final = _sizes(103_424, 1024, 3072, 18, 16, 2, 131_072)
_BY_TEXT: Final[Mapping[str, Mapping[str, object]]] = {
    "apertus1p5_text": _sizes(266_752, 4096, 14_336, 32, 32, None, 65_536),
    "aria_text": _sizes(32_000, 4096, 4096, 32, 32, None, 2048),
    "chameleon": _sizes(65_536, 4096, 11_008, 32, 32, 32, 4096),
    "cohere2": _sizes(256_000, 8192, 22_528, 40, 64, None, 8192),
    "cohere_compass_text": _sizes(256_000, 8192, 22_528, 40, 64, None, 8192),
    "cosmos3_edge_text": _sizes(131_072, 2048, 9216, 28, 16, 8, 131_072, head_dim=128),
    "deepseek_v3": _sizes(129_280, 7168, 18_432, 61, 128, 128, 4096),
    "emu3_text_model": _sizes(184_622, 4096, 14_336, 32, 32, 8, 9216, rope_theta=1e6, rms_norm_eps=1e-5),
    "ernie4_5": _ERNIE,
    "ernie4_5_vl_moe_text": _sizes(103_424, 2560, 12_288, 28, 20, 4, 131_072, tie_word_embeddings=True),
    "exaone4": _sizes(102_400, 4096, 16_384, 32, 32, 32, 2048),
    "gemma": _sizes(256_000, 3072, 24_576, 28, 16, 16, 8192),
    "dots3_note_text": _sizes(152_064, 5120, 13_824, 46, 128, 128, 524_288),
    "gemma2": _sizes(256_000, 2304, 9216, 26, 8, 4, 8192),
    "gemma3_text": _sizes(262_208, 2304, 9216, 26, 8, 4, 131_072),
    "gemma3n_text": _sizes(262_400, 2048, 16_384, 35, 8, 2, 32_768),
    "gemma4_text": _sizes(262_144, 2304, 9216, 30, 8, 4, 131_072),
    "gemma4_unified_text": _sizes(262_144, 2304, 9216, 30, 8, 4, 262_144, use_bidirectional_attention="vision"),
    "glm5_next_text": _sizes(154_880, 4096, 12_288, 45, 64, None, 1_048_576),
    "glm_ocr_text": _sizes(59_392, 1024, 4096, 16, 16, 8, 131_072),
    "granite": _LLAMA,
    "granite4_vision_text": _LLAMA,
    "granite_docling_text": {
        **_sizes(133_800, 1024, 2048, 28, 16, 4, 32_768, tie_word_embeddings=True, rms_norm_eps=1e-5),
        **{"embedding_multiplier": 12.0, "logits_scaling": 4.0},
        **{"residual_multiplier": 0.263, "attention_multiplier": 0.015625},
    },
    "hunyuan_vl_text": _sizes(290_943, 4096, 11_008, 32, 32, None, 2048, tie_word_embeddings=True),
    "hy_v4_vl_text": {
        **_sizes(120_832, 6144, 18_432, 78, 64, None, 262_144),
        **{"moe_intermediate_size": 2048, "index_n_heads": 32, "q_lora_rank": 2048},
    },
    "hyperclovax": _LLAMA,
    "lfm2": _sizes(65_536, 2560, 12_288, 32, 32, 8, 128_000),
    "lfm3": _sizes(128_000, 2048, 7680, 24, 16, 4, 128_000),
    "llama": _LLAMA,
    "llama4_text": _sizes(202_048, 5120, 8192, 48, 40, 8, 131_072),
    "minimax_m3_vl_text": _sizes(
        *(200_064, 6144, 3072, 60, 64, 4, 524_288), head_dim=128, rope_theta=5e6, rms_norm_eps=1e-6
    ),
    "mistral": _sizes(32_000, 4096, 14_336, 32, 32, 8, 131_072),
    "mistral4": _sizes(131_072, 4096, 12_288, 36, 32, 32, 1_048_576),
    "mllama_text_model": _sizes(128_256, 4096, 14_336, 40, 32, 8, 131_072, rope_theta=5e5, rms_norm_eps=1e-5),
    "molmo2_text": _sizes(151_936, 4096, 12_288, 36, 32, 8, 36_864, head_dim=128),
    "mistral_large4_text": _sizes(204_800, 6144, 24_576, 72, 64, 64, 1_048_576),
    "muse_glimmer_text": _sizes(202_048, 6656, 19_968, 52, 32, 2, 131_072),
    "muse_spark_text": _sizes(202_048, 8192, 16_384, 62, 128, 16, 1_048_576),
    "openpangu_vl_text": _sizes(153_376, 4096, 12_800, 34, 32, 8, 32_768, rope_theta=6.4e7, rms_norm_eps=1e-5),
    "opt": {**_sizes(50_272, 768, 3072, 12, 12, None, 2048), "ffn_dim": 3072},
    "paddleocr_vl_text": _ERNIE,
    "persimmon": _sizes(262_144, 4096, 16_384, 36, 64, None, 16_384),
    "phi3": _sizes(32_064, 3072, 8192, 32, 32, None, 4096),
    "qwen2": _QWEN2,
    "qwen2_5_omni_text": _QWEN2_5_OMNI,
    "qwen2_5_vl_text": _QWEN2_VL,
    "qwen2_vl_text": _QWEN2_VL,
    **dict.fromkeys(("isaac_text", "keye_text", "qwen3"), _QWEN2),
    "qwen3_5_moe_text": _sizes(248_320, 2048, _NO_DENSE_MLP, 40, 16, 2, 32_768, moe_intermediate_size=512),
    "qwen3_5_text": _sizes(248_320, 4096, 12_288, 32, 16, 4, 32_768),
    "qwen4_exp_text": _sizes(248_320, 2048, _NO_DENSE_MLP, 40, 16, 2, 32_768, moe_intermediate_size=512),
    "qwen3_moe": _sizes(151_936, 2048, 6144, 24, 32, 4, 32_768, moe_intermediate_size=768),
    "qwen3_vl_moe_text": {
        **_sizes(151_936, 2048, 5632, 24, 16, 16, 128_000, rope_theta=5e5),
        **{"moe_intermediate_size": 1408, "num_experts": 60, "num_experts_per_tok": 4},
    },
    "qwen3_vl_text": _sizes(151_936, 4096, 22_016, 32, 32, 32, 128_000, rope_theta=5e5),
    "unlimited_ocr_text": _sizes(129_280, 1280, 6848, 12, 10, 10, 32_768),
    "step3p5": _sizes(128_815, 4096, 11_264, 45, 64, 8, 128_000),
}
_PALIGEMMA: Final = _sizes(257_152, 2048, 16_384, 18, 8, 1, 8192, tie_word_embeddings=True)
_BY_WHOLE: Final[Mapping[tuple[str, str], Mapping[str, object]]] = {
    ("paligemma", "gemma"): _PALIGEMMA,
    ("paligemma", "gemma2"): _PALIGEMMA,
    ("got_ocr2", "qwen2"): _sizes(151_860, 1024, 2816, 24, 16, 16, 32_768, rope_theta=1e6, tie_word_embeddings=True),
    ("fun_asr_nano", "qwen3"): _sizes(151_936, 1024, 3072, 28, 16, 8, 40_960, tie_word_embeddings=True),
    ("moss_transcribe_diarize", "qwen3"): _sizes(
        *(151_936, 1024, 3072, 28, 16, 8, 131_072), rope_theta=1e6, tie_word_embeddings=True
    ),
    ("glmasr", "llama"): _sizes(59_264, 2048, 6144, 28, 16, 4, 8192, rms_norm_eps=1e-5),
    ("cohere_compass", "cohere_compass_text"): {
        **_sizes(256_000, 8192, 22_528, 40, 64, None, 8192),
        "tie_word_embeddings": False,
    },
    ("midashenglm", "qwen2"): _QWEN2_5_OMNI,
    ("nemo_speechlm", "nemotron_h"): {
        **_sizes(131_072, 2688, 1856, 52, 32, 2, 262_144),
        **{"hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME", "mamba_num_heads": 64},
        **{"moe_intermediate_size": 1856, "moe_shared_expert_intermediate_size": 3712, "n_routed_experts": 128},
        **{"num_experts_per_tok": 6, "routed_scaling_factor": 2.5},
    },
    ("voxtral", "llama"): {
        **_sizes(131_072, 3072, 8192, 30, 32, 8, 131_072),
        **{"head_dim": 128, "rms_norm_eps": 1e-5, "rope_theta": 1e8},
    },
}
"""Of models that have defaults of their own for a known text part."""


def text_defaults(whole: str, text: str) -> Mapping[str, object]:
    """By the model types of the whole and of its text part; empty for a text part whose files omit nothing."""
    return _BY_WHOLE.get((whole, text)) or _BY_TEXT.get(text, {})
