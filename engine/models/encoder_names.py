"""Maps the tensor names of encoder checkpoints to the one set of names of :class:`.encoder.Encoder`.

Layer names are those that transformers' newer encoders and decoders share. Fused tensors are split: queries, keys and
values; gate and up.
"""

import re
from collections.abc import Iterable, Iterator, Mapping

import torch

from ..model_config.spec.encoder import EncoderFamily

Split = tuple[str, ...]
"""The parts of a fused tensor, in order along its outputs."""

_BERT = {
    r"encoder\.layer\.(\d+)\.attention\.self\.query": "layers.{}.self_attn.q_proj",
    r"encoder\.layer\.(\d+)\.attention\.self\.key": "layers.{}.self_attn.k_proj",
    r"encoder\.layer\.(\d+)\.attention\.self\.value": "layers.{}.self_attn.v_proj",
    r"encoder\.layer\.(\d+)\.attention\.output\.dense": "layers.{}.self_attn.o_proj",
    r"encoder\.layer\.(\d+)\.attention\.output\.LayerNorm": "layers.{}.post_attention_layernorm",
    r"encoder\.layer\.(\d+)\.intermediate\.dense": "layers.{}.mlp.up_proj",
    r"encoder\.layer\.(\d+)\.output\.dense": "layers.{}.mlp.down_proj",
    r"encoder\.layer\.(\d+)\.output\.LayerNorm": "layers.{}.post_mlp_layernorm",
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
    r"encoder\.layers\.(\d+)\.mixer\.out_proj": "layers.{}.self_attn.o_proj",
    r"encoder\.layers\.(\d+)\.norm1": "layers.{}.post_attention_layernorm",
    r"encoder\.layers\.(\d+)\.mlp\.fc1": "layers.{}.mlp.up_proj",
    r"encoder\.layers\.(\d+)\.mlp\.fc2": "layers.{}.mlp.down_proj",
    r"encoder\.layers\.(\d+)\.norm2": "layers.{}.post_mlp_layernorm",
}
"""XLM-RoBERTa in the files of Jina."""
_PATTERNS: Mapping[EncoderFamily, Mapping[str, str]] = {
    "bert": {
        **_EMBEDDINGS,
        **_BERT,
        r"embeddings\.task_type_embeddings": "embeddings.task_type",
    },
    "electra": {**_EMBEDDINGS, **_BERT, r"embeddings_project": "embeddings.project"},
    "roberta": {**_EMBEDDINGS, **_BERT, **_FLASH},
    "distilbert": {
        **_EMBEDDINGS,
        r"transformer\.layer\.(\d+)\.attention\.([qkv])_lin": "layers.{}.self_attn.{}_proj",
        r"transformer\.layer\.(\d+)\.attention\.out_lin": "layers.{}.self_attn.o_proj",
        r"transformer\.layer\.(\d+)\.sa_layer_norm": "layers.{}.post_attention_layernorm",
        r"transformer\.layer\.(\d+)\.ffn\.lin1": "layers.{}.mlp.up_proj",
        r"transformer\.layer\.(\d+)\.ffn\.lin2": "layers.{}.mlp.down_proj",
        r"transformer\.layer\.(\d+)\.output_layer_norm": "layers.{}.post_mlp_layernorm",
    },
    "mpnet": {
        **_EMBEDDINGS,
        **_BERT,
        r"encoder\.layer\.(\d+)\.attention\.attn\.([qkv])": "layers.{}.self_attn.{}_proj",
        r"encoder\.layer\.(\d+)\.attention\.attn\.o": "layers.{}.self_attn.o_proj",
        r"encoder\.layer\.(\d+)\.attention\.LayerNorm": "layers.{}.post_attention_layernorm",
        r"encoder\.relative_attention_bias": "relative",
    },
    "modernbert": {
        r"embeddings\.tok_embeddings": "embeddings.word",
        r"layers\.(\d+)\.attn\.Wqkv": "layers.{}.qkv",
        r"layers\.(\d+)\.attn\.Wo": "layers.{}.self_attn.o_proj",
        r"layers\.(\d+)\.attn_norm": "layers.{}.input_layernorm",
        r"layers\.(\d+)\.mlp\.Wi": "layers.{}.gate_up",
        r"layers\.(\d+)\.mlp\.Wo": "layers.{}.mlp.down_proj",
        r"layers\.(\d+)\.mlp_norm": "layers.{}.post_attention_layernorm",
    },
    "nomic_bert": {
        **_EMBEDDINGS,
        r"emb_ln": "embeddings.norm",
        r"encoder\.layers\.(\d+)\.attn\.Wqkv": "layers.{}.qkv",
        r"encoder\.layers\.(\d+)\.attn\.out_proj": "layers.{}.self_attn.o_proj",
        r"encoder\.layers\.(\d+)\.norm1": "layers.{}.post_attention_layernorm",
        r"encoder\.layers\.(\d+)\.mlp\.fc11": "layers.{}.mlp.up_proj",
        r"encoder\.layers\.(\d+)\.mlp\.fc12": "layers.{}.mlp.gate_proj",
        r"encoder\.layers\.(\d+)\.mlp\.fc2": "layers.{}.mlp.down_proj",
        r"encoder\.layers\.(\d+)\.norm2": "layers.{}.post_mlp_layernorm",
    },
    "gte": {
        **_EMBEDDINGS,
        r"encoder\.layer\.(\d+)\.attention\.qkv_proj": "layers.{}.qkv",
        r"encoder\.layer\.(\d+)\.attention\.o_proj": "layers.{}.self_attn.o_proj",
        r"encoder\.layer\.(\d+)\.attn_ln": "layers.{}.post_attention_layernorm",
        r"encoder\.layer\.(\d+)\.mlp\.up_gate_proj": "layers.{}.up_gate",
        r"encoder\.layer\.(\d+)\.mlp\.down_proj": "layers.{}.mlp.down_proj",
        r"encoder\.layer\.(\d+)\.mlp_ln": "layers.{}.post_mlp_layernorm",
    },
    "jina": {
        **_EMBEDDINGS,
        **_FLASH,
        r"layers\.(\d+)\.mlp\.fc1": "layers.{}.mlp.up_proj",
        r"layers\.(\d+)\.mlp\.fc2": "layers.{}.mlp.down_proj",
    },
    "clip": {
        r"text_model\.embeddings\.token_embedding": "embeddings.word",
        r"text_model\.embeddings\.position_embedding": "embeddings.position",
        r"text_model\.encoder\.layers\.(\d+)\.self_attn\.([qkv])_proj": "layers.{}.self_attn.{}_proj",
        r"text_model\.encoder\.layers\.(\d+)\.self_attn\.out_proj": "layers.{}.self_attn.o_proj",
        r"text_model\.encoder\.layers\.(\d+)\.layer_norm1": "layers.{}.input_layernorm",
        r"text_model\.encoder\.layers\.(\d+)\.layer_norm2": "layers.{}.post_attention_layernorm",
        r"text_model\.encoder\.layers\.(\d+)\.mlp\.fc1": "layers.{}.mlp.up_proj",
        r"text_model\.encoder\.layers\.(\d+)\.mlp\.fc2": "layers.{}.mlp.down_proj",
        r"text_model\.final_layer_norm": "final_norm",
        r"text_projection|text_model\.head": "projection",
    },
}
_SPLITS: Mapping[str, Split] = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "up_gate": ("mlp.up_proj", "mlp.gate_proj"),
}
_BACKBONES = re.compile(r"(?:bert|electra|ernie|roberta|data2vec_text|distilbert|mpnet|model|nomic_bert|gte|new)\.")
"""Prefixes of the encoder in models with a head."""
_OLD_ENDINGS = {"gamma": "weight", "beta": "bias"}
_ADAPTED = re.compile(r"(.+)\.parametrizations\.weight\.(?:(original)|0\.(lora_[AB]))")
"""A weight with task adapters: the original, and A and B."""


def parts_of(family: EncoderFamily, module: str) -> tuple[str, ...]:
    """The names in :class:`.encoder.Encoder` of a linear layer that a checkpoint calls ``module``.

    Several, in order, for a fused one. An unknown name is returned unchanged.
    """
    if (prefix := _BACKBONES.match(module)) is not None:
        module = module[prefix.end() :]
    name = _renamed([(re.compile(pattern), target) for pattern, target in _PATTERNS[family].items()], module)
    if name is None:
        return (module,)
    front, _, last = name.rpartition(".")
    return tuple(f"{front}.{part}" for part in _SPLITS[last]) if last in _SPLITS else (name,)


def canonical(family: EncoderFamily, tensors: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors under the names of :class:`.encoder.Encoder`: fused ones split, task adapters under the first part's
    name.

    Tensors of a head keep their names.
    """
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
        if parts is None:
            yield f"{name}.{ending}", tensor
        elif ending.startswith("lora"):
            yield f"{front}.{parts[0]}.{ending}", tensor
        else:
            for part, piece in zip(parts, tensor.chunk(len(parts)), strict=True):
                yield f"{front}.{part}.{ending}", piece


def _renamed(patterns: list[tuple[re.Pattern[str], str]], module: str) -> str | None:
    for pattern, target in patterns:
        if (found := pattern.fullmatch(module)) is not None:
            return target.format(*found.groups())
    return None
