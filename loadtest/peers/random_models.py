"""Full-size models whose weights are made up: the numbers of a published ``config.json``, as a GGUF file tells them.

A machine that reads no hub can measure their speed, which the values of weights do not change.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from ..series import CONFIGS

PREFIX: Final = "random:"
"""What a model's name begins with where its weights are made up."""


class RandomModel(NamedTuple):
    """A decoder of a family that transformers and llama.cpp both have."""

    about: str
    """Which configuration it has, and what is left out of it."""
    folder: str
    """Below ``loadtest/configs``."""
    fewer: Mapping[str, int] = {}
    """Numbers in place of the configuration's."""
    part: str = ""
    """Which part of the configuration it is, where the published model takes more than text."""
    tokens: Mapping[int, str] = {}
    """Special tokens behind those of another vocabulary, by id."""

    def config(self) -> Any:
        """transformers' configuration."""
        import transformers  # late: it takes seconds

        published = json.loads((CONFIGS / self.folder / "config.json").read_text(encoding="utf-8"))
        published = published[self.part] if self.part else published
        return transformers.AutoConfig.for_model(**{**published, **self.fewer})


RANDOM_MODELS: Final[Mapping[str, RandomModel]] = {
    "qwen3-30b-a3b": RandomModel("Qwen3-30B-A3B", "qwen3-30b-a3b"),
    "qwen3-30b-a3b-32-experts": RandomModel(
        "Qwen3-30B-A3B with 32 of its 128 experts", "qwen3-30b-a3b", {"num_experts": 32}
    ),
    "qwen3-30b-a3b-16-layers": RandomModel(
        "Qwen3-30B-A3B with 16 of its 48 layers", "qwen3-30b-a3b", {"num_hidden_layers": 16}
    ),
    "qwen3-1.7b": RandomModel("Qwen3-1.7B", "qwen3-1.7b"),
    "lfm2-1.2b": RandomModel("LFM2-1.2B", "lfm2-1.2b"),
}


class Tensor(NamedTuple):
    """One tensor of the file: rows of ``shape[-1]`` values."""

    name: str
    shape: tuple[int, ...]
    quantized: bool


def architecture(config: Any) -> str:
    """What a GGUF file calls the family."""
    return str(config.model_type).replace("_", "")


def tensors(config: Any) -> Iterator[Tensor]:
    """All of the file: transformers' parameters under llama.cpp's names."""
    import gguf  # late: a development dependency
    import torch
    import transformers

    with torch.device("meta"):
        model: Any = transformers.AutoModelForCausalLM.from_config(config)
    family = next(each for each, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture(config))
    names = gguf.get_tensor_name_map(family, config.num_hidden_layers)
    for name, weight in model.named_parameters():
        own, shape = name.removesuffix(".weight"), tuple(weight.shape)
        parts = [own]
        if own.endswith(".gate_up_proj"):  # of all experts at once
            parts = [own.replace("gate_up", which) for which in ("gate", "up")]
            shape = (shape[0], shape[1] // 2, shape[2])
        for part in parts:
            stored = names.get_name(part)
            assert stored is not None, f"llama.cpp has no {part}"
            plain = len(shape) == 1 or stored.endswith(("ffn_gate_inp", "shortconv.conv"))
            yield Tensor(f"{stored}.weight", (shape[0], shape[-1]) if plain and shape[1:] else shape, not plain)


def metadata(config: Any, stored: Sequence[Tensor]) -> dict[str, int | float | list[int]]:
    """Keys of the file below the architecture's name; ``stored`` are its tensors."""
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    kinds = getattr(config, "layer_types", None) or []
    mixed = [0 if kind == "conv" else kv_heads for kind in kinds] if "conv" in kinds else None
    inner = next(tensor.shape[-2] for tensor in stored if tensor.name.startswith("blk.0.ffn_up"))
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    found: dict[str, int | float | list[int]] = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": inner,
        "vocab_size": config.vocab_size,
        "attention.head_count": heads,
        "attention.head_count_kv": mixed or kv_heads,
        "attention.key_length": width,
        "attention.value_length": width,
        "attention.layer_norm_rms_epsilon": float(getattr(config, "rms_norm_eps", None) or config.norm_eps),
        "rope.freq_base": float(config.rope_parameters["rope_theta"]),
    }
    if experts := getattr(config, "num_experts", 0):
        found |= {
            "expert_count": experts,
            "expert_used_count": config.num_experts_per_tok,
            "expert_feed_forward_length": inner,
        }
    if mixed:
        found["shortconv.l_cache"] = config.conv_L_cache
    return found
