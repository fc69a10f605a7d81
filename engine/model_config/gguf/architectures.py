"""GGUF architectures determined by their name: dense ones, and mixtures of experts like them."""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from ..hf.variants import COHERE, GLM4, LAYER_NORM
from ..spec.attention import QKNorm
from ..spec.layer import PRE, Norms
from ..spec.mlp import FUSED_MLP, UP_MLP
from ..spec.model import POST, SANDWICH


class GGUFArchitecture(msgspec.Struct, frozen=True):
    """The properties of an architecture."""

    name: str
    """transformers' class."""
    norms: Norms = PRE
    qk_norm: QKNorm = "none"
    fused: bool = False
    """Whether queries, keys and values are stored as one matrix, and gate and up as another."""
    permuted: bool = False
    """Whether query and key rows are stored as interleaved rotary pairs."""
    gemma: bool = False
    """Whether it uses GELU and scaled embeddings."""
    plus_one: bool = False
    """Whether norms are stored with 1 added."""
    interleaved: bool = False
    """Whether adjacent dimensions rotate together."""
    still_full: bool = False
    """Whether layers without a window do not rotate if others have one."""
    still_pattern: int = 0
    """Period of layers that do not rotate; 0: all rotate."""
    multiplied_logits: bool = False
    """Whether ``logit_scale`` multiplies logits, not divides them."""
    mixer: Mapping[str, Any] = msgspec.field(default_factory=dict)
    mlp: Mapping[str, Any] = msgspec.field(default_factory=dict)
    layer: Mapping[str, Any] = msgspec.field(default_factory=dict)
    model: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """Further fields of each spec."""
    windowed: bool = False
    """Whether every layer has the window."""
    window_pattern: int = 0
    """Period of full layers, the others having a window; 0: all are alike."""
    local_theta: float | None = None
    """Rotary base of layers with a window, if different."""
    attention_softcap: float = 0.0
    logits_softcap: float = 0.0
    experts: Literal["none", "renormalized", "as scored"] = "none"
    """Whether it may be a mixture of experts, and whether their weights are renormalised."""
    mixture: str = ""
    """transformers' class as a mixture, if it is not :attr:`name`."""


_RELU2: Mapping[str, Any] = {"activation": "relu2", "gated": False, "into": UP_MLP}

ARCHITECTURES: Mapping[str, GGUFArchitecture] = {
    "llama": GGUFArchitecture("LlamaForCausalLM", permuted=True, experts="renormalized", mixture="MixtralForCausalLM"),
    "qwen2": GGUFArchitecture("Qwen2ForCausalLM"),
    "qwen3": GGUFArchitecture("Qwen3ForCausalLM", qk_norm="head"),
    "phi3": GGUFArchitecture("Phi3ForCausalLM", fused=True, windowed=True),
    "gemma2": GGUFArchitecture(
        "Gemma2ForCausalLM",
        norms=SANDWICH,
        gemma=True,
        plus_one=True,
        window_pattern=2,
        attention_softcap=50.0,
        logits_softcap=30.0,
    ),
    "gemma3": GGUFArchitecture(
        "Gemma3ForCausalLM",
        norms=SANDWICH,
        qk_norm="head",
        gemma=True,
        plus_one=True,
        window_pattern=6,
        local_theta=10000.0,
    ),
    "olmo2": GGUFArchitecture("Olmo2ForCausalLM", norms=POST, qk_norm="full"),
    "granite": GGUFArchitecture("GraniteForCausalLM", permuted=True),
    "gemma": GGUFArchitecture("GemmaForCausalLM", gemma=True, plus_one=True),
    "smollm3": GGUFArchitecture("SmolLM3ForCausalLM", permuted=True, still_pattern=4),
    "exaone4": GGUFArchitecture("Exaone4ForCausalLM", norms=POST, qk_norm="head", window_pattern=4, still_full=True),
    "exaone": GGUFArchitecture("ExaoneForCausalLM"),
    "internlm2": GGUFArchitecture("InternLM2ForCausalLM", permuted=True),
    "seed_oss": GGUFArchitecture("SeedOssForCausalLM"),
    "glm4": GGUFArchitecture("Glm4ForCausalLM", norms=GLM4, interleaved=True, mlp={"into": FUSED_MLP}),
    "chatglm": GGUFArchitecture("GlmForCausalLM", interleaved=True, fused=True),
    "ernie4_5": GGUFArchitecture("Ernie4_5ForCausalLM", interleaved=True),
    "command-r": GGUFArchitecture(
        "CohereForCausalLM", norms=COHERE, interleaved=True, multiplied_logits=True, layer={"parallel": True}
    ),
    "cohere2": GGUFArchitecture(
        "Cohere2ForCausalLM",
        norms=COHERE,
        interleaved=True,
        window_pattern=4,
        still_full=True,
        multiplied_logits=True,
        layer={"parallel": True},
    ),
    "hunyuan-dense": GGUFArchitecture(
        "HunYuanDenseV1ForCausalLM",
        qk_norm="head",
        mixer={"qk_norm_names": ("query_layernorm", "key_layernorm"), "rotated_first": True},
    ),
    "arcee": GGUFArchitecture("ArceeForCausalLM", permuted=True, mlp=_RELU2),
    "nemotron": GGUFArchitecture("NemotronForCausalLM", norms=LAYER_NORM, plus_one=True, mlp=_RELU2),
    "starcoder2": GGUFArchitecture(
        "Starcoder2ForCausalLM",
        norms=LAYER_NORM,
        mlp={"activation": "gelu_tanh", "gated": False, "into": ("mlp.c_fc",), "out": "mlp.c_proj"},
    ),
    "stablelm": GGUFArchitecture("StableLmForCausalLM", norms=LAYER_NORM),
    "phi2": GGUFArchitecture(
        "PhiForCausalLM",
        norms=LAYER_NORM,
        mixer={"out": "dense"},
        mlp={"activation": "gelu_tanh", "gated": False, "into": ("mlp.fc1",), "out": "mlp.fc2"},
        model={"final_norm": "model.final_layernorm"},
    ),
    "qwen3moe": GGUFArchitecture("Qwen3MoeForCausalLM", qk_norm="head", experts="renormalized"),
    "olmoe": GGUFArchitecture("OlmoeForCausalLM", qk_norm="full", experts="as scored"),
    "qwen2vl": GGUFArchitecture("Qwen2VLForConditionalGeneration"),
    "qwen3vl": GGUFArchitecture("Qwen3VLForConditionalGeneration", qk_norm="head"),
    "qwen3vlmoe": GGUFArchitecture("Qwen3VLMoeForConditionalGeneration", qk_norm="head", experts="renormalized"),
}
