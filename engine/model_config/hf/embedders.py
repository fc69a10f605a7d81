"""Reads the config.json of embedders, rerankers and token classifiers that are decoders under names of their own."""

from collections.abc import Callable, Mapping
from typing import Final

from msgspec.structs import replace

from ..config_fields import Fields
from ..spec.layer import PerLayerSpec
from ..spec.mlp import MoESpec
from ..spec.model import ModelSpec, dense_mlp, with_layers, with_mixers
from ..spec.recurrent import ShortConvSpec
from .common import attention_bias, common, slide
from .dense import llama, qwen3
from .gemma4 import gemma4
from .hybrid import lfm2
from .latent import deepseek_v3
from .moe import gpt_oss

_EMBEDDING_GEMMA2: Final = {
    "vocab_size": 262_144,
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_hidden_layers": 24,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "max_position_embeddings": 262_144,
    "sliding_window": 512,
    "hidden_size_per_layer_input": 512,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        "full_attention": {"rope_type": "default", "rope_theta": 1_000_000.0},
    },
}
"""Defaults."""


def _both_ways(spec: ModelSpec) -> ModelSpec:
    return replace(spec, bidirectional=True)


def _llama(fields: Fields, name: str) -> ModelSpec:
    """NVIDIA's embedders and rerankers."""
    return _both_ways(llama(fields, name))


def _eurobert(fields: Fields, name: str) -> ModelSpec:
    """EuroBERT (arXiv:2503.05500): a Llama that looks both ways."""
    spec = attention_bias(fields, common(fields, name, eps=1e-5))
    return _both_ways(with_layers(spec, mlp=replace(dense_mlp(spec), bias=fields.flag("mlp_bias"))))


def _qwen3(fields: Fields, name: str) -> ModelSpec:
    """Voyage's embedder, and Giga-Embeddings."""
    return _both_ways(qwen3(fields, name))


def _deepseek3(fields: Fields, name: str) -> ModelSpec:
    """Giga-Embeddings: a DeepSeek-V3 that looks both ways."""
    return _both_ways(deepseek_v3(fields, name))


def _jina(fields: Fields, name: str) -> ModelSpec:
    """Jina's fifth embedders: a Qwen3, or a EuroBERT, whose description tells by ``is_decoder`` alone. The adapters of
    its tasks keep texts apart, so that they share no cache."""
    if not fields.flag("is_decoder", True):
        return _eurobert(fields, name)
    return replace(qwen3(fields, name), by_text=True)


def _privacy_filter(fields: Fields, name: str) -> ModelSpec:
    """OpenAI's privacy filter: gpt-oss, all of whose layers see a window in both directions."""
    spec = gpt_oss(fields, name)
    rope = spec.layers[0].attention.rope
    assert rope is not None
    spec = with_mixers(spec, rope=replace(rope, interleaved=True))
    moe = spec.layers[0].mlp
    assert isinstance(moe, MoESpec)
    names = tuple(replace(each, interleaved=False) for each in moe.names)
    spec = with_layers(spec, mlp=replace(moe, names=names))
    window = fields.integer("sliding_window", 128) + 1
    return _both_ways(slide(spec, window, [True] * len(spec.layers)))


def _lfm2(fields: Fields, name: str) -> ModelSpec:
    """LFM2.5-Embedding: convolutions see both sides too."""
    spec = lfm2(fields, name)
    layers = (
        replace(each, mixer=replace(each.mixer, centered=True)) if isinstance(each.mixer, ShortConvSpec) else each
        for each in spec.layers
    )
    return _both_ways(replace(spec, layers=tuple(layers)))


def _embedding_gemma2(fields: Fields, name: str) -> ModelSpec:
    """EmbeddingGemma 2: a Gemma 4 that looks both ways, whose inputs of each layer are projected embeddings alone. Its
    encoders of media are not used."""
    inside = fields.table("text_config")
    text = Fields({**_EMBEDDING_GEMMA2, **(fields.values if inside is None else inside)})
    radius = text.integer("sliding_window")
    told: dict[str, object] = {"sliding_window": radius + 1, "num_kv_shared_layers": 0, "enable_moe_block": False}
    dim = text.integer("hidden_size_per_layer_input")
    told |= {"hidden_size_per_layer_input": None, "attention_k_eq_v": False}
    made = gemma4(Fields({**text.values, **told}), name)
    per_layer = PerLayerSpec(0, dim, name="model.ple", block="ple_block.")
    return _both_ways(replace(made, per_layer=per_layer, text_part=inside is not None))


EMBEDDERS: Final[Mapping[str, Callable[[Fields, str], ModelSpec]]] = {
    "DeepseekV3Bidirectional": _deepseek3,
    "EmbeddingGemma2": _embedding_gemma2,
    "EmbeddingGemma2Text": _embedding_gemma2,
    "EuroBert": _eurobert,
    "JinaEmbeddingsV5": _jina,
    "Lfm2Bidirectional": _lfm2,
    "LlamaBidirectional": _llama,
    **dict.fromkeys(("Qwen3Bidirectional", "VoyageQwen3BidirectionalEmbed"), _qwen3),
    "OpenAIPrivacyFilter": _privacy_filter,
}
"""Readers by architecture, without the ending that names its head."""
