"""Tiny configurations of the families that :mod:`stentor.engine.model_config.hf.recent` reads."""

from collections.abc import Callable, Mapping
from typing import Any

import transformers as untyped_transformers

transformers: Any = untyped_transformers
"""Its configs take more than their signatures say."""
SPARK: Mapping[str, Any] = {
    **{"head_dim": 16, "sliding_window": 24, "num_local_experts": 6, "moe_hidden_size": 32},
    **{"routed_scaling_factor": 1.5, "output_multiplier": 0.5, "qk_scale_factor": 2.0},
}
SPARK_SOUNDS: Mapping[str, Any] = {
    **{"patch_sizes": [4], "hidden_sizes": [8], "depths": [1], "num_hidden_layers": 1, "out_hidden_size": 64}
}
SLIDING = ["sliding_attention", "full_attention", "sliding_attention"]


def configs(shape: Mapping[str, Any]) -> dict[str, Callable[[], Any]]:
    """By name, each made anew of the sizes in ``shape``."""
    sizes = {**shape, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    deep = {**sizes, "num_hidden_layers": 6, "head_dim": 16, "sliding_window": 24}
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    compass = {**shape, "sliding_window": 24, "layer_types": SLIDING, "logit_scale": 0.3}
    of_types = {"full_attention": None, "sliding_attention": {"rope_type": "default", "rope_theta": 500.0}}
    return {
        "flint": lambda: transformers.FlintConfig(
            **deep, num_experts=6, shared_expert_intermediate_size=48, attn_implementation="eager"
        ),
        "flint-plain": lambda: transformers.FlintConfig(
            **sizes,
            head_dim=32,
            num_experts=4,
            sliding_window=24,
            layer_types=SLIDING,
            mlp_only_layers=[],
            norm_topk_prob=False,
            attention_bias=True,
            attn_implementation="eager",
        ),
        "kolibri1": lambda: transformers.Kolibri1Config(
            **{name: value for name, value in deep.items() if name != "intermediate_size"},
            num_experts=6,
            shared_expert_intermediate_size=48,
            norm_topk_prob=True,
        ),
        "cohere-compass": lambda: transformers.AutoConfig.for_model(
            "cohere_compass_text", **compass, rope_parameters=of_types
        ),
        "cohere-compass-alike": lambda: transformers.AutoConfig.for_model(
            "cohere_compass_text",
            **shape,
            rope_parameters={"full_attention": of_types["sliding_attention"]},
            attention_bias=True,
            tie_word_embeddings=False,
        ),
        "beam": lambda: transformers.BeamConfig(**deep, num_experts=8, n_group=4, topk_group=3),
        "beam-turned": lambda: transformers.BeamConfig(
            **sizes,
            head_dim=32,
            num_experts=4,
            n_group=1,
            topk_group=1,
            layer_types=SLIDING,
            sliding_window=24,
            mlp_layer_types=["sparse"] * 3,
            norm_topk_prob=False,
            final_logit_softcapping=None,
            rope_parameters={
                "full_attention": {"rope_type": "default", "rope_theta": 500.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
            },
        ),
        "muse-glimmer": lambda: transformers.MuseGlimmerConfig(
            text_config={**shape, "num_hidden_layers": 5, "head_dim": 16, "sliding_window": 24},
            vision_config={**vision, "pos_emb_height": 4, "pos_emb_width": 4},
            out_hidden_size=64,
            projector_hidden_size=16,
        ),
        "muse-spark": lambda: transformers.MuseSparkConfig(
            text_config={**sizes, **SPARK, "num_hidden_layers": 5, "mlp_layer_types": ["dense", *["sparse"] * 4]},
            vision_config={**vision, "pos_emb_height": 4, "pos_emb_width": 4},
            audio_config=SPARK_SOUNDS,
            out_hidden_size=64,
            projector_hidden_size=16,
        ),
        "cohere-compass-seeing": lambda: transformers.CohereCompassConfig(
            text_config={**compass, "rope_parameters": of_types},
            vision_config={
                "depth": 1,
                "hidden_size": 16,
                "intermediate_size": 16,
                "num_heads": 2,
                "out_hidden_size": shape["hidden_size"],
                "num_position_embeddings": 16,
                "deepstack_visual_indexes": [0],
            },
        ),
    }
