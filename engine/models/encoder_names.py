"""The many names that encoders' tensors have, as the one set that :class:`.encoder.Encoder` fills its weights by.

Those that checkpoints store fused are taken apart: queries, keys and values; gate and up.
"""

import re
from collections.abc import Iterable, Iterator, Mapping

import torch

from ..model_config.encoder_config import EncoderFamily

Split = tuple[str, ...]
"""The parts of a fused tensor, in order along its outputs."""

_QKV: Split = ("q", "k", "v")

_BERT = {
    r"encoder\.layer\.(\d+)\.attention\.self\.query": "layers.{}.q",
    r"encoder\.layer\.(\d+)\.attention\.self\.key": "layers.{}.k",
    r"encoder\.layer\.(\d+)\.attention\.self\.value": "layers.{}.v",
    r"encoder\.layer\.(\d+)\.attention\.output\.dense": "layers.{}.out",
    r"encoder\.layer\.(\d+)\.attention\.output\.LayerNorm": "layers.{}.attention_norm",
    r"encoder\.layer\.(\d+)\.intermediate\.dense": "layers.{}.up",
    r"encoder\.layer\.(\d+)\.output\.dense": "layers.{}.down",
    r"encoder\.layer\.(\d+)\.output\.LayerNorm": "layers.{}.mlp_norm",
}
_NEWER = {
    r"layers\.(\d+)\.self_attn\.q_proj": "layers.{}.q",
    r"layers\.(\d+)\.self_attn\.k_proj": "layers.{}.k",
    r"layers\.(\d+)\.self_attn\.v_proj": "layers.{}.v",
    r"layers\.(\d+)\.self_attn\.o_proj": "layers.{}.out",
    r"layers\.(\d+)\.post_attention_layernorm": "layers.{}.attention_norm",
    r"layers\.(\d+)\.mlp\.gate_proj": "layers.{}.gate",
    r"layers\.(\d+)\.mlp\.up_proj": "layers.{}.up",
    r"layers\.(\d+)\.mlp\.down_proj": "layers.{}.down",
    r"layers\.(\d+)\.post_mlp_layernorm": "layers.{}.mlp_norm",
}
_EMBEDDINGS = {
    r"embeddings\.word_embeddings": "embeddings.word",
    r"embeddings\.position_embeddings": "embeddings.position",
    r"embeddings\.token_type_embeddings": "embeddings.token_type",
    r"embeddings\.LayerNorm": "embeddings.norm",
}
_FLASH = {
    r"emb_ln": "embeddings.norm",
    r"encoder\.layers\.(\d+)\.mixer\.Wqkv": "layers.{}.qkv",
    r"encoder\.layers\.(\d+)\.mixer\.out_proj": "layers.{}.out",
    r"encoder\.layers\.(\d+)\.norm1": "layers.{}.attention_norm",
    r"encoder\.layers\.(\d+)\.mlp\.fc1": "layers.{}.up",
    r"encoder\.layers\.(\d+)\.mlp\.fc2": "layers.{}.down",
    r"encoder\.layers\.(\d+)\.norm2": "layers.{}.mlp_norm",
}
"""Of XLM-RoBERTa as Jina's own files have it."""
_PATTERNS: Mapping[EncoderFamily, Mapping[str, str]] = {
    "bert": {**_EMBEDDINGS, **_BERT},
    "roberta": {**_EMBEDDINGS, **_BERT, **_FLASH},
    "distilbert": {
        **_EMBEDDINGS,
        r"transformer\.layer\.(\d+)\.attention\.([qkv])_lin": "layers.{}.{}",
        r"transformer\.layer\.(\d+)\.attention\.out_lin": "layers.{}.out",
        r"transformer\.layer\.(\d+)\.sa_layer_norm": "layers.{}.attention_norm",
        r"transformer\.layer\.(\d+)\.ffn\.lin1": "layers.{}.up",
        r"transformer\.layer\.(\d+)\.ffn\.lin2": "layers.{}.down",
        r"transformer\.layer\.(\d+)\.output_layer_norm": "layers.{}.mlp_norm",
    },
    "mpnet": {
        **_EMBEDDINGS,
        **_BERT,
        r"encoder\.layer\.(\d+)\.attention\.attn\.([qkv])": "layers.{}.{}",
        r"encoder\.layer\.(\d+)\.attention\.attn\.o": "layers.{}.out",
        r"encoder\.layer\.(\d+)\.attention\.LayerNorm": "layers.{}.attention_norm",
        r"encoder\.relative_attention_bias": "relative",
    },
    "modernbert": {
        r"embeddings\.tok_embeddings": "embeddings.word",
        r"embeddings\.norm": "embeddings.norm",
        r"layers\.(\d+)\.attn\.Wqkv": "layers.{}.qkv",
        r"layers\.(\d+)\.attn\.Wo": "layers.{}.out",
        r"layers\.(\d+)\.attn_norm": "layers.{}.attention_norm",
        r"layers\.(\d+)\.mlp\.Wi": "layers.{}.gate_up",
        r"layers\.(\d+)\.mlp\.Wo": "layers.{}.down",
        r"layers\.(\d+)\.mlp_norm": "layers.{}.mlp_norm",
        r"final_norm": "final_norm",
    },
    "nomic_bert": {
        **_EMBEDDINGS,
        **_NEWER,
        r"emb_ln": "embeddings.norm",
        r"encoder\.layers\.(\d+)\.attn\.Wqkv": "layers.{}.qkv",
        r"encoder\.layers\.(\d+)\.attn\.out_proj": "layers.{}.out",
        r"encoder\.layers\.(\d+)\.norm1": "layers.{}.attention_norm",
        r"encoder\.layers\.(\d+)\.mlp\.fc11": "layers.{}.up",
        r"encoder\.layers\.(\d+)\.mlp\.fc12": "layers.{}.gate",
        r"encoder\.layers\.(\d+)\.mlp\.fc2": "layers.{}.down",
        r"encoder\.layers\.(\d+)\.norm2": "layers.{}.mlp_norm",
    },
    "gte": {
        **_EMBEDDINGS,
        **_NEWER,
        r"encoder\.layer\.(\d+)\.attention\.qkv_proj": "layers.{}.qkv",
        r"encoder\.layer\.(\d+)\.attention\.o_proj": "layers.{}.out",
        r"encoder\.layer\.(\d+)\.attn_ln": "layers.{}.attention_norm",
        r"encoder\.layer\.(\d+)\.mlp\.up_gate_proj": "layers.{}.up_gate",
        r"encoder\.layer\.(\d+)\.mlp\.down_proj": "layers.{}.down",
        r"encoder\.layer\.(\d+)\.mlp_ln": "layers.{}.mlp_norm",
    },
    "jina": {
        **_EMBEDDINGS,
        **_NEWER,
        **_FLASH,
        r"layers\.(\d+)\.mlp\.fc1": "layers.{}.up",
        r"layers\.(\d+)\.mlp\.fc2": "layers.{}.down",
    },
}
_SPLITS: Mapping[str, Split] = {"qkv": _QKV, "gate_up": ("gate", "up"), "up_gate": ("up", "gate")}
_BACKBONES = re.compile(r"(?:bert|roberta|distilbert|mpnet|model|nomic_bert|gte|new)\.")
"""What a model with a head puts before the names of the encoder."""
_OLD_ENDINGS = {"gamma": "weight", "beta": "bias"}
_ADAPTED = re.compile(r"(.+)\.parametrizations\.weight\.(?:(original)|0\.(lora_[AB]))")
"""A weight to which tasks add something: itself, and what is added."""


def canonical(family: EncoderFamily, tensors: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors under the names of :class:`.encoder.Encoder`, fused ones in parts; those of a head keep theirs."""
    patterns = [(re.compile(pattern), target) for pattern, target in _PATTERNS[family].items()]
    for stored, tensor in tensors:
        if (adapted := _ADAPTED.fullmatch(stored)) is not None:
            module, ending = adapted[1], adapted[3] or "weight"
        else:
            module, _, ending = stored.rpartition(".")
        if (prefix := _BACKBONES.match(module)) is not None:
            module = module[prefix.end() :]
        ending = _OLD_ENDINGS.get(ending, ending)
        name = _renamed(patterns, module)
        if name is None:
            yield f"{module}.{ending}" if module else ending, tensor
            continue
        front, _, last = name.rpartition(".")
        parts = _SPLITS.get(last)
        if parts is None or ending.startswith("lora"):
            yield f"{name}.{ending}", tensor
            continue
        for part, piece in zip(parts, tensor.chunk(len(parts)), strict=True):
            yield f"{front}.{part}.{ending}", piece


def _renamed(patterns: list[tuple[re.Pattern[str], str]], module: str) -> str | None:
    for pattern, target in patterns:
        if (found := pattern.fullmatch(module)) is not None:
            return target.format(*found.groups())
    return None
